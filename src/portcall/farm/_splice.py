# SPDX-License-Identifier: Apache-2.0
"""Bytes from one socket to another inside the kernel: Linux's splice, through a pipe.

A direction reads nothing while its sink takes nothing, so a slow reader costs no memory beyond one pipe. A pipe is in
use while it has bytes in it; the others are kept for the next user.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import select
import socket
from collections.abc import Callable
from typing import Protocol

PIECE = 1 << 20
PATIENCE = 60.0  # seconds for which a sink may take nothing of what a source that has gone has left
_ROUNDS = 4  # pieces that a direction passes on before others have their turn
_KEPT_PIPES = 4
_SET_PIPE_SIZE = 1031  # F_SETPIPE_SZ, which Python 3.10 does not name
_FLAGS = os.SPLICE_F_NONBLOCK | os.SPLICE_F_MOVE


class HasDescriptor(Protocol):
    """A socket, or what asyncio shows of one; negative once it is closed."""

    def fileno(self) -> int: ...


class Stall:
    """A sink that takes nothing for now, so its source is not read, and its end would not be noticed.

    Parameters:
        source: None where it is known to have gone.
        left: returns how many bytes the sink is to take.
        end: called once the source has gone and the sink takes nothing.
    """

    def __init__(self, source: HasDescriptor | None, left: Callable[[], int], end: Callable[[], None]) -> None:
        self._source, self._left, self._end = source, left, end
        self._wait()

    def _wait(self) -> None:
        self._before = self._left()
        self._timer = asyncio.get_running_loop().call_later(PATIENCE, self._look)

    def _look(self) -> None:
        if self._left() == self._before and self._has_gone():
            self._end()
        else:
            self._wait()

    def _has_gone(self) -> bool:
        """Return whether the source was reset, or sends no more."""
        if self._source is None or self._source.fileno() < 0:
            return True
        poll = select.poll()
        poll.register(self._source, select.POLLRDHUP)
        return bool(poll.poll(0))

    def over(self) -> None:
        """The sink takes something, or has ended."""
        self._timer.cancel()


class Pipes:
    """Pipes that are not in use."""

    def __init__(self) -> None:
        self._free: list[tuple[int, int]] = []

    def take(self) -> tuple[int, int]:
        if self._free:
            return self._free.pop()
        read, write = os.pipe()
        with contextlib.suppress(OSError):  # a user may have so much memory in pipes and no more
            fcntl.fcntl(write, _SET_PIPE_SIZE, PIECE)
        return read, write

    def give(self, pipe: tuple[int, int], empty: bool) -> None:
        """Take a pipe back; one that is not empty is closed."""
        if empty and len(self._free) < _KEPT_PIPES:
            self._free.append(pipe)
        else:
            os.close(pipe[0])
            os.close(pipe[1])

    def close(self) -> None:
        while self._free:
            self.give(self._free.pop(), False)


class Spliced:
    """Two connected sockets, each of which gets what the other sends, until one of them ends.

    Parameters:
        pipes: to pass bytes through.
        one, two: sockets, which are closed at the end.
        passed: called with the number of bytes that went on.
        ended: called once.
    """

    def __init__(
        self, pipes: Pipes, one: socket.socket, two: socket.socket, passed: Callable[[int], None],
        ended: Callable[[], None],
    ) -> None:  # fmt: skip
        self.pipes = pipes
        self._sockets = (one, two)
        self._passed, self._ended = passed, ended
        self._open = True
        self._directions = (_Direction(self, one, two), _Direction(self, two, one))

    def count(self, nbytes: int) -> None:
        self._passed(nbytes)

    def close(self) -> None:
        """End both connections."""
        if self._open:
            self._open = False
            for direction in self._directions:
                direction.close()
            for sock in self._sockets:
                sock.close()
            self._ended()


class _Direction:
    def __init__(self, pair: Spliced, source: socket.socket, sink: socket.socket) -> None:
        self._pair = pair
        self._loop = asyncio.get_running_loop()
        self._from, self._source, self._sink = source, source.fileno(), sink.fileno()
        self._pipe: tuple[int, int] | None = None
        self._pending = 0
        self._stall: Stall | None = None
        self._loop.add_reader(self._source, self._read)

    def _read(self) -> None:
        """Take what has come, and pass it on."""
        try:
            for _ in range(_ROUNDS):
                pipe = self._pipe = self._pair.pipes.take()
                self._pending = os.splice(self._source, pipe[1], PIECE, flags=_FLAGS)
                if not self._pending:
                    self._pair.close()
                    return
                self._pair.count(self._pending)
                if not self._flush():
                    self._loop.remove_reader(self._source)
                    self._loop.add_writer(self._sink, self._go_on)
                    self._stall = Stall(self._from, lambda: self._pending, self._pair.close)
                    return
        except BlockingIOError:
            self._drop_pipe()
        except OSError:
            self._pair.close()

    def _flush(self) -> bool:
        """Pass on what is in the pipe; return whether all of it went."""
        assert self._pipe is not None
        with contextlib.suppress(BlockingIOError):
            while self._pending:
                self._pending -= os.splice(self._pipe[0], self._sink, self._pending, flags=_FLAGS)
            self._drop_pipe()
            return True
        return False

    def _go_on(self) -> None:
        """The sink takes more."""
        try:
            if self._flush():
                self._end_stall()
                self._loop.remove_writer(self._sink)
                self._loop.add_reader(self._source, self._read)
        except OSError:
            self._pair.close()

    def _end_stall(self) -> None:
        stall, self._stall = self._stall, None
        if stall is not None:
            stall.over()

    def _drop_pipe(self) -> None:
        pipe, self._pipe = self._pipe, None
        if pipe is not None:
            self._pair.pipes.give(pipe, not self._pending)

    def close(self) -> None:
        self._loop.remove_reader(self._source)
        self._loop.remove_writer(self._sink)
        self._end_stall()
        self._drop_pipe()
