# SPDX-License-Identifier: Apache-2.0
"""The supervisor of a server: starts its processes, ends sessions, cleans up. One thread, none of the user's code.

    client ── connection ──> supervisor ── descriptor ──> zygote ── fork ──> worker ── serves ──> client
                                 └───────────── link: hello, orders, proof ─────┘  until it serves

Its parts: ``_loop`` waits and calls, ``_admission`` lets clients in, ``_clients`` has their states, ``_zygote_process``
keeps the process that sessions come from, ``_directory_process`` deletes and counts files, ``_log`` keeps the log.

Rules:

* It never waits for a client, a worker, a disk or a reader of the log: whatever takes time is an event with a deadline.
* It keeps a copy of each connection: the client sees its session's end only after the reason has been noted.
* A session costs its own client at most; the server goes on. So does an error of the supervisor's own.
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

from portcall.rpc.server import _endings
from portcall.rpc.server._admission import Admission
from portcall.rpc.server._base_directory import abandoned_directories, make_base_directory
from portcall.rpc.server._connections import ENDING, SERVING, Client, Clients
from portcall.rpc.server._directories import delete_tree
from portcall.rpc.server._directory_process import DirectoryProcess
from portcall.rpc.server._endings import Ending, Progress, count
from portcall.rpc.server._listen import listen
from portcall.rpc.server._log import Log
from portcall.rpc.server._loop import Loop, run_all
from portcall.rpc.server._options import ServerOptions
from portcall.rpc.server._worker import protect_memory, tls_context
from portcall.rpc.server._zygote_process import Report, ZygoteProcess
from portcall.rpc.wire._address import Address
from portcall.rpc.wire._handshake import SHORT_TOKEN

LINGER = 5.0  # seconds for a client to read what was said to it at the end
LEAVING = 1.0  # seconds for a worker to notice that its client left in the hand-shake
KILL_AGAIN = 1.0  # seconds after which a session that should have ended is killed again
DISK_INTERVAL = 1.0


class StartError(Exception):
    """The server cannot start: the user's code, or a file that it needs, is at fault."""


