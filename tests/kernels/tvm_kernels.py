# SPDX-License-Identifier: Apache-2.0
"""Libraries compiled by apache-tvm: what a user of that compiler would hand to portcall.

Rules: this file is run in a process of its own (``python tvm_kernels.py OUTDIR [NAME...]``), because
importing it loads apache-tvm; the kernels are as small as what they prove; the names of functions that
kernels call back begin with ``portcall_test.``; every signature and meaning stands in RECIPES and goes from
there into the manifest.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import _build
import tvm
from tvm import te
from tvm.script import ir as I
from tvm.script import tirx as T
from tvm.target import Target

COPIED_DTYPES = (
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint64",
    "bool",
    "bfloat16",
    "float8_e4m3fn",
)


@I.ir_module
class Elementwise:
    @T.prim_func
    def add_one(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n,), "float32")
        B = T.match_buffer(b, (n,), "float32")
        for i in T.serial(n):
            B[i] = A[i] + T.float32(1)

    @T.prim_func
    def scale(a: T.handle, b: T.handle, factor: T.float32, shift: T.int32):
        n = T.int64()
        A = T.match_buffer(a, (n,), "float32")
        B = T.match_buffer(b, (n,), "float32")
        for i in T.serial(n):
            B[i] = A[i] * factor + T.Cast("float32", shift)

    @T.prim_func
    def exp(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n,), "float32")
        B = T.match_buffer(b, (n,), "float32")
        for i in T.serial(n):
            B[i] = T.exp(A[i])


@I.ir_module
class Single:
    @T.prim_func
    def add_one(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n,), "float32")
        B = T.match_buffer(b, (n,), "float32")
        for i in T.serial(n):
            B[i] = A[i] + T.float32(1)


@I.ir_module
class Several:
    @T.prim_func
    def add_int(x: T.int32, y: T.int64) -> T.int64:
        return T.Cast("int64", x) + y

    @T.prim_func
    def multiply_float(x: T.float32, y: T.float64) -> T.float64:
        return T.Cast("float64", x) * y

    @T.prim_func
    def less(x: T.int32, y: T.int32) -> T.bool:
        return x < y

    @T.prim_func
    def ten_or_twenty(flag: T.bool) -> T.int32:
        return T.Select(flag, 10, 20)

    @T.prim_func
    def same_pointer(p: T.handle) -> T.handle:
        return p

    @T.prim_func
    def nothing():
        T.evaluate(0)


@I.ir_module
class Matmul:
    @T.prim_func
    def matmul(a: T.handle, b: T.handle, c: T.handle):
        m = T.int64()
        n = T.int64()
        k = T.int64()
        A = T.match_buffer(a, (m, k), "float32")
        B = T.match_buffer(b, (k, n), "float32")
        C = T.match_buffer(c, (m, n), "float32")
        for i in T.parallel(m):
            for j in T.serial(n):
                C[i, j] = T.float32(0)
            for p in T.serial(k):
                for j in T.serial(n):
                    C[i, j] = C[i, j] + A[i, p] * B[p, j]

    @T.prim_func
    def double_non_negative(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n,), "int32")
        B = T.match_buffer(b, (n,), "int32")
        for i in T.parallel(n):
            assert A[i] >= 0, ("ValueError", ["negative element"])
            B[i] = A[i] * 2


@I.ir_module
class ParallelCallback:
    @T.prim_func
    def for_each(n: T.int32):
        for i in T.parallel(n):
            T.evaluate(T.call_packed("portcall_test.visit", i))


@I.ir_module
class Barrier:
    @T.prim_func
    def reverse_twice(a: T.handle, w: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n,), "float32")
        W = T.match_buffer(w, (n,), "float32")
        B = T.match_buffer(b, (n,), "float32")
        with T.attr(T.int32(0), "pragma_parallel_launch_point", 1):
            with T.attr(T.int32(0), "pragma_parallel_barrier_when_finish", 1):
                for i in T.parallel(n):
                    W[i] = A[n - 1 - i]
            for i in T.parallel(n):
                B[i] = W[n - 1 - i]


@I.ir_module
class Workspace:
    @T.prim_func
    def square_reversed(a: T.handle, b: T.handle):
        A = T.match_buffer(a, (1024,), "float32")
        B = T.match_buffer(b, (1024,), "float32")
        W = T.alloc_buffer((1024,), "float32")
        for i in T.serial(1024):
            W[i] = A[i] * A[i]
        for i in T.serial(1024):
            B[i] = W[1023 - i]

    @T.prim_func
    def square_plus_reversed(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n,), "float32")
        B = T.match_buffer(b, (n,), "float32")
        W = T.alloc_buffer((n,), "float32")
        V = T.alloc_buffer((n,), "float32")
        for i in T.serial(n):
            W[i] = A[i] * A[i]
        for i in T.serial(n):
            V[i] = W[n - 1 - i]
        for i in T.serial(n):
            B[i] = W[i] + V[i]


@I.ir_module
class Packed:
    @T.prim_func
    def log_scalars(x: T.int32, y: T.float64):
        T.evaluate(T.call_packed("portcall_test.log_value", x, y, "a string literal"))

    @T.prim_func
    def log_tensor(a: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n,), "float32")
        T.evaluate(T.call_packed("portcall_test.log_value", A, n))

    @T.prim_func
    def twice(x: T.int32) -> T.int32:
        return T.call_packed("portcall_test.twice", x)

    @T.prim_func
    def call_missing():
        T.evaluate(T.call_packed("portcall_test.never_registered"))


@I.ir_module
class Checks:
    @T.prim_func
    def kinds(a: T.handle, i: T.int32, f: T.float32, b: T.bool, p: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n,), "float32")
        T.evaluate(A[0])

    @T.prim_func
    def copy_4x3(a: T.handle, b: T.handle):
        A = T.match_buffer(a, (4, 3), "float32")
        B = T.match_buffer(b, (4, 3), "float32")
        for i, j in T.grid(4, 3):
            B[i, j] = A[i, j]

    @T.prim_func
    def first_column(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n, 2 * n), "float32")
        B = T.match_buffer(b, (n,), "float32")
        for i in T.serial(n):
            B[i] = A[i, 0]

    @T.prim_func
    def copy_strided(a: T.handle, b: T.handle):
        n = T.int64()
        m = T.int64()
        s = T.int64()
        A = T.match_buffer(a, (n, m), "float32", strides=(s, T.int64(1)))
        B = T.match_buffer(b, (n, m), "float32")
        for i, j in T.grid(n, m):
            B[i, j] = A[i, j]

    @T.prim_func
    def copy_with_offset(a: T.handle, b: T.handle):
        n = T.int64()
        offset = T.int64()
        A = T.match_buffer(a, (n,), "float32", elem_offset=offset)
        B = T.match_buffer(b, (n,), "float32")
        for i in T.serial(n):
            B[i] = A[i]

    @T.prim_func
    def between_1_and_99(x: T.int32):
        assert x > 0, "x must be positive"
        assert x < 100, ("ValueError", ["x must be ", "less than 100"])


@I.ir_module
class Half:
    @T.prim_func
    def scale_half(a: T.handle, b: T.handle, factor: T.float16):
        n = T.int64()
        A = T.match_buffer(a, (n,), "float16")
        B = T.match_buffer(b, (n,), "float16")
        for i in T.serial(n):
            B[i] = A[i] * factor

    @T.prim_func
    def widen_half(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n,), "float16")
        B = T.match_buffer(b, (n,), "float32")
        for i in T.serial(n):
            B[i] = T.Cast("float32", A[i])


@I.ir_module
class MissingExtern:
    @T.prim_func
    def call_missing_symbol(x: T.int32) -> T.int32:
        return T.call_extern("int32", "portcall_no_such_symbol", x)


@I.ir_module
class SystemLib:
    I.module_attrs({"system_lib_prefix": "portcall_sys_"})

    @T.prim_func
    def portcall_sys_add_one(a: T.handle, b: T.handle):
        n = T.int64()
        A = T.match_buffer(a, (n,), "float32")
        B = T.match_buffer(b, (n,), "float32")
        for i in T.parallel(n):
            B[i] = A[i] + T.float32(1)

    @T.prim_func
    def portcall_sys_twice(x: T.int32) -> T.int32:
        return T.call_packed("portcall_test.twice", x)


def dtype_copies() -> tvm.IRModule:
    """Return ``copy_<dtype>(A: <dtype>[n], B: <dtype>[n])`` for every dtype of COPIED_DTYPES."""
    functions = {}
    for dtype in COPIED_DTYPES:
        n = te.var("n", "int64")
        source = te.placeholder((n,), dtype, name="A")
        copy = te.compute((n,), source.__getitem__, name="B")
        name = f"copy_{dtype}"
        functions[name] = te.create_prim_func([source, copy]).with_attr("global_symbol", name)
    return tvm.IRModule(functions)


@dataclass(frozen=True)
class Recipe:
    """How one library is made: the IR, the target, how it is bound, and what its functions do."""

    module: tvm.IRModule
    functions: dict[str, str]
    notes: str = ""
    target: str | Target = "llvm"
    binding: str = _build.LAZY


ELEMENTWISE = {
    "add_one": "(A: float32[n], B: float32[n]): B = A + 1",
    "scale": "(A: float32[n], B: float32[n], factor: float32, shift: int32): B = A * factor + shift",
    "exp": "(A: float32[n], B: float32[n]): B = exp(A), through libm",
}

RECIPES = {
    "elementwise": Recipe(Elementwise, ELEMENTWISE),
    "elementwise_now": Recipe(
        Elementwise, ELEMENTWISE, "linked with -z now: dlopen binds all symbols", binding=_build.NOW
    ),
    "single": Recipe(Single, {"add_one": ELEMENTWISE["add_one"]}, "one function, so __tvm_ffi_main is an alias of it"),
    "several": Recipe(
        Several,
        {
            "add_int": "(x: int32, y: int64) -> int: x + y",
            "multiply_float": "(x: float32, y: float64) -> float: x * y",
            "less": "(x: int32, y: int32) -> bool: x < y",
            "ten_or_twenty": "(flag: bool) -> int: 10 if flag else 20",
            "same_pointer": "(p: pointer) -> pointer: p",
            "nothing": "() -> None",
        },
        "several functions, so no __tvm_ffi_main; every scalar kind comes in and goes out",
    ),
    "dtypes": Recipe(
        dtype_copies(), {f"copy_{dtype}": f"(A: {dtype}[n], B: {dtype}[n]): B = A" for dtype in COPIED_DTYPES}
    ),
    "matmul": Recipe(
        Matmul,
        {
            "matmul": "(A: float32[m, k], B: float32[k, n], C: float32[m, n]): C = A @ B, parallel over m",
            "double_non_negative": "(A: int32[n], B: int32[n]): B = A * 2; ValueError 'negative element'",
        },
        "calls __TVMBackendParallelLaunch",
    ),
    "parallel_callback": Recipe(
        ParallelCallback,
        {"for_each": "(n: int32): portcall_test.visit(i) for each i < n, from the worker threads"},
        "worker threads call packed functions: deadlocks if the caller keeps the GIL",
    ),
    "barrier": Recipe(
        Barrier,
        {"reverse_twice": "(A, W, B: float32[n]): W = reversed(A); barrier; B = reversed(W)"},
        "calls __TVMBackendParallelBarrier",
    ),
    "workspace": Recipe(
        Workspace,
        {
            "square_reversed": "(A, B: float32[1024]): B = reversed(A * A); a 4 KiB workspace",
            "square_plus_reversed": "(A, B: float32[n]): B = A * A + reversed(A * A); two workspaces",
        },
    ),
    "packed": Recipe(
        Packed,
        {
            "log_scalars": "(x: int32, y: float64): portcall_test.log_value(x, y, 'a string literal')",
            "log_tensor": "(A: float32[n]): portcall_test.log_value(A, n)",
            "twice": "(x: int32) -> int: portcall_test.twice(x)",
            "call_missing": "(): portcall_test.never_registered(), which nobody registers",
        },
    ),
    "checks": Recipe(
        Checks,
        {
            "kinds": "(A: float32[n], i: int32, f: float32, b: bool, p: pointer): nothing",
            "copy_4x3": "(A: float32[4, 3], B: float32[4, 3]): B = A",
            "first_column": "(A: float32[n, 2 * n], B: float32[n]): B = A[:, 0]",
            "copy_strided": "(A: float32[n, m] with strides [s, 1], B: float32[n, m]): B = A",
            "copy_with_offset": "(A: float32[n] with any byte_offset, B: float32[n]): B = A",
            "between_1_and_99": "(x: int32): RuntimeError if x <= 0, ValueError if x >= 100",
        },
        "every argument check of generated code can be made to fail here",
    ),
    "half": Recipe(
        Half,
        {
            "scale_half": "(A: float16[n], B: float16[n], factor: float16): B = A * factor",
            "widen_half": "(A: float16[n], B: float32[n]): B = A",
        },
        "imports __truncdfhf2 from libgcc",
    ),
    "ctarget": Recipe(Elementwise, ELEMENTWISE, "C source by apache-tvm, compiled by the system's compiler", "c"),
    "missing_extern": Recipe(
        MissingExtern,
        {"call_missing_symbol": "(x: int32) -> int: portcall_no_such_symbol(x), which nobody defines"},
    ),
    "syslib": Recipe(
        SystemLib,
        {
            "portcall_sys_add_one": ELEMENTWISE["add_one"] + ", in parallel",
            "portcall_sys_twice": "(x: int32) -> int: portcall_test.twice(x)",
        },
        "a system library: its constructors call TVMFFIEnvModRegisterSystemLibSymbol; prefix portcall_sys_",
    ),
}


def build(name: str, outdir: Path) -> _build.Library:
    """Compile one recipe to ``OUTDIR/<name>.so``; its object files stay in ``OUTDIR/<name>.objects``."""
    recipe = RECIPES[name]
    objects = outdir / f"{name}.objects"
    objects.mkdir(exist_ok=True)
    executable = tvm.compile(recipe.module, target=recipe.target)
    executable.export_library(
        str(outdir / f"{name}.so"), workspace_dir=str(objects), options=[recipe.binding], cc=_build.CXX
    )
    kept = [str(path.relative_to(outdir)) for path in sorted(objects.iterdir())]
    return _build.Library(f"{name}.so", recipe.functions, recipe.notes, kept)


if __name__ == "__main__":
    _build.main(dict.fromkeys(RECIPES, build), sys.argv[1:])
