# SPDX-License-Identifier: Apache-2.0
"""A relay that cuts, holds or slows what passes between client and server; and a server that says what it is told."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rpc.raw_client import MAGIC

CHUNK = 1 << 16


@dataclass
class Plan:
    """What happens to one connection. Offsets count bytes from its first one; None: never.

    Attributes:
        cut_up, cut_down: where the connection is cut, from the client's and from the server's bytes.
        hold_down: where the server's bytes are held, until ``release`` is set.
        piece: the most bytes that pass at once.
    """

    cut_up: int | None = None
    cut_down: int | None = None
    hold_down: int | None = None
    piece: int = CHUNK
    release: threading.Event = field(default_factory=threading.Event)
    held: threading.Event = field(default_factory=threading.Event)


class Relay:
    """Listens on a port of its own; a context manager. Each connection follows the next plan, or none."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._plans: list[Plan] = []
        self.names: list[str] = []  # of its connections, as the server knows them
        self.up, self.down = bytearray(), bytearray()  # what has passed on the first connection
        self._threads: list[threading.Thread] = []
        self._accepter = threading.Thread(target=self._accept)
        self._accepter.start()

    def next(self, plan: Plan) -> Plan:
        """Have the next connection follow a plan."""
        self._plans.append(plan)
        return plan

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            plan = self._plans.pop(0) if self._plans else Plan()
            server = socket.create_connection(("127.0.0.1", self._target))
            host, port = server.getsockname()
            self.names.append(f"{host}:{port}")
            thread = threading.Thread(target=self._carry, args=(client, server, plan, len(self.names) == 1))
            self._threads.append(thread)
            thread.start()

    def _carry(self, client: socket.socket, server: socket.socket, plan: Plan, kept: bool) -> None:
        up = Way(client, server, plan.cut_up, self.up if kept else bytearray())
        down = Way(server, client, plan.cut_down, self.down if kept else bytearray())
        with client, server, contextlib.suppress(OSError):
            while True:
                if plan.hold_down is not None and down.passed >= plan.hold_down:
                    plan.held.set()
                    plan.release.wait()
                    plan.hold_down = None
                most = plan.piece if plan.hold_down is None else min(plan.piece, plan.hold_down - down.passed)
                ready, _, _ = select.select([client, server], [], [])
                if (client in ready and not up.move(plan.piece)) or (server in ready and not down.move(most)):
                    return

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepter.join()
        for thread in self._threads:
            thread.join()


@dataclass
class Way:
    """One direction of a connection."""

    source: socket.socket
    target: socket.socket
    cut: int | None
    log: bytearray
    passed: int = 0

    def move(self, most: int) -> bool:
        """Move some bytes; False where the connection ends."""
        if self.cut is not None:
            most = min(most, self.cut - self.passed)
        data = self.source.recv(most) if most > 0 else b""
        self.log += data[: 1 << 16]
        self.passed += len(data)
        self.target.sendall(data)
        return bool(data) and (self.cut is None or self.passed < self.cut)


@contextlib.contextmanager
def saying(answer: Callable[[socket.socket], None], shake_hands: bool = True) -> Iterator[int]:
    """A server for one client on a port of 127.0.0.1: shakes hands, opens the session, then does as it is told."""

    def serve() -> None:
        with contextlib.suppress(OSError, EOFError):
            sock, _ = listener.accept()
            with sock:
                if shake_hands:
                    _, size = struct.unpack("<ii", read(sock, 8))
                    read(sock, size)
                    sock.sendall(struct.pack("<ii", MAGIC, 7) + b"server:")
                    read_frame(sock)
                    sock.sendall(struct.pack("<Qiii", 12, 4, 1, 0))
                answer(sock)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def read(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = sock.recv(size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def read_frame(sock: socket.socket) -> bytes:
    (size,) = struct.unpack("<Q", read(sock, 8))
    return read(sock, size)
