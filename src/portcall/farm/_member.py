# SPDX-License-Identifier: Apache-2.0
"""A farm of several processes: one leads, the others pass all connections on to it, and one of them takes over."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
from collections.abc import Callable
from typing import Any

from portcall.farm._access import Access
from portcall.farm._guests import Guest
from portcall.farm._hub import DeposedError
from portcall.farm._log import FarmLog
from portcall.farm._port import FORWARDED, NONCE, Port, listen, proof_of
from portcall.farm._redis import Leader, RedisStore
from portcall.farm._server import FarmOptions, Server
from portcall.farm._splice import Pipes, Spliced
from portcall.farm._store import StoreError
from portcall.rpc.wire._address import Address, parse_address

BEAT = 0.5  # seconds
PAUSE = 5.0  # after an error of the farm's own, or one while taking over: another process may be luckier
NOBODY = Leader("", "")
_CONNECT_TIMEOUT = 5.0


class Standby(Port):
    """Passes each connection on to the process that leads, with the address of the peer in front.

    What was passed on already it does not pass on again. It closes what comes while no process leads: peers try again.

    Parameters:
        leader: the process that leads.
    """

    def __init__(self, listener: socket.socket, leader: Leader, log: Callable[[str, str], None]) -> None:
        super().__init__(listener, {}, log=log)
        self._leader = leader
        self._pipes = Pipes()
        self._pairs: set[Spliced] = set()

    async def _begin(self, sock: socket.socket, guest: Guest) -> None:
        out = pair = None
        try:
            target = parse_address(self._leader.address if self._leader.secret else "")
            if await self._first_byte(sock) == FORWARDED[:1]:
                raise ConnectionAbortedError("it was passed on already")
            peer = f"{sock.getpeername()[0]} {socket.gethostname()}".encode()[:255]  # the name that it may have used
            out = await self._reach(target)
            await self._introduce(out, peer)
            if self._socket.fileno() < 0:
                raise ConnectionAbortedError("another process leads by now")
            pair = Spliced(self._pipes, sock, out, lambda nbytes: None, lambda: self._pairs.discard(pair))
            self._pairs.add(pair)
        except (OSError, TimeoutError, asyncio.TimeoutError, ValueError):
            pass  # it is gone; the peer tries again
        finally:
            guest.leave()  # the process that leads counts it
            for end in (sock, out) if pair is None else ():
                if end is not None:
                    end.close()

    async def _reach(self, target: Address) -> socket.socket:
        """Return a connection to the process that leads, by the first of its addresses that takes one.

        Raises:
            OSError: none does.
        """
        why: BaseException | None = None
        try:
            found = await self._loop.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
        except OSError as error:
            found, why = [], error
        for family, _, _, _, address in found:
            out = socket.socket(family, socket.SOCK_STREAM)
            try:
                out.setblocking(False)
                await asyncio.wait_for(self._loop.sock_connect(out, address), _CONNECT_TIMEOUT)
                return out
            except BaseException as error:
                out.close()
                if not isinstance(error, (OSError, asyncio.TimeoutError)):
                    raise
                why = error
        reason = getattr(why, "strerror", None) or "it does not answer"
        self._log("standby", f"cannot reach the process that leads, {target}: {reason}")
        raise ConnectionError(reason)

    async def _introduce(self, out: socket.socket, peer: bytes) -> None:
        """Prove to the process that leads that who says whose connection this is knows its secret."""

        async def introduce() -> None:
            await self._loop.sock_sendall(out, FORWARDED)
            nonce = await self._read(out, NONCE)
            secret = self._leader.secret.encode(errors="surrogateescape")
            await self._loop.sock_sendall(out, proof_of(secret, nonce, peer) + bytes([len(peer)]) + peer)

        try:
            await asyncio.wait_for(introduce(), _CONNECT_TIMEOUT)
        except (TimeoutError, asyncio.TimeoutError):
            text = f"the process that leads, {self._leader.address}, does not answer: it hangs, or has another version"
            self._log("standby", text)
            raise

    def close(self) -> None:
        super().close()
        for pair in list(self._pairs):
            pair.close()
        self._pipes.close()


def _ignore_deposed(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Say nothing of timers and connections that come too late: the process steps down already."""
    if not isinstance(context.get("exception"), DeposedError):
        loop.default_exception_handler(context)


