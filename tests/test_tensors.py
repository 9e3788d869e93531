# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="attr-defined, misc, no-any-return"
"""Tensors: what is taken for one, what they share with whom, and what compiled code is given of them."""

from __future__ import annotations

import ctypes
import gc
import itertools
import pickle
import subprocess
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import portcall
from portcall import errors
from test_dlpack import ArrayInterface, Versioned

echo = portcall.get_global_func("testing.echo")
apply = portcall.get_global_func("testing.apply")

pytestmark = pytest.mark.usefixtures("native")

PLAIN = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]
NUMPY_DTYPES = [np.dtype(name) for name in (*PLAIN, "complex64", "complex128", "bool")]
EXTENDED_DTYPES = [
    np.dtype(getattr(ml_dtypes, name))
    for name in (
        "bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz",
        "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
    )
]  # fmt: skip


def aligned(shape: Any, dtype: Any = np.float32, offset: int = 0) -> np.ndarray[Any, Any]:
    """An array of zeros whose data lies at ``offset`` modulo 64."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape, dtype=int))
    raw = np.zeros(count * dtype.itemsize + 128, np.uint8)
    start = (offset - raw.ctypes.data) % 64
    return raw[start : start + count * dtype.itemsize].view(dtype).reshape(shape)


@pytest.fixture(autouse=True)
def _policy() -> Iterator[None]:
    yield
    portcall.set_alignment_policy("copy")


class Copies:
    """How many tensors were copied for compiled code inside a ``with`` block."""

    def __enter__(self) -> Copies:
        self.before = portcall.alignment_copy_stats()
        return self

    def __exit__(self, *exc: object) -> None:
        after = portcall.alignment_copy_stats()
        self.count, self.nbytes = after[0] - self.before[0], after[1] - self.before[1]


# ---- Making and describing -------------------------------------------------------------------------------------------


def test_empty_tensor_describes_itself() -> None:
    t = portcall.empty((2, 3), "int16")
    assert t.shape == (2, 3)
    assert t.strides == (3, 1)
    assert (t.ndim, t.size, t.nbytes) == (2, 6, 12)
    assert t.dtype == "int16"
    assert t.device == portcall.cpu(0)
    assert t.is_contiguous
    assert not t.readonly
    assert t.data_ptr % 64 == 0
    assert t.type_key == "ffi.Tensor"
    assert len(t) == 2
    assert repr(t) == "<portcall.Tensor int16[2, 3] on cpu:0>"


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((), ()),
        (5, (5,)),
        ([2, 3], (2, 3)),
        ((np.int64(4), np.uint8(2)), (4, 2)),
        (portcall.Shape((1, 2)), (1, 2)),
        (np.array([3, 4]), (3, 4)),
        (portcall.Array([6, 7]), (6, 7)),
        ((0, 3), (0, 3)),
        (range(1, 3), (1, 2)),
    ],
)
def test_empty_takes_a_shape_in_any_usual_form(shape: Any, expected: tuple[int, ...]) -> None:
    assert portcall.empty(shape).shape == expected


def test_empty_without_dimensions_has_one_element() -> None:
    t = portcall.empty((), "float64")
    assert (t.shape, t.strides, t.size, t.nbytes) == ((), (), 1, 8)
    t.numpy()[()] = 2.5
    assert float(t.numpy()) == 2.5
    with pytest.raises(TypeError, match="without dimensions has no length"):
        len(t)


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0, 2)])
def test_empty_without_elements_works(shape: tuple[int, ...]) -> None:
    t = portcall.empty(shape)
    assert (t.size, t.nbytes) == (0, 0)
    assert t.numpy().shape == shape
    assert t.copyto(portcall.cpu()).shape == shape
    assert np.from_dlpack(t).shape == shape
    assert echo(np.zeros(shape)).shape == shape
    for source in (np.zeros(shape), np.zeros(shape).T, np.zeros((*shape, 2))[..., 0]):
        assert portcall.from_dlpack(source).is_contiguous
        assert portcall.from_dlpack(source).strides == portcall.empty(source.shape).strides


@pytest.mark.parametrize(
    "dtype", [*PLAIN, "complex64", "bool", "bfloat16", "float8_e4m3fn", "float32x4", "float4_e2m1fn"]
)
def test_nbytes_counts_packed_elements(dtype: str) -> None:
    t = portcall.empty((3, 5), dtype)
    element = portcall.dtype(dtype)
    assert t.nbytes == (15 * element.bits * element.lanes + 7) // 8


def test_tensor_takes_nested_lists() -> None:
    t = portcall.tensor([[1, 2], [3, 4]], "float32")
    assert t.dtype == "float32"
    assert t.numpy().tolist() == [[1, 2], [3, 4]]
    assert portcall.tensor([1.5]).dtype == "float64"
    assert portcall.tensor(3, "int8").shape == ()


def test_tensor_of_an_array_is_an_aligned_copy() -> None:
    source = aligned(10, offset=16)
    source[:] = range(10)
    t = portcall.tensor(source)
    assert t.data_ptr % 64 == 0
    source[0] = 99
    assert t.numpy()[0] == 0


def test_tensor_takes_a_numpy_scalar() -> None:
    t = portcall.tensor(np.float32(2.5))
    assert (t.shape, str(t.dtype)) == ((), "float32")
    assert t.numpy() == 2.5


@pytest.mark.parametrize(
    "source", [np.arange(6).reshape(2, 3).T, np.arange(10)[::-2], np.broadcast_to(np.int64(7), (2, 2))]
)
def test_tensor_takes_an_array_with_strides(source: Any) -> None:
    assert np.array_equal(portcall.tensor(source).numpy(), source)


def test_tensor_with_dtype_converts() -> None:
    assert portcall.tensor(np.array([1.9, 2.1]), "int32").numpy().tolist() == [1, 2]
    assert portcall.tensor(portcall.tensor([1, 2]), "float32").dtype == "float32"


def test_empty_refuses_impossible_sizes() -> None:
    for shape in [(2**62,), (2**40, 2**40), (2**62, 2**62, 0), (2**63 - 1, 2)]:
        with pytest.raises((ValueError, MemoryError)):
            portcall.empty(shape)
    with pytest.raises(MemoryError, match=r"out of memory: .* bytes on cpu:0"):
        portcall.empty(2**50)


# ---- NumPy -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*NUMPY_DTYPES, *EXTENDED_DTYPES], ids=str)
def test_numpy_round_trip_of_every_dtype(dtype: np.dtype[Any]) -> None:
    array = np.arange(12).astype(dtype).reshape(3, 4)
    t = echo(array)
    assert isinstance(t, portcall.Tensor)
    assert str(t.dtype) == dtype.name
    back = t.numpy()
    assert back.dtype == dtype
    assert back.tobytes() == array.tobytes()
    assert back.ctypes.data == array.ctypes.data


@pytest.mark.parametrize("dtype", [*NUMPY_DTYPES, *EXTENDED_DTYPES], ids=str)
def test_numpy_of_tensors_of_every_dtype(dtype: np.dtype[Any]) -> None:
    t = portcall.empty((4,), dtype)
    assert t.numpy().dtype == dtype
    assert t.numpy().nbytes == t.nbytes


@pytest.mark.parametrize(
    "dtype",
    [
        "O", "S4", "U4", "M8[ns]", "m8[s]", "V4", "g", "G", [("a", "i4"), ("b", "f4")],
        ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.float4_e2m1fn,
    ],
    ids=str,
)  # fmt: skip
def test_tensor_refuses_arrays_of_other_elements(dtype: Any) -> None:
    array = np.zeros(4, dtype)
    with pytest.raises(errors.ArgumentError, match="an array of numbers that tensors can hold") as caught:
        echo(array)
    assert str(array.dtype) in str(caught.value)
    assert (caught.value.function, caught.value.position) == ("testing.echo", 0)
    if str(array.dtype) not in ("int4", "uint4", "float4_e2m1fn"):  # which are packed
        with pytest.raises(errors.ArgumentError, match="array"):
            portcall.tensor(array)


@pytest.mark.parametrize(
    ("dtype", "values", "packed"),
    [
        ("int4", [[1, -2, 3], [-8, 7, 0], [5, -1, 6]], [0xE1, 0x83, 0x07, 0xF5, 0x06]),
        ("uint4", [[1, 2], [15, 8]], [0x21, 0x8F]),
        ("float4_e2m1fn", [0.5, -6.0, 1.5], [0xF1, 0x03]),
    ],
)
def test_elements_of_4_bits_are_filled_and_read_through_numpy(dtype: str, values: Any, packed: list[int]) -> None:
    array = np.array(values, getattr(ml_dtypes, dtype))
    filled = portcall.empty(array.shape, dtype).copyfrom(array)
    made = portcall.tensor(array)
    listed = portcall.tensor(values, dtype)
    for t in (filled, made, listed):
        assert (str(t.dtype), t.shape, t.nbytes) == (dtype, array.shape, len(packed))
        assert t.view((t.nbytes,), "uint8").numpy().tolist() == packed
        assert t.numpy().dtype == array.dtype
        assert t.numpy().tolist() == array.tolist()
    with pytest.raises(ValueError, match="read-only"):
        made.numpy()[:] = 0
    with pytest.raises(TypeError, match=dtype):
        filled.copyfrom(np.ones(array.shape, "float32"))


def test_tensor_refuses_the_other_byte_order() -> None:
    with pytest.raises(errors.ArgumentError, match=r"this machine's order.*newbyteorder"):
        echo(np.zeros(3, ">f4"))
    assert echo(np.zeros(3, "<f4")).dtype == "float32"


@pytest.mark.parametrize("dtype", ["float32x4", "float4_e2m1fnx2", "handle"])
def test_numpy_refuses_elements_it_cannot_hold(dtype: str) -> None:
    with pytest.raises(TypeError, match="NumPy"):
        portcall.empty(4, dtype).numpy()


def test_numpy_is_a_view_that_keeps_the_tensor() -> None:
    t = portcall.empty(4, "int32")
    array = t.numpy()
    array[:] = [1, 2, 3, 4]
    assert t.numpy().tolist() == [1, 2, 3, 4]
    del t
    gc.collect()
    portcall.empty(4, "int32").numpy()[:] = 0
    assert array.tolist() == [1, 2, 3, 4]


def test_tensor_over_an_array_keeps_the_array() -> None:
    array = np.arange(1000)
    gone = weakref.ref(array)
    t = echo(array)
    del array
    assert gone() is not None
    assert t.numpy().sum() == 499500
    del t
    gc.collect()
    assert gone() is None


def test_tensor_over_an_array_has_its_strides() -> None:
    base = np.arange(24, dtype=np.int32).reshape(4, 6)
    for view in (base.T, base[1:, ::2], base[::-1, ::-1], base[2], base[:, 3], base[1:2, 1:2]):
        t = echo(view)
        assert t.shape == view.shape
        if not view.flags.c_contiguous:  # NumPy may say anything of an axis with one element
            assert t.strides == tuple(s // 4 for s in view.strides)
        assert t.is_contiguous == (view.flags.c_contiguous or view.size < 2)
        assert np.array_equal(t.numpy(), view)
        assert t.numpy().ctypes.data == view.ctypes.data


def test_tensor_refuses_strides_between_elements() -> None:
    record = np.zeros(4, np.dtype([("a", "i1"), ("b", "f4")]))
    with pytest.raises(errors.ArgumentError, match=r"np.ascontiguousarray"):
        echo(record["b"])


def test_array_protocol_converts_on_request() -> None:
    t = portcall.tensor([1, 2], "int32")
    assert np.asarray(t).dtype == np.int32
    assert np.asarray(t).ctypes.data == t.data_ptr
    assert np.array(t).ctypes.data != t.data_ptr
    assert np.asarray(t, dtype="float64").tolist() == [1.0, 2.0]
    with pytest.raises(ValueError, match="without a copy"):
        t.__array__("float64", copy=False)
    assert (np.asarray(t) + 1).tolist() == [2, 3]


def test_numpy_copyto_takes_a_tensor() -> None:
    t = portcall.tensor([[1, 2], [3, 4]], "int32")
    out = np.zeros((2, 2), np.int32)
    assert t.numpy(out=out) is out
    assert out.tolist() == [[1, 2], [3, 4]]
    strided = np.zeros((2, 4), np.int32)[:, ::2]
    t.numpy(out=strided)
    assert strided.tolist() == [[1, 2], [3, 4]]
    with pytest.raises(ValueError, match="equal shapes"):
        t.numpy(out=np.zeros(3, np.int32))
    with pytest.raises(TypeError, match="equal data types"):
        t.numpy(out=np.zeros((2, 2), np.int64))
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        t.numpy(out=out)


@given(hnp.arrays(st.sampled_from(NUMPY_DTYPES), hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4)))
def test_numpy_round_trip_of_any_array(array: Any) -> None:
    back = echo(array).numpy()
    assert back.dtype == array.dtype
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()


@given(st.data())
def test_copyfrom_any_view_of_an_array(data: st.DataObject) -> None:
    base = np.arange(120, dtype=np.int16).reshape(4, 5, 6)
    view = base[data.draw(hnp.basic_indices(base.shape, allow_ellipsis=False, min_dims=1))]
    order = data.draw(st.permutations(range(view.ndim)))
    view = view.transpose(order)
    assert np.array_equal(portcall.tensor(view).numpy(), view)
    target = np.zeros(view.shape[::-1], np.int16).T
    echo(target).copyfrom(view)
    assert np.array_equal(target, view)


# ---- Copies ----------------------------------------------------------------------------------------------------------


def test_copyfrom_takes_arrays_tensors_and_numbers() -> None:
    t = portcall.empty((2, 2))
    assert t.copyfrom(np.full((2, 2), 3, np.float32)) is t
    assert t.numpy().tolist() == [[3, 3], [3, 3]]
    t.copyfrom([[1, 2], [3, 4]])
    assert t.numpy().tolist() == [[1, 2], [3, 4]]
    t.copyfrom(portcall.tensor(np.zeros((2, 2), np.float32)))
    assert t.numpy().sum() == 0
    portcall.empty((), "float32").copyfrom(np.float32(4))
    t.copyfrom(np.arange(8, dtype=np.float32).reshape(2, 4)[:, ::2])
    assert t.numpy().tolist() == [[0, 2], [4, 6]]


def test_copyfrom_checks_shape_and_type_and_refuses_readonly() -> None:
    t = portcall.empty((2, 2))
    with pytest.raises(ValueError, match=r"equal shapes: \(3,\) to \(2, 2\)"):
        t.copyfrom(np.zeros(3, np.float32))
    with pytest.raises(TypeError, match="equal data types: float64 to float32"):
        t.copyfrom(np.zeros((2, 2)))
    frozen = np.zeros(3, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        echo(frozen).copyfrom(np.ones(3, np.float32))


def test_copyto_goes_into_arrays_tensors_and_devices() -> None:
    t = portcall.tensor([1, 2, 3], "int32")
    array = np.zeros(3, np.int32)
    assert t.copyto(array) is array
    assert array.tolist() == [1, 2, 3]
    other = portcall.empty(3, "int32")
    assert t.copyto(other) is other
    assert other.numpy().tolist() == [1, 2, 3]
    made = t.copyto(portcall.cpu())
    assert made.numpy().tolist() == [1, 2, 3]
    assert made.data_ptr != t.data_ptr
    with pytest.raises(errors.ArgumentError, match="expected an array"):
        t.copyto("somewhere")


@pytest.mark.parametrize("turn", [np.s_[::-1], np.s_[::-1, ::-1], np.s_[:, ::-1]])
def test_copyfrom_overlapping_memory_is_safe(turn: Any) -> None:
    array = np.arange(16, dtype=np.int32).reshape(4, 4)
    expected = array[turn].copy()
    echo(array).copyfrom(array[turn])
    assert np.array_equal(array, expected)


def test_copyfrom_overlapping_rows_moves_them() -> None:
    array = np.arange(10, dtype=np.int32)
    expected = array[:-1].copy()
    echo(array[1:]).copyfrom(array[:-1])
    assert np.array_equal(array[1:], expected)


# ---- Compiled code: alignment, strides, read-only --------------------------------------------------------------------


def test_argument_aligned_array_is_not_copied(native: portcall.Module) -> None:
    array = aligned(16)
    with Copies() as copies:
        assert native["address_of"](array) == array.ctypes.data
        assert native["address_of"](portcall.empty(16)) % 64 == 0
    assert copies.count == 0


@pytest.mark.parametrize("offset", [4, 16, 32, 60])
def test_argument_misaligned_array_is_copied_in_and_out(native: portcall.Module, offset: int) -> None:
    x, y = aligned(100, offset=offset), aligned(100, offset=offset)
    x[:] = range(100)
    with Copies() as copies:
        assert native["address_of"](x) % 64 == 0
        native["add_one"](x, y)
    assert y.tolist() == [v + 1 for v in range(100)]
    assert x.tolist() == list(range(100))
    assert (copies.count, copies.nbytes) == (3, 1200)


@pytest.mark.parametrize(
    "view",
    [np.s_[:, ::2], np.s_[::-1], np.s_[:, 3], np.s_[1:3, 1:3], np.s_[:, :, None].__class__(())],
    ids=str,
)
def test_argument_strided_array_is_copied_in_and_out(native: portcall.Module, view: Any) -> None:
    base = aligned((4, 6))
    native["fill"](base[view], 5.0)
    expected = np.zeros((4, 6), np.float32)
    expected[view] = 5
    assert np.array_equal(base, expected)


def test_argument_transposed_array_keeps_its_order(native: portcall.Module) -> None:
    x = aligned((2, 3))
    x[:] = [[1, 2, 3], [4, 5, 6]]
    y = aligned((3, 2))
    native["add_one"](x.T, y)
    assert y.tolist() == [[2, 5], [3, 6], [4, 7]]


def test_argument_strided_tensor_is_copied_in_and_out(native: portcall.Module) -> None:
    base = portcall.tensor(np.arange(12, dtype=np.float32).reshape(3, 4))
    view = echo(base.numpy()[:, 1:3])
    native["fill"](view, -1.0)
    assert base.numpy().tolist() == [[0, -1, -1, 3], [4, -1, -1, 7], [8, -1, -1, 11]]


def test_argument_misaligned_object_of_another_library_is_copied(native: portcall.Module) -> None:
    array = aligned(8, offset=16)
    with Copies() as copies:
        native["fill"](Versioned(array), 2.0)
        native["fill"](ArrayInterface(array), 3.0)
    assert copies.count == 2
    assert array.tolist() == [3.0] * 8


def test_argument_array_given_twice_is_one_memory(native: portcall.Module) -> None:
    array = aligned(8, offset=16)
    with Copies() as copies:
        assert native["same_memory"](array, array)
        assert native["same_memory"](array, array[:])
        assert not native["same_memory"](array, array.copy())
    native["add_one"](array, array)
    assert array.tolist() == [1.0] * 8
    assert copies.count >= 3


def test_argument_copy_is_dropped_after_a_failed_call(native: portcall.Module) -> None:
    array = aligned(8, offset=16)
    with pytest.raises(ValueError, match="failed half way"):
        native["fill_then_fail"](array)
    assert array.tolist() == [0.0] * 8


def test_in_makes_an_argument_read_only_for_python_functions() -> None:
    readonly = portcall.convert(lambda x: x.readonly)
    for argument in (np.zeros(3), portcall.tensor(np.zeros(3))):
        assert not readonly(argument)
        assert readonly(portcall.ReadOnly(argument))
        assert not readonly(argument)


def test_in_argument_is_not_copied_back(native: portcall.Module) -> None:
    array = aligned(8, offset=16)
    native["fill"](portcall.ReadOnly(array), 5.0)
    assert array.tolist() == [0.0] * 8


def test_in_is_needed_for_read_only_arrays(native: portcall.Module) -> None:
    x, y = aligned(4), aligned(4)
    x[:] = [1, 2, 3, 4]
    x.flags.writeable = False
    with pytest.raises(
        errors.ArgumentError, match=r"add_one\(\): argument #0: expected a writable tensor.*portcall.ReadOnly"
    ):
        native["add_one"](x, y)
    with pytest.raises(errors.ArgumentError, match="writable"):
        native["add_one"](echo(x), y)
    with Copies() as copies:
        native["add_one"](portcall.ReadOnly(x), y)
        native["add_one"](portcall.ReadOnly(echo(x)), y)
    assert copies.count == 0
    assert y.tolist() == [2, 3, 4, 5]


def test_argument_of_a_python_function_is_never_copied() -> None:
    frozen = np.arange(8, dtype=np.float32)[::2]
    frozen.flags.writeable = False
    with Copies() as copies:
        assert echo(frozen).readonly
        assert apply(lambda t: t.strides, frozen) == [2]
    assert copies.count == 0


@pytest.mark.parametrize("value", [5, "text", None, [1, 2]])
def test_in_marks_arrays_only(native: portcall.Module, value: Any) -> None:
    with pytest.raises(errors.ArgumentError, match=r"argument #0: expected an array inside portcall.ReadOnly, got"):
        native["address_of"](portcall.ReadOnly(value))


def test_set_alignment_policy_error_refuses_copies(native: portcall.Module) -> None:
    portcall.set_alignment_policy("error")
    assert native["address_of"](aligned(4)) % 64 == 0
    with pytest.raises(errors.ArgumentError, match="not aligned"):
        native["address_of"](aligned(4, offset=16))
    with pytest.raises(errors.ArgumentError, match=r"not compact.*set_alignment_policy"):
        native["address_of"](aligned((4, 4))[:, ::2])
    portcall.set_alignment_policy("copy")
    assert native["address_of"](aligned(4, offset=16)) % 64 == 0


@pytest.mark.parametrize("policy", ["", "Copy", None, 5])
def test_set_alignment_policy_refuses_other_values(policy: Any) -> None:
    with pytest.raises(ValueError, match="'copy' or 'error'"):
        portcall.set_alignment_policy(policy)


def test_alignment_copy_of_a_large_array_warns_once(build_native: Any) -> None:
    code = f"""
