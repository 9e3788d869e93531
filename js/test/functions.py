# SPDX-License-Identifier: Apache-2.0
"""What the tests in JavaScript call on a server of portcall; tests/rpc/tvm_server.py has the same for TVM's."""

import os
import signal
import time

import numpy as np

import portcall


def fail(text):
    raise ValueError(text)


def double(x):
    x.numpy()[...] *= 2


def crash():
    os.kill(os.getpid(), signal.SIGABRT)


@portcall.register_object("demo.Point")
class Point(portcall.Object):
    x: int
    y: float


for name, function in {
    "add": lambda a, b: a + b,
    "adder": lambda n: lambda x: x + n,
    "fail": fail,
    "iota": lambda n: portcall.tensor(np.arange(n, dtype="float32")),
    "fill": lambda x, value: x.numpy().fill(value),
    "sum": lambda x: float(x.numpy().sum()),
    "array": lambda: portcall.Array([3, 4, 5]),
    "length": len,
    "same": lambda value: value,
    "point": lambda: Point(1, 2.5),
    "x_of": lambda point: point.x,
    "say": lambda text: print(text, flush=True),
    "nap": time.sleep,
    "crash": crash,
    "exit": lambda code: os._exit(code),
    "call": lambda f, x: f(x),
    "bytes": lambda x: bytes(x.numpy().tobytes()),
}.items():
    portcall.register_func(f"demo.{name}", function)
