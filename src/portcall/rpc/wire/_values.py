# SPDX-License-Identifier: Apache-2.0
"""Objects by value: containers, Shapes and objects of described types in the binary form of ``portcall.ir``.

The first byte says whether there are objects in it whose type a reader may not know: then the sender adds a reference.
Nothing is pickled, so reading runs no code but the hooks of types that the reader has registered.
"""

from __future__ import annotations

from typing import Any

from portcall import errors
from portcall._function import register_func
from portcall.ir._operations import from_bytes, function, to_bytes, walk
from portcall.rpc.wire._facts import MOST_DEPTH, MOST_NODES, MOST_VALUE_BYTES

_WITHOUT_TENSORS, _WHERE_POSSIBLE, _ALWAYS = range(3)  # Save in core/rpc/local_session.h
_PLAIN, _TYPED = b"\0", b"\1"


def to_value(value: Any, save: int, position: int = -1) -> bytes | None:
    """Return the bytes of an object.

    Args:
        save: for objects that have no binary form: None is returned, or with 2 an error is raised. 0 takes tensors for
            such, too: functions of C++ return them so that they stay where they are.
        position: of the argument that it is, for the error; -1: it is what a callback returns.

    Raises:
        ArgumentError: it holds something that cannot be sent, such as a function; the message says which and where.
    """
    try:
        if save == _WITHOUT_TENSORS and walk(value, "ffi.Tensor"):
            return None
        data = to_bytes(value)
        if len(data) >= MOST_VALUE_BYTES:
            raise ValueError(f"it has {len(data)} bytes (at most {MOST_VALUE_BYTES})")
        typed = any(not key.startswith("ffi.") for key in function("portcall.ir.TypeKeys")(value))
        return (_TYPED if typed else _PLAIN) + data
    except (TypeError, ValueError) as error:
        if save != _ALWAYS:
            return None
        name = getattr(value, "type_key", type(value).__name__)
        place = f"argument #{position}" if position >= 0 else "the result of a callback"
        why = f"{name} cannot be sent by value: {error}"
        if unknown := walk(value, "ffi.OpaquePyObject"):  # objects of Python, which only this process knows
            name = type(unknown[0]).__name__
            why = (
                f"a Python object of type '{name}' cannot be sent to another process; send numbers, text, bytes, "
                "arrays, lists, dicts, functions or objects of registered classes"
            )
        raise errors.ArgumentError(f"{place}: {why}", position=position, expected="an object that can be saved",
                                   got=name) from None  # fmt: skip


def from_value(data: bytes) -> Any:
    """Return the object.

    Raises:
        RemoteProtocolError: the bytes are damaged, too deep, or have types that are not known here.
    """
    try:
        return from_bytes(bytes(data[1:]), max_nodes=MOST_NODES, max_depth=MOST_DEPTH)
    except (ValueError, TypeError) as error:
        raise errors.RemoteProtocolError(f"an object that came by value cannot be read: {error}") from None


register_func("portcall.rpc.ValueToBytes", to_value, override=True)
register_func("portcall.rpc.ValueFromBytes", from_value, override=True)
