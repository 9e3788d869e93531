# SPDX-License-Identifier: Apache-2.0
"""A farm of several processes: one leads, the others pass all connections on to it, and one of them takes over."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
import socket
from collections.abc import Callable

from portcall.farm._access import Access
from portcall.farm._port import FORWARDED, Port, listen
from portcall.farm._redis import RedisStore
from portcall.farm._server import FarmOptions, Server, log_of
from portcall.farm._splice import Pipes, Spliced
from portcall.farm._store import StoreError
from portcall.rpc.wire._address import Address, parse_address

BEAT = 0.5  # seconds
_CONNECT_TIMEOUT = 5.0


class Standby(Port):
    """Passes each connection on to the process that leads, with the address of the peer in front."""

    def __init__(self, listener: socket.socket, leader: str, secret: str, log: Callable[[str, str], None]) -> None:
        super().__init__(listener, {}, log=log)
        self._leader = leader
        self._said = FORWARDED + secret.encode()
        self._pipes = Pipes()
        self._pairs: set[Spliced] = set()

    async def _begin(self, sock: socket.socket) -> None:
        out = None
        try:
            target = parse_address(self._leader or ":0")
            peer = str(sock.getpeername()[0]).encode()
            info = await self._loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
            out = socket.socket(info[0][0], socket.SOCK_STREAM)
            out.setblocking(False)
            await asyncio.wait_for(self._loop.sock_connect(out, info[0][4]), _CONNECT_TIMEOUT)
            await self._loop.sock_sendall(out, self._said + bytes([len(peer)]) + peer)
        except (OSError, TimeoutError, asyncio.TimeoutError, ValueError):  # it is gone; the peer tries again
            sock.close()
            if out is not None:
                out.close()
            return
        pair = Spliced(self._pipes, sock, out, lambda nbytes: None, lambda: self._pairs.discard(pair))
        self._pairs.add(pair)

    def close(self) -> None:
        super().close()
        for pair in list(self._pairs):
            pair.close()
        self._pipes.close()


class Member:
    """One process of a farm on Redis, in the running event loop.

    Raises:
        OSError, StoreError: it cannot listen there, or Redis does not answer.
    """

    def __init__(self, options: FarmOptions) -> None:
        self._listener = listen(options.host, options.port)
        host, port = self._listener.getsockname()[:2]
        self.address = Address(host, port)
        self.options = dataclasses.replace(options, port=port)
        wild = host in ("0.0.0.0", "::")
        self.store = RedisStore(options.store, str(Address(socket.gethostname() if wild else host, port)))
        self.server: Server | None = None
        self._standby: Standby | None = None
        self._leader = ""
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> Access | None:
        """Lead or stand by, from now on; return the tokens where this process leads."""
        await self._step()
        self._task = asyncio.create_task(self._follow())
        return self.server.access if self.server is not None else None

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(BEAT)
            try:
                await self._step()
            except (StoreError, OSError) as error:
                self._log("store", str(error))
                await self._step_down()

    async def _step(self) -> None:
        if self.server is not None:
            if self.server.hub.deposed or not self.store.beat():
                self._log("standby", "another process of this farm has taken over")
                await self._step_down()
        elif self.store.lead():
            self._stop_standing_by()
            secret = self.store.fact("forward", "")
            if not secret:
                secret = secrets.token_hex(16)
                self.store.set_fact("forward", secret)
            self.server = Server(self.options, self.store, self._listener.dup(), secret)
            await self.server.start()
            self._log("leading", f"this process, {self.store.address}, leads the farm")
        else:
            leader = self.store.leader()
            if leader != self._leader or self._standby is None:
                self._stop_standing_by()
                self._leader = leader
                secret = self.store.fact("forward", "")
                self._standby = Standby(self._listener.dup(), leader, secret, self._log)

    async def _step_down(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            await server.stop()

    def _stop_standing_by(self) -> None:
        if self._standby is not None:
            self._standby.close()
            self._standby = None

    def _log(self, kind: str, text: str) -> None:
        log_of(self.options)(kind, text)

    async def stop(self) -> None:
        """Close all connections, and let another process take over."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self._stop_standing_by()
        led = self.server is not None
        await self._step_down()
        with contextlib.suppress(StoreError):
            if led:
                self.store.resign()
        self.store.close()
        self._listener.close()
