# SPDX-License-Identifier: Apache-2.0
"""Kernels for graphs, and executors of the graphs of models.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import portcall
from graph.models import Model, mlp_json, mlp_params
from portcall import graph
from portcall.rpc.server._session import register_standard_names
from rpc.conftest import tvm_port as tvm_port


@pytest.fixture
def lib(libraries: dict[str, Path]) -> portcall.Module:
    """The kernels of tests/kernels/graph_kernels.py."""
    return portcall.load_module(libraries["layers"])


@pytest.fixture
def mlp_module(lib: portcall.Module) -> graph.GraphModule:
    """An executor of ``mlp_json`` with its parameters."""
    made = graph.create(mlp_json(), lib, portcall.cpu())
    made.load_params(mlp_params())
    return made


@pytest.fixture
def logging_module(libraries: dict[str, Path]) -> graph.GraphModule:
    """An executor whose run calls portcall_test.log_value with ``x``, of three elements, and their number."""
    draft = Model()
    x = draft.input("x", (3,))
    draft.call("log_tensor", [x])
    return graph.create(draft.json(x), portcall.load_module(libraries["packed"]), portcall.cpu())


@pytest.fixture
def client_functions() -> Iterator[None]:
    """What servers register, for the time of one test."""
    before = set(portcall.list_global_func_names())
    register_standard_names()
    yield
    for name in set(portcall.list_global_func_names()) - before:
        portcall.remove_global_func(name)
