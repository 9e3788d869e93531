# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="arg-type"
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
        messages_up, messages_down: after how many messages, the hello and its answer being the first.
        hold_down: where the server's bytes are held, until ``release`` is set.
        piece: the most bytes that pass at once.
    """

    cut_up: int | None = None
    cut_down: int | None = None
    messages_up: int | None = None
    messages_down: int | None = None
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
            for sock in (client, server):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            host, port = server.getsockname()
            self.names.append(f"{host}:{port}")
            thread = threading.Thread(target=self._carry, args=(client, server, plan, len(self.names) == 1))
            self._threads.append(thread)
            thread.start()

    def _carry(self, client: socket.socket, server: socket.socket, plan: Plan, kept: bool) -> None:
        up = Way(client, server, plan.cut_up, plan.messages_up)
        down = Way(server, client, plan.cut_down, plan.messages_down)
        if kept:
            self.up, self.down = up.log, down.log
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
    messages: int | None
    log: bytearray = field(default_factory=bytearray)

    @property
    def passed(self) -> int:
        return len(self.log)

    def move(self, most: int) -> bool:
        """Move some bytes; False where the connection ends."""
        most = min(most, self.left())
        data = self.source.recv(most) if most > 0 else b""
        self.log += data
        self.target.sendall(data)
        return bool(data) and self.left() > 0

    def left(self) -> int:
        """How many bytes may pass before this must be asked again; 0 at the end."""
        if self.cut is not None:
            return self.cut - self.passed
        if self.messages is None:
            return CHUNK
        ends = message_ends(self.log)
        if len(ends) == self.messages:
            return 0
        begun = self.passed - (ends[-1] if ends else 0)
        return 8 - begun if begun < 8 else message_size(self.log, len(ends) == 0, self.passed - begun) - begun


def message_size(data: bytes, hello: bool, start: int) -> int:
    """The length of a message, its head included."""
    return 8 + int(struct.unpack_from("<xxxxi" if hello else "<Q", data, start)[0])


def message_ends(data: bytes) -> list[int]:
    """Where whole messages end in what passed one way: the hello, then frames."""
    ends: list[int] = []
    start = 0
    while start + 8 <= len(data) and (end := start + message_size(data, not ends, start)) <= len(data):
        ends.append(end)
        start = end
    return ends


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
