# SPDX-License-Identifier: Apache-2.0
"""What the clients of a server called: ``portcall serve --audit FILE``, one line of JSON for each call.

    client <──> ledger, a process of its own for each session <──> the session's process

Rules:

* The ledger reads the bytes on their way, so that what runs in a session cannot leave out or forge a line of its own.
  If it is killed, the connection ends with it.
* A call's line is in the file before its answer goes to the client.
* A file that cannot be written to ends no session: the log says so once, and the file how many lines it lacks.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import struct
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from portcall.rpc.server._between import stand_between
from portcall.rpc.wire._endings import tensor_words
from portcall.rpc.wire._facts import (
    BY_VALUE,
    CLIENT_FUNCTION,
    CLIENT_HANDLES,
    NAMELESS,
    NESTED,
    POSTED,
    TYPE_WORDS,
    Code,
)

_MOST_HEAD = 1 << 16  # bytes of a message that are looked at
_MOST_NAME = 200  # characters
_OBJECT, _FUNCTION, _MODULE, _TEXT, _TENSOR, _POINTER = 115, 68, 73, 8, 7, 4
_SIZES = {0: 0, 1: 8, 2: 8, 3: 8, 4: 8, 5: 8, 6: 8, _FUNCTION: 8, _MODULE: 8}  # bytes of values that have as many each
_ANSWERS = (Code.RETURN, Code.EXCEPTION, Code.COPY_ACK)
_UNANSWERED = (Code.SHUTDOWN, Code.NUMBER_CALL, NESTED + Code.CANCEL)
_WRONG = (struct.error, ValueError, TypeError, IndexError, OverflowError, StopIteration)  # what bytes may be read as
_ONE_POINTER = struct.pack("<ii", 1, _POINTER)
_WITH_NAMES, _TRACE_BEGIN, _TRACE_END = (
    f"portcall.rpc.{name}" for name in ("call_with_names", "trace_begin", "trace_end")
)


def open_audit(path: str) -> int:
    """Return a descriptor that adds to the file.

    Raises:
        OSError: it cannot be written; the message says why.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise OSError(error.errno, f"cannot write what is called to '{path}' (--audit): {error.strerror}") from None
    kind = os.fstat(descriptor).st_mode
    if not (stat.S_ISREG(kind) or stat.S_ISCHR(kind)):
        os.close(descriptor)
        raise OSError(f"cannot write what is called to '{path}' (--audit): it is no file")
    return descriptor


def keep_ledger(client: int, path: str, session: int, user: str, protect: Callable[[], object]) -> int:
    """Return a descriptor that carries the bytes of ``client``, which the ledger's process sees on their way."""
    return stand_between(client, protect, lambda: Ledger(Book(path), {"session": session, "user": user}))


class Book:
    """The file. It may be full for a while."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lost = 0
        self._torn = False  # whether the last line is there in part
        self._descriptor = -1

    def close(self) -> None:
        """Close it; a further line opens it again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def write(self, facts: dict[str, Any]) -> None:
        """Add a line."""
        lost = json.dumps({"lost": self._lost}) + "\n" if self._lost else ""
        data = f"{chr(10) * self._torn}{lost}{json.dumps(facts)}\n".encode()
        try:
            if self._descriptor < 0:
                self._descriptor = open_audit(self._path)
            written = os.write(self._descriptor, data)
            self._torn = 0 < written < len(data) or (self._torn and not written)
            if written < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._lost = 0
        except OSError as error:
            self._lost += 1
            if self._lost == 1:
                with contextlib.suppress(OSError, ValueError):
                    why = error.strerror or error
                    print(f"--audit: '{self._path}' lacks calls from here on: {why}", file=sys.stderr, flush=True)


@dataclass
class _Request:
    """A request that was not answered yet.

    Attributes:
        code: of its frame.
        name: of the function that it calls or, for a look-up, looks for.
        gives: the name of the function that the answer may name.
        line: what the file will say of a call; None for other requests.
    """

    code: int
    begin: float
    name: str = ""
    gives: str = ""
    line: dict[str, Any] | None = None


