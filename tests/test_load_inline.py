# SPDX-License-Identifier: Apache-2.0
"""load_inline and build: what is compiled once, what makes it be compiled again, and where errors say they are."""

from __future__ import annotations

import ctypes
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from portcall import errors, toolchain

# The first lines of tvm-ffi's guide to inline sources, in our words.
TVM_FFI_SOURCE = """
void add_one_cpu(tvm::ffi::TensorView x, tvm::ffi::TensorView y) {
  TVM_FFI_ICHECK(x.ndim() == 1) << "x must be a 1D tensor";
  DLDataType f32_dtype{kDLFloat, 32, 1};
  TVM_FFI_CHECK(x.dtype() == f32_dtype, TypeError) << "x must be a float tensor";
  TVM_FFI_ICHECK(x.size(0) == y.size(0)) << "x and y must have the same shape";
  for (int i = 0; i < x.size(0); ++i) {
    static_cast<float*>(y.data_ptr())[i] = static_cast<float*>(x.data_ptr())[i] + 1;
  }
}
"""


class Counter:
    """A compiler that notes when it compiles."""

    def __init__(self, folder: Path) -> None:
        self.notes = folder / "notes"
        self.program = folder / "counting-compiler"
        real = toolchain.find_compiler().command[0]
        note = f"""case "$*" in *" -c "*) echo x >> '{self.notes}';; esac"""
        self.program.write_text(f'#!/bin/sh\n{note}\nexec {real} "$@"\n')
        self.program.chmod(0o755)

    def __len__(self) -> int:
        return len(self.notes.read_text().splitlines()) if self.notes.exists() else 0


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counter:
    """An empty cache, and the number of sources that were compiled."""
    for name in ("CC", "CXXFLAGS", "CFLAGS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    counter = Counter(tmp_path)
    monkeypatch.setenv("CXX", str(counter.program))
    return counter


def age(*paths: Path) -> None:
    """Let files be old: one that was written while a compiler ran may not be what it read."""
    for path in paths:
        os.utime(path, (1, 1))


def test_load_inline_compiles_once(compiled: Counter) -> None:
    source = "int add(int a, int b) { return a + b; }\nstd::string shout(std::string t) { return t + '!'; }"
    lib = toolchain.load_inline(source, ["add", "shout"])
    assert (lib.add(1, 2), lib.shout("hi"), len(compiled)) == (3, "hi!", 1)
    assert lib.list_function_names() == ["add", "shout"]
    again = toolchain.load_inline(source, ["add", "shout"])
    assert (again.add(1, 2), len(compiled)) == (3, 1)
    assert toolchain.load_inline(source, "add").list_function_names() == ["add"]
    assert toolchain.load_inline(source + "\n", "add").add(1, 2) == 3
    assert len(compiled) == 3
    toolchain.load_inline(source, "add", options=["-DOTHER"])
    assert len(compiled) == 4


@pytest.mark.peers
def test_load_inline_compiles_the_sources_of_tvm_ffi(compiled: Counter) -> None:
    import torch

    lib = toolchain.load_inline(TVM_FFI_SOURCE, {"add_one_cpu": 'Adds "one".'})
    x = np.arange(5, dtype="float32")
    y = np.empty_like(x)
    lib.add_one_cpu(x, y)
    assert y.tolist() == [1, 2, 3, 4, 5]
    of_torch = torch.arange(5, dtype=torch.float32)
    result = torch.empty_like(of_torch)
    lib.add_one_cpu(of_torch, result)
    assert result.tolist() == [1, 2, 3, 4, 5]
    with pytest.raises(TypeError, match="x must be a float tensor"):
        lib.add_one_cpu(x.astype("int32"), y)
    assert len(inspect.signature(lib.add_one_cpu).parameters) == 2
    toolchain.load_inline(TVM_FFI_SOURCE, {"add_one_cpu": 'Adds "one".'})
    assert len(compiled) == 1


def test_load_inline_without_apache_tvm_ffi_says_what_to_install(
    compiled: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portcall._inline, "tvm_ffi_headers", list)
    with pytest.raises(errors.CompileError, match="pip install apache-tvm-ffi"):
        toolchain.load_inline(TVM_FFI_SOURCE, "add_one_cpu")
    assert len(compiled) == 0


def test_load_inline_error_has_the_line_of_the_python_file(compiled: Counter) -> None:
    here = inspect.currentframe()
    assert here is not None
    line = here.f_lineno + 2
    source = """
int wrong() { return missing_thing; }
int fine() { return 1; }
"""
    with pytest.raises(errors.CompileError) as caught:
        toolchain.load_inline(source, ["wrong"])
    assert re.search(
        rf"^{re.escape(__file__)}:{line + 0}:\d+: error: .*missing_thing", caught.value.output, re.MULTILINE
    )
    assert caught.value.output in str(caught.value)
    assert caught.value.compiler_works
    # One that stands nowhere as it is has lines of its own.
    with pytest.raises(errors.CompileError) as caught:
        toolchain.load_inline("\n" * 6 + source.strip(), ["wrong"], name="mine")
    assert re.search(r"^mine\.cc:7:\d+: error: .*missing_thing", caught.value.output, re.MULTILINE)


def test_load_inline_names_the_function_that_is_not_there(compiled: Counter) -> None:
    with pytest.raises(errors.CompileError) as caught:
        toolchain.load_inline("int f() { return 1; }", ["f", "g_is_not_there"])
    assert re.search(r"^functions=:2:\d+: error: .*g_is_not_there", caught.value.output, re.MULTILINE)


@pytest.mark.parametrize(
    ("source", "functions", "name", "kind"),
    [
        ("int f();", ["ns::f"], "inline", ValueError),
        ("int f();", ["f(); int evil"], "inline", ValueError),
        ("int f();", ["f"], "../inline", ValueError),
        ("int f();", [""], "inline", ValueError),
        (Path("f.cc"), ["f"], "inline", TypeError),
        ("int f();", ["f"], "--version", ValueError),
        ("int f();", ["f"], "f" * 300, ValueError),
        ("int f();", {"f": 3}, "inline", TypeError),
        ("int f();", None, "inline", TypeError),
    ],
)
def test_load_inline_checks_its_arguments(
    compiled: Counter, source: str, functions: Any, name: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        toolchain.load_inline(source, functions, name=name)
    assert len(compiled) == 0


def test_build_compiles_again_when_a_header_a_source_or_a_word_changes(compiled: Counter, tmp_path: Path) -> None:
    header, source = tmp_path / "a header.h", tmp_path / "k.cc"
    header.write_text("#define ANSWER 1\n")
    source.write_text('#include "a header.h"\nextern "C" int answer() { return ANSWER + MORE; }\n')
    age(header, source)

    def answer(more: int = 0) -> int:
        return int(ctypes.CDLL(str(toolchain.build(source, options=[f"-DMORE={more}"]))).answer())

    assert (answer(), answer(), len(compiled)) == (1, 1, 1)
    header.write_text("#define ANSWER 2\n")
    age(header)
    assert (answer(), answer(), len(compiled)) == (2, 2, 2)
    header.write_text("#define ANSWER 1\n")  # as it was: nothing is compiled
    assert (answer(), len(compiled)) == (1, 2)
    assert (answer(1), answer(1), len(compiled)) == (2, 2, 3)
    age(header)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a header.h").write_text("#define ANSWER 7\n")
    (elsewhere / "k.cc").write_text(source.read_text())
    assert ctypes.CDLL(str(toolchain.build(elsewhere / "k.cc", options=["-DMORE=0"]))).answer() == 7


def test_build_does_not_trust_what_is_damaged(compiled: Counter, tmp_path: Path) -> None:
    source = tmp_path / "k.cc"
    source.write_text('extern "C" int answer() { return 1; }\n')
    age(source)
    library = toolchain.build(source)
    (known,) = library.parent.glob("*.json")
    for text in ("", "[{}]", "{}", '[{"library": 3, "headers": 4}]', "[3]"):
        known.write_text(text)
        assert toolchain.build(source) == library
    assert len(compiled) == 6
    size = library.stat().st_size
    os.truncate(library, 0)  # as after a loss of power
    assert toolchain.build(source).stat().st_size == size
    library.unlink()
    assert toolchain.build(source).is_file()
    assert len(compiled) == 8
    assert not [path for path in library.parent.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("options", ["-O2", [2], [Path("a")]])
def test_build_takes_options_as_a_list_of_words(compiled: Counter, tmp_path: Path, options: Any) -> None:
    (tmp_path / "k.c").write_text("int answer(void) { return 1; }\n")
    with pytest.raises(TypeError):
        toolchain.build(tmp_path / "k.c", options=options)


def test_build_that_makes_no_file_is_a_compile_error(compiled: Counter, tmp_path: Path) -> None:
    (tmp_path / "k.c").write_text("int answer(void) { return 1; }\n")
    with pytest.raises(errors.CompileError) as caught:
        toolchain.build(tmp_path / "k.c", options=["-E"])
    assert "-E" in caught.value.command


def test_build_by_several_processes_compiles_once(compiled: Counter, tmp_path: Path) -> None:
    source = tmp_path / "k.cc"
    source.write_text('extern "C" int answer() { return 1; }\n')
    age(source)
    program = f"from portcall import toolchain; print(toolchain.build({str(source)!r}))"
    started = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = {process.communicate(timeout=300)[0] for process in started}
    assert [process.returncode for process in started] == [0, 0, 0]
    assert (len(answers), len(compiled)) == (1, 1)


def test_build_refuses_a_cache_that_others_can_write_to(
    compiled: Counter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared))
    with pytest.raises(PermissionError):
        toolchain.load_inline("int f() { return 1; }", "f")
    assert len(compiled) == 0


@pytest.mark.peers
def test_tvm_ffi_cpp_load_inline_under_that_name(compiled: Counter, tmp_path: Path) -> None:
    source = "#include <tvm/ffi/function.h>\ndouble Half(double x) { return x / 2; }\n"
    (tmp_path / "kernel.cc").write_text(source + "TVM_FFI_DLL_EXPORT_TYPED_FUNC(half, Half);\n")
    script = tmp_path / "script.py"
    script.write_text(
        f"""import numpy, tvm_ffi.cpp
words = dict(name="hello", cpp_sources={TVM_FFI_SOURCE!r}, functions="add_one_cpu",
             extra_cflags=["-O1"], extra_include_paths=["."], extra_ldflags=["-lm"])
mod = tvm_ffi.cpp.load_inline(**words)
assert tvm_ffi.load_module(tvm_ffi.cpp.build_inline(**words)).list_function_names() == ["add_one_cpu"]
x = numpy.zeros(3, "float32")
mod.add_one_cpu(x, x)
print(x.tolist(), tvm_ffi.load_module(tvm_ffi.cpp.build("k", sources=["kernel.cc"])).half(3))
print(tvm_ffi.cpp.load("k", cpp_files="kernel.cc").half(3))
for call in (
    lambda: tvm_ffi.cpp.load_inline("cuda", cuda_sources="__global__ void f() {{}}"),
    lambda: tvm_ffi.cpp.build("cuda", cuda_files=["f.cu"]),
):
    try:
        call()
    except NotImplementedError:
        print("refused")
"""
    )
    words = [sys.executable, "-m", "portcall.tvm_ffi", str(script)]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[1.0, 1.0, 1.0] 1.5\n1.5\nrefused\nrefused\n"
