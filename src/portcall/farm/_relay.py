# SPDX-License-Identifier: Apache-2.0
"""The proxy: brings together servers and clients that cannot reach each other, and passes their bytes on.

Servers of TVM join with a key and become places, each connection one. Agents of portcall join with the match key of one
session. A client brings a match key that the farm gave out, or a plain key, which is a request that waits: one for each
key, of those whose servers the farm has seen.

Bytes go on as fast as the slower side takes them: while the farm has something left for one side it reads nothing from
the other, so it keeps no more than one piece. Between two plain TCP connections the kernel passes them on.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import secrets
import socket
from collections.abc import Callable

from portcall.errors import RemoteProtocolError
from portcall.farm._guests import Guest, origin_of
from portcall.farm._hub import Hub
from portcall.farm._model import Effect, Refused
from portcall.farm._splice import HasDescriptor, Pipes, Spliced, Stall
from portcall.farm._state import State
from portcall.rpc.wire._facts import DUPLICATE, MAGIC, MISMATCH
from portcall.rpc.wire._handshake import Hello, parse_words, refusal
from portcall.rpc.wire._texts import check_text

PIECE = 256 << 10
MOST_HELLO = 4096
MOST_KEY = 600  # characters: a link to the page of its place is 8190 bytes at most
CLIENT_PATIENCE = 600.0  # seconds for which a client with a plain key waits
HELLO_PATIENCE = 10.0
_HEAD = 8
_MATCH_KEY = re.compile(":[0-9a-f]{32}$")  # as the farm makes them; one that no client waits for is no plain key
_numbers = itertools.count(1)


class End:
    """One side of a session through the farm, over any transport: what ``Relay`` needs to know of it.

    Attributes:
        address: of the peer.
        padding: what follows a refusal.
    """

    address = ""
    padding = b""
    _stall: Stall | None = None

    def send(self, data: bytes | memoryview) -> None:
        """Send bytes, which may change afterwards unless some are ``left`` then."""
        raise NotImplementedError

    def left(self) -> int:
        """Return how much is left to be sent; 0 for nothing."""
        raise NotImplementedError

    def source(self) -> HasDescriptor | None:
        """Return the socket of the peer; None once it is closed."""
        raise NotImplementedError

    def stop_reading(self, stop: bool) -> None:
        """Read nothing for now, or go on."""
        raise NotImplementedError

    def finish(self) -> None:
        """Close, after what is left was sent."""
        raise NotImplementedError

    def abort(self) -> None:
        """Close at once."""
        raise NotImplementedError

    def show(self) -> None:
        """The peer has shown that it may be here, unless it was refused."""
        raise NotImplementedError

    def limit_end(self) -> None:
        """Close at once where the peer no longer takes what is left; ``closed`` says that the connection has ended."""
        if self.left() and self._stall is None:
            self._stall = Stall(None, self.left, self.abort)

    def closed(self) -> None:
        if self._stall is not None:
            self._stall.over()


class Relay:
    """All peers of the proxy.

    Parameters:
        hub: the farm.
        allowed: whether TVM's ends may come from an address.
    """

    def __init__(self, hub: Hub, allowed: Callable[[str], bool]) -> None:
        self.hub = hub
        self.allowed = allowed
        self.waiting: dict[str, Peer] = {}  # servers, by the match key of their client
        self.early: dict[str, Peer] = {}  # clients whose agent has not joined yet
        self.peers: set[Peer] = set()
        self.passed = 0  # bytes
        self.pairs = 0
        self.pipes = Pipes()

    def close(self) -> None:
        """End all connections."""
        for peer in list(self.peers):
            peer.end.finish()
        self.pipes.close()


class Peer:
    """One peer of the proxy, from its hello to its end. The transport calls ``feed``, ``drained`` and ``lost``."""

    def __init__(self, relay: Relay, end: End) -> None:
        self._relay = relay
        self._hub = relay.hub
        self.end = end
        relay.peers.add(self)
        self.hello = b""
        self.text = b""
        self.partner: Peer | None = None
        self._place = ""
        self._lease = ""
        self._key = ""
        self._wanted = ""  # the plain key of a client
        self._raw = False
        self._served = False
        self._timer: asyncio.TimerHandle | None = None
        self._stall: Stall | None = None
        self._wait(HELLO_PATIENCE)

    def _wait(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._refuse)

    # ---- Bytes ----

    def feed(self, data: bytes | memoryview) -> None:
        """Take bytes of the peer."""
        if self.partner is not None:
            self._relay.passed += len(data)
            sink = self.partner.end
            sink.send(data)
            if sink.left():
                self.end.stop_reading(True)
                self._stall = self._stall or Stall(self.end.source(), sink.left, self.end.finish)
            return
        self.hello += bytes(data)
        if len(self.hello) < _HEAD:
            return
        size = int.from_bytes(self.hello[4:_HEAD], "little")
        if (
            int.from_bytes(self.hello[:4], "little") != MAGIC
            or not 0 < size <= MOST_HELLO
            or len(self.hello) > _HEAD + size
        ):
            self.end.finish()
        elif len(self.hello) == _HEAD + size and not self.text:
            self.text = self.hello[_HEAD:]
            self._wait(None)
            self._greet()
            self.end.show()

    def drained(self) -> None:
        """The transport has sent all that was left."""
        if self.partner is not None:
            self.partner._go_on()

    def _go_on(self) -> None:
        """Its sink takes more."""
        self._end_stall()
        self.end.stop_reading(False)

    def _end_stall(self) -> None:
        stall, self._stall = self._stall, None
        if stall is not None:
            stall.over()

    def lost(self) -> None:
        """The connection has ended."""
        self._hub.agents.pop(self._place, None)
        self._hub.ensure(self._leave)
        self._relay.peers.discard(self)
        self._wait(None)
        self._end_stall()
        partner, self.partner = self.partner, None
        if partner is not None:
            partner.partner = None
            partner.end.finish()
        if self._relay.waiting.get(self._key) is self:
            del self._relay.waiting[self._key]
        if self._relay.early.get(self._key) is self:
            del self._relay.early[self._key]

    def _leave(self, state: State) -> None:
        place = state.places.get(self._place)
        if place is not None:
            if self._served and place.lease:
                state.release(place.lease)
            state.lost(self._place, "its connection ended")
        if self._lease in state.leases:
            state.release(self._lease)

    # ---- Joining ----

    def _greet(self) -> None:
        try:
            role = "server" if self.text.startswith(b"server:") else "client"
            hello = parse_words(self.text, role)
            check_text(hello.key, "key", most=MOST_KEY)
        except (RemoteProtocolError, ValueError) as error:
            self._hub.log("refused", f"{self.end.address} at the proxy: {error}")
            self._refuse()
            return
        if role == "client":
            self._greet_client(hello)
        elif hello.options.get("relay"):
            self._greet_agent(hello.key)
        else:
            self._greet_server(hello.key)

    def _refuse(self, why: int = MISMATCH) -> None:
        self.end.send(refusal(why) + self.end.padding)
        self.end.finish()

    def _greet_agent(self, key: str) -> None:
        """An agent of portcall waits for the client of one match key; what it says goes to the client as it is."""
        if key not in self._hub.session_keys or key in self._relay.waiting:
            self._refuse()
            return
        self._raw, self._key = True, key
        early = self._relay.early.pop(key, None)
        if early is not None:
            self._pair(early)
        else:
            self._relay.waiting[key] = self

    def _greet_server(self, key: str) -> None:
        """A server of TVM becomes a place."""
        if not self._relay.allowed(self.end.address):
            self._refuse()
            return
        self._key = f"{key}:{secrets.token_hex(16)}"
        free = (name for n in _numbers if (name := f"{key}@proxy#{n}") not in self._hub.state.places)
        self._place = next(free)
        self._relay.waiting[self._key] = self
        with self._hub.turn() as state:
            state.register(self._place, [key], peer="TVM", match_key=self._key)
            self._hub.agents[self._place] = self._on_agent_effect

    def _on_agent_effect(self, effect: Effect) -> None:
        if effect.what == "end":  # it joins again, under a new match key
            self.end.finish()

    def _greet_client(self, hello: Hello) -> None:
        server = self._relay.waiting.pop(hello.key, None)
        if server is not None:
            self._pair(server)
        elif hello.key in self._relay.early:  # one client has this key already
            self._refuse(DUPLICATE)
        elif hello.key in self._hub.session_keys:
            self._key = hello.key
            self._relay.early[hello.key] = self
            self._wait(HELLO_PATIENCE)
        elif self._relay.allowed(self.end.address) and not _MATCH_KEY.search(hello.key):
            self._request(hello)
        else:
            self._refuse()

    def _request(self, hello: Hello) -> None:
        """A client with a plain key waits for a server of that key, the first one alone."""
        leases = self._hub.state.leases
        asking = (leases.get(peer._lease) for peer in self._relay.peers if peer._wanted == hello.key)
        if not self._hub.state.knows(hello.key.partition("?")[0]):
            return self._refuse()
        if any(lease is not None and lease.state == "queued" for lease in asking):
            return self._refuse(DUPLICATE)
        self._wanted = hello.key
        user = f"{'client' if hello.is_portcall else 'tvm'}@{self.end.address}"
        self._wait(CLIENT_PATIENCE)
        try:
            with self._hub.turn() as state:
                lease = state.request(hello.key, user, peer="TVM", key_only=True, hopeless=True,
                                      ceiling=state.rules.tvm_ceiling,
                                      account=f"tvm@{origin_of(self.end.address)}")  # fmt: skip
                self._lease, lease.relay = lease.id, True
                self._hub.holders[lease.id] = self._on_holder_effect
        except Refused:
            self._refuse()
        return None

    def _on_holder_effect(self, effect: Effect) -> None:
        assert effect.lease is not None
        if effect.what == "granted":
            server = self._relay.waiting.pop(effect.lease.match_key, None)
            if server is not None:
                self._pair(server)
            elif effect.place is not None and effect.place.peer == "portcall":
                self._key = effect.lease.match_key
                self._relay.early[self._key] = self
            else:  # a server of TVM's tracker, which only direct connections reach
                self._refuse()
        elif effect.what == "ended":
            self.end.finish()

    def _pair(self, other: Peer) -> None:
        """Let a server, or an agent, and a client talk."""
        server, client = (self, other) if other._is_client() else (other, self)
        self._wait(None)
        other._wait(None)
        server.partner, client.partner = client, server
        self._hub.session_keys.pop(server._key, None)
        server._served = True
        self._relay.pairs += 1
        server.end.send(client.hello_for(server._key) if server._raw else client.hello)
        if not server._raw:
            client.end.send(server.hello)
        self._splice(server, client)

    def hello_for(self, key: str) -> bytes:
        """Return the hello of this client, as of one that has been given a match key."""
        _, space, options = self.text.partition(b" ")
        text = b"client:" + key.encode() + space + options
        return self.hello[:4] + len(text).to_bytes(4, "little") + text

    def _splice(self, server: Peer, client: Peer) -> None:
        """Leave the bytes of both to the kernel, where both are plain connections without anything left to send."""
        ends = [end for end in (server.end, client.end) if isinstance(end, TcpEnd) and end.is_plain()]
        if len(ends) < 2:
            return
        copies: list[socket.socket] = []
        try:
            copies += (end.copy() for end in ends)
        except OSError:  # no descriptors are left: the bytes go through this process
            for copy in copies:
                copy.close()
            return

        def passed(nbytes: int) -> None:
            self._relay.passed += nbytes

        def ended() -> None:
            server.lost()
            client.lost()

        for end in ends:
            end.detach()
        spliced = Spliced(self._relay.pipes, copies[0], copies[1], passed, ended)
        for end in ends:
            end.spliced = spliced

    def _is_client(self) -> bool:
        return not self.text.startswith(b"server:")


class TcpEnd(End, asyncio.BufferedProtocol):
    """A peer that comes by TCP, with TLS or without."""

    def __init__(self, relay: Relay, guest: Guest) -> None:
        self._relay = relay
        self._guest = guest
        self.address = guest.address
        self._buffer = bytearray(4096)
        self.spliced: Spliced | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._secure = transport.get_extra_info("ssl_object") is not None
        transport.set_write_buffer_limits(high=1)
        self._guest.end = lambda why: transport.abort()
        self._peer = Peer(self._relay, self)

    def get_buffer(self, sizehint: int) -> bytearray:
        if self._peer.partner is not None and len(self._buffer) < PIECE:
            self._buffer = bytearray(PIECE)
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._peer.feed(memoryview(self._buffer)[:nbytes])
        if self._peer.partner is not None and self._peer.partner.end.left():
            self._buffer = bytearray(PIECE)  # the transport may still read from the old one

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.closed()
        self._buffer = bytearray()
        self._guest.leave()
        self._peer.lost()

    def resume_writing(self) -> None:
        self._peer.drained()

    def send(self, data: bytes | memoryview) -> None:
        if not self._transport.is_closing():
            self._transport.write(bytes(data) if self._secure else data)

    def left(self) -> int:
        return self._transport.get_write_buffer_size()

    def source(self) -> HasDescriptor | None:
        sock: HasDescriptor | None = self._transport.get_extra_info("socket")
        return sock

    def stop_reading(self, stop: bool) -> None:
        if not self._transport.is_closing():
            if stop:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def finish(self) -> None:
        if self.spliced is not None:
            self.spliced.close()
            return
        self._transport.close()
        self.limit_end()

    def abort(self) -> None:
        self._transport.abort()

    def show(self) -> None:
        if not self._transport.is_closing():
            self._guest.show()

    def is_plain(self) -> bool:
        """Return whether the bytes of the socket are those of the peer, and all that was sent has left."""
        return not self._secure and not self.left() and not self._transport.is_closing()

    def copy(self) -> socket.socket:
        """Return a second descriptor of the socket. Raises: OSError: there is none left."""
        sock = socket.socket(fileno=os.dup(self._transport.get_extra_info("socket").fileno()))
        sock.setblocking(False)
        return sock

    def detach(self) -> None:
        """Do nothing more with the socket, of which there is a copy."""
        self._guest.show()
        self._transport.set_protocol(asyncio.Protocol())
        self._transport.abort()
