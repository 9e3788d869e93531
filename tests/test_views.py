# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="attr-defined, call-overload, no-untyped-call"
"""Parts of tensors, and arithmetic with them: on the host, on a device, in a session."""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import portcall
from portcall import rpc

EXT = portcall.device("ext_dev:0")
apply = portcall.get_global_func("testing.apply")

pytestmark = pytest.mark.usefixtures("fake_device", "native")

Make = Callable[[Any], Any]


@pytest.fixture(params=["host", "device", "session"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """What makes a tensor of an array: on the host, on a device whose memory the host cannot read, in a session."""
    if request.param == "session":
        with rpc.LocalSession() as session:
            yield session.tensor
    else:
        device = portcall.cpu() if request.param == "host" else EXT
        yield lambda array: portcall.tensor(array, device=device)


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape), dtype="float32").reshape(shape)


# ---- Views with another shape ----------------------------------------------------------------------------------------


def test_view_has_another_shape_and_the_same_memory(make: Make) -> None:
    t = make(numbers(2, 3))
    view = t.view((3, 2))
    assert type(view) is type(t)
    assert view.numpy().tolist() == [[0, 1], [2, 3], [4, 5]]
    view.copyfrom(numbers(3, 2) * 10)
    assert t.numpy().tolist() == [[0, 10, 20], [30, 40, 50]]
    assert t.view(6).shape == (6,)
    assert t.view(()).numpy() == 0
    assert t.view((2, 0, 9), byte_offset=24).numpy().shape == (2, 0, 9)


def test_view_with_offset_and_dtype(make: Make) -> None:
    t = make(numbers(8))
    assert t.view((2, 2), byte_offset=16).numpy().tolist() == [[4, 5], [6, 7]]
    assert t.view(4, "f32", np.int64(4)).view(2, byte_offset=4).numpy().tolist() == [2, 3]
    assert t.view((2, 4), "uint8").numpy().tolist() == numbers(2).view("uint8").reshape(2, 4).tolist()
    assert t.view(3, "int32", 4).numpy().tolist() == numbers(8)[1:4].view("int32").tolist()


@pytest.mark.parametrize(
    ("shape", "dtype", "offset"),
    [(9, None, 0), (1, None, 32), (2, None, 28), (1, None, 1 << 62), (1, None, 1 << 70), ((1 << 40, 1 << 40), None, 0),
     (5, "float64", 0), (1, "float32x16", 0), (-1, None, 0), ((-1, -8), None, 0), (1, None, -4), (1 << 64, None, 0)],
)  # fmt: skip
def test_view_past_the_end_is_refused(make: Make, shape: Any, dtype: Any, offset: int) -> None:
    t = make(numbers(8))
    with pytest.raises(ValueError, match=r"past the end|negative"):
        t.view(shape, dtype, offset)


def test_view_keeps_the_memory(make: Make) -> None:
    view = make(numbers(1000)).view((2, 2), byte_offset=400)[1]
    gc.collect()
    assert view.numpy().tolist() == [102, 103]


def test_view_needs_a_compact_tensor() -> None:
    column = portcall.tensor(numbers(3, 3))[:, 1]
    with pytest.raises(ValueError, match="compact"):
        column.view((3, 1))


def test_view_of_packed_elements_is_by_whole_bytes() -> None:
    t = portcall.empty((4, 2), "int4")
    t.view(4, "uint8")[:] = [1, 2, 3, 4]
    assert t[1:3].view(2, "uint8").numpy().tolist() == [2, 3]
    with pytest.raises(ValueError, match="share bytes"):
        t[0, 1:]


# ---- Parts -----------------------------------------------------------------------------------------------------------


def test_getitem_of_a_row_is_a_view(make: Make) -> None:
    t = make(numbers(4, 3))
    assert t[1].shape == (3,)
    assert t[1].numpy().tolist() == [3, 4, 5]
    assert t[-1].numpy().tolist() == [9, 10, 11]
    assert t[1:3].numpy().tolist() == [[3, 4, 5], [6, 7, 8]]
    assert t[2, 1:].numpy().tolist() == [7, 8]
    assert t[4:].shape == (0, 3)
    assert t[None, 0].shape == (1, 3)
    assert t[...].shape == t[()].shape == (4, 3)
    assert [row.numpy().tolist() for row in t] == numbers(4, 3).tolist()
    assert len(t) == 4


