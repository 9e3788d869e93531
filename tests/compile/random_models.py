# SPDX-License-Identifier: Apache-2.0
"""Random models of a few nodes, compiled and compared with onnxruntime: what is fused, and how, differs in each.

    PYTHONPATH=tests python tests/compile/random_models.py [--first SEED] [--count N] [--record FILE] [--open]

A model is right, refused (the compiler says so: ModelError), or wrong. One that is wrong is made smaller as long as it
stays wrong, and printed. The same seed gives the same model. ``--record`` adds what was found to a file of JSON, and
goes on after the seeds that are in it. Those that were wrong are judged again first. With ``--open`` the extent in
front of each input is not known, and the Relax VM runs the model.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # before onnxruntime is imported

import numpy as np
import onnx
from onnx import helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from compile.computed import computed
from portcall.errors import ModelError

OPSET = 20
EXTENTS = (1, 1, 2, 3, 4, 5, 7, 8, 16, 17, 32)
MOST_ELEMENTS = 1 << 14
TOLERANCE = 1e-4  # of the largest value
FLOOR = 1e-6  # of the results of models whose values are near 1
PER_PROCESS = 50
MOST_SECONDS = 900  # for that many
NUDGE, ALLOWED = 1e-6, 100.0  # a model that enlarges a nudge of its inputs may enlarge rounding as well


@dataclass
class Value:
    """A tensor of a model that is being made.

    Attributes:
        exact: rounding has not changed it, so that it can be compared with others, or rounded.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    exact: bool


class NotPossibleError(Exception):
    """An operator does not fit the values that there are."""


@dataclass
class Maker:
    """A model that grows by a node at a time."""

    rng: np.random.Generator
    values: list[Value] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    nodes: list[Any] = field(default_factory=list)
    names: int = 0

    def name(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"

    def chance(self, of: float) -> bool:
        return bool(self.rng.random() < of)

    def one(self, choices: Sequence[Any]) -> Any:
        if not choices:
            raise NotPossibleError
        return choices[int(self.rng.integers(len(choices)))]

    def some(self, condition: Callable[[Value], bool] = lambda value: True, kind: str = "float32") -> Value:
        """Return a value, rather one of the last than of the first."""
        found = [value for value in self.values if value.dtype == kind and condition(value)]
        if not found:
            raise NotPossibleError
        return found[-1] if self.chance(0.5) else self.one(found)

    def input(self, shape: Sequence[int]) -> Value:
        value = Value(self.name("x"), tuple(shape), "float32", True)
        self.inputs.append(value)
        self.values.append(value)
        return value

    def constant(self, array: Any) -> str:
        name = self.name("c")
        self.constants[name] = np.asarray(array)
        return name

    def weights(self, *shape: int) -> str:
        size = prod(shape[1:]) if len(shape) > 1 else 4
        return self.constant(self.rng.standard_normal(shape).astype("float32") / np.float32(np.sqrt(size)))

    def operand(self, value: Value) -> tuple[str, bool]:
        """Return what can stand beside a value in an operator that broadcasts, and whether it is exact."""
        fit = [other for other in self.values if other.dtype == value.dtype and _broadcasts(other.shape, value.shape)]
        if fit and self.chance(0.6):
            other = self.one(fit)
            return other.name, other.exact
        shape = [1 if self.chance(0.4) else extent for extent in value.shape]
        shape = shape[int(self.rng.integers(len(shape) + 1)) :] if self.chance(0.3) else shape
        if self.chance(0.3):
            return self.input(shape).name, True
        return self.constant(self.rng.standard_normal(shape).astype(value.dtype)), True

    def node(self, op: str, inputs: Sequence[str], outputs: int = 1, exact: bool = False, **attributes: Any) -> None:
        """Add a node, if the types of its results are known and small."""
        node = helper.make_node(op, list(inputs), [self.name("v") for _ in range(outputs)], **attributes)
        known = {value.name: value for value in self.values}
        given = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.dtype(known[n].dtype)), known[n].shape)
            for n in dict.fromkeys(inputs)
            if n in known
        ]
        stored = [numpy_helper.from_array(self.constants[n], n) for n in dict.fromkeys(inputs) if n in self.constants]
        graph = helper.make_graph([node], "one", given, [onnx.ValueInfoProto(name=n) for n in node.output], stored)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
        try:
            inferred = shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        except shape_inference.InferenceError as error:
            raise NotPossibleError from error
        made = []
        for output in inferred.graph.output:
            kind = output.type.tensor_type
            shape = tuple(dim.dim_value for dim in kind.shape.dim)
            if not all(dim.WhichOneof("value") == "dim_value" for dim in kind.shape.dim):
                raise NotPossibleError
            if min(shape, default=1) < 1 or prod(shape) > MOST_ELEMENTS:  # inference gives negative extents, too
                raise NotPossibleError
            made.append(Value(output.name, shape, helper.tensor_dtype_to_np_dtype(kind.elem_type).name, exact))
        self.nodes.append(node)
        self.values += made


