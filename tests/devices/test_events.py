# SPDX-License-Identifier: Apache-2.0
"""portcall.Event on every kind of device: the host, OpenCL by PoCL, CUDA by the fake driver, a session's."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from devices.conftest import FakeDriver
from devices.payloads import library_of, payload
from portcall import errors, rpc, toolchain

SLOW = b"""
#include <atomic>
extern "C" __global__ void k(long long* A) { while (!*(volatile long long*)A) std::this_thread::yield(); A[1] = A[0]; }
"""


@pytest.fixture(params=["cpu", "opencl", "cuda"])
def device(request: pytest.FixtureRequest, driver: FakeDriver) -> portcall.Device:
    return portcall.device(request.param)


@pytest.fixture
def remote(driver: FakeDriver) -> Iterator[rpc.Session]:
    with rpc.Server() as server, rpc.connect(server.address) as session:
        yield session


def test_event_waits_and_measures_on_each_kind_of_device(device: portcall.Device) -> None:
    stream = portcall.Stream(device)
    start, end = portcall.Event(device), portcall.Event(device)
    start.record()
    tensor = portcall.tensor(np.arange(4), device=device)
    end.record()
    end.sync()
    assert start.seconds_until(end) >= 0
    assert end.seconds_until(start) <= 0
    stream.wait(end)
    with stream:
        assert tensor.numpy().tolist() == [0, 1, 2, 3]
    start.record(stream)  # what it marked before is forgotten
    assert end.seconds_until(start) >= 0
    assert start.seconds_until(start) == 0


def test_event_that_was_not_recorded_is_a_value_error(device: portcall.Device) -> None:
    recorded, new = portcall.Event(device), portcall.Event(device)
    recorded.record()
    for use in (new.sync, lambda: portcall.Stream(device).wait(new), lambda: recorded.seconds_until(new)):
        with pytest.raises(ValueError, match="has not been recorded"):
            use()


def test_event_of_another_device_is_a_value_error(driver: FakeDriver) -> None:
    event, other = portcall.Event("cuda:0"), portcall.Event("cuda:1")
    event.record()
    other.record()
    uses = (
        lambda: event.seconds_until(other),
        lambda: portcall.Stream("cuda:1").wait(event),
        lambda: event.record(portcall.Stream("cuda:1")),
    )
    for use in uses:
        with pytest.raises(ValueError, match="cuda:1"):
            use()


def check_order(kernel: Any, device: portcall.Device) -> None:
    """Check that a stream waits for an event, and not for what follows it."""
    a = portcall.empty((2,), "int64", device=device).copyfrom(np.zeros(2, "int64"))
    first, second = portcall.Stream(device), portcall.Stream(device)
    event = portcall.Event(device)
    event.record(first)
    with first:
        kernel(a, 1)  # runs until the other stream has written
    second.wait(event)
    with second:
        a.copyfrom(np.array([5, 0]))
    event.record(first)
    event.sync()
    assert a.numpy().tolist() == [5, 5]


def test_stream_waits_for_an_event_and_not_for_what_follows_it(driver: FakeDriver) -> None:
    device = portcall.cuda(0)
    check_order(portcall.get_global_func("ffi.Module.load_from_bytes.cuda")(payload(SLOW, form=b"cuda"))["k"], device)


def test_events_are_freed(driver: FakeDriver) -> None:
    before = driver.live()
    events = [portcall.Event("cuda") for _ in range(3)]
    assert driver.live() == before + 3
    del events
    assert driver.live() == before


# ---- Sessions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["cpu", "opencl", "cuda"])
def test_event_of_a_session_has_the_clock_of_the_servers_device(kind: str, remote: rpc.Session) -> None:
    device = remote.device(kind)
    start, end, stream = portcall.Event(device), portcall.Event(device), portcall.Stream(device)
    with pytest.raises(ValueError, match="has not been recorded"):
        start.sync()
    start.record()
    tensor = remote.tensor(np.arange(1000), device)
    end.record(stream)
    end.sync()
    assert start.seconds_until(end) >= 0
    assert start.seconds_until(start) == 0
    other = portcall.Stream(device)
    other.wait(end)
    other.wait(stream)
    with other:
        assert tensor.numpy().sum() == 499500


def test_stream_of_a_session_waits_for_an_event_on_the_server(remote: rpc.Session, tmp_path: Path) -> None:
    blob = ",".join(map(str, library_of(payload(SLOW, form=b"cuda"))))
    (tmp_path / "k.c").write_text(f"const unsigned char __tvm_ffi__library_bin[] = {{{blob}}};")
    path = toolchain.create_shared(tmp_path / "k.c", tmp_path / "k.so")
    lib = remote.load_module(remote.upload(path))
    check_order(lib.get_function("k", True), remote.device("cuda"))


def test_event_of_a_server_without_events_orders_and_has_no_clock(remote: rpc.Session) -> None:
    remote._own["portcall.EventCreate"] = None  # as of a server of TVM
    event = portcall.Event(remote.device("opencl"))
    event.record()
    event.sync()
    portcall.Stream(remote.device("opencl")).wait(event)
    with pytest.raises(errors.DeviceError, match="time_evaluator"):
        event.seconds_until(event)


def test_event_cannot_be_pickled() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(portcall.Event("cpu"))
