# SPDX-License-Identifier: Apache-2.0
"""Operators of signals as products with constant matrices, and as convolutions with constant weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
from onnx import helper

from portcall.compile._rewriting import Nodes, UnknownError, evaluated

Array = Any
_MOST_WEIGHTS = 1 << 24  # of a matrix that is made


def _waves(rows: int, length: int, onesided: bool) -> tuple[Array, Array]:
    """Return the real and the imaginary part of e**(-2 pi i r k / length), for each row and frequency."""
    count = length // 2 + 1 if onesided else length
    if rows * count > _MOST_WEIGHTS:
        raise ValueError(f"a transform of {rows} values to {count} is too large")
    angles = 2 * np.pi * (np.outer(np.arange(rows), np.arange(count)) % length) / length
    return np.cos(angles), -np.sin(angles)


def _dft(n: Nodes) -> None:
    x, rank = n.input(0), n.rank(n.input(0))
    dtype = n.graph.dtype(x)
    if n.input(2):
        axis = int(n.constant(2, "axis").reshape(-1)[0])
    else:
        axis = int(n.attribute("axis", 1 if n.graph.opset.get("ai.onnx", 1) < _AXIS_IS_INPUT else -2))
    axis %= rank
    extent, parts = n.extent(x, axis), n.extent(x, rank - 1)
    length = int(n.constant(1, "length").reshape(-1)[0]) if n.input(1) else extent
    onesided, inverse = bool(n.attribute("onesided", 0)), bool(n.attribute("inverse", 0))
    if axis == rank - 1 or parts not in (1, 2) or (inverse and onesided):
        raise ValueError("this form of a transform is not supported")
    rows = min(extent, length)
    real, imaginary = _waves(rows, length, onesided)
    if inverse:
        real, imaginary = real / length, -imaginary / length
    count = real.shape[1]
    matrix = np.zeros((rows, parts, count, 2))
    matrix[:, 0, :, 0], matrix[:, 0, :, 1] = real, imaginary
    if parts == 2:
        matrix[:, 1, :, 0], matrix[:, 1, :, 1] = -imaginary, real
    if rows < extent:
        x = n.add("Slice", x, *(n.stored([k], "int64") for k in (0, rows, axis)))
    order = [*(k for k in range(rank - 1) if k != axis), axis, rank - 1]
    lead = [n.extent(n.input(0), k) for k in order[:-2]]
    flat = n.add("Reshape", n.add("Transpose", x, perm=order), n.stored([*lead, rows * parts], "int64"))
    made = n.add("MatMul", flat, n.stored(matrix.reshape(rows * parts, count * 2), dtype))
    made = n.add("Reshape", made, n.stored([*lead, count, 2], "int64"))
    n.add("Transpose", made, out=n.output(0), perm=[int(k) for k in np.argsort(order)])


def _stft(n: Nodes) -> None:
    x, step = n.input(0), int(n.constant(1, "step").reshape(-1)[0])
    dtype, rank = n.graph.dtype(x), n.rank(x)
    batch, length = n.extent(x, 0), n.extent(x, 1)
    if rank == 3 and n.extent(x, 2) != 1:
        raise ValueError("complex signals are not supported")
    window = n.constant(2, "window").astype("float64") if n.input(2) else None
    size = int(n.constant(3, "length of a frame").reshape(-1)[0]) if n.input(3) else 0
    size = size or (length if window is None else len(window))
    if step < 1 or not 0 < size <= length or (window is not None and len(window) != size):
        raise ValueError(f"frames of {size} in steps of {step} do not fit")
    onesided = bool(n.attribute("onesided", 1))
    waves = [part * (1 if window is None else window[:, None]) for part in _waves(size, size, onesided)]
    count = waves[0].shape[1]
    weights = np.concatenate([part.T for part in waves])[:, None]
    row = n.add("Reshape", x, n.stored([batch, 1, length], "int64"))
    made = n.add("Conv", row, n.stored(weights, dtype), strides=[step], kernel_shape=[size])
    frames = (length - size) // step + 1
    made = n.add("Reshape", made, n.stored([batch, 2, count, frames], "int64"))
    n.add("Transpose", made, out=n.output(0), perm=[0, 3, 2, 1])


def _col2im(n: Nodes) -> None:
    """Write a Col2Im as a transposed convolution: each element of a block has a weight of 1 at its place."""
    x, picture, block = n.input(0), *([int(k) for k in n.constant(place, "shapes")] for place in (1, 2))
    axes = len(picture)
    strides, dilations = (list(n.attribute(word, [1] * axes)) for word in ("strides", "dilations"))
    pads = list(n.attribute("pads", [0] * 2 * axes))
    batch, channels = n.extent(x, 0), n.extent(x, 1) // prod(block)
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, block, strict=True)]
    whole = [extent + pads[k] + pads[k + axes] for k, extent in enumerate(picture)]
    counts = [(w - r) // s + 1 for w, r, s in zip(whole, reach, strides, strict=True)]
    if prod(counts) != n.extent(x, 2):
        raise ValueError(f"it has {n.extent(x, 2)} blocks instead of {prod(counts)}")
    rest = [w - (c - 1) * s - r for w, c, s, r in zip(whole, counts, strides, reach, strict=True)]
    weights = np.eye(prod(block)).reshape(prod(block), 1, *block)
    blocks = n.add("Reshape", x, n.stored([batch * channels, prod(block), *counts], "int64"))
    made = n.add(
        "ConvTranspose", blocks, n.stored(weights, n.graph.dtype(x)), strides=strides, dilations=dilations, pads=pads,
        output_padding=rest, kernel_shape=block,
    )  # fmt: skip
    n.add("Reshape", made, n.stored([batch, channels, *picture], "int64"), out=n.output(0))


def _known(n: Nodes) -> None:
    """Write what depends on constants alone."""
    for place in range(len(n.node.input)):
        n.constant(place, f"input {place}")
    found = evaluated(n.graph, n.node)
    if found is None:
        raise ValueError("onnx cannot compute it")
    n.add("Identity", n.graph.constant(n.node.op_type, found[0]), out=n.output(0))


def _eye(n: Nodes) -> None:
    shape, kind = n.graph.shape(n.input(0)), n.attribute("dtype")
    if shape is None:
        raise UnknownError(f"the shape of '{n.input(0)}' is not fixed")
    ones = np.eye(shape[0], shape[1], int(n.attribute("k", 0)))
    dtype = n.graph.dtype(n.input(0)) if kind is None else str(helper.tensor_dtype_to_np_dtype(kind))
    n.add("Identity", n.stored(ones, dtype), out=n.output(0))


_AXIS_IS_INPUT = 20  # the opset since which that of a DFT is
WRITTEN: Mapping[str, Callable[[Nodes], None]] = {
    "DFT": _dft, "STFT": _stft, "Col2Im": _col2im, "EyeLike": _eye,
    **dict.fromkeys(("MelWeightMatrix", "HannWindow", "HammingWindow", "BlackmanWindow"), _known),
}  # fmt: skip
