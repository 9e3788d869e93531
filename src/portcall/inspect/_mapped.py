# SPDX-License-Identifier: Apache-2.0
"""Map files that are read as libraries."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

from portcall._input import open_input
from portcall.inspect._elf import ElfError


def open_mapped(file: Path) -> mmap.mmap:
    """Return the bytes of a file without copying them; an empty file is an ElfError."""
    with open_input(file) as opened:
        if os.fstat(opened.fileno()).st_size == 0:
            raise ElfError("the file is empty")
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
