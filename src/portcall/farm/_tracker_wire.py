# SPDX-License-Identifier: Apache-2.0
"""The messages of TVM's tracker: bytes to requests and answers to bytes. No I/O here.

A peer opens with ``71 f2 02 00``, which the tracker echoes. Then both send messages:
a 32-bit little-endian length, and that many bytes of JSON.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from portcall.rpc.wire._texts import check_text, check_value

T = TypeVar("T")

MAGIC = b"\x71\xf2\x02\x00"
PING, STOP, PUT, REQUEST, UPDATE_INFO, SUMMARY, PENDING = 1, 2, 3, 4, 5, 6, 7
MOST_BYTES = 1 << 20
MOST_TEXT = 512  # characters of a key, a match key or an address
MOST_INFO = 16 << 10

_LENGTH = struct.Struct("<i")


class WireError(Exception):
    """What a peer sent has no meaning; the text says what was wrong."""


class Reader:
    """Takes bytes in any split; ``feed`` returns the complete messages, the first of which is the magic number."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._greeted = False

    def feed(self, data: bytes) -> list[Any]:
        """Return what is complete: None for the magic number, else the value of a message.

        Raises:
            WireError: the bytes are not such a message.
        """
        self._data += data
        found: list[Any] = []
        if not self._greeted:
            if len(self._data) < len(MAGIC):
                return found
            if self._data[: len(MAGIC)] != MAGIC:
                raise WireError("the magic number is not that of the tracker's protocol")
            del self._data[: len(MAGIC)]
            self._greeted = True
            found.append(None)
        position = 0
        while len(self._data) - position >= _LENGTH.size:
            (size,) = _LENGTH.unpack_from(self._data, position)
            if not 1 <= size <= MOST_BYTES:
                raise WireError(f"invalid length {size} of a message (must be 1-{MOST_BYTES})")
            end = position + _LENGTH.size + size
            if len(self._data) < end:
                break
            found.append(_parse(bytes(self._data[position + _LENGTH.size : end])))
            position = end
        del self._data[:position]
        return found


def _parse(data: bytes) -> Any:
    try:
        value = json.loads(data.decode())
    except UnicodeDecodeError:
        raise WireError("a message is not UTF-8") from None
    except (ValueError, RecursionError):
        raise WireError("a message is not JSON") from None
    if not isinstance(value, list) or not value:
        raise WireError("a message is not an array that begins with a code")
    return value


def message(value: Any) -> bytes:
    """Return the bytes of an answer."""
    data = json.dumps(value).encode()
    return _LENGTH.pack(len(data)) + data


def code_of(request: list[Any]) -> int:
    """Return the code of a request.

    Raises:
        WireError: there is no such code.
    """
    code = request[0]
    if not isinstance(code, (int, float)) or code not in (PING, STOP, PUT, REQUEST, UPDATE_INFO, SUMMARY, PENDING):
        raise WireError(f"invalid code {str(code)[:40]!r} (must be 1-7)")
    return int(code)


def text_of(value: Any, what: str) -> str:
    """Return a key as text; numbers are taken as their text, as TVM's peers may send them.

    Raises:
        WireError: it is not a str, is empty or too long, or has control characters.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = json.dumps(value)
    return _fit(check_text, value, what, most=MOST_TEXT)


def _fit(check: Callable[..., T], value: Any, what: str, **limits: int) -> T:
    """Pass a value through the door for all that comes from outside.

    Raises:
        WireError: it is not fit.
    """
    try:
        return check(value, what, **limits)
    except ValueError as error:
        raise WireError(str(error)) from None


def port_of(value: Any) -> int:
    """Return a port, which TVM's servers may write as text.

    Raises:
        WireError: it is invalid.
    """
    if isinstance(value, str) and value.isdecimal() and len(value) < 6:
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 65536:
        raise WireError(f"invalid port {str(value)[:40]!r} (must be 1-65535)")
    return value


def put_of(request: list[Any]) -> tuple[str, int, str, str]:
    """Return key, port, match key and address (empty: the peer's own) of a PUT.

    Raises:
        WireError: it is of another form.
    """
    if len(request) < 3 or not isinstance(request[2], list) or len(request[2]) != 2:
        raise WireError("PUT must be [3, key, [port, match key], address or null]")
    address = request[3] if len(request) > 3 and request[3] is not None else ""
    port, match_key = request[2]
    _fit(check_text, address, "address", least=0)
    return text_of(request[1], "key"), port_of(port), text_of(match_key, "match key"), address


def request_of(request: list[Any]) -> tuple[str, str, float]:
    """Return key, user and priority of a REQUEST.

    Raises:
        WireError: it is of another form.
    """
    if len(request) < 4:
        raise WireError("REQUEST must be [4, key, user, priority]")
    user = _fit(check_text, request[2], "user", least=0, most=MOST_TEXT) if isinstance(request[2], str) else ""
    priority = request[3]
    if not isinstance(priority, (int, float)):
        raise WireError("the priority of a REQUEST must be a number")
    return text_of(request[1], "key"), user, 0.0 if priority != priority else float(max(-1e9, min(1e9, priority)))


def info_of(request: list[Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of an UPDATE_INFO, with those that were known already.

    Raises:
        WireError: it is of another form.
    """
    info = request[1] if len(request) > 1 else None
    address = info.get("addr") if isinstance(info, dict) else None
    if not isinstance(info, dict) or not isinstance(address, (list, tuple)) or not address:
        raise WireError('UPDATE_INFO must be [5, {"key": text, "addr": [address or null, port]}]')
    _fit(check_value, info, "info")
    facts = {**known, **info}
    if len(json.dumps(facts)) > MOST_INFO:
        raise WireError(f"the facts of a connection are too long (at most {MOST_INFO} bytes)")
    return facts
