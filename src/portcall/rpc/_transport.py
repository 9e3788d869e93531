# SPDX-License-Identifier: Apache-2.0
"""Connections: addresses, sockets, TLS. A connection ends up as a file descriptor, which the core pumps without Python;
TLS, which only Python speaks here, is pumped between two descriptors by a thread.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from portcall.errors import AuthenticationError, ConnectError, SessionTimeoutError
from portcall.rpc._handshake import check_token

_KEEPALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4}
_CHUNK = 256 << 10
_DRAIN_TIME = 5.0  # seconds for the last bytes of a connection that has ended
_WRONG_NAME = (62, 63, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, …_EMAIL_…, …_IP_ADDRESS_… of OpenSSL


@dataclass(frozen=True)
class Address:
    """Where a server listens: ``host:port``, ``[v6]:port`` or ``unix:/path``."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, port: int | None = None, *, default_port: int = 9090) -> Address:
    """Read an address in any of its forms; ``port`` is one that was given apart.

    Raises:
        ValueError: no such form, or a port that is none.
    """
    if text.startswith("unix:"):
        return Address(path=text.removeprefix("unix:"))
    host, number = text, "" if port is None else str(port)
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ValueError(f"the address {text!r} is not of the form [v6]:port")
        number = number or rest[1:]
    elif text.count(":") == 1:
        host, _, given = text.partition(":")
        number = number or given
    number = number or str(default_port)
    if number.isdecimal() and not 0 < int(number) < 65536:
        raise ValueError(f"invalid port {number} in the address {text!r} (must be 1-65535)")
    if not number.isdecimal() or not host:
        raise ValueError(f"the address {text!r} is not of the form host:port, [v6]:port or unix:/path")
    return Address(host, int(number))


@dataclass(frozen=True)
class TLSOptions:
    """How to check a server, and how to show who we are (mutual TLS).

    Attributes:
        ca: file with the certificates to trust; the system's when empty.
        certificate, key: files of our own certificate, where the server asks for one.
        server_name: the name to expect in the server's certificate; the host's when empty.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""
    server_name: str = ""

    def context(self) -> ssl.SSLContext:
        """Return what the client's side of TLS needs.

        Raises:
            FileNotFoundError: there is no such file.
            OSError: a file holds no certificate or key.
        """
        with naming(self.ca):
            context = ssl.create_default_context(cafile=self.ca or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.certificate:
            load_certificate(context, self.certificate, self.key)
        return context


def load_certificate(context: ssl.SSLContext, certificate: str, key: str) -> None:
    """Have TLS show a certificate; an empty ``key`` is in the same file. Nobody is asked for a password."""
    with naming(certificate, key):
        context.load_cert_chain(certificate, key or None, password="")


@contextlib.contextmanager
def naming(*paths: str) -> Iterator[None]:
    """Have the errors of TLS name the files that they are about; empty paths are none.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: a file is not what TLS takes.
    """
    files = list(filter(None, paths))
    for path in files:
        os.stat(path)
    try:
        yield
    except ssl.SSLError as error:
        why = f" ({error.reason})" if error.reason else ""
        raise OSError(f"TLS cannot use {' with '.join(files)}{why}: it takes PEM files, of certificates and of a "
                      "private key that is not encrypted") from None  # fmt: skip


def open_socket(address: Address, timeout: float | None, tls: TLSOptions | None = None) -> socket.socket:
    """Connect, with the options that small messages and dead peers ask for.

    Raises:
        ConnectError: nobody listens there, or the name is not known.
        AuthenticationError: the server's certificate is not to be trusted.
        SessionTimeoutError: no answer in time.
        FileNotFoundError: there is no file of that name, of those that TLS needs.
    """
    context = tls.context() if tls else None
    peer = str(address)
    try:
        sock = _connect_socket(address, timeout)
    except TimeoutError:
        raise SessionTimeoutError(f"{peer} did not answer within {timeout:g} s", peer=peer, reason="unreachable",
                                  hint="is it up, and the port open in its firewall?") from None  # fmt: skip
    except socket.gaierror as error:
        text = f"cannot connect to {peer}: the host name '{address.host}' is not known ({error.strerror})"
        raise ConnectError(text, peer=peer, reason="unknown-host") from None
    except OSError as error:
        serve = f"portcall serve --unix {address.path}" if address.path else f"portcall serve --port {address.port}"
        refused = isinstance(error, (ConnectionRefusedError, FileNotFoundError))
        raise ConnectError(f"cannot connect to {peer}: {error.strerror or error}", peer=peer,
                           reason="refused" if refused else "unreachable",
                           hint=f"is a server running there? {serve}") from None  # fmt: skip
    if tls is None or context is None:
        return sock
    try:
        return context.wrap_socket(sock, server_hostname=tls.server_name or address.host or "localhost")
    except TimeoutError:
        raise SessionTimeoutError(f"{peer} did not answer our TLS within {timeout:g} s", peer=peer, reason="no-tls",
                                  hint="does it speak TLS?") from None  # fmt: skip
    except ssl.SSLCertVerificationError as error:
        text = f"the certificate of {peer} is not to be trusted: {error.verify_message}"
        if error.verify_code in _WRONG_NAME:
            raise AuthenticationError(text, peer=peer, reason="certificate-name",
                                      hint="TLSOptions(server_name=) has the name to expect") from None  # fmt: skip
        raise AuthenticationError(text, peer=peer, reason="certificate",
                                  hint="give the file of its authority: TLSOptions(ca=)") from None  # fmt: skip
    except OSError as error:
        why = getattr(error, "reason", None) or error.strerror or error
        raise ConnectError(f"TLS with {peer} failed: {why}", peer=peer, reason="no-tls",
                           hint="does it speak TLS?") from None  # fmt: skip


def _connect_socket(address: Address, timeout: float | None) -> socket.socket:
    if not address.path:
        sock = socket.create_connection((address.host, address.port), timeout)
        tune(sock)
        return sock
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(timeout)
        sock.connect(address.path)
    except BaseException:
        sock.close()
        raise
    return sock


def tune(sock: socket.socket) -> None:
    """Send small messages at once, and notice a peer that is gone: within 40 s where nothing is on its way to it, else
    when the system gives up to repeat what was sent, which takes a quarter of an hour unless a request has a time-out.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def as_descriptor(sock: socket.socket) -> tuple[int, threading.Thread | None]:
    """Give up a socket for a descriptor that carries the same bytes in clear, and the thread that does TLS, if any."""
    if not isinstance(sock, ssl.SSLSocket):
        sock.setblocking(True)
        return sock.detach(), None
    ours, theirs = socket.socketpair()
    pump = threading.Thread(target=_pump, args=(sock, theirs), name="portcall-tls", daemon=True)
    pump.start()
    return ours.detach(), pump


