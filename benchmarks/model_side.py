# SPDX-License-Identifier: Apache-2.0
"""One side of a comparison of models, in a process of its own, which ``models.py`` starts and talks to.

    python benchmarks/model_side.py compile MODEL.onnx BUNDLE.so '{"target": "native", "winograd": "off"}'
    python benchmarks/model_side.py portcall|vm|onnxruntime|plain FILE FOLDER THREADS

``compile`` prints seconds and sizes as JSON. The others open a file, run it once on FOLDER/inputs.npz, write its
results to FOLDER/SIDE.npz, and print what that took. Then each line of the standard input is a number of runs, which
are timed and printed as a JSON list of milliseconds. ``vm`` is a model for the Relax VM, which takes its inputs in the
order of the file; ``plain`` is onnxruntime without its optimizations, which change how results are rounded.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Run = Callable[[], object]
Opened = tuple[Run, Callable[[], list[Any]], int]  # what runs, what gives results, bytes of weights and activations


def compile_model(model: str, bundle: str, options: str) -> dict[str, Any]:
    import portcall

    _ = portcall.compile.CompiledModel  # the import is not part of the time
    start, before = time.perf_counter(), processor_seconds()
    made = portcall.compile.onnx(model, check=False, **json.loads(options), runtime="graph")
    nbytes = made.save(bundle).stat().st_size
    times = {"compile": time.perf_counter() - start, "processor": processor_seconds() - before}
    return {**times, "file": nbytes, "kernels": dict(made.kernels)}


def processor_seconds() -> float:
    """Return the processor time of this process and the children that ended: other work does not lengthen it much."""
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def open_portcall(path: str, threads: int) -> Callable[[dict[str, Any]], Opened]:
    os.environ["PORTCALL_NUM_THREADS"] = str(threads)
    import portcall
    from portcall import graph

    def first(feeds: dict[str, Any]) -> Opened:
        executor = graph.GraphModule(portcall.load_module(path)["default"](portcall.cpu()))
        executor.run(**feeds)
        nbytes = graph.memory_report(executor.plan).nbytes
        outputs = range(executor.get_num_outputs())
        return executor["run"], lambda: [executor.get_output(index).numpy() for index in outputs], nbytes

    return first


def open_vm(path: str, threads: int) -> Callable[[dict[str, Any]], Opened]:
    os.environ["PORTCALL_NUM_THREADS"] = str(threads)
    import portcall
    from portcall import vm

    def first(feeds: dict[str, Any]) -> Opened:
        machine = vm.create(portcall.load_module(path))
        values = [portcall.tensor(array) for array in feeds.values()]
        found = machine(*values)
        results = found if isinstance(found, tuple) else (found,)
        return lambda: machine(*values), lambda: [value.numpy() for value in results], 0

    return first


def open_onnxruntime(path: str, threads: int, plain: bool = False) -> Callable[[dict[str, Any]], Opened]:
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    def first(feeds: dict[str, Any]) -> Opened:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        if plain:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        bound = session.io_binding()  # neither side copies inputs and results in each run
        for name, array in feeds.items():
            bound.bind_cpu_input(name, array)
        try:
            for output in session.get_outputs():
                bound.bind_output(output.name)
            session.run_with_iobinding(bound)
            session.run_with_iobinding(bound)
        except RuntimeError:  # a result has another shape than the model declares, or is no tensor: it cannot be bound
            return lambda: session.run(None, feeds), lambda: [*map(_tensor, session.run(None, feeds))], 0
        return lambda: session.run_with_iobinding(bound), lambda: [*map(_tensor, bound.copy_outputs_to_cpu())], 0

    return first


def _tensor(value: Any) -> Any:
    """Return a result as an array, of a dictionary for each row its values, as ZipMap makes them."""
    return np.array([list(row.values()) for row in value]) if isinstance(value, list) else value


SIDES = {
    "portcall": open_portcall,
    "vm": open_vm,
    "onnxruntime": open_onnxruntime,
    "plain": functools.partial(open_onnxruntime, plain=True),
}


def memory(field: str) -> int:
    """Return the resident bytes of this process now (VmRSS), or at most (VmHWM)."""
    (found,) = re.findall(rf"^{field}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    return int(found) * 1024


def pin() -> None:
    """Give the main thread the first processor and all others the next ones: a busy machine wakes them on one."""
    cpus = sorted(os.sched_getaffinity(0))
    others = itertools.cycle(cpus[1:] or cpus)
    for task in sorted(map(int, os.listdir("/proc/self/task"))):
        os.sched_setaffinity(task, {cpus[0] if task == os.getpid() else next(others)})


def serve(side: str, path: str, folder: str, threads: int) -> None:
    with np.load(Path(folder, "inputs.npz")) as given:
        feeds = {name: np.ascontiguousarray(given[name]) for name in given}
    opener = SIDES[side](path, threads)
    before, start = memory("VmRSS"), time.perf_counter()
    run, result, nbytes = opener(feeds)
    seconds = time.perf_counter() - start
    print(json.dumps({"start": seconds, "memory": memory("VmHWM") - before, "needed": nbytes}), flush=True)
    np.savez(Path(folder, f"{side}.npz"), *result())
    if threads > 1:
        pin()
    for line in sys.stdin:
        run()  # finds the other side's data in the caches
        times = []
        for _ in range(int(line)):
            begin = time.perf_counter()
            run()
            times.append((time.perf_counter() - begin) * 1e3)
        print(json.dumps(times), flush=True)


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    if what == "compile":
        print(json.dumps(compile_model(*words)))
    else:
        serve(what, words[0], words[1], int(words[2]))
