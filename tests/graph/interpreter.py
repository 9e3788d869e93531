# SPDX-License-Identifier: Apache-2.0
"""Graphs computed by NumPy, one node after the other, each value in an array of its own; and random graphs to compute.

The kernels are those of tests/kernels/graph_kernels.py. Inputs are small whole numbers, and random graphs have few
products, so that float32 is exact and results can be compared bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

import portcall
from portcall.graph._builder import Entry, GraphBuilder
from portcall.graph._spec import Graph

Array = NDArray[Any]
Kernel = Callable[..., "Array | tuple[Array, ...]"]

KERNELS: dict[str, Kernel] = {
    "dense": lambda x, w, b: x @ w.T + b,
    "relu": lambda x: np.maximum(x, 0),
    "add": lambda a, b: a + b,
    "add_flat": lambda a, b: a + b,
    "halves": lambda x: (x[:, : x.shape[1] // 2], x[:, x.shape[1] // 2 :]),
    "round_down": lambda x: np.floor(x).astype("int32"),
    "__copy": lambda x: x,
}


def interpret(graph: Graph, inputs: Mapping[str, Array], kernels: Mapping[str, Kernel] = KERNELS) -> list[Array]:
    """Return the graph's outputs. The kernels take the inputs of a node and return its outputs."""
    values: list[Array] = []
    for node in graph.nodes:
        given = [values[entry] for entry in node.inputs]
        if not node.function:
            made: Any = inputs[node.name]
        elif node.function == "__nop":
            made = given[0].reshape(graph.values[node.outputs[0]].shape)
        else:
            flat = node.flatten_data
            made = kernels[node.function](*(each.reshape(-1) for each in given) if flat else given)
        outputs = made if isinstance(made, tuple) else (made,)
        for entry, array in zip(node.outputs, outputs, strict=True):
            value = graph.values[entry]
            values.append(array.astype(value.dtype.numpy()).reshape(value.shape))
    return [values[entry] for entry in graph.outputs]


def random_inputs(graph: Graph, seed: int) -> dict[str, Array]:
    """Return an array of whole numbers from -2 to 2 for each placeholder."""
    random = np.random.default_rng(seed)
    placeholders = [graph.nodes[number] for number in graph.inputs]
    return {
        node.name: random.integers(-2, 3, graph.values[node.outputs[0]].shape).astype("float32")
        for node in placeholders
    }


@st.composite
def random_graphs(draw: st.DrawFn, most_nodes: int = 14, devices: tuple[str, ...] = ()) -> GraphBuilder:
    """Graphs that branch and join, with views, several outputs of one node, results that are read again, and dead ends.

    With ``devices`` values are copied between them, too.
    """
    builder = GraphBuilder(devices[0]) if devices else GraphBuilder()
    values = [builder.input("x0", (draw(st.integers(1, 4)), 2 * draw(st.integers(1, 3))))]
    for _ in range(draw(st.integers(1, most_nodes))):
        kinds = ["input", "relu", "add", "add_flat", "halves", "dense", "reshape", "round_down"]
        _add(draw, builder, values, draw(st.sampled_from([*kinds, "copy"] if devices else kinds)), devices)
    builder.output(*draw(st.lists(st.sampled_from(values), min_size=1, max_size=4)))
    return builder


def _add(draw: st.DrawFn, b: GraphBuilder, values: list[Entry], kind: str, devices: tuple[str, ...]) -> None:
    """Add a node of a kind that fits a value drawn from those that are there."""
    x = draw(st.sampled_from(values))
    columns = x.shape[1] if len(x.shape) == 2 else 0
    alike = [y for y in values if (y.shape, y.dtype, y.device_type) == (x.shape, x.dtype, x.device_type)]
    device = {"device": draw(st.sampled_from(devices))} if devices else {}
    if kind == "input":
        values.append(b.input(f"x{len(values)}", x.shape, **device))
    elif kind == "reshape":
        rows = draw(st.sampled_from([k for k in range(1, 5) if math.prod(x.shape) % k == 0]))
        values.append(b.reshape(x, draw(st.sampled_from([(rows, -1), (-1,), (1, rows, -1)]))))
    elif kind == "copy":
        values.append(b.copy(x, **device))
    elif x.dtype != "float32" or (not columns and kind != "add_flat"):
        return
    elif kind in ("relu", "round_down"):
        values.append(b.call(kind, [x], x.shape, "int32" if kind == "round_down" else "float32"))
    elif kind == "halves" and columns % 2 == 0:
        values.extend(b.call(kind, [x], [(x.shape[0], columns // 2)] * 2))
    elif kind == "dense" and len(b.params) < 2:
        weights, bias = draw(st.sampled_from([(2, columns), (6, columns)])), f"b{len(values)}"
        place = {"device": portcall.device(x.device_type)} if devices else {}
        w = b.param(f"w{len(values)}", np.zeros(weights, "float32"), **place)  # type: ignore[arg-type]
        values.append(b.call(kind, [x, w, b.input(bias, weights[:1], **place)], (x.shape[0], weights[0])))
    elif kind in ("add", "add_flat"):
        values.append(b.call(kind, [x, draw(st.sampled_from(alike))], x.shape, flatten_data=kind == "add_flat"))
