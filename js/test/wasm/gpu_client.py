# SPDX-License-Identifier: Apache-2.0
"""Send kernels and a graph for WebGPU to a tab, run and time them there: ``gpu_client.py WHO PORT KEY FOLDER``.

``WHO`` is portcall or tvm. Prints ``done``.
"""

import sys
from pathlib import Path

import numpy as np

import portcall.rpc
from portcall import graph


def check_kernels(remote, device, x, y, z, failure):
    """Use the kernels of gpu_kernels.py, on tensors of 1000 numbers."""
    kernels = remote.load_module("gpu.wasm")
    kernels["negate"](x, y)
    assert np.array_equal(y.numpy(), -x.numpy())
    kernels["scale_add"](x, y, z, 2.0, 10)
    assert np.array_equal(z.numpy()[10:], x.numpy()[10:])
    evaluate = kernels.time_evaluator("negate", device, number=3, repeat=2)
    assert all(seconds > 0 for seconds in evaluate(x, y).results)
    try:
        kernels["negate"](x, x)  # WebGPU has no buffer that is read and written
        y.numpy()
    except failure as error:
        assert "negate_kernel" in str(error)  # noqa: PT017
    else:
        raise AssertionError("no error came")
    y.numpy()


def main(who, port, key, folder):
    values = np.arange(1000, dtype="float32")
    if who == "tvm":
        import tvm
        import tvm.rpc

        remote = tvm.rpc.connect("127.0.0.1", port, key)
        remote.upload(str(folder / "gpu.wasm"))
        device = remote.device("webgpu")
        x = tvm.runtime.tensor(values, device)
        y, z = (tvm.runtime.empty((1000,), "float32", device) for _ in range(2))
        check_kernels(remote, device, x, y, z, Exception)
        return
    with portcall.rpc.connect("127.0.0.1", port, key) as remote:
        device = remote.device("webgpu")
        remote.upload(folder / "gpu.wasm")
        x = remote.tensor(values, device)
        y, z = (remote.empty((1000,), device=device) for _ in range(2))
        check_kernels(remote, device, x, y, z, portcall.errors.RemoteError)
        remote.upload(folder / "gpu_bundle.wasm", "bundle.wasm")
        model = graph.GraphModule(remote.load_module("bundle.wasm")["default"](device))
        model.run(x=np.ones(100, "float32"))
        assert np.allclose(model.get_output(0).numpy(), -(2 + np.linspace(-1, 0, 100)), atol=1e-6)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
    print("done")
