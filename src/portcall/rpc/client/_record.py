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

from portcall.rpc.client._capsule import Capsule

FIRST_LINE = b"portcall recording 1\n"
_PIECE = 1 << 20
_LENGTH = struct.Struct("<Q")


class FrameCutter:
    """Cuts bytes that come in any split into frames.

    Attributes:
        too_long: a frame had more than ``most`` bytes; from then on there are none.
    """

    def __init__(self, most: int | None = None) -> None:
        self._bytes = bytearray()
        self._most = most
        self.too_long = False

    def feed(self, data: bytes) -> Iterable[bytes]:
        """Take bytes, and give the frames that are complete."""
        if self.too_long:
            return
        self._bytes += data
        while len(self._bytes) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._bytes)[0]
            if self._most is not None and end > self._most:
                self.too_long = True
                self._bytes.clear()
                return
            if len(self._bytes) < end:
                return
            yield bytes(self._bytes[:end])
            del self._bytes[:end]


def keep_frames(descriptor: int, path: str | os.PathLike[str], facts: dict[str, Any]) -> tuple[int, threading.Thread]:
    """Return a descriptor that carries the same bytes, which go into a file on the way, and the thread that writes it.

    Raises:
        OSError: the file cannot be written.
    """
    try:
        file = open(path, "wb")  # noqa: SIM115 (the thread closes it)
    except BaseException:
        os.close(descriptor)
        raise
    file.write(FIRST_LINE + json.dumps(facts).encode() + b"\n")
    return pass_frames(descriptor, file)


def pass_frames(descriptor: int, file: BinaryIO | Capsule) -> tuple[int, threading.Thread]:
    """The same for a file that is open, or a capsule."""
    server = socket.socket(fileno=descriptor)
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=_pump, args=(theirs, server, file), name="portcall-record", daemon=True)
    thread.start()
    return ours.detach(), thread


def _pump(client: socket.socket, server: socket.socket, file: BinaryIO | Capsule) -> None:
    """Move bytes both ways until either side ends. A way that waits for its reader does not stop the other."""
    lock = threading.Lock()

    def move(source: socket.socket, target: socket.socket, mark: bytes) -> None:
        cutter = FrameCutter(file.limit if isinstance(file, Capsule) else None)
        with contextlib.suppress(OSError):
            while data := source.recv(_PIECE):
                with lock:
                    file.writelines(mark + frame for frame in cutter.feed(data))
                    if cutter.too_long and isinstance(file, Capsule):
                        file.drop(f"a message had more than {file.limit:,} bytes")
                target.sendall(data)
        for end in (client, server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    with client, server, file:
        answers = threading.Thread(target=move, args=(server, client, b"\1"), name="portcall-record", daemon=True)
        answers.start()
        move(client, server, b"\0")
        answers.join()
