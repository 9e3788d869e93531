# SPDX-License-Identifier: Apache-2.0
"""Convolutions of volumes as those of pictures: the layers that a window reads at once are channels of one picture.

No rule writes a convolution of three axes. The pictures take as much memory as the volume, times the depth of a window.
A transposed one makes all layers of a stride at once, as channels of its results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from portcall.compile._rewriting import Graph, Nodes, attribute_of, replace_nodes

_OLDEST = 11  # the opset since which Pad and Slice have inputs
_ALL = [0, 2, 1, 3, 4]  # layers in front of channels, and back
_MOST_WORK = 2.0  # times that of a transposed convolution: its window is filled up with zeros


def replace_volumes(graph: Graph) -> None:
    """Replace convolutions over three axes that have constant weights; transposed ones have one group."""
    replace_nodes(graph, "Conv", _OLDEST, _replaced)
    replace_nodes(graph, "ConvTranspose", _OLDEST, _replaced_transposed)


@dataclass(frozen=True)
class _Volumes:
    """A convolution of volumes: its shapes, weights, and attributes."""

    shape: Sequence[int]
    result: Sequence[int]
    weights: Any
    strides: list[int]
    dilations: list[int]
    pads: list[int]
    groups: int

    @property
    def words(self) -> dict[str, Any]:
        """The attributes of the same over pictures."""
        return {
            "kernel_shape": self.weights.shape[3:], "strides": self.strides[1:], "dilations": self.dilations[1:],
            "pads": [*self.pads[1:3], *self.pads[4:]], "group": self.groups,
        }  # fmt: skip


def _read(graph: Graph, node: Any) -> _Volumes | None:
    shape, result = graph.shape(node.input[0]), graph.shape(node.output[0])
    weights = graph.constants.get(node.input[1])
    if shape is None or result is None or weights is None or len(shape) != 5:
        return None
    if attribute_of(node, "auto_pad", b"NOTSET") != b"NOTSET" or attribute_of(node, "output_shape", None):
        return None
    strides, dilations = (list(attribute_of(node, name, [1] * 3)) for name in ("strides", "dilations"))
    groups = attribute_of(node, "group", 1)
    return _Volumes(shape, result, weights, strides, dilations, list(attribute_of(node, "pads", [0] * 6)), groups)


def _replaced(graph: Graph, node: Any) -> list[Any] | None:
    v = _read(graph, node)
    if (
        v is None or v.weights.shape[1] == 1 < v.groups
    ):  # channels that are alone: there is more in the window than work
        return None
    (count, channels, deep, *window), layers = v.weights.shape, v.result[2]
    n = Nodes(graph, node)
    pictures = _pictures(n, v, (v.pads[0], v.pads[3]), [tap * v.dilations[0] for tap in range(deep)], layers)
    flat = np.ascontiguousarray(v.weights.transpose(0, 2, 1, 3, 4)).reshape(count, deep * channels, *window)
    made = n.add("Conv", pictures, graph.constant("kernel", flat), *node.input[2:], name=node.name, **v.words)
    apart = n.add("Reshape", made, n.stored([v.shape[0], layers, count, *v.result[3:]], "int64"))
    n.add("Transpose", apart, out=node.output[0], perm=_ALL)
    return n.nodes


def _replaced_transposed(graph: Graph, node: Any) -> list[Any] | None:
    v = _read(graph, node)
    named = len(node.input) > 2 and bool(node.input[2])
    bias = graph.constants.get(node.input[2]) if named else None
    if v is None or v.groups != 1 or v.dilations[0] != 1 or (named and bias is None):
        return None
    (channels, count, deep, *window), stride, first = v.weights.shape, v.strides[0], v.pads[0]
    taps = -(-deep // stride)
    layers = v.shape[2] + taps - 1
    if first + v.result[2] > layers * stride or taps * stride > _MOST_WORK * deep:
        return None
    wide = np.zeros((channels, count, taps * stride, *window), v.weights.dtype)
    wide[:, :, :deep] = v.weights
    kernel = wide.reshape(channels, count, taps, stride, *window).transpose(2, 0, 3, 1, 4, 5)
    kernel = np.ascontiguousarray(kernel).reshape(taps * channels, stride * count, *window)
    n = Nodes(graph, node)
    inputs = [_pictures(n, v, (taps - 1, taps - 1), range(taps)[::-1], layers), graph.constant("kernel", kernel)]
    if bias is not None:
        inputs.append(graph.constant("bias", np.tile(bias, stride)))
    more = list(attribute_of(node, "output_padding", [0] * 3))[1:]
    made = n.add("ConvTranspose", *inputs, name=node.name, output_padding=more, **v.words)
    apart = n.add("Reshape", made, n.stored([v.shape[0], layers, stride, count, *v.result[3:]], "int64"))
    beside = n.add("Transpose", apart, perm=[0, 3, 1, 2, 4, 5])
    whole = n.add("Reshape", beside, n.stored([v.shape[0], count, layers * stride, *v.result[3:]], "int64"))
    where = [n.stored([each], "int64") for each in (first, first + v.result[2], 2)]
    n.add("Slice", whole, *where, out=node.output[0])
    return n.nodes


def _pictures(n: Nodes, v: _Volumes, around: tuple[int, int], begins: Sequence[int], layers: int) -> str:
    """Write pictures, one for each layer of the result, whose channels are those of the layers that it reads."""
    whole = n.add("Transpose", n.input(0), perm=_ALL)
    if any(around):
        whole = n.add("Pad", whole, n.stored([0, around[0], 0, 0, 0, 0, around[1], 0, 0, 0], "int64"))
    step = v.strides[0] if n.node.op_type == "Conv" else 1
    taps = []
    for begin in begins:
        where = [n.stored([each], "int64") for each in (begin, begin + (layers - 1) * step + 1, 1, step)]
        taps.append(n.add("Slice", whole, *where))
    (count, channels, _, *picture), wide = v.shape, len(taps)
    if v.groups > 1:  # all layers of a group lie beside each other
        apart = n.stored([count, layers, v.groups, channels // v.groups, *picture], "int64")
        taps = [n.add("Reshape", tap, apart) for tap in taps]
    window = n.add("Concat", *taps, axis=3 if v.groups > 1 else 2)
    return n.add("Reshape", window, n.stored([count * layers, wide * channels, *picture], "int64"))
