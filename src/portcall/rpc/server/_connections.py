# SPDX-License-Identifier: Apache-2.0
"""The connections of a server: a record for each, and the table of states that it goes through.

    GREETING ── hello ──> WAITING ── its turn ──> STARTING ── its process began ──> SERVING
        └── hello ──> PROVING ── proof ──┘             where there is a token

The first three have no process; there a connection that is refused, or whose question was answered, is removed at once.
From STARTING on, the end of the process removes it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from portcall.rpc.server._link import Link
from portcall.rpc.server._loop import Loop, Timer
from portcall.rpc.wire._endings import Ending
from portcall.rpc.wire._handshake import HelloReader


class State(Enum):
    """Where a connection is."""

    GREETING = "greeting"  # its hello is on the way, after TLS where there is TLS
    PROVING = "proving"  # it was asked to prove that it knows the token
    WAITING = "waiting"  # in the queue
    STARTING = "starting"  # a process for its session was ordered
    SERVING = "serving"  # its session is open


@dataclass(frozen=True)
class Rules:
    """What may happen in a state.

    Attributes:
        following: the states that may come next.
        out_of_time: how the connection ends at its deadline.
        client_gone: how it ends if the client leaves; where it is served, if its process does not end by itself.
    """

    following: tuple[State, ...]
    out_of_time: str = "silent"
    client_gone: str = "left"


_S = State
RULES = {
    _S.GREETING: Rules((_S.PROVING, _S.WAITING)),
    _S.PROVING: Rules((_S.WAITING,)),
    _S.WAITING: Rules((_S.STARTING,)),
    _S.STARTING: Rules((_S.SERVING,), "unstarted"),
    _S.SERVING: Rules((), "expired", "abandoned"),
}
HANDSHAKE = (_S.GREETING, _S.PROVING, _S.WAITING)  # on the way to a session, without a process of it


class StateError(Exception):
    """A step that the table of states does not have: a bug of the server's, which ends the connection."""


@dataclass(eq=False)
class Connection:
    """A connection; from STARTING on, with the process that serves it.

    Attributes:
        number: of the session.
        sock: the connection. A session's process has a copy: the client sees its end only after the reason was noted.
        peer: the client's address, for the log.
        since: when the client connected.
        clear: with TLS, our end of the pair of sockets on which its pump gives and takes bytes in clear.
        link: to its pump, until that has said how TLS went.
        state: change it with ``enter``.
        reader: reads its hello.
        proof: what has come of its proof.
        certificate: SHA-256 of the certificate that it showed; empty for none.
        progress: descriptor of the shared memory in which the process says how far the session is; -1 for none.
        directory: of the session; empty for none.
        may_keep: whether the client agrees that the session is kept if it crashes.
        verdict: descriptor of the pipe to the process that keeps it; -1 for none.
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
    since: float
    clear: socket.socket | None = None
    link: Link | None = None
    state: State = State.GREETING
    reader: HelloReader = field(default_factory=HelloReader)
    proof: bytes = b""
    certificate: str = ""
    progress: int = -1
    directory: str = ""
    may_keep: bool = False
    verdict: int = -1
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

    @property
    def stream(self) -> socket.socket:
        """What carries the client's bytes in clear."""
        return self.sock if self.clear is None else self.clear

    def enter(self, state: State) -> None:
        """Change the state.

        Raises:
            StateError: the table does not have that step.
        """
        if state not in self.rules.following:
            raise StateError(f"a connection cannot go from {self.state.value} to {state.value}")
        self.state = state


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
