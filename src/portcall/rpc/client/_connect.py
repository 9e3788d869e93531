# SPDX-License-Identifier: Apache-2.0
"""Opening a session with a server: connect, shake hands, wait in its queue, prove who we are; and ask why it ended."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import math
import os
import socket
import ssl
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from portcall import errors
from portcall._function import get_global_func
from portcall._module import Module
from portcall.rpc.client._capsule import Capsule
from portcall.rpc.client._deadline import Deadline, OnWait, Stop, read_some
from portcall.rpc.client._end_reason import EndReasonQuery, SessionCredential
from portcall.rpc.client._errors import without_escapes
from portcall.rpc.client._output import OnOutput
from portcall.rpc.client._parallel import MOST_PARALLEL, ParallelSession
from portcall.rpc.client._reconnect import Opened, Reconnection
from portcall.rpc.client._record import keep_frames, pass_frames
from portcall.rpc.client._session import Session
from portcall.rpc.client._socket import as_descriptor, open_socket, read_token
from portcall.rpc.client._ssh import Tunnel
from portcall.rpc.wire import _handshake
from portcall.rpc.wire._address import Address, parse_address
from portcall.rpc.wire._facts import FEATURES, MOST_SECONDS, NOT_OPENED, SILENCE
from portcall.rpc.wire._tls import TLSOptions

S = TypeVar("S", bound=Session)
LEAST_HEARTBEAT = 3.0  # seconds; a server gives a sign of life each second


@dataclass(frozen=True)
class ConnectOptions:
    """What few sessions need, for ``connect(options=)``.

    Attributes:
        name: for messages and logs, instead of the address.
        on_wait: called with what is waited for now, such as the server's words on its queue.
        on_output: called with each line that the session's code prints on a server of portcall, and "stdout" or
            "stderr": ``on_output=lambda line, stream: print(line)``. Lines come while a request waits for its answer,
            and all that a call printed before its result. It must not use the session. A client that reads too slowly
            misses lines; one line says how many.
        record: a file that gets all frames of the session, which ``portcall.testing.replay`` serves again. It has what
            is sent and received, files too; not the token.
        capsule: a folder that gets a file when the session crashes: all that was sent and received, files too, and how
            it ended; ``portcall capsule run`` does it again. Not the token. The error names the file.
        capsule_limit: bytes; of a session with more, the file has the ending alone.
        server_capsule: whether the server may keep such a file, too (``portcall serve --capsules``): for those who run
            it. The error names the file.
        heartbeat: seconds, at least 3, that the server may be silent while a request waits for it; 0 for no limit. A
            server of portcall gives a sign of life each second while it works, however long a call takes. Of other
            servers the system says whether their machine answers.
        reconnect: seconds for which to try to open another session in place of a lost one; 0 to leave it. It is opened
            at the next use of the Session. A call that was under way raises, and is not repeated; tensors, modules,
            functions and objects of the lost session raise SessionLostError.
    """

    name: str = ""
    on_wait: OnWait | None = None
    on_output: OnOutput | None = None
    record: str | os.PathLike[str] | None = None
    heartbeat: float = 0
    reconnect: float = 0
    capsule: str | os.PathLike[str] | None = None
    capsule_limit: int = 256 << 20
    server_capsule: bool = False


def connect(
    url: str,
    port: int | None = None,
    key: str = "",
    timeout: float | None = 10.0,
    session_timeout: float = 0,
    session_constructor_args: Sequence[Any] | None = None,
    *,
    token: str | None = None,
    tls: TLSOptions | None = None,
    call_timeout: float = 0,
    parallel: int = 1,
    options: ConnectOptions | None = None,
) -> Session:
    """Open a session with a server of portcall or of TVM.

    Parameters:
        url, port: ``"board.local"`` and 9090, ``"board.local:9090"``, ``"[::1]:9090"`` or ``"unix:/run/portcall"``;
            for ``"ssh://user@board"`` the system's ssh starts a server there, which ends with the session, and for
            ``"adb://SERIAL"`` adb does.
        key: the key that the server was started with.
        timeout: seconds until the session must be open, the time in the server's queue included; None for no limit.
        session_timeout: seconds that the session may last, on the server's clock; 0 for the server's own limit.
        session_constructor_args: the name of a session constructor of the server, and its arguments:
            ``["rpc.Connect", host, port, key, False]`` goes one hop further, within the same ``timeout``.
        token: the server's token; by default that of the environment variable PORTCALL_TOKEN. With one, a server that
            does not prove that it knows it is refused.
        tls: certificates, for a server with TLS.
        call_timeout: seconds that one request may take; 0 for no limit.
        parallel: how many sessions to open, for calls that run at the same time; they are used as one, as
            ``ParallelSession`` describes.
        options: what is rarely needed: its output, a heartbeat, another session for a lost one.

    Raises:
        ConnectError: no server answers there; or it is one of TVM, which has no parallel sessions.
        KeyMismatchError, AuthenticationError, VersionMismatchError: the server refused, or is not to be trusted.
        SessionTimeoutError: no session in time; the message says what was waited for.
    """
    return connect_without(
        (), url, port, key, timeout, session_timeout, session_constructor_args or (),
        token=token, tls=tls, call_timeout=call_timeout, parallel=parallel, options=options,
    )  # fmt: skip


async def connect_async(
    url: str,
    port: int | None = None,
    key: str = "",
    timeout: float | None = 10.0,
    session_timeout: float = 0,
    session_constructor_args: Sequence[Any] | None = None,
    *,
    token: str | None = None,
    tls: TLSOptions | None = None,
    call_timeout: float = 0,
    parallel: int = 1,
    options: ConnectOptions | None = None,
) -> Session:
    """Open a session as ``connect`` does, while the event loop goes on; parameters and errors are the same.

    Cancelling ends it at once, and closes what was opened. ``options.on_wait`` is called in another thread.
    """
    stop = Stop()
    opened: concurrent.futures.Future[Session] = concurrent.futures.Future()
    opened.set_running_or_notify_cancel()

    def work() -> None:
        try:
            session = connect_without(
                (), url, port, key, timeout, session_timeout, session_constructor_args or (),
                token=token, tls=tls, call_timeout=call_timeout, parallel=parallel, options=options, stop=stop,
            )  # fmt: skip
            stop.at_stop(session.close)
            opened.set_result(session)
        except BaseException as error:
            opened.set_exception(error)

    threading.Thread(target=work, name="portcall-connect", daemon=True).start()
    try:
        return await asyncio.wrap_future(opened)
    except asyncio.CancelledError:
        stop.stop()
        raise


def connect_without(
    features: Iterable[str],
    url: str,
    port: int | None = None,
    key: str = "",
    timeout: float | None = 10.0,
    session_timeout: float = 0,
    constructor_args: Sequence[Any] = (),
    *,
    token: str | None = None,
    tls: TLSOptions | None = None,
    call_timeout: float = 0,
    parallel: int = 1,
    options: ConnectOptions | None = None,
    stop: Stop | None = None,
) -> Session:
    """Open a session as ``connect`` does; the client does not offer these features of the protocol.

    ``stop`` ends that from another thread.
    """
    address = parse_address(url, port, ssh=True)
    rare = options or ConnectOptions()
    tunnel = Tunnel(address, timeout, rare.heartbeat or SILENCE) if address.ssh or address.adb else None
    how = Opening(
        lambda _: (tunnel.address() if tunnel else address, key, tls), rare.name or str(address),
        "" if tunnel else read_token(token), session_timeout, constructor_args,
        rare.on_wait, rare.record, rare.heartbeat, features, stop,
        rare.capsule, rare.capsule_limit, rare.server_capsule,
    )  # fmt: skip
    if tunnel is None:
        return open_session(how, timeout, call_timeout, rare.on_output, rare.reconnect, parallel)
    if key or token or tls:
        raise ValueError(f"{address} starts a server of its own: key=, token= and tls= are not for it")
    try:
        if stop:
            stop.at_stop(tunnel.close)
        session = open_session(how, timeout, call_timeout, rare.on_output, rare.reconnect, parallel)
    except BaseException:
        tunnel.close()
        raise
    session._at_close = weakref.finalize(session, tunnel.close)
    return session


Where = Callable[[float | None], tuple[Address, str, TLSOptions | None]]


@dataclass(frozen=True)
class Opening:
    """How to open a session, and another one in its place.

    Attributes:
        where: returns the address, the key and the options of TLS, within so many seconds; None for no limit.
        without: extensions that the client does not offer.
        secret: the token; empty for none.
        stop: ends it from another thread.
        The others are those of ``connect`` and ``ConnectOptions``.
    """

    where: Where
    name: str
    secret: str = field(default="", repr=False)
    session_timeout: float = 0
    constructor_args: Sequence[Any] = ()
    on_wait: OnWait | None = None
    record: str | os.PathLike[str] | None = None
    heartbeat: float = 0
    without: Iterable[str] = ()
    stop: Stop | None = None
    capsule: str | os.PathLike[str] | None = None
    capsule_limit: int = 0
    server_capsule: bool = False

    def open(self, timeout: float | None, reads_output: bool) -> Opened:
        """Open a session within ``timeout`` seconds; the errors are those of ``connect``."""
        deadline = Deadline(self.name, timeout, self.on_wait)
        address, key, tls = self.where(timeout)
        start = time.perf_counter()
        deadline.wait_for("the connection")
        left = deadline.remaining()
        if timeout is not None and left is not None:
            left = min(timeout, math.ceil(left * 10) / 10)  # errors name it
        sock = open_socket(address, left, tls, self.heartbeat)
        with self.stop.cutting(sock) if self.stop else contextlib.nullcontext():
            return self._open_over(sock, deadline, address, key, tls, reads_output, start)

    def _open_over(
        self, sock: socket.socket, deadline: Deadline, address: Address, key: str, tls: TLSOptions | None,
        reads_output: bool, start: float,
    ) -> Opened:  # fmt: skip
        try:
            unused = {name for name, used in (("alive", self.heartbeat), ("output", reads_output)) if not used}
            features = {*FEATURES} - {*self.without, *unused}
            hello = _handshake.client_hello(
                key, session_timeout=self.session_timeout, nonce=_handshake.new_nonce(), features=features,
                capsule=self.server_capsule,
            )  # fmt: skip
            reply, queued = _shake_hands(sock, deadline, key, hello, self.secret)
            left = deadline.remaining()
        except BaseException:
            sock.close()
            raise
        ask: Callable[[], errors.RPCError | None] | None = _end_query(reply, address, self.name, tls, self.heartbeat)
        descriptor, pump = as_descriptor(sock)
        # A server behind a proxy speaks before it knows its client, and says all that it has.
        common = reply.features & features if reply.is_portcall else frozenset()
        if self.record is not None:
            facts = {"features": sorted(common), "peer": self.name}
            descriptor, pump = keep_frames(descriptor, self.record, facts)
        kept = None
        if self.capsule is not None:
            try:
                kept = Capsule(self.capsule, self.capsule_limit)
            except BaseException:
                os.close(descriptor)
                raise
            kept.facts = {"features": sorted(common), "peer": self.name}
            descriptor, kept.pump = pass_frames(descriptor, kept)
            pump, ask = kept.pump, kept.asking(ask)
        deadline.wait_for("the session to open")
        try:
            root = _open(descriptor, self.name, left, list(self.constructor_args), ask)
        except BaseException:
            if pump is not None:  # it ends, since the descriptor is closed
                pump.join(timeout=1.0)
            raise
        clocks = {"queue": queued, "connect": time.perf_counter() - start - queued}
        return Opened(
            root, ask, pump, "portcall" if reply.is_portcall else "TVM", common, clocks, kept, self.server_capsule
        )


def open_session(
    how: Opening, timeout: float | None, call_timeout: float, on_output: OnOutput | None, reconnect: float,
    parallel: int = 1,
) -> Session:  # fmt: skip
    """Open a session; the parameters and errors are those of ``connect``."""
    if how.heartbeat and not LEAST_HEARTBEAT <= how.heartbeat <= MOST_SECONDS:
        raise ValueError(f"invalid heartbeat {how.heartbeat!r} (must be {LEAST_HEARTBEAT:g} seconds or more, or 0)")
    if not 0 <= reconnect <= MOST_SECONDS:
        raise ValueError(f"invalid reconnect {reconnect!r} (must be 0-{MOST_SECONDS:g} seconds)")
    if not 1 <= parallel <= MOST_PARALLEL:
        raise ValueError(f"invalid parallel {parallel!r} (must be 1-{MOST_PARALLEL} sessions)")
    for kept, wanted in (("record", how.record), ("capsule", how.capsule)):
        for name, used in (
            ("reconnect", reconnect),
            ("parallel", parallel > 1),
            ("record", kept != "record" and how.record),
        ):
            if used and wanted is not None:
                raise ValueError(f"{kept}= keeps one session; it cannot be used with {name}=")
    open_one = functools.partial(how.open, reads_output=on_output is not None)

    if "opentelemetry.trace" in sys.modules:
        from portcall.rpc.client._trace import follow_if_used  # for programs that trace

        follow_if_used()

    def open_as(kind: type[S], timeout: float | None) -> S:
        again = Reconnection(how.name, reconnect, open_one, how.on_wait) if reconnect else None
        return kind._over(open_one(timeout), how.name, call_timeout, how.heartbeat, on_output, again)

    if parallel == 1:
        return open_as(Session, timeout)
    until = None if timeout is None else time.monotonic() + timeout
    session = open_as(ParallelSession, timeout)
    try:
        _open_others(session, parallel, lambda: open_as(Session, until and max(until - time.monotonic(), 0.001)))
    except BaseException:
        session.close()
        raise
    return session


def _open_others(session: ParallelSession, parallel: int, open_one: Callable[[], Session]) -> None:
    """Open further sessions for one, at the same time."""
    name = session.name
    if session.peer_kind != "portcall":
        raise errors.ConnectError(f"{name} is a server of TVM, which has one session at a time; parallel= needs one of "
                                  "portcall", peer=name, reason="one-session")  # fmt: skip
    with concurrent.futures.ThreadPoolExecutor(parallel - 1, "portcall-connect") as pool:
        opening = [pool.submit(open_one) for _ in range(parallel - 1)]
    session._join([each.result() for each in opening if each.exception() is None])
    failure = next(filter(None, (each.exception() for each in opening)), None)
    if isinstance(failure, errors.SessionTimeoutError):
        raise errors.SessionTimeoutError(
            str(failure), peer=name, reason=failure.reason,
            hint=f"parallel={parallel} takes {parallel} sessions at once, and the server may allow fewer",
        ) from None  # fmt: skip
    if failure is not None:
        raise failure


def _open(
    descriptor: int,
    name: str,
    left: float | None,
    args: list[Any],
    end_reason: Callable[[], errors.RPCError | None] | None,
) -> Module:
    try:
        root: Module = get_global_func("portcall.rpc.ConnectFds")(descriptor, descriptor, name, left or 0.0, args)
    except errors.SessionBrokenError as error:
        raise (end_reason() if end_reason else None) or error from None
    except errors.RemoteError as error:
        if error.kind == "VersionMismatchError":
            raise errors.VersionMismatchError(f"{name}: {error.message}", peer=name) from None
        raise
    return root


def connect_raw(
    how: Opening, timeout: float | None, features: set[str]
) -> tuple[int, Callable[[], errors.RPCError | None] | None]:
    """Return a descriptor of a session without its first request, and what asks how it ended.

    Raises:
        ConnectError: the server lacks one of these features.
        The others are those of ``connect``.
    """
    deadline = Deadline(how.name, timeout, None)
    address, key, tls = how.where(timeout)
    sock = open_socket(address, timeout, tls, 0)
    try:
        hello = _handshake.client_hello(key, nonce=_handshake.new_nonce(), features=features)
        reply, _ = _shake_hands(sock, deadline, key, hello, how.secret)
        common = reply.features & features if reply.is_portcall else frozenset()
        if missing := features - common - {"alive", "output"}:
            text = f"{how.name} lacks what the session used: {', '.join(sorted(missing))}"
            raise errors.ConnectError(text, peer=how.name, reason="features")
    except BaseException:
        sock.close()
        raise
    return as_descriptor(sock)[0], _end_query(reply, address, how.name, tls)


def _end_query(
    reply: _handshake.Hello, address: Address, name: str, tls: TLSOptions | None, heartbeat: float = 0
) -> EndReasonQuery | None:
    """Return what asks how a session ended; None where its server does not tell."""
    options = reply.options
    if "session" not in options:
        return None
    return EndReasonQuery(
        address, name, tls, SessionCredential(options["session"], options.get("secret", "")), heartbeat
    )


# ---- The handshake -----------------------------------------------------------------------------------------------


def _shake_hands(
    sock: socket.socket, deadline: Deadline, key: str, hello: bytes, secret: str
) -> tuple[_handshake.Hello, float]:
    """Say hello, wait in the queue, prove; return the reply that opens the session, and the seconds in the queue."""
    peer = deadline.peer
    deadline.wait_for("the server's answer")
    queue = QueueClock()
    try:
        sock.settimeout(deadline.remaining())
        sock.sendall(hello)
        reader = _handshake.ReplyReader(key)
        message = _read_reply(sock, reader, deadline, queue)
        if _proof_is_wanted(message, secret, peer):
            transcript = hello + reader.transcript
            deadline.wait_for("the server's proof that it knows the token")
            sock.sendall(_handshake.proof(secret, "client", transcript))
            try:
                message = _read_reply(sock, _handshake.ReplyReader(key), deadline, queue)
            except (ConnectionError, EOFError):
                if queue.seconds:  # so the proof was right
                    raise
                text = f"{peer} refused the token; is it the one it was started with?"
                raise errors.AuthenticationError(text, peer=peer, reason="wrong-token") from None
            _handshake.check_proof(message.proof, secret, "server", transcript)
    except errors.RPCError as error:
        if error.peer:
            raise
        raise type(error)(f"{peer}: {error}", peer=peer, reason=error.reason) from None
    except TimeoutError:
        raise deadline.timeout_error() from None
    except ssl.SSLError as error:
        hint = "it may want a certificate: TLSOptions(certificate=, key=)"
        text = f"{peer} refused us: {error.reason or 'TLS ended'}"
        raise errors.AuthenticationError(text, peer=peer, reason="no-certificate", hint=hint) from None
    except (OSError, EOFError):
        text = f"{peer} closed the connection in the handshake, while we waited for: {deadline.waiting_for}"
        if deadline.waiting_for.startswith(NOT_OPENED):  # its last notice
            raise errors.ConnectError(text, peer=peer, reason="not-opened") from None
        hint = "is it an RPC server, without TLS?"
        raise errors.ConnectError(text, peer=peer, reason="closed", hint=hint) from None
    return message, queue.seconds


class QueueClock:
    """How long the server had us wait in its queue."""

    def __init__(self) -> None:
        self._since: float | None = None

    def start(self) -> None:
        self._since = self._since or time.perf_counter()

    @property
    def seconds(self) -> float:
        return 0.0 if self._since is None else time.perf_counter() - self._since


def _read_reply(
    sock: socket.socket, reader: _handshake.ReplyReader, deadline: Deadline, queue: QueueClock
) -> _handshake.Hello:
    """Return the next reply; notices before it say what is waited for.

    Raises:
        EOFError, OSError: the peer has closed, or is too late.
        RPCError: it refuses, or does not speak the protocol.
    """
    while True:
        # One byte more than a message has could belong to the session: read what is missing and no more.
        message = reader.feed(read_some(sock, reader.missing(), deadline))
        if isinstance(message, _handshake.Hello):
            if message.is_portcall:
                message.check_version("the server")
            return message
        if message is not None:
            queue.start()
            deadline.wait_for(without_escapes(message.text), "queue")


def _proof_is_wanted(reply: _handshake.Hello, secret: str, peer: str) -> bool:
    """Return whether a server asks for a proof.

    Raises:
        AuthenticationError: it does and we have no token, or it does not and we have one.
    """
    wanted = reply.options.get("auth") == "token"
    if wanted and not secret:
        raise errors.AuthenticationError(
            f"{peer} wants a token", peer=peer, reason="no-token",
            hint="pass token= or set PORTCALL_TOKEN to the one it was started with",
        )  # fmt: skip
    if secret and not wanted:
        raise errors.AuthenticationError(
            f"{peer} did not prove that it knows the token; it has none, or is not the server you mean", peer=peer,
            reason="not-asked",
        )  # fmt: skip
    return wanted
