# SPDX-License-Identifier: Apache-2.0
"""Branches of ONNX models: conditions that constants and shapes decide, and branches that cost little."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

import portcall
from compile.reference import onnxruntime_outputs
from compile.test_models import random
from portcall.cli import cli
from portcall.compile._branches import inline_branches
from portcall.errors import ModelError

pytestmark = pytest.mark.peers


def branch(nodes: list[Any], result: str, constants: dict[str, Any] | None = None) -> Any:
    stored = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    return helper.make_graph(nodes, result, [], [onnx.ValueInfoProto(name=result)], stored)


def model(nodes: list[Any], inputs: dict[str, tuple[int, list[Any]]], constants: dict[str, Any]) -> Any:
    graph = helper.make_graph(
        nodes, "branches",
        [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def by_rate(cheap: bool = True) -> Any:
    """A model that does one thing at 16000 Hz and another at other rates, both with a value called v."""
    then = branch([helper.make_node("Mul", ["x", "two"], ["v"]), helper.make_node("Relu", ["v"], ["a"])], "a",
                  {"two": np.float32(2)})  # fmt: skip
    more = [] if cheap else [helper.make_node("Neg", [f"n{k}" if k else "v"], [f"n{k + 1}"]) for k in range(9)]
    last = helper.make_node("Identity", ["v" if cheap else "n9"], ["b"])
    other = branch([helper.make_node("Neg", ["x"], ["v"]), *more, last], "b")
    nodes = [
        helper.make_node("Equal", ["sr", "rate"], ["fast"]),
        helper.make_node("If", ["fast"], ["w"], then_branch=then, else_branch=other),
        helper.make_node("Add", ["w", "x"], ["y"]),
    ]
    inputs = {"x": (TensorProto.FLOAT, [2, 8]), "sr": (TensorProto.INT64, [])}
    return model(nodes, inputs, {"rate": np.int64(16000)})


def compare(given: Any, feeds: dict[str, Any], constants: dict[str, Any]) -> Any:
    made = portcall.compile.onnx(given, constants=constants, runtime="graph")
    executor = made.load()
    executor.run(**feeds)
    (expected,) = onnxruntime_outputs(given, {**feeds, **constants})
    np.testing.assert_allclose(executor.get_output(0).numpy(), expected, rtol=1e-5)
    return made


@pytest.mark.parametrize("cheap", [True, False])
@pytest.mark.parametrize("rate", [16000, 8000])
def test_a_constant_decides(rate: int, cheap: bool) -> None:
    made = compare(by_rate(cheap), {"x": random(2, 8)}, {"sr": np.int64(rate)})
    assert made.kernels == {"element-wise": 1}


def test_branches_that_cost_little_are_both_computed() -> None:
    for rate in (16000, 8000):
        compare(by_rate(), {"x": random(2, 8), "sr": np.array(rate)}, {})


def test_a_branch_may_be_as_long_as_the_rest_of_the_model() -> None:
    given = by_rate(cheap=False)
    after = [helper.make_node("Neg", [f"m{k}" if k else "y"], [f"m{k + 1}"]) for k in range(9)]
    given.graph.node.extend(after)
    given.graph.output[0].name = "m9"
    for rate in (16000, 8000):
        compare(given, {"x": random(2, 8), "sr": np.array(rate)}, {})


def test_what_would_decide_is_named() -> None:
    with pytest.raises(ModelError) as caught:
        portcall.compile.onnx(by_rate(cheap=False), runtime="graph")
    assert caught.value.hint.endswith(" --constant sr=16000")
    executor = portcall.compile.onnx(by_rate(cheap=False), check=False)
    assert isinstance(executor, portcall.compile.CompiledExecutable)


def test_all_that_is_missing_is_told_at_once() -> None:
    """A state has the batch of the other input; the branches are too long to compute both, and differ in rank."""
    first = [helper.make_node("Neg", ["m"], ["a0"])]
    first += [helper.make_node("Neg", [f"a{k}"], [f"a{k + 1}"]) for k in range(12)]
    second = helper.make_node("Unsqueeze", ["m", "zero"], ["b"])
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Unsqueeze", ["p", "zero"], ["u"]),
        helper.make_node("Concat", ["u", "state"], ["m"], axis=0),
        helper.make_node("Equal", ["sr", "rate"], ["high"]),
        helper.make_node("If", ["high"], ["y"], then_branch=branch(first, "a12"), else_branch=branch([second], "b")),
    ]
    constants = {"w": random(512, 8), "zero": np.array([0]), "rate": np.array(16000)}
    kind = TensorProto.FLOAT
    inputs: dict[str, tuple[int, list[Any]]] = {
        "x": (kind, [None, None]),
        "state": (kind, [2, None, 8]),
        "sr": (TensorProto.INT64, []),
    }
    given = model(nodes, inputs, constants)
    with pytest.raises(ModelError) as caught:
        portcall.compile.onnx(given, runtime="graph")
    assert caught.value.hint.endswith("--shape x=1x512 --shape state=2x1x8 --constant sr=16000")
    shapes = {"x": (1, 512), "state": (2, 1, 8)}
    assert not portcall.compile.onnx(given, runtime="graph", shapes=shapes, constants={"sr": 16000}).unchecked


def test_shapes_decide_and_branches_are_in_branches() -> None:
    inner = helper.make_node("If", ["wide"], ["i"], then_branch=branch([helper.make_node("Neg", ["x"], ["a"])], "a"),
                             else_branch=branch([helper.make_node("Relu", ["x"], ["b"])], "b"))  # fmt: skip
    outer = helper.make_node("If", ["wide"], ["y"], then_branch=branch([inner], "i"),
                             else_branch=branch([helper.make_node("Abs", ["x"], ["c"])], "c"))  # fmt: skip
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "last"], ["width"]),
        helper.make_node("Greater", ["width", "four"], ["wide"]),
        outer,
    ]
    given = model(nodes, {"x": (TensorProto.FLOAT, ["n", "w"])}, {"last": np.int64(1), "four": np.int64(4)})
    for width in (3, 6):
        executor = portcall.compile.onnx(given, shapes={"x": (2, width)}, runtime="graph").load()
        x = random(2, width)
        executor.run(x=x)
        np.testing.assert_array_equal(executor.get_output(0).numpy(), -x if width > 4 else np.abs(x))
    assert inline_branches(given).graph.node[-1].op_type == "If"  # of unknown shapes it stays


def test_branches_of_other_shapes_stay() -> None:
    then = branch([helper.make_node("ReduceSum", ["x"], ["a"], keepdims=0)], "a")
    other = branch([helper.make_node("Neg", ["x"], ["b"])], "b")
    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
    given = model(nodes, {"x": (TensorProto.FLOAT, [2, 4]), "c": (TensorProto.BOOL, [])}, {})
    assert [node.op_type for node in inline_branches(given).graph.node] == ["If"]


def test_constants_have_the_type_of_their_input(tmp_path: Path) -> None:
    onnx.save(by_rate(cheap=False), tmp_path / "m.onnx")
    words = ["compile", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.so"), "--runtime", "graph"]
    result = CliRunner().invoke(cli, [*words, "--constant", "sr=8000"])
    assert result.exit_code == 0, result.stderr
    assert "sr" not in portcall.graph.read_bundle(tmp_path / "m.so").name
    for text, word in (("sr=0.5", "int64"), ("rate=3", "sr"), ("sr", "NAME=VALUE")):
        result = CliRunner().invoke(cli, [*words, "--constant", text])
        assert result.exit_code != 0
        assert word in result.stderr


def test_run_takes_constants(tmp_path: Path) -> None:
    onnx.save(by_rate(cheap=False), tmp_path / "m.onnx")
    for rate, expected in ((16000, 3.0), (8000, 2.0)):  # 2 * relu(x) + x, and 9 times negated in all
        words = ["run", str(tmp_path / "m.onnx"), "--constant", f"sr={rate}", "--input", "x=ones", "--save"]
        result = CliRunner().invoke(cli, [*words, str(tmp_path / "y.npz")])
        assert result.exit_code == 0, result.stderr
        with np.load(tmp_path / "y.npz") as saved:
            np.testing.assert_array_equal(saved["y"], np.full((2, 8), expected))


def test_extents_of_minus_one_are_not_known() -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[3, 3])]
    given = model(nodes, {"x": (TensorProto.FLOAT, [-1, 3, -1, -1])}, {"w": random(4, 3, 3, 3)})
    with pytest.raises(ModelError, match="--shape x=1x3x224x224"):
        portcall.compile.onnx(given, runtime="graph")
    made = portcall.compile.onnx(given, shapes={"x": (1, 3, 8, 8)}, runtime="graph")
    assert tuple(made.load().get_input_info()[0]["x"]) == (1, 3, 8, 8)
