# SPDX-License-Identifier: Apache-2.0
"""Transposed convolutions with few results, as ordinary ones with more: those of neighbouring pixels at once.

A vector of few channels would be mostly empty. So all s x s pixels that a stride makes of one are the channels of a
convolution, which are put beside each other then: one that makes a picture of features, or sound of a spectrum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from portcall.compile._rewriting import Graph, attribute_of, replace_nodes

_FEW = 4  # channels
_OLDEST = 10  # the opset since which Slice has inputs
_MOST_WORK = 2.0  # times that of the transposed convolution: its window is filled up with zeros


def replace_narrow(graph: Graph) -> None:
    """Replace transposed convolutions over pictures that have few results and constant weights."""
    replace_nodes(graph, "ConvTranspose", _OLDEST, _replaced)


def _replaced(graph: Graph, node: Any) -> list[Any] | None:
    shape, result = graph.shape(node.input[0]), graph.shape(node.output[0])
    weights = graph.constants.get(node.input[1])
    named = len(node.input) > 2 and bool(node.input[2])
    bias = graph.constants.get(node.input[2]) if named else None
    if shape is None or result is None or weights is None or len(shape) != 4 or (named and bias is None):
        return None
    strides, dilations = (attribute_of(node, name, [1, 1]) for name in ("strides", "dilations"))
    if list(dilations) != [1, 1] or attribute_of(node, "group", 1) != 1 or weights.shape[1] > _FEW:
        return None
    channels, count, *window = weights.shape
    taps = [-(-size // stride) for size, stride in zip(window, strides, strict=True)]
    filled = [tap * stride for tap, stride in zip(taps, strides, strict=True)]
    pads = list(attribute_of(node, "pads", [0] * 4))[:2]
    made = [(extent + tap - 1) * stride for extent, tap, stride in zip(shape[2:], taps, strides, strict=True)]
    enough = all(a >= pad + b for a, pad, b in zip(made, pads, result[2:], strict=True))
    if max(strides) == 1 or not enough or np.prod(filled) > _MOST_WORK * np.prod(window):
        return None
    rows, columns = strides
    wide = np.zeros((channels, count, *filled), weights.dtype)
    wide[:, :, : window[0], : window[1]] = weights
    parts = wide.reshape(channels, count, taps[0], rows, taps[1], columns)[:, :, ::-1, :, ::-1]
    kernel = parts.transpose(3, 5, 1, 0, 2, 4).reshape(rows * columns * count, channels, *taps)
    inputs = [node.input[0], graph.constant("kernel", np.ascontiguousarray(kernel))]
    if bias is not None:
        inputs.append(graph.constant("bias", np.tile(bias, rows * columns)))
    n, height, width = shape[0], made[0] // rows, made[1] // columns
    pixels, apart, beside, whole = (graph.name(node.output[0]) for _ in range(4))

    def numbers(*values: int) -> str:
        return graph.constant("shape", np.array(values, "int64"))

    ends = [pad + extent for pad, extent in zip(pads, result[2:], strict=True)]
    around = [tap - 1 for tap in taps] * 2
    return [
        helper.make_node("Conv", inputs, [pixels], node.name, pads=around, kernel_shape=taps),
        helper.make_node("Reshape", [pixels, numbers(n, rows, columns, count, height, width)], [apart]),
        helper.make_node("Transpose", [apart], [beside], perm=[0, 3, 4, 1, 5, 2]),
        helper.make_node("Reshape", [beside, numbers(n, count, made[0], made[1])], [whole]),
        helper.make_node("Slice", [whole, numbers(*pads), numbers(*ends), numbers(2, 3)], [node.output[0]]),
    ]  # fmt: skip
