# SPDX-License-Identifier: Apache-2.0
"""What a process of a farm says of connections that it passes on, with somebody in between who hears or changes it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from portcall.farm import _member
from portcall.farm._guests import Guest
from portcall.farm._member import Standby
from portcall.farm._port import FORWARDED, Port, listen
from portcall.farm._redis import Leader

SECRET = "5" * 32
PEER = "127.0.0.9"
Change = Callable[[bytes], bytes]


class Farm:
    """A process that leads, one that passes connections on, and a recorder between the two.

    Attributes:
        guests: whose connections the process that leads has taken, in its words.
        heard: what the second process has said to it, by connection.
        said: the logs of both.
    """

    def __init__(self, change: Change) -> None:
        self.guests: list[str] = []
        self.heard: list[bytes] = []
        self.said: list[tuple[str, str]] = []
        self._change = change

    async def start(self, stack: contextlib.AsyncExitStack, lead: Callable[..., Awaitable[None]] | None) -> None:
        log = lambda kind, text: self.said.append((kind, text))  # noqa: E731
        self.leader = Port(listen("127.0.0.1", 0), {b"HTTP": self._take}, secret=SECRET, patience=5, log=log)
        stack.callback(self.leader.close)
        between = await stack.enter_async_context(await asyncio.start_server(lead or self._pass_on, "127.0.0.1", 0))
        address = f"127.0.0.1:{between.sockets[0].getsockname()[1]}"
        self.standby = Standby(listen("127.0.0.1", 0), Leader(address, SECRET), log)
        stack.callback(self.standby.close)

    def _take(self, guest: Guest) -> asyncio.Protocol:
        self.guests.append(guest.address)
        return _Greeting()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(self.heard)
        self.heard.append(b"")
        with contextlib.closing(writer):
            from_leader, to_leader = await asyncio.open_connection("127.0.0.1", self.leader.port)
            with contextlib.closing(to_leader):

                async def answers() -> None:
                    with contextlib.suppress(ConnectionError):
                        while data := await from_leader.read(1000):
                            writer.write(data)
                        writer.close()

                back = asyncio.create_task(answers())
                with contextlib.suppress(ConnectionError):
                    while data := await reader.read(1000):
                        self.heard[number] += data
                        to_leader.write(self._change(data))
                to_leader.close()
                await back


class _Greeting(asyncio.Protocol):
    def connection_made(self, transport: Any) -> None:
        transport.write(b"welcome")
        transport.close()


@contextlib.asynccontextmanager
async def running(change: Change = lambda data: data, lead: Any = None) -> AsyncIterator[Farm]:
    async with contextlib.AsyncExitStack() as stack:
        farm = Farm(change)
        await farm.start(stack, lead)
        yield farm


async def ask(port: int, *said: bytes) -> bytes:
    """Return what is answered to one who comes from PEER."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(PEER, 0))
    with contextlib.closing(writer):
        writer.writelines(said)
        with contextlib.suppress(ConnectionResetError):
            return await reader.read()
        return b""


def test_forwarded_connection_comes_from_the_address_of_its_peer() -> None:
    async def run() -> None:
        async with running() as farm:
            assert await ask(farm.standby.port, b"GET / HTTP/1.1\r\n") == b"welcome"
            assert farm.guests == [PEER]
            assert SECRET.encode() not in farm.heard[0]

    asyncio.run(run())


def test_forwarded_connection_cannot_be_said_again() -> None:
    async def run() -> None:
        async with running() as farm:
            await ask(farm.standby.port, b"GET / HTTP/1.1\r\n")
            assert await ask(farm.leader.port, farm.heard[0]) != b"welcome"
            assert farm.guests == [PEER]

    asyncio.run(run())


@pytest.mark.parametrize(("old", "new"), [(b"127.0.0.9", b"127.0.0.1"), (b"127.0.0.9 ", b"127.0.0.9x")])
def test_forwarded_connection_cannot_be_given_another_address(old: bytes, new: bytes) -> None:
    async def run() -> None:
        async with running(lambda data: data.replace(old, new)) as farm:
            assert await ask(farm.standby.port, b"GET / HTTP/1.1\r\n") == b""
            assert farm.guests == []

    asyncio.run(run())


def test_processes_of_other_versions_refuse_each_other_and_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before there were nonces, the secret itself was said at once."""
    monkeypatch.setattr(_member, "_CONNECT_TIMEOUT", 0.1)

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            await reader.read()

    async def run() -> None:
        async with running(lead=lead) as farm:
            old = FORWARDED + SECRET.encode() + bytes([len(PEER) + 2]) + PEER.encode() + b" x"
            assert await ask(farm.leader.port, old, b"GET / HTTP/1.1\r\n") == b""
            assert [kind for kind, _ in farm.said] == ["refused"]
            assert await ask(farm.standby.port, b"GET / HTTP/1.1\r\n") == b""
            assert [kind for kind, _ in farm.said] == ["refused", "standby"]
            assert farm.guests == []

    asyncio.run(run())


def test_standby_tries_each_address_of_the_process_that_leads_and_says_where_none_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name often has an address of IPv6, too, where nobody listens."""
    usual, addresses = socket.getaddrinfo, list[tuple[str, int]]()

    def look_up(host: Any, *args: Any, **more: Any) -> Any:
        if host != "lab1":
            return usual(host, *args, **more)
        if not addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]

    async def run() -> None:
        async with running() as farm:
            farm.standby._leader = Leader(f"lab1:{farm.leader.port}", SECRET)
            assert await ask(farm.standby.port, b"GET / HTTP/1.1\r\n") == b""
            assert [kind for kind, _ in farm.said] == ["standby"]
            with socket.socket() as nobody:
                nobody.bind(("127.0.0.1", 0))
                addresses[:] = [nobody.getsockname(), ("127.0.0.1", farm.leader.port)]
                assert await ask(farm.standby.port, b"GET / HTTP/1.1\r\n") == b"welcome"

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    asyncio.run(run())