class Ledger:
    """Follows the messages of a session, and writes down its calls."""

    def __init__(self, book: Book, facts: dict[str, Any]) -> None:
        self._book = book
        self._facts = facts
        self._lock = threading.Lock()
        self._asked, self._answered = Heads(), Heads()
        self._waiting: defaultdict[int, deque[_Request]] = defaultdict(deque)  # by the callback that they belong to
        self._names = _Names()
        self._trace = ""  # that the next call belongs to
        self._last = 0.0  # when the last answer came: requests wait for those before them

    def requests(self, data: memoryview) -> None:
        """Take what comes from the client."""
        with self._lock:
            for head in self._asked.feed(data):
                with contextlib.suppress(*_WRONG):  # the session answers with an error
                    self._request(head)

    def answers(self, data: memoryview) -> None:
        """Take what comes from the session."""
        with self._lock:
            for head in self._answered.feed(data):
                with contextlib.suppress(*_WRONG):
                    self._answer(head)

    def finish(self) -> None:
        """The session is over: write down what was not answered."""
        with self._lock:
            for requests in self._waiting.values():
                for request in requests:
                    self._end(request, "unanswered")
            self._waiting.clear()

    def _request(self, head: bytes) -> None:
        code, at, callback, target = *struct.unpack_from("<i", head), 4, 0, 0
        if code in (NESTED + Code.RETURN, NESTED + Code.EXCEPTION):
            self._names.callback_ends(*struct.unpack_from("<Q", head, at))
            return
        if code in _UNANSWERED:
            return
        if code & NESTED:
            (callback,), at = struct.unpack_from("<Q", head, at), at + 8
        if posted := code & POSTED:
            (target,), at = struct.unpack_from("<Q", head, at), at + 8
        request = _Request(code & ~(NESTED | POSTED), time.monotonic())
        if not posted:  # before its body is read, which may be wrong: it is answered all the same
            self._waiting[callback].append(request)
        if request.code == Code.CALL_FUNC:
            (function,) = struct.unpack_from("<Q", head, at)
            self._call(request, function, list(values(head, at + 8)))
            if posted:
                self._end(request, "posted")
        elif request.code == Code.GET_GLOBAL_FUNC:
            request.gives = str(next(values(head, at)).value)
        elif request.code == Code.FREE_HANDLE and head[at : at + 8] == _ONE_POINTER and len(head) == at + 16:
            self._names.free(*struct.unpack_from("<Q", head, at + 8))  # others are refused
        if posted and request.gives and target >= CLIENT_HANDLES:
            self._names.give(target, request.gives)

    def _call(self, request: _Request, function: int, arguments: list[Value]) -> None:
        name = self._names.of(function)
        if name == "tvm.rpc.server.ModuleGetFunction" and len(arguments) > 1:
            request.gives = str(arguments[1].value)
        if name == _TRACE_BEGIN:
            self._trace = str(arguments[0].value)[:_MOST_NAME]
        if name in (_TRACE_BEGIN, _TRACE_END):
            return
        if name == _WITH_NAMES and len(arguments) > 1:
            name, arguments = self._names.of(int(arguments[0].value or 0)), arguments[2:]
        request.name, request.gives = name, request.gives or f"{name}()"
        now = time.time()
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03}Z"
        request.line = {"time": stamp, **self._facts, "function": name[:_MOST_NAME]}
        request.line["arguments"] = [argument.word for argument in arguments]
        if self._trace:
            request.line["trace"], self._trace = self._trace, ""

    def _answer(self, head: bytes) -> None:
        code, at, callback = *struct.unpack_from("<i", head), 4, 0
        if code & NESTED:
            (callback,), at = struct.unpack_from("<Q", head, at), at + 8
        if code == NESTED + Code.CALLBACK:
            self._names.callback_begins(callback)
        code &= ~NESTED
        requests = self._waiting.get(callback)
        if code not in _ANSWERS or not requests:
            return
        request = requests.popleft()
        if callback and not requests:
            del self._waiting[callback]
        error = "an error without a class" if code == Code.EXCEPTION else ""
        try:  # what runs in the session may write anything
            given = [value.value for value in values(head, at)]
            if code == Code.EXCEPTION:
                error = str(given[0]).partition(":")[0][:_MOST_NAME] or error
            elif request.code == Code.GET_GLOBAL_FUNC:
                self._names.give(int(given[0]), request.gives)
            elif request.code == Code.CALL_FUNC and given[0] == _FUNCTION:
                self._names.give(int(given[1]), request.gives)
        finally:
            self._end(request, "error" if error else "ok", error)
            self._last = time.monotonic()

    def _end(self, request: _Request, ending: str, error: str = "") -> None:
        if request.line is None:
            return
        seconds = 0.0 if ending == "posted" else time.monotonic() - max(request.begin, self._last)
        facts = {"duration_s": round(seconds, 6)} if ending != "posted" else {}
        self._book.write({**request.line, **facts, "ending": ending, **({"error": error} if error else {})})


