# SPDX-License-Identifier: Apache-2.0
"""The process that writes a server's log. Its reader may be slow or stopped: the server does not wait.

Lines come whole from the supervisor, and what sessions write comes through a pipe, which is always read. A thread
writes them to standard error; what has no room meanwhile is dropped and counted. Text of sessions is marked as such,
without control characters, so that it can neither look like a line of the server nor drive a terminal.

A program that imports the standard library alone, so that it starts at once and is small.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import socket
import sys
import threading
import time
from collections import deque

MOST_LINES = 2000  # that wait; text of sessions takes half of them at most
MOST_BYTES = 32 << 10  # of a line; what is longer is cut into several
AGAIN = 1.0  # seconds until it writes again after an error
LAST_WORDS = 2.0  # seconds for what is left to be written once the server has ended
END = b"\0"  # instead of a line: the server has stopped in order, and no more comes
_CHUNK = 64 << 10


class Writer:
    """Lines on their way to a descriptor."""

    def __init__(self, descriptor: int, style: str) -> None:
        self._descriptor = descriptor
        self._style = style
        self._lines: deque[bytes] = deque()
        self._dropped = 0
        self._changed = threading.Condition()
        self._busy = False
        self._gone = False
        threading.Thread(target=self._run, daemon=True).start()

    def add(self, line: str, room: int = MOST_LINES) -> None:
        """Have a line written, unless more than ``room`` of them wait."""
        with self._changed:
            if self._gone:
                return
            if len(self._lines) >= room:
                self._dropped += 1
                return
            self._lines.append(line.encode(errors="backslashreplace") + b"\n")
            self._changed.notify_all()

    def finish(self, until: float) -> None:
        """Wait until all is written, or it is too late."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._lines or self._dropped or self._busy), until - time.monotonic())

    def _run(self) -> None:
        while True:
            line = self._next()
            try:
                write_whole(self._descriptor, line)
            except OSError as error:
                with self._changed:
                    self._dropped += 1
                    if error.errno != errno.ENOSPC:  # there is no reader any more
                        self._gone, self._dropped = True, 0
                        self._lines.clear()
                time.sleep(AGAIN)

    def _next(self) -> bytes:
        with self._changed:
            self._busy = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._lines or self._dropped)
            self._busy = True
            if self._lines:
                return self._lines.popleft()
            text, self._dropped = f"{self._dropped} lines were dropped, which nobody read in time", 0
            return format_line(self._style, "lines_dropped", text).encode() + b"\n"


def write_whole(descriptor: int, data: bytes) -> None:
    """Write to a descriptor that others may use, too.

    Raises:
        OSError: there is no reader any more, or there is no room on the disk.
    """
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:  # somebody has set it so
            select.select([], [descriptor], [])


def format_line(style: str, event: str, text: str, session: int | None = None, **facts: object) -> str:
    """Return a line of the log: for people, or with the style "json" for programs."""
    now = time.time()
    if style == "json":
        about = {} if session is None else {"session": session}
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03}Z"
        return json.dumps({"time": stamp, "event": event, **about, "message": text, **facts})
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
    return f"{stamp} {'' if session is None else f'session {session}: '}{printable(text)}"


def printable(text: str) -> str:
    """Return a text in which control characters, such as those that steer a terminal, are written as escapes."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


class Output:
    """Cuts what sessions write into lines."""

    def __init__(self, descriptor: int, style: str, writer: Writer) -> None:
        self._descriptor = descriptor
        self._style = style
        self._writer = writer
        self._rest = b""

    def fileno(self) -> int:
        return self._descriptor

    def read(self) -> bool:
        """Take what is there; False at the end."""
        data = os.read(self._descriptor, _CHUNK)
        *lines, self._rest = (self._rest + data).split(b"\n")
        if not data or len(self._rest) >= MOST_BYTES:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            if line or data:
                self._add(line)
        return bool(data)

    def drain(self, until: float) -> None:
        """Take what comes until then, or until no more can come."""
        while select.select([self], [], [], max(0.0, until - time.monotonic()))[0] and self.read():
            pass
        if self._rest:
            self._add(self._rest)

    def _add(self, line: bytes) -> None:
        text = line.removesuffix(b"\r").decode(errors="backslashreplace")
        if self._style == "none":
            shown = printable(text)
        elif self._style == "json":
            shown = format_line("json", "output", text)
        else:
            shown = format_line("text", "output", f"output: {text}")
        self._writer.add(shown, MOST_LINES // 2)


def main() -> None:
    """Run with the descriptors of the supervisor's lines and of the sessions' text, and the style, as arguments."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)  # it ends with the server, and after it
    lines, style = socket.socket(fileno=int(sys.argv[1])), sys.argv[3]
    writer = Writer(2, style)
    output = Output(int(sys.argv[2]), style, writer)
    ordered = False
    while True:
        ready = select.select([lines.fileno(), output.fileno()], [], [])[0]
        if output.fileno() in ready:
            output.read()
        if lines.fileno() in ready:
            data = lines.recv(1 << 20)
            if not data or data == END:
                ordered = bool(data)
                break
            writer.add(data.decode())
    until = time.monotonic() + LAST_WORDS
    output.drain(time.monotonic() if ordered else until)
    writer.finish(until)
    os._exit(0)


if __name__ == "__main__":
    main()
