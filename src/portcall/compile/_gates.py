# SPDX-License-Identifier: Apache-2.0
"""The gates of a recurrent step as one function: passes of TVM's take their time for each call of a long sequence."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from tvm import te, tirx

GATES = "PortcallGates"  # the operator that the importer gives the function
_OPAQUE = 8  # of TVM's OpPatternKind: never fused


@functools.lru_cache
def gates_function(kind: str, batch: int, size: int) -> Any:
    """Return a function of float32 that makes a state: [batch, size].

    It reads the product of the state before with R, and that of the step with W and the biases; of those, a gate's
    columns begin at its number times the size.

    Parameters:
        kind: ``cell`` of an LSTM, which reads the cell before; ``hidden`` of one, which reads the new cell; ``gru``,
            which reads the bias of the last gate and the state before.
    """
    one, rows, columns, row = (tirx.IntImm("int64", n) for n in (1, batch, size, (3 if kind == "gru" else 4) * size))
    h = te.placeholder((rows, row), "float32", "h")
    x = te.placeholder((one, rows, row), "float32", "x")
    state = te.placeholder((rows, columns), "float32", "state")

    def compute(name: str, value: Callable[[Any, Any], Any]) -> Any:
        return te.compute((rows, columns), value, name)

    def function(*buffers: Any) -> Any:
        made = te.create_prim_func(list(buffers)).without_attr("global_symbol")
        return made.with_attr("op_pattern", _OPAQUE)  # all steps share it, and the last one is part of nothing else

    def gate(number: int, i: Any, j: Any) -> Any:
        return h[i, j + number * size] + x[0, i, j + number * size]

    if kind == "hidden":
        made = compute("made", lambda i, j: tirx.sigmoid(gate(1, i, j)) * tirx.tanh(state[i, j]))
        return function(h, x, state, made)
    if kind == "cell":
        new = compute("new", lambda i, j: tirx.sigmoid(gate(0, i, j)) * tirx.tanh(gate(3, i, j)))
        made = compute("made", lambda i, j: tirx.sigmoid(gate(2, i, j)) * state[i, j] + new[i, j])
        return function(h, x, state, made)
    rest = te.placeholder((columns,), "float32", "rest")
    reset = compute("reset", lambda i, j: tirx.sigmoid(gate(1, i, j)))
    update = compute("update", lambda i, j: tirx.sigmoid(gate(0, i, j)))
    new = compute("new", lambda i, j: tirx.tanh(
        reset[i, j] * (h[i, j + 2 * size] + rest[j]) + x[0, i, j + 2 * size]))  # fmt: skip
    made = compute("made", lambda i, j: new[i, j] + update[i, j] * (state[i, j] - new[i, j]))
    return function(h, x, rest, state, made)
