# SPDX-License-Identifier: Apache-2.0
"""Depthwise convolutions and pooling: each channel by itself, so that vectors run over channels.

A tile is some pixels of a row by one vector. Taps are treated as in ``_convolution``: rows by the bounds of a loop,
columns by special code for the tiles at the borders. Where channels do not fill the last vector, it overlaps the
one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from tvm import tirx

from portcall.compile._padding import padded
from portcall.compile._products import Product, Window, behind_padding, epilogue
from portcall.compile._reading import NotThisKindError, Reading, Stage, is_one
from portcall.compile._registers import Result, for_tiles, is_long
from portcall.compile._target import Target
from portcall.compile._tiles import Segment, segments, split_evenly
from portcall.compile._writer import Buffer, Expr, Index, Writer

Kind = Literal["multiply", "add", "max"]
_PIXELS = (7, 8)
_AXES = ((0,), (1, 4), (2, 5), (3,))  # of n, oh, ow, o, kh, kw: those that may be in each index of the operand
_TYPES = ("float32", "int32", "int8", "uint8")


@dataclass
class ByChannel:
    """A depthwise convolution or a pooling.

    Attributes:
        kind: what is done with each element of the window: multiplied by a weight and added, added, or compared.
        data, weights: the operands, as numbers of parameters.
        start: what the sum, or the largest value, begins with.
    """

    reading: Reading
    window: Window
    kind: Kind
    data: int
    weights: int | None
    stage: Stage
    start: float

    @property
    def dtype(self) -> str:
        """The type of a sum."""
        return str(self.stage.buffer.dtype)


def depthwise(product: Product) -> ByChannel:
    """Return a convolution in which each group has one channel and one result.

    Raises:
        NotThisKindError: it has more.
    """
    window = product.window
    if window.group_channels != 1 or window.groups != window.o:
        raise NotThisKindError("groups of several channels")
    return ByChannel(product.reading, window, "multiply", product.data, product.weights, product.stage, 0.0)


def read_pooling(reading: Reading) -> ByChannel:
    """Read a function that is a pooling of NHWC, or a sum or maximum over H and W, with what follows it.

    Raises:
        NotThisKindError: it is something else.
    """
    stages = reading.reductions
    if len(stages) != 1 or stages[0].kinds != "SSSSRR" or str(stages[0].buffer.dtype) not in _TYPES:
        raise NotThisKindError("no window")
    stage = stages[0]
    kinds: Mapping[str, Kind] = {"Max": "max", "Add": "add"}
    kind = kinds.get(type(stage.value).__name__)
    x: Any = getattr(stage.value, "b", None)
    if kind is None or type(x).__name__ != "TensorLoad" or len(x.indices) != 4:
        raise NotThisKindError("another sum")
    if type(stage.start).__name__ not in ("FloatImm", "IntImm") or str(x.indices[3]) != stage.axes[3]:
        raise NotThisKindError("channels in another place")

    def at(index: Any, axis: int | None = None) -> int:
        return reading.one_place(index, {name: 1 if k == axis else 0 for k, name in enumerate(stage.axes)})

    start = stage.start.value
    offsets = [at(index) for index in x.indices]
    for index, offset, own in zip(x.indices, offsets, _AXES, strict=True):
        others = [k for k, extent in enumerate(stage.extents) if not is_one(extent) and k not in own]
        if any(at(index, k) != offset for k in others):
            raise NotThisKindError("a sum over other axes")
    source, behind = behind_padding(reading, x.source, start)
    offsets = [a + b for a, b in zip(offsets, behind, strict=True)]
    if not reading.is_input(source) or offsets[0] or offsets[3]:
        raise NotThisKindError("an operand that is computed")
    n, oh, ow, o, kh, kw = stage.extents
    _, h, w, c = reading.shape(source)
    if not all(isinstance(extent, int) for extent in (c, o, kh, kw)) or c != o:
        raise NotThisKindError("channels that are left out, or not known")
    steps = [at(x.indices[axis], place) for axis, place in ((1, 1), (2, 2), (1, 4), (2, 5))]
    if (not is_one(oh) and steps[0] < 1) or (not is_one(ow) and steps[1] < 1):
        raise NotThisKindError("no window that moves")
    moves = [max(step, 1) for step in steps]
    sh, sw, dh, dw = moves
    window = Window(n, h, w, c, oh, ow, o, kh, kw, sh, sw, dh, dw, -offsets[1], -offsets[2], c)
    return ByChannel(reading, window, kind, reading.names.index(source.name), None, stage, start)


@dataclass
class _Job:
    w: Writer
    what: ByChannel
    buffers: Mapping[str, Buffer]
    data: Buffer
    weights: Buffer | None
    result: Result
    window: Window
    begin: int


def write_by_channel(
    w: Writer, what: ByChannel, target: Target, buffers: Mapping[str, Buffer], result: Result, begin: int = 0
) -> None:
    """Write the code; the weights begin at a place of their buffer."""
    window = what.window
    lanes = min(target.lanes * 4 // np.dtype(what.dtype).itemsize, window.o)
    names = what.reading.names
    weights = None if what.weights is None else buffers[names[what.weights]]
    data = buffers[names[what.data]]
    if window.wide:
        window, data = padded(w, window, data, lanes, what.start)
    job = _Job(w, what, buffers, data, weights, result, window, begin)
    pixels = _PIXELS[0] if window.ow % _PIXELS[0] == 0 else _PIXELS[1]
    parts = segments(split_evenly(window.ow, pixels), window.taps)
    with w.outer(window.n) as n, w.outer(window.oh) as oh:

        def tile(ow: Index, segment: Segment) -> None:
            with w.outer(window.o // lanes) as vector:
                _tile(job, segment, n, oh, ow, vector * lanes, lanes)
            if window.o % lanes:
                _tile(job, segment, n, oh, ow, window.o - lanes, lanes)

        for_tiles(w, w.outer, parts, tile)


def _tile(job: _Job, segment: Segment, n: Index, oh: Index, ow: Index, channel: Index, lanes: int) -> None:
    w, window = job.w, job.window
    found, start = w.registers(segment.rows, lanes, dtype=job.what.dtype), tirx.const(job.what.start, job.what.dtype)
    with w.unrolled(segment.rows) as t, w.vector(lanes) as lane:
        w.store(found, (t, lane), start)
    first, last = window.rows_inside(oh)
    with w.loop(last - first, begin=first) as ky:
        row = n * window.h + oh * window.sh + ky * window.dh - window.top
        if window.wide and job.what.kind == "add" and job.what.dtype == "float32":
            # The sum of a row, and then of rows: so fewer numbers are added to a large one, which rounds them.
            of_row = w.registers(segment.rows, lanes)
            with w.unrolled(segment.rows) as t, w.vector(lanes) as lane:
                w.store(of_row, (t, lane), tirx.const(0.0, "float32"))
            with w.loop(window.kw) as kx:
                _tap(job, of_row, row, ky, kx, ow, (0, segment.rows), channel, lanes)
            with w.unrolled(segment.rows) as t, w.vector(lanes) as lane:
                w.store(found, (t, lane), found[t, lane] + of_row[t, lane])
        elif window.wide:
            with w.loop(window.kw) as kx:
                _tap(job, found, row, ky, kx, ow, (0, segment.rows), channel, lanes)
        else:
            for kx, inside in enumerate(segment.taps):
                if inside[0] < inside[1]:
                    _tap(job, found, row, ky, kx, ow, inside, channel, lanes)

    def value(t: Index, at: Index, total: Expr) -> Expr:
        return epilogue(job.what.reading, job.what.stage, job.buffers, total, window.place(n, oh, ow + t, at))

    def pixel(t: Index) -> Index:
        return window.place(n, oh, ow + t, 0).pixel

    long = job.what.dtype == "float32" and is_long(value, "row", "column")
    with w.unrolled(segment.rows) as t, w.vector(lanes) as lane:
        at, total = channel + lane, found[t, lane]
        job.result.store(w, pixel(t), at, total if long else value(t, at, total))
    if long:
        with w.loop(segment.rows) as t, w.vector(lanes) as lane:
            at = channel + lane
            job.result.store(w, pixel(t), at, value(t, at, job.result.load(pixel(t), at)))


def _tap(
    job: _Job, found: Buffer, row: Index, ky: Index, kx: Index, ow: Index, inside: tuple[int, int], channel: Index,
    lanes: int,
) -> None:  # fmt: skip
    """Take one element of the window of each pixel."""
    w, window = job.w, job.window
    with w.unrolled(inside[1] - inside[0]) as t, w.vector(lanes) as lane:
        column = (ow + t + inside[0]) * window.sw + kx * window.dw - window.left
        x = tirx.Cast(job.what.dtype, job.data[(row * window.w + column) * window.c + channel + lane])
        old = found[t + inside[0], lane]
        weight = job.begin + (ky * window.kw + kx) * window.c + channel + lane
        w.store(found, (t + inside[0], lane), taken(job.what, old, x, job.weights, weight))


def taken(what: ByChannel, old: Expr, x: Expr, weights: Buffer | None, weight: Index) -> Expr:
    """Return a sum, or the largest value, with one more element of the window."""
    if weights is not None:
        return old + x * tirx.Cast(what.dtype, weights[weight])
    return old + x if what.kind == "add" else tirx.max(old, x)


def permuted(array: Any, order: tuple[int, ...]) -> Any:
    """Return weights, or constants of an epilogue, with their channels in another order."""
    return np.ascontiguousarray(array[..., list(order)])
