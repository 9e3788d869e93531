# SPDX-License-Identifier: Apache-2.0
"""Commands to a farm: one JSON object each way, by HTTP on a connection that is kept."""

from __future__ import annotations

import contextlib
import getpass
import http.client
import json
import os
import socket
import threading
from typing import Any

from portcall.errors import AuthenticationError, ConnectError, FarmError
from portcall.rpc.client._socket import open_socket
from portcall.rpc.wire._address import Address, parse_address
from portcall.rpc.wire._handshake import check_token
from portcall.rpc.wire._tls import TLSOptions

DEFAULT_PORT = 9190
CONNECT_TIMEOUT = 10.0
ANSWER_TIMEOUT = 20.0  # seconds beyond the time for which the farm may hold an answer back


class FarmChannel:
    """Asks a farm. Threads may share it: each has a connection of its own.

    Args:
        address: ``host:port``; the port may be left out. By default that of the environment variable PORTCALL_FARM.
        token: by default that of PORTCALL_FARM_TOKEN.
        tls: speak TLS.
        user: the name to give where the farm needs no token; by default that of this user.
    """

    def __init__(
        self, address: str = "", token: str | None = None, tls: TLSOptions | None = None, user: str = ""
    ) -> None:
        address = address or os.environ.get("PORTCALL_FARM", "")
        if not address:
            raise ValueError("no farm was named: give its address, host:port, or set PORTCALL_FARM")
        self.address: Address = parse_address(address, default_port=DEFAULT_PORT)
        self.token = check_token(token if token is not None else os.environ.get("PORTCALL_FARM_TOKEN", ""))
        self.tls = tls
        self.user = user or _user()
        self._local = threading.local()
        self._all: list[http.client.HTTPConnection] = []
        self._closed = False

    def call(self, what: str, hold: float = 0, **fields: Any) -> dict[str, Any]:
        """Give a command, and return the answer.

        Args:
            hold: seconds for which the farm may hold the answer back.

        Raises:
            ConnectError: the farm does not answer.
            AuthenticationError: it wants a token, or another one.
            FarmError: it refuses; ``reason`` is a word for programs.
        """
        body = json.dumps({"do": what, "user": self.user, **({"hold": hold} if hold else {}), **fields}).encode()
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        kept = getattr(self._local, "connection", None) is not None
        try:
            status, data = self._exchange(body, headers, hold)
        except (OSError, http.client.HTTPException) as error:
            self._drop()
            if not kept or self._closed:
                raise self._broken(error) from None
            try:  # the farm had closed the connection, or has started again
                status, data = self._exchange(body, headers, hold)
            except (OSError, http.client.HTTPException) as again:
                self._drop()
                raise self._broken(again) from None
        return self._read(status, data)

    def _exchange(self, body: bytes, headers: dict[str, str], hold: float) -> tuple[int, bytes]:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            sock = open_socket(self.address, CONNECT_TIMEOUT, self.tls)
            connection = http.client.HTTPConnection(self.address.host, self.address.port)
            connection.sock = sock
            self._local.connection = connection
            self._all.append(connection)
        connection.sock.settimeout(hold + ANSWER_TIMEOUT)
        connection.request("POST", "/api", body, headers)
        answer = connection.getresponse()
        return answer.status, answer.read()

    def _broken(self, error: Exception) -> ConnectError:
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
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            text = f"{peer} is not a farm, or needs TLS: it answered with status {status}"
            raise ConnectError(text, peer=peer, reason="farm")
        if status == 401:
            hint = "give token=, or set PORTCALL_FARM_TOKEN"
            raise AuthenticationError(
                f"the farm {peer}: {answer.get('error')}", peer=peer, reason="farm-token", hint=hint
            )
        if status != 200:
            raise FarmError(str(answer.get("error")), peer=peer, reason=str(answer.get("reason", "")))
        return answer

    def _drop(self) -> None:
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            self._local.connection = None
            with contextlib.suppress(ValueError):
                self._all.remove(connection)
            connection.close()

    def clone(self) -> FarmChannel:
        """Return another channel to the same farm."""
        return FarmChannel(str(self.address), self.token, self.tls, self.user)

    def close(self) -> None:
        """Close all connections; a thread that waits for an answer gets an error."""
        self._closed = True
        for connection in list(self._all):
            sock = connection.sock
            if sock is not None:
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
            connection.close()
        self._all.clear()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return str(os.getuid())
