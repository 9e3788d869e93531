# SPDX-License-Identifier: Apache-2.0
"""What a client may ask of an object that stays on the server, and calls with keyword arguments.

For portcall clients, all ``portcall.rpc.``:

    object_describe(object) -> {type, fields, methods, length}   length: -1 for what has none, -2 for iterators
    object_field(object, name)     object_item(object, key)     object_call(object, method, ...)
    object_next(iterator, most) -> [whether that was all, items]     object_close(iterator)
    call_with_names(function, names, ...)     the last arguments have these names
    object_signature(function) -> its signature, as lists; None when it has none

Rule: only what a description or a registered class lists can be reached: no name that begins with an underscore.
"""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from portcall import _core
from portcall._container import Array, Dict, List, Map, Shape
from portcall._core import Object, PackedFunc
from portcall._function import register_func
from portcall._signature import to_plain

NO_LENGTH, ITERATOR = -1, -2
_SEQUENCES = (Array, List, Shape)
_CONTAINERS = (*_SEQUENCES, Map, Dict)
_MOST_SECONDS = 0.02  # for items to be gathered after the first
_MOST_BYTES = 1 << 20  # of items that are gathered


def _description(value: object) -> tuple[str, list[str], list[str]]:
    """Return the type, the fields and the methods of an object."""
    if not isinstance(value, Object):
        return type(value).__name__, [], []
    _, _, _, _, _, fields, methods = _core.describe_type(_core.type_index_of(value.type_key))
    described = [name for name, *_ in methods if not name.startswith("_")]
    own = [
        name
        for cls in type(value).__mro__
        if issubclass(cls, Object) and not cls.__module__.startswith("portcall.")
        for name, member in vars(cls).items()
        if inspect.isfunction(member) and not name.startswith("_")
    ]
    return value.type_key, [access.__name__ for access, *_ in fields], list(dict.fromkeys([*own, *described]))


def object_describe(value: Any) -> dict[str, Any]:
    kind, fields, methods = _description(value)
    length = len(value) if isinstance(value, _CONTAINERS) else ITERATOR if isinstance(value, Iterator) else NO_LENGTH
    return {"type": kind, "fields": fields, "methods": methods, "length": length}


def object_field(value: Any, name: str) -> Any:
    kind, fields, _ = _description(value)
    if name not in fields:
        raise AttributeError(f"{kind} has no field '{name}'")
    return getattr(value, name)


def object_item(value: Any, key: Any) -> Any:
    if not isinstance(value, _CONTAINERS):
        raise TypeError(f"{_description(value)[0]} has no items")
    return value[key]


def object_call(value: Any, name: str, *args: Any) -> Any:
    kind, _, methods = _description(value)
    if name not in methods:
        raise AttributeError(f"{kind} has no method '{name}'")
    return getattr(value, name)(*args)


def call_with_names(func: PackedFunc, names: Sequence[str], *args: Any) -> Any:
    count = len(args) - len(names)
    if count < 0:
        raise ValueError(f"{len(names)} names for {len(args)} arguments")
    return func(*args[:count], **dict(zip(map(str, names), args[count:], strict=True)))


def object_signature(func: PackedFunc) -> list[Any] | None:
    try:
        return to_plain(inspect.signature(func))
    except (TypeError, ValueError):  # it says nothing of its parameters
        return None


# ---- Iterators ----

_failed: list[tuple[Any, BaseException]] = []  # iterators that raised after items which went out first


def object_next(value: Any, most: int) -> list[Any]:
    """Return some of the next items: what comes within a moment, and at least one."""
    if not isinstance(value, Iterator):
        raise TypeError(f"{_description(value)[0]} cannot be iterated over")
    for i, (iterator, error) in enumerate(_failed):
        if iterator is value:
            del _failed[i]
            raise error
    items: list[Any] = []
    until, room = time.monotonic() + _MOST_SECONDS, _MOST_BYTES
    while len(items) < max(most, 1) and (not items or (time.monotonic() < until and room > 0)):
        try:
            items.append(next(value))
        except StopIteration:
            return [True, items]
        except Exception as error:
            if not items:
                raise
            _failed.append((value, error))
            break
        room -= _size_of(items[-1])
    return [False, items]


def object_close(value: Any) -> None:
    """End an iterator: a generator runs its ``finally`` blocks."""
    _failed[:] = [entry for entry in _failed if entry[0] is not value]
    close = getattr(value, "close", None)
    if isinstance(value, Iterator) and callable(close):
        close()


def _size_of(item: object) -> int:
    """Return about how many bytes an item has."""
    if isinstance(item, (str, bytes)):
        return len(item)
    if isinstance(item, Mapping):
        return sum(map(_size_of, item.values()))
    if isinstance(item, (list, tuple, *_SEQUENCES)):
        return sum(map(_size_of, item))
    with contextlib.suppress(Exception):
        return int(item.nbytes)  # type: ignore[attr-defined]
    return 16


_FUNCTIONS = (
    object_describe, object_field, object_item, object_call, object_next, object_close, call_with_names,
    object_signature,
)  # fmt: skip


def register_object_functions() -> None:
    """Register them, once for each process."""
    for function in _FUNCTIONS:
        register_func(f"portcall.rpc.{function.__name__}", function, override=True)
