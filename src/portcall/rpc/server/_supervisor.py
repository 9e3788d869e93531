# SPDX-License-Identifier: Apache-2.0
"""The supervisor of a server: starts its processes, ends sessions. One thread, none of the user's code.

    client ── hello, proof ──> supervisor ── descriptor ──> zygote ── fork ──> worker ── serves ──> client
    client ── TLS ──> pump ── bytes in clear ──> supervisor, then worker         where there is TLS

Its parts: ``_loop`` waits and calls, ``_admission`` lets clients in, ``_connections`` has the states, ``_cleanup`` ends
connections, ``_zygote_process`` keeps the process that starts sessions, ``_log`` writes the log.

Rules:

* It never waits for a client, a worker, a disk or a reader of the log: whatever takes time is an event with a deadline.
* It starts no process for a client before it is let in; with TLS, none for one that is silent.
* It keeps a copy of each connection: the client sees its session's end only after the reason has been noted.
* A session costs its own client at most; the server continues. So does an error of the supervisor's own.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence

from portcall._folders import abandoned_folders, make_locked_folder
from portcall.errors import StartError
from portcall.rpc.server._admission import Admission
from portcall.rpc.server._cleanup import Cleanup
from portcall.rpc.server._connections import HANDSHAKE, Connection, Connections, State
from portcall.rpc.server._ended_sessions import EndedSessions
from portcall.rpc.server._gate import Gate
from portcall.rpc.server._link import Link
from portcall.rpc.server._listen import listen
from portcall.rpc.server._log import Log, count
from portcall.rpc.server._loop import Loop
from portcall.rpc.server._messages import (
    KillSession,
    Message,
    MessageError,
    PumpStarted,
    SessionEnded,
    SessionStarted,
    ZygoteReady,
)
from portcall.rpc.server._options import ServerOptions
from portcall.rpc.server._sandbox import Sandbox, find_sandbox
from portcall.rpc.server._silence import SilenceWatch
from portcall.rpc.server._worker import protect_memory
from portcall.rpc.server._zygote_process import ZygoteProcess
from portcall.rpc.wire._address import Address
from portcall.rpc.wire._endings import Ending, with_remedy
from portcall.rpc.wire._facts import KILL_AGAIN, SHORT_TOKEN

FOLDER_PREFIX = "portcall-server-"
LEAVING = 1.0  # seconds for a pump to say why its client left during the handshake of TLS
_UNBLOCKED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD, signal.SIGURG)


class Supervisor:
    """Runs a server until a signal stops it.

    Parameters:
        options: the server's.
        log: where it says what happens.
        on_ready: called with the address once clients can connect.
        program: id of the process that started it, to end with; 0 for none.
    """

    def __init__(self, options: ServerOptions, log: Log, on_ready: Callable[[Address], None], program: int = 0) -> None:
        self._options = options
        self._program = program
        self._program_handle = -1
        self._log = log
        self._on_ready = on_ready
        self._loop = Loop(self._on_error)
        self._connections = Connections(self._loop, self._on_deadline)
        self._signals: tuple[socket.socket, ...] = ()
        self._stop_signal = 0
        self._start_error: StartError | None = None
        self._announced = False
        self._gate: Gate | None = None
        self._sandbox: Sandbox | None = None

    def run(self) -> int:
        """Serve until SIGTERM, SIGINT or SIGHUP; return which of them it was, 0 where standard input ended.

        Raises:
            ValueError, OSError: it cannot listen there; the message says what to do.
            StartError: the user's code fails.
        """
        options = self._options
        if options.token or options.tls_certificate or options.gate >= 0:
            protect_memory()
        # Who started us may ignore the ends of processes, or block what stops us and what interrupts calls.
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _UNBLOCKED)
        if self._options.sandbox:
            self._sandbox = find_sandbox(self._options.sandbox)
        if options.tls_certificate:
            from portcall.rpc.server._pump import tls_context  # most servers have none

            tls_context(options)  # a missing file is reported now, not to the first client
        if options.audit:
            from portcall.rpc.server._audit import open_audit  # few servers have one

            os.close(open_audit(options.audit))  # as is one that cannot be written
        if options.capsules:
            from portcall.rpc.server._capsules import capsule_folder

            capsule_folder()  # likewise
        self._listener, self._address = listen(self._options)
        self._base, self._lock = make_locked_folder(FOLDER_PREFIX, self._options.work_dir)
        self._log.start(self._loop)
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        if before[signal.SIGHUP] == signal.SIG_IGN:  # as nohup has it
            del before[signal.SIGHUP]
        self._zygote = ZygoteProcess(self._options.without_secrets(), self._base, self._log.output, self._loop, self)
        ended = EndedSessions()
        self._cleanup = Cleanup(options, self._connections, ended, self._loop, self._log, self._on_disk_limit)
        self._open_gate()
        self._admission = Admission(
            options, self._listener, self._base, self._connections, ended, self._loop, self._log, self, self._gate
        )
        try:
            self._catch_signals(before)
            self._zygote.start()
            for directory in abandoned_folders(FOLDER_PREFIX, self._options.work_dir):
                self._cleanup.delete(directory)
            while not self._stop_signal and self._start_error is None:
                self._loop.step()
                if self._zygote.ready and not self._announced:
                    self._announce()
            if self._start_error is not None:
                raise self._start_error
            return max(self._stop_signal, 0)
        finally:
            self._shut_down()
            for number, handler in before.items():
                signal.signal(number, handler)

    # ---- Beginning and end ----

    def _open_gate(self) -> None:
        if self._options.gate >= 0:
            link = Link.adopt(self._options.gate)
            adopt = lambda sock: self._admission.adopt(sock)  # noqa: E731  # _admission is made later
            self._gate = Gate(link, self._connections, self.kill, adopt, self._on_program_ended)
            self._loop.watch(self._gate.fileno(), self._gate.take_messages)

    def _announce(self) -> None:
        self._announced = True
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        if self._options.disk_limit:
            self._cleanup.check_disk()
        SilenceWatch(self._connections, self._loop, self._log).look()
        if not (self._options.local or self._options.authenticated):
            text = f"--insecure: anyone who reaches {self._address} can run any code as this user"
            self._log.write("insecure", text)
        if 0 < len(self._options.token) < SHORT_TOKEN:
            text = f"the token has {len(self._options.token)} characters, and may be guessed; openssl rand -hex 32"
            self._log.write("weak-token", f"{text} makes a better one")
        if self._sandbox is not None:
            self._log.write("sandbox", self._sandbox.report, open=",".join(self._sandbox.open))
        text = f"ready for clients with the key {self._options.key!r}"  # the first line of stdout has the address
        self._log.write("listening", text, address=str(self._address))
        self._on_ready(self._address)

    def _catch_signals(self, numbers: Iterable[int]) -> None:
        reader, writer = self._signals = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        for number in numbers:
            signal.signal(number, self._on_signal)
        self._loop.watch(reader.fileno(), lambda: reader.recv(64))  # the handler has noted which
        if self._options.stop_with_stdin:
            self._loop.watch(sys.stdin.fileno(), self._on_stdin)
        if self._program:  # others may have copies of the pipe that is our standard input
            self._watch_program()

    def _on_signal(self, number: int, frame: object) -> None:
        self._stop_signal = number

    def _on_stdin(self) -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            self._stop_signal = -1

    def _watch_program(self) -> None:
        try:
            self._program_handle = os.pidfd_open(self._program)
        except ProcessLookupError:
            self._stop_signal = -1
            return
        self._loop.watch(self._program_handle, self._on_program_ended)
        if os.getppid() != self._program:  # it was quicker, and its number may be another's
            self._stop_signal = -1

    def _forget_program(self) -> None:
        if self._program_handle >= 0:
            os.close(self._program_handle)

    def _on_program_ended(self) -> None:
        self._stop_signal = -1

    def _on_error(self, error: Exception) -> None:
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = f"the server goes on after an error: {type(error).__name__}: {error}"
        self._log.write("error", f"{text} ({os.path.basename(place.filename)}, line {place.lineno})")

    def _shut_down(self) -> None:
        """End all sessions, wait for their processes, and have what they left deleted."""

        def unlink_socket() -> None:
            if self._options.unix:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._options.unix)

        def finish_all() -> None:
            for connection in self._connections:
                connection.kill_reason = connection.kill_reason or Ending("stopped")
                self._finish(connection, signal.SIGKILL)

        if len(self._connections):
            self._log.write("stopping", f"ending {count(len(self._connections), 'session')}")
        steps = (
            lambda: signal.set_wakeup_fd(-1),
            self._listener.close,
            unlink_socket,
            self._zygote.stop,
            finish_all,
            lambda: self._cleanup.close(self._base),
            lambda: os.close(self._lock),
            *(sock.close for sock in self._signals),
            self._forget_program,
            *((self._gate.close,) if self._gate is not None else ()),
        )
        for step in steps:
            self._loop.guard(step)
        self._log.write("stopped", "stopped")
        self._log.close()
        self._loop.close()

    # ---- The process that starts sessions ----

    def on_zygote_ready(self, report: ZygoteReady) -> None:
        if report.spawn_reason:
            self._log.write("spawning", f"each session starts a fresh Python, because {report.spawn_reason}")
        self._admission.accept_clients()

    def on_zygote_error(self, error: MessageError) -> None:
        self._on_error(error)

    def on_session_started(self, report: SessionStarted) -> None:
        connection = self._connections.get(report.number)
        if connection is None:
            return
        connection.pid = report.pid
        self._admission.begin(connection)

    def on_pump_started(self, report: PumpStarted) -> None:
        connection = self._connections.get(report.number)
        if connection is not None and report.error:
            self.kill(connection, Ending("unstarted", detail=report.error))

    def on_session_ended(self, report: SessionEnded) -> None:
        connection = self._connections.get(report.number)
        if connection is None:
            return
        if report.error:
            connection.kill_reason = Ending("unstarted", detail=report.error)
        connection.last_words = report.last_words
        self._finish(connection, report.status)
        self._go_on()

    def on_zygote_lost(self, why: str, attempt: int, pause: float) -> None:
        if not self._announced:
            wrote = "the process that runs the imported code ended: see what it wrote"
            self._start_error = StartError(why if why.startswith("the imported") else wrote)
            return
        text = f"the process that starts sessions ended, and all sessions with it: {why}"
        self._log.write("restart", f"{text}; attempt {attempt} to start it in {pause:g} s", attempt=attempt)
        self._admission.stop_accepting()
        for connection in self._connections:
            connection.kill_reason = connection.kill_reason or Ending("orphaned")
            if connection.pid:  # the session's own processes are in its group, which keeps the number from reuse
                with contextlib.suppress(OSError):
                    os.killpg(connection.pid, signal.SIGKILL)
            self._finish(connection, signal.SIGKILL)

    def order(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        self._zygote.order(message, descriptors)

    # ---- Ends ----

    def on_client_gone(self, connection: Connection) -> None:
        """The client has closed its side: its session may finish what it does, within limits."""
        if connection.state is State.STARTING:  # looked at again when the process is there
            return
        if not connection.serving and connection.link is None:
            self.kill(connection, Ending(connection.rules.client_gone))
            return
        seconds = self._options.lost_client_grace if connection.serving else LEAVING
        if connection.deadline is None or time.monotonic() + seconds < connection.deadline:
            self._connections.end_after(connection, seconds)
            connection.kill_reason = connection.kill_reason or Ending(connection.rules.client_gone)

    def on_client_error(self, connection: Connection, error: Exception) -> None:
        """An event of this connection failed: it ends, and no other."""
        self.kill(connection, Ending("failed", detail=with_remedy(error)))

    def _on_deadline(self, connection: Connection) -> None:
        seconds = connection.limit if connection.serving else self._options.handshake_timeout
        ending = Ending(connection.rules.out_of_time, detail=f"{seconds:g} s")
        if connection.state is State.STARTING:
            ending = Ending("unstarted", detail=f"had no process in {seconds:g} s")
        self.kill(connection, connection.kill_reason or ending)

    def _on_disk_limit(self, connection: Connection) -> None:
        self.kill(connection, Ending("disk", detail=f"{self._options.disk_limit} bytes"))

    def kill(self, connection: Connection, why: Ending) -> None:
        """End a connection. The zygote reports the end of a session; where it does not, the session is killed again."""
        connection.kill_reason = why
        if connection.state in HANDSHAKE:
            self.forget(connection)
            return
        self._connections.end_after(connection, KILL_AGAIN)
        self._loop.guard(lambda: self._zygote.order(KillSession(connection.number)))

    def forget(self, connection: Connection) -> None:
        """Close a connection that has no process."""
        self._finish(connection, signal.SIGKILL)
        self._loop.call_after(0, self._go_on)  # the caller may be looking at the queue

    def _go_on(self) -> None:
        """Use the room that a connection has left."""
        if self._zygote.ready:
            self._admission.serve_queue()
            self._admission.accept_clients()

    def _finish(self, connection: Connection, status: int) -> None:
        """Clean up after a connection that has no process any more. It does not raise: errors are logged."""
        self._connections.remove(connection)
        self._admission.remove_from_queue(connection)
        self._loop.guard(lambda: self._cleanup.finish(connection, status))
        if self._gate is not None:
            self._gate.closed(connection)