def test_getitem_of_an_element_is_a_number(make: Make) -> None:
    t = make(numbers(2, 3))
    assert t[1, -1] == 5
    assert type(t[1, -1]) is np.float32
    assert list(t[0]) == [0, 1, 2]
    assert make(np.array(7, "int8"))[()] == 7
    assert make(np.array([1.5], ml_dtypes.bfloat16))[0] == 1.5


@pytest.mark.parametrize(
    ("key", "error"),
    [(2, IndexError), (-3, IndexError), ((0, 3), IndexError), ((0, 0, 0), IndexError), ((..., 0, ...), IndexError),
     (1 << 70, IndexError), (True, TypeError), ([0, 1], TypeError), (np.array([0, 1]), TypeError), ("a", TypeError),
     (1.0, TypeError), (slice(0, 2, 0), ValueError), (slice("a"), TypeError)],
    ids=repr,
)  # fmt: skip
def test_getitem_refuses_invalid_keys(make: Make, key: Any, error: type[Exception]) -> None:
    t = make(numbers(2, 3))
    with pytest.raises(error):
        t[key]
    with pytest.raises(error):
        t[key] = 0
    assert t.numpy().tolist() == numbers(2, 3).tolist()


SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@given(st.data())
def test_getitem_selects_what_numpy_selects(data: st.DataObject) -> None:
    array = data.draw(hnp.arrays("int16", SHAPES))
    key = data.draw(hnp.basic_indices(array.shape, allow_newaxis=True, allow_ellipsis=True))
    t = portcall.from_dlpack(array)
    expected, part = array[key], t[key]
    if not isinstance(part, portcall.Tensor):
        assert part == expected
        return
    assert part.shape == np.shape(expected)
    assert np.array_equal(part.numpy(), expected)
    assert part.is_contiguous == expected.flags.c_contiguous
    written = array.copy()
    written[key] = 7
    t[key] = 7
    assert np.array_equal(array, written)


def test_setitem_writes_parts(make: Make) -> None:
    t = make(np.zeros((3, 2), "float32"))
    t[:] = numbers(3, 2)
    assert t.numpy().tolist() == numbers(3, 2).tolist()
    t[0] = 9
    t[1, 1] = 8.5
    t[2] = [1, 2]
    assert t.numpy().tolist() == [[9, 9], [2, 8.5], [1, 2]]
    t[:2] = numbers(2)  # to every row
    t[2] = t[0]
    t[2] = make(numbers(4)[2:])
    assert t.numpy().tolist() == [[0, 1], [0, 1], [2, 3]]
    t[0] = portcall.tensor(numbers(2) + 5)
    assert t[0].numpy().tolist() == [5, 6]


@pytest.mark.parametrize(
    ("value", "error"),
    [(np.zeros(3), TypeError), (np.zeros(4, "f4"), ValueError), ([1, 2], ValueError), ("a", ValueError),
     (np.zeros((2, 3), "f4"), ValueError), (np.zeros(3, "i4"), TypeError)],
    ids=repr,
)  # fmt: skip
def test_setitem_refuses_values_that_do_not_fit(make: Make, value: Any, error: type[Exception]) -> None:
    t = make(numbers(2, 3))
    with pytest.raises(error):
        t[0] = value
    assert t.numpy().tolist() == numbers(2, 3).tolist()


def test_setitem_of_overlapping_parts_is_safe() -> None:
    t = portcall.tensor(numbers(6))
    t[1:] = t[:-1]
    assert t.numpy().tolist() == [0, 0, 1, 2, 3, 4]
    t[::-1] = t
    assert t.numpy().tolist() == [4, 3, 2, 1, 0, 0]


def test_getitem_of_a_read_only_tensor_is_read_only() -> None:
    array = numbers(2, 2)
    array.flags.writeable = False
    t = portcall.from_dlpack(array)
    assert t[0].readonly
    assert t.view(4).readonly
    for write in (lambda: operator.setitem(t, 0, 1), lambda: t[0].copyfrom([1, 1]), lambda: operator.iadd(t, 1)):
        with pytest.raises(ValueError, match="read-only"):
            write()
    assert array.tolist() == [[0, 1], [2, 3]]


def test_getitem_strided_part_of_a_device_is_not_copied(make: Make) -> None:
    t = make(numbers(3, 3))
    if isinstance(t, portcall.Tensor) and t.device == portcall.cpu():
        return
    with pytest.raises(ValueError, match=r"strided|compact"):
        t[:, 1].numpy()
    with pytest.raises(ValueError, match=r"strided|compact"):
        t[:, 1] = 0


