# SPDX-License-Identifier: Apache-2.0
"""What each HTTP request meets first: limits of time and size, the names that the farm answers to, errors in words."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Middleware

from portcall.farm._access import Access
from portcall.farm._guests import Guest
from portcall.farm._hub import DeposedError, Log

MOST_BODY = 1 << 20
COOKIE = "portcall-farm"
_MOST_GUEST_BODY = 16 << 10  # bytes from a client without a token: forms, pairing codes
_REQUEST_PATIENCE = 20.0  # seconds for a whole request, body included, from its first byte
_IDLE = 120.0  # seconds between two requests
_GUEST_IDLE = 10.0
_WRITE_PATIENCE = 60.0  # seconds for which a peer may take nothing of what is sent to it
_LINGER = 2.0  # seconds in which the rest of a refused body is read away
_REASONS = {408: "Request Timeout", 503: "Service Unavailable"}


class Connection(web.RequestHandler):
    """A connection of HTTP with limits of time.

    Parameters:
        manager: of the application's runner.
        guest: whose connection it is.
        log: called with a kind and a text.
    """

    def __init__(self, manager: web.Server, guest: Guest, log: Log) -> None:
        super().__init__(
            manager,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=_IDLE,
            access_log=None,  # type: ignore[arg-type]
            lingering_time=_LINGER,
            auto_decompress=False,  # a few bytes would be a thousand times as many; no client sends such
        )
        self.guest = guest
        self._log = log
        self._known = False
        self._reading = False  # a request has begun and is not complete
        self._busy = False  # it is being answered
        self._more = False  # the next one has begun meanwhile
        self._slow = False  # it may take what is sent to it as slowly as it likes
        self._until: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.guest.end = self._dismiss
        self._expect(_REQUEST_PATIENCE)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.guest.leave()
        for timer in (self._timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self.guest.may_send(len(data)):
            if self.transport is not None:
                self.transport.abort()
            return
        if self._busy:
            self._more = bool(data)
        elif data and not self._reading:
            self._reading = True
            self._expect(_REQUEST_PATIENCE)
        super().data_received(data)

    def show(self, known: bool) -> None:
        """Say whether its last request had a token that counts."""
        self._known = known
        self.guest.show(known)

    def begin(self, slow: bool = False) -> None:
        """Its request is complete; from now on it waits for us.

        Parameters:
            slow: the peer may take what is sent to it as slowly as it likes.
        """
        self._busy, self._reading, self._more, self._slow = True, False, False, slow
        self._expect(None)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._busy, self._reading, self._more = False, self._more, False
            if self.transport is not None:
                idle = _IDLE if self._known else _GUEST_IDLE
                self._expect(_REQUEST_PATIENCE if self._reading else idle)

    # ---- Ends ----

    def _expect(self, seconds: float | None) -> None:
        """End the connection after so many seconds, unless this is called again; None is no limit."""
        loop = asyncio.get_running_loop()
        self._until = loop.time() + seconds if seconds is not None else None
        if self._until is not None and (self._timer is None or self._timer.when() > self._until):
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_at(self._until, self._late)

    def _late(self) -> None:
        """The timer, which is not moved for each request, goes on where there is time left."""
        until, self._timer = self._until, None
        loop = asyncio.get_running_loop()
        if until is not None and until > loop.time():
            self._timer = loop.call_at(until, self._late)
        elif until is not None:
            self._refuse(408, f"the request was not complete after {_REQUEST_PATIENCE:g} s")

    def _dismiss(self, why: str) -> None:
        self._refuse(503, why)

    def _refuse(self, status: int, why: str) -> None:
        """End the connection; who has sent a part of a request hears why."""
        transport = self.transport
        if transport is None:
            return
        if self._reading:
            body = json.dumps({"error": why, "reason": "limit"}).encode() + b"\n"
            head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\nConnection: close\r\n"
            transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        self.force_close()
        asyncio.get_running_loop().call_later(_LINGER, transport.abort)  # a peer inside of TLS may not answer

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = asyncio.get_running_loop().call_later(_WRITE_PATIENCE, self._stuck)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()

    def _stuck(self) -> None:
        if self.transport is not None and not self._slow:
            self.transport.abort()

    # ---- Errors ----

    def log_exception(self, *args: Any, **more: Any) -> None:
        error = more.get("exc_info")
        self._log("error", f"a connection failed: {type(error).__name__}: {error}")

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer what is not HTTP, and what failed by a mistake of ours: a line in the log, no details."""
        if isinstance(exc, DeposedError) and self.transport is not None:
            self.transport.abort()  # the peer asks the process that has taken over
        elif status >= 500:
            self._log("error", f"{request.method} {request.path} failed: {type(exc).__name__}: {exc}")
        else:
            self._log("refused", f"{self.guest.address} sent what is not HTTP: {str(message).splitlines()[:1]}")
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        text = "the farm made a mistake; its log says which" if status >= 500 else "this is not a request of HTTP"
        answer = refusal(request, status, text, "internal" if status >= 500 else "invalid")
        answer.force_close()
        return answer


def refusal(request: web.BaseRequest, status: int, text: str, reason: str) -> web.Response:
    """Return an answer that says no: to commands as an object, to others as a line."""
    if request.path == "/api":
        body = json.dumps({"error": text, "reason": reason})
        return web.Response(text=body, status=status, content_type="application/json")
    return web.Response(text=f"{text}\n", status=status)


def guard(access: Access, names: frozenset[str]) -> Middleware:
    """Return what each request passes before it is answered.

    Parameters:
        access: knows who may do what.
        names: the names, in lower case, to which the farm answers.
    """

    @web.middleware
    async def check(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, Connection)
        host = request.headers.get("Host", "")
        name = name_of(host)
        if name and name not in names and name not in connection.guest.names:
            # Any site can have its name lead here, and its pages could then speak to the farm as to their own server.
            text = f"this farm does not answer to the name {host[:100]!r}: use its IP address, or start it with "
            return refusal(request, 421, f"{text}portcall farm --name {name[:100]!r}", "name")
        token = token_of(request) or (request.cookies.get(COOKIE, "") if "Cookie" in request.headers else "")
        known = access.caller(token, "page") is not None
        most, size = (MOST_BODY if known else _MOST_GUEST_BODY), request.content_length
        try:
            if size is None and not known:
                request = request.clone(client_max_size=most)
            elif size is not None and size > most:
                raise web.HTTPRequestEntityTooLarge(most, size)
            await request.read()
        except web.HTTPRequestEntityTooLarge:
            return refusal(request, 413, f"the body is too large (at most {most} bytes)", "limit")
        connection.show(known)
        connection.begin(slow=request.path == "/ws")
        if request.path == "/ws":
            connection.guest.show(False)  # until its hello
            connection.guest.left = _MOST_GUEST_BODY
        return await handler(request)

    return check


@functools.lru_cache(1000)
def name_of(host: str) -> str:
    """Return the name of a Host header, in lower case; empty for an IP address."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name.lower().rstrip(".")
    return ""


def token_of(request: web.Request) -> str:
    """Return the token that a request carries, or an empty text."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def same_origin(request: web.Request) -> bool:
    """Return whether a request comes from a page of the farm, or from no page."""
    origin = request.headers.get("Origin")
    return origin is None or origin.partition("://")[2].lower() == request.headers.get("Host", "").lower()
