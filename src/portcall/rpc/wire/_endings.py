# SPDX-License-Identifier: Apache-2.0
"""How sessions end: one table for the server's log, its last message and the client's errors. No I/O here."""

from __future__ import annotations

import os
import signal
import struct
from dataclasses import dataclass, replace
from urllib.parse import quote, unquote

from portcall import errors

_PROGRESS = struct.Struct("<IxxxxQQ")
_CALL = struct.Struct("<II96s")
_ARGUMENT = struct.Struct("<iBBHixxxx5q")
_MOST_ARGUMENTS = 8
_LAST_WORDS = struct.Struct("<I2044s")
_TYPES = {
    0: "None", 1: "int", 2: "bool", 3: "float", 4: "pointer", 5: "dtype", 6: "device", 8: "str", 9: "bytes", 11: "str",
    12: "bytes", 65: "str", 66: "bytes", 68: "function", 69: "Shape", 71: "Array", 72: "Map", 73: "module", 75: "List",
    76: "Dict",
}  # fmt: skip
_CODES, _BOOL = {0: "int", 1: "uint", 2: "float", 4: "bfloat", 5: "complex"}, 6
DEVICE_FAILED = 71  # the exit code of a process that ends for that
PROGRESS_BYTES = _PROGRESS.size + _CALL.size + _MOST_ARGUMENTS * _ARGUMENT.size + _LAST_WORDS.size
_MOST_LINES, _MOST_LINE = 10, 200  # of the last words that a client is told
_BETWEEN, _CLOSED, _LOST = 1, 2, 3


@dataclass(frozen=True)
class Progress:
    """How far a session's process is, as it says itself: see ``Progress`` in core/rpc/progress.h.

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
        if len(data) != PROGRESS_BYTES:
            return cls()
        size, text = _LAST_WORDS.unpack_from(data, len(data) - _LAST_WORDS.size)
        size = min(size, len(text))
        just_read = text[size:].partition(b"\0")[0]  # when it crashed
        words = (text[:size] + just_read).decode(errors="backslashreplace")
        state, received, sent = _PROGRESS.unpack_from(data)
        return cls(state, received, sent, _call_in(data[_PROGRESS.size :]), words)

    @property
    def at_boundary(self) -> bool:
        """Whether a message may follow on the connection."""
        return self.state == _BETWEEN


def _call_in(data: bytes) -> str:
    depth, count, name = _CALL.unpack_from(data)
    if not depth:
        return ""
    places = range(_CALL.size, _CALL.size + min(count, _MOST_ARGUMENTS) * _ARGUMENT.size, _ARGUMENT.size)
    arguments = [_argument(*_ARGUMENT.unpack_from(data, place)) for place in places]
    if count > _MOST_ARGUMENTS:
        arguments.append("…")
    shown = name.partition(b"\0")[0].decode(errors="replace") or "a function without a name"
    return f"{shown}({', '.join(arguments)})"


def _argument(kind: int, code: int, bits: int, lanes: int, ndim: int, *shape: int) -> str:
    if bits == 0:
        return _TYPES.get(kind, "object")
    dtype = "bool" if code == _BOOL else f"{_CODES.get(code, f'code{code}_')}{bits}{f'x{lanes}' if lanes > 1 else ''}"
    extents = [*map(str, shape[: max(0, ndim)]), *("…" for _ in range(ndim > len(shape)))]
    return f"{dtype}[{', '.join(extents)}]"


@dataclass(frozen=True)
class Kind:
    """One way in which a session ends. ``{signal}``, ``{code}``, ``{detail}`` and ``{peer}`` are filled in.

    Attributes:
        log: what the server's log says.
        client: what the client's error says; empty where the client gets no error, or where there is no session yet.
        error: the class of that error.
        hint: what the user can do.
        last_message: whether a TVM client gets it on its connection, where it waits for an answer.
    """

    log: str
    client: str = ""
    error: type[errors.RPCError] = errors.SessionBrokenError
    hint: str = ""
    last_message: bool = True


_CRASH = "; the server goes on: connect again"
MORE_TIME = "ask for more with session_timeout=, unless the limit is the server's own (its --session-timeout)"
_EXPIRED = ' session has expired, try to increase the "session_timeout" value.'
KINDS = {
    "closed": Kind("closed by the client", last_message=False),
    "lost": Kind(
        "the connection was lost in the middle of a message",
        "{peer} ended the session: the connection was lost in the middle of a message", last_message=False,
    ),
    "crash": Kind(
        "crashed with {signal}",
        "the session with {peer} crashed on the server with {signal}" + _CRASH, errors.RemoteCrashError,
    ),
    "exit": Kind(
        "its process exited with code {code}",
        "the process of the session with {peer} exited with code {code}" + _CRASH, errors.RemoteCrashError,
    ),
    "device": Kind(
        "a device failed for good",
        "{peer} ended the session: a device failed for good, as the error before this one says",
        hint="open a new session",
    ),
    "expired": Kind(
        "its time of {detail} is over",
        "the time of the session with {peer} is over", errors.SessionTimeoutError, MORE_TIME,
    ),
    "disk": Kind(
        "its files took more than {detail}",
        "{peer} ended the session: its files took more than the server allows (--disk-limit)",
    ),
    "abandoned": Kind(
        "its client was gone and its work did not end",
        "{peer} ended the session: the connection was lost and its work did not end", last_message=False,
    ),
    "stopped": Kind(
        "the server was stopped", "{peer} ended the session: the server was stopped", last_message=False,
    ),
    "orphaned": Kind(
        "the process that starts sessions ended, and this session with it",
        "{peer} ended the session: the process that starts its sessions ended",
    ),
    "failed": Kind(
        "the server could not continue it: {detail}",
        "{peer} ended the session: the server ran into an error of its own; its log says which",
    ),
    "lease": Kind("its lease of the farm was over", "{peer} ended the session: its lease of the farm is over"),
    # Before the session is open:
    "silent": Kind("sent nothing for {detail} during the handshake"),
    "crowded": Kind("was silent while others wanted to connect"),
    "left": Kind("left during the handshake"),
    "unstarted": Kind("{detail}"),
}  # fmt: skip
_TOLD = ("crash", "exit", "expired", "abandoned")  # after these, what ran and what it printed are of interest
_MOST_WORD = 1500  # characters of a word; a reply has 4096 at most
UNKNOWN = "unknown"  # the answer to a client that asks about a session the server does not remember
_OUT_OF_MEMORY = " (it was killed, possibly by the OOM killer)"


@dataclass(frozen=True)
class Ending:
    """How a session ended.

    Attributes:
        how: a key of ``KINDS``.
        signal: the name of the signal that it crashed with.
        code: the status that it exited with.
        detail: the limit that it exceeded, or what went wrong.
        call: the function that ran, with the types of its arguments.
        last_words: the last lines that it printed on stderr.
    """

    how: str
    signal: str = ""
    code: int = 0
    detail: str = ""
    call: str = ""
    last_words: str = ""

    @property
    def kind(self) -> Kind:
        return KINDS[self.how]

    @property
    def text(self) -> str:
        """What the log says."""
        text = self.kind.log.format(signal=self.signal, code=self.code, detail=self.detail)
        text += _OUT_OF_MEMORY if self.signal == "SIGKILL" else ""
        return f"{text} in {self.call}" if self.call else text

    def words(self) -> dict[str, str]:
        """Return the options of an answer to a client that asks."""
        words = {"ended": self.how}
        if self.signal:
            words["signal"] = self.signal
        if self.how == "exit":
            words["code"] = str(self.code)
        for name, text in (("call", self.call), ("stderr", self.last_words)):
            if text:
                words[name] = quote(text, safe="")[:_MOST_WORD]
        return words


def error_of(words: dict[str, str], peer: str) -> errors.RPCError | None:
    """Return the error that a server's words on an ending stand for; None where they say nothing that helps."""
    how = words.get("ended", "")
    kind = KINDS.get(how)
    if kind is None or not kind.client:
        return None
    signal_name = words.get("signal", "")
    call, stderr = (errors.printable(unquote(words.get(name, ""))) for name in ("call", "stderr"))
    text = kind.client.format(peer=peer, signal=signal_name, code=words.get("code", "?"))
    if call:
        text += f"; it ran {call}"
    if signal_name == "SIGILL":
        text += "; the library was probably compiled for another processor"
    if issubclass(kind.error, errors.RemoteCrashError):
        return kind.error(text, peer=peer, signal=signal_name, call=call, stderr=stderr)
    return kind.error(text, peer=peer, reason=how, hint=kind.hint)


