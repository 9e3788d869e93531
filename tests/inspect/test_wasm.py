# SPDX-License-Identifier: Apache-2.0
"""Libraries in WebAssembly: what the target wasm32 gives, what the reader says of it, and that no bytes break it."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import portcall.inspect
from devices.payloads import text
from portcall import errors, graph, toolchain
from portcall.inspect._elf import ElfError
from portcall.inspect._library import needs_of
from portcall.inspect._machine import Machine, Unmet
from portcall.inspect._wasm import BUILD, read_library, read_wasm
from portcall.rpc.client._library_check import Answer, check

SOURCE = """
#include <math.h>
#include <portcall/c_api.h>
int __tvm_ffi_exp(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {
  (void)self;
  if (n != 1) return TVMFFIErrorSetRaisedFromCStr("TypeError", "one number"), -1;
  result->type_index = kTVMFFIFloat;
  result->v_float64 = exp(args[0].v_float64);
  return 0;
}
"""
MACHINE = Machine(BUILD, "wasm", "", "", "wasm32", "0.1.0", ("modern",))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wasm")
    (folder / "k.c").write_text(SOURCE)
    return toolchain.create_shared(folder / "k.c", folder / "k.wasm", target="wasm32")


def test_bundles_begin_with_a_library_for_wasm32(library: Path, tmp_path: Path) -> None:
    builder = graph.GraphBuilder()
    builder.output(builder.call("exp", [builder.input("x", (4,)), builder.param("w", np.ones(4, "float32"))], (4,)))
    made = graph.export_bundle(tmp_path / "m.wasm", builder.graph(), library, builder.params)
    assert (graph.file_kind(made), list(graph.read_bundle(made).params)) == ("bundle", ["w"])
    assert portcall.inspect.inspect_library(made).functions == ("exp",)
    again = graph.export_bundle(tmp_path / "again.wasm", builder.graph(), made, builder.params)
    assert again.read_bytes() == made.read_bytes()


def test_inspect_library_reports_wasm32_exports_and_imports(library: Path) -> None:
    report = portcall.inspect.inspect_library(library)
    assert (report.machine, report.kind, report.abi, report.functions) == ("wasm32", "shared", "modern", ("exp",))
    assert (report.runtime_imports, report.other_imports) == (("TVMFFIErrorSetRaisedFromCStr",), 1)
    assert [problem for problem in report.problems if "wasm32" not in problem] == []


@pytest.mark.parametrize("damage", [0, 100])
def test_inspect_library_reads_modules_inside_of_a_wasm32_library(damage: int, tmp_path: Path) -> None:
    parts = [*struct.pack("<6Q", 3, 0, 1, 1, 1, 1), *text(b"_lib"), *text(b"webgpu"), *text(b"\0" * 16)]
    table = [*struct.pack("<Q", len(parts) + damage), *parts]
    blob = ",".join(map(str, table))
    before = "const char first[100] = {1}; "
    (tmp_path / "k.c").write_text(f"{before} const unsigned char __tvm_ffi__library_bin[] = {{{blob}}};")
    made = toolchain.create_shared(tmp_path / "k.c", tmp_path / "k.wasm", target="wasm32")
    report = portcall.inspect.inspect_library(made)
    assert [module.kind for module in report.modules] == ([] if damage else ["_lib", "webgpu"])
    assert any("cannot be read" in problem for problem in report.problems) == bool(damage)


def test_upload_of_a_library_asks_whether_the_peer_has_its_imports(library: Path) -> None:
    asked = []

    def ask(name: str, needs: str) -> Answer:
        asked.append(needs)
        return Answer(MACHINE, Unmet({}, {}, (), ("exp",)))

    with pytest.raises(errors.ModuleLoadError) as caught:
        check(library, "k.wasm", "the tab", ask)
    assert len(caught.value.problems) == 1
    assert asked
    assert "exp" in needs_of(read_library(library.read_bytes())).symbols
    check(library, "k.wasm", "the tab", lambda name, needs: Answer(MACHINE, Unmet({}, {}, (), ())))


def test_modules_that_are_no_libraries_are_told_apart() -> None:
    empty = b"\0asm\1\0\0\0"
    assert read_wasm(empty).kind == "executable"
    assert read_wasm(empty + b"\0\x08\x07linking").kind == "object"
    for damaged in (b"\0asm\2\0\0\0", empty + b"\2\x05", empty + b"\7\1\x7f", empty + b"\2\5\1\1a\1b"):
        with pytest.raises(ElfError):
            read_wasm(damaged)


@given(data=st.data())
def test_read_wasm_of_any_bytes_is_a_file_or_an_error(library: Path, data: st.DataObject) -> None:
    code = bytearray(library.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        code[data.draw(st.integers(8, len(code) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ElfError):
        read_wasm(bytes(code[: data.draw(st.integers(8, len(code)))]))
