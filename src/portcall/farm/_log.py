# SPDX-License-Identifier: Apache-2.0
"""The farm's log. The process that writes servers' logs writes it, too, so the farm never waits for a reader."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

from portcall.rpc.server._log import Log
from portcall.rpc.server._loop import PAUSE
from portcall.rpc.server._options import LogStyle

_MOST_REFUSED = 20  # lines about refused peers a second; more are counted


class FarmLog:
    """Writes lines of a kind to standard error; a function of a kind and a text."""

    def __init__(self, silent: bool) -> None:
        style: LogStyle = "none" if silent else "text"
        self._log = Log(style)
        self._silent = silent
        self._refused = self._unsaid = 0
        self._handler = _Handler(self)

    def __call__(self, kind: str, text: str) -> None:
        if self._silent:
            return
        if kind == "refused":
            self._refused += 1
            if self._refused > _MOST_REFUSED:
                self._unsaid += 1
                return
            if self._refused == 1:
                asyncio.get_running_loop().call_later(1, self._count_anew)
        self._log.write("farm", f"{kind}: {text}".replace("\n", " "))

    def _count_anew(self) -> None:
        self._refused, unsaid, self._unsaid = 0, self._unsaid, 0
        if unsaid:
            self._log.write("farm", f"refused: {unsaid} more within a second")

    def start(self) -> None:
        """Begin to write; what libraries log comes here, too, without tracebacks.

        Raises:
            OSError: the system has no room for a process.
        """
        logging.getLogger().addHandler(self._handler)
        if not self._silent:
            self._log.start(_Loop())

    def close(self) -> None:
        """Have written what there is, as far as somebody reads it."""
        logging.getLogger().removeHandler(self._handler)
        self._log.close()


class _Loop:
    """What the log needs of the supervisor's loop, in the running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def watch(self, descriptor: int, action: Callable[[], object]) -> None:
        self._loop.add_reader(descriptor, action)

    def forget(self, descriptor: int) -> None:
        self._loop.remove_reader(descriptor)

    def call_after(self, seconds: float, action: Callable[[], object]) -> None:
        self._loop.call_later(seconds, self._try, action)

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError:  # no room for a process now
            self.call_after(PAUSE, action)


class _Handler(logging.Handler):
    """Takes what libraries log: a line each."""

    def __init__(self, log: FarmLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):
            text = record.getMessage().partition("\n")[0]
            error = record.exc_info[1] if record.exc_info else None
            self._log("error", f"{record.name}: {text}" + (f": {type(error).__name__}: {error}" if error else ""))
