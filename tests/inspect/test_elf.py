# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="attr-defined, union-attr"
"""The readers of ELF files and of module tables: what they say about real files, and that no bytes break them."""

from __future__ import annotations

import contextlib
import struct
import sys
from pathlib import Path

import pytest
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from hypothesis import given
from hypothesis import strategies as st

import portcall
from portcall import toolchain
from portcall.errors import ModuleLoadError
from portcall.inspect._elf import DYNAMIC, DYNSYM, MACHINES, MOST_LIBRARIES, VERNEED, ElfError, ElfFile, read_elf
from portcall.inspect._embedded import BlobError, EmbeddedModule, read_classic, read_modern

SOURCE = """
#include <math.h>
int shared_value = 7;
const char blob[] = "content";
__attribute__((weak)) int maybe(void);
__attribute__((visibility("hidden"))) int hidden(void) { return 1; }
static int local(void) { return hidden(); }
double root(double v) { return maybe ? maybe() : erf(v) + shared_value + local(); }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elf")
    (folder / "a.c").write_text(SOURCE)
    return toolchain.create_shared(folder / "a.c", folder / "a.so", options=["-Wl,-rpath,$ORIGIN/lib:/opt/x"])


def by_name(elf: ElfFile) -> dict[str, tuple[bool, bool, bool]]:
    return {symbol.name: (symbol.defined, symbol.weak, symbol.function) for symbol in elf.symbols}


def test_read_elf_classifies_symbols(library: Path) -> None:
    elf = read_elf(library.read_bytes())
    symbols = by_name(elf)
    assert symbols["root"] == (True, False, True)
    assert symbols["shared_value"] == (True, False, False)
    assert symbols["maybe"][:2] == (False, True)
    assert symbols["erf"][:2] == (False, False)
    assert not symbols.keys() & {"hidden", "local"}


def test_read_elf_agrees_with_pyelftools(library: Path) -> None:
    elf = read_elf(library.read_bytes())
    with library.open("rb") as file:
        section = ELFFile(file).get_section_by_name(".dynamic")
        assert isinstance(section, DynamicSection)
        assert list(elf.needed) == [tag.needed for tag in section.iter_tags("DT_NEEDED")]
        versions = ELFFile(file).get_section_by_name(".gnu.version_r")
        theirs = {needed.name: tuple(aux.name for aux in entries) for needed, entries in versions.iter_versions()}
    assert elf.versions_needed == theirs
    assert elf.runpath == ("$ORIGIN/lib", "/opt/x")
    assert elf.kind == "shared"


def test_read_elf_of_the_interpreter_agrees_with_pyelftools() -> None:
    path = Path(sys.executable).resolve()
    elf = read_elf(path.read_bytes())
    with path.open("rb") as file:
        theirs = {symbol.name for symbol in ELFFile(file).get_section_by_name(".dynsym").iter_symbols() if symbol.name}
    assert {symbol.name for symbol in elf.symbols} <= theirs
    assert "PyObject_Call" in {symbol.name for symbol in elf.symbols} or "libpython" in " ".join(elf.needed)


def test_read_elf_finds_the_content_of_a_variable(library: Path) -> None:
    data = library.read_bytes()
    elf = read_elf(data)
    symbol = next(symbol for symbol in elf.symbols if symbol.name == "blob")
    assert elf.content(data, symbol) == b"content\0"


@pytest.mark.parametrize(
    ("target", "machine"),
    [("arm-linux-gnueabihf", "arm"), ("aarch64-linux-gnu", "aarch64"), ("riscv64-linux-gnu", "riscv64")],
)
def test_read_elf_reads_other_machines_and_32_bits(tmp_path: Path, target: str, machine: str) -> None:
    (tmp_path / "a.c").write_text("int g(void); int f(void) { return g(); }")
    elf = read_elf(toolchain.create_shared(tmp_path / "a.c", tmp_path / "a.so", target=target).read_bytes())
    assert elf.build.machine == machine
    assert by_name(elf)["f"] == (True, False, True)
    assert by_name(elf)["g"][0] is False


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "an empty file"),
        (b"\0asm\1\0\0\0", "a WebAssembly module"),
        (b"MZ\x90", "a Windows library"),
        (b"!<arch>\n", "a static archive"),
        (b"version https://git-lfs", "something else"),
        (b"\x7fELF", "header is damaged"),
        (b"\x7fELF\2\1\1" + bytes(20), "ends too early"),
        (b"\x7fELF\2\1\1" + bytes(80), "no section headers"),
    ],
)
def test_read_elf_refuses_other_files(data: bytes, text: str) -> None:
    with pytest.raises(ElfError, match=text):
        read_elf(data)


@given(st.binary(max_size=200))
def test_read_elf_of_any_bytes_is_a_file_or_an_error(data: bytes) -> None:
    for start in (b"", b"\x7fELF\2\1\1", b"\x7fELF\1\2\1"):
        with contextlib.suppress(ElfError):
            read_elf(start + data)


@given(st.data())
def test_read_elf_of_a_damaged_file_is_a_file_or_an_error(library: Path, data: st.DataObject) -> None:
    content = bytearray(library.read_bytes())
    header = struct.unpack_from("<Q", content, 40)[0]
    places = st.one_of(st.integers(0, 63), st.integers(header, len(content) - 1), st.integers(0, len(content) - 1))
    for _ in range(4):
        content[data.draw(places)] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    with contextlib.suppress(ElfError):
        elf = read_elf(bytes(content))
        for symbol in elf.symbols:
            elf.content(bytes(content), symbol)


# ---- Module tables ------------------------------------------------------------------------------------------------

# ---- Files that claim much for their size -------------------------------------------------------------------------


def made(sections: list[tuple[int, int, int, int]], body: bytes, entry: int = 64) -> bytes:
    """An ELF file for this machine: (kind, place in the body, size, information) of each section behind the first.

    All take their names from the whole body.
    """
    machine = read_elf(Path(sys.executable).resolve().read_bytes(), symbols=False).build.machine
    code = next(number for number, name in MACHINES.items() if machine.startswith(name))
    start = 64 + 64 * (2 + len(sections))
    head = b"\x7fELF\2\1\1".ljust(16, b"\0")
    head += struct.pack("<HHIQQQIHHHHHH", 3, code, 1, 0, 0, 64, 0, 64, 56, 0, entry, 2 + len(sections), 0)
    table = bytes(64) + struct.pack("<IIQQQQIIQQ", 0, 3, 0, 0, start, len(body), 0, 0, 0, 0)
    for kind, place, size, information in sections:
        table += struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, start + place, size, 1, information, 0, 0)
    return head + table + body


SIZE = 240_000
SYMBOLS = struct.pack("<IBBHQQ", 1, 0x12, 0, 1, 0, 0) * (SIZE // 24)
LONG_NAME = b"\0" + b"n" * 4000 + b"\0"
FAR = len(SYMBOLS) + 1  # where a long name begins behind the symbols
LONG_NAMES = struct.pack("<IBBHQQ", FAR, 0x12, 0, 1, 0, 0) * (SIZE // 24)
LIBRARIES = struct.pack("<qQ", 1, FAR) * (SIZE // 16)
CLAIMS = {
    "many tables of symbols": made([(DYNSYM, 0, SIZE, 0)] * 3000, SYMBOLS + b"\0name\0"),
    "long names that overlap": made([(DYNSYM, 0, SIZE, 0)], LONG_NAMES + LONG_NAME),
    "long libraries that overlap": made([(DYNAMIC, 0, SIZE, 0)], LIBRARIES + LONG_NAME),
    "many dynamic sections": made([(DYNAMIC, 0, SIZE, 0)] * 3000, LIBRARIES + b"\0name\0"),
    "entries without a size": made([(DYNSYM, 0, SIZE, 0)] * 3000, SYMBOLS + b"\0name\0", entry=0),
    # Each record is one of a library and one of a version, too, so that each begins the same long list.
    "version records that overlap": made(
        [(VERNEED, 0, SIZE, 1 << 31)], struct.pack("<HHIII", 1, 65535, 1, 16, 16) * (SIZE // 16) + bytes(20)
    ),
    "a run path of many folders": made(
        [(DYNAMIC, 0, 32, 0)],
        struct.pack("<qQqQ", 29, 33, 0, 0) + b"\0" + b"".join(b"%x:" % k for k in range(50_000)) + b"\0",
    ),
}


@pytest.mark.parametrize("name", CLAIMS)
def test_read_elf_limits_counts_by_the_file_size(name: str, tmp_path: Path) -> None:
    """Both readers; such a file took minutes and gigabytes."""
    data = CLAIMS[name]
    path = tmp_path / "claims.so"
    path.write_bytes(data)
    with contextlib.suppress(ElfError):
        elf = read_elf(data)
        assert len(elf.symbols) <= SIZE // 24
        assert max(len(elf.needed), len(elf.runpath)) <= MOST_LIBRARIES
        assert sum(len(symbol.name) for symbol in elf.symbols) <= 5 * len(data)
    with pytest.raises(ModuleLoadError):
        portcall.load_module(path)


def text(word: str) -> bytes:
    return struct.pack("<Q", len(word)) + word.encode()


def numbers(*values: int) -> bytes:
    return struct.pack(f"<{len(values) + 1}Q", len(values), *values)


def whole(body: bytes) -> bytes:
    return struct.pack("<Q", len(body)) + body


def test_read_modern_lists_modules_with_sizes_and_imports() -> None:
    body = numbers(0, 2, 2, 2) + numbers(1, 2) + text("_lib") + text("cuda") + text("abc") + text("strange") + text("")
    assert read_modern(whole(body)) == (
        EmbeddedModule("_lib", None, (1, 2)),
        EmbeddedModule("cuda", 3),
        EmbeddedModule("strange", 0),
    )


def test_read_classic_stops_at_the_first_unknown_module() -> None:
    body = struct.pack("<Q", 3) + text("_lib") + text("cuda") + b"payload of unknown length"
    assert read_classic(whole(body)) == (EmbeddedModule("_lib", None, (1,)), EmbeddedModule("cuda", None))
    body = struct.pack("<Q", 2) + text("_lib") + text("_import_tree") + numbers(0, 0) + numbers()
    assert read_classic(whole(body)) == (EmbeddedModule("_lib", None),)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        whole(b"")[:-1],
        whole(b"") + b"x",
        whole(numbers()),
        whole(numbers(0, 1) + numbers(5) + text("_lib")),
        whole(numbers(2, 1) + numbers() + text("_lib")),
        whole(numbers(0, 0) + numbers() + text("_lib") + b"rest"),
        whole(struct.pack("<Q", 2**61) + b"12345678"),
    ],
)
def test_read_modern_refuses_inconsistent_tables(data: bytes) -> None:
    with pytest.raises(BlobError):
        read_modern(data)


@given(st.binary(max_size=100))
def test_read_modern_of_any_bytes_is_a_table_or_an_error(body: bytes) -> None:
    for read in (read_modern, read_classic):
        for data in (body, whole(body)):
            with contextlib.suppress(BlobError):
                read(data)
