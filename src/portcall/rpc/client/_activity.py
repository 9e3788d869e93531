# SPDX-License-Identifier: Apache-2.0
"""How far a request, or the transfer of a file, is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

Progress = Callable[[int, int], None]  # bytes done, bytes in all


@dataclass(frozen=True)
class Activity:
    """The request that a session waits for.

    Attributes:
        what: what was asked for, in words.
        seconds: since it began.
        silent: seconds since bytes came or went.
        sent, to_send, received, to_receive: bytes; ``to_receive`` is 0 where it is not known.
    """

    what: str
    seconds: float
    silent: float
    sent: int
    to_send: int
    received: int
    to_receive: int

    def __str__(self) -> str:
        if self.sent < self.to_send:
            state = f"sent {self.sent:,} of {self.to_send:,} bytes"
        elif self.to_receive and self.received:
            state = f"received {self.received:,} of {self.to_receive:,} bytes"
        else:
            state = "sent"
        silent = f", the peer silent for {self.silent:.0f} s" if self.silent >= 1 else ""
        return f"{self.what}: {state}, for {self.seconds:.0f} s{silent}"


class Transfer:
    """A file on its way, in pieces: ``activity`` and errors report it instead of the piece."""

    def __init__(self, what: str, size: int, progress: Progress | None) -> None:
        self.what = what
        self.size = size
        self.done = 0
        self._progress = progress
        self._start = time.perf_counter()

    def advance(self, nbytes: int) -> None:
        """Count bytes that have arrived."""
        self.done += nbytes
        if self._progress:
            self._progress(self.done, self.size)

    def activity(self, request: Activity | None) -> Activity:
        """Return how far it is; the current request says how long the peer has been silent."""
        sent = (self.done, self.size, 0, 0) if self.what.startswith("upload") else (0, 0, self.done, self.size)
        return Activity(self.what, time.perf_counter() - self._start, request.silent if request else 0.0, *sent)
