# SPDX-License-Identifier: Apache-2.0
"""Check that programs and libraries run with an old glibc: needed_glibc.py TARGET FILE..."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from elftools.elf.elffile import ELFFile

from portcall.board import OLDEST

Version = tuple[int, ...]


def newest_needed(path: Path) -> Version:
    """Return the newest version of glibc that a symbol of the file asks for."""
    with path.open("rb") as file:
        section: Any = ELFFile(file).get_section_by_name(".gnu.version_r")
        names = [version.name for _, versions in section.iter_versions() for version in versions]
    return max(parsed(name) for name in names if name.startswith("GLIBC_"))


def parsed(version: str) -> Version:
    return tuple(map(int, version.removeprefix("GLIBC_").strip(".").split(".")))


def check(target: str, path: Path) -> None:
    newest = newest_needed(path)
    if target in OLDEST and newest > parsed(OLDEST[target]):
        sys.exit(f"{path} needs glibc {'.'.join(map(str, newest))}, and {target} promises{OLDEST[target]}")


if __name__ == "__main__":
    for name in sys.argv[2:]:
        check(sys.argv[1], Path(name))
