# SPDX-License-Identifier: Apache-2.0
"""The process that sessions and pumps are forked from: it has run the user's code, and starts, ends and reports.

A session starts in milliseconds and shares memory with its siblings, since nothing has to be loaded again. Where the
user's code started threads, a fork would take half of their work along: then each session gets a fresh Python.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import os
import select
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from portcall._function import convert
from portcall._module import session_library
from portcall.rpc.server._directories import delete_tree
from portcall.rpc.server._link import Link
from portcall.rpc.server._messages import (
    ZYGOTE_CONFIGURATION,
    ZYGOTE_ORDERS,
    Configure,
    ImportFailed,
    KillSession,
    Message,
    PumpStarted,
    RunPump,
    SessionEnded,
    SessionKilled,
    SessionStarted,
    StartPump,
    StartSession,
    StartWorker,
    StopZygote,
    ZygoteReady,
    encode,
)
from portcall.rpc.server._options import ServerOptions
from portcall.rpc.server._worker import (
    Offer,
    exit_with,
    line_buffer_output,
    load_user_code,
    run_session,
    sandbox_paths,
)
from portcall.rpc.wire import _zstd
from portcall.rpc.wire._endings import with_remedy

LOOK_AT_SUPERVISOR = 2.0  # seconds without an event
_MOST_REST, _MOST_LAST_WORDS = 1 << 20, 2000  # bytes that a session left in a pipe; characters that are reported
_SPAWN_WORKER = b"from portcall.rpc.server._worker import main; main()"
_MOST_REAPED = 2000  # at once
_SPAWN_PUMP = b"from portcall.rpc.server._pump import main; main()"


@dataclass(frozen=True)
class Child:
    """The process of a session, and the ends to read of the pipes for what it prints, which outlive it.

    Attributes:
        first: the process that the others in its sandbox end with; 0 without one.
    """

    pid: int
    number: int
    stdout: int
    stderr: int
    first: int

    def kill(self) -> None:
        """End all of its processes but, without a sandbox, those that left its group."""
        kill_group(self.pid)
        if self.first:
            os.kill(self.first, signal.SIGKILL)


class Zygote:
    """Starts sessions as the supervisor orders, and tells it how they end.

    Its orders are ``ZYGOTE_ORDERS`` and its reports ``ZYGOTE_REPORTS`` in ``_messages``. Each order is answered by a
    report; SessionEnded comes also by itself.
    """

    def __init__(self, link: Link, options: ServerOptions, base: str) -> None:
        self._link = link
        self._options = options
        self._base = base
        self._offer: Offer | None = None
        self._reason = ""  # why it spawns; empty: it forks
        self._poll = select.poll()
        self._poll.register(link, select.POLLIN)
        self._children: dict[int, Child] = {}  # by handle
        self._pumps: dict[int, int] = {}  # process ids, by handle
        self._reports: deque[Message] = deque()
        self._supervisor_stopped = False

    def prepare(self) -> None:
        """Run the user's code and choose how to start sessions.

        Raises:
            Exception: whatever the user's code raises.
        """
        if self._options.sandbox:
            session_library()["prepare_sandbox"]()
        self._offer = load_user_code(self._options)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # whatever that code wants: nobody else waits for our children,
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # and Ctrl-C is the supervisor's
        self._reason = "of --no-fork" if self._options.no_fork else threads_in_the_way()
        if not self._reason:
            _zstd.is_available()  # so that each session need not
            if self._options.audit:
                importlib.import_module("portcall.rpc.server._audit")  # likewise
            if self._options.capsules:
                importlib.import_module("portcall.rpc.server._capsules")  # likewise
            convert(flush_output)()  # likewise: the core finds the end of this thread's stack
            if self._options.sandbox:
                sandbox_paths(self._options)  # likewise
        gc.collect()
        gc.freeze()
        self._link.send(ZygoteReady(self._reason))

    def run(self) -> None:
        """Work until the supervisor says stop, or is gone."""
        while True:
            events = self._poll.poll(int(1000 * LOOK_AT_SUPERVISOR))
            for handle, _ in events:
                if handle in self._pumps:
                    self._reap_pump(handle)
                elif handle != self._link.fileno():
                    self._reap(handle)
                elif not self._obey():
                    return
            self._send_reports()
            self._reap_others()
            if not events:
                self._look_at_supervisor()

    def _obey(self) -> bool:
        received = self._link.receive(ZYGOTE_ORDERS)
        if received is None:
            log_line(f"the supervisor of this server has ended, and {len(self._children)} of its sessions with it")
            self._end_all()
            delete_tree(self._base)
            return False
        order, descriptors = received
        if isinstance(order, StartSession):
            self._start(order, descriptors)
        elif isinstance(order, StartPump):
            self._start_pump(order, descriptors)
        elif isinstance(order, KillSession):
            self._kill(order.number)
        elif isinstance(order, StopZygote):
            self._end_all()
            return False
        return True

    def _look_at_supervisor(self) -> None:
        """Say it when somebody has stopped the supervisor, which enforces no limit then and lets no client in."""
        parent = os.getppid()
        stopped = state_of(parent) in "tT"
        if stopped and not self._supervisor_stopped:
            log_line(f"the supervisor of this server is stopped: no clients, no limits until kill -CONT {parent}")
        self._supervisor_stopped = stopped

    def _report(self, report: Message) -> None:
        self._reports.append(report)
        self._send_reports()

    def _send_reports(self) -> None:
        """Send what there is to report; what cannot be sent now follows."""
        with contextlib.suppress(OSError):
            while self._reports:
                self._link.send(self._reports[0])
                self._reports.popleft()

    def _loaded(self) -> Offer:
        assert self._offer is not None
        return self._offer

    def _start(self, order: StartSession, descriptors: list[int]) -> None:
        number = order.number
        pipes: list[int] = []
        try:
            check_count(order, descriptors)
            client, progress, *verdict = descriptors
            pipes += os.pipe()
            pipes += os.pipe()
            start = StartWorker(
                number, order.directory, order.features, order.credential, order.user, order.reply, client,
                progress, os.getpid(), pipes[:2], pipes[2:], verdict,
            )  # fmt: skip
            # A session's process starts what keeps it, or writes down its calls, before it is in its sandbox.
            in_sandbox = bool(self._options.sandbox and not (self._reason or verdict or self._options.audit))
            session = lambda: run_session(start, self._options, self._loaded, in_sandbox)  # noqa: E731
            inherited = [*descriptors, *pipes]
            pid, handle, first = self._begin(start, session, _SPAWN_WORKER, inherited, in_sandbox)
        except OSError as error:
            self._report(SessionEnded(number, 1 << 8, f"cannot start a process: {with_remedy(error)}"))
            descriptors = [*descriptors, *pipes]
        else:
            self._children[handle] = Child(pid, number, pipes[0], pipes[2], first)
            self._report(SessionStarted(number, pid))
            descriptors = [*descriptors, pipes[1], pipes[3]]
        for descriptor in descriptors:
            os.close(descriptor)

    def _start_pump(self, order: StartPump, descriptors: list[int]) -> None:
        from portcall.rpc.server._pump import run_pump  # only where there is TLS

        try:
            check_count(order, descriptors)
            client, clear, link = descriptors
            start = RunPump(client, clear, link, os.getpid())
            pid, handle, _ = self._begin(start, lambda: run_pump(start, self._options), _SPAWN_PUMP, descriptors)
        except OSError as error:
            self._report(PumpStarted(order.number, f"cannot start a process: {with_remedy(error)}"))
        else:
            self._pumps[handle] = pid
            self._report(PumpStarted(order.number))
        for descriptor in descriptors:
            os.close(descriptor)

    def _begin(
        self,
        start: Message,
        action: Callable[[], int],
        program: bytes,
        descriptors: list[int],
        in_sandbox: bool = False,
    ) -> tuple[int, int, int]:
        """Start a process; return its id, a handle that is watched for its end, and the first process of its sandbox.

        Raises:
            OSError: there is no room for one.
        """
        first = 0
        if self._reason:
            pid = self._spawn(program, start, descriptors)
        else:
            pid, first = self._fork(action, descriptors, in_sandbox)
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            for each in filter(None, (pid, first)):
                os.kill(each, signal.SIGKILL)
                os.waitpid(each, 0)
            raise
        self._poll.register(handle, select.POLLIN)
        return pid, handle, first

    def _kill(self, wanted: int) -> None:
        for handle, child in self._children.items():
            if child.number == wanted:
                child.kill()
                signal.pidfd_send_signal(handle, signal.SIGKILL)
                self._report(SessionKilled(wanted))
                return
        self._report(SessionEnded(wanted, signal.SIGKILL.value))  # it has never begun, or its end was reported before

    def _fork(self, action: Callable[[], int], wanted: list[int], in_sandbox: bool) -> tuple[int, int]:
        flush_output()  # or the process would write it once more
        pid, first = map(int, session_library()["start_in_sandbox"](os.fork)) if in_sandbox else (os.fork(), 0)
        if pid == 0:
            pipes = [pipe for child in self._children.values() for pipe in (child.stdout, child.stderr)]
            for descriptor in {self._link.fileno(), *self._children, *pipes, *self._pumps}.difference(wanted):
                os.close(descriptor)
            exit_with(action)
        return pid, first

    def _spawn(self, program: bytes, start: Message, descriptors: list[int]) -> int:
        for descriptor in descriptors:
            os.set_inheritable(descriptor, True)
        facts = [encode(Configure(self._options.to_dict(), self._base)), encode(start)]
        try:
            return os.posix_spawn(sys.executable, [os.fsencode(sys.executable), b"-c", program, *facts], os.environ)
        finally:
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)

    def _reap(self, handle: int) -> None:
        child = self._children.pop(handle)
        child.kill()  # before its number can be given to another: what the session started ends with it
        status = os.waitpid(child.pid, 0)[1]
        self._poll.unregister(handle)
        os.close(handle)
        _, last_words = log_rest_of(child.stdout), log_rest_of(child.stderr)
        self._report(SessionEnded(child.number, status, last_words=last_words))

    def _reap_others(self) -> None:
        """Take what is left of processes that have ended: first ones of sandboxes, and children of sessions.

        A session without seccomp makes its children this process's (CLONE_PARENT) as fast as it likes; a first process
        waits for all of its sandbox.
        """
        known = {*self._pumps.values(), *(pid for child in self._children.values() for pid in (child.pid, child.first))}
        with contextlib.suppress(ChildProcessError):  # there are none
            for _ in range(_MOST_REAPED):
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if not ended or ended.si_pid in known:  # its handle says so, too; the others' turn comes after it
                    break
                os.waitpid(ended.si_pid, 0)

    def _reap_pump(self, handle: int) -> None:
        os.waitpid(self._pumps.pop(handle), 0)
        self._poll.unregister(handle)
        os.close(handle)

    def _end_all(self) -> None:
        for handle in list(self._pumps):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            self._reap_pump(handle)
        for handle, child in list(self._children.items()):
            child.kill()
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            self._reap(handle)


def check_count(order: Message, descriptors: list[int]) -> None:
    """Raise OSError where this process may not open as many descriptors as came with an order."""
    if len(descriptors) != order.descriptors:
        raise OSError(errno.EMFILE, "too many open files")


def kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def log_line(text: str) -> None:
    """Write a line for the server's log."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def log_rest_of(pipe: int) -> str:
    """Close a session's pipe, write what is still in it to the log, and return the last of that."""
    os.set_blocking(pipe, False)
    data = b""
    with contextlib.suppress(BlockingIOError):
        while len(data) < _MOST_REST and (piece := os.read(pipe, _MOST_REST)):
            data += piece
    os.close(pipe)
    text = data.decode(errors="backslashreplace")
    if text:
        log_line(text.removesuffix("\n"))
    return text[-_MOST_LAST_WORDS:]


def flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def state_of(pid: int) -> str:
    """Return the letter that the kernel has for what a process does; "?" where it cannot be seen."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1].decode()
    except OSError:
        return "?"


def threads_in_the_way() -> str:
    """Say which threads forbid to fork; empty when none do.

    Some libraries end their threads at a fork and start them again when they have work, as OpenBLAS does for NumPy:
    they are gone after a fork for trial.
    """
    if count_threads() == 1:
        return ""
    trial = os.fork()
    if trial == 0:
        os._exit(0)
    os.waitpid(trial, 0)
    left = count_threads() - 1
    return f"the imported code has {left} thread{'s'[: left > 1]} running" if left else ""


def count_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def main() -> None:
    """Run as the process that the supervisor starts, with the descriptor of the link as only argument."""
    link = Link.adopt(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line_buffer_output()
    received = link.receive(ZYGOTE_CONFIGURATION)
    if received is None:
        return
    given = received[0]
    assert isinstance(given, Configure)
    zygote = Zygote(link, ServerOptions.from_dict(given.options), given.base)
    try:
        zygote.prepare()
    except BaseException as error:
        trace = "".join(traceback.format_exception(error))
        link.send(ImportFailed.of(f"{type(error).__name__}: {error}", trace))
        return
    zygote.run()
