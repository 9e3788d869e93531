# SPDX-License-Identifier: Apache-2.0
"""Measure a server in JavaScript from outside: ``session.py HOST PORT KEY FOLDER``. Prints JSON.

Copies and calls go through the proxy that it joined; SqueezeNet runs there and here, in turns, for three machines.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

import portcall
from portcall import compile, graph, rpc

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from compile import light

ROUNDS = 20
COPY = 16 << 20  # bytes
HERE = ("native", "native:x86-64-v3", "native:x86-64-v2")


def best(call, rounds=ROUNDS):
    """Return the least seconds of a call."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def executor(module, device, inputs):
    made = graph.GraphModule(module["default"](device))
    made.set_input(inputs)
    made.run()
    return made


if __name__ == "__main__":
    host, port, key, folder = sys.argv[1:]
    model = light.load("squeezenet")
    inputs = light.inputs(model)
    bundle = compile.onnx(model, "wasm32").save(Path(folder, "squeezenet.wasm"))
    with rpc.connect(host, int(port), key) as session:
        nop = session.get_function("testing.nop")
        data = np.ones(COPY, "uint8")
        tensor = session.empty(COPY, "uint8")
        found = {
            "call_us": 1e6 * best(nop, 1000),
            "to_mib_s": COPY / 2**20 / best(lambda: tensor.copyfrom(data)),
            "from_mib_s": COPY / 2**20 / best(tensor.numpy),
        }
        session.upload(bundle)
        there = executor(session.load_module("squeezenet.wasm"), session.cpu(), inputs)
        here = {}
        for target in HERE:
            made = compile.onnx(model, target, check=False).save(Path(folder, f"squeezenet-{len(here)}.so"))
            here[target] = executor(portcall.load_module(made), portcall.cpu(), inputs)
        run = there.module.time_evaluator("run", session.cpu(), number=5, repeat=1)
        times = {"wasm32": []} | {target: [] for target in here}
        for _ in range(ROUNDS):
            times["wasm32"].append(run().mean)
            for target, each in here.items():
                times[target].append(each.module.time_evaluator("run", portcall.cpu(), number=5, repeat=1)().mean)
        found["error"] = float(np.abs(there.get_output(0).numpy() - here["native"].get_output(0).numpy()).max())
    print(json.dumps(found | {"squeezenet_ms": {target: 1e3 * min(each) for target, each in times.items()}}))
