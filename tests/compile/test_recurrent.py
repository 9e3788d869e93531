# SPDX-License-Identifier: Apache-2.0
"""LSTM, GRU and RNN beside onnxruntime: directions, states, lengths of sequences, functions, options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

import portcall
from compile.reference import onnxruntime_outputs, outputs
from compile.test_models import random
from portcall.compile import _lower
from portcall.compile._operators import group_concatenations
from portcall.compile._recurrent import replace_recurrent
from portcall.compile._rewriting import Graph
from portcall.errors import ModelError

pytestmark = pytest.mark.peers

STEPS, BATCH, INPUTS, HIDDEN = 5, 2, 6, 8
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def layer(
    kind: str, states: bool = True, lengths: bool = False, peepholes: bool = False, opset: int = 17, **words: Any
) -> Any:
    """A model with one layer; results and states are all results of it."""
    both = 2 if words.get("direction") == "bidirectional" else 1
    gates, by_batch = GATES[kind], words.get("layout", 0)
    constants = {
        "w": random(both, gates * HIDDEN, INPUTS), "r": random(both, gates * HIDDEN, HIDDEN),
        "b": random(both, 2 * gates * HIDDEN),
    }  # fmt: skip
    inputs: dict[str, Any] = {"x": (TensorProto.FLOAT, [BATCH, STEPS, INPUTS] if by_batch else [STEPS, BATCH, INPUTS])}
    names = ["x", "w", "r", "b", "", ""]
    if lengths:
        inputs["n"], names[4] = (TensorProto.INT32, [BATCH]), "n"
    state = [BATCH, both, HIDDEN] if by_batch else [both, BATCH, HIDDEN]
    if states:
        inputs["h"], names[5] = (TensorProto.FLOAT, state), "h"
    results = ["y", "y_h"]
    if kind == "LSTM":
        names += ["", ""]
        results.append("y_c")
        if states:
            inputs["c"], names[6] = (TensorProto.FLOAT, state), "c"
        if peepholes:
            constants["p"], names[7] = random(both, 3 * HIDDEN), "p"
    node = helper.make_node(kind, names, results, "layer", hidden_size=HIDDEN, **words)
    graph = helper.make_graph(
        [node], "layer", [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in results],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return shape_inference.infer_shapes(made)


def feeds(model: Any) -> dict[str, Any]:
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
    return {n: np.array([3, STEPS], "int32") if n == "n" else random(*shape) for n, shape in shapes.items()}


def compare(model: Any, expected: Any = None, atol: float = 2e-6) -> Any:
    made, given = portcall.compile.onnx(model, runtime="graph"), feeds(model)
    wanted = expected(given) if expected else onnxruntime_outputs(model, given)
    for mine, theirs in zip(outputs(made, given), wanted, strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_allclose(mine, theirs, atol=atol)
    return made


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_directions_with_lengths_and_states(kind: str, direction: str) -> None:
    compare(layer(kind, direction=direction))
    compare(layer(kind, states=False, lengths=True, direction=direction))


def test_options_of_lstm() -> None:
    compare(layer("LSTM", peepholes=True, direction="bidirectional"))
    compare(layer("LSTM", input_forget=1))
    compare(layer("LSTM", clip=0.3))
    functions = ["HardSigmoid", "Relu", "Tanh", "Sigmoid", "LeakyRelu", "Softsign"]
    compare(layer("LSTM", direction="bidirectional", activations=functions, activation_alpha=[0.3, 0.05],
                  activation_beta=[0.4]))  # fmt: skip


def test_options_of_gru() -> None:
    compare(layer("GRU", linear_before_reset=1, direction="bidirectional", lengths=True))
    compare(layer("GRU", clip=0.3))
    compare(layer("RNN", activations=["Relu"]))


def test_sequences_of_no_steps() -> None:
    model = layer("LSTM", lengths=True, direction="bidirectional")
    given = {**feeds(model), "n": np.array([0, 2], "int32")}
    made = portcall.compile.onnx(model, runtime="graph")
    for mine, theirs in zip(outputs(made, given), onnxruntime_outputs(model, given), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-6)


@pytest.mark.parametrize("opset", [7, 11, 14])
def test_older_opsets(opset: int) -> None:
    compare(layer("LSTM", opset=opset, direction="bidirectional"))


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_layout_by_batch(kind: str) -> None:
    model = layer(kind, layout=1)  # which onnxruntime does not have
    made = portcall.compile.onnx(model, runtime="graph")
    given = feeds(model)
    expected = ReferenceEvaluator(model).run(None, given)
    for mine, theirs in zip(outputs(made, given), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-6)


def test_steps_share_their_kernels() -> None:
    made = compare(layer("LSTM"))
    calls = [node for node in made.graph.nodes if node.function and not node.function.startswith("__")]
    assert sum(made.kernels.values()) < len(calls)
    assert made.kernels.get("default", 0) <= 1  # the split


@pytest.mark.parametrize(("kind", "count"), [("LSTM", 3), ("GRU", 2)])
def test_the_gates_of_a_step_are_few_calls(kind: str, count: int) -> None:
    made = compare(layer("GRU", linear_before_reset=1) if kind == "GRU" else layer(kind))
    calls = [node for node in made.graph.nodes if node.function and not node.function.startswith("__")]
    gates = [node for node in calls if node.function.startswith("gates_")]
    assert len(gates) == (count - 1) * STEPS
    assert len(calls) <= count * STEPS + 8  # with what is done once
    assert made.kernels.get("default", 0) <= 1


def test_layers_that_are_refused_say_why() -> None:
    with pytest.raises(ModelError, match="Frob"):
        portcall.compile.onnx(layer("LSTM", activations=["Frob", "Tanh", "Tanh"]), runtime="graph")
    computed = layer("GRU")
    computed.graph.initializer.pop(0)
    computed.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [1, 3 * HIDDEN, INPUTS]))
    with pytest.raises(ModelError, match="W is computed"):
        portcall.compile.onnx(computed, runtime="graph")


def test_results_of_many_steps_are_put_together_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM writes a choice in a choice for each value that is concatenated: for 260 there was no end."""
    monkeypatch.setattr(f"{__name__}.STEPS", 40)
    model = layer("RNN", states=False)
    replace_recurrent(graph := Graph(model))
    group_concatenations(graph)
    joined = [node for node in graph.nodes if node.op_type == "Concat"]
    assert max(len(node.input) for node in joined) <= 16
    # Forty steps with such weights multiply a rounding some thousand times, and processors round sums in other orders.
    assert compare(model, atol=1e-4).kernels["default"] <= 4


