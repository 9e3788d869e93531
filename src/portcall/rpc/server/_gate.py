# SPDX-License-Identifier: Apache-2.0
"""The gate of a server that belongs to a farm: clients that the farm sent come in, each with a key for one session.

The agent, in another process, speaks over a link: see ``AGENT_ORDERS`` and ``AGENT_REPORTS`` in ``_messages``.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from portcall.rpc.server._connections import Connection
from portcall.rpc.server._link import Link
from portcall.rpc.server._messages import (
    AGENT_ORDERS,
    AdmitClient,
    AdoptConnection,
    EndLease,
    LeaseEnded,
    Message,
    SessionClosed,
    SessionOpened,
)
from portcall.rpc.wire._endings import Ending


@dataclass(frozen=True)
class Admission:
    """What a key is good for: a session of the lease with this fence, so many seconds long (0: any time)."""

    fence: int
    limit: float


class Gate:
    """The keys that are good now.

    Parameters:
        link: to the agent.
        connections: all connections of the server.
        kill: ends a session.
        adopt: takes a connection in, as if it had been accepted.
        gone: called when the agent has gone.
    """

    def __init__(
        self,
        link: Link,
        connections: Iterable[Connection],
        kill: Callable[[Connection, Ending], None],
        adopt: Callable[[socket.socket], None],
        gone: Callable[[], None],
    ) -> None:
        link.set_timeout(0)
        self._link = link
        self._connections = connections
        self._kill = kill
        self._adopt = adopt
        self._gone = gone
        self._keys: dict[str, Admission] = {}
        self._ending: dict[int, None] = {}  # fences

    def fileno(self) -> int:
        return self._link.fileno()

    def take_messages(self) -> None:
        """Do what the agent has said."""
        while True:
            try:
                received = self._link.receive(AGENT_ORDERS)
            except BlockingIOError:
                return
            if received is None:
                self._gone()
                return
            self._take(*received)

    def _take(self, message: Message, descriptors: list[int]) -> None:
        if isinstance(message, AdmitClient):
            self._close(message.fence - 1)  # leases before this one are over, though their ends may not have come here
            self._keys[message.key] = Admission(message.fence, message.limit)
        elif isinstance(message, EndLease):
            self._end(message.fence)
        elif isinstance(message, AdoptConnection):
            for descriptor in descriptors:
                self._adopt(socket.socket(fileno=descriptor))

    def _end(self, fence: int) -> None:
        self._ending[fence] = None
        self._close(fence)
        self._report_ended()

    def _close(self, fence: int) -> None:
        """Let no more clients in for leases up to a fence, and end their sessions."""
        self._keys = {key: a for key, a in self._keys.items() if a.fence > fence}
        for connection in list(self._connections):
            if 0 < connection.fence <= fence:
                self._kill(connection, Ending("lease"))

    def admit(self, key: str) -> Admission | None:
        """Return what a client's key is good for, and forget it; None: it lets no one in."""
        self.take_messages()  # what was said about this key was said before the client came
        return self._keys.pop(key, None)

    def opened(self, connection: Connection) -> None:
        self._say(SessionOpened(connection.number, connection.fence))

    def closed(self, connection: Connection) -> None:
        """Take note that a connection has ended, whether it was served or not."""
        if connection.serving:
            how = connection.ending.text if connection.ending is not None else ""
            self._say(SessionClosed(connection.number, connection.fence, how))
        self._report_ended()

    def _report_ended(self) -> None:
        for fence in list(self._ending):
            if not any(0 < connection.fence <= fence for connection in self._connections):
                del self._ending[fence]
                self._say(LeaseEnded(fence))

    def _say(self, message: Message) -> None:
        with contextlib.suppress(OSError):  # its end is another event
            self._link.send(message)

    def close(self) -> None:
        self._link.close()
