# SPDX-License-Identifier: Apache-2.0
"""Compiled models beside onnxruntime: time of a run, size, time to compile, rounding.

    python benchmarks/models.py [--threads N] [--target native:haswell] [--seconds S] [MODEL...]

Models are the light ones of the onnx package, with random weights, and an encoder of a transformer. With one thread
both sides run in turns, in one process; with more each runs in a process of its own, since two pools of threads would
fight for the cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np

import portcall
from compile import encoder, light

BLOCK = 4  # runs of one side in a row: the first of them finds the other's data in the caches
FEWEST = 6  # blocks
ENCODER = "encoder"
COLUMNS = ("model", "direct", "Winograd", "onnxruntime", "direct / ort", "Winograd / ort", "error", "file", "compile")


def load(name: str) -> Any:
    return encoder.build(128, 256, 4, 4) if name == ENCODER else light.load(name)


def sides(model: Any, options: argparse.Namespace) -> tuple[dict[str, Callable[[], object]], dict[str, Any]]:
    """Return what is run, by name, and what is known of it."""
    feeds = light.inputs(model)
    session = reference(model, options.threads)
    (expected, *_) = session.run(None, feeds)
    runs: dict[str, Callable[[], object]] = {}
    facts: dict[str, Any] = {}
    for name, winograd in (("direct", "off"), ("Winograd", "auto")):
        if options.side not in ("", name):
            continue
        start = time.perf_counter()
        made = portcall.compile.from_onnx(
            model, options.target, winograd=winograd, threads=options.threads, check=False
        )
        facts["compile"] = time.perf_counter() - start
        with tempfile.TemporaryDirectory() as folder:
            facts["file"] = made.save(Path(folder, "m.so")).stat().st_size
        executor = made.load()
        executor.run(**feeds)
        got = executor.get_output(0).numpy()
        facts["error"] = float(np.abs(got - expected).max() / np.abs(expected).max())
        runs[name] = executor["run"]
    if options.side in ("", "onnxruntime"):
        runs["onnxruntime"] = lambda: session.run(None, feeds)
    return runs, facts


def reference(model: Any, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def measure(runs: dict[str, Callable[[], object]], seconds: float) -> dict[str, tuple[float, float]]:
    """Return minimum and median of each side, milliseconds."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + seconds
    blocks = 0
    while blocks < FEWEST or time.perf_counter() < end:
        blocks += 1
        for name, run in runs.items():
            run()
            for _ in range(BLOCK):
                start = time.perf_counter()
                run()
                times[name].append((time.perf_counter() - start) * 1e3)
    return {name: (min(found), statistics.median(found)) for name, found in times.items()}


def in_processes(name: str, options: argparse.Namespace) -> tuple[dict[str, tuple[float, float]], dict[str, Any]]:
    """Measure each side in a process of its own."""
    times, facts = {}, {}
    for side in ("direct", "Winograd", "onnxruntime"):
        words = [
            sys.executable,
            __file__,
            name,
            "--side",
            side,
            "--threads",
            options.threads,
            "--target",
            options.target,
        ]
        done = subprocess.run([*map(str, words), "--seconds", str(options.seconds)], capture_output=True, check=True)
        found = json.loads(done.stdout)
        times.update({key: tuple(pair) for key, pair in found["times"].items()})
        facts.update(found["facts"])
    return times, facts


def row(name: str, times: dict[str, tuple[float, float]], facts: dict[str, Any]) -> list[str]:
    ort = times["onnxruntime"]
    cells = [f"{low:.2f} / {middle:.2f}" for low, middle in (times["direct"], times["Winograd"], ort)]
    ratios = [f"{times[k][0] / ort[0]:.2f} / {times[k][1] / ort[1]:.2f}" for k in ("direct", "Winograd")]
    return [
        name,
        *cells,
        *ratios,
        f"{facts['error']:.1e}",
        f"{facts['file'] / 1e6:.1f} MB",
        f"{facts['compile']:.1f} s",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="*", default=[*light.NAMES, ENCODER])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--target", default="native")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--side", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        runs, facts = sides(load(options.models[0]), options)
        print(json.dumps({"times": measure(runs, options.seconds), "facts": facts}))
        return
    print(f"minimum / median, ms; {options.threads} thread(s), target {options.target}\n")
    print("| " + " | ".join(COLUMNS) + " |\n|" + " --- |" * len(COLUMNS), flush=True)
    for name in options.models:
        if options.threads == 1:
            runs, facts = sides(load(name), options)
            times = measure(runs, options.seconds)
        else:
            times, facts = in_processes(name, options)
        print("| " + " | ".join(row(name, times, facts)) + " |", flush=True)


if __name__ == "__main__":
    main()
