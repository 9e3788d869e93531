# SPDX-License-Identifier: Apache-2.0
"""Commands of portcall's peers: ``POST /api``, JSON both ways. They come often, so they have a reader of their own.

Any other request, and one with unusual headers, goes to the HTTP server with the rest of its connection.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from portcall.farm._api import Api, ApiError
from portcall.farm._hub import DeposedError
from portcall.farm._port import hand_over

MOST_BODY = 1 << 20
_MOST_HEAD = 16 << 10
_BEGIN = b"POST /api HTTP/1.1\r\n"
_PATIENCE = 20.0  # seconds for a request that has begun
_IDLE = 120.0  # seconds between two requests
_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 409: "Conflict",
            410: "Gone", 503: "Service Unavailable"}  # fmt: skip


async def answer(api: Api, body: bytes, headers: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
    """Return status and answer of one command; ``headers`` have names in lower case."""
    try:
        command = json.loads(body.decode())
    except (ValueError, RecursionError):
        return 400, {"error": "the body is not JSON", "reason": "invalid"}
    if not isinstance(command, dict):
        return 400, {"error": "the body is not an object", "reason": "invalid"}
    if headers.get("origin") or headers.get("content-type", "").partition(";")[0] != "application/json":
        # No page of another site, in a browser that can reach the farm, is to give commands.
        return 403, {"error": "commands do not come from pages", "reason": "origin"}
    try:
        return 200, await api.call(command, bearer(headers.get("authorization", "")))
    except ApiError as error:
        return error.status, {"error": str(error), "reason": error.reason}


def bearer(header: str) -> str:
    """Return the token of an Authorization header, or an empty text."""
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


class Commands(asyncio.Protocol):
    """A connection that begins with a command.

    Parameters:
        api: answers.
        http: makes the protocol that takes over all other requests.
        all: all such connections; this one is added while it lasts.
    """

    def __init__(self, api: Api, http: Callable[[], asyncio.BaseProtocol], all: set[Commands]) -> None:
        self._all = all
        self._api = api
        self._http = http
        self._data = b""
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._all.add(self)
        self._expect(_PATIENCE)

    def _expect(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._transport.abort)

    def connection_lost(self, error: Exception | None) -> None:
        self._all.discard(self)
        self._expect(None)
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """End the connection, and what it waits for."""
        self._transport.abort()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def data_received(self, data: bytes) -> None:
        if not self._data and self._task is None:
            self._expect(_PATIENCE)
        self._data += data
        if self._task is None:
            self._take()
        elif len(self._data) > MOST_BODY:
            self._transport.abort()

    def _take(self) -> None:
        """Answer the next request, if it is complete."""
        end = self._data.find(b"\r\n\r\n")
        if not self._data.startswith(_BEGIN[: len(self._data)]) or (end < 0 and len(self._data) > _MOST_HEAD):
            self._leave_to_http()
            return
        if end < 0:
            return
        lines = self._data[len(_BEGIN) : end].decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        size = headers.get("content-length", "")
        usual = size.isdecimal() and len(size) < 8 and headers.get("connection", "keep-alive").lower() == "keep-alive"
        if not usual or int(size) > MOST_BODY or headers.keys() & {"transfer-encoding", "expect", "upgrade"}:
            self._leave_to_http()
            return
        stop = end + 4 + int(size)
        if len(self._data) >= stop:
            body, self._data = self._data[end + 4 : stop], self._data[stop:]
            self._expect(None)
            self._task = asyncio.get_running_loop().create_task(self._answer(body, headers))

    async def _answer(self, body: bytes, headers: dict[str, str]) -> None:
        try:
            status, value = await answer(self._api, body, headers)
        except DeposedError:  # the peer asks the process that has taken over
            self._transport.abort()
            return
        except Exception as error:  # a mistake of ours: of this command alone
            self._api.hub.log("error", f"a command failed: {type(error).__name__}: {error}")
            status, value = 500, {"error": "the farm made a mistake; its log says which", "reason": "internal"}
        data = json.dumps(value).encode()
        head = f"HTTP/1.1 {status} {_REASONS.get(status, 'Error')}\r\nContent-Type: application/json\r\n"
        self._task = None
        if not self._transport.is_closing():
            self._transport.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
            self._expect(_PATIENCE if self._data else _IDLE)
            self._take()

    def _leave_to_http(self) -> None:
        self._all.discard(self)
        self._expect(None)
        protocol: Any = self._http()
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        data, self._data = self._data, b""
        hand_over(protocol, data)
