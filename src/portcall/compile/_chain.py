# SPDX-License-Identifier: Apache-2.0
"""Sums over a few neighbours, with the element-wise functions around them, as one function.

A local response normalization is three functions of TVM's: squares, their sums over a window of channels, and what is
done with these. Joined, a result costs a few more loads, instead of two more passes over memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import prod
from typing import Any

from tvm import tirx

from portcall.compile._reading import Decide, Load, Reading, Stage, shape_of
from portcall.compile._writer import Expr, Index

_MOST_TERMS = 16


class Chain(Reading):
    """Functions of which each reads the one before, seen as one without reductions.

    Parameters:
        readings: in order.
        places: for each but the first, which of its inputs is the result of the one before.
    """

    def __init__(self, readings: Sequence[Reading], places: Sequence[int]) -> None:
        self.readings, self.reductions = readings, []
        self._inputs = {
            (number, buffer.name): tirx.decl_buffer(shape_of(buffer), buffer.dtype, name=f"x{number}_{buffer.name}")
            for number, reading in enumerate(readings)
            for place, buffer in enumerate(reading.inputs)
            if not number or place != places[number - 1]
        }
        self.params = [*self._inputs.values(), readings[-1].result]
        self.names = [buffer.name for buffer in self.params]

    def value_at(self, buffer: Any, indices: Sequence[Index], load: Load, decide: Decide | None = None) -> Expr:
        return self._value(len(self.readings) - 1, buffer, indices, load, decide)

    def _value(self, number: int, buffer: Any, at: Sequence[Index], load: Load, decide: Decide | None) -> Expr:
        reading = self.readings[number]

        def inner(source: Any, place: list[Index]) -> Expr | None:
            if (number, source.name) in self._inputs:
                return load(self._inputs[number, source.name], place)
            if reading.is_input(source):
                return self._value(number - 1, self.readings[number - 1].result, place, load, decide)
            return self._sum(reading, source, place, inner, decide)

        total = self._sum(reading, buffer, at, inner, decide)
        return reading.value_at(buffer, at, inner, decide) if total is None else total

    def _sum(
        self, reading: Reading, buffer: Any, at: Sequence[Index], load: Load, decide: Decide | None
    ) -> Expr | None:
        """Return the terms of a reduction, added; None if the buffer is not one."""
        stage = next((stage for stage in reading.reductions if stage.buffer.name == buffer.name), None)
        if stage is None:
            return None
        names = {index.name: value for index, value in zip(stage.indices, at, strict=True)}
        total: Expr | None = None
        for steps in itertools.product(*(range(extent) for extent in _window(stage))):
            axes = dict(zip(stage.axes[stage.kinds.index("R") :], steps, strict=True))
            term = reading.rewrite(stage.value.b, {**names, **axes}, load, decide)
            total = term if total is None else total + term
        return total


def _window(stage: Stage) -> tuple[int, ...]:
    return stage.extents[stage.kinds.index("R") :]


def is_local_sum(reading: Reading) -> bool:
    """Tell whether a function adds up a few neighbours in a row, of a single input."""
    if len(reading.reductions) != 1 or len(reading.inputs) != 1:
        return False
    (stage,) = reading.reductions
    window = _window(stage)
    row = sum(extent > 1 for extent in window) == 1 and stage.kinds == stage.kinds.rstrip("R") + "R" * len(window)
    zero = type(stage.start).__name__ == "FloatImm" and stage.start.value == 0
    added = type(stage.value).__name__ == "Add" and len(stage.kinds) > len("SSSSRR")  # what a pooling has
    return row and zero and added and prod(window) <= _MOST_TERMS
