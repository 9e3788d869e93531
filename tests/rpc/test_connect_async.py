# SPDX-License-Identifier: Apache-2.0
"""Sessions that are opened while an event loop goes on, and what a cancelled opening leaves: nothing."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from portcall import errors, rpc
from portcall.rpc.client._deadline import Stop
from rpc.serving import Serving, serving, wait_until


def openings() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "portcall-connect"]


async def connecting(address: str, **options: Any) -> asyncio.Task[rpc.Session]:
    """The opening of a session that waits in the server's queue."""
    loop, queued = asyncio.get_running_loop(), asyncio.Event()

    def on_wait(what: str) -> None:
        if "in its queue" in what:
            loop.call_soon_threadsafe(queued.set)

    options["options"] = rpc.ConnectOptions(on_wait=on_wait)
    task = asyncio.ensure_future(rpc.connect_async(address, timeout=None, **options))
    waiting = asyncio.ensure_future(queued.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    assert waiting.done(), task.result()
    return task


def test_connect_async_waits_without_the_event_loop() -> None:
    with serving("--max-sessions", "1") as server:

        async def main() -> int:
            first = await rpc.connect_async(server.address, call_timeout=60)
            waiting = await connecting(server.address)
            first.close()
            with await waiting as second:
                return int(await second["demo.scale"].aio(2, 3))

        assert asyncio.run(main()) == 6


def test_connect_async_raises_what_connect_does(serving_functions: Serving) -> None:
    with pytest.raises(errors.KeyMismatchError):
        asyncio.run(rpc.connect_async(serving_functions.address, key="another"))
    with pytest.raises(ValueError, match="heartbeat"):
        asyncio.run(rpc.connect_async("a:1", options=rpc.ConnectOptions(heartbeat=0.5)))


def test_connect_async_that_is_cancelled_leaves_the_queue() -> None:
    with serving("--max-sessions", "1") as server, rpc.connect(server.address) as first:

        async def main() -> None:
            waiting = await connecting(server.address)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

        asyncio.run(main())
        wait_until(lambda: not openings())
        first.close()
        with rpc.connect(server.address) as second:
            assert second["demo.scale"](2, 3) == 6


def test_connect_async_that_is_cancelled_ends_each_step() -> None:
    """A server that says nothing: the handshake waits; and one that has gone from there is not asked again."""
    with socket.create_server(("127.0.0.1", 0)) as silent:

        async def main() -> None:
            task = asyncio.ensure_future(rpc.connect_async("127.0.0.1", silent.getsockname()[1], timeout=None))
            client, _ = await asyncio.to_thread(silent.accept)
            with client:
                assert await asyncio.to_thread(client.recv, 4)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                while await asyncio.to_thread(client.recv, 4096):
                    pass

        asyncio.run(main())
        wait_until(lambda: not openings())


def test_connect_async_that_is_cancelled_closes_what_was_opened() -> None:
    closed: list[str] = []
    stop = Stop()
    stop.at_stop(lambda: closed.append("before"))
    stop.stop()
    assert closed == ["before"]
    stop.at_stop(lambda: closed.append("after"))
    assert closed == ["before", "after"]
    ours, theirs = socket.socketpair()
    with ours, theirs, stop.cutting(ours):
        assert theirs.recv(1) == b""
