# SPDX-License-Identifier: Apache-2.0
"""How sessions end: one table for the server's log, its last message and the client's errors. No I/O here."""

from __future__ import annotations

import errno
import os
import signal
import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from urllib.parse import quote, unquote

from portcall import errors
from portcall.rpc.wire import _facts
from portcall.rpc.wire._facts import ENDINGS, EndingKind

_BOOL = 6  # the code of its data type


@dataclass(frozen=True)
class Progress:
    """How far a session's process is, as it says itself: see facts/progress.json.

    Attributes:
        state: 1 when every answer has been sent whole, 2 and 3 once it ended, between messages or within one.
        received, sent: bytes.
        call: the function that runs, with the types of its arguments: ``add(float32[3, 4], int)``; empty for none.
        last_words: the last text that it printed on stderr.
    """

    state: int = 0
    received: int = 0
    sent: int = 0
    call: str = ""
    last_words: str = ""

    @classmethod
    def from_bytes(cls, data: bytes) -> Progress:
        """Read what a process says. It may lie: any bytes give some Progress."""
        if len(data) != _facts.PROGRESS_BYTES:
            return cls()
        size, text = _facts.LAST_WORDS.unpack_from(data, len(data) - _facts.LAST_WORDS.size)
        size = min(size, len(text))
        just_read = text[size:].partition(b"\0")[0]  # when it crashed
        words = (text[:size] + just_read).decode(errors="backslashreplace")
        state, _, received, sent = _facts.PROGRESS.unpack_from(data)
        return cls(state, received, sent, _call_in(data[_facts.PROGRESS.size :]), words)

    @property
    def at_boundary(self) -> bool:
        """Whether a message may follow on the connection."""
        return self.state == _facts.BETWEEN


def _call_in(data: bytes) -> str:
    depth, count, *_, name = _facts.CALL.unpack_from(data)
    if not depth:
        return ""
    end = _facts.CALL.size + min(count, _facts.CALL_ARGS) * _facts.ARGUMENT.size
    arguments = [_argument(*values) for values in _facts.ARGUMENT.iter_unpack(data[_facts.CALL.size : end])]
    if count > _facts.CALL_ARGS:
        arguments.append("…")
    shown = name.partition(b"\0")[0].decode(errors="replace") or _facts.NAMELESS
    return f"{shown}({', '.join(arguments)})"


def _argument(kind: int, code: int, bits: int, lanes: int, ndim: int, _: int, *shape: int) -> str:
    if bits == 0:
        return _facts.TYPE_WORDS.get(kind, "object")
    return tensor_words(code, bits, lanes, [*shape[: max(0, ndim)], *("…" for _ in range(ndim > len(shape)))])


def tensor_words(code: int, bits: int, lanes: int, shape: Iterable[object]) -> str:
    """Return what a tensor is, such as ``float32[3, 4]``."""
    word = _facts.DTYPE_WORDS.get(code, f"code{code}_")
    dtype = "bool" if code == _BOOL else f"{word}{bits}{f'x{lanes}' if lanes > 1 else ''}"
    return f"{dtype}[{', '.join(map(str, shape))}]"


@dataclass(frozen=True)
class Ending:
    """How a session ended.

    Attributes:
        how: a key of ``ENDINGS``.
        signal: the name of the signal that it crashed with.
        code: the status that it exited with.
        detail: the limit that it exceeded, or what went wrong.
        call: the function that ran, with the types of its arguments.
        last_words: the last lines that it printed on stderr.
        capsule: the name of the file that keeps it.
    """

    how: str
    signal: str = ""
    code: int = 0
    detail: str = ""
    call: str = ""
    last_words: str = ""
    capsule: str = ""

    @property
    def kind(self) -> EndingKind:
        return ENDINGS[self.how]

    @property
    def text(self) -> str:
        """What the log says."""
        text = self.kind.log.format(signal=self.signal, code=self.code, detail=self.detail)
        text += _facts.OUT_OF_MEMORY if self.signal == "SIGKILL" else ""
        return f"{text} in {self.call}" if self.call else text

    def words(self) -> dict[str, str]:
        """Return the options of an answer to a client that asks."""
        words = {"ended": self.how}
        if self.signal:
            words["signal"] = self.signal
        if self.how == "exit":
            words["code"] = str(self.code)
        for name, text in (("call", self.call), ("stderr", self.last_words), ("capsule", self.capsule)):
            if text:
                words[name] = quote(text, safe="")[: _facts.MOST_WORD]
        return words


