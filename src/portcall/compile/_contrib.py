# SPDX-License-Identifier: Apache-2.0
"""Operators of onnxruntime's domain com.microsoft, which its optimizers and quantizers write, as operators of ONNX.

What they mean is what onnxruntime computes. Weights of a few bits become floats, and products of bytes stay such.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper

from portcall.compile._quantized import new_enough
from portcall.compile._rewriting import ONNX_DOMAINS, Nodes, opset_of, replace_operators
from portcall.compile._weights import copied

Array = Any
Model = Any
DOMAIN = "com.microsoft"
_NORMALIZING = 17  # the opset that has LayerNormalization
_PARAMETERS = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta"), "Elu": ("alpha",)}
_QUANTIZED_BY = ("scale", "zero point")
_HIDES = float(np.finfo("float32").min)  # what is added to the score of a later position


def replace_contrib(model: Model) -> Model:
    """Return the model with operators of ONNX in the place of those of com.microsoft that are known here.

    Raises:
        ModelError: one of them has a form that is not supported.
    """
    model = _in_one_domain(model)
    if not any(_writer_of(node) for node in model.graph.node):
        return model
    model = new_enough(model, _NORMALIZING) if any("Normalization" in n.op_type for n in model.graph.node) else (
        new_enough(model))  # fmt: skip
    return replace_operators(model, _writer_of)


def _writer_of(node: Any) -> Callable[[Nodes], None] | None:
    return _OPERATORS.get(node.op_type) if node.domain == DOMAIN else None


def _in_one_domain(model: Model) -> Model:
    """Return the model with what onnxruntime writes in ONNX's domain, but is not in that opset, in its own."""
    old = opset_of(model)
    late = {"LayerNormalization": old < _NORMALIZING, "SimplifiedLayerNormalization": True}
    if not any(node.domain in ONNX_DOMAINS and late.get(node.op_type) for node in model.graph.node):
        return model
    changed = copied(model)
    for node in changed.graph.node:
        if node.domain in ONNX_DOMAINS and late.get(node.op_type):
            node.domain = DOMAIN
    if not any(entry.domain == DOMAIN for entry in changed.opset_import):
        changed.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return changed


def _no_more(n: Nodes, first: int, what: str) -> None:
    """Refuse a node that has other results than its first ones."""
    if any(n.node.output[first:]):
        raise ValueError(f"{what} are not supported as results")


# ---- Products --------------------------------------------------------------------------------------------------------


def _turned(n: Nodes, name: str, last: bool, batch: bool) -> str:
    """Return a matrix with its last two axes exchanged, and the one before the last in front of the batch's."""
    if not last and not batch:
        return name
    rank = n.rank(name)
    order = list(range(rank))
    if batch:
        order = [*order[1:-1], 0, order[-1]]
    if last:
        order[-2:] = order[:-3:-1]
    return n.add("Transpose", name, perm=order)


def _fused_matmul(n: Nodes) -> None:
    a, b = (
        _turned(n, n.input(k), bool(n.attribute(f"trans{w}", 0)), bool(n.attribute(f"transBatch{w}", 0)))
        for k, w in enumerate("AB")
    )
    alpha = n.attribute("alpha", 1.0)
    if alpha == 1.0:
        n.add("MatMul", a, b, out=n.output(0))
    else:
        n.add("Mul", n.add("MatMul", a, b), n.stored(alpha), out=n.output(0))


def _activated(n: Nodes, x: str, parameters: list[float]) -> None:
    """Write the function at the end of a fused operator."""
    given = n.attribute("activation", b"")
    kind = given.decode() if isinstance(given, bytes) else given
    if not kind:
        n.add("Identity", x, out=n.output(0))
    elif kind == "Clip":
        low, high = parameters or (float(np.finfo("float32").min), float(np.finfo("float32").max))
        n.add("Clip", x, n.stored(low), n.stored(high), out=n.output(0))
    elif kind in ("Relu", "Sigmoid", "Tanh", "HardSwish", *_PARAMETERS):
        words = zip(_PARAMETERS.get(kind, ()), parameters, strict=False)
        n.add(kind, x, out=n.output(0), **dict(words))
    else:
        raise ValueError(f"the function {kind} is not supported")


