# SPDX-License-Identifier: Apache-2.0
"""Read what an ELF file is and needs: machine, symbols, libraries and symbol versions.

Bytes in, facts out: nothing is opened, loaded or run here. Any bytes give an ElfFile or an ElfError, never another
error. Only the section headers are used, which every linker writes; a file stripped of them is refused with a reason.
Follows the System V ABI (gabi 4.1) and the GNU extensions for symbol versions.

The work is proportional to the file's size, not to the sizes that it claims: one table of each kind is read, names and
records that overlap are an error.
"""

from __future__ import annotations

import itertools
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass

Buffer = bytes | mmap.mmap

MACHINES = {
    3: "i386", 8: "mips", 21: "powerpc64", 22: "s390x", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv",
    258: "loongarch64",
}  # fmt: skip
KINDS = {1: "object", 2: "executable", 3: "shared"}
SYMTAB, DYNAMIC, NOBITS, DYNSYM, VERDEF, VERNEED = 2, 6, 8, 11, 0x6FFFFFFD, 0x6FFFFFFE
NEEDED, SONAME, RPATH, RUNPATH = 1, 14, 15, 29
FUNCTION_TYPES, WEAK, LOCAL = (2, 10), 2, 0
MOST_LIBRARIES = 1024  # and folders of a run path: each of one is looked for in each of the other
# What is laid out differently in files of 32 and of 64 bits: the rest of the header, a section, a segment, a symbol,
# an entry of the dynamic section; then the order of a segment's and a symbol's fields.
LAYOUTS = {
    32: {
        "header": "HHIIIIIHHHHHH",
        "section": "IIIIIIIIII",
        "segment": "IIIIIIII",
        "symbol": "IIIBBH",
        "dynamic": "iI",
    },
    64: {
        "header": "HHIQQQIHHHHHH",
        "section": "IIQQQQIIQQ",
        "segment": "IIQQQQQQ",
        "symbol": "IBBHQQ",
        "dynamic": "qQ",
    },
}


class ElfError(ValueError):
    """The bytes are not an ELF file that this module reads; the message has the reason."""


@dataclass(frozen=True)
class Symbol:
    """A global or weak symbol of the dynamic table (of the only table, in an object file)."""

    name: str
    defined: bool
    weak: bool
    function: bool
    value: int
    size: int


@dataclass(frozen=True)
class Build:
    """What machine a file is compiled for.

    Attributes:
        machine: ``x86_64``, ``aarch64``, ``riscv64`` … as in a compiler's target.
        bits: of an address: 32 or 64.
        byte_order: ``little`` or ``big``.
    """

    machine: str
    bits: int
    byte_order: str

    def __str__(self) -> str:
        return f"{self.machine} ({self.bits}-bit, {self.byte_order}-endian)"


@dataclass(frozen=True)
class ElfFile:
    """The contents of an ELF file.

    Attributes:
        kind: ``shared``, ``executable`` or ``object``.
        build: the machine that it is for.
        needed: the libraries that it asks for, in order; ``runpath`` holds the folders in which to look first.
        symbols: hidden and local ones are left out; empty where they were not asked for.
        versions_needed: for each library, the versions of its symbols that are asked for.
        versions_defined: the versions of symbols that this file offers itself.
        segments: (address, offset in the file, size) of what is loaded.
        end: where the library ends; other parts may follow.
    """

    kind: str
    build: Build
    needed: tuple[str, ...]
    soname: str
    runpath: tuple[str, ...]
    symbols: tuple[Symbol, ...]
    versions_needed: dict[str, tuple[str, ...]]
    versions_defined: frozenset[str]
    segments: tuple[tuple[int, int, int], ...]
    end: int

    def content(self, data: Buffer, symbol: Symbol) -> bytes:
        """Return the initial bytes of a variable from ``data``, the bytes that this file was read from."""
        for address, offset, size in self.segments:
            start = symbol.value - address
            if start >= 0 and start + symbol.size <= size:
                return data[offset + start : offset + start + symbol.size]
        raise ElfError(f"symbol '{symbol.name}' lies outside the file")


@dataclass(frozen=True)
class Section:
    kind: int
    offset: int
    size: int
    link: int
    count: int


