# SPDX-License-Identifier: Apache-2.0
"""Register tiles as loops: what convolutions, Winograd's products and products of two matrices have in common.

``for_blocks`` goes over the columns of packed weights, ``for_tiles`` over rows, ``for_results`` over both of a
convolution, and ``Sums`` are the results of a tile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tvm import tirx

from portcall.compile._products import Place, Window, unravel
from portcall.compile._reading import type_of, walk
from portcall.compile._tiles import Columns, Segment, segments, split_evenly
from portcall.compile._writer import Buffer, Expr, Index, Writer

_MOST_WRITTEN_OUT = 16  # operations; an exponential has 30
Loop = Callable[[Index], contextlib.AbstractContextManager[Index]]


@dataclass(frozen=True)
class Result:
    """Where results go: all channels of a buffer, or a slice of them.

    Attributes:
        channels: of the buffer.
        offset: the first channel.
    """

    buffer: Buffer
    channels: int
    offset: int = 0

    def store(self, w: Writer, pixel: Index, channel: Index, value: Expr) -> None:
        w.store(self.buffer, self._at(pixel, channel), value)

    def load(self, pixel: Index, channel: Index) -> Expr:
        return self.buffer[self._at(pixel, channel)]

    def _at(self, pixel: Index, channel: Index) -> Index:
        return pixel * self.channels + self.offset + channel


def is_long(value: Callable[..., Expr], *indices: str) -> bool:
    """Tell whether a value that is computed from a sum takes so much code that it is written once for many sums.

    It is then computed in a loop over the sums, which are stored first: in the nearest cache they cost little.

    Parameters:
        value: gets as many indices as there are names, then the sum.
    """
    made = value(*(tirx.Var(name, "int32") for name in indices), tirx.Var("total", "float32"))
    operations = sum(hasattr(part, "a") and type_of(part) == "float32" for part in walk(made))
    return operations > _MOST_WRITTEN_OUT


@dataclass(frozen=True)
class Block:
    """A block of columns.

    Attributes:
        column: the first.
        weights: where its packed weights begin.
        vectors, lanes: what it consists of.
        last_lanes: how many lanes of the last vector are in use.
    """

    column: Index
    weights: Index
    vectors: int
    lanes: int
    last_lanes: int

    @property
    def width(self) -> int:
        """Weights of a step."""
        return self.vectors * self.lanes


def for_blocks(
    loop: Loop, columns: Columns, steps: int, body: Callable[[Block], None], column: Index = 0, weights: Index = 0
) -> None:
    """Write the loop over blocks of columns; ``column`` and ``weights`` are those of the first block."""
    full, width, lanes = columns.full, columns.vectors * columns.lanes, columns.lanes
    if full:
        with loop(full) as number:
            body(Block(column + number * width, weights + number * (steps * width), columns.vectors, lanes, lanes))
    if columns.tail:
        last = Block(column + full * width, weights + full * (steps * width), columns.tail, lanes, columns.last_lanes)
        body(last)


def for_tiles(w: Writer, loop: Loop, parts: Sequence[Segment], body: Callable[[Index, Segment], None]) -> None:
    """Write the loops over tiles; ``body`` gets the first row and the segment.

    Loops that would be parallel are one loop, whose turns choose the code of their segment.
    """
    if not (loop == w.outer and w.becomes_parallel and len(parts) > 1):
        for part in parts:
            with loop(part.count) as number:
                body(part.begin + number * part.rows, part)
        return
    with loop(sum(part.count for part in parts)) as number:
        first = 0
        for part in parts:
            with w.when(tirx.all(number >= first, number < first + part.count)):
                body(part.begin + (number - first) * part.rows, part)
            first += part.count


@dataclass(frozen=True)
class Pixels:
    """Results in a row: a tile of a convolution.

    Attributes:
        first: the first pixel, counted through the whole output.
        segment: how many there are.
        n, oh, ow: the same in parts; of a 1x1 convolution, which sees one row of pixels, ``ow`` counts all of them.
    """

    window: Window
    first: Index
    segment: Segment
    n: Index
    oh: Index
    ow: Index
    one_row: bool

    def place(self, t: Index, channel: Index) -> Place:
        """Return where the result of a pixel of the tile is."""
        window, pixel = self.window, self.first + t
        if self.one_row:
            n, oh, ow = unravel(pixel, (window.n, window.oh, window.ow))
            return window.result(pixel, n, oh, ow, channel)
        if window.spread is None:
            return window.result(pixel, self.n, self.oh, self.ow + t, channel)
        return window.place(self.n, self.oh, self.ow + t, channel)


def for_results(
    w: Writer, window: Window, columns: Columns, rows: int, steps: int,
    body: Callable[[Index, Block, Pixels], None], *, one_row: bool, weights_outside: bool,
    weights: int = 0,
) -> None:  # fmt: skip
    """Write the loops over all results of a convolution; ``body`` gets the group, the block of channels and the tile.

    Parameters:
        rows: pixels of a tile.
        steps: of the reduction, which packed weights have.
        one_row: pixels are one row.
        weights_outside: the loops over channels are the outer ones.
        weights: where the packed weights begin.
    """
    packed = steps * columns.all_vectors * columns.lanes

    def channels(inner: Callable[[Index, Block], None]) -> None:
        with w.outer(window.groups) as group:
            first = group * columns.count
            for_blocks(w.outer, columns, steps, lambda block: inner(group, block), first, weights + group * packed)

    def pixels(inner: Callable[[Pixels], None]) -> None:
        if one_row:
            row = segments(split_evenly(window.n * window.oh * window.ow, rows))
            for_tiles(w, w.outer, row, lambda at, part: inner(Pixels(window, at, part, 0, 0, at, True)))
            return
        row = segments(split_evenly(window.ow, rows), window.taps)
        with w.outer(window.n) as n, w.outer(window.oh) as oh:
            start = (n * window.oh + oh) * window.ow
            for_tiles(w, w.outer, row, lambda ow, part: inner(Pixels(window, start + ow, part, n, oh, ow, False)))

    if weights_outside:
        channels(lambda group, block: pixels(lambda tile: body(group, block, tile)))
    else:
        pixels(lambda tile: channels(lambda group, block: body(group, block, tile)))


class Sums:
    """The results of a tile: some rows by a block of columns.

    Parameters:
        start: what those of a vector and a lane begin with; 0 by default.

    Each row is a separate buffer: TVM leaves small ones on the stack, where LLVM turns them into registers, also in
    parallel loops and beside a prefetch.
    """

    def __init__(
        self, w: Writer, rows: int, block: Block, dtype: str = "float32",
        start: Callable[[Index, Index], Expr] | None = None,
    ) -> None:  # fmt: skip
        self._w, self._block = w, block
        self.rows = [w.registers(block.vectors, block.lanes, dtype=dtype) for _ in range(rows)]
        for row in self.rows:
            with w.unrolled(block.vectors) as v, w.vector(block.lanes) as lane:
                w.store(row, (v, lane), tirx.const(0, dtype) if start is None else start(v, lane))

    def add(self, x: Callable[[int], Expr], weights: Buffer, step: Index, rows: range | None = None) -> None:
        """Add the product of a number for each row with the weights of a step."""
        w, block = self._w, self._block
        for t in range(len(self.rows)) if rows is None else rows:
            row = self.rows[t]
            with w.unrolled(block.vectors) as v, w.vector(block.lanes) as lane:
                weight = weights[block.weights + step * block.width + v * block.lanes + lane]
                if str(weights.dtype) == "int8" and str(row.dtype) == "float32":
                    weight = tirx.Cast("float32", weight)
                w.store(row, (v, lane), row[v, lane] + x(t) * weight)

    def each(self, write: Callable[[int, Index, Expr], None]) -> None:
        """Write something for each row, column and sum, in vectors."""
        for begin, count, lanes in self._vectors():
            for t, row in enumerate(self.rows):
                with self._w.unrolled(count) as v, self._w.vector(lanes) as lane:
                    write(t, self._block.column + (v + begin) * self._block.lanes + lane, row[v + begin, lane])

    def store(
        self, result: Result, pixel: Callable[[Index], Index], value: Callable[[Index, Index, Expr], Expr],
        rows: Index | None = None,
    ) -> None:  # fmt: skip
        """Store a value for each row and column; it gets the row, the column and the sum.

        Parameters:
            pixel: gets a row, and says where it is stored.
            rows: how many there are, if the kernel finds that when it runs: others are stored where the last one is.
        """
        w = self._w
        if not is_long(value, "row", "column"):
            self.each(lambda t, column, total: result.store(w, pixel(t), column, value(t, column, total)))
            return
        self.each(lambda t, column, total: result.store(w, pixel(t), column, total))
        for begin, count, lanes in self._vectors():
            with w.loop((len(self.rows) if rows is None else rows) * count) as each, w.vector(lanes) as lane:
                t, v = each // count, each % count
                column = self._block.column + (v + begin) * self._block.lanes + lane
                result.store(w, pixel(t), column, value(t, column, result.load(pixel(t), column)))

    def _vectors(self) -> list[tuple[int, int, int]]:
        """Return the first vector of a row, how many have as many lanes, and these; the last one may have fewer."""
        block = self._block
        full = block.vectors - (block.last_lanes < block.lanes)
        parts = [(0, full, block.lanes), (full, block.vectors - full, block.last_lanes)]
        return [part for part in parts if part[1]]
