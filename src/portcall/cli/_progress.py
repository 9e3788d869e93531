# SPDX-License-Identifier: Apache-2.0
"""One line on standard error about what is under way: what is waited for, how far a transfer or a measurement is.

All of it goes through one object and one thread, so that no two writers tear each other's escapes.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING

from portcall.bench import format_size
from portcall.cli._output import echo_error
from portcall.errors import printable
from portcall.toolchain import find_compiler

if TYPE_CHECKING:
    from portcall.rpc import Session

PATIENCE = 1.0  # seconds that need no explanation
TICK = 0.1
BAR_BYTES = 1 << 20  # smaller transfers are over before a bar is drawn
BAR_CELLS = 20
MOST_LINES = 1000  # printed at most, of a session's output
USUAL_COLUMNS = 80


@dataclass
class Bar:
    """How far something is.

    Attributes:
        total: bytes, seconds where ``timed``, or so many of what is ``counted``, such as files; 0 if unknown.
        done: of them; counted by the clock where ``timed``.
        in_pieces: each request of the session is a piece; what is sent of the present one counts, too.
    """

    text: str
    total: float
    timed: bool = False
    in_pieces: bool = False
    counted: str = ""
    done: float = 0
    since: float = field(default_factory=time.monotonic)

    def line(self, in_request: int) -> str:
        seconds = time.monotonic() - self.since
        if not self.total:
            return f"{self.text}  {seconds:.1f} s"
        if self.counted:
            share = self.done / self.total
            figures = f"{self.done:g} of {self.total:g} {self.counted}, {seconds:.1f} s"
        elif self.timed:
            share = min(seconds / self.total, 1)
            figures = f"{seconds:.1f} of {self.total:.1f} s"
        else:
            done = min(self.done + (in_request if self.in_pieces else 0), self.total)
            share = done / self.total
            figures = f"{format_size(int(done))} of {format_size(int(self.total))}"
            figures += f", {format_size(int(done / seconds))}/s" if seconds >= TICK else ""
        cells = round(share * BAR_CELLS)
        return f"{self.text}  [{'#' * cells:.<{BAR_CELLS}}]  {figures}"


class StatusLine:
    """Says what is under way: a line that goes again on a terminal; elsewhere one line of words for each thing."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._text, self._since = "", time.monotonic()
        self._bar: Bar | None = None
        self._told, self._shown, self._printed = "", False, 0
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._terminal = sys.stderr.isatty()
        self._thread = threading.Thread(target=self._run, name="portcall-status", daemon=True)

    def wait_for(self, text: str) -> None:
        """Say from now on that this is waited for."""
        self.say(f"waiting for {text}")

    def say(self, text: str) -> None:
        """Say from now on that this is under way."""
        self._text, self._since = text, time.monotonic()

    def watch(self, session: Session) -> None:
        """Say from now on what the session waits for."""
        self._text = ""
        self._session = session

    def print_output(self, line: str, stream: str) -> None:
        """Print a line that the session's code printed: on standard error, since results go to standard output."""
        with self._lock:
            self._printed += 1
            if self._printed > MOST_LINES:
                return
            if self._shown:
                self._write("")
            echo_error(f"| {line}" if self._printed < MOST_LINES else "| … and more, which is in the server's log")

    @contextlib.contextmanager
    def expect(self, text: str, seconds: float) -> Iterator[None]:
        """Show the progress of work with this expected duration; 0 if unknown."""
        with self._show_bar(Bar(text, seconds, timed=True)):
            yield

    @contextlib.contextmanager
    def count(self, text: str, what: str) -> Iterator[Callable[[int, int], None]]:
        """Show how many things are done; what is returned takes how many are, and how many there are in all."""
        bar = Bar(text, 0, counted=what)

        def advance(done: int, of: int) -> None:
            bar.done, bar.total = done, of

        with self._show_bar(bar):
            yield advance

    @contextlib.contextmanager
    def transfer(self, text: str, total: int, in_pieces: bool = False) -> Iterator[Callable[[int, int], None] | None]:
        """Show how far a transfer is; what is returned takes the bytes that are done, and those in all."""
        if total < BAR_BYTES:
            yield None
            return
        bar = Bar(text, total, in_pieces=in_pieces)

        def advance(done: int, of: int) -> None:
            bar.done, bar.total = done, of

        with self._show_bar(bar):
            yield advance

    @contextlib.contextmanager
    def _show_bar(self, bar: Bar) -> Iterator[None]:
        outer, self._bar = self._bar, bar
        self._refresh()
        try:
            yield
        finally:
            self._bar = outer

    def __enter__(self) -> StatusLine:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()
        if self._shown:
            self._write("")

    def _run(self) -> None:
        while not self._done.wait(TICK):
            self._refresh()

    def _refresh(self) -> None:
        with self._lock:
            text, about = self._now()
            if self._terminal and (text or self._shown):
                self._write(text)
            elif text and about != self._told:
                self._told = about
                echo_error(text)

    def _now(self) -> tuple[str, str]:
        """Return the status text, and what it is about in words that do not change; empty where none is needed."""
        activity = self._session.activity() if self._session and not self._text else None
        bar, now = self._bar, time.monotonic()
        if bar is not None and self._terminal:
            return bar.line(activity.sent if activity else 0), bar.text
        if bar is not None and (bar.counted or (bar.timed and not bar.total)):
            about, seconds, text = bar.text, now - bar.since, bar.text
        elif self._text:
            about, seconds, text = self._text, now - self._since, self._text
        elif bar is not None and bar.timed and now - bar.since < 2 * bar.total + PATIENCE:
            return "", ""  # a measurement is one long call
        elif activity:
            about, seconds, text = activity.what, activity.seconds, f"waiting for {activity}"
        else:
            return "", ""
        return (text, about) if seconds >= PATIENCE else ("", "")

    def _write(self, text: str) -> None:
        """Replace the line with a text; an empty one removes it."""
        sys.stderr.write(f"\r{printable(text)[: columns() - 1]}\x1b[K")
        sys.stderr.flush()
        self._shown = bool(text)


def compiling(files: Sequence[str], target: str | None = None) -> str:
    """Return what is under way while the toolchain compiles sources.

    Raises:
        CompileError: there is no compiler for the target.
    """
    compiler = find_compiler("c" if all(file.endswith(".c") for file in files) else "c++", target)
    slow = ", a minute the first time" if compiler.origin == "ziglang" else ""
    return f"compiling {', '.join(files)} by {compiler.name}{slow}"


def columns() -> int:
    """Return how many columns the terminal of standard error has."""
    with contextlib.suppress(OSError, ValueError):
        return os.get_terminal_size(sys.stderr.fileno()).columns or USUAL_COLUMNS
    return USUAL_COLUMNS
