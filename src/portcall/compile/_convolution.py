# SPDX-License-Identifier: Apache-2.0
"""Convolutions with constant weights, grouped ones too; products with a constant matrix are 1x1 convolutions.

* Results of a register tile (``_tiles``) are summed up in registers; bias, residual and activation are applied on the
  way out.
* Weights are packed when the model is compiled: group, block of vectors, row and column of the window, channel, lanes.
* Padding is never copied: rows of the window that lie outside are left out by the bounds of a loop, columns by code of
  their own for the tiles at the borders.
* 1x1 convolutions of stride 1 see the picture as one row of pixels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from portcall.compile._padding import padded
from portcall.compile._products import Product, Window
from portcall.compile._registers import Block, Pixels, Result, Sums, for_results
from portcall.compile._target import Target
from portcall.compile._tiles import Columns, Tile, best_tile, few_channels
from portcall.compile._writer import Buffer, Expr, Index, Writer, floordiv, floormod

Array = Any
_MANY_BLOCKS = 8  # blocks of weights, so that threads have about the same work


@dataclass(frozen=True)
class Weights:
    """The layout of packed weights."""

    groups: int
    columns: Columns

    def pack(self, weights: Array) -> Array:
        """Return weights HWIO, or a matrix [channels, columns], packed, flat."""
        steps = int(np.prod(weights.shape[:-1], dtype="int64"))
        matrix = weights.reshape(steps, weights.shape[-1])
        width = self.columns.count
        parts: list[Array] = []
        for group in range(self.groups):
            parts += self.columns.pack(matrix[:, group * width : (group + 1) * width])
        return np.ascontiguousarray(np.concatenate(parts))

    def size(self, steps: int) -> int:
        return self.groups * steps * self.columns.all_vectors * self.columns.lanes


@dataclass(frozen=True)
class Variant:
    """What the model around a convolution asks for.

    Attributes:
        nchw: the input has the order NCHW.
        shuffled: the input is stored before a shuffle of its channels into so many groups; 0 if it is not.
    """

    nchw: bool = False
    shuffled: int = 0


def choose_tile(window: Window, target: Target, variant: Variant) -> Tile:
    """Return the tile for a convolution by rule.

    Weights that fit in a quarter of the second-level cache are used again for each pixel; larger ones are used for all
    pixels, block by block; and those beyond the cache are fetched ahead.
    """
    pixels = window.n * window.oh * window.ow if window.pointwise and not variant.nchw else window.ow
    rows, vectors = best_tile(
        pixels, window.o // window.groups, target, few_channels=few_channels(window.group_channels) and not window.wide
    )
    nbytes = window.weights_nbytes
    return Tile(rows, vectors, nbytes > target.l2_nbytes // 4, nbytes >= target.l2_nbytes)


def weights_of(window: Window, tile: Tile, target: Target) -> Weights:
    return Weights(window.groups, Columns(window.o // window.groups, tile.vectors, target.lanes))


@dataclass
class _Job:
    """All that the code of one convolution is made of."""

    w: Writer
    product: Product
    tile: Tile
    variant: Variant
    columns: Columns
    window: Window
    data: Buffer
    buffers: Mapping[str, Buffer]
    result: Result

    @property
    def steps(self) -> int:
        return self.window.kh * self.window.kw * self.window.group_channels

    @property
    def weights(self) -> Buffer:
        return self.buffers[self.product.reading.names[self.product.weights]]

    def x(self, n: Index, row: Index, column: Index, channel: Index) -> Expr:
        """Return an element of the input; the channel is counted as if there were no shuffle."""
        window, shuffled = self.window, self.variant.shuffled
        data = self.data
        if self.variant.nchw:
            return data[((n * window.c + channel) * window.h + row) * window.w + column]
        if shuffled:
            channel = floormod(channel, shuffled) * (window.c // shuffled) + floordiv(channel, shuffled)
        return data[((n * window.h + row) * window.w + column) * window.c + channel]


def write_convolution(
    w: Writer, product: Product, target: Target, tile: Tile, variant: Variant, buffers: Mapping[str, Buffer],
    result: Result, weights: int = 0,
) -> None:  # fmt: skip
    """Write the code of a convolution.

    Parameters:
        weights: where its own begin.
        buffers: the function's parameters, flat, by name; the weights packed as ``weights_of`` says.
    """
    columns, window = weights_of(product.window, tile, target).columns, product.window
    data = buffers[product.reading.names[product.data]]
    if window.c == 1:
        variant = replace(variant, nchw=False)
    if window.wide:
        window, data = padded(w, window, data, target.lanes, nchw=variant.nchw)
    job = _Job(w, product, tile, variant, columns, window, data, buffers, result)
    few_blocks = w.parallel and columns.all_vectors // tile.vectors < _MANY_BLOCKS
    for_results(
        w, window, columns, tile.rows, job.steps, lambda group, block, pixels: _tile(job, group, block, pixels),
        one_row=window.pointwise and not variant.nchw, weights_outside=tile.weights_outside and not few_blocks,
        weights=weights,
    )  # fmt: skip


def _tile(job: _Job, group: Index, block: Block, pixels: Pixels) -> None:
    sums = Sums(job.w, pixels.segment.rows, block)
    (_sum_pointwise if pixels.one_row else _sum_window)(job, group, block, pixels, sums)
    sums.store(
        job.result, lambda t: pixels.place(t, 0).pixel,
        lambda t, channel, total: job.product.value(job.buffers, total, pixels.place(t, channel)),
    )  # fmt: skip


def _sum_pointwise(job: _Job, group: Index, block: Block, pixels: Pixels, sums: Sums) -> None:
    channels = job.window.group_channels
    with job.w.loop(channels) as k:
        _prefetch(job, block, k, floordiv(pixels.first, pixels.segment.rows))
        sums.add(lambda t: job.x(0, 0, pixels.first + t, group * channels + k), job.weights, k)


def _sum_window(job: _Job, group: Index, block: Block, pixels: Pixels, sums: Sums) -> None:
    w, window, ow = job.w, job.window, pixels.ow
    if window.wide:
        _sum_wide(job, group, block, pixels, sums)
        return
    first, last = window.rows_inside(pixels.oh)
    few = few_channels(window.group_channels)
    channels = w.unrolled if few else w.loop
    with w.loop(last - first, begin=first) as ky:
        row = pixels.oh * window.sh + ky * window.dh - window.top
        for kx, (begin, end) in enumerate(pixels.segment.taps):
            if begin == end:
                continue
            with channels(window.group_channels) as k:
                step = (ky * window.kw + kx) * window.group_channels + k
                if not few:
                    _prefetch(job, block, step, pixels.oh + ow)
                left = ow * window.sw + (kx * window.dw - window.left)
                channel = group * window.group_channels + k
                sums.add(lambda t, left=left, channel=channel: job.x(  # type: ignore[misc]
                    pixels.n, row, left + t * window.sw, channel), job.weights, step, range(begin, end))  # fmt: skip


def _sum_wide(job: _Job, group: Index, block: Block, pixels: Pixels, sums: Sums) -> None:
    """Sum up with a loop over columns; where they lie in a row with their channels, over both at once."""
    w, window, channels = job.w, job.window, job.window.group_channels
    in_a_row = window.dw == window.groups == 1 and job.variant == Variant()
    first, last = window.rows_inside(pixels.oh)
    columns, inner = (1, window.kw * channels) if in_a_row else (window.kw, channels)
    with w.loop(last - first, begin=first) as ky, w.loop(columns) as kx, w.loop(inner) as k:
        row = pixels.oh * window.sh + ky * window.dh - window.top
        step = (ky * window.kw + kx) * channels + k
        _prefetch(job, block, step, pixels.oh + pixels.ow)
        sums.add(lambda t: job.x(pixels.n, row, (pixels.ow + t) * window.sw + kx * window.dw, group * channels + k),
                 job.weights, step)  # fmt: skip


def _prefetch(job: _Job, block: Block, step: Index, tile_number: Index) -> None:
    """Fetch one line of the next block's weights in each step, another one for each tile."""
    if job.tile.prefetch:
        which = floormod(tile_number, block.vectors) * job.steps + step
        job.w.prefetch(job.weights, block.weights + job.steps * block.width + which * block.lanes, locality=2)
