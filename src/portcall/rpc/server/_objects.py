# SPDX-License-Identifier: Apache-2.0
"""What a client may ask of an object that stays on the server, and calls with keyword arguments.

For portcall clients, all ``portcall.rpc.``:

    object_describe(object) -> {type, fields, methods, length}   length: -1 for what has none, -2 for iterators
    object_field(object, name)     object_item(object, key)     object_call(object, method, ...)
    object_next(iterator, most) -> [whether that was all, items]     object_close(iterator)
    call_with_names(function, names, ...)     the last arguments have these names
    object_enter(manager)     object_exit(manager, class, message) -> whether that error is dealt with; "" for none
    object_signature(function) -> its signature, as lists; None when it has none

Rule: only what a description or a registered class lists can be reached: no name that begins with an underscore.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from portcall import _core
from portcall._container import Array, List, Shape
from portcall._core import Object, PackedFunc
from portcall._function import register_func
from portcall._module import session_library
from portcall._signature import to_plain
from portcall.rpc.server._session import register_values

NO_LENGTH, ITERATOR = -1, -2
_SEQUENCES = (Array, List, Shape)
_MOST_SECONDS = 0.02  # for items to be gathered after the first
_MOST_BYTES = 1 << 20  # of items that are gathered


def _type_of(value: object) -> str:
    return value.type_key if isinstance(value, Object) else type(value).__name__


def _own_methods(value: object) -> dict[str, None]:
    """Return the names of the methods that a class written in Python adds to its type, in order."""
    return dict.fromkeys(
        name
        for cls in type(value).__mro__
        if issubclass(cls, Object) and not cls.__module__.startswith("portcall.")
        for name, member in vars(cls).items()
        if inspect.isfunction(member) and not name.startswith("_")
    )


def object_describe(value: Any) -> dict[str, Any]:
    if not isinstance(value, Object):
        length = ITERATOR if isinstance(value, Iterator) else NO_LENGTH
        return {"type": _type_of(value), "fields": [], "methods": [], "length": length}
    described = dict(_of_core()["portcall.rpc.object_describe"](value))
    return described | {"methods": [*dict.fromkeys([*_own_methods(value), *described["methods"]])]}


def object_field(value: Any, name: str) -> Any:
    """Return a field; as a result of Python it goes by value where it can."""
    return _of_core()["portcall.rpc.object_field"](value, name)


def object_item(value: Any, key: Any) -> Any:
    """Return an item; as a result of Python it goes by value where it can."""
    return _of_core()["portcall.rpc.object_item"](value, key)


def object_call(value: Any, name: str, *args: Any) -> Any:
    if name in _own_methods(value):
        return getattr(value, name)(*args)
    return _of_core()["portcall.rpc.object_call"](value, name, *args)


def call_with_names(func: PackedFunc, names: Sequence[str], *args: Any) -> Any:
    count = len(args) - len(names)
    if count < 0:
        raise ValueError(f"{len(names)} names for {len(args)} arguments")
    return func(*args[:count], **dict(zip(map(str, names), args[count:], strict=True)))


def object_enter(value: Any) -> Any:
    """Begin the block of a context manager; what it gives to ``as`` is the result."""
    enter = getattr(type(value), "__enter__", None)
    if enter is None or not hasattr(type(value), "__exit__"):
        raise TypeError(f"{_type_of(value)} is no context manager")
    return enter(value)


def object_exit(value: Any, kind: str, message: str) -> bool:
    """End the block. After an error of the client, if there is a class, it comes as what is known by that name."""
    if not kind:
        return bool(value.__exit__(None, None, None))
    error = _error_of(kind, message)
    try:
        return bool(value.__exit__(type(error), error, None))
    except BaseException as raised:
        if raised is error:
            return False
        raise


def _error_of(kind: str, message: str) -> BaseException:
    cls = _core.registered_error_class(kind) or getattr(builtins, kind, None)
    if isinstance(cls, type) and issubclass(cls, BaseException):
        with contextlib.suppress(Exception):  # some take other arguments
            return cls(message)
    return RuntimeError(f"{kind}: {message}")


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
        raise TypeError(f"{_type_of(value)} cannot be iterated over")
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


_OWN = (
    object_describe, object_field, object_item, object_call, object_next, object_close, call_with_names,
    object_signature, object_enter, object_exit,
)  # fmt: skip


@functools.cache
def _of_core() -> dict[str, Any]:
    """Return what core/session has, for objects of every language."""
    parts = session_library()["objects"]()
    return dict(zip(map(str, parts[::2]), parts[1::2], strict=True))


@functools.cache
def functions_for_objects() -> dict[str, Any]:
    """Return the functions by name: those of core/session, and in the place of some what knows Python."""
    return _of_core() | {f"portcall.rpc.{function.__name__}": function for function in _OWN}


def register_object_functions() -> None:
    """Register them, once for each process, and those by which a session has objects by value."""
    register_values()
    for name, function in functions_for_objects().items():
        register_func(name, function, override=True)
