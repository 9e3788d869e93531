# SPDX-License-Identifier: Apache-2.0
"""Operators that the importer takes for something else: they are written with others, which mean what is wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper

from portcall.compile._rewriting import ONNX_DOMAINS, Graph, Nodes, UnknownError, attribute_of, replace_operators
from portcall.compile._signals import WRITTEN

Model = Any
_AT_ONCE = 16


def group_concatenations(graph: Graph) -> None:
    """Put many rows together in groups, such as the steps of a loop: TVM writes a choice in a choice for each."""
    nodes: list[Any] = []
    for node in graph.nodes:
        if node.op_type == "Concat" and attribute_of(node, "axis", None) == 0:
            made, parts = Nodes(graph, node), list(node.input)
            while len(parts) > _AT_ONCE:
                groups = [parts[first : first + _AT_ONCE] for first in range(0, len(parts), _AT_ONCE)]
                parts = [made.add("Concat", *some, axis=0) if len(some) > 1 else some[0] for some in groups]
            nodes += made.nodes
            node = helper.make_node("Concat", parts, node.output, node.name, axis=0) if made.nodes else node
        nodes.append(node)
    graph.nodes = nodes


def write_out(model: Model) -> Model:
    """Write operators with others where the importer has none, and their own definition is not good enough."""
    return replace_operators(model, _writer_of, complete=False)


def _writer_of(node: Any) -> Callable[[Nodes], None] | None:
    if node.domain not in ONNX_DOMAINS or (node.op_type == "LayerNormalization" and is_of_rows(node)):
        return None
    if node.op_type == "IsInf" and all(attribute_of(node, f"detect_{sign}", 1) for sign in _SIGNS):
        return None
    if node.op_type == "SpaceToDepth" and attribute_of(node, "mode", b"DCR") == b"DCR":
        return None
    return _WRITTEN.get(node.op_type)


def is_of_rows(node: Any) -> bool:
    """Tell whether a normalization is of the last axis alone, and gives nothing else."""
    return len([name for name in node.output if name]) == 1 and bool(attribute_of(node, "axis", -1) == -1)


def _layer_normalization(n: Nodes) -> None:
    """Write a normalization of several axes. Its own definition takes the mean's square from that of squares.

    What remains of these two by rounding can be less than 0, of which there is no root.
    """
    x, axis = n.input(0), n.attribute("axis", -1)
    rank, dtype = n.rank(x), n.graph.dtype(x)
    if not dtype:
        raise UnknownError(f"the type of '{x}' is not known")
    axes = range(axis % rank, rank)
    wide = dtype != "float64" and n.attribute("stash_type", onnx.TensorProto.FLOAT) == onnx.TensorProto.FLOAT
    inner = "float32" if wide else dtype
    kind, own = (helper.np_dtype_to_tensor_dtype(np.dtype(word)) for word in (inner, dtype))
    x = x if inner == dtype else n.add("Cast", x, to=kind)
    difference, variance = _moments(n, x, axes, n.output(1))
    deviation = n.add("Sqrt", n.add("Add", variance, n.stored(n.attribute("epsilon", 1e-5), inner)))
    if n.output(2):
        n.add("Reciprocal", deviation, out=n.output(2))
    made = n.add("Div", difference, deviation)
    made = made if inner == dtype else n.add("Cast", made, to=own)
    made = n.add("Mul", made, n.input(1), out="" if n.input(2) else n.output(0))
    if n.input(2):
        n.add("Add", made, n.input(2), out=n.output(0))


def _mean_variance_normalization(n: Nodes) -> None:
    x = n.input(0)
    difference, variance = _moments(n, x, n.attribute("axes", [0, 2, 3]))
    deviation = n.add("Add", n.add("Sqrt", variance), n.stored(1e-9, n.graph.dtype(x) or "float32"))
    n.add("Div", difference, deviation, out=n.output(0))


def _group_normalization(n: Nodes) -> None:
    """Write a normalization of groups of channels, of which onnx infers no type."""
    x, scale, groups = n.input(0), n.input(1), n.attribute("num_groups", 1)
    dtype = n.graph.dtype(x) or n.graph.dtype(scale)
    if not dtype:
        raise UnknownError(f"the type of '{x}' is not known")
    wide = dtype != "float64" and n.attribute("stash_type", onnx.TensorProto.FLOAT) == onnx.TensorProto.FLOAT
    inner = "float32" if wide else dtype
    kind, own = (helper.np_dtype_to_tensor_dtype(np.dtype(word)) for word in (inner, dtype))
    rows = n.add("Reshape", x, n.stored([0, groups, -1], "int64"))
    difference, variance = _moments(n, rows if inner == dtype else n.add("Cast", rows, to=kind), [2])
    deviation = n.add("Sqrt", n.add("Add", variance, n.stored(n.attribute("epsilon", 1e-5), inner)))
    made = n.add("Div", difference, deviation)
    made = made if inner == dtype else n.add("Cast", made, to=own)
    if n.graph.opset["ai.onnx"] >= 21:  # a scale and a bias for each channel, not for each group
        of_channels = n.add("Concat", n.stored([0], "int64"), n.add("Shape", scale), n.stored([-1], "int64"), axis=0)
        made = n.add("Reshape", made, of_channels)
    scale, bias = (n.add("Unsqueeze", n.input(place), n.stored([1], "int64")) for place in (1, 2))
    made = n.add("Add", n.add("Mul", made, scale), bias)
    n.add("Reshape", made, n.add("Shape", x), out=n.output(0))


def _moments(n: Nodes, x: str, axes: Iterable[int], mean: str = "") -> tuple[str, str]:
    """Write the differences from the mean, and the mean of their squares."""
    difference = n.add("Sub", x, n.reduced("ReduceMean", x, axes, out=mean))
    return difference, n.reduced("ReduceMean", n.add("Mul", difference, difference), axes)


def _lp_normalization(n: Nodes) -> None:
    """Write a division by the sums of rows, or by their roots; rows of zeros stay such."""
    x, axis = n.input(0), [n.attribute("axis", -1)]
    sizes = n.reduced(f"ReduceL{n.attribute('p', 2)}", x, axis)
    dtype = n.graph.dtype(x) or "float32"
    n.add("Div", x, n.add("Where", n.add("Equal", sizes, n.stored(0, dtype)), n.stored(1, dtype), sizes),
          out=n.output(0))  # fmt: skip


def _is_infinite(n: Nodes) -> None:
    """Write the search for infinity of one sign, or of none."""
    dtype = n.graph.dtype(n.input(0)) or "float32"
    signs = [sign for sign in _SIGNS if n.attribute(f"detect_{sign}", 1)]
    found = [n.add("Equal", n.input(0), n.stored(_SIGNS[sign], dtype)) for sign in signs or _SIGNS]
    n.add("Identity" if signs else "And", *found, out=n.output(0))


def _space_to_depth(n: Nodes) -> None:
    size = n.attribute("blocksize")
    batch, channels, height, width = (n.extent(n.input(0), axis) for axis in range(4))
    apart = n.stored([batch, channels, height // size, size, width // size, size], "int64")
    moved = n.add("Transpose", n.add("Reshape", n.input(0), apart), perm=[0, 1, 3, 5, 2, 4])
    whole = n.stored([batch, channels * size**2, height // size, width // size], "int64")
    n.add("Reshape", moved, whole, out=n.output(0))


def _reversed(n: Nodes) -> None:
    """Write a ReverseSequence: each place reads the one that is as far from the end of its sequence."""
    x, time, batch = n.input(0), n.attribute("time_axis", 0), n.attribute("batch_axis", 1)
    rank = n.rank(x)
    shape = [n.extent(x, axis) for axis in range(rank)]
    places = n.stored(np.arange(shape[time]).reshape([-1 if axis == time else 1 for axis in range(rank)]), "int64")
    ends = n.add("Reshape", n.input(1), n.stored([-1 if axis == batch else 1 for axis in range(rank)], "int64"))
    mirrored = n.add("Sub", n.add("Sub", ends, n.stored(1, "int64")), places)
    source = n.add("Where", n.add("Less", places, ends), mirrored, places)
    n.add("GatherElements", x, n.add("Expand", source, n.stored(shape, "int64")), out=n.output(0), axis=time)


def _tensor_scatter(n: Nodes) -> None:
    """Write what replaces a part of each sequence of a cache: a place reads the update where that reaches it."""
    past, update, axis = n.input(0), n.input(1), n.attribute("axis", -2)
    rank = n.rank(past)
    axis %= rank
    shape, count = [n.extent(past, k) for k in range(rank)], n.extent(update, axis)
    places = n.stored(np.arange(shape[axis]).reshape([-1 if k == axis else 1 for k in range(rank)]), "int64")
    begins = n.stored(0, "int64")
    if n.input(2):
        begins = n.add("Reshape", n.input(2), n.stored([-1, *[1] * (rank - 1)], "int64"))
    moved = n.add("Sub", places, begins)
    if n.attribute("mode", b"linear") == b"circular":
        moved = n.add("Mod", moved, n.stored(shape[axis], "int64"))
    last = n.stored(count - 1, "int64")
    zero = n.stored(0, "int64")
    inside = n.add("Not", n.add("Or", n.add("Less", moved, zero), n.add("Greater", moved, last)))
    source = n.add("Min", n.add("Max", moved, zero), last)
    taken = n.add("GatherElements", update, n.add("Expand", source, n.stored(shape, "int64")), axis=axis)
    n.add("Where", inside, taken, past, out=n.output(0))


def _celu(n: Nodes) -> None:
    """Write a Celu. Its own definition gives a scalar one axis."""
    x, alpha = n.input(0), n.stored(n.attribute("alpha", 1.0))
    n.add("Mul", alpha, n.add("Elu", n.add("Div", x, alpha), alpha=1.0), out=n.output(0))


def replace_shifts(graph: Graph) -> None:
    """Say what a BitShift by a negative number, or by all bits and more, gives: machines shift by the rest instead.

    To the left, and of unsigned numbers, it is 0; to the right of signed ones it is their sign everywhere.
    """
    nodes: list[Any] = []
    for node in graph.nodes:
        dtype = graph.dtype(node.input[0]) if node.op_type == "BitShift" else ""
        nodes += _shift(graph, node, np.dtype(dtype)) if dtype else [node]
    graph.nodes = nodes


def replace_remainders(graph: Graph) -> None:
    """Say what a Mod of floats with the divisor's sign gives: the importer's is NaN for infinite divisors."""
    nodes: list[Any] = []
    for node in graph.nodes:
        floats = node.op_type == "Mod" and graph.dtype(node.input[0]).startswith("float")
        nodes += _remainder(graph, node) if floats and not attribute_of(node, "fmod", 0) else [node]
    graph.nodes = nodes


def _remainder(graph: Graph, node: Any) -> list[Any]:
    x, divisor = node.input
    zero = graph.constant("zero", np.array(0, graph.dtype(x)))
    rest, moved, wrong = (graph.name(stem) for stem in ("rest", "moved", "wrong"))  # the rest has the sign of x
    nodes = [helper.make_node("Mod", [x, divisor], [rest], fmod=1)]
    sides = []
    for one, other in (("Less", "Greater"), ("Greater", "Less")):
        of_rest, of_divisor, both = graph.name("side"), graph.name("side"), graph.name("sides")
        nodes.append(helper.make_node(one, [rest, zero], [of_rest]))
        nodes.append(helper.make_node(other, [divisor, zero], [of_divisor]))
        nodes.append(helper.make_node("And", [of_rest, of_divisor], [both]))
        sides.append(both)
    nodes.append(helper.make_node("Or", sides, [wrong]))
    nodes.append(helper.make_node("Add", [rest, divisor], [moved]))
    nodes.append(helper.make_node("Where", [wrong, moved, rest], list(node.output)))
    return nodes


def _shift(graph: Graph, node: Any, dtype: np.dtype[Any]) -> list[Any]:
    x, count = node.input
    bits = 8 * dtype.itemsize
    known = graph.constants.get(count)
    if known is not None and bool(np.all((known >= 0) & (known < bits))):
        return [node]
    outside, safe, shifted = (graph.name(stem) for stem in ("outside", "count", "shifted"))
    last = graph.constant("last", np.array(bits - 1, dtype))
    zero = graph.constant("zero", np.array(0, dtype))
    nodes = [helper.make_node("Greater", [count, last], [outside])]
    if dtype.kind == "i":
        large, negative = graph.name("large"), graph.name("negative")
        nodes[0].output[0] = large
        nodes.append(helper.make_node("Less", [count, zero], [negative]))
        nodes.append(helper.make_node("Or", [large, negative], [outside]))
    direction = attribute_of(node, "direction", b"LEFT")
    to_sign = dtype.kind == "i" and direction == b"RIGHT"
    nodes.append(helper.make_node("Where", [outside, last if to_sign else zero, count], [safe]))
    nodes.append(helper.make_node("BitShift", [x, safe], [node.output[0] if to_sign else shifted], direction=direction))
    if not to_sign:
        nodes.append(helper.make_node("Where", [outside, zero, shifted], [node.output[0]]))
    return nodes


_SIGNS = {"positive": np.inf, "negative": -np.inf}
_WRITTEN: Mapping[str, Callable[[Nodes], None]] = {
    **WRITTEN, "Celu": _celu, "GroupNormalization": _group_normalization, "IsInf": _is_infinite,
    "LayerNormalization": _layer_normalization,
    "LpNormalization": _lp_normalization, "MeanVarianceNormalization": _mean_variance_normalization,
    "ReverseSequence": _reversed, "SpaceToDepth": _space_to_depth, "TensorScatter": _tensor_scatter,
}  # fmt: skip