def error_of(words: dict[str, str], peer: str) -> errors.RPCError | None:
    """Return the error that a server's words on an ending stand for; None where they say nothing that helps."""
    how = words.get("ended", "")
    kind = ENDINGS.get(how)
    if kind is None or not kind.client:
        return None
    signal_name = words.get("signal", "")
    call, stderr, capsule = (errors.printable(unquote(words.get(name, ""))) for name in ("call", "stderr", "capsule"))
    text = kind.client.format(peer=peer, signal=signal_name, code=words.get("code", "?"))
    if call:
        text += f"; it ran {call}"
    if signal_name == "SIGILL":
        text += "; the library was probably compiled for another processor"
    if capsule:
        text += f". The server keeps it in its capsule {capsule}"
    error: type[errors.RPCError] = getattr(errors, kind.error)
    if issubclass(error, errors.RemoteCrashError):
        return error(text, peer=peer, signal=signal_name, call=call, stderr=stderr)
    return error(text, peer=peer, reason=how, hint=kind.hint)


def ending_of(status: int, progress: Progress, kill_reason: Ending | None) -> Ending:
    """Return how a process ended.

    Parameters:
        status: its wait status.
        progress: how far it said it was.
        kill_reason: why the server killed it, if it did.
    """
    code = os.waitstatus_to_exitcode(status)
    if progress.state in (_facts.CLOSED, _facts.LOST) and code == 0:
        return Ending("closed" if progress.state == _facts.CLOSED else "lost")
    if progress.state == _facts.CLOSED and code == _facts.DEVICE_FAILED:
        return Ending("device")
    if kill_reason is not None:
        return kill_reason
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:  # a real-time signal has no name
            name = f"SIG{-code}"
        return Ending("crash", signal=name)
    return Ending("exit", code=code)


def told_by(ending: Ending, progress: Progress, rest: str) -> Ending:
    """Return the ending with what the process said of itself; ``rest`` is text of stderr that had not been read."""
    if not ending.kind.told:
        return ending
    lines = (progress.last_words + rest).splitlines()[-_facts.MOST_LINES :]
    return replace(ending, call=progress.call, last_words="\n".join(line[: _facts.MOST_LINE] for line in lines))


def last_message(ending: Ending, peer_kind: str, seconds: float) -> bytes:
    """Return the frame that tells a client on its connection how its session ended; empty for none.

    A portcall client asks for everything but the end of its time.

    Parameters:
        peer_kind: ``portcall`` or ``TVM``.
        seconds: the time that the session had.
    """
    if ending.how == "expired":  # in the words that TVM clients know
        return exception_frame(f"{_facts.TIMEOUT_PREFIX}Your {float(seconds)}s{_facts.TIMEOUT_WORDS}")
    if peer_kind == "TVM" and ending.kind.last_message:
        return exception_frame(f"the session ended on the server: {ending.text}")
    return b""


def with_remedy(error: Exception) -> str:
    """Return what failed, with what to do where that was the limit of open files."""
    full = isinstance(error, OSError) and error.errno == errno.EMFILE
    return f"{error}{_facts.MORE_FILES if full else ''}"


def timeout_error(text: str, peer: str) -> errors.SessionTimeoutError:
    """Return the error for a timeout; where it is the server's last message, it says whose limit that may be."""
    if not text.endswith(_facts.TIMEOUT_WORDS):
        return errors.SessionTimeoutError(text, peer=peer)
    hint = ENDINGS["expired"].hint
    return errors.SessionTimeoutError(text.partition(", try")[0], peer=peer, reason="expired", hint=hint)


def exception_frame(text: str) -> bytes:
    """Return the message of the RPC protocol that says that something failed: see docs/wire.md."""
    data = text.encode()
    body = struct.pack("<iiiQ", _facts.Code.EXCEPTION, 1, 8, len(data)) + data
    return struct.pack("<Q", len(body)) + body
