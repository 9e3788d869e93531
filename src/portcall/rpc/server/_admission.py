# SPDX-License-Identifier: Apache-2.0
"""Admission of clients: accept connections, check each handshake, keep the queue, and order a process for a session.

Nothing waits here: what a client has sent is read as far as it goes, and never more than the handshake has, since the
rest is for the session. With TLS a connection gets its pump at its first byte, and then its bytes are read in clear.
Where there is a token the proof comes first and the queue second: no client waits for a stranger.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from portcall.errors import AuthenticationError, RemoteProtocolError, VersionMismatchError
from portcall.rpc.server._connections import HANDSHAKE, Connection, Connections, State
from portcall.rpc.server._ended_sessions import EndedSessions
from portcall.rpc.server._gate import Gate
from portcall.rpc.server._link import Link
from portcall.rpc.server._listen import peer_name
from portcall.rpc.server._log import Log, count
from portcall.rpc.server._loop import PAUSE, Loop, Timer
from portcall.rpc.server._messages import (
    PUMP_REPORTS,
    Message,
    PumpFailed,
    PumpReady,
    StartKeptSession,
    StartPump,
    StartSession,
)
from portcall.rpc.server._options import ServerOptions
from portcall.rpc.wire import _handshake, _tcp
from portcall.rpc.wire._endings import Ending, with_remedy
from portcall.rpc.wire._facts import MISMATCH, PROGRESS_BYTES, PROOF_BYTES, STALE_HANDSHAKE


class Owner(Protocol):
    """The part of the server that starts and ends sessions."""

    def order(self, message: Message, descriptors: Sequence[int] = ()) -> None: ...

    def kill(self, connection: Connection, why: Ending) -> None: ...

    def forget(self, connection: Connection) -> None: ...

    def on_client_gone(self, connection: Connection) -> None: ...

    def on_client_error(self, connection: Connection, error: Exception) -> None: ...


class Admission:
    """Takes connections in and makes sessions of them.

    Parameters:
        options: which clients are admitted, and how many.
        listener: the socket that clients connect to; does not block.
        base: the directory that the sessions' directories are in.
        connections: all connections; new ones are added.
        ended: answers clients that ask why a session ended.
        gate: of a server that belongs to a farm.
    """

    def __init__(
        self, options: ServerOptions, listener: socket.socket, base: str, connections: Connections,
        ended: EndedSessions, loop: Loop, log: Log, owner: Owner, gate: Gate | None = None,
    ) -> None:  # fmt: skip
        self._gate = gate
        self._options = options
        self._listener = listener
        self._base = base
        self._connections = connections
        self._ended = ended
        self._loop = loop
        self._log = log
        self._owner = owner
        self._queue: deque[Connection] = deque()
        self._last_number = 0
        self._accepting = False
        self._retry: Timer | None = None  # when paused: looks whether there is room

    # ---- Accepting ----

    def accept_clients(self) -> None:
        """Accept connections while there is room; where silent ones take all of it, the oldest of them is ended."""
        if self._accepting:
            return
        self._retry_after(STALE_HANDSHAKE)
        silent = self._connections.in_state(State.GREETING, State.PROVING)
        if len(self._connections.in_state(*HANDSHAKE)) < self._options.max_handshakes:
            self._loop.watch(self._listener.fileno(), self._accept)
            self._accepting = True
        elif silent and time.monotonic() - silent[0].since > STALE_HANDSHAKE and silent[0].kill_reason is None:
            self._owner.kill(silent[0], Ending("crowded"))

    def stop_accepting(self) -> None:
        """Leave new connections unaccepted, until ``accept_clients``."""
        if self._accepting:
            self._accepting = False
            self._loop.forget(self._listener.fileno())
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _retry_after(self, seconds: float) -> None:
        def retry() -> None:
            self._retry = None
            self.accept_clients()

        if self._retry is None:
            self._retry = self._loop.call_after(seconds, retry)

    def _accept(self) -> None:
        try:
            sock, address = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:  # no descriptors, no memory, or an error of the network that came with a connection
            why = with_remedy(error)
            self._log.write("overload", f"cannot accept a connection: {why}; trying again in {PAUSE:g} s")
            self.stop_accepting()
            self._retry_after(PAUSE)
            return
        try:
            self._begin(sock, peer_name(sock, address))
        except Exception as error:
            self._log.write("overload", f"cannot serve a client: {with_remedy(error)}")
            with contextlib.suppress(OSError):
                sock.close()
        if len(self._connections.in_state(*HANDSHAKE)) >= self._options.max_handshakes:
            self.stop_accepting()
            self.accept_clients()

    def _begin(self, sock: socket.socket, peer: str) -> None:
        """Take a connection in.

        Raises:
            OSError: there is no room for it; nothing of it is left, except the socket.
        """
        if sock.family != socket.AF_UNIX:
            _tcp.tune(sock)
        self._last_number += 1
        connection = Connection(self._last_number, sock, peer, time.monotonic())
        action = self._start_pump if self._options.tls_certificate else self._receive
        self._watch(connection, sock, select.EPOLLIN, action)
        self._connections.add(connection)
        self._connections.end_after(connection, self._options.handshake_timeout)

    def _watch(
        self, connection: Connection, sock: socket.socket, events: int, action: Callable[[Connection], object]
    ) -> None:
        failed = lambda error: self._owner.on_client_error(connection, error)  # noqa: E731
        self._loop.watch(sock.fileno(), lambda: action(connection), events=events, failed=failed)

    def _watch_end(self, connection: Connection, sock: socket.socket) -> None:
        """Notice that the client leaves, and nothing else."""
        self._watch(connection, sock, select.EPOLLRDHUP | select.EPOLLONESHOT, self._owner.on_client_gone)

    # ---- TLS ----

    def _start_pump(self, connection: Connection) -> None:
        """The first byte has come: have TLS done by a process."""
        if not self._peek(connection):
            return
        with contextlib.ExitStack() as theirs:
            connection.clear, clear = socket.socketpair()
            theirs.callback(clear.close)
            connection.link, link = Link.pair()
            theirs.callback(link.close)
            connection.link.set_timeout(0)
            self._loop.watch(
                connection.link.fileno(), lambda: self._on_pump(connection),
                failed=lambda error: self._owner.on_client_error(connection, error),
            )  # fmt: skip
            self._watch_end(connection, connection.sock)
            descriptors = [connection.sock.fileno(), clear.fileno(), link.fileno()]
            self._owner.order(StartPump(connection.number), descriptors)

    def _peek(self, connection: Connection) -> bool:
        """Return whether a byte is there. A client that has left is noted."""
        try:
            if connection.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT):
                return True
        except BlockingIOError:
            return False
        except OSError:
            pass
        self._owner.on_client_gone(connection)
        return False

    def _on_pump(self, connection: Connection) -> None:
        """Take what the pump says of TLS, and read in clear from here on."""
        assert connection.link is not None
        assert connection.clear is not None
        try:
            received = connection.link.receive(PUMP_REPORTS)
        except BlockingIOError:
            return
        report = PumpFailed("did not manage TLS: its process ended") if received is None else received[0]
        if isinstance(report, PumpReady):
            self._loop.forget(connection.link.fileno())
            connection.link.close()
            connection.link = None
            connection.certificate = report.certificate
            if connection.kill_reason is None:
                self._watch(connection, connection.clear, select.EPOLLIN, self._receive)
            else:  # it has left since
                self._owner.kill(connection, connection.kill_reason)
        elif isinstance(report, PumpFailed):
            self._refuse(connection, report.reason, b"")

    # ---- The handshake ----

    def _receive(self, connection: Connection) -> None:
        """Take what has come of the hello or the proof."""
        try:
            while missing := self._missing(connection):
                data = connection.stream.recv(missing, socket.MSG_DONTWAIT)
                if not data:
                    return self._owner.on_client_gone(connection)
                self._take(connection, data)
        except BlockingIOError:
            pass
        except (ConnectionError, TimeoutError):  # the network failed
            self._owner.on_client_gone(connection)

    def _missing(self, connection: Connection) -> int:
        """Return how many bytes of the handshake a client has to send now, at least; 0 where it has none to send."""
        if self._connections.get(connection.number) is not connection:  # refused
            return 0
        if connection.state is State.GREETING:
            return connection.reader.missing()
        return PROOF_BYTES - len(connection.proof) if connection.state is State.PROVING else 0

    def _take(self, connection: Connection, data: bytes) -> None:
        reader = connection.reader
        if connection.state is State.PROVING:
            connection.proof += data
            if len(connection.proof) == PROOF_BYTES:
                self._on_proof(connection)
            return
        try:
            hello = reader.feed(data)
        except RemoteProtocolError as error:  # who speaks another protocol is not answered
            self._refuse(connection, str(error), None if reader.transcript else b"")
            return
        if hello is not None:
            connection.transcript = reader.transcript
            self._on_hello(connection, hello)

    def _on_hello(self, connection: Connection, hello: _handshake.Hello) -> None:
        connection.peer_kind = "portcall" if hello.is_portcall else "TVM"
        connection.features = hello.features if hello.is_portcall else frozenset()
        connection.may_keep = hello.is_portcall and hello.options.get("capsule") == "1"
        if hello.is_portcall and "reason" in hello.options:
            words = self._ended.answer(hello.options["reason"])
            return self._answer(connection, _handshake.server_reply(self._options.key, words))
        try:
            if hello.is_portcall:
                hello.check_version("the client")
            limits = [seconds for seconds in (hello.timeout, self._options.session_timeout) if seconds]
        except RemoteProtocolError as error:
            return self._refuse(connection, str(error))
        except VersionMismatchError as error:  # the client sees our versions, and says the same
            reply = _handshake.server_reply(self._options.key, _handshake.extension_options())
            return self._refuse(connection, f"is a portcall client of another version: {error}", reply)
        if self._gate is not None:
            return self._admit(connection, hello.key, limits)
        if hello.key != self._options.key:
            wrong = f"asked for the key {hello.key[:80]!r}; this server has {self._options.key!r}"
            return self._refuse(connection, wrong)
        if self._options.token and not hello.is_portcall:
            return self._refuse(connection, "is a TVM client, which cannot prove that it knows the token")
        connection.limit = min(limits, default=0)
        return self._ask_for_proof(connection) if self._options.token else self._enqueue(connection)

    def _admit(self, connection: Connection, key: str, limits: list[float]) -> None:
        """Let in a client that a farm sent; its key is not valid a second time."""
        assert self._gate is not None
        admission = self._gate.admit(key)
        if admission is None:
            return self._refuse(connection, "has no key that the farm gave out")
        connection.fence = admission.fence
        connection.limit = min((seconds for seconds in (*limits, admission.limit) if seconds), default=0)
        return self._enqueue(connection)

    def adopt(self, sock: socket.socket) -> None:
        """Serve a connection that the agent of a farm has made."""
        try:
            sock.setblocking(True)
            self._begin(sock, peer_name(sock, sock.getpeername()))
        except OSError as error:
            self._log.write("overload", f"cannot serve a client: {with_remedy(error)}")
            sock.close()

    def _ask_for_proof(self, connection: Connection) -> None:
        options = _handshake.extension_options(auth="token", nonce=_handshake.new_nonce())
        reply = _handshake.server_reply(self._options.key, options)
        connection.transcript += reply
        connection.enter(State.PROVING)
        self._send(connection, reply)

    def _on_proof(self, connection: Connection) -> None:
        try:
            _handshake.check_proof(connection.proof, self._options.token, "client", connection.transcript)
        except AuthenticationError:
            return self._refuse(connection, "does not know the token", b"")
        return self._enqueue(connection)

    # ---- The queue ----

    def _enqueue(self, connection: Connection) -> None:
        self._connections.end_after(connection, None)
        connection.enter(State.WAITING)
        self._watch_end(connection, connection.stream)
        self._queue.append(connection)
        self.serve_queue()

    def remove_from_queue(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        if connection in self._queue:
            self._queue.remove(connection)

    def serve_queue(self) -> None:
        """Open as many sessions as there is room for, in order, and tell the other clients their place."""
        limit = self._options.max_sessions
        while self._queue and (not limit or len(self._connections.in_state(State.STARTING, State.SERVING)) < limit):
            self._guard(self._queue.popleft(), self._open)
        for place, connection in enumerate(list(self._queue), start=1):
            if connection.queue_position != place:
                connection.queue_position = place
                self._guard(connection, self._report_queue_position)

    def _guard(self, connection: Connection, action: Callable[[Connection], None]) -> None:
        self._loop.guard(lambda: action(connection), lambda error: self._owner.on_client_error(connection, error))

    def _report_queue_position(self, connection: Connection) -> None:
        place = connection.queue_position
        if place == len(self._queue):
            self._log.write("waiting", f"{connection.peer} waits in place {place}", connection.number, place=place)
        if connection.peer_kind == "portcall":
            limit = self._options.max_sessions
            text = f"the server is full ({count(limit, 'session')}); you are number {place} in its queue"
            self._send(connection, _handshake.notice(text))

    def _open(self, connection: Connection) -> None:
        """Order a process for a session.

        Raises:
            OSError: there is no room for it.
        """
        connection.progress = os.memfd_create("portcall-progress")
        os.ftruncate(connection.progress, PROGRESS_BYTES)
        directory = os.path.join(self._base, f"session-{connection.number}")
        os.mkdir(directory, 0o700)
        connection.directory = directory
        features = ",".join(sorted(connection.features))
        user = f"{connection.peer}, lease {connection.fence}" if connection.fence else connection.peer
        user += f", certificate {connection.certificate}" if connection.certificate else ""
        reply = self._reply(connection).hex()
        facts = (connection.number, directory, features, connection.certificate or "all", user, reply)
        descriptors = [connection.stream.fileno(), connection.progress]
        if connection.may_keep and self._options.capsules:
            verdict, connection.verdict = os.pipe()
            try:
                self._owner.order(StartKeptSession(*facts), [*descriptors, verdict])
            finally:
                os.close(verdict)
        else:
            self._owner.order(StartSession(*facts), descriptors)
        connection.enter(State.STARTING)
        self._connections.end_after(connection, self._options.handshake_timeout)
        self._loop.guard(self.accept_clients)

    def _reply(self, connection: Connection) -> bytes:
        """Return what says to a client that it is let in."""
        connection.secret = secrets.token_hex(16)
        options: dict[str, str] = {}
        if connection.peer_kind == "portcall":
            options = _handshake.extension_options(
                connection.features, session=str(connection.number), secret=connection.secret
            )
        if self._options.token:
            options["proof"] = _handshake.proof(self._options.token, "server", connection.transcript).hex()
        return _handshake.server_reply(self._options.key, options)

    def begin(self, connection: Connection) -> None:
        """Its process is there, which says to the client that it is let in."""
        if connection.kill_reason is None:
            self._guard(connection, self._serve)

    def _serve(self, connection: Connection) -> None:
        connection.enter(State.SERVING)
        self._connections.end_after(connection, connection.limit or None)
        self._watch_end(connection, connection.stream)  # again: it may have left since
        limit = f", for at most {connection.limit:g} s" if connection.limit else ""
        text = f"opened for {connection.peer}, a {connection.peer_kind} client{limit}"
        self._log.write("opened", text, connection.number, peer=connection.peer, client=connection.peer_kind)
        if self._gate is not None:
            self._gate.opened(connection)

    # ---- Answers ----

    def _refuse(self, connection: Connection, why: str, answer: bytes | None = None) -> None:
        self._log.write("refused", f"refused: {connection.peer} {why}", connection.number, peer=connection.peer)
        connection.kill_reason = None  # said
        self._answer(connection, _handshake.refusal(MISMATCH) if answer is None else answer)

    def _answer(self, connection: Connection, data: bytes) -> None:
        """Send a last answer."""
        with contextlib.suppress(OSError):
            self._send(connection, data)
        self._owner.forget(connection)

    def _send(self, connection: Connection, data: bytes) -> None:
        """Send what fits into an empty buffer; a client that does not read is its own fault.

        Raises:
            OSError: it does not fit.
        """
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its end is another event
            if connection.stream.send(data, socket.MSG_DONTWAIT) < len(data):
                raise OSError("the client takes no answer")
