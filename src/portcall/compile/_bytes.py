# SPDX-License-Identifier: Apache-2.0
"""Weights of 8 bits that a model casts to floats and scales: they stay bytes in what is compiled.

Tables are read as bytes, and the rows that were read are cast and scaled. Products are scaled after their sums, so that
their weights are the integers themselves, which kernels read as bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import TensorProto

from portcall.compile._rewriting import Graph, Nodes, attribute_of

Array = Any
_FEWEST = 1024  # weights; fewer are no matter
_FIRST = 64  # weights that say for most models that they are no integers


def keep_bytes(graph: Graph) -> None:
    """Move the scales of weights after the Gather or the MatMul that reads them."""
    makers = {name: node for node in graph.nodes for name in node.output}
    nodes = []
    for node in graph.nodes:
        made = Nodes(graph, node)
        if node.op_type == "Gather":
            _table(made, *_scaled(graph, makers, node.input[0]))
        elif node.op_type == "MatMul":
            _product(made, *_scaled(graph, makers, node.input[1]))
        nodes += made.nodes or [node]
    graph.nodes = nodes
    graph.drop_unused()


def are_bytes(weights: Array) -> bool:
    """Tell whether weights in floats are integers of 8 bits."""

    def fit(part: Array) -> bool:
        return bool(((part == np.rint(part)) & (part >= -128) & (part <= 127)).all())

    return weights.size >= _FEWEST and fit(weights.reshape(-1)[:_FIRST]) and fit(weights)


def _scaled(graph: Graph, makers: Mapping[str, Any], name: str) -> tuple[str, str]:
    """Return the bytes and the scale that a value is the product of; empty names if it is something else."""
    product = makers.get(name)
    if product is None or product.op_type != "Mul":
        return "", ""
    for first, second in ((0, 1), (1, 0)):
        cast, scale = makers.get(product.input[first]), graph.constants.get(product.input[second])
        if cast is None or scale is None or scale.dtype != np.float32:
            continue
        weights = graph.constants.get(cast.input[0]) if cast.op_type == "Cast" else None
        if weights is not None and weights.dtype in (np.int8, np.uint8) and scale.ndim <= weights.ndim:
            return cast.input[0], product.input[second]
    return "", ""


def _table(made: Nodes, weights: str, scale: str) -> None:
    graph, node = made.graph, made.node
    if not weights or attribute_of(node, "axis", 0) != 0:
        return
    table, scales = graph.constants[weights], graph.constants[scale]
    rows = scales.ndim == table.ndim and scales.shape[0] == table.shape[0] and scales.size == table.shape[0]
    if table.ndim < 2 or not (rows or scales.size == 1):
        return
    found = made.add("Cast", made.add("Gather", weights, node.input[1]), to=TensorProto.FLOAT)
    factor = made.add("Gather", scale, node.input[1]) if rows else graph.constant("scale", scales.reshape(()))
    made.add("Mul", found, factor, out=node.output[0])


def _product(made: Nodes, weights: str, scale: str) -> None:
    graph, node = made.graph, made.node
    if not weights or graph.constants[weights].dtype != np.int8 or graph.constants[weights].ndim != 2:
        return
    columns, scales = graph.constants[weights].shape[1], graph.constants[scale]
    if scales.size != 1 and scales.shape not in ((columns,), (1, columns)):
        return
    sums = made.add("MatMul", node.input[0], made.add("Cast", weights, to=TensorProto.FLOAT))
    factor = scales.reshape(() if scales.size == 1 else (columns,))
    made.add("Mul", sums, graph.constant("scale", factor), out=node.output[0])
