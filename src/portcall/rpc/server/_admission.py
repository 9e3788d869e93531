# SPDX-License-Identifier: Apache-2.0
"""Who is let in: accepts connections, checks what clients say of themselves, and keeps the queue.

Each connection gets a process at once, which carries its bytes; what they mean is decided here. Where there is a token
the proof comes first, and then the queue: nobody waits behind a stranger.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from portcall.errors import AuthenticationError, RemoteProtocolError
from portcall.rpc.server import _endings
from portcall.rpc.server._connections import ENDING, GREETING, PROVING, SERVING, WAITING, Client, Clients
from portcall.rpc.server._endings import Ending
from portcall.rpc.server._link import Link
from portcall.rpc.server._listen import peer_name
from portcall.rpc.server._log import Log
from portcall.rpc.server._loop import PAUSE, Loop, Timer
from portcall.rpc.server._options import ServerOptions
from portcall.rpc.wire import _handshake

STALE_HANDSHAKE = 1.0  # seconds after which a silent connection makes room for others, where there are too many


class Owner(Protocol):
    """Who starts and ends the sessions."""

    def order(self, message: dict[str, object], descriptors: Sequence[int] = ()) -> None: ...

    def kill(self, client: Client, why: Ending) -> None: ...

    def on_client_gone(self, client: Client) -> None: ...

    def on_client_error(self, client: Client, error: Exception) -> None: ...


class Admission:
    """Takes connections in and makes sessions of them.

    Args:
        options: who may come, and how many.
        listener: the socket that clients connect to; does not block.
        base: the directory that the sessions' directories are in.
        clients: all clients; those who come are added.
        endings: what clients may ask for.
    """

    def __init__(
        self,
        options: ServerOptions,
        listener: socket.socket,
        base: str,
        clients: Clients,
        endings: _endings.Endings,
        loop: Loop,
        log: Log,
        owner: Owner,
    ) -> None:
        self._options = options
        self._listener = listener
        self._base = base
        self._clients = clients
        self._endings = endings
        self._loop = loop
        self._log = log
        self._owner = owner
        self._queue: deque[Client] = deque()
        self._last_number = 0
        self._accepting = False
        self._again: Timer | None = None  # when paused: looks whether there is room

    # ---- Accepting ----

    def accept_clients(self) -> None:
        """Take in who comes, where there is room; where silent connections take it all, the oldest of them goes."""
        if self._accepting:
            return
        self._look_again_after(STALE_HANDSHAKE)
        silent = self._clients.in_state(GREETING, PROVING)
        if len(silent) + len(self._clients.in_state(WAITING)) < self._options.max_handshakes:
            self._loop.watch(self._listener.fileno(), self._accept)
            self._accepting = True
        elif silent and time.monotonic() - silent[0].since > STALE_HANDSHAKE and silent[0].kill_reason is None:
            self._owner.kill(silent[0], Ending("crowded"))

    def stop_accepting(self) -> None:
        """Leave new connections where they are, until ``accept_clients``."""
        if self._accepting:
            self._accepting = False
            self._loop.forget(self._listener.fileno())
        if self._again is not None:
            self._again.cancel()
            self._again = None

    def _look_again_after(self, seconds: float) -> None:
        def look_again() -> None:
            self._again = None
            self.accept_clients()

        if self._again is None:
            self._again = self._loop.call_after(seconds, look_again)

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:  # no descriptors, no memory, or an error of the network that came with a connection
            self._log.write("overload", f"cannot accept a connection: {error}; trying again in {PAUSE:g} s")
            self.stop_accepting()
            self._look_again_after(PAUSE)
            return
        try:
            self._begin(sock, peer_name(sock, address))
        except Exception as error:
            self._log.write("overload", f"cannot serve a client: {error}")
            with contextlib.suppress(OSError):
                sock.close()
        on_their_way = len(self._clients.in_state(GREETING, PROVING, WAITING))
        if on_their_way >= self._options.max_handshakes:
            self.stop_accepting()
            self.accept_clients()

    def _begin(self, sock: socket.socket, peer: str) -> None:
        """Give a connection to a process of its own.

        Raises:
            OSError: there is no room for it; nothing of it is left, but the socket.
        """
        self._last_number += 1
        number = self._last_number
        directory = os.path.join(self._base, f"session-{number}")
        with contextlib.ExitStack() as undo:
            ours, theirs = Link.pair()
            undo.callback(ours.close)
            with theirs:
                ours.set_timeout(0)
                progress = os.memfd_create("portcall-progress")
                undo.callback(os.close, progress)
                os.ftruncate(progress, _endings.PROGRESS_BYTES)
                os.mkdir(directory, 0o700)
                undo.callback(os.rmdir, directory)
                client = Client(number, sock, peer, ours, progress, directory, time.monotonic())
                client.secret = secrets.token_hex(16)
                self._watch(client, ours.fileno(), select.EPOLLIN, lambda: self._on_worker_message(client))
                undo.callback(self._loop.forget, ours.fileno())
                gone = select.EPOLLRDHUP | select.EPOLLONESHOT
                self._watch(client, sock.fileno(), gone, lambda: self._owner.on_client_gone(client))
                undo.callback(self._loop.forget, sock.fileno())
                start: dict[str, object] = {"start": number, "directory": directory}
                self._owner.order(start, [sock.fileno(), theirs.fileno(), progress])
                undo.pop_all()
                self._clients.add(client)
                self._clients.end_after(client, self._options.handshake_timeout)

    def _watch(self, client: Client, descriptor: int, events: int, action: Any) -> None:
        self._loop.watch(
            descriptor, action, events=events, failed=lambda error: self._owner.on_client_error(client, error)
        )

    # ---- The hand-shake ----

    def _on_worker_message(self, client: Client) -> None:
        """Take a message of a worker, which peer_kind for its client; silence from it means that it ended."""
        try:
            received = client.link.receive()
        except BlockingIOError:
            return
        if received is None:
            self._loop.forget(client.link.fileno())
        elif client.state in (ENDING, SERVING):
            pass
        elif "hello" in received[0]:
            self._on_hello(client, bytes.fromhex(received[0]["hello"]))
        elif "proof" in received[0]:
            self._on_proof(client, bytes.fromhex(received[0]["proof"]))
        elif "failed" in received[0]:
            self._refuse(client, received[0]["failed"])

    def take_last_message(self, client: Client) -> None:
        """Take the last word of a worker that the report of its end has overtaken: why the client was refused."""
        if client.state in (SERVING, ENDING):
            return
        with contextlib.suppress(BlockingIOError):
            received = client.link.receive()
            if received and "failed" in received[0]:
                self._refuse(client, received[0]["failed"])

    def _on_hello(self, client: Client, data: bytes) -> None:
        reader = _handshake.HelloReader()
        hello = reader.feed(data)
        assert hello is not None
        client.transcript = reader.transcript
        client.peer_kind = "portcall" if hello.is_portcall else "TVM"
        if hello.is_portcall and "reason" in hello.options:
            words = self._endings.ask(hello.options["reason"])
            return self._answer(client, _handshake.server_reply(self._options.key, words), "end")
        try:
            limits = [seconds for seconds in (hello.timeout, self._options.session_timeout) if seconds]
        except RemoteProtocolError as error:
            return self._refuse(client, str(error))
        if hello.key != self._options.key:
            return self._refuse(client, f"asked for the key {hello.key[:80]!r}; this server has {self._options.key!r}")
        if self._options.token and not hello.is_portcall:
            return self._refuse(client, "is a TVM client, which cannot prove that it knows the token")
        client.limit = min(limits, default=0)
        return self._ask_for_proof(client) if self._options.token else self._enqueue(client)

    def _ask_for_proof(self, client: Client) -> None:
        options = {"portcall": _handshake.EXTENSION_VERSION, "auth": "token", "nonce": _handshake.new_nonce()}
        reply = _handshake.server_reply(self._options.key, options)
        client.transcript += reply
        client.state = PROVING
        self._answer(client, reply, "proof")

    def _on_proof(self, client: Client, data: bytes) -> None:
        if client.state != PROVING:
            return self._refuse(client, "sent a proof that nobody asked for")
        try:
            _handshake.check_proof(data, self._options.token, "client", client.transcript)
        except AuthenticationError:
            return self._refuse(client, "does not know the token", b"")
        return self._enqueue(client)

    # ---- The queue ----

    def _enqueue(self, client: Client) -> None:
        self._clients.end_after(client, None)
        client.state = WAITING
        self._queue.append(client)
        self.serve_queue()

    def remove_from_queue(self, client: Client) -> None:
        """Forget a client that has ended."""
        if client in self._queue:
            self._queue.remove(client)

    def serve_queue(self) -> None:
        """Let in as many as there is room for, in order, and tell the others where they stand."""
        limit = self._options.max_sessions
        while self._queue and (not limit or len(self._clients.in_state(SERVING)) < limit):
            client = self._queue.popleft()
            if client.state == WAITING and client.kill_reason is None:
                self._for_client(client, self._open)
        for place, client in enumerate(list(self._queue), start=1):
            if client.queue_position != place:
                client.queue_position = place
                self._for_client(client, self._report_queue_position)

    def _for_client(self, client: Client, action: Any) -> None:
        self._loop.guard(lambda: action(client), lambda error: self._owner.on_client_error(client, error))

    def _report_queue_position(self, client: Client) -> None:
        place = client.queue_position
        if place == len(self._queue):
            self._log.write("waiting", f"{client.peer} waits in place {place}", client.number, place=place)
        if client.peer_kind == "portcall":
            limit = self._options.max_sessions
            text = f"the server is full ({_endings.count(limit, 'session')}); you are number {place} in its queue"
            self._answer(client, _handshake.notice(text), "wait")

    def _open(self, client: Client) -> None:
        """Let a session begin."""
        options: dict[str, str] = {}
        if client.peer_kind == "portcall":
            options["portcall"] = _handshake.EXTENSION_VERSION
            options["session"] = str(client.number)
            options["secret"] = client.secret
        if self._options.token:
            options["proof"] = _handshake.proof(self._options.token, "server", client.transcript).hex()
        client.state = SERVING
        self._clients.end_after(client, client.limit or None)
        self._answer(client, _handshake.server_reply(self._options.key, options), "serve")
        limit = f", for at most {client.limit:g} s" if client.limit else ""
        text = f"opened for {client.peer}, a {client.peer_kind} client{limit}"
        self._log.write("opened", text, client.number, peer=client.peer, client=client.peer_kind)
        self._loop.guard(self.accept_clients)

    def _refuse(self, client: Client, why: str, words: bytes | None = None) -> None:
        self._log.write("refused", f"refused: {client.peer} {why}", client.number, peer=client.peer)
        refusal = _handshake.refusal(_handshake.MISMATCH) if words is None else words
        self._answer(client, refusal, "end")

    def _answer(self, client: Client, data: bytes, then: str) -> None:
        if then == "end":
            client.state = ENDING
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its end is an event of its own
            client.link.send({"send": data.hex(), "then": then})
