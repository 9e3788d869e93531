# SPDX-License-Identifier: Apache-2.0
"""Read what a library in WebAssembly is and needs, in the terms of ELF: its functions, and those that it imports.

Bytes in, facts out. Any bytes give an ElfFile or an ElfError. The format is the binary format of the WebAssembly
specification (chapter 5), and the section dylink.0 of WebAssembly/tool-conventions, DynamicLinking.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from portcall.inspect._elf import MOST_LIBRARIES, Buffer, Build, ElfError, ElfFile, Symbol, read_elf

MAGIC = b"\0asm"
VERSION = b"\1\0\0\0"
BUILD = Build("wasm32", 32, "little")
CUSTOM, IMPORTS, EXPORTS = 0, 2, 7  # sections
FUNCTION, TABLE, MEMORY, GLOBAL, TAG = range(5)  # kinds of imports and exports
LIBRARY, OBJECT = "dylink.0", "linking"  # custom sections
NEEDED = 2  # the part of dylink.0 with the names of libraries
ADDRESSES = ("GOT.mem", "GOT.func")  # imports that stand for the address of a symbol
MOST_NAMES = 1_000_000


def read_library(data: Buffer) -> ElfFile:
    """Return the facts of a library: WebAssembly, or else ELF.

    Raises:
        ElfError: the bytes are of another format, or damaged.
    """
    return read_wasm(data) if data[:4] == MAGIC else read_elf(data)


def read_wasm(data: Buffer) -> ElfFile:
    """Return the facts of a module: what it exports and imports as symbols, and the libraries that it asks for.

    Raises:
        ElfError: the bytes are of another format, or damaged.
    """
    if data[:8] != MAGIC + VERSION:
        raise ElfError("this is not a WebAssembly module of version 1")
    kind = "executable"
    needed: tuple[str, ...] = ()
    imports: list[tuple[str, str, int]] = []
    exports: list[tuple[str, int]] = []
    whole = Reader(data, 8, library_end(data))
    while whole.left():
        section = whole.byte()
        part = whole.part()
        if section == CUSTOM:
            name = part.text()
            if name == LIBRARY:
                kind, needed = "shared", libraries(part)
            elif name == OBJECT:
                kind = "object"
        elif section == IMPORTS:
            imports = list(read_imports(part))
        elif section == EXPORTS:
            exports = [(part.text(), part.byte(), part.number())[:2] for _ in range(part.count())]
    return ElfFile(
        kind=kind,
        build=BUILD,
        needed=needed,
        soname="",
        runpath=(),
        symbols=tuple(symbols(imports, exports)),
        versions_needed={},
        versions_defined=frozenset(),
        segments=(),
    )


def library_end(data: Buffer) -> int:
    """Return where a module ends: in a bundle (docs/graph.md) other parts follow."""
    nbytes = len(data)
    return min(nbytes, int.from_bytes(data[-32:-24], "little")) if data[-8:] == b"PCBUNDLE" else nbytes


def symbols(imports: list[tuple[str, str, int]], exports: list[tuple[str, int]]) -> Iterator[Symbol]:
    own = {name for name, _ in exports}
    for name, kind in exports:
        if kind in (FUNCTION, GLOBAL):
            yield Symbol(name, defined=True, weak=False, function=kind == FUNCTION, value=0, size=0)
    wanted = {
        name: kind == FUNCTION or module == "GOT.func"
        for module, name, kind in imports
        if kind == FUNCTION or module in ADDRESSES
    }
    for name, function in wanted.items():
        if name not in own:
            yield Symbol(name, defined=False, weak=False, function=function, value=0, size=0)


def read_imports(part: Reader) -> Iterator[tuple[str, str, int]]:
    """Yield the module, the name and the kind of each import."""
    for _ in range(part.count()):
        module, name, kind = part.text(), part.text(), part.byte()
        if kind == FUNCTION:
            part.number()
        elif kind in (TABLE, MEMORY):
            if kind == TABLE:
                part.byte()
            has_most = part.byte() & 1
            part.number()
            if has_most:
                part.number()
        elif kind in (GLOBAL, TAG):
            part.byte()
            part.number()
        else:
            raise ElfError(f"an import has the unknown kind {kind}")
        yield module, name, kind


def libraries(part: Reader) -> tuple[str, ...]:
    found: list[str] = []
    while part.left():
        what = part.byte()
        inner = part.part()
        if what == NEEDED:
            found += [inner.text() for _ in range(inner.count())]
    if len(found) > MOST_LIBRARIES:
        raise ElfError(f"it asks for {len(found)} libraries; at most {MOST_LIBRARIES} are searched")
    return tuple(dict.fromkeys(found))


class Reader:
    """Reads from ``start`` to ``end``; every access is checked."""

    def __init__(self, data: Buffer, start: int, end: int) -> None:
        self._data = data
        self._at = start
        self._end = end

    def left(self) -> int:
        return self._end - self._at

    def byte(self) -> int:
        if self._at >= self._end:
            raise ElfError("the module is damaged: it ends early")
        self._at += 1
        return self._data[self._at - 1]

    def number(self) -> int:
        """Read an integer in LEB128."""
        value = shift = 0
        while shift < 70:
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise ElfError("the module is damaged: a number is too long")

    def count(self) -> int:
        """Read how many items follow; each has a byte at least."""
        value = self.number()
        if value > min(self.left(), MOST_NAMES):
            raise ElfError(f"the module is damaged: it claims {value} items in {self.left()} bytes")
        return value

    def part(self) -> Reader:
        """Read a length, and return a reader of the bytes that follow."""
        size = self.number()
        if size > self.left():
            raise ElfError("the module is damaged: a part of it goes past the end")
        self._at += size
        return Reader(self._data, self._at - size, self._at)

    def text(self) -> str:
        part = self.part()
        return self._data[part._at : part._end].decode(errors="replace")
