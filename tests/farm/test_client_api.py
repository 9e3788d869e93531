# SPDX-License-Identifier: Apache-2.0
"""The client's other faces: TVM's names for it, asyncio, variables of the environment, servers of other languages."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import portcall
from farm.boards import board, client
from farm.running import RunningFarm, running_farm
from portcall import errors, rpc
from portcall.rpc.wire import _handshake


@pytest.fixture
def farm() -> Iterator[RunningFarm]:
    with running_farm() as farm, board(farm):
        yield farm


def idle(farm: RunningFarm) -> None:
    farm.until(lambda: farm.state.places["board"].state == "idle")


def test_request_session_ends_its_lease_when_closed_or_collected(farm: RunningFarm) -> None:
    with client(farm) as lab:
        with lab.request("k", session_timeout=30) as session:
            assert session["portcall.rpc.machine"] is not None
            assert [lease.ceiling for lease in farm.state.leases.values()] == [30]
        idle(farm)
        session = lab.request("k")
        del session
        idle(farm)


def test_request_tries_again_where_the_place_does_not_answer(
    farm: RunningFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_session = portcall.farm.Lease.session
    failures: list[errors.RPCError] = [errors.SessionTimeoutError("silent"), errors.ConnectError("refused")]

    def session(lease: portcall.farm.Lease, **options: Any) -> rpc.Session:
        if failures:
            raise failures.pop()
        return open_session(lease, **options)

    monkeypatch.setattr(portcall.farm.Lease, "session", session)
    with client(farm) as lab:
        lab.request("k", max_retry=2).close()
        failures.append(errors.SessionTimeoutError("silent"))
        with pytest.raises(errors.SessionTimeoutError):
            lab.request("k", max_retry=0)
        idle(farm)


def test_request_and_run_tries_again_after_a_lost_session_only(farm: RunningFarm) -> None:
    calls: list[str] = []

    def lose_once(session: rpc.Session) -> str:
        calls.append(session.name)
        if len(calls) == 1:
            raise errors.SessionBrokenError("lost")
        return "done"

    def fail(session: rpc.Session) -> None:
        calls.append("fail")
        raise ValueError("of the function")

    with client(farm) as lab:
        assert lab.request_and_run("k", lose_once) == "done"
        assert calls == ["board", "board"]
        with pytest.raises(ValueError, match="of the function"):
            lab.request_and_run("k", fail)
        assert calls[2:] == ["fail"]


def test_text_summary_has_the_form_of_tvms(farm: RunningFarm) -> None:
    idle(farm)
    with client(farm) as lab:
        summary = lab.summary()
        assert summary["queue_info"] == {"k": {"free": 1, "pending": 0}}
        assert [info["key"] for info in summary["server_info"]] == ["server:k"]
        assert "k: 1 free" in lab.text_summary()


def test_address_of_a_farm_may_be_that_of_its_page() -> None:
    with contextlib.closing(portcall.farm.FarmChannel("http://lab:80/, [::1]:90, other")) as channel:
        assert [str(each) for each in channel._addresses] == ["lab:80", "[::1]:90", "other:9190"]
    with pytest.raises(ValueError, match="'lab:80'"):
        portcall.farm.FarmChannel("https://lab:80/")


@pytest.mark.parametrize("names", [("PORTCALL_FARM", "PORTCALL_KEY"), ("TVM_TRACKER_HOST", "TVM_TRACKER_KEY")])
def test_variables_name_the_farm_and_the_key(
    farm: RunningFarm, monkeypatch: pytest.MonkeyPatch, names: tuple[str, str]
) -> None:
    for name in ("PORTCALL_FARM", "PORTCALL_KEY"):
        monkeypatch.delenv(name, raising=False)
    of_tvm = names[0].startswith("TVM")
    monkeypatch.setenv(names[0], farm.host if of_tvm else f"{farm.host}:{farm.port}")
    monkeypatch.setenv(names[1], "k")
    monkeypatch.setenv("TVM_TRACKER_PORT", str(farm.port))
    with portcall.farm.connect(token="") as lab, lab.lease() as lease:
        assert lease.place == "board"


def test_connect_farm_tries_the_second_address(farm: RunningFarm) -> None:
    with portcall.farm.connect(f"127.0.0.1:9,{farm.host}:{farm.port}", token="") as lab, lab.lease("k") as lease:
        assert lease.place == "board"


def test_connect_farm_async_leases_uses_and_releases(farm: RunningFarm) -> None:
    async def use() -> tuple[str, bool]:
        async with portcall.farm.connect_async(f"{farm.host}:{farm.port}", token="") as lab, lab.lease("k") as lease:
            async with lease.session() as one, lease.session() as two:
                found = await lease.run(lambda: (one["portcall.rpc.machine"], two["portcall.rpc.machine"]))
            return lease.place, None not in found

    assert asyncio.run(use()) == ("board", True)
    idle(farm)


def test_connect_farm_async_cancelled_request_is_withdrawn(farm: RunningFarm) -> None:
    async def use() -> None:
        async with portcall.farm.connect_async(f"{farm.host}:{farm.port}", token="") as lab, lab.lease("k"):

            async def wait() -> None:
                async with lab.lease("k"):
                    pass

            waiting = asyncio.create_task(wait())
            await asyncio.to_thread(farm.until, lambda: farm.state.queue.size == 1)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await asyncio.to_thread(farm.until, lambda: farm.state.queue.size == 0)

    asyncio.run(use())


@pytest.mark.parametrize(("seconds", "words"), [(30, ["-timeout=30"]), (2.5, ["-seconds=2.5", "-timeout=3"])])
def test_client_hello_timeout_is_whole_seconds_and_last(seconds: float, words: list[str]) -> None:
    text = _handshake.client_hello("k", session_timeout=seconds, nonce="0" * 32)[8:].decode().split()
    assert text[-1] == words[-1]
    assert [word for word in text if "seconds=" in word or "timeout=" in word] == words
    assert _handshake.parse_words(" ".join(text).encode(), "client").timeout == seconds


def test_connect_recognises_a_tvm_server_that_repeats_our_options() -> None:
    """TVM's server in Java does."""
    seen: list[Any] = []

    def serve(listener: socket.socket) -> None:
        with listener.accept()[0] as sock:
            code, size = struct.unpack("<ii", sock.recv(8, socket.MSG_WAITALL))
            text = sock.recv(size, socket.MSG_WAITALL)
            sock.sendall(struct.pack("<ii", code, size) + text)
            seen.append(sock.recv(8, socket.MSG_WAITALL))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        with pytest.raises(errors.SessionBrokenError):
            rpc.connect("127.0.0.1", listener.getsockname()[1], "android:0.5", token="")
        thread.join()
    assert len(seen[0]) == 8  # the session has begun


FORKS = """
import os, sys
import portcall

with portcall.farm.connect(sys.argv[1], token="", user="ann") as lab, lab.lease("k") as lease:
    lab.status()  # a connection is there
    pid = os.fork()
    if pid == 0:
        for _ in range(20):
            assert "places" in lab.status()
        with lease.session() as session:
            assert session["portcall.rpc.machine"] is not None
        sys.exit(0)  # it leaves the blocks
    for _ in range(20):
        lease.extend(60)
    assert os.waitpid(pid, 0)[1] == 0
    with lease.session() as session:
        assert session["portcall.rpc.machine"] is not None
"""


def test_copy_of_a_process_leaves_its_leases_and_connections(farm: RunningFarm) -> None:
    subprocess.run([sys.executable, "-c", FORKS, f"{farm.host}:{farm.port}"], check=True)
    idle(farm)
