# SPDX-License-Identifier: Apache-2.0
"""Read the table of modules that a library carries inside itself, without loading any of them.

Two layouts exist. In the modern one (tvm-ffi) every module has a length, so all of them can be listed. In the classic
one (TVM 0.6-0.20) a module has none, so the list ends at the first one that is neither the library itself nor kernels
of a device, which end by themselves. All numbers are little-endian; the first eight bytes count the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

from portcall.inspect._cursor import BlobError, Cursor
from portcall.inspect._kernels import KernelModule, read_kernels

LIBRARY = "_lib"
TREE = "_import_tree"


@dataclass(frozen=True)
class EmbeddedModule:
    """A module inside a library.

    Attributes:
        kind: what loads it, such as ``cuda``; ``_lib`` is the library itself.
        nbytes: the size of its payload; None where the layout does not record it.
        imports: the places in the table of the modules that it imports.
        kernels: of a device; None for modules of other kinds, and for layouts that are not known.
        offset: where its payload begins in the table, in bytes.
    """

    kind: str
    nbytes: int | None
    imports: tuple[int, ...] = ()
    kernels: KernelModule | None = None
    offset: int = field(default=0, compare=False)


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
        payload = cursor.take(nbytes or 0)
        found = read_kernels(kind, payload)
        modules.append(EmbeddedModule(kind, nbytes, children[start:stop], found and found[0], offset))
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
    modules: list[EmbeddedModule] = []
    for _ in range(count):
        if modules and cursor.place == len(data):
            break
        kind, at = cursor.text(), cursor.place
        if kind == TREE:
            break
        found = read_kernels(kind, data, at, more_follows=True)
        nbytes = None if found is None else found[1] - at
        modules.append(EmbeddedModule(kind, nbytes, (), found and found[0], at))
        if kind != LIBRARY and found is None:
            break
        cursor.place = at if found is None else found[1]
    imports = tuple(range(1, len(modules)))
    return tuple(replace(module, imports=() if k else imports) for k, module in enumerate(modules))
