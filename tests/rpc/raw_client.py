# SPDX-License-Identifier: Apache-2.0
"""The protocol by hand: every byte as the specification has it, so that tests can also send what it forbids."""

from __future__ import annotations

import socket
import struct

MAGIC, MISMATCH, NOTICE = 0xFF271, 0xFF273, 0xFF274
SHUTDOWN, INIT, CALL, RETURN, EXCEPTION, COPY_FROM, COPY_TO, ACK = 1, 2, 3, 4, 5, 6, 7, 8
GET_FUNCTION, FREE, FREE_DATA, ALLOC = 9, 10, 14, 17
POSTED, NESTED = 0x100, 0x200


def hello(key: str = "", options: str = "") -> bytes:
    text = f"client:{key}{options}".encode()
    return struct.pack("<ii", MAGIC, len(text)) + text


def frame(code: int, body: bytes = b"") -> bytes:
    return struct.pack("<Qi", 4 + len(body), code) + body


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<iQ", 8, len(data)) + data


def integer(value: int) -> bytes:
    return struct.pack("<iq", 1, value)


def pointer(value: int) -> bytes:
    return struct.pack("<iQ", 4, value)


def sequence(*values: bytes) -> bytes:
    return struct.pack("<i", len(values)) + b"".join(values)


def init(*arguments: bytes) -> bytes:
    return frame(INIT, struct.pack("<Q", 5) + b"0.8.0" + sequence(*arguments))


def tensor(data: int, size: int, offset: int = 0) -> bytes:
    """A DLTENSOR of ``size`` bytes of uint8 on the host."""
    return struct.pack("<QiiiBBHqQ", data, 1, 0, 1, 1, 8, 1, size, offset)


class RawClient:
    """A connection; a context manager. ``open`` does the handshake and InitServer."""

    def __init__(self, address: str, timeout: float = 30) -> None:
        if address.startswith("unix:"):
            self.sock = socket.socket(socket.AF_UNIX)
            self.sock.settimeout(timeout)
            self.sock.connect(address.removeprefix("unix:"))
        else:
            host, _, port = address.rpartition(":")
            self.sock = socket.create_connection((host, int(port)), timeout)

    @property
    def name(self) -> str:
        """This client's address, as the server's log has it."""
        host, port = self.sock.getsockname()
        return f"{host}:{port}"

    def open(self, key: str = "", options: str = "", arguments: tuple[bytes, ...] = ()) -> RawClient:
        self.send(hello(key, options))
        self.read_reply()
        code, body = self.ask(init(*arguments))
        assert code == RETURN, body
        return self

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.sock.recv(size - len(data))
            if not piece:
                raise EOFError(f"closed after {data!r}")
            data += piece
        return data

    def read_reply(self) -> str:
        """The server's words; notices before them are skipped."""
        while True:
            code, size = struct.unpack("<ii", self.read(8))
            words = self.read(size).decode()
            if code != NOTICE:
                assert code == MAGIC, hex(code)
                return words

    def read_notice(self) -> str:
        """What a server says to a client that it does not let in: the text of its last notice."""
        code, size = struct.unpack("<ii", self.read(8))
        assert code == NOTICE, hex(code)
        return self.read(size).decode()

    def read_frame(self) -> tuple[int, bytes]:
        (size,) = struct.unpack("<Q", self.read(8))
        data = self.read(size)
        return struct.unpack_from("<i", data)[0], data[4:]

    def ask(self, data: bytes) -> tuple[int, bytes]:
        self.send(data)
        return self.read_frame()

    def error(self, data: bytes) -> str:
        """Send a request that must fail; the text of the exception."""
        code, body = self.ask(data)
        assert code == EXCEPTION, (code, body)
        return body[16:].decode()

    def function(self, name: str) -> int:
        code, body = self.ask(frame(GET_FUNCTION, sequence(text(name))))
        assert code == RETURN, body
        handle: int = struct.unpack_from("<Q", body, 8)[0]
        return handle

    def call(self, name: str, *arguments: bytes) -> tuple[int, bytes]:
        return self.ask(frame(CALL, struct.pack("<Q", self.function(name)) + sequence(*arguments)))

    def echo(self, value: int) -> int:
        code, body = self.call("testing.echo", integer(value))
        assert code == RETURN, body
        answer: int = struct.unpack_from("<q", body, 4 + 12 + 4)[0]
        return answer

    def at_end(self) -> bool:
        """Whether the server closes the connection, without another byte."""
        try:
            return self.sock.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
