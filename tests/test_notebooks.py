# SPDX-License-Identifier: Apache-2.0
"""What notebooks show: well-formed HTML with the facts, in which no name or text is markup."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np

import portcall
from portcall import rpc, toolchain
from portcall.bench import BenchmarkResult


def shown(value: Any) -> dict[str, str]:
    """Return the facts by name; the title and the text below as ``title`` and ``below``."""
    root = ET.fromstring(value._repr_html_())
    rows = {row[0].text or "": row[1].text or "" for row in root.iter("tr")}
    return {"title": root.findtext("b") or "", **rows, "below": root.findtext("pre") or ""}


def test_tensor_repr_html_shows_facts_and_elements() -> None:
    facts = shown(portcall.tensor(np.arange(10_000, dtype="int32")))
    assert facts == {
        "title": "portcall.Tensor", "type": "int32", "shape": "[10000]", "device": "cpu:0", "memory": "40,000 bytes",
        "below": "[   0    1    2 ... 9997 9998 9999]",
    }  # fmt: skip


def test_tensor_repr_html_without_elements_that_numpy_lacks() -> None:
    facts = shown(portcall.empty((2,), "int32x4"))
    assert facts["memory"] == "32 bytes"


def test_module_repr_html_shows_file_and_functions_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "<b>&"
    folder.mkdir()
    names = "".join(f"PORTCALL_EXPORT_TYPED(f{number}, [] {{ return {number}; }})\n" for number in range(10))
    (folder / "k.cc").write_text(f"#include <portcall/portcall.h>\n{names}")
    lib = portcall.load_module(toolchain.create_shared(folder / "k.cc", folder / "k.so"))
    facts = shown(lib)
    assert facts["from"] == repr(str((folder / "k.so").resolve()))
    assert facts["functions"] == ", ".join(f"f{number}" for number in range(10))
    assert repr(lib) == f"<portcall.Module {facts['from']}: f0, f1, f2, f3, f4, f5, f6, f7, … and 2 more>"


def test_module_repr_escapes_control_characters(tmp_path: Path) -> None:
    (tmp_path / "k.c").write_text("int __tvm_ffi_abcde(void) { return 0; }")
    library = toolchain.create_shared(tmp_path / "k.c", tmp_path / "k.so")
    library.write_bytes(library.read_bytes().replace(b"__tvm_ffi_abcde", b"__tvm_ffi_\x1b[31m"))
    lib = portcall.load_module(library)
    assert lib.list_function_names() == ["\x1b[31m"]
    assert repr(lib).endswith(": \\x1b[31m>")


def test_session_repr_html_sends_no_request() -> None:
    with rpc.Server() as server, rpc.connect(server.address) as remote:
        tensor, module = remote.tensor(np.zeros(3, "float32")), remote.module
        before = remote.stats()["requests"]
        facts = shown(remote)
        assert (facts["with"], facts["state"]) == (f"{server.address}, a server of portcall", "open")
        assert facts["requests"] == str(before)
        assert shown(tensor)["device"] == f"cpu:0 of {server.address}"
        assert shown(module)["from"] == "of type 'rpc'"
        assert repr(module) == "<portcall.Module of type 'rpc'>"
        assert remote.stats()["requests"] == before
    assert shown(remote)["state"] == "closed"


def test_benchmark_result_repr_html_shows_units() -> None:
    facts = shown(BenchmarkResult((1e-6, 3e-6)))
    assert (facts["median"], facts["repeats"]) == ("2.00 us", "2")
