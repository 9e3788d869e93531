# SPDX-License-Identifier: Apache-2.0
"""Run what follows in a child process, so that a crash or a hang of foreign code is an error with words.

``isolate`` forks before anything heavy is loaded. The child returns from it and goes on with the command; the parent
waits, and leaves with the child's exit code, or reports how the child ended.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import select
import shlex
import signal
import sys
import time
from types import FrameType

import click

from portcall.bench import format_duration
from portcall.cli._command import Settings
from portcall.cli._errors import COMPILE_FOR, CRASH, INTERRUPTED, OTHER_PROCESSOR, TIMEOUT, CommandError

SIGNALS = (signal.SIGINT, signal.SIGTERM)
WRONG = "a wrong number, type or shape of arguments, or a bug in the library"
KILLED = "it was killed, possibly by the OOM killer"
STEP = 0.25  # seconds
PR_SET_PDEATHSIG = 1  # prctl(2)


def isolate(ctx: click.Context, work: str, timeout: float | None) -> None:
    """Return in a child process; the parent ends the command as the child ends.

    Parameters:
        ctx: the command's context; where its settings do not ask for isolation, this returns at once.
        work: what is done, for messages, such as ``add_one of kernels.so``.
        timeout: seconds after which the child is killed; None waits forever.

    Raises:
        CommandError: in the parent, when the child crashed or the library ended it (5), or it ran out of time (4).
    """
    if not (isinstance(ctx.obj, Settings) and ctx.obj.isolate) or not hasattr(os, "pidfd_open"):
        return
    sys.stdout.flush()
    sys.stderr.flush()
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the parent is ready to end the child too
    reader, writer = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, interrupt_once)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        os.close(reader)
        end_with_parent(parent)
        if ctx.params.get("json_to") == "-":
            keep_output()
        atexit.register(os.write, writer, b"!")  # exit() of C, in the library, does not come here
        return
    os.close(writer)
    os.set_blocking(reader, False)  # what the library started may hold the other end for longer
    with open(reader, "rb", buffering=0) as said:
        status = wait(child, timeout)
        ended_itself = bool(said.read(1))
    if status is None:
        raise CommandError(
            f"{work} did not end within {format_duration(timeout or 0)}; it was killed",
            "it takes longer, or waits forever",
            "raise --timeout",
            TIMEOUT,
            "TimeoutError",
        )
    if status < 0:
        other = status == -signal.SIGILL
        raise CommandError(
            f"{work} crashed: {signal.strsignal(-status)} ({signal.Signals(-status).name})",
            OTHER_PROCESSOR if other else KILLED if status == -signal.SIGKILL else WRONG,
            COMPILE_FOR
            if other
            else f"compare the arguments with the library's source; a debugger shows the place: {debugger()}",
            CRASH,
            "Crash",
        )
    if not ended_itself:
        raise CommandError(
            f"{work} did not return: it ended the process, with exit code {status}",
            "code of the library calls exit()",
            f"a debugger shows the place: {debugger('-ex', 'catch syscall exit_group')}",
            CRASH,
            "Crash",
        )
    ctx.exit(status)


def interrupt_once(number: int, frame: FrameType | None) -> None:
    """Interrupt the work, and nothing that cleans up after it: a terminal and the parent both send the signal."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def end_with_parent(parent: int) -> None:
    """Have this process killed when its parent ends, even by SIGKILL: it would keep the output open."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def keep_output() -> None:
    """Keep standard output for this program's one JSON object: what a library prints there goes to standard error."""
    ours = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), 1)
    sys.stdout = open(ours, "w", encoding="utf-8")  # noqa: SIM115 (as long as the process)


def debugger(*options: str) -> str:
    """Return the command that runs this one under gdb, up to where the child comes to its end."""
    follow = ("-ex", "set follow-fork-mode child", *options, "-ex", "run")
    return shlex.join(["gdb", *follow, "--args", sys.executable, "-m", "portcall", *sys.argv[1:]])


def wait(child: int, timeout: float | None) -> int | None:
    """Wait until the child ends and return its exit code; kill it on SIGTERM, at the second Ctrl-C, and in time.

    Returns:
        The exit code, negative after a crash; None when the time was up. That of an interrupted child is never 0, even
        if it had its result already.
    """
    ended = interrupted = False

    def terminated(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    handle = os.pidfd_open(child)
    before = signal.signal(signal.SIGTERM, terminated)
    try:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            ended = ends_within(handle, timeout)
        except KeyboardInterrupt:  # the child ends as soon as the called function returns, a benchmark after a repeat
            interrupted = True
            click.echo("interrupting; Ctrl-C again kills it", err=True)
            os.kill(child, signal.SIGINT)  # it has had one only if the signal was for the whole group
            ended = ends_within(handle, None)
    finally:
        signal.signal(signal.SIGTERM, before)
        os.close(handle)
        if not ended:
            os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not ended:
        return None
    return status or (INTERRUPTED if interrupted else 0)


def ends_within(handle: int, timeout: float | None) -> bool:
    """Wait for a process, in short steps: a signal just before a wait does not end it, only the next look sees it."""
    until = None if timeout is None else time.monotonic() + timeout
    while True:
        left = STEP if until is None else min(STEP, until - time.monotonic())
        if select.select([handle], [], [], max(left, 0))[0]:
            return True
        if left <= 0:
            return False
