# SPDX-License-Identifier: Apache-2.0
"""LSTM, GRU and RNN, written step by step with other operators; the formulas are those of the ONNX specification.

What does not depend on the step before, the product of the whole sequence with W, is one matrix product. Equal steps
share their kernels, so that a long sequence costs nodes, but hardly any code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isqrt
from typing import Any

import numpy as np
from onnx import helper

from portcall.compile._gates import GATES
from portcall.compile._rewriting import Graph, Nodes, attribute_of
from portcall.errors import ModelError

RECURRENT = {"LSTM": 4, "GRU": 3, "RNN": 1}  # by how many gates each has
MOST_STEPS = 512
_MANY = 32  # steps that one kernel still cuts a sequence into
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
        ModelError: a layer has weights that are computed, a length that is not fixed, or a function that is not known.
    """
    nodes: list[Any] = []
    for node in graph.nodes:
        nodes += _Layer(graph, node).nodes if node.op_type in RECURRENT else [node]
    graph.nodes = nodes


@dataclass(frozen=True)
class _Direction:
    """What one direction of a layer computes with: the names of values, and its functions.

    Attributes:
        inputs: for each step, the product with W and the biases that are added to it: [1, batch, gates * hidden].
        weights: R as [hidden, gates * hidden]; of a GRU without the last gate, unless its gates are one function.
        last: of a GRU, R of the last gate.
        rest: of a GRU, the bias that is added to the product with that; empty if it is added to the inputs.
        peepholes: of an LSTM, for the gates i, o, f; empty if there are none.
        joined: the gates are one function.
    """

    inputs: Sequence[str]
    weights: str
    last: str
    rest: str
    peepholes: Sequence[str]
    functions: Sequence[tuple[str, dict[str, Any]]]
    hidden: str
    cell: str
    joined: bool


