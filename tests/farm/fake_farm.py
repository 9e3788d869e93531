# SPDX-License-Identifier: Apache-2.0
"""A farm that answers agents as a test says: with orders, with refusals, or with nonsense."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

HOLD = 0.25  # seconds for which an answer without orders is held back: more than the first pause of an agent


def refusal(status: int, reason: str, text: str = "no") -> bytes:
    return http(status, json.dumps({"error": text, "reason": reason}).encode())


def http(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        status,
        len(body),
        body,
    )


class FakeFarm:
    """A context manager. Attributes are read under ``news``.

    Attributes:
        commands: all that agents have said.
        nonsense: what the next questions of the agent get instead of an answer; an empty one closes the connection.
        orders: for the next question.
        refuse: what commands of a name get, always.
    """

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.host, self.port = self._listener.getsockname()[:2]
        self.news = threading.Condition()
        self.commands: list[dict[str, Any]] = []
        self.nonsense: list[bytes] = []
        self.orders: list[Any] = []
        self.refuse: dict[str, bytes] = {}
        self._peers: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, name="fake-farm")]
        self._closing = False
        self._asking: dict[str, Any] = {}  # the last question

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(peer,), name="fake-farm-peer")
            with self.news:
                self._peers.append(peer)
                self._threads.append(thread)
            thread.start()

    def _serve(self, peer: socket.socket) -> None:
        with peer:
            try:
                while (command := self._read(peer)) is not None:
                    answer = self._answer(command)
                    if not answer:
                        return
                    peer.sendall(answer)
                    if b"Content-Length" not in answer:
                        return
            except OSError:
                return

    def _read(self, peer: socket.socket) -> dict[str, Any] | None:
        data = b""
        while b"\r\n\r\n" not in data:
            piece = peer.recv(1 << 16)
            if not piece:
                return None
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        size = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-len"))
        while len(body) < size:
            body += peer.recv(1 << 16)
        command: dict[str, Any] = json.loads(body)
        return command

    def _answer(self, command: dict[str, Any]) -> bytes:
        what = command["do"]
        with self.news:
            self.commands.append(command)
            self.news.notify_all()
            if what in self.refuse:
                return self.refuse[what]
            if what in ("register", "next") and self.nonsense:
                return self.nonsense.pop(0)
            if what == "register":
                return http(200, b'{"agent": "a"}')
            if what != "next":
                return http(200, b"{}")
            self._asking = command
            self.news.notify_all()
            news = lambda: self._left(command) or self.orders or self.nonsense  # noqa: E731
            self.news.wait_for(news, HOLD)
            if self._left(command):
                return b""
            if self.nonsense:
                return self.nonsense.pop(0)
            orders, self.orders = self.orders, []
            return http(200, json.dumps({"orders": orders}).encode())

    def _left(self, command: dict[str, Any]) -> bool:
        """Whether nobody waits for the answer to this question any more."""
        return self._closing or self._asking is not command

    def give(self, *orders: Any) -> None:
        with self.news:
            self.orders += orders
            self.news.notify_all()

    def say(self, *nonsense: bytes) -> None:
        with self.news:
            self.nonsense += nonsense
            self.news.notify_all()

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until something holds; it is asked after each command."""
        with self.news:
            assert self.news.wait_for(condition, 60)
            return condition()

    def count(self, what: str) -> int:
        return sum(command["do"] == what for command in self.commands)

    def done(self) -> list[dict[str, Any]]:
        """What agents have reported."""
        return [report for command in self.commands for report in command.get("done", [])]

    def __enter__(self) -> FakeFarm:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        with self.news:
            self._closing = True
            self.news.notify_all()
            for peer in self._peers:
                with contextlib.suppress(OSError):
                    peer.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()
