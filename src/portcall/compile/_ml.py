# SPDX-License-Identifier: Apache-2.0
"""Operators of the domain ai.onnx.ml, which scikit-learn and the like are exported with, as operators of ONNX.

Where the specification leaves something open, they mean what onnxruntime computes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from portcall.compile._quantized import new_enough
from portcall.compile._rewriting import ONNX_DOMAINS, Nodes, replace_operators
from portcall.compile._trees import ML, TREES, write_trees
from portcall.compile._weights import array_of, copied

Array = Any
Model = Any
_OPSET = 13  # of a model that has operators of other domains only
_NAN_IS_A_KEY = 4  # the version since which it is
_MOST_COUPLED = 32  # classes of support vectors that have probabilities
_TINY = 1e-7  # what SOFTMAX_ZERO takes for zero


def replace_ml(model: Model, trees: bool) -> Model:
    """Return the model with operators of ONNX in the place of those of ai.onnx.ml that are known here.

    Parameters:
        trees: replace ensembles of trees, too: by what only a graph has.

    Raises:
        ModelError: one of them has a form that is not supported.
    """

    def writer_of(node: Any) -> Callable[[Nodes], None] | None:
        if node.domain != ML or (node.op_type in TREES and not trees):
            return None
        return OPERATORS.get(node.op_type)

    if not any(map(writer_of, model.graph.node)):
        return model
    return replace_operators(new_enough(_with_opset(model)), writer_of, complete=trees)


def _with_opset(model: Model) -> Model:
    """Return a model that may have operators of ONNX."""
    if any(entry.domain in ONNX_DOMAINS for entry in model.opset_import):
        return model
    changed = copied(model)
    changed.opset_import.append(helper.make_opsetid("", _OPSET))
    return changed


# ---- Maps and strings ------------------------------------------------------------------------------------------------


def without_maps(model: Model) -> tuple[Model, list[str]]:
    """Return a model whose results are tensors of numbers, and notes that say what was changed.

    A ZipMap is left out: its result is the tensor of probabilities. Labels that are strings become their numbers.
    """
    nodes, notes = model.graph.node, []
    has_maps = any(node.op_type == "ZipMap" and node.domain == ML for node in nodes)
    if not has_maps and not any(_is_text(value) for value in model.graph.output):
        return model, []
    changed = copied(_with_opset(model))
    outputs = {value.name: value for value in changed.graph.output}
    for node in changed.graph.node:
        if node.op_type == "ZipMap" and node.domain == ML:
            name, labels = node.output[0], _labels(node)
            del node.attribute[:]
            node.op_type, node.domain = "Identity", ""
            if name in outputs:
                outputs[name].type.Clear()
                outputs[name].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
            notes.append(f"the result '{name}' is a tensor of the probabilities of {labels}, instead of a ZipMap")
    if any(_is_text(value) for value in outputs.values()):
        notes += _with_numbers(changed, outputs)
    return changed, notes


def _is_text(value: Any) -> bool:
    return bool(value.type.tensor_type.elem_type == onnx.TensorProto.STRING)


def _labels(node: Any) -> list[Any]:
    """Return the labels of a classifier; none if it has none."""
    for attribute in node.attribute:
        if attribute.name.startswith("classlabels_"):
            found = helper.get_attribute_value(attribute)
            return [each.decode() if isinstance(each, bytes) else each for each in found]
    return []


def _with_numbers(model: Model, outputs: Mapping[str, Any]) -> list[str]:
    """Let labels be numbers instead of strings, in place; return notes."""
    notes = []
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "classlabels_strings" and attribute.strings:
                labels = _labels(node)
                name = "classlabels_int64s" if node.op_type.startswith("Tree") else "classlabels_ints"
                attribute.CopyFrom(helper.make_attribute(name, list(range(len(labels)))))
                notes.append(f"the result '{node.output[0]}' is a number in {labels}, instead of a string")
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == onnx.TensorProto.STRING:
                attribute.i = onnx.TensorProto.INT64
    for tensor in model.graph.initializer:
        if tensor.data_type == onnx.TensorProto.STRING:
            labels = [each.decode() for each in tensor.string_data]
            notes.append(f"the strings {labels} are their numbers, since results cannot be strings")
            numbers = np.arange(len(labels), dtype="int64").reshape(list(tensor.dims))
            tensor.CopyFrom(numpy_helper.from_array(numbers, tensor.name))
    for value in outputs.values():
        if _is_text(value):
            value.type.tensor_type.elem_type = onnx.TensorProto.INT64
    del model.graph.value_info[:]
    return notes


# ---- What is common --------------------------------------------------------------------------------------------------


def _text(n: Nodes, name: str, default: str) -> str:
    return str(n.attribute(name, default.encode()).decode())


def _floats(n: Nodes, place: int = 0) -> str:
    """Return an operand as float32."""
    return n.input(place) if n.graph.dtype(n.input(place)) == "float32" else n.add(
        "Cast", n.input(place), to=onnx.TensorProto.FLOAT)  # fmt: skip


def _numbers(n: Nodes, name: str, *shape: int) -> Array:
    return np.asarray(n.attribute(name, []), "float32").reshape(shape or [-1])


def transformed(n: Nodes, kind: str, x: str) -> str:
    """Write a post_transform."""
    if kind == "SOFTMAX":
        return n.add("Softmax", x, axis=-1)
    if kind == "LOGISTIC":
        return n.add("Sigmoid", x)
    if kind == "SOFTMAX_ZERO":  # zeros stay nearly such: they are scaled as the rest is
        largest = n.reduced("ReduceMax", x, [-1])
        grown = n.add("Exp", n.add("Sub", x, largest))
        is_zero = n.add("LessOrEqual", n.add("Abs", x), n.stored(_TINY))
        scaled = n.add("Mul", x, n.add("Exp", n.add("Neg", largest)))
        shares = n.add("Where", is_zero, n.stored(0), grown)
        total = n.reduced("ReduceSum", shares, [-1])
        return n.add("Div", n.add("Where", is_zero, scaled, grown), total)
    if kind == "PROBIT":  # sqrt(2) * erfinv(2 x - 1), as onnxruntime approximates it
        y = n.add("Sub", n.add("Mul", x, n.stored(2)), n.stored(1))
        log = n.add("Log", n.add("Mul", n.add("Sub", n.stored(1), y), n.add("Add", n.stored(1), y)))
        v = n.add("Add", n.stored(2 / (np.pi * 0.147)), n.add("Mul", n.stored(0.5), log))
        inner = n.add("Sub", n.add("Mul", v, v), n.add("Mul", n.stored(1 / 0.147), log))
        size = n.add("Sqrt", n.add("Sub", n.add("Sqrt", inner), v))
        return n.add("Mul", n.add("Mul", n.add("Sign", y), size), n.stored(np.sqrt(2)))
    if kind != "NONE":
        raise ValueError(f"the post_transform {kind} is not known")
    return x


def choose_label(n: Nodes, scores: str, labels: Array) -> None:
    """Write the label of the largest score."""
    if n.output(0):
        best = n.add("ArgMax", scores, axis=-1, keepdims=0)
        n.add("Gather", n.stored(labels, "int64"), best, out=n.output(0))


def label_of_sign(n: Nodes, scores: str, labels: Array, limit: float = 0.0) -> None:
    """Write the second label where the only score is larger than a limit, else the first one."""
    if n.output(0):
        larger = n.add("Greater", n.add("Squeeze", scores, n.stored([1], "int64")), n.stored(limit))
        n.add("Where", larger, *(n.stored(label, "int64") for label in labels[::-1]), out=n.output(0))


def both_scores(n: Nodes, scores: str, mixed: bool, kind: str) -> str:
    """Return the scores of two classes, where there is that of the second only."""
    if kind == "PROBIT":
        raise ValueError("PROBIT of a single score is not supported")
    if kind != "LOGISTIC" and not mixed:
        return n.add("Concat", n.add("Sub", n.stored(1), scores), scores, axis=1)
    both = n.add("Concat", n.add("Neg", scores), scores, axis=1)
    return transformed(n, kind, both) if kind == "LOGISTIC" else both


def labels_of(n: Nodes) -> Array:
    """Return the labels of a classifier, which are numbers: those of strings have become such."""
    return np.asarray(_labels(n.node), "int64")


# ---- Element by element ----------------------------------------------------------------------------------------------


def _scaler(n: Nodes) -> None:
    moved = n.add("Sub", _floats(n), n.stored(_numbers(n, "offset")))
    n.add("Mul", moved, n.stored(_numbers(n, "scale")), out=n.output(0))


def _normalizer(n: Nodes) -> None:
    x, kind = _floats(n), _text(n, "norm", "MAX")
    if kind not in ("MAX", "L1", "L2"):
        raise ValueError(f"the norm {kind} is not known")
    size = n.reduced({"MAX": "ReduceMax", "L1": "ReduceL1", "L2": "ReduceL2"}[kind], x, [-1])
    nothing = n.add("Equal", size, n.stored(0))
    n.add("Div", x, n.add("Where", nothing, n.stored(1), size), out=n.output(0))


def _binarizer(n: Nodes) -> None:
    dtype = n.graph.dtype(n.input(0)) or "float32"
    larger = n.add("Greater", n.input(0), n.stored(n.attribute("threshold", 0.0), dtype))
    n.add("Cast", larger, out=n.output(0), to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _imputer(n: Nodes) -> None:
    x, dtype = n.input(0), n.graph.dtype(n.input(0)) or "float32"
    of_floats = dtype.startswith("float")
    old = n.attribute("replaced_value_float" if of_floats else "replaced_value_int64", 0)
    new = n.attribute("imputed_value_floats" if of_floats else "imputed_value_int64s", [])
    missing = n.add("IsNaN", x) if np.isnan(old) else n.add("Equal", x, n.stored(old, dtype))
    n.add("Where", missing, n.stored(new, dtype), x, out=n.output(0))


def _vectorizer(n: Nodes) -> None:
    n.add("Concat", *(_floats(n, place) for place in range(len(n.node.input))), out=n.output(0), axis=1)


def _extractor(n: Nodes) -> None:
    places = n.add("Reshape", n.input(1), n.stored([-1], "int64"))
    if n.graph.rank(n.input(0)) == 1:
        n.add("Unsqueeze", n.add("Gather", n.input(0), places), n.stored([0], "int64"), out=n.output(0))
    else:
        n.add("Gather", n.input(0), places, out=n.output(0), axis=-1)


def _is_one_of(n: Nodes, known: Array) -> str:
    """Return which of some values each element is: [..., values]."""
    x = n.add("Unsqueeze", n.input(0), n.stored([-1], "int64"))
    dtype = n.graph.dtype(n.input(0)) or str(known.dtype)
    equal = n.add("Equal", x, n.stored(known, dtype))
    if known.dtype.kind == "f" and np.isnan(known).any() and n.graph.opset.get(ML, 1) >= _NAN_IS_A_KEY:
        equal = n.add("Or", equal, n.add("And", n.add("IsNaN", x), n.stored(np.isnan(known), "bool")))
    return equal


def _one_hot(n: Nodes) -> None:
    if n.attribute("cats_strings"):
        raise ValueError("strings are not supported")
    equal = _is_one_of(n, np.asarray(n.attribute("cats_int64s", []), "int64"))
    n.add("Cast", equal, out=n.output(0), to=onnx.TensorProto.FLOAT)


def _label_encoder(n: Nodes) -> None:
    found: dict[str, Any] = {}
    for part, dtype in (("keys", ""), ("values", ""), ("default", "")):
        for suffix, dtype in (("int64", "int64"), ("float", "float32"), ("string", "")):
            given = n.attribute(f"{part}_{suffix}{'' if part == 'default' else 's'}")
            if given is not None and part == "default":
                found[f"default {dtype}"] = given
            elif given is not None:
                if not dtype:
                    raise ValueError("strings are not supported")
                found[part] = np.asarray(given, dtype)
        tensor = n.attribute(f"{part}_tensor")
        if tensor is not None and (part != "default" or tensor.data_type):
            if tensor.data_type == onnx.TensorProto.STRING:
                raise ValueError("strings are not supported")
            found[part] = array_of(tensor).reshape(-1)
    if "keys" not in found or "values" not in found or len(found["keys"]) != len(found["values"]):
        raise ValueError("it has no keys and values, or not as many of one as of the other")
    values = found["values"]
    usual = found.get(f"default {values.dtype}", -1 if values.dtype.kind == "i" else -0.0)
    default = found.get("default", np.asarray([usual], values.dtype))
    keys, first = np.unique(found["keys"], return_index=True)
    equal = _is_one_of(n, keys)
    place = n.add("ArgMax", n.add("Cast", equal, to=onnx.TensorProto.INT32), axis=-1, keepdims=0)
    hit = n.reduced("ReduceMax", n.add("Cast", equal, to=onnx.TensorProto.INT32), [-1], keepdims=0)
    other = n.stored(len(keys), "int64")
    place = n.add("Where", n.add("Equal", hit, n.stored(1, "int32")), place, other)
    table = np.concatenate([values[first], default.astype(values.dtype)])
    n.add("Gather", n.stored(table, str(values.dtype)), place, out=n.output(0))


# ---- Linear models ---------------------------------------------------------------------------------------------------


def _linear(n: Nodes, rows: int) -> str:
    """Write the product with the coefficients, and the intercepts."""
    features = n.extent(n.input(0), -1)
    weights = _numbers(n, "coefficients")[: rows * features].reshape(rows, features).T  # onnxruntime reads no more
    x = n.add("MatMul", _floats(n), n.stored(np.ascontiguousarray(weights)))
    shift = _numbers(n, "intercepts")
    return n.add("Add", x, n.stored(shift)) if shift.size else x


def _linear_regressor(n: Nodes) -> None:
    scores = _linear(n, n.attribute("targets", 1))
    n.add("Identity", transformed(n, _text(n, "post_transform", "NONE"), scores), out=n.output(0))


def _linear_classifier(n: Nodes) -> None:
    labels, kind = labels_of(n), _text(n, "post_transform", "NONE")
    rows = len(n.attribute("intercepts", [])) or len(n.attribute("coefficients")) // n.extent(n.input(0), -1)
    scores = _linear(n, rows)
    if rows == 1 and len(labels) == 2:
        label_of_sign(n, scores, labels)
        made = both_scores(n, scores, False, kind)
    else:
        choose_label(n, scores, labels)
        made = transformed(n, kind, scores)
    n.add("Identity", made, out=n.output(1))


# ---- Support vectors -------------------------------------------------------------------------------------------------


def _kernel(n: Nodes, vectors: Array) -> str:
    """Return the kernel of each row and each vector: [rows, vectors]."""
    kind, x = _text(n, "kernel_type", "LINEAR"), _floats(n)
    gamma, shift, degree = (*n.attribute("kernel_params", []), 0.0, 0.0, 0.0)[:3]
    if kind == "RBF":
        each = n.add("Sub", n.add("Unsqueeze", x, n.stored([1], "int64")), n.stored(vectors[None]))
        square = n.reduced("ReduceSum", n.add("Mul", each, each), [2], keepdims=0)
        return n.add("Exp", n.add("Mul", square, n.stored(-gamma)))
    product = n.add("MatMul", x, n.stored(np.ascontiguousarray(vectors.T)))
    if kind == "LINEAR":
        return product
    scaled = n.add("Add", n.add("Mul", product, n.stored(gamma)), n.stored(shift))
    if kind == "SIGMOID":
        return n.add("Tanh", scaled)
    if kind != "POLY":
        raise ValueError(f"the kernel {kind} is not known")
    return n.add("Pow", scaled, n.stored(degree))


def _svm_regressor(n: Nodes) -> None:
    count, coefficients, rho = n.attribute("n_supports", 0), _numbers(n, "coefficients"), _numbers(n, "rho")
    vectors = _numbers(n, "support_vectors", count, -1) if count else coefficients[None]
    sums = _kernel(n, vectors)
    sums = n.add("MatMul", sums, n.stored(coefficients[:, None])) if count else sums
    made = n.add("Add", sums, n.stored(rho[:1]))
    if n.attribute("one_class", 0):
        made = n.add("Where", n.add("Greater", made, n.stored(0)), n.stored(1), n.stored(-1))
    n.add("Identity", transformed(n, _text(n, "post_transform", "NONE"), made), out=n.output(0))


def _svm_classifier(n: Nodes) -> None:
    labels, kind = labels_of(n), _text(n, "post_transform", "NONE")
    per_class, rho = list(n.attribute("vectors_per_class", [])), _numbers(n, "rho")
    coefficients = _numbers(n, "coefficients")
    if not per_class:
        vectors = coefficients.reshape(len(labels), -1)
        scores = n.add("Add", _kernel(n, vectors), n.stored(rho[:1]))
        choose_label(n, scores, labels)
        n.add("Identity", transformed(n, kind, scores), out=n.output(1))
        return
    classes, count = len(per_class), sum(per_class)
    weights, places = coefficients.reshape(classes - 1, count), np.cumsum([0, *per_class])
    pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    matrix = np.zeros((count, len(pairs)), "float32")
    for pair, (i, j) in enumerate(pairs):
        one, other = slice(places[i], places[i + 1]), slice(places[j], places[j + 1])
        matrix[one, pair], matrix[other, pair] = weights[j - 1, one], weights[i, other]
    sums = n.add("MatMul", _kernel(n, _numbers(n, "support_vectors", count, -1)), n.stored(matrix))
    sums = n.add("Add", sums, n.stored(rho))
    votes = np.zeros((2, len(pairs), classes), "float32")
    for pair, (i, j) in enumerate(pairs):
        votes[0, pair, i] = votes[1, pair, j] = 1
    won = n.add("Cast", n.add("Greater", sums, n.stored(0)), to=onnx.TensorProto.FLOAT)
    of_won = n.add("MatMul", won, n.stored(votes[0]))
    of_lost = n.add("MatMul", n.add("Sub", n.stored(1), won), n.stored(votes[1]))
    choose_label(n, n.add("Add", of_won, of_lost), labels)
    if n.attribute("prob_a"):
        made = transformed(n, kind, _probabilities(n, sums, pairs, classes))
    else:
        made = both_scores(n, sums, True, kind) if classes == 2 else transformed(n, kind, sums)
    n.add("Identity", made, out=n.output(1))


def _probabilities(n: Nodes, sums: str, pairs: Sequence[tuple[int, int]], classes: int) -> str:
    if classes > _MOST_COUPLED:
        raise ValueError(f"probabilities of {classes} classes: more than {_MOST_COUPLED} are not supported")
    a, b = _numbers(n, "prob_a"), _numbers(n, "prob_b")
    first = n.add("Sigmoid", n.add("Neg", n.add("Add", n.add("Mul", sums, n.stored(a)), n.stored(b))))
    first = n.add("Clip", first, n.stored(_TINY), n.stored(1 - _TINY))
    if classes == 2:
        return n.add("Concat", first, n.add("Sub", n.stored(1), first), axis=1)
    return _coupled(n, first, pairs, classes)


def _coupled(n: Nodes, first: str, pairs: Sequence[tuple[int, int]], classes: int) -> str:
    """Return the probability of each class, of those that the first one of each pair has: [rows, classes].

    The second method of T.-F. Wu, C.-J. Lin and R. C. Weng, "Probability Estimates for Multi-class Classification by
    Pairwise Coupling" (2004), as in libsvm: with r[i, j] the probability of i where it is i or j, the results p sum up
    to 1, and to the least of (r[j, i] p[i] - r[i, j] p[j])**2 over all pairs. With Q the matrix of that, (Q + ee')p is
    a multiple of e, and is solved by elimination; it is positive definite, and so needs no order of pivots. libsvm and
    onnxruntime iterate instead, and stop when they are within 0.005 of it.
    """
    turned, base = np.zeros((len(pairs), classes, classes), "float32"), np.zeros((classes, classes), "float32")
    for pair, (i, j) in enumerate(pairs):
        turned[pair, i, j], turned[pair, j, i], base[j, i] = 1, -1, 1
    r = n.add("Add", n.add("MatMul", first, n.stored(turned.reshape(len(pairs), -1))), n.stored(base.reshape(-1)))
    r = n.add("Reshape", r, n.stored([-1, classes, classes], "int64"))
    squares = n.reduced("ReduceSum", n.add("Mul", r, r), [1], keepdims=1)
    m = n.add(
        "Sub", n.add("Mul", squares, n.stored(np.eye(classes))), n.add("Mul", r, n.add("Transpose", r, perm=[0, 2, 1]))
    )
    m = n.add("Add", m, n.stored(1))
    m = n.add("Pad", m, n.stored([0, 0, 0, 0, 0, 1], "int64"), n.stored(1))  # the right side, e
    for _ in range(classes):  # the row in front goes to the end, its column goes
        row, rest = _part(n, m, 1, 0, 1), _part(n, m, 1, 1, classes)
        row = n.add("Div", _part(n, row, 2, 1, classes + 1), _part(n, row, 2, 0, 1))
        factor = n.add("Mul", _part(n, rest, 2, 0, 1), row)
        m = n.add("Concat", n.add("Sub", _part(n, rest, 2, 1, classes + 1), factor), row, axis=1)
    m = n.add("Div", m, n.reduced("ReduceSum", m, [1], keepdims=1))
    return n.add("Reshape", m, n.stored([-1, classes], "int64"))


def _part(n: Nodes, name: str, axis: int, start: int, end: int) -> str:
    return n.add("Slice", name, *(n.stored([k], "int64") for k in (start, end, axis)))


# ---- Trees -----------------------------------------------------------------------------------------------------------


def _tree_regressor(n: Nodes) -> None:
    sums, _ = write_trees(n, _floats_or_doubles(n))
    made = transformed(n, _kind_of_trees(n), n.add("Cast", sums, to=onnx.TensorProto.FLOAT))
    n.add("Cast", made, out=n.output(0), to=_type_of_result(n))


def _floats_or_doubles(n: Nodes) -> str:
    return n.input(0) if n.graph.dtype(n.input(0)) == "float64" else _floats(n)


def _kind_of_trees(n: Nodes) -> str:
    if n.node.op_type == "TreeEnsemble":
        return ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")[n.attribute("post_transform", 0)]
    return _text(n, "post_transform", "NONE")


def _type_of_result(n: Nodes) -> int:
    doubles = n.node.op_type == "TreeEnsemble" and n.graph.dtype(n.input(0)) == "float64"
    return int(onnx.TensorProto.DOUBLE if doubles else onnx.TensorProto.FLOAT)


def _tree_classifier(n: Nodes) -> None:
    labels, kind = labels_of(n), _kind_of_trees(n)
    sums, forest = write_trees(n, _floats_or_doubles(n))
    sums = n.add("Cast", sums, to=onnx.TensorProto.FLOAT)
    limit = 0.5 if forest.positive else 0.0
    if len(labels) != 2:
        choose_label(n, sums, labels)
    elif forest.targets == 1:
        label_of_sign(n, sums, labels, limit)
    else:  # for two classes that both have scores onnxruntime gives 0 or 1, whatever the labels are
        second = n.add("Slice", sums, *(n.stored([k], "int64") for k in (1, 2, 1)))
        label_of_sign(n, second, *((labels, limit) if forest.single else (np.arange(2), 0.0)))
    several = len(labels) != 2 or forest.targets != 1
    made = transformed(n, kind, sums) if several else both_scores(n, sums, not forest.positive, kind)
    n.add("Identity", made, out=n.output(1))


OPERATORS: Mapping[str, Callable[[Nodes], None]] = {
    "ArrayFeatureExtractor": _extractor,
    "Binarizer": _binarizer,
    "FeatureVectorizer": _vectorizer,
    "Imputer": _imputer,
    "LabelEncoder": _label_encoder,
    "LinearClassifier": _linear_classifier,
    "LinearRegressor": _linear_regressor,
    "Normalizer": _normalizer,
    "OneHotEncoder": _one_hot,
    "SVMClassifier": _svm_classifier,
    "SVMRegressor": _svm_regressor,
    "Scaler": _scaler,
    "TreeEnsemble": _tree_regressor,
    "TreeEnsembleClassifier": _tree_classifier,
    "TreeEnsembleRegressor": _tree_regressor,
}
