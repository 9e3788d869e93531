# SPDX-License-Identifier: Apache-2.0
"""How connections by TCP behave, on both sides."""

from __future__ import annotations

import socket

from portcall.rpc.wire._facts import SILENCE


def tune(sock: socket.socket, silence: float = SILENCE) -> None:
    """Send small messages at once, and notice a peer whose machine does not answer for some seconds.

    Where bytes are on their way to it, the system repeats them for a quarter of an hour before it gives up.
    TCP_USER_TIMEOUT would shorten this, but also end connections to a living peer that does not read for a while.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle, interval = max(1, round(silence / 2)), max(1, round(silence / 8))
    probes = max(1, round((silence - idle) / interval))
    for name, value in {"TCP_KEEPIDLE": idle, "TCP_KEEPINTVL": interval, "TCP_KEEPCNT": probes}.items():
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
