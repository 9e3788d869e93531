# SPDX-License-Identifier: Apache-2.0
"""Enums: types of objects of which there is a fixed number, each with a name and a number, the same in every language.

    @portcall.register_object("demo.Color")
    class Color(portcall.ir.Enum):
        red = 0
        green = 1

``class Color(portcall.ir.Enum, type_key="demo.Color")`` says the same without the decorator. The values of an
``IntEnum`` are numbers, those of a ``StrEnum`` texts. Entries of an ``Enum`` may have fields::

    class Operator(portcall.ir.Enum, type_key="demo.Operator"):
        arity: int = 0
        add = portcall.ir.entry(arity=2)
        noop = portcall.ir.entry()

Enums that C++ defines have such a class too: ``portcall.ir.get_object_class("its.key")``.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from portcall import _core
from portcall._container import Dict
from portcall._core import Object
from portcall.ir import _operations
from portcall.ir._annotations import is_class_variable

_ENUM, _STATE = "ffi.Enum", "__ffi_enum__"
_register: Any = None  # register_object, which is above


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """What ``entry`` says of an entry."""

    value: Any
    fields: dict[str, Any]


def entry(*, value: Any = None, **fields: Any) -> Any:
    """Declare an entry of an enum: with its value, or the next one; and with the values of its fields."""
    return Entry(value, fields)


def set_registrar(register: Callable[[str], Callable[[Any], Any]]) -> None:
    """Have classes with a ``type_key`` registered so."""
    global _register
    _register = register


class EnumType(type):
    """The class of enums: they are iterated, and called with a number or a name."""

    def __new__(mcls, name: str, bases: tuple[type, ...], body: dict[str, Any], type_key: str | None = None) -> Any:
        cls = super().__new__(mcls, name, bases, body)
        return cls if type_key is None or _register is None else _register(type_key)(cls)

    def __init__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any], type_key: str | None = None) -> None:
        super().__init__(name, bases, body)

    def __call__(cls, index: Any) -> Any:
        """Return the entry of that number or name.

        Raises:
            ValueError: there is none.
        """
        if any(index is entry for entry in entries(cls)):
            return index
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
        if name.startswith("__"):
            raise AttributeError(f"type object '{cls.__name__}' has no attribute '{name}'")
        name = cls.__dict__.get("__portcall_alias__", {}).get(name, name)
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

    @classmethod
    def get(cls, index: int | str) -> Any:
        """Return the entry of that number or name.

        Raises:
            KeyError: there is none.
        """
        try:
            return cls(index)
        except ValueError:
            raise KeyError(index) from None

    @classmethod
    def def_attr(cls, name: str, *, default: Any = dataclasses.MISSING) -> EnumAttribute:
        """Return what is said of each entry under a name, for every language, to be read and written."""
        return EnumAttribute(cls, name, default)

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self


class EnumAttribute:
    """What is said of the entries of an enum under one name, by entry."""

    def __init__(self, cls: type[Enum], name: str, default: Any) -> None:
        self._cls, self.name, self._default = cls, name, default

    def _said(self, entry: Any) -> Any:
        if not isinstance(entry, self._cls):
            raise TypeError(f"'{self.name}' is said of entries of {self._cls.__name__}, not of {entry!r}")
        attributes = _state(self._cls).attrs
        if self.name not in attributes:
            attributes[self.name] = Dict()
        return attributes[self.name]

    def __getitem__(self, entry: Any) -> Any:
        said = self._said(entry)
        if entry not in said and self._default is not dataclasses.MISSING:
            return self._default
        return said[entry]

    def __setitem__(self, entry: Any, value: Any) -> None:
        self._said(entry)[entry] = value

    def __contains__(self, entry: object) -> bool:
        return isinstance(entry, self._cls) and entry in self._said(entry)

    def get(self, entry: Any, default: Any = None) -> Any:
        """Return what was said of an entry, or ``default``."""
        return self._said(entry).get(entry, default)


class IntEnum(Enum):
    """An entry of an enum of integers: it equals its number."""

    __slots__ = ()
    __portcall_payload__ = int
    __portcall_key__ = "ffi.IntEnum"

    @property
    def value(self) -> int:
        """The entry's number."""
        return self.number

    def __index__(self) -> int:
        return self.number

    def __int__(self) -> int:
        return self.number

    def __str__(self) -> str:
        return str(self.number)

    def __eq__(self, other: object) -> Any:
        return self.number == other if isinstance(other, int) else super().__eq__(other)

    def __hash__(self) -> int:
        return hash(self.number)


class StrEnum(Enum):
    """An entry of an enum of strings: it equals its name."""

    __slots__ = ()
    __portcall_payload__ = str
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
    state = _state(cls)
    return [] if state is None else list(state.entries)


