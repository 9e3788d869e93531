# SPDX-License-Identifier: Apache-2.0
"""Farms for tests: in a thread of this process, with an event loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from portcall.farm._server import FarmOptions, Server

T = TypeVar("T")
TRACKER = b"\x71\xf2\x02\x00"


class RunningFarm:
    """A farm that runs; ``do`` calls something in its loop."""

    def __init__(self, **options: Any) -> None:
        self.options = FarmOptions(**{"port": 0, "store": ":memory:", "silent": True, **options})
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="farm")
        self._thread.start()
        self._ready.wait()
        if self._error is not None:
            self._thread.join()  # type: ignore[unreachable]
            raise self._error

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self.server = Server(self.options)
        try:
            self.address = await self.server.start()
        except BaseException as error:
            self._error = error
            return
        finally:
            self._ready.set()
        self.host, self.port = self.address.host, self.address.port
        await self._stopping.wait()
        await self.server.stop()

    def do(self, action: Callable[[], T]) -> T:
        """Call something in the farm's thread."""

        async def call() -> T:
            return action()

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(30)

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until something holds in the farm; the test's own time-out ends what never comes."""

        async def call() -> Any:
            while not (found := condition()):
                await asyncio.sleep(0.005)
            return found

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(120)

    @property
    def state(self) -> Any:
        return self.server.hub.state

    def pass_time(self, seconds: float) -> None:
        """Let the farm's clock jump."""

        def jump() -> None:
            self.server.hub._offset += seconds
            with self.server.hub.turn():
                pass

        self.do(jump)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()


@contextlib.contextmanager
def running_farm(**options: Any) -> Iterator[RunningFarm]:
    farm = RunningFarm(**options)
    try:
        yield farm
    finally:
        farm.stop()


class TrackerPeer:
    """A hand-made peer of the tracker's protocol."""

    def __init__(self, farm: RunningFarm, greet: bool = True) -> None:
        self.sock = socket.create_connection((farm.host, farm.port), timeout=20)
        if greet:
            self.sock.sendall(TRACKER)
            assert self.receive_exactly(4) == TRACKER

    def receive_exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.sock.recv(size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data

    def send(self, text: str) -> None:
        data = text.encode()
        self.sock.sendall(struct.pack("<i", len(data)) + data)

    def receive(self) -> str:
        (size,) = struct.unpack("<i", self.receive_exactly(4))
        return self.receive_exactly(size).decode()

    def ask(self, text: str) -> str:
        self.send(text)
        return self.receive()

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> TrackerPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
