# SPDX-License-Identifier: Apache-2.0
"""Peers of the proxy that come by WebSocket. Borders of messages mean nothing; pings tell whether the peer is there."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from aiohttp import WSMsgType, web

from portcall.farm._guests import Guest
from portcall.farm._relay import PIECE, End, Peer, Relay
from portcall.farm._splice import HasDescriptor

PING = 20.0
LAST_WORDS = 2.0  # seconds for the peer to say that it closes, too
MOST_MESSAGE = 64 << 20


class WebSocketEnd(End):
    """A peer that comes by WebSocket."""

    padding = b"\0\0\0\0"  # web-runtime reads eight bytes before it looks at the code

    def __init__(self, relay: Relay, socket: web.WebSocketResponse, request: web.Request, guest: Guest) -> None:
        self._request = request
        self._guest = guest
        self.address = guest.address
        self._socket = socket
        self._left: deque[bytes] = deque()
        self._news = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._closing = False
        self._peer = Peer(relay, self)

    def send(self, data: bytes | memoryview) -> None:
        whole = bytes(data)
        self._left.extend(whole[n : n + PIECE] for n in range(0, len(whole), PIECE))
        self._news.set()

    def left(self) -> int:
        return len(self._left)

    def source(self) -> HasDescriptor | None:
        transport = self._request.transport
        sock: HasDescriptor | None = transport.get_extra_info("socket") if transport is not None else None
        return sock

    def stop_reading(self, stop: bool) -> None:
        if stop:
            self._may_read.clear()
        else:
            self._may_read.set()

    def finish(self) -> None:
        self._closing = True
        self._may_read.set()
        self._news.set()
        self.limit_end()

    def abort(self) -> None:
        if self._request.transport is not None:
            self._request.transport.abort()

    def show(self) -> None:
        if not self._closing:
            self._guest.show()

    async def write(self) -> None:
        """Send what is to be sent, until the end."""
        while True:
            while self._left:
                await self._socket.send_bytes(self._left[0])
                self._left.popleft()
                if not self._left:
                    self._peer.drained()
            if self._closing:
                await self._socket.close()
                return
            self._news.clear()
            await self._news.wait()

    async def read(self) -> None:
        """Take what the peer sends, until it ends."""
        while True:
            await self._may_read.wait()
            message = await self._socket.receive()
            if message.type is not WSMsgType.BINARY:
                return
            if not self._closing:
                self._peer.feed(message.data)

    def lost(self) -> None:
        self.closed()
        self._peer.lost()


async def join(relay: Relay, request: web.Request, guest: Guest) -> web.StreamResponse:
    """Let a peer join, and return once it has ended."""
    socket = web.WebSocketResponse(timeout=LAST_WORDS, max_msg_size=MOST_MESSAGE, heartbeat=PING, compress=False)
    await socket.prepare(request)
    end = WebSocketEnd(relay, socket, request, guest)
    writing = asyncio.create_task(end.write())
    try:
        await end.read()
        if end.left():  # what was sent to it before its end, such as a refusal
            end.limit_end()
            await writing
    except ConnectionError:
        pass
    finally:
        end.lost()
        writing.cancel()
        with contextlib.suppress(asyncio.CancelledError, ConnectionError):
            await writing
        await socket.close()
    return socket
