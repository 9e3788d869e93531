# SPDX-License-Identifier: Apache-2.0
"""Products of two matrices that are both computed, one for each element of leading axes, as in attention.

A panel of the right matrix, all steps by a block of columns, is packed into working memory first; then register tiles
go over the rows of the left one. Products with a constant matrix are in ``_convolution``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from portcall.compile._products import Place, epilogue, factors, unravel
from portcall.compile._reading import NotThisKindError, Reading, Stage, flat_index, walk
from portcall.compile._registers import Block, Result, Sums, for_blocks, for_tiles
from portcall.compile._target import Target
from portcall.compile._tiles import Columns, Segment, best_tile, segments, split_evenly
from portcall.compile._writer import Buffer, Expr, Index, Writer, float32

_FEWEST_COLUMNS = 4


@dataclass
class Batched:
    """A product as it stands in a function: result[batch, row, column] = sum of a * b over the steps.

    Attributes:
        batch: the extents of the leading axes.
        a, b: what is multiplied, as loads.
    """

    reading: Reading
    stage: Stage
    batch: tuple[int, ...]
    rows: int
    columns: int
    steps: int
    a: Any
    b: Any


def read_batched(reading: Reading) -> Batched:
    """Read a function that is such a product, with what follows it.

    Raises:
        NotThisKindError: it is something else.
    """
    stages = reading.reductions
    if len(stages) != 1 or stages[0].kinds.strip("S") != "R" or len(stages[0].kinds) < 3:
        raise NotThisKindError("no matrix product")
    stage = stages[0]
    if not stage.kinds.endswith("SSR"):
        raise NotThisKindError("the steps are not the last axis")
    a, b = factors(stage)
    row, column = stage.axes[-3], stage.axes[-2]
    if _mentions(a, column) or _mentions(b, row) or stage.extents[-2] < _FEWEST_COLUMNS:
        raise NotThisKindError("rows and columns in both factors")
    for load in (a, b):
        if not reading.is_input(load.source):
            raise NotThisKindError("operands that are computed")
    batch = stage.extents[:-3]
    return Batched(reading, stage, batch, stage.extents[-3], stage.extents[-2], stage.extents[-1], a, b)


def _mentions(load: Any, axis: str) -> bool:
    return any(type(part).__name__ == "Var" and part.name == axis for index in load.indices for part in walk(index))


def write_batched(w: Writer, what: Batched, target: Target, buffers: Mapping[str, Buffer], output: Buffer) -> None:
    """Write the code; ``buffers`` has the function's parameters, flat, by name."""
    rows, vectors = best_tile(what.rows, what.columns, target)
    columns = Columns(what.columns, vectors, target.lanes)
    job = _Job(w, what, rows, buffers, Result(output, what.columns))
    with w.outer(prod(what.batch)) as batch:
        for_blocks(w.outer, columns, 0, lambda block: _panel(job, batch, block))


@dataclass
class _Job:
    w: Writer
    what: Batched
    rows: int
    buffers: Mapping[str, Buffer]
    result: Result

    def load(self, operand: Any, batch: Index, row: Index, column: Index, step: Index) -> Any:
        names: dict[str, Index] = dict(
            zip(self.what.stage.axes, [*unravel(batch, self.what.batch), row, column, step], strict=True)
        )

        def unknown(buffer: Buffer, at: list[Index]) -> Any:
            raise NotThisKindError("an index that is read")

        indices = [self.what.reading.rewrite(index, names, unknown) for index in operand.indices]
        return self.buffers[operand.source.name][flat_index(operand.source, indices)]


def _panel(job: _Job, batch: Index, block: Block) -> None:
    """Write the product with one block of columns."""
    w, what, lanes = job.w, job.what, block.lanes
    packed = w.scratch(what.steps * block.width)
    with w.loop(what.steps) as k:
        for v in range(block.vectors):
            used = lanes if v < block.vectors - 1 else block.last_lanes
            here = k * block.width + v * lanes
            if used < lanes:
                with w.vector(lanes) as lane:
                    w.store(packed, here + lane, float32(0))
            with w.vector(used) as lane:
                w.store(packed, here + lane, job.load(what.b, batch, 0, block.column + v * lanes + lane, k))

    def tile(first: Index, segment: Segment) -> None:
        sums = Sums(w, segment.rows, block)
        with w.loop(what.steps) as k:
            sums.add(lambda t: job.load(what.a, batch, first + t, 0, k), packed, k)

        row = batch * what.rows + first

        def value(t: Index, column: Index, total: Expr) -> Expr:
            place = Place(row + t, 0, 0, 0, column)
            return epilogue(what.reading, what.stage, job.buffers, total, place, picture=False)

        sums.store(job.result, lambda t: row + t, value)

    for_tiles(w, w.loop, segments(split_evenly(what.rows, job.rows)), tile)
