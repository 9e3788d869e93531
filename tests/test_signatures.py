# SPDX-License-Identifier: Apache-2.0
"""What functions say of their parameters: ``inspect.signature`` of a PackedFunc, and what a library's file has."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import portcall
from portcall import _signature, toolchain
from portcall.inspect import inspect_library

SOURCE = """
#include <portcall/portcall.h>
using namespace portcall;
static Tensor Scale(const TensorView& x, float factor) { (void)factor; return Tensor::Empty(x.shape(), x.dtype()); }
namespace inside {
PORTCALL_EXPORT_TYPED(scale, Scale)
PORTCALL_EXPORT_TYPED(describe, [](std::optional<std::string> name, const Array<double>& items) -> Map<String, Any> {
  return {{String(name.value_or("")), Any(items)}};
})
}  // namespace inside
PORTCALL_EXPORT_TYPED(nothing, [] {})
PORTCALL_REGISTER_GLOBAL("signed.typed").set_short().set_body_typed([](int64_t n, std::vector<uint8_t> v) {
  return n + static_cast<int64_t>(v.size());
});
PORTCALL_REGISTER_GLOBAL("signed.packed").set_body([](Args, RetValue* rv) { *rv = 7; });
"""
# What compilers call the same type.
FUNCTION = "F = portcall::TypedPackedFunc<{0}()>({0}, std::vector<{1}>, std::optional<{2} >, {3}Mine)"
SPELLINGS = {
    "gcc": ("long int", "unsigned char", "std::__cxx11::basic_string<char>", "{anonymous}::"),
    "clang": ("long", "unsigned char", "std::basic_string<char>", "(anonymous namespace)::"),
}
TVM_FFI = (
    '{"type_schema":"{\\"type\\":\\"ffi.Function\\",\\"args\\":[{\\"type\\":\\"ffi.Array\\",\\"args\\":'
    '[{\\"type\\":\\"int\\"}]},{\\"type\\":\\"ffi.Tensor\\"},{\\"type\\":\\"float\\"}]}"}'
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("signed")
    (folder / "signed.cc").write_text(SOURCE)
    options = (
        "-O2",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Wshadow",
        "-Werror",
        "-fvisibility=hidden",
        "-Wl,--gc-sections",
    )
    return toolchain.create_shared(folder / "signed.cc", folder / "signed.so", options=options)


def test_inspect_library_reads_signatures_without_loading(library: Path) -> None:
    report = inspect_library(library)
    assert report.functions == ("describe", "nothing", "scale")
    assert report.signatures == {
        "describe": "(std::optional<std::string>, Array<double>) -> Map<String, Any>",
        "nothing": "() -> void",
        "scale": "(TensorView, float) -> Tensor",
    }
    assert report.globals == {"signed.packed": "", "signed.typed": "(int64_t, std::vector<uint8_t>) -> int64_t"}


def test_inspect_signature_of_compiled_functions(library: Path) -> None:
    lib = portcall.load_module(library)
    try:
        scale = inspect.signature(lib["scale"])
        assert [parameter.annotation for parameter in scale.parameters.values()] == ["TensorView", "float"]
        assert {parameter.kind for parameter in scale.parameters.values()} == {inspect.Parameter.POSITIONAL_ONLY}
        assert scale.return_annotation == "Tensor"
        typed = portcall.get_global_func("signed.typed")
        assert str(inspect.signature(typed)) == "(arg0: 'int64_t', arg1: 'std::vector<uint8_t>', /) -> 'int64_t'"
        assert (typed.name, typed(40, [1, 2])) == ("signed.typed", 42)
        with pytest.raises(ValueError, match=r"signature"):
            inspect.signature(portcall.get_global_func("signed.packed"))
    finally:
        for name in ("signed.typed", "signed.packed"):
            portcall.remove_global_func(name)


def test_inspect_signature_of_functions_of_python(register: Callable[..., portcall.PackedFunc]) -> None:
    def add(x: int, y: int = 1) -> int:
        return x + y

    assert inspect.signature(register("signed.python", add)) == inspect.signature(add)
    assert inspect.signature(portcall.get_global_func("signed.python")) == inspect.signature(add)
    assert not hasattr(portcall.convert(add), "no_such_attribute")


@pytest.mark.parametrize("compiler", SPELLINGS)
def test_signature_reads_spellings_of_compilers(compiler: str) -> None:
    text = f"auto f() [{FUNCTION.format(*SPELLINGS[compiler])}]"
    assert _signature.parts_of(text) == (
        ["int64_t", "std::vector<uint8_t>", "std::optional<std::string>", "Mine"],
        "TypedPackedFunc<int64_t()>",
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "F = void]",
        "auto f() [F = void]",
        "{",
        '{"type_schema": 3}',
        "{}",
        "F = )]",
        "F = <)]",
        pytest.param('{"type_schema": ' * 100_000, id="deep"),
    ],
)
def test_signature_ignores_other_symbols(text: str) -> None:
    assert _signature.shown(text) in ("", "() -> ", "() -> <")


def test_signature_hides_names_with_control_characters(library: Path, tmp_path: Path) -> None:
    data = library.read_bytes()
    (tmp_path / "odd.so").write_bytes(data.replace(b"registers signed.packed", b"registers signed\n\x1b[1mxx"))
    assert list(inspect_library(tmp_path / "odd.so").globals) == ["signed.typed"]


def test_signature_travels_as_plain_values() -> None:
    def func(a: int, /, b: tuple[int, ...] = (1,), *c: int, d: float | None = None, **e: str) -> None: ...

    plain = json.loads(json.dumps(_signature.to_plain(inspect.signature(func))))
    assert str(_signature.from_plain(plain)).replace("'", "") == (
        "(a: int, /, b: tuple[int, ...] = Ellipsis, *c: int, d: float | None = None, **e: str) -> None"
    )


def test_signature_of_the_tvm_ffi_headers() -> None:
    assert _signature.shown(TVM_FFI) == "(Tensor, float) -> Array<int>"


def test_signature_of_the_tvm_ffi_headers_since_0_1_15() -> None:
    def named(result: object, *params: object) -> dict[str, object]:
        return {"type": "ffi.Function", "named_args": {"return": [result], "params": list(params)}}

    int_, text = {"type": "int"}, {"type": "ffi.String"}
    schema = named(int_, {"type": "Optional", "args": [text]}, {**named(text, int_), "type": "std::function"})
    metadata = json.dumps({"type_schema": json.dumps(schema)})
    assert _signature.shown(metadata) == "(Optional<String>, std::function<String(int)>) -> int"
    assert _signature.shown(json.dumps({"type_schema": json.dumps({"type": "ffi.Function"})})) == ""


def test_inspect_signature_of_the_tvm_ffi_headers(tmp_path: Path, register: Callable[..., portcall.PackedFunc]) -> None:
    """By hand, as their macros write it: a function beside the function returns the JSON."""
    quoted = TVM_FFI.replace("\\", "\\\\").replace('"', '\\"')
    (tmp_path / "k.c").write_text(f"""
