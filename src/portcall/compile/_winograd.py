# SPDX-License-Identifier: Apache-2.0
"""3x3 convolutions of stride 1 by Winograd's minimal filtering, F(2x2, 3x3) and F(4x4, 3x3).

After A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks" (2015): with tiles of m x m results and
a = m + 2, Y = A'[(G g G') * (B' d B)]A, where * is, over all channels, a*a matrix products. It takes 9 m*m / (a*a)
times fewer multiplications (2.25 and 4), at the cost of larger weights (a*a / 9 times: 1.78 and 4) and of rounding:
errors of 2e-6 and 1e-5 instead of 1e-6.

Tiles are done in blocks whose transformed data stay in the second-level cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from portcall.compile._products import Place, Product, Window
from portcall.compile._registers import Block, Result, Sums, for_blocks, for_tiles, is_long
from portcall.compile._target import Target
from portcall.compile._tiles import Columns, Segment, best_tile, segments, split_evenly
from portcall.compile._writer import Buffer, Expr, Index, Writer, at_most, float32, floordiv, floormod

Array = Any
_FEWEST_CHANNELS = 32
_SMALLEST_MAP = 10  # of results; below it the weights take longer than what is saved
# The share of the second-level cache for the transformed input and output of a block; weights pass through it too.
_CACHE_SHARE = 0.3
_AHEAD = 96  # steps of the reduction by which weights are fetched ahead
# Estimates of what it takes, relative to each other: multiply-adds in a second, bytes in a second from beyond the
# second-level cache, and seconds to transform one vector of a tile.
_FLOPS, _BYTES = 235e9, 45e9
_TRANSFORM = {2: 25e-9, 4: 50e-9}
_WORTH = 0.92  # the estimate must be so much better, since the weights grow

# B', G, A' of F(m x m, 3 x 3).
_MATRICES: Mapping[int, tuple[Array, Array, Array]] = {
    2: (
        np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], "float64"),
        np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], "float64"),
        np.array([[1, 1, 1, 0], [0, 1, -1, -1]], "float64"),
    ),
    4: (
        np.array(
            [[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0], [0, -2, -1, 2, 1, 0],
             [0, 2, -1, -2, 1, 0], [0, 4, 0, -5, 0, 1]], "float64"),
        np.array(
            [[1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6], [1 / 24, 1 / 12, 1 / 6],
             [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]], "float64"),
        np.array(
            [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]], "float64"),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """How a convolution is done.

    Attributes:
        m: the side of a tile of results.
        block: how many tiles are done together.
        rows, columns: the register tile of the products.
        prefetch: weights come from memory.
    """

    m: int
    block: int
    rows: int
    columns: Columns
    channels: int
    prefetch: bool

    @property
    def side(self) -> int:
        """The side of a tile of the input."""
        return self.m + 2

    @property
    def products(self) -> int:
        return self.side**2

    @property
    def weights_size(self) -> int:
        return self.products * self.channels * self.columns.count

    def pack(self, weights: Array) -> Array:
        """Return transformed weights: product, block of vectors, channel, lanes; of HWIO."""
        g = _MATRICES[self.m][1]
        made = np.einsum("ai,bj,ijco->abco", g, g, weights.astype("float64")).astype("float32")
        made = made.reshape(self.products, *weights.shape[2:])
        return np.concatenate([part for product in made for part in self.columns.pack(product)])


def choose(window: Window, target: Target, wanted: str) -> int:
    """Return the m of the algorithm to use, 2 or 4; 0 for the direct one.

    Parameters:
        wanted: ``off``; ``f2`` or ``f4`` wherever it can be used and maps are not tiny; ``auto`` by estimated times.
    """
    if wanted == "off" or not _possible(window, target):
        return 0
    if wanted != "auto":
        return int(wanted.removeprefix("f")) if min(window.oh, window.ow) >= _SMALLEST_MAP else 0
    times = {m: _estimate(window, target, m) for m in (0, 2, 4)}
    best = 0
    for m in (2, 4):
        if times[m] < times[best] * _WORTH:
            best = m
    return best


def _possible(window: Window, target: Target) -> bool:
    lanes, three = target.lanes, window.kh == window.kw == 3
    one = window.sh == window.sw == window.dh == window.dw == window.groups == window.n == 1
    wide = min(window.c, window.o) >= _FEWEST_CHANNELS
    return three and one and wide and window.c % lanes == 0 and window.o % lanes == 0


def _estimate(window: Window, target: Target, m: int) -> float:
    """Return about how many seconds it takes on the machine of the constants; only ratios count."""

    def from_memory(nbytes: float) -> float:
        return nbytes / _BYTES if nbytes > target.l2_nbytes else 0.0

    flops = _FLOPS * target.lanes / 16
    if m == 0:
        inside = (1 - 2 / 3 / window.oh) * (1 - 2 / 3 / window.ow) if window.top else 1.0  # skipped at the borders
        return window.flops * inside / flops + 0.4 * from_memory(window.weights_nbytes)
    tiles, products = _tiles(window, m), (m + 2) ** 2
    multiply = 2 * products * tiles * window.c * window.o / flops / (min(tiles, 8) / 8)
    transform = tiles * (window.c + window.o) / target.lanes * _TRANSFORM[m]
    return multiply + transform + from_memory(products * window.c * window.o * 4)


def _tiles(window: Window, m: int) -> int:
    return -(-window.oh // m) * -(-window.ow // m)


def plan(window: Window, target: Target, m: int, parallel: bool) -> Plan:
    """Return how a convolution is done; in parallel by an even number of equal blocks, of which the last overlaps."""
    tiles, products = _tiles(window, m), (m + 2) ** 2
    fit = int(target.l2_nbytes * _CACHE_SHARE) // (products * 4 * (window.c + window.o))
    block = max(4, min(tiles, fit))
    count = -(-tiles // block)
    if parallel:
        count = max(2, count + count % 2)
    block = -(-tiles // count)
    rows, vectors = best_tile(block, window.o, target)
    prefetch = products * window.c * window.o * 4 > target.l2_nbytes
    return Plan(m, block, rows, Columns(window.o, vectors, target.lanes), window.c, prefetch)


@dataclass
class _Job:
    w: Writer
    product: Product
    plan: Plan
    buffers: Mapping[str, Buffer]
    result: Result

    @property
    def window(self) -> Window:
        return self.product.window

    @property
    def across(self) -> int:
        """How many tiles stand side by side."""
        return -(-self.window.ow // self.plan.m)

    @property
    def long(self) -> bool:
        """Whether what follows the sums is computed when all of them are stored."""
        return is_long(self.value, "pixel", "y", "x", "channel")

    def value(self, pixel: Index, y: Index, x: Index, channel: Index, total: Expr) -> Expr:
        return self.product.value(self.buffers, total, Place(pixel, 0, y, x, channel))

    def buffer(self, parameter: int) -> Buffer:
        return self.buffers[self.product.reading.names[parameter]]


def write(w: Writer, product: Product, plan: Plan, buffers: Mapping[str, Buffer], result: Result) -> None:
    """Write the code of a convolution; arguments as for ``write_convolution``."""
    job = _Job(w, product, plan, buffers, result)
    tiles, window = _tiles(product.window, plan.m), product.window
    if w.parallel:
        with w.outer(-(-tiles // plan.block)) as number:
            _block(job, at_most(number * plan.block, tiles - plan.block), plan.block)
    else:
        for_tiles(w, w.loop, segments(split_evenly(tiles, plan.block)),
                  lambda first, segment: _block(job, first, segment.rows))  # fmt: skip
    if job.long:  # beside the products, its constants would take their registers
        lanes = plan.columns.lanes
        with w.outer(window.oh) as y, w.loop(window.ow) as x, w.loop(window.o // lanes) as c, w.vector(lanes) as lane:
            pixel, channel = y * window.ow + x, c * lanes + lane
            result.store(w, pixel, channel, job.value(pixel, y, x, channel, result.load(pixel, channel)))


def _block(job: _Job, first: Index, count: int) -> None:
    """Write the three steps for ``count`` tiles from ``first``."""
    products, window = job.plan.products, job.window
    data = job.w.scratch(products * count * window.c)
    found = job.w.scratch(products * count * window.o)
    _transform_input(job, first, count, data)
    _multiply(job, count, data, found)
    _transform_output(job, first, count, found)


def _transform_input(job: _Job, first: Index, count: int, data: Buffer) -> None:
    w, window, m, side, lanes = job.w, job.window, job.plan.m, job.plan.side, job.plan.columns.lanes
    x, matrix = job.buffer(job.product.data), _MATRICES[m][0]
    with w.loop(count) as q, w.loop(window.c // lanes) as c:
        pixels, half = w.registers(side, side, lanes), w.registers(side, side, lanes)
        y0 = floordiv(first + q, job.across) * m - window.top
        x0 = floormod(first + q, job.across) * m - window.left
        with w.loop(side) as i, w.loop(side) as j:
            inside = tirx.all(y0 + i >= 0, y0 + i < window.h, x0 + j >= 0, x0 + j < window.w)
            with w.vector(lanes) as lane:
                w.store(pixels, (i, j, lane), float32(0))
            with w.when(inside), w.vector(lanes) as lane:
                w.store(pixels, (i, j, lane), x[((y0 + i) * window.w + x0 + j) * window.c + c * lanes + lane])
        with w.loop(side) as j:
            _combine(w, lanes, matrix, lambda k, lane: pixels[k, j, lane],
                     lambda i, lane, value: w.store(half, (i, j, lane), value))  # fmt: skip
        with w.loop(side) as i:
            _combine(w, lanes, matrix, lambda k, lane: half[i, k, lane],
                     lambda j, lane, value: w.store(
                         data, ((i * side + j) * count + q) * window.c + c * lanes + lane, value))  # fmt: skip


def _combine(
    w: Writer, lanes: int, matrix: Array, load: Callable[[int, Index], Expr],
    store: Callable[[int, Index, Expr], None],
) -> None:  # fmt: skip
    """Write a product of a small constant matrix with a column of vectors."""
    for row, coefficients in enumerate(matrix):
        with w.vector(lanes) as lane:
            store(row, lane, _sum(coefficients, load, lane))


def _sum(coefficients: Sequence[float], load: Callable[[int, Index], Expr], lane: Index) -> Expr:
    total: Expr | None = None
    for k, coefficient in enumerate(coefficients):
        if not coefficient:
            continue
        size = abs(float(coefficient))
        term = load(k, lane) if size == 1 else load(k, lane) * float32(size)
        if total is None:
            total = term if coefficient > 0 else float32(0) - term
        else:
            total = total + term if coefficient > 0 else total - term
    return total


def _multiply(job: _Job, count: int, data: Buffer, found: Buffer) -> None:
    """Write the products: for each place of the transformed tiles, tiles x channels by channels x outputs."""
    w, window, columns = job.w, job.window, job.plan.columns
    packed, rows = job.buffer(job.product.weights), segments(split_evenly(count, job.plan.rows))

    def tile(place: Index, block: Block, first: Index, segment: Segment) -> None:
        row = place * count + first
        sums = Sums(w, segment.rows, block)
        with w.loop(window.c) as k:
            if job.plan.prefetch:  # the weights are read in one sweep
                with w.unrolled(block.vectors) as v:
                    w.prefetch(packed, block.weights + (k + _AHEAD) * block.width + v * block.lanes, locality=3)
            sums.add(lambda t: data[(row + t) * window.c + k], packed, k)
        sums.each(lambda t, channel, total: w.store(found, (row + t) * window.o + channel, total))

    with w.loop(job.plan.products) as place:
        for_blocks(
            w.loop, columns, window.c,
            lambda block: for_tiles(w, w.loop, rows, lambda first, segment: tile(place, block, first, segment)),
            weights=place * (window.c * window.o),
        )  # fmt: skip


def _transform_output(job: _Job, first: Index, count: int, found: Buffer) -> None:
    w, window, m, side, lanes = job.w, job.window, job.plan.m, job.plan.side, job.plan.columns.lanes
    matrix, long = _MATRICES[m][2], job.long
    with w.loop(count) as q, w.loop(window.o // lanes) as c:
        half, values = w.registers(m, side, lanes), w.registers(m, m, lanes)
        with w.loop(side) as j:
            _combine(w, lanes, matrix,
                     lambda k, lane: found[((k * side + j) * count + q) * window.o + c * lanes + lane],
                     lambda i, lane, value: w.store(half, (i, j, lane), value))  # fmt: skip
        with w.loop(m) as i:
            _combine(w, lanes, matrix, lambda k, lane: half[i, k, lane],
                     lambda j, lane, value: w.store(values, (i, j, lane), value))  # fmt: skip
        y0, x0 = floordiv(first + q, job.across) * m, floormod(first + q, job.across) * m
        rows = at_most(window.oh - y0, m) if window.oh % m else m
        columns = at_most(window.ow - x0, m) if window.ow % m else m
        with w.loop(rows) as i, w.loop(columns) as j, w.vector(lanes) as lane:
            pixel, channel, total = (y0 + i) * window.ow + x0 + j, c * lanes + lane, values[i, j, lane]
            value = total if long else job.value(pixel, y0 + i, x0 + j, channel, total)
            job.result.store(w, pixel, channel, value)