def test_getitem_part_is_a_kernel_argument(fake_device: portcall.Module) -> None:
    x, y = portcall.tensor(numbers(4, 4), device=EXT), portcall.tensor(np.zeros((4, 4), "f4"), device=EXT)
    fake_device["add_one"](x[1], y[2])
    assert y.numpy().tolist() == [[0] * 4, [0] * 4, [5, 6, 7, 8], [0] * 4]


# ---- Arithmetic ------------------------------------------------------------------------------------------------------

BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "gt", "ge"]
INTEGER = ["and_", "or_", "xor", "lshift", "rshift"]


def binary(name: str) -> tuple[Callable[[Any, Any], Any], np.ndarray[Any, Any]]:
    return getattr(operator, name), np.array([[1, 2], [3, 4]], "int32" if name in INTEGER else "float32")


@pytest.mark.parametrize("name", [*BINARY, *INTEGER, "matmul"])
def test_arithmetic_equals_numpys(name: str) -> None:
    compute, a = binary(name)
    b = a[::-1].copy()
    x, y = portcall.tensor(a), portcall.tensor(b)
    others: list[tuple[Any, Any]] = (
        [(y, b), (b, b)] if name == "matmul" else [(y, b), (b, b), (2, 2), (a.dtype.type(2),) * 2]
    )
    for other, plain in others:
        for result, expected in ((compute(x, other), compute(a, plain)), (compute(other, x), compute(plain, a))):
            assert isinstance(result, np.ndarray)
            assert result.dtype == expected.dtype
            assert np.array_equal(result, expected)


@pytest.mark.parametrize("name", ["neg", "pos", "abs"])
def test_arithmetic_of_one_operand_equals_numpys(name: str) -> None:
    a = np.array([-1.5, 2], "float32")
    assert np.array_equal(getattr(operator, name)(portcall.tensor(a)), getattr(operator, name)(a))
    assert (~portcall.tensor([1, 2])).tolist() == [-2, -3]


@pytest.mark.parametrize("name", [name.rstrip("_") for name in (*BINARY[:-4], *INTEGER)])
def test_arithmetic_in_place_writes_to_the_tensor(name: str) -> None:
    compute, a = getattr(operator, f"i{name}"), binary(name if hasattr(operator, name) else f"{name}_")[1]
    x = same = portcall.tensor(a)
    x = compute(x, 2)
    assert x is same
    assert np.array_equal(x.numpy(), compute(a, 2))


def test_numpy_functions_take_tensors() -> None:
    x = portcall.tensor(numbers(3))
    assert np.add(x, 1).tolist() == [1, 2, 3]
    assert np.where(x > 1, x, 0).tolist() == [0, 0, 2]


def test_arithmetic_works_inside_python_functions() -> None:
    scale = portcall.convert(lambda x, k: x * k)
    assert scale(3, 4) == 12
    assert scale(numbers(3), 4).numpy().tolist() == [0, 4, 8]
    assert scale(portcall.tensor(numbers(3)), numbers(3)).numpy().tolist() == [0, 1, 4]

    def double(x: Any) -> None:
        x *= 2

    array = numbers(3)
    apply(double, array)
    assert array.tolist() == [0, 2, 4]


def test_arithmetic_refuses_tensors_of_devices_and_sessions(make: Make) -> None:
    t = make(numbers(3))
    if isinstance(t, portcall.Tensor) and t.device == portcall.cpu():
        return
    for compute in (lambda: t * 2, lambda: 2 * t, lambda: -t, lambda: t > 1, lambda: portcall.tensor(numbers(3)) + t):
        with pytest.raises(TypeError, match=r"\.numpy\(\)"):
            compute()


def test_getattr_of_an_array_method_proposes_numpy(make: Make) -> None:
    t = make(numbers(3))
    with pytest.raises(AttributeError, match=r"\.numpy\(\)\.sum"):
        t.sum()
    with pytest.raises(AttributeError, match=r"no attribute 'summ'$"):
        t.summ()
    assert not hasattr(t, "_sum")


def test_eq_of_tensors_is_identity() -> None:
    t = portcall.tensor(numbers(3))
    assert portcall.Array([t])[0] == t
    assert t != portcall.tensor(numbers(3))
    assert {t: 1}[t] == 1
    assert (t == numbers(3)).all()