def _copied(n: Nodes, op: str, *inputs: str) -> str:
    """Write a node with the attributes that are not those of its activation."""
    made = n.add(op, *inputs)
    n.nodes[-1].attribute.extend(a for a in n.node.attribute if not a.name.startswith("activation"))
    return made


def _fused_conv(n: Nodes) -> None:
    made = _copied(n, "Conv", *n.node.input[:3])
    if n.input(3):
        made = n.add("Add", made, n.input(3))
    _activated(n, made, list(n.attribute("activation_params", [])))


def _fused_gemm(n: Nodes) -> None:
    names = ("activation_alpha", "activation_beta")
    _activated(n, _copied(n, "Gemm", *n.node.input), [n.attribute(w) for w in names if n.attribute(w) is not None])


def _integer_product(n: Nodes, a: tuple[str, str, str], b: tuple[str, str, str], bias: str, out: str = "") -> str:
    """Write the product of quantized values: each with its scale and zero point."""
    sums = n.add("MatMulInteger", a[0], b[0], *([a[2], b[2]] if b[2] else [a[2]] if a[2] else []))
    scale = n.add("Mul", a[1], b[1])
    floats = n.add("Cast", sums, to=onnx.TensorProto.FLOAT)
    made = n.add("Mul", floats, scale, out="" if bias else out)
    return n.add("Add", made, bias, out=out) if bias else made


def _matmul_integer_to_float(n: Nodes) -> None:
    a, b = ((n.input(k), n.input(2 + k), n.input(4 + k)) for k in range(2))
    _integer_product(n, a, b, n.input(6), n.output(0))


def _quantized_now(n: Nodes, x: str) -> tuple[str, str, str]:
    bytes_, scale, zero = n.several("DynamicQuantizeLinear", [x], 3)
    return bytes_, scale, zero


def _dynamic_matmul(n: Nodes) -> None:
    b = (n.input(1), n.input(2), n.input(3))
    _integer_product(n, _quantized_now(n, n.input(0)), b, n.input(4), n.output(0))


def _of_few_bits(n: Nodes, packed: Array, bits: int) -> Array:
    """Return the integers of the last axis, the lowest bits of a byte first."""
    shifts = np.arange(0, 8, bits, dtype="uint8")
    return ((packed[..., None] >> shifts) & (2**bits - 1)).reshape(*packed.shape[:-1], -1)


