# SPDX-License-Identifier: Apache-2.0
"""A process that stands between a client and its session, and sees the bytes on their way.

What runs in the session cannot keep anything from it. If it is killed, the connection ends with it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from typing import Protocol

from portcall.rpc.wire._facts import LINGER

_PIECE = 1 << 18


class Watcher(Protocol):
    """Sees what passes, in two threads."""

    def requests(self, data: memoryview) -> None:
        """Take what comes from the client, before the session has it."""

    def answers(self, data: memoryview) -> None:
        """Take what comes from the session, before the client has it."""

    def finish(self) -> None:
        """The session is over; the client sees its end after this."""


def stand_between(client: int, protect: Callable[[], object], watch: Callable[[], Watcher]) -> int:
    """Return a descriptor that carries the bytes of ``client``, for the process of its session, which calls this.

    For a process with one thread. The new one is no child of it, and in no group with it.

    Parameters:
        protect: called in the new process, to keep it from others of this user.
        watch: called there, too.
    """
    ours, theirs = socket.socketpair()
    process = os.pidfd_open(os.getpid())
    pid = os.fork()
    if pid == 0:
        try:
            if os.fork() == 0:
                os.setsid()
                ours.close()
                protect()
                _run(socket.socket(fileno=client), theirs, process, watch())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(process)
    theirs.close()
    os.close(client)
    return ours.detach()


def _run(client: socket.socket, session: socket.socket, process: int, watcher: Watcher) -> None:
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)  # it ends with the session
    os.chdir("/")

    def move(source: socket.socket, target: socket.socket, see: Callable[[memoryview], None]) -> None:
        piece = memoryview(bytearray(_PIECE))
        with contextlib.suppress(OSError):
            while size := source.recv_into(piece):
                see(piece[:size])
                target.sendall(piece[:size])

    def answer() -> None:
        move(session, client, watcher.answers)
        watcher.finish()
        os._exit(0)  # what waits for the client; the supervisor has a copy of its connection

    def limit() -> None:
        """Wait no longer for a client that takes no answers than the supervisor does."""
        ended = select.poll()
        ended.register(process, select.POLLIN)
        ended.poll()
        time.sleep(LINGER)
        client.shutdown(socket.SHUT_RDWR)

    answers = threading.Thread(target=answer)
    answers.start()
    threading.Thread(target=limit, daemon=True).start()
    move(client, session, watcher.requests)
    with contextlib.suppress(OSError):
        session.shutdown(socket.SHUT_WR)  # the session ends what it does, then closes its side
    answers.join()
