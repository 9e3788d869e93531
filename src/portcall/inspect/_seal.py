# SPDX-License-Identifier: Apache-2.0
"""The seal of a file that portcall made: its size and a checksum, where its library ends (docs/graph.md).

Files that are damaged run all the same, and give wrong numbers: weights have no form that could be checked. Loading a
file looks at the size alone, since large parameters are read when they are needed; commands look at the checksum, too.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

from portcall.errors import ModuleLoadError
from portcall.inspect._elf import Buffer, ElfError
from portcall.inspect._mapped import open_mapped
from portcall.inspect._wasm import library_end, read_library

SEAL = struct.Struct("<8sQII")  # mark, size of the file, crc32 of all other bytes, 0
MARK = b"PCSEALED"
PIECE = 1 << 24


def add_seal(file: BinaryIO, place: int) -> None:
    """Write the seal of a file that is otherwise complete, over the ``SEAL.size`` bytes that were left at ``place``."""
    size = file.seek(0, os.SEEK_END)
    checksum, at = 0, 0
    for end, following in ((place, place + SEAL.size), (size, size)):
        file.seek(at)
        while at < end:
            piece = file.read(min(PIECE, end - at))
            checksum, at = zlib.crc32(piece, checksum), at + len(piece)
        at = following
    file.seek(place)
    file.write(SEAL.pack(MARK, size, checksum, 0))
    file.seek(0, os.SEEK_END)


def is_seal(data: bytes) -> bool:
    return len(data) == SEAL.size and data.startswith(MARK)


def seal_of(data: Buffer, end: int) -> tuple[int, int] | None:
    """Return the size and the checksum in the seal where a library ends; None for a file without one."""
    if not 0 <= end <= len(data) - SEAL.size:
        return None
    mark, size, checksum, _ = SEAL.unpack_from(data, end)
    return (size, checksum) if mark == MARK else None


def damage_of(data: Buffer, end: int) -> str:
    """Return what happened to a file since it was made, with a remedy; empty for nothing, or where that is not known.

    Parameters:
        end: where its library ends, as its sections say.
    """
    end = library_end(data, end)
    seal = seal_of(data, end)
    if seal is None or seal[0] > len(data):
        return "" if seal is None else f"it was not copied whole ({len(data)} of {seal[0]} bytes): copy it again"
    checksum = 0
    with memoryview(data) as view:
        for first, last in ((0, end), (end + SEAL.size, len(view))):
            for at in range(first, last, PIECE):
                checksum = zlib.crc32(view[at : min(at + PIECE, last)], checksum)
    return "" if checksum == seal[1] else "its bytes are not those that were written: copy it, or make it, again"


def check_file(path: str | os.PathLike[str]) -> None:
    """Read a library or bundle that portcall made, and refuse one that is damaged, though it may load.

    Files without a seal, such as those of other programs, pass.

    Raises:
        ModuleLoadError: bytes of it are missing, or are not those that were written.
        OSError: it cannot be read.
    """
    with open_mapped(Path(path)) as data:
        try:
            damage = damage_of(data, read_library(data).end)
        except ElfError:
            return
    if damage:
        raise ModuleLoadError(f"'{path}' is damaged: {damage}", path=path)
