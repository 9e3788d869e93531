# SPDX-License-Identifier: Apache-2.0
"""SHA-256 of files, which both ends of an upload compare; in the background where no request waits for it."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading

PIECE = 4 << 20  # bytes that are read, and sent, at once
LARGE = 8 << 20  # a file of fewer is sent again as a whole if it broke off, and its digest is found when it is needed
_LOWEST_PRIORITY = 19


def pieces_of(descriptor: int, start: int, end: int) -> Iterator[memoryview]:
    """Read a file piece by piece. Each is valid until the next."""
    buffer = memoryview(bytearray(PIECE))
    while start < end and (count := os.preadv(descriptor, [buffer[: end - start]], start)):
        start += count
        yield buffer[:count]


def digest_of(descriptor: int, stop: threading.Event | None = None) -> str:
    """Return the SHA-256 of a whole file; see ``digest_of_pieces``."""
    return digest_of_pieces(pieces_of(descriptor, 0, sys.maxsize), stop)


def digest_of_pieces(pieces: Iterable[memoryview], stop: threading.Event | None = None) -> str:
    """Return the SHA-256 of pieces, one after the other, as hexadecimal digits.

    Raises:
        InterruptedError: the event was set.
    """
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
        if stop is not None and stop.is_set():
            raise InterruptedError
    return found.hexdigest()


class Background:
    """A task in a thread that only gets time that no other thread wants.

    Args:
        task: is called with the event that stops it; what it raises of OSError is forgotten.
    """

    def __init__(self, task: Callable[[threading.Event], object]) -> None:
        import threading  # here: few sessions have large files, and its handlers would cost each fork

        self._task = task
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="portcall-digest", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the task, and wait for that."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            if sys.platform == "linux":  # where each thread has a priority
                os.setpriority(os.PRIO_PROCESS, self._thread.native_id or 0, _LOWEST_PRIORITY)
            self._task(self._stop)
