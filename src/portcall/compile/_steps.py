# SPDX-License-Identifier: Apache-2.0
"""All steps of one direction of an LSTM, GRU or RNN as one kernel; the numbers of steps and of rows may be open.

What does not depend on the step before, the product of the sequence with W and the biases, is computed in front. A few
rows of a batch go through all steps together, so that what they are multiplied with is read once for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from portcall.compile._math import call
from portcall.compile._target import Target
from portcall.compile._writer import Buffer, Expr, Index, Writer, as_written, floordiv, floormod

Array = Any
STEPS = "PortcallSteps"  # the operator that the importer gives the kernel
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
OPTIONAL = ("peepholes", "rest", "hidden", "cell", "lengths")  # what it may read beside the sequence and the weights
_LARGE = 1 << 20  # bytes that a step multiplies with, which is worth several threads
_VECTORS = 4  # of a block of columns
Function = tuple[str, Mapping[str, float]]


@dataclass(frozen=True)
class Layer:
    """What a direction of a layer does.

    Attributes:
        kind: LSTM, GRU or RNN.
        size: of the state.
        functions: by their ONNX names, with their parameters: of gates first.
        turned: it goes through the sequence backwards.
        clip: what the functions of gates get is at most so far from 0; 0 if there is no limit.
        coupled: of an LSTM, the gates i and f add up to 1.
        linear: of a GRU, the product with R is before that with the reset gate; a bias, ``rest``, is added to it.
    """

    kind: str
    size: int
    functions: Sequence[Function]
    turned: bool
    clip: float = 0.0
    coupled: bool = False
    linear: bool = False

    @property
    def products(self) -> Sequence[tuple[int, int]]:
        """By which columns of R the state is multiplied at once: first and last; of some GRU the last gate is later."""
        columns = GATES[self.kind] * self.size
        if self.kind == "GRU" and not self.linear:
            return (0, 2 * self.size), (2 * self.size, columns)
        return ((0, columns),)

    def packed(self, r: Array, target: Target) -> Array:
        """Return R, [gates * size, size], in blocks of columns, one product after the other."""
        parts, width = [], _VECTORS * target.lanes
        for first, last in self.products:
            part = np.pad(r[first:last], [(0, -(last - first) % width), (0, 0)])
            parts.append(part.reshape(-1, width, self.size).transpose(0, 2, 1).reshape(-1))
        return np.ascontiguousarray(np.concatenate(parts))


class StepsKernel:
    """A function of x [steps, batch, gates * size], the packed R, and what of ``OPTIONAL`` is given.

    These are [3 * size], [size], twice [batch, size], and [batch] of int32. It gives all states, [steps, 1, batch,
    size], the last one, [1, batch, size], and of an LSTM the last cell.

    Parameters:
        steps, batch: None where they are known only when it runs.
        parallel: let threads share the rows, or where there are few the columns of a large R.
    """

    def __init__(
        self,
        layer: Layer,
        steps: Index | None,
        batch: Index | None,
        dtype: str,
        given: Sequence[str],
        target: Target,
        parallel: bool = False,
    ) -> None:
        self.layer, self.dtype, self.target, self.size = layer, dtype, target, layer.size
        self.steps = tirx.Var("steps", "int64") if steps is None else steps
        self.batch = tirx.Var("batch", "int64") if batch is None else batch
        self.w = Writer(parallel=parallel, index="int64")
        self.width = _VECTORS * target.lanes
        size, rows = layer.size, (self.batch, layer.size)
        self.sums_at, self.row = [], 0  # where the sums of each product begin in a row of them
        for first, last in layer.products:
            self.sums_at.append(self.row)
            self.row += -(-(last - first) // self.width) * self.width
        shapes = {"peepholes": (3 * size,), "rest": (size,), "hidden": rows, "cell": rows, "lengths": (self.batch,)}

        def buffer(name: str, shape: Sequence[Any]) -> Buffer:
            return tirx.decl_buffer(shape, "int32" if name == "lengths" else dtype, name=name)

        self.x = buffer("x", (self.steps, self.batch, GATES[layer.kind] * size))
        self.r = buffer("r", (self.row * size,))
        self.inputs = {name: buffer(name, shapes[name]) for name in OPTIONAL if name in given}
        self.y = buffer("y", (self.steps, 1, self.batch, size))
        names = ("hidden", "cell") if layer.kind == "LSTM" else ("hidden",)
        self.states = {name: buffer(f"last_{name}", (1, *rows)) for name in names}

    def function(self) -> Any:
        """Rows with lengths of their own go one by one."""
        w, most = self.w, 1 if "lengths" in self.inputs else 4 if self.target.registers >= 32 else 2
        if isinstance(self.batch, int):  # a single loop, which may be parallel
            most = next(rows for rows in range(most, 0, -1) if self.batch % rows == 0)
        with w.outer(floordiv(self.batch, most)) as tile:
            self._rows(tile * most, most)
        if most > 1 and not isinstance(self.batch, int):
            rest = floormod(self.batch, most)
            with w.loop(rest) as row:
                self._rows(self.batch - rest + row, 1)
        return as_written(w.function([self.x, self.r, *self.inputs.values()], [self.y, *self.states.values()]))

    def _rows(self, first: Index, rows: int) -> None:
        """Write all steps of some rows."""
        w, zero = self.w, tirx.const(0, self.dtype)
        self.sums = w.scratch(rows * self.row, self.dtype)
        self.reset = w.scratch(rows * self.size, self.dtype) if len(self.sums_at) > 1 else None
        for name in self.states:
            self._begin(name, first, rows, self.inputs.get(name))
        count = self.steps
        if "lengths" in self.inputs:
            length = tirx.Cast("int64", self.inputs["lengths"][first])
            steps = tirx.const(self.steps, "int64") if isinstance(self.steps, int) else self.steps
            count = tirx.max(tirx.const(0, "int64"), tirx.min(length, steps))
        with w.loop(count) as turn:
            self._step(count - 1 - turn if self.layer.turned else turn, first, rows)
        if "lengths" not in self.inputs:
            return
        with w.loop(self.steps - count) as turn:
            self._each(rows, lambda t, j: w.store(self.y, (count + turn, 0, first + t, j), zero))
        with w.when(count == 0):  # as onnxruntime has it; the specification does not say
            for name in self.states:
                self._begin(name, first, rows, None)

    def _begin(self, name: str, first: Index, rows: int, given: Buffer | None) -> None:
        """Write a state as it is given, or 0."""
        zero = tirx.const(0, self.dtype)
        self._each(rows, lambda t, j: self.w.store(
            self.states[name], (0, first + t, j), zero if given is None else given[first + t, j]))  # fmt: skip

    def _step(self, time: Index, first: Index, rows: int) -> None:
        self._product(0, rows, lambda t, k: self.states["hidden"][0, first + t, k])
        {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[self.layer.kind](time, first, rows)
        self._each(
            rows, lambda t, j: self.w.store(self.y, (time, 0, first + t, j), self.states["hidden"][0, first + t, j])
        )

    def _product(self, number: int, rows: int, state: Callable[[int, Index], Expr]) -> None:
        """Write the product of the rows with a part of R."""
        w, lanes = self.w, self.target.lanes
        start, end = [*self.sums_at, self.row][number : number + 2]
        large = (end - start) * self.size * np.dtype(self.dtype).itemsize >= _LARGE
        with (w.outer if large else w.loop)((end - start) // self.width) as block:
            sums = [w.registers(_VECTORS, lanes, dtype=self.dtype) for _ in range(rows)]
            for row in sums:
                with w.unrolled(_VECTORS) as v, w.vector(lanes) as lane:
                    w.store(row, (v, lane), tirx.const(0, self.dtype))
            with w.loop(self.size) as k:
                for t, row in enumerate(sums):
                    with w.unrolled(_VECTORS) as v, w.vector(lanes) as lane:
                        at = start * self.size + (block * self.size + k) * self.width + v * lanes + lane
                        w.store(row, (v, lane), row[v, lane] + state(t, k) * self.r[at])
            for t, row in enumerate(sums):
                with w.unrolled(_VECTORS) as v, w.vector(lanes) as lane:
                    w.store(self.sums, t * self.row + start + block * self.width + v * lanes + lane, row[v, lane])

    # ---- Gates -------------------------------------------------------------------------------------------------------

    def _each(self, rows: int, write: Callable[[Index, Index], None]) -> None:
        """Write something for each row and place of the state, in vectors."""
        w, lanes = self.w, self.target.lanes
        full = self.size // lanes
        with w.loop(rows) as t:
            if full:
                with w.loop(full) as number, w.vector(lanes) as lane:
                    write(t, number * lanes + lane)
            with w.loop(self.size % lanes, begin=full * lanes) as j:
                write(t, j)

    def _gate(self, number: int, t: Index, time: Index, first: Index, j: Index) -> Expr:
        """Return the sum of both products for a gate."""
        return self._of_state(number, t, j) + self.x[time, first + t, number * self.size + j]

    def _of_state(self, number: int, t: Index, j: Index) -> Expr:
        place = number * self.size
        part = next(k for k, (a, b) in enumerate(self.layer.products) if a <= place < b)
        return self.sums[t * self.row + self.sums_at[part] + place - self.layer.products[part][0] + j]

    def _applied(self, number: int, x: Expr, clipped: bool = True) -> Expr:
        if clipped and self.layer.clip:
            limit = self.layer.clip
            x = tirx.max(tirx.const(-limit, self.dtype), tirx.min(tirx.const(limit, self.dtype), x))
        name, words = self.layer.functions[number]
        return apply(name, x, self.dtype, **words)

    def _lstm(self, time: Index, first: Index, rows: int) -> None:
        holes, size, row = self.inputs.get("peepholes"), self.size, self.row
        cells, hidden = self.states["cell"], self.states["hidden"]

        def write(t: Index, j: Index) -> None:
            w, cell = self.w, cells[0, first + t, j]
            i, o, f, c = (self._gate(number, t, time, first, j) for number in range(4))
            if holes is not None:
                i, f = i + cell * holes[j], f + cell * holes[2 * size + j]
            kept = self.sums[t * row + j]
            w.store(self.sums, t * row + j, self._applied(0, i))
            forget = tirx.const(1, self.dtype) - kept if self.layer.coupled else self._applied(0, f)
            w.store(cells, (0, first + t, j), forget * cell + kept * self._applied(1, c))
            o = o if holes is None else o + cell * holes[size + j]
            w.store(hidden, (0, first + t, j), self._applied(0, o) * self._applied(2, cell, clipped=False))

        self._each(rows, write)

    def _gru(self, time: Index, first: Index, rows: int) -> None:
        w, one, row = self.w, tirx.const(1, self.dtype), self.row

        def new(t: Index, j: Index, update: Expr, summed: Expr) -> None:
            w.store(self.sums, t * row + j, update)
            z, state = self.sums[t * row + j], self.states["hidden"][0, first + t, j]
            made = self._applied(1, summed + self.x[time, first + t, 2 * self.size + j])
            w.store(self.states["hidden"], (0, first + t, j), (one - z) * made + z * state)

        def gate(number: int, t: Index, j: Index) -> Expr:
            return self._applied(0, self._gate(number, t, time, first, j))

        reset = self.reset
        if reset is None:
            rest = self.inputs.get("rest")

            def write(t: Index, j: Index) -> None:
                inner = self._of_state(2, t, j)
                inner = inner if rest is None else inner + rest[j]
                new(t, j, gate(0, t, j), gate(1, t, j) * inner)

            self._each(rows, write)
            return
        self._each(rows, lambda t, j: w.store(
            reset, t * self.size + j, gate(1, t, j) * self.states["hidden"][0, first + t, j]))  # fmt: skip
        self._product(1, rows, lambda t, k: reset[t * self.size + k])
        self._each(rows, lambda t, j: new(t, j, gate(0, t, j), self._of_state(2, t, j)))

    def _rnn(self, time: Index, first: Index, rows: int) -> None:
        self._each(rows, lambda t, j: self.w.store(
            self.states["hidden"], (0, first + t, j), self._applied(0, self._gate(0, t, time, first, j))))  # fmt: skip


def apply(name: str, x: Expr, dtype: str, alpha: float = 0.0, beta: float = 0.0) -> Expr:
    """Return a function of ONNX's of a value."""

    def c(value: float) -> Expr:
        return tirx.const(value, dtype)

    v = tirx.Var("x", dtype)
    made = {
        "Sigmoid": lambda: call("sigmoid", [v], dtype),
        "Tanh": lambda: call("tanh", [v], dtype),
        "Relu": lambda: tirx.max(v, c(0)),
        "Softsign": lambda: v / (c(1) + tirx.abs(v)),
        "Softplus": lambda: tirx.max(v, c(0)) + tirx.log(c(1) + call("exp", [c(0) - tirx.abs(v)], dtype)),
        "HardSigmoid": lambda: tirx.max(c(0), tirx.min(c(1), c(alpha) * v + c(beta))),
        "LeakyRelu": lambda: tirx.Select(v < c(0), c(alpha) * v, v),
        "Elu": lambda: tirx.Select(v < c(0), c(alpha) * (call("exp", [tirx.min(v, c(0))], dtype) - c(1)), v),
        "ThresholdedRelu": lambda: tirx.Select(v > c(alpha), v, c(0)),
    }[name]()
    return tirx.Let(v, x, made)
