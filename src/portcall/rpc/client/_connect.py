# SPDX-License-Identifier: Apache-2.0
"""Opening a session with a server: connect, shake hands, wait in its queue, prove who we are; and ask why it ended."""

from __future__ import annotations

import os
import socket
import ssl
import time
from collections.abc import Iterable, Sequence
from typing import Any

from portcall import errors
from portcall._function import get_global_func
from portcall._module import Module
from portcall.rpc.client._deadline import Deadline, OnWait, read_some
from portcall.rpc.client._end_reason import EndReasonQuery, SessionCredential
from portcall.rpc.client._errors import without_escapes
from portcall.rpc.client._output import OnOutput
from portcall.rpc.client._record import keep_frames
from portcall.rpc.client._session import Session
from portcall.rpc.client._socket import as_descriptor, open_socket, read_token
from portcall.rpc.wire import _handshake
from portcall.rpc.wire._address import parse_address
from portcall.rpc.wire._tls import TLSOptions


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
    name: str = "",
    on_wait: OnWait | None = None,
    on_output: OnOutput | None = None,
    record: str | os.PathLike[str] | None = None,
    _without: Iterable[str] = (),
) -> Session:
    """Open a session with a server of portcall or of TVM.

    Parameters:
        url, port: ``"board.local"`` and 9090, ``"board.local:9090"``, ``"[::1]:9090"`` or ``"unix:/run/portcall"``.
        key: the key that the server was started with.
        timeout: seconds until the session must be open, the time in the server's queue included; None to wait forever.
        session_timeout: seconds that the session may last, on the server's clock; 0 for the server's own limit.
        session_constructor_args: the name of a session constructor of the server, and its arguments:
            ``["rpc.Connect", host, port, key, False]`` goes one hop further.
        token: the server's token; by default that of the environment variable PORTCALL_TOKEN. With one, a server that
            does not prove that it knows it is refused.
        call_timeout: seconds that one request may take; 0 for no limit.
        name: for messages and logs, instead of the address.
        on_wait: called with what is waited for now, such as the server's words on its queue.
        on_output: called with each line that the session's code prints on a server of portcall, and "stdout" or
            "stderr": ``on_output=lambda line, stream: print(line)``. Lines come while a request waits for its answer,
            and all that a call printed before its result. It must not use the session. A client that reads too slowly
            misses lines; one line says how many.
        record: a file that gets all frames of the session, which ``portcall.testing.replay`` serves again. It has what
            is sent and received, files too; not the token.

    Raises:
        ConnectError: nobody listens there.
        KeyMismatchError, AuthenticationError, VersionMismatchError: the server refused, or is not to be trusted.
        SessionTimeoutError: no session in time; the message says what was waited for.
    """
    address = parse_address(url, port)
    name = name or str(address)
    secret = read_token(token)
    start = time.perf_counter()
    deadline = Deadline(name, timeout, on_wait)
    deadline.wait_for("the connection")
    sock = open_socket(address, timeout, tls)
    try:
        features = _handshake.FEATURES.keys() - {*_without, *(["output"] if on_output is None else [])}
        reply, queued = _shake_hands(sock, deadline, key, session_timeout, secret, features)
        left = deadline.remaining()
    except BaseException:
        sock.close()
        raise
    options = reply.options
    credential = SessionCredential(options["session"], options.get("secret", "")) if "session" in options else None
    end_reason = None if credential is None else EndReasonQuery(address, name, tls, credential)
    descriptor, pump = as_descriptor(sock)
    if record is not None:
        facts = {"features": sorted(reply.features) if reply.is_portcall else [], "peer": name}
        descriptor, pump = keep_frames(descriptor, record, facts)
    deadline.wait_for("the session to open")
    try:
        root = _open(descriptor, name, left, list(session_constructor_args or []), end_reason)
    except BaseException:
        if pump is not None:  # it ends, since the descriptor is closed
            pump.join(timeout=1.0)
        raise
    get_global_func("portcall.rpc.SetCallTimeout")(root, float(call_timeout))
    get_global_func("portcall.rpc.UseFeatures")(root, sorted(reply.features if reply.is_portcall else ()))
    clocks = {"queue": queued, "connect": time.perf_counter() - start - queued}
    session = Session(root, name, end_reason, clocks, pump)
    if on_output is not None and reply.is_portcall and "output" in reply.features:
        session.read_output(on_output)
    session.peer_kind = "portcall" if reply.is_portcall else "TVM"
    session.features = reply.features if reply.is_portcall else frozenset()
    return session


def _open(descriptor: int, name: str, left: float | None, args: list[Any], end_reason: EndReasonQuery | None) -> Module:
    try:
        root: Module = get_global_func("portcall.rpc.ConnectFds")(descriptor, descriptor, name, left or 0.0, args)
    except errors.SessionBrokenError as error:
        raise (end_reason() if end_reason else None) or error from None
    except errors.RemoteError as error:
        if error.kind == "VersionMismatchError":
            raise errors.VersionMismatchError(f"{name}: {error.message}", peer=name) from None
        raise
    return root


# ---- The handshake -----------------------------------------------------------------------------------------------


def _shake_hands(
    sock: socket.socket, deadline: Deadline, key: str, session_timeout: float, secret: str, features: Iterable[str]
) -> tuple[_handshake.Hello, float]:
    """Say hello, wait in the queue, prove; return the reply that opens the session, and the seconds in the queue."""
    peer = deadline.peer
    hello = _handshake.client_hello(
        key, session_timeout=session_timeout, nonce=_handshake.new_nonce(), features=features
    )
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
            deadline.wait_for(without_escapes(message.text))


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
