# SPDX-License-Identifier: Apache-2.0
"""LSTM, GRU and RNN beside onnxruntime: directions, states, lengths of sequences, functions, options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

import portcall
from compile.reference import check, make, onnxruntime_outputs, outputs
from compile.test_models import random
from portcall.compile import _lower
from portcall.compile._operators import group_concatenations
from portcall.compile._rewriting import Graph
from portcall.compile._verify import reference
from portcall.errors import ModelError, PortcallError

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("vm_pools")]

STEPS, BATCH, INPUTS, HIDDEN = 5, 2, 6, 8
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def layer(
    kind: str, states: bool = True, lengths: bool = False, peepholes: bool = False, opset: int = 17,
    is_open: bool = False, **words: Any,
) -> Any:  # fmt: skip
    """A model with one layer; results and states are all results of it."""
    steps, rows = ("steps", "rows") if is_open else (STEPS, BATCH)
    both = 2 if words.get("direction") == "bidirectional" else 1
    gates, by_batch = GATES[kind], words.get("layout", 0)
    constants = {
        "w": random(both, gates * HIDDEN, INPUTS), "r": random(both, gates * HIDDEN, HIDDEN) / HIDDEN**0.5,
        "b": random(both, 2 * gates * HIDDEN),
    }  # fmt: skip
    inputs: dict[str, Any] = {"x": (TensorProto.FLOAT, [rows, steps, INPUTS] if by_batch else [steps, rows, INPUTS])}
    names = ["x", "w", "r", "b", "", ""]
    if lengths:
        inputs["n"], names[4] = (TensorProto.INT32, [rows]), "n"
    state = [rows, both, HIDDEN] if by_batch else [both, rows, HIDDEN]
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


def feeds(model: Any, steps: int = STEPS, rows: int = BATCH) -> dict[str, Any]:
    sizes = {"steps": steps, "rows": rows, "others": rows}
    shapes = {
        v.name: [d.dim_value or sizes[d.dim_param] for d in v.type.tensor_type.shape.dim] for v in model.graph.input
    }
    lengths = np.resize([3, steps, 0], rows).clip(0, steps).astype("int32")
    return {name: lengths if name == "n" else random(*shape) for name, shape in shapes.items()}


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


def test_a_layer_is_a_product_and_a_kernel_for_all_steps() -> None:
    made = compare(layer("LSTM", direction="bidirectional"))
    calls = [node.function for node in made.graph.nodes if node.function]
    assert sum(name.startswith("lstm_steps") for name in calls) == 2
    assert made.kernels["matrix product"] == 1  # of both directions


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_more_rows_than_a_tile_has(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for batch in (4, 7):
        monkeypatch.setattr(f"{__name__}.BATCH", batch)
        monkeypatch.setattr(f"{__name__}.HIDDEN", 8 * batch + 1)
        compare(layer(kind), atol=1e-5)


def test_long_sequences_are_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.STEPS", 600)
    made = compare(layer("LSTM", activations=["Sigmoid", "Softsign", "Softsign"]), atol=1e-4)
    assert sum(made.kernels.values()) <= 4


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_open_sequences_and_batches(kind: str, direction: str) -> None:
    """One step and one row; as many rows as a tile has, one less and one more."""
    for lengths in (False, True):
        model = layer(kind, direction=direction, lengths=lengths, states=not lengths, is_open=True)
        machine = portcall.compile.onnx(model, runtime="vm").load()
        for steps, rows in ((1, 1), (6, 1), (2, 3), (5, 4), (3, 9)):
            given = feeds(model, steps, rows)
            found = machine(*(given[parameter.name] for parameter in machine.signature().parameters))
            for mine, theirs in zip(found, reference(model, given).values(), strict=True):
                np.testing.assert_allclose(mine.numpy(), theirs, atol=2e-6)


def test_states_of_another_number_of_rows_raise() -> None:
    model = layer("LSTM", is_open=True)
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "others"
    machine, given = portcall.compile.onnx(model, runtime="vm").load(), feeds(model, 2, 3)
    assert len(machine(*given.values())) == 3
    given["h"] = given["h"][:, :2].copy()
    with pytest.raises((RuntimeError, ValueError, PortcallError)):
        machine(*given.values())


def test_lengths_beyond_the_sequence_are_all_of_it() -> None:
    model = layer("GRU", lengths=True, is_open=True)
    machine, given = portcall.compile.onnx(model, runtime="vm").load(), feeds(model, 3, 2)
    wanted = machine(*{**given, "n": np.array([3, 0], "int32")}.values())
    for mine, theirs in zip(machine(*{**given, "n": np.array([9, -2], "int32")}.values()), wanted, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())


def test_layers_that_are_refused_say_why() -> None:
    with pytest.raises(ModelError, match="Frob"):
        portcall.compile.onnx(layer("LSTM", activations=["Frob", "Tanh", "Tanh"]), runtime="graph")
    computed = layer("GRU")
    computed.graph.initializer.pop(0)
    computed.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [1, 3 * HIDDEN, INPUTS]))
    with pytest.raises(ModelError, match="W is computed"):
        portcall.compile.onnx(computed, runtime="graph")


def test_values_that_are_many_are_put_together_in_groups() -> None:
    """TVM writes a choice in a choice for each value that is concatenated: for 260 there was no end."""
    parts = [f"part{k}" for k in range(40)]
    nodes = [*(helper.make_node("Mul", ["x", f"c{k}"], [part]) for k, part in enumerate(parts)),
             helper.make_node("Concat", parts, ["y"], axis=0)]  # fmt: skip
    model = make(nodes, {"x": [1, 6]}, ["y"], {f"c{k}": random(6) for k in range(40)})
    group_concatenations(graph := Graph(model))
    joined = [node for node in graph.nodes if node.op_type == "Concat"]
    assert max(len(node.input) for node in joined) <= 16
    compare(model)


def test_what_is_between_convolutions_is_kept_from_the_pass_for_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, whole = [], _lower._by_parts

    def by_parts(module: Any, parts: Any) -> Any:
        made = whole(module, parts)
        rows.append([changes for changes, _ in parts])
        return made

    monkeypatch.setattr(_lower, "_by_parts", by_parts)
    monkeypatch.setattr(_lower, "_LONG", 16)
    monkeypatch.setattr(_lower, "_NEAR", 4)
    constants = {
        "first": random(4, 1, 3, 3), "last": random(4, 24, 1, 3),
        "square": random(24, 24) / 5, "sequence": np.array([12, 1, 24]), "picture": np.array([1, 24, 1, 12]),
    }  # fmt: skip
    row = [
        helper.make_node("MatMul", [f"e{k}", "square"], [f"e{k + 1}"])
        if k % 2
        else helper.make_node("Tanh", [f"e{k}"], [f"e{k + 1}"])
        for k in range(30)
    ]
    nodes = [
        helper.make_node("Conv", ["x", "first"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Transpose", ["b"], ["c"], perm=[2, 0, 1, 3]),
        helper.make_node("Reshape", ["c", "sequence"], ["e0"]),
        *row,
        helper.make_node("Transpose", [row[-1].output[0]], ["f"], perm=[1, 2, 0]),
        helper.make_node("Reshape", ["f", "picture"], ["g"]),
        helper.make_node("Conv", ["g", "last"], ["h"]),
        helper.make_node("Add", ["h", "h"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "between", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 12, 6])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("b", "y")],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    model = shape_inference.infer_shapes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    )
    assert compare(model, atol=1e-5).kernels["convolution"] == 2
    assert rows == [[True, False, True]]


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("batch", [1, 6])
def test_threads_share_the_columns_of_large_weights(kind: str, batch: int) -> None:
    gates, size = GATES[kind], 264 if kind == "LSTM" else 536
    generator = np.random.default_rng(0)
    weights = {
        "w": (generator.standard_normal((1, gates * size, 5)) / 3).astype("float32"),
        "r": (generator.standard_normal((1, gates * size, size)) / 20).astype("float32"),
    }
    node = helper.make_node(kind, ["x", "w", "r"], ["y"], hidden_size=size)
    model = make([node], {"x": [4, batch, 5]}, ["y"], weights)
    check(model, {"x": generator.standard_normal((4, batch, 5)).astype("float32")}, threads=2)
