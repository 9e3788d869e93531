# SPDX-License-Identifier: Apache-2.0
"""Operators of ai.onnx.ml beside onnxruntime: what scikit-learn and the like are exported with."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import portcall
from compile import node_tests
from compile.reference import outputs
from compile.test_contrib import compare, model_of
from compile.test_models import random
from portcall.compile._model import load
from portcall.compile._verify import reference
from portcall.errors import ModelError

pytestmark = pytest.mark.peers

FEATURES = 6
X = random(9, FEATURES)


def op(kind: str, inputs: Any = ("x",), results: Any = ("y",), **words: Any) -> Any:
    return helper.make_node(kind, list(inputs), list(results), f"the node {kind}", domain="ai.onnx.ml", **words)


def test_scaling_and_imputation() -> None:
    compare([op("Scaler", offset=random(FEATURES).tolist(), scale=random(FEATURES).tolist())], {"x": X}, ["y"])
    zeros = np.concatenate([X, np.zeros((1, FEATURES), "float32")])
    for norm in ("MAX", "L1", "L2"):
        compare([op("Normalizer", norm=norm)], {"x": zeros}, ["y"])
    missing = np.where(X > 0.5, np.float32(np.nan), X)
    node = op("Imputer", replaced_value_float=float("nan"), imputed_value_floats=random(FEATURES).tolist())
    compare([node], {"x": missing}, ["y"])
    compare([op("Imputer", replaced_value_int64=3, imputed_value_int64s=[7])], {"x": np.arange(6)[None]}, ["y"])
    compare([op("Binarizer", threshold=0.3)], {"x": X}, ["y"])


def test_categories_and_columns() -> None:
    numbers = np.array([[1, 4], [9, 2], [4, 4]])
    compare([op("OneHotEncoder", cats_int64s=[1, 2, 4])], {"x": numbers}, ["y"])
    compare([op("LabelEncoder", keys_int64s=[4, 1, 2], values_floats=[0.5, 1.5, 2.5], default_float=-3.0)],
            {"x": numbers}, ["y"])  # fmt: skip
    floats = np.array([[1, np.nan], [0.5, 2]], "float32")
    node = op("LabelEncoder", keys_floats=[0.5, 7.0], values_int64s=[5, 6], default_int64=-7)
    compare([node], {"x": floats}, ["y"])
    columns = {"k": np.array([3, 0])}
    compare([op("ArrayFeatureExtractor", ["x", "k"])], {"x": X}, ["y"], columns)
    compare([op("FeatureVectorizer", ["x", "z"], inputdimensions=[FEATURES, 2])], {"x": X, "z": random(9, 2)}, ["y"])


TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@pytest.mark.parametrize("kind", TRANSFORMS)
def test_linear_models(kind: str) -> None:
    tolerance = 1e-3 if kind == "PROBIT" else 1e-5  # of numbers near 0, whose logarithm onnxruntime rounds
    for classes, rows in ((3, 3), (2, 2), *([(2, 1)] if kind != "PROBIT" else [])):
        weights, shift = random(rows, FEATURES) / 16, 0.5 + random(rows) / 16
        words = {"coefficients": weights.reshape(-1).tolist(), "intercepts": shift.tolist()}
        node = op("LinearClassifier", results=["label", "y"], post_transform=kind,
                  classlabels_ints=[5, 3, 8][:classes], **words)  # fmt: skip
        compare([node], {"x": X}, ["label", "y"], atol=tolerance)
    node = op("LinearRegressor", targets=3, coefficients=(random(3, FEATURES) / 16).reshape(-1).tolist(),
              intercepts=[0.4, 0.5, 0.6], post_transform="NONE")  # fmt: skip
    compare([node], {"x": X}, ["y"])


def test_old_model_with_more_coefficients_than_features() -> None:
    coefficients = random(3 * FEATURES).tolist()
    node = op("LinearClassifier", results=["label", "y"], classlabels_ints=[0, 1, 2], coefficients=coefficients,
              intercepts=[0.1, 0.2, 0.3])  # fmt: skip
    model = model_of([node], {"x": X[:, :4]}, ["label", "y"], {}, 17)
    for place, dtype in enumerate((TensorProto.INT64, TensorProto.FLOAT)):
        model.graph.output[place].type.tensor_type.elem_type = dtype
    model.ir_version = 3  # constants had to be inputs, too
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    feeds = {"x": X[:, :4]}
    for mine, theirs in zip(
        outputs(portcall.compile.onnx(model, runtime="graph"), feeds), reference(model, feeds).values(), strict=True
    ):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


@pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
def test_support_vectors(kernel: str) -> None:
    vectors = random(7, FEATURES).reshape(-1)
    common = {"kernel_type": kernel, "kernel_params": [0.3, 0.2, 2.0], "support_vectors": vectors}
    compare([op("SVMRegressor", n_supports=7, coefficients=random(7), rho=[0.3], **common)], {"x": X}, ["y"])
    results = ["label", "y"]
    for counts in ([4, 3], [2, 3, 2]):
        pairs = len(counts) * (len(counts) - 1) // 2
        words = {**common, "vectors_per_class": counts, "coefficients": random(7 * (len(counts) - 1)),
                 "rho": random(pairs), "classlabels_ints": [4, 2, 7][: len(counts)]}  # fmt: skip
        compare([op("SVMClassifier", results=results, **words)], {"x": X}, results)
    coupled = {"prob_a": [-1.2, -0.8, -2.0], "prob_b": [0.1, -0.2, 0.3]}
    compare([op("SVMClassifier", results=results, **coupled, **words)], {"x": X}, results, atol=5e-3)
    words |= {"vectors_per_class": [4, 3], "coefficients": random(7), "rho": [0.1], "classlabels_ints": [4, 2]}
    compare([op("SVMClassifier", results=results, prob_a=[-1.2], prob_b=[1.1], **words)], {"x": X}, results, atol=5e-3)


def forest(trees: int, depth: int, mode: str, targets: int, weights: str = "floats", **words: Any) -> dict[str, Any]:
    """The attributes of some full trees, whose leaves have weights for each target."""
    g = np.random.default_rng(5)
    n: dict[str, list[Any]] = {key: [] for key in (
        "treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids",
        "missing_value_tracks_true")}  # fmt: skip
    given: list[tuple[int, int, int, float]] = []
    count, inner = 2 ** (depth + 1) - 1, 2**depth - 1
    for tree in range(trees):
        for node in range(count):
            leaf = node >= inner
            yes, no = (0, 0) if leaf else (2 * node + 1, 2 * node + 2)
            row = (tree, node, 0 if leaf else int(g.integers(FEATURES)), "LEAF" if leaf else mode,
                   float(g.integers(-1, 2) / 2), yes, no, int(g.integers(2)))  # fmt: skip
            for key, value in zip(n, row, strict=True):
                n[key].append(value)
            for target in range(targets) if leaf else ():
                weight = g.standard_normal()
                given.append((tree, node, target, abs(weight) / trees if weights == "positive" else weight))
    word = "class" if "classlabels_int64s" in words else "target"
    found: dict[str, Any] = {f"nodes_{key}": value for key, value in n.items()} | words
    for key, column in zip(("treeids", "nodeids", "ids", "weights"), zip(*given, strict=True), strict=True):
        found[f"{word}_{key}"] = list(column)
    if word == "target":
        found["n_targets"] = targets
    return found


SPLITS = np.where(random(11, FEATURES) > 0.3, np.round(random(11, FEATURES)) / 2, np.float32(np.nan)).astype("float32")


@pytest.mark.parametrize("mode", ["LEQ", "LT", "GTE", "GT", "EQ", "NEQ"])
def test_comparisons_of_trees(mode: str) -> None:
    node = op("TreeEnsembleRegressor", **forest(10, 3, f"BRANCH_{mode}", 1))
    compare([node], {"x": SPLITS}, ["y"])


@pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
def test_sums_of_trees(aggregate: str) -> None:
    for targets, rows in ((1, 1), (3, 70)):
        words: dict[str, Any] = {"aggregate_function": aggregate, "base_values": [0.5] * targets}
        node = op("TreeEnsembleRegressor", **forest(9, 4, "BRANCH_LEQ", targets, **words))
        compare([node], {"x": random(rows, FEATURES)}, ["y"])


@pytest.mark.parametrize("kind", TRANSFORMS)
def test_classes_of_trees(kind: str) -> None:
    results, alone = ["label", "y"], [] if kind == "PROBIT" else [0, 1]
    for classes, targets, weights in ((3, 3, "positive"), (2, 2, "floats"), (2, 1, "positive"), (2, 1, "floats")):
        words = {"classlabels_int64s": [7, 5, 9][:classes], "post_transform": kind}
        made = forest(5, 3, "BRANCH_LEQ", targets, weights, **words)
        for number in alone if targets == 1 else [None]:  # of which of two classes all weights are
            made |= {} if number is None else {"class_ids": [number] * len(made["class_ids"])}
            compare([op("TreeEnsembleClassifier", results=results, **made)], {"x": X}, results, atol=1e-3)


def test_trees_on_several_threads_are_the_same() -> None:
    x = random(300, FEATURES)
    model = model_of([op("TreeEnsembleRegressor", **forest(9, 4, "BRANCH_LEQ", 2))], {"x": x}, ["y"], {}, 15)
    one, two = (
        outputs(portcall.compile.onnx(model, threads=k, check=False, runtime="graph"), {"x": x}) for k in (1, 2)
    )
    np.testing.assert_array_equal(one[0], two[0])


def test_trees_that_cannot_be_walked_are_refused() -> None:
    for name, value, reason in (
        ("nodes_truenodeids", [0, *[0] * 6], "two ways"), ("nodes_truenodeids", [99, 3, 5, 0, 0, 0, 0], "no node 99"),
        ("nodes_featureids", [77, *[0] * 6], "feature 77"), ("nodes_values", [0.5], "length"),
    ):  # fmt: skip
        words = {**forest(1, 2, "BRANCH_LEQ", 1), name: value}
        with pytest.raises(ModelError, match=f"the node.*{reason}"):
            portcall.compile.onnx(
                model_of([op("TreeEnsembleRegressor", **words)], {"x": X}, ["y"], {}, 15), runtime="graph"
            )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["tree_ensemble_single_tree", "tree_ensemble_set_membership", "binarizer"])
def test_node_tests(name: str) -> None:
    assert node_tests.guarded(f"test_ai_onnx_ml_{name}") == "passed"


def test_a_pipeline_gives_numbers_and_probabilities() -> None:
    """Strings and maps, which scikit-learn's classifiers give, are left out with a note that names the result."""
    nodes = [op("Scaler", offset=[0.1] * FEATURES, scale=[2.0] * FEATURES, results=["scaled"]),
             op("LinearClassifier", ["scaled"], ["label", "p"], classlabels_strings=["ant", "bee", "cat"],
                coefficients=random(3 * FEATURES).tolist(), intercepts=[0.0, 0.1, 0.2], post_transform="SOFTMAX"),
             op("ZipMap", ["p"], ["shares"], classlabels_strings=["ant", "bee", "cat"])]  # fmt: skip
    model = model_of(nodes, {"x": X}, ["label", "shares"], {}, 15)
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("label", TensorProto.STRING, [9]))
    kind = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    model.graph.output[1].CopyFrom(helper.make_value_info("shares", helper.make_sequence_type_proto(kind)))
    made = portcall.compile.onnx(model, runtime="graph")
    assert made.unchecked == ""
    label, shares = outputs(made, {"x": X})
    np.testing.assert_array_equal(label, shares.argmax(axis=1))
    assert shares.shape == (9, 3)
    assert len(made.notes) == 2
    assert all(word in " ".join(made.notes) for word in ("'label'", "'shares'", "bee"))


def test_strings_that_are_chosen_become_their_numbers() -> None:
    nodes = [helper.make_node("ArgMax", ["x"], ["best"], axis=1), op("ArrayFeatureExtractor", ["names", "best"], ["y"])]
    names = np.array(["a", "b", "c", "d", "e", "f"], object)
    model = model_of(nodes, {"x": X}, ["y"], {}, 15)
    model.graph.initializer.append(numpy_helper.from_array(names, "names"))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.STRING, None))
    made = portcall.compile.onnx(model, check=False, runtime="graph")
    np.testing.assert_array_equal(outputs(made, {"x": X})[0], X.argmax(axis=1)[None])
    expected = reference(onnx.load_from_string(load(model).model.SerializeToString()), {"x": X})
    np.testing.assert_array_equal(expected["y"], X.argmax(axis=1)[None])
