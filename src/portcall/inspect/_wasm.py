# SPDX-License-Identifier: Apache-2.0
"""Read what a library in WebAssembly is and needs, in the terms of ELF: its symbols and data, and what it imports.

Bytes in, facts out. Any bytes give an ElfFile or an ElfError. The format is the binary format of the WebAssembly
specification (chapter 5), and the section dylink.0 of WebAssembly/tool-conventions, DynamicLinking.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from portcall.inspect._elf import MOST_LIBRARIES, Buffer, Build, ElfError, ElfFile, Symbol, read_elf

MAGIC = b"\0asm"
VERSION = b"\1\0\0\0"
BUILD = Build("wasm32", 32, "little")
CUSTOM, IMPORTS, GLOBALS, EXPORTS, DATA = 0, 2, 6, 7, 11  # sections
FUNCTION, TABLE, MEMORY, GLOBAL, TAG = range(5)  # kinds of imports and exports
LIBRARY, OBJECT = "dylink.0", "linking"  # custom sections
NEEDED = 2  # the part of dylink.0 with the names of libraries
ADDRESSES = ("GOT.mem", "GOT.func")  # imports that stand for the address of a symbol
MOST_NAMES = 1_000_000
TABLES = ("__tvm_ffi__library_bin", "__tvm_ffi_library_bin")  # variables that begin with the size of what follows
# Instructions of the expressions that give a variable its value.
CONSTANTS, GET, ADD, REFERENCE, END = (0x41, 0x42), 0x23, (0x6A, 0x7C), (0xD0, 0xD2), 0x0B
FLOATS = {0x43: 4, 0x44: 8}  # with their bytes


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
    exports: list[tuple[str, int, int]] = []
    addresses: list[int] = []
    segments: list[tuple[int, int, int]] = []
    end = library_end(data, len(data))
    whole = Reader(data, 8, end)
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
        elif section == GLOBALS:
            addresses = [(part.number(), part.byte(), part.value())[2] for _ in range(part.count())]
        elif section == EXPORTS:
            exports = [(part.text(), part.byte(), part.number()) for _ in range(part.count())]
        elif section == DATA:
            segments = [part.segment() for _ in range(part.count())]
    found = tuple(symbols(imports, exports, addresses))
    file = ElfFile(
        kind=kind,
        build=BUILD,
        needed=needed,
        soname="",
        runpath=(),
        symbols=found,
        versions_needed={},
        versions_defined=frozenset(),
        segments=tuple(segments),
        end=end,
    )
    return replace(file, symbols=tuple(with_size(file, data, symbol) for symbol in found))


def with_size(file: ElfFile, data: Buffer, symbol: Symbol) -> Symbol:
    """WebAssembly does not say how large a variable is: a table of modules says it itself."""
    if symbol.name not in TABLES or not symbol.defined:
        return symbol
    try:
        size = int.from_bytes(file.content(data, replace(symbol, size=8)), "little")
    except ElfError:  # reading the table shows that
        return symbol
    return replace(symbol, size=8 + size)


def library_end(data: Buffer, end: int) -> int:
    """Return where a library ends: in a bundle (docs/graph.md), where its footer says, and else at ``end``."""
    return min(len(data), int.from_bytes(data[-32:-24], "little")) if data[-8:] == b"PCBUNDLE" else end


def symbols(
    imports: list[tuple[str, str, int]], exports: list[tuple[str, int, int]], addresses: list[int]
) -> Iterator[Symbol]:
    own = {name for name, _, _ in exports}
    imported = sum(kind == GLOBAL for _, _, kind in imports)  # their numbers come first
    for name, kind, index in exports:
        if kind in (FUNCTION, GLOBAL):
            variable = kind == GLOBAL and 0 <= index - imported < len(addresses)
            value = addresses[index - imported] if variable else 0
            yield Symbol(name, defined=True, weak=False, function=kind == FUNCTION, value=value, size=0)
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

    def signed(self) -> int:
        """Read a signed integer in LEB128."""
        start = self._at
        value = self.number()
        bits = 7 * (self._at - start)
        return value - (1 << bits) if value >> (bits - 1) else value

    def value(self) -> int:
        """Read an expression, and return its value where the library's memory begins at 0."""
        total = 0
        while (instruction := self.byte()) != END:
            if instruction in CONSTANTS:
                total += self.signed()
            elif instruction == GET or instruction in REFERENCE:
                self.number()
            elif instruction in FLOATS:
                self._at += FLOATS[instruction]
            elif instruction not in ADD:
                raise ElfError(f"a variable's value has the unknown instruction {instruction}")
        return total

    def segment(self) -> tuple[int, int, int]:
        """Read where bytes go in memory, where they are in the file, and how many."""
        flags = self.number()
        if flags == 2:
            self.number()
        address = 0 if flags == 1 else self.value()
        size = self.number()
        if size > self.left():
            raise ElfError("the module is damaged: its data goes past the end")
        self._at += size
        return address, self._at - size, size

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
