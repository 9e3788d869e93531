# SPDX-License-Identifier: Apache-2.0
"""Padding of convolutions as numbers: what ``auto_pad`` and ``output_shape`` mean, Pad before, Slice after.

Zeros that a Pad adds are those that the convolution may add itself, without a copy; and where a Slice takes away what
the padding at the end made, as causal convolutions are often written, there is less padding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from portcall.compile._rewriting import CONVOLUTIONS, ONNX_DOMAINS, Graph, attribute_of


def fold_borders(graph: Graph) -> None:
    """Write paddings as ``pads``, and let convolutions do what a Pad or a Slice beside them does."""
    makers = {name: node for node in graph.nodes for name in node.output}
    readers = graph.readers()
    names: dict[str, str] = {}
    for node in graph.nodes:
        if node.domain not in ONNX_DOMAINS:
            continue
        if node.op_type in CONVOLUTIONS:
            _write_pads(graph, node)
            _take_pad(graph, node, makers)
        elif node.op_type == "Slice" and readers[node.input[0]] == 1 and node.output[0] not in graph.outputs:
            before = makers.get(node.input[0])
            if before is not None and before.op_type == "Conv" and _take_slice(graph, node, before):
                names[node.output[0]] = node.input[0]
    graph.rename(names)
    graph.drop_unused()


def _numbers(graph: Graph, node: Any) -> tuple[list[int], list[int], list[int], list[int]] | None:
    """Return extents of the input, how far the window reaches, strides, and extents of the result; if all are known."""
    x, w, y = (graph.shape(name) for name in (node.input[0], node.input[1], node.output[0]))
    if x is None or w is None or y is None or len(x) < 3:
        return None
    rank = len(x) - 2
    dilations = attribute_of(node, "dilations", [1] * rank)
    spans = [(size - 1) * dilation + 1 for size, dilation in zip(w[2:], dilations, strict=True)]
    return list(x[2:]), spans, list(attribute_of(node, "strides", [1] * rank)), list(y[2:])


def _pads(node: Any, rank: int) -> list[int]:
    return [int(each) for each in attribute_of(node, "pads", [0] * (2 * rank))]


def _set(node: Any, **values: Any) -> None:
    """Give a node attributes; None removes one."""
    kept = [each for each in node.attribute if each.name not in values]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.extend(helper.make_attribute(name, value) for name, value in values.items() if value is not None)


def _write_pads(graph: Graph, node: Any) -> None:
    """Replace ``auto_pad``, and ``output_shape`` of transposed convolutions."""
    auto = attribute_of(node, "auto_pad", b"NOTSET")
    known = _numbers(graph, node)
    sized = attribute_of(node, "output_shape", None)
    if known is None or (auto == b"NOTSET" and not sized):
        return
    pads: tuple[list[int], list[int]] = [], []
    added = list(attribute_of(node, "output_padding", [0] * len(known[0])))
    turned = node.op_type == "ConvTranspose"
    for axis, (size, span, stride, result) in enumerate(zip(*known, strict=True)):
        whole = (size - 1) * stride + span + added[axis] if turned else (result - 1) * stride + span
        total = max(0, whole - (result if turned else size))
        if auto == b"VALID" and not sized:
            total = 0
        front = total // 2 if auto == b"SAME_UPPER" else total - total // 2
        if turned:  # what the padding does not take away stands at the end, or is missing there
            added[axis] += max(0, result - whole)
        pads[0].append(front)
        pads[1].append(total - front)
    _set(node, auto_pad=None, pads=[*pads[0], *pads[1]])
    if turned:
        _set(node, output_shape=None, output_padding=added)


def _take_pad(graph: Graph, node: Any, makers: dict[str, Any]) -> None:
    """Let a convolution read what a Pad with zeros reads."""
    pad = makers.get(node.input[0])
    if (
        node.op_type != "Conv"
        or pad is None
        or pad.op_type != "Pad"
        or attribute_of(node, "auto_pad", b"NOTSET") != b"NOTSET"
    ):
        return
    shape = graph.shape(pad.input[0])
    named = list(pad.input) + [""] * 4
    given = graph.constants.get(named[1]) if named[1] else attribute_of(pad, "pads", None)
    value = graph.constants.get(named[2], np.ones(1)) if named[2] else np.array(attribute_of(pad, "value", 0.0))
    if (
        shape is None
        or given is None
        or named[3]
        or value.any()
        or attribute_of(pad, "mode", b"constant") != b"constant"
    ):
        return
    rank = len(shape)
    widths = [int(each) for each in given]
    fronts, ends = widths[:rank], widths[rank:]
    if min(widths) < 0 or any((*fronts[:2], *ends[:2])):
        return
    added = [*fronts[2:], *ends[2:]]
    _set(node, pads=[a + b for a, b in zip(_pads(node, rank - 2), added, strict=True)])
    node.input[0] = pad.input[0]


def _take_slice(graph: Graph, node: Any, convolution: Any) -> bool:
    """Shorten a convolution to what a Slice leaves of its result, if it takes only the end away."""
    known = _numbers(graph, convolution)
    whole, left = graph.shape(node.input[0]), graph.shape(node.output[0])
    starts = graph.constants.get(node.input[1]) if len(node.input) > 1 else np.array(attribute_of(node, "starts", [1]))
    steps = graph.constants.get(node.input[4], np.zeros(1)) if len(node.input) > 4 and node.input[4] else np.ones(1)
    if known is None or whole is None or left is None or starts is None or starts.any() or (steps != 1).any():
        return False
    if whole[:2] != left[:2] or 0 in left or attribute_of(convolution, "auto_pad", b"NOTSET") != b"NOTSET":
        return False
    rank = len(whole) - 2
    pads = _pads(convolution, rank)
    for axis, (size, span, stride, _) in enumerate(zip(*known, strict=True)):
        if left[axis + 2] == whole[axis + 2]:
            continue
        pads[rank + axis] = (left[axis + 2] - 1) * stride + span - size - pads[axis]
        if pads[rank + axis] < 0:
            return False
    _set(convolution, pads=pads)
    return True