def _broadcasts(one: Sequence[int], other: Sequence[int]) -> bool:
    return all(a == b or 1 in (a, b) for a, b in zip(reversed(one), reversed(other), strict=False))


# ---- Operators -------------------------------------------------------------------------------------------------------

EXACT = ("Relu", "Neg", "Abs", "Identity")
SMOOTH = ("Sigmoid", "Tanh", "Exp", "Erf", "Elu", "Selu", "Celu", "LeakyRelu", "HardSigmoid", "HardSwish", "Softplus",
          "Softsign", "Gelu", "Mish", "Sin", "Cos", "Atan", "Sinh", "ThresholdedRelu")  # fmt: skip
STEPS = ("Floor", "Ceil", "Sign", "Round")
COMPARISONS = ("Greater", "Less", "GreaterOrEqual", "LessOrEqual")
REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare",
              "ReduceLogSumExp")  # fmt: skip


def unary(m: Maker) -> None:
    if m.chance(0.4):
        x = m.some()
        m.node(m.one(EXACT), [x.name], exact=x.exact)
        return
    op = m.one(SMOOTH)
    m.node(op, [m.some().name])


def steps(m: Maker) -> None:
    m.node(m.one(STEPS), [m.some(lambda v: v.exact).name], exact=True)


def clip(m: Maker) -> None:
    x = m.some()
    low, high = m.constant(np.float32(-0.5)), m.constant(np.float32(0.8))
    m.node("Clip", [x.name, low, high], exact=x.exact)


def roots(m: Maker) -> None:
    """Add what is defined for positive numbers only, of such numbers."""
    m.node(m.one(("Sigmoid", "Softplus", "Exp")), [m.some().name])
    m.node(m.one(("Sqrt", "Log", "Reciprocal")), [m.values[-1].name])


def binary(m: Maker) -> None:
    x = m.some()
    op = m.one(("Add", "Sub", "Mul", "Max", "Min"))
    other, exact = m.operand(x)
    names = [x.name, other]
    m.node(op, names if m.chance(0.5) else names[::-1], exact=x.exact and exact and op in ("Max", "Min"))


def division(m: Maker) -> None:
    x = m.some()
    shape = [extent if m.chance(0.5) else 1 for extent in x.shape]
    m.node("Div", [x.name, m.constant(m.rng.uniform(0.5, 2, shape).astype("float32"))])


def power(m: Maker) -> None:
    m.node("Pow", [m.some().name, m.constant(np.float32(m.one((2.0, 3.0))))])


def several(m: Maker) -> None:
    x = m.some()
    m.node(m.one(("Sum", "Mean", "Max", "Min")), [x.name, m.operand(x)[0], m.operand(x)[0]])


def where(m: Maker) -> None:
    x = m.some(lambda v: v.exact)
    other = m.operand(x)
    if not other[1]:
        raise NotPossibleError
    m.node(m.one(COMPARISONS), [x.name, other[0]], exact=True)
    condition = m.values[-1]
    y = m.some(lambda v: _broadcasts(v.shape, condition.shape))
    m.node("Where", [condition.name, y.name, m.operand(y)[0]], exact=False)


def to_float(m: Maker) -> None:
    x = m.one([v for v in m.values if v.dtype in ("bool", "int64")])
    m.node("Cast", [x.name], exact=True, to=onnx.TensorProto.FLOAT)


def reshape(m: Maker) -> None:
    x = m.some()
    left, shape = prod(x.shape), []
    for _ in range(int(m.rng.integers(1, 4))):
        factor = m.one([k for k in range(1, left + 1) if left % k == 0][:12])
        shape.append(factor)
        left //= factor
    shape.append(left)
    m.node("Reshape", [x.name, m.constant(np.array(m.rng.permutation(shape), "int64"))], exact=x.exact)


