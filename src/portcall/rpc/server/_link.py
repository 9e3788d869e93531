# SPDX-License-Identifier: Apache-2.0
"""Carries messages between two processes of a server, over a pair of sockets, with file descriptors."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from portcall.rpc.server._messages import MAX_BYTES, Accepted, Message, MessageError, decode, encode

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
        """Let ``send`` and ``receive`` raise TimeoutError after that time; None waits forever."""
        self._sock.settimeout(seconds)

    def send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        """Send a message and copies of descriptors.

        Raises:
            OSError: the other end is gone, or does not read.
        """
        socket.send_fds(self._sock, [encode(message)], list(descriptors))

    def receive(self, accepted: Accepted) -> tuple[Message, list[int]] | None:
        """Return the next message and its descriptors, which the caller must close; None when the other end is gone.

        There are fewer descriptors than the message has where this process may not open that many.

        Raises:
            MessageError: it is not an accepted message, or has too many descriptors; they are closed.
        """
        try:
            data, descriptors, _, _ = socket.recv_fds(self._sock, MAX_BYTES, _MAX_DESCRIPTORS)
        except ConnectionResetError:  # it left messages of ours unread; its own come after the error
            return self.receive(accepted)
        if not data:
            return None
        try:
            message = decode(data, accepted)
            if len(descriptors) > message.descriptors:
                raise MessageError(f"a {type(message).__name__} came with {len(descriptors)} descriptors")
            return message, descriptors
        except MessageError:
            for descriptor in descriptors:
                os.close(descriptor)
            raise

    def close(self) -> None:
        self._sock.close()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
