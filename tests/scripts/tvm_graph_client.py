# SPDX-License-Identifier: Apache-2.0
"""A client of apache-tvm that runs a graph on our server, in a process without portcall.

tvm_graph_client.py PORT FOLDER LIBRARY; m.json and m.npz, arrays by name and the result y, are in FOLDER. LIBRARY is a
file, or the prefix of what is linked into the server.
"""

import sys
from pathlib import Path

import numpy as np
import tvm
from tvm import rpc

FOLDER, LIBRARY = Path(sys.argv[2]), Path(sys.argv[3])
JSON = (FOLDER / "m.json").read_text()
ARRAYS = dict(np.load(FOLDER / "m.npz"))
X, Y = ARRAYS.pop("x"), ARRAYS.pop("y")
REMOTE = rpc.connect("127.0.0.1", int(sys.argv[1]), key="k")
if LIBRARY.is_file():
    REMOTE.upload(str(LIBRARY))
LIB = REMOTE.load_module(LIBRARY.name) if LIBRARY.is_file() else REMOTE.get_function("ffi.SystemLib")(sys.argv[3])
DEV = REMOTE.cpu(0)


def create(name):
    return REMOTE.get_function(name)(JSON, LIB, DEV.dlpack_device_type(), DEV.index)


def close(output):
    np.testing.assert_allclose(output.numpy(), Y, rtol=1e-4, atol=1e-5)


def raised(function, *arguments):
    try:
        function(*arguments)
    except tvm.error.RPCError as error:
        return str(error)
    raise AssertionError("nothing was raised")


def executor():
    m = create("tvm.graph_executor.create")
    m["load_params"](tvm.runtime.save_param_dict(ARRAYS))
    m["set_input"]("x", tvm.runtime.tensor(X, DEV))
    m["run"]()
    close(m["get_output"](0))
    assert m["get_num_inputs"]() == 5
    assert m["get_num_outputs"]() == 1
    assert m["get_input_index"]("x") == 0
    np.testing.assert_array_equal(m["get_input"]("x").numpy(), X)
    out = tvm.runtime.empty(Y.shape, "float32", DEV)
    m["set_input"](0, tvm.runtime.tensor(0 * X, DEV))
    m["run"]()
    m["set_input"](0, tvm.runtime.tensor(X, DEV))
    m["run"]()
    m["get_output"](0, out)
    close(out)
    result = m.time_evaluator("run", DEV, number=5, repeat=3)()
    assert len(result.results) == 3
    assert result.mean > 0


def runtime():
    for name in ("tvm.graph_runtime.create", "tvm.graph_executor_debug.create", "tvm.graph_runtime_debug.create"):
        m = create(name)
        for key, value in {"x": X, **ARRAYS}.items():
            m["set_input"](key, tvm.runtime.tensor(value, DEV))
        m["run"]()
        close(m["get_output"](0))
        clone = m["clone"]()
        assert clone["get_num_inputs"]() == 5


def mistakes():
    make = REMOTE.get_function("tvm.graph_executor.create")
    assert "GraphError" in raised(make, "{}", LIB, 1, 0)
    m = create("tvm.graph_executor.create")
    assert "'x'" in raised(m["set_input"], "xx", tvm.runtime.tensor(X, DEV))
    assert "never set" in raised(m["run"])
    assert REMOTE.get_function("testing.echo")(1) == 1


executor()
runtime()
mistakes()
