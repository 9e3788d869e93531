# SPDX-License-Identifier: Apache-2.0
"""apache-tvm's own RPC server, for tests: ``python tvm_server.py KEY`` prints its port, and serves until stdin ends."""

from __future__ import annotations

import sys

from tvm import rpc


def register() -> None:
    """Runs in the server's process."""
    import time

    import numpy as np
    import tvm
    import tvm_ffi

    def fail(text):  # type: ignore[no-untyped-def]
        raise ValueError(text)

    functions = {
        "add": lambda a, b: a + b,
        "adder": lambda n: lambda x: x + n,
        "fail": fail,
        "iota": lambda n: tvm.runtime.tensor(np.arange(n, dtype="float32")),
        "fill": lambda x, value: x.copyfrom(np.full(x.shape, value, x.dtype)) and None,
        "sum": lambda x: float(x.numpy().sum()),
        "array": lambda: tvm_ffi.convert([3, 4, 5]),
        "length": len,
        "nap": time.sleep,
    }
    for name, function in functions.items():
        tvm_ffi.register_global_func(f"demo.{name}", function)  # type: ignore[arg-type]


if __name__ == "__main__":
    server = rpc.Server("127.0.0.1", 9091, 9999, key=sys.argv[1], silent=True, server_init_callback=register)
    print(server.port, flush=True)
    sys.stdin.read()
    server.terminate()
