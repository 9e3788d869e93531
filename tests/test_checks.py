# SPDX-License-Identifier: Apache-2.0
"""What generated code refuses, with its own words, and what must be refused before it runs because it never looks."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from descriptions import DLTensor
from portcall import errors

KINDS = "kinds(A: Tensor([n], float32), i: int32, f: float32, b: bool, p: T.handle)"
COPY_4X3 = "copy_4x3(A: Tensor([4, 3], float32), B: Tensor([4, 3], float32))"
FIRST_COLUMN = "first_column(A: Tensor([n, T.int64(2) * n], float32), B: Tensor([n], float32))"
COPY_STRIDED = "copy_strided(A: Tensor([n, m], float32), B: Tensor([n, m], float32))"
COPY_WITH_OFFSET = "copy_with_offset(A: Tensor([n], float32), B: Tensor([n], float32))"
CUDA, EXT_DEV = 2, 12


class Descriptions:
    """Makes pointers to DLTensors over one piece of memory, right but for the fields that are given."""

    def __init__(self) -> None:
        self.memory = portcall.tensor(np.arange(64, dtype="float32"))
        self.kept: list[Any] = []

    def __call__(self, *shape: int, strides: tuple[int, ...] | None = None, **fields: int | None) -> ctypes.c_void_p:
        extents = (ctypes.c_int64 * len(shape))(*shape)
        distances = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)
        values: dict[str, Any] = {"data": self.memory.data_ptr, "device_type": 1, "ndim": len(shape)}
        values.update({"code": 2, "bits": 32, "lanes": 1, "shape": extents, "strides": distances}, **fields)
        description = DLTensor(**values)
        self.kept += [extents, distances, description]
        return ctypes.c_void_p(ctypes.addressof(description))


@pytest.fixture
def checks(libraries: dict[str, Path]) -> Callable[..., Any]:
    """``checks(name, *arguments)``: call a function of the library."""
    return lambda name, *arguments: portcall.load_module(libraries["checks"])[name](*arguments)


@pytest.fixture
def describe() -> Iterator[Descriptions]:
    made = Descriptions()
    yield made
    made.kept.clear()
    del made.memory


def message(kind: type[Exception], function: Callable[..., Any], *arguments: Any) -> str:
    """The whole text of the error of a call, whose class is exactly ``kind``."""
    with pytest.raises(kind) as caught:
        function(*arguments)
    assert type(caught.value) is kind
    return str(caught.value)


# ---- Arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 3, 9])
def test_wrong_number_of_arguments(checks: Callable[..., Any], count: int) -> None:
    arguments = [portcall.empty((4, 3), "float32")] * count
    assert message(TypeError, checks, "copy_4x3", *arguments) == f"Expected 2 arguments when calling:\n  `{COPY_4X3}`"


@pytest.mark.parametrize("value", [1, 1.5, True, None, "text", portcall.cpu(), portcall.DataType("int8")], ids=repr)
def test_tensor_parameter_refuses_other_values(checks: Callable[..., Any], value: Any) -> None:
    text = message(TypeError, checks, "kinds", value, 1, 1.0, True, None)
    assert text == f"Mismatched type on argument #0 when calling:\n  `{KINDS}`,\n  expected Tensor"


WRONG_KINDS = [
    pytest.param(1, 1.5, "int", id="float-as-int"),
    pytest.param(1, None, "int", id="none-as-int"),
    pytest.param(1, "1", "int", id="text-as-int"),
    pytest.param(2, "1.5", "float", id="text-as-float"),
    pytest.param(2, None, "float", id="none-as-float"),
    pytest.param(3, 1.5, "boolean", id="float-as-bool"),
    pytest.param(3, "yes", "boolean", id="text-as-bool"),
    pytest.param(4, 7, "pointer", id="int-as-pointer"),
    pytest.param(4, "text", "pointer", id="text-as-pointer"),
]


@pytest.mark.parametrize(("position", "value", "expected"), WRONG_KINDS)
def test_scalar_parameter_refuses_other_kinds(
    checks: Callable[..., Any], position: int, value: Any, expected: str
) -> None:
    arguments: list[Any] = [portcall.empty((4,), "float32"), 1, 1.0, True, None]
    arguments[position] = value
    text = message(TypeError, checks, "kinds", *arguments)
    assert text == f"Mismatched type on argument #{position} when calling:\n  `{KINDS}`,\n  expected {expected}"


@pytest.mark.parametrize("value", [1, True, np.int8(1), np.bool_(True)], ids=repr)
def test_scalar_parameter_accepts_int_and_bool_for_float(checks: Callable[..., Any], value: Any) -> None:
    assert checks("kinds", portcall.empty((4,), "float32"), value, value, value, None) is None


def test_pointer_parameter_accepts_none_pointer_or_tensor(checks: Callable[..., Any]) -> None:
    tensor = portcall.empty((4,), "float32")
    for pointer in (None, ctypes.c_void_p(0), ctypes.c_void_p(tensor.data_ptr), tensor):
        assert checks("kinds", tensor, 1, 1.0, True, pointer) is None


# ---- Tensors ---------------------------------------------------------------------------------------------------------

# What is given for which argument of which function, the error, and what it then says was expected.
COMPACT, POINTER = "to be compact array", "non-NULL data pointer"
MISMATCHES = {
    "ndim": ("copy_4x3", 0, (4,), {}, ValueError, "Mismatched A.ndim", "2"),
    "ndim-of-the-second": ("copy_4x3", 1, (4, 3, 1), {}, ValueError, "Mismatched B.ndim", "2"),
    "dtype-bits": ("copy_4x3", 0, (4, 3), {"bits": 64}, TypeError, "Mismatched A.dtype", "float32"),
    "dtype-code": ("copy_4x3", 1, (4, 3), {"code": 0}, TypeError, "Mismatched B.dtype", "float32"),
    "dtype-lanes": ("copy_4x3", 1, (4, 3), {"lanes": 2}, TypeError, "Mismatched B.dtype", "float32"),
    "shape": ("copy_4x3", 0, (5, 3), {}, ValueError, "Invalid A.shape[0]", "4"),
    "shape-of-the-second": ("copy_4x3", 1, (4, 2), {}, ValueError, "Invalid B.shape[1]", "3"),
    "shape-expression": ("first_column", 0, (3, 5), {}, ValueError, "Invalid A.shape[1]", "2 * A.shape[0]"),
    "repeated-dimension": ("first_column", 1, (4,), {}, ValueError, "Mismatched B.shape[0]", "to match A.shape[0]"),
    "gaps": ("copy_4x3", 0, (4, 3), {"strides": (4, 1)}, ValueError, "Mismatched A.strides", COMPACT),
    "columns": ("copy_4x3", 1, (4, 3), {"strides": (1, 4)}, ValueError, "Mismatched B.strides", COMPACT),
    "declared-stride": ("copy_strided", 0, (2, 3), {"strides": (4, 2)}, ValueError, "Invalid A.strides[1]", "1"),
    "offset": ("copy_4x3", 0, (4, 3), {"byte_offset": 64}, ValueError, "Invalid A.byte_offset", "0"),
    "offset-2": ("copy_with_offset", 1, (3,), {"byte_offset": 64}, ValueError, "Invalid B.byte_offset", "0"),
    "device-type": ("copy_4x3", 0, (4, 3), {"device_type": CUDA}, ValueError, "Mismatched A.device_type", "cpu"),
    "device-type-2": ("copy_4x3", 1, (4, 3), {"device_type": EXT_DEV}, ValueError, "Mismatched B.device_type", "cpu"),
    "device-id": (
        "copy_4x3",
        1,
        (4, 3),
        {"device_id": 1},
        ValueError,
        "Mismatched B.device_id",
        "to match A.device_id",
    ),
    "null": ("copy_4x3", 0, (4, 3), {"data": None}, ValueError, "A data pointer is NULL", POINTER),
    "null-2": ("copy_4x3", 1, (4, 3), {"data": None}, ValueError, "B data pointer is NULL", POINTER),
}
FITTING = {
    "copy_4x3": (COPY_4X3, [(4, 3), (4, 3)]),
    "first_column": (FIRST_COLUMN, [(3, 6), (3,)]),
    "copy_strided": (COPY_STRIDED, [(2, 3), (2, 3)]),
    "copy_with_offset": (COPY_WITH_OFFSET, [(3,), (3,)]),
}


@pytest.mark.parametrize(
    ("function", "position", "shape", "fields", "kind", "what", "expected"), MISMATCHES.values(), ids=MISMATCHES
)
def test_tensor_parameter_refuses_wrong_shape_type_and_layout(
    checks: Callable[..., Any],
    describe: Descriptions,
    function: str,
    position: int,
    shape: tuple[int, ...],
    fields: dict[str, Any],
    kind: type[Exception],
    what: str,
    expected: str,
) -> None:
    signature, shapes = FITTING[function]
    arguments = [describe(*fitting) for fitting in shapes]  # type: ignore[attr-defined]
    assert checks(function, *arguments) is None
    arguments[position] = describe(*shape, **fields)
    text = message(kind, checks, function, *arguments)
    assert text == f"{what} on argument #{position} when calling:\n  `{signature}`,\n  expected {expected}"


def test_strides_of_dimensions_of_one_are_ignored(checks: Callable[..., Any], describe: Descriptions) -> None:
    assert checks("first_column", describe(1, 2, strides=(77, 1)), describe(1, strides=(9,))) is None


def test_empty_tensors_need_no_data(checks: Callable[..., Any], describe: Descriptions) -> None:
    assert checks("copy_strided", describe(0, 3, data=None), describe(0, 3, data=None)) is None


def test_declared_strides_and_offsets_are_followed(checks: Callable[..., Any], describe: Descriptions) -> None:
    target = portcall.empty((2, 3), "float32")
    checks("copy_strided", describe(2, 3, strides=(16, 1)), target)
    np.testing.assert_array_equal(target.numpy(), [[0, 1, 2], [16, 17, 18]])
    target = portcall.empty((3,), "float32")
    checks("copy_with_offset", describe(3, byte_offset=64), target)
    np.testing.assert_array_equal(target.numpy(), [16, 17, 18])


def test_numpy_arrays_that_do_not_fit_are_refused_in_the_same_words(checks: Callable[..., Any]) -> None:
    good = np.zeros((4, 3), "float32")
    text = message(TypeError, checks, "copy_4x3", good, good.astype("float64"))
    assert text == f"Mismatched B.dtype on argument #1 when calling:\n  `{COPY_4X3}`,\n  expected float32"
    text = message(ValueError, checks, "copy_4x3", good[:3], good)
    assert text == f"Invalid A.shape[0] on argument #0 when calling:\n  `{COPY_4X3}`,\n  expected 4"


# ---- The user's own --------------------------------------------------------------------------------------------------


def test_assertion_of_the_kernel_is_a_runtime_error(checks: Callable[..., Any]) -> None:
    assert message(RuntimeError, checks, "between_1_and_99", 0) == "x must be positive"


def test_assertion_of_the_kernel_has_the_kind_that_it_names(checks: Callable[..., Any]) -> None:
    assert message(ValueError, checks, "between_1_and_99", 100) == "x must be less than 100"


def test_errors_leave_nothing_behind_for_the_next_call(checks: Callable[..., Any]) -> None:
    for _ in range(3):
        message(ValueError, checks, "between_1_and_99", 100)
        assert checks("between_1_and_99", 50) is None


# ---- What generated code would not notice ----------------------------------------------------------------------------

OBJECTS = [
    pytest.param([1, 2], "Array", id="list"),
    pytest.param((), "Array", id="tuple"),
    pytest.param({"a": 1}, "Map", id="dict"),
    pytest.param(b"bytes that are no small ones", "bytes", id="bytes"),
    pytest.param(bytearray(20), "bytes", id="bytearray"),
    pytest.param(len, "Function", id="function"),
    pytest.param(int, "Function", id="class"),
    pytest.param(ValueError("text"), "Error", id="exception"),
    pytest.param(2**70, "BigInt", id="wide-integer"),
    pytest.param(portcall.Shape((1, 2)), "Shape", id="shape"),
    pytest.param(object(), "object", id="object"),
    pytest.param(1j, "complex", id="complex"),
    pytest.param({1, 2}, "set", id="set"),
]


@pytest.mark.parametrize("position", [0, 4])
@pytest.mark.parametrize(("value", "got"), OBJECTS)
def test_object_that_generated_code_would_read_as_a_tensor_is_refused(
    checks: Callable[..., Any], value: Any, got: str, position: int
) -> None:
    arguments: list[Any] = [portcall.empty((4,), "float32"), 1, 1.0, True, None]
    arguments[position] = value
    with pytest.raises(errors.ArgumentError) as caught:
        checks("kinds", *arguments)
    error = caught.value
    assert (error.function, error.position, error.got) == ("kinds", position, got)
    assert str(error).startswith(f"kinds(): argument #{position}: expected {error.expected}, got {got}")


def test_tensor_parameter_refuses_objects_of_portcall(checks: Callable[..., Any], libraries: dict[str, Path]) -> None:
    objects = [
        (portcall.load_module(libraries["checks"]), "Module"),
        (portcall.convert(len), "Function"),
        (portcall.Array([1]), "Array"),
        (portcall.Map({1: 2}), "Map"),
        (portcall.empty, "Function"),
    ]
    for value, got in objects:
        with pytest.raises(errors.ArgumentError, match=f"got {got}"):
            checks("kinds", value, 1, 1.0, True, None)
    objects.clear()


@pytest.mark.parametrize("text", ["short", "a text that is no small one", "with a\0NUL that is no small one", "ü" * 20])
def test_tensor_parameter_refuses_text(checks: Callable[..., Any], text: str) -> None:
    with pytest.raises(TypeError):
        checks("kinds", text, 1, 1.0, True, None)


def test_tensor_parameter_refuses_objects_in_calls_with_many_arguments(checks: Callable[..., Any]) -> None:
    with pytest.raises(errors.ArgumentError, match=re.escape("kinds(): argument #9: expected")):
        checks("kinds", *[1] * 9, [1])


def test_arrays_of_elements_that_no_tensor_has_are_refused(checks: Callable[..., Any]) -> None:
    for array in (np.array(["text"]), np.array([object()]), np.array(["2020-01-01"], "datetime64[D]")):
        with pytest.raises(errors.ArgumentError, match="array"):
            checks("kinds", array, 1, 1.0, True, None)


def test_arrays_in_the_other_byte_order_are_refused(checks: Callable[..., Any]) -> None:
    with pytest.raises(errors.ArgumentError, match=r"bytes in this machine.s order"):
        checks("kinds", np.zeros(4, ">f4"), 1, 1.0, True, None)


def test_library_function_refuses_keywords(checks: Callable[..., Any], libraries: dict[str, Path]) -> None:
    kinds = portcall.load_module(libraries["checks"])["kinds"]
    with pytest.raises(errors.ArgumentError, match=r"^kinds\(\) .* A=$"):
        kinds(A=1)


# ---- Memory that generated code cannot use ---------------------------------------------------------------------------


@pytest.fixture
def refusing_copies() -> Iterator[None]:
    portcall.set_alignment_policy("error")
    yield
    portcall.set_alignment_policy("copy")


def at_offset(shape: tuple[int, ...], offset: int) -> np.ndarray[Any, Any]:
    """A float32 array whose address is ``offset`` beyond a multiple of 64."""
    size = int(np.prod(shape)) * 4
    raw = np.zeros(size + 128, "uint8")
    start = -raw.ctypes.data % 64 + offset
    return raw[start : start + size].view("float32").reshape(shape)


@pytest.mark.parametrize("offset", [4, 8, 16, 32, 60])
def test_misaligned_arrays_are_copied_in_and_out(libraries: dict[str, Path], offset: int) -> None:
    add_one = portcall.load_module(libraries["elementwise"])["add_one"]
    x, y = at_offset((100,), offset), at_offset((100,), offset)
    x[:] = np.arange(100)
    copies, nbytes = portcall.alignment_copy_stats()
    add_one(x, y)
    np.testing.assert_array_equal(y, np.arange(100) + 1)
    assert portcall.alignment_copy_stats() == (copies + 2, nbytes + 800)


def test_aligned_arrays_are_not_copied(libraries: dict[str, Path]) -> None:
    add_one = portcall.load_module(libraries["elementwise"])["add_one"]
    x, y = at_offset((100,), 0), at_offset((100,), 64)
    before = portcall.alignment_copy_stats()
    add_one(x, y)
    add_one(portcall.tensor(x), portcall.empty((100,), "float32"))
    assert portcall.alignment_copy_stats() == before


@pytest.mark.parametrize("offset", [4, 16, 32])
def test_misaligned_array_is_named_when_copies_are_not_allowed(
    libraries: dict[str, Path], refusing_copies: None, offset: int
) -> None:
    add_one = portcall.load_module(libraries["elementwise"])["add_one"]
    with pytest.raises(errors.ArgumentError) as caught:
        add_one(at_offset((4,), 0), at_offset((4,), offset))
    assert str(caught.value) == (
        "add_one(): argument #1: expected a compact tensor aligned to 64 bytes, got one that is not aligned; make it "
        'with portcall.empty or portcall.tensor, or allow copies: portcall.set_alignment_policy("copy")'
    )


def test_array_with_gaps_is_named_when_copies_are_not_allowed(
    libraries: dict[str, Path], refusing_copies: None
) -> None:
    add_one = portcall.load_module(libraries["elementwise"])["add_one"]
    with pytest.raises(errors.ArgumentError, match="got one that is not compact"):
        add_one(at_offset((4, 4), 0)[:, 0], at_offset((4,), 0))


def test_arrays_with_gaps_are_copied_in_and_out(libraries: dict[str, Path]) -> None:
    add_one = portcall.load_module(libraries["elementwise"])["add_one"]
    x, y = np.arange(20, dtype="float32")[::2], np.zeros((10, 3), "float32")
    add_one(x, y[:, 1])
    np.testing.assert_array_equal(y, np.stack([np.zeros(10), np.arange(0, 20, 2) + 1, np.zeros(10)], axis=1))


def test_reversed_arrays_are_copied_in_and_out(libraries: dict[str, Path]) -> None:
    add_one = portcall.load_module(libraries["elementwise"])["add_one"]
    y = np.zeros(5, "float32")
    add_one(np.arange(5, dtype="float32")[::-1], y[::-1])
    np.testing.assert_array_equal(y, np.arange(5) + 1)


def test_misaligned_pointer_to_a_callback_of_another_language_is_refused(libraries: dict[str, Path]) -> None:
    # A call that does not come from Python, so nobody has made copies: testing.apply hands its arguments on.
    add_one = portcall.load_module(libraries["elementwise"])["add_one"]
    tensor = portcall.from_dlpack(at_offset((4,), 16))
    with pytest.raises(errors.ArgumentError) as caught:
        portcall.get_global_func("testing.apply")(add_one, tensor, tensor)
    assert str(caught.value) == (
        "add_one(): argument #0: expected tensor data aligned to 64 bytes, as compiled kernels assume, "
        "got data at 16 modulo 64"
    )


def test_read_only_array_is_refused_unless_it_is_marked(libraries: dict[str, Path]) -> None:
    add_one = portcall.load_module(libraries["elementwise"])["add_one"]
    x, y = np.arange(4, dtype="float32"), np.zeros(4, "float32")
    x.setflags(write=False)
    with pytest.raises(errors.ArgumentError) as caught:
        add_one(x, y)
    assert str(caught.value) == (
        "add_one(): argument #0: expected a writable tensor, because compiled code may write to it, got a read-only "
        "one; pass portcall.ReadOnly(a) if it is only read, or a copy"
    )
    add_one(portcall.ReadOnly(x), y)
    np.testing.assert_array_equal(y, np.arange(4) + 1)
