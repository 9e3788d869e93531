# SPDX-License-Identifier: Apache-2.0
"""Random models, and the smallest of those that were once wrong. ``make fuzz-models`` tries thousands."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import portcall
from compile import random_models
from compile.reference import check, make, outputs
from compile.test_models import random
from portcall.errors import ModelError

pytestmark = pytest.mark.peers

PARTS, PER_PART = 4, 20


@pytest.mark.usefixtures("vm_pools")
@pytest.mark.parametrize(("part", "is_open"), [*((part, False) for part in range(PARTS)), (52, True)])
def test_random_models_are_right(part: int, is_open: bool) -> None:
    found = {
        seed: random_models.judge(random_models.model_of(seed), seed, is_open)
        for seed in range(part * PER_PART, (part + 1) * PER_PART)
    }
    # Of many, one in 50 is refused; none of these is.
    assert {seed: verdict for seed, verdict in found.items() if verdict.startswith(("wrong", "refused"))} == {}


def test_a_wrong_model_is_found_and_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = next(k for k in range(100) if _has(random_models.model_of(k), "Sigmoid", more_than=2))
    model = random_models.model_of(seed)
    monkeypatch.setattr(
        random_models, "judge", lambda given, *_: "wrong" if _has(given, "Sigmoid", more_than=0) else "right"
    )
    small = random_models.smaller(model, seed)
    assert [node.op_type for node in small.graph.node] == ["Sigmoid"]


def _has(model: Any, operator: str, more_than: int) -> bool:
    nodes = [node.op_type for node in model.graph.node]
    return operator in nodes and len(nodes) > more_than


@pytest.mark.parametrize("first", ["Relu", "Transpose", "Reshape", "Concat"])
def test_element_wise_functions_with_several_results(first: str) -> None:
    constants: dict[str, Any] = {"sizes": np.array([3, 5])}
    if first == "Reshape":
        constants["shape"] = np.array([1, 8, 6])
    inputs = {"Reshape": ["x", "shape"], "Concat": ["x", "x"]}.get(first, ["x"])
    every: dict[str, dict[str, Any]] = {"Transpose": {"perm": [0, 2, 1]}, "Concat": {"axis": 2}}
    words = every.get(first, {})
    shape = (1, 6, 8) if first in ("Transpose", "Reshape") else (1, 8, 6)
    nodes = [
        helper.make_node(first, inputs, ["v"], **words),
        helper.make_node("Split", ["v", "sizes"], ["a", "b"], axis=1),
    ]
    check(make(nodes, {"x": shape}, ["a", "b"], constants), {"x": random(*shape)})


def test_products_are_not_fused_with_larger_values() -> None:
    nodes = [helper.make_node("MatMul", ["s", "w"], ["p"]), helper.make_node("Mul", ["x", "p"], ["y"])]
    made = check(
        make(nodes, {"x": (6, 8), "s": (1, 8)}, ["y"], {"w": random(8, 8)}), {"x": random(6, 8), "s": random(1, 8)}
    )
    assert made.kernels == {"matrix product": 1, "element-wise": 1}


@pytest.mark.parametrize("gate", ["Sigmoid", "Tanh", "HardSigmoid"])
def test_gates_of_channels(gate: str) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["c"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("GlobalAveragePool", ["c"], ["mean"]),
        helper.make_node("Conv", ["mean", "b", "bias"], ["h"]),
        helper.make_node(gate, ["h"], ["g"]),
        helper.make_node("Mul", ["c", "g"], ["y"]),
    ]
    constants = {"a": random(8, 8, 3, 3), "b": random(8, 8, 1, 1), "bias": random(8)}
    made = check(make(nodes, {"x": (1, 8, 9, 9)}, ["y"], constants), {"x": random(1, 8, 9, 9)})
    assert made.kernels.get("default", 0) == 0


def test_functions_that_only_tvm_writes_follow_products() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Atan", ["p"], ["y"])]
    check(make(nodes, {"x": (5, 4)}, ["y"], {"w": random(4, 4)}), {"x": random(5, 4)})


def test_convolutions_beside_values_of_five_axes() -> None:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[3, 3]),
        helper.make_node("Unsqueeze", ["x", "axis"], ["u"]),
        helper.make_node("Relu", ["u"], ["v"]),
    ]
    constants = {"w": random(4, 4, 3, 3), "axis": np.array([1])}
    made = check(make(nodes, {"x": (1, 4, 9, 9)}, ["c", "v"], constants), {"x": random(1, 4, 9, 9)})
    assert made.kernels["convolution"] == 1


def test_normalization_of_several_axes_with_weights() -> None:
    nodes = [helper.make_node("LayerNormalization", ["x", "scale", "bias"], ["y"], axis=1)]
    check(make(nodes, {"x": (2, 3, 5)}, ["y"], {"scale": random(3, 5), "bias": random(3, 5)}), {"x": random(2, 3, 5)})


def test_a_model_that_is_refused_is_no_wrong_one() -> None:
    model = make([helper.make_node("NonZero", ["x"], ["y"])], {"x": (3, 4)}, ["y"])
    assert random_models.judge(model).startswith("refused")
    with pytest.raises(ModelError):
        check(model, {"x": random(3, 4)})


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_what_a_slice_takes_of_a_convolution_is_not_written_beyond_it(axis: int) -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 0, 1, 1], strides=[2, 1]),
             helper.make_node("Slice", ["y", "zero", "end", "axis"], ["z"])]  # fmt: skip
    constants = {"w": random(6, 5, 1, 3), "zero": np.array([0]), "end": np.array([2]), "axis": np.array([axis])}
    made = check(make(nodes, {"x": [2, 5, 9, 8]}, ["z"], constants), {"x": random(2, 5, 9, 8)})
    assert "default" not in made.kernels


@pytest.mark.parametrize("axis", [1, 2])
def test_normalizations_of_large_values_have_a_root(axis: int) -> None:
    words: dict[str, Any] = {"LayerNormalization": {"axis": axis}, "MeanVarianceNormalization": {"axes": [axis - 1, 2]}}
    x = 1000 + 1e-3 * random(4, 3, 5)
    for op, attributes in words.items():
        scales = ["scale"] if op == "LayerNormalization" else []
        model = make([helper.make_node(op, ["x", *scales], ["y"], **attributes)], {"x": [4, 3, 5]}, ["y"],
                     {"scale": np.ones(x.shape[axis:], "float32")})  # fmt: skip
        (found,) = outputs(portcall.compile.onnx(model, runtime="graph", check=False), {"x": x})
        axes = tuple(range(axis, 3)) if scales else (axis - 1, 2)
        exact = x.astype("float64")
        difference = exact - exact.mean(axes, keepdims=True)
        variance = (difference**2).mean(axes, keepdims=True) + (1e-5 if scales else 0)
        np.testing.assert_allclose(found, difference / np.sqrt(variance), atol=0.2)


def test_rows_of_a_matrix_are_no_picture() -> None:
    """What changes the layout of a picture of one row stands in front of a product, too."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], kernel_shape=[1, 2]),
        helper.make_node("MatMul", ["c", "m"], ["y"]),
    ]
    model = make(nodes, {"x": (5, 8, 1, 3)}, ["y"], {"w": random(17, 8, 1, 2), "m": random(2, 4)})
    check(model, {"x": random(5, 8, 1, 3)})


