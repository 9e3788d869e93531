# SPDX-License-Identifier: Apache-2.0
"""Operators that TVM has in Python or in libraries of its own, beside NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import portcall

NAN = float("nan")


def call(name: str, *args: Any) -> Any:
    return portcall.get_global_func(name)(*args)


def tensor(array: Any, dtype: str = "float32") -> portcall.Tensor:
    return portcall.tensor(np.asarray(array, dtype))


rows = st.lists(st.integers(-3, 3), min_size=1, max_size=12)
types = st.sampled_from(["int8", "uint8", "int32", "int64", "float16", "float32", "float64"])


@given(rows, types, st.booleans(), st.sampled_from([None, 0]))
def test_vm_unique_equals_numpys(row: list[int], dtype: str, in_order: bool, axis: int | None) -> None:
    x = np.asarray(row).astype(dtype)
    values, first, inverse, counts = np.unique(x, return_index=True, return_inverse=True, return_counts=True)
    rank = np.arange(len(values)) if in_order else np.argsort(first)
    place = np.argsort(rank)
    got = call("relax.run.unique", portcall.tensor(x), in_order, 1, 1, 1, axis)
    for value, expected in zip(got, (values[rank], first[rank], place[inverse], counts[rank]), strict=True):
        np.testing.assert_array_equal(value.numpy(), expected)
    only = call("relax.run.unique", portcall.tensor(x), in_order, 0, 0, 0)
    np.testing.assert_array_equal(only.numpy(), values[rank])


@given(st.lists(st.lists(st.integers(0, 1), min_size=2, max_size=2), min_size=1, max_size=6), st.integers(-2, 1))
def test_vm_unique_slices_equal_numpys(table: list[list[int]], axis: int) -> None:
    x = np.asarray(table, "int32")
    expected = np.unique(x, axis=axis)
    np.testing.assert_array_equal(call("relax.run.unique", portcall.tensor(x), 1, 0, 0, 0, axis).numpy(), expected)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "float16", "float32", "float64"])
def test_vm_nonzero_equals_numpys(dtype: str) -> None:
    for x in (np.asarray([[0, 1, 0], [-0.0, 2, 3]]).astype(dtype), np.asarray(1).astype(dtype), np.zeros(3, dtype)):
        expected = np.stack(np.atleast_1d(x).nonzero())
        np.testing.assert_array_equal(call("relax.run.nonzero", portcall.tensor(x)).numpy(), expected)


def test_vm_shape_to_tensor() -> None:
    np.testing.assert_array_equal(call("relax.run.shape_to_tensor", portcall.Shape((2, 3))).numpy(), [2, 3])


@given(st.lists(rows.map(lambda row: (row * 4)[:4]), min_size=1, max_size=4), types, st.booleans(), st.integers(-2, 1))
def test_vm_sort_is_stable(table: list[list[int]], dtype: str, ascending: bool, axis: int) -> None:
    x = np.asarray(table).astype(dtype)
    keys = x.astype("float64") if ascending else -x.astype("float64")
    order = np.argsort(keys, axis=axis, kind="stable")
    places, values = portcall.tensor(np.zeros(x.shape, "int32")), portcall.tensor(np.zeros_like(x))
    call("tvm.contrib.sort.argsort", portcall.tensor(x), places, axis, ascending)
    call("tvm.contrib.sort.sort", portcall.tensor(x), values, axis, ascending)
    np.testing.assert_array_equal(places.numpy(), order)
    np.testing.assert_array_equal(values.numpy(), np.take_along_axis(x, order, axis))
    top = 2
    best, where = tensor(np.zeros((len(table), top)), dtype), tensor(np.zeros((len(table), top)), "int64")
    call("tvm.contrib.sort.topk", portcall.tensor(x), best, where, top, -1, "both", ascending)
    order = np.argsort(keys, axis=-1, kind="stable")[:, :top]
    np.testing.assert_array_equal(where.numpy(), order)
    np.testing.assert_array_equal(best.numpy(), np.take_along_axis(x, order, -1))


@pytest.mark.parametrize("ascending", [True, False])
def test_vm_sort_places_nan_last(ascending: bool) -> None:
    x, out = tensor([NAN, 1, -NAN, -2, np.inf, -np.inf, 0]), tensor([0] * 7)
    call("tvm.contrib.sort.sort", x, out, 0, ascending)
    expected = [-np.inf, -2, 0, 1, np.inf]
    np.testing.assert_array_equal(out.numpy(), [*(expected if ascending else expected[::-1]), NAN, NAN])


def test_vm_argsort_nms_sorts_valid_boxes_only() -> None:
    scores, counts, out = tensor([[1, 3, 2, 9], [4, 5, 9, 9]]), tensor([3, 2], "int32"), tensor([[0] * 4] * 2, "int32")
    call("tvm.contrib.sort.argsort_nms", scores, counts, out, 1, False)
    np.testing.assert_array_equal(out.numpy(), [[1, 2, 0, 3], [1, 0, 2, 3]])


def test_vm_sort_refuses_wrong_outputs() -> None:
    x = tensor([1, 2, 3])
    for out, error in ((tensor([0] * 4), TypeError), (tensor([0] * 3, "float64"), TypeError), (x, ValueError)):
        with pytest.raises(error):
            call("tvm.contrib.sort.sort", x, out, 1 if error is ValueError else 0, True)
    with pytest.raises(ValueError, match="topk"):
        call("tvm.contrib.sort.topk", x, x, 1, 0, "neither", True)
    with pytest.raises(TypeError):
        call("tvm.contrib.sort.argsort", x, tensor([0] * 3, "float16"), 0, True)


def test_vm_assert_and_print(capfd: pytest.CaptureFixture[str]) -> None:
    call("relax.run.assert_op", True, "never")
    call("relax.run.assert_op", tensor(True, "bool"), "never")
    for text, args in (("x = [1, 2]!", ("x = {}!", tensor([1, 2]))), ("3, (a, 1.5)", ("", 3, ("a", tensor(1.5))))):
        with pytest.raises(AssertionError) as caught:
            call("relax.run.assert_op", False, *args)
        assert str(caught.value) == text
    call("relax.run.print", "{} and {}", 1, portcall.Shape((2, 3)))
    assert capfd.readouterr().out == "1 and [2, 3]\n"
