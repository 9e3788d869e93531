# SPDX-License-Identifier: Apache-2.0
"""An ONNX model while it is rewritten: nodes as a list, constants as arrays, shapes that are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from portcall.errors import ModelError

Array = Any
Model = Any
ONNX_DOMAINS = ("", "ai.onnx")


class Graph:
    """The nodes of a model, its constants as arrays, and what reads what."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.nodes = list(model.graph.node)
        self.constants: dict[str, Array] = {
            tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer
        }
        self.inputs = [value.name for value in model.graph.input if value.name not in self.constants]
        self.outputs = [value.name for value in model.graph.output]
        self.opset = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
        self._inferred = {
            value.name: value for group in (model.graph.input, model.graph.value_info, model.graph.output)
            for value in group
        }  # fmt: skip
        self._taken = {name for node in self.nodes for name in node.output} | set(self._inferred)
        self._unique = 0

    def readers(self) -> Counter[str]:
        """Count who reads a value; the caller reads outputs, and subgraphs read what they like."""
        found = Counter(name for node in self.nodes for name in _all_inputs(node))
        found.update(self.outputs)
        return found

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a value if all of it is known."""
        if name in self.constants:
            return tuple(self.constants[name].shape)
        value = self._inferred.get(name)
        if value is None or not value.type.tensor_type.HasField("shape"):
            return None
        dims = value.type.tensor_type.shape.dim
        return tuple(d.dim_value for d in dims) if all(d.WhichOneof("value") == "dim_value" for d in dims) else None

    def dtype(self, name: str) -> str:
        """Return the type of a value by NumPy's name; empty if it is not known."""
        if name in self.constants:
            return str(self.constants[name].dtype)
        kind = self._inferred[name].type.tensor_type.elem_type if name in self._inferred else 0
        return str(helper.tensor_dtype_to_np_dtype(kind)) if kind else ""

    def name(self, stem: str) -> str:
        """Return a name that no value has."""
        self._unique += 1
        name = f"{stem}/{self._unique}"
        while name in self.constants or name in self._taken:
            name += "_"
        return name

    def constant(self, stem: str, array: Array) -> str:
        """Add a constant and return its name."""
        name = self.name(stem)
        self.constants[name] = array
        return name

    def drop_unused(self) -> None:
        """Remove nodes whose results nobody reads."""
        needed, kept = set(self.outputs), []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                needed.update(_all_inputs(node))
                kept.append(node)
        self.nodes = kept[::-1]

    def rename(self, names: dict[str, str]) -> None:
        """Let readers of some values read others."""

        def last(name: str) -> str:
            while name in names:
                name = names[name]
            return name

        for node in self.nodes:
            for place, name in enumerate(node.input):
                node.input[place] = last(name)

    def model(self) -> Model:
        """Return the model; constants that nobody reads are left out."""
        old = self._model.graph
        used = {name for node in self.nodes for name in _all_inputs(node)} | set(self.outputs)
        inputs = [value for value in old.input if value.name not in self.constants]
        tensors = [
            numpy_helper.from_array(np.ascontiguousarray(array) if array.ndim else array, name)
            for name, array in self.constants.items() if name in used
        ]  # fmt: skip
        graph = helper.make_graph(self.nodes, old.name, inputs, list(old.output), tensors)
        made = helper.make_model(graph, opset_imports=list(self._model.opset_import))
        made.ir_version = self._model.ir_version
        return made


def _all_inputs(node: Any) -> Iterable[str]:
    """Yield what a node reads, its subgraphs included."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _all_inputs(inner)


def opset_of(model: Model) -> int:
    """Return the version of ONNX's own operators."""
    return int(next((entry.version for entry in model.opset_import if entry.domain in ONNX_DOMAINS), 1))


def name_of(node: Any, number: int) -> str:
    return f"node '{node.name}'" if node.name else f"node {number}"


def refusal(node: Any, number: int, reason: object) -> ModelError:
    """Return the error for one node that cannot be compiled."""
    text = f"{name_of(node, number)}: {node.op_type}: {reason}"
    return ModelError(text, problems=[text])


def attribute_of(node: Any, name: str, default: Any) -> Any:
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def inputs_behind(model: Model, name: str) -> list[str]:
    """Return the inputs of a model that a value depends on by more than their shapes."""
    makers = {output: node for node in model.graph.node for output in node.output}
    inputs = {value.name for value in model.graph.input} - {tensor.name for tensor in model.graph.initializer}
    found: dict[str, None] = {}
    seen, left = {name}, [name]
    while left:
        current = left.pop()
        if current in inputs:
            found[current] = None
        node = makers.get(current)
        for other in () if node is None or node.op_type in ("Shape", "Size") else node.input:
            if other not in seen:
                seen.add(other)
                left.append(other)
    return list(found)
