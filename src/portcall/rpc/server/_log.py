# SPDX-License-Identifier: Apache-2.0
"""The server's log on standard error: lines for people, or one JSON object a line for programs.

A separate process writes it (``_log_writer``), and what the sessions write. So the server never waits for a reader.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Protocol

from portcall.rpc.server import _log_writer
from portcall.rpc.server._loop import PAUSE, run_all
from portcall.rpc.server._options import LogStyle, public_environment
from portcall.rpc.wire._facts import Event

MOST_BYTES = 64 << 10  # of a line


class Loop(Protocol):
    """What the log needs of an event loop, such as the supervisor's."""

    def watch(self, descriptor: int, action: Callable[[], object]) -> None: ...

    def forget(self, descriptor: int) -> None: ...

    def call_after(self, seconds: float, action: Callable[[], object]) -> object:
        """Call an action once; one that fails is tried again."""


class Log:
    """Writes events. Text that came from a client is shown without control characters."""

    def __init__(self, style: LogStyle) -> None:
        self._style = style
        self._loop: Loop | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: socket.socket | None = None
        self._dropped = 0
        self._pipe = (-1, -1)

    def start(self, loop: Loop) -> None:
        """Begin to write; until then nothing is logged. The loop starts the process again where it ends.

        Raises:
            OSError: the system has no room for a process.
        """
        self._loop = loop
        self._pipe = os.pipe()
        self._start_process()

    @property
    def output(self) -> int:
        """The descriptor for what sessions write."""
        return self._pipe[1]

    def write(self, event: Event, text: str, session: int | None = None, **facts: object) -> None:
        """Log an event. It neither waits nor fails: what cannot be written is counted.

        Parameters:
            event: its name for programs.
            text: a sentence for people.
            session: the session's number, if it is about one.
            facts: what programs may want to know.
        """
        if self._style == "none":
            return
        if self._dropped:
            text_of_loss = f"{self._dropped} lines were dropped, because the log's process did not take them"
            if not self._send(_log_writer.format_line(self._style, "lines_dropped", text_of_loss)):
                self._dropped += 1
                return
            self._dropped = 0
        if not self._send(_log_writer.format_line(self._style, event, text, session, **facts)):
            self._dropped += 1

    def close(self) -> None:
        """Have written what there is, as far as somebody reads it, and end the process."""
        process, self._process = self._process, None
        if self._lines is not None:
            with contextlib.suppress(OSError):
                self._lines.send(_log_writer.END)
            self._lines.close()
            self._lines = None
        if process is not None:
            try:
                process.wait(_log_writer.LAST_WORDS + 1)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for descriptor in self._pipe:
            if descriptor >= 0:
                os.close(descriptor)

    def _send(self, line: str) -> bool:
        if self._lines is None:
            return False
        try:
            self._lines.send(line.encode(errors="backslashreplace")[:MOST_BYTES])
        except OSError:
            return False
        return True

    def _start_process(self) -> None:
        loop = self._loop
        assert loop is not None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = public_environment()
        program = [
            sys.executable,
            "-I",
            "-S",
            _log_writer.__file__,
            str(theirs.fileno()),
            str(self._pipe[0]),
            self._style,
        ]
        try:
            ours.setblocking(False)
            loop.watch(ours.fileno(), self._on_end)
            self._process = subprocess.Popen(
                program, pass_fds=[theirs.fileno(), self._pipe[0]], env=environment, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        except BaseException:
            run_all(lambda: loop.forget(ours.fileno()), ours.close)
            raise
        finally:
            theirs.close()
        self._lines = ours

    def _on_end(self) -> None:
        """It never sends anything, so it has ended: somebody killed it."""
        loop, lines, process = self._loop, self._lines, self._process
        self._lines = self._process = None
        assert loop is not None
        loop.call_after(PAUSE, self._start_process)
        if lines is not None and process is not None:
            run_all(lambda: loop.forget(lines.fileno()), lines.close, process.kill, process.wait)


def count(number: int, noun: str) -> str:
    """Return a number of things in words: "1 session", "2 sessions"."""
    return f"{number} {noun}{'s'[: number != 1]}"
