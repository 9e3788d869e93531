# SPDX-License-Identifier: Apache-2.0
"""TVM's tracker on the farm: its servers become places, its clients' requests become leases.

A TVM server is tied to its connection. It says neither that a client came nor that one left: a PUT says that its
session is over, and a poll long after the grant says that no client came. While a grant is open its key stays in the
answer to a poll, so that the server keeps it; then it is left out, and the server makes another.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from portcall.farm import _tracker_wire as wire
from portcall.farm._guests import Guest
from portcall.farm._hub import DeposedError, Hub
from portcall.farm._model import Effect, Lease, Place, Refused
from portcall.farm._state import State

_MOST_PLACES = 1024  # of a connection
_MOST_REQUESTS = 1024
_MOST_UNREAD = 4 << 20
_TURN = 0.005  # seconds of answers before others have their turn
_numbers = itertools.count(1)


class Tracker(asyncio.Protocol):
    """One connection of a TVM server, client or proxy.

    Parameters:
        hub: the farm.
        trackers: all such connections; this one is added while it lasts.
        allowed: whether TVM's ends may come from an address.
        guest: whose connection it is.
    """

    def __init__(self, hub: Hub, trackers: set[Tracker], allowed: Callable[[str], bool], guest: Guest) -> None:
        self._guest = guest
        self.address = guest.address
        self._hub = hub
        self._allowed = allowed
        self._trackers = trackers
        self._reader = wire.Reader()
        self._left: deque[Any] = deque()  # what has come and is not answered yet; an error ends the connection
        self._number = next(_numbers)
        self._made = itertools.count(1)
        self._places: dict[str, None] = {}  # ids, in the order of their PUT
        self._requests: dict[str, bool] = {}  # whether they were answered
        self.info: dict[str, Any] = {}

    # ---- Connection ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._socket = transport.get_extra_info("socket")
        self._trackers.add(self)
        self._guest.end = lambda why: transport.abort()
        if not self._allowed(self.address):
            self._hub.log("refused", f"{self.address} may not use TVM's protocol here (--tvm-network allows it)")
            transport.abort()

    def close(self) -> None:
        """End the connection, after what was answered."""
        self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._trackers.discard(self)
        for id in self._places:
            self._hub.agents.pop(id, None)
        self._hub.ensure(self._leave)
        self._guest.leave()

    def _leave(self, state: State) -> None:
        for id in list(self._requests):
            lease = state.leases.get(id)
            if lease is not None and lease.state != "active":
                state.release(id)
        for id in self._places:
            state.lost(id, "its connection ended")

    def data_received(self, data: bytes) -> None:
        if hasattr(socket, "TCP_QUICKACK") and self._socket is not None:
            # TVM's ends write a message in two pieces, the second of which waits for this acknowledgement.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        going = bool(self._left)
        try:
            self._left += self._reader.feed(data)
        except wire.WireError as error:
            self._left.append(error)
        if self._left and not going:
            self._go_on()

    def _go_on(self, paused: bool = False) -> None:
        """Answer what has come, for a moment: a peer may send thousands of requests at once, and others wait."""
        until = time.monotonic() + _TURN
        while self._left and not self._transport.is_closing():
            try:
                self._take(self._left.popleft())
            except wire.WireError as error:
                self._hub.log("refused", f"{self.address} at the tracker's protocol: {error}")
                self._send([-1, str(error)])
                self._transport.close()
            except DeposedError:
                self._transport.abort()
            if self._left and time.monotonic() > until:
                self._transport.pause_reading()
                asyncio.get_running_loop().call_soon(self._go_on, True)
                return
        if paused and not self._transport.is_closing():
            self._transport.resume_reading()

    def _take(self, request: Any) -> None:
        if isinstance(request, wire.WireError):
            raise request
        if request is None:
            self._transport.write(wire.MAGIC)
        else:
            self._try_to_answer(request)
            self._guest.show(idle=not self._places and not self._requests)

    def _send(self, value: Any) -> None:
        if self._transport.get_write_buffer_size() > _MOST_UNREAD:
            self._transport.abort()
        elif not self._transport.is_closing():
            self._transport.write(wire.message(value))

    # ---- Requests ----

    def _try_to_answer(self, request: list[Any]) -> None:
        try:
            self._answer(request)
        except (wire.WireError, DeposedError):
            raise
        except Exception as error:  # a mistake of ours: of this request alone
            self._hub.log("error", f"a request at the tracker's protocol failed: {type(error).__name__}: {error}")
            self._send([-1, "the farm made a mistake; its log says which"])

    def _answer(self, request: list[Any]) -> None:
        code = wire.code_of(request)
        if code == wire.PING:
            self._send(0)
        elif code == wire.STOP:  # the farm is stopped by a signal; no key is the right one
            if len(request) < 2:
                raise wire.WireError("STOP must be [2, stop key]")
            self._send(-1)
        elif code == wire.PUT:
            self._put(*wire.put_of(request))
            self._send(0)
        elif code == wire.REQUEST:
            self._request(*wire.request_of(request))
        elif code == wire.UPDATE_INFO:
            self.info = wire.info_of(request, self.info)
            self._send(0)
        elif code == wire.SUMMARY:
            self._send([0, summary(self._hub, self._trackers)])
        else:
            self._send(self._pending())

    def _put(self, key: str, port: int, match_key: str, address: str) -> None:
        if len(key.split()) != 1:
            raise wire.WireError(f"invalid key {key!r} (whitespace cannot be part of it)")
        if len(self._places) >= _MOST_PLACES and not self._place_of(key, match_key):
            raise wire.WireError(f"too many resources on one connection (at most {_MOST_PLACES})")
        host = address or self.address
        with self._hub.turn() as state:
            id = self._place_of(key, match_key)
            if id:
                state.put(id, host, port, match_key)
                return
            id = f"{key}@{host}:{port}#{self._number}.{next(self._made)}"
            state.register(id, [key], peer="TVM", host=host, port=port, match_key=match_key)
            self._places[id] = None
            self._hub.agents[id] = self._on_effect

    def _place_of(self, key: str, match_key: str) -> str:
        """Return the place that a PUT brings back: of this match key, else one of this key whose client has had it."""
        mine = [self._hub.state.places[id] for id in self._places if id in self._hub.state.places]
        same = [place for place in mine if place.keys == (key,)]
        again = [p for p in same if p.match_key == match_key] or [p for p in same if p.state != "idle"]
        return again[0].id if again else ""

    def _request(self, key: str, user: str, priority: float) -> None:
        if len(self._requests) >= _MOST_REQUESTS:
            raise wire.WireError(f"too many requests on one connection (at most {_MOST_REQUESTS})")
        try:
            with self._hub.turn() as state:
                lease = state.request(
                    key,
                    f"{user or 'tvm'}@{self.address}",
                    peer="TVM",
                    priority=priority,
                    ceiling=state.rules.tvm_ceiling,
                    key_only=True,
                    hopeless=True,
                    account=f"tvm@{self._guest.origin}",
                )
                self._requests[lease.id] = False
                self._hub.holders[lease.id] = self._on_effect
        except Refused as refused:
            self._send([-1, str(refused)])

    def _pending(self) -> list[str]:
        """Return the match keys that this connection's servers are to keep."""
        kept = []
        proxies = str(self.info.get("key", "")).startswith("server:proxy[")  # a proxy polls during sessions, too
        with self._hub.turn() as state:
            for id in self._places:
                place = state.places.get(id)
                lease = state.leases.get(place.lease) if place is not None else None
                late = lease is not None and lease.peer == "TVM" and lease.since + state.rules.claim < state.now
                if late and not proxies:
                    state.unclaimed(id)
                elif place is not None and place.match_key and place.state != "cleaning":
                    kept.append(place.match_key)
        return kept

    # ---- Grants ----

    def _on_effect(self, effect: Effect) -> None:
        lease, place = effect.lease, effect.place
        if lease is None or lease.id not in self._requests:
            return
        if effect.what == "granted" and place is not None:
            try:
                host, port = route(place, self._transport)
                self._send([0, [host, port, words(place, lease)], {"lease": lease.id, "place": place.id}])
                self._requests[lease.id] = True
            except Exception:  # its client would wait forever
                self._transport.abort()
                raise
        elif effect.what == "ended" and not self._requests.pop(lease.id):
            self._send([-1, f"the request is over: {lease.reason}{f': {lease.detail}' if lease.detail else ''}"])


