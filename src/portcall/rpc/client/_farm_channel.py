# SPDX-License-Identifier: Apache-2.0
"""Commands to a farm: one JSON object each way, by HTTP on a connection that is kept."""

from __future__ import annotations

import contextlib
import copy
import getpass
import json
import os
import socket
import threading
from typing import Any

from portcall.errors import AuthenticationError, ConnectError, FarmError, RPCError, SessionTimeoutError
from portcall.rpc.client._socket import open_socket
from portcall.rpc.wire._address import Address, parse_address
from portcall.rpc.wire._facts import FARM_PORT
from portcall.rpc.wire._handshake import check_token
from portcall.rpc.wire._tls import TLSOptions

CONNECT_TIMEOUT = 10.0
ANSWER_TIMEOUT = 20.0  # seconds beyond the time for which the farm may hold an answer back
_MOST_HEAD = 64 << 10
_MOST_BODY = 256 << 20
_PIECE = 256 << 10


class FarmChannel:
    """Asks a farm. Threads may share it: each has its own connection.

    Parameters:
        address: ``host:port``; the port may be left out. A farm of several processes has several, separated by commas.
            By default that of the environment: PORTCALL_FARM, else TVM_TRACKER_HOST and TVM_TRACKER_PORT.
        token: by default that of PORTCALL_FARM_TOKEN.
        tls: speak TLS; by default where PORTCALL_FARM_CA names the file of an authority to trust.
        user: the name to give where the farm needs no token; by default that of this user.

    Raises:
        OSError: a file that TLS needs is not there, or not what it must be.
    """

    def __init__(
        self, address: str = "", token: str | None = None, tls: TLSOptions | None = None, user: str = ""
    ) -> None:
        address = address or address_of_environment()
        if not address:
            raise ValueError("no farm was named: give its address, host:port, or set PORTCALL_FARM")
        # That of its page will do, too.
        parts = (part.strip().removeprefix("http://").rstrip("/") for part in address.split(","))
        self._addresses = [parse_address(part, default_port=FARM_PORT) for part in parts]
        self.address: Address = self._addresses[0]
        self.token = check_token(token if token is not None else os.environ.get("PORTCALL_FARM_TOKEN", ""))
        ca = os.environ.get("PORTCALL_FARM_CA", "")
        self.tls = tls or (TLSOptions(ca=ca) if ca else None)
        if self.tls is not None:
            self.tls.context()
        self.user = user or _user()
        self._start()

    def _start(self) -> None:
        """Have no connections."""
        self._owner = os.getpid()
        self._local = threading.local()
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._busy: set[socket.socket] = set()
        self._closed = False

    def call(self, what: str, hold: float = 0, **fields: Any) -> dict[str, Any]:
        """Give a command, and return the answer.

        Parameters:
            hold: seconds for which the farm may hold the answer back.

        Raises:
            ConnectError: the farm does not answer.
            AuthenticationError: it wants a token, or another one.
            FarmError: it refuses; ``reason`` is a word for programs.
        """
        if os.getpid() != self._owner:  # a copy of the process that has the connections, and reads the answers there
            self._start()
        request = self._request({"do": what, "user": self.user, **({"hold": hold} if hold else {}), **fields})
        kept = getattr(self._local, "sock", None) is not None
        try:
            status, data = self._exchange(request, hold)
        except (OSError, EOFError, ValueError) as error:
            if not kept or self._closed:
                raise self._broken(error) from None
            try:  # the farm had closed the connection, or has started again
                status, data = self._exchange(request, hold)
            except (OSError, EOFError, ValueError) as again:
                raise self._broken(again) from None
        return self._read(status, data)

    def _request(self, command: dict[str, Any]) -> bytes:
        body = json.dumps(command).encode()
        token = f"Authorization: Bearer {self.token}\r\n" if self.token else ""
        head = (
            f"POST /api HTTP/1.1\r\nHost: {self.address}\r\n{token}"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode("latin-1", "replace") + body

    def _exchange(self, request: bytes, hold: float) -> tuple[int, bytes]:
        """Return status and body of the answer to one request; after an error the connection is closed.

        Raises:
            OSError, EOFError: the connection ended.
            ValueError: the peer does not speak HTTP.
        """
        sock: socket.socket = getattr(self._local, "sock", None) or self._connect()
        keep = False
        with self._lock:
            self._busy.add(sock)
        try:
            sock.settimeout(hold + ANSWER_TIMEOUT)
            sock.sendall(request)
            status, data, keep = self._read_answer(sock)
            return status, data
        finally:
            with self._lock:
                self._busy.discard(sock)
                keep = keep and not self._closed
                if not keep:
                    self._sockets.discard(sock)
            if not keep:
                self._local.sock = None
                sock.close()

    def _read_answer(self, sock: socket.socket) -> tuple[int, bytes, bool]:
        """Return status and body, and whether the connection goes on."""
        data = b""
        while (end := data.find(b"\r\n\r\n")) < 0:
            data += self._receive(sock, _MOST_HEAD - len(data))
        lines = data[:end].decode("latin-1").split("\r\n")
        words = lines[0].split()
        if not lines[0].startswith("HTTP/1.") or len(words) < 2:
            raise ValueError("it does not speak HTTP")
        parts = (line.partition(":") for line in lines[1:])
        headers = {name.strip().lower(): value.strip() for name, _, value in parts}
        body, size = bytearray(data[end + 4 :]), int(headers.get("content-length", "0"))
        if not 0 <= size <= _MOST_BODY:
            raise ValueError(f"its answer has {size} bytes (at most {_MOST_BODY})")
        while len(body) < size:
            body += self._receive(sock, _PIECE)
        return int(words[1]), bytes(body), headers.get("connection", "").lower() != "close"

    @staticmethod
    def _receive(sock: socket.socket, most: int) -> bytes:
        data = sock.recv(min(most, _PIECE)) if most > 0 else b""
        if not data:
            raise EOFError("it closed the connection")
        return data

    def _connect(self) -> socket.socket:
        """Connect to the first of the farm's processes that is there."""
        for number, address in enumerate(self._addresses):
            try:
                sock = open_socket(address, CONNECT_TIMEOUT, self.tls)
                break
            except (ConnectError, SessionTimeoutError):
                if number + 1 == len(self._addresses):
                    raise
        with self._lock:
            closed = self._closed
            if not closed:
                self._sockets.add(sock)
        if closed:
            sock.close()
            raise ConnectionAbortedError("we have closed it")
        self.address = address
        self._local.sock = sock
        return sock

    def _broken(self, error: Exception) -> RPCError:
        peer = str(self.address)
        hint = "is a farm running there? portcall farm"
        if isinstance(error, ConnectError):
            if error.reason != "refused":
                return error
            return ConnectError(f"the farm {peer} refused the connection", peer=peer, reason="no-farm", hint=hint)
        return ConnectError(f"the farm {peer} does not answer: {error}", peer=peer, reason="farm", hint=hint)

    def _read(self, status: int, data: bytes) -> dict[str, Any]:
        peer = str(self.address)
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict) or (status == 401 and answer.get("reason") != "token"):  # a proxy answered
            text = f"{peer} is not a farm, or needs TLS: it answered with status {status}"
            hint = "give the certificate of the farm, where it speaks TLS: PORTCALL_FARM_CA, or TLSOptions(ca=)"
            raise ConnectError(text, peer=peer, reason="farm-tls", hint=hint)
        if status == 401:
            hint = "give token=, or set PORTCALL_FARM_TOKEN"
            raise AuthenticationError(
                f"the farm {peer}: {answer.get('error')}", peer=peer, reason="farm-token", hint=hint
            )
        if status != 200:
            raise FarmError(str(answer.get("error")), peer=peer, reason=str(answer.get("reason", "")))
        return answer

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._closed

    def clone(self) -> FarmChannel:
        """Return another channel to the same farm."""
        channel = copy.copy(self)
        channel._start()
        return channel

    def close(self) -> None:
        """Close all connections; a thread that waits for an answer gets an error."""
        if os.getpid() != self._owner:
            self._start()
        with self._lock:
            self._closed = True
            for sock in self._sockets:
                if sock in self._busy:  # its thread closes it; what is below TLS is shut down, which any thread may do
                    with contextlib.suppress(OSError):
                        socket.socket.shutdown(sock, socket.SHUT_RDWR)
                else:
                    sock.close()
            self._sockets.clear()


def address_of_environment() -> str:
    """Return the address of the farm that the environment names; empty for none."""
    host = os.environ.get("TVM_TRACKER_HOST", "")
    tracker = f"{host}:{os.environ.get('TVM_TRACKER_PORT') or FARM_PORT}" if host else ""
    return os.environ.get("PORTCALL_FARM", "") or tracker


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return str(os.getuid())
