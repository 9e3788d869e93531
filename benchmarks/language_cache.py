# SPDX-License-Identifier: Apache-2.0
"""The own work of a language model's cache, beside apache-tvm's: kernels that do nothing, 4 layers, a token a sequence.

    python benchmarks/language_cache.py        (or: make bench-vm)

Each runtime has processes of its own, which take turns, on one processor; the smallest median of several counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

LAYERS, BATCHES, TOKENS, ROUNDS = 4, (1, 8), 400, 3
ROWS = ("a layer, with a token of each sequence (target 2)", "of which begin_forward, for all layers")

IN_TVM = """
import tvm, tvm_ffi
get, tensor, shape, array = tvm.get_global_func, tvm.runtime.tensor, tvm_ffi.Shape, tvm_ffi.Array
"""
IN_PORTCALL = """
import portcall
get, tensor, shape, array = portcall.get_global_func, portcall.tensor, portcall.Shape, list
get("portcall.LoadPlugin")("lm")
"""
REST = """
import json, statistics, sys, time
import numpy as np
layers, batch, tokens = map(int, sys.argv[1:])
nop, heads, keys, width = get("testing.nop"), 4, 2, 32
kernel = array(["tirx", nop])
cache = get("vm.builtin.paged_attention_kv_cache_create")(
    shape((batch, 8192, 64, 16, 0, 1024)), shape((0, layers)), heads, keys, width, width, shape([0] * layers), False, 1,
    1.0, 10000.0, None, tensor(np.zeros(1, "float32")), nop, nop, *[kernel] * 8, array([nop]), *[nop] * 4)
begin, end, add = (get("vm.builtin.kv_state_" + name) for name in ("begin_forward", "end_forward", "add_sequence"))
attend = get("vm.builtin.attention_kv_cache_attention_with_fused_qkv")
ids, ones = shape(range(batch)), shape([1] * batch)
for i in range(batch):
    add(cache, i)
qkv, out = (tensor(np.zeros((batch, n, width), "float32")) for n in (heads + 2 * keys, heads))
rows = []
for _ in range(tokens):
    times = [time.perf_counter()]
    begin(cache, ids, ones)
    times.append(time.perf_counter())
    for layer in range(layers):
        attend(cache, layer, 1.0, qkv, out)
    end(cache)
    times.append(time.perf_counter())
    rows.append(((times[2] - times[0]) / layers, times[1] - times[0]))
print(json.dumps([statistics.median(column) * 1e6 for column in zip(*rows)]))
"""


def measured(program: str, batch: int) -> list[float]:
    words = ["taskset", "-c", str(min(os.sched_getaffinity(0))), sys.executable, "-c", program + REST]
    words += [str(LAYERS), str(batch), str(TOKENS)]
    found: list[float] = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)
    return found


def main() -> None:
    print(f"a cache's own work: apache-tvm, portcall (load {os.getloadavg()[0]:.0f})")
    for batch in BATCHES:
        runs = [[measured(program, batch) for program in (IN_TVM, IN_PORTCALL)] for _ in range(ROUNDS)]
        for i, what in enumerate(ROWS):
            theirs, ours = (min(run[side][i] for run in runs) for side in (0, 1))
            print(f"  batch of {batch}: {theirs:6.2f} {ours:6.2f} us  {what}")


if __name__ == "__main__":
    main()