import warnings, numpy as np, portcall
lib = portcall.load_module({str(build_native("functions.cc"))!r})
raw = np.zeros((1 << 20) + 64, np.uint8)
start = -raw.ctypes.data % 64
def misaligned(n):
    return raw[start + 1 : start + 1 + n]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    lib["address_of"](misaligned(1 << 20))
    assert not caught
    big = np.zeros((1 << 20) + 200, np.uint8)[1:]
    lib["address_of"](big)
    lib["address_of"](big)
assert len(caught) == 1, caught
print(caught[0].category.__name__, caught[0].filename, caught[0].message)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("UserWarning <string> a tensor of 1.0 MiB is copied for each call"), done.stderr
    assert "portcall.empty" in done.stdout


def test_argument_count_does_not_change_alignment(native: portcall.Module) -> None:
    arrays = [aligned(4, offset=16) for _ in range(12)]
    for array, k in zip(arrays, itertools.count(), strict=False):
        array[:] = k
    got = portcall.convert(lambda *ts: sum(float(t.numpy()[0]) for t in ts))(*arrays)
    assert got == 66
    with pytest.raises(errors.ArgumentError, match="expected 2 arguments, got 12"):
        native["add_one"](*arrays)


def test_argument_tensor_kept_by_a_function_keeps_the_array(native: portcall.Module) -> None:
    array = aligned(4)
    gone = weakref.ref(array)
    native["keep"](array)
    del array
    gc.collect()
    assert gone() is not None
    assert native["kept"]().numpy().tolist() == [0.0] * 4
    native["drop"]()
    gc.collect()
    assert gone() is None


