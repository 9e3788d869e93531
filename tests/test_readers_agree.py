# SPDX-License-Identifier: Apache-2.0
"""What is read in Python and in C++ too, ELF files, gets the same verdict from both readers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import portcall
from portcall import _core, toolchain
from portcall.inspect import this_machine
from portcall.inspect._elf import ElfError, read_elf

CORE = Path(__file__).parents[1] / "core"


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> portcall.Module:
    """The core's readers, as functions."""
    source = Path(__file__).parent / "native" / "readers.cc"
    return portcall.load_module(
        toolchain.create_shared(source, tmp_path_factory.mktemp("readers") / "readers.so", options=[f"-I{CORE}"])
    )


ELF_SOURCE = """
#include <math.h>
int shared_value = 7;
__attribute__((weak)) int maybe(void);
int __tvm_ffi_f(void) { return 1; }
void* __tvm_ffi__library_ctx;
static int one(void) { return 1; }
static void* choose(void) { return one; }
int chosen(void) __attribute__((ifunc("choose")));
double root(double v) { return maybe ? maybe() : erf(v) + shared_value; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("elf") / "a.c"
    source.write_text(ELF_SOURCE)
    return toolchain.create_shared(source, source.with_suffix(".so"), options=["-lm"])


def elf_facts(data: bytes) -> Any:
    """Return what Python reads of a library for this machine, None when it refuses the file."""
    try:
        elf = read_elf(data)
    except ElfError:
        return None
    if elf.kind != "shared" or elf.build != this_machine().build:
        return None
    defined = [symbol for symbol in elf.symbols if symbol.defined]
    return (
        list(elf.needed),
        {symbol.name for symbol in elf.symbols if not symbol.defined and not symbol.weak},
        {symbol.name for symbol in defined if symbol.function},
        {symbol.name for symbol in defined if not symbol.function},
    )


def core_elf_facts(readers: portcall.Module, file: Path) -> Any:
    read = readers["elf_facts"](str(file))
    return None if isinstance(read, str) else (list(read[0]), *map(set, read[1:]))


def test_readers_of_libraries_agree(readers: portcall.Module, library: Path) -> None:
    for file in (library, *Path(_core.__file__).parent.glob("lib/*.so")):
        facts = elf_facts(file.read_bytes())
        assert facts is not None
        assert facts == core_elf_facts(readers, file)
    assert {"__tvm_ffi_f", "root", "chosen"} <= (elf_facts(library.read_bytes()) or [set()] * 3)[2]


@pytest.mark.parametrize(
    ("place", "changed_to"),
    {
        "magic": (0, b"X"), "of 32 bits": (4, b"\x01"), "big-endian": (5, b"\x02"), "an object": (16, b"\x01"),
        "a program": (16, b"\x02"), "a core dump": (16, b"\x04"), "of another machine": (18, b"\x28"),
        "no sections": (60, bytes(2)), "sections outside": (40, b"\xff" * 4),
    }.values(),
)  # fmt: skip
def test_readers_refuse_the_same_files(
    readers: portcall.Module, library: Path, tmp_path: Path, place: int, changed_to: bytes
) -> None:
    data = bytearray(library.read_bytes())
    data[place : place + len(changed_to)] = changed_to
    file = tmp_path / "other.so"
    file.write_bytes(data)
    assert elf_facts(bytes(data)) is None
    assert core_elf_facts(readers, file) is None


def test_readers_refuse_truncated_libraries(readers: portcall.Module, library: Path, tmp_path: Path) -> None:
    data, file = library.read_bytes(), tmp_path / "short.so"
    for end in range(0, len(data), 61):
        file.write_bytes(data[:end])
        assert elf_facts(data[:end]) is None
        assert core_elf_facts(readers, file) is None
