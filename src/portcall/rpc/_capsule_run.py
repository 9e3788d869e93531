# SPDX-License-Identifier: Apache-2.0
"""Run a capsule again: send what its client sent, request by request, to a process here or to a server.

Nothing of a capsule is unpickled, and nothing in it names a file here: its frames go to the server as they are, which
checks them as any client's.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from portcall import errors
from portcall.rpc._popen import _CHILD
from portcall.rpc._replay import code_of
from portcall.rpc.client._capsule import FIRST_LINE, SIZE
from portcall.rpc.client._connect import Opening, connect_raw
from portcall.rpc.client._record import FrameCutter
from portcall.rpc.server._directories import delete_tree
from portcall.rpc.wire._address import parse_address
from portcall.rpc.wire._tls import TLSOptions

DAMAGED = "damaged"
_OUTPUT, _SHUTDOWN = 32, 1
_MOST_FACTS = 1 << 20
_EXIT_TIMEOUT = 5.0
_PIECE = 1 << 20
_LEAST_FRAME = 12  # bytes: its length, and a code


@dataclass(frozen=True)
class CapsuleRun:
    """How a capsule ran.

    Attributes:
        crashed: whether the session ended before it had answered all.
        ending: how, in words; empty where that is not known.
        requests: how many frames were sent, of ``requests_all``.
        differs: the first answer that was another than at that time, counted from 1; 0 for none. After a crash at
            another place it says where to look; clocks and addresses differ, too.
    """

    crashed: bool
    ending: str
    requests: int
    requests_all: int
    differs: int

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Contents:
    """What is in a capsule.

    Attributes:
        facts: of the session and its end; text of the server is printable. ``damaged`` says what is wrong with the
            rest, if anything is.
        frames: whether the client sent it, and the frame; to the first that is not whole.
    """

    facts: dict[str, Any]
    frames: Frames


class Frames:
    """The frames of a capsule, which stay in the file: there may be millions.

    Attributes:
        begin, end: where they are in the file; before the first that is not whole.
    """

    def __init__(self, data: memoryview, begin: int) -> None:
        self._data, self.begin = data, begin
        while begin < len(data):
            size = 8 + int.from_bytes(data[begin + 1 : begin + 9], "little")
            if data[begin] > 1 or begin + 1 + size > len(data) or size < _LEAST_FRAME:
                break
            begin += 1 + size
        self.end = begin

    def __iter__(self) -> Iterator[tuple[bool, memoryview]]:
        begin = self.begin
        while begin < self.end:
            end = begin + 9 + int.from_bytes(self._data[begin + 1 : begin + 9], "little")
            yield self._data[begin] == 0, self._data[begin + 1 : end]
            begin = end

    def __bool__(self) -> bool:
        return self.begin < self.end


def read_capsule(path: str | os.PathLike[str]) -> Contents:
    """Read a capsule.

    Raises:
        ValueError: it is none, or its facts are damaged.
    """
    name, data = os.fspath(path), _mapped(path)
    if data[: len(FIRST_LINE)] != FIRST_LINE:
        raise ValueError(f"'{name}' is not a capsule: its first line is not {FIRST_LINE.decode()!r}")
    line, end, _ = bytes(data[len(FIRST_LINE) : len(FIRST_LINE) + _MOST_FACTS]).partition(b"\n")
    try:
        facts = _printable(json.loads(line))
    except (ValueError, RecursionError):
        facts = None
    if not end or not isinstance(facts, dict):
        raise ValueError(f"the capsule '{name}' is damaged: a line of JSON with facts is expected")
    frames = Frames(data, len(FIRST_LINE) + len(line) + 1)
    size, there = facts.get(SIZE), len(data) - frames.begin
    if isinstance(size, int) and there < size:
        facts[DAMAGED] = f"it is cut off: {there} bytes of requests and answers are there, of {size}"
    elif frames.end < len(data):
        facts[DAMAGED] = f"a whole frame is expected at byte {frames.end}"
    return Contents(facts, frames)


def _mapped(path: str | os.PathLike[str]) -> memoryview:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        kind = os.fstat(descriptor)
        if not stat.S_ISREG(kind.st_mode):
            raise ValueError(f"'{os.fspath(path)}' is not a capsule: it is no file")
        return memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) if kind.st_size else b"")
    finally:
        os.close(descriptor)


def run_capsule(
    path: str | os.PathLike[str], url: str = "", key: str = "", *, token: str | None = None,
    tls: TLSOptions | None = None, debugger: Sequence[str] = (), timeout: float = 300.0,
) -> CapsuleRun:  # fmt: skip
    """Do again what the client of a session did that crashed. As ``portcall.testing.run_capsule``."""
    contents = read_capsule(path)
    if why := contents.facts.get(DAMAGED):
        raise ValueError(f"the capsule '{os.fspath(path)}' is damaged: {why}")
    if why := contents.facts.get("incomplete") or ("" if contents.frames else "there are none"):
        raise ValueError(f"'{os.fspath(path)}' has no requests to run: {why}")
    if url:
        if debugger:
            raise ValueError("a debugger is for a process here, not for a server")
        how = Opening(lambda _: (parse_address(url), key, tls), url, token or os.environ.get("PORTCALL_TOKEN", ""))
        wanted = contents.facts.get("features")
        features = {name for name in wanted if isinstance(name, str)} if isinstance(wanted, list) else set()
        descriptor, ask = connect_raw(how, timeout, features)
        with socket.socket(fileno=descriptor) as sock:
            found = _exchange(sock, contents.frames, timeout)
            error = ask() if ask and found.crashed else None
            return CapsuleRun(**{**vars(found), "ending": str(error or "")})
    with _child(debugger) as (sock, process):
        found = _exchange(sock, contents.frames, timeout)
        sock.close()
        try:
            code: int | None = process.wait(_EXIT_TIMEOUT if not debugger else timeout)
        except subprocess.TimeoutExpired:
            code = None
    ending = "" if not found.crashed or code is None or debugger else errors.printable(_words(code))
    return CapsuleRun(**{**vars(found), "ending": ending})


def _words(code: int) -> str:
    return f"it crashed with {signal.Signals(-code).name}" if code < 0 else f"it exited with code {code}"


@contextlib.contextmanager
def _child(debugger: Sequence[str]) -> Iterator[tuple[socket.socket, subprocess.Popen[bytes]]]:
    """Start a process of this user, which serves one session; its output goes to standard error."""
    directory = tempfile.mkdtemp(prefix="portcall-")
    ours, theirs = socket.socketpair()
    try:
        with ours:
            with theirs:
                number = str(theirs.fileno())
                command = [*debugger, sys.executable, "-c", _CHILD, number, number, directory]
                process = subprocess.Popen(command, stdin=None if debugger else subprocess.DEVNULL, stdout=2,
                                           pass_fds=[theirs.fileno()])  # fmt: skip
            try:
                yield ours, process
            finally:
                if process.poll() is None:
                    process.kill()
                process.wait()
    finally:
        delete_tree(directory)


class _Answers:
    """The frames that a server sends, but its output; read in a thread, so that both sides may send much."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._changed = sock, threading.Condition()
        self._frames: list[bytes] = []
        self._taken, self._ended = 0, False
        self._thread = threading.Thread(target=self._read, name="portcall-capsule", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        cutter = FrameCutter()
        with contextlib.suppress(OSError):
            while data := self._sock.recv(_PIECE):
                frames = [frame for frame in cutter.feed(data) if code_of(frame) != _OUTPUT]
                with self._changed:
                    self._frames += frames
                    self._changed.notify()
        with self._changed:
            self._ended = True
            self._changed.notify()

    def next(self, timeout: float) -> bytes | None:
        """Return the next frame, None at the end.

        Raises:
            TimeoutError: neither came.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._taken < len(self._frames) or self._ended, timeout):
                raise TimeoutError(f"no answer came within {timeout:g} s")
            if self._taken == len(self._frames):
                return None
            frame, self._frames[self._taken] = self._frames[self._taken], b""
            self._taken += 1
            return frame


def _exchange(sock: socket.socket, frames: Frames, timeout: float) -> CapsuleRun:
    """Send the client's frames, each after what had come before it."""
    sock.settimeout(None)
    answers = _Answers(sock)
    requests = sum(ours and code_of(bytes(frame[:12])) != _SHUTDOWN for ours, frame in frames)
    sent = count = differs = 0

    def run() -> bool:
        nonlocal sent, count, differs
        for ours, frame in frames:
            code = code_of(bytes(frame[:12]))
            if ours and code != _SHUTDOWN:
                sent += 1
                sock.sendall(frame)
            elif not ours and code != _OUTPUT:
                answer, count = answers.next(timeout), count + 1
                if answer is None:
                    return True
                differs = differs or (count if answer != frame else 0)
        return answers.next(timeout) is None  # what the last request had no answer to

    try:
        crashed = run()
    except OSError as error:
        if isinstance(error, TimeoutError):
            raise
        crashed = True
    if not crashed:
        with contextlib.suppress(OSError):
            sock.sendall(struct.pack("<Qi", 4, _SHUTDOWN))
    return CapsuleRun(crashed, "", sent, requests, differs)


def _printable(value: Any) -> Any:
    if isinstance(value, dict):
        return {errors.printable(str(key)): _printable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_printable(each) for each in value]
    return errors.printable(value) if isinstance(value, str) else value
