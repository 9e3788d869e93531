# SPDX-License-Identifier: Apache-2.0
"""The supervisor's side of the process that deletes and counts directories: orders out, reports in, never waiting."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable

from portcall.rpc.server import _directories
from portcall.rpc.server._link import Link
from portcall.rpc.server._messages import (
    DIRECTORY_REPORTS,
    CountDirectory,
    DeleteDirectory,
    DirectoryCounted,
    DirectoryDeleted,
    Message,
)
from portcall.rpc.server._options import public_environment
from portcall.rpc.wire._facts import DELETE_TIMEOUT


class DirectoryProcess:
    """Deletes and counts directories in a separate process: a disk may be slow, and a directory have a million files.

    A process that ends is started again, with the orders that it had; where that fails, at the next order.

    Parameters:
        watch: called with a descriptor, and what to call with it once it can be read.
        forget: called with a descriptor that need not be watched any more.
        on_counted: called with a directory and the bytes that its files take.
    """

    def __init__(
        self,
        watch: Callable[[int, Callable[[int], None]], None],
        forget: Callable[[int], None],
        on_counted: Callable[[str, int], None],
    ) -> None:
        self._watch = watch
        self._forget = forget
        self._on_counted = on_counted
        self._orders: dict[tuple[str, str], Message] = {}  # without a report yet, oldest first
        self._unsent: list[tuple[str, str]] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Link | None = None
        self._start()

    @property
    def pid(self) -> int | None:
        """Its process id; None where it could not be started."""
        return self._process.pid if self._process else None

    def delete(self, directory: str) -> None:
        """Have a directory deleted; what cannot be deleted stays."""
        self._order(("delete", directory), DeleteDirectory(directory))

    def count(self, directory: str, enough: int) -> None:
        """Have a directory's files counted, unless that is under way; counting ends once it is more than ``enough``."""
        self._order(("count", directory), CountDirectory(directory, enough))

    def finish(self, base: str) -> bool:
        """Have the server's own directory deleted after all others, and end the process; return whether that was done
        within ``DELETE_TIMEOUT``. A server that is stopped ends soon: what is left, the next one deletes.
        """
        until = time.monotonic() + DELETE_TIMEOUT
        if self._await_deletions(until):
            try:
                os.rmdir(base)
            except OSError:
                self.delete(base)
        deleted = self._await_deletions(until)
        self._orders.clear()
        if self._process is not None:
            self._process.kill()
            self._end()
        return deleted

    def _await_deletions(self, until: float) -> bool:
        """Wait for all deletions, until some time; return whether they are done."""

        def left() -> bool:
            return any(isinstance(order, DeleteDirectory) for order in self._orders.values())

        with contextlib.suppress(TimeoutError):
            while left() and self._link is not None:
                self._link.set_timeout(max(0.001, until - time.monotonic()))
                self._send()
                if not self._take(self._link):
                    break
        return not left()

    def _start(self) -> None:
        ours, theirs = Link.pair()
        environment = public_environment()
        program = [sys.executable, "-I", "-S", _directories.__file__, str(theirs.fileno())]
        with theirs:
            try:
                self._process = subprocess.Popen(
                    program, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL,
                    stdout=sys.stderr.fileno(), start_new_session=True,
                )  # fmt: skip
            except OSError:
                ours.close()
                return
        ours.set_timeout(0)
        self._link = ours
        self._unsent = list(self._orders)
        self._watch(ours.fileno(), self._on_report)
        self._send()

    def _order(self, key: tuple[str, str], order: Message) -> None:
        if key not in self._orders:
            self._orders[key] = order
            self._unsent.append(key)
        if self._link is None:
            self._start()
        else:
            self._send()

    def _send(self) -> None:
        """Send what can be sent; the rest follows when a report comes, or goes to the next process."""
        with contextlib.suppress(OSError):
            while self._unsent and self._link is not None:
                self._link.send(self._orders[self._unsent[0]])
                del self._unsent[0]

    def _on_report(self, _: int) -> None:
        assert self._link is not None
        if self._take(self._link):
            self._send()
            return
        self._forget(self._link.fileno())
        self._end()
        if self._orders:
            self._start()

    def _take(self, link: Link) -> bool:
        """Take a report; return whether there was one."""
        try:
            received = link.receive(DIRECTORY_REPORTS)
        except BlockingIOError:
            return True
        if received is None:
            return False
        report = received[0]
        if isinstance(report, DirectoryCounted):
            self._orders.pop(("count", report.directory), None)
            self._on_counted(report.directory, report.nbytes)
        elif isinstance(report, DirectoryDeleted):
            self._orders.pop(("delete", report.directory), None)
        return True

    def _end(self) -> None:
        assert self._link is not None
        assert self._process is not None
        self._link.close()
        self._link = None
        self._process.wait()
        self._process = None
