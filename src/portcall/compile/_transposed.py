# SPDX-License-Identifier: Apache-2.0
"""Transposed convolutions with constant weights: ordinary ones, whose results lie between each other.

With a stride of s, results whose rows and columns are the same modulo s read the same elements of the window, and are
one convolution of stride 1 with them: a part. Each part writes its results where they belong, so nothing is computed
that is thrown away, and nothing is moved afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from portcall.compile._convolution import Variant, choose_tile, weights_of, write_convolution
from portcall.compile._products import Product, Spread, Window, factors
from portcall.compile._reading import NotThisKindError, Reading, shape_of
from portcall.compile._registers import Result
from portcall.compile._target import Target
from portcall.compile._window import depthwise, write_by_channel
from portcall.compile._writer import Buffer, Writer

Array = Any
_MOST_STEPS = 1 << 12  # the largest stride


@dataclass(frozen=True)
class Transposed:
    """A transposed convolution as it stands in a function.

    Attributes:
        product: its window has the numbers of the whole; its strides are those with which results are spread.
        parts: the convolutions, and the rows and columns of the window that each has, in the order of its own.
    """

    product: Product
    parts: Sequence[tuple[Window, Sequence[int], Sequence[int]]]

    @property
    def by_channel(self) -> bool:
        window = self.product.window
        return window.groups == window.c == window.o

    def sizes(self, target: Target) -> list[int]:
        """Return how many packed weights each part has."""
        found = []
        for window, rows, columns in self.parts:
            steps = len(rows) * len(columns) * window.group_channels
            packed = weights_of(window, choose_tile(window, target, Variant()), target)
            found.append(steps * window.c if self.by_channel else packed.size(steps))
        return found

    def pack(self, weights: Array, target: Target) -> Array:
        """Return weights HWIO, all input channels and the results of a group, packed for each part."""
        whole = self.product.window
        height, width, _, results = weights.shape
        grouped = weights.reshape(height, width, whole.groups, whole.group_channels, results)
        ordered = grouped.transpose(0, 1, 3, 2, 4).reshape(height, width, whole.group_channels, whole.o)
        packed = []
        for window, rows, columns in self.parts:
            part = ordered[list(rows)][:, list(columns)]
            layout = weights_of(window, choose_tile(window, target, Variant()), target)
            packed.append(part.ravel() if self.by_channel or not part.size else layout.pack(part))
        made = np.ascontiguousarray(np.concatenate(packed))
        return made if made.size else np.zeros(1, made.dtype)  # all results lie between those that have a factor


def legalize(builder: relax.BlockBuilder, call: Any) -> Any:
    """Return a transposed convolution of NHWC by HWIO as a function that this module reads; TVM's own of others."""
    numbers, known = call.attrs, all(isinstance(extent, tirx.IntImm) for extent in call.args[0].ty.shape)
    if (numbers.data_layout, numbers.kernel_layout) != ("NHWC", "HWIO") or not known:
        return call.op.get_attr("FLegalize")(builder, call)
    (sh, sw), (dh, dw) = (list(map(int, each)) for each in (numbers.strides, numbers.dilation))
    top, left = (int(each) for each in list(numbers.padding)[:2])
    n, oh, ow, o = (int(extent) for extent in call.ty.shape)
    groups = int(numbers.groups)

    def compute(x: Any, w: Any) -> Any:
        kh, kw, c, width = (int(extent) for extent in w.shape)
        _, height, across, _ = (int(extent) for extent in x.shape)
        down, right = (kh - 1) * dh, (kw - 1) * dw

        def spread(image: Any, row: Any, column: Any, channel: Any) -> Any:
            y, z = row - (down - top), column - (right - left)
            inside = tirx.all(
                tirx.floormod(y, sh) == 0, tirx.floormod(z, sw) == 0,
                y >= 0, y < height * sh, z >= 0, z < across * sw,
            )  # fmt: skip
            found = x[image, tirx.floordiv(y, sh), tirx.floordiv(z, sw), channel]
            return tirx.if_then_else(inside, found, tirx.const(0, x.dtype))

        wide = te.compute((n, oh + down, ow + right, c), spread, name="spread")
        ky, kx, rc = (
            te.reduce_axis((0, extent), name) for extent, name in ((kh, "ky"), (kw, "kx"), (c // groups, "rc"))
        )

        def sums(image: Any, row: Any, column: Any, result: Any) -> Any:
            channel = tirx.floordiv(result, width) * (c // groups) + rc if groups > 1 else rc
            weight = w[ky, kx, channel, tirx.floormod(result, width) if groups > 1 else result]
            data = wide[image, row + (kh - 1 - ky) * dh, column + (kw - 1 - kx) * dw, channel]
            return te.sum(data * weight, axis=[ky, kx, rc])

        return te.compute((n, oh, ow, o), sums, name="transposed_convolution")

    return builder.call_te(compute, *call.args, primfunc_name_hint="transposed_convolution")


def read_transposed(reading: Reading) -> Transposed:
    """Read a function that ``legalize`` wrote, with what follows it.

    Raises:
        NotThisKindError: it is something else.
    """
    if len(reading.reductions) != 1 or reading.reductions[0].kinds != "SSSSRRR":
        raise NotThisKindError("another reduction")
    (stage,) = reading.reductions
    x, w = factors(stage)
    spread = reading.inlined.get(x.source.name)
    if stage.name != "transposed_convolution" or spread is None or len(w.source.shape) != 4:
        raise NotThisKindError("no transposed convolution")
    load = spread.value.args[1]
    if not (reading.is_input(load.source) and reading.is_input(w.source)):
        raise NotThisKindError("operands that are computed")
    n, oh, ow, o, kh, kw, group_channels = stage.extents
    _, h, width, c = shape_of(load.source)

    def step(axis: int) -> int:
        """Return the dilation: by how much a place of the window moves the place that is read."""
        zero = dict.fromkeys(stage.axes, 0)
        one = {**zero, stage.axes[axis + 3]: 1}
        return reading.one_place(x.indices[axis], zero) - reading.one_place(x.indices[axis], one)

    (sh, first), (sw, begin) = (_stride(reading, load.indices[axis], spread.axes, axis) for axis in (1, 2))
    dh, dw = step(1), step(2)
    top, left = (kh - 1) * dh - first, (kw - 1) * dw - begin
    whole = Window(n, h, width, c, oh, ow, o, kh, kw, sh, sw, dh, dw, top, left, c // group_channels)
    names = reading.names
    product = Product(reading, whole, names.index(load.source.name), names.index(w.source.name), stage).checked()
    parts = [_part(whole, y, z) for y in range(min(sh, oh)) for z in range(min(sw, ow))]
    return Transposed(product, parts)


def _stride(reading: Reading, index: Any, axes: Sequence[str], axis: int) -> tuple[int, int]:
    """Return s and k of an index (y - k) // s."""
    steps = []
    zero = dict.fromkeys(axes, 0)
    previous = reading.one_place(index, zero)
    for place in range(1, 2 * _MOST_STEPS):
        here = reading.one_place(index, {**zero, axes[axis]: place})
        if here != previous:
            steps.append((place, here))
        if len(steps) == 2:
            stride = steps[1][0] - steps[0][0]
            return stride, steps[0][0] - steps[0][1] * stride
        previous = here
    raise NotThisKindError("an index without a stride")


def _part(whole: Window, y: int, z: int) -> tuple[Window, list[int], list[int]]:
    """Return the convolution of the results in the rows y, y + stride and so on, and the columns z and so on."""
    rows, dh, top = _taps(whole.kh, whole.sh, whole.dh, y + whole.top)
    columns, dw, left = _taps(whole.kw, whole.sw, whole.dw, z + whole.left)
    spread = Spread(whole.oh, whole.ow, whole.sh, whole.sw, y, z)
    oh, ow = -(-(whole.oh - y) // whole.sh), -(-(whole.ow - z) // whole.sw)
    return replace(
        whole, oh=oh, ow=ow, kh=len(rows), kw=len(columns), sh=1, sw=1, dh=dh, dw=dw, top=top, left=left, spread=spread,
    ), rows, columns  # fmt: skip


def _taps(size: int, stride: int, dilation: int, offset: int) -> tuple[list[int], int, int]:
    """Return the places of a window that a part reads, backwards, their distance, and its padding in front.

    Result j of the part reads the element j + (offset - place * dilation) / stride, where that is an integer.
    """
    found = [place for place in reversed(range(size)) if (offset - place * dilation) % stride == 0]
    if not found:
        return [], 1, 0
    return found, dilation // gcd(dilation, stride), -((offset - found[0] * dilation) // stride)


def write_transposed(
    w: Writer, what: Transposed, target: Target, buffers: Mapping[str, Buffer], result: Result
) -> None:
    """Write the code; the weights are packed as ``Transposed.pack`` says."""
    place = 0
    for (window, _, _), size in zip(what.parts, what.sizes(target), strict=True):
        product = replace(what.product, window=window)
        if what.by_channel:
            write_by_channel(w, depthwise(product), target, buffers, result, place)
        else:
            tile = choose_tile(window, target, Variant())
            write_convolution(w, product, target, tile, Variant(), buffers, result, place)
        place += size
