# SPDX-License-Identifier: Apache-2.0
"""Enums: types of objects of which there is a fixed number, each with a name and a number, the same in every language.

    @portcall.register_object("demo.Color")
    class Color(portcall.ir.Enum):
        red = 0
        green = 1

Enums that C++ defines have such a class too: ``portcall.ir.get_object_class("its.key")``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Any

from portcall import _core
from portcall._core import Object
from portcall.ir import _operations

_ENUM, _STATE = "ffi.Enum", "__ffi_enum__"


class EnumType(type):
    """The class of enums: they are iterated, and called with a number or a name."""

    def __call__(cls, index: Any) -> Any:
        """Return the entry of that number or name.

        Raises:
            ValueError: there is none.
        """
        names = []
        for entry in entries(cls):
            names.append(entry.name)
            at: Any = entry.name if isinstance(index, str) else entry.number
            if at == index and not isinstance(index, bool):
                return entry
        raise ValueError(f"{cls.__name__} has no entry {index!r}; it has {', '.join(names) or 'none'}")

    def __iter__(cls) -> Iterator[Any]:
        return iter(entries(cls))

    def __len__(cls) -> int:
        return len(entries(cls))

    def __bool__(cls) -> bool:
        return True

    def __getattr__(cls, name: str) -> Any:
        for entry in [] if name.startswith("_") or not _is_registered(cls) else entries(cls):
            if entry.name == name:
                return entry
        raise AttributeError(f"type object '{cls.__name__}' has no attribute '{name}'")


class Enum(Object, metaclass=EnumType):
    """An entry of an enum. Entries are made once, so they are compared by identity, and ``is`` holds too."""

    __slots__ = ()
    __portcall_key__ = _ENUM
    _int_index: Any
    _str_index: Any

    @property
    def number(self) -> int:
        """The entry's number."""
        return int(self._int_index)

    @property
    def name(self) -> str:
        """The entry's name."""
        return str(self._str_index)

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self


class IntEnum(Enum):
    """An entry of an enum of integers: it equals its number."""

    __slots__ = ()
    __portcall_key__ = "ffi.IntEnum"

    @property
    def value(self) -> int:
        """The entry's number."""
        return self.number

    def __index__(self) -> int:
        return self.number

    def __int__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> Any:
        return self.number == other if isinstance(other, int) else super().__eq__(other)

    def __hash__(self) -> int:
        return hash(self.number)


class StrEnum(Enum):
    """An entry of an enum of strings: it equals its name."""

    __slots__ = ()
    __portcall_key__ = "ffi.StrEnum"

    @property
    def value(self) -> str:
        """The entry's name."""
        return self.name

    def __str__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> Any:
        return self.name == other if isinstance(other, str) else super().__eq__(other)

    def __hash__(self) -> int:
        return hash(self.name)


_entries: dict[str, dict[int, Any]] = {}  # type key -> address -> entry, as Python sees it


def entries(cls: type) -> list[Any]:
    """Return the entries of an enum in the order of their definition.

    Raises:
        TypeError: the class is not registered.
    """
    if not _is_registered(cls):
        raise TypeError(f"enum {cls.__name__} is not registered: write @portcall.register_object() above the class")
    state = _core.type_attribute(_core.type_index_of(cls.__dict__["__portcall_key__"]), _STATE)
    if state is None:
        return []
    return list(state.entries)


def _is_registered(cls: type) -> bool:
    return "__portcall_key__" in cls.__dict__


def single_entry(entry: Any) -> Any:
    """Return the one Python object for an entry."""
    known = _entries.setdefault(entry.type_key, {})
    return known.setdefault(entry.handle_value, entry)


def forget_entries(key: str) -> None:
    """Have the entries of an enum arrive as objects of the class that is registered now."""
    _entries.pop(key, None)


def is_enum(ancestors: list[str]) -> bool:
    """Return whether a type with these ancestors is an enum; load the description of enums then."""
    if _ENUM not in ancestors:
        return False
    _operations.library()
    return True


def define(cls: type[Enum], key: str) -> dict[str, int]:
    """Define the type of an enum by its class, or find that C++ has defined it.

    Raises:
        TypeError, ValueError: entries that no enum can have, or others than the type has.
    """
    wanted = _wanted(cls, cls.__dict__)
    _operations.library()
    index = _core.type_index_of(key)
    if index < 0:
        if not wanted:
            raise TypeError(f"enum '{key}' has no entries: write one as `name = 0`")
        parent = next(base.__dict__["__portcall_key__"] for base in cls.__mro__ if base in (Enum, IntEnum, StrEnum))
        _operations.function("portcall.ir.DefineEnum")(key, parent, list(wanted), list(wanted.values()))
        return wanted
    state = _core.type_attribute(index, _STATE)
    known = {} if state is None else {entry._str_index: entry._int_index for entry in state.entries}
    if wanted and wanted != known:
        raise ValueError(f"enum '{key}' already exists, with the entries {known}; give this one another key")
    return known


def _wanted(cls: type[Enum], body: Mapping[str, Any]) -> dict[str, int]:
    wanted: dict[str, int] = {}
    for name, value in body.items():
        if name.startswith("_") or callable(value) or isinstance(value, (property, staticmethod, classmethod)):
            continue
        if isinstance(value, enum.auto) or (value == name and issubclass(cls, StrEnum)):
            value = max(wanted.values(), default=-1) + 1
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{cls.__name__}.{name}: an entry of an enum is a number or enum.auto(), got {value!r}")
        if value in wanted.values():
            raise ValueError(f"{cls.__name__}.{name}: another entry has the number {value}")
        wanted[name] = value
    return wanted


for _cls in (Enum, IntEnum, StrEnum):
    _core.register_object_class(_cls.__portcall_key__, _cls)