def transpose(m: Maker) -> None:
    x = m.some(lambda v: len(v.shape) > 1)
    m.node("Transpose", [x.name], exact=x.exact, perm=[int(k) for k in m.rng.permutation(len(x.shape))])


def axes(m: Maker) -> None:
    x = m.some()
    ones = [k for k, extent in enumerate(x.shape) if extent == 1]
    if ones and m.chance(0.5):
        m.node("Squeeze", [x.name, m.constant(np.array([m.one(ones)]))], exact=x.exact)
    elif len(x.shape) < 5:
        axis = int(m.rng.integers(len(x.shape) + 1))
        m.node("Unsqueeze", [x.name, m.constant(np.array([axis]))], exact=x.exact)
    else:
        m.node("Flatten", [x.name], exact=x.exact, axis=int(m.rng.integers(len(x.shape))))


def cut(m: Maker) -> None:
    x = m.some(lambda v: max(v.shape, default=0) > 1)
    axis = m.one([k for k, extent in enumerate(x.shape) if extent > 1])
    first = int(m.rng.integers(x.shape[axis]))
    end = int(m.rng.integers(first, x.shape[axis])) + 1
    step = m.one((1, 1, 2))
    parts = [m.constant(np.array([number])) for number in (first, end, axis, step)]
    m.node("Slice", [x.name, *parts], exact=x.exact)


def concat(m: Maker) -> None:
    x = m.some(lambda v: len(v.shape) > 0)
    axis = int(m.rng.integers(len(x.shape)))
    fit = [v for v in m.values if v.dtype == x.dtype and len(v.shape) == len(x.shape)
           and all(a == b for k, (a, b) in enumerate(zip(v.shape, x.shape, strict=True)) if k != axis)]  # fmt: skip
    parts = [m.one(fit) for _ in range(int(m.rng.integers(2, 4)))]
    m.node("Concat", [part.name for part in parts], exact=all(part.exact for part in parts), axis=axis)


def split(m: Maker) -> None:
    x = m.some(lambda v: max(v.shape, default=0) > 1)
    axis = m.one([k for k, extent in enumerate(x.shape) if extent > 1])
    count = m.one([k for k in (2, 3, 4) if k <= x.shape[axis]])
    places = sorted(int(k) for k in m.rng.choice(np.arange(1, x.shape[axis]), count - 1, replace=False))
    sizes = np.diff([0, *places, x.shape[axis]])
    m.node("Split", [x.name, m.constant(sizes.astype("int64"))], count, exact=x.exact, axis=axis)


def pad(m: Maker) -> None:
    x = m.some(lambda v: len(v.shape) > 1)
    mode = m.one(("constant", "constant", "edge", "reflect"))
    most = [min(3, extent) for extent in x.shape]
    pads = [int(m.rng.integers(k)) if m.chance(0.5) else 0 for k in (*most, *most)]
    m.node("Pad", [x.name, m.constant(np.array(pads))], exact=x.exact, mode=mode)


def expand(m: Maker) -> None:
    x = m.some()
    if m.chance(0.5) or 1 not in x.shape:
        m.node("Tile", [x.name, m.constant(np.array([m.one((1, 1, 2)) for _ in x.shape]))], exact=x.exact)
        return
    shape = [m.one((1, 3, 8)) if extent == 1 else extent for extent in x.shape]
    m.node("Expand", [x.name, m.constant(np.array(shape))], exact=x.exact)


def gather(m: Maker) -> None:
    x = m.some(lambda v: len(v.shape) > 0)
    axis = int(m.rng.integers(len(x.shape)))
    shape = m.one(((), (1,), (3,), (2, 2)))
    indices = m.rng.integers(-x.shape[axis], x.shape[axis], shape).astype("int64")
    m.node("Gather", [x.name, m.constant(indices)], exact=x.exact, axis=axis)


