# SPDX-License-Identifier: Apache-2.0
"""Graphs: what a node costs beyond its kernel, a model beside apache-tvm's Relax VM, creation, bundles, sessions.

Rules: kernels are the same machine code on both sides; of a graph of no-op kernels everything that is measured is the
executor's. Values are compared before they are timed.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from calls import SOURCES, Row, loop
from method import Timer
from report import Limit
from rpc_peers import our_server
from rpc_rows import our_session
from tvm import relax, te

import portcall
from portcall import graph, toolchain

NODES, MANY_NODES = 1_000, 10_000
NODE_LIMIT, CREATE_LIMIT = 100e-9, 0.5  # seconds
MLP_TARGET, REMOTE_TARGET, MEMORY_LIMIT = 1.0, 1.2, 1.1
WIDTHS = (64, 64, 32, 10)
WEIGHTS, BUNDLE = 256 << 20, 500_000_000  # bytes
PIECES = 8
CPU = portcall.cpu()

# Prints by how much the most memory that the process ever had exceeds what it had before, in bytes.
PEAK = """\
import sys
from pathlib import Path
import portcall
from portcall import graph

def status(name):
    text = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(name))

lib, json, params, how = sys.argv[1:]
m = graph.create(Path(json), portcall.load_module(lib), portcall.cpu())
given = Path(params) if how == "file" else Path(params).read_bytes()
Path("/proc/self/clear_refs").write_text("5")
before = status("VmRSS:")
m.load_params(given)
print(status("VmHWM:") - before)
"""


def run_rows(folder: Path) -> Iterator[Row]:
    library = portcall.load_module(no_op_library(folder))
    made = portcall.load_module(toolchain.create_shared(SOURCES / "graph_loop.cc", folder / "graph_loop.so"))
    m = graph.create(chain(NODES), library, CPU)
    m.set_input(0, np.zeros(16, "float32"))
    calls = made["make_loop"](library["nop"], portcall.empty((16,)), portcall.empty((16,)), NODES)
    text = f"run of {NODES:,} nodes of a no-op kernel"
    yield Row("nodes", text, loop("f()", f=m["run"]), loop("f()", f=calls), against="the same calls in a C++ loop")
    ours, vm = mlp_on_both(folder)
    text = f"run of a perceptron, {'-'.join(map(str, WIDTHS))}"
    yield Row("mlp", text, loop("f()", f=ours), loop("f(*x)", f=vm[0], x=vm[1]), MLP_TARGET, "the Relax VM")


def creation_rows(folder: Path) -> Iterator[Row]:
    path = no_op_library(folder)
    library, text = portcall.load_module(path), chain(MANY_NODES)
    create = loop("f(g, lib, cpu)", f=graph.create, g=text, lib=library, cpu=CPU)
    what = f"create {MANY_NODES:,} nodes from JSON ({len(text) / 1e6:.1f} MB)"
    yield Row("create", what, create, loop("f(g)", f=json.loads, g=text), None, "json.loads", CREATE_LIMIT)
    del library
    bundle = graph.export_bundle(folder / "bundle.so", *weighty(BUNDLE, path))
    text = f"open a bundle of {BUNDLE / 1e6:.0f} MB, make an executor"
    yield Row("bundle", text, opening(bundle, "default"), opening(path), against="load a library of 16 kB")


def remote_rows(core: int, folder: Path) -> Iterator[Row]:
    with our_server(core) as server, our_session(server) as session:
        m = graph.create(chain(1), session.load_module(session.upload(no_op_library(folder))), session.cpu())
        m.set_input(0, np.zeros(16, "float32"))
        empty = session.get_function("testing.nop")
        ours, other = loop("f()", f=m.run), loop("f()", f=empty)
        yield Row("remote", "run of a remote no-op graph", ours, other, REMOTE_TARGET, "an empty remote call")


def memory_limits(folder: Path, scale: float) -> Iterator[Limit]:
    size = int(WEIGHTS * scale)
    library = no_op_library(folder)
    text, _, params = weighty(size, library)
    (folder / "weights.json").write_text(text.to_json())
    graph.save_params_to_file(params, folder / "weights.params")
    del params
    for how in ("file", "blob"):
        command = [sys.executable, "-c", PEAK, library, folder / "weights.json", folder / "weights.params", how]
        grown = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        what = f"peak memory of loading {size >> 20} MiB of parameters from a {how}"
        yield Limit(f"memory-{how}", what, round(grown / size, 4), MEMORY_LIMIT, "x the weights")


def no_op_library(folder: Path) -> Path:
    made = folder / "no_op.so"
    return made if made.exists() else toolchain.create_shared(SOURCES / "library.c", made)


def chain(nodes: int) -> str:
    """Return a graph of calls of ``nop``, each of which reads what the one before wrote."""
    b = graph.GraphBuilder()
    value = b.input("x", (16,))
    for _ in range(nodes):
        value = b.call("nop", [value], (16,))
    b.output(value)
    return b.to_json()


def weighty(nbytes: int, library: Path) -> tuple[graph.Graph, Path, dict[str, Any]]:
    """Return a graph with parameters of so many bytes in all, its kernels, and them."""
    b = graph.GraphBuilder()
    value = b.input("x", (16,))
    for k in range(PIECES):
        weights = b.param(f"w{k}", np.full(nbytes // PIECES // 4, k + 1, "float32"))
        value = b.call("nop", [value, weights], (16,))
    b.output(value)
    return b.graph(), library, b.params


def opening(path: Path, factory: str = "") -> Timer:
    """Return a timer of loading a library, and of making what ``factory`` makes. Unloading it is not timed."""

    def run(number: int) -> float:
        total = 0.0
        for _ in range(number):
            start = time.perf_counter()
            module = portcall.load_module(path)
            made = module[factory](CPU) if factory else None
            total += time.perf_counter() - start
            del module, made
            gc.collect()
        return total

    return run


def mlp_on_both(folder: Path) -> tuple[Callable[[], Any], tuple[Any, list[Any]]]:
    """Return a run here; and the function of a Relax VM with its arguments. One library has the kernels of both."""
    os.environ.setdefault("TVM_NUM_THREADS", "1")
    module = mlp_in_relax()
    path = folder / "mlp.so"
    relax.build(module, target="llvm", relax_pipeline=lowering()).export_library(str(path))
    random = np.random.default_rng(0)
    arrays = [random.standard_normal(shape).astype("float32") for shape in mlp_shapes()]

    vm = relax.VirtualMachine(tvm.runtime.load_module(str(path)), tvm.cpu())["main"]
    arguments = [tvm.runtime.tensor(array) for array in arrays]

    b = graph.GraphBuilder()
    value = b.input("x", arrays[0].shape)
    for k, width in enumerate(WIDTHS[1:]):
        layer = [b.param(f"w{k}", arrays[1 + 2 * k]), b.param(f"b{k}", arrays[2 + 2 * k])]
        value = b.call(f"dense{k}", [value, *layer], (1, width))
        if width != WIDTHS[-1]:
            value = b.call(f"relu{k}", [value], (1, width))
    b.output(value)
    (kernels,) = portcall.load_module(path).imported_modules  # those that the VM imports
    m = graph.create(b.graph(), kernels, CPU)
    m.load_params(b.params)
    m.run(x=arrays[0])
    np.testing.assert_array_equal(m.get_output(0).numpy(), vm(*arguments).numpy())
    return m.run, (vm, arguments)


def mlp_shapes() -> list[tuple[int, ...]]:
    layers = [shape for n, k in zip(WIDTHS[1:], WIDTHS, strict=False) for shape in ((n, k), (n,))]
    return [(1, WIDTHS[0]), *layers]


def mlp_in_relax() -> Any:
    names = ["x", *(f"{what}{k}" for k in range(len(WIDTHS) - 1) for what in "wb")]
    variables = [
        relax.Var(name, relax.TensorType(shape, "float32")) for name, shape in zip(names, mlp_shapes(), strict=True)
    ]
    builder = relax.BlockBuilder()
    with builder.function("main", variables):
        value, *layers = variables
        for k in range(len(WIDTHS) - 1):
            value = builder.emit_te(dense, value, *layers[2 * k : 2 * k + 2], primfunc_name_hint=f"dense{k}")
            if k + 2 < len(WIDTHS):
                value = builder.emit_te(relu, value, primfunc_name_hint=f"relu{k}")
        builder.emit_func_output(value)
    return builder.get()


def dense(x: Any, w: Any, b: Any) -> Any:
    k = te.reduce_axis((0, x.shape[1]))
    product = te.compute((x.shape[0], w.shape[0]), lambda i, j: te.sum(x[i, k] * w[j, k], axis=k))
    return te.compute(product.shape, lambda i, j: product[i, j] + b[j])


def relu(x: Any) -> Any:
    return te.compute(x.shape, lambda *i: te.max(x[i], tvm.tirx.const(0, "float32")))


def lowering() -> Any:
    """Return what makes code for the VM of calls of kernels: memory is planned, nothing is fused."""
    t = relax.transform
    return tvm.ir.transform.Sequential(
        [
            t.ToNonDataflow(), t.RemovePurityChecking(), t.CallTIRRewrite(), t.StaticPlanBlockMemory(),
            t.LowerAllocTensor(), t.KillAfterLastUse(), t.LowerRuntimeBuiltin(), t.VMShapeLower(),
            t.AttachGlobalSymbol(),
        ]
    )  # fmt: skip
