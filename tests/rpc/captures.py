# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="no-any-return, redundant-expr"
"""What apache-tvm said on the wire (captures.txt), and a reading of it that owes nothing to the core.

A frame is ``(code, content)``; the content is made of ints, floats, str, bytes and the small classes below, so that two
frames can be compared with their handles set aside.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

INIT, CALL, RETURN, EXCEPTION, COPY_FROM, COPY_TO, ACK, SHUTDOWN = 2, 3, 4, 5, 6, 7, 8, 1
FREE, FREE_DATA, SYNC = 10, 14, 15
NONE, INT, BOOL, FLOAT, POINTER, DTYPE, DEVICE, TENSOR, TEXT, BYTES = range(10)
STR, BYTES_OBJECT, FUNCTION, MODULE, REMOTE = 65, 66, 68, 73, 115


@dataclass(frozen=True)
class Capture:
    """One message: the section it belongs to, who said it, and its bytes."""

    name: str
    from_client: bool
    data: bytes

    @property
    def is_frame(self) -> bool:
        """Whether it belongs to a session, rather than to a handshake, a tracker or a proxy."""
        return not self.name.startswith(("tracker", "proxy")) and len(self.data) >= 12 and self.data[4:8] == bytes(4)


@dataclass(frozen=True)
class Handle:
    """A number that the server chose."""

    number: int


@dataclass(frozen=True)
class Value:
    """A value with the type index that is written before it; ``inner`` where it is wrapped."""

    type: int
    content: Any = None
    inner: int = 0


@dataclass(frozen=True)
class WireTensor:
    data: Handle
    device: tuple[int, int]
    dtype: tuple[int, int, int]
    shape: tuple[int, ...]
    byte_offset: int


Frame = tuple[int, Any]


def read() -> list[Capture]:
    """Return all captures, in order."""
    captures, name = [], ""
    for line in (Path(__file__).with_name("captures.txt")).read_text().splitlines():
        if line.startswith("== "):
            name = line[3:]
        elif line[:2] in ("> ", "< "):
            captures.append(Capture(name, line[0] == ">", bytes.fromhex(line.split()[1])))
    return captures


def section(start: str) -> list[Capture]:
    """Return the captures of the sections whose names start so.

    Raises:
        LookupError: there are none.
    """
    found = [capture for capture in read() if capture.name.startswith(start)]
    if not found:
        raise LookupError(start)
    return found


# ---- Reading ---------------------------------------------------------------------------------------------------------


class Cursor:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, layout: str) -> Any:
        values = struct.unpack_from("<" + layout, self.data, self.at)
        self.at += struct.calcsize("<" + layout)
        return values if len(values) > 1 else values[0]

    def bytes(self, size: int) -> bytes:
        part = self.data[self.at : self.at + size]
        assert len(part) == size
        self.at += size
        return part

    def tensor(self) -> WireTensor:
        data, kind, index, ndim, code, bits, lanes = self.take("QiiiBBH")
        shape = tuple(self.take("q") for _ in range(ndim))
        return WireTensor(Handle(data), (kind, index), (code, bits, lanes), shape, self.take("Q"))

    def value(self) -> Value:
        kind = self.take("i")
        if kind in (11, 12) or (kind >= 64 and kind not in (FUNCTION, MODULE)):
            inner = self.take("i")
            assert inner in (STR, BYTES_OBJECT, REMOTE)
            return Value(kind, Handle(self.take("Q")) if inner == REMOTE else self.bytes(self.take("Q")), inner)
        if kind in (POINTER, FUNCTION, MODULE):
            return Value(kind, Handle(self.take("Q")))
        plain: dict[int, Callable[[], Any]] = {
            NONE: lambda: None,
            INT: lambda: self.take("q"),
            BOOL: lambda: self.take("q"),
            FLOAT: lambda: self.bytes(8),  # as bytes: a NaN does not equal itself
            DTYPE: lambda: self.take("BBHi"),
            DEVICE: lambda: self.take("ii"),
            TENSOR: self.tensor,
            TEXT: lambda: self.bytes(self.take("Q")),
            BYTES: lambda: self.bytes(self.take("Q")),
        }
        return Value(kind, plain[kind]())

    def values(self) -> tuple[Value, ...]:
        return tuple(self.value() for _ in range(self.take("i")))


def decode(data: bytes) -> Frame:
    """Read one frame."""
    cursor = Cursor(data)
    length, code = cursor.take("Qi")
    assert length == len(data) - 8
    content: Any
    if code == INIT:
        content = (cursor.bytes(cursor.take("Q")), cursor.values())
    elif code == CALL:
        content = (Handle(cursor.take("Q")), cursor.values())
    elif code in (COPY_FROM, COPY_TO):
        content = (cursor.tensor(), cursor.take("Q"), cursor.bytes(len(data) - cursor.at))
    elif code in (ACK, SHUTDOWN):
        content = cursor.bytes(len(data) - cursor.at)
    else:
        content = cursor.values()
    assert cursor.at == len(data)
    return code, content


def frames(data: bytes) -> list[Frame]:
    """Read all frames of a stream that ends with the last."""
    return [decode(part) for part in split(data)]


def split(data: bytes) -> Iterator[bytes]:
    """Cut a stream into its frames."""
    while data:
        end = 8 + int.from_bytes(data[:8], "little")
        assert end <= len(data)
        yield data[:end]
        data = data[end:]


# ---- Writing ---------------------------------------------------------------------------------------------------------


def _encode_tensor(tensor: WireTensor) -> bytes:
    head = struct.pack("<QiiiBBH", tensor.data.number, *tensor.device, len(tensor.shape), *tensor.dtype)
    return head + struct.pack(f"<{len(tensor.shape)}qQ", *tensor.shape, tensor.byte_offset)


def _encode_value(value: Value) -> bytes:
    out = struct.pack("<i", value.type) + (struct.pack("<i", value.inner) if value.inner else b"")
    content = value.content
    if isinstance(content, Handle):
        return out + struct.pack("<Q", content.number)
    if isinstance(content, WireTensor):
        return out + _encode_tensor(content)
    if isinstance(content, bytes):
        return out + (content if value.type == FLOAT else struct.pack("<Q", len(content)) + content)
    if isinstance(content, tuple):
        return out + struct.pack("<BBHi" if value.type == DTYPE else "<ii", *content)
    return out if content is None else out + struct.pack("<q", content)


def encode_values(values: tuple[Value, ...]) -> bytes:
    return struct.pack("<i", len(values)) + b"".join(map(_encode_value, values))


def encode(frame: Frame) -> bytes:
    """Write one frame: ``decode`` backwards."""
    code, content = frame
    if code == INIT:
        body = struct.pack("<Q", len(content[0])) + content[0] + encode_values(content[1])
    elif code == CALL:
        body = struct.pack("<Q", content[0].number) + encode_values(content[1])
    elif code in (COPY_FROM, COPY_TO):
        body = _encode_tensor(content[0]) + struct.pack("<Q", content[1]) + content[2]
    elif code in (ACK, SHUTDOWN):
        body = content
    else:
        body = encode_values(content)
    return struct.pack("<Qi", 4 + len(body), code) + body


def with_handles(content: Any, rename: Callable[[int], int]) -> Any:
    """Return a frame, or a part of one, with its handles renamed."""
    if isinstance(content, Handle):
        return Handle(rename(content.number))
    if isinstance(content, Value):
        return replace(content, content=with_handles(content.content, rename))
    if isinstance(content, WireTensor):
        return replace(content, data=with_handles(content.data, rename))
    if isinstance(content, tuple):
        return tuple(with_handles(part, rename) for part in content)
    return content


def handles(content: Any) -> list[int]:
    """The handles of a frame, or of a part of one, in order."""
    found: list[int] = []
    with_handles(content, lambda number: found.append(number) or number)  # type: ignore[func-returns-value]
    return found