def blocks(m: Maker) -> None:
    x = m.some(lambda v: len(v.shape) == 4)
    if x.shape[1] % 4 == 0 and m.chance(0.5):
        m.node("DepthToSpace", [x.name], exact=x.exact, blocksize=2, mode=m.one(("DCR", "CRD")))
    elif x.shape[2] % 2 == x.shape[3] % 2 == 0:
        m.node("SpaceToDepth", [x.name], exact=x.exact, blocksize=2)
    else:
        raise NotPossibleError


def reduction(m: Maker) -> None:
    x = m.some(lambda v: len(v.shape) > 0)
    rank = len(x.shape)
    chosen = m.rng.choice(rank, int(m.rng.integers(1, rank + 1)), replace=False)
    op = m.one(REDUCTIONS)
    of = m.constant(np.sort(chosen).astype("int64"))
    exact = x.exact and op in ("ReduceMax", "ReduceMin")
    m.node(op, [x.name, of], exact=exact, keepdims=int(m.chance(0.6)))


def places(m: Maker) -> None:
    x = m.some(lambda v: v.exact and len(v.shape) > 0)
    axis = int(m.rng.integers(len(x.shape)))
    m.node(m.one(("ArgMax", "ArgMin")), [x.name], exact=True, axis=axis, keepdims=int(m.chance(0.5)))


def top(m: Maker) -> None:
    x = m.some(lambda v: v.exact and len(v.shape) > 0)
    axis = int(m.rng.integers(len(x.shape)))
    count = int(m.rng.integers(1, x.shape[axis] + 1))
    m.node("TopK", [x.name, m.constant(np.array([count]))], 2, exact=True, axis=axis)


def rows(m: Maker) -> None:
    x = m.some(lambda v: len(v.shape) > 0)
    op = m.one(("Softmax", "LogSoftmax", "LayerNormalization", "CumSum"))
    axis = int(m.rng.integers(len(x.shape)))
    if op == "LayerNormalization":
        size = x.shape[axis:]
        m.node(op, [x.name, m.weights(*size), m.weights(*size)], axis=axis)
    elif op == "CumSum":
        m.node(op, [x.name, m.constant(np.int64(axis))])
    else:
        m.node(op, [x.name], axis=axis)


def normalization(m: Maker) -> None:
    x = m.some(lambda v: len(v.shape) in (3, 4))
    channels = x.shape[1]
    op = m.one(("BatchNormalization", "InstanceNormalization", "LRN", "GlobalAveragePool", "GlobalMaxPool"))
    if op == "BatchNormalization":
        spread = m.constant(m.rng.uniform(0.5, 2, channels).astype("float32"))
        m.node(op, [x.name, *(m.weights(channels) for _ in range(3)), spread])
    elif op == "InstanceNormalization":
        m.node(op, [x.name, m.weights(channels), m.weights(channels)])
    elif op == "LRN":
        m.node(op, [x.name], size=m.one((1, 3, 5)))
    else:
        m.node(op, [x.name])


def matmul(m: Maker) -> None:
    x = m.some(lambda v: len(v.shape) > 1)
    columns = m.one(EXTENTS)
    m.node("MatMul", [x.name, m.weights(x.shape[-1], columns)])


def products(m: Maker) -> None:
    x = m.some(lambda v: len(v.shape) > 1)
    fit = [v for v in m.values if v.dtype == x.dtype and len(v.shape) > 1 and v.shape[-2] == x.shape[-1]
           and _broadcasts(v.shape[:-2], x.shape[:-2])]  # fmt: skip
    if not fit or m.chance(0.3):
        axis = list(range(len(x.shape)))
        axis[-1], axis[-2] = axis[-2], axis[-1]
        m.node("Transpose", [x.name], exact=x.exact, perm=axis)
        fit = [m.values[-1]]
    m.node("MatMul", [x.name, m.one(fit).name])


def gemm(m: Maker) -> None:
    x = m.some(lambda v: len(v.shape) == 2)
    columns, flipped = m.one(EXTENTS), int(m.chance(0.5))
    shape = (columns, x.shape[1]) if flipped else (x.shape[1], columns)
    m.node("Gemm", [x.name, m.weights(*shape), m.weights(columns)], transB=flipped, alpha=m.one((1.0, 0.5)))


