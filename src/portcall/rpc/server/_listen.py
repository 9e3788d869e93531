# SPDX-License-Identifier: Apache-2.0
"""Where a server listens, and who comes."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct

from portcall.rpc.server._options import ServerOptions
from portcall.rpc.wire._address import Address

_BACKLOG = 256


def listen(options: ServerOptions) -> tuple[socket.socket, Address]:
    """Bind and listen; return the socket, which does not block, and the address that clients use.

    Raises:
        ValueError: the address is not for this machine alone and nothing keeps strangers out.
        OSError: the address is taken, or does not belong to this machine; the message says what to do.
    """
    options.check_exposure()
    sock, address = _listen_unix(options.unix) if options.unix else _listen_tcp(options)
    sock.setblocking(False)
    return sock, address


def _listen_tcp(options: ServerOptions) -> tuple[socket.socket, Address]:
    ports = range(options.port, options.port_end or options.port + 1)
    for port in ports:
        try:
            return _bind_tcp(options.host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                reason = error.strerror or str(error)
                raise OSError(error.errno, f"cannot listen on {Address(options.host, port)}: {reason}") from None
    which = (
        f"port {ports[0]} of {options.host} is"
        if len(ports) == 1
        else (f"the ports {ports[0]} to {ports[-1]} of {options.host} are")
    )
    raise OSError(errno.EADDRINUSE, f"{which} taken; --port takes another")


def _bind_tcp(host: str, port: int) -> tuple[socket.socket, Address]:
    found = socket.getaddrinfo(host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    # Of several addresses of a name, the one of the protocol that most clients speak.
    family, kind, proto, _, where = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    bound = sock.getsockname()
    return sock, Address(bound[0], bound[1])


def _listen_unix(path: str) -> tuple[socket.socket, Address]:
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        sock.bind(path)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        why = error.strerror or str(error)
        if isinstance(error, FileNotFoundError):
            why = f"the folder '{os.path.dirname(path)}' does not exist; create it first"
        raise OSError(error.errno, f"cannot listen on {path}: {why}") from None
    finally:
        os.umask(before)
    return sock, Address(path=path)


def _remove_stale(path: str) -> None:
    """Delete a socket that a killed server left; one on which a server listens stays."""
    with contextlib.suppress(FileNotFoundError), socket.socket(socket.AF_UNIX) as probe:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise OSError(errno.EEXIST, f"cannot listen on {path}: there is a file of that name")
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)


def peer_name(sock: socket.socket, address: object) -> str:
    """Return a client's address, or the process and user at the other end of a Unix socket."""
    if sock.family == socket.AF_UNIX:
        size = struct.calcsize("3i")
        pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
        return f"process {pid} of user {uid}"
    assert isinstance(address, tuple)
    return str(Address(address[0], address[1]))
