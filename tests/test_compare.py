# SPDX-License-Identifier: Apache-2.0
"""Comparison with a reference: what agrees, and that the worst element is named."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as arrays

from portcall.testing import compare_arrays


@given(arrays.arrays(arrays.floating_dtypes(endianness="="), arrays.array_shapes(min_dims=0, min_side=0)))
def test_compare_arrays_with_itself_agrees(array: np.ndarray) -> None:
    assert compare_arrays("x", array, array.copy(), None, None).ok
    assert compare_arrays("x", array, array.copy(), 0, 0).ok


def test_compare_arrays_names_the_worst_element() -> None:
    expected = np.zeros((3, 4), "float32")
    actual = expected.copy()
    actual[1, 2], actual[2, 0] = 0.5, 0.25
    found = compare_arrays("out0", actual, expected, None, None)
    assert not found.ok
    assert found.message == (
        "out0[1,2] is 0.5, expected 0.0 (difference 0.5, allowed 1e-05); "
        "2 of 12 elements differ (rtol 0.0001, atol 1e-05)"
    )


@pytest.mark.parametrize(
    ("dtype", "near", "far"),
    [("float64", 1e-9, 1e-5), ("float32", 1e-6, 1e-2), ("float16", 1e-3, 0.5), (ml_dtypes.bfloat16, 1e-2, 0.5)],
)
def test_compare_arrays_tolerance_depends_on_the_type(dtype: str, near: float, far: float) -> None:
    expected = np.ones(3, dtype)
    assert compare_arrays("x", (expected.astype("float64") + near).astype(dtype), expected, None, None).ok
    assert not compare_arrays("x", (expected.astype("float64") + far).astype(dtype), expected, None, None).ok


def test_compare_arrays_given_tolerances_win() -> None:
    expected = np.ones(3, "float32")
    assert compare_arrays("x", expected + 0.5, expected, 0, 1.0).ok
    assert compare_arrays("x", expected * 2, expected, 1.0, 0).ok
    assert not compare_arrays("x", expected + 1e-6, expected, 0, 0).ok


def test_compare_arrays_integers_must_be_equal() -> None:
    big = np.array([2**62], "int64")
    assert compare_arrays("x", big, big.copy(), None, None).ok
    assert not compare_arrays("x", big + 1, big, None, None).ok


@pytest.mark.parametrize(
    ("actual", "expected"), [(np.nan, 1.0), (1.0, np.nan), (np.inf, 1.0), (1.0, np.inf), (np.inf, -np.inf)]
)
def test_compare_arrays_nan_and_infinity_agree_with_themselves_only(actual: float, expected: float) -> None:
    assert not compare_arrays("x", np.array([actual]), np.array([expected]), 1.0, 1.0).ok
    assert compare_arrays("x", np.array([actual]), np.array([actual]), None, None).ok


def test_compare_arrays_complex_numbers() -> None:
    values = np.array([1 + 2j, np.nan], "complex64")
    assert compare_arrays("x", values, values.copy(), None, None).ok
    assert not compare_arrays("x", values + 1j, values, None, None).ok


@pytest.mark.parametrize(
    ("actual", "said"),
    [
        (np.zeros(4, "float32"), r"has the shape \[4\], expected \[3\]"),
        (np.zeros(3), "elements of float64, expected float32"),
    ],
)
def test_compare_arrays_other_shapes_and_types_differ(actual: np.ndarray, said: str) -> None:
    found = compare_arrays("x", actual, np.zeros(3, "float32"), None, None)
    assert not found.ok
    assert found.largest_error is None
    assert re.search(said, found.message)
