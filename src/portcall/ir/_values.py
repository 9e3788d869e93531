# SPDX-License-Identifier: Apache-2.0
"""Objects as values: what ``eq=``, ``order=`` and ``unsafe_hash=`` of ``register_object`` put into a class.

Two objects are equal when their types are the same and their fields are, all the way down, fields with
``compare=False`` left out. As in ``structural_equal``, values of different kinds differ: 1, 1.0 and True are three.
Unlike there, variables are compared by their fields, 0.0 equals -0.0, and the hooks ``__ffi_eq__``,
``__ffi_compare__`` and ``__ffi_hash__`` of a type decide for its objects. Depth is limited by Python's stack.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from portcall import _core
from portcall._container import Array, Dict, List, Map
from portcall._core import Object
from portcall.ir import _operations

_Pairs = set[tuple[int, int]]


class _Unordered(TypeError):
    pass


def equal(left: Any, right: Any) -> bool:
    """Return whether two values are equal. Objects that contain themselves may be."""
    return _compare(left, right, False, set()) == 0


def compare(left: Any, right: Any) -> int:
    """Return a number below, equal to or above 0, as ``left`` comes before ``right``, is equal to it, or comes after.

    None comes before all, NaN after all other numbers. What has no order, such as a Map, may be equal.

    Raises:
        TypeError: values of different kinds, or different values of a kind without an order.
        ValueError: objects that contain themselves.
    """
    return _compare(left, right, True, set())


def hash_of(value: Any) -> int:
    """Return a hash that is the same for equal values. It changes with the value.

    Raises:
        TypeError: a type with an equality of its own (``__ffi_eq__``, ``__ffi_compare__``) and no ``__ffi_hash__``.
        ValueError: an object that contains itself.
    """
    return _hash(value, set())


def _compare(left: Any, right: Any, order: bool, busy: _Pairs) -> int:
    if left is None or right is None:
        return (left is not None) - (right is not None)
    if type(left) is not type(right) and not _same_type(left, right):
        if order:
            raise _Unordered(f"a {_kind(left)} and a {_kind(right)} have no order")
        return 1
    if not isinstance(left, Object):
        return _compare_plain(left, right, order)
    if left.same_as(right):
        return 0
    pair = (left.handle_value, right.handle_value)
    if pair in busy:
        if order:
            raise ValueError(f"a {_kind(left)} that contains itself has no order")
        return 0
    busy.add(pair)
    try:
        return _compare_objects(left, right, order, busy)
    finally:
        busy.discard(pair)


def _same_type(left: Any, right: Any) -> bool:
    both = isinstance(left, Object) and isinstance(right, Object)
    return both and str(left.type_key) == str(right.type_key)


def _compare_plain(left: Any, right: Any, order: bool) -> int:
    if isinstance(left, float) and (math.isnan(left) or math.isnan(right)):
        return math.isnan(left) - math.isnan(right)
    if left == right:
        return 0
    if not order:
        return 1
    try:
        return -1 if left < right else 1
    except TypeError as error:
        raise _Unordered(f"values of type {_kind(left)} have no order") from error


def _compare_objects(left: Object, right: Object, order: bool, busy: _Pairs) -> int:
    if isinstance(left, (Array, List)) and isinstance(right, (Array, List)):
        longer = (len(left) > len(right)) - (len(left) < len(right))
        return _compare_all(iter(left), iter(right), order, busy) or longer
    is_map = isinstance(left, (Map, Dict))
    if is_map or _core.fields_of_class(type(left)) is None:
        same = _equal_maps(left, right, busy) if is_map else _operations.structural_equal(left, right)
        if order and not same:
            raise _Unordered(f"objects of type {_kind(left)} have no order")
        return int(not same)
    hook = None if order else _hook(left, "__ffi_eq__")
    if hook is not None:
        return int(not hook(left, right, lambda a, b: _compare(a, b, False, busy) == 0))
    hook = _hook(left, "__ffi_compare__")
    if hook is not None:
        return int(hook(left, right, lambda a, b: _compare(a, b, order, busy)))
    return _compare_all(_compared(left), _compared(right), order, busy)


def _compare_all(left: Iterator[Any], right: Iterator[Any], order: bool, busy: _Pairs) -> int:
    for a, b in zip(left, right, strict=False):
        found = _compare(a, b, order, busy)
        if found:
            return found
    return 0


def _equal_maps(left: Any, right: Any, busy: _Pairs) -> bool:
    missing = object()
    return len(left) == len(right) and all(
        (other := right.get(key, missing)) is not missing and _compare(value, other, False, busy) == 0
        for key, value in left.items()
    )


def _hash(value: Any, busy: set[int]) -> int:
    if not isinstance(value, Object):
        return hash((type(value).__name__, "nan" if value != value else value))
    if value.handle_value in busy:
        raise ValueError(f"a {_kind(value)} that contains itself has no hash")
    busy.add(value.handle_value)
    try:
        return _hash_object(value, busy)
    finally:
        busy.discard(value.handle_value)


def _hash_object(value: Any, busy: set[int]) -> int:
    key = value.type_key
    if isinstance(value, (Array, List)):
        return hash((key, *(_hash(item, busy) for item in value)))
    if isinstance(value, (Map, Dict)):
        return hash((key, frozenset((_hash_key(name), _hash(item, busy)) for name, item in value.items())))
    if _core.fields_of_class(type(value)) is None:
        return _operations.structural_hash(value)
    hook = _hook(value, "__ffi_hash__")
    if hook is not None:
        return int(hook(value, lambda part: _hash(part, busy)))
    if _hook(value, "__ffi_eq__") or _hook(value, "__ffi_compare__"):
        raise TypeError(f"type '{key}' has an equality of its own, but no __ffi_hash__")
    return hash((key, *(_hash(part, busy) for part in _compared(value, hashed=True))))


def _hash_key(key: Any) -> int:
    """Hash a key of a map. Fields do not decide which objects are one key: all of a type have one hash."""
    return hash(key.type_key) if isinstance(key, Object) else _hash(key, set())


def _compared(value: Object, hashed: bool = False) -> Iterator[Any]:
    cls: Any = type(value)
    for name, by_identity in cls.__portcall_hashed__ if hashed else cls.__portcall_compared__:
        part = getattr(value, name)
        yield part.handle_value if by_identity and isinstance(part, Object) else part


def _hook(value: Any, name: str) -> Callable[..., Any] | None:
    found: Callable[..., Any] | None = _core.type_attribute(_core.type_index_of(value.type_key), name)
    return found


def _kind(value: Any) -> str:
    return str(value.type_key) if isinstance(value, Object) else type(value).__name__


# ---- What a class gets -----------------------------------------------------------------------------------------------


def _related(left: Object, right: object) -> bool:
    return isinstance(right, Object) and (isinstance(right, type(left)) or isinstance(left, type(right)))


def __eq__(self: Object, other: object) -> Any:
    return equal(self, other) if _related(self, other) else NotImplemented


def __hash__(self: Object) -> int:
    return hash_of(self)


def _ordering(name: str, holds: Callable[[int], bool]) -> Callable[[Object, object], Any]:
    def method(self: Object, other: object) -> Any:
        if not _related(self, other):
            return NotImplemented
        return holds(compare(self, other))

    method.__name__ = name
    return method


ORDER = (
    _ordering("__lt__", lambda sign: sign < 0),
    _ordering("__le__", lambda sign: sign <= 0),
    _ordering("__gt__", lambda sign: sign > 0),
    _ordering("__ge__", lambda sign: sign >= 0),
)
EQUALITY, HASH = __eq__, __hash__