class Supervisor:
    """Runs a server until it is told to stop.

    Args:
        options: what it is told.
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
        self._clients = Clients(self._loop, self._on_deadline)
        self._endings = _endings.Endings()
        self._lingering: dict[int, socket.socket] = {}
        self._signals: tuple[socket.socket, ...] = ()
        self._stop_signal = 0
        self._start_error: StartError | None = None
        self._announced = False

    def run(self) -> int:
        """Serve until SIGTERM, SIGINT or SIGHUP; return which of them it was, 0 where standard input ended.

        Raises:
            ValueError, OSError: it cannot listen there; the message says what to do.
            StartError: the user's code fails.
        """
        if self._options.token or self._options.tls_certificate:
            protect_memory()
        if self._options.tls_certificate:
            tls_context(self._options)  # a missing file is reported now, not to the first client
        self._listener, self._address = listen(self._options)
        self._base, self._lock = make_base_directory(self._options.work_dir)
        self._log.start(self._loop)
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        if before[signal.SIGHUP] == signal.SIG_IGN:  # as nohup has it
            del before[signal.SIGHUP]
        self._zygote = ZygoteProcess(self._options.without_secrets(), self._base, self._log.output, self._loop, self)
        self._directories = DirectoryProcess(
            lambda descriptor, action: self._loop.watch(descriptor, lambda: action(descriptor)),
            self._loop.forget,
            self._on_counted,
        )
        self._admission = Admission(
            self._options, self._listener, self._base, self._clients, self._endings, self._loop, self._log, self
        )
        try:
            self._catch_signals(before)
            self._zygote.start()
            for directory in abandoned_directories(self._options.work_dir):
                self._directories.delete(directory)
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

    def _announce(self) -> None:
        self._announced = True
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        if self._options.disk_limit:
            self._check_disk()
        if not (self._options.local or self._options.authenticated):
            text = f"--insecure: whoever reaches {self._address} can run any code as this user"
            self._log.write("insecure", text)
        if 0 < len(self._options.token) < SHORT_TOKEN:
            text = f"the token has {len(self._options.token)} characters, and may be guessed; openssl rand -hex 32"
            self._log.write("weak-token", f"{text} makes a better one")
        self._log.write("listening", f"serving on {self._address}, key {self._options.key!r}")
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
        """End all sessions, wait for their processes, and delete what they left."""

        def unlink_socket() -> None:
            if self._options.unix:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._options.unix)

        def finish_all() -> None:
            for client in self._clients:
                client.kill_reason = client.kill_reason or Ending("stopped")
                self._loop.guard(lambda client=client: self._finish(client, signal.SIGKILL))  # type: ignore[misc]

        if len(self._clients):
            self._log.write("stopping", f"ending {count(len(self._clients), 'session')}")
        steps = (
            lambda: signal.set_wakeup_fd(-1),
            self._listener.close,
            unlink_socket,
            self._zygote.stop,
            finish_all,
            *(sock.close for sock in self._lingering.values()),
            self._directories.finish,
            lambda: delete_tree(self._base),
            lambda: os.close(self._lock),
            *(sock.close for sock in self._signals),
            self._forget_program,
        )
        for step in steps:
            self._loop.guard(step)
        self._log.write("stopped", "stopped")
        self._log.close()
        self._loop.close()

    # ---- The process that sessions come from ----

    def on_zygote_ready(self, report: Report) -> None:
        if report["why"]:
            self._log.write("spawning", f"each session starts a fresh Python, because {report['why']}")
        self._admission.accept_clients()

    def on_zygote_report(self, report: Report) -> None:
        """Take note that a session started, or ended."""
        number = report.get("started", report.get("ended"))
        client = None if number is None else self._clients.get(number)
        if client is None:
            return
        if "started" in report:
            client.pid = report["pid"]
            return
        if "error" in report:
            client.kill_reason = Ending("unstarted", detail=report["error"])
        self._loop.guard(lambda: self._finish(client, report["status"]))
        self._admission.serve_queue()
        self._admission.accept_clients()

    def on_zygote_lost(self, why: str, attempt: int, pause: float) -> None:
        if not self._announced:
            wrote = "the process that runs the imported code ended: see what it wrote"
            self._start_error = StartError(why if why.startswith("the imported") else wrote)
            return
        text = f"the process that sessions start from is gone, and all sessions with it: {why}"
        self._log.write("restart", f"{text}; attempt {attempt} to start it in {pause:g} s", attempt=attempt)
        self._admission.stop_accepting()
        for client in self._clients:
            client.kill_reason = client.kill_reason or Ending("orphaned")
            if client.pid:  # what the session started is in its group, and keeps the number from being given again
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(client.pid, signal.SIGKILL)
            self._loop.guard(lambda client=client: self._finish(client, signal.SIGKILL))  # type: ignore[misc]

    def order(self, message: dict[str, object], descriptors: Sequence[int] = ()) -> None:
        self._zygote.order(message, descriptors)

    # ---- Ends ----

    def on_client_gone(self, client: Client) -> None:
        """The client has closed its side: its session may finish what it does, within limits."""
        serving = client.state == SERVING
        seconds = self._options.lost_client_grace if serving else LEAVING
        if client.deadline is None or time.monotonic() + seconds < client.deadline:
            self._clients.end_after(client, seconds)
            client.kill_reason = client.kill_reason or Ending("abandoned" if serving else "left")

    def on_client_error(self, client: Client, error: Exception) -> None:
        """An event of this client failed: it ends, and nobody else."""
        self.kill(client, Ending("failed", detail=str(error)))

    def _on_deadline(self, client: Client) -> None:
        if client.state == SERVING:
            why = Ending("expired", detail=f"{client.limit:g} s")
        else:
            why = Ending("silent", detail=f"{self._options.handshake_timeout:g} s")
        self.kill(client, client.kill_reason or why)

    def kill(self, client: Client, why: Ending) -> None:
        """End a session. Its end is reported by the zygote; where it is not, the session is killed again."""
        client.kill_reason = why
        self._clients.end_after(client, KILL_AGAIN)
        self._loop.guard(lambda: self._zygote.order({"kill": client.number}))

    def _finish(self, client: Client, status: int) -> None:
        """Note how a session ended, say so where that is possible, and clean up after it."""
        self._clients.remove(client)
        self._admission.remove_from_queue(client)
        self._loop.guard(lambda: self._admission.take_last_message(client))
        served = client.state == SERVING
        progress = Progress()
        with contextlib.suppress(OSError):
            progress = Progress.from_bytes(os.pread(client.progress, _endings.PROGRESS_BYTES, 0))
        ending = _endings.ending_of(status, progress, client.kill_reason)
        if served:
            self._endings.add(client.number, client.secret, ending)
        self._log_end(client, ending, progress)
        last_words = b""
        if served and progress.at_boundary and not self._options.tls_certificate:
            last_words = self._last_words(client, ending)
        run_all(
            lambda: self._loop.forget(client.link.fileno()),
            client.link.close,
            lambda: os.close(client.progress),
            lambda: self._loop.forget(client.sock.fileno()),
            lambda: self._linger(client.sock, last_words) if last_words else client.sock.close(),
            lambda: self._remove(client.directory),
        )

    def _log_end(self, client: Client, ending: Ending, progress: Progress) -> None:
        if client.state == SERVING:
            seconds = time.monotonic() - client.since
            self._log.write(
                "ended", f"ended after {seconds:.1f} s: {ending.text}", client.number, peer=client.peer,
                how=ending.how, signal=ending.signal, code=ending.code, seconds=round(seconds, 3),
                received=progress.received, sent=progress.sent,
            )  # fmt: skip
        elif client.state != ENDING:
            gone = Ending("left") if ending == Ending("exit") else ending
            self._log.write("dropped", f"{client.peer} {gone.text}", client.number, peer=client.peer, how=gone.how)

    def _last_words(self, client: Client, ending: Ending) -> bytes:
        """Return the message for the client's connection. A portcall client asks for all but the end of its time."""
        if ending.how == "expired":
            return _endings.exception_frame(_endings.expiry_text(client.limit))
        if client.peer_kind == "TVM" and ending.failed and ending.how not in ("lost", "abandoned"):
            return _endings.exception_frame(f"the session over there ended: {ending.text}")
        return b""

    def _linger(self, sock: socket.socket, data: bytes) -> None:
        """Send last words and give the client time to read them, taking what it still sends."""
        try:
            sock.setblocking(False)
            sock.send(data)
            sock.shutdown(socket.SHUT_WR)
            self._loop.watch(sock.fileno(), lambda: self._on_linger(sock), failed=lambda _: self._end_linger(sock))
        except OSError:
            sock.close()
            return
        self._lingering[sock.fileno()] = sock
        self._loop.call_after(LINGER, lambda: self._end_linger(sock))

    def _on_linger(self, sock: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            if not sock.recv(1 << 16):
                self._end_linger(sock)

    def _end_linger(self, sock: socket.socket) -> None:
        if self._lingering.get(sock.fileno()) is sock:
            del self._lingering[sock.fileno()]
            run_all(lambda: self._loop.forget(sock.fileno()), sock.close)

    # ---- Directories ----

    def _remove(self, directory: str) -> None:
        """Delete a directory; one that is not empty by a process of its own, for it may hold a million files."""
        try:
            for name in ("files", "tmp", ""):
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(os.path.join(directory, name))
        except OSError:
            self._directories.delete(directory)

    def _check_disk(self) -> None:
        """Have the files of all sessions counted."""
        self._loop.call_after(DISK_INTERVAL, self._check_disk)
        for client in self._clients.in_state(SERVING):
            self._directories.count(client.directory, self._options.disk_limit)

    def _on_counted(self, directory: str, nbytes: int) -> None:
        """End a session whose files take too much."""
        for client in self._clients.in_state(SERVING):
            if client.directory == directory and nbytes > self._options.disk_limit:
                self.kill(client, Ending("disk", detail=f"{self._options.disk_limit} bytes"))
