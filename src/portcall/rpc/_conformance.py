# SPDX-License-Identifier: Apache-2.0
"""Golden vectors of the extensions between portcall peers, for other implementations of docs/wire.md."""

from __future__ import annotations

import struct
from typing import Any

from portcall._container import Array, Shape
from portcall._tensor import tensor
from portcall.rpc.wire import _facts, _handshake, _values
from portcall.rpc.wire._facts import CLIENT_HANDLES, FEATURES, MAGIC
from portcall.rpc.wire._layouts import (
    BY_VALUE,
    CALLBACK,
    CALLBACK_EXCEPTION,
    CALLBACK_RETURN,
    CANCEL,
    CLIENT_FUNCTION,
    DROP_FUNCTION,
    EXCEPTION,
    FETCH,
    NUMBER_CALL,
    OUTPUT,
    POSTED_CALL,
    SYNC,
)

_TOKEN, _NONCE = "a token of the vectors", "00112233445566778899aabbccddeeff"
_TARGET, _FUNCTION = CLIENT_HANDLES + 7, 0x1000  # the first handle that our servers give
_OUTER_VALUES = (
    ("plain values", [1, -2, "text", b"bytes", None, 2.5], [1, -2, "text", {"bytes": "6279746573"}, None, 2.5]),
    ("containers in containers", [[], {"a": [1, {"b": 2}]}], [[], {"a": [1, {"b": 2}]}]),
    ("an array", [tensor([0.0, 1.0], "float32")], [{"dtype": "float32", "shape": [2], "elements": [0.0, 1.0]}]),
    ("a Shape", Shape([2, 3]), {"shape": [2, 3]}),
)  # fmt: skip
_SECONDS = (
    *(("20", 20), ("20.25", 20.25), ("3000e-01", 300), ("1.5E+2", 150)),
    *((text, None) for text in ("0x10", "1_0", ".5", "5.", "+1", "-1", "1e", "inf", "nan", "1e12", "1,5")),
)  # None: it is refused
_KEYS = (("k\u00a0x", True), ("k:x=y", True), *((f"k{blank}x", False) for blank in _facts.BLANKS))  # whether it is one
_FEATURES: tuple[tuple[str, list[str]], ...] = (
    ("callback,pipeline", ["callback", "pipeline"]), ("callback2,pipeline", ["pipeline"]),
    ("values,values", ["values"]), (",traceback,,Post,unknown", ["traceback"]), ("", []),
)  # fmt: skip


def vectors() -> list[dict[str, Any]]:
    """Return the vectors, as ``portcall.testing.conformance`` says."""
    hello = _handshake.client_hello("key", nonce=_NONCE, features=[*FEATURES])
    reply = _handshake.server_reply("key", _handshake.extension_options(["values"], session="1", secret="s"))
    made = [
        _vector("hello", "", "client", hello, {"key": "key", "features": [*FEATURES], "nonce": _NONCE}),
        _vector("reply", "", "server", reply, {"key": "key", "features": ["values"], "session": "1", "secret": "s"}),
    ]
    for role in ("client", "server"):
        data = _handshake.proof(_TOKEN, role, hello + reply)
        made.append(
            _vector(f"proof of the {role}", "", role, data, {"token": _TOKEN, "transcript": (hello + reply).hex()})
        )
    for text, seconds in _SECONDS:
        data = _hello(f"client:k -seconds={text} -timeout=1")
        made.append(_vector("time of a session", "", "client", data, {"text": text, "seconds": seconds}))
    for key, whole in _KEYS:
        data = _hello(f"client:{key} -portcall=1")
        made.append(_vector("key", "", "client", data, {"key": key, "whole": whole}))
    for text, features in _FEATURES:
        for role in ("client", "server"):
            data = _hello(f"{role}:k -portcall=1 -features={text}")
            made.append(_vector(f"features of the {role}", "", role, data, {"text": text, "features": features}))
    for stream, dropped, text in ((1, 0, "a line\n"), (2, 3, "zwölf\nlines\n")):
        frame = OUTPUT.pack(stream, dropped, text.encode())
        made.append(_vector("output", "output", "server", frame, {"stream": stream, "dropped": dropped, "text": text}))
    for name, data in (
        ("posted call", POSTED_CALL.pack(_TARGET, _FUNCTION, 0)), ("sync", SYNC.pack(1, 1, 1)),
        ("fetch", FETCH.pack(1, 4, _TARGET)),
    ):  # fmt: skip
        made.append(_vector(name, "post", "client", data, {"target": _TARGET, "function": _FUNCTION, "report": True}))
    error, trace = b"ValueError: boom", b'  File "f.py", line 3, in f\n'
    made.append(
        _vector("exception", "traceback", "server", EXCEPTION.pack(2, 8, error, 8, trace),
                {"class": "ValueError", "message": "boom", "frames": [["f.py", 3, "f"]]})
    )  # fmt: skip
    for name, sender, data in (
        ("function of the client", "client", CLIENT_FUNCTION.pack(117, 5)),
        ("callback", "server", CALLBACK.pack(1, 0, 5, 0)), ("drop function", "server", DROP_FUNCTION.pack(5)),
        ("return of a callback", "client", callback_return(1, struct.pack("<iq", 1, 7))),
        ("exception of a callback", "client", CALLBACK_EXCEPTION.pack(1, 2, 8, error, 8, trace)),
    ):  # fmt: skip
        made.append(_vector(name, "callback", sender, data, {"callback": 1, "function": 5, "result": 7}))
    for name, data in (("number of a call", NUMBER_CALL.pack(3)), ("cancel", CANCEL.pack(3))):
        made.append(_vector(name, "cancel", "client", data, {"number": 3}))
    for name, value, meaning in _OUTER_VALUES:
        saved = _values.to_value(value if isinstance(value, Shape) else Array(value), 2) or b""
        made.append(_vector(f"value: {name}", "values", "both", BY_VALUE.pack(BY_VALUE.code, saved), meaning))
    return made


def _hello(text: str) -> bytes:
    words = text.encode()
    return struct.pack("<ii", MAGIC, len(words)) + words


def _vector(name: str, feature: str, sender: str, data: bytes, meaning: Any) -> dict[str, Any]:
    return {"name": name, "feature": feature, "sender": sender, "hex": data.hex(), "meaning": meaning}


def callback_return(number: int, value: bytes) -> bytes:
    """Return the frame that answers a callback with a value."""
    frame = CALLBACK_RETURN.pack(number, 1) + value
    return struct.pack("<Q", len(frame) - 8) + frame[8:]


def answer(value: bytes) -> bytes:
    """Return the answer to a call with a value of ``vectors``."""
    body = struct.pack("<iiiq", 4, 2, 1, 71) + value
    return struct.pack("<Q", len(body)) + body
