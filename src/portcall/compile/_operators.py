# SPDX-License-Identifier: Apache-2.0
"""Operators that the importer takes for something else: they are written with others, which mean what is wanted."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from portcall.compile._rewriting import ONNX_DOMAINS, Graph, Nodes, attribute_of, replace_operators

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


def replace_celu(model: Model) -> Model:
    """Write Celu with others. Its own definition gives a scalar one axis."""
    return replace_operators(model, lambda node: _celu if _is_celu(node) else None)


def _is_celu(node: Any) -> bool:
    return bool(node.op_type == "Celu" and node.domain in ONNX_DOMAINS)


def _celu(n: Nodes) -> None:
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
