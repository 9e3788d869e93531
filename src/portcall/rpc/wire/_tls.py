# SPDX-License-Identifier: Apache-2.0
"""TLS. The core moves bytes through a file descriptor and does not know TLS, so a pump moves them between a TLS socket
and a plain one.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone

_CHUNK = 256 << 10
# The field "validity" of a certificate (RFC 5280, 4.1.2.5) in DER: a sequence of two times, each of either kind.
_VALIDITY = re.compile(rb"\x30." + 2 * rb"(?:\x17\x0d(\d{12})|\x18\x0f(\d{14}))Z", re.DOTALL)
_DRAIN_TIME = 5.0  # seconds for the last bytes of a connection that has ended


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
    """Have TLS show a certificate; an empty ``key`` is in the same file. No password is asked for."""
    with naming(certificate, key):
        context.load_cert_chain(certificate, key or None, password="")


@contextlib.contextmanager
def naming(*paths: str) -> Iterator[None]:
    """Have the errors of TLS name the files that they are about; empty paths are ignored.

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


def validity(certificate: bytes) -> tuple[datetime, datetime] | None:
    """Return from when to when a certificate is good, given a PEM file or DER; None where that cannot be read."""
    pem = re.search(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", certificate, re.DOTALL)
    try:
        found = _VALIDITY.search(ssl.PEM_cert_to_DER_cert(pem[0].decode("ascii")) if pem else certificate)
        if found is None:
            return None
        begin, end = (
            datetime.strptime(text.decode(), "%y%m%d%H%M%S" if len(text) == 12 else "%Y%m%d%H%M%S")
            for text in filter(None, found.groups())
        )
    except ValueError:
        return None
    return begin.replace(tzinfo=timezone.utc), end.replace(tzinfo=timezone.utc)


def time_problem(certificate: bytes) -> str:
    """Return why a certificate is not good now, with the date; empty where it is, or that is not known."""
    found, now = validity(certificate), datetime.now(timezone.utc)
    if found is None or found[0] <= now <= found[1]:
        return ""
    what, moment = ("has expired on", found[1]) if now > found[1] else ("is not valid before", found[0])
    return f"{what} {moment:%Y-%m-%d %H:%M} UTC; by the clock of this machine it is {now:%Y-%m-%d %H:%M} UTC"


def pump(secure: ssl.SSLSocket, plain: socket.socket) -> None:
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
