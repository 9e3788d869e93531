# SPDX-License-Identifier: Apache-2.0
"""Libraries compiled by apache-tvm and on tvm-ffi's headers do here what they do there; results are NumPy's."""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import portcall
from portcall import errors

Register = Callable[..., portcall.PackedFunc]
Array = np.ndarray[Any, Any]


def random(*shape: int, dtype: str = "float32", seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# ---- Element by element ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["elementwise", "elementwise_now", "ctarget"])
@pytest.mark.parametrize("size", [0, 1, 7, 1024, 100_003])
def test_kernel_elementwise_agrees_with_numpy(libraries: dict[str, Path], library: str, size: int) -> None:
    lib = portcall.load_module(libraries[library])
    x, y = random(size), np.empty(size, "float32")
    lib["add_one"](x, y)
    np.testing.assert_array_equal(y, x + 1)
    lib["exp"](x, y)
    np.testing.assert_allclose(y, np.exp(x), rtol=1e-6)
    lib["scale"](x, y, 2.5, 3)
    np.testing.assert_allclose(y, x * np.float32(2.5) + 3, rtol=1e-6)


@pytest.mark.parametrize("library", ["elementwise", "elementwise_now", "ctarget"])
def test_kernel_check_error_arrives_for_lazy_and_eager_binding(libraries: dict[str, Path], library: str) -> None:
    add_one = portcall.load_module(libraries[library])["add_one"]
    with pytest.raises(ValueError, match=r"Mismatched B\.shape"):
        add_one(random(3), random(4))
    with pytest.raises(TypeError, match="Expected 2 arguments"):
        add_one()


def test_kernel_takes_tensors_without_a_copy(libraries: dict[str, Path]) -> None:
    x, y = portcall.tensor(random(64)), portcall.empty((64,), "float32")
    portcall.load_module(libraries["elementwise"])["add_one"](x, y)
    np.testing.assert_array_equal(y.numpy(), x.numpy() + 1)


def test_kernel_reads_and_writes_one_array(libraries: dict[str, Path]) -> None:
    add_one = portcall.load_module(libraries["elementwise"])["add_one"]
    for x in (portcall.tensor(random(50)).numpy(), random(51)[1:]):  # as it is, and through one copy
        expected = x + 1
        add_one(x, x)
        np.testing.assert_array_equal(x, expected)


def test_kernel_takes_torch_tensors(libraries: dict[str, Path]) -> None:
    import torch

    x, y = torch.arange(6, dtype=torch.float32), torch.zeros(6)
    portcall.load_module(libraries["elementwise"])["add_one"](x, y)
    assert y.tolist() == [1, 2, 3, 4, 5, 6]


DTYPES = {
    "float64": np.float64, "int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64, "uint8": np.uint8,
    "uint64": np.uint64, "bool": np.bool_, "bfloat16": ml_dtypes.bfloat16, "float8_e4m3fn": ml_dtypes.float8_e4m3fn,
}  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_kernel_copies_every_dtype(libraries: dict[str, Path], dtype: str) -> None:
    copy = portcall.load_module(libraries["dtypes"])[f"copy_{dtype}"]
    x = np.arange(-20, 20).astype(DTYPES[dtype])
    y = np.zeros_like(x)
    copy(x, y)
    np.testing.assert_array_equal(x.view("uint8"), y.view("uint8"))
    z = portcall.empty((40,), dtype)
    copy(portcall.tensor(x), z)
    np.testing.assert_array_equal(z.numpy().view("uint8"), x.view("uint8"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_kernel_refuses_every_other_dtype(libraries: dict[str, Path], dtype: str) -> None:
    copy = portcall.load_module(libraries["dtypes"])[f"copy_{dtype}"]
    for other in DTYPES.keys() - {dtype}:
        with pytest.raises(TypeError, match=rf"Mismatched A\.dtype .*\n.*\n  expected {dtype}"):
            copy(portcall.empty((4,), other), portcall.empty((4,), dtype))


def test_kernel_of_half_floats(libraries: dict[str, Path]) -> None:
    lib = portcall.load_module(libraries["half"])
    x, y, wide = random(33, dtype="float16"), np.zeros(33, "float16"), np.zeros(33, "float32")
    lib["scale_half"](x, y, 1.5)
    np.testing.assert_allclose(y, x * np.float16(1.5), rtol=1e-3)
    lib["widen_half"](x, wide)
    np.testing.assert_array_equal(wide, x.astype("float32"))


# ---- Scalars ---------------------------------------------------------------------------------------------------------


def test_kernel_takes_and_returns_scalars(libraries: dict[str, Path]) -> None:
    lib = portcall.load_module(libraries["several"])
    assert lib["add_int"](2, 3) == 5
    assert lib["add_int"](-1, 2**40) == 2**40 - 1
    assert lib["multiply_float"](1.5, 2) == 3.0
    assert lib["less"](1, 2) is True
    assert lib["less"](2, 1) is False
    assert (lib["ten_or_twenty"](True), lib["ten_or_twenty"](False)) == (10, 20)
    assert lib["nothing"]() is None


def test_kernel_takes_numpy_scalars(libraries: dict[str, Path]) -> None:
    lib = portcall.load_module(libraries["several"])
    assert lib["add_int"](np.int8(2), np.uint64(3)) == 5
    assert lib["multiply_float"](np.float32(1.5), np.float64(2)) == 3.0
    assert lib["ten_or_twenty"](np.bool_(False)) == 20


def test_kernel_takes_and_returns_pointers(libraries: dict[str, Path]) -> None:
    same = portcall.load_module(libraries["several"])["same_pointer"]
    found = same(ctypes.c_void_p(0x1234))
    assert isinstance(found, ctypes.c_void_p)
    assert found.value == 0x1234
    tensor = portcall.empty((2,), "float32")
    assert same(tensor).value == tensor.handle_value + 24  # the DLTensor inside


def test_kernel_integers_wrap_to_the_width_of_the_parameter(libraries: dict[str, Path]) -> None:
    assert portcall.load_module(libraries["several"])["add_int"](2**32 + 1, 0) == 1


# ---- Many threads ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (64, 48, 32), (257, 3, 2)])
def test_kernel_parallel_matmul_agrees_with_numpy(libraries: dict[str, Path], shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    a, b, c = random(m, k), random(k, n, seed=1), np.zeros((m, n), "float32")
    portcall.load_module(libraries["matmul"])["matmul"](a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-5)


def test_kernel_parallel_matmul_of_columns_uses_a_compact_copy(libraries: dict[str, Path]) -> None:
    a, b, c = random(20, 30), random(40, 30, seed=1), np.zeros((40, 20), "float32")
    portcall.load_module(libraries["matmul"])["matmul"](a, b.T, c.T)
    np.testing.assert_allclose(c.T, a @ b.T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_kernel_result_is_the_same_for_any_number_of_threads(libraries: dict[str, Path], threads: int) -> None:
    configure = portcall.get_global_func("runtime.config_threadpool")
    configure(1, threads)
    try:
        a, b, c = random(33, 7), random(7, 5, seed=1), np.zeros((33, 5), "float32")
        portcall.load_module(libraries["matmul"])["matmul"](a, b, c)
        w, y = np.zeros(33, "float32"), np.zeros(33, "float32")
        portcall.load_module(libraries["barrier"])["reverse_twice"](a[:, 0], w, y)
    finally:
        configure(1, 0)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(y, a[:, 0])


def test_kernel_task_error_is_the_error_of_the_call(libraries: dict[str, Path]) -> None:
    double = portcall.load_module(libraries["matmul"])["double_non_negative"]
    for place in (0, 511, 1023):
        x, y = np.ones(1024, "int32"), np.zeros(1024, "int32")
        x[place] = -1
        with pytest.raises(ValueError, match="negative element"):
            double(x, y)
    double(abs(x), y)
    assert (y == 2).all()


def test_kernel_task_errors_name_their_task(libraries: dict[str, Path]) -> None:
    configure = portcall.get_global_func("runtime.config_threadpool")
    configure(1, 2)
    try:
        double = portcall.load_module(libraries["matmul"])["double_non_negative"]
        with pytest.raises(ValueError, match=r"^Task 0 error: negative element\nTask 1 error: negative element$"):
            double(np.full(64, -1, "int32"), np.zeros(64, "int32"))
    finally:
        configure(1, 0)


def test_kernel_barrier_separates_phases(libraries: dict[str, Path]) -> None:
    reverse_twice = portcall.load_module(libraries["barrier"])["reverse_twice"]
    for size in (1, 2, 1000, 10_001):
        x, w, y = random(size), np.zeros(size, "float32"), np.zeros(size, "float32")
        reverse_twice(x, w, y)
        np.testing.assert_array_equal(w, x[::-1])
        np.testing.assert_array_equal(y, x)


def test_kernel_workspaces_do_not_overlap(libraries: dict[str, Path]) -> None:
    lib = portcall.load_module(libraries["workspace"])
    x, y = random(1024), np.zeros(1024, "float32")
    lib["square_reversed"](x, y)
    np.testing.assert_array_equal(y, (x * x)[::-1])
    for size in (1, 1024, 200_000):
        x, y = random(size), np.zeros(size, "float32")
        lib["square_plus_reversed"](x, y)
        np.testing.assert_allclose(y, x * x + (x * x)[::-1], rtol=1e-6)


def test_kernel_calls_from_many_threads(libraries: dict[str, Path]) -> None:
    matmul = portcall.load_module(libraries["matmul"])["matmul"]
    workspace = portcall.load_module(libraries["workspace"])["square_reversed"]
    wrong: list[str] = []

    def work(seed: int) -> None:
        a, b, c = random(32, 16, seed=seed), random(16, 8, seed=seed + 1), np.zeros((32, 8), "float32")
        x, y = random(1024, seed=seed), np.zeros(1024, "float32")
        for _ in range(20):
            matmul(a, b, c)
            workspace(x, y)
            if not (np.allclose(c, a @ b, rtol=1e-3, atol=1e-4) and (y == (x * x)[::-1]).all()):
                wrong.append(f"thread {seed}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# ---- Kernels that call back ------------------------------------------------------------------------------------------


@pytest.fixture
def log(register: Register) -> list[Any]:
    """What kernels gave to portcall_test.log_value; tensors as lists."""
    logged: list[Any] = []

    def log_value(*values: Any) -> None:
        logged.append([v.numpy().tolist() if isinstance(v, portcall.Tensor) else v for v in values])

    register("portcall_test.log_value", log_value)
    return logged


@pytest.fixture
def packed(libraries: dict[str, Path], tmp_path: Path) -> Path:
    """A library of its own for each test, because compiled code keeps what it looked up."""
    path = tmp_path / "packed.so"
    path.write_bytes(libraries["packed"].read_bytes())
    return path


def test_kernel_passes_numbers_text_and_tensors_to_python(packed: Path, log: list[Any]) -> None:
    lib = portcall.load_module(packed)
    lib["log_scalars"](7, 2.5)
    lib["log_tensor"](np.arange(3, dtype="float32"))
    assert log == [[7, 2.5, "a string literal"], [[0, 1, 2], 3]]


def test_kernel_uses_what_python_returns(packed: Path, register: Register) -> None:
    register("portcall_test.twice", lambda x: 2 * x)
    assert portcall.load_module(packed)["twice"](21) == 42


def test_kernel_callback_exception_arrives_unchanged(packed: Path, register: Register) -> None:
    error = ConnectionResetError("from far away")

    def fail(x: int) -> int:
        raise error

    register("portcall_test.twice", fail)
    with pytest.raises(ConnectionResetError) as caught:
        portcall.load_module(packed)["twice"](1)
    assert caught.value is error
    error.__traceback__ = None


def test_kernel_tensor_lent_to_a_callback_ends_with_the_call(packed: Path, register: Register) -> None:
    kept: list[portcall.Tensor] = []
    register("portcall_test.log_value", lambda tensor, size: kept.append(tensor))
    portcall.load_module(packed)["log_tensor"](np.arange(3, dtype="float32"))
    with pytest.raises(ValueError, match="lent"):
        kept[0].numpy()
    kept.clear()


def test_kernel_missing_callback_is_named_each_time(packed: Path) -> None:
    lib = portcall.load_module(packed)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"'portcall_test\.never_registered'"):
            lib["call_missing"]()


def test_kernel_callback_registered_later_is_found(packed: Path, register: Register) -> None:
    lib = portcall.load_module(packed)
    with pytest.raises(RuntimeError, match=r"portcall_test\.twice"):
        lib["twice"](1)
    register("portcall_test.twice", lambda x: -x)
    assert lib["twice"](1) == -1


def test_kernel_worker_threads_call_python(libraries: dict[str, Path], tmp_path: Path, register: Register) -> None:
    path = tmp_path / "parallel_callback.so"
    path.write_bytes(libraries["parallel_callback"].read_bytes())
    visits: list[tuple[int, int]] = []
    register("portcall_test.visit", lambda i: visits.append((i, threading.get_ident())))
    for _ in range(5):
        visits.clear()
        portcall.load_module(path)["for_each"](100)
        assert sorted(i for i, _ in visits) == list(range(100))


def test_kernel_worker_exception_is_the_error_of_the_call(
    libraries: dict[str, Path], tmp_path: Path, register: Register
) -> None:
    path = tmp_path / "parallel_callback.so"
    path.write_bytes(libraries["parallel_callback"].read_bytes())

    def visit(i: int) -> None:
        if i == 99:
            raise KeyError("the last one")

    register("portcall_test.visit", visit)
    with pytest.raises(KeyError, match="the last one"):
        portcall.load_module(path)["for_each"](100)


def test_kernel_nested_parallel_loop_is_refused(libraries: dict[str, Path], tmp_path: Path, register: Register) -> None:
    path = tmp_path / "parallel_callback.so"
    path.write_bytes(libraries["parallel_callback"].read_bytes())
    matmul = portcall.load_module(libraries["matmul"])["matmul"]
    one = portcall.empty((1, 1), "float32")
    register("portcall_test.visit", lambda i: matmul(one, one, one))
    with pytest.raises(RuntimeError, match="only the outermost loop may be parallel"):
        portcall.load_module(path)["for_each"](4)
    matmul(one, one, one)


WRONG = "ValueError: the environment variable {} is '{}'; it must be a whole number from 1 to 1024"


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("PORTCALL_NUM_THREADS", "2", "2"),
        ("TVM_NUM_THREADS", "3", "3"),
        ("PORTCALL_NUM_THREADS", "many", WRONG),
        ("TVM_NUM_THREADS", "0", WRONG),
    ],
)
def test_num_threads_comes_from_the_environment(variable: str, value: str, message: str) -> None:
    script = """
import portcall
try:
    print(portcall.get_global_func("runtime.NumThreads")())
except ValueError as error:
    print(f"ValueError: {error}")
"""
    environment = {"PATH": "/usr/bin:/bin", variable: value}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == message.format(variable, value)


# ---- Linked into the program -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def system(libraries: dict[str, Path]) -> portcall.Module:
    """The system library, which stays for good, as does what its code looked up. It is asked for before it exists."""
    portcall.register_func("portcall_test.twice", lambda x: 2 * x)
    lib = portcall.system_lib("portcall_sys_")
    assert lib.list_function_names() == []
    portcall.load_module(libraries["syslib"])
    assert lib["twice"](4) == 8
    portcall.remove_global_func("portcall_test.twice")
    portcall.system_lib("nobody_has_this_prefix_")
    portcall.system_lib()
    return lib


def test_system_lib_registers_itself_when_loaded(system: portcall.Module) -> None:
    assert system.type_key == "system_lib"
    assert portcall.get_global_func("runtime.SystemLib")("portcall_sys_") == system
    assert system.list_function_names() == ["portcall_sys_add_one", "portcall_sys_twice"]
    assert set(system.list_function_names()) <= set(portcall.system_lib().list_function_names())


def test_system_lib_finds_functions_with_and_without_prefix(system: portcall.Module) -> None:
    x, y = random(100), np.zeros(100, "float32")
    system["add_one"](x, y)
    np.testing.assert_array_equal(y, x + 1)
    system["portcall_sys_add_one"](y, y)
    np.testing.assert_allclose(y, x + 2, rtol=1e-6)
    portcall.system_lib()["portcall_sys_add_one"](y, y)
    np.testing.assert_allclose(y, x + 3, rtol=1e-6)


def test_system_lib_check_error_arrives(system: portcall.Module) -> None:
    with pytest.raises(ValueError, match=r"Mismatched B\.shape"):
        system["add_one"](random(3), random(4))


def test_system_lib_is_one_module_for_each_prefix(system: portcall.Module) -> None:
    assert portcall.system_lib("portcall_sys_") == system
    assert portcall.system_lib() != system


def test_system_lib_of_an_unknown_prefix_is_empty(system: portcall.Module) -> None:
    lib = portcall.system_lib("nobody_has_this_prefix_")
    assert lib.list_function_names() == []
    with pytest.raises(errors.FunctionNotFoundError):
        lib["add_one"]


# ---- On tvm-ffi's headers --------------------------------------------------------------------------------------------

FLAVOURS = ["unlinked", "linked"]


@pytest.fixture(params=FLAVOURS)
def ffi(request: pytest.FixtureRequest, libraries: dict[str, Path]) -> Callable[..., Any]:
    """``ffi(name, *arguments)``: call a function of a library that was linked with libtvm_ffi.so, or was not."""
    return lambda name, *a: portcall.load_module(libraries[f"tvm_ffi_kernels_{request.param}"])[name](*a)


def test_typed_functions_take_and_return_every_kind_of_value(ffi: Callable[..., Any]) -> None:
    assert ffi("add_int", 1, 2) == 3
    assert ffi("add_float", 1, 2.5) == 3.5
    assert ffi("logical_not", True) is False
    assert ffi("concat", "ab", "cdefghijklmn") == "abcdefghijklmn"
    assert ffi("reversed", b"hello world") == b"dlrow olleh"
    assert (ffi("positive_or_none", 3), ffi("positive_or_none", -3)) == (3, None)
    assert ffi("sum_array", [1, 2, 3]) == 6
    assert list(ffi("array_of_kinds")) == [1, 2.5, "a string object", None, True]
    assert ffi("shape_product", (2, 3)) == ffi("shape_product", portcall.Shape((2, 3))) == 6
    assert str(ffi("dtype_of", random(2))) == "float32"
    assert ffi("device_of", random(2)) == portcall.cpu(0)
    assert ffi("stream_of", random(2)) == 0


@pytest.mark.parametrize(
    "value", [None, 1, 2**70, 1.5, True, "text", "a longer text", b"bytes", b"longer bytes"], ids=repr
)
def test_typed_functions_echo_values(ffi: Callable[..., Any], value: Any) -> None:
    assert ffi("echo", value) == value
    assert type(ffi("echo", value)) is type(value)


def test_typed_functions_echo_the_same_objects(ffi: Callable[..., Any]) -> None:
    tensor, function = portcall.empty((2, 3), "int8"), portcall.convert(len)
    assert ffi("same_tensor", tensor) == tensor
    assert ffi("echo", function) == function
    assert list(ffi("echo", [1, [2, "three"]])[1]) == [2, "three"]


def test_typed_functions_take_and_return_functions(ffi: Callable[..., Any]) -> None:
    assert ffi("apply", lambda x: x + 1, 4) == 5
    assert ffi("make_adder", 5)(6) == 11


def test_typed_functions_write_output_tensors(ffi: Callable[..., Any]) -> None:
    x, y = random(5), np.zeros(5, "float32")
    ffi("add_one", x, y)
    np.testing.assert_array_equal(y, x + 1)
    ffi("add_one", random(6)[1:], y)
    np.testing.assert_array_equal(y, random(6)[1:] + 1)


def test_typed_functions_raise_errors_of_their_kind(ffi: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"^x is 3, which is wrong$"):
        ffi("raise_value_error", 3)
    with pytest.raises(KeyError, match="gone"):
        ffi("raise", "KeyError", "gone")
    with pytest.raises(RuntimeError, match=r"^Strange: odd$"):
        ffi("raise", "Strange", "odd")
    with pytest.raises(RuntimeError, match=r"^standard$"):
        ffi("raise_standard_exception", "standard")
    with pytest.raises(TypeError, match="x must be float32"):
        ffi("add_one", np.zeros(3), np.zeros(3))


def test_typed_functions_name_wrong_arguments(ffi: Callable[..., Any]) -> None:
    with pytest.raises(TypeError) as caught:
        ffi("add_int", 1.5, 2)
    assert str(caught.value) == (
        "Mismatched type on argument #0 when calling: `add_int(0: int, 1: int) -> int`. Expected `int` but got `float`"
    )
    with pytest.raises(TypeError) as caught:
        ffi("add_int", 1)
    assert str(caught.value) == (
        "Mismatched number of arguments when calling: `add_int(0: int, 1: int) -> int`. Expected 2 but got 1 arguments"
    )


def test_typed_functions_pass_python_exceptions_on(ffi: Callable[..., Any]) -> None:
    error = ConnectionResetError("from Python")

    def fail(value: object) -> None:
        raise error

    with pytest.raises(ConnectionResetError) as caught:
        ffi("apply", fail, 1)
    assert caught.value is error
    error.__traceback__ = None


def test_typed_functions_catch_python_exceptions(ffi: Callable[..., Any]) -> None:
    def fail() -> None:
        raise LookupError("caught by the library")

    assert ffi("catch_kind", fail) == "LookupError"
    assert ffi("catch_kind", lambda: None) == "none"


def test_error_caught_by_a_library_is_not_reported_later(ffi: Callable[..., Any], libraries: dict[str, Path]) -> None:
    def fail() -> None:
        raise LookupError("caught by the library")

    ffi("catch_kind", fail)
    with pytest.raises(RuntimeError, match="nonzero return"):
        portcall.load_module(libraries["modern"])["fail_silently"]()


def test_typed_functions_echo_maps_and_dicts(ffi: Callable[..., Any]) -> None:
    for mapping in ({}, {"a": 1}, portcall.Map({f"{i}": i for i in range(9)}), portcall.Dict({"a": 1})):
        assert ffi("doubled", mapping) == {key: 2 * value for key, value in mapping.items()}


def test_get_global_func_serves_an_unlinked_library(libraries: dict[str, Path], register: Register) -> None:
    register("portcall_test.plus_one", lambda x: x + 1)
    lib = portcall.load_module(libraries["tvm_ffi_kernels_unlinked"])
    assert lib["call_global"]("portcall_test.plus_one", 4) == 5


def test_library_allocates_tensors_that_outlive_its_module(libraries: dict[str, Path]) -> None:
    ramp = portcall.load_module(libraries["tvm_ffi_alloc_unlinked"])["ramp"](5)
    gc.collect()
    np.testing.assert_array_equal(ramp.numpy(), np.arange(5))
    ones = portcall.load_module(libraries["tvm_ffi_alloc_unlinked"])["ones_like"](random(2, 3))
    np.testing.assert_array_equal(ones.numpy(), np.ones((2, 3)))


@pytest.fixture(scope="module", params=FLAVOURS)
def objects(libraries: dict[str, Path], request: pytest.FixtureRequest) -> portcall.Module:
    """What loading it describes stays, so that is not left behind by a test."""
    return portcall.load_module(libraries[f"tvm_ffi_objects_{request.param}"])


def test_library_objects_live_as_long_as_they_are_held(objects: portcall.Module) -> None:
    point = objects["make_point"](3, 4)
    assert objects["point_sum"](point) == 7
    assert objects["live_points"]() == 1
    with pytest.raises(TypeError, match=r"Expected `portcall_test\.Point` but got `ffi\.SmallStr`"):
        objects["point_sum"]("a text")
    del point
    assert objects["live_points"]() == 0


@pytest.mark.parametrize("objects", ["unlinked"], indirect=True)
def test_library_object_types_of_an_unlinked_library_are_known(objects: portcall.Module) -> None:
    point = objects["make_point"](1, 2)
    assert point.type_key == "portcall_test.Point"
