# SPDX-License-Identifier: Apache-2.0
"""Libraries with kernels for devices, compiled by apache-tvm: host code and a module of the device's kind inside.

Run as ``python device_kernels.py OUTDIR [NAME...]``, in a process of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import _build
import tvm
from tvm.s_tir.backend.adreno.pipeline import default_tir_pipeline
from tvm.script import ir as I
from tvm.script import tirx as T
from tvm.target import Target
from tvm.tirx import compilation_pipeline

FUNCTIONS = {
    "add": "(A: float32[n], B: float32[n], C: float32[n]): C = A + B",
    "matmul": "(A: float32[64, 128], B: float32[128, 96], C: float32[64, 96]): C = A @ B",
}
TEXTURES = {
    "from_texture": "(A: float32[2, 8, 16, 4] as global.texture, C: same): axes 0 to 2 reversed",
    "from_weight": "(A: float32[5, 3, 2, 4] as global.texture-weight, C: same): axes 0 and 2 reversed",
}
TWO = "(A: float32[256], C: float32[256], k: int32, f: float32, q: int64): each 64 reversed, times f, plus k and q"


@I.ir_module
class Simple:
    @T.prim_func
    def add(a: T.handle, b: T.handle, c: T.handle):
        n = T.int32()
        A = T.match_buffer(a, (n,), "float32")
        B = T.match_buffer(b, (n,), "float32")
        C = T.match_buffer(c, (n,), "float32")
        for bx in T.thread_binding((n + 63) // 64, thread="blockIdx.x"):
            for tx in T.thread_binding(64, thread="threadIdx.x"):
                if bx * 64 + tx < n:
                    C[bx * 64 + tx] = A[bx * 64 + tx] + B[bx * 64 + tx]

    @T.prim_func
    def matmul(A: T.Buffer((64, 128), "float32"), B: T.Buffer((128, 96), "float32"), C: T.Buffer((64, 96), "float32")):
        for by in T.thread_binding(8, thread="blockIdx.y"):
            for bx in T.thread_binding(12, thread="blockIdx.x"):
                for ty in T.thread_binding(8, thread="threadIdx.y"):
                    for tx in T.thread_binding(8, thread="threadIdx.x"):
                        C[by * 8 + ty, bx * 8 + tx] = T.float32(0)
                        for k in range(128):
                            C[by * 8 + ty, bx * 8 + tx] = (
                                C[by * 8 + ty, bx * 8 + tx] + A[by * 8 + ty, k] * B[k, bx * 8 + tx]
                            )


def two_kernels(scope: str) -> Any:
    """Two kernels with a workspace between them, memory that a block shares, and scalars of three types."""

    @I.ir_module
    class Two:
        @T.prim_func
        def two(A: T.Buffer((256,), "float32"), C: T.Buffer((256,), "float32"), k: T.int32, f: T.float32, q: T.int64):
            B = T.alloc_buffer((256,), "float32")
            for bx in T.thread_binding(4, thread="blockIdx.x"):
                for tx in T.thread_binding(64, thread="threadIdx.x"):
                    B[bx * 64 + tx] = A[bx * 64 + tx] * f
            for bx in T.thread_binding(4, thread="blockIdx.x"):
                S = T.alloc_buffer((64,), "float32", scope=scope)
                for tx in T.thread_binding(64, thread="threadIdx.x"):
                    S[tx] = B[bx * 64 + tx]
                    T.tvm_storage_sync("shared")
                    C[bx * 64 + tx] = S[63 - tx] + T.cast(k, "float32") + T.cast(q, "float32")

    return Two


@I.ir_module
class Textures:
    """Kernels over images, which host code takes as pointers and does not look at."""

    @T.prim_func
    def from_texture(a: T.handle, C: T.Buffer((2, 8, 16, 4), "float32")):
        A = T.match_buffer(a, (2, 8, 16, 4), "float32", scope="global.texture")
        for by in T.thread_binding(2, thread="blockIdx.y"):
            for bx in T.thread_binding(8, thread="blockIdx.x"):
                for tx in T.thread_binding(16, thread="threadIdx.x"):
                    for v in T.vectorized(4):
                        C[by, bx, tx, v] = A[1 - by, 7 - bx, 15 - tx, v]

    @T.prim_func
    def from_weight(a: T.handle, C: T.Buffer((5, 3, 2, 4), "float32")):
        A = T.match_buffer(a, (5, 3, 2, 4), "float32", scope="global.texture-weight")
        for bx in T.thread_binding(5, thread="blockIdx.x"):
            for ty in T.thread_binding(3, thread="threadIdx.y"):
                for tx in T.thread_binding(2, thread="threadIdx.x"):
                    for v in T.vectorized(4):
                        C[bx, ty, tx, v] = A[4 - bx, ty, 1 - tx, v]


MODULES = {
    "": (lambda: Simple, FUNCTIONS),
    "_two": (lambda: two_kernels("shared"), {"two": TWO}),
    "_texture": (lambda: Textures, TEXTURES),
    "_dynamic": (lambda: two_kernels("shared.dyn"), {"two": TWO + ", with dynamic shared memory"}),
}
TARGETS = {"opencl": {"kind": "opencl"}, "cuda": {"kind": "cuda", "arch": "sm_80"}, "metal": {"kind": "metal"}}
HOST = {"kind": "llvm", "mtriple": "x86_64-linux-gnu"}

# As TVM 0.27 registers it, it lacks the passes that end a pipeline.
compilation_pipeline.register_tir_pipeline(
    "adreno",
    lambda: (
        default_tir_pipeline(),
        compilation_pipeline.finalize_host_passes,
        compilation_pipeline.finalize_device_passes,
    ),
)


def build(name: str, outdir: Path) -> _build.Library:
    kind, _, which = name.partition("_")
    make, functions = MODULES[f"_{which}" if which else ""]
    target = {**TARGETS[kind], **({"keys": ["adreno", "opencl", "gpu"]} if which == "texture" else {})}
    pipeline = "adreno" if which == "texture" else None
    executable = tvm.compile(make(), target=Target(target, host=HOST), tir_pipeline=pipeline)
    executable.export_library(str(outdir / f"{name}.so"), cc=_build.CXX)
    return _build.Library(f"{name}.so", functions)


NAMES = ["opencl_texture", "metal"]
NAMES += [f"{kind}{which}" for kind in ("opencl", "cuda") for which in MODULES if which != "_texture"]

if __name__ == "__main__":
    _build.main(dict.fromkeys(NAMES, build), sys.argv[1:])
