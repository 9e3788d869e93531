# SPDX-License-Identifier: Apache-2.0
"""Read the table of modules that a library carries inside itself, without loading any of them.

Two layouts exist. In the modern one (tvm-ffi) every module has a length, so all of them can be listed. In the classic
one (TVM 0.6-0.20) a module has none, so the list ends at the first one that is not the library itself. All numbers
are little-endian; the first eight bytes count the rest.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from itertools import pairwise

LIBRARY = "_lib"
TREE = "_import_tree"


class BlobError(ValueError):
    """The bytes are not a table of modules; the message has the position."""


@dataclass(frozen=True)
class EmbeddedModule:
    """A module inside a library.

    Attributes:
        kind: what loads it, such as ``cuda``; ``_lib`` is the library itself.
        nbytes: the size of its payload; None where the layout does not record it.
        imports: the places in the table of the modules that it imports.
        offset: where its payload begins in the table, in bytes.
    """

    kind: str
    nbytes: int | None
    imports: tuple[int, ...] = ()
    offset: int = field(default=0, compare=False)


class Cursor:
    """A place in the bytes; reading beyond the end is a BlobError."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = 0

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.place:
            raise BlobError(f"the module table ends at byte {len(self.data)}, expected {count} more")
        self.place += count
        return self.data[self.place - count : self.place]

    def number(self) -> int:
        return int(struct.unpack("<Q", self.take(8))[0])

    def numbers(self) -> tuple[int, ...]:
        count = self.number()
        return struct.unpack(f"<{count}Q", self.take(8 * count))

    def text(self) -> str:
        return self.take(self.number()).decode("utf-8", "backslashreplace")


def open_table(data: bytes) -> Cursor:
    cursor = Cursor(data)
    size = cursor.number()
    if size != len(data) - 8:
        raise BlobError(f"the module table declares {size} bytes but has {len(data) - 8}")
    return cursor


def read_modern(data: bytes) -> tuple[EmbeddedModule, ...]:
    """Return the modules of a modern table; the first one is the root.

    Raises:
        BlobError: the bytes do not add up.
    """
    cursor = open_table(data)
    starts, children = cursor.numbers(), cursor.numbers()
    if not starts or list(starts) != sorted(starts) or starts[-1] > len(children):
        raise BlobError("the import tree of the module table is damaged")
    modules: list[EmbeddedModule] = []
    for start, stop in pairwise(starts):
        kind = cursor.text()
        nbytes = None if kind == LIBRARY else cursor.number()
        offset = cursor.place
        cursor.take(nbytes or 0)
        modules.append(EmbeddedModule(kind, nbytes, children[start:stop], offset))
    if cursor.place != len(data) or any(child >= len(modules) for child in children):
        raise BlobError("the import tree does not match the number of modules")
    return tuple(modules)


def read_classic(data: bytes) -> tuple[EmbeddedModule, ...]:
    """Return the modules of a classic table as far as their lengths are known; the rest is not read.

    Their import tree comes last in the table, so all are given as imports of the first one, which is the root.

    Raises:
        BlobError: the bytes do not add up.
    """
    cursor = open_table(data)
    count = cursor.number()
    found: list[tuple[str, int]] = []
    for _ in range(count):
        kind = cursor.text()
        if kind == TREE:
            break
        found.append((kind, cursor.place))
        if kind != LIBRARY:
            break
    imports = tuple(range(1, len(found)))
    return tuple(EmbeddedModule(kind, None, () if k else imports, at) for k, (kind, at) in enumerate(found))
