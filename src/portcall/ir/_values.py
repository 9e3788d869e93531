# SPDX-License-Identifier: Apache-2.0
"""Objects as values: what ``eq=``, ``order=`` and ``unsafe_hash=`` of ``register_object`` put into a class.

Two objects are equal when their types are the same and their fields are, all the way down, fields with
``compare=False`` left out. As in ``structural_equal``, values of different kinds differ: 1, 1.0 and True are three.
Unlike there, variables are compared by their fields, 0.0 equals -0.0, and the hooks ``__ffi_eq__``,
``__ffi_compare__`` and ``__ffi_hash__`` of a type decide for its objects. Only these use the stack for depth.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

from portcall import _core
from portcall._container import HASH_OF_ENDLESS, Array, Dict, HoldsItself, List, Map
from portcall._core import Object
from portcall._device import Device
from portcall._dtype import DataType
from portcall.ir import _operations


class _Unordered(TypeError):
    pass


def equal(left: Any, right: Any) -> bool:
    """Return whether two values are equal. Objects that contain themselves may be."""
    return _Comparison().run(left, right, order=False) == 0


def compare(left: Any, right: Any) -> int:
    """Return a number below, equal to or above 0, as ``left`` comes before ``right``, is equal to it, or comes after.

    None comes before all, NaN after all other numbers. What has no order, such as a Map, may be equal.

    Raises:
        TypeError: values of different kinds, or different values of a kind without an order.
        ValueError: objects that contain themselves.
    """
    return _Comparison().run(left, right, order=True)


def hash_of(value: Any) -> int:
    """Return a hash that is the same for equal values. It changes with the value.

    What holds itself, or holds something that does, has one hash: such values may be equal.

    Raises:
        TypeError: a type with its own equality (``__ffi_eq__``, ``__ffi_compare__``) and no ``__ffi_hash__``.
    """
    try:
        return _hash(value, {})
    except HoldsItself:
        return HASH_OF_ENDLESS


@dataclasses.dataclass(slots=True)
class _Pair:
    """Two objects at work."""

    left: Any
    right: Any
    parts: Iterator[tuple[Any, Any]]
    order: bool
    done: bool = False


class _Comparison:
    """Compares each pair of objects once, whatever holds them. The pairs at work are on its own stack."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[bool, int, int], _Pair] = {}  # that are equal, as far as they have been compared

    def run(self, left: Any, right: Any, order: bool) -> int:
        """Return a number below, equal to or above 0; without ``order``, 0 if they are equal."""
        before, same = len(self._pairs), False
        try:
            found = self._work(left, right, order)
            same = found == 0
        finally:
            while not same and len(self._pairs) > before:  # what a hook goes on with must not count on them
                self._pairs.popitem()
        return found

    def _work(self, left: Any, right: Any, order: bool) -> int:
        stack: list[_Pair] = []
        found = self._enter(left, right, order, stack)
        while stack and not found:
            pair = stack[-1]
            for a, b in pair.parts:
                if type(a) is type(b) and not isinstance(a, Object) and a == b:  # most of them
                    continue
                found = self._enter(a, b, pair.order, stack)
                if found or stack[-1] is not pair:
                    break
            else:
                pair.done = True
                stack.pop()
        if found and order:
            for pair in stack:
                if not pair.order:
                    raise _Unordered(f"objects of type {_kind(pair.left)} have no order")
        return found

    def _enter(self, left: Any, right: Any, order: bool, stack: list[_Pair]) -> int:
        """Compare two values; objects that are equal if their parts are get onto the stack."""
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
        key = (order, left.handle_value, right.handle_value)
        known = self._pairs.get(key)
        if known is not None:
            if order and not known.done:
                raise ValueError(f"a {_kind(left)} that contains itself has no order")
            return 0
        pair = self._pairs[key] = _Pair(left, right, iter(()), order)
        found = self._compare_objects(pair)
        stack.append(pair)
        return found

    def _compare_objects(self, pair: _Pair) -> int:
        left, right, order = pair.left, pair.right, pair.order
        if isinstance(left, (Array, List)):
            if not order and len(left) != len(right):
                return 1
            pair.parts = itertools.chain(zip(left, right, strict=False), [(len(left), len(right))])
            return 0
        is_map = isinstance(left, (Map, Dict))
        if is_map or _core.fields_of_class(type(left)) is None:
            pair.order = False
            if not is_map:
                return int(not _operations.structural_equal(left, right))
            missing = object()
            pair.parts = ((value, right.get(key, missing)) for key, value in left.items())
            return int(len(left) != len(right))
        hook = None if order else _hook(left, "__ffi_eq__")
        if hook is not None:
            return int(not hook(left, right, lambda a, b: self.run(a, b, order=False) == 0))
        hook = _hook(left, "__ffi_compare__")
        if hook is not None:
            return int(hook(left, right, lambda a, b: self.run(a, b, order)))
        pair.parts = zip(_compared(left), _compared(right), strict=True)
        return 0


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
        if isinstance(left, (DataType, Device)):
            left, right = _numbers(left), _numbers(right)
        return -1 if left < right else 1
    except TypeError as error:
        raise _Unordered(f"values of type {_kind(left)} have no order") from error


