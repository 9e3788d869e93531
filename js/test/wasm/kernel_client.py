# SPDX-License-Identifier: Apache-2.0
"""Send a library of kernels to a server in JavaScript and run it there.

Usage: kernel_client.py portcall|farm|tvm HOST PORT KEY LIBRARY. Prints ``done``.
"""

import contextlib
import sys
from pathlib import Path

import numpy as np

import portcall.rpc
from portcall.toolchain import create_shared


def check(module, x, y, cpu, missing):
    """Use test/wasm/kernels.c, which is loaded as ``module``."""
    module["exp"](x, y)
    assert np.allclose(y.numpy(), np.exp(x.numpy()), rtol=1e-6)
    assert [module["count"](), module["count"]()] == [1, 2]
    assert len(module.time_evaluator("exp", cpu, number=2, repeat=3)(x, y).results) == 3
    for call, kind in [(lambda: module["nothing"], missing), (lambda: module["trap"](), Exception)]:
        try:
            call()
        except kind:
            continue
        raise AssertionError("no error came")
    assert module["count"]() == 3


def check_upload(remote, library):
    """A library with needs that the core does not meet is refused before it is sent."""
    source = library.with_suffix(".c")
    source.write_text("int nowhere(int); int twice(int x) { return nowhere(x); }")
    made = create_shared(source, library, target="wasm32")
    problems = []
    try:
        remote.upload(made)
    except portcall.errors.ModuleLoadError as error:
        problems = error.problems
    assert ["nowhere" in problem for problem in problems] == [True]


if __name__ == "__main__":
    who, host, port, key, library = sys.argv[1:]
    data = np.linspace(-1, 1, 1000, dtype="float32")
    if who != "tvm":
        with contextlib.ExitStack() as stack:
            if who == "farm":
                farm = stack.enter_context(portcall.rpc.connect_farm(f"{host}:{port}"))
                remote = stack.enter_context(stack.enter_context(farm.lease(key)).session())
            else:
                remote = stack.enter_context(portcall.rpc.connect(host, int(port), key))
            assert (remote.machine().target, remote.machine().portcall) == ("wasm32", portcall.__version__)
            remote.upload(library, "k.wasm")
            check_upload(remote, Path(library).with_name("lacking.wasm"))
            x, y = remote.tensor(data), remote.empty(1000, "float32")
            check(remote.load_module("k.wasm"), x, y, remote.cpu(), LookupError)
    else:
        import tvm
        from tvm import rpc

        remote = rpc.connect(host, int(port), key)
        remote.upload(library, "k.wasm")
        x, y = (tvm.runtime.tensor(array, remote.cpu(0)) for array in (data, np.zeros_like(data)))
        check(remote.load_module("k.wasm"), x, y, remote.cpu(0), AttributeError)
    print("done")
