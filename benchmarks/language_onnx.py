# SPDX-License-Identifier: Apache-2.0
"""onnxruntime with the weights of a folder that language.py made: the same model in ONNX, with GroupQueryAttention.

    python benchmarks/language_onnx.py FOLDER PROMPT TOKENS

It prints what language.py prints of the others. Its keys and values are its own results, which it is given again.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

LONGEST = 1024


class Graph:
    """Collects the nodes of a model."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def weight(self, name: str, values: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def add(self, kind: str, inputs: list[str], *outputs: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, list(outputs), **attributes))
        return outputs[0]


def model_of(sizes: dict[str, int], w: dict[str, Any]) -> bytes:
    """Return the model with fused attention, as onnxruntime runs it."""
    g, width, keys = Graph(), sizes["head_dim"], sizes["kv_heads"]

    def norm(x: str, name: str) -> str:
        weight = g.weight(name, w[name])
        return g.add("SimplifiedLayerNormalization", [x, weight], f"{name}.y", axis=-1, epsilon=1e-5)

    def linear(x: str, name: str) -> str:
        return g.add("MatMul", [x, g.weight(name, w[name].T)], f"{name}.y")

    angles = np.arange(LONGEST)[:, None] * 10000.0 ** (-np.arange(0, width, 2) / width)
    turns = [g.weight(each.__name__, each(angles).astype("float32")) for each in (np.cos, np.sin)]
    inputs = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, [1, "length"]),
        helper.make_tensor_value_info("last", TensorProto.INT32, [1]),
        helper.make_tensor_value_info("all", TensorProto.INT32, []),
    ]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 1, sizes["vocab"]])]
    x = g.add("Gather", [g.weight("tokens", w["tokens.weight"]), "ids"], "x")
    for i in range(sizes["layers"]):
        at = f"blocks.{i}."
        for kind in ("k", "v"):
            for where, extent, into in (("past", "before", inputs), ("present", "after", outputs)):
                shape = [1, keys, extent, width]
                into.append(helper.make_tensor_value_info(f"{where}_{kind}{i}", TensorProto.FLOAT, shape))
        qkv = linear(norm(x, f"{at}norm1.weight"), f"{at}qkv.weight")
        attended = g.add(
            "GroupQueryAttention", [qkv, "", "", f"past_k{i}", f"past_v{i}", "last", "all", *turns],
            f"{at}a", f"present_k{i}", f"present_v{i}", domain="com.microsoft", num_heads=sizes["heads"],
            kv_num_heads=keys, do_rotary=1, scale=width**-0.5,
        )  # fmt: skip
        x = g.add("Add", [x, linear(attended, f"{at}out.weight")], f"{at}r")
        up = linear(norm(x, f"{at}norm2.weight"), f"{at}up.weight")
        g.add("Split", [up], f"{at}gate", f"{at}rest", axis=-1, num_outputs=2)
        gate = g.add("Mul", [f"{at}gate", g.add("Sigmoid", [f"{at}gate"], f"{at}s")], f"{at}silu")
        x = g.add("Add", [x, linear(g.add("Mul", [gate, f"{at}rest"], f"{at}m"), f"{at}down.weight")], f"{at}x")
    y = g.add("Gather", [norm(x, "norm.weight"), g.weight("end", np.array([-1]))], "y", axis=1)
    g.add("MatMul", [y, g.weight("head", w["head.weight"].T)], "logits")
    graph = helper.make_graph(g.nodes, "language", inputs, outputs, g.weights)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    made: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    return made


def main() -> None:
    folder, prompt, tokens = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    sizes = json.loads((folder / "sizes.json").read_text())
    w: dict[str, Any] = {}
    for shard in json.loads((folder / "weights" / "tensor-cache.json").read_text())["records"]:
        blob = np.fromfile(folder / "weights" / shard["dataPath"], "uint8")
        for r in shard["records"]:
            w[r["name"]] = blob[r["byteOffset"] :][: r["nbytes"]].view("float32").reshape(r["shape"])
    size, model = sum(values.nbytes for values in w.values()), model_of(sizes, w)
    w.clear()
    begin = time.perf_counter()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    nothing = np.zeros((1, sizes["kv_heads"], 0, sizes["head_dim"]), "float32")
    cache = {name.replace("present", "past"): onnxruntime.OrtValue.ortvalue_from_numpy(nothing) for name in names[1:]}
    seen = [0]

    def forward(ids: list[int]) -> int:
        seen[0] += len(ids)
        given = {"ids": np.array([ids]), "last": np.array([seen[0] - 1], "int32"), "all": np.array(seen[0], "int32")}
        io = session.io_binding()
        for name, array in given.items():  # it does not keep the arrays
            io.bind_cpu_input(name, array)
        for name, value in cache.items():
            io.bind_ortvalue_input(name, value)
        for name in names:
            io.bind_output(name)
        session.run_with_iobinding(io)
        logits, *kept = io.get_outputs()
        cache.update(zip(cache, kept, strict=True))
        return int(logits.numpy().argmax())

    before = time.perf_counter()
    token = forward(list(range(prompt)))
    times = [time.perf_counter()]
    prefill, first = times[0] - before, before - begin
    for _ in range(tokens):
        token = forward([token])
        times.append(time.perf_counter())
    decode = statistics.median(b - a for a, b in itertools.pairwise(times))
    resident = int(Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) * 1024
    print(json.dumps({"decode": decode, "prefill": prefill, "first": first, "memory": resident - size}))


if __name__ == "__main__":
    main()
