# SPDX-License-Identifier: Apache-2.0
"""Convolutions of volumes as those of pictures: the layers that a window reads at once are channels of one picture.

No rule writes a convolution of three axes. The pictures take as much memory as the volume, times the depth of a window.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from portcall.compile._rewriting import Graph, attribute_of, replace_nodes

_OLDEST = 11  # the opset since which Pad and Slice have inputs
_ALL = [0, 2, 1, 3, 4]  # layers in front of channels, and back


def replace_volumes(graph: Graph) -> None:
    """Replace convolutions over three axes that have constant weights and one group."""
    replace_nodes(graph, "Conv", _OLDEST, _replaced)


def _replaced(graph: Graph, node: Any) -> list[Any] | None:
    shape, result = graph.shape(node.input[0]), graph.shape(node.output[0])
    weights = graph.constants.get(node.input[1])
    if shape is None or result is None or weights is None or len(shape) != 5 or attribute_of(node, "group", 1) != 1:
        return None
    if attribute_of(node, "auto_pad", b"NOTSET") != b"NOTSET":
        return None
    strides, dilations = (list(attribute_of(node, name, [1] * 3)) for name in ("strides", "dilations"))
    pads = list(attribute_of(node, "pads", [0] * 6))
    (count, channels, deep, *window), (n, _, _, *picture), layers = weights.shape, shape, result[2]
    names = {name: graph.name(node.output[0]) for name in ("layers", "padded", "window", "pictures", "made", "apart")}

    def numbers(*values: int) -> str:
        return graph.constant("shape", np.array(values, "int64"))

    nodes = [helper.make_node("Transpose", [node.input[0]], [names["layers"]], perm=_ALL)]
    whole = names["layers"]
    if pads[0] or pads[3]:
        around = numbers(0, pads[0], 0, 0, 0, 0, pads[3], 0, 0, 0)
        nodes.append(helper.make_node("Pad", [whole, around], [names["padded"]]))
        whole = names["padded"]
    taps = []
    for tap in range(deep):
        begin, taken = tap * dilations[0], graph.name(node.output[0])
        end = begin + (layers - 1) * strides[0] + 1
        where = [whole, numbers(begin), numbers(end), numbers(1), numbers(strides[0])]
        nodes.append(helper.make_node("Slice", where, [taken]))
        taps.append(taken)
    words = {
        "kernel_shape": window, "strides": strides[1:], "dilations": dilations[1:], "pads": [*pads[1:3], *pads[4:]],
    }  # fmt: skip
    flat = np.ascontiguousarray(weights.transpose(0, 2, 1, 3, 4)).reshape(count, deep * channels, *window)
    inputs = [names["pictures"], graph.constant("kernel", flat), *node.input[2:]]
    return [
        *nodes,
        helper.make_node("Concat", taps, [names["window"]], axis=2),
        helper.make_node("Reshape", [names["window"], numbers(n * layers, deep * channels, *picture)], [inputs[0]]),
        helper.make_node("Conv", inputs, [names["made"]], node.name, **words),
        helper.make_node("Reshape", [names["made"], numbers(n, layers, count, *result[3:])], [names["apart"]]),
        helper.make_node("Transpose", [names["apart"]], [node.output[0]], perm=_ALL),
    ]  # fmt: skip
