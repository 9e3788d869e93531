# SPDX-License-Identifier: Apache-2.0
"""The supervisor's side of the zygote: orders out, reports in, and another zygote when one ends. Never waiting."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Protocol

from portcall.rpc.server._link import Link
from portcall.rpc.server._loop import Loop, Timer, run_all
from portcall.rpc.server._messages import (
    ZYGOTE_REPORTS,
    Configure,
    ImportFailed,
    Message,
    MessageError,
    PumpStarted,
    SessionEnded,
    SessionStarted,
    StopZygote,
    ZygoteReady,
)
from portcall.rpc.server._options import ServerOptions, public_environment

STOP_TIMEOUT = 5.0  # seconds for the zygote to stop
REPLY_TIMEOUT = 30.0  # seconds without an answer to an order, after which it is given up, and all sessions with it
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 30.0  # seconds between two attempts to start it; each pause is twice the one before
STEADY = 5.0  # seconds after which a zygote counts as one that works
_PROGRAM = "from portcall.rpc.server._zygote import main; main()"


class Owner(Protocol):
    """Whom a zygote's process reports to."""

    def on_zygote_ready(self, report: ZygoteReady) -> None: ...

    def on_zygote_error(self, error: MessageError) -> None: ...

    def on_session_started(self, report: SessionStarted) -> None: ...

    def on_pump_started(self, report: PumpStarted) -> None: ...

    def on_session_ended(self, report: SessionEnded) -> None: ...

    def on_zygote_lost(self, why: str, attempt: int, pause: float) -> None:
        """All sessions have ended with it; the next one starts after ``pause`` seconds."""


class ZygoteProcess:
    """Starts the process that sessions come from, again and again, and speaks with it.

    Parameters:
        options: the server's, without secrets.
        base: the directory that it deletes when the supervisor is gone.
        output: descriptor that it and its sessions write to.
    """

    def __init__(self, options: ServerOptions, base: str, output: int, loop: Loop, owner: Owner) -> None:
        self._options = options
        self._base = base
        self._output = output
        self._loop = loop
        self._owner = owner
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Link | None = None
        self._restart: Timer | None = None
        self._reply_timer: Timer | None = None  # runs while an order has not been answered
        self._failure = ""
        self._attempts = 0
        self._ready_since: float | None = None
        self._files_limit = resource.getrlimit(resource.RLIMIT_NOFILE)

    @property
    def ready(self) -> bool:
        """Whether sessions can be started."""
        return self._ready_since is not None

    def start(self) -> None:
        """Start it, in a fresh Python: it must not share memory that has secrets.

        Raises:
            OSError: the system has no room for a process.
        """
        environment = public_environment()
        ours, theirs = Link.pair()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, str(theirs.fileno())], pass_fds=[theirs.fileno()], env=environment,
                stdin=subprocess.DEVNULL, stdout=self._output, stderr=self._output, start_new_session=True,
            )  # fmt: skip
            with contextlib.suppress(ProcessLookupError):  # the supervisor's own limit is higher
                resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, self._files_limit)
            ours.set_timeout(0)
            ours.send(Configure(self._options.to_dict(), self._base))
            self._loop.watch(ours.fileno(), self._on_report)
        except BaseException:
            ours.close()
            self._end_process()
            raise
        finally:
            theirs.close()
        self._link = ours

    def order(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send an order, which is answered with a report soon.

        Raises:
            OSError: it takes none.
        """
        if self._link is None:
            raise ConnectionError("the process that sessions start from is not there")
        if self._reply_timer is None:
            self._reply_timer = self._loop.call_after(REPLY_TIMEOUT, self._on_reply_timeout)
        self._link.send(message, descriptors)

    def stop(self) -> None:
        """End it and its sessions, and wait for that."""
        if self._restart is not None:
            self._restart.cancel()
        run_all(self._ask_to_stop, self._close_link, self._end_process)

    def _ask_to_stop(self) -> None:
        if self._link is not None and self._process is not None and self.ready:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self._link.send(StopZygote())
                self._process.wait(STOP_TIMEOUT)

    # ---- Reports ----

    def _on_report(self) -> None:
        assert self._link is not None
        try:
            received = self._link.receive(ZYGOTE_REPORTS)
        except BlockingIOError:
            return
        except MessageError as error:  # the next one may be right
            self._owner.on_zygote_error(error)
            return
        if received is None:
            self._lost()
            return
        report = received[0]
        if self._reply_timer is not None:
            self._reply_timer.cancel()
            self._reply_timer = None
        if isinstance(report, ImportFailed):
            self._failure = f"the imported code failed: {report.error}\n{report.trace}".rstrip()
        elif isinstance(report, ZygoteReady):
            self._ready_since = time.monotonic()
            self._owner.on_zygote_ready(report)
        elif isinstance(report, SessionStarted):
            self._owner.on_session_started(report)
        elif isinstance(report, PumpStarted):
            self._owner.on_pump_started(report)
        elif isinstance(report, SessionEnded):
            self._owner.on_session_ended(report)

    def _on_reply_timeout(self) -> None:
        self._reply_timer = None
        self._failure = f"it did not answer for {REPLY_TIMEOUT:g} s"
        self._lost()

    # ---- Ends ----

    def _lost(self) -> None:
        """Without the zygote there are no sessions: the kernel has ended them with it. Begin again after a pause."""
        if self._ready_since is not None and time.monotonic() - self._ready_since > STEADY:
            self._attempts = 0
        pause = min(FIRST_PAUSE * 2 ** min(self._attempts, 16), LONGEST_PAUSE)
        self._attempts += 1
        self._ready_since = None
        process = self._process
        try:
            run_all(self._close_link, self._end_process)
        finally:
            self._restart = self._loop.call_after(pause, self._start_again)
            why, self._failure = self._failure, ""
            if process is not None and process.returncode is not None:
                why = why or f"it ended with status {process.returncode}"
            self._owner.on_zygote_lost(why or "it ended", self._attempts, pause)

    def _start_again(self) -> None:
        try:
            self.start()
        except OSError as error:
            self._failure = f"cannot start a process: {error}"
            self._lost()

    def _close_link(self) -> None:
        if self._reply_timer is not None:
            self._reply_timer.cancel()
            self._reply_timer = None
        link, self._link = self._link, None
        if link is not None:
            run_all(lambda: self._loop.forget(link.fileno()), link.close)

    def _end_process(self) -> None:
        """Kill it with all that the imported code started."""
        process, self._process = self._process, None
        if process is None:
            return

        def kill_group() -> None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

        def wait() -> None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_TIMEOUT)

        run_all(kill_group, process.kill, wait)
