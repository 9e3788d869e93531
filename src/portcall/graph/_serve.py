# SPDX-License-Identifier: Apache-2.0
"""What a server offers to clients that send graphs as JSON, which the core cannot read: those of TVM."""

from __future__ import annotations

from typing import Any

from portcall import Module, get_global_func, register_func
from portcall.graph._module import read_graph
from portcall.graph._plan import encode, plan

CLIENT_FUNCTIONS = (
    "tvm.graph_executor.create",
    "tvm.graph_executor_debug.create",
    "tvm.graph_runtime.create",
    "tvm.graph_runtime_debug.create",
)


def register_server_functions() -> None:
    """Register, in this process, the functions by which clients of TVM create executors.

    ``portcall serve`` does it by itself; of a server started from Python it is asked by name:
    ``rpc.Server(imports=["portcall.graph:register_server_functions"])``. Clients of portcall need none of this: they
    plan on their side, and every server's core runs plans.
    """
    for name in CLIENT_FUNCTIONS:
        register_func(name, create_for_client, override=True)


def create_for_client(graph_json: str, lib: Module, *devices: Any) -> Module:
    """Return the executor of a graph; ``devices`` are types and ids in turn.

    Raises:
        GraphError: the graph is none, or one that cannot be run.
        ValueError: there are no devices.
    """
    if not devices:
        raise ValueError("a device type and a device id are missing behind the graph and the library")
    module: Module = get_global_func("portcall.graph.create")(encode(plan(read_graph(graph_json))), lib, *devices)
    return module
