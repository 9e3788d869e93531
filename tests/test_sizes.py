# SPDX-License-Identifier: Apache-2.0
"""No file is too long to read; what folders have in all is a report, see ``scripts/sizes.py``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUFFIXES = {".c", ".py", ".pyx", ".pxi", ".pyi", ".cc", ".h", ".ts"}

LONGEST_FILE = 700
NOT_COUNTED = {"tests", "fuzz", "node_modules"}


def sources() -> list[Path]:
    tops = ("core", "src", "js/src", "js/addon")
    files = [path for top in tops for path in (ROOT / top).rglob("*") if path.suffix in SUFFIXES]
    return sorted(path for path in files if not NOT_COUNTED & set(path.parts))


def lines(path: Path) -> int:
    return path.read_text().count("\n")


def files_of_tests() -> list[Path]:
    files = [path for top in ("core/tests", "tests", "js/test") for path in (ROOT / top).rglob("*")]
    return sorted(path for path in files if path.suffix in SUFFIXES)


def test_no_file_is_too_long() -> None:
    lengths = {str(path.relative_to(ROOT)): lines(path) for path in [*sources(), *files_of_tests()]}
    assert {name: n for name, n in lengths.items() if n > LONGEST_FILE} == {}, "split these"


def test_report_of_sizes_adds_up(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", *who, *words], cwd=tmp_path, check=True, capture_output=True)

    script = tmp_path / "scripts" / "sizes.py"
    for path, text in (("core/a.cc", "1\n2\n"), ("src/b.py", "1\n"), ("tests/c.py", "1\n"), ("README.md", "1\n")):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    script.parent.mkdir()
    script.write_text((ROOT / "scripts" / "sizes.py").read_text())
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    (tmp_path / "core" / "a.cc").write_text("1\n")
    (tmp_path / "src" / "new.py").write_text("1\n2\n3\n")
    told = subprocess.run([sys.executable, script, "HEAD"], check=True, capture_output=True, text=True).stdout
    rows = {tuple(line.split()) for line in told.splitlines()[1:]}
    assert {
        ("C++", "1", "-1"),
        ("core", "1", "-1"),
        ("Python", "4", "+3"),
        ("src", "4", "+3"),
        ("tests", "1", "+0"),
    } <= rows
