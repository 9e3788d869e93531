# SPDX-License-Identifier: Apache-2.0
"""Call every global function with what it does not expect, from the one named first on: ``call_everything.py [NAME]``.

Writes each name before it is called, so that the reader knows which one ended the process.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
from typing import Any

import portcall
import portcall.graph.ir
import portcall.rpc

ROUNDS = 60
# What would end or block this process when it is called as it should be.
MEANT = frozenset(
    ("portcall.rpc.ServeFds", "portcall.rpc.ServeSession", "portcall.rpc.ServeFunctions", "portcall.rpc.ConnectFds")
)


session = portcall.rpc.LocalSession()
remote, tensor, float32 = session.tensor([1.0, 2.0]), portcall.empty((2,), "float32"), portcall.dtype("float32")
module, nop = session.module, portcall.get_global_func("testing.nop")
# Of every kind.
VALUES = [
    None, 0, 1, -1, 2**62, 0.5, float("nan"), True, "", "x", b"x", [], [None], ["x"], {}, {"x": None}, print,
    KeyError("x"),
    portcall.Array([1]), portcall.Map({"a": 1}), float32, portcall.device("cpu"), tensor, portcall.tensor([1]), remote,
    session.cpu(), module, portcall.system_lib(), nop,
]  # fmt: skip
# Calls that are right: each of their arguments is exchanged for each of the values.
RIGHT = {
    "portcall.rpc.View": (remote, [1], float32, 4),
    "portcall.rpc.CopyTo": (remote, tensor),
    "portcall.rpc.CopyFrom": (remote, tensor),
    "portcall.rpc.CopyAmong": (remote, remote),
    "portcall.rpc.Empty": (module, [2], float32, 1, 0),
    "portcall.rpc.Device": (module, 1, 0),
    "portcall.rpc.DeviceAttr": (module, 1, 0, 0),
    "portcall.rpc.DeviceStream": (module, 3, portcall.cpu(), 0, 0),
    "portcall.rpc.SetCallTimeout": (module, 0.0),
    "portcall.rpc.SetExplain": (module, nop),
    "portcall.rpc.ConnectFunctions": (nop, nop, nop, "x", 0.0, []),
    "portcall.rpc.ModuleGetSource": (portcall.system_lib(), "c"),
    "portcall.rpc.ModuleFunctionNames": (portcall.system_lib(),),
    "portcall.rpc.ModuleFunctionIsCompiled": (nop,),
    "tvm.rpc.server.ModuleGetFunction": (portcall.system_lib(), "x", False),
    "ffi.ModuleGetFunction": (portcall.system_lib(), "x", False),
    "testing.apply": (nop, 1),
    "runtime.RPCTimeEvaluator": (portcall.system_lib(), "x", 1, 0, 1, 1, 0, 0, 0, 0, ""),
}


def main() -> None:
    sys.stdout = sys.stderr  # of what is called: the names alone go to the reader
    start = sys.argv[1] if len(sys.argv) > 1 else ""
    for name in sorted(portcall.list_global_func_names()):
        if name <= start:
            continue
        os.write(1, f"{name}\n".encode())
        draw = random.Random(name)
        function = portcall.get_global_func(name)
        rows: list[list[Any]] = [[None] * count for count in range(9)]
        right = RIGHT.get(name, ())
        rows += [[*right[:place], value, *right[place + 1 :]] for place in range(len(right)) for value in VALUES]
        if name not in MEANT:
            rows += [draw.choices(VALUES, k=draw.randrange(8)) for _ in range(ROUNDS)]
        for row in rows:
            with contextlib.suppress(Exception):  # which is what a wrong call is to give
                function(*row)
    os.write(1, b".\n")


if __name__ == "__main__":
    main()