class Member:
    """One process of a farm on Redis, in the running event loop.

    Raises:
        OSError, StoreError: it cannot listen there, or Redis does not answer.
    """

    def __init__(self, options: FarmOptions, log: FarmLog | None = None) -> None:
        self._listener = listen(options.host, options.port)
        host, port = self._listener.getsockname()[:2]
        self.address = Address(host, port)
        self.options = dataclasses.replace(options, port=port)
        self._written = log or FarmLog(silent=True)
        wild = host in ("0.0.0.0", "::")
        self.server: Server | None = None
        self._standby: Standby | None = None
        self._leader = NOBODY
        self._task: asyncio.Task[None] | None = None
        self._said = ""
        try:
            self.store = RedisStore(options.store, str(Address(socket.gethostname() if wild else host, port)))
        except BaseException:
            self._listener.close()
            raise

    async def start(self) -> Access | None:
        """Lead or stand by, from now on; return the tokens where this process leads."""
        asyncio.get_running_loop().set_exception_handler(_ignore_deposed)
        try:
            await self._step()
        except BaseException:
            await self.stop()
            raise
        self._task = asyncio.create_task(self._follow())
        return self.server.access if self.server is not None else None

    async def _follow(self) -> None:
        """Lead or stand by, whatever happens: what fails is tried again, and another process may do it meanwhile."""
        pause = BEAT
        while True:
            await asyncio.sleep(pause)
            try:
                await self._step()
                pause = BEAT
            except Exception as error:
                of_store = isinstance(error, (StoreError, DeposedError))
                self._log(*("store", str(error)) if of_store else ("error", f"{type(error).__name__}: {error}"))
                away = of_store and (self.server is not None or not self.store.leads)  # else taking over has failed
                pause = BEAT if away else PAUSE
                if away and self.server is not None:
                    self.server.hub.deposed = True  # it writes nothing more
                await self._step_down(resign=not away)

    async def _step(self) -> None:
        if self.server is not None:
            if self.server.hub.deposed or not self.store.beat():
                self._log("standby", self.server.hub.store_error or "another process of this farm has taken over")
                await self._step_down(resign=False)
        elif self.store.lead():
            self._stop_standing_by()
            listener = self._listener.dup()
            server = Server(self.options, self.store, listener, self.store.secret, self._written)
            try:
                await server.start()
            except BaseException:
                listener.close()
                raise
            self.server = server
            self.store.beat()
            self._log("leading", f"this process, {self.store.address}, leads the farm")
            if self._task is not None and server.access.required and not server.access.list():
                self._log(
                    "tokens", "the store has lost all tokens: stop all processes, then start one; it makes a token"
                )
        else:
            self._stand_by(self.store.leader())

    async def _step_down(self, resign: bool = True) -> None:
        server, self.server = self.server, None
        try:
            if server is not None:
                await server.stop()
        except Exception as error:
            self._log("error", f"{type(error).__name__}: {error}")
        with contextlib.suppress(StoreError):
            self.store.resign(tell=resign)
        if self._standby is None:
            self._stand_by(NOBODY)

    def _stand_by(self, leader: Leader) -> None:
        """Pass connections on to who leads; never to this process itself, or one that says that it has its address."""
        if leader.address == self.store.address:
            if not leader.mine:
                self._log("standby", f"a process that has ended, or another machine's, leads as {leader.address}")
            leader = NOBODY
        if leader != self._leader or self._standby is None:
            self._stop_standing_by()
            self._leader = leader
            self._standby = Standby(self._listener.dup(), leader, self._log)

    def _stop_standing_by(self) -> None:
        if self._standby is not None:
            self._standby.close()
            self._standby = None

    def _log(self, kind: str, text: str) -> None:
        """Say something once, however often it happens in a row."""
        if text != self._said:
            self._said = text
            self._written(kind, text)

    async def stop(self) -> None:
        """Close all connections, and let another process take over."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._step_down()
        self._stop_standing_by()
        self.store.close()
        self._listener.close()
