# SPDX-License-Identifier: Apache-2.0
"""The clients of a server: a record for each connection, and the states that it goes through.

GREETING -- hello --> PROVING -- proof --> WAITING -- its turn --> SERVING
    (PROVING only where there is a token; ENDING from any of them, once the client has been refused)
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from portcall.rpc.server._endings import Ending
from portcall.rpc.server._link import Link
from portcall.rpc.server._loop import Loop, Timer

GREETING, PROVING, WAITING, SERVING, ENDING = "greeting", "proving", "waiting", "serving", "ending"


@dataclass(eq=False)
class Client:
    """A connection and the process that serves it.

    Attributes:
        number: of the session.
        sock: a copy of the connection, so that the client sees its end only after the reason has been noted.
        peer: who it is, for the log.
        link: to the process that serves it.
        progress: descriptor of the shared memory that tells how far the session is.
        directory: of the session.
        since: when it came.
        limit: seconds that the session may last; 0 for no limit.
        peer_kind: portcall or TVM, once it has said hello.
        secret: what the client may ask with, why its session ended.
        transcript: what both sides said, which the proofs are of.
        kill_reason: why it was killed.
        queue_position: in the queue, as last reported.
        pid: of the process that serves it; 0 before it runs.
        deadline: when it is ended.
    """

    number: int
    sock: socket.socket
    peer: str
    link: Link
    progress: int
    directory: str
    since: float
    state: str = GREETING
    limit: float = 0
    peer_kind: str = ""
    secret: str = field(default="", repr=False)
    transcript: bytes = b""
    kill_reason: Ending | None = None
    queue_position: int = 0
    pid: int = 0
    deadline: float | None = None
    timer: Timer | None = None


class Clients:
    """All clients, by number, and their deadlines.

    Args:
        loop: keeps the deadlines.
        on_deadline: called with a client whose time is over.
    """

    def __init__(self, loop: Loop, on_deadline: Callable[[Client], None]) -> None:
        self._loop = loop
        self._on_deadline = on_deadline
        self._by_number: dict[int, Client] = {}

    def add(self, client: Client) -> None:
        self._by_number[client.number] = client

    def remove(self, client: Client) -> None:
        self._by_number.pop(client.number, None)
        self.end_after(client, None)

    def get(self, number: int) -> Client | None:
        return self._by_number.get(number)

    def __iter__(self) -> Iterator[Client]:
        return iter(list(self._by_number.values()))

    def __len__(self) -> int:
        return len(self._by_number)

    def in_state(self, *states: str) -> list[Client]:
        """Return the clients in any of these states, the oldest first."""
        return [client for client in self._by_number.values() if client.state in states]

    def end_after(self, client: Client, seconds: float | None) -> None:
        """Give a client that much time from now on; None for any time."""
        if client.timer is not None:
            client.timer.cancel()
            client.timer = client.deadline = None
        if seconds is not None:
            client.deadline = time.monotonic() + seconds
            client.timer = self._loop.call_at(client.deadline, lambda: self._on_deadline(client))
