# SPDX-License-Identifier: Apache-2.0
"""Convolutions over one axis as those over two, of pictures of height 1: every rule for pictures is for them, too.

What stands between them, such as activations, poolings and concatenations, gets that axis as well, so that values stay
in the layout of pictures. A value [N, C, W] has the axis in front of W; it is a view, and moves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import helper

from portcall.compile._rewriting import CONVOLUTIONS, ONNX_DOMAINS, Graph, attribute_of

_POOLS = ("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")
_OF_CHANNELS = ("BatchNormalization", "InstanceNormalization")
_REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin")
_ONE_BY_ONE = frozenset((
    "Abs", "Cast", "Ceil", "Celu", "Clip", "Cos", "Elu", "Erf", "Exp", "Floor", "HardSigmoid", "HardSwish", "Identity",
    "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin",
    "Softplus", "Softsign", "Sqrt", "Tanh", "ThresholdedRelu",
))  # fmt: skip
_BROADCAST = frozenset((
    "Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "PRelu", "Where", "Equal", "Greater", "Less", "And", "Or",
))  # fmt: skip
# What attributes that have a number for each axis say of the new one.
_OF_AXES = {"kernel_shape": 1, "strides": 1, "dilations": 1, "output_padding": 0, "output_shape": 1}
_OLDEST = 5  # the opset since which Reshape has a second input


def add_heights(graph: Graph) -> None:
    """Give convolutions over one axis, and what is between them, an axis of height 1."""
    inner = any(a.HasField("g") or a.graphs for node in graph.nodes for a in node.attribute)
    wanted = any(node.op_type in CONVOLUTIONS and len(graph.shape(node.input[0]) or ()) == 3 for node in graph.nodes)
    if wanted and not inner and graph.opset["ai.onnx"] >= _OLDEST:
        _Heights(graph).run()


class _Heights:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Any] = []
        self.high: dict[str, str] = {}  # the value with the axis, by the name that it had
        self.low: dict[str, str] = {}  # and the one without, where somebody needs that
        self.transposes: dict[str, Any] = {}

    def run(self) -> None:
        for node in self.graph.nodes:
            if node.domain not in ONNX_DOMAINS or not self._take(node):
                self._keep(node)
        for name in self.graph.outputs:
            self._without(name)
        self.graph.nodes = self.nodes
        self.graph.drop_unused()

    def _keep(self, node: Any) -> None:
        for place, name in enumerate(node.input):
            node.input[place] = self._without(name)
        if node.op_type == "Transpose" and len(self.graph.shape(node.input[0]) or ()) == 3:
            self.transposes[node.output[0]] = node
        self.nodes.append(node)

    def _take(self, node: Any) -> bool:
        """Add a node with the axis; False if it is to stay as it is."""
        op, names = node.op_type, list(node.input)
        shape = self.graph.shape(names[0]) if names else None
        if op in ("Squeeze", "Unsqueeze"):
            return self._take_view(node)
        if shape is None or any(self.graph.shape(name) is None for name in node.output if name):
            return False
        if op in CONVOLUTIONS:
            if len(shape) != 3:
                return False
            return self._add(node, [self._with(names[0]), self._with(names[1]), *names[2:]])
        high = [name for name in names if name in self.high]
        if not high:
            return False
        if op == "Transpose":
            return self._take_transpose(node)
        if op in _BROADCAST:
            return self._take_broadcast(node)
        if op == "Concat":
            return self._add(node, [self._with(name) for name in names], axis=self._axis(node, 0))
        if names[0] not in self.high:
            return False
        if op == "Split":
            return self._add(node, [self.high[names[0]], *names[1:]], axis=self._axis(node, 0))
        if op in _REDUCTIONS:
            return self._take_reduction(node)
        if op in _ONE_BY_ONE or op in _OF_CHANNELS or op in _POOLS:
            alone = len([name for name in node.output if name]) == 1
            return alone and self._add(node, [self.high[names[0]], *names[1:]])
        return False

    # ---- Values ------------------------------------------------------------------------------------------------------

    def _with(self, name: str) -> str:
        """Return a value [N, C, W] as [N, C, 1, W]."""
        if name in self.high:
            return self.high[name]
        shape = self.graph.shape(name) or ()
        extents = [*shape[:-1], 1, shape[-1]]
        if name in self.graph.constants:
            return self.graph.constant(name, self.graph.constants[name].reshape(extents))
        made = self.transposes.get(name)
        if made is None:
            self.high[name], self.low[name] = self._reshaped(name, extents), name
            return self.high[name]
        perm = attribute_of(made, "perm", [2, 1, 0])  # a transpose of a view is one of the picture
        before, column = list(self.graph.shape(made.input[0]) or ()), perm[2]
        view = self._reshaped(made.input[0], [*before[:column], 1, *before[column:]])
        moved = [axis + (axis >= column) for axis in perm]
        self.high[name], self.low[name] = self.graph.name(name), name
        self.nodes.append(helper.make_node("Transpose", [view], [self.high[name]], perm=[*moved[:2], column, moved[2]]))
        return self.high[name]

    def _without(self, name: str) -> str:
        """Return a value as it was."""
        if name not in self.high:
            return name
        if name not in self.low:
            made = self.high[name]
            self.low[name] = self._reshaped(made, self.graph.shape(name) or (), name if made != name else "")
        return self.low[name]

    def _reshaped(self, name: str, extents: Sequence[int], result: str = "") -> str:
        result = result or self.graph.name(name)
        shape = self.graph.constant("shape", np.array(extents, "int64"))
        self.nodes.append(helper.make_node("Reshape", [name, shape], [result]))
        return result

    def _new(self, name: str) -> str:
        """Name a result with the axis: as before, so that its node is known, but for what the model returns."""
        self.high[name] = self.graph.name(name) if name in self.graph.outputs else name
        return self.high[name]

    # ---- Nodes -------------------------------------------------------------------------------------------------------

    def _add(self, node: Any, inputs: Sequence[str], **attributes: Any) -> bool:
        made = helper.make_node(node.op_type, list(inputs), [self._new(n) if n else "" for n in node.output], node.name)
        for each in node.attribute:
            value = helper.get_attribute_value(each)
            if each.name in _OF_AXES:
                value = [_OF_AXES[each.name], *value]
            elif each.name == "pads":
                half = len(value) // 2
                value = [0, *value[:half], 0, *value[half:]]
            made.attribute.append(helper.make_attribute(each.name, attributes.pop(each.name, value)))
        made.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
        self.nodes.append(made)
        return True

    def _axis(self, node: Any, default: int) -> int:
        """Return where an axis of three is among four."""
        axis = int(attribute_of(node, "axis", default)) % 3
        return axis + (axis == 2)

    def _take_broadcast(self, node: Any) -> bool:
        shapes = [self.graph.shape(name) for name in node.input]
        if any(shape is None or len(shape) > 3 for shape in shapes):
            return False
        inputs = []
        for name, shape in zip(node.input, shapes, strict=True):
            wide = shape is not None and len(shape) > 1
            inputs.append(self._with(name) if wide else name)
        return self._add(node, inputs)

    def _take_reduction(self, node: Any) -> bool:
        given = node.input[1] if len(node.input) > 1 else ""
        axes = self.graph.constants.get(given) if given else attribute_of(node, "axes", None)
        if axes is None or [int(axis) % 3 for axis in axes] != [2]:
            return False
        keep = bool(attribute_of(node, "keepdims", 1))
        name = node.input[0]
        inputs = [self.high[name], *([self.graph.constant("axes", np.array([2, 3]))] if given else [])]
        if keep:
            return self._add(node, inputs, **({} if given else {"axes": [2, 3]}))
        made = helper.make_node(node.op_type, inputs, list(node.output), node.name, keepdims=0)
        if not given:
            made.attribute.append(helper.make_attribute("axes", [2, 3]))
        self.nodes.append(made)
        return True

    def _take_transpose(self, node: Any) -> bool:
        perm = attribute_of(node, "perm", [2, 1, 0])
        moved = self.graph.name(node.output[0])
        axes = [axis for old in perm for axis in ((2, 3) if old == 2 else (old,))]
        self.nodes.append(helper.make_node("Transpose", [self.high[node.input[0]]], [moved], node.name, perm=axes))
        self._reshaped(moved, self.graph.shape(node.output[0]) or (), node.output[0])
        return True

    def _take_view(self, node: Any) -> bool:
        """Remember what a Squeeze takes the axis of, and let an Unsqueeze give it back."""
        name, result = node.input[0], node.output[0]
        before, after = self.graph.shape(name), self.graph.shape(result)
        if before is None or after is None:
            return False
        if node.op_type == "Squeeze" and len(before) == 4 and [*after[:2], 1, *after[2:]] == list(before):
            if before.count(1) == 1 or _axes(self.graph, node) == [2]:
                self.high[result], self.low[result] = name, result
            return False
        if name not in self.high or len(after) != 4 or _axes(self.graph, node) != [2]:
            return False
        self.nodes.append(helper.make_node("Identity", [self.high[name]], [result]))
        return True


def _axes(graph: Graph, node: Any) -> list[int]:
    """Return the axes of a Squeeze or Unsqueeze, of four; none if they are not known."""
    found = graph.constants.get(node.input[1]) if len(node.input) > 1 else attribute_of(node, "axes", None)
    return [int(axis) % 4 for axis in found] if found is not None else []