class _Names:
    """The names of a session's functions, by handle.

    A handle must never have another function's name here: a client may give handles that it may not, and free what it
    has not. So a handle that is given again has both names, and one goes when the session has surely forgotten it.
    """

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._references: dict[int, int] = {}  # where a handle was given more than once
        self._callbacks: set[int] = set()  # that the client has not answered
        self._frees: list[int] = []  # the session may have put them off, as long as there are any of those

    def of(self, handle: int) -> str:
        return self._names.get(handle, NAMELESS)

    def give(self, handle: int, name: str) -> None:
        """A request gave this handle for what has this name."""
        known, name = self._names.get(handle), name[:_MOST_NAME]
        if known is None:
            self._names[handle] = name
            return
        if name not in known.split(" or "):
            self._names[handle] = f"{known} or {name}"[:_MOST_NAME]
        if handle < CLIENT_HANDLES:  # look-ups of one function give one handle
            self._references[handle] = self._references.get(handle, 1) + 1

    def free(self, handle: int) -> None:
        """The client gives a reference back."""
        if self._callbacks:
            self._frees.append(handle)
        elif (left := self._references.pop(handle, 1) - 1) > 0:
            self._references[handle] = left
        else:
            self._names.pop(handle, None)

    def callback_begins(self, callback: int) -> None:
        self._callbacks.add(callback)

    def callback_ends(self, callback: int) -> None:
        self._callbacks.discard(callback)
        if not self._callbacks:
            frees, self._frees = self._frees, []
            for handle in frees:
                self.free(handle)


class Heads:
    """Cuts bytes that come in any split into messages, and keeps the beginning of each."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._left = -1  # of the message; -1: its length is on the way

    def feed(self, data: memoryview) -> Iterator[bytes]:
        """Take bytes, and give the beginnings of the messages that are complete."""
        at = 0
        while at < len(data):
            if self._left < 0:
                part = data[at : at + 8 - len(self._head)]
                self._head += part
                at += len(part)
                if len(self._head) == 8:
                    self._left = int.from_bytes(self._head, "little") or -1
                    self._head.clear()
                continue
            part = data[at : at + self._left]
            self._head += part[: max(0, _MOST_HEAD - len(self._head))]
            at += len(part)
            self._left -= len(part)
            if self._left == 0:
                yield bytes(self._head)
                self._head.clear()
                self._left = -1


@dataclass
class Value:
    """A value of a message: what it is in words, and a number or a text where it is one."""

    word: str
    value: Any = None


def values(head: bytes, at: int) -> Iterator[Value]:
    """Read a sequence of values (docs/wire.md, section 3); of one that was cut off, the last value is "…".

    Raises:
        struct.error: there is no sequence.
    """
    (count,) = struct.unpack_from("<i", head, at)
    at += 4
    for _ in range(count):
        try:
            value, at = _value(head, at)
        except (struct.error, IndexError):
            yield Value("…")
            return
        yield value


def _value(head: bytes, at: int) -> tuple[Value, int]:
    (kind,), at = struct.unpack_from("<i", head, at), at + 4
    word = TYPE_WORDS.get(kind, "object")
    if kind in _SIZES:
        size = _SIZES[kind]
        if at + size > len(head):
            raise IndexError
        return Value(word, int.from_bytes(head[at : at + size], "little")), at + size
    if kind == _TENSOR:
        _, _, _, ndim, code, bits, lanes = struct.unpack_from("<QiiiBBH", head, at)
        shape = struct.unpack_from(f"<{ndim}q", head, at + 24)
        return Value(tensor_words(code, bits, lanes, shape)), at + 32 + 8 * ndim
    if kind in (_TEXT, 9):
        inner = 65 if kind == _TEXT else 66
    else:
        (inner,), at = struct.unpack_from("<I", head, at), at + 4
    if inner in (_OBJECT, CLIENT_FUNCTION):
        return Value(word if inner == _OBJECT else "function", struct.unpack_from("<Q", head, at)[0]), at + 8
    (size,), at = struct.unpack_from("<Q", head, at), at + 8
    text = head[at : min(at + size, len(head))]
    word = "object" if inner == BY_VALUE else word
    return Value(word, text.decode(errors="replace") if inner == 65 else None), at + size
