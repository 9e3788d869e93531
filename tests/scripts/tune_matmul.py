# SPDX-License-Identifier: Apache-2.0
"""TVM's meta_schedule tunes a matrix product on a tracker's boards: ``tune_matmul.py HOST PORT KEY TRIALS STRATEGY``.

It prints a JSON object: the seconds of each kernel by a digest of it; how many failed; seconds of the plain kernel and
of the best one; and whether the best one's product is numpy's. It needs apache-tvm-ffi 0.1.14.post1: later
ones do not read the JSON of apache-tvm 0.27.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import rpc, te
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.builder import LocalBuilder
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig, RPCConfig, RPCRunner
from tvm.s_tir.meta_schedule.tir_integration import tune_tir

SIZE = 256
TARGET = {"kind": "llvm", "num-cores": 1}


def matmul() -> Any:
    """Return the plain loops of a product of two matrices."""
    a, b = (te.placeholder((SIZE, SIZE), "float32", name=name) for name in "ab")
    k = te.reduce_axis((0, SIZE), name="k")
    c = te.compute((SIZE, SIZE), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    return te.create_prim_func([a, b, c])


def measure(host: str, port: int, key: str, module: Any) -> tuple[float, bool]:
    """Return the seconds of a kernel on a board, and whether its product is numpy's."""
    library = Path(tempfile.mkdtemp()) / "matmul.so"
    tvm.compile(module, tvm.target.Target(TARGET)).export_library(str(library))
    session = rpc.connect_tracker(host, port).request(key, session_timeout=60)
    session.upload(str(library))
    kernel, device = session.load_module(library.name), session.cpu(0)
    inputs = [np.random.default_rng(seed).random((SIZE, SIZE), np.float32) for seed in (1, 2)]
    one, two, product = (tvm.runtime.tensor(x, device) for x in (*inputs, np.zeros_like(inputs[0])))
    seconds = kernel.time_evaluator("main", device, number=3, repeat=3)(one, two, product).median
    return seconds, bool(np.allclose(product.numpy(), inputs[0] @ inputs[1], rtol=1e-4))


def main(host: str, port: int, key: str, trials: int, strategy: Any) -> None:
    module = tvm.IRModule({"main": matmul().with_attr("global_symbol", "main")})
    runner = RPCRunner(RPCConfig(host, port, key, session_timeout_sec=60),
                       EvaluatorConfig(number=3, repeat=1, min_repeat_ms=10, enable_cpu_cache_flush=True))  # fmt: skip
    builder = LocalBuilder(
        max_workers=1, timeout_sec=3600
    )  # its first build imports TVM's intrinsics, for many seconds
    measured: list[Any] = []

    @derived_object
    class Keep(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc]
        def apply(self, scheduler: Any, task: int, candidates: Any, builds: Any, results: Any) -> None:
            for candidate, result in zip(candidates, results, strict=True):
                kernel = hashlib.sha256(str(candidate.sch.mod).encode()).hexdigest()[:8]
                measured.append((kernel, result.run_secs, result.error_msg))

    with tempfile.TemporaryDirectory() as folder:
        database = tune_tir(
            module, tvm.target.Target(TARGET), folder, trials, num_trials_per_iter=16, builder=builder,
            runner=runner, cost_model="random", strategy=strategy, seed=1, num_tuning_cores=1,
            measure_callbacks=[Keep(), ms.measure_callback.AddToDatabase()],
        )  # fmt: skip
        wrong = [str(error) for _, _, error in measured if error]
        if len(wrong) == len(measured):
            sys.exit(f"all {len(measured)} trials failed: {wrong[:1]}")
        schedule = ms.tir_integration.compile_tir(database, module, tvm.target.Target(TARGET))
    first, _ = measure(host, port, key, module)
    best, right = measure(host, port, key, schedule.mod)
    seconds = {kernel: float(times[0]) for kernel, times, error in measured if not error}
    print(json.dumps({"seconds": seconds, "failed": len(wrong), "first": first, "best": best, "right": right}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5])
