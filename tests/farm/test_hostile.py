# SPDX-License-Identifier: Apache-2.0
"""What comes to an open port: scans, silence, garbage, endless headers. Others are served meanwhile."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from farm.boards import client
from farm.running import TRACKER, RunningFarm, running_farm
from portcall import errors

BEGINNINGS = [
    b"",
    b"\x71",
    b"GET ",
    b"POST /api HTTP/1.1\r\n",
    b"\x16\x03\x01",
    TRACKER,
    b"\x71\xf2\x0f\x00",
    b"\x01port",
]


@pytest.fixture
def farm() -> Iterator[RunningFarm]:
    with running_farm() as farm:
        yield farm


def connect(farm: RunningFarm) -> socket.socket:
    return socket.create_connection((farm.host, farm.port), timeout=30)


def is_served(farm: RunningFarm) -> bool:
    with client(farm) as lab:
        return not lab.status()["places"]


def test_scans_are_nothing(farm: RunningFarm) -> None:
    for _ in range(300):
        connect(farm).close()
    assert is_served(farm)


def test_garbage_ends_its_own_connection_only(farm: RunningFarm) -> None:
    choose = random.Random(1)
    for number in range(200):
        with connect(farm) as sock, contextlib.suppress(ConnectionError):
            sock.sendall(choose.choice(BEGINNINGS) + choose.randbytes(choose.randrange(1, 3000)))
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass
        assert number or is_served(farm)
    assert is_served(farm)


def test_silent_and_slow_peers_are_ended_and_keep_nobody_waiting(
    farm: RunningFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portcall.farm._connection._REQUEST_PATIENCE", 0.5)
    farm.server._port._patience = 0.5
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connect(farm)) for _ in range(200)]
        for number, sock in enumerate(slow):
            sock.sendall((b"", b"\x71", b"GE", b"POST /api HTTP/1.1\r\nX: ")[number % 4])
        assert is_served(farm)
        for sock in slow:
            with contextlib.suppress(ConnectionError):
                assert sock.recv(100)[:12] in (b"", b"HTTP/1.1 408")


@pytest.mark.parametrize("head", [b"POST /api HTTP/1.1\r\n", b"GET / HTTP/1.1\r\n"])
def test_endless_headers_are_refused(farm: RunningFarm, head: bytes) -> None:
    with connect(farm) as sock, contextlib.suppress(ConnectionError):
        sock.sendall(head)
        for _ in range(1000):
            sock.sendall(b"X: " + b"y" * 1000 + b"\r\n")
        assert b" 400 " in sock.recv(100)
    assert is_served(farm)


def test_endless_bodies_are_refused(farm: RunningFarm) -> None:
    with connect(farm) as sock, contextlib.suppress(ConnectionError):
        sock.sendall(b"POST /api HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 99999999\r\n\r\n")
        for _ in range(100):
            sock.sendall(os.urandom(1 << 20))
        assert b" 413 " in sock.recv(100)
    assert is_served(farm)


def test_farm_stop_ends_connections_that_said_nothing() -> None:
    farm = RunningFarm()
    with socket.create_connection((farm.host, farm.port), timeout=20) as sniffed:
        farm.until(lambda: farm.server._port._silent)
        with socket.create_connection((farm.host, farm.port), timeout=20) as accepted:
            farm.stop()
            for sock in (sniffed, accepted):
                with contextlib.suppress(ConnectionResetError):
                    assert sock.recv(1) == b""


@pytest.mark.parametrize("field", ["keys", "sessions"])
def test_place_with_endless_lists_is_refused(farm: RunningFarm, field: str) -> None:
    fields: dict[str, Any] = {"keys": ["k"], field: [str(n) for n in range(20_000)]}
    with client(farm) as lab, pytest.raises(errors.FarmError) as caught:
        lab._channel.call("register", place="b", **fields)
    assert caught.value.reason == "invalid"
    assert not farm.state.places


def test_reports_without_end_are_refused(farm: RunningFarm) -> None:
    with client(farm) as lab:
        agent = lab.command("register", place="b", keys=["k"])["agent"]
        with pytest.raises(errors.FarmError) as caught:
            lab.command("report", place="b", agent=agent, done=[{"what": "declined", "fence": 1}] * 10_000)
        assert caught.value.reason == "invalid"
        lab.command("report", place="b", agent=agent, done=[{"what": "declined", "fence": 1}] * 100)
