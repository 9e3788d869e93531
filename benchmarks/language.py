# SPDX-License-Identifier: Apache-2.0
"""A language model beside apache-tvm: decode, prefill, the way to the first token, memory, the cache's own work.

    python benchmarks/language.py [small] [large]        (or: make bench-vm)

The library is the same for TVM and portcall, whose functions are called one by one; `language()` is the same with
portcall.vm.language, and `kernels` that with the library of portcall.compile.relax. llama.cpp and onnxruntime have the
same weights. Each has processes of its own, which take turns, on one
processor with one thread; the smallest time of several processes counts. The models are those of
tests/vm/language_model.py in two sizes.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
MAKE = ROOT / "tests" / "vm" / "language_model.py"
LLAMA = ROOT / "benchmarks" / "language_llama.py"
ONNX = ROOT / "benchmarks" / "language_onnx.py"
FOLDER = ROOT / "build" / "bench" / "language"
SIZES = {
    "small": {"layers": 4, "hidden": 256, "heads": 8, "kv_heads": 4, "head_dim": 32, "ffn": 688, "vocab": 2048},
    "large": {"layers": 4, "hidden": 512, "heads": 8, "kv_heads": 4, "head_dim": 64, "ffn": 1536, "vocab": 4096},
}
TARGETS = {"decode": 1.0, "prefill": 1.0, "first": 0.1, "memory": 0.2}
KERNELS = {  # beside others; what is not here has no target
    ("decode", "apache-tvm"): 0.2, ("decode", "llama.cpp"): 1.2, ("decode", "onnxruntime"): 1.1,
    ("prefill", "apache-tvm"): 0.1, ("prefill", "onnxruntime"): 1.5,
}  # fmt: skip
ROUNDS, PROMPT, TOKENS = 5, 128, 64

IN_TVM = """
import time; begin = time.perf_counter()
import tvm, tvm_ffi
from tvm import relax
get, tensor, shape = tvm.get_global_func, tvm.runtime.tensor, lambda *n: tvm_ffi.Shape(n)
def load(path): return relax.VirtualMachine(tvm.runtime.load_module(path), tvm.cpu())
"""
IN_PORTCALL = """
import time; begin = time.perf_counter()
import portcall, portcall.vm
get, tensor, shape = portcall.get_global_func, portcall.tensor, lambda *n: portcall.Shape(n)
def load(path): return portcall.vm.create(portcall.load_module(path))
"""
REST = """
import json, statistics, sys
import numpy as np
folder, prompt, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
machine = load(folder + "/language.so")
found = {}
for shard in json.load(open(folder + "/weights/tensor-cache.json"))["records"]:
    blob = np.fromfile(folder + "/weights/" + shard["dataPath"], "uint8")
    for r in shard["records"]:
        values = blob[r["byteOffset"]:][:r["nbytes"]].view("float32").reshape(r["shape"])
        found[r["name"]] = tensor(values)
size = sum(int(np.prod(v.shape)) * 4 for v in found.values())
params = [found[name] for name in json.load(open(folder + "/params.json"))]
del blob, values, found
cache = machine["create_tir_paged_kv_cache"](*(shape(n) for n in (1, 256, 128, 16, 0)))
start, end = (get("vm.builtin.kv_state_" + name) for name in ("begin_forward", "end_forward"))
get("vm.builtin.kv_state_add_sequence")(cache, 0)
def forward(name, ids):
    start(cache, shape(0), shape(len(ids)))
    x = machine["embed"](tensor(np.array(ids, "int32")), params).numpy()
    logits = machine[name](tensor(x.reshape(1, len(ids), -1)), cache, params)[0].numpy()
    end(cache)
    return int(logits.argmax())
before = time.perf_counter()
token = forward("prefill", list(range(prompt)))
times = [time.perf_counter()]
prefill, first = times[0] - before, before - begin
for _ in range(tokens):
    token = forward("decode", [token])
    times.append(time.perf_counter())
decode = statistics.median(b - a for a, b in zip(times, times[1:]))
with open("/proc/self/status") as status:
    resident = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))