def test_seeds_that_were_wrong_are_judged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "record.json"
    wrong = {"3": "result 0 differs"}
    path.write_text(json.dumps({"models": 5, "counts": {"right": 4, "wrong": 1}, "wrong": wrong, "refused": {}}))
    asked: list[tuple[int, int]] = []

    def judged(first: int, count: int, is_open: bool) -> dict[int, str]:
        asked.append((first, count))
        return dict.fromkeys(range(first, first + count), "right")

    monkeypatch.setattr(random_models, "judged", judged)
    monkeypatch.setattr(sys, "argv", ["random_models.py", "--count", "7", "--record", str(path)])
    assert random_models.main() == 0
    assert sorted(asked) == [(3, 1), (5, 2)]
    record = json.loads(path.read_text())
    assert record["models"] == 7
    assert record["counts"] == {"right": 7, "wrong": 0}
    assert record["wrong"] == {}


def test_values_that_each_step_reads_twice_are_not_written_again_and_again() -> None:
    """Each step would double the code of one function that does all of them."""
    nodes, last = [], "x"
    for k in range(12):
        nodes += [helper.make_node("Tanh", [last], [f"t{k}"]), helper.make_node("Mul", [f"t{k}", last], [f"v{k}"])]
        last = f"v{k}"
    check(make(nodes, {"x": (3, 5)}, [last]), {"x": random(3, 5)})


@pytest.mark.parametrize("first", ["Round", "LRN"])
def test_functions_with_exponentials_behind_others(first: str) -> None:
    x = 3 * random(1, 4, 5, 8)
    words = {"size": 3} if first == "LRN" else {}
    ops = ("Sinh", "Cosh", "Selu", "Elu", "Celu")
    nodes = [helper.make_node(first, [f"x{op}"], [f"v{op}"], **words) for op in ops]
    nodes += [helper.make_node(op, [f"v{op}"], [op]) for op in ops]
    check(make(nodes, {f"x{op}": x.shape for op in ops}, ops), {f"x{op}": x for op in ops})


def test_sinh_is_exact_near_zero_and_defined_for_large_values() -> None:
    x = np.array([[-80, -3, -1, -1e-3, -1e-20, 0, 1e-6, 0.5, 0.999, 1, 2, 80]], "float32")
    model = make([helper.make_node("Sinh", ["x"], ["y"])], {"x": x.shape}, ["y"])
    (found,) = outputs(portcall.compile.onnx(model, runtime="graph"), {"x": x})
    np.testing.assert_allclose(found, np.sinh(x.astype("float64")), rtol=2e-6)


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceL1", "ReduceSumSquare"])
def test_reductions_over_axes_that_are_an_input_have_a_type(op: str) -> None:
    nodes = [helper.make_node(op, ["x", "axes"], ["v"], keepdims=0), helper.make_node("Softsign", ["v"], ["y"])]
    check(make(nodes, {"x": (3, 2, 5)}, ["y"], {"axes": np.array([2])}, opset=18), {"x": random(3, 2, 5)})
