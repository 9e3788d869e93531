# SPDX-License-Identifier: Apache-2.0
"""Register tiles: how rows (pixels) and columns (channels) of a product are cut so that results stay in registers.

A tile is ``t`` rows by ``v`` vectors of columns. In each step of the reduction it loads v vectors and t numbers for t*v
multiply-adds. Rows are cut evenly, so that sizes differ by one at most and each size gets its own code; nothing is
computed that is thrown away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from portcall.compile._target import Target

LATENCY = 4  # cycles until the result of a multiply-add can be added to; two are begun in each
_FEW_CHANNELS, _FEW_ACCUMULATORS = 4, 12


@dataclass(frozen=True)
class Segment:
    """Tiles of the same code that follow each other.

    Attributes:
        begin: the first row.
        rows: of each tile.
        count: how many tiles.
        taps: for each tap of a window the rows of the tile, from and to, for which it lies inside of the input.
    """

    begin: int
    rows: int
    count: int
    taps: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Tile:
    """The largest tile of a kernel, and the order of its loops.

    Attributes:
        rows, vectors: the size.
        weights_outside: the loop over the weights is the outer one: it is better for large weights.
        prefetch: the next block's weights are fetched while this one is used: weights come from memory.
    """

    rows: int
    vectors: int
    weights_outside: bool = False
    prefetch: bool = False


def split_evenly(count: int, most: int) -> list[tuple[int, int]]:
    """Cut a row into the fewest parts of at most ``most``, sizes differing by one at most: (begin, size) of each."""
    parts = -(-count // most)
    size, larger = divmod(count, parts)
    found, begin = [], 0
    for number in range(parts):
        rows = size + (number < larger)
        found.append((begin, rows))
        begin += rows
    return found


def segments(
    parts: Sequence[tuple[int, int]], taps: Callable[[int, int], tuple[tuple[int, int], ...]] = lambda begin, rows: ()
) -> list[Segment]:
    """Join neighbours that have the same size and the same taps."""
    found: list[Segment] = []
    for begin, rows in parts:
        inside = taps(begin, rows)
        if found and (found[-1].rows, found[-1].taps) == (rows, inside):
            last = found[-1]
            found[-1] = Segment(last.begin, rows, last.count + 1, inside)
        else:
            found.append(Segment(begin, rows, 1, inside))
    return found


def best_tile(
    rows: int, columns: int, target: Target, *, few_channels: bool = False, most_rows: int | None = None
) -> tuple[int, int]:
    """Return rows and vectors of the tile that is estimated to be the fastest.

    A step takes as many cycles as the largest of: its multiply-adds by two, the latency, its loads by two. A tile that
    uses every register spills, and is more than twice as slow. With few channels LLVM keeps inputs that neighbouring
    taps share in registers as well, so that tiles must be small.
    """
    vectors = -(-columns // target.lanes)
    most = min(_FEW_ACCUMULATORS, target.accumulators) if few_channels else target.accumulators
    best: tuple[float, int, int] | None = None
    for v in range(1, min(target.tile_vectors, vectors) + 1):
        for t in range(1, min(most_rows or target.tile_rows, rows) + 1):
            if v * t > most or v * t + v + 2 > target.registers:
                continue
            parts = split_evenly(rows, t)
            if parts[0][1] != t:
                continue
            cycles = sum(count * _cycles(size, width) for width, count in blocks(vectors, v) for _, size in parts)
            score = cycles * (1 + 0.02 / t) + 0.001 * len(parts) * vectors
            if best is None or score < best[0] - 1e-9:
                best = (score, t, v)
    assert best is not None, "a tile of one row and one vector always fits"
    return best[1], best[2]


def blocks(vectors: int, width: int) -> Iterator[tuple[int, int]]:
    """Yield (vectors of a block, how many such blocks)."""
    if vectors // width:
        yield width, vectors // width
    if vectors % width:
        yield vectors % width, 1


def _cycles(rows: int, vectors: int) -> float:
    return max(rows * vectors / 2, LATENCY, (rows + vectors) / 2)


def few_channels(channels: int) -> bool:
    return channels <= _FEW_CHANNELS


@dataclass(frozen=True)
class Columns:
    """How the columns of a matrix are cut into blocks of vectors: full blocks, then one that may be narrower.

    The last vector of the last block may have fewer lanes than the machine's vectors; packed weights are zero there.

    Attributes:
        count: the columns.
        vectors: of a full block.
        lanes: of a vector.
    """

    count: int
    vectors: int
    lanes: int

    @property
    def all_vectors(self) -> int:
        return -(-self.count // self.lanes)

    @property
    def last_lanes(self) -> int:
        """The lanes in use of the last vector."""
        return self.count - (self.all_vectors - 1) * self.lanes

    @property
    def full(self) -> int:
        """The number of full blocks whose vectors are all full."""
        full, rest = divmod(self.all_vectors, self.vectors)
        return full - 1 if full and not rest and self.last_lanes != self.lanes else full

    @property
    def tail(self) -> int:
        """The vectors of the last, other block; 0 if there is none."""
        return self.all_vectors - self.full * self.vectors

    def pack(self, matrix: Any) -> list[Any]:
        """Return the blocks of a matrix [steps, count], each [steps, vectors, lanes], flat and filled up with zeros."""
        import numpy as np

        padded = np.pad(matrix, ((0, 0), (0, self.all_vectors * self.lanes - self.count)))
        width = self.vectors * self.lanes
        cuts = [width * number for number in range(1, self.full + 1)]
        return [block.ravel() for block in np.split(padded, cuts, axis=1) if block.size]
