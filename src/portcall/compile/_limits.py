# SPDX-License-Identifier: Apache-2.0
"""Refuse values that no machine holds, and constant operands that an operator does not allow, with their node.

Without it an extent of 2**40 would be found by the first allocation, in TVM or in a check, which name no node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from portcall.compile._rewriting import Graph, attribute_of, refusal
from portcall.errors import ModelError

_MOST = 1 << 40  # bytes of a value
MOST_CONSTANT = 1 << 32  # bytes of one that depends on constants alone: it may be computed when the model is compiled
_MOST_AXES = 64
_OF_SHAPES = ("Constant", "EyeLike")  # their results need no values


def check_values(graph: Graph) -> None:
    """Refuse a graph with values that are too large, or with operands that cannot be.

    Raises:
        ModelError: it names the first such node.
    """
    for name in graph.inputs:
        if wrong := _wrong_size(graph, name, _MOST):
            text = f"input '{name}' {wrong}"
            raise ModelError(text, problems=[text], hint="give it another shape, such as: --shape NAME=1x3")
    constant = {*graph.constants}
    for number, node in enumerate(graph.nodes):
        if node.op_type in _OF_SHAPES or (node.input and all(name in constant for name in node.input if name)):
            constant.update(node.output)
        most = MOST_CONSTANT if node.output and node.output[0] in constant else _MOST
        for name in filter(None, node.output):
            if wrong := _wrong_size(graph, name, most):
                raise refusal(node, number, f"its result '{name}' {wrong}")
        check = _OPERANDS.get(node.op_type)
        if check is not None and (wrong := check(graph, node)):
            raise refusal(node, number, wrong)


def _wrong_size(graph: Graph, name: str, most: int) -> str:
    shape = graph.shape(name)
    if shape is None:
        return ""
    if len(shape) > _MOST_AXES:
        return f"has {len(shape)} axes; at most {_MOST_AXES} are possible"
    if min(shape, default=0) < 0:
        return f"has the shape {list(shape)}, and no extent can be negative"
    dtype = graph.dtype(name)
    nbytes = prod(shape) * (np.dtype(dtype).itemsize if dtype else 1)
    return f"has the shape {list(shape)} and takes {nbytes:,} bytes; at most {most:,} are possible" * (nbytes > most)


# ---- Operands --------------------------------------------------------------------------------------------------------


def _constant(graph: Graph, node: Any, place: int) -> Any:
    """Return a constant operand; no elements if it is not one."""
    found = graph.constants.get(node.input[place]) if place < len(node.input) else None
    return np.zeros(0, "int64") if found is None else found


def _range(graph: Graph, node: Any) -> str:
    return "its step is 0" if np.any(_constant(graph, node, 2) == 0) else ""


def _division(graph: Graph, node: Any) -> str:
    divisor = _constant(graph, node, 1)
    return "its divisor is 0" if divisor.dtype.kind in "iu" and np.any(divisor == 0) else ""


def _expand(graph: Graph, node: Any) -> str:
    shape = _constant(graph, node, 1)
    return f"the shape {shape.tolist()} has a negative extent" if np.any(shape < 0) else ""


def _split(graph: Graph, node: Any) -> str:
    sizes = _constant(graph, node, 1)
    return f"a part cannot have a negative size: {sizes.tolist()}" if np.any(sizes < 0) else ""


def _slice(graph: Graph, node: Any) -> str:
    steps = _constant(graph, node, 4)
    least = np.iinfo(steps.dtype).min
    return f"the step {least} is too small: at least {least + 1}" if np.any(steps == least) else ""


def _gather(graph: Graph, node: Any) -> str:
    """Check constant indices; those that are computed are brought into the data when the model runs."""
    shape, indices = graph.shape(node.input[0]), _constant(graph, node, 1)
    axis = attribute_of(node, "axis", 0)
    if shape is None or not indices.size or not -len(shape) <= axis < len(shape):
        return ""
    extent = shape[axis]
    wrong = indices[(indices < -extent) | (indices >= extent)]
    return f"there is no element {wrong.flat[0]} of {extent} on the axis {axis}" if wrong.size else ""


def _pad(graph: Graph, node: Any) -> str:
    shape, pads = graph.shape(node.input[0]), _constant(graph, node, 1)
    if attribute_of(node, "mode", b"constant") != b"reflect" or shape is None or pads.size != 2 * len(shape):
        return ""
    if len(node.input) > 3 and node.input[3]:
        return ""
    wide = [k for k, pad in enumerate(pads.tolist()) if pad and pad >= max(shape[k % len(shape)], 1)]
    return f"it reflects more elements than there are: {pads.tolist()} of {list(shape)}" if wide else ""


def _convolution(graph: Graph, node: Any) -> str:
    said, shape = list(attribute_of(node, "kernel_shape", [])), graph.shape(node.input[1])
    wrong = said and shape is not None and said != list(shape[2:])
    return f"its kernel_shape is {said}, and the weights have the shape {list(shape or ())}" if wrong else ""


def _blocks(graph: Graph, node: Any) -> str:
    shape, size = graph.shape(node.input[0]), attribute_of(node, "blocksize", 1)
    if shape is None or len(shape) != 4 or size < 1:
        return ""
    extents, by = (shape[1:2], size * size) if node.op_type == "DepthToSpace" else (shape[2:], size)
    return f"{extents[0]} is no multiple of {by}, for blocks of {size}" if any(each % by for each in extents) else ""


_OPERANDS: Mapping[str, Callable[[Graph, Any], str]] = {
    "Conv": _convolution, "DepthToSpace": _blocks, "Div": _division, "Expand": _expand, "Gather": _gather,
    "Mod": _division, "Pad": _pad, "Range": _range, "Slice": _slice, "SpaceToDepth": _blocks, "Split": _split,
}  # fmt: skip
