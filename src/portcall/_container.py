# SPDX-License-Identifier: Apache-2.0
"""Containers of the core. They behave like Python's own: an Array equals a list with the same items, a Map a dict, a
Shape is a tuple; these are immutable. List and Dict are mutable; every reference sees a change, in any language.

Python's lists, tuples and mappings are accepted wherever these are, and travel as an Array or a Map.
"""

from __future__ import annotations

import itertools
import operator
from _thread import get_ident
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, MutableMapping, MutableSequence, Sequence
from typing import Any, SupportsIndex, overload

from portcall import _core

_in_progress: set[tuple[int, int]] = set()  # (thread, address) of what is being written as text


def text_once(value: _core.Object, text: Callable[[], str], again: str) -> str:
    """Return ``text()``; or ``again`` if this is called for the same object while ``text`` runs: it holds itself."""
    key = (get_ident(), value.handle_value)
    if key in _in_progress:
        return again
    _in_progress.add(key)
    try:
        return text()
    finally:
        _in_progress.discard(key)


class HoldsItself(Exception):
    """Ends the search for the hash of a value that holds itself, or something that does."""


HASH_OF_ENDLESS = 0


class Shape(tuple[int, ...]):
    """Extents of a tensor, as a value with its own type."""

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
            return _equal(self, other)
        return NotImplemented

    def __add__(self, other: object) -> Any:
        return type(self)((*self, *other)) if isinstance(other, (Array, list, tuple)) else NotImplemented

    def __radd__(self, other: object) -> Any:
        return type(self)((*other, *self)) if isinstance(other, (list, tuple)) else NotImplemented

    def __hash__(self) -> int:
        return _hash(self)  # that of a tuple: a key that was one comes back as an Array

    def __copy__(self) -> Any:
        return self

    def __repr__(self) -> str:
        return text_once(self, lambda: repr(list(self)), "[...]")


class _Items(ItemsView[Any, Any]):
    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        mapping: Map = self._mapping  # type: ignore[attr-defined]
        parts = _core.map_parts(mapping, True)
        return mapping._checked(zip(parts[::2], parts[1::2], strict=True))


def _missing(key: Any) -> KeyError:
    error = KeyError(key)
    if isinstance(key, _core.Object) and not isinstance(key, Array):
        error.__notes__ = [_BY_IDENTITY]  # add_note() is not in Python 3.10
    return error


_BY_IDENTITY = (
    "an object is found as a key by identity, whatever its == says: another one of equal fields is another key"
)


class Map(_core.Object, Mapping[Any, Any]):
    """Keys and values, in order of insertion. Objects are keys by identity, also those of classes with ``eq=True``."""

    __slots__ = ()

    def __init__(self, items: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = ()) -> None:
        _core.fill_map(self, dict(items))

    def __len__(self) -> int:
        return _core.map_size(self)

    def __iter__(self) -> Iterator[Any]:
        return self._checked(iter(_core.map_parts(self, False)))

    def _checked(self, parts: Iterator[Any]) -> Iterator[Any]:
        """Return what a loop goes over; a Dict refuses to change meanwhile."""
        return parts

    def __getitem__(self, key: Any) -> Any:
        missing = object()
        value = _core.map_get(self, key, missing)
        if value is missing:
            raise _missing(key)
        return value

    def items(self) -> ItemsView[Any, Any]:
        """Return a view of the pairs, as of a dict."""
        return _Items(self)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Mapping):
            return _equal(self, other)
        return NotImplemented

    def __hash__(self) -> int:
        return _hash(self)

    def __copy__(self) -> Any:
        return self

    def __repr__(self) -> str:
        return text_once(self, lambda: repr(dict(self.items())), "{...}")


class List(Array, MutableSequence[Any]):
    """A sequence that changes. Python threads may share one; compiled code must not be at it meanwhile.

    A loop goes over the items that were there when it began. Its hash is that of its items, also of one that holds
    itself: it must not change while it is a key of a Python dict or in a set.
    """

    __slots__ = ()
    __hash__ = Array.__hash__

    def __init__(self, items: Iterable[Any] = ()) -> None:
        _core.fill_list(self, tuple(items))

    def __setitem__(self, index: SupportsIndex | slice, value: Any) -> None:
        if not isinstance(index, slice):
            _core.splice_list(self, self._place(index), 1, (value,))
            return
        start, stop, step = index.indices(len(self))
        if step == 1:
            _core.splice_list(self, start, max(stop - start, 0), tuple(value))
            return
        items = list(self)
        items[index] = value
        _core.splice_list(self, 0, len(self), items)

    def __delitem__(self, index: SupportsIndex | slice) -> None:
        if not isinstance(index, slice):
            _core.splice_list(self, self._place(index), 1, ())
            return
        items = list(self)
        del items[index]
        _core.splice_list(self, 0, len(self), items)

    def __copy__(self) -> List:
        return List(self)

    def insert(self, index: SupportsIndex, value: Any) -> None:
        """Put a value before that index."""
        start, _, _ = slice(index, None).indices(len(self))
        _core.splice_list(self, start, 0, (value,))

    def extend(self, values: Iterable[Any]) -> None:
        """Put values at the end."""
        _core.splice_list(self, len(self), 0, tuple(values))

    def clear(self) -> None:
        """Remove all values."""
        _core.splice_list(self, 0, len(self), ())

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        """Sort in place, as ``list.sort`` does."""
        _core.splice_list(self, 0, len(self), sorted(self, key=key, reverse=reverse))

    def _place(self, index: SupportsIndex) -> int:
        position = operator.index(index)
        place = position + len(self) if position < 0 else position
        if not 0 <= place < len(self):
            raise IndexError(f"index {position} is out of range for {len(self)} items")
        return place


