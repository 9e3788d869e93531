# SPDX-License-Identifier: Apache-2.0
"""``rpc.PopenSession``: a session that a program serves which the client sent, or named.

The program is started as ``program READ_FD WRITE_FD``, in the process group of the session, and ends with it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile

from portcall._function import get_global_func
from portcall._module import Module
from portcall.errors import ArgumentError, SessionBrokenError

_ANSWER_TIMEOUT = 60.0  # seconds
_EXIT_TIMEOUT = 1.0  # seconds for a program to end that no longer answers


def session_of_program(binary: bytes | str) -> Module:
    """Start a program, and return the session that it serves.

    Parameters:
        binary: the program's content, which is written to the working directory; or its path here.

    Raises:
        FileNotFoundError, PermissionError, OSError: there is no such program, or it cannot be started.
        SessionBrokenError: it ended, or does not speak the protocol.
        SessionTimeoutError: it does not answer.
    """
    if isinstance(binary, str):
        path = os.path.abspath(binary)
    elif isinstance(binary, bytes):
        path = os.path.join(tempfile.mkdtemp(prefix="program-", dir=os.getcwd()), "program")
        with open(path, "wb", opener=lambda path, flags: os.open(path, flags, 0o700)) as file:
            file.write(binary)
    else:
        raise ArgumentError(
            f"rpc.PopenSession takes a program's bytes or its path, not {type(binary).__name__}",
            function="rpc.PopenSession", position=0, expected="bytes", got=type(binary).__name__,
        )  # fmt: skip
    ours, theirs = socket.socketpair()
    with ours, theirs:
        number = str(theirs.fileno())
        child = subprocess.Popen([path, number, number], pass_fds=[theirs.fileno()])
        descriptor = ours.detach()
    connect = get_global_func("portcall.rpc.ConnectFds")
    try:
        made: Module = connect(descriptor, descriptor, f"program {child.pid}", _ANSWER_TIMEOUT, [])
    except SessionBrokenError as error:
        try:
            raise SessionBrokenError(f"the program ended with code {child.wait(_EXIT_TIMEOUT)}") from error
        except subprocess.TimeoutExpired:
            raise error from None
    return made