def test_tensor_made_by_cpp_outlives_everything_else(native: portcall.Module) -> None:
    t = native["make"](5)
    assert t.numpy().tolist() == [0, 1, 2, 3, 4]
    assert t.data_ptr % 64 == 0


# ---- Tensors that are lent for one call ------------------------------------------------------------------------------


def test_lent_tensor_is_used_inside_the_call(native: portcall.Module) -> None:
    def write(t: portcall.Tensor) -> None:
        assert t.shape == (4,)
        assert t.numpy().tolist() == [1, 2, 3, 4]
        t.numpy()[0] = 10

    native["lend"](write)


def test_lent_tensor_is_an_error_after_the_call(native: portcall.Module) -> None:
    kept: list[portcall.Tensor] = []

    def keep(t: portcall.Tensor) -> None:
        t.numpy()[0] = 10
        kept.append(t)

    native["lend"](keep)
    for use in (
        lambda t: t.numpy(),
        lambda t: t.shape,
        lambda t: t.data_ptr,
        lambda t: t.copyto(portcall.cpu()),
        lambda t: t.__dlpack__(),
        echo,
        repr,
        native["address_of"],
    ):
        with pytest.raises(ValueError, match="lent to a function for one call, which has ended"):
            use(kept[0])


def test_lent_tensor_copy_stays(native: portcall.Module) -> None:
    copies: list[portcall.Tensor] = []

    def keep_copy(t: portcall.Tensor) -> None:
        t.numpy()[0] = 10
        copies.append(t.copyto(portcall.cpu()))

    native["lend"](keep_copy)
    assert copies[0].numpy().tolist() == [10, 2, 3, 4]


