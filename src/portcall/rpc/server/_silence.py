# SPDX-License-Identifier: Apache-2.0
"""Clients whose machine is gone while bytes are on their way to it: TCP sends no keepalive then, and repeats the bytes
for a quarter of an hour. A client that lives but does not read is left alone, since it acknowledges.
"""

from __future__ import annotations

import socket
import struct

from portcall.rpc.server._connections import Connections, State
from portcall.rpc.server._log import Log
from portcall.rpc.server._loop import Loop
from portcall.rpc.wire._facts import SILENCE, SILENCE_INTERVAL, UNANSWERED

_TCP_INFO = struct.Struct("=2xBB4x48xI")  # struct tcp_info of Linux: retransmits, probes, …, milliseconds since an ack


def is_silent(sock: socket.socket, seconds: float) -> bool:
    """Return whether a TCP connection waits for an acknowledgement, asked again, and got none for so many seconds."""
    try:
        facts = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    except OSError:  # a Unix socket
        return False
    retransmits, probes, last_ack = _TCP_INFO.unpack(facts)
    return max(retransmits, probes) > UNANSWERED and int(last_ack) > 1000 * seconds


class SilenceWatch:
    """Ends the connections of clients that are gone without a word."""

    def __init__(self, connections: Connections, loop: Loop, log: Log) -> None:
        self._connections = connections
        self._loop = loop
        self._log = log

    def look(self) -> None:
        """Look at all sessions, now and regularly from now on."""
        self._loop.call_after(SILENCE_INTERVAL, self.look)
        for one in self._connections.in_state(State.SERVING):
            if is_silent(one.sock, SILENCE):
                self._log.write("silent", f"{one.peer} has acknowledged nothing for {SILENCE} s", one.number)
                one.sock.shutdown(socket.SHUT_RDWR)
