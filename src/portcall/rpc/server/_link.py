# SPDX-License-Identifier: Apache-2.0
"""Messages between the processes of a server: small JSON objects over a pair of sockets, with file descriptors."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Sequence
from typing import Any

_MAX_BYTES = 64 << 10
_MAX_DESCRIPTORS = 8


class Link:
    """One end. Each message arrives whole or not at all; a context manager."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    @classmethod
    def pair(cls) -> tuple[Link, Link]:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), cls(theirs)

    @classmethod
    def adopt(cls, descriptor: int) -> Link:
        return cls(socket.socket(fileno=descriptor))

    def fileno(self) -> int:
        return self._sock.fileno()

    def set_timeout(self, seconds: float | None) -> None:
        """Let ``send`` and ``receive`` raise TimeoutError after that time; None waits for ever."""
        self._sock.settimeout(seconds)

    def send(self, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a message and copies of descriptors.

        Raises:
            OSError: the other end is gone, or does not read.
        """
        socket.send_fds(self._sock, [json.dumps(message).encode()], list(descriptors))

    def receive(self) -> tuple[dict[str, Any], list[int]] | None:
        """Return the next message and its descriptors, which the caller must close; None when the other end is gone."""
        try:
            data, descriptors, _, _ = socket.recv_fds(self._sock, _MAX_BYTES, _MAX_DESCRIPTORS)
        except ConnectionResetError:
            return None
        return (json.loads(data), descriptors) if data else None

    def end_sending(self) -> None:
        """Let the other end receive what was sent, and then the end; ``receive`` goes on."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._sock.close()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
