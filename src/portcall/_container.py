# SPDX-License-Identifier: Apache-2.0
"""Containers that came through a call. They are immutable and behave like the Python ones: an Array equals a list with
the same items, a Map a dict, a Shape is a tuple. Python lists, tuples and mappings are accepted wherever these are.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, SupportsIndex, overload

from portcall import _core

_SHAPE_INDEX, _ARRAY_INDEX, _MAP_INDEX, _LIST_INDEX = 69, 71, 72, 75


class Shape(tuple[int, ...]):
    """Extents of a tensor, as a value of its own type."""

    __slots__ = ()

    def __new__(cls, values: Iterable[SupportsIndex] = ()) -> Shape:
        return super().__new__(cls, map(operator.index, values))

    def __repr__(self) -> str:
        return f"Shape({', '.join(map(str, self))})"


class Array(_core.Object, Sequence[Any]):
    """A sequence of values."""

    __slots__ = ()

    def __init__(self, items: Iterable[Any] = ()) -> None:
        _core.fill_array(self, tuple(items))

    def __len__(self) -> int:
        return _core.array_size(self)

    @overload
    def __getitem__(self, index: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        if isinstance(index, slice):
            return _core.array_items(self)[index]
        position = operator.index(index)
        return _core.array_item(self, position + len(self) if position < 0 else position)

    def __iter__(self) -> Iterator[Any]:
        return iter(_core.array_items(self))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (Array, list, tuple)):
            return len(self) == len(other) and list(self) == list(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))  # a key that was a tuple comes back as an Array

    def __repr__(self) -> str:
        return repr(list(self))


class Map(_core.Object, Mapping[Any, Any]):
    """Keys and values, in order of insertion."""

    __slots__ = ()

    def __init__(self, items: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = ()) -> None:
        _core.fill_map(self, dict(items))

    def __len__(self) -> int:
        size = _core.map_size(self)
        if size < 0:
            raise TypeError("this map belongs to another runtime of the process, which alone can read it")
        return size

    def __iter__(self) -> Iterator[Any]:
        return (_core.map_pair(self, position)[0] for position in range(len(self)))

    def __getitem__(self, key: Any) -> Any:
        missing = object()
        value = _core.map_get(self, key, missing)
        if value is missing:
            raise KeyError(key)
        return value

    def __eq__(self, other: object) -> bool:
        return dict(self.items()) == dict(other.items()) if isinstance(other, Mapping) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(dict(self.items()))


_core.register_class(_SHAPE_INDEX, Shape)
_core.register_class(_ARRAY_INDEX, Array)
_core.register_class(_LIST_INDEX, Array)
_core.register_class(_MAP_INDEX, Map)
