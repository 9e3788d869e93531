# SPDX-License-Identifier: Apache-2.0
"""Compile kernels for WebGPU with apache-tvm, their host code for wasm32: ``gpu_kernels.py FOLDER``. Prints ``done``.

Writes ``gpu.wasm``, a library, and ``gpu_bundle.wasm``: -(x * 2 + w), w being a parameter, of 100 numbers.
"""

import sys
from pathlib import Path

import numpy as np
import tvm
from tvm.script import ir as I
from tvm.script import tirx as T

from portcall.graph import GraphBuilder, export_bundle
from portcall.toolchain import create_shared


@I.ir_module
class Kernels:
    @T.prim_func
    def scale_add(a: T.handle, b: T.handle, c: T.handle, factor: T.float32, first: T.int32):
        """From `first` on, c = a * factor + b, in groups of 64 threads."""
        n = T.int32()
        A = T.match_buffer(a, (n,), "float32")
        B = T.match_buffer(b, (n,), "float32")
        C = T.match_buffer(c, (n,), "float32")
        for i in T.thread_binding((n + 63) // 64, thread="blockIdx.x"):
            for j in T.thread_binding(64, thread="threadIdx.x"):
                if i * 64 + j >= first and i * 64 + j < n:
                    C[i * 64 + j] = A[i * 64 + j] * factor + B[i * 64 + j]

    @T.prim_func
    def double_add(a: T.handle, b: T.handle, c: T.handle):
        A = T.match_buffer(a, (100,), "float32")
        B = T.match_buffer(b, (100,), "float32")
        C = T.match_buffer(c, (100,), "float32")
        for i in T.thread_binding(100, thread="blockIdx.x"):
            C[i] = A[i] * T.float32(2) + B[i]

    @T.prim_func
    def negate(a: T.handle, b: T.handle):
        """b = -a, in groups of one thread."""
        n = T.int32()
        A = T.match_buffer(a, (n,), "float32")
        B = T.match_buffer(b, (n,), "float32")
        for i in T.thread_binding(n, thread="blockIdx.x"):
            B[i] = -A[i]


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    host = {"kind": "llvm", "mtriple": "wasm32-unknown-unknown-wasm", "mattr": ["+simd128"]}
    built = tvm.tirx.build(Kernels, target=tvm.target.Target({"kind": "webgpu", "host": host}))
    built.export_library(str(folder / "gpu.tar"))
    library = create_shared(folder / "gpu.tar", folder / "gpu.wasm", target="wasm32")
    builder = GraphBuilder()
    x = builder.input("x", (100,))
    w = builder.param("w", np.linspace(-1, 0, 100, dtype="float32"))
    sum_ = builder.call("double_add", [x, w], (100,))
    builder.output(builder.call("negate", [sum_], (100,), name="y"))
    export_bundle(folder / "gpu_bundle.wasm", builder.graph(), library, builder.params)
    print("done")