def route(place: Place, transport: asyncio.BaseTransport) -> tuple[str, int]:
    """Return where a client connects for a place: there, or to the farm by the address that the client used."""
    if place.port:
        return place.host, place.port
    name = transport.get_extra_info("sockname")
    return str(name[0]), int(name[1])


def words(place: Place, lease: Lease) -> str:
    """Return the match key with option words, which a TVM client passes on to the server in its hello."""
    if place.tags.get("plain-words"):  # C++ and Java servers take the key alone
        return lease.match_key
    limit = f" -timeout={lease.ceiling:.0f}" if lease.ceiling else ""
    return f"{lease.match_key}{limit} -lease={lease.id}"


def summary(hub: Hub, trackers: set[Tracker]) -> dict[str, Any]:
    """Return what TVM's tools show: free and waiting for each key, and an entry for each server."""
    state = hub.state
    queues = {key: {"free": 0, "pending": 0} for key in state.left}
    servers: list[dict[str, Any]] = []
    for place in state.places.values():
        for key in place.keys:
            free = queues.setdefault(key, {"free": 0, "pending": 0})
            free["free"] += place.free
            if place.state != "offline" and (place.peer == "portcall" or not place.port):
                servers.append({"key": f"server:{key}", "addr": [place.host, place.port], "place": place.id})
    for want, waiting in state.queue.sizes().items():
        queues.setdefault(want, {"free": 0, "pending": 0})["pending"] += waiting
    for tracker in trackers:
        if str(tracker.info.get("key", "")).startswith("server:"):  # TVM's tools show what is after it
            address = list(tracker.info["addr"])
            address[0] = address[0] if address[0] is not None else tracker.address
            servers.append({**tracker.info, "addr": address})
    return {"queue_info": queues, "server_info": servers}