class _Layer(Nodes):
    """Writes the nodes of one layer."""

    def __init__(self, graph: Graph, node: Any) -> None:
        super().__init__(graph, node)
        self.kind = node.op_type
        self.where = f"node '{node.name}'" if node.name else f"a node {node.op_type}"
        self.gates = RECURRENT[node.op_type]
        self.kept: dict[Any, str] = {}
        self.words = [*node.input, *[""] * (8 - len(node.input))]
        x, shape = node.input[0], graph.shape(node.input[0])
        if shape is None:
            raise ModelError(f"{self.where}: {self.kind}: the shape of its sequence is not fixed")
        self.dtype = graph.dtype(x)
        by_batch = bool(attribute_of(node, "layout", 0))
        if by_batch:
            x, shape = self.add("Transpose", x, perm=[1, 0, 2]), (shape[1], shape[0], shape[2])
        self.steps, self.batch = shape[0], shape[1]
        if self.steps > MOST_STEPS:
            raise ModelError(f"{self.where}: {self.kind}: {self.steps} steps are more than {MOST_STEPS}",
                             hint="run the model on shorter pieces of the sequence")  # fmt: skip
        w, r = self.constant(1, "W"), self.constant(2, "R")
        self.size = r.shape[2]
        self.clip = attribute_of(node, "clip", None)
        self.lengths = self.words[4]
        direction = attribute_of(node, "direction", b"forward").decode()
        turned = [direction == "reverse"] if direction != "bidirectional" else [False, True]
        outputs = [self.run(self.direction(k, x, w[k], r[k], by_batch), turn) for k, turn in enumerate(turned)]
        self.finish(outputs, by_batch)

    # ---- Values ------------------------------------------------------------------------------------------------------

    def stored(self, array: Any, dtype: str = "") -> str:
        """Return the name of a constant, of which there is one however many steps read it."""
        made = np.asarray(array, dtype or self.dtype)
        key = (made.dtype.str, made.shape, made.tobytes())
        if key not in self.kept:
            self.kept[key] = self.graph.constant(f"{self.kind}/constant", made)
        return self.kept[key]

    def shaped(self, name: str, *shape: int) -> str:
        return self.add("Reshape", name, self.stored(shape, "int64"))

    def constant(self, place: int, word: str) -> Any:
        if self.words[place] not in self.graph.constants:
            raise ModelError(f"{self.where}: {self.kind}: its {word} is computed; it must be constant")
        return self.graph.constants[self.words[place]]

    def state(self, place: int, number: int, by_batch: bool) -> str:
        """Return a state to begin with: [batch, hidden]."""
        name = self.words[place]
        if not name:
            return self.stored(np.zeros((self.batch, self.size)))
        if by_batch:
            name = self.add("Transpose", name, perm=[1, 0, 2])
        return self.add("Gather", name, self.stored(number, "int64"), axis=0)

    def split(self, name: str, steps: int) -> list[str]:
        """Return the steps of a sequence. Those of a long one are parts of parts, whose kernels are small and few."""
        if steps == 1:
            return [name]
        most = isqrt(steps - 1) + 1 if steps > _MANY else 1
        sizes = [min(most, steps - start) for start in range(0, steps, most)]
        parts = [self.graph.name(f"{self.kind}/step") for _ in sizes]
        self.nodes.append(helper.make_node("Split", [name, self.stored(sizes, "int64")], parts, axis=0))
        return [step for part, size in zip(parts, sizes, strict=True) for step in self.split(part, size)]

    def direction(self, k: int, x: str, w: Any, r: Any, by_batch: bool) -> _Direction:
        zeros = np.zeros(2 * self.gates * self.size, self.dtype)
        biases = self.constant(3, "B")[k] if self.words[3] else zeros
        of_w, of_r = np.split(biases, 2)
        weights, last, rest = r.T, "", ""
        functions, linear = self.functions(k), bool(attribute_of(self.node, "linear_before_reset", 0))
        joined = self.joins(functions, linear)
        if self.kind == "GRU":
            if not joined:
                weights, last = r.T[:, : 2 * self.size], self.stored(r.T[:, 2 * self.size :])
            if linear:
                rest = self.stored(of_r[2 * self.size :])
                of_r = np.concatenate([of_r[: 2 * self.size], np.zeros(self.size, of_r.dtype)])
        product = self.add("MatMul", x, self.stored(w.T))
        summed = self.add("Add", product, self.stored(of_w + of_r))
        inputs = self.split(summed, self.steps)
        holes = np.split(self.constant(7, "P")[k], 3) if self.kind == "LSTM" and self.words[7] else []
        peepholes = [self.stored(hole) for hole in holes]
        hidden = self.state(5, k, by_batch)
        cell = self.state(6, k, by_batch) if self.kind == "LSTM" else ""
        return _Direction(inputs, self.stored(weights), last, rest, peepholes, functions, hidden, cell, joined)

    def joins(self, functions: Sequence[tuple[str, dict[str, Any]]], linear: bool) -> bool:
        """Tell whether a step's gates are the usual ones, of which there is one function."""
        usual = [name for name, _ in functions] == list(_DEFAULTS[self.kind])
        simple = linear if self.kind == "GRU" else self.kind == "LSTM" and not self.words[7]
        own = self.clip is not None or bool(attribute_of(self.node, "input_forget", 0))
        return usual and simple and not own and self.dtype == "float32"

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

    # ---- Steps -------------------------------------------------------------------------------------------------------

    def run(self, d: _Direction, turned: bool) -> tuple[list[str], str, str]:
        """Write all steps of a direction; return the result of each, and the last states."""
        results = [""] * self.steps
        hidden, cell = d.hidden, d.cell
        step = {"LSTM": self.lstm, "GRU": self.gru, "RNN": self.rnn}[self.kind]
        for t in reversed(range(self.steps)) if turned else range(self.steps):
            if d.joined:
                made, made_cell = self.joined(d, d.inputs[t], hidden, cell)
            else:
                x = self.shaped(d.inputs[t], self.batch, self.gates * self.size)
                made, made_cell = step(d, x, hidden, cell)
            results[t] = made
            if self.lengths:
                there = self.reaches(t)
                results[t] = self.add("Where", there, made, self.stored(0))
                made = self.add("Where", there, made, hidden)
                made_cell = self.add("Where", there, made_cell, cell) if cell else ""
            hidden, cell = made, made_cell
        if self.lengths:  # without steps the last state is 0, as onnxruntime has it; the specification does not say
            hidden, cell = (
                name and self.add("Where", self.reaches(0), name, self.stored(0)) for name in (hidden, cell)
            )
        return results, hidden, cell

    def reaches(self, t: int) -> str:
        """Return whether each sequence has a step: [batch, 1]."""
        longer = self.add("Less", self.stored(t, self.graph.dtype(self.lengths)), self.lengths)
        return self.shaped(longer, self.batch, 1)

    def joined(self, d: _Direction, x: str, hidden: str, cell: str) -> tuple[str, str]:
        """Write a step whose gates are one function, of an LSTM two."""
        words = {"batch": self.batch, "size": self.size}
        product = self.add("MatMul", hidden, d.weights)
        if self.kind == "GRU":
            return self.add(GATES, product, x, d.rest, hidden, kind="gru", **words), ""
        made = self.add(GATES, product, x, cell, kind="cell", **words)
        return self.add(GATES, product, x, made, kind="hidden", **words), made

    def lstm(self, d: _Direction, x: str, hidden: str, cell: str) -> tuple[str, str]:
        i, o, f, c = self.parts(self.add("Add", self.add("MatMul", hidden, d.weights), x))
        inner, of_cell, of_result = d.functions
        if d.peepholes:
            i, f = (self.add("Add", gate, self.add("Mul", cell, d.peepholes[k])) for gate, k in ((i, 0), (f, 2)))
        i = self.apply(inner, i)
        forget = attribute_of(self.node, "input_forget", 0)
        f = self.add("Sub", self.stored(1), i) if forget else self.apply(inner, f)
        made = self.add("Add", self.add("Mul", f, cell), self.add("Mul", i, self.apply(of_cell, c)))
        if d.peepholes:
            o = self.add("Add", o, self.add("Mul", made, d.peepholes[1]))
        return self.add("Mul", self.apply(inner, o), self.apply(of_result, made, clipped=False)), made

    def gru(self, d: _Direction, x: str, hidden: str, _cell: str) -> tuple[str, str]:
        inner, outer = d.functions
        of_x = self.parts(x)
        of_h = self.parts(self.add("MatMul", hidden, d.weights), 2)
        z, r = (self.apply(inner, self.add("Add", a, b)) for a, b in zip(of_h, of_x[:2], strict=True))
        if d.rest:
            summed = self.add("Mul", r, self.add("Add", self.add("MatMul", hidden, d.last), d.rest))
        else:
            summed = self.add("MatMul", self.add("Mul", r, hidden), d.last)
        new = self.apply(outer, self.add("Add", summed, of_x[2]))
        kept = self.add("Mul", z, hidden)
        return self.add("Add", self.add("Mul", self.add("Sub", self.stored(1), z), new), kept), ""

    def rnn(self, d: _Direction, x: str, hidden: str, _cell: str) -> tuple[str, str]:
        return self.apply(d.functions[0], self.add("Add", self.add("MatMul", hidden, d.weights), x)), ""

    def parts(self, name: str, count: int = 0) -> list[str]:
        """Return the gates in a row of them."""
        if self.gates == 1:
            return [name]
        axis = self.stored([1], "int64")
        places = [self.stored([k * self.size], "int64") for k in range((count or self.gates) + 1)]
        return [self.add("Slice", name, *places[k : k + 2], axis) for k in range(count or self.gates)]

    def apply(self, function: tuple[str, dict[str, Any]], name: str, clipped: bool = True) -> str:
        if clipped and self.clip is not None:
            name = self.add("Clip", name, self.stored(-self.clip), self.stored(self.clip))
        return self.add(function[0], name, **function[1])

    # ---- Results -----------------------------------------------------------------------------------------------------

    def finish(self, outputs: Sequence[tuple[list[str], str, str]], by_batch: bool) -> None:
        """Give the results their names and layouts: [steps, directions, batch, hidden], states without the steps."""
        names = [*self.node.output, "", ""]
        if names[0]:
            every = self.together([results[t] for t in range(self.steps) for results, _, _ in outputs])
            every = self.shaped(every, self.steps, len(outputs), self.batch, self.size)
            order = [2, 0, 1, 3] if by_batch else [0, 1, 2, 3]
            self.nodes.append(helper.make_node("Transpose", [every], [names[0]], perm=order))
        for place, states in ((1, [h for _, h, _ in outputs]), (2, [c for _, _, c in outputs])):
            if names[place]:
                order = [1, 0, 2] if by_batch else [0, 1, 2]
                self.nodes.append(helper.make_node("Transpose", [self.together(states)], [names[place]], perm=order))

    def together(self, names: Sequence[str]) -> str:
        """Return some states as one value: [states, batch, hidden]."""
        rows = names[0] if len(names) == 1 else self.add("Concat", *names, axis=0)
        return self.shaped(rows, len(names), self.batch, self.size)
