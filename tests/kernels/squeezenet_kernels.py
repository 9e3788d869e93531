# SPDX-License-Identifier: Apache-2.0
"""A kernel for each layer shape of squeezenet, compiled by apache-tvm: vectors of channels, rows in parallel.

Rules: as in tvm_kernels.py. Every function takes its inputs, then its output; onnx_layers.py says which there are.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import _build
import tvm
from onnx_layers import Kernel, light_model, read
from tvm import s_tir, te

LANES = 16
TILE = 13  # pixels of a row whose sums are kept in registers
TARGET = "llvm"


def conv(kernel: Kernel) -> Any:
    data, weights, bias = (te.placeholder(s, name=n) for s, n in zip(kernel.inputs, "xwb", strict=True))
    padded = data
    if pad := kernel.padding:
        n, h, w, c = kernel.inputs[0]
        padded = te.compute(
            (n, h + 2 * pad, w + 2 * pad, c),
            lambda n, y, x, c: tvm.tirx.if_then_else(
                tvm.tirx.all(y >= pad, y < h + pad, x >= pad, x < w + pad),
                data[n, y - pad, x - pad, c],
                tvm.tirx.const(0, "float32"),
            ),
            name="padded",
        )
    dy, dx = (te.reduce_axis((0, kernel.window)) for _ in range(2))
    c = te.reduce_axis((0, kernel.inputs[0][3]))
    stride = kernel.stride
    summed = te.compute(
        kernel.output,
        lambda n, y, x, o: te.sum(
            padded[n, y * stride + dy, x * stride + dx, c] * weights[dy, dx, c, o], axis=[dy, dx, c]
        ),
        name="summed",
    )
    out = te.compute(kernel.output, lambda n, y, x, o: summed[n, y, x, o] + bias[o], name="out")
    sch = s_tir.Schedule(te.create_prim_func([data, weights, bias, out]))
    block, tail = sch.get_sblock("summed"), sch.get_sblock("out")
    n, y, x, o, *inner = sch.get_loops(block)
    outer, lanes = sch.split(o, [None, lanes_of(kernel.output[3])])
    far, near = sch.split(x, [None, next(k for k in range(TILE, 0, -1) if kernel.output[2] % k == 0)])
    sch.reorder(n, y, far, outer, *inner, near, lanes)
    sch.reverse_compute_at(tail, outer)
    sch.set_scope(block, 0, "local")
    sch.vectorize(lanes)
    sch.unroll(near)
    sch.vectorize(sch.get_loops(tail)[-1])
    sch.parallel(sch.fuse(n, y))
    sch.decompose_reduction(block, inner[0])
    if kernel.padding:
        spread(sch, sch.get_sblock("padded"), kernel.inputs[0][3])
    return sch.mod["main"]


def max_pool(kernel: Kernel) -> Any:
    data = te.placeholder(kernel.inputs[0], name="x")
    dy, dx = (te.reduce_axis((0, kernel.window)) for _ in range(2))
    s = kernel.stride
    out = te.compute(
        kernel.output, lambda n, y, x, c: te.max(data[n, y * s + dy, x * s + dx, c], axis=[dy, dx]), name="out"
    )
    return spread_all([data, out])


def average(kernel: Kernel) -> Any:
    _, h, w, _ = kernel.inputs[0]
    data = te.placeholder(kernel.inputs[0], name="x")
    dy, dx = te.reduce_axis((0, h)), te.reduce_axis((0, w))
    summed = te.compute(kernel.output, lambda n, y, x, c: te.sum(data[n, dy, dx, c], axis=[dy, dx]), name="summed")
    out = te.compute(kernel.output, lambda n, y, x, c: summed[n, y, x, c] / float(h * w), name="out")
    return te.create_prim_func([data, out])


def softmax(kernel: Kernel) -> Any:
    rows, columns = kernel.output
    data = te.placeholder(kernel.output, name="x")
    k = te.reduce_axis((0, columns))
    largest = te.compute((rows,), lambda i: te.max(data[i, k], axis=k))
    powers = te.compute(kernel.output, lambda i, j: te.exp(data[i, j] - largest[i]))
    k = te.reduce_axis((0, columns))
    total = te.compute((rows,), lambda i: te.sum(powers[i, k], axis=k))
    return te.create_prim_func([data, te.compute(kernel.output, lambda i, j: powers[i, j] / total[i], name="out")])


def relu(kernel: Kernel) -> Any:
    data = te.placeholder(kernel.output, name="x")
    zero = tvm.tirx.const(0, "float32")
    return spread_all([data, te.compute(kernel.output, lambda *i: te.max(data[i], zero), name="out")])


def concat(kernel: Kernel) -> Any:
    left, right = (te.placeholder(shape, name=name) for shape, name in zip(kernel.inputs, "ab", strict=True))
    first = kernel.inputs[0][3]
    out = te.compute(
        kernel.output,
        lambda n, y, x, c: tvm.tirx.if_then_else(c < first, left[n, y, x, c], right[n, y, x, c - first]),
        name="out",
    )
    return te.create_prim_func([left, right, out])


def to_channels_last(kernel: Kernel) -> Any:
    data = te.placeholder(kernel.inputs[0], name="x")
    return te.create_prim_func([data, te.compute(kernel.output, lambda n, y, x, c: data[n, c, y, x], name="out")])


def spread_all(tensors: list[Any]) -> Any:
    sch = s_tir.Schedule(te.create_prim_func(tensors))
    spread(sch, sch.get_sblock("out"), int(tensors[-1].shape[3]))
    return sch.mod["main"]


def spread(sch: Any, block: Any, channels: int) -> None:
    """Rows in parallel, vectors of channels."""
    n, y, _, c, *inner = sch.get_loops(block)
    outer, lanes = sch.split(c, [None, lanes_of(channels)])
    if inner:
        sch.reorder(outer, *inner, lanes)
    sch.vectorize(lanes)
    sch.parallel(sch.fuse(n, y))
    if inner:
        sch.decompose_reduction(block, inner[0])


def lanes_of(channels: int) -> int:
    return next(lanes for lanes in (LANES, LANES // 2, 1) if channels % lanes == 0)


KINDS = {f.__name__: f for f in (conv, max_pool, average, softmax, relu, concat, to_channels_last)}


def build(name: str, outdir: Path) -> _build.Library:
    """Compile the kernels to ``OUTDIR/<name>.so``."""
    kernels = {layer.kernel.name: layer.kernel for layer in read(light_model(name)).layers if layer.kernel}
    functions = {key: KINDS[k.kind](k).with_attr("global_symbol", key) for key, k in kernels.items()}
    executable = tvm.compile(tvm.IRModule(functions), target=TARGET)
    executable.export_library(str(outdir / f"{name}.so"), options=[_build.LAZY], cc=_build.CXX)
    return _build.Library(f"{name}.so", {key: f"{k.inputs} -> {k.output}" for key, k in kernels.items()})


if __name__ == "__main__":
    _build.main({"squeezenet": build}, sys.argv[1:])