def ending_of(status: int, progress: Progress, kill_reason: Ending | None) -> Ending:
    """Return how a process ended.

    Parameters:
        status: its wait status.
        progress: how far it said it was.
        kill_reason: why the server killed it, if it did.
    """
    code = os.waitstatus_to_exitcode(status)
    if progress.state in (_CLOSED, _LOST) and code == 0:
        return Ending("closed" if progress.state == _CLOSED else "lost")
    if progress.state == _CLOSED and code == DEVICE_FAILED:
        return Ending("device")
    if kill_reason is not None:
        return kill_reason
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:  # a real-time signal has no name of its own
            name = f"SIG{-code}"
        return Ending("crash", signal=name)
    return Ending("exit", code=code)


def told_by(ending: Ending, progress: Progress, rest: str) -> Ending:
    """Return the ending with what the process said of itself; ``rest`` is text of stderr that nobody had read."""
    if ending.how not in _TOLD:
        return ending
    lines = (progress.last_words + rest).splitlines()[-_MOST_LINES:]
    return replace(ending, call=progress.call, last_words="\n".join(line[:_MOST_LINE] for line in lines))


def last_message(ending: Ending, peer_kind: str, seconds: float) -> bytes:
    """Return the frame that tells a client on its connection how its session ended; empty for none.

    A portcall client asks for everything but the end of its time.

    Parameters:
        peer_kind: ``portcall`` or ``TVM``.
        seconds: the time that the session had.
    """
    if ending.how == "expired":  # in the words that TVM clients know
        return exception_frame(f"RPCSessionTimeoutError: Your {float(seconds)}s{_EXPIRED}")
    if peer_kind == "TVM" and ending.kind.last_message:
        return exception_frame(f"the session ended on the server: {ending.text}")
    return b""


def timeout_error(text: str, peer: str) -> errors.SessionTimeoutError:
    """Return the error for a timeout; where it is the server's last message, it says whose limit that may be."""
    if not text.endswith(_EXPIRED):
        return errors.SessionTimeoutError(text, peer=peer)
    return errors.SessionTimeoutError(text.partition(", try")[0], peer=peer, reason="expired", hint=MORE_TIME)


def exception_frame(text: str) -> bytes:
    """Return the message of the RPC protocol that says that something failed: see docs/wire.md."""
    data = text.encode()
    body = struct.pack("<iiiQ", 5, 1, 8, len(data)) + data
    return struct.pack("<Q", len(body)) + body
