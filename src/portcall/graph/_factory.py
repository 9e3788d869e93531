# SPDX-License-Identifier: Apache-2.0
"""Factories: modules that hold a graph with its parameters and make executors, ``factory["default"](device)``.

They come from bundles, from ``create_factory``, and from libraries into which TVM (0.7 to 0.19) linked a graph. Such a
library embeds, as bytes:

    string graph JSON, u64 n, u64 n, n names, n tensors as in a parameter blob, string name

where a string or a name is ``u64 length`` and that many bytes.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from portcall import Module, Tensor, get_global_func
from portcall._module import GRAPH_KINDS
from portcall.graph._module import GraphSource, read_graph
from portcall.graph._params import Cursor, MemorySource, ParamInfo, host_tensor, make_tensor, read_tensor
from portcall.graph._plan import Storage, encode, plan
from portcall.graph._spec import Graph
from portcall.inspect import embedded_payload

_WHAT = "the embedded graph"


@dataclass(frozen=True)
class EmbeddedGraph:
    """The graph that TVM linked into a library.

    Attributes:
        name: the function that makes executors.
        json: the graph as the compiler wrote it.
        params: what the parameters are, by name; their data begin at ``offset`` in what the library embeds.
    """

    name: str
    json: str
    params: Mapping[str, ParamInfo]

    @property
    def graph(self) -> Graph:
        """The graph.

        Raises:
            GraphError: it cannot be run.
        """
        return read_graph(self.json)


def read_embedded(path: str | os.PathLike[str]) -> EmbeddedGraph | None:
    """Return the graph that TVM linked into a library, None if it did not. The library is read, not loaded.

    Raises:
        GraphError: what the library embeds is damaged.
        ModuleLoadError: the file does not exist, or is not a library.
    """
    payload = embedded_payload(path, GRAPH_KINDS)
    return None if payload is None else _read(Cursor(MemorySource(payload), _WHAT))


def create_factory(
    graph_json: GraphSource,
    lib: Module | None,
    params: Mapping[str, Any] | None = None,
    *,
    name: str = "default",
    storage: Storage = "given",
) -> Module:
    """Return a module that holds a graph with its kernels and parameters, and makes executors of it.

    ``module[name](device, …)`` makes one; TVM's other functions of such a module are there too: ``get_graph_json``,
    ``get_graph_params``, ``debug_create`` and ``remove_params``. All executors use the same parameters: on the CPU in
    the memory that is given here, where it is aligned to 64 bytes, and on another device in one copy.

    Parameters:
        graph_json, storage: as for ``create``.
        lib: the kernels; with None the module must import them before it makes an executor.
        params: arrays or tensors by name; names that the graph does not have are ignored.

    Raises:
        GraphError: it is not a graph, or one that cannot be run.
        ArgumentError: a parameter is not an array.
    """
    graph = read_graph(graph_json)
    tensors = {key: host_tensor(value) for key, value in (params or {}).items()}
    return _create(encode(plan(graph, storage)), lib, graph.to_json(), tensors, name)


def from_bytes(payload: bytes) -> Module:
    """Return the factory that a library embeds; the code that decodes the library lets it import its kernels.

    Raises:
        GraphError: the bytes are damaged, or the graph cannot be run.
    """
    source = MemorySource(payload)
    cursor = Cursor(source, _WHAT)
    found = _read(cursor)
    cursor.expect_end()
    params = {name: make_tensor(source, info) for name, info in found.params.items()}
    return _create(encode(plan(found.graph)), None, found.json, params, found.name)


def _read(cursor: Cursor) -> EmbeddedGraph:
    json = cursor.text("the graph")
    count = cursor.number("the number of parameters")
    names = cursor.names()
    if count != len(names):
        raise cursor.fail(f"{count} parameters and {len(names)} names")
    params = {name: read_tensor(cursor, name) for name in names}
    return EmbeddedGraph(cursor.text("the name"), json, params)


def _create(planned: bytes, lib: Module | None, json: str, params: dict[str, Tensor], name: str) -> Module:
    module: Module = get_global_func("portcall.graph.create_factory")(planned, lib, json, params, name)
    return module
