# SPDX-License-Identifier: Apache-2.0
"""Networks of float16, whose inputs and results keep their type."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import portcall.compile
from compile.reference import make, onnxruntime_outputs, outputs

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("vm_pools")]
HALF = onnx.TensorProto.FLOAT16
RANDOM = np.random.default_rng(0)


def random(*shape: int) -> Any:
    return RANDOM.uniform(-0.5, 0.5, shape).astype("float16")


W1, W2 = random(4, 8), random(4, 8)
WEIGHTS = {"w": random(8, 4, 3, 3), "b": random(8), "m": random(8, 16)}


def network(rows: int | str = 2) -> Any:
    """A convolution and a product, with numbers that say a type in other ways than as an initializer."""
    two = helper.make_node("Constant", [], ["two"], value=helper.make_tensor("two", HALF, [], [2.0]))
    nodes = [
        two,
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1] * 4),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Shape", ["f"], ["s"]),
        helper.make_node("ConstantOfShape", ["s"], ["o"], value=helper.make_tensor("one", HALF, [1], [1.0])),
        helper.make_node("Cast", ["s"], ["sh"], to=HALF),
        helper.make_node("ReduceSum", ["sh"], ["t"], keepdims=0),
        helper.make_node("Add", ["f", "o"], ["g"]),
        helper.make_node("MatMul", ["g", "m"], ["y"]),
        helper.make_node("Mul", ["y", "two"], ["d"]),
        helper.make_node("Add", ["d", "t"], ["z"]),
    ]
    return make(nodes, {"x": [rows, 4, 9, 7]}, ["y", "z"], WEIGHTS, dtype="float16")


def compare(got: Any, expected: Any) -> None:
    assert len(got) == len(expected)
    for ours, theirs in zip(got, expected, strict=True):
        assert ours.dtype == theirs.dtype == "float16"
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=4e-3 * np.abs(theirs).max())


def test_network_of_float16_has_the_kernels_of_float32_and_its_own_types() -> None:
    model, x = network(), random(2, 4, 9, 7)
    compiled = portcall.compile.onnx(model, runtime="graph")
    assert {"convolution", "matrix product"} <= compiled.kernels.keys()
    compare(outputs(compiled, {"x": x}), onnxruntime_outputs(model, {"x": x}))


def test_network_of_float16_runs_on_the_vm() -> None:
    model, x = network("n"), random(3, 4, 9, 7)
    compiled = portcall.compile.onnx(model, runtime="vm")
    assert {"convolution", "matrix product"} <= compiled.kernels.keys()
    compare([each.numpy() for each in compiled.load()(x)], onnxruntime_outputs(model, {"x": x}))


def test_branch_of_float16_reads_what_is_outside() -> None:
    branches = {
        word: helper.make_graph(
            [helper.make_node("MatMul", ["x", name], ["r"]), helper.make_node("Add", ["r", "k"], ["s"])], word, [],
            [helper.make_tensor_value_info("s", HALF, [2, 8])], [helper.make_tensor("k", HALF, [1], [number])],
        )
        for word, name, number in (("then_branch", "w1", 1.0), ("else_branch", "w2", 2.0))
    }  # fmt: skip
    node = helper.make_node("If", ["c"], ["y"], **branches)
    model = make([node], {"x": [2, 4]}, ["y"], {"w1": W1, "w2": W2}, dtype="float16")
    model.graph.input.append(helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, []))
    x = random(2, 4)
    machine = portcall.compile.onnx(model, runtime="vm").load()
    for condition in (True, False):
        feeds = {"x": x, "c": np.array(condition)}
        got = machine(*(feeds[each.name] for each in machine.signature().parameters))
        compare([got.numpy()], onnxruntime_outputs(model, feeds))


def test_result_that_is_a_weight_keeps_its_type() -> None:
    model = make([helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": [2, 4]}, ["y"], {"w": W1}, dtype="float16")
    model.graph.output.append(helper.make_tensor_value_info("w", HALF, W1.shape))
    x = random(2, 4)
    compare(outputs(portcall.compile.onnx(model, runtime="graph"), {"x": x}), onnxruntime_outputs(model, {"x": x}))


def test_model_that_rounds_to_float16_goes_on_rounding() -> None:
    nodes = [helper.make_node("Cast", ["x"], ["h"], to=HALF), helper.make_node("Cast", ["h"], ["y"], to=1)]
    x = np.array([1.0001, 1000.3, 1e-8], "float32")
    (got,) = outputs(portcall.compile.onnx(make(nodes, {"x": [3]}, ["y"]), runtime="graph"), {"x": x})
    np.testing.assert_array_equal(got, x.astype("float16").astype("float32"))


def test_large_constants_among_the_nodes() -> None:
    """Which TVM reads from the node, where weights are beside the model."""
    weight = random(256, 192)
    constant = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(weight, "w"))
    model = make([constant, helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": ["n", 256]}, ["y"], dtype="float16")
    x = random(3, 256)
    machine = portcall.compile.onnx(model, runtime="vm").load()
    compare([machine(x).numpy()], onnxruntime_outputs(model, {"x": x}))