#include <portcall/c_api.h>
#include <string.h>
int __tvm_ffi_f(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {{
  return TVMFFIGetTypeInfo(0) == 0;
}}
static int seven(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {{
  result->type_index = kTVMFFIInt;
  result->v_int64 = 7;
  return 0;
}}
int __tvm_ffi_unnamed(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {{
  result->type_index = kTVMFFIFunction;
  return TVMFFIFunctionCreate(0, seven, 0, (TVMFFIObjectHandle*)&result->v_obj);
}}
int __tvm_ffi__metadata_f(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {{
  const char* text = "{quoted}";
  TVMFFIByteArray bytes = {{text, strlen(text)}};
  return TVMFFIStringFromByteArray(&bytes, result);
}}
int __tvm_ffi_register(void* self, const TVMFFIAny* args, int32_t n, TVMFFIAny* result) {{
  const char *name = "signed.described", *text = "{quoted}";
  TVMFFIMethodInfo info = {{{{name, strlen(name)}}, {{0, 0}}, {{text, strlen(text)}}, 0, args[0]}};
  return TVMFFIFunctionSetGlobalFromMethodInfo(&info, 1);
}}""")
    lib: Any = portcall.load_module(toolchain.create_shared(tmp_path / "k.c", tmp_path / "k.so"))
    assert str(inspect.signature(lib["f"])) == "(arg0: 'Tensor', arg1: 'float', /) -> 'Array<int>'"
    register("signed.described", len)
    lib["register"](lib["unnamed"]())
    described = portcall.get_global_func("signed.described")
    assert (described.name, described()) == ("signed.described", 7)
    assert inspect.signature(described) == inspect.signature(lib["f"])
