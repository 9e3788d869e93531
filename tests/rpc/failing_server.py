# SPDX-License-Identifier: Apache-2.0
"""A server whose calls of the system fail on demand: a program for ``test_server_errors.py``.

After "K\n" on standard input and SIGUSR1, the K-th call from then on that the supervisor makes of the system raises
OSError instead, after "K NAME\n" the K-th of that name; "fired" with its name is printed. SIGUSR2 takes that back. Both
are answered with a line.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import sys
from typing import Any

from portcall.rpc.server import _admission, _cleanup, _loop, _supervisor, _zygote_process
from portcall.rpc.server._server import ServerOptions, serve

# What is tried again after a pause is tried again soon.
_loop.PAUSE = _admission.PAUSE = _supervisor.KILL_AGAIN = _cleanup.LINGER = 0.05  # type: ignore[attr-defined]
_zygote_process.STEADY = 0.0

MODULES = {"posix", "_socket", "select", "_posixsubprocess", "_signal", "resource", "fcntl"}
CANNOT_FAIL = {"fspath", "getpid", "getuid", "fileno", "gettimeout", "waitstatus_to_exitcode", "getpgid",
               "register_at_fork", "signal", "set_wakeup_fd", "detach", "default_int_handler", "getsignal",
               "CMSG_SPACE", "CMSG_LEN", "WIFSTOPPED", "WSTOPSIG", "WIFSIGNALED", "WTERMSIG", "_exit"}  # fmt: skip


def say(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def arm(number: int, frame: object) -> None:
    count, *names = os.read(0, 100).decode().split()
    left = int(count)

    def watch(frame: Any, event: str, function: Any) -> None:
        nonlocal left
        if event != "c_call" or function.__name__ in CANNOT_FAIL or (names and function.__name__ not in names):
            return
        owner = getattr(function, "__self__", None)
        if function.__module__ not in MODULES and not isinstance(owner, (socket.socket, select.epoll)):
            return
        left -= 1
        if left == 0:
            sys.setprofile(None)
            say("fired", function.__name__, "in", frame.f_code.co_filename.rpartition("/")[2], frame.f_code.co_name)
            raise OSError(errno.ENOMEM, "an error for trial")

    say("armed")
    sys.setprofile(watch)


def disarm(number: int, frame: object) -> None:
    sys.setprofile(None)
    say("disarmed")


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, arm)
    signal.signal(signal.SIGUSR2, disarm)
    options = ServerOptions(
        port=0, log="json", imports=(sys.argv[1],), work_dir=sys.argv[2], token=sys.argv[3], handshake_timeout=20
    )
    serve(options, lambda address: say(address))
