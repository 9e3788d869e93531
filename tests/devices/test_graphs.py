# SPDX-License-Identifier: Apache-2.0
"""Graphs on the host and a device, OpenCL by PoCL or CUDA by the fake driver; and where their time goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from devices.conftest import FakeDriver
from portcall import errors, graph, rpc

X = np.arange(1000, dtype="float32")


def negative(x: portcall.Tensor, out: portcall.Tensor) -> None:
    out.copyfrom(-x.numpy())


@pytest.fixture(params=["opencl", "cuda"])
def kind(request: pytest.FixtureRequest, driver: FakeDriver) -> str:
    return str(request.param)


def model_of(kind: str) -> Any:
    """Add on the device, negate on the host, add on the device again: -(x + x) + x, doubled."""
    builder = graph.GraphBuilder(device=kind)
    x = builder.input("x", X.shape)
    two = builder.call("add", [x, x], X.shape)
    here = builder.call("negative", [builder.copy(two, "cpu")], X.shape, device="cpu")
    there = builder.call("add", [builder.copy(here, kind), x], X.shape, name="last")
    builder.output(builder.call("add", [there, there], X.shape))
    return builder.graph()


@pytest.fixture
def library(kind: str, libraries: dict[str, Path]) -> portcall.Module:
    found = portcall.Module.from_functions({"negative": negative})
    found.import_module(portcall.load_module(libraries[kind]))
    return found


def test_graph_runs_on_the_host_and_a_device(kind: str, library: portcall.Module) -> None:
    model = graph.create(model_of(kind), library, [portcall.cpu(), portcall.device(kind)])
    model.run(x=X)
    np.testing.assert_array_equal(model.get_output(0).numpy(), -2 * X)
    again = model.clone()
    again.run(x=2 * X)
    np.testing.assert_array_equal(again.get_output(0).numpy(), -4 * X)


def test_graph_runs_on_the_host_and_a_device_of_a_session(kind: str, libraries: dict[str, Path]) -> None:
    builder = graph.GraphBuilder(device=kind)
    x = builder.input("x", X.shape)
    two = builder.copy(builder.call("add", [x, x], X.shape), "cpu")
    builder.output(builder.call("add", [builder.copy(two, kind), x], X.shape), two)
    with rpc.Server() as server, rpc.connect(server.address) as remote:
        lib = remote.load_module(remote.upload(libraries[kind]))
        model = graph.create(builder.graph(), lib, [remote.device("cpu"), remote.device(kind)])
        model.run(x=X)
        np.testing.assert_array_equal(model.get_output(0).numpy(), 3 * X)
        np.testing.assert_array_equal(model.get_output(1).numpy(), 2 * X)


def test_profile_has_the_devices_of_nodes(kind: str, library: portcall.Module) -> None:
    with graph.create_debug(model_of(kind), library, [portcall.cpu(), portcall.device(kind)]) as model:
        report = model.profile(x=X, warm_up=1)
        nodes = {node.name: node for node in report.nodes if node.duration}
        assert {node.device for node in nodes.values()} == {"cpu:0", f"{kind}:0"}
        assert nodes["last"].device == f"{kind}:0"
        measured = model.run_individual_node("last", number=2, repeat=2)
        assert all(seconds > 0 for seconds in measured.results)


def test_profile_asks_the_clock_of_the_device(libraries: dict[str, Path], driver: FakeDriver) -> None:
    builder = graph.GraphBuilder()
    x = builder.input("x", X.shape)
    builder.output(builder.call("add", [x, x], X.shape))
    lib = portcall.load_module(libraries["cuda"])
    failed = set()
    with graph.create_debug(builder.graph(), lib, portcall.cuda()) as model:
        model.run(x=X)
        driver.fail(0, 0)
        model.profile(warm_up=0)
        for call in range(1, driver.calls() + 1):
            driver.fail(call, 1)
            try:
                model.profile(warm_up=0)
            except errors.PortcallError:
                failed.add(driver.failed())
    assert "cuEventElapsedTime" in failed