def _matmul_nbits(n: Nodes) -> None:
    rows, columns, size, bits = (int(n.attribute(w, 4)) for w in ("K", "N", "block_size", "bits"))
    if n.input(4):
        raise ValueError("g_idx is not supported")
    blocks = -(-rows // size)
    scales = n.constant(2, "scales").reshape(columns, blocks, 1)
    integers = _of_few_bits(n, n.constant(1, "B").reshape(columns, blocks, -1), bits).astype("float32")
    zero: Array = np.float32(2 ** (bits - 1))
    if n.input(3):
        zero = n.constant(3, "zero points")
        zero = _of_few_bits(n, zero.reshape(columns, -1), bits)[:, :blocks] if zero.dtype == np.uint8 else zero
        zero = zero.reshape(columns, blocks, 1).astype("float32")
    matrix = ((integers - zero) * scales.astype("float32")).reshape(columns, -1)[:, :rows].T
    bias, stored = n.input(5), n.stored(np.ascontiguousarray(matrix), str(scales.dtype))
    made = n.add("MatMul", n.input(0), stored, out="" if bias else n.output(0))
    if bias:
        n.add("Add", made, bias, out=n.output(0))


# ---- Element by element, and normalizations --------------------------------------------------------------------------


def _bias_add(n: Nodes) -> None:
    n.add("Add", n.add("Add", n.input(0), n.input(1)), n.input(2), out=n.output(0))


def _gelu(n: Nodes) -> None:
    x = n.add("Add", n.input(0), n.input(1)) if n.input(1) else n.input(0)
    dtype = n.graph.dtype(n.input(0)) or "float32"
    if n.node.op_type == "FastGelu":
        cubic = n.add("Mul", n.add("Mul", n.add("Mul", x, x), x), n.stored(0.044715, dtype))
        inner = n.add("Tanh", n.add("Mul", n.add("Add", x, cubic), n.stored(np.sqrt(2 / np.pi), dtype)))
    else:
        inner = n.add("Erf", n.add("Mul", x, n.stored(np.sqrt(0.5), dtype)))
    half = n.add("Mul", x, n.stored(0.5, dtype))
    n.add("Mul", half, n.add("Add", inner, n.stored(1, dtype)), out=n.output(0))


def _quick_gelu(n: Nodes) -> None:
    alpha = n.stored(n.attribute("alpha", 1.702), n.graph.dtype(n.input(0)) or "float32")
    n.add("Mul", n.input(0), n.add("Sigmoid", n.add("Mul", n.input(0), alpha)), out=n.output(0))


def _normalized(n: Nodes, x: str, scale: str, shift: str, axis: int = -1) -> None:
    """Write a LayerNormalization, or one without the mean where the operator says so."""
    epsilon = n.attribute("epsilon", 1e-5 if n.node.op_type == "LayerNormalization" else 1e-12)
    if "Simplified" not in n.node.op_type:
        words = [scale, shift] if shift else [scale]
        n.add("LayerNormalization", x, *words, out=n.output(0), axis=axis, epsilon=epsilon)
        return
    if axis != -1 and axis + 1 != n.graph.rank(x):
        raise ValueError("other axes than the last one are not supported")
    dtype = n.graph.dtype(scale) or "float32"
    epsilon = n.attribute("epsilon", 1e-5)
    mean = n.reduced("ReduceMean", n.add("Mul", x, x), [-1])
    size = n.add("Sqrt", n.add("Add", mean, n.stored(epsilon, dtype)))
    n.add("Mul", n.add("Div", x, size), scale, out=n.output(0))


def _layer_normalization(n: Nodes) -> None:
    _no_more(n, 1, "mean and deviation")
    _normalized(n, n.input(0), n.input(1), n.input(2), n.attribute("axis", -1))


def _skip_normalization(n: Nodes) -> None:
    if n.output(1) or n.output(2):
        raise ValueError("mean and deviation are not supported as results")
    shift, bias = (n.input(3), n.input(4)) if "Simplified" not in n.node.op_type else ("", n.input(3))
    sum_of = n.add("Add", n.input(0), n.input(1), out="" if bias else n.output(3))
    x = n.add("Add", sum_of, bias, out=n.output(3)) if bias else sum_of
    _normalized(n, x, n.input(2), shift)


def _embed_normalization(n: Nodes) -> None:
    ids, segments, words, places, kinds, scale, shift, mask, at = (n.input(k) for k in range(9))
    x = n.add("Gather", words, ids)
    if at:
        of_places = n.add("Gather", places, at)
    else:
        length = n.add("Slice", n.add("Shape", ids), *(n.stored([k], "int64") for k in (1, 2)))
        of_places = n.add("Slice", places, n.stored([0], "int64"), length, n.stored([0], "int64"))
    x = n.add("Add", x, of_places)
    x = n.add("Add", x, n.add("Gather", kinds, segments)) if segments else x
    if n.output(2):
        n.add("Identity", x, out=n.output(2))
    _normalized(n, x, scale, shift)
    if n.output(1) and mask:
        n.reduced("ReduceSum", mask, [1], out=n.output(1), keepdims=0)
    elif n.output(1):
        first = n.add("Slice", n.add("Shape", ids), *(n.stored([k], "int64") for k in (0, 1)))
        n.add("ConstantOfShape", first, out=n.output(1), value=helper.make_tensor("zero", 6, [1], [0]))


def _distances(n: Nodes) -> None:
    axes = [n.stored([k], "int64") for k in (1, 0)]
    a, b = (n.add("Unsqueeze", n.input(k), axes[k]) for k in range(2))
    difference = n.add("Sub", a, b)
    squares = n.reduced("ReduceSum", n.add("Mul", difference, difference), [2], keepdims=0)
    n.add("Sqrt" if n.attribute("metric", b"") == b"euclidean" else "Identity", squares, out=n.output(0))


# ---- Quantized values ------------------------------------------------------------------------------------------------


def _quantized(op: str, operands: tuple[int, ...], to: int, plain: tuple[int, ...] = ()) -> Callable[[Nodes], None]:
    """Return what writes an operator of quantized values as one of floats."""

    def write(n: Nodes) -> None:
        floats = [n.add("DequantizeLinear", *n.node.input[k : k + 3]) for k in operands]
        inputs = [*(n.input(k) for k in plain), *floats]
        axis = {"axis": n.attribute("axis", -1)} if op == "Softmax" else {}
        n.add("QuantizeLinear", n.add(op, *inputs, **axis), *n.node.input[to : to + 2], out=n.output(0))

    return write


def _softmax(n: Nodes) -> None:
    axis, rank = n.attribute("axis", -1), n.graph.rank(n.input(0))
    if n.attribute("opset", 13) >= 13 or axis == -1 or axis + 1 == rank:
        _quantized("Softmax", (0,), 3)(n)
        return
    x = n.add("DequantizeLinear", *n.node.input[:3])  # older ones are over all axes from this one on
    rows = n.add("Softmax", n.add("Flatten", x, axis=axis), axis=-1)
    n.add("QuantizeLinear", n.add("Reshape", rows, n.add("Shape", x)), *n.node.input[3:5], out=n.output(0))


def _pool_of_channels(n: Nodes) -> None:
    rank = n.rank(n.input(0))
    made = n.add("MaxPool", n.add("Transpose", n.input(0), perm=[0, rank - 1, *range(1, rank - 1)]))
    n.nodes[-1].attribute.extend(n.node.attribute)
    n.add("Transpose", made, perm=[0, *range(2, rank), 1], out=n.output(0))


def _recurrent(n: Nodes) -> None:
    """Write a quantized LSTM as one of floats; its sequence is rounded as onnxruntime does."""

    def weights(place: int, word: str) -> str:
        scale, zero = (n.constant(6 + 2 * place + k, f"{what} of {word}") for k, what in enumerate(_QUANTIZED_BY))
        along = [scale.shape[0], 1, -1] if scale.ndim == 2 else [-1, 1, 1]
        values = n.constant(place, word).astype("float32") - zero.astype("float32").reshape(along)
        return n.stored((values * scale.reshape(along)).transpose(0, 2, 1))

    bytes_, scale, zero = (n.add("Cast", part, to=onnx.TensorProto.FLOAT) for part in _quantized_now(n, n.input(0)))
    x = n.add("Mul", n.add("Sub", bytes_, zero), scale)
    made = helper.make_node("LSTM", [x, weights(1, "W"), weights(2, "R"), *n.node.input[3:8]], list(n.node.output))
    made.name = n.node.name
    made.attribute.extend(n.node.attribute)
    n.nodes.append(made)


# ---- Attention -------------------------------------------------------------------------------------------------------


def _mask(n: Nodes, mask: str, hides: float) -> str:
    """Return what a mask of zeros and ones adds to the scores: [batch, 1, 1 or steps, steps]."""
    rank = n.rank(mask)
    if rank not in (2, 3):
        raise ValueError(f"a mask of {rank} axes is not supported")
    axes = n.stored([1, 2] if rank == 2 else [1], "int64")
    floats = n.add("Cast", n.add("Unsqueeze", mask, axes), to=onnx.TensorProto.FLOAT)
    return n.add("Mul", n.add("Sub", n.stored(1), floats), n.stored(hides))


def _heads(n: Nodes, x: str, heads: int) -> str:
    """Return [batch, steps, features] as [batch, heads, steps, features of one]."""
    return n.add("Transpose", n.add("Reshape", x, n.stored([0, 0, heads, -1], "int64")), perm=[0, 2, 1, 3])


def _attend(n: Nodes, q: str, k: str, v: str, size: int, added: list[str]) -> None:
    """Write softmax(q k / sqrt(size) + what is added) v; operands are by heads."""
    scale = n.attribute("scale", 0.0) or 1 / np.sqrt(size)
    scores = n.add("MatMul", q, n.add("Transpose", k, perm=[0, 1, 3, 2]))
    scores = n.add("Mul", scores, n.stored(scale))
    for each in added:
        scores = n.add("Add", scores, each)
    made = n.add("MatMul", n.add("Softmax", scores, axis=-1), v)
    made = n.add("Transpose", made, perm=[0, 2, 1, 3])
    n.add("Reshape", made, n.stored([0, 0, -1], "int64"), out=n.output(0))


def _causal(n: Nodes, steps: int, before: int) -> str:
    later = np.arange(steps + before) > np.arange(steps)[:, None] + before
    return n.stored(np.where(later, _HIDES, 0))


def _attention(n: Nodes) -> None:
    quantized = n.node.op_type == "QAttention"
    # QAttention has its zero points between mask and past, Attention has a bias after past.
    mask, past, added = (n.input(5), n.input(8), "") if quantized else (n.input(3), n.input(4), n.input(5))
    if n.attribute("do_rotary", 0) or n.attribute("past_present_share_buffer", 0):
        raise ValueError("rotary positions and shared buffers are not supported")
    heads = n.attribute("num_heads")
    if quantized:
        x, w = (n.input(0), n.input(3), n.input(6)), (n.input(1), n.input(4), n.input(7))
        every = _integer_product(n, x, w, n.input(2))
    else:
        every = n.add("MatMul", n.input(0), n.input(1))
        every = n.add("Add", every, n.input(2)) if n.input(2) else every
    total = n.extent(n.input(1), 1)
    sizes = list(n.attribute("qkv_hidden_sizes", []) or [total // 3] * 3)
    q, k, v = (_heads(n, part, heads) for part in n.several(
        "Split", [every, n.stored(sizes, "int64")], 3, axis=-1))  # fmt: skip
    before = 0
    if past:
        before = n.extent(past, 3)
        parts = [n.add("Gather", past, n.stored(number, "int64"), axis=0) for number in range(2)]
        k, v = (n.add("Concat", old, new, axis=2) for old, new in zip(parts, (k, v), strict=True))
    if n.output(1):
        front = n.stored([0], "int64")
        n.add("Concat", *(n.add("Unsqueeze", part, front) for part in (k, v)), axis=0, out=n.output(1))
    masks = [_causal(n, n.extent(n.input(0), 1), before)] if n.attribute("unidirectional", 0) else []
    masks += [_mask(n, mask, n.attribute("mask_filter_value", -10000.0))] if mask else []
    _attend(n, q, k, v, sizes[0] // heads, [*masks, *([added] if added else [])])


def _multi_head_attention(n: Nodes) -> None:
    q, k, v = (n.input(place) for place in range(3))
    if not k or not v or any(n.graph.rank(part) not in (3, None) for part in (q, k, v)) or any(
        n.input(place) for place in (6, 7, 8, 9)
    ):  # fmt: skip
        raise ValueError("packed operands and a past are not supported")
    _no_more(n, 1, "keys, values and scores")
    heads, size = n.attribute("num_heads"), n.extent(q, 2)
    if n.input(3):
        sizes = [size, size, n.extent(v, 2)]
        parts = n.several("Split", [n.input(3), n.stored(sizes, "int64")], 3, axis=0)
        q, k, v = (n.add("Add", part, bias) for part, bias in zip((q, k, v), parts, strict=True))
    masks = [_causal(n, n.extent(n.input(0), 1), 0)] if n.attribute("unidirectional", 0) else []
    masks += [_mask(n, n.input(4), n.attribute("mask_filter_value", -10000.0))] if n.input(4) else []
    q, k, v = (_heads(n, part, heads) for part in (q, k, v))
    _attend(n, q, k, v, size // heads, [*masks, *filter(None, [n.input(5)])])


_OPERATORS: Mapping[str, Callable[[Nodes], None]] = {
    "Attention": _attention,
    "BiasAdd": _bias_add,
    "BiasGelu": _gelu,
    "CDist": _distances,
    "DynamicQuantizeLSTM": _recurrent,
    "DynamicQuantizeMatMul": _dynamic_matmul,
    "EmbedLayerNormalization": _embed_normalization,
    "FastGelu": _gelu,
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "Gelu": _gelu,
    "LayerNormalization": _layer_normalization,
    "MatMulIntegerToFloat": _matmul_integer_to_float,
    "MatMulNBits": _matmul_nbits,
    "MultiHeadAttention": _multi_head_attention,
    "NhwcMaxPool": _pool_of_channels,
    "QAttention": _attention,
    "QLinearSoftmax": _softmax,
    "QLinearWhere": _quantized("Where", (1, 4), 7, plain=(0,)),
    "QuickGelu": _quick_gelu,
    "SimplifiedLayerNormalization": _layer_normalization,
    "SkipLayerNormalization": _skip_normalization,
    "SkipSimplifiedLayerNormalization": _skip_normalization,
    "TransposeMatMul": _fused_matmul,
}
