# SPDX-License-Identifier: Apache-2.0
"""Operators alone, beside onnxruntime or NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import portcall
from compile.computed import computed
from compile.reference import check, make, outputs
from compile.test_models import random
from portcall.compile._verify import reference

pytestmark = pytest.mark.peers


@pytest.mark.usefixtures("vm_pools")
@pytest.mark.parametrize("is_open", [False, True])
def test_what_is_no_number_stays_so(is_open: bool) -> None:
    x, z = random(6, 40), random(6, 40)
    x[0, 3], z[1, 5], x[2, 7], z[2, 7] = np.nan, np.nan, np.nan, np.nan
    x[3] = np.inf
    x[4] = -np.inf
    alone = ("Relu", "Sign", "HardSigmoid", "Elu", "Selu", "Celu", "ThresholdedRelu")
    nodes = [helper.make_node(op, ["x"], [op]) for op in alone]
    nodes += [
        helper.make_node("Clip", ["x", "zero", "six"], ["Clip"]),
        helper.make_node("Clip", ["x", "low", "six"], ["computed"]),
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["product"]), helper.make_node("Max", ["x", "z"], ["most"]),
        helper.make_node("Min", ["z", "x", "half"], ["least"]), helper.make_node("Max", ["zero", "x"], ["above"]),
    ]  # fmt: skip
    names = [*alone, "Clip", "computed", "product", "most", "least", "above"]
    numbers = {"zero": np.float32(0), "half": np.float32(0.5), "six": np.float32(6), "w": random(40, 16)}
    feeds = {"x": x, "z": z, "low": np.array(-0.5, "float32")}
    model = make(nodes, {name: array.shape for name, array in feeds.items()}, names, numbers, opset=18)
    expected = reference(model, feeds).values()
    for name, got, right in zip(names, computed(model, feeds, is_open), expected, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5, err_msg=name)


def check_alone(node: Any, feeds: dict[str, Any], constants: dict[str, Any], runtime: Any = "graph") -> None:
    """Compare a node with onnxruntime."""
    (dtype,) = {str(array.dtype) for array in feeds.values()}
    shapes = {name: array.shape for name, array in feeds.items()}
    model = make([node], shapes, list(node.output), constants, opset=18, dtype=dtype)
    made: Any = portcall.compile.onnx(model, check=False, runtime=runtime)
    found = outputs(made, feeds) if runtime == "graph" else [made.load()(*feeds.values()).numpy()]
    for got, right in zip(found, reference(model, feeds).values(), strict=True):
        assert got.dtype == right.dtype
        np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-5)


def test_the_nearest_of_two_that_are_equally_far() -> None:
    scales = np.array([1, 1, 0.6, 0.7], "float32")
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="nearest")
    check_alone(node, {"x": random(1, 2, 33, 35)}, {"scales": scales})


def test_regions_of_a_picture_that_is_smaller() -> None:
    regions = np.array([[1, 2, 20, 30], [5, 4, 9, 40]], "float32")
    words = {"output_height": 3, "output_width": 4, "sampling_ratio": 2, "spatial_scale": 0.5}
    node = helper.make_node("RoiAlign", ["x", "regions", "pictures"], ["y"], **words)
    feeds = {"x": random(1, 3, 20, 22), "regions": regions}
    check_alone(node, feeds, {"pictures": np.zeros(2, "int64")})


@pytest.mark.parametrize(("op", "dtype"), [("Pow", "int32"), ("Pow", "float64"), ("Sign", "uint8"), ("Sign", "int64")])
def test_numbers_of_other_types(op: str, dtype: str) -> None:
    x = np.arange(60).astype(dtype) - np.array(0 if dtype[0] == "u" else 30, dtype)
    constants = {"three": np.array(3, dtype)} if op == "Pow" else {}
    check_alone(helper.make_node(op, ["x", *constants], ["y"]), {"x": x}, constants)


REDUCED: list[tuple[tuple[int, ...], list[int], str]] = [
    ((5, 6, 40), [1], "columns"),
    ((5, 6, 40), [0], "columns"),
    ((7, 6, 5), [0, 1], "columns"),
    ((3, 5000, 20), [1], "columns"),  # sums of sums
    ((2, 9, 1300), [1], "columns"),  # several blocks
    ((5, 6, 41), [0, 2], "rows"),
    ((3, 2, 5, 7), [0, 2, 3], "rows"),
    ((33, 4003), [0, 1], "rows"),  # sums of sums
    ((3, 70_001), [1], "rows"),
]


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("shape", "axes", "rule"), REDUCED, ids=str)
def test_reductions(shape: tuple[int, ...], axes: list[int], rule: str, threads: int) -> None:
    x = 1 + random(*shape) / 100
    ops: dict[str, Any] = {"ReduceSum": np.sum, "ReduceMax": np.max, "ReduceMin": np.min, "ReduceProd": np.prod}
    nodes = [helper.make_node(op, ["x", "axes"], [op], keepdims=0) for op in ops]
    model = make(nodes, {"x": shape}, list(ops), {"axes": np.array(axes)}, opset=18)
    made = portcall.compile.onnx(model, check=False, runtime="graph", threads=threads)
    assert set(made.kernels) == {rule}
    for got, function in zip(outputs(made, {"x": x}), ops.values(), strict=True):
        right = function(x.astype("float64"), axis=tuple(axes))
        rounding = 3e-7 if function is not np.prod else 1e-4
        np.testing.assert_allclose(got, right, rtol=rounding)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "LpNormalization", "Hardmax"])
@pytest.mark.parametrize("shape", [(3, 21, 5, 10), (2, 40, 70), (2, 1000, 37)], ids=str)
def test_shares_along_an_axis_that_is_not_the_last(op: str, shape: tuple[int, ...]) -> None:
    check_alone(helper.make_node(op, ["x"], ["y"], axis=1), {"x": random(*shape)}, {})


@pytest.mark.usefixtures("vm_pools")
@pytest.mark.parametrize("runtime", ["graph", "vm"])
@pytest.mark.parametrize(
    ("axis", "dtype"), [(0, "float32"), (1, "float32"), (2, "float32"), (2, "uint8"), (-1, "int64")]
)
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("op", ["ArgMax", "ArgMin"])
def test_where_the_best_element_is(op: str, axis: int, dtype: str, last: int, runtime: Any) -> None:
    x = np.round(9 + 3 * random(3, 37, 101)).astype(dtype)
    if dtype == "float32":  # which is best where it is the first, and never else
        x[0, 0, 0] = x[1, 2, 3] = x[2, 5, 90] = np.nan
    node = helper.make_node(op, ["x"], ["y"], axis=axis, select_last_index=last, keepdims=last)
    check_alone(node, {"x": x}, {}, runtime=runtime)


@pytest.mark.usefixtures("vm_pools")
@pytest.mark.parametrize("runtime", ["graph", "vm"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize(("exclusive", "reverse"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_sums_so_far(axis: int, exclusive: int, reverse: int, runtime: Any) -> None:
    node = helper.make_node("CumSum", ["x", "axis"], ["y"], exclusive=exclusive, reverse=reverse)
    check_alone(node, {"x": random(3, 18, 32)}, {"axis": np.array(axis)}, runtime=runtime)


@pytest.mark.usefixtures("vm_pools")
@pytest.mark.parametrize("runtime", ["graph", "vm"])
@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
@pytest.mark.parametrize("op", ["ScatterND", "ScatterElements"])
def test_elements_are_put_where_indices_say(op: str, reduction: str, runtime: Any) -> None:
    words: dict[str, Any] = {} if reduction == "none" else {"reduction": reduction}
    shape, updates = (6, 7, 32), random(*((5, 32) if op == "ScatterND" else (4, 3, 9)))
    places = np.array([[0, 1], [-1, -7], [5, 6], [0, -6], [2, 2]])
    if op == "ScatterElements":
        words["axis"] = 1
        places = (np.arange(12).reshape(4, 3, 1) * 2 % 7 + np.zeros(9, "int64")) - 7 * (np.arange(9) % 2)
    feeds = {"x": random(*shape), "updates": updates}
    check_alone(
        helper.make_node(op, ["x", "places", "updates"], ["y"], **words), feeds, {"places": places}, runtime=runtime
    )


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_of_the_newest_opset_is_made_of_rules(causal: int) -> None:
    shapes = {"q": (1, 4, 20, 16), "k": (1, 2, 20, 16), "v": (1, 2, 20, 16)}
    node = helper.make_node("Attention", [*shapes], ["y"], is_causal=causal)
    made = check(make([node], shapes, ["y"], opset=23), {name: random(*shape) for name, shape in shapes.items()})
    assert "default" not in made.kernels


def test_logarithms_have_all_their_digits() -> None:
    special = [0, -1, np.inf, -np.inf, np.nan, 1, 1e-45, 1.17549435e-38]
    x = np.concatenate([np.logspace(-44, 38, 1000), np.linspace(0.5, 2, 1001), special]).astype("float32")
    model = make([helper.make_node("Log", ["x"], ["y"])], {"x": x.shape}, ["y"])
    (got,) = outputs(portcall.compile.onnx(model, check=False, runtime="graph"), {"x": x})
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(got, np.log(x.astype("float64")), rtol=1.2e-7)