print(json.dumps({"decode": decode, "prefill": prefill, "first": first, "memory": resident - size}))
"""
API = """
import time; begin = time.perf_counter()
import portcall.vm
import json, statistics, sys
folder, prompt, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
model = portcall.vm.language(folder + "/LIBRARY", folder + "/weights", tokens=256, chunk=128, sequences=1)
with model.sequence() as one:
    before = time.perf_counter()
    logits = one.feed(range(prompt))
    times = [time.perf_counter()]
    prefill, first = times[0] - before, before - begin
    for _ in range(tokens):
        logits = one.feed([int(logits.argmax())])
        times.append(time.perf_counter())
decode = statistics.median(b - a for a, b in zip(times, times[1:]))
size = sum(r["nbytes"] for s in json.load(open(folder + "/weights/tensor-cache.json"))["records"] for r in s["records"])
with open("/proc/self/status") as status:
    resident = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))
print(json.dumps({"decode": decode, "prefill": prefill, "first": first, "memory": resident - size}))
"""
COMPILE = """
import json, sys
sys.path.insert(0, sys.argv[1])
import language_model, portcall, tvm
language_model.CONFIG |= json.loads(sys.argv[3])
module, _ = language_model.make_module(tvm.target.Target("llvm"))
portcall.compile.relax(module, runtime="vm").save(sys.argv[2] + "/kernels.so")
"""


def compiled(name: str) -> Path:
    folder = FOLDER / name
    if not (folder / "params.json").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, MAKE, folder, "bytecode", json.dumps(SIZES[name])], check=True)
    made, rules = folder / "kernels.so", (ROOT / "src" / "portcall" / "compile").glob("*.py")
    if not made.exists() or made.stat().st_mtime < max(rule.stat().st_mtime for rule in rules):
        subprocess.run([sys.executable, "-c", COMPILE, str(MAKE.parent), folder, json.dumps(SIZES[name])], check=True)
    (folder / "sizes.json").write_text(json.dumps(SIZES[name]))
    return folder


def measured(program: list[str], folder: Path) -> dict[str, Any]:
    words = ["taskset", "-c", str(min(os.sched_getaffinity(0))), sys.executable, *program, folder]
    environment = os.environ | {"TVM_NUM_THREADS": "1", "PORTCALL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*words, str(PROMPT), str(TOKENS)], env=environment, capture_output=True, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    programs = {
        "apache-tvm": ["-c", IN_TVM + REST],
        "portcall": ["-c", IN_PORTCALL + REST],
        "language()": ["-c", API.replace("LIBRARY", "language.so")],
    }
    programs |= {"kernels": ["-c", API.replace("LIBRARY", "kernels.so")], "onnxruntime": [str(ONNX)]}
    if importlib.util.find_spec("cyllama") and importlib.util.find_spec("gguf"):
        programs["llama.cpp"] = [str(LLAMA)]
    else:
        print("llama.cpp is left out: pip install cyllama gguf")
    for name in sys.argv[1:] or SIZES:
        folder = compiled(name)
        if "llama.cpp" in programs:
            print(f"llama.cpp: {measured(programs['llama.cpp'], folder)['says']}")  # the first run writes its file
        runs: dict[str, list[dict[str, Any]]] = {each: [] for each in programs}
        for _ in range(ROUNDS):
            for each, program in programs.items():
                runs[each].append(measured(program, folder))
        best = {each: {key: min(run[key] for run in seen) for key in TARGETS} for each, seen in runs.items()}
        print(f"language model, {name} (load {os.getloadavg()[0]:.0f}): {', '.join(best)}; portcall beside apache-tvm")
        for key, target in TARGETS.items():
            unit, scale = ("MB", 1e-6) if key == "memory" else ("ms", 1e3)
            numbers = " ".join(f"{one[key] * scale:9.2f}" for one in best.values())
            ratio = best["portcall"][key] / best["apache-tvm"][key]
            print(f"  {key:8} {numbers} {unit}  {ratio:.2f} (target {target})", flush=True)
        for (key, other), target in KERNELS.items():
            if other in best:
                ratio = best["kernels"][key] / best[other][key]
                print(f"  kernels beside {other}, {key}: {ratio:.2f} (target {target})", flush=True)


if __name__ == "__main__":
    main()
