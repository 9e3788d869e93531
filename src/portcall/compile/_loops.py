# SPDX-License-Identifier: Apache-2.0
"""Loops (Loop and Scan) of an ONNX model, written turn by turn where it is known how often they turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import helper

from portcall.compile._branches import copied, inline_branches
from portcall.compile._rewriting import Graph, attribute_of, inferred, refusal, refusing
from portcall.compile._simplify import fold_constants

Model = Any
MOST_TURNS = 512
_ROUNDS = 64  # loops in loops
_AXES_ARE_INPUTS = 13  # since which opset those of Unsqueeze are


@refusing
def inline_control(model: Model) -> Model:
    """Return the model without the Ifs and loops that are not needed.

    A loop is written out if the number of its turns, and its condition after each, depend on constants and fixed shapes
    alone, for at most ``MOST_TURNS`` turns.
    """
    for _ in range(_ROUNDS):
        model = inline_branches(model)
        if not any(node.op_type in _UNROLLED for node in model.graph.node):
            return model
        graph = Graph(inferred(model))
        fold_constants(graph)
        for place, node in enumerate(graph.nodes):
            if node.op_type == "Loop" and any(
                graph.constants[n].size != 1 for n in node.input[:2] if n in graph.constants
            ):
                raise refusal(node, place, "the number of turns and the condition are one element each")
            made = _UNROLLED[node.op_type](graph, node) if node.op_type in _UNROLLED else None
            if made is not None:
                graph.nodes[place : place + 1] = made
                break
        else:
            return model
        model = graph.model()
    return model


def _loop(graph: Graph, node: Any) -> list[Any] | None:
    body = attribute_of(node, "body", None)
    given = [graph.constants.get(name) if name else np.array(True) for name in [*node.input, ""][:2]]
    if given[0] is None or given[1] is None:
        return None
    turns = int(given[0].reshape(-1)[0]) if node.input[0] else MOST_TURNS + 1
    goes_on = bool(given[1].reshape(-1)[0])
    first, iteration, condition = list(node.input[2:]), *(value.name for value in body.input[:2])
    states, rows, nodes, turn = first, [], [], 0
    while goes_on and turn < turns:
        if turn == MOST_TURNS:
            return None
        bound = dict(zip([value.name for value in body.input[2:]], states, strict=True))
        bound[iteration] = graph.constant("turn", np.array(turn, "int64"))
        bound[condition] = graph.constant("goes_on", np.array(True))
        made, (after, *results) = _turn(graph, body, bound)
        nodes += made
        if after not in graph.constants:
            return None
        goes_on = bool(graph.constants[after].reshape(-1)[0])
        states = results[: len(first)]
        rows.append(results[len(first) :])
        turn += 1
    return _results(graph, node, nodes, states, rows, [0] * (len(node.output) - len(first)))


def _scan(graph: Graph, node: Any) -> list[Any] | None:
    body, count = attribute_of(node, "body", None), attribute_of(node, "num_scan_inputs", 0)
    if graph.opset.get("ai.onnx", 1) < 9:  # which has a batch, and lengths
        return None
    split = len(node.input) - count
    states, scanned = list(node.input[:split]), list(node.input[split:])
    several = len(node.output) - split
    axes = list(attribute_of(node, "scan_input_axes", [])) or [0] * count
    turned = list(attribute_of(node, "scan_input_directions", [])) or [0] * count
    shapes = [graph.shape(name) for name in scanned]
    if not scanned or shapes[0] is None or shapes[0][axes[0]] > MOST_TURNS:
        return None
    length, nodes, rows = shapes[0][axes[0]], [], []
    for turn in range(length):
        bound = dict(zip([value.name for value in body.input], states, strict=False))
        for value, name, axis, backwards in zip(body.input[split:], scanned, axes, turned, strict=True):
            at = graph.constant("turn", np.array(length - 1 - turn if backwards else turn, "int64"))
            bound[value.name] = graph.name(f"{name}/element")
            nodes.append(helper.make_node("Gather", [name, at], [bound[value.name]], axis=axis))
        made, results = _turn(graph, body, bound)
        nodes += made
        states = results[:split]
        rows.append(results[split:])
    places = list(attribute_of(node, "scan_output_axes", [])) or [0] * several
    back = list(attribute_of(node, "scan_output_directions", [])) or [0] * several
    return _results(graph, node, nodes, states, rows, places, back)


def _turn(graph: Graph, body: Any, bound: Mapping[str, str]) -> tuple[list[Any], list[str]]:
    """Return the nodes of a turn, what depends on constants alone computed, and its results."""
    made, results = copied(graph, body, bound)
    before, graph.nodes = graph.nodes, made
    fold_constants(graph)
    made, graph.nodes = graph.nodes, before
    return made, results


def _results(
    graph: Graph, node: Any, nodes: list[Any], states: Sequence[str], rows: Sequence[Sequence[str]],
    axes: Sequence[int], backwards: Sequence[int] = (),
) -> list[Any] | None:  # fmt: skip
    """Return the nodes of all turns, and those that put the results of each together."""
    if axes and not rows:
        return None
    nodes += [helper.make_node("Identity", [a], [b]) for a, b in zip(states, node.output, strict=False) if b]
    for k, (name, axis) in enumerate(zip(node.output[len(states) :], axes, strict=True)):
        parts = [graph.name(f"{name}/turn") for _ in rows]
        for part, row in zip(parts, rows, strict=True):
            if graph.opset.get("ai.onnx", 1) >= _AXES_ARE_INPUTS:
                along = graph.constant("axis", np.array([axis], "int64"))
                nodes.append(helper.make_node("Unsqueeze", [row[k], along], [part]))
            else:
                nodes.append(helper.make_node("Unsqueeze", [row[k]], [part], axes=[axis]))
        order = parts[::-1] if any(backwards[k : k + 1]) else parts
        nodes.append(helper.make_node("Concat", order, [name or graph.name("unused")], axis=axis))
    return nodes


_UNROLLED = {"Loop": _loop, "Scan": _scan}
