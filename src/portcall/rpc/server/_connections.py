# SPDX-License-Identifier: Apache-2.0
"""The connections of a server: a record for each, and the table of states that it goes through.

    GREETING ── hello ──> WAITING ── its turn ──> SERVING
        └── hello ──> PROVING ── proof ──┘             where there is a token
    any of the first three ── refused, or answered ──> CLOSING

A process's end is possible in every state, and removes the connection.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from portcall.rpc.server._link import Link
from portcall.rpc.server._loop import Loop, Timer
from portcall.rpc.server._messages import Accepted, HandshakeFailed, HelloReceived, Message, ProofReceived
from portcall.rpc.wire._endings import Ending


class State(Enum):
    """Where a connection is."""

    GREETING = "greeting"  # its hello is on the way
    PROVING = "proving"  # it was asked to prove that it knows the token
    WAITING = "waiting"  # in the queue
    SERVING = "serving"  # its session is open
    CLOSING = "closing"  # it was refused, or had a question and was answered


@dataclass(frozen=True)
class Rules:
    """What may happen in a state.

    Attributes:
        accepts: the messages of the worker that have a meaning; others are an error of the client's.
        ignores: whether a message that comes too late is dropped instead.
        following: the states that may come next.
        out_of_time: how the connection ends at its deadline.
        client_gone: how it ends if the client leaves and its process does not end by itself.
    """

    accepts: Accepted
    following: tuple[State, ...]
    out_of_time: str = "silent"
    client_gone: str = "left"
    ignores: bool = False


_S = State
RULES = {
    _S.GREETING: Rules((HelloReceived, HandshakeFailed), (_S.PROVING, _S.WAITING, _S.CLOSING)),
    _S.PROVING: Rules((ProofReceived, HandshakeFailed), (_S.WAITING, _S.CLOSING)),
    _S.WAITING: Rules((HandshakeFailed,), (_S.SERVING, _S.CLOSING)),
    _S.SERVING: Rules((), (), "expired", "abandoned", ignores=True),
    _S.CLOSING: Rules((), (), ignores=True),
}
HANDSHAKE = (_S.GREETING, _S.PROVING, _S.WAITING)  # on the way to a session


class StateError(Exception):
    """A step that the table of states does not have: a bug of the server's, which ends the connection."""


@dataclass(eq=False)
class Connection:
    """A connection and the process that serves it.

    Attributes:
        number: of the session.
        sock: a copy of the connection, so that the client sees its end only after the reason has been noted.
        peer: the client's address, for the log.
        link: to the process that serves it.
        progress: descriptor of the shared memory in which the process says how far the session is.
        directory: of the session.
        since: when the client connected.
        state: change it with ``enter``.
        limit: seconds that the session may last; 0 for no limit.
        peer_kind: portcall or TVM, once its hello has come.
        features: the extensions that client and server both have.
        secret: what the client may ask with, later, why its session ended.
        transcript: all bytes that both sides sent; the proofs are computed from them.
        kill_reason: why the process was killed.
        queue_position: as last reported.
        pid: of the process that serves it; 0 before it runs.
        deadline: when the connection is ended.
        fence: of the lease of a farm that it belongs to; 0 for none.
        ending: how it ended, once it has.
        last_words: the last text of its stderr that it did not read itself.
    """

    number: int
    sock: socket.socket
    peer: str
    link: Link
    progress: int
    directory: str
    since: float
    state: State = State.GREETING
    limit: float = 0
    peer_kind: str = ""
    features: frozenset[str] = frozenset()
    secret: str = field(default="", repr=False)
    transcript: bytes = b""
    kill_reason: Ending | None = None
    queue_position: int = 0
    pid: int = 0
    last_words: str = ""
    deadline: float | None = None
    fence: int = 0
    ending: Ending | None = None
    timer: Timer | None = None

    @property
    def rules(self) -> Rules:
        return RULES[self.state]

    @property
    def serving(self) -> bool:
        return self.state is State.SERVING

    def enter(self, state: State) -> None:
        """Change the state.

        Raises:
            StateError: the table does not have that step.
        """
        if state not in self.rules.following:
            raise StateError(f"a connection cannot go from {self.state.value} to {state.value}")
        self.state = state

    def accepts(self, message: Message) -> bool:
        """Return whether a message of the worker is allowed now."""
        return isinstance(message, self.rules.accepts)


class Connections:
    """All connections, by number, and their deadlines.

    Parameters:
        loop: keeps the deadlines.
        on_deadline: called with a connection whose time is over.
    """

    def __init__(self, loop: Loop, on_deadline: Callable[[Connection], None]) -> None:
        self._loop = loop
        self._on_deadline = on_deadline
        self._by_number: dict[int, Connection] = {}

    def add(self, connection: Connection) -> None:
        self._by_number[connection.number] = connection

    def remove(self, connection: Connection) -> None:
        self._by_number.pop(connection.number, None)
        self.end_after(connection, None)

    def get(self, number: int) -> Connection | None:
        return self._by_number.get(number)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._by_number.values()))

    def __len__(self) -> int:
        return len(self._by_number)

    def in_state(self, *states: State) -> list[Connection]:
        """Return the connections in any of these states, the oldest first."""
        return [connection for connection in self._by_number.values() if connection.state in states]

    def end_after(self, connection: Connection, seconds: float | None) -> None:
        """Give a connection that much time from now on; None for any time."""
        if connection.timer is not None:
            connection.timer.cancel()
            connection.timer = connection.deadline = None
        if seconds is not None:
            connection.deadline = time.monotonic() + seconds
            connection.timer = self._loop.call_at(connection.deadline, lambda: self._on_deadline(connection))
