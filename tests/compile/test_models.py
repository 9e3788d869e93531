# SPDX-License-Identifier: Apache-2.0
"""Whole models, compiled, say what onnxruntime says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import portcall
from compile import light
from compile.reference import TOLERANCE, check, largest_error, make, onnxruntime_outputs, outputs
from portcall import graph
from portcall.inspect import inspect_library

pytestmark = pytest.mark.peers
IN_EVERY_RUN = ("squeezenet", "shufflenet")


@pytest.mark.parametrize("name", IN_EVERY_RUN)
def test_onnx_light_models(name: str) -> None:
    model = light.load(name)
    made = check(model, light.inputs(model))
    assert made.kernels.get("default", 0) == 0


@pytest.mark.campaign
@pytest.mark.parametrize("name", [name for name in light.NAMES if name not in IN_EVERY_RUN])
def test_onnx_all_light_models(name: str) -> None:
    model = light.load(name)
    feeds = light.inputs(model)
    assert check(model, feeds, winograd="off").kernels.get("default", 0) == 0
    check(model, feeds, threads=2)


def test_onnx_threads_and_algorithms_agree() -> None:
    model = light.load("squeezenet")
    feeds = light.inputs(model)
    (expected,) = onnxruntime_outputs(model, feeds)
    rules = {}
    for winograd in ("off", "f2", "f4"):
        made = portcall.compile.onnx(model, threads=2, winograd=winograd, runtime="graph")
        assert largest_error(outputs(made, feeds)[0], expected) <= TOLERANCE
        rules[winograd] = " ".join(made.kernels)
    assert "winograd" not in rules["off"]
    assert "winograd f2" in rules["f2"]
    assert "winograd f4" in rules["f4"]


def branches() -> Any:
    """A model of two inputs and three outputs, one of which is an input as it is."""
    nodes = [
        helper.make_node("Add", ["a", "b"], ["sum"]),
        helper.make_node("MatMul", ["sum", "w"], ["product"]),
        helper.make_node("Relu", ["product"], ["positive"]),
        helper.make_node("Softmax", ["product"], ["shares"], axis=-1),
        helper.make_node("Identity", ["a"], ["same"]),
    ]
    w = np.random.default_rng(0).standard_normal((12, 20)).astype("float32")
    return make(nodes, {"a": [3, 12], "b": [3, 12]}, ["positive", "shares", "same"], {"w": w})


def random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def test_onnx_two_inputs_and_three_outputs() -> None:
    made = check(branches(), {"a": random(3, 12), "b": random(3, 12, seed=1)})
    executor = made.load()
    assert list(executor.get_output_info()[0]) == ["positive", "shares", "same"]
    assert executor.get_input_info()[0] == {"a": (3, 12), "b": (3, 12)}


def test_compiled_model_repr_has_no_bytes() -> None:
    made = portcall.compile.onnx(branches(), check=False, runtime="graph")
    shown = repr(made)
    assert made.graph.metadata["model"] in shown
    assert "native" in shown
    assert len(shown) < 100


def test_onnx_names_inputs_with_dynamic_dimensions() -> None:
    nodes = [helper.make_node("Shape", ["x"], ["shape"]), helper.make_node("Reshape", ["y", "shape"], ["z"])]
    model = make(nodes, {"x": ["batch", 3], "y": [6]}, ["z"])
    feeds = {"x": random(2, 3), "y": random(6)}
    check(model, feeds, shapes={"x": (2, 3)})
    with pytest.raises(portcall.errors.ModelError) as caught:
        portcall.compile.onnx(model, runtime="graph")
    assert [problem.split("'")[1] for problem in caught.value.problems] == ["x"]


def test_onnx_dropout_in_inference() -> None:
    off = helper.make_node("Constant", [], ["off"], value=helper.make_tensor("off", onnx.TensorProto.BOOL, [], [False]))
    nodes = [off, helper.make_node("Dropout", ["x", "", "off"], ["y", "mask"]), helper.make_node("Relu", ["y"], ["z"])]
    check(make(nodes, {"x": [3, 4]}, ["z"]), {"x": random(3, 4)})
    with pytest.raises(portcall.errors.ModelError, match="mask"):
        portcall.compile.onnx(make(nodes, {"x": [3, 4]}, ["z", "mask"]), runtime="graph")


def test_read_bundle_says_how_it_was_compiled(tmp_path: Path) -> None:
    made = portcall.compile.onnx(branches(), threads=2, runtime="graph")
    said = graph.read_bundle(made.save(tmp_path / "m.so")).graph.metadata
    assert (said["model"], said["target"], said["threads"], len(said["sha256"])) == ("made", "native", 2, 64)
    assert json.dumps(said)


def test_onnx_makes_bundles_for_wasm32(tmp_path: Path) -> None:
    made = portcall.compile.onnx(branches(), "wasm32", runtime="graph").save(tmp_path / "m.wasm")
    report = inspect_library(made)
    assert (report.machine, report.kind, len(report.functions) > 2) == ("wasm32", "shared", True)
    assert graph.read_bundle(made).graph.metadata["target"] == "wasm32"


def test_onnx_is_reproducible(tmp_path: Path) -> None:
    files = [portcall.compile.onnx(branches(), runtime="graph").save(tmp_path / f"{k}.so") for k in range(2)]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_onnx_reports_its_steps() -> None:
    told: list[tuple[str, float]] = []
    made = portcall.compile.onnx(
        branches(), progress=lambda name, seconds: told.append((name, seconds)), runtime="graph"
    )
    began = [name for name, seconds in told if seconds < 0]
    assert began == [name for name, seconds in told if seconds >= 0] == list(made.steps)
    assert began[0] == "read"
    assert began[-2:] == ["machine code", "check"]


def test_onnx_has_kernels_for_causal_attention_and_powers() -> None:
    generator = np.random.default_rng(0)
    constants = {
        "mask": np.tril(np.ones((1, 1, 9, 9), bool)), "low": np.float32(-3e38), "three": np.float32(3),
    }  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["scores"]),
        helper.make_node("Where", ["mask", "scores", "low"], ["masked"]),
        helper.make_node("Softmax", ["masked"], ["shares"]),
        helper.make_node("Pow", ["shares", "three"], ["y"]),
    ]
    model = make(nodes, {"q": [1, 2, 9, 8], "k": [1, 2, 8, 9]}, ["y"], constants)
    feeds = {
        "q": generator.standard_normal((1, 2, 9, 8), "float32"),
        "k": generator.standard_normal((1, 2, 8, 9), "float32"),
    }
    assert check(model, feeds).kernels == {"batched matrix product": 1, "rows": 1}


@pytest.mark.parametrize("scales", [(100, 48), (1, 1)])
def test_onnx_keeps_scaled_bytes(scales: tuple[int, int]) -> None:
    """A table and the weights of a product that are cast and scaled stay bytes, as in the model's file."""
    generator = np.random.default_rng(0)
    rows, columns = scales
    constants = {
        "table": generator.integers(-128, 128, (100, 40), "int8"),
        "weights": generator.integers(-128, 128, (40, 48), "int8"),
        "of_rows": generator.uniform(0.001, 0.01, (rows, 1)).astype("float32"),
        "of_columns": generator.uniform(0.001, 0.01, (1, columns)).astype("float32"),
    }
    nodes = [
        helper.make_node("Cast", ["table"], ["table_f"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", ["table_f", "of_rows"], ["table_s"]),
        helper.make_node("Cast", ["weights"], ["weights_f"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", ["of_columns", "weights_f"], ["weights_s"]),
        helper.make_node("Cast", ["x"], ["ids"], to=onnx.TensorProto.INT64),
        helper.make_node("Gather", ["table_s", "ids"], ["found"], axis=0),
        helper.make_node("MatMul", ["found", "weights_s"], ["y"]),
    ]
    made = check(make(nodes, {"x": [2, 9]}, ["y"], constants), {"x": generator.integers(0, 100, (2, 9)).astype("f4")})
    assert sorted(str(each.dtype) for each in made.params.values() if each.nbytes > 400) == ["int8", "int8"]
    assert made.kernels["matrix product"] == 1


def test_first_rows_are_no_view_of_all() -> None:
    nodes = [
        helper.make_node("Slice", ["x", "from", "to", "along"], ["a"]),
        helper.make_node("Reshape", ["a", "s"], ["y"]),
    ]
    constants = {"from": np.array([0]), "to": np.array([2]), "along": np.array([0]), "s": np.array([2, 5])}
    check(make(nodes, {"x": [4, 1, 5]}, ["y"], constants), {"x": random(4, 1, 5)})


def test_sums_over_leading_axes_are_no_pooling() -> None:
    constants = {"axes": np.array([0, 1])}
    check(make([helper.make_node("ReduceSum", ["x", "axes"], ["y"])], {"x": [2, 3, 4, 1]}, ["y"], constants),
          {"x": random(2, 3, 4, 1)})  # fmt: skip


def test_rows_in_front_of_an_axis_of_one_element_have_vectors() -> None:
    """LLVM's own vectors of such a loop, with remainders of each index, were wrong on AVX-512."""
    constants = {"times": np.array([2, 2, 2, 1])}
    check(make([helper.make_node("Tile", ["x", "times"], ["y"])], {"x": [3, 2, 32, 1]}, ["y"], constants),
          {"x": random(3, 2, 32, 1)})  # fmt: skip


def test_a_call_that_reads_a_value_twice_is_not_taken_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "portcall.compile._legal._FEWEST", 1
    )  # of the calls of large models, equal ones are written once
    nodes = [helper.make_node("Add", ["x", "x"], ["a"]), helper.make_node("Softmax", ["a"], ["b"]),
             helper.make_node("Add", ["b", "x"], ["y"])]  # fmt: skip
    check(make(nodes, {"x": [2, 3]}, ["y"]), {"x": np.arange(6, dtype="float32").reshape(2, 3)})


def test_nodes_may_stand_in_any_order() -> None:
    """As the converter of onnxruntime to float16 writes them; a branch reads what comes later."""
    branch, other = (
        helper.make_graph([helper.make_node(op, ["h"], ["r"])], op, [], [helper.make_tensor_value_info("r", 1, [2, 3])])
        for op in ("Relu", "Neg")
    )
    nodes = [
        helper.make_node("Mul", ["i", "h"], ["y"]),
        helper.make_node("If", ["c"], ["i"], then_branch=branch, else_branch=other),
        helper.make_node("Exp", ["x"], ["h"]),
    ]
    x = np.random.default_rng(0).standard_normal((2, 3)).astype("float32")
    for condition in (True, False):
        model = make(nodes, {"x": [2, 3]}, ["y"], {"c": np.array(condition)})
        given = model.SerializeToString()
        check(model, {"x": x})
        assert model.SerializeToString() == given