def convolution(m: Maker) -> None:
    x = m.some(lambda v: len(v.shape) in (3, 4, 4))
    channels, rank = x.shape[1], len(x.shape) - 2
    groups = m.one([g for g in {1, 2, channels} if channels % g == 0] + [1])
    window = [m.one((1, 1, 3, 2, 5)) for _ in range(rank)]
    words: dict[str, Any] = {"kernel_shape": window, "strides": [m.one((1, 1, 2))] * rank, "group": groups}
    words["pads"] = [int(m.rng.integers((k + 1) // 2 + 1)) for k in (*window, *window)]
    if m.chance(0.15):
        weights = m.weights(channels, m.one((1, 2, 8)), *window)
        m.node("ConvTranspose", [x.name, weights], **words)
        return
    words["dilations"] = [m.one((1, 1, 1, 2))] * rank
    outputs = groups * m.one((1, 2, 4, 8))
    inputs = [x.name, m.weights(outputs, channels // groups, *window)]
    m.node("Conv", [*inputs, m.weights(outputs)] if m.chance(0.6) else inputs, **words)


def pooling(m: Maker) -> None:
    x = m.some(lambda v: len(v.shape) == 4)
    op = m.one(("MaxPool", "AveragePool"))
    window = [m.one((1, 2, 3)), m.one((1, 2, 3))]
    pads = [int(m.rng.integers(k)) for k in (*window, *window)] if m.chance(0.5) else [0] * 4
    if any(k > extent for k, extent in zip(window, x.shape[2:], strict=True)):
        raise NotPossibleError  # what the result then is, is not said
    m.node(op, [x.name], exact=x.exact and op == "MaxPool", kernel_shape=window, strides=[m.one((1, 2))] * 2, pads=pads)


def resize(m: Maker) -> None:
    x = m.some(lambda v: len(v.shape) == 4)
    scales = m.constant(np.array([1, 1, m.one((1.0, 2.0)), 2], "float32"))
    way = m.one((("nearest", "asymmetric"), ("linear", "half_pixel"), ("linear", "align_corners")))
    m.node("Resize", [x.name, "", scales], mode=way[0], coordinate_transformation_mode=way[1], nearest_mode="floor")


def gate(m: Maker) -> None:
    """Multiply a picture by what was computed for each of its channels, or all of them."""
    x = m.some(lambda v: len(v.shape) == 4)
    m.node("GlobalAveragePool", [x.name])
    m.node("Conv", [m.values[-1].name, m.weights(m.one((1, x.shape[1])), x.shape[1], 1, 1)])
    m.node(m.one(("Sigmoid", "HardSigmoid", "Tanh")), [m.values[-1].name])
    m.node("Mul", [x.name, m.values[-1].name])


OPERATORS: dict[Callable[[Maker], None], float] = {
    unary: 4, steps: 0.5, clip: 1, roots: 0.5, binary: 5, division: 1, power: 0.5, several: 0.7, where: 0.7,
    to_float: 1, reshape: 1.5, transpose: 1.5, axes: 1, cut: 1, concat: 1.5, split: 1.5, pad: 0.7, expand: 0.7,
    gather: 0.7, blocks: 0.4, reduction: 2, places: 0.4, top: 0.4, rows: 2, normalization: 1.5,
    matmul: 2, products: 1.2, gemm: 1, convolution: 4, pooling: 1, resize: 0.7, gate: 0.5,
}  # fmt: skip


def model_of(seed: int) -> Any:
    """Return the random model of a number."""
    rng = np.random.default_rng(seed)
    m = Maker(rng)
    rank = m.one((1, 2, 2, 3, 3, 4, 4, 4, 4))
    m.input([m.one(EXTENTS) for _ in range(rank)])
    wanted = int(rng.integers(2, 7))
    functions, weights = list(OPERATORS), np.array(list(OPERATORS.values()))
    while len(m.nodes) < wanted:
        kept = len(m.nodes), len(m.values), len(m.inputs)
        try:
            functions[int(rng.choice(len(functions), p=weights / weights.sum()))](m)
        except NotPossibleError:
            del m.nodes[kept[0] :], m.inputs[kept[2] :]
            del m.values[kept[1] :]
    read = {name for node in m.nodes for name in node.input}
    made = [name for node in m.nodes for name in node.output]
    outputs = [name for name in made if name not in read]
    outputs += [name for name in made if name in read and m.chance(0.1)]
    return build(m.nodes, {v.name: v for v in m.inputs if v.name in read}, m.constants, outputs)


def build(nodes: Sequence[Any], inputs: dict[str, Value], constants: dict[str, Any], outputs: Sequence[str]) -> Any:
    read = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        list(nodes), "random",
        [_info(value) for name, value in inputs.items() if name in read],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in constants.items() if name in read],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    return shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


def _info(value: Value) -> Any:
    return helper.make_tensor_value_info(
        value.name, helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype)), value.shape
    )


# ---- Judge -----------------------------------------------------------------------------------------------------------


def feeds_of(model: Any, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    found = {}
    for value in model.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        if dtype.kind == "f":
            found[value.name] = np.asarray(rng.standard_normal(shape), dtype)
        else:
            found[value.name] = rng.integers(0, 2, shape).astype(dtype)
    return found


def session_of(model: Any) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def judge(model: Any, seed: int = 0, is_open: bool = False) -> str:
    """Return "right", "unknown: why" where onnxruntime cannot run it, "refused: why", or "wrong: how"."""
    feeds = feeds_of(model, seed)
    try:
        session = session_of(model)
        expected = session.run(None, feeds)
        nudged = session.run(None, {name: _nudged(array) for name, array in feeds.items()})
    except Exception as error:
        return f"unknown: {str(error).splitlines()[0][:120]}"
    try:
        got = computed(model, feeds, is_open)
    except ModelError as error:
        return f"refused: {str(error).splitlines()[-1][:200]}"
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"wrong: {type(error).__name__} at {Path(last.filename).name}:{last.lineno}: {str(error)[:160]}"
    for number, (mine, theirs, other) in enumerate(zip(got, expected, nudged, strict=True)):
        if mine.shape != theirs.shape or mine.dtype != theirs.dtype:
            return f"wrong: result {number} is {mine.dtype}{mine.shape}, not {theirs.dtype}{theirs.shape}"
        difference = _difference(mine, theirs, other)
        if difference and not _is_exact(model, feeds, number, mine):
            return f"wrong: result {number} {difference}"
    return "right"


def _is_exact(model: Any, feeds: dict[str, Any], number: int, mine: Any) -> bool:
    """Tell whether onnx's reference, whose order of operations is another one than onnxruntime's, says the same."""
    try:
        said = ReferenceEvaluator(model).run(None, feeds)[number]
    except Exception:  # it lacks some operators
        return False
    return mine.shape == said.shape and not _difference(mine, said, said)


def _nudged(array: Any) -> Any:
    if array.dtype.kind != "f":
        return array
    signs = np.random.default_rng(0).choice([-1, 1], array.shape)
    return np.asarray(array * (1 + NUDGE * signs), array.dtype)


def _difference(mine: Any, theirs: Any, nudged: Any) -> str:
    mine, theirs, nudged = (each.astype("float64") for each in (mine, theirs, nudged))
    known = np.isfinite(theirs) & np.isfinite(nudged)
    if not np.array_equal(mine[~known], theirs[~known], equal_nan=True):
        return "has other values where it is not finite"
    if not known.any():
        return ""
    size = np.abs(theirs[known]).max()
    shaken = ALLOWED * np.abs(theirs - nudged)[known].max()
    difference = np.abs(mine - theirs)[known]
    worst = float(difference.max()) if not np.isnan(difference).any() else float("inf")
    return f"differs by {worst:.3g} of {size:.3g}" if worst > TOLERANCE * size + FLOOR + shaken else ""


def smaller(model: Any, seed: int = 0, is_open: bool = False) -> Any:
    """Return a model with as few nodes and results as stay wrong."""
    found = True
    while found:
        found = False
        for candidate in _smaller_ones(model):
            if judge(candidate, seed, is_open).startswith("wrong"):
                model, found = candidate, True
                break
    return model


def _smaller_ones(model: Any) -> Iterator[Any]:
    graph = model.graph
    known = {v.name: v for v in (*graph.input, *graph.value_info, *graph.output)}
    values = {
        name: Value(
            name, tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim),
            helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type).name, False,
        )
        for name, info in known.items()
    }  # fmt: skip
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    outputs = [value.name for value in graph.output]
    if len(outputs) > 1:
        for name in outputs:
            yield _needed(graph.node, values, constants, [name])
        for name in outputs:
            yield _needed(graph.node, values, constants, [other for other in outputs if other != name])
    for number, node in enumerate(graph.node):
        rest = [other for k, other in enumerate(graph.node) if k != number]
        if rest:
            left = [name for name in outputs if name not in node.output]
            if left:  # what it gave becomes an input
                yield _needed(rest, values, constants, left)
            read = [name for name in node.input if name in values and name not in {v.name for v in graph.input}]
            if set(node.output) & set(outputs) and read:  # what it read becomes a result
                yield _needed(rest, values, constants, list(dict.fromkeys([*left, *read])))


def _needed(nodes: Sequence[Any], values: dict[str, Value], constants: dict[str, Any], outputs: Sequence[str]) -> Any:
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            needed.update(node.input)
            kept.append(node)
    made = {name for node in kept for name in node.output}
    inputs = {name: value for name, value in values.items() if name in needed and name not in made}
    return build(kept[::-1], inputs, constants, outputs)


# ---- Many ------------------------------------------------------------------------------------------------------------


def judged(first: int, count: int, is_open: bool = False) -> dict[int, str]:
    """Judge models in a process of their own, and in further ones after each that it does not survive."""
    found: dict[int, str] = {}
    while missing := [seed for seed in range(first, first + count) if seed not in found]:
        words = [sys.executable, __file__, "--here", "--first", str(missing[0]), "--count", str(len(missing))]
        words += ["--open"] * is_open
        try:
            done = subprocess.run(
                words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False, timeout=MOST_SECONDS
            )
            said, end = done.stdout, f"the process ended with {done.returncode}"
        except subprocess.TimeoutExpired as expired:
            said, end = expired.stdout or b"", f"it was not judged in {MOST_SECONDS} s"
        lines = [line.partition("\t") for line in said.decode().splitlines()]
        found.update((int(seed), verdict) for seed, tab, verdict in lines if tab)
        found.setdefault(next((seed for seed in missing if seed not in found), missing[-1]), f"wrong: {end}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--open", action="store_true", help="extents in front are not known")
    parser.add_argument("--here", action="store_true", help="judge in this process, and print each verdict")
    options = parser.parse_args()
    if options.here:
        warnings.simplefilter("ignore")
        for seed in range(options.first, options.first + options.count):
            try:
                verdict = judge(model_of(seed), seed, options.open)
            except shape_inference.InferenceError as error:  # two shapes that were inferred node by node contradict
                verdict = f"unknown: not generated: {error}"
            print(seed, verdict.replace("\n", " "), sep="\t", flush=True)
        return 0
    record: dict[str, Any] = {"models": 0, "counts": {}, "wrong": {}, "refused": {}}
    if options.record is not None and options.record.exists():
        record = json.loads(options.record.read_text())
    first = max(options.first, record["models"])
    end = max(first, options.first + options.count)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        again = [int(seed) for seed in record["wrong"]]
        record["counts"]["wrong"] = record["counts"].get("wrong", 0) - len(again)
        record["wrong"] = {}
        for found in pool.map(lambda seed: judged(seed, 1, options.open), again):
            _add(record, record["models"], found, options.open)
        parts = [(at, min(PER_PROCESS, end - at)) for at in range(first, end, PER_PROCESS)]
        for (at, count), found in zip(
            parts, pool.map(lambda part: judged(part[0], part[1], options.open), parts), strict=True
        ):
            _add(record, at + count, found, options.open)
            print(f"{at + count} of {end}: {record['counts']}", flush=True)
            if options.record is not None:
                options.record.write_text(json.dumps(record, indent=1) + "\n")
    if again and options.record is not None:
        options.record.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if record["wrong"] else 0


def _add(record: dict[str, Any], models: int, found: dict[int, str], is_open: bool) -> None:
    """Add verdicts to a record; a model that is wrong is made smaller, and printed."""
    record["models"] = models
    for seed, verdict in found.items():
        word, _, why = verdict.partition(": ")
        record["counts"][word] = record["counts"].get(word, 0) + 1
        if word == "refused":
            record["refused"][why[:80]] = record["refused"].get(why[:80], 0) + 1
        if word == "wrong":
            record["wrong"][str(seed)] = why
            print(f"{seed}: {verdict}")
            if "process ended" not in why:
                print(onnx.printer.to_text(smaller(model_of(seed), seed, is_open).graph), flush=True)


if __name__ == "__main__":
    sys.exit(main())
