# SPDX-License-Identifier: Apache-2.0
"""Branches (If) of an ONNX model: where the condition is known one of them stays, and both where they cost little."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx
from onnx import helper

from portcall.compile._rewriting import Graph, attribute_of, inferred, refusal, rename_values
from portcall.compile._simplify import fold_constants
from portcall.compile._weights import array_of

Model = Any
_CHEAP = 8  # nodes of a branch that may be computed in vain, however small the rest of the model is
_ROUNDS = 64  # branches in branches


def inline_branches(model: Model) -> Model:
    """Return the model without the Ifs that are not needed.

    A condition is known if it depends on constants and fixed shapes alone. Where it is not, both branches are computed,
    if none has more nodes than the rest of the model, or few, and their results have the same shapes; one is chosen.
    """
    for _ in range(_ROUNDS):
        if not any(node.op_type == "If" for node in model.graph.node):
            return model
        changed = Graph(inferred(model))
        folded = fold_constants(changed)
        places = [place for place, node in enumerate(changed.nodes) if node.op_type == "If"]
        for place in places:
            node = changed.nodes[place]
            known = changed.constants.get(node.input[0])
            if known is not None and known.size != 1:
                raise refusal(node, place, f"its condition has {known.size} elements instead of one")
            made = _one(changed, node, bool(known.reshape(-1)[0])) if known is not None else _both(changed, node)
            if made is not None:
                changed.nodes[place : place + 1] = made
                break
        else:
            return changed.model() if folded else model
        model = changed.model()
    return model


def _one(graph: Graph, node: Any, condition: bool) -> list[Any]:
    nodes, results = copied(graph, attribute_of(node, "then_branch" if condition else "else_branch", None))
    return [*nodes, *(helper.make_node("Identity", [a], [b]) for a, b in zip(results, node.output, strict=True))]


def _both(graph: Graph, node: Any) -> list[Any] | None:
    """Return the nodes of both branches and the choice; None if that is not possible, or costs much."""
    branches = [attribute_of(node, name, None) for name in ("then_branch", "else_branch")]
    nodes_of = [each for branch in branches for each in branch.node]
    most = max(_CHEAP, sum(each.op_type != "If" for each in graph.nodes))
    if any(sum(each.op_type != "Constant" for each in branch.node) > most for branch in branches) or any(
        each.op_type == "If" for each in nodes_of
    ):
        return None
    constants = dict(graph.constants)
    (first, yes), (second, no) = (copied(graph, branch) for branch in branches)
    before, graph.nodes = graph.nodes, [*graph.nodes, *first, *second]
    candidate = graph.model()
    graph.nodes = before
    candidate.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys([*yes, *no]))
    known = Graph(inferred(candidate))
    for a, b in zip(yes, no, strict=True):
        if known.shape(a) is None or (known.shape(a), known.dtype(a)) != (
            known.shape(b),
            known.dtype(b),
        ):
            graph.constants = constants
            return None
    chosen = zip(yes, no, node.output, strict=True)
    return [*first, *second, *(helper.make_node("Where", [node.input[0], a, b], [c]) for a, b, c in chosen)]


def copied(graph: Graph, branch: Any, bound: Mapping[str, str] | None = None) -> tuple[list[Any], list[str]]:
    """Return the nodes of a branch with names that the graph has not, and its results; its constants are added.

    Parameters:
        bound: what its inputs are.
    """
    names = dict(bound or {})
    for tensor in branch.initializer:
        names[tensor.name] = graph.constant(tensor.name, array_of(tensor))
    for node in branch.node:
        names.update({name: graph.name(name) for name in node.output if name})
    nodes = [_renamed(node, names) for node in branch.node]
    return nodes, [names.get(value.name, value.name) for value in branch.output]


def _renamed(node: Any, names: Mapping[str, str]) -> Any:
    """Return a node, with what is in it, that reads and gives values of other names."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    rename_values(made, names)
    return made
