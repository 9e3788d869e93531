# SPDX-License-Identifier: Apache-2.0
"""Convolutions and products of 8-bit integers with constant weights, summed up in 32 bits.

Register tiles are those of ``_tiles``. In each step a number of neighbouring channels is multiplied at once, as the
machine has it: four bytes by VNNI's ``vpdpbusd``, two 16-bit integers by ``vpmaddwd``, else one. Its bytes are loaded
as one word, the same for all lanes; the weights of a lane lie side by side. What is left at the end of a row of the
window is put together byte by byte, so that nothing is read past its end.

``vpdpbusd`` multiplies unsigned with signed bytes. Signed input gets 128 added (its highest bit is turned), and what
that adds to the sums, 128 times the sum of the weights, is subtracted by beginning with it: the packed weights of a
block begin with a row of what the sums begin with.

Padding is a step in front, since its value is the zero point; so there are no borders here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx
from tvm.target import codegen

from portcall.compile._products import Product, Window, read_convolution, read_product
from portcall.compile._reading import NotThisKindError, Reading, type_of, walk
from portcall.compile._registers import Block, Pixels, Sums, for_results
from portcall.compile._target import Target
from portcall.compile._tiles import Columns, best_tile
from portcall.compile._writer import Buffer, Expr, Index, Writer, flat_buffer

Array = Any
_TOP_BITS = np.int32(np.uint32(0x80808080).astype("int32"))
_SHIFT = 128


@dataclass(frozen=True)
class _Dot:
    """A multiply-add of the machine.

    Attributes:
        group: how many channels it multiplies at once.
        intrinsic: LLVM's name; empty for a plain multiplication.
    """

    group: int
    intrinsic: str = ""


def find_dot(target: Target, weights: str) -> _Dot:
    """Return what a machine multiplies with."""

    def has(feature: str) -> bool:
        return bool(codegen.llvm_cpu_has_features(feature, target.tvm))

    if target.machine == "x86_64" and weights == "int8":
        if target.lanes == 16 and has("avx512vnni"):
            return _Dot(4, "llvm.x86.avx512.vpdpbusd.512")
        if target.lanes == 8 and (has("avxvnni") or (has("avx512vnni") and has("avx512vl"))):
            return _Dot(4, "llvm.x86.avx512.vpdpbusd.256")
    if target.machine == "x86_64":
        names = {16: "llvm.x86.avx512.pmaddw.d.512", 8: "llvm.x86.avx2.pmadd.wd", 4: "llvm.x86.sse2.pmadd.wd"}
        if target.lanes != 16 or has("avx512bw"):
            return _Dot(2, names[target.lanes])
    return _Dot(1)


def read_integers(reading: Reading) -> Product:
    """Read a function that is a product of bytes with constant integers, with what follows it.

    Raises:
        NotThisKindError: it is something else.
    """
    for read in (read_convolution, read_product):
        try:
            product = read(reading)
            break
        except NotThisKindError:
            continue
    else:
        raise NotThisKindError("no product")
    data, weights = (str(reading.params[k].dtype) for k in (product.data, product.weights))
    if str(product.stage.buffer.dtype) != "int32" or data not in ("int8", "uint8") or weights not in ("int8", "int16"):
        raise NotThisKindError("no product of bytes")
    return product


@dataclass(frozen=True)
class Plan:
    """How a product is computed.

    Attributes:
        rows: pixels of a tile.
        signed: the input has signed bytes.
        whole_rows: a row of the window is one row of bytes; else each of its pixels is.
    """

    window: Window
    dot: _Dot
    rows: int
    columns: Columns
    signed: bool
    whole_rows: bool
    weights_outside: bool

    @property
    def runs(self) -> tuple[int, int]:
        """How many rows of bytes there are, and how many bytes each has."""
        window = self.window
        if self.whole_rows:
            return window.kh, window.kw * window.group_channels
        return window.kh * window.kw, window.group_channels

    @property
    def steps(self) -> int:
        """The multiply-adds of a row of bytes."""
        return -(-self.runs[1] // self.dot.group)

    @property
    def dtype(self) -> str:
        return "int32" if self.dot.group > 1 else "int16"

    @property
    def block_rows(self) -> int:
        """The rows of vectors of a block of weights: one to begin with, then one for each step."""
        return (self.dot.group > 1) + self.runs[0] * self.steps

    @property
    def size(self) -> int:
        return self.window.groups * self.columns.all_vectors * self.columns.lanes * self.block_rows

    def pack(self, weights: Array) -> Array:
        """Return weights HWIO, or a matrix [steps, columns], as the kernel wants them, flat."""
        count, length = self.runs
        group = self.dot.group
        rows = weights.reshape(count, length, weights.shape[-1]).astype("int32")
        rows = np.pad(rows, ((0, 0), (0, self.steps * group - length), (0, 0)))
        parts: list[Array] = []
        for number in range(self.window.groups):
            width = self.columns.count
            of = rows[:, :, number * width : (number + 1) * width].reshape(count * self.steps, group, width)
            if group == 1:
                parts += self.columns.pack(of[:, 0].astype("int16"))
                continue
            kind = "int8" if group == 4 else "int16"
            words = np.ascontiguousarray(of.transpose(0, 2, 1).astype(kind)).view("int32")[:, :, 0]
            first = -_SHIFT * of.sum(axis=(0, 1)) if self.signed and group == 4 else np.zeros(width)
            parts += self.columns.pack(np.concatenate([first.astype("int32")[None], words]))
        return np.ascontiguousarray(np.concatenate(parts))


def plan_integers(product: Product, target: Target) -> Plan:
    window, reading = product.window, product.reading
    dot = find_dot(target, str(reading.params[product.weights].dtype))
    whole = window.groups == 1 and window.dw == 1
    width = window.o // window.groups
    pixels = window.n * window.oh * window.ow if window.pointwise else window.ow
    rows, vectors = best_tile(pixels, width, target)
    columns = Columns(width, vectors, target.lanes)
    nbytes = window.kh * window.kw * window.group_channels * window.o
    signed = str(reading.params[product.data].dtype) == "int8"
    return Plan(window, dot, rows, columns, signed, whole, nbytes > target.l2_nbytes // 4)


def write_integers(product: Product, plan: Plan, parallel: bool) -> Any:
    """Return the kernel."""
    w, reading = Writer(parallel), product.reading
    weights = reading.names[product.weights]
    buffers = {**reading.buffers(), weights: flat_buffer(weights, (plan.size,), plan.dtype)}
    *inputs, output = buffers.values()
    _Kernel(w, product, plan, buffers, output).write()
    return w.function(inputs, [output])


def _is_beyond_tvm(value: Expr) -> bool:
    """Tell whether TVM makes no vectors of a value: it visits the factors of a product twice, and refuses the second
    time names within a rounding where both are rounded, such as y * round(sigmoid(y)) with y that was rounded.
    """

    def roundings(e: Expr) -> list[Expr]:
        return [part for part in walk(e) if type(part).__name__ == "Call" and part.op.name == "tirx.nearbyint"]

    def names(e: Expr) -> bool:
        return any(type(part).__name__ == "Let" for each in roundings(e) for part in walk(each))

    products = [part for part in walk(value) if type(part).__name__ == "Mul" and type_of(part) == "float32"]
    return any(roundings(e.a) and roundings(e.b) and (names(e.a) or names(e.b)) for e in products)


class _Kernel:
    def __init__(self, w: Writer, product: Product, plan: Plan, buffers: Mapping[str, Buffer], output: Buffer) -> None:
        self.w, self.product, self.plan, self.buffers, self.output = w, product, plan, buffers, output
        names = product.reading.names
        self.data, self.weights = buffers[names[product.data]], buffers[names[product.weights]]
        self.lanes = plan.columns.lanes

    def write(self) -> None:
        plan, window = self.plan, self.plan.window
        for_results(
            self.w, window, plan.columns, plan.rows, plan.block_rows, self._tile,
            one_row=window.pointwise, weights_outside=plan.weights_outside and not self.w.parallel,
        )  # fmt: skip

    def _tile(self, group: Index, block: Block, pixels: Pixels) -> None:
        w, weights = self.w, self.weights
        start = (lambda v, lane: weights[block.weights + v * self.lanes + lane]) if self.plan.dot.group > 1 else None
        sums = Sums(w, pixels.segment.rows, block, "int32", start)
        self._sum(group, block, pixels, sums.rows)

        def store(t: int, channel: Index, total: Expr) -> None:
            value = self.product.value(self.buffers, total, pixels.place(t, channel))
            w.store(self.output, (pixels.first + t) * self.plan.window.o + channel, value)

        if not _is_beyond_tvm(self.product.value(self.buffers, tirx.Var("total", "int32"), pixels.place(0, 0))):
            sums.each(store)
            return
        columns = block.lanes * (block.vectors - 1) + block.last_lanes
        kept = w.scratch(pixels.segment.rows * columns, "int32")
        sums.each(lambda t, channel, total: w.store(kept, t * columns + channel - block.column, total))
        for t in range(pixels.segment.rows):
            with w.loop(columns) as column:  # LLVM makes vectors of it
                store(t, block.column + column, kept[t * columns + column])

    def _sum(self, group: Index, block: Block, pixels: Pixels, sums: list[Buffer]) -> None:
        w, plan, window = self.w, self.plan, self.plan.window
        full, rest = divmod(plan.runs[1], plan.dot.group)
        begin = block.weights + (block.width if plan.dot.group > 1 else 0)
        with w.loop(window.kh) as ky, w.loop(1 if plan.whole_rows else window.kw) as kx:
            run = ky if plan.whole_rows else ky * window.kw + kx
            row = (pixels.n * window.h + pixels.oh * window.sh + ky * window.dh) * window.w + kx * window.dw

            def byte(t: int, k: Index) -> Index:
                return (row + (pixels.ow + t) * window.sw) * window.c + group * window.group_channels + k

            if full:
                with w.loop(full) as step:
                    here = begin + (run * plan.steps + step) * block.width
                    self._multiply(sums, block, here, lambda t: self._word(byte(t, step * plan.dot.group)))
            if rest:
                here = begin + (run * plan.steps + full) * block.width
                places = [full * plan.dot.group + k for k in range(rest)]
                self._multiply(sums, block, here, lambda t: self._packed([byte(t, k) for k in places]))

    def _multiply(self, sums: list[Buffer], block: Block, at: Index, word: Callable[[int], Expr]) -> None:
        """Add the product of a word for each row with the weights at a place."""
        w, lanes, dot = self.w, self.lanes, self.plan.dot
        one = tirx.const(1, "int32")
        for t, row in enumerate(sums):
            if not dot.intrinsic:
                with w.unrolled(block.vectors) as v, w.vector(lanes) as lane:
                    weight = tirx.Cast("int32", self.weights[at + v * lanes + lane])
                    w.store(row, (v, lane), row[v, lane] + word(t) * weight)
                continue
            with w.unrolled(block.vectors) as v:
                place = tirx.Ramp(tirx.const(0, "int32"), one, lanes)
                weight = self.weights[tirx.Ramp(at + v * lanes, one, lanes)]
                x = tirx.Broadcast(word(t), lanes)
                w.store(row, (v, place), _multiply_add(dot, row[v, place], x, weight, lanes))

    def _word(self, at: Index) -> Expr:
        """Return neighbouring bytes as one word."""
        group = self.plan.dot.group
        if group == 1:
            return tirx.Cast("int32", self.data[at])
        if group == 2:
            return self._packed([at, at + 1])
        loaded = self.data[tirx.Ramp(at, tirx.const(1, "int32"), 4)]
        word = tirx.reinterpret("int32", loaded)
        return tirx.bitwise_xor(word, tirx.const(int(_TOP_BITS), "int32")) if self.plan.signed else word

    def _packed(self, places: list[Index]) -> Expr:
        """Return some bytes as one word, put together one by one."""
        bits = 32 // self.plan.dot.group
        add = _SHIFT if self.plan.signed and bits == 8 else 0
        total: Expr = tirx.const(0, "int32")
        for k, place in enumerate(places):
            value = tirx.Cast("int32", self.data[place]) + tirx.const(add, "int32")
            if bits == 16 and k == 0 and len(places) > 1:
                value = tirx.bitwise_and(value, tirx.const(0xFFFF, "int32"))
            total = total + (tirx.shift_left(value, tirx.const(k * bits, "int32")) if k else value)
        return total


def _multiply_add(dot: _Dot, total: Expr, x: Expr, weight: Expr, lanes: int) -> Expr:
    if dot.group == 4:
        bytes_of = f"int8x{lanes * 4}"
        parts = (tirx.reinterpret(bytes_of, x), tirx.reinterpret(bytes_of, weight))
        return tirx.call_llvm_pure_intrin(f"int32x{lanes}", dot.intrinsic, total, *parts)
    pairs = f"int16x{lanes * 2}"
    parts = (tirx.reinterpret(pairs, x), tirx.reinterpret(pairs, weight))
    return total + tirx.call_llvm_pure_intrin(f"int32x{lanes}", dot.intrinsic, *parts)
