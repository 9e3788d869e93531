# SPDX-License-Identifier: Apache-2.0
"""How sessions end: in words for the log, for the connection, and for a client that asks later. No I/O here."""

from __future__ import annotations

import hmac
import os
import signal
import struct
from collections import OrderedDict
from dataclasses import dataclass

PROGRESS_BYTES = 24
_PROGRESS = struct.Struct("<IxxxxQQ")
_BETWEEN, _CLOSED, _LOST = 1, 2, 3
_REMEMBERED = 1024


@dataclass(frozen=True)
class Progress:
    """What a session's process has told about itself: see ``Progress`` in core/rpc/serve.cc.

    Attributes:
        state: 1 when every answer has been sent whole, 2 and 3 once it ended, between or inside of messages.
        received, sent: bytes.
    """

    state: int = 0
    received: int = 0
    sent: int = 0

    @classmethod
    def from_bytes(cls, data: bytes) -> Progress:
        return cls(*_PROGRESS.unpack(data)) if len(data) == _PROGRESS.size else cls()

    @property
    def at_boundary(self) -> bool:
        """Whether a message may follow on the connection."""
        return self.state == _BETWEEN


TEXTS = {
    "closed": "closed by the client",
    "lost": "the client went away in the middle of a message",
    "crash": "crashed with {signal}",
    "exit": "its process exited with code {code}",
    "expired": "its time of {detail} was over",
    "disk": "its files took more than {detail}",
    "abandoned": "its client had gone and its work did not end",
    "stopped": "the server was stopped",
    "silent": "said nothing for {detail} in the hand-shake",
    "crowded": "was silent while others wanted to connect",
    "left": "left in the hand-shake",
    "unstarted": "{detail}",
    "orphaned": "the process that sessions start from ended, and it with it",
    "failed": "the server could not go on with it: {detail}",
}
OUT_OF_MEMORY = " (the kernel does that to a process when memory runs out)"


@dataclass(frozen=True)
class Ending:
    """How a session ended.

    Attributes:
        how: a key of ``TEXTS``: ``closed`` and ``lost`` by the client, ``crash`` and ``exit`` by itself, else what the
            server ended it for.
        signal: the name of the signal that it crashed with.
        code: the status that it exited with.
        detail: the limit that it ran into, or what went wrong.
    """

    how: str
    signal: str = ""
    code: int = 0
    detail: str = ""

    @property
    def text(self) -> str:
        text = TEXTS[self.how].format(signal=self.signal, code=self.code, detail=self.detail)
        return text + OUT_OF_MEMORY if self.signal == "SIGKILL" else text

    @property
    def failed(self) -> bool:
        return self.how not in ("closed", "stopped")

    def words(self) -> dict[str, str]:
        """Return the options of an answer to a client that asks."""
        words = {"ended": self.how}
        if self.signal:
            words["signal"] = self.signal
        if self.how == "exit":
            words["code"] = str(self.code)
        return words


def ending_of(status: int, progress: Progress, kill_reason: Ending | None) -> Ending:
    """Return how a process ended, of its wait status, of what it told, and of why the server killed it, if it did."""
    code = os.waitstatus_to_exitcode(status)
    if progress.state in (_CLOSED, _LOST) and code == 0:
        return Ending("closed" if progress.state == _CLOSED else "lost")
    if kill_reason is not None:
        return kill_reason
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:  # a real-time signal has no name of its own
            name = f"SIG{-code}"
        return Ending("crash", signal=name)
    return Ending("exit", code=code)


def expiry_text(seconds: float) -> str:
    """Return what TVM clients know a session's end in time by."""
    return (
        f'RPCSessionTimeoutError: Your {float(seconds)}s session has expired, try to increase the "session_timeout" '
        "value."
    )


def exception_frame(text: str) -> bytes:
    """Return the message of the RPC protocol that says that something failed: see docs/wire.md."""
    data = text.encode()
    body = struct.pack("<iiiQ", 5, 1, 8, len(data)) + data
    return struct.pack("<Q", len(body)) + body


class Endings:
    """The endings of the last sessions, for those who know their secrets."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, tuple[str, Ending]] = OrderedDict()

    def add(self, number: int, secret: str, ending: Ending) -> None:
        self._entries[str(number)] = (secret, ending)
        if len(self._entries) > _REMEMBERED:
            self._entries.popitem(last=False)

    def ask(self, reason: str) -> dict[str, str]:
        """Return the words for a client that asks with ``number.secret``."""
        number, _, secret = reason.partition(".")
        known, ending = self._entries.get(number, ("", None))
        if ending is None or not hmac.compare_digest(known.encode(), secret.encode()):
            return {"ended": "unknown"}
        return ending.words()


def count(number: int, noun: str) -> str:
    """Return a number of things in words: "1 session", "2 sessions"."""
    return f"{number} {noun}{'s'[: number != 1]}"