def test_steps_between_convolutions_are_kept_from_the_pass_for_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, whole = [], _lower._by_parts

    def by_parts(module: Any, parts: Any) -> Any:
        made = whole(module, parts)
        rows.append([changes for changes, _ in parts])
        return made

    monkeypatch.setattr(_lower, "_by_parts", by_parts)
    monkeypatch.setattr(_lower, "_LONG", 16)
    monkeypatch.setattr(_lower, "_NEAR", 4)
    constants = {
        "first": random(4, 1, 3, 3), "last": random(4, 8, 1, 3),
        "w": random(1, HIDDEN, 24), "r": random(1, HIDDEN, HIDDEN),
        "sequence": np.array([12, 1, 24]), "picture": np.array([1, 8, 1, 12]),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Transpose", ["b"], ["c"], perm=[2, 0, 1, 3]),
        helper.make_node("Reshape", ["c", "sequence"], ["d"]),
        helper.make_node("RNN", ["d", "w", "r"], ["e", "state"], hidden_size=HIDDEN),
        helper.make_node("Transpose", ["e"], ["f"], perm=[2, 3, 1, 0]),
        helper.make_node("Reshape", ["f", "picture"], ["g"]),
        helper.make_node("Conv", ["g", "last"], ["h"]),
        helper.make_node("Add", ["h", "h"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "between", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 12, 6])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("state", "b", "y")],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    model = shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )
    assert compare(model, atol=1e-5).kernels["convolution"] == 2
    assert rows == [[True, False, True]]
