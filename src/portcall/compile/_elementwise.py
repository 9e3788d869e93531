# SPDX-License-Identifier: Apache-2.0
"""Chains of element-wise functions, transposes, slices, padding, concatenations: one pass over the result.

Vectors run over the last axis. Where a condition on the last axis chooses between operands, as in a concatenation, the
axis is cut there, and each part gets code without the condition.
"""

from __future__ import annotations

import itertools
from math import prod
from typing import Any

from tvm import ir, sym, tirx

from portcall.compile._reading import NotThisKindError, Reading, flat_index, proves, shape_of, type_of, walk
from portcall.compile._target import Target
from portcall.compile._writer import Buffer, Expr, Index, Writer

_MOST_CUTS = 64


def write_elementwise(reading: Reading, target: Target, parallel: bool) -> Any:
    """Return a function that computes each element of the result by itself.

    Raises:
        NotThisKindError: there are reductions, or values that cannot be read.
    """
    if reading.reductions or not reading.inputs:
        raise NotThisKindError("reductions")
    result = reading.result
    shape = shape_of(result)
    if not prod(shape):
        raise NotThisKindError("nothing to compute")
    kernel = _Kernel(reading, target, Writer(parallel), shape)
    kernel.outer([], kernel.shape[:-1])
    return kernel.w.function(list(kernel.buffers.values())[:-1], [kernel.output])


class _Kernel:
    def __init__(self, reading: Reading, target: Target, w: Writer, shape: list[int]) -> None:
        self.reading, self.w = reading, w
        rank = max((k + 1 for k, extent in enumerate(shape) if extent > 1), default=0)
        self.shape = shape[:rank] or [1]  # loops over the axes up to the last one that has several elements
        self.buffers = reading.buffers()
        self.output = self.buffers[reading.result.name]
        self.lanes = target.lanes
        self.rank = rank
        self.ones = [0] * (len(shape) - rank)

    def outer(self, indices: list[Index], left: list[int]) -> None:
        """Write a loop for each axis but the last one."""
        if left:
            with self.w.outer(left[0]) as index:
                self.outer([*indices, index], left[1:])
            return
        last = self.shape[-1]
        cuts = sorted({0, last, *self._cuts(indices, last)})
        for first, end in itertools.pairwise(cuts):
            count, rest = divmod(end - first, self.lanes)
            if count:
                self._vectors(indices, first, count, self.lanes)
            if rest:  # the last vector overlaps the one before
                self._vectors(indices, end - self.lanes if count else first, 1, self.lanes if count else rest)

    def _vectors(self, indices: list[Index], begin: int, count: int, lanes: int) -> None:
        """Write some vectors of a row, in which no condition on the last axis changes.

        Where it does change, as in several rows that lie in one, each lane has its own statement. A loop would be
        vectorized by LLVM, whose result was wrong for such lanes on AVX-512 (LLVM 22).
        """
        if lanes > 1 and self._differ(indices, begin, count, lanes):
            with self.w.outer(count) as number:
                for lane in range(lanes):
                    self._store([*indices, begin + number * lanes + lane], {number: count})
            return
        with self.w.outer(count) as number, self.w.vector(lanes) as lane:
            self._store([*indices, begin + number * lanes + lane], {number: count, lane: lanes})

    def _differ(self, indices: list[Index], begin: int, count: int, lanes: int) -> bool:
        """Tell whether a condition depends on the lane, and not on values."""
        number, lane = tirx.Var("number", "int32"), tirx.Var("lane", "int32")
        analyzer = _analyzer({number: count, lane: lanes})
        open_conditions: list[Expr] = []
        self._value([*indices, begin + number * lanes + lane], analyzer, open_conditions)
        parts = [list(walk(condition)) for condition in open_conditions]
        return any(
            any(type(part).__name__ == "Var" and part.same_as(lane) for part in each)
            and not any(type(part).__name__ == "TensorLoad" for part in each)
            for each in parts
        )

    def _store(self, place: list[Index], extents: dict[Index, int]) -> None:
        self.w.store(self.output, self._at(place), self._value(place, _analyzer(extents), []))

    def _at(self, place: list[Index]) -> Index:
        return flat_index(self.reading.result, self._place(place)) if self.rank else 0

    def _place(self, place: list[Index]) -> list[Index]:
        """Return a place on all axes of the result."""
        return [*place[len(place) - self.rank :], *self.ones]

    def _value(self, place: list[Index], analyzer: Any, open_conditions: list[Expr]) -> Expr:
        """Return the value of a place; conditions that are not decided are added to a list."""

        def load(buffer: Buffer, at: list[Index]) -> Expr | None:
            if self.reading.is_input(buffer):
                return self.buffers[buffer.name][flat_index(buffer, at)]
            return None

        def decide(condition: Expr) -> bool | None:
            if proves(analyzer, condition):
                return True
            if proves(analyzer, tirx.Not(condition)):
                return False
            open_conditions.append(condition)
            return None

        value = self.reading.value_at(self.reading.result, self._place(place), load, decide)
        if isinstance(value, (bool, int)):
            return tirx.const(value, str(self.reading.result.dtype))
        if type_of(value) != str(self.reading.result.dtype):  # an index that is a value
            return tirx.Cast(str(self.reading.result.dtype), value)
        return value

    def _cuts(self, indices: list[Index], last: int) -> set[int]:
        """Return where conditions on the last axis alone change."""
        if self.rank == 0:
            return set()
        found: set[int] = set()
        variable = tirx.Var("last", "int32")

        def load(buffer: Buffer, at: list[Index]) -> Expr | None:
            return tirx.Var("loaded", buffer.dtype) if self.reading.is_input(buffer) else None

        def decide(condition: Expr) -> bool | None:
            found.update(_boundaries(condition, variable, last))
            return None

        self.reading.value_at(self.reading.result, self._place([*indices, variable]), load, decide)
        if len(found) > _MOST_CUTS:
            raise NotThisKindError("too many parts")
        return found


def _analyzer(extents: dict[Index, int]) -> Any:
    """Return what knows the ranges of some variables."""
    found = sym.Analyzer()
    for variable, extent in extents.items():
        if not isinstance(variable, int):
            found.bind(variable, ir.Range(0, extent))
    return found


def _boundaries(condition: Expr, variable: Any, last: int) -> set[int]:
    """Return the places of ``variable`` where a comparison with it changes; none if they are unknown."""
    kind = type(condition).__name__
    if kind in ("And", "Or"):
        return _boundaries(condition.a, variable, last) | _boundaries(condition.b, variable, last)
    if kind == "Not":
        return _boundaries(condition.a, variable, last)
    if kind not in ("LT", "LE", "GT", "GE"):
        return set()
    try:
        slope = _slope(condition.a - condition.b, variable)
    except (ValueError, TypeError):
        return set()
    if slope is None or slope[0] not in (1, -1):
        return set()
    factor, offset = slope
    zero = -offset * factor  # where the two sides are equal
    shift = {"LT": 0, "GE": 0, "LE": 1, "GT": 1}[kind] if factor == 1 else {"LT": 1, "GE": 1, "LE": 0, "GT": 0}[kind]
    place = zero + shift
    return {place} if 0 < place < last else set()


def _slope(e: Expr, variable: Any) -> tuple[int, int] | None:
    """Return (a, b) where ``e`` is a * variable + b."""
    found = sym.detect_linear_equation(sym.Analyzer().simplify(e), [variable])
    if len(found) != 2 or any(type(part).__name__ != "IntImm" for part in found):
        return None
    return int(found[0].value), int(found[1].value)