class Dict(Map, MutableMapping[Any, Any]):
    """A map that changes, in order of insertion. A loop over one whose keys change is a RuntimeError.

    Its hash is that of its pairs, as that of a ``List`` is of its items.
    """

    __slots__ = ()
    __hash__ = Map.__hash__

    def __init__(self, items: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = ()) -> None:
        _core.fill_dict(self, dict(items))

    def __setitem__(self, key: Any, value: Any) -> None:
        _core.set_pair(self, key, value)

    def __delitem__(self, key: Any) -> None:
        if not _core.erase_pair(self, key):
            raise _missing(key)

    def _checked(self, parts: Iterator[Any]) -> Iterator[Any]:
        keys = _core.map_keys(self)

        def checked() -> Iterator[Any]:
            for at in itertools.count():
                if not _core.has_keys(self, keys, at):
                    raise RuntimeError("the keys of a Dict changed during iteration; loop over list(…) of it")
                if at == len(keys):
                    return
                yield next(parts)

        return checked()

    def __copy__(self) -> Dict:
        return Dict(self)


for _cls in (Shape, Array, List, Map, Dict):
    _core.register_class(_core.TYPE_INDEX[_cls.__name__], _cls)


# ---- Equality and hashes, of any depth: each container, and each pair of them, is looked at once ---------------------

_NESTING = frozenset((Array, List, Map, Dict))


class _Hashed:
    """What has the hash that was found for a container, in place of that."""

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = number

    def __hash__(self) -> int:
        return self._number


def _parts(value: Array | Map) -> list[Any]:
    return list(value) if isinstance(value, Array) else list(itertools.chain.from_iterable(value.items()))


def _together(value: Array | Map, parts: list[Any]) -> int:
    return hash(tuple(parts) if isinstance(value, Array) else frozenset(zip(parts[::2], parts[1::2], strict=True)))


def _hash(root: Array | Map) -> int:
    """Return one number for all that hold a container that holds itself: such may be equal."""
    items = _parts(root)
    if _NESTING.isdisjoint(map(type, items)):
        return _together(root, items)
    found: dict[int, _Hashed | None] = {root.handle_value: None}  # None while it is at work
    stack: list[tuple[Array | Map, Iterator[Any], list[Any]]] = [(root, iter(items), [])]
    kept = []  # so that no other container gets the address of one
    while True:
        value, parts, done = stack[-1]
        for part in parts:
            if type(part) not in _NESTING:
                done.append(part)
            elif part.handle_value not in found:
                found[part.handle_value] = None
                stack.append((part, iter(_parts(part)), []))
                break
            elif (known := found[part.handle_value]) is None:
                return HASH_OF_ENDLESS
            else:
                done.append(known)
        else:
            number = _together(value, done)
            kept.append(stack.pop())
            if not stack:
                return number
            hashed = found[value.handle_value] = _Hashed(number)
            stack[-1][2].append(hashed)


def _alike(left: Any, right: Any) -> bool:
    """Return whether two values are containers of one sort, of Python or of the core."""
    if type(left) not in _NESTING and type(right) not in _NESTING:
        return False
    sort: Any = (Array, list, tuple) if isinstance(left, (Array, list, tuple)) else Mapping
    return isinstance(left, sort) and isinstance(right, sort)


def _pairs(left: Any, right: Any) -> Iterable[tuple[Any, Any]] | None:
    """Return what must be equal for two containers to be; None where they are not."""
    if isinstance(left, Mapping):
        left, right = dict(left.items()), dict(right.items())
        return ((left[key], right[key]) for key in left) if left.keys() == right.keys() else None
    return zip(list(left), list(right), strict=True) if len(left) == len(right) else None


def _equal(left: Any, right: Any) -> bool:
    """Compare as lists and dicts do; containers that hold themselves are equal if no difference is found."""
    stack: list[Iterator[tuple[Any, Any]]] = [iter([(left, right)])]
    met: dict[tuple[int, int], tuple[Any, Any]] = {}
    while stack:
        for a, b in stack[-1]:
            if a is b:
                continue
            if not _alike(a, b):
                same = a == b
                if not same:
                    return False
                continue
            if isinstance(a, _core.Object) and isinstance(b, _core.Object):
                key = (a.handle_value, b.handle_value)
                if key[0] == key[1] or key in met:
                    continue
                met[key] = a, b
            pairs = _pairs(a, b)
            if pairs is None:
                return False
            stack.append(iter(pairs))
            break
        else:
            stack.pop()
    return True
