# SPDX-License-Identifier: Apache-2.0
"""``portcall stubs``: the module that it writes runs, and mypy knows what its functions and classes take and give."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import portcall
from portcall import ir, toolchain

SOURCE = """
#include <portcall/portcall.h>
#include <optional>
#include <string>
using namespace portcall;
PORTCALL_EXPORT_TYPED(stubs_add, [](int64_t a, double b) { return a + b; })
PORTCALL_EXPORT_TYPED(stubs_name, [](std::optional<std::string> name) { return name.value_or("nobody"); })
PORTCALL_EXPORT_TYPED(stubs_sum, [](const Array<int64_t>& items) {
  int64_t n = 0;
  for (int64_t i : items) n += i;
  return n;
})
PORTCALL_EXPORT_TYPED(stubs_size, [](TensorView x) { return static_cast<int64_t>(x.numel()); })
PORTCALL_EXPORT_TYPED(stubs_apply, [](TypedPackedFunc<int64_t(int64_t)> f, int64_t x) { return f(x); })
PORTCALL_EXPORT_TYPED(stubs_map, [](Map<String, Array<double>> m) { return m; })
PORTCALL_EXPORT_TYPED(str, [](std::string text) { return text; })
PORTCALL_EXPORT_TYPED(Sequence, [](const Array<int64_t>& items) { return items; })
PORTCALL_EXPORT_TYPED(lambda, [] { return 1; })
PORTCALL_EXPORT_TYPED(stubs_nothing, [](Shape, DLDataType, Any) {})
"""
OF_TVM_FFI = """
#define TVM_FFI_DLL_EXPORT_INCLUDE_METADATA 1
#include <tvm/ffi/reflection/overload.h>
#include <tvm/ffi/tvm_ffi.h>
namespace ffi = tvm::ffi;
class StubPairObj : public ffi::Object {
 public:
  int64_t a;
  double b;
  static constexpr bool _type_mutable = true;
  StubPairObj(int64_t a, double b) : a(a), b(b) {}
  double Sum() const { return a + b; }
  int64_t Whole(int64_t n) const { return a * n; }
  ffi::String Text(ffi::String text) const { return text; }
  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("stubs.Pair", StubPairObj, ffi::Object);
};
class StubPair : public ffi::ObjectRef {
 public:
  StubPair(int64_t a, double b) { data_ = ffi::make_object<StubPairObj>(a, b); }
  TVM_FFI_DEFINE_OBJECT_REF_METHODS_NULLABLE(StubPair, ffi::ObjectRef, StubPairObj);
};
double Half(double x) { return x / 2; }
StubPair MakePair(int64_t a, double b) { return StubPair(a, b); }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(stubs_half, Half);
TVM_FFI_DLL_EXPORT_TYPED_FUNC_DOC(stubs_half, R"(Half of x, a "number".)");
TVM_FFI_DLL_EXPORT_TYPED_FUNC(stubs_pair, MakePair);
TVM_FFI_STATIC_INIT_BLOCK() {
  ffi::reflection::OverloadObjectDef<StubPairObj>()
      .def("times", &StubPairObj::Whole)
      .def("times", &StubPairObj::Text)
      .def_static("same", [](int64_t x) { return x; })
      .def_static("same", [](ffi::String x) { return x; });
  ffi::reflection::ObjectDef<StubPairObj>().def(ffi::reflection::init<int64_t, double>()).def_ro("a", &StubPairObj::a)
      .def_rw("b", &StubPairObj::b).def("sum", &StubPairObj::Sum);
  ffi::reflection::GlobalDef().def("stubs.twice", [](int64_t x) { return 2 * x; });
}
"""
USE = """
import numpy as np
import stubbed as k

total: float = k.stubs_add(1, 2.5)
name: str = k.stubs_name(None)
n: int = k.stubs_sum([1, 2]) + k.stubs_size(np.zeros(3)) + k.stubs_apply(lambda x: x + 1, 2)
values = k.stubs_map({"a": [1.0]})["a"][0].is_integer()
name = k.str_(name) * (k._lambda() + len(k.Sequence_([])))
k.stubs_nothing((1, 2), "float32", object)
print(total, name, n, values)
"""
WRONG = [
    "k.stubs_add('1', 2)", "k.stubs_name(3)", "k.stubs_sum([''])", "k.stubs_size(3)", "k.stubs_add(1)",
    "x: str = k.stubs_add(1, 2)",
]  # fmt: skip
USE_TVM_FFI = """
import stubbed as k

