# SPDX-License-Identifier: Apache-2.0
"""Keep the frames of a session in a file, which ``portcall.testing.replay`` serves again.

The file is a line of text, a line of JSON with facts of the session, and then frames: a byte, 0 from the client and 1
from the server, and the frame as it was on the wire (docs/wire.md, section 2), in the order in which they ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Iterable
from typing import Any, BinaryIO

FIRST_LINE = b"portcall recording 1\n"
_PIECE = 1 << 20
_LENGTH = struct.Struct("<Q")


class FrameCutter:
    """Cuts bytes that come in any split into frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterable[bytes]:
        """Take bytes, and give the frames that are complete."""
        self._bytes += data
        while len(self._bytes) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._bytes)[0]
            if len(self._bytes) < end:
                return
            yield bytes(self._bytes[:end])
            del self._bytes[:end]


def keep_frames(descriptor: int, path: str | os.PathLike[str], facts: dict[str, Any]) -> tuple[int, threading.Thread]:
    """Return a descriptor that carries the same bytes, which go into a file on the way, and the thread that writes it.

    Raises:
        OSError: the file cannot be written.
    """
    server = socket.socket(fileno=descriptor)
    try:
        file = open(path, "wb")  # noqa: SIM115 (the thread closes it)
    except BaseException:
        server.close()
        raise
    file.write(FIRST_LINE + json.dumps(facts).encode() + b"\n")
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=_pump, args=(theirs, server, file), name="portcall-record", daemon=True)
    thread.start()
    return ours.detach(), thread


def _pump(client: socket.socket, server: socket.socket, file: BinaryIO) -> None:
    """Move bytes both ways until either side ends. A way that waits for its reader does not stop the other."""
    lock = threading.Lock()

    def move(source: socket.socket, target: socket.socket, mark: bytes) -> None:
        cutter = FrameCutter()
        with contextlib.suppress(OSError):
            while data := source.recv(_PIECE):
                with lock:
                    file.writelines(mark + frame for frame in cutter.feed(data))
                target.sendall(data)
        for end in (client, server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    with client, server, file:
        answers = threading.Thread(target=move, args=(server, client, b"\1"), name="portcall-record", daemon=True)
        answers.start()
        move(client, server, b"\0")
        answers.join()
