# SPDX-License-Identifier: Apache-2.0
"""Comparisons and walks of whole graphs with the parameters that tvm-ffi has; comparisons are ``portcall.ir``'s."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from portcall import _core
from portcall._container import Array, Map
from portcall._core import Object
from portcall._function import convert
from portcall.ir import _operations
from portcall.ir._operations import Mismatch

__all__ = [
    "DefRegionKind",
    "StructuralKey",
    "VisitInterrupt",
    "WalkOrder",
    "WalkResult",
    "get_first_structural_mismatch",
    "structural_equal",
    "structural_hash",
    "structural_walk",
]


class WalkOrder(enum.IntEnum):
    """Whether a walk hands over a value before what it holds, or after it."""

    PREORDER = 0
    POSTORDER = 1


class WalkResult(enum.IntEnum):
    """What a callback of a walk may return: go on, or leave out what the value holds."""

    ADVANCE = 0
    SKIP = 1


class DefRegionKind(enum.IntEnum):
    """Whether a value stands in a field that defines variables."""

    NONE = 0
    DEF_RECURSIVE = 1
    DEF_NON_RECURSIVE = 2


class VisitInterrupt:
    """Ends a walk that a callback returns it to."""

    __slots__ = ("value",)

    def __init__(self, value: Any = None) -> None:
        self.value = convert(value)


def structural_equal(lhs: Any, rhs: Any, map_free_vars: bool = False) -> bool:
    """Return whether two values have the same structure: ``portcall.ir.structural_equal``."""
    return _operations.structural_equal(lhs, rhs, map_free_variables=map_free_vars)


def structural_hash(value: Any, map_free_vars: bool = False) -> int:
    """Return a number of 64 bits, not negative, that is the same for all values that are structurally equal."""
    return _operations.structural_hash(value, map_free_variables=map_free_vars) & 0xFFFFFFFFFFFFFFFF


def get_first_structural_mismatch(lhs: Any, rhs: Any, map_free_vars: bool = False) -> Mismatch | None:
    """Return where two values differ first: ``portcall.ir.first_mismatch``."""
    return _operations.first_mismatch(lhs, rhs, map_free_variables=map_free_vars)


class StructuralKey:
    """A value as a key of a dict of Python, found by its structure."""

    __slots__ = ("_hash", "key")

    def __init__(self, key: Any) -> None:
        self.key = convert(key)
        self._hash = hash(structural_hash(self.key))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StructuralKey) and structural_equal(self.key, other.key)


def structural_walk(
    root: Any, callbacks: Any = (), *, with_def_region_kind: Any = (), order: WalkOrder | str = "pre"
) -> VisitInterrupt | None:
    """Call functions with the values of a graph: objects and what their fields hold, items, keys and values.

    A value is handed over wherever it stands, to the first function whose type it has.

    Parameters:
        callbacks: a function for all values; or pairs of a type, or a tuple of types, and a function; or one pair.
        with_def_region_kind: likewise functions that take the value and its ``DefRegionKind``.
        order: "pre" or "post", or a ``WalkOrder``.

    Returns:
        What a function returned to end the walk; None if none did.

    Raises:
        ValueError, TypeError: an order or a function that is none.
    """
    if order not in ("pre", "post", *WalkOrder):
        raise ValueError(f"order is 'pre' or 'post', got {order!r}")
    post = order in ("post", WalkOrder.POSTORDER)
    table = [(kind, func, False) for kind, func in _entries(callbacks)]
    table += [(kind, func, True) for kind, func in _entries(with_def_region_kind)]

    def call(value: Any, region: DefRegionKind) -> Any:
        for kind, func, takes_region in table:
            if _is_a(value, kind):
                return func(value, region) if takes_region else func(value)
        return None

    stack: list[tuple[Any, DefRegionKind, Iterator[tuple[Any, DefRegionKind]]]] = []
    todo: Iterator[tuple[Any, DefRegionKind]] = iter([(convert(root), DefRegionKind.NONE)])
    while True:
        for value, region in todo:
            said = None if post else call(value, region)
            if isinstance(said, VisitInterrupt):
                return said
            if said is not WalkResult.SKIP:
                stack.append((value, region, todo))
                todo = _parts(value, region)
                break
        else:
            if not stack:
                return None
            value, region, todo = stack.pop()
            if post and isinstance(said := call(value, region), VisitInterrupt):
                return said


def _entries(callbacks: Any) -> list[tuple[Any, Callable[..., Any]]]:
    if callable(callbacks):
        return [(Any, callbacks)]
    if isinstance(callbacks, tuple) and len(callbacks) == 2 and callable(callbacks[1]):
        callbacks = [callbacks]
    found: list[tuple[Any, Callable[..., Any]]] = []
    for each in callbacks if isinstance(callbacks, Sequence) else [callbacks]:
        if not isinstance(each, tuple) or len(each) != 2 or not callable(each[1]):
            raise TypeError(f"a walk takes functions and pairs (type, function), got {each!r}")
        kinds, func = each
        found += [(kind, func) for kind in (kinds if isinstance(kinds, tuple) else (kinds,))]
    return found


def _is_a(value: Any, kind: Any) -> bool:
    if kind is Any or kind is object:
        return True
    if kind is int or issubclass(kind, (Array, Map)):  # a bool is no int, and a List no Array
        return type(value) is kind
    return isinstance(value, kind)


def _parts(value: Any, region: DefRegionKind) -> Iterator[tuple[Any, DefRegionKind]]:
    if isinstance(value, Array):
        yield from ((part, region) for part in value)
    elif isinstance(value, Map):
        yield from ((part, region) for pair in value.items() for part in pair)
    elif isinstance(value, Object) and _core.fields_of_class(type(value)):
        flag = _core.FIELD_FLAG
        for access, flags, *_ in _core.describe_type(_core.type_index_of(value.type_key))[5]:
            if not flags & flag["SEqHashIgnore"]:
                defines = flags & flag["SEqHashDefSimple"]
                yield access.__get__(value), DefRegionKind.DEF_RECURSIVE if defines else region
