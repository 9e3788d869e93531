# SPDX-License-Identifier: Apache-2.0
"""The bytes of each extension, as tables: docs/wire.md shows them, and so do the vectors for other implementations."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from portcall.rpc.wire import _facts
from portcall.rpc.wire._facts import NESTED, POSTED, Code

_NUMBERS = {"i32": "<i", "i64": "<q", "u64": "<Q"}


@dataclass(frozen=True)
class Layout:
    """The bytes of a frame's body, or of a value in a sequence.

    Attributes:
        feature: of the hello, which turns it on.
        where: "frame" or "value".
        code: of the frame, or the index of the value.
        sender: "client", "server" or "both".
        fields: a type (``i32``, ``i64``, ``u64``; ``text`` and ``bytes`` after a u64 with their size) and a meaning.
    """

    feature: str
    where: str
    code: int
    name: str
    sender: str
    fields: tuple[tuple[str, str], ...]

    def pack(self, *values: int | bytes) -> bytes:
        """Return a whole frame, or a whole value with its index."""
        body = struct.pack("<i", self.code)
        for (kind, _), value in zip(self.fields, values, strict=True):
            if isinstance(value, bytes):
                body += struct.pack("<Q", len(value)) + value
            else:
                body += struct.pack(_NUMBERS[kind], value)
        return struct.pack("<Q", len(body)) + body if self.where == "frame" else body


OUTPUT = Layout(
    "output", "frame", Code.OUTPUT, "Output", "server",
    (("i32", "stream: 1 stdout, 2 stderr"), ("u64", "lines dropped before"), ("text", "what was printed")),
)  # fmt: skip
BY_VALUE = Layout(
    "values", "value", _facts.BY_VALUE, "object by value", "both",
    (("i32", f"{_facts.BY_VALUE} again"),
     ("bytes", "1 if objects of registered types are in it, else 0; then the binary form")),
)  # fmt: skip
EXCEPTION = Layout(
    "traceback", "frame", Code.EXCEPTION, "Exception", "server",
    (("i32", "2 values"), ("i32", "8"), ("text", "class and message"), ("i32", "8"), ("text", "traceback")),
)  # fmt: skip
POSTED_CALL = Layout(
    "post", "frame", POSTED + Code.CALL_FUNC, "posted CallFunc", "client",
    (("u64", "target"), ("u64", "function"), ("i32", "number of arguments, which follow")),
)  # fmt: skip
SYNC = Layout(
    "post", "frame", Code.SYNC, "Sync", "client",
    (("i32", "1 value"), ("i32", "1"), ("i64", "1 to hear of errors, else 0")),
)  # fmt: skip
FETCH = Layout("post", "frame", Code.FETCH, "Fetch", "client", (("i32", "1 value"), ("i32", "4"), ("u64", "target")))
CALLBACK = Layout(
    "callback", "frame", NESTED + Code.CALLBACK, "Callback", "server",
    (("u64", "number of the callback, not 0"),
     ("u64", "callback in which it is made, 0 in a request, 2^64 - 1 in none"),
     ("u64", "function"), ("i32", "number of values, which follow: type, value, handle or null of each argument")),
)  # fmt: skip
CALLBACK_RETURN = Layout(
    "callback", "frame", NESTED + Code.RETURN, "Return of a callback", "client",
    (("u64", "number of the callback"), ("i32", "1 value, which follows as in CallFunc")),
)  # fmt: skip
CALLBACK_EXCEPTION = Layout(
    "callback", "frame", NESTED + Code.EXCEPTION, "Exception of a callback", "client",
    (("u64", "number of the callback"), *EXCEPTION.fields),
)  # fmt: skip
DROP_FUNCTION = Layout("callback", "frame", Code.DROP_FUNCTION, "DropFunction", "server", (("u64", "function"),))
CLIENT_FUNCTION = Layout(
    "callback", "value", _facts.CLIENT_FUNCTION, "function of the client", "client",
    (("i32", f"{_facts.CLIENT_FUNCTION} again"), ("u64", "function")),
)  # fmt: skip
NUMBER_CALL = Layout(
    "cancel", "frame", Code.NUMBER_CALL, "NumberCall", "client", (("u64", "number of the next CallFunc"),)
)
CANCEL = Layout("cancel", "frame", NESTED + Code.CANCEL, "Cancel", "client", (("u64", "number"),))
LAYOUTS = (
    OUTPUT, POSTED_CALL, SYNC, FETCH, EXCEPTION, BY_VALUE,
    CLIENT_FUNCTION, CALLBACK, CALLBACK_RETURN, CALLBACK_EXCEPTION, DROP_FUNCTION, NUMBER_CALL, CANCEL,
)  # fmt: skip


def markdown() -> str:
    """Return the table for docs/wire.md."""
    rows = ["| feature | what | code | from | bytes after it |", "| --- | --- | --- | --- | --- |"]
    for layout in LAYOUTS:
        fields = "; ".join(f"`{kind}` {meaning}" for kind, meaning in layout.fields)
        name = f"{layout.where} {layout.name}"
        rows.append(f"| `{layout.feature}` | {name} | {layout.code} | {layout.sender} | {fields} |")
    return "\n".join(rows)