def _state(cls: Any) -> Any:
    return _core.type_attribute(_core.type_index_of(cls.__dict__["__portcall_key__"]), _STATE)


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


def define(cls: type[Enum], key: str) -> dict[str, Any]:
    """Define the type of an enum by its class, or find that C++ has defined it. Return what its class is to have and
    not to have: None for names of its entries.

    Raises:
        TypeError, ValueError: entries that no enum can have, or others than the type has.
    """
    declared = _declared(cls)
    wanted, alias = _wanted(cls, declared)
    _operations.library()
    index = _core.type_index_of(key)
    if index < 0 and not wanted:
        raise TypeError(f"enum '{key}' has no entries: write one as `name = 0`")
    state: Any = None if index < 0 else _core.type_attribute(index, _STATE)
    if wanted and (state is None or not len(state.entries)):  # a library may leave the entries to Python
        parent = next(base.__dict__["__portcall_key__"] for base in cls.__mro__ if base in (Enum, IntEnum, StrEnum))
        _operations.function("portcall.ir.DefineEnum")(key, parent, list(wanted), list(wanted.values()))
        state = _core.type_attribute(_core.type_index_of(key), _STATE)
    known = {} if state is None else {entry._str_index: entry._int_index for entry in state.entries}
    bare = all(isinstance(value, Entry) and value.value is None for value in declared.values())
    if wanted and (wanted.keys() - known.keys() or (not bare and wanted != known)):
        raise ValueError(f"enum '{key}' already exists, with the entries {known}; give this one another key")
    changes: dict[str, Any] = dict.fromkeys([*declared, *known]) | {"__portcall_alias__": alias}
    names = [name for name in inspect.get_annotations(cls) if not is_class_variable(cls, name)]
    for name in names:
        default = cls.__dict__.get(name, dataclasses.MISSING)
        changes[name] = _property(name, default)
        said = {alias[each]: value.fields for each, value in declared.items() if isinstance(value, Entry)}
        for entry in state.entries if state is not None else ():
            if name in said.get(entry.name, ()):
                if name not in state.attrs:
                    state.attrs[name] = Dict()
                state.attrs[name][entry] = said[entry.name][name]
    odd = [
        name for value in declared.values() if isinstance(value, Entry) for name in value.fields if name not in names
    ]
    if odd:
        raise TypeError(f"enum {cls.__name__} has no field '{odd[0]}': write {odd[0]}: int, or its type, in the class")
    return changes


def _property(name: str, default: Any) -> property:
    def value(self: Enum) -> Any:
        return type(self).def_attr(name, default=default)[self]

    return property(value)


def _declared(cls: type[Enum]) -> dict[str, Any]:
    """Return what the body of a class says of entries, in its order."""
    annotations = inspect.get_annotations(cls)
    if "value" in annotations and issubclass(cls, (IntEnum, StrEnum)):
        raise TypeError(f"{cls.__name__}.value is what an entry equals, and no field")
    declared: dict[str, Any] = {}
    for name in annotations:
        if is_class_variable(cls, name) and name not in cls.__dict__ and not name.startswith("_"):
            declared[name] = entry()
    for name, value in cls.__dict__.items():
        if name.startswith("_") or (name in annotations and not is_class_variable(cls, name)):
            continue
        if not callable(value) and not isinstance(value, (property, staticmethod, classmethod)):
            declared[name] = value
    return declared


def _wanted(cls: type[Enum], declared: Mapping[str, Any]) -> tuple[dict[str, int], dict[str, str]]:
    """Return the number of each entry by its name, and the name that each name of the class means."""
    wanted: dict[str, int] = {}
    alias: dict[str, str] = {}
    for attribute, said in declared.items():
        value, name = said.value if isinstance(said, Entry) else said, attribute
        following = max(wanted.values(), default=-1) + 1
        if issubclass(cls, StrEnum) and isinstance(value, str):
            name, value = value, wanted.get(value, following)
        elif issubclass(cls, StrEnum) and isinstance(value, int):
            raise TypeError(f"{cls.__name__}.{name}: an entry of a StrEnum is a text or enum.auto(), got {value!r}")
        elif isinstance(value, enum.auto) or (value is None and isinstance(said, Entry)):
            value = following
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{cls.__name__}.{name}: an entry of an enum is a number or enum.auto(), got {value!r}")
        if value in wanted.values() and wanted.get(name) != value:
            raise ValueError(f"{cls.__name__}.{name}: another entry has the number {value}")
        wanted[name] = value
        alias[attribute] = name
    return wanted, alias


for _cls in (Enum, IntEnum, StrEnum):
    _core.register_object_class(_cls.__portcall_key__, _cls)
