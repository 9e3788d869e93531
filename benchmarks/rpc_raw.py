# SPDX-License-Identifier: Apache-2.0
"""What sockets can do: one process sends a buffer with ``sendall``, another fills one with ``recv_into``.

Both buffers are there before the first byte is sent and have been written to. The sockets have the options that
portcall's have, and a time-out: Python then waits with poll(), a fifth faster than sockets that block. A transfer
is a head of 16 bytes from the client, then the bytes; one byte confirms what was put.

    python rpc_raw.py        serves one client, and says on standard output on which port
"""

from __future__ import annotations

import socket
import struct

import numpy as np

from portcall.rpc.wire._tls import tune

LARGEST = 256 << 20
PATIENCE = 600.0  # seconds
PUT, GET = 0, 1
_HEAD = struct.Struct("<QQ")


class RawClient:
    """The end that portcall's client is compared with."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), PATIENCE)
        tune(self._sock)
        self._buffer = new_buffer()

    def put(self, size: int) -> None:
        """Send ``size`` bytes and wait until they have been received."""
        self._sock.sendall(_HEAD.pack(PUT, size))
        self._sock.sendall(self._buffer[:size])
        receive_into(self._sock, memoryview(bytearray(1)))

    def get(self, size: int) -> None:
        """Receive ``size`` bytes."""
        self._sock.sendall(_HEAD.pack(GET, size))
        receive_into(self._sock, self._buffer[:size])

    def close(self) -> None:
        self._sock.close()


def new_buffer() -> memoryview:
    return memoryview(np.ones(LARGEST, np.uint8)).cast("B")


def receive_into(sock: socket.socket, target: memoryview) -> bool:
    """Fill ``target``; False when the peer has closed."""
    done = 0
    while done < len(target):
        count = sock.recv_into(target[done:])
        if count == 0:
            return False
        done += count
    return True


def serve() -> None:
    buffer, head = new_buffer(), memoryview(bytearray(_HEAD.size))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"listening on 127.0.0.1:{listener.getsockname()[1]}", flush=True)
        sock = listener.accept()[0]
    sock.settimeout(PATIENCE)
    tune(sock)
    with sock:
        while receive_into(sock, head):
            what, size = _HEAD.unpack(head)
            if what == GET:
                sock.sendall(buffer[:size])
            elif receive_into(sock, buffer[:size]):
                sock.sendall(b"\0")


if __name__ == "__main__":
    serve()
