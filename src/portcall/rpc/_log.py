# SPDX-License-Identifier: Apache-2.0
"""The server's log on standard error: lines for people, or one JSON object a line for programs."""

from __future__ import annotations

import json
import sys
import time
from typing import TextIO

from portcall.rpc._options import LogStyle


class Log:
    """Writes events. Text that came from a client is shown without control characters."""

    def __init__(self, style: LogStyle, stream: TextIO | None = None) -> None:
        self._style = style
        self._stream = stream or sys.stderr

    def write(self, event: str, text: str, session: int | None = None, **facts: object) -> None:
        """Log an event.

        Parameters:
            event: its name for programs.
            text: a sentence for people.
            session: the session's number, if it is about one.
            facts: what programs may want to know.
        """
        if self._style == "none":
            return
        about = {} if session is None else {"session": session}
        now = time.time()
        if self._style == "json":
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03}Z"
            line = json.dumps({"time": stamp, "event": event, **about, "message": text, **facts})
        else:
            stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
            line = f"{stamp} {'' if session is None else f'session {session}: '}{printable(text)}"
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except (OSError, ValueError):  # nobody reads it any more; the server goes on
            self._style = "none"


def printable(text: str) -> str:
    """Return a text in which control characters, such as those that steer a terminal, are written as escapes."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
