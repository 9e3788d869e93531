# SPDX-License-Identifier: Apache-2.0
"""A small language model with random weights, compiled by the apache-tvm of an interpreter.

    python language_model.py FOLDER MODE [SIZES as JSON]

It writes the library, weights in shards as TVM's tools write them, and what TVM's own machine and cache answer to a
history. ``history`` runs here, too: it takes what both runtimes have.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import linecache
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

CONFIG = {"layers": 2, "hidden": 128, "heads": 4, "kv_heads": 2, "head_dim": 32, "ffn": 256, "vocab": 512}
SIZES = (4, 512, 64, 16, 0)  # sequences, tokens, tokens of a batch, tokens of a page, sliding windows
TOKENS = 64


def history(
    vm: Any,
    function: Callable[[str], Any],
    shape: Callable[[list[int]], Any],
    tensor: Callable[[Any], Any],
    params: Any,
) -> list[str]:
    """Return a hash of the logits of each step: tokens, forks, tokens taken back, batches, shared prefixes.

    Parameters:
        function: gives a global function by its name.
        shape, tensor: make a Shape, a tensor of the host.
    """
    state = {
        name: function(f"vm.builtin.kv_state_{name}")
        for name in (
            "add_sequence",
            "remove_sequence",
            "fork_sequence",
            "popn",
            "begin_forward",
            "end_forward",
            "clear",
        )
    }
    cache = vm["create_tir_paged_kv_cache"](*(shape([size]) for size in SIZES))
    seen: list[str] = []

    def forward(name: str, ids: list[int], sequences: list[int], lengths: list[int]) -> list[int]:
        state["begin_forward"](cache, shape(sequences), shape(lengths))
        x = vm["embed"](tensor(np.array(ids, "int32")), params).numpy()
        rows = len(sequences)
        x = x.reshape(rows, 1, -1) if name == "batch_decode" else x.reshape(1, len(ids), -1)
        logits = vm[name](tensor(x), cache, params)[0].numpy().reshape(rows, -1)
        state["end_forward"](cache)
        seen.append(hashlib.sha256(logits.tobytes()).hexdigest())
        return [int(i) for i in logits.argmax(axis=1)]

    def pages() -> None:
        seen.append(str(int(function("vm.builtin.attention_kv_cache_get_num_available_pages")(cache))))

    prompt = [int(i) for i in np.random.default_rng(2).integers(0, CONFIG["vocab"], 37)]
    state["add_sequence"](cache, 0)
    token = forward("prefill", prompt, [0], [len(prompt)])
    for _ in range(TOKENS):
        token = forward("decode", token, [0], [1])
    state["fork_sequence"](cache, 0, 1, 45)  # within a page
    pages()
    state["fork_sequence"](cache, 0, 2, -1)
    state["popn"](cache, 0, 5)
    pages()
    pair = token * 2
    for _ in range(8):
        pair = forward("batch_decode", pair, [0, 1], [1, 1])
    forward("prefill", prompt[:9], [2], [9])
    state["popn"](cache, 2, 9 + 37)  # across blocks that are shared
    pages()
    forward("decode", token, [2], [1])
    forward("batch_decode", token * 3, [2, 0, 1], [1, 1, 1])
    state["fork_sequence"](cache, 1, 3, 32)  # at the end of a page
    forward("prefill", prompt[:5], [3], [5])
    forward("batch_decode", token * 4, [3, 1, 2, 0], [1, 1, 1, 1])
    state["popn"](cache, 3, 6)  # a whole block
    state["popn"](cache, 3, 20)
    pages()
    forward("decode", token, [3], [1])
    for i in range(4):
        state["remove_sequence"](cache, i)
    pages()
    state["clear"](cache)
    return seen


def repair(kernels: Any) -> None:
    """Mend the kernel of attention of several queries over pages, which reads beyond a buffer of one number.

    LLVM hides that when it optimizes, since nothing can be outside; without the optimizer results are wrong.
    What is not called here is left out: two kernels for trees of tokens take long to compile.
    """
    file = str(inspect.getsourcefile(sys.modules[kernels._attention_prefill_cpu.__module__]))
    lines = [line.replace("scale_O[d_idx]", "scale_O[0]") for line in linecache.getlines(file)]
    size, time, _, name = linecache.cache[file]  # type: ignore[misc]
    linecache.cache[file] = size, time, lines, name
    unused = kernels._merge_state_inplace_cpu("float32")
    kernels.tree_attn_cpu = kernels.tree_attn_with_paged_kv_cache_cpu = lambda *_: unused


def make_module(target: Any) -> tuple[Any, Any]:
    """Return the model as a module of Relax, and its parameters with their names."""
    import tvm
    from tvm import relax as rx
    from tvm import te
    from tvm.relax.frontend import nn
    from tvm.relax.frontend.nn import op
    from tvm.relax.frontend.nn.llm import kv_cache as kernels
    from tvm.relax.frontend.nn.llm.kv_cache import PagedKVCache, RopeMode, TIRPagedKVCache

    try:
        from tvm.tirx import Var
    except ImportError:  # 0.23 and before
        from tvm.tir import Var

    c, text = CONFIG, getattr(rx, "StringImm", None) or tvm.ir.StringImm

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            self.qkv = nn.Linear(c["hidden"], (c["heads"] + 2 * c["kv_heads"]) * c["head_dim"], bias=False)
            self.out = nn.Linear(c["heads"] * c["head_dim"], c["hidden"], bias=False)
            self.up = nn.Linear(c["hidden"], 2 * c["ffn"], bias=False)
            self.down = nn.Linear(c["ffn"], c["hidden"], bias=False)
            self.norm1 = nn.RMSNorm(c["hidden"], -1, 1e-5, bias=False)
            self.norm2 = nn.RMSNorm(c["hidden"], -1, 1e-5, bias=False)

        def forward(self, x: Any, cache: Any, layer: int) -> Any:
            b, s, _ = x.shape
            qkv = op.reshape(self.qkv(self.norm1(x)), (b, s, c["heads"] + 2 * c["kv_heads"], c["head_dim"]))
            a = cache.attention_with_fused_qkv(layer, qkv, c["heads"], sm_scale=c["head_dim"] ** -0.5)
            x = x + self.out(op.reshape(a, (b, s, c["heads"] * c["head_dim"])))
            gate, up = op.split(self.up(self.norm2(x)), 2, axis=-1)
            return x + self.down(op.silu(gate) * up)

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            self.tokens = nn.Embedding(c["vocab"], c["hidden"])
            self.blocks = nn.ModuleList([Block() for _ in range(c["layers"])])
            self.norm = nn.RMSNorm(c["hidden"], -1, 1e-5, bias=False)
            self.head = nn.Linear(c["hidden"], c["vocab"], bias=False)

        def hidden(self, x: Any, cache: Any) -> Any:
            for i, block in enumerate(self.blocks):
                x = block(x, cache, i)
            return self.norm(x)

        def embed(self, ids: Any) -> Any:
            return self.tokens(ids)

        def prefill(self, x: Any, cache: Any) -> Any:
            h = self.hidden(x, cache)
            last = op.tensor_expr_op(
                lambda x: te.compute((1, 1, c["hidden"]), lambda i, _, k: x[i, x.shape[1] - 1, k]), "last", [h]
            )
            return self.head(op.reshape(last, (1, 1, c["hidden"]))), cache

        def decode(self, x: Any, cache: Any) -> Any:
            return self.head(self.hidden(x, cache)), cache

        def batch_decode(self, x: Any, cache: Any) -> Any:
            return self.head(self.hidden(x, cache)), cache

    packed = {"param_mode": "packed", "effect_mode": "none"}
    cache, n = nn.spec.Object(object_type=PagedKVCache), c["hidden"]
    shapes = {"prefill": [1, "length", n], "decode": [1, 1, n], "batch_decode": ["batch", 1, n]}
    spec: dict[str, Any] = {"embed": {"ids": nn.spec.Tensor(["length"], "int32"), "$": packed}}
    for name, extents in shapes.items():
        spec[name] = {"x": nn.spec.Tensor(extents, "float32"), "cache": cache, "$": packed}

    if target.kind.name == "llvm":
        repair(kernels)
    with target:
        model = Model()
        module, params = model.export_tvm(spec=nn.spec.ModuleSpec.from_raw(spec, model))[:2]
        bb = rx.BlockBuilder(module)
        names = ["max_batch_size", "max_total_seq_len", "prefill_chunk_size", "page_size", "support_sliding_window"]
        sizes = [Var(name, "int64") for name in names]
        shape_type = getattr(rx, "ShapeStructInfo", None) or rx.ShapeType
        number = getattr(rx, "PrimValue", None) or rx.prim_value
        parameters = [rx.Var(f"{size.name}_", shape_type([size])) for size in sizes]
        with bb.function("create_tir_paged_kv_cache", parameters):
            made = TIRPagedKVCache(
                "mha", *sizes, rx.ShapeExpr([0, c["layers"]]), c["layers"], c["heads"], c["kv_heads"], c["head_dim"],
                c["head_dim"], 0, 0, RopeMode.NORMAL, 1, 10000, {}, number(0), c["head_dim"], False, "float32", target,
            )  # fmt: skip
            bb.emit_func_output(made._expr)
        with bb.function("_metadata", []):
            bb.emit_func_output(text(json.dumps({"params": [{"name": name} for name, _ in params]})))
        return bb.finalize(), params


def make_weights(params: Any) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    weights = {}
    for name, parameter in params:
        extents = [int(extent) for extent in parameter.shape]
        values = np.ones(extents) if "norm" in name else rng.standard_normal(extents) * extents[-1] ** -0.5
        weights[name] = values.astype("float32")
    return weights


def build(folder: Path, mode: str) -> None:
    import tvm
    import tvm_ffi
    from tvm import relax as rx

    target = tvm.target.Target("llvm")
    module, params = make_module(target)
    with target:

        @tvm.transform.module_pass(opt_level=0)  # type: ignore[untyped-decorator]
        def pipeline(module: Any, _: Any) -> Any:
            from tvm.relax.backend.cpu_generic import pipeline as cpu

            passes = [rx.transform.FuseTransposeMatmul(), *cpu.library_dispatch_passes(target)]
            passes += [*cpu.legalize_passes(target), *cpu.dataflow_lower_passes(target), *cpu.finalize_passes(target)]
            return tvm.transform.Sequential(passes)(module)

        path = str(folder / "language.so")
        rx.build(module, target, relax_pipeline=pipeline, exec_mode=mode).export_library(path)

    weights = make_weights(params)
    write_shards(folder / "weights", weights)
    vm = rx.VirtualMachine(tvm.runtime.load_module(path), tvm.cpu())
    given = [tvm.runtime.tensor(w) for w in weights.values()]
    answers = history(vm, tvm.get_global_func, lambda extents: tvm_ffi.Shape(tuple(extents)), tvm.runtime.tensor, given)
    (folder / "history.json").write_text(json.dumps(answers))
    (folder / "params.json").write_text(json.dumps(list(weights)))


def write_shards(folder: Path, weights: dict[str, np.ndarray], size: int = 100_000) -> None:
    """Write weights as TVM's tools do: shards of about that size, and tensor-cache.json."""
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[dict[str, Any]] = []
    blobs: list[bytes] = []
    for name, values in weights.items():
        if not blobs or len(blobs[-1]) >= size:
            blobs.append(b"")
            shards.append({"dataPath": f"params_shard_{len(shards)}.bin", "format": "raw-shard", "records": []})
        shards[-1]["records"].append({
            "name": name, "shape": list(values.shape), "dtype": str(values.dtype), "format": "raw",
            "nbytes": values.nbytes, "byteOffset": len(blobs[-1]),
        })  # fmt: skip
        blobs[-1] += values.tobytes()
    for shard, blob in zip(shards, blobs, strict=True):
        shard |= {"nbytes": len(blob), "md5sum": hashlib.md5(blob, usedforsecurity=False).hexdigest()}
        (folder / shard["dataPath"]).write_bytes(blob)
    (folder / "tensor-cache.json").write_text(json.dumps({"metadata": {"ParamSize": len(weights)}, "records": shards}))


if __name__ == "__main__":
    os.environ["TVM_NUM_THREADS"] = "1"  # read when TVM is imported
    target_folder = Path(sys.argv[1])
    target_folder.mkdir(parents=True, exist_ok=True)
    CONFIG |= json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    build(target_folder, sys.argv[2])
