# SPDX-License-Identifier: Apache-2.0
"""The time that opening a session may take, and its end by another thread."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

from portcall import errors
from portcall.rpc.wire._facts import MOST_SECONDS

OnWait = Callable[[str], None]


class Deadline:
    """The time that opening a session may take, and what it waits for."""

    def __init__(self, peer: str, timeout: float | None, on_wait: OnWait | None) -> None:
        if timeout is not None and not timeout <= MOST_SECONDS:
            raise ValueError(f"invalid timeout {timeout!r} (must be 0-{MOST_SECONDS:g} seconds, or None)")
        self.peer = peer
        self.timeout = timeout
        self.waiting_for, self._reason = "the connection", "no-session"
        self._until = None if timeout is None else time.monotonic() + timeout
        self._on_wait = on_wait

    def remaining(self) -> float | None:
        """Return the seconds that are left; None forever.

        Raises:
            SessionTimeoutError: there are none.
        """
        if self._until is None:
            return None
        left = self._until - time.monotonic()
        if left <= 0:
            raise self.timeout_error()
        return left

    def timeout_error(self) -> errors.SessionTimeoutError:
        text = f"{self.peer}: no session within {self.timeout:g} s; waited for: {self.waiting_for}"
        hint = "raise timeout= to wait longer"
        return errors.SessionTimeoutError(text, peer=self.peer, reason=self._reason, hint=hint)

    def wait_for(self, what: str, reason: str = "no-session") -> None:
        """Say what is waited for from now on, and the ``reason`` of an error if that takes too long."""
        self.waiting_for, self._reason = what, reason
        if self._on_wait:
            self._on_wait(what)


class Stop:
    """Ends the opening of a session from another thread, and closes what was opened."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped = False
        self._actions: list[Callable[[], object]] = []

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            actions = list(self._actions)
        for action in actions:
            action()

    def at_stop(self, action: Callable[[], object]) -> None:
        """Have ``stop`` call this; it is called now if that is over."""
        with self._lock:
            if not self._stopped:
                self._actions.append(action)
                return
        action()

    @contextlib.contextmanager
    def cutting(self, sock: socket.socket) -> Iterator[None]:
        """Have ``stop`` cut a connection during the block, whoever reads from it."""
        own = socket.socket(fileno=os.dup(sock.fileno()))

        def cut() -> None:
            with contextlib.suppress(OSError):
                own.shutdown(socket.SHUT_RDWR)

        with own:
            self.at_stop(cut)
            try:
                yield
            finally:
                with self._lock, contextlib.suppress(ValueError):
                    self._actions.remove(cut)


def read_some(sock: socket.socket, size: int, deadline: Deadline | None = None) -> bytes:
    """Return between one byte and ``size``.

    Raises:
        EOFError: the peer has closed.
    """
    if deadline is not None:
        sock.settimeout(deadline.remaining())
    data = sock.recv(size)
    if not data:
        raise EOFError
    return data
