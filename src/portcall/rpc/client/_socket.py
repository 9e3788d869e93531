# SPDX-License-Identifier: Apache-2.0
"""Connect to a server: a TCP or Unix socket, with TLS or without. It ends up as a file descriptor, which the core reads
and writes without Python.
"""

from __future__ import annotations

import os
import socket
import ssl
import threading

from portcall.errors import AuthenticationError, ConnectError, SessionTimeoutError
from portcall.rpc.wire._address import Address
from portcall.rpc.wire._facts import SILENCE
from portcall.rpc.wire._handshake import check_token
from portcall.rpc.wire._tcp import tune
from portcall.rpc.wire._tls import TLSOptions, pump, time_problem

_WRONG_NAME = (62, 63, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, …_EMAIL_…, …_IP_ADDRESS_… of OpenSSL

_WRONG_TIME = (9, 10)  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED


def open_socket(
    address: Address, timeout: float | None, tls: TLSOptions | None = None, silence: float = 0
) -> socket.socket:
    """Connect, with the options that small messages and dead peers ask for.

    Parameters:
        silence: seconds after which a machine that does not answer is given up; 0 for the usual time.

    Raises:
        ConnectError: no server listens there, or the name is not known.
        AuthenticationError: the server's certificate is not to be trusted.
        SessionTimeoutError: no answer in time.
        FileNotFoundError: there is no file of that name, of those that TLS needs.
    """
    context = tls.context() if tls else None
    peer = str(address)
    try:
        sock = _connect_socket(address, timeout, silence)
    except TimeoutError:
        raise SessionTimeoutError(f"{peer} did not answer within {timeout:g} s", peer=peer, reason="unreachable",
                                  hint="is it up, and the port open in its firewall?") from None  # fmt: skip
    except socket.gaierror as error:
        text = f"cannot connect to {peer}: the host name '{address.host}' is not known ({error.strerror})"
        named = f"of a remote that was saved for the command give the address: portcall remote show {address.host}"
        hint = "" if "." in address.host else named
        raise ConnectError(text, peer=peer, reason="unknown-host", hint=hint) from None
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
        if error.verify_code in _WRONG_TIME:
            why = time_problem(_certificate_of(address, timeout)) or error.verify_message
            raise AuthenticationError(f"the certificate of {peer} {why}", peer=peer, reason="certificate-time",
                                      hint="make a new one there, or set the clock here") from None  # fmt: skip
        raise AuthenticationError(text, peer=peer, reason="certificate",
                                  hint="give the file of its authority: TLSOptions(ca=)") from None  # fmt: skip
    except OSError as error:
        reason = getattr(error, "reason", None) or error.strerror or error
        raise ConnectError(f"TLS with {peer} failed: {reason}", peer=peer, reason="no-tls",
                           hint="does it speak TLS?") from None  # fmt: skip


def _certificate_of(address: Address, timeout: float | None) -> bytes:
    """Return a server's certificate, which is not trusted; empty where that fails."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with _connect_socket(address, timeout, 0) as sock, context.wrap_socket(sock) as secure:
            return secure.getpeercert(binary_form=True) or b""
    except OSError:
        return b""


def _connect_socket(address: Address, timeout: float | None, silence: float) -> socket.socket:
    if not address.path:
        sock = socket.create_connection((address.host, address.port), timeout)
        tune(sock, silence or SILENCE)
        return sock
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.settimeout(timeout)
        sock.connect(address.path)
    except BaseException:
        sock.close()
        raise
    return sock


def as_descriptor(sock: socket.socket) -> tuple[int, threading.Thread | None]:
    """Give up a socket for a descriptor that carries the same bytes in clear, and the thread that does TLS, if any."""
    if not isinstance(sock, ssl.SSLSocket):
        sock.setblocking(True)
        return sock.detach(), None
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=pump, args=(sock, theirs), name="portcall-tls", daemon=True)
    thread.start()
    return ours.detach(), thread


def read_token(token: str | None) -> str:
    """Return the token to use: the one given, or that of the environment; empty for none.

    Raises:
        ValueError: it is nothing but blanks.
    """
    return check_token(token if token is not None else os.environ.get("PORTCALL_TOKEN", ""))
