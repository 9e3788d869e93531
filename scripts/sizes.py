# SPDX-License-Identifier: Apache-2.0
"""Print how many lines each language and folder has, and how many more or fewer than on another commit.

    scripts/sizes.py [COMMIT]

COMMIT is by default where this branch left ``origin/main``, or ``main``; else the commit before. The working tree is
counted, so the report says what a change adds before it is committed. It is a report and no limit.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
LANGUAGES = {
    "C++": ("core/", (".h", ".cc", ".c")),
    "Python": ("src/", (".py", ".pyi", ".pyx", ".pxi")),
    "TypeScript": ("js/", (".ts", ".c", ".h")),
    "tests": ("", (".h", ".cc", ".c", ".py", ".ts")),
}
TESTS = ("tests/", "core/tests/", "core/fuzz/", "js/test/")
LEFT_OUT = ("examples/", "benchmarks/", "scripts/", "docs/", "js/bench/")


def place_of(path: str) -> tuple[str, str] | None:
    """Return the language and the folder that a file counts for; None for one that is not counted."""
    if path.startswith(LEFT_OUT):
        return None
    is_test = path.startswith(TESTS)
    for language, (top, suffixes) in LANGUAGES.items():
        if path.startswith(top) and path.endswith(suffixes) and is_test == (language == "tests"):
            parts = Path(path).parts[:-1]
            return language, "/".join(parts[:1] if is_test and parts[0] == "tests" else parts)
    return None


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def base() -> str:
    """Return the commit to compare with: where this branch left the main one; on the main one, the commit before."""
    head = git("rev-parse", "HEAD").strip()
    for branch in ("origin/main", "main"):
        found = subprocess.run(["git", "merge-base", "HEAD", branch], cwd=ROOT, capture_output=True, text=True)
        if found.returncode == 0 and found.stdout.strip() != head:
            return found.stdout.strip()
    return "HEAD~" if git("rev-list", "--count", "HEAD").strip() != "1" else "HEAD"


def count(commit: str) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """Return the lines of each place in the working tree, and by how many they changed since a commit."""
    now: Counter[tuple[str, str]] = Counter()
    change: Counter[tuple[str, str]] = Counter()
    new = set(git("ls-files", "--others", "--exclude-standard").splitlines())
    for path in {*git("ls-files").splitlines(), *new}:
        place, file = place_of(path), ROOT / path
        if place and file.is_file():
            lines = file.read_bytes().count(b"\n")
            now[place] += lines
            change[place] += lines * (path in new)
    for line in git("diff", "--numstat", "--no-renames", commit).splitlines():
        added, removed, path = line.split("\t")
        if (place := place_of(path)) and added != "-":
            change[place] += int(added) - int(removed)
    return now, change


def main() -> None:
    commit = sys.argv[1] if len(sys.argv) > 1 else base()
    now, change = count(commit)
    print(f"lines, and the change since {git('rev-parse', '--short', commit).strip()}:")
    for language in LANGUAGES:
        places = sorted({place for place in (*now, *change) if place[0] == language})
        print(f"  {language:<34}{sum(now[p] for p in places):>8}{sum(change[p] for p in places):>+8}")
        for place in places:
            if change[place]:
                print(f"    {place[1]:<32}{now[place]:>8}{change[place]:>+8}")


if __name__ == "__main__":
    main()
