# SPDX-License-Identifier: Apache-2.0
"""Executables of the Relax VM: time of an instruction, of loading, of importing, and memory, beside apache-tvm.

    python benchmarks/vm.py        (or: make bench-vm)

Both runtimes are in one process, and take turns: the smallest of many repeats counts. Loading and memory are measured
in processes of their own. The models are those of tests/scripts/compile_relax.py.
"""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COMPILE = ROOT / "tests" / "scripts" / "compile_relax.py"
FOLDER = ROOT / "build" / "bench" / "relax"
MODELS = ("chain", "chain_dynamic", "branch", "loop", "perceptron", "encoder")
LOADED = "squeezenet"
ROUNDS, NUMBER, LOADS, STARTS = 7, 300, 9, 5
TARGETS = {"instruction": 0.35, "load": 1.0, "memory": 0.2, "import": 0.1}

IN_TVM = """
import time; begin = time.perf_counter()
import tvm; from tvm import relax
imported = time.perf_counter() - begin
def load(path): return relax.VirtualMachine(tvm.runtime.load_module(path), tvm.cpu())
def call(machine, name, value): return machine[name](tvm.runtime.tensor(value)).numpy()
"""
IN_PORTCALL = """
import time; begin = time.perf_counter()
import portcall.vm
imported = time.perf_counter() - begin
def load(path): return portcall.vm.create(portcall.load_module(path))
def call(machine, name, value): return machine[name](value).numpy()
"""
REST = """
import json, pickle, sys
def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmRSS"))
name, value = pickle.loads(open(sys.argv[1], "rb").read())
times = []
for path in sys.argv[2:]:
    begin = time.perf_counter()
    machine = load(path)
    times.append(time.perf_counter() - begin)
call(machine, name, value)
print(json.dumps({"import": imported, "load": min(times[1:]), "memory": resident()}))
"""


def compiled() -> None:
    missing = [name for name in (*MODELS, LOADED) if not (FOLDER / f"{name}.pickle").exists()]
    if missing:
        subprocess.run([sys.executable, COMPILE, FOLDER, *missing], check=True)


def example(name: str) -> tuple[str, tuple[Any, ...]]:
    function, calls, _ = pickle.loads((FOLDER / f"{name}.pickle").read_bytes())
    return function, calls[0]


def run_times(name: str) -> dict[str, float]:
    """The time of a call in seconds: of both runtimes, and of TVM's compiled form."""
    import tvm
    from tvm import relax

    import portcall

    function, arguments = example(name)
    timed: dict[str, Callable[[], float]] = {}
    for mode in ("bytecode", "compiled"):
        theirs = relax.VirtualMachine(tvm.runtime.load_module(str(FOLDER / f"{name}-{mode}.so")), tvm.cpu())
        theirs.save_function(function, "saved", *map(tvm.runtime.tensor, arguments), include_return=False)
        evaluate = theirs.time_evaluator("saved", tvm.cpu(), number=NUMBER, repeat=1)
        timed[f"TVM {mode}"] = lambda evaluate=evaluate: evaluate().results[0]
        ours = portcall.vm.create(portcall.load_module(FOLDER / f"{name}-{mode}.so"))
        timed[f"portcall {mode}"] = lambda ours=ours: (
            ours.benchmark(*arguments, function=function, number=NUMBER, repeat=1).min
        )
    best = dict.fromkeys(timed, float("inf"))
    for _ in range(ROUNDS):
        for key, measure in timed.items():
            best[key] = min(best[key], measure())
    return best


def start(program: str) -> dict[str, float]:
    """Import, load copies of a model, and run it, in a new process."""
    function, arguments = example(LOADED)
    with tempfile.TemporaryDirectory() as folder:
        given = Path(folder, "given.pickle")
        given.write_bytes(pickle.dumps((function, arguments[0])))
        copies = [Path(folder, f"{i}.so") for i in range(LOADS)]
        for copy in copies:
            shutil.copy(FOLDER / f"{LOADED}-bytecode.so", copy)
        words = [sys.executable, "-c", program + REST, given, *copies]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def starts() -> tuple[dict[str, float], dict[str, float]]:
    """The smallest of several starts, of TVM and of portcall in turn."""
    pairs = [(start(IN_TVM), start(IN_PORTCALL)) for _ in range(STARTS)]
    theirs, ours = ({key: min(each[k][key] for each in pairs) for key in pairs[0][0]} for k in (0, 1))
    return theirs, ours


def main() -> int:
    compiled()
    print("| us a call | TVM, bytecode | TVM, compiled | portcall, bytecode | portcall, compiled | ratio of bytecode |")
    print("| --- | --- | --- | --- | --- | --- |")
    ratios = {}
    for name in MODELS:
        best = run_times(name)
        ratio = best["portcall bytecode"] / best["TVM bytecode"]
        ratios[name] = ratio
        keys = ("TVM bytecode", "TVM compiled", "portcall bytecode", "portcall compiled")
        print(f"| {name} | {' | '.join(f'{best[key] * 1e6:.2f}' for key in keys)} | {ratio:.2f} |")
    theirs, ours = starts()
    found = {"instruction": ratios["chain"], **{key: ours[key] / theirs[key] for key in ("load", "memory", "import")}}
    print("\n| | TVM | portcall | ratio | target |\n| --- | --- | --- | --- | --- |")
    print(f"| a chain of 100 tiny kernels | | | {found['instruction']:.2f} | {TARGETS['instruction']} |")
    for key, scale, unit in (("load", 1e3, "ms"), ("memory", 1e-6, "MB"), ("import", 1e3, "ms")):
        values = f"{theirs[key] * scale:.1f} {unit} | {ours[key] * scale:.1f} {unit}"
        print(f"| {key} | {values} | {found[key]:.2f} | {TARGETS[key]} |")
    missed = [key for key, target in TARGETS.items() if found[key] > target]
    print(f"\n{'missed: ' + ', '.join(missed) if missed else 'all targets are met'}")
    return len(missed)


if __name__ == "__main__":
    sys.exit(main())
