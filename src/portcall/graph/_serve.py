# SPDX-License-Identifier: Apache-2.0
"""What a server offers to clients that send graphs as JSON, which the core cannot read: those of TVM."""

from __future__ import annotations

from typing import Any

from portcall import Module, PackedFunc, get_global_func, register_func
from portcall.graph._plan import encode, plan
from portcall.graph._spec import Graph

CLIENT_FUNCTIONS = (
    "tvm.graph_executor.create",
    "tvm.graph_executor_debug.create",
    "tvm.graph_runtime.create",
    "tvm.graph_runtime_debug.create",
)
_SESSION_MASK = 128


def register_server_functions() -> None:
    """Register, in this process, the functions by which clients of TVM create executors.

    ``portcall serve`` does it by itself; of a server started from Python it is asked by name:
    ``rpc.Server(imports=["portcall.graph:register_server_functions"])``. Clients of portcall need none of this: they
    plan on their side, and every server's core runs plans.
    """
    for name in CLIENT_FUNCTIONS:
        register_func(name, create_for_client, override=True)


def create_for_client(graph_json: str, lib: Module, *rest: Any) -> Module:
    """Return the executor of a graph.

    Parameters:
        rest: device types and ids in turn; before them perhaps a function that finds weights in the library, see
            docs/graph.md. To types of devices of a session TVM adds multiples of 128.

    Raises:
        GraphError: it is not a graph, or one that cannot be run.
        ValueError: there are no devices, or a type without an id.
    """
    lookup = [part for part in rest[:1] if isinstance(part, PackedFunc)]
    numbers = rest[len(lookup) :]
    if not numbers or len(numbers) % 2:
        raise ValueError(f"device types and ids are expected in turn after the graph and the library, got {numbers}")
    flat = [number if k % 2 else number % _SESSION_MASK for k, number in enumerate(numbers)]
    planned = encode(plan(Graph.from_json(graph_json)))
    module: Module = get_global_func("portcall.graph.create")(planned, lib, *lookup, *flat)
    return module
