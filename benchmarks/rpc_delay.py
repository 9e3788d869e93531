# SPDX-License-Identifier: Apache-2.0
"""A proxy that keeps all bytes for a while, as a far network does."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Iterator

from rpc_peers import HOST

_CHUNK = 1 << 16


@contextlib.contextmanager
def delayed(port: int, seconds: float) -> Iterator[int]:
    """Yield the port of a proxy for one connection to a server; each way takes that long."""
    with socket.create_server((HOST, 0)) as listener:
        threads: list[threading.Thread] = []

        def accept() -> None:
            client, _ = listener.accept()
            server = socket.create_connection((HOST, port))
            for sock in (client, server):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for ends in ((client, server), (server, client)):
                threads.extend(_way(*ends, seconds))

        accepter = threading.Thread(target=accept)
        accepter.start()
        yield listener.getsockname()[1]
        accepter.join()
    for thread in threads:
        thread.join()


def _way(source: socket.socket, target: socket.socket, seconds: float) -> Iterator[threading.Thread]:
    waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def receive() -> None:
        data = b"-"
        while data:
            with contextlib.suppress(OSError):
                data = source.recv(_CHUNK)
            waiting.put((time.perf_counter() + seconds, data))

    def send() -> None:
        while True:
            due, data = waiting.get()
            time.sleep(max(0.0, due - time.perf_counter()))
            with contextlib.suppress(OSError):
                if data:
                    target.sendall(data)
                else:
                    return target.shutdown(socket.SHUT_WR)

    for work in (receive, send):
        thread = threading.Thread(target=work)
        thread.start()
        yield thread
