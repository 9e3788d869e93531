# SPDX-License-Identifier: Apache-2.0
"""One port for all: the first bytes of a connection say which protocol it speaks; TLS has the same inside.

71 f2 02 00   TVM's tracker          71 f2 0f 00   a session through the proxy
16 03         TLS                    letters       HTTP
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hmac
import secrets
import socket
import ssl
from collections.abc import Callable
from typing import Any

from portcall.farm._guests import Guest, Guests, names_of
from portcall.rpc.wire._tcp import tune

_HTTP = (b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PATC")
_SNIFFED = 4
_BACKLOG = 512
_AT_ONCE = 16  # connections that are accepted before those that are there have their turn
_PAUSE = 0.2  # seconds without accepting, where there are no descriptors left
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
_FULL_TEXT = b"this farm has no room for more connections\n"

# Makes the protocol of a connection. It tells the guest when it has shown that it may be here, and when it has ended.
Maker = Callable[[Guest], asyncio.BaseProtocol]

FORWARDED = b"\x01portcall"  # begins a connection that another process of the same farm passes on
NONCE, _PROOF = 16, 32  # bytes


class Sniffer(asyncio.Protocol):
    """Waits for the first bytes, and hands the connection on.

    Parameters:
        protocols: what makes the protocol for each beginning: a magic number, or ``b"HTTP"``.
        patience: seconds for the first bytes.
        guest: whose connection it is.
        silent: the connections that have said nothing yet.
    """

    def __init__(
        self, protocols: dict[bytes, Maker], patience: float, guest: Guest, silent: set[asyncio.Transport]
    ) -> None:
        self._protocols = protocols
        self._silent = silent
        self._patience = patience
        self._guest = guest
        self._data = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._silent.add(transport)
        self._guest.end = lambda why: transport.abort()
        self._timer = asyncio.get_running_loop().call_later(self._patience, transport.abort)

    def connection_lost(self, error: Exception | None) -> None:
        self._silent.discard(self._transport)
        self._guest.leave()
        self._timer.cancel()

    def data_received(self, data: bytes) -> None:
        self._data += data
        if len(self._data) < _SNIFFED:
            return
        self._silent.discard(self._transport)
        self._timer.cancel()
        first = self._data[:_SNIFFED]
        make = self._protocols.get(b"HTTP" if first in _HTTP else first)
        if make is None:
            self._transport.abort()
            return
        protocol: Any = make(self._guest)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        hand_over(protocol, self._data)


def hand_over(protocol: Any, data: bytes) -> None:
    """Give bytes that were read already to a protocol of either kind."""
    if not isinstance(protocol, asyncio.BufferedProtocol):
        protocol.data_received(data)
        return
    while data:
        buffer = protocol.get_buffer(len(data))
        size = min(memoryview(buffer).nbytes, len(data))
        memoryview(buffer)[:size] = data[:size]
        protocol.buffer_updated(size)
        data = data[size:]


class Port:
    """A listening socket that recognises the protocol of each connection.

    Parameters:
        listener: as ``listen`` returns it; it is closed at the end.
        protocols: as of ``Sniffer``.
        tls: speak TLS with who begins so.
        secret: of another process of this farm, which passes connections on; empty for none.
        patience: seconds for the first bytes, TLS included.
    """

    def __init__(
        self,
        listener: socket.socket,
        protocols: dict[bytes, Maker],
        *,
        tls: ssl.SSLContext | None = None,
        secret: str = "",
        patience: float = 10,
        log: Callable[[str, str], None] = lambda kind, text: None,
    ) -> None:
        self._protocols = protocols
        self._tls, self._secret = tls, secret.encode()
        self._patience = patience
        self._log = log
        self.guests = Guests()
        self._tasks: dict[asyncio.Task[None], socket.socket] = {}
        self._silent: set[asyncio.Transport] = set()
        self._socket = listener
        self.host, self.port = self._socket.getsockname()[:2]
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, peer = self._socket.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                if self.guests.dismiss_one():  # its descriptor is free soon
                    return
                self._log("overload", f"cannot accept a connection: {error}; trying again in {_PAUSE:g} s")
                self._loop.remove_reader(self._socket.fileno())
                self._loop.call_later(_PAUSE, self._resume)
                return
            sock.setblocking(False)
            with contextlib.suppress(OSError):
                tune(sock)
            if not self.guests.make_room(sock.fileno()):
                with contextlib.suppress(OSError):
                    sock.send(_FULL % (len(_FULL_TEXT), _FULL_TEXT))
                sock.close()
                continue
            self._welcome(sock, str(peer[0]))

    def _welcome(self, sock: socket.socket, address: str) -> None:
        guest = Guest(self.guests, address, lambda why: task.cancel())
        task = self._loop.create_task(self._begin(sock, guest))
        self._tasks[task] = sock

        def begun(task: asyncio.Task[None]) -> None:
            sock = self._tasks.pop(task)
            if task.cancelled():  # maybe before its first step
                sock.close()
            if sock.fileno() < 0:
                guest.leave()

        task.add_done_callback(begun)

    def _resume(self) -> None:
        if self._socket.fileno() >= 0:
            self._loop.add_reader(self._socket.fileno(), self._accept)

    async def _begin(self, sock: socket.socket, guest: Guest) -> None:
        try:
            first = await self._first_byte(sock) if self._tls or self._secret else b""
            if first == FORWARDED[:1] and self._secret:
                said = await asyncio.wait_for(self._forwarded(sock), self._patience)
                address, _, machine = said.partition(" ")
                guest.names = names_of(machine)
                guest.move(address)
                first = await self._first_byte(sock)
            guest.secure = self._tls is not None and first == b"\x16"
            await self._loop.connect_accepted_socket(
                lambda: Sniffer(self._protocols, self._patience, guest, self._silent),
                sock,
                ssl=self._tls if guest.secure else None,
                ssl_handshake_timeout=self._patience if guest.secure else None,
            )
        except (OSError, TimeoutError, asyncio.TimeoutError) as error:  # this peer left, or does not speak TLS
            sock.close()
            self._log("refused", f"a connection of {guest.address} ended before it said anything: {error}")
            error.__traceback__ = None  # its frames have a future that has it: all of TLS would stay for long

    async def _forwarded(self, sock: socket.socket) -> str:
        """Return what another process of this farm says in front: the peer's address, and a name of its machine.

        Raises:
            ConnectionError: it does not prove that it knows the secret.
        """
        begin = await self._read(sock, len(FORWARDED))
        nonce = secrets.token_bytes(NONCE)
        await self._loop.sock_sendall(sock, nonce)
        head = await self._read(sock, _PROOF + 1)
        peer = await self._read(sock, head[-1])
        if begin != FORWARDED or not hmac.compare_digest(head[:-1], proof_of(self._secret, nonce, peer)):
            raise ConnectionAbortedError("it passes a connection on without a proof, or in another version's way")
        return peer.decode("ascii", "replace")

    async def _read(self, sock: socket.socket, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = await self._loop.sock_recv(sock, size - len(data))
            if not piece:
                raise ConnectionAbortedError("it left")
            data += piece
        return data

    async def _first_byte(self, sock: socket.socket) -> bytes:
        """Look at the next byte, and leave it there."""
        ready = asyncio.Event()
        self._loop.add_reader(sock.fileno(), ready.set)
        try:
            await asyncio.wait_for(ready.wait(), self._patience)
            return sock.recv(1, socket.MSG_PEEK)
        finally:
            self._loop.remove_reader(sock.fileno())

    def close(self) -> None:
        """Take no more connections."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
        for task in list(self._tasks):
            task.cancel()
        for transport in list(self._silent):
            transport.abort()


def proof_of(secret: bytes, nonce: bytes, peer: bytes) -> bytes:
    """Return what proves that a process of the farm has said whose connection it passes on, now and there only."""
    return hmac.digest(secret, nonce + peer, "sha256")


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 takes a free one.

    Raises:
        OSError: it cannot listen there.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(_BACKLOG)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
    except socket.gaierror as error:
        raise OSError(f"cannot listen on '{host}': {error.strerror}") from None
    except OSError as error:
        hint = "; another program has it, --port 0 takes a free one" if error.errno == errno.EADDRINUSE else ""
        raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}{hint}") from None
    return sock
