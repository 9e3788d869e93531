# SPDX-License-Identifier: Apache-2.0
"""The process between a client and the server where there is TLS: it alone has the key.

    client ── TLS ──> pump ── bytes in clear ──> supervisor, until the client is let in; then the session's process

It begins at the client's first byte. The supervisor ends a client that takes too long.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import ssl

from portcall.rpc.server._link import Link
from portcall.rpc.server._messages import PUMP_ARGUMENTS, PumpFailed, PumpReady, RunPump
from portcall.rpc.server._options import ServerOptions
from portcall.rpc.server._worker import die_with_parent, exit_with, protect_memory, read_arguments
from portcall.rpc.wire import _tls


def tls_context(options: ServerOptions) -> ssl.SSLContext:
    """Return what the server's side of TLS needs.

    Raises:
        OSError: a file is missing, or holds no certificate or key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _tls.load_certificate(context, options.tls_certificate, options.tls_key)
    if options.tls_ca:
        with _tls.naming(options.tls_ca):
            context.load_verify_locations(options.tls_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def run_pump(start: RunPump, options: ServerOptions) -> int:
    """Shake hands and move bytes until one side ends; what it had sent before still arrives. Return the exit code."""
    die_with_parent(start.parent)
    protect_memory()
    connection = socket.socket(fileno=os.dup(start.client))
    client, clear = socket.socket(fileno=start.client), socket.socket(fileno=start.clear)
    with Link.adopt(start.link) as link:
        try:
            secure = tls_context(options).wrap_socket(client, server_side=True)
        except OSError as error:  # no TLS, no certificate of a client, or gone
            link.send(PumpFailed(f"did not manage TLS: {error}"))
            return 0
        certificate = secure.getpeercert(binary_form=True)
        link.send(PumpReady(hashlib.sha256(certificate).hexdigest() if certificate else ""))
    _tls.pump(secure, clear)
    with connection, contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)  # the supervisor has a copy
    return 0


def main() -> None:
    """Pump in a fresh process: the way where forking is not safe."""
    start, options = read_arguments(PUMP_ARGUMENTS)
    assert isinstance(start, RunPump)
    exit_with(lambda: run_pump(start, options))
