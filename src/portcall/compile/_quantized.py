# SPDX-License-Identifier: Apache-2.0
"""Quantized models: what they say of integers and scales, written with integer products and plain arithmetic.

A convolution or product of dequantized values (QDQ) and one of QLinearConv's kind become the same: a product of
integers (ConvInteger, MatMulInteger), whose sums are scaled. What stands around it, such as an activation and the next
QuantizeLinear, is element-wise, so that all of it becomes one kernel.

Rounding is that of QuantizeLinear, to the nearest, halves to even. Scales that follow each other are multiplied when
the model is compiled, as onnxruntime does; results differ from its by one step of quantization at the most.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import helper, version_converter

from portcall.compile._rewriting import Graph, attribute_of, opset_of, refusal
from portcall.errors import ModelError

Array = Any
# Operators of quantized values: where each has its operands, as (value, scale, zero point), and where its result's.
_TRIPLES: dict[str, tuple[str, tuple[int, ...], int]] = {
    "QLinearAdd": ("Add", (0, 3), 6),
    "QLinearMul": ("Mul", (0, 3), 6),
    "QLinearSigmoid": ("Sigmoid", (0,), 3),
    "QLinearLeakyRelu": ("LeakyRelu", (0,), 3),
    "QLinearGlobalAveragePool": ("GlobalAveragePool", (0,), 3),
    "QLinearAveragePool": ("AveragePool", (0,), 3),
}
_PRODUCTS = ("QLinearConv", "QLinearMatMul", "QGemm")
OPERATORS = frozenset((*_TRIPLES, *_PRODUCTS, "QLinearConcat", "ConvInteger"))
_QUANTIZED = OPERATORS | {
    "QuantizeLinear", "DequantizeLinear", "MatMulInteger", "DynamicQuantizeLinear", "DynamicQuantizeLSTM",
    "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "QAttention",
}  # fmt: skip
_OLDEST = 13  # the opset in which the operators that are written here mean what they mean today
_BYTES = ("int8", "uint8")


def is_quantized(model: Any) -> bool:
    return any(node.op_type in _QUANTIZED for node in model.graph.node)


def new_enough(model: Any, least: int = _OLDEST) -> Any:
    """Return a model of an opset that has what it is rewritten with.

    Raises:
        ModelError: onnx cannot convert it.
    """
    version = opset_of(model)
    if version >= least:
        return model
    try:
        return version_converter.convert_version(model, least)
    except Exception as error:  # onnx's C++ raises errors without a class
        text = f"the model of opset {version} cannot be converted to {least}: {error}"
        raise ModelError(text, hint=f"export it for opset {least} or later") from None


@dataclass(frozen=True)
class _Scale:
    """What integers stand for: (integer - zero) * scale.

    Attributes:
        scale, zero: numbers, or an element for each place of the axis.
    """

    scale: Array
    zero: Array
    axis: int = 0

    def along(self, array: Array, rank: int) -> Array:
        """Return numbers of an axis in a shape that can be multiplied with a value of so many axes."""
        if array.size == 1:
            return array.reshape(())
        return array.reshape([-1 if k == self.axis % rank else 1 for k in range(rank)])


@dataclass(frozen=True)
class _Sums:
    """A value that is ``max(sums * scale + shift, 0)``, or that without the maximum; arrays are of its axes."""

    sums: str
    scale: Array
    shift: Array | None = None
    positive: bool = False


def replace_quantized(graph: Graph) -> None:
    """Replace what quantizes and dequantizes, and products of what was dequantized.

    Raises:
        ModelError: scales that are not constant where that is not supported.
    """
    rewriter = _Rewriter(graph)
    for number, node in enumerate(graph.nodes):
        try:
            rewriter.take(node)
        except ValueError as error:
            raise refusal(node, number, error) from None
    graph.nodes = rewriter.nodes
    graph.drop_unused()


class _Rewriter:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Any] = []
        self.dequantized: dict[str, tuple[str, _Scale]] = {}  # what was dequantized: the integers, and how
        self.sums: dict[str, _Sums] = {}
        self.ranks: dict[str, int] = {}
        self.readers: Counter[str] = graph.readers()

    # ---- Nodes -------------------------------------------------------------------------------------------------------

    def add(self, op: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> str:
        name = output or self.graph.name(op.lower())
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def number(self, value: Array, dtype: str = "float32") -> str:
        return self.graph.constant("scale", np.asarray(value).astype(dtype))

    def take(self, node: Any) -> None:
        """Add a node, or what it is replaced with."""
        method = getattr(self, f"take_{node.op_type}", None)
        if node.op_type in _TRIPLES:
            method = self.take_operator
        if method is None or not method(node):
            self.nodes.append(node)

    def take_Relu(self, node: Any) -> bool:
        known = self.sums.get(node.input[0])
        if known is not None:
            self.sums[node.output[0]] = replace(known, positive=True)
        return False

    def take_DequantizeLinear(self, node: Any) -> bool:
        how = self._scale(node, 1)
        if how is None or attribute_of(node, "block_size", 0):
            return False
        self.dequantized[node.output[0]] = (node.input[0], how)
        return self._dequantize(node.input[0], how, node.output[0])

    def take_QuantizeLinear(self, node: Any) -> bool:
        how = self._scale(node, 1)
        if how is None or attribute_of(node, "block_size", 0) or attribute_of(node, "precision", 0):
            return False
        zero = node.input[2] if len(node.input) > 2 else ""
        kind = attribute_of(node, "output_dtype", 0)
        dtype = self.graph.dtype(zero) if zero else str(helper.tensor_dtype_to_np_dtype(kind)) if kind else "uint8"
        return self._quantize(node.input[0], how, node.output[0], dtype)

    def take_Conv(self, node: Any) -> bool:
        x, w = (self.dequantized.get(name) for name in node.input[:2])
        if x is None or w is None or w[0] not in self.graph.constants:
            return False
        bias = node.input[2] if len(node.input) > 2 else ""
        return self._convolution(node, x, w, self._constant_bias(bias) if bias else None, node.output[0])

    def take_MatMul(self, node: Any) -> bool:
        a, b = (self.dequantized.get(name) for name in node.input)
        return a is not None and b is not None and self._product(a, b, None, node.output[0])

    def take_Gemm(self, node: Any) -> bool:
        a, b = (self.dequantized.get(name) for name in node.input[:2])
        plain = attribute_of(node, "alpha", 1.0) == attribute_of(node, "beta", 1.0) == 1.0
        if a is None or b is None or not plain or attribute_of(node, "transA", 0):
            return False
        bias = self._constant_bias(node.input[2]) if len(node.input) > 2 and node.input[2] else None
        if b[0] not in self.graph.constants:
            return False
        return self._product(a, self._turned(b, node), bias, node.output[0])

    def take_QLinearConv(self, node: Any) -> bool:
        x, w = self._triple(node, 0), self._triple(node, 3)
        bias = self._bias_of(node, 8, x[1].scale * w[1].scale)
        result = self.graph.name("float")
        if w[0] not in self.graph.constants:
            raise ValueError("its weights must be constant")
        if not self._convolution(node, x, w, bias, result):
            raise ValueError("other integers than 8 bits are not supported")
        return self._quantize(result, self._constants(node, 6, 7), node.output[0])

    def take_QLinearMatMul(self, node: Any) -> bool:
        a, b = self._triple(node, 0, -2), self._triple(node, 3, -1)
        result = self.graph.name("float")
        if not self._product(a, b, None, result):
            left, right = (self._as_float(*each) for each in (a, b))
            self.add("MatMul", [left, right], result)
        return self._quantize(result, self._constants(node, 6, 7), node.output[0])

    def take_QGemm(self, node: Any) -> bool:
        a, b = self._triple(node, 0), self._triple(node, 3)
        if attribute_of(node, "transA", 0) or attribute_of(node, "alpha", 1.0) != 1.0:
            raise ValueError("transA and alpha are not supported")
        if b[0] not in self.graph.constants:
            raise ValueError("its weights must be constant")
        quantizes = len(node.input) > 7 and bool(node.input[7])
        result = self.graph.name("float") if quantizes else node.output[0]
        bias = self._bias_of(node, 6, a[1].scale * b[1].scale)
        if not self._product(a, self._turned(b, node), bias, result):
            raise ValueError("other integers than 8 bits are not supported")
        return self._quantize(result, self._triple(node, 6)[1], node.output[0]) if quantizes else True

    def take_operator(self, node: Any) -> bool:
        """Take an operator of quantized values that is computed with floats."""
        op, places, to = _TRIPLES[node.op_type]
        if attribute_of(node, "channels_last", 0):
            raise ValueError("channels_last is not supported")
        inputs = [self._as_float(*self._triple(node, place)) for place in places]
        result = self.graph.name("float")
        made = helper.make_node(op, inputs, [result])
        made.attribute.extend(each for each in node.attribute if each.name != "channels_last")
        self.nodes.append(made)
        how = self._constants(node, to, to + 1)
        return self._quantize(result, how, node.output[0])

    def take_QLinearConcat(self, node: Any) -> bool:
        inputs = [self._as_float(*self._triple(node, place)) for place in range(2, len(node.input), 3)]
        result = self.add("Concat", inputs, axis=attribute_of(node, "axis", 0))
        return self._quantize(result, self._constants(node, 0, 1), node.output[0])

    # ---- Scales ------------------------------------------------------------------------------------------------------

    def _constants(self, node: Any, scale: int, zero: int, axis: int = 0) -> _Scale:
        names = [node.input[k] if k < len(node.input) else "" for k in (scale, zero)]
        if any(name and name not in self.graph.constants for name in names):
            raise ValueError("its scales and zero points must be constant")
        zeros = self.graph.constants[names[1]] if names[1] else np.zeros((), "uint8")
        return _Scale(self.graph.constants[names[0]], zeros, axis)

    def _triple(self, node: Any, place: int, axis: int = 0) -> tuple[str, _Scale]:
        """Return an operand and how it is quantized."""
        return node.input[place], self._constants(node, place + 1, place + 2, axis)

    def _scale(self, node: Any, place: int) -> _Scale | None:
        """Return the scale of QuantizeLinear and the like; None if it is not constant, or has several axes."""
        try:
            found = self._constants(node, place, place + 1, attribute_of(node, "axis", 1))
        except ValueError:
            return None
        rank = self._rank(node.input[0])
        if found.scale.ndim > 1 or (found.scale.size > 1 and rank is None):
            return None
        return replace(found, axis=0) if rank == 1 else found

    def _rank(self, name: str) -> int | None:
        shape = self.graph.shape(name)
        return self.ranks.get(name) if shape is None else len(shape)

    def _constant_bias(self, name: str) -> Array | str:
        """Return a bias as an array of floats, or its name."""
        if name in self.dequantized and self.dequantized[name][0] in self.graph.constants:
            integers, how = self.dequantized[name]
            return (self.graph.constants[integers] - how.zero.astype("int64")) * how.scale.astype("float64")
        return self.graph.constants.get(name, name)

    def _bias_of(self, node: Any, place: int, scale: Array) -> Array | None:
        """Return the bias of a product of integers, which has the scale of its sums."""
        name = node.input[place] if len(node.input) > place else ""
        if not name:
            return None
        if name not in self.graph.constants:
            raise ValueError("its bias must be constant")
        return self.graph.constants[name] * scale.astype("float64")

    # ---- Products ----------------------------------------------------------------------------------------------------

    def _turned(self, b: tuple[str, _Scale], node: Any) -> tuple[str, _Scale]:
        """Return a constant right matrix [steps, columns]; its scales are those of columns."""
        name, how = b
        if not attribute_of(node, "transB", 0):
            return name, replace(how, axis=-1)
        return self.graph.constant("turned", np.ascontiguousarray(self.graph.constants[name].T)), replace(how, axis=-1)

    def _fits(self, x: tuple[str, _Scale], w: tuple[str, _Scale]) -> bool:
        dtypes = [self._dtype(name) for name, _ in (x, w)]
        return all(dtype in _BYTES for dtype in dtypes) and x[1].scale.size == x[1].zero.size == 1

    def _dtype(self, name: str) -> str:
        return self.graph.dtype(name) or "uint8"

    def _convolution(
        self, node: Any, x: tuple[str, _Scale], w: tuple[str, _Scale], bias: Array | str | None, result: str
    ) -> bool:
        if not self._fits(x, w):
            return False
        weights = self.graph.constants[w[0]]
        sums = self.add("ConvInteger", [x[0], w[0], self._zero(x), self._zero(w)])
        self.nodes[-1].attribute.extend(node.attribute)
        along = [1, -1, *[1] * (weights.ndim - 2)]
        scale = (x[1].scale.astype("float64") * w[1].scale.astype("float64")).reshape(-1)
        scale = np.broadcast_to(scale, weights.shape[0]).reshape(along)
        return self._scaled(sums, scale, bias, along, weights.ndim, result)

    def _product(self, a: tuple[str, _Scale], b: tuple[str, _Scale], bias: Array | str | None, result: str) -> bool:
        matrix = self.graph.constants.get(b[0])
        if matrix is None or matrix.ndim != 2 or not self._fits(a, b):
            return False
        sums = self.add("MatMulInteger", [a[0], b[0], self._zero(a), self._zero(b)])
        scale = (a[1].scale.astype("float64") * b[1].scale.astype("float64")).reshape(-1)
        return self._scaled(sums, scale if scale.size > 1 else scale.reshape(()), bias, None, 2, result)

    def _zero(self, operand: tuple[str, _Scale]) -> str:
        zero = operand[1].zero.astype(self._dtype(operand[0]))
        return self.graph.constant("zero", zero.reshape(()) if zero.size == 1 else zero.reshape(-1))

    def _scaled(
        self, sums: str, scale: Array, bias: Array | str | None, along: Sequence[int] | None, rank: int, result: str
    ) -> bool:
        """Add what makes floats of sums of integers, and remember it for a QuantizeLinear after it."""
        floats = self.add("Cast", [sums], to=onnx.TensorProto.FLOAT)
        shift = None
        if isinstance(bias, np.ndarray):
            shift = bias.reshape(along) if along is not None and bias.ndim == 1 else bias
        if not isinstance(bias, str):
            self.sums[result] = _Sums(floats, scale, shift)
        self.ranks[result] = rank
        if bias is None:
            self.add("Mul", [floats, self.number(scale)], result)
            return True
        product = self.add("Mul", [floats, self.number(scale)])
        self.add("Add", [product, bias if isinstance(bias, str) else self.number(shift)], result)
        return True

    # ---- To floats and back ------------------------------------------------------------------------------------------

    def _as_float(self, name: str, how: _Scale) -> str:
        result = self.graph.name("float")
        self._dequantize(name, how, result)
        return result

    def _dequantize(self, name: str, how: _Scale, result: str) -> bool:
        rank = self._rank(name) or 1
        kind = helper.np_dtype_to_tensor_dtype(how.scale.dtype)
        dtype = str(how.scale.dtype)
        floats = self.add("Cast", [name], to=kind)
        if how.zero.any():
            floats = self.add("Sub", [floats, self.number(how.along(how.zero, rank), dtype)])
        self.add("Mul", [floats, self.number(how.along(how.scale, rank), dtype)], result)
        if self._rank(name) is not None:
            self.ranks[result] = rank
        return True

    def _quantize(self, name: str, how: _Scale, result: str, dtype: str = "") -> bool:
        dtype = dtype or str(how.zero.dtype)
        if dtype not in ("int8", "uint8", "int16", "uint16"):
            return False
        floats = self.graph.dtype(name) or "float32"
        rank = self._rank(name) or 1
        step, zero = how.along(how.scale, rank), how.along(how.zero, rank)
        limits = np.iinfo(dtype)
        low: float = limits.min
        known = self.sums.get(name)
        if known is not None and step.ndim == 0 and zero.ndim == 0:
            value = self.add("Mul", [known.sums, self.number(known.scale / step.astype("float64"))])
            if known.shift is not None:
                value = self.add("Add", [value, self.number(known.shift / step.astype("float64"))])
            low = max(low, int(zero)) if known.positive else low
        else:
            value = self.add("Div", [name, self.number(step, floats)])
        value = self.add("Round", [value])
        if zero.any():
            value = self.add("Add", [value, self.number(zero, floats)])
        value = self.add("Min", [self.add("Max", [value, self.number(low, floats)]), self.number(limits.max, floats)])
        self.add("Cast", [value], result, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
        if self._rank(name) is not None:
            self.ranks[result] = rank
        return True
