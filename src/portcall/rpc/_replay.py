# SPDX-License-Identifier: Apache-2.0
"""A server made of the recording of a session: tests run without the board."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from portcall.rpc.client._record import FIRST_LINE, FrameCutter
from portcall.rpc.wire import _handshake
from portcall.rpc.wire._facts import NESTED

_SHUTDOWN, _INIT, _RETURN, _EXCEPTION, _ACK, _FREE, _FREE_DATA, _OUTPUT = 1, 2, 4, 5, 8, 10, 14, 32
_REPLIES = (_RETURN, _EXCEPTION, _ACK)
_NAMES = {3: "call", 6: "copy from the server", 7: "copy to the server", 9: "search for a function"}
_DONE = struct.pack("<Qiii", 12, _RETURN, 1, 0)


@dataclass
class Exchange:
    """A request, and what was sent up to the end of its answer: by the server and, in callbacks, by the client."""

    request: bytes
    answer: list[tuple[bool, bytes]] = field(default_factory=list)  # whether it is the client's
    used: bool = False


@dataclass
class Recording:
    """What ``ConnectOptions(record=path)`` wrote.

    Raises:
        ValueError: the file is not a recording, was cut off, or is damaged; the message names the file and the place.
    """

    features: frozenset[str]
    exchanges: list[Exchange]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Recording:
        return cls.parse(Path(path).read_bytes(), os.fspath(path))

    @classmethod
    def parse(cls, data: bytes, name: str) -> Recording:
        """Read the bytes of a file of this name."""
        if not data.startswith(FIRST_LINE):
            raise ValueError(f"'{name}' is not a recording of a session: its first line is not {FIRST_LINE.decode()!r}")
        begin = data.find(b"\n", len(FIRST_LINE)) + 1
        features = _features(data[len(FIRST_LINE) : begin])
        if features is None:
            raise _damaged(name, len(FIRST_LINE), "a line of JSON with the facts of the session is expected")
        recording, waiting = cls(features, []), deque[Exchange]()
        while begin < len(data):
            mark, size = data[begin], 8 + int.from_bytes(data[begin + 1 : begin + 9], "little")
            frame = data[begin + 1 : begin + 1 + size]
            if mark > 1:
                raise _damaged(name, begin, f"a frame begins with 0 or 1, not with {mark}")
            if len(frame) < size:
                raise _damaged(name, begin, "the file ends within this frame; was the session still open?")
            if 8 < size < 12:
                raise _damaged(name, begin, f"a frame of {size - 8} bytes has no code")
            begin += 1 + size
            recording._take(mark, frame, waiting)
        return recording

    def _take(self, mark: int, frame: bytes, waiting: deque[Exchange]) -> None:
        """Add a frame; ``waiting`` are the exchanges whose answers are not complete."""
        if mark == 0 and code_of(frame) & NESTED:
            if waiting:
                waiting[0].answer.append((True, frame))
        elif mark == 0 and code_of(frame) != _SHUTDOWN:
            self.exchanges.append(Exchange(frame))
            waiting.append(self.exchanges[-1])
        elif mark == 1 and waiting:
            waiting[0].answer.append((False, frame))
            if code_of(frame) in _REPLIES:
                waiting.popleft()


def _features(line: bytes) -> frozenset[str] | None:
    """Return the extensions that a session used, given the facts of a recording; None for anything else."""
    try:
        facts = json.loads(line) if line else None
    except (ValueError, RecursionError):
        return None
    features = facts.get("features", []) if isinstance(facts, dict) else None
    if not isinstance(features, list) or not all(isinstance(name, str) for name in features):
        return None
    return frozenset(features)


def _damaged(name: str, place: int, what: str) -> ValueError:
    return ValueError(f"the recording '{name}' is damaged at byte {place}: {what}; copy it again, or record it again")


def code_of(frame: bytes) -> int:
    """Return the code of a frame, 0 for an empty one."""
    return int(struct.unpack_from("<i", frame, 8)[0]) if len(frame) >= 12 else 0


class Replay:
    """Serves a recording on a port of this machine; a context manager.

    Requests are answered as ``portcall.testing.replay`` says. Handles that are freed need not match.

    Attributes:
        address: to connect to.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._name, self._data = os.fspath(path), Path(path).read_bytes()
        Recording.parse(self._data, self._name)
        self._listener = socket.create_server(("127.0.0.1", 0))
        host, port = self._listener.getsockname()
        self.address = f"{host}:{port}"
        self._threads: list[threading.Thread] = []
        self._clients: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._accept, name="portcall-replay", daemon=True)
        self._accepting.start()

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server and its sessions."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        for client in self._clients:
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self._clients.append(client)
                self._threads.append(threading.Thread(target=self._serve, args=(client,), daemon=True))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError, EOFError):
            recording = Recording.parse(self._data, self._name)
            features = _shake_hands(client, recording.features)
            requests = _requests(client)
            for request in requests:
                if code_of(request) == _SHUTDOWN:
                    return
                for ours, frame in _answer(request, recording.exchanges):
                    if ours and next(requests) != frame:  # the answer of a callback
                        client.sendall(_refusal("answer of a callback"))
                        return
                    if not ours and (code_of(frame) != _OUTPUT or "output" in features):
                        client.sendall(frame)


def _shake_hands(client: socket.socket, offered: frozenset[str]) -> frozenset[str]:
    reader = _handshake.HelloReader()
    while (hello := reader.feed(_some(client, reader.missing()))) is None:
        pass
    options: dict[str, str] = {}
    common = hello.features & offered if hello.is_portcall else frozenset()
    if hello.is_portcall:
        options = _handshake.extension_options(common)
    client.sendall(_handshake.server_reply(hello.key, options))
    return common


def _some(client: socket.socket, size: int) -> bytes:
    data = client.recv(size)
    if not data:
        raise EOFError
    return data


def _requests(client: socket.socket) -> Iterator[bytes]:
    cutter = FrameCutter()
    while data := client.recv(1 << 20):
        yield from cutter.feed(data)


def _answer(request: bytes, exchanges: list[Exchange]) -> list[tuple[bool, bytes]]:
    code = code_of(request)
    if code == 0:
        return []
    for exchange in exchanges:
        if not exchange.used and exchange.request == request:
            exchange.used = True
            return exchange.answer
    if code in (_FREE, _FREE_DATA):
        return [(False, _DONE)]
    return [(False, _refusal(_NAMES.get(code, f"request of code {code}")))]


def _refusal(what: str) -> bytes:
    text = f"RuntimeError: the recording has no further {what} like this one; record the session again".encode()
    body = struct.pack("<iiiQ", _EXCEPTION, 1, 8, len(text)) + text
    return struct.pack("<Q", len(body)) + body
