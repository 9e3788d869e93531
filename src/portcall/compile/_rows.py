# SPDX-License-Identifier: Apache-2.0
"""Reductions over the last axes with what is around them, such as softmax and normalizations: one row at a time.

Several axes, such as those of a picture for its mean, are one row if they lie in one. A row of the input is read while
it is in the first cache. Sums and maxima are taken in a few vectors side by side, which are put together at the end of
the row. Values of a row that are read more than once are kept in working memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
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
_LONG = 256  # vectors over which a sum is made of sums: fewer numbers are rounded less


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
        made = [reading.result, *(stage.buffer for stage in reading.reductions)]
        if not reading.reductions or any(str(buffer.dtype) != "float32" for buffer in made):
            raise NotThisKindError("no reduction of float32")
        first = reading.reductions[0]
        self.lead, self.outer, self.axes = _split(first)
        self.length = prod(self.axes)
        if self.length < _SHORTEST:
            raise NotThisKindError("rows of another length")
        for stage in reading.reductions:
            if _split(stage) != (self.lead, self.outer, self.axes) or operation_of(stage) is None:
                raise NotThisKindError("rows that differ")
        shape = shape_of(reading.result)
        if self.outer and len(reading.reductions) > 1:
            raise NotThisKindError("several reductions of rows that do not lie beside each other")
        self.whole = [e for e in shape if e != 1] == [*self.lead, *self.axes] and not self.outer
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
        if [e for e in stage.extents if e != 1] != [*self.lead, *self.axes] or str(stage.buffer.dtype) != "float32":
            return False
        return readers_of(self.reading, stage) > 1

    def _reduce(self, stage: Stage, at: list[Index]) -> None:
        operation = operation_of(stage)
        assert operation is not None, "the constructor has seen to that"
        count, left = divmod(self.length, self.lanes)
        side = min(_SIDE_BY_SIDE, count)
        turns, rest = divmod(count, side)
        start, w = float32(start_of(stage)), self.w
        whole, parts = w.registers(side, self.lanes), w.registers(side, self.lanes)
        in_parts = type(stage.value).__name__ == "Add" and turns * prod(self.outer) > _LONG
        total = w.registers(1)
        w.store(total, 0, start)

        def put(buffer: Buffer, value: Callable[[Index, Index], Expr], count: int = side) -> None:
            with w.unrolled(count) as u, w.vector(self.lanes) as lane:
                w.store(buffer, (u, lane), value(u, lane))

        def add(buffer: Buffer, rows: list[Index], first: Index, count: int = side) -> None:
            put(buffer, lambda u, lane: operation(
                buffer[u, lane], self._term(stage, at, rows, (first + u) * self.lanes + lane)), count)  # fmt: skip

        put(whole if in_parts else parts, lambda u, lane: start)
        with ExitStack() as loops:
            rows = [loops.enter_context(w.loop(extent)) for extent in self.outer]
            size = min(turns, _LONG) if in_parts else turns
            for begin, times, length in ((0, turns // size, size), (turns // size * size, 1, turns % size)):
                with w.loop(times) as chunk:
                    if in_parts and length:
                        put(parts, lambda u, lane: start)
                    with w.loop(length) as turn:
                        add(parts, rows, (begin + chunk * size + turn) * side)
                    if in_parts and length:
                        put(whole, lambda u, lane: operation(whole[u, lane], parts[u, lane]))
            if rest:
                add(whole if in_parts else parts, rows, turns * side, rest)
            for k in range(left):
                w.store(total, 0, operation(total[0], self._term(stage, at, rows, count * self.lanes + k)))
        parts = whole if in_parts else parts
        for u in range(1, side):
            with w.vector(self.lanes) as lane:
                w.store(parts, (0, lane), operation(parts[0, lane], parts[u, lane]))
        with w.loop(self.lanes) as lane:
            w.store(total, 0, operation(total[0], parts[0, lane]))
        self.row.results[stage.buffer.name] = total

    def _element(self, number: Index) -> _Element:
        first, *rest = (floordiv(number, step) for step in strides(self.axes))
        return _Element(number, (first, *map(floormod, rest, self.axes[1:])))

    def _term(self, stage: Stage, at: list[Index], rows: list[Index], number: Index) -> Expr:
        """Return what a reduction takes of one element of the row, or of one of several rows."""
        element = self._element(number)
        names = axes_of(stage, [*at, *rows, *element.place])
        return self.reading.rewrite(stage.value.b, names, lambda buffer, place: self._load(buffer, place, at, element))

    def _stage_value(self, stage: Stage, at: list[Index], element: _Element) -> Expr:
        names = axes_of(stage, [*at, *element.place])
        return self.reading.rewrite(stage.value, names, lambda buffer, place: self._load(buffer, place, at, element))

    def _in_a_row(self, buffer: Buffer, place: list[Index], element: _Element | None) -> Index:
        """Return where an element lies; one of a row of several axes has the number of the element there."""
        if element is None or len(self.axes) == 1:
            return flat_index(buffer, place)
        moving = [(at, n) for at, n in zip(place, shape_of(buffer), strict=True) if n != 1]
        lead, axes = moving[: -len(self.axes)], moving[-len(self.axes) :]
        if same([at for at, _ in axes], list(element.place)) and [n for _, n in axes] == self.axes:
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
            if not same(moving, at):
                raise NotThisKindError("the result of another row")
            return self.row.results[buffer.name][0]
        if buffer.name in self.row.kept:
            if element is None or not same(moving, [*at, *element.place]):
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


def extents_of(stage: Stage) -> tuple[list[int], list[int]]:
    """Return the extents of a reduction that are not 1: those of the result, and those over which it goes."""
    pairs = [(kind, extent) for kind, extent in zip(stage.kinds, stage.extents, strict=True) if extent != 1]
    return [extent for kind, extent in pairs if kind == "S"], [extent for kind, extent in pairs if kind == "R"]


def _split(stage: Stage) -> tuple[list[int], list[int], list[int]]:
    """Return the extents of a reduction that are not 1: those of the result, of the rows, and of a row.

    A row is as many of the last axes as lie in a row in all that is read.
    """
    first, last = stage.kinds.index("R"), len(stage.axes) - 1
    loads = [part for part in walk(stage.value.b) if type(part).__name__ == "TensorLoad"]
    lie = [place for place in range(first, last + 1) if all(_ends_with(load, stage.axes[place:]) for load in loads)]
    if "RS" in stage.kinds or (not lie and first != last):
        raise NotThisKindError("reductions over other axes")
    parts = stage.extents[:first], stage.extents[first : (place := min(lie, default=last))], stage.extents[place:]
    lead, rows, row = ([extent for extent in part if extent != 1] for part in parts)
    return lead, rows, row


def _ends_with(load: Any, axes: Sequence[str]) -> bool:
    return tuple(map(str, load.indices[-len(axes) :])) == tuple(axes)


def axes_of(stage: Stage, places: Sequence[Index]) -> dict[str, Index]:
    """Return the index of each axis of a stage, by name: the places on those of more than one element."""
    moving = iter(places)
    return {axis: 0 if extent == 1 else next(moving) for axis, extent in zip(stage.axes, stage.extents, strict=True)}


def operation_of(stage: Stage) -> Any:
    """Return how a reduction puts two values together; None for what is no simple one."""
    value = stage.value
    kind = type(value).__name__
    known = {"Add": lambda a, b: a + b, "Mul": lambda a, b: a * b, "Max": tirx.max, "Min": tirx.min}
    if kind not in known or type(value.a).__name__ != "TensorLoad" or value.a.source.name != stage.buffer.name:
        return None
    return known[kind] if type(stage.start).__name__ == "FloatImm" else None


def start_of(stage: Stage) -> float:
    return float(np.float32(stage.start.value))


def readers_of(reading: Reading, stage: Stage) -> int:
    """Count the loads of what a stage gives."""
    parts = (part for other in reading.stages for part in walk(other.value) if type(part).__name__ == "TensorLoad")
    return sum(part.source.name == stage.buffer.name for part in parts)


def same(one: Sequence[Index], other: Sequence[Index]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))
