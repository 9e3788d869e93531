# SPDX-License-Identifier: Apache-2.0
"""A session with a child process, over a pipe."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from portcall import errors
from portcall._function import get_global_func
from portcall.rpc.client._session import Session
from portcall.rpc.server._directories import delete_tree
from portcall.rpc.server._files import Files
from portcall.rpc.server._objects import register_object_functions
from portcall.rpc.server._session import allow_interrupts, register_standard_names
from portcall.rpc.wire._facts import FEATURES

_CHILD = "from portcall.rpc._popen import main; main()"
_EXIT_TIMEOUT = 1.0  # seconds for a child to end by itself, once the pipe has


class PopenSession(Session):
    """A session with a child process, over a pipe. The child ends with the session.

    Parameters:
        binary: a program that is started as ``binary READ_FD WRITE_FD`` and serves there; this Python by default.
        timeout: seconds until the child must have answered; None to wait forever.
        call_timeout: seconds that one request may take; 0 for no limit.

    Raises:
        FileNotFoundError, PermissionError: there is no such program, or it cannot be run.
        SessionBrokenError, RemoteCrashError: it ended without a word.
        SessionTimeoutError: it did not answer.
    """

    def __init__(
        self, binary: str | os.PathLike[str] | None = None, timeout: float | None = 60.0, call_timeout: float = 0
    ) -> None:
        if binary is not None and not Path(binary).exists():
            raise FileNotFoundError(f"{os.fspath(binary)}: no such program")
        self._owner = os.getpid()
        self._directory = tempfile.mkdtemp(prefix="portcall-") if binary is None else ""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            number = str(theirs.fileno())
            command = [sys.executable, "-c", _CHILD] if binary is None else [os.fspath(binary)]
            try:
                # A separate process group: Ctrl-C is for us, and we end it.
                self._child = subprocess.Popen([*command, number, number, *filter(None, [self._directory])],
                                               pass_fds=[theirs.fileno()], start_new_session=True)  # fmt: skip
            except BaseException:
                delete_tree(self._directory)
                raise
            descriptor = ours.detach()
        name = f"process {self._child.pid}"
        try:
            root = get_global_func("portcall.rpc.ConnectFds")(descriptor, descriptor, name, timeout or 0.0, [])
        except BaseException as error:
            why = _how_it_ended(self._child) if isinstance(error, errors.SessionBrokenError) else None
            self._end_child()
            raise why or error from None
        super().__init__(root, name, functools.partial(_how_it_ended, self._child))
        self.set_call_timeout(call_timeout)
        if binary is None:
            self.features = frozenset(FEATURES) - {"alive"}
            get_global_func("portcall.rpc.UseFeatures")(root, sorted(self.features))

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._child.pid

    def close(self) -> None:
        """End the session and the child."""
        super().close()
        self._end_child()

    def _end_child(self) -> None:
        if os.getpid() != self._owner:  # a copy of the process that started it
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout=_EXIT_TIMEOUT)  # it leaves by itself when the pipe closes
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        if self._directory:
            delete_tree(self._directory)


def _how_it_ended(child: subprocess.Popen[bytes]) -> errors.RPCError | None:
    peer = f"process {child.pid}"
    try:
        code = child.wait(timeout=_EXIT_TIMEOUT)
    except subprocess.TimeoutExpired:
        return None
    if code < 0:
        name = signal.Signals(-code).name
        return errors.RemoteCrashError(f"{peer} crashed with {name}", peer=peer, signal=name)
    return errors.RemoteCrashError(f"{peer} exited with code {code}", peer=peer)


def main() -> None:
    """Run as the child: serve one session on the descriptors, and with the directory, that the command line names.

    It is the parent's own, and may do what the parent may.
    """
    read_fd, write_fd, directory = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    files = Files()
    files.enter(os.path.realpath(directory))
    files.register()
    register_standard_names()
    register_object_functions()
    allow_interrupts()
    try:
        serve = get_global_func("portcall.rpc.ServeSession")
        serve(read_fd, write_fd, ["*"], 0, None, -1, "callback,cancel,post,traceback,values", -1, -1, -1)
    finally:
        delete_tree(directory)
