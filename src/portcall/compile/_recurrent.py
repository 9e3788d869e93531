# SPDX-License-Identifier: Apache-2.0
"""LSTM, GRU and RNN: the product of the whole sequence with W, and a kernel for all steps of each direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import helper

from portcall.compile._rewriting import Graph, Nodes, attribute_of
from portcall.compile._steps import GATES, OPTIONAL, STEPS
from portcall.errors import ModelError

_DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
_PLAIN = ("Sigmoid", "Tanh", "Relu", "Softsign", "Softplus")
# Functions with parameters: the names of alpha and beta in the operator of that name, and their values if not given.
_WITH_PARAMETERS = {
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
    "LeakyRelu": {"alpha": 0.01},
    "Elu": {"alpha": 1.0},
    "ThresholdedRelu": {"alpha": 1.0},
}


def replace_recurrent(graph: Graph) -> None:
    """Write the recurrent layers of a graph with other operators.

    Raises:
        ModelError: a layer has weights that are computed, or a function that is not known.
    """
    nodes: list[Any] = []
    for node in graph.nodes:
        nodes += _Layer(graph, node).nodes if node.op_type in GATES else [node]
    graph.nodes = nodes


class _Layer(Nodes):
    """Writes the nodes of one layer."""

    def __init__(self, graph: Graph, node: Any) -> None:
        super().__init__(graph, node)
        self.kind = node.op_type
        self.where = f"node '{node.name}'" if node.name else f"a node {node.op_type}"
        self.gates = GATES[node.op_type]
        self.kept: dict[Any, str] = {}
        self.words = [*node.input, *[""] * (8 - len(node.input))]
        x = node.input[0]
        by_batch = bool(attribute_of(node, "layout", 0))
        if by_batch:
            x = self.add("Transpose", x, perm=[1, 0, 2])
        w, r = self.constant(1, "W"), self.constant(2, "R")
        self.dtype, self.size = str(r.dtype), r.shape[2]
        self.clip = attribute_of(node, "clip", None)
        direction = attribute_of(node, "direction", b"forward").decode()
        turned = [direction == "reverse"] if direction != "bidirectional" else [False, True]
        self.finish([self.direction(k, x, w[k], r[k], turn, by_batch) for k, turn in enumerate(turned)], by_batch)

    # ---- Values ------------------------------------------------------------------------------------------------------

    def stored(self, array: Any, dtype: str = "") -> str:
        """Return the name of a constant, of which there is one for both directions."""
        made = np.asarray(array, dtype or self.dtype)
        key = (made.dtype.str, made.shape, made.tobytes())
        if key not in self.kept:
            self.kept[key] = self.graph.constant(f"{self.kind}/constant", made)
        return self.kept[key]

    def constant(self, place: int, word: str) -> Any:
        if self.words[place] not in self.graph.constants:
            raise ModelError(f"{self.where}: {self.kind}: its {word} is computed; it must be constant")
        return self.graph.constants[self.words[place]]

    def state(self, place: int, number: int, by_batch: bool) -> str:
        """Return a state to begin with, [batch, hidden]; none if the node has none."""
        name = self.words[place]
        if not name:
            return ""
        if by_batch:
            name = self.add("Transpose", name, perm=[1, 0, 2])
        return self.add("Gather", name, self.stored(number, "int64"), axis=0)

    def direction(self, k: int, x: str, w: Any, r: Any, turned: bool, by_batch: bool) -> list[str]:
        """Write a direction; return all its states, and the last ones."""
        zeros = np.zeros(2 * self.gates * self.size, self.dtype)
        of_w, of_r = np.split(self.constant(3, "B")[k] if self.words[3] else zeros, 2)
        inputs = dict.fromkeys(OPTIONAL, "")
        linear = self.kind == "GRU" and bool(attribute_of(self.node, "linear_before_reset", 0))
        if linear:
            inputs["rest"] = self.stored(of_r[2 * self.size :])
            of_r = np.concatenate([of_r[: 2 * self.size], np.zeros(self.size, of_r.dtype)])
        summed = self.add("Add", self.add("MatMul", x, self.stored(w.T)), self.stored(of_w + of_r))
        if self.kind == "LSTM" and self.words[7]:
            inputs["peepholes"] = self.stored(self.constant(7, "P")[k])
        inputs["hidden"] = self.state(5, k, by_batch)
        inputs["cell"] = self.state(6, k, by_batch) if self.kind == "LSTM" else ""
        inputs["lengths"] = self.words[4]
        words = ("states", "hidden", "cell") if self.kind == "LSTM" else ("states", "hidden")
        made = [self.graph.name(f"{self.kind}/{word}") for word in words]
        names, parameters = zip(*self.functions(k), strict=True)
        self.nodes.append(helper.make_node(
            STEPS, [summed, self.stored(r), *inputs.values()], made, self.node.name, kind=self.kind, size=self.size,
            functions=list(names), alpha=[float(each.get("alpha", 0)) for each in parameters],
            beta=[float(each.get("beta", 0)) for each in parameters], turned=int(turned), clip=float(self.clip or 0),
            coupled=int(attribute_of(self.node, "input_forget", 0)), linear=int(linear)))  # fmt: skip
        return made

    def functions(self, k: int) -> list[tuple[str, dict[str, Any]]]:
        """Return the functions of a direction with their parameters; ONNX lists those of all directions in a row."""
        count = len(_DEFAULTS[self.kind])
        given = [word.decode() for word in attribute_of(self.node, "activations", [])]
        every = given or [*_DEFAULTS[self.kind]] * 2
        parameters = {name: list(attribute_of(self.node, f"activation_{name}", [])) for name in ("alpha", "beta")}
        found = []
        for name in every:
            known = next((word for word in (*_PLAIN, *_WITH_PARAMETERS) if word.lower() == name.lower()), "")
            if not known:
                raise ModelError(f"{self.where}: {self.kind}: the function {name} is not supported")
            words = {
                word: parameters[word].pop(0) if parameters[word] else value
                for word, value in _WITH_PARAMETERS.get(known, {}).items()
            }
            found.append((known, words))
        return found[k * count : (k + 1) * count]

    # ---- Results -----------------------------------------------------------------------------------------------------

    def finish(self, directions: Sequence[Sequence[str]], by_batch: bool) -> None:
        """Give the results their names and layouts: [steps, directions, batch, hidden], states without the steps."""
        for place, (name, parts) in enumerate(zip(self.node.output, zip(*directions, strict=True), strict=False)):
            if not name:
                continue
            made = self.graph.name(f"{self.kind}/joined") if by_batch else name
            if len(parts) > 1:
                self.add("Concat", *parts, axis=1 if place == 0 else 0, out=made)
            else:
                self.add("Identity", parts[0], out=made)
            if by_batch:
                self.add("Transpose", made, perm=[2, 0, 1, 3] if place == 0 else [1, 0, 2], out=name)