def _numbers(value: DataType | Device) -> tuple[int, ...]:
    if isinstance(value, Device):
        return value.device_type, value.index
    return value.type_code, value.bits, value.lanes


@dataclasses.dataclass(slots=True)
class _Hashed:
    """An object at work, or one whose hash is known."""

    value: Any
    parts: Iterator[Any]
    together: Callable[[list[int]], int]  # the hash for those of the parts
    hashes: list[int] = dataclasses.field(default_factory=list)
    found: int | None = None


def _hash(value: Any, known: dict[int, _Hashed]) -> int:
    """Hash each object once, whatever holds it; those at work are on a stack."""
    before, root = len(known), _Hashed(None, iter((value,)), operator.itemgetter(0))
    try:
        _work_on_hash(root, known)
    finally:
        while root.found is None and len(known) > before:  # a hook may go on without them
            known.popitem()
    return root.hashes[0]


def _work_on_hash(root: _Hashed, known: dict[int, _Hashed]) -> None:
    stack = [root]
    while stack:
        holder = stack[-1]
        for part in holder.parts:
            if not isinstance(part, Object):
                holder.hashes.append(hash((type(part).__name__, "nan" if part != part else part)))
                continue
            met = known.get(part.handle_value)
            if met is None:
                known[part.handle_value] = met = _Hashed(part, iter(()), hash)
                _start_hash(met, known)
                stack.append(met)
                break
            if met.found is None:
                raise HoldsItself
            holder.hashes.append(met.found)
        else:
            holder.found = holder.together(holder.hashes)
            stack.pop()
            if stack:
                stack[-1].hashes.append(holder.found)


def _start_hash(made: _Hashed, known: dict[int, _Hashed]) -> None:
    value = made.value
    key = value.type_key
    made.together = lambda hashes: hash((key, *hashes))
    if isinstance(value, (Array, List)):
        made.parts = iter(value)
    elif isinstance(value, (Map, Dict)):
        pairs = list(value.items())
        made.parts = iter([item for _, item in pairs])
        keys = [_hash_key(name) for name, _ in pairs]
        made.together = lambda hashes: hash((key, frozenset(zip(keys, hashes, strict=True))))
    elif _core.fields_of_class(type(value)) is None:
        made.together = lambda _: _operations.structural_hash(value)
    elif (hook := _hook(value, "__ffi_hash__")) is not None:
        found = int(hook(value, lambda part: _hash(part, known)))
        made.together = lambda _: found
    elif _hook(value, "__ffi_eq__") or _hook(value, "__ffi_compare__"):
        raise TypeError(f"type '{key}' has an equality of its own, but no __ffi_hash__")
    else:
        made.parts = _compared(value, hashed=True)


def _hash_key(key: Any) -> int:
    """Hash a key of a map. Fields do not decide which objects are one key: all of a type have one hash."""
    return hash(key.type_key) if isinstance(key, Object) else _hash(key, {})


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
