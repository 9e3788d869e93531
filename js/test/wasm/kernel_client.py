# SPDX-License-Identifier: Apache-2.0
"""Send a library of kernels and a bundle to a server in JavaScript and run them there.

Usage: kernel_client.py portcall|farm|tvm HOST PORT KEY FOLDER. Prints ``done``.
"""

import contextlib
import sys
from pathlib import Path

import numpy as np

import portcall.rpc
from portcall import graph
from portcall.toolchain import create_shared


def check(module, x, y, cpu, missing):
    """Use test/wasm/kernels.c, which is loaded as ``module``."""
    module["exp"](x, y)
    assert np.allclose(y.numpy(), np.exp(x.numpy()), rtol=1e-6)
    assert module["workspace"]()
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


def check_graph(remote, bundle):
    """Run the graph of a bundle, and the same graph over the library alone, and time it."""
    remote.upload(bundle, "bundle.wasm")
    remote.upload(Path(bundle).with_name("kernels.wasm"), "k.wasm")
    x, w = np.linspace(-2, -1, 100, dtype="float32"), np.linspace(-1, 0, 100, dtype="float32")
    made = graph.GraphModule(remote.load_module("bundle.wasm")["default"](remote.cpu()))
    again = graph.create(graph.read_bundle(bundle).graph, remote.load_module("k.wasm"), remote.cpu())
    again.load_params({"w": w})
    for executor in (made, again, made.clone()):
        executor.run(x=x)
        assert np.allclose(executor.get_output("y").numpy(), np.exp(np.exp(x) + w), rtol=1e-6)
    timing = made.module.time_evaluator("run", remote.cpu(), number=2, repeat=3)()
    assert len(timing.results) == 3


if __name__ == "__main__":
    who, host, port, key, folder = sys.argv[1:]
    library = Path(folder, "kernels.wasm")
    data = np.linspace(-1, 1, 1000, dtype="float32")
    if who != "tvm":
        with contextlib.ExitStack() as stack:
            if who == "farm":
                farm = stack.enter_context(portcall.farm.connect(f"{host}:{port}"))
                remote = stack.enter_context(stack.enter_context(farm.lease(key)).session())
            else:
                remote = stack.enter_context(portcall.rpc.connect(host, int(port), key))
            assert (remote.machine().target, remote.machine().portcall) == ("wasm32", portcall.__version__)
            remote.upload(library, "k.wasm")
            check_upload(remote, Path(folder, "lacking.wasm"))
            check_graph(remote, Path(folder, "bundle.wasm"))
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