def _pump(secure: ssl.SSLSocket, plain: socket.socket) -> None:
    """Move bytes both ways until one side ends; what it had sent before still arrives."""
    secure.setblocking(False)
    plain.setblocking(False)
    to_plain, to_secure = bytearray(), bytearray()
    with selectors.DefaultSelector() as selector, secure, plain, contextlib.suppress(OSError):
        while True:
            for sock, incoming, outgoing in ((secure, to_plain, to_secure), (plain, to_secure, to_plain)):
                want = (selectors.EVENT_READ if len(incoming) < _CHUNK else 0) | (
                    selectors.EVENT_WRITE if outgoing else 0
                )
                _watch(selector, sock, want)
            if not secure.pending() or len(to_plain) >= _CHUNK:
                selector.select()
            if not _receive(secure, to_plain):
                return _drain(plain, to_plain)
            if not _receive(plain, to_secure):
                return _drain(secure, to_secure)
            _send(plain, to_plain)
            _send(secure, to_secure)


def _watch(selector: selectors.BaseSelector, sock: socket.socket, want: int) -> None:
    known = sock in selector.get_map()
    if want and known:
        selector.modify(sock, want)
    elif want:
        selector.register(sock, want)
    elif known:
        selector.unregister(sock)


def _receive(sock: socket.socket, into: bytearray) -> bool:
    """Take what is there; False once the peer has closed."""
    if len(into) >= _CHUNK:
        return True
    try:
        data = sock.recv(_CHUNK)
    except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        return True
    into += data
    return bool(data)


def _send(sock: socket.socket, data: bytearray) -> None:
    with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
        while data:
            del data[: sock.send(data[:_CHUNK])]


def _drain(sock: socket.socket, data: bytearray) -> None:
    sock.settimeout(_DRAIN_TIME)
    sock.sendall(data)


def read_token(token: str | None) -> str:
    """Return the token to use: the one given, or that of the environment; empty for none.

    Raises:
        ValueError: it is nothing but blanks.
    """
    return check_token(token if token is not None else os.environ.get("PORTCALL_TOKEN", ""))
