# SPDX-License-Identifier: Apache-2.0
"""Libraries of the classic ABI (TVM 0.6 to 0.20): values, errors, callbacks, threads and embedded modules."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from portcall import errors, toolchain

Register = Callable[..., portcall.PackedFunc]


@pytest.fixture
def classic(c_libraries: dict[str, Path]) -> Callable[..., Any]:
    """``classic(name, *arguments)``: call a function of the library of 0.7 to 0.20."""
    return lambda name, *arguments: portcall.load_module(c_libraries["classic"])[name](*arguments)


@pytest.fixture
def own_copy(c_libraries: dict[str, Path], tmp_path: Path) -> Path:
    """The same library under a path of its own, because a module keeps what its code looked up."""
    path = tmp_path / "classic.so"
    path.write_bytes(c_libraries["classic"].read_bytes())
    return path


# ---- Values ----------------------------------------------------------------------------------------------------------


def test_classic_numbers_go_in_and_come_out(classic: Callable[..., Any]) -> None:
    assert classic("add_int", 2, 3) == 5
    assert classic("add_int", -(2**62), 2**61) == -(2**61)
    assert classic("half", 3.0) == 1.5


def test_classic_bools_are_integers(classic: Callable[..., Any]) -> None:
    assert classic("add_int", True, 2) == 3


@pytest.mark.parametrize("text", ["", "abc", "a text of some length", "ü" * 9])
def test_classic_text_is_a_c_string(classic: Callable[..., Any], text: str) -> None:
    assert classic("string_length", text) == len(text.encode())


def test_classic_text_with_nul_is_refused(classic: Callable[..., Any]) -> None:
    for text in ("a\0b", "a longer text \0 with one"):
        with pytest.raises(errors.ArgumentError) as caught:
            classic("string_length", text)
        assert str(caught.value) == (
            "string_length(): argument #0: expected text without NUL, which would end a C string, got text with one"
        )


@pytest.mark.parametrize(
    ("value", "code"),
    [
        pytest.param(1, 0, id="int"),
        pytest.param(True, 0, id="bool"),
        pytest.param(1.5, 2, id="float"),
        pytest.param(ctypes.c_void_p(16), 3, id="pointer"),
        pytest.param(None, 4, id="none"),
        pytest.param(portcall.DataType("int8"), 5, id="dtype"),
        pytest.param(portcall.cpu(), 6, id="device"),
        pytest.param(np.zeros(3), 7, id="array"),
        pytest.param(len, 10, id="function"),
        pytest.param("text", 11, id="small-text"),
        pytest.param("a text that is not small", 11, id="text"),
        pytest.param(b"bytes", 12, id="small-bytes"),
        pytest.param(b"bytes that are not small", 12, id="bytes"),
    ],
)
def test_classic_arguments_have_their_type_code(classic: Callable[..., Any], value: Any, code: int) -> None:
    assert classic("first_code", value) == code


def test_classic_tensors_and_modules_have_their_type_code(classic: Callable[..., Any], own_copy: Path) -> None:
    assert classic("first_code", portcall.empty((2,), "float32")) == 7
    assert classic("first_code", portcall.load_module(own_copy)) == 9
    assert classic("first_code") == -1


@pytest.mark.parametrize(
    ("value", "got"),
    [([1], "Array"), ({1: 2}, "Map"), (portcall.Shape((1,)), "Shape"), (2**70, "BigInt"), (object(), "object")],
    ids=["list", "dict", "shape", "wide-integer", "object"],
)
def test_classic_call_refuses_values_without_a_classic_form(classic: Callable[..., Any], value: Any, got: str) -> None:
    with pytest.raises(errors.ArgumentError) as caught:
        classic("first_code", value)
    assert (caught.value.function, caught.value.position, caught.value.got) == ("first_code", 0, got)


def test_classic_call_with_many_arguments(classic: Callable[..., Any]) -> None:
    assert classic("apply", lambda *values: len(values), *range(40)) == 40
    assert classic("apply", lambda *values: sum(map(len, values)), *[b"ab"] * 40) == 80


# ---- Tensors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["classic", "classic06", "classic_blob", "classic_unknown_blob"])
def test_classic_kernels_agree_with_numpy(c_libraries: dict[str, Path], name: str) -> None:
    add_one = portcall.load_module(c_libraries[name])["add_one"]
    x, y = np.arange(100, dtype="float32"), np.zeros(100, "float32")
    add_one(x, y)
    np.testing.assert_array_equal(y, x + 1)
    tensor = portcall.empty((100,), "float32")
    add_one(portcall.tensor(x), tensor)
    np.testing.assert_array_equal(tensor.numpy(), x + 1)


def test_classic_booleans_are_uint1(classic: Callable[..., Any]) -> None:
    """Which had the type "uint1", and a byte each."""
    x, y = np.arange(100) % 3 == 0, np.zeros(100, "bool")
    classic("invert", x, y)
    np.testing.assert_array_equal(y, ~x)
    tensor = portcall.empty((100,), "bool")
    classic("invert", portcall.tensor(x), tensor)
    np.testing.assert_array_equal(tensor.numpy(), ~x)
    with pytest.raises(RuntimeError, match=r"arg1\.dtype is expected to be bool"):
        classic("invert", x, y.view("uint8"))


def test_classic_booleans_passed_to_callbacks_are_converted(classic: Callable[..., Any]) -> None:
    x = portcall.tensor(np.arange(100) % 3 == 0)
    assert classic("apply", lambda t: (str(t.dtype), t.shape, t.numpy().sum().item())[2], x) == 34
    assert classic("apply", lambda t: str(t.dtype), x) == "bool"
    y = portcall.empty((100,), "bool")
    classic("apply", portcall.get_global_func("testing.apply"), lambda a, b: b.copyfrom(a) and None, x, y)
    np.testing.assert_array_equal(y.numpy(), x.numpy())


def test_classic_call_copies_misaligned_and_strided_arrays(classic: Callable[..., Any]) -> None:
    x, y = np.arange(20, dtype="float32")[1::2], np.zeros((10, 3), "float32")
    classic("add_one", x, y[:, 1])
    np.testing.assert_array_equal(y, np.stack([np.zeros(10), np.arange(2, 22, 2), np.zeros(10)], axis=1))


def test_classic_call_refuses_read_only_arrays_unless_marked(classic: Callable[..., Any]) -> None:
    x, y = np.arange(4, dtype="float32"), np.zeros(4, "float32")
    x.setflags(write=False)
    with pytest.raises(errors.ArgumentError, match="expected a writable tensor"):
        classic("add_one", x, y)
    classic("add_one", portcall.ReadOnly(x), y)
    np.testing.assert_array_equal(y, np.arange(4) + 1)


def test_classic_call_from_cpp_refuses_a_misaligned_tensor(c_libraries: dict[str, Path]) -> None:
    add_one = portcall.load_module(c_libraries["classic"])["add_one"]
    raw = np.zeros(128, "uint8")
    start = -raw.ctypes.data % 64 + 16
    tensor = portcall.from_dlpack(raw[start : start + 16].view("float32"))
    with pytest.raises(errors.ArgumentError, match=r"^add_one\(\): argument #0: .* got data at 16 modulo 64$"):
        portcall.get_global_func("testing.apply")(add_one, tensor, tensor)


# ---- Errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("add_int", (1,), "add_int: num_args should be 2"),
        ("add_int", (1.5, 2), "add_int: Expect arg[0] to be int"),
        ("half", (3,), "half: Expect arg[0] to be float"),
        ("string_length", (b"abc",), "string_length: Expect arg[0] to be str"),
        ("add_one", (3, 4), "add_one: Expect arg[0] to be pointer"),
        ("add_one", (None, None), "add_one: Expect arg[0] to be a float32 vector"),
        ("apply", (3,), "apply: Expect arg[0] to be function"),
    ],
)
def test_classic_failing_checks_keep_their_messages(
    classic: Callable[..., Any], name: str, arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(RuntimeError) as caught:
        classic(name, *arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((1,), "add_one: num_args should be 2"), ((1, 2), "add_one: Expect arg[0] to be pointer")],
)
def test_classic_failing_checks_of_tvm_0_6_keep_their_messages(
    c_libraries: dict[str, Path], arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(RuntimeError) as caught:
        portcall.load_module(c_libraries["classic06"])["add_one"](*arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("plain text", RuntimeError, "plain text"),
        ("", RuntimeError, ""),
        ("ValueError: wrong", ValueError, "wrong"),
        ("Strange: odd", RuntimeError, "Strange: odd"),
        ("IndexError: 7\nStack trace:\n  0: somewhere\n", IndexError, "7"),
        ("ü is no ASCII", RuntimeError, "ü is no ASCII"),
    ],
)
def test_classic_last_error_becomes_an_exception_of_its_kind(
    classic: Callable[..., Any], text: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as caught:
        classic("fail_with", text)
    assert type(caught.value) is kind
    assert str(caught.value) == message


def test_classic_failure_without_a_last_error_names_the_function(classic: Callable[..., Any]) -> None:
    with pytest.raises(RuntimeError, match="plain"):
        classic("fail_with", "plain")
    with pytest.raises(RuntimeError) as caught:
        classic("fail_silently")
    assert str(caught.value).startswith("fail_silently() ")


# ---- Callbacks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [None, 1, -(2**63), 1.5, "text", "a text that is not small", b"bytes", b"\0" * 20, portcall.cpu()],
    ids=repr,
)
def test_classic_callback_results_come_back(classic: Callable[..., Any], value: Any) -> None:
    assert classic("apply", lambda: value) == value


def test_classic_object_results_are_the_same(classic: Callable[..., Any], own_copy: Path) -> None:
    tensor, function, lib = portcall.empty((2,), "int8"), portcall.convert(len), portcall.load_module(own_copy)
    assert classic("apply", lambda: tensor) == tensor
    assert classic("apply", lambda: function) == function
    assert classic("apply", lambda: lib) == lib
    assert list(classic("apply", lambda: [1, "two"])) == [1, "two"]


def test_classic_callback_arguments_arrive(classic: Callable[..., Any]) -> None:
    assert classic("apply", lambda *values: repr(values), 1, 2.5, "text", b"bytes", None) == (
        "(1, 2.5, 'text', b'bytes', None)"
    )


def test_classic_callback_exception_comes_back_unchanged(classic: Callable[..., Any]) -> None:
    error = KeyError("mine")

    def fail() -> None:
        raise error

    with pytest.raises(KeyError) as caught:
        classic("apply", fail)
    assert caught.value is error
    error.__traceback__ = None


def test_classic_calls_nest(classic: Callable[..., Any]) -> None:
    def factorial(n: int) -> int:
        return 1 if n == 0 else n * int(classic("apply", factorial, n - 1))

    assert classic("apply", factorial, 12) == 479001600


def test_classic_library_calls_global_functions(own_copy: Path, register: Register) -> None:
    register("portcall_test.log_value", lambda *values: repr(values))
    assert portcall.load_module(own_copy)["log_value"](1, 2.5) == "(1, 2.5, 'a string literal')"


def test_classic_library_missing_global_function_is_named(classic: Callable[..., Any]) -> None:
    with pytest.raises(RuntimeError, match=r"'portcall_test\.never_registered'"):
        classic("call_missing")


def test_classic_library_calls_functions_of_imported_modules(own_copy: Path, tmp_path: Path) -> None:
    (tmp_path / "logger.c").write_text(
        "#include <stdint.h>\n"
        "typedef struct { int32_t type_index; uint32_t zero; int64_t value; } Any;\n"
        'int log_value(void*, const Any*, int32_t, Any*) __asm__("__tvm_ffi_portcall_test.log_value");\n'
        "int log_value(void* self, const Any* args, int32_t n, Any* result) {\n"
        "  result->type_index = 1; result->value = 100 * n + args[0].value; return 0; }\n"
    )
    lib = portcall.load_module(own_copy)
    lib.import_module(portcall.load_module(toolchain.create_shared(tmp_path / "logger.c", tmp_path / "logger.so")))
    assert lib["log_value"](7, 2.5) == 307


# ---- Threads ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 1000, 100_003])
def test_classic_parallel_kernels_agree_with_numpy(classic: Callable[..., Any], size: int) -> None:
    x, y = np.random.default_rng(0).random(size, "float32"), np.zeros(size, "float32")
    classic("double_parallel", x, y)
    np.testing.assert_array_equal(y, 2 * x)
    classic("reverse_twice", x, y)
    np.testing.assert_array_equal(y, x)


def test_classic_task_error_is_the_error_of_the_call(classic: Callable[..., Any]) -> None:
    x, y = np.ones(1000, "float32"), np.zeros(1000, "float32")
    x[-1] = -1
    with pytest.raises(ValueError, match="negative element"):
        classic("double_parallel", x, y)


# ---- Modules ---------------------------------------------------------------------------------------------------------


def test_classic_entry_function_is_called_by_the_module(c_libraries: dict[str, Path]) -> None:
    for name in ("classic", "classic06"):
        lib = portcall.load_module(c_libraries[name])
        assert lib.entry_name == "add_one"
        x, y = np.arange(3, dtype="float32"), np.zeros(3, "float32")
        for entry in (lib, lib["main"], lib["__tvm_main__"]):
            y[:] = 0
            entry(x, y)
            np.testing.assert_array_equal(y, x + 1)


def test_classic_context_variables_are_not_functions(c_libraries: dict[str, Path]) -> None:
    lib = portcall.load_module(c_libraries["classic"])
    for name in ("__tvm_module_ctx", "__TVMFuncCall", "_init", "_fini", "double_task"):
        assert not lib.implements_function(name)


def test_classic_embedded_library_alone_imports_nothing(c_libraries: dict[str, Path]) -> None:
    assert portcall.load_module(c_libraries["classic_blob"]).imported_modules == []


def test_classic_embedded_module_of_an_unknown_kind_is_kept(c_libraries: dict[str, Path]) -> None:
    lib = portcall.load_module(c_libraries["classic_unknown_blob"])
    (embedded,) = lib.imported_modules
    assert embedded.type_key == "portcall_unknown_kind"
    assert embedded.get_source().startswith("\x08\x07\x06\x05\x04\x03\x02\x01")
    assert "_import_tree" in embedded.get_source()
    with pytest.raises(errors.FunctionNotFoundError, match="portcall_unknown_kind"):
        lib["elsewhere"]
