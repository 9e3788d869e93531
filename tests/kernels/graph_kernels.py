# SPDX-License-Identifier: Apache-2.0
"""Kernels of graphs, compiled by apache-tvm: matrices of any size, several outputs, several element types.

Rules: as in tvm_kernels.py. Every function takes its inputs, then its outputs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import _build
import tvm
from tvm.script import ir as I
from tvm.script import tirx as T


@I.ir_module
class Layers:
    @T.prim_func
    def dense(x: T.handle, w: T.handle, b: T.handle, y: T.handle):
        m = T.int64()
        n = T.int64()
        k = T.int64()
        X = T.match_buffer(x, (m, k), "float32")
        W = T.match_buffer(w, (n, k), "float32")
        B = T.match_buffer(b, (n,), "float32")
        Y = T.match_buffer(y, (m, n), "float32")
        for i in T.serial(m):
            for j in T.serial(n):
                Y[i, j] = B[j]
                for p in T.serial(k):
                    Y[i, j] = Y[i, j] + X[i, p] * W[j, p]

    @T.prim_func
    def relu(x: T.handle, y: T.handle):
        m = T.int64()
        n = T.int64()
        X = T.match_buffer(x, (m, n), "float32")
        Y = T.match_buffer(y, (m, n), "float32")
        for i in T.serial(m):
            for j in T.serial(n):
                Y[i, j] = T.max(X[i, j], T.float32(0))

    @T.prim_func
    def add(a: T.handle, b: T.handle, c: T.handle):
        m = T.int64()
        n = T.int64()
        A = T.match_buffer(a, (m, n), "float32")
        B = T.match_buffer(b, (m, n), "float32")
        C = T.match_buffer(c, (m, n), "float32")
        for i in T.serial(m):
            for j in T.serial(n):
                C[i, j] = A[i, j] + B[i, j]

    @T.prim_func
    def add_flat(a: T.handle, b: T.handle, c: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n,), "float32")
        B = T.match_buffer(b, (n,), "float32")
        C = T.match_buffer(c, (n,), "float32")
        for i in T.serial(n):
            C[i] = A[i] + B[i]

    @T.prim_func
    def halves(x: T.handle, a: T.handle, b: T.handle):
        m = T.int64()
        n = T.int64()
        X = T.match_buffer(x, (m, n * 2), "float32")
        A = T.match_buffer(a, (m, n), "float32")
        B = T.match_buffer(b, (m, n), "float32")
        for i in T.serial(m):
            for j in T.serial(n):
                A[i, j] = X[i, j]
                B[i, j] = X[i, j + n]

    @T.prim_func
    def round_down(x: T.handle, y: T.handle):
        m = T.int64()
        n = T.int64()
        X = T.match_buffer(x, (m, n), "float32")
        Y = T.match_buffer(y, (m, n), "int32")
        for i in T.serial(m):
            for j in T.serial(n):
                Y[i, j] = T.Cast("int32", T.floor(X[i, j]))


LAYERS = {
    "dense": "(X: float32[m, k], W: float32[n, k], B: float32[n], Y: float32[m, n]): Y = X @ W.T + B",
    "relu": "(X, Y: float32[m, n]): Y = max(X, 0)",
    "add": "(A, B, C: float32[m, n]): C = A + B",
    "add_flat": "(A, B, C: float32[n]): C = A + B; for flatten_data",
    "halves": "(X: float32[m, 2 * n], A, B: float32[m, n]): A, B = X[:, :n], X[:, n:]",
    "round_down": "(X: float32[m, n], Y: int32[m, n]): Y = floor(X)",
}


def build(name: str, outdir: Path) -> _build.Library:
    """Compile the kernels to ``OUTDIR/<name>.so``, and as objects to ``OUTDIR/<name>.tar``."""
    executable = tvm.compile(Layers, target="llvm")
    executable.export_library(str(outdir / f"{name}.tar"))
    executable.export_library(str(outdir / f"{name}.so"), options=[_build.LAZY], cc=_build.CXX)
    return _build.Library(f"{name}.so", LAYERS)


if __name__ == "__main__":
    _build.main({"layers": build}, sys.argv[1:])
