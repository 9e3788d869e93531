# SPDX-License-Identifier: Apache-2.0
"""Poolings whose last axis is a row of the picture: NCHW, and the same with one or three axes.

All rows of a window are put together first, column by column, into a line with the padding at both ends, which is in
the first cache. Then each result is made of some neighbours in that line.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from math import prod
from typing import Any

from tvm import tirx

from portcall.compile._products import behind_padding
from portcall.compile._reading import NotThisKindError, Reading, flat_index, shape_of
from portcall.compile._target import Target
from portcall.compile._writer import Buffer, Expr, Index, Writer

_OPERATIONS: dict[str, Callable[[Expr, Expr], Expr]] = {"Add": lambda a, b: a + b, "Max": tirx.max, "Min": tirx.min}
_TYPES = ("float32", "int32", "int8", "uint8")
_MOST_TAPS = 32  # columns of a window, which are written out
_FEW = 9  # elements of a window that moves by one column, for which TVM's own code is as fast


def write_planes(reading: Reading, target: Target, parallel: bool) -> Any:
    """Return a function that pools row by row.

    Raises:
        NotThisKindError: it is something else.
    """
    kernel = _Kernel(reading, target, parallel)
    kernel.outer([])
    return kernel.w.function(list(kernel.buffers.values())[:-1], [kernel.buffers[reading.result.name]])


class _Kernel:
    """What is known of a pooling.

    Attributes:
        shape: of the result; all axes but the last are loops around a row.
        window: the extents of the window; the last are its columns.
        source, offsets: what is read, and where the first window begins in it.
        step, apart: how far the window moves along the row, and its columns are from each other.
    """

    def __init__(self, reading: Reading, target: Target, parallel: bool) -> None:
        self.reading, self.w, self.lanes = reading, Writer(parallel), target.lanes
        if len(reading.reductions) != 1:
            raise NotThisKindError("no window")
        stage = self.stage = reading.reductions[0]
        kind = type(stage.value).__name__
        x: Any = getattr(stage.value, "b", None)
        first = stage.kinds.find("R")
        same = kind in _OPERATIONS and type(x).__name__ == "TensorLoad" and str(x.source.dtype) in _TYPES
        if not same or "RS" in stage.kinds or first < 2 or type(stage.start).__name__ not in ("FloatImm", "IntImm"):
            raise NotThisKindError("another sum")
        self.shape, self.window = stage.extents[:first], stage.extents[first:]
        self.operation, self.x = _OPERATIONS[kind], x
        self.source, behind = behind_padding(reading, x.source, float(stage.start.value))
        self.extents = shape_of(self.source)
        self.offsets = [a + b for a, b in zip((self._at(k) for k in range(len(behind))), behind, strict=True)]
        columns = [self._at(-1, axis) - self._at(-1) for axis in range(len(stage.axes))]
        self.step, self.apart = max(columns[first - 1], 1), max(columns[-1], 1)
        own = (first - 1, len(stage.axes) - 1)
        if any(step for axis, step in enumerate(columns) if axis not in own and stage.extents[axis] > 1):
            raise NotThisKindError("rows that depend on other axes")
        if any(self._at(k, axis) != self._at(k) for k in range(len(behind) - 1) for axis in own):
            raise NotThisKindError("planes that depend on the column")
        if (self.shape[-1] > 1 and columns[own[0]] < 1) or (self.window[-1] > 1 and columns[own[1]] < 1):
            raise NotThisKindError("no window that moves")
        if not reading.is_input(self.source) or self.offsets[-1] > 0 or self.window[-1] > _MOST_TAPS:
            raise NotThisKindError("an operand that is computed")
        if self.step == 1 and prod(self.window) <= _FEW:
            raise NotThisKindError("a few neighbours")
        self.buffers = reading.buffers()

    def _at(self, index: int, *axes: int) -> int:
        """Return an index of the operand where some axes are 1 and all others 0."""
        stage = self.stage
        return self.reading.one_place(self.x.indices[index], {n: int(k in axes) for k, n in enumerate(stage.axes)})

    def outer(self, at: list[Index]) -> None:
        """Write a loop for each axis of the result but the last."""
        if len(at) < len(self.shape) - 1:
            with self.w.outer(self.shape[len(at)]) as index:
                self.outer([*at, index])
            return
        w, dtype = self.w, str(self.stage.buffer.dtype)
        line, start = w.scratch(self.span, dtype=dtype), tirx.const(self.stage.start.value, dtype)
        self._each(self.span, lambda k: w.store(line, k, start))
        self._rows(at, [], line)

        def result(column: Index) -> None:
            flat = flat_index(self.reading.result, self._place([*at, column]))
            w.store(self.buffers[self.reading.result.name], flat, self._value([*at, column], line))

        if self.step == 1:
            self._each(self.shape[-1], result)
            return
        with w.loop(self.shape[-1]) as column:  # LLVM knows how to take every second element
            result(column)

    @property
    def span(self) -> int:
        """The columns that a row of results is made of, padding included."""
        return (self.shape[-1] - 1) * self.step + (self.window[-1] - 1) * self.apart + 1

    def _each(self, count: int, write: Callable[[Index], None]) -> None:
        full, rest = divmod(count, self.lanes)
        for first, turns, lanes in ((0, full, self.lanes), (full * self.lanes, 1, rest)):
            if turns and lanes:
                with self.w.loop(turns) as number, self.w.vector(lanes) as lane:
                    write(first + number * lanes + lane)

    def _rows(self, at: list[Index], inside: list[Index], line: Buffer) -> None:
        """Add each row of the window to the line, those apart that lie outside."""
        if len(inside) < len(self.window) - 1:
            with self.w.loop(self.window[len(inside)]) as index:
                self._rows(at, [*inside, index], line)
            return
        w, left = self.w, -self.offsets[-1]
        names = dict(zip(self.stage.axes, [*at, 0, *inside, 0], strict=True))
        row = [self._index(k, names) for k in range(len(self.extents) - 1)]
        count = min(self.extents[-1], self.span - left)

        def add() -> None:
            def one(k: Index) -> None:
                x = self.buffers[self.source.name][flat_index(self.source, [*row, k])]
                w.store(line, left + k, self.operation(line[left + k], tirx.Cast(str(line.dtype), x)))

            self._each(count, one)

        limits = [limit for k, index in enumerate(row) for limit in self._limits(k, index)]
        if limits:
            with w.when(tirx.all(*limits)):
                add()
        else:
            add()

    def _index(self, k: int, names: dict[str, Index]) -> Index:
        def no_load(buffer: Buffer, indices: list[Index]) -> Expr:
            raise NotThisKindError("an index that is read")

        behind = self.offsets[k] - self._at(k)
        return self.reading.rewrite(self.x.indices[k], names, no_load) + behind

    def _limits(self, k: int, index: Index) -> list[Expr]:
        """Return the conditions under which an index is inside; none where it always is."""
        last = {axis: extent - 1 for axis, extent in zip(self.stage.axes, self.stage.extents, strict=True)}
        most = self.reading.one_place(self.x.indices[k], last) + self.offsets[k] - self._at(k)
        found = [index >= 0] if self.offsets[k] < 0 else []
        return [*found, index < self.extents[k]] if most >= self.extents[k] else found

    def _place(self, place: list[Index]) -> list[Index]:
        """Return a place on the axes of the result, which may have axes of one element more or less."""
        shape = shape_of(self.reading.result)
        if [e for e in shape if e != 1] != [e for e in self.shape if e != 1]:
            raise NotThisKindError("a result of another shape")
        moving = iter(index for index, extent in zip(place, self.shape, strict=True) if extent != 1)
        return [0 if extent == 1 else next(moving) for extent in shape]

    def _value(self, place: list[Index], line: Buffer) -> Expr:
        """Return what is stored for a window: what follows the sum, made of the neighbours in the line."""
        stage, indices = self.stage, self._place(place)
        taps = [line[place[-1] * self.step + k * self.apart] for k in range(self.window[-1])]
        *_, total = itertools.accumulate(taps, self.operation)
        if stage.buffer.name == self.reading.result.name:
            return total
        mine = [i for i, extent in zip(indices, shape_of(self.reading.result), strict=True) if extent != 1]

        def load(buffer: Buffer, at: list[Index]) -> Expr | None:
            if self.reading.is_input(buffer):
                return self.buffers[buffer.name][flat_index(buffer, at)]
            if buffer.name != stage.buffer.name:
                return None
            moving = [i for i, extent in zip(at, shape_of(buffer), strict=True) if extent != 1]
            if len(moving) != len(mine) or any(a is not b for a, b in zip(moving, mine, strict=True)):
                raise NotThisKindError("the sum of another place")
            return total

        return self.reading.value_at(self.reading.result, indices, load)