def test_lent_tensor_ends_with_a_failed_call(native: portcall.Module) -> None:
    kept: list[portcall.Tensor] = []

    def fail(t: portcall.Tensor) -> None:
        kept.append(t)
        raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        native["lend"](fail)
    with pytest.raises(ValueError, match="lent"):
        kept[0].numpy()


def test_lent_tensor_of_a_tvm_kernel(libraries: Any, register: Any) -> None:
    seen: list[Any] = []
    register("portcall_test.log_value", lambda t, n: seen.append((t, t.numpy().tolist(), n)))
    portcall.load_module(libraries["packed"])["log_tensor"](aligned(3))
    tensor, values, n = seen[0]
    assert (values, n) == ([0.0, 0.0, 0.0], 3)
    with pytest.raises(ValueError, match="lent"):
        tensor.numpy()


# ---- Odds and ends ---------------------------------------------------------------------------------------------------


def test_tensor_class_cannot_be_called() -> None:
    with pytest.raises(TypeError, match="made by a function of portcall"):
        portcall.Tensor()
    unmade = portcall.Tensor.__new__(portcall.Tensor)
    for use in (lambda t: t.shape, lambda t: t.numpy(), lambda t: t.type_key, echo, repr):
        with pytest.raises((ValueError, errors.ArgumentError), match="not initialised"):
            use(unmade)


def test_tensor_eq_of_the_same_tensor() -> None:
    t = portcall.empty(2)
    assert t == echo(t)
    assert hash(t) == hash(echo(t))
    assert t != portcall.empty(2)
    assert t.same_as(echo([t])[0])


def test_tensor_pickle_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Tensor .* process"):
        pickle.dumps(portcall.empty(2))


def test_data_ptr_is_the_address_of_the_elements() -> None:
    t = portcall.tensor([5, 6, 7], "int64")
    assert list((ctypes.c_int64 * 3).from_address(t.data_ptr)) == [5, 6, 7]
