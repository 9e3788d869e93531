# SPDX-License-Identifier: Apache-2.0
"""Convolutions, depthwise ones too, and poolings over pictures whose extents are known when the kernel runs.

* A band of rows, as many as fit in the nearest caches, is copied with its padding: then no window lies outside, and all
  tiles have the same code. What has no padding is read where it lies.
* The results of a band are one row of pixels. A tile is a few of them, wherever a row of the picture ends: each has the
  place where its window begins. The last tile begins earlier, and overlaps the one before. Where a band has fewer
  pixels than a tile, the last one is computed several times.
* Weights are packed as for pictures of known extents (``_convolution``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import sym, tirx

from portcall.compile._convolution import Weights, weights_of
from portcall.compile._kernels import Kernel, check_floats
from portcall.compile._products import Place, Product, Window, convolution_of, epilogue, product_of
from portcall.compile._reading import NotThisKindError, Reading, Stage, with_infinite_starts
from portcall.compile._registers import Block, Result, Sums, for_blocks
from portcall.compile._target import Target
from portcall.compile._tiles import Columns, Tile, best_tile
from portcall.compile._window import ByChannel, depthwise, read_pooling, taken
from portcall.compile._writer import Buffer, Expr, Index, Writer, flat_buffer

_MOST_PIXELS = 12  # of a tile: the place of each takes a register
_MANY = 120  # pixels, for which the best tile is asked
_BY_CHANNEL = 8  # pixels of a tile where vectors run over channels


def write_picture(name: str, function: Any, constants: Sequence[bool], target: Target) -> Kernel:
    """Return the kernel of a function whose result is a picture of any size.

    Parameters:
        constants: which arguments are constant.

    Raises:
        NotThisKindError: it is something else.
    """
    reading = Reading(with_infinite_starts(function), open_shapes=True)
    if any(str(buffer.dtype) != "float32" for buffer in reading.params):
        raise NotThisKindError("other types than float32")
    kinds = reading.reductions[0].kinds if len(reading.reductions) == 1 else ""
    if kinds == "SSSSRR":
        return _kernel(name, "pooling", function, target, read_pooling(reading))
    rows = kinds != "SSSSRRR"  # a product of rows is a convolution of pixels in a row
    product = product_of(reading) if rows else convolution_of(reading)
    check_floats(reading, product.stage)
    if not constants[product.weights]:
        raise NotThisKindError("weights that are not constant")
    try:
        return _kernel(name, "depthwise", function, target, depthwise(product))
    except NotThisKindError:
        return _kernel(name, "matrix product" if rows else "convolution", function, target, _packed(product, target))


@dataclass
class _Packed:
    """A convolution with packed weights.

    Attributes:
        columns, layout: of these.
        steps: products of a sum.
    """

    reading: Reading
    window: Window
    data: int
    weights: int
    stage: Stage
    tile: Tile
    columns: Columns
    layout: Weights
    steps: int
    start: float = 0.0


def _packed(product: Product, target: Target) -> _Packed:
    window = product.window
    rows, vectors = best_tile(_MANY, window.o // window.groups, target, most_rows=_MOST_PIXELS)
    tile = Tile(rows, vectors, window.weights_nbytes > target.l2_nbytes // 4)
    layout, steps = weights_of(window, tile, target), window.kh * window.kw * window.group_channels
    reading, data, weights, stage = product.reading, product.data, product.weights, product.stage
    return _Packed(reading, window, data, weights, stage, tile, layout.columns, layout, steps)


def _kernel(name: str, rule: str, function: Any, target: Target, what: ByChannel | _Packed) -> Kernel:
    w = Writer(index="int64")
    buffers: dict[str, Buffer] = {}
    packs = {what.weights: what.layout.pack} if isinstance(what, _Packed) else {}
    params: list[Any] = []
    for place, each in enumerate(function.params):
        if not hasattr(each, "shape"):
            params.append(each)
            continue
        flat = tirx.decl_buffer((prod(each.shape),), each.dtype, name=f"{each.name}_flat")
        if isinstance(what, _Packed) and place in packs:
            flat = flat_buffer(f"{each.name}_packed", (what.layout.size(what.steps),), "float32")
            params.append(flat)
        else:
            params.append(tirx.decl_buffer(each.shape, each.dtype, name=str(each.name)))
            w.declared(flat, params[-1].data)
        buffers[what.reading.names[len(buffers)]] = flat
    _Picture(w, target, what, buffers).write()
    made = tirx.PrimFunc(params, w.statement()).with_attr("tirx.noalias", True).with_attr("s_tir", True)
    return Kernel(name, rule, made, packs, flat=False)


@dataclass
class _Band:
    """A band of rows of the result.

    Attributes:
        n, oh: the picture, and the first row.
        rows: how many.
        first: its first pixel, counted through the whole output.
        pixels: how many it has.
        data, begin, pitch: where the first window begins, and elements from one row to the next.
    """

    n: Index
    oh: Index
    rows: Index
    first: Index
    pixels: Index
    data: Buffer
    begin: Index
    pitch: Index


@dataclass
class _Pixels:
    """A tile: pixels of a band from ``first`` on; ``at`` is where the window of each begins."""

    band: _Band
    first: Index
    at: list[Buffer]

    @property
    def left(self) -> Index:
        """How many pixels there are."""
        return tirx.min(self.band.pixels - self.first, _long(len(self.at)))

    def pixel(self, t: Index) -> Index:
        return tirx.min(self.first + t, self.band.pixels - 1)


class _Picture:
    def __init__(self, w: Writer, target: Target, what: ByChannel | _Packed, buffers: Mapping[str, Buffer]) -> None:
        self.w, self.target, self.what, self.window, self.buffers = w, target, what, what.window, buffers
        names = what.reading.names
        self.data, self.result = buffers[names[what.data]], Result(buffers[names[-1]], what.window.o)
        self.weights = None if what.weights is None else buffers[names[what.weights]]

    def write(self) -> None:
        what = self.what
        if isinstance(what, _Packed):
            self._bands(lambda band: self._convolve(band, what))
        else:
            self._bands(lambda band: self._by_channel(band, what))

    # ---- bands -------------------------------------------------------------------------------------------------------

    def _bands(self, inner: Callable[[_Band], None]) -> None:
        w, window = self.w, self.window
        n, oh, ow = (_long(e) for e in (window.n, window.oh, window.ow))
        height, width = (_long(e) for e in (window.h, window.w))
        span = (ow - 1) * window.sw + ((window.kw - 1) * window.dw + 1)
        high = (oh - 1) * window.sh + ((window.kh - 1) * window.dh + 1)
        analyzer = sym.Analyzer()
        inside = window.top == window.left == 0 and analyzer.can_prove(tirx.all(high <= height, span <= width))
        row = window.sh * tirx.max(span, _long(1)) * window.c
        most = tirx.max(tirx.min(tirx.truncdiv(_long(self.target.l2_nbytes // 8), row), oh), _long(1))
        bands = tirx.Select(ow > 0, tirx.truncdiv(oh + most - 1, most), _long(0))  # no windows: an error comes later
        with w.outer(n) as image, w.outer(bands) as number:
            first = number * most
            rows = tirx.min(oh - first, most)
            start = (image * oh + first) * ow
            if inside:
                pitch = width * window.c
                begin = (image * height + first * window.sh) * pitch
                inner(_Band(image, first, rows, start, rows * ow, self.data, begin, pitch))
                return
            copy = w.scratch(((most - 1) * window.sh + ((window.kh - 1) * window.dh + 1)) * span * window.c)
            self._copy(copy, image, first, rows, span, height, width)
            inner(_Band(image, first, rows, start, rows * ow, copy, 0, span * window.c))

    def _copy(
        self, copy: Buffer, image: Index, first: Index, rows: Index, span: Index, height: Index, width: Index
    ) -> None:
        """Copy the rows of the picture that a band reads, with padding around them."""
        w, window, c, data = self.w, self.window, self.window.c, self.data
        fill = tirx.const(self.what.start, "float32")
        left = tirx.min(_long(window.left), span) if window.left else _long(0)
        columns = tirx.max(tirx.min(width, span - left), _long(0))
        with w.loop((rows - 1) * window.sh + ((window.kh - 1) * window.dh + 1)) as row:
            source, begin = first * window.sh + row - window.top, row * span * c
            there = tirx.all(source >= 0, source < height)
            count = tirx.Select(there, columns, _long(0))
            with w.loop(left * c) as k:
                w.store(copy, begin + k, fill)
            with w.loop(count * c) as k:
                w.store(copy, begin + left * c + k, data[((image * height + source) * width) * c + k])
            with w.loop((span - left - count) * c) as k:
                w.store(copy, begin + (left + count) * c + k, fill)

    # ---- tiles -------------------------------------------------------------------------------------------------------

    def _tiles(self, band: _Band, count: int, inner: Callable[[_Pixels], None]) -> None:
        """Write the loop over tiles of so many pixels."""
        w, window = self.w, self.window
        ow, step = _long(window.ow), window.sw * window.c
        with w.loop(tirx.truncdiv(band.pixels + (count - 1), _long(count))) as number:
            first = tirx.max(tirx.min(number * count, band.pixels - count), _long(0))
            at = [w.registers(1, dtype="int64") for _ in range(count)]
            line, column = w.registers(1, dtype="int64"), w.registers(1, dtype="int64")
            w.store(line, 0, tirx.truncdiv(first, ow))
            w.store(column, 0, first - line[0] * ow)
            w.store(line, 0, band.begin + line[0] * (band.pitch * window.sh))
            for t, place in enumerate(at):
                w.store(place, 0, line[0] + column[0] * step)
                if t + 1 < count:
                    w.store(column, 0, column[0] + tirx.Select(first + (t + 1) < band.pixels, _long(1), _long(0)))
                    w.store(line, 0, line[0] + tirx.Select(column[0] >= ow, band.pitch * window.sh, _long(0)))
                    w.store(column, 0, tirx.Select(column[0] >= ow, _long(0), column[0]))
            inner(_Pixels(band, first, at))

    def _store(self, pixels: _Pixels, sums: Sums) -> None:
        band, ow = pixels.band, self.window.ow

        def value(t: Index, channel: Index, total: Expr) -> Expr:
            pixel = pixels.pixel(t)
            row, column = tirx.truncdiv(pixel, _long(ow)), tirx.truncmod(pixel, _long(ow))
            place = Place(band.first + pixel, band.n, band.oh + row, column, channel)
            picture = self.what.stage.kinds.endswith("RR")
            return epilogue(self.what.reading, self.what.stage, self.buffers, total, place, picture=picture)

        sums.store(self.result, lambda t: band.first + pixels.pixel(t), value, pixels.left)

    # ---- convolutions ------------------------------------------------------------------------------------------------

    def _convolve(self, band: _Band, what: _Packed) -> None:
        window, columns, rows = self.window, what.columns, what.tile.rows

        def blocks(inner: Callable[[Index, Block], None]) -> None:
            packed = what.steps * columns.all_vectors * columns.lanes
            with self.w.loop(window.groups) as group:
                first = group * columns.count
                for_blocks(self.w.loop, columns, what.steps, lambda block: inner(group, block), first, group * packed)

        if what.tile.weights_outside:
            blocks(lambda group, block: self._tiles(band, rows, lambda pixels: self._sum(pixels, group, block)))
        else:
            self._tiles(band, rows, lambda pixels: blocks(lambda group, block: self._sum(pixels, group, block)))

    def _sum(self, pixels: _Pixels, group: Index, block: Block) -> None:
        w, window, band, channels = self.w, self.window, pixels.band, self.window.group_channels
        sums = Sums(w, len(pixels.at), block)
        in_a_row = window.dw == window.groups == 1
        columns, inner = (1, window.kw * channels) if in_a_row else (window.kw, channels)
        with w.loop(window.kh) as ky, w.loop(columns) as kx, w.loop(inner) as k:
            step = (ky * window.kw + kx) * channels + k
            behind = ky * (band.pitch * window.dh) + kx * (window.dw * window.c) + group * channels + k
            sums.add(lambda t: band.data[pixels.at[t][0] + behind], self.weights, step)
        self._store(pixels, sums)

    # ---- by channel --------------------------------------------------------------------------------------------------

    def _by_channel(self, band: _Band, what: ByChannel) -> None:
        c, lanes = self.window.c, min(self.target.lanes, self.window.c)

        def tiles(pixels: _Pixels) -> None:
            with self.w.loop(c // lanes) as vector:
                self._take(pixels, what, vector * lanes, lanes)
            if c % lanes:  # the last vector overlaps the one before
                self._take(pixels, what, c - lanes, lanes)

        self._tiles(band, _BY_CHANNEL, tiles)

    def _take(self, pixels: _Pixels, what: ByChannel, channel: Index, lanes: int) -> None:
        w, window, band, start = self.w, self.window, pixels.band, tirx.const(what.start, "float32")
        sums = Sums(w, len(pixels.at), Block(channel, 0, 1, lanes, lanes), start=lambda v, lane: start)
        with w.loop(window.kh) as ky, w.loop(window.kw) as kx:
            behind = ky * (band.pitch * window.dh) + kx * (window.dw * window.c) + channel
            weight = (ky * window.kw + kx) * window.c + channel
            for place, row in zip(pixels.at, sums.rows, strict=True):
                with w.vector(lanes) as lane:
                    x = band.data[place[0] + behind + lane]
                    w.store(row, (0, lane), taken(what, row[0, lane], x, self.weights, weight + lane))
        self._store(pixels, sums)


def _long(extent: Any) -> Expr:
    return tirx.const(extent, "int64") if isinstance(extent, int) else extent
