# SPDX-License-Identifier: Apache-2.0
"""What the server's code prints, as lines for a function of the user."""

from __future__ import annotations

import sys
from collections.abc import Callable

from portcall.rpc.client._errors import without_escapes

OnOutput = Callable[[str, str], object]  # a line without its end; "stdout" or "stderr"
_STREAMS = {1: "stdout", 2: "stderr"}
_MOST_LINE = 32 << 10  # bytes; a longer line is given in parts


class OutputLines:
    """Cuts text into lines, which it gives to a function. The core calls it while a request waits for its answer."""

    def __init__(self, on_output: OnOutput) -> None:
        self._on_output: OnOutput | None = on_output
        self._rest = dict.fromkeys(_STREAMS, b"")

    def __call__(self, stream: int, dropped: int, text: bytes) -> None:
        """Take text of a stream, before which so many lines are missing."""
        name = _STREAMS[stream]
        if dropped:
            self._give(f"[{dropped} lines are missing: they came faster than they were read]", name)
        *lines, rest = (self._rest[stream] + text).split(b"\n")
        if len(rest) >= _MOST_LINE:
            lines, rest = [*lines, rest], b""
        self._rest[stream] = rest
        for line in lines:
            self._give(without_escapes(line.decode(errors="backslashreplace").removesuffix("\r")), name)

    def stop(self) -> None:
        """Forget the function: it may hold the session, which holds this."""
        self._on_output = None

    def _give(self, line: str, stream: str) -> None:
        try:
            if self._on_output is not None:
                self._on_output(line, stream)
        except Exception as error:  # the session goes on: a request is under way
            sys.excepthook(type(error), error, error.__traceback__)
