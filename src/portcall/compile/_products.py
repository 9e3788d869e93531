# SPDX-License-Identifier: Apache-2.0
"""Read convolutions, and products with a constant matrix, with what follows them, as functions of TVM's have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from tvm import tirx

from portcall.compile._reading import NotThisKindError, Reading, Stage, are_same, flat_index, is_one
from portcall.compile._writer import Buffer, Expr, Index, at_least, at_most, floordiv, floormod

_LOWEST = float(np.finfo("float32").min)  # TVM pads with it where -inf would be right
_WIDE = 11  # columns of a window that get their own code


@dataclass(frozen=True)
class Spread:
    """Where the results of a window lie among those of several: in each ``sh``-th row from ``first``, and so on.

    Attributes:
        h, w: the rows and columns of all results.
    """

    h: int
    w: int
    sh: int
    sw: int
    first: int
    left: int


@dataclass(frozen=True)
class Window:
    """How a window moves over a picture; all numbers are in elements.

    Attributes:
        n, h, w, c: the input, in the order NHWC.
        oh, ow, o: the output.
        kh, kw: the window.
        sh, sw, dh, dw: strides and dilations.
        top, left: padding in front.
        groups: each reads its own channels.
        spread: where the results lie, if not one after the other.
        turned: rows and columns stand for each other in the function.
    """

    n: int
    h: int
    w: int
    c: int
    oh: int
    ow: int
    o: int
    kh: int
    kw: int
    sh: int = 1
    sw: int = 1
    dh: int = 1
    dw: int = 1
    top: int = 0
    left: int = 0
    groups: int = 1
    spread: Spread | None = None
    turned: bool = False

    def lying(self) -> Window:
        """Return the window of a picture of one column as that of one row, which lies in memory alike.

        Tiles are parts of rows.
        """
        if not self.w == self.ow == self.kw == 1 or self.left or self.oh == 1:
            return self
        return replace(
            self, h=1, w=self.h, oh=1, ow=self.oh, kh=1, kw=self.kh, sh=1, sw=self.sh, dh=1, dw=self.dh,
            top=0, left=self.top, turned=True,
        )  # fmt: skip

    @property
    def pointwise(self) -> bool:
        """Whether output and input pixels are the same ones."""
        same = (self.h, self.w) == (self.oh, self.ow) and self.top == self.left == 0 and self.spread is None
        return same and self.kh == self.kw == self.sh == self.sw == 1

    @property
    def group_channels(self) -> int:
        return self.c // self.groups

    @property
    def wide(self) -> bool:
        """Whether the columns of the window are a loop; then no column may lie outside of the picture."""
        return self.kw > _WIDE

    @property
    def span(self) -> int:
        """The columns of the picture that are read, padding included."""
        return (self.ow - 1) * self.sw + (self.kw - 1) * self.dw + 1

    @property
    def flops(self) -> int:
        return 2 * self.n * self.oh * self.ow * self.o * self.kh * self.kw * self.group_channels

    @property
    def weights_nbytes(self) -> int:
        return 4 * self.kh * self.kw * self.group_channels * self.o

    def taps(self, begin: int, rows: int) -> tuple[tuple[int, int], ...]:
        """Return, for each column of the window, the outputs of a tile whose input lies inside of the picture."""
        found = []
        for column in range(self.kw):
            first = -((column * self.dw - self.left) // self.sw) - begin  # rounded up
            last = (self.w - 1 - column * self.dw + self.left) // self.sw - begin
            inside = max(first, 0), min(last + 1, rows)
            found.append(inside if inside[0] < inside[1] else (0, 0))
        return tuple(found)

    def place(self, n: Index, oh: Index, ow: Index, channel: Index) -> Place:
        """Return where a result is."""
        h, w, height, width = oh, ow, self.oh, self.ow
        if self.spread is not None:
            h, w = oh * self.spread.sh + self.spread.first, ow * self.spread.sw + self.spread.left
            height, width = self.spread.h, self.spread.w
        return self.result((n * height + h) * width + w, n, h, w, channel)

    def result(self, pixel: Index, n: Index, h: Index, w: Index, channel: Index) -> Place:
        """Return where a result is in the function, given where it is here."""
        return Place(pixel, n, w, h, channel) if self.turned else Place(pixel, n, h, w, channel)

    def rows_inside(self, oh: Index) -> tuple[Index, Index]:
        """Return the first row of the window that lies inside of the picture, and the one after the last."""
        first: Index = 0
        if self.top:
            first = at_least(floordiv(self.top + self.dh - 1 - oh * self.sh, self.dh), 0)
        last: Index = self.kh
        if (self.oh - 1) * self.sh + (self.kh - 1) * self.dh - self.top >= self.h:
            last = at_most(floordiv(self.h + self.top + self.dh - 1 - oh * self.sh, self.dh), self.kh)
        return first, last


@dataclass(frozen=True)
class Place:
    """Where a result is: the pixel, counted through the whole output, its parts, and the channel."""

    pixel: Index
    n: Index
    h: Index
    w: Index
    channel: Index


@dataclass
class Product:
    """A convolution or matrix product as it stands in a function of TVM's.

    Attributes:
        reading: the function.
        window: its numbers.
        data, weights: the operands, as numbers of its parameters.
        stage: the reduction.
    """

    reading: Reading
    window: Window
    data: int
    weights: int
    stage: Stage

    def value(self, buffers: Mapping[str, Buffer], total: Expr, place: Place) -> Expr:
        """Return what is stored for a sum: everything after the reduction, with the parameters in flat ``buffers``."""
        picture = self.stage.kinds == "SSSSRRR"
        return epilogue(self.reading, self.stage, buffers, total, place, picture=picture)

    def checked(self) -> Product:
        """Return the product itself.

        Raises:
            NotThisKindError: what follows the sums cannot be computed from the sum of its place alone.
        """
        place = Place(*(tirx.Var(name, "int32") for name in ("pixel", "n", "h", "w", "channel")))
        self.value(self.reading.buffers(), tirx.Var("total", str(self.stage.buffer.dtype)), place)
        return self


def epilogue(
    reading: Reading, stage: Stage, buffers: Mapping[str, Buffer], total: Expr, place: Place, *, picture: bool = True
) -> Expr:
    """Return the value of a function's result where its only reduction gave ``total``.

    The result has the reduction's shape, with axes of one element more or less. Of a picture (NHWC) the place says row
    and column; else its pixel counts through all axes but the last.
    """
    result, channels = reading.result, stage.extents[stage.kinds.rindex("S")]
    if stage.buffer.name == result.name:
        return total
    indices = _unravel(reading.shape(result), place, channels, picture)

    def load(buffer: Buffer, at: list[Index]) -> Expr | None:
        if buffer.name == stage.buffer.name:
            if not _same_place(reading.shape(buffer), at, reading.shape(result), indices):
                raise NotThisKindError("the result is read at another place")
            return total
        if reading.is_input(buffer):
            in_place = all(a is b for a, b in zip(at, indices, strict=False))
            if in_place and are_same(reading.shape(buffer), reading.shape(result)):
                return buffers[buffer.name][place.pixel * channels + place.channel]
            return buffers[buffer.name][flat_index(buffer, at)]
        return None

    return reading.value_at(result, indices, load)


def _unravel(shape: Sequence[int], place: Place, channels: int, picture: bool) -> list[Index]:
    """Return the indices of a place in a result of NHWC, or one of other axes whose last one has the channels."""
    if not shape or shape[-1] != channels:
        raise NotThisKindError("the result has another last axis")
    if picture and len(shape) == 4:
        return [place.n, place.h, place.w, place.channel]
    return [*unravel(place.pixel, shape[:-1]), place.channel]


def unravel(number: Index, extents: Sequence[int]) -> list[Index]:
    """Return the indices of an element, given its number in a row of all."""
    indices: list[Index] = []
    for extent in reversed(extents):
        indices.append(floormod(number, extent))
        number = floordiv(number, extent)
    return indices[::-1]


def _same_place(shape: Sequence[Any], at: list[Index], other: Sequence[Any], indices: list[Index]) -> bool:
    """Tell whether two places are the same one of equal shapes, axes of one element apart.

    A Slice from the first element reads the same place of a larger tensor, which does not fit into the result.
    """
    mine = [(index, extent) for index, extent in zip(at, shape, strict=True) if not is_one(extent)]
    others = [(index, extent) for index, extent in zip(indices, other, strict=True) if not is_one(extent)]
    same = are_same([extent for _, extent in mine], [extent for _, extent in others])
    return same and all(a is b for (a, _), (b, _) in zip(mine, others, strict=True))


def read_convolution(reading: Reading) -> Product:
    """Read a function that is a convolution of NHWC by HWIO with what follows it.

    Raises:
        NotThisKindError: it is something else.
    """
    product = convolution_of(reading)
    return replace(product, window=product.window.lying()).checked()


def convolution_of(reading: Reading) -> Product:
    """Return the convolution in a function, whatever its extents are and whatever follows it; see above."""
    stage = _only_reduction(reading, "SSSSRRR")
    x, w = factors(stage)
    names = stage.axes

    def at(index: Any, axis: int | None = None, value: int = 1) -> int:
        return reading.one_place(index, {name: value if k == axis else 0 for k, name in enumerate(names)})

    n, oh, ow, o, kh, kw, group_channels = stage.extents
    if not all(isinstance(extent, int) for extent in stage.extents[3:]):
        raise NotThisKindError("channels or a window that are not known")
    if len(x.indices) != 4 or len(w.indices) != 4:
        raise NotThisKindError("operands of other ranks")
    if [at(w.indices[0], 4), at(w.indices[1], 5), at(w.indices[2], 6), at(w.indices[3], 3)] != [1, 1, 1, 1]:
        raise NotThisKindError("weights in another order")
    if at(x.indices[3], 6) - at(x.indices[3]) != 1 or at(x.indices[0], 0) != 1:
        raise NotThisKindError("data in another order")
    groups = _groups(lambda channel: at(x.indices[3], 3, channel), o, group_channels)
    offsets = [at(index) for index in x.indices]
    if any(offsets) or min(at(x.indices[1], 4), at(x.indices[2], 5)) < 0:
        raise NotThisKindError("a window that is read backwards")
    source, behind = behind_padding(reading, x.source, 0.0)
    offsets = [a + b for a, b in zip(offsets, behind, strict=True)]
    if not (reading.is_input(source) and reading.is_input(w.source)) or offsets[0] or offsets[3]:
        raise NotThisKindError("operands that are computed")
    _, h, width, c = reading.shape(source)
    window = Window(
        n, h, width, c, oh, ow, o, kh, kw, at(x.indices[1], 1), at(x.indices[2], 2), at(x.indices[1], 4),
        at(x.indices[2], 5), -offsets[1], -offsets[2], groups,
    )  # fmt: skip
    if c != group_channels * groups:
        raise NotThisKindError("channels that are left out")
    data, weights = (reading.names.index(buffer.name) for buffer in (source, w.source))
    return Product(reading, window, data, weights, stage)


def read_product(reading: Reading) -> Product:
    """Read a function that is the product of rows with a matrix [channels, columns], with what follows it.

    Raises:
        NotThisKindError: it is something else.
    """
    return product_of(reading).checked()


def product_of(reading: Reading) -> Product:
    """Return the product in a function, whatever its extents in front are and whatever follows it; see above."""
    stage, x, w, window = rows_by_matrix(reading)
    if [str(index) for index in w.indices] != [stage.axes[-1], stage.axes[-2]]:
        raise NotThisKindError("no matrix of two axes on the right")
    if not reading.is_input(w.source) or not all(isinstance(extent, int) for extent in stage.extents[-2:]):
        raise NotThisKindError("operands that are computed, or not known")
    return Product(reading, window, reading.names.index(x.source.name), reading.names.index(w.source.name), stage)


def rows_by_matrix(reading: Reading) -> tuple[Stage, Any, Any, Window]:
    """Return the only reduction of a function, which is a product of rows, its two loads, and its numbers.

    Raises:
        NotThisKindError: it is something else.
    """
    stage = next(iter(reading.reductions), None)
    if stage is None or len(reading.reductions) != 1 or stage.kinds.strip("S") != "R" or len(stage.kinds) < 3:
        raise NotThisKindError("no matrix product")
    x, w = factors(stage)
    if [str(index) for index in x.indices] != [*stage.axes[:-2], stage.axes[-1]]:
        raise NotThisKindError("rows in another order")
    if not reading.is_input(x.source):
        raise NotThisKindError("rows that are computed")
    rows = prod(stage.extents[:-2])
    columns, channels = stage.extents[-2:]
    return stage, x, w, Window(1, 1, rows, channels, 1, rows, columns, 1, 1)


def _only_reduction(reading: Reading, kinds: str) -> Stage:
    if len(reading.reductions) != 1 or reading.reductions[0].kinds != kinds:
        raise NotThisKindError("another reduction")
    return reading.reductions[0]


def factors(stage: Stage) -> tuple[Any, Any]:
    """Return the two loads of a sum of products, also of narrower numbers than the sum has."""
    value = stage.value
    if type(value).__name__ != "Add" or type(value.b).__name__ != "Mul":
        raise NotThisKindError("no sum of products")
    x, w = (factor.value if type(factor).__name__ == "Cast" else factor for factor in (value.b.a, value.b.b))
    if type(x).__name__ != "TensorLoad" or type(w).__name__ != "TensorLoad":
        raise NotThisKindError("factors that are computed")
    return x, w


def is_product(function: Any) -> bool:
    """Tell whether a function sums up products of two tensors."""
    try:
        parts = [factors(stage) for stage in Reading(function).reductions]
    except NotThisKindError:
        return False
    return any(x.source.name != w.source.name for x, w in parts)


def _groups(channel_of: Callable[[int], int], outputs: int, group_channels: int) -> int:
    groups = channel_of(outputs - 1) // group_channels + 1
    width = outputs // groups
    step = max(1, width // 2)
    if outputs % groups or any(channel_of(o) != o // width * group_channels for o in range(0, outputs, step)):
        raise NotThisKindError("groups of several sizes")
    return groups


def behind_padding(reading: Reading, buffer: Buffer, fill: float) -> tuple[Buffer, list[int]]:
    """Return what is padded, and where its first element lies; any other buffer is returned as it is."""
    stage = reading.inlined.get(buffer.name)
    if stage is None or reading.is_input(buffer):
        return buffer, [0] * len(buffer.shape)
    value = stage.value
    if type(value).__name__ == "Call" and str(value.op.name).endswith("if_then_else"):
        other = value.args[2]
        known = type(other).__name__ in ("FloatImm", "IntImm")
        if not known or float(other.value) not in (fill, max(fill, _LOWEST)):
            raise NotThisKindError("padding with another value")
        value = value.args[1]
    if type(value).__name__ != "TensorLoad":
        raise NotThisKindError("an operand that is computed")
    if len(value.indices) != len(stage.axes):
        raise NotThisKindError("a view of another rank")
    zero = dict.fromkeys(stage.axes, 0)
    offsets = [reading.one_place(index, zero) for index in value.indices]
    for k, index in enumerate(value.indices):
        step = reading.one_place(index, {**zero, stage.axes[k]: 1}) - offsets[k]
        if not is_one(stage.extents[k]) and step != 1:
            raise NotThisKindError("padding that moves")
    return value.source, offsets
