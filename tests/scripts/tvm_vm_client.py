# SPDX-License-Identifier: Apache-2.0
"""A client of apache-tvm that runs executables on our server, in a process without portcall.

tvm_vm_client.py PORT FOLDER MODE; FOLDER has models as tests/scripts/compile_relax.py writes them.
"""

import pickle
import sys
from pathlib import Path

import numpy as np
import tvm
from tvm import relax, rpc

FOLDER, MODE = Path(sys.argv[2]), sys.argv[3]
REMOTE = rpc.connect("127.0.0.1", int(sys.argv[1]), key="k")
DEV = REMOTE.cpu()


def equal(value, expected):
    if isinstance(expected, tuple) and isinstance(expected[0], str):
        return True  # a shape stays on the server: TVM's client has no way to read it
    if isinstance(expected, tuple):
        return len(value) == len(expected) and all(map(equal, value, expected))
    return np.array_equal(value.numpy(), expected)


def run(name):
    function, calls, results = pickle.loads((FOLDER / f"{name}.pickle").read_bytes())
    path = FOLDER / f"{name}-{MODE}.so"
    REMOTE.upload(str(path))
    machine = relax.VirtualMachine(REMOTE.load_module(path.name), DEV)
    arguments = [tvm.runtime.tensor(value, DEV) for value in calls[0]]
    machine.set_input(function, *arguments)
    machine.invoke_stateful(function)
    assert equal(machine.get_outputs(function), results[0]), name
    names = [machine._get_function_param_name(function, i) for i in range(len(arguments))]
    machine.set_input(function, **dict(zip(names, arguments, strict=True)))
    machine.invoke_stateful(function)
    assert equal(machine.get_outputs(function), results[0]), name
    if isinstance(results[0], np.ndarray):
        assert equal(machine[function](*arguments), results[0]), name
    machine.save_function(function, "saved", *arguments, include_return=False)
    assert machine.time_evaluator("saved", DEV, number=2, repeat=2)().mean > 0
    assert machine.time_evaluator("invoke_stateful", DEV, number=2, repeat=2)(function).mean > 0


for each in ("perceptron", "encoder", "branch", "loop", "outputs"):
    run(each)
