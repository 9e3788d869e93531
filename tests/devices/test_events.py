# SPDX-License-Identifier: Apache-2.0
"""portcall.Event on every kind of device: the host, OpenCL by PoCL, CUDA by the fake driver, a session's."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import portcall
from devices.conftest import FakeDriver
from devices.payloads import payload
from portcall import errors, rpc

SLOW = b"""
#include <atomic>
extern "C" __global__ void k(long long* A) { while (!*(volatile long long*)A) std::this_thread::yield(); A[1] = A[0]; }
"""


@pytest.fixture(params=["cpu", "opencl", "cuda"])
def device(request: pytest.FixtureRequest, driver: FakeDriver) -> portcall.Device:
    return portcall.device(request.param)


@pytest.fixture
def remote_cpu() -> Iterator[Any]:
    with rpc.LocalSession() as session:
        yield session.device("cpu")


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


def test_stream_waits_for_an_event_and_not_for_what_follows_it(driver: FakeDriver) -> None:
    device = portcall.cuda(0)
    kernel = portcall.get_global_func("ffi.Module.load_from_bytes.cuda")(payload(SLOW, form=b"cuda"))["k"]
    a, b = portcall.tensor([0, 0], device=device), portcall.tensor([1], device=device)
    first, second = portcall.Stream(device), portcall.Stream(device)
    event = portcall.Event(device)
    event.record(first)
    with first:
        kernel(a, 1)  # runs until the other stream has written
    second.wait(event)
    with second:
        a.copyfrom(portcall.tensor([5, 0]))
    event.record(first)
    event.sync()
    assert a.numpy().tolist() == [5, 5]
    assert b.numpy().tolist() == [1]


def test_events_are_freed(driver: FakeDriver) -> None:
    before = driver.live()
    events = [portcall.Event("cuda") for _ in range(3)]
    assert driver.live() == before + 3
    del events
    assert driver.live() == before


def test_event_of_a_session_orders_and_has_no_clock(remote_cpu: Any) -> None:
    event = portcall.Event(remote_cpu)
    event.record()
    event.sync()
    portcall.Stream(remote_cpu).wait(event)
    with pytest.raises(errors.DeviceError, match="time_evaluator"):
        event.seconds_until(event)


def test_event_cannot_be_pickled() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(portcall.Event("cpu"))
