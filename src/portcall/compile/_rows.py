# SPDX-License-Identifier: Apache-2.0
"""Reductions over the last axes with what is around them, such as softmax and normalizations: one row at a time.

Several axes, such as those of a picture for its mean, are one row if they lie in one. A row of the input is read while
it is in the first cache. Sums and maxima are taken in a few vectors side by side, which are put together at the end of
the row. Values of a row that are read more than once are kept in working memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from tvm import tirx

from portcall.compile._reading import NotThisKindError, Reading, Stage, flat_index, shape_of, strides, walk
from portcall.compile._target import Target
from portcall.compile._writer import Buffer, Expr, Index, Writer, float32, floordiv, floormod

_SIDE_BY_SIDE = 4  # vectors of a reduction, for the latency of an addition
_SHORTEST = 4
_LONGEST = 1 << 20


@dataclass
class _Row:
    """What is known of a row: the results of reductions, and the stages that are kept."""

    results: dict[str, Buffer]
    kept: dict[str, Buffer]


@dataclass(frozen=True)
class _Element:
    """An element of a row: its number, and its place on each axis of the row."""

    number: Index
    place: tuple[Index, ...]


def write_rows(reading: Reading, target: Target, parallel: bool) -> Any:
    """Return a function that goes over the input row by row.

    Raises:
        NotThisKindError: it is something else.
    """
    kernel = _Kernel(reading, target, parallel)
    kernel.write()
    return kernel.w.function(list(kernel.buffers.values())[:-1], [kernel.output])


class _Kernel:
    def __init__(self, reading: Reading, target: Target, parallel: bool) -> None:
        self.reading, self.target, self.w = reading, target, Writer(parallel)
        if not reading.reductions or any(str(b.dtype) != "float32" for b in reading.params):
            raise NotThisKindError("no reduction of float32")
        first = reading.reductions[0]
        self.lead, self.axes = _extents(first)
        self.length = prod(self.axes)
        if not _SHORTEST <= self.length <= _LONGEST:
            raise NotThisKindError("rows of another length")
        for stage in reading.reductions:
            if "RS" in stage.kinds or not _lies_in_a_row(stage):
                raise NotThisKindError("reductions over other axes")
            if _extents(stage) != (self.lead, self.axes) or _operation(stage) is None:
                raise NotThisKindError("rows that differ")
        shape = shape_of(reading.result)
        self.whole = [e for e in shape if e != 1] == [*self.lead, *self.axes]
        if not self.whole and [e for e in shape if e != 1] != self.lead:
            raise NotThisKindError("a result of another shape")
        self.buffers = reading.buffers()
        self.output = self.buffers[reading.result.name]
        self.lanes = min(target.lanes, 1 << (self.length.bit_length() - 1))
        self.row = _Row({}, {})

    def write(self) -> None:
        self._lead(list(self.lead), [])

    def _lead(self, left: list[int], at: list[Index]) -> None:
        """Write a loop for each leading axis of more than one element."""
        if left:
            with self.w.outer(left[0]) as index:
                self._lead(left[1:], [*at, index])
            return
        self.row = _Row({}, {})
        last = max(place for place, stage in enumerate(self.reading.stages) if "R" in stage.kinds)
        for place, stage in enumerate(self.reading.stages):
            if "R" in stage.kinds:
                self._reduce(stage, at)
            elif place < last and self._keep(stage):
                kept = self.w.scratch(self.length)

                def keep(element: _Element, stage: Stage = stage, kept: Buffer = kept) -> None:
                    self.w.store(kept, element.number, self._stage_value(stage, at, element))

                self._each(keep)
                self.row.kept[stage.buffer.name] = kept
        self._result(at)

    def _keep(self, stage: Stage) -> bool:
        """Tell whether the values of an element-wise stage are computed once for a row."""
        if [e for e in stage.extents if e != 1] != [*self.lead, *self.axes]:
            return False
        readers = sum(_reads(other.value, stage.buffer.name) for other in self.reading.stages)
        return readers > 1

    def _reduce(self, stage: Stage, at: list[Index]) -> None:
        operation = _operation(stage)
        assert operation is not None, "the constructor has seen to that"
        count, left = divmod(self.length, self.lanes)
        side = min(_SIDE_BY_SIDE, count)
        start = float32(_start(stage))
        parts = self.w.registers(side, self.lanes)
        with self.w.unrolled(side) as u, self.w.vector(self.lanes) as lane:
            self.w.store(parts, (u, lane), start)
        turns, rest = divmod(count, side)
        with self.w.loop(turns) as turn, self.w.unrolled(side) as u, self.w.vector(self.lanes) as lane:
            value = self._term(stage, at, (turn * side + u) * self.lanes + lane)
            self.w.store(parts, (u, lane), operation(parts[u, lane], value))
        for u in range(rest):
            with self.w.vector(self.lanes) as lane:
                value = self._term(stage, at, (turns * side + u) * self.lanes + lane)
                self.w.store(parts, (u, lane), operation(parts[u, lane], value))
        total = self.w.registers(1)
        self.w.store(total, 0, start)
        for u in range(1, side):
            with self.w.vector(self.lanes) as lane:
                self.w.store(parts, (0, lane), operation(parts[0, lane], parts[u, lane]))
        with self.w.loop(self.lanes) as lane:
            self.w.store(total, 0, operation(total[0], parts[0, lane]))
        for k in range(left):
            self.w.store(total, 0, operation(total[0], self._term(stage, at, count * self.lanes + k)))
        self.row.results[stage.buffer.name] = total

    def _element(self, number: Index) -> _Element:
        first, *rest = (floordiv(number, step) for step in strides(self.axes))
        return _Element(number, (first, *map(floormod, rest, self.axes[1:])))

    def _term(self, stage: Stage, at: list[Index], number: Index) -> Expr:
        """Return what a reduction takes of one element of the row."""
        element = self._element(number)
        names = _axes(stage, at, element)
        return self.reading.rewrite(stage.value.b, names, lambda buffer, place: self._load(buffer, place, at, element))

    def _stage_value(self, stage: Stage, at: list[Index], element: _Element) -> Expr:
        names = _axes(stage, at, element)
        return self.reading.rewrite(stage.value, names, lambda buffer, place: self._load(buffer, place, at, element))

    def _in_a_row(self, buffer: Buffer, place: list[Index], element: _Element | None) -> Index:
        """Return where an element lies; one of a row of several axes has the number of the element there."""
        if element is None or len(self.axes) == 1:
            return flat_index(buffer, place)
        moving = [(at, n) for at, n in zip(place, shape_of(buffer), strict=True) if n != 1]
        lead, axes = moving[: -len(self.axes)], moving[-len(self.axes) :]
        if _same([at for at, _ in axes], list(element.place)) and [n for _, n in axes] == self.axes:
            steps = strides([*(n for _, n in lead), self.length])
            return sum((at * step for (at, _), step in zip(lead, steps, strict=False)), start=element.number)
        if any(at is part for at, _ in moving for part in element.place):
            raise NotThisKindError("elements that do not lie in a row")
        return flat_index(buffer, place)

    def _load(self, buffer: Buffer, place: list[Index], at: list[Index], element: _Element | None) -> Expr | None:
        if self.reading.is_input(buffer):
            return self.buffers[buffer.name][self._in_a_row(buffer, place, element)]
        moving = [k for k, extent in zip(place, shape_of(buffer), strict=True) if extent != 1]
        if buffer.name in self.row.results:
            if not _same(moving, at):
                raise NotThisKindError("the result of another row")
            return self.row.results[buffer.name][0]
        if buffer.name in self.row.kept:
            if element is None or not _same(moving, [*at, *element.place]):
                raise NotThisKindError("another element of the row")
            return self.row.kept[buffer.name][element.number]
        if buffer.name not in self.reading.inlined:
            raise NotThisKindError("a result that is not known yet")
        return None

    def _each(self, write: Callable[[_Element], None]) -> None:
        """Write something for each element of a row."""
        count, left = divmod(self.length, self.lanes)
        with self.w.loop(count) as turn, self.w.vector(self.lanes) as lane:
            write(self._element(turn * self.lanes + lane))
        if left:  # the last vector overlaps the one before
            with self.w.vector(self.lanes) as lane:
                write(self._element(self.length - self.lanes + lane))

    def _result(self, at: list[Index]) -> None:
        result = self.reading.result
        if not self.whole:
            self.w.store(self.output, self._flat(at, None), self._value(at, None))
            return
        if result.name in self.row.kept:
            raise NotThisKindError("a result that is read")
        self._each(lambda element: self.w.store(self.output, self._flat(at, element), self._value(at, element)))

    def _place(self, at: list[Index], element: _Element | None) -> list[Index]:
        moving = iter(at if element is None else [*at, *element.place])
        return [0 if extent == 1 else next(moving) for extent in shape_of(self.reading.result)]

    def _flat(self, at: list[Index], element: _Element | None) -> Index:
        return self._in_a_row(self.reading.result, self._place(at, element), element)

    def _value(self, at: list[Index], element: _Element | None) -> Expr:
        result = self.reading.result
        if result.name in self.row.results:
            return self.row.results[result.name][0]
        place = self._place(at, element)
        return self.reading.value_at(result, place, lambda buffer, p: self._load(buffer, p, at, element))


def _extents(stage: Stage) -> tuple[list[int], list[int]]:
    """Return the extents of a reduction that are not 1: those of the result, and those of the row."""
    pairs = [(kind, extent) for kind, extent in zip(stage.kinds, stage.extents, strict=True) if extent != 1]
    return [extent for kind, extent in pairs if kind == "S"], [extent for kind, extent in pairs if kind == "R"]


def _lies_in_a_row(stage: Stage) -> bool:
    """Tell whether what is reduced lies in the order of the axes, if these are several."""
    axes = stage.axes[stage.kinds.index("R") :]
    if len(axes) == 1:
        return True
    loads = [part for part in walk(stage.value.b) if type(part).__name__ == "TensorLoad"]
    return all(tuple(map(str, load.indices[-len(axes) :])) == axes for load in loads)


def _axes(stage: Stage, at: list[Index], element: _Element) -> dict[str, Index]:
    moving = iter([*at, *element.place])
    return {axis: 0 if extent == 1 else next(moving) for axis, extent in zip(stage.axes, stage.extents, strict=True)}


def _operation(stage: Stage) -> Any:
    """Return how a reduction puts two values together; None for others than sums, maxima and minima."""
    value = stage.value
    kind = type(value).__name__
    known = {"Add": lambda a, b: a + b, "Max": tirx.max, "Min": tirx.min}
    if kind not in known or type(value.a).__name__ != "TensorLoad" or value.a.source.name != stage.buffer.name:
        return None
    return known[kind] if type(stage.start).__name__ == "FloatImm" else None


def _start(stage: Stage) -> float:
    return float(np.float32(stage.start.value))


def _reads(e: Any, name: str) -> int:
    """Count the loads from a buffer in an expression."""
    return sum(type(part).__name__ == "TensorLoad" and part.source.name == name for part in walk(e))


def _same(one: list[Index], other: list[Index]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
