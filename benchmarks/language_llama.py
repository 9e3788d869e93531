# SPDX-License-Identifier: Apache-2.0
"""llama.cpp with the weights of a folder that language.py made, as a file of its own in float32.

    python benchmarks/language_llama.py FOLDER PROMPT TOKENS

It prints what language.py prints of the others, and what the library says of itself. Rotations are laid out in another
way there, so the tokens differ and the work is the same. The library is that of the package cyllama, with AVX2 and
FMA; those of llama-cpp-py-sync need glibc 2.38.
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


def write(folder: Path, sizes: dict[str, int]) -> Path:
    """Write the weights as GGUF, unless that is there."""
    import gguf

    path = folder / "model.gguf"
    if path.exists():
        return path
    w: dict[str, Any] = {}
    for shard in json.loads((folder / "weights" / "tensor-cache.json").read_text())["records"]:
        blob = np.fromfile(folder / "weights" / shard["dataPath"], "uint8")
        for r in shard["records"]:
            w[r["name"]] = blob[r["byteOffset"] :][: r["nbytes"]].view("float32").reshape(r["shape"])
    out = gguf.GGUFWriter(path.with_suffix(".part"), "llama")
    out.add_context_length(1024)
    out.add_embedding_length(sizes["hidden"])
    out.add_block_count(sizes["layers"])
    out.add_feed_forward_length(sizes["ffn"])
    out.add_head_count(sizes["heads"])
    out.add_head_count_kv(sizes["kv_heads"])
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_dimension_count(sizes["head_dim"])
    out.add_vocab_size(sizes["vocab"])
    out.add_tokenizer_model("llama")  # ids go in: the words do not matter
    out.add_token_list([f"t{i}".encode() for i in range(sizes["vocab"])])
    out.add_token_scores([0.0] * sizes["vocab"])
    out.add_token_types([1] * sizes["vocab"])
    named = {"token_embd": w["tokens.weight"], "output_norm": w["norm.weight"], "output": w["head.weight"]}
    heads, keys = (sizes[name] * sizes["head_dim"] for name in ("heads", "kv_heads"))
    for i in range(sizes["layers"]):
        each = {name: w[f"blocks.{i}.{name}.weight"] for name in ("qkv", "out", "up", "down", "norm1", "norm2")}
        q, k, v = np.split(each["qkv"], [heads, heads + keys])
        gate, up = np.split(each["up"], 2)
        parts = {
            "attn_q": q, "attn_k": k, "attn_v": v, "attn_output": each["out"], "attn_norm": each["norm1"],
            "ffn_gate": gate, "ffn_up": up, "ffn_down": each["down"], "ffn_norm": each["norm2"],
        }  # fmt: skip
        named |= {f"blk.{i}.{name}": values for name, values in parts.items()}
    for name, values in named.items():
        out.add_tensor(f"{name}.weight", np.ascontiguousarray(values))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    path.with_suffix(".part").rename(path)
    return path


def main() -> None:
    folder, prompt, tokens = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    sizes = json.loads((folder / "sizes.json").read_text())
    path = write(folder, sizes)
    begin = time.perf_counter()
    from cyllama.llama import llama_cpp as llama

    llama.set_log_callback(lambda *_: None)
    llama.llama_backend_init()
    model = llama.LlamaModel(str(path))
    options = llama.LlamaContextParams()
    options.n_ctx, options.n_threads, options.n_threads_batch = 256, 1, 1
    context = llama.LlamaContext(model, options)
    sampler = llama.LlamaSampler()
    sampler.add_greedy()
    seen = [0]

    def forward(ids: list[int]) -> int:
        context.decode(llama.llama_batch_get_one(ids, seen[0]))
        seen[0] += len(ids)
        return int(sampler.sample(context, -1))

    before = time.perf_counter()
    token = forward(list(range(prompt)))
    times = [time.perf_counter()]
    prefill, first = times[0] - before, before - begin
    for _ in range(tokens):
        token = forward([token])
        times.append(time.perf_counter())
    decode = statistics.median(b - a for a, b in itertools.pairwise(times))
    status = Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]
    size = path.stat().st_size
    found = {"decode": decode, "prefill": prefill, "first": first, "memory": int(status) * 1024 - size}
    print(json.dumps(found | {"says": f"ggml {llama.ggml_version()}, {llama.ggml_commit()}"}))


if __name__ == "__main__":
    main()