def read_elf(data: Buffer, symbols: bool = True) -> ElfFile:
    """Return the facts of an ELF file; ``symbols`` false leaves those out, which are most of the work.

    Raises:
        ElfError: the bytes are of another format, damaged, or stripped of section headers.
    """
    return Reader(data).read(symbols)


def read_build(data: Buffer) -> Build:
    """Return what machine an ELF file is for; its first 64 bytes are enough.

    Raises:
        ElfError: the bytes are of another format, or damaged.
    """
    return Reader(data).build()


class Reader:
    """One pass over one file; every access is checked against its size."""

    def __init__(self, data: Buffer) -> None:
        self.data = data
        if data[:4] != b"\x7fELF":
            raise ElfError(f"this is {other_format(data[:8])}, not an ELF file")
        if len(data) < 20 or data[4] not in (1, 2) or data[5] not in (1, 2):
            raise ElfError("the ELF header is damaged")
        self.bits = 32 * data[4]
        self.order = "<" if data[5] == 1 else ">"
        self.sections: list[Section] = []
        # Names share their ends, so that together they may be longer than the file, but not by much.
        self.name_bytes_left = 4 * len(data) + 65536
        self.records_left = len(data) // 8

    def build(self) -> Build:
        machine = self.fields("header", 16)[1]
        name = MACHINES.get(machine, f"machine {machine}")
        return Build(
            machine=f"{name}{self.bits}" if name == "riscv" else name,
            bits=self.bits,
            byte_order="little" if self.order == "<" else "big",
        )

    def read(self, symbols: bool) -> ElfFile:
        header = self.fields("header", 16)
        kind, segment_place, section_place = header[0], header[4], header[5]
        self.sections = [
            Section(s[1], s[4], s[5], s[6], s[7])
            for s in self.entries("section", section_place, header[10], header[11])
        ]
        if not self.sections:
            raise ElfError("the file has no section headers (stripped by sstrip or alike), so it cannot be read")
        dynamic = list(self.dynamic())
        needed = tuple(dict.fromkeys(str(text) for tag, text in dynamic if tag == NEEDED))
        strings = {tag: [text for kind, text in dynamic if kind == tag] for tag in (SONAME, RPATH, RUNPATH)}
        runpath = tuple(
            dict.fromkeys(
                folder for text in strings[RUNPATH] or strings[RPATH] for folder in str(text).split(":") if folder
            )
        )
        if max(len(needed), len(runpath)) > MOST_LIBRARIES:
            raise ElfError(
                f"it asks for {len(needed)} libraries in {len(runpath)} folders; at most {MOST_LIBRARIES} are searched"
            )
        return ElfFile(
            kind=KINDS.get(kind, f"type {kind}"),
            build=self.build(),
            needed=needed,
            soname=str(strings[SONAME][0]) if strings[SONAME] else "",
            runpath=runpath,
            symbols=tuple(self.symbols(SYMTAB if kind == 1 else DYNSYM)) if symbols else (),
            versions_needed=dict(self.versions_needed()),
            versions_defined=frozenset(self.versions_defined()),
            segments=tuple(self.segments(segment_place, header[8], header[9])),
            end=max(
                section_place + header[10] * header[11], *(s.offset + s.size for s in self.sections if s.kind != NOBITS)
            ),
        )

    def segments(self, place: int, size: int, count: int) -> Iterator[tuple[int, int, int]]:
        for entry in self.entries("segment", place, size, count):
            if entry[0] == 1:  # PT_LOAD
                offset, address, nbytes = (
                    (entry[1], entry[2], entry[4]) if self.bits == 32 else (entry[2], entry[3], entry[5])
                )
                yield address, offset, nbytes

    def symbols(self, kind: int) -> Iterator[Symbol]:
        for section in self.of_kind(kind):
            for entry in self.table("symbol", section):
                if self.bits == 32:
                    name, value, size, info, other, home = entry
                else:
                    name, info, other, home, value, size = entry
                hidden = other & 3 in (1, 2)
                if info >> 4 != LOCAL and not hidden and name:
                    yield Symbol(
                        name=self.string(section.link, name),
                        defined=home != 0,
                        weak=info >> 4 == WEAK,
                        function=info & 15 in FUNCTION_TYPES,
                        value=value,
                        size=size,
                    )

    def dynamic(self) -> Iterator[tuple[int, int | str]]:
        for section in self.of_kind(DYNAMIC):
            for tag, value in self.table("dynamic", section):
                if tag == 0:
                    break
                text = tag in (NEEDED, SONAME, RPATH, RUNPATH)
                yield tag, self.string(section.link, value) if text else value

    def versions_needed(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        for section in self.of_kind(VERNEED):
            for place, (_, count, file, first, _) in self.chain(section, "HHIII", 4):
                names = [
                    self.string(section.link, entry[3]) for _, entry in self.links(place + first, "IHHII", 4, count)
                ]
                yield self.string(section.link, file), tuple(names)

    def versions_defined(self) -> Iterator[str]:
        for section in self.of_kind(VERDEF):
            for place, (_, _, _, _, _, first, _) in self.chain(section, "HHHHIII", 6):
                yield self.string(section.link, self.unpack("II", place + first)[0])

    # ---- Access -----------------------------------------------------------------------------------------------------

    def of_kind(self, kind: int) -> Iterator[Section]:
        """Yield the section of a kind; of several the first, as there is to be one of those that are read here."""
        return itertools.islice((section for section in self.sections if section.kind == kind), 1)

    def chain(self, section: Section, layout: str, next_field: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        return self.links(section.offset, layout, next_field, section.count)

    def links(self, place: int, layout: str, next_field: int, count: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Follow records that hold the distance to the next one; at most ``count`` of them."""
        for _ in range(count):
            self.records_left -= 1
            if self.records_left < 0:
                raise ElfError("its version records overlap: the file is damaged")
            entry = self.unpack(layout, place)
            yield place, entry
            if entry[next_field] == 0:
                break
            place += entry[next_field]

    def table(self, what: str, section: Section) -> Iterator[tuple[int, ...]]:
        size = struct.calcsize(self.order + LAYOUTS[self.bits][what])
        return self.entries(what, section.offset, size, section.size // size)

    def entries(self, what: str, place: int, size: int, count: int) -> Iterator[tuple[int, ...]]:
        if count and size < struct.calcsize(self.order + LAYOUTS[self.bits][what]):
            raise ElfError(f"the entries of its {what} table overlap: the file is damaged")
        if count and place + size * count > len(self.data):
            raise ElfError(f"the file ends inside its {what} table: it is damaged or was not copied whole")
        return (self.fields(what, place + size * number) for number in range(count))

    def fields(self, what: str, place: int) -> tuple[int, ...]:
        return self.unpack(LAYOUTS[self.bits][what], place)

    def unpack(self, layout: str, place: int) -> tuple[int, ...]:
        try:
            return struct.unpack_from(self.order + layout, self.data, place)
        except (struct.error, OverflowError) as error:
            raise ElfError("the file ends too early: it is damaged or was not copied whole") from error

    def string(self, section: int, place: int) -> str:
        if section >= len(self.sections):
            raise ElfError("a string table is missing: the file is damaged")
        table = self.sections[section]
        start, end = table.offset + place, table.offset + table.size
        stop = self.data.find(b"\0", start, end) if 0 <= start <= end <= len(self.data) else -1
        if stop < 0:
            raise ElfError("a name lies outside its string table: the file is damaged")
        self.name_bytes_left -= stop - start
        if self.name_bytes_left < 0:
            raise ElfError("its names are longer than the file: it is damaged")
        return self.data[start:stop].decode("utf-8", "backslashreplace")


def other_format(start: bytes) -> str:
    """Name the format of a file that is not ELF, by its first bytes."""
    formats = [
        (b"\0asm", "a WebAssembly module"),
        (b"MZ", "a Windows library"),
        (b"\xcf\xfa\xed\xfe", "a macOS library"),
        (b"\xca\xfe\xba\xbe", "a macOS library"),
        (b"!<arch>", "a static archive"),
        (b"PK\3\4", "a zip archive"),
        (b"\x1f\x8b", "a gzip file"),
        (b"BC\xc0\xde", "LLVM bitcode"),
        (b"#!", "a script"),
    ]
    for magic, name in formats:
        if start.startswith(magic):
            return name
    return "an empty file" if not start else "something else"
