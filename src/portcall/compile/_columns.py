# SPDX-License-Identifier: Apache-2.0
"""Reductions over other axes than the last one, with what is around them: some columns beside each other at a time.

Vectors run over the last axis, along which the results lie. Values that are read more than once are kept in working
memory, as in ``_rows``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import reduce
from math import prod
from typing import Any

from tvm import tirx

from portcall.compile._reading import NotThisKindError, Reading, Stage, flat_index, shape_of, walk
from portcall.compile._rows import axes_of, extents_of, operation_of, readers_of, same, start_of
from portcall.compile._target import Target
from portcall.compile._writer import Buffer, Expr, Index, Writer, float32

_NARROWEST = 4  # columns
_AT_ONCE = 4  # rows that are put together before they are added to what is there
_LONG = 1024  # rows over which a sum is made of sums: fewer numbers are rounded less
_VECTORS = 64  # of a block
_IN_REGISTERS = 8  # vectors of a block that are written one by one
_KEPT = 24 << 10  # bytes of working memory that stay in the first cache


@dataclass(frozen=True)
class _Column:
    """Some columns: their place on all axes of the results, and in working memory."""

    at: tuple[Index, ...]
    slot: Index
    row: tuple[Index, ...] = ()


@dataclass
class _Known:
    """What is known of the columns: results of reductions, and the stages that are kept."""

    results: dict[str, Buffer] = field(default_factory=dict)
    kept: dict[str, Buffer] = field(default_factory=dict)


def write_columns(reading: Reading, target: Target, parallel: bool) -> Any:
    """Return a function that goes down some columns at a time.

    Raises:
        NotThisKindError: it is something else.
    """
    kernel = _Kernel(reading, target, parallel)
    kernel.write(list(kernel.lead), [])
    return kernel.w.function(list(kernel.buffers.values())[:-1], [kernel.output])


class _Kernel:
    def __init__(self, reading: Reading, target: Target, parallel: bool) -> None:
        self.reading, self.w, self.known = reading, Writer(parallel), _Known()
        made = [reading.result, *(stage.buffer for stage in reading.reductions)]
        if not reading.reductions or any(str(buffer.dtype) != "float32" for buffer in made):
            raise NotThisKindError("no reduction of float32")
        lead, self.axes = extents_of(reading.reductions[0])
        if not self.axes:
            raise NotThisKindError("nothing to reduce")
        for stage in reading.reductions:
            if "RS" in stage.kinds or extents_of(stage) != (lead, self.axes) or operation_of(stage) is None:
                raise NotThisKindError("columns that differ")
            if not lead or lead[-1] < _NARROWEST or not _lies_across(stage):
                raise NotThisKindError("reductions over the last axis")
        self.order = _order(reading.reductions[0])  # of the axes of a whole tensor: those of results, then of the row
        *self.lead, self.columns = lead
        everything = [*lead, *self.axes]
        self.all = [everything[place] for place in self.order]
        shape = [extent for extent in shape_of(reading.result) if extent != 1]
        self.whole = bool(self.order) and shape == self.all
        if not self.whole and shape != lead:
            raise NotThisKindError("a result of another shape")
        self.buffers = reading.buffers()
        self.output = self.buffers[reading.result.name]
        self.lanes = min(target.lanes, 1 << (self.columns.bit_length() - 1))
        vectors = -(-self.columns // self.lanes)
        room = _KEPT // (4 * self.lanes * prod(self.axes)) if self.whole or len(reading.reductions) > 1 else _VECTORS
        self.blocks = -(-vectors // max(1, min(room, _VECTORS)))
        self.vectors = -(-vectors // self.blocks)  # of a block

    def write(self, left: list[int], at: list[Index]) -> None:
        """Write a loop for each leading axis of more than one element, and one for the blocks of columns."""
        with self.w.outer(left[0] if left else self.blocks) as index:
            if left:
                self.write(left[1:], [*at, index])
            else:
                self._block(at, index)

    def _block(self, at: list[Index], block: Index) -> None:
        self.known = _Known()
        stages = self.reading.stages
        last = max(place for place, stage in enumerate(stages) if "R" in stage.kinds)
        for place, stage in enumerate(stages):
            if "R" in stage.kinds:
                self._reduce(stage, at, block)
            elif place < last and self._keep(stage):
                kept = self.w.scratch(prod(self.axes) * self.vectors * self.lanes)
                with self._rows() as row, self._each(at, block, row) as column:
                    self.w.store(kept, self._kept(column), self._stage_value(stage, column))
                self.known.kept[stage.buffer.name] = kept
        result = self.reading.result
        if self.whole and result.name in self.known.kept:
            raise NotThisKindError("a result that is read")
        with ExitStack() as loops:
            row = loops.enter_context(self._rows()) if self.whole else ()
            column = loops.enter_context(self._each(at, block, row))
            moving = iter(self._all(column) if self.whole else column.at)
            where = [0 if extent == 1 else next(moving) for extent in shape_of(result)]
            if result.name in self.known.results:
                value = self.known.results[result.name][column.slot]
            else:
                value = self.reading.value_at(result, where, lambda buffer, p: self._load(buffer, p, column))
            self.w.store(self.output, flat_index(result, where), value)

    @contextmanager
    def _rows(self) -> Iterator[tuple[Index, ...]]:
        with ExitStack() as loops:
            yield tuple(loops.enter_context(self.w.loop(extent)) for extent in self.axes)

    @contextmanager
    def _each(self, at: list[Index], block: Index, row: Sequence[Index] = ()) -> Iterator[_Column]:
        """Write something for each vector of a block; the last ones of all overlap those before."""
        loop = self.w.unrolled if self.vectors <= _IN_REGISTERS else self.w.loop
        with loop(self.vectors) as u, self.w.vector(self.lanes) as lane:
            begin: Any = (block * self.vectors + u) * self.lanes
            if self.blocks * self.vectors * self.lanes != self.columns:
                most = self.columns - self.lanes
                begin = min(begin, most) if isinstance(begin, int) else tirx.min(begin, most)
            yield _Column((*at, begin + lane), u * self.lanes + lane, tuple(row))

    def _keep(self, stage: Stage) -> bool:
        """Tell whether the values of an element-wise stage are computed once."""
        whole = [e for e in stage.extents if e != 1] == self.all and str(stage.buffer.dtype) == "float32"
        return whole and readers_of(self.reading, stage) > 1

    def _all(self, column: _Column) -> list[Index]:
        places = [*column.at, *column.row]
        return [places[place] for place in self.order]

    def _kept(self, column: _Column) -> Index:
        number: Index = 0
        for place, extent in zip(column.row, self.axes, strict=True):
            number = number * extent + place
        return number * (self.vectors * self.lanes) + column.slot

    def _reduce(self, stage: Stage, at: list[Index], block: Index) -> None:
        w, operation, start = self.w, operation_of(stage), float32(start_of(stage))
        assert operation is not None, "the constructor has seen to that"
        *outer, inner = self.axes
        in_parts = type(stage.value).__name__ == "Add" and prod(self.axes) > _LONG
        total = w.registers(self.vectors * self.lanes)
        self._fill(total, at, block, start)
        with ExitStack() as loops:
            row = [loops.enter_context(w.loop(extent)) for extent in outer]
            if not in_parts:
                self._put_together(stage, total, at, block, row, 0, inner)
            else:
                part = w.registers(self.vectors * self.lanes)
                for begin, count, size in ((0, inner // _LONG, _LONG), (inner // _LONG * _LONG, 1, inner % _LONG)):
                    if not count or not size:
                        continue
                    with w.loop(count) as number:
                        self._fill(part, at, block, start)
                        self._put_together(stage, part, at, block, row, begin + number * _LONG, size)
                        with self._each(at, block) as column:
                            w.store(total, column.slot, operation(total[column.slot], part[column.slot]))
        self.known.results[stage.buffer.name] = total

    def _fill(self, buffer: Buffer, at: list[Index], block: Index, value: Expr) -> None:
        with self._each(at, block) as column:
            self.w.store(buffer, column.slot, value)

    def _put_together(
        self, stage: Stage, total: Buffer, at: list[Index], block: Index, row: list[Index], begin: Index, count: int
    ) -> None:
        """Write that some rows, along the innermost axis of the reduction, are put into what is there."""
        operation: Callable[[Expr, Expr], Expr] = operation_of(stage)
        turns, rest = divmod(count, _AT_ONCE)
        for first, times, size in ((0, turns, _AT_ONCE), (turns * _AT_ONCE, 1, rest)):
            if not times or not size:
                continue
            with self.w.loop(times) as number, self._each(at, block) as column:
                place = begin + first + number * _AT_ONCE
                parts = [
                    self._term(stage, _Column(column.at, column.slot, (*row, place + k))) for k in range(size)
                ]  # fmt: skip
                self.w.store(total, column.slot, operation(total[column.slot], reduce(operation, parts)))

    def _term(self, stage: Stage, column: _Column) -> Expr:
        names = axes_of(stage, [*column.at, *column.row])
        return self.reading.rewrite(stage.value.b, names, lambda buffer, place: self._load(buffer, place, column))

    def _stage_value(self, stage: Stage, column: _Column) -> Expr:
        names = axes_of(stage, self._all(column))
        return self.reading.rewrite(stage.value, names, lambda buffer, place: self._load(buffer, place, column))

    def _load(self, buffer: Buffer, place: list[Index], column: _Column) -> Expr | None:
        if self.reading.is_input(buffer):
            return self.buffers[buffer.name][flat_index(buffer, place)]
        moving = [k for k, extent in zip(place, shape_of(buffer), strict=True) if extent != 1]
        if buffer.name in self.known.results:
            if not same(moving, column.at):
                raise NotThisKindError("the result of another column")
            return self.known.results[buffer.name][column.slot]
        if buffer.name in self.known.kept:
            if len(column.row) != len(self.axes) or not same(moving, self._all(column)):
                raise NotThisKindError("another element of the column")
            return self.known.kept[buffer.name][self._kept(column)]
        if buffer.name not in self.reading.inlined:
            raise NotThisKindError("a result that is not known yet")
        return None


def _moving(stage: Stage) -> list[str]:
    return [axis for axis, extent in zip(stage.axes, stage.extents, strict=True) if extent != 1]


def _loads(stage: Stage) -> Iterator[list[str]]:
    """Yield the names of the indices of each load of a reduction, but those that are always 0."""
    moving = _moving(stage)
    for part in walk(stage.value.b):
        if type(part).__name__ == "TensorLoad":
            indices = [index for index in part.indices if type(index).__name__ != "IntImm"]
            if any(type(index).__name__ != "Var" for index in indices):
                raise NotThisKindError("a load from a place that is computed")
            yield [index.name for index in indices if index.name in moving]


def _lies_across(stage: Stage) -> bool:
    """Tell whether all that a reduction reads is the same for all columns, or has these as its last axis."""
    column = [
        axis for axis, kind in zip(stage.axes, stage.kinds, strict=True) if kind == "S" and axis in _moving(stage)
    ]
    found = [load for load in _loads(stage) if column[-1] in load]
    return bool(found) and all(load[-1] == column[-1] and load.count(column[-1]) == 1 for load in found)


def _order(stage: Stage) -> list[int]:
    """Return the places of a tensor's axes among those of a reduction; none where it reads no tensor of all axes."""
    moving = _moving(stage)
    for load in _loads(stage):
        if sorted(load) == sorted(moving):
            return [moving.index(axis) for axis in load]
    return []
