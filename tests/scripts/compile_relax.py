# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: SIM108, RET504  # TVM reads these functions, and knows statements of a few forms
"""Compile small models with apache-tvm (0.25 to 0.27), as bytecode and compiled, and save what its machine answers.

    python compile_relax.py FOLDER [NAME …]

For each model: NAME-bytecode.so, NAME-compiled.so, the same with .txt (the listing), and NAME.pickle with
(function, calls, results). A shape is written ("shape", (2, 3)) there, a tuple as a tuple.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.frontend import nn
from tvm.script import ir as I
from tvm.script import relax as R

sys.path.append(str(Path(__file__).parents[1]))

try:
    from tvm.script import tirx as T
except ImportError:
    from tvm.script import tir as T

NEW = not hasattr(relax, "ObjectStructInfo")  # later releases call what describes a value its type
random = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return random.standard_normal(shape).astype("float32")


# ---- Networks --------------------------------------------------------------------------------------------------------


class Perceptron(nn.Module):
    def __init__(self) -> None:
        self.first, self.second = nn.Linear(64, 128), nn.Linear(128, 10)

    def forward(self, x: Any) -> Any:
        return nn.op.softmax(self.second(nn.op.relu(self.first(x))), axis=-1)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        self.width, self.heads = width, heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        batch, length, width = x.shape
        size = width // self.heads

        def split(t: Any) -> Any:
            return nn.op.permute_dims(nn.op.reshape(t, (batch, length, self.heads, size)), [0, 2, 1, 3])

        q, k, v = (split(t) for t in nn.op.split(self.qkv(x), 3, axis=-1))
        scores = nn.op.softmax(nn.op.matmul(q, nn.op.permute_dims(k, [0, 1, 3, 2])) * size**-0.5, axis=-1)
        y = nn.op.reshape(nn.op.permute_dims(nn.op.matmul(scores, v), [0, 2, 1, 3]), (batch, length, width))
        x = self.norm1(x + self.out(y))
        return self.norm2(x + self.down(nn.op.gelu(self.up(x))))


class Encoder(nn.Module):
    def __init__(self) -> None:
        self.embedding = nn.Embedding(100, 64)
        self.blocks = nn.ModuleList([Block(64, 4) for _ in range(2)])

    def forward(self, ids: Any) -> Any:
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x)
        return x


def exported(module: Any, **inputs: Any) -> Any:
    mod, params = module.export_tvm({"forward": inputs})
    values = {name: tvm.runtime.tensor(floats(*map(int, p.shape)) * 0.1) for name, p in params}
    return relax.transform.BindParams("forward", values)(mod)


def cnn() -> Any:
    builder = relax.BlockBuilder()
    x = relax.Var("x", R.Tensor((1, 3, 32, 32), "float32"))

    def conv(v: Any, inner: int, outer: int, size: int, stride: int = 1) -> Any:
        weight = relax.const(floats(outer, inner, size, size) * 0.2, "float32")
        bias = relax.const(floats(1, outer, 1, 1), "float32")
        v = builder.emit(relax.op.nn.conv2d(v, weight, strides=stride, padding=size // 2))
        return builder.emit(relax.op.nn.relu(builder.emit(relax.op.add(v, bias))))

    with builder.function("main", [x]):
        with builder.dataflow():
            v = builder.emit(relax.op.nn.max_pool2d(conv(x, 3, 16, 3, 2), (3, 3), (2, 2)))
            squeezed = conv(v, 16, 8, 1)
            v = builder.emit(relax.op.concat([conv(squeezed, 8, 16, 1), conv(squeezed, 8, 16, 3)], axis=1))
            v = builder.emit(relax.op.mean(conv(v, 32, 10, 1), axis=[2, 3]))
            result = builder.emit_output(builder.emit(relax.op.nn.softmax(v)))
        builder.emit_func_output(result)
    return builder.get()


def chain(length: int, dynamic: bool = False) -> Any:
    builder = relax.BlockBuilder()
    shape = (2, T.Var("m", "int64")) if dynamic else (4,)
    x = v = relax.Var("x", R.Tensor(shape, "float32"))
    one = relax.const(np.float32(1))
    with builder.function("main", [x]):
        for i in range(length):
            v = builder.emit(relax.op.add(v, one) if i % 2 else relax.op.negative(v))
        builder.emit_func_output(v)
    return builder.get()


def simple(build: Callable[..., Any], *types: tuple[Any, str]) -> Any:
    """A function of one operator."""
    builder = relax.BlockBuilder()
    given = [relax.Var(f"x{i}", R.Tensor(shape, dtype)) for i, (shape, dtype) in enumerate(types)]
    with builder.function("main", given):
        builder.emit_func_output(builder.emit(build(*given)))
    return builder.get()


# ---- Control flow, shapes, values ------------------------------------------------------------------------------------


@I.ir_module
class Branch:
    @R.function
    def main(c: R.Tensor((), "bool"), x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        if c:
            y = R.add(x, x)
        else:
            y = R.multiply(x, x)
        return y


@I.ir_module
class Loop:
    @R.function
    def loop(i: R.Tensor((), "int32"), x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        c = R.less(i, R.const(5, "int32"))
        if c:
            j = R.add(i, R.const(1, "int32"))
            y = R.add(x, R.const(1.5, "float32"))
            r = Loop.loop(j, y)
        else:
            r = x
        return r

    @R.function
    def main(x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        r = Loop.loop(R.const(0, "int32"), x)
        return r


@I.ir_module
class Tuples:
    @R.function
    def main(t: R.Tuple(R.Tensor((2, 3), "float32"), R.Tuple(R.Tensor((3,), "float32"), R.Tensor((2,), "int64")))):
        a = t[0]
        u = t[1]
        b = u[0]
        s = R.add(a, b)
        return (s, (b, u[1]), t)


@I.ir_module
class Outputs:
    @R.function
    def main(x: R.Tensor((2, 3), "float32"), y: R.Tensor((2, 3), "float32")):
        s = R.add(x, y)
        d = R.subtract(x, y)
        return (s, (d, x), R.shape([2, 3]))


@I.ir_module
class Shapes:
    @R.function
    def main(x: R.Tensor(("n", "m"), "float32"), y: R.Tensor(("m",), "float32"), s: R.Shape(["k"]), p: R.Prim("int64")):
        n = T.int64()
        m = T.int64()
        k = T.int64()
        z = R.add(x, y)
        f = R.reshape(z, (n * m,))
        g = R.reshape(f, (m, n))
        sh = R.shape_of(g)
        st = R.shape_to_tensor(sh)
        w = R.strided_slice(z, axes=[0], begin=[0], end=[n // 2])
        full = R.full((k, 2), R.const(3.0, "float32"))
        cc = R.concat((f, f), axis=0)
        return (z, g, sh, st, w, full, cc, R.shape([n + 1, m * 2, k]), p)


@I.ir_module
class DataDependent:
    @R.function
    def main(x: R.Tensor(("n",), "float32"), t: R.Tensor((2,), "int64")):
        u = T.int64()
        a = T.int64()
        b = T.int64()
        v = R.match_cast(R.unique(x, sorted=True, axis=0), R.Tensor((u,), "float32"))
        s = R.add(v, R.const(1.0, "float32"))
        _ = R.match_cast(R.tensor_to_shape(t), R.Shape([a, b]))
        r = R.reshape(x, (a, b))
        return (s, r, R.nonzero(r))


@I.ir_module
class Closures:
    @R.function(pure=False)
    def main(x: R.Tensor((4,), "float32"), y: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        @R.function(pure=False)
        def inner(a: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            r = R.add(a, y)
            return r

        z = inner(x)
        w = inner(z)
        return w

    @R.function
    def maker(y: R.Tensor((4,), "float32")) -> R.Callable((R.Tensor((4,), "float32"),), R.Tensor((4,), "float32")):
        @R.function
        def inner(a: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
            r = R.add(a, y)
            return r

        return inner


def user_functions() -> Any:
    """Calls functions of the user: two that give values, one that fills an output."""
    out, types = ("out_ty", "ty_args") if NEW else ("out_sinfo", "sinfo_args")
    anything = relax.ObjectType() if NEW else relax.ObjectStructInfo()
    builder = relax.BlockBuilder()
    tensor = R.Tensor((T.Var("n", "int64"),), "float32")
    x, other = relax.Var("x", tensor), relax.Var("o", anything)
    with builder.function("main", [x, other], pure=False):
        args = relax.Tuple([x, R.prim_value(3), R.str("three")])
        y = builder.emit(relax.op.call_dps_packed("demo.scale", args, **{out: tensor}))
        z = builder.emit(relax.Call(relax.ExternFunc("demo.same"), [y, other], **{types: [tensor]}))
        q = builder.emit(relax.Call(relax.ExternFunc("demo.dtype"), [R.dtype("float16")], **{types: [anything]}))
        builder.emit_func_output(relax.Tuple([y, z, q, other]))
    return builder.get()


def shape(*extents: int) -> tuple[str, tuple[int, ...]]:
    return ("shape", extents)


Calls = list[tuple[Any, ...]]
MODELS: dict[str, tuple[Callable[[], Any], str, Callable[[], Calls]]] = {
    "perceptron": (
        lambda: exported(Perceptron(), x=nn.spec.Tensor([1, 64], "float32")),
        "forward",
        lambda: [(floats(1, 64),)],
    ),
    "cnn": (cnn, "main", lambda: [(floats(1, 3, 32, 32),)]),
    "encoder": (
        lambda: exported(Encoder(), ids=nn.spec.Tensor(["batch", "length"], "int32")),
        "forward",
        lambda: [(random.integers(0, 100, size).astype("int32"),) for size in [(1, 7), (3, 16), (2, 1)]],
    ),
    "branch": (lambda: Branch, "main", lambda: [(np.array(True), floats(4)), (np.array(False), floats(4))]),
    "loop": (lambda: Loop, "main", lambda: [(floats(4),)]),
    "tuples": (lambda: Tuples, "main", lambda: [((floats(2, 3), (floats(3), np.arange(2))),)]),
    "outputs": (lambda: Outputs, "main", lambda: [(floats(2, 3), floats(2, 3))]),
    "shapes": (
        lambda: Shapes,
        "main",
        lambda: [(floats(4, 3), floats(3), shape(5), 9), (floats(2, 8), floats(8), shape(1), -1)],
    ),
    "data": (
        lambda: DataDependent,
        "main",
        lambda: [
            (np.array([3, 1, 3, 0, 2, 1], "float32"), np.array([2, 3])),
            (np.array([1, 1, 1, 0], "float32"), np.array([4, 1])),
        ],
    ),
    "user": (user_functions, "main", lambda: [(floats(5), "some text")]),
    "closures": (lambda: relax.transform.LambdaLift()(Closures), "main", lambda: [(floats(4), floats(4))]),
    "chain": (lambda: chain(100), "main", lambda: [(floats(4),)]),
    "chain_dynamic": (lambda: chain(100, dynamic=True), "main", lambda: [(floats(2, 9),), (floats(2, 0),)]),
    "sort": (
        lambda: simple(lambda x: relax.op.sort(x), ((4, 7), "float32")),
        "main",
        lambda: [(floats(4, 7),)],
    ),
    "argsort": (
        lambda: simple(lambda x: relax.op.argsort(x, axis=0, descending=True, dtype="int64"), ((4, 7), "int32")),
        "main",
        lambda: [(random.integers(0, 3, (4, 7)).astype("int32"),)],
    ),
    "topk": (lambda: simple(lambda x: relax.op.topk(x, k=3), ((4, 7), "float32")), "main", lambda: [(floats(4, 7),)]),
}


def squeezenet() -> Any:
    """Squeezenet as the onnx package has it, with weights of the tests of portcall.compile."""
    from tvm.relax.frontend.onnx import from_onnx

    from compile import light

    return from_onnx(light.load("squeezenet"), keep_params_in_input=False)


# Compiled when they are asked for.
OTHERS: dict[str, tuple[Callable[[], Any], str, Callable[[], Calls]]] = {
    "squeezenet": (squeezenet, "main", lambda: [(floats(1, 3, 224, 224),)]),
}


# ---- Compiling, and what TVM answers ---------------------------------------------------------------------------------


@tvm.register_global_func("demo.scale", override=True)
def scale(x: Any, factor: int, _text: str, out: Any) -> None:
    tvm.runtime.tensor(x.numpy() * factor).copyto(out)


@tvm.register_global_func("demo.same", override=True)
def same(value: Any, _other: Any) -> Any:
    return value


@tvm.register_global_func("demo.dtype", override=True)
def dtype_text(value: Any) -> str:
    return str(value)


def given(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return tvm.runtime.tensor(value)
    if isinstance(value, tuple) and isinstance(value[0], str):
        return tvm_ffi.Shape(value[1])
    return tuple(map(given, value)) if isinstance(value, tuple) else value


def plain(value: Any) -> Any:
    if isinstance(value, tvm.runtime.Tensor):
        return value.numpy()
    if isinstance(value, tvm_ffi.Shape):
        return shape(*value)
    return tuple(map(plain, value)) if isinstance(value, tvm_ffi.Array) else value


def compile_model(folder: Path, name: str) -> None:
    make, function, inputs = {**MODELS, **OTHERS}[name]
    module, calls = make(), inputs()
    for mode in ("bytecode", "compiled"):
        path = folder / f"{name}-{mode}.so"
        if mode == "bytecode":
            executable = tvm.compile(module, tvm.target.Target("llvm"))
        else:
            executable = relax.build(module, tvm.target.Target("llvm"), exec_mode=mode)
        executable.export_library(str(path))
        path.with_suffix(".txt").write_text(executable.as_text())
        machine = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())
        results = [plain(machine[function](*map(given, call))) for call in calls]
        if mode == "bytecode":
            (folder / f"{name}.pickle").write_bytes(pickle.dumps((function, calls, results)))


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    for each in sys.argv[2:] or MODELS:
        compile_model(target, each)
