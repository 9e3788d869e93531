# SPDX-License-Identifier: Apache-2.0
"""Write the page of the site that lists every source file with the first sentence of its first comment.

Usage: list_files.py [FOLDER]...
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOPS = ("core", "src/portcall", "js/src", "js/addon")
SUFFIXES = (".h", ".cc", ".c", ".py", ".pyx", ".pxi", ".ts")  # a header speaks for its source
LEFT_OUT = {"tests", "fuzz"}
START = """# Files

Every source file, by the first sentence of its first comment. `scripts/list_files.py` writes this page;
[architecture.md](architecture.md) says how the files work together.
"""


def first_sentence(path: Path) -> str:
    """Return the first sentence of a file's docstring, or of its first comment after the licence; empty without one."""
    text = path.read_text()
    if path.suffix == ".py":
        said = ast.get_docstring(ast.parse(text)) or ""
    else:
        text = re.sub(r"^(?:(?:#!|# cython|(?://|#) (?:SPDX|Generated)).*\n)+", "", text).lstrip()
        block = re.search(r'(?:^(?://|#(?!\w))[^\n]*\n)+|^/\*.*?\*/|^""".*?"""', text, re.DOTALL | re.MULTILINE)
        said = re.sub(r'^\s*(?://|#|/\*+|\*/|\*|""")|\*/$|"""$', "", block[0], flags=re.MULTILINE) if block else ""
    found = re.match(r"(.+?)(?:\.(?=\s|$)|::|$)", " ".join(said.split("\n\n")[0].split()))
    return found[1].strip() if found else ""


def files(tops: tuple[str, ...] = TOPS) -> dict[Path, str]:
    """Return the source files that git knows, or will, as ``folder/stem``, with what they say of themselves."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *tops]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    known = [Path(name) for name in names if name.endswith(SUFFIXES) and not LEFT_OUT & set(Path(name).parts)]
    found: dict[Path, str] = {}
    for path in sorted(known, key=lambda path: (path.parent, path.stem, SUFFIXES.index(path.suffix))):
        if (ROOT / path).is_file():
            stem = path.with_suffix("")
            found[stem] = found.get(stem) or first_sentence(ROOT / path)
    return found


def escaped(text: str) -> str:
    """Return a sentence as it is to be shown; what is in backquotes stays."""
    parts = text.replace("``", "`").split("`")
    return "`".join(part if k % 2 else re.sub(r"([\[\]<*_])", r"\\\1", part) for k, part in enumerate(parts))


def page(tops: tuple[str, ...] = TOPS) -> str:
    lines, folder = [START], None
    for path, said in files(tops).items():
        if path.parent != folder:
            folder = path.parent
            lines.append(f"\n## {folder}\n")
        lines.append(f"* `{path.name}`: {escaped(said)}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page(tuple(sys.argv[1:]) or TOPS))