pair: k.Pair = k.stubs_pair(1, 2.0)
pair.b = 3.0
total: float = pair.sum() + pair.a + k.stubs_half(1)
twice: int = k.stubs_twice(2)
whole: int = pair.times(2) + k.Pair.same(1)
text: str = pair.times("a") + k.Pair.same("b")
print(total, twice, isinstance(k.Pair(1, 2), k.Pair), whole, text)
"""
WRONG_TVM_FFI = [
    "k.Pair('', 1)", "pair.a = 2", "pair.sum(3)", "k.stubs_pair('', 1)", "k.stubs_twice('')",
    "pair.times(1.5)", "n: str = pair.times(1)", "k.Pair.same(None)",
]  # fmt: skip
Invoke = Callable[..., Result]


def check(folder: Path, use: str, wrong: list[str], printed: str) -> None:
    (folder / "use.py").write_text(use)
    words = [sys.executable, "use.py"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.stderr) == (printed, "")
    (folder / "wrong.py").write_text("\n".join((use, *wrong, "")))
    words = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", os.devnull, "stubbed.py", "use.py", "wrong.py"]
    words[3:3] = ["--follow-imports=silent"]
    told = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=500, check=False).stdout
    places = {line.split(": ")[0] for line in told.splitlines() if ": error: " in line}
    first = use.count("\n") + 2
    assert places == {f"wrong.py:{first + i}" for i in range(len(wrong))}, told


def test_stubs_of_portcalls_headers_are_checked_by_mypy(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "k.cc").write_text(SOURCE)
    (tmp_path / "lib").mkdir()
    library = toolchain.create_shared(tmp_path / "k.cc", tmp_path / "lib" / "k.so")
    result = invoke("stubs", library, "-o", tmp_path / "stubbed.py")
    assert result.exit_code == 0, result.output
    check(tmp_path, USE, WRONG, "3.5 nobody 9 True\n")


@pytest.mark.peers
def test_stubs_of_tvm_ffis_headers_are_checked_by_mypy(shell: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "k.cc").write_text(OF_TVM_FFI)
    library = toolchain.create_shared(tmp_path / "k.cc", tmp_path / "k.so")
    done = shell("stubs", library, "-o", tmp_path / "stubbed.py", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["functions"], facts["globals"], facts["types"]) == (
        ["stubs_half", "stubs_pair"], ["stubs.twice"], ["stubs.Pair"],
    )  # fmt: skip
    tree = ast.parse((tmp_path / "stubbed.py").read_text())
    docs = [ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    assert 'Half of x, a "number".' in docs
    check(tmp_path, USE_TVM_FFI, WRONG_TVM_FFI, "5.5 4 True 3 ab\n")


def test_stubs_are_printed_unless_a_file_is_named(invoke: Invoke, kernels: str) -> None:
    result = invoke("stubs", kernels)
    assert result.exit_code == 0
    assert "def add(arg0: int, arg1: int, /) -> int:" in result.output
    assert invoke("stubs", kernels, "-o", "no-module.py").exit_code == 1
    assert invoke("stubs", kernels, "-o", "module.txt").exit_code == 1
    assert invoke("stubs", "missing.so").exit_code == 2


def test_module_metadata_is_what_the_library_says(kernels: str) -> None:
    module = portcall.load_module(kernels)
    schema = json.loads(module.metadata("add")["type_schema"])
    integer = {"type": "int"}
    assert schema == {"type": "ffi.Function", "named_args": {"return": [integer], "params": [integer, integer]}}
    assert json.loads(module.metadata("twice")["type_schema"])["named_args"]["return"] == [
        {"type": "ffi.Array", "args": [integer]}
    ]
    with pytest.raises(portcall.errors.FunctionNotFoundError):
        module.metadata("missing")
    assert portcall.get_global_func_metadata("testing.echo") == {}
    with pytest.raises(portcall.errors.FunctionNotFoundError):
        portcall.get_global_func_metadata("no.such.function")


def test_metadata_of_inline_functions_has_their_documentation() -> None:
    module = toolchain.load_inline(
        "double stubs_third(double x) { return x / 3; }", {"stubs_third": 'A third\nof "x".'}, name="stubs"
    )
    assert module.metadata("stubs_third")["doc"] == 'A third\nof "x".'
    assert module.list_function_names() == ["stubs_third"]


def test_type_metadata_is_json(register: Any) -> None:
    found = ir.type_metadata("ffi.Object")
    assert json.loads(json.dumps(found)) == found
    with pytest.raises(KeyError):
        ir.type_metadata("no.such.Type")
