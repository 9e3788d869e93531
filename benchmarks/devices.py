# SPDX-License-Identifier: Apache-2.0
"""Devices: what a launch costs, beside a loop in C over the same driver.

    python benchmarks/devices.py        (or: make bench-devices)

The kernel adds 64 floats, on OpenCL's first device. A round launches it 1,000 times and then waits; the wait is not in
the time. Rounds take turns in one process; the smallest counts.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "kernels"))

import libraries as kernel_libraries  # noqa: E402

import portcall  # noqa: E402
from portcall import graph, toolchain  # noqa: E402

LAUNCHES, ROUNDS, LENGTH = 1000, 150, 64
TARGETS = {"launch from Python": 2.0, "node over the driver's launch": 0.5}  # microseconds
LIBRARY = os.environ.get("PORTCALL_LIBOPENCL", "libOpenCL.so.1")


def driver_loop(folder: Path) -> Callable[[], float]:
    """Return a function that measures a round of the loop in C."""
    loop = ctypes.CDLL(str(toolchain.create_shared(ROOT / "benchmarks" / "opencl_loop.c", folder / "loop.so")))
    seconds = (ctypes.c_double * 1)()

    def measure() -> float:
        status = loop.measure_launches(LIBRARY.encode(), LAUNCHES, 1, seconds)
        if status:
            sys.exit(f"the loop in C failed with status {status}")
        return seconds[0]

    return measure


def python_loop(lib: portcall.Module, device: portcall.Device) -> Callable[[], float]:
    add = lib["add"]
    x = portcall.tensor(np.ones(LENGTH, "float32"), device=device)
    y = portcall.empty((LENGTH,), "float32", device)

    def measure() -> float:
        begin = time.perf_counter()
        for _ in range(LAUNCHES):
            add(x, x, y)
        seconds = time.perf_counter() - begin
        device.sync()
        return seconds

    return measure


def graph_run(lib: portcall.Module, device: portcall.Device) -> Callable[[], float]:
    builder = graph.GraphBuilder(device=device)
    x = value = builder.input("x", (LENGTH,))
    for _ in range(LAUNCHES):
        value = builder.call("add", [value, x], (LENGTH,))
    builder.output(value)
    model = graph.create(builder.graph(), lib, device)
    model.set_input("x", np.ones(LENGTH, "float32"))

    def measure() -> float:
        begin = time.perf_counter()
        model.run()
        seconds = time.perf_counter() - begin
        device.sync()
        return seconds

    return measure


def main() -> int:
    device = portcall.opencl(0)
    if not device.exist:
        sys.exit("no OpenCL: apt install pocl-opencl-icd ocl-icd-libopencl1")
    built = kernel_libraries.build_group("devices", ROOT / "build" / "test-libraries")
    lib = portcall.load_module(built["opencl"])
    with tempfile.TemporaryDirectory() as folder:
        measures = {
            "driver, in C": driver_loop(Path(folder)),
            "launch from Python": python_loop(lib, device),
            "node of a graph": graph_run(lib, device),
        }
        best = dict.fromkeys(measures, float("inf"))
        for _ in range(ROUNDS):
            for name, measure in measures.items():
                best[name] = min(best[name], measure() / LAUNCHES * 1e6)
    best["node over the driver's launch"] = best["node of a graph"] - best["driver, in C"]
    print(f"{device.device_name}, driver {device.driver_version}; microseconds, smallest of {ROUNDS} rounds")
    missed = 0
    for name, value in best.items():
        target = TARGETS.get(name)
        missed += target is not None and value > target
        print(f"{name:32} {value:7.2f}" + (f"   target {target:.2f}" if target is not None else ""))
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
