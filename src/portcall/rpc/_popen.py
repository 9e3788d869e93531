# SPDX-License-Identifier: Apache-2.0
"""Sessions over bytes that somebody else carries: a child process's pipe, or a transport of the user's own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from portcall import errors
from portcall._function import get_global_func
from portcall.rpc._session import Session

# Serves one session on the descriptors that its command line names. It is ours, and may do what we may.
_CHILD = """\
import sys
from portcall._function import get_global_func
import portcall.rpc
read_fd, write_fd = map(int, sys.argv[1:])
get_global_func("portcall.rpc.ServeFds")(read_fd, write_fd, ["*"], 0, None)
"""


class Transport(Protocol):
    """What carries a session's bytes. Blocking; it raises TimeoutError or OSError where it cannot go on."""

    def send(self, data: bytes) -> int:
        """Send some of the bytes, at least one; return how many."""

    def receive(self, most: int) -> bytes:
        """Return between one byte and ``most``; none once the peer has closed."""

    def close(self) -> None:
        """End the connection; calling this again does nothing."""


def connect_over(transport: Transport, name: str = "a transport") -> Session:
    """Open a session over a transport, whose other end serves with ``serve_over``.

    Raises:
        SessionBrokenError: the peer closed.
    """
    root = get_global_func("portcall.rpc.ConnectFunctions")(
        transport.send, transport.receive, transport.close, name, 0.0, []
    )
    return Session(root, name)


def serve_over(transport: Transport, expose: Sequence[str] = ()) -> None:
    """Serve a session over a transport until it ends; ``expose`` names the global functions that it may use."""
    get_global_func("portcall.rpc.ServeFunctions")(transport.send, transport.receive, transport.close, list(expose), 0)


class PopenSession(Session):
    """A session with a child process, over a pipe. The child ends with the session.

    Parameters:
        binary: a program that is started as ``binary READ_FD WRITE_FD`` and serves there; this Python by default.

    Raises:
        FileNotFoundError, PermissionError: there is no such program, or it cannot be run.
    """

    def __init__(self, binary: str | os.PathLike[str] | None = None) -> None:
        command = [sys.executable, "-c", _CHILD] if binary is None else [os.fspath(binary)]
        if binary is not None and not Path(binary).exists():
            raise FileNotFoundError(f"{os.fspath(binary)}: there is no such program")
        ours, theirs = socket.socketpair()
        with ours, theirs:
            number = str(theirs.fileno())
            self._child = subprocess.Popen([*command, number, number], pass_fds=[theirs.fileno()])
            descriptor = ours.detach()
        name = f"process {self._child.pid}"
        try:
            root = get_global_func("portcall.rpc.ConnectFds")(descriptor, descriptor, name, 0.0, [])
        except errors.RPCError:
            self._end_child()
            raise
        super().__init__(root, name)

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def close(self) -> None:
        """End the session and the child."""
        super().close()
        self._end_child()

    def _end_child(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout=1.0)  # it leaves by itself when the pipe closes
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()
