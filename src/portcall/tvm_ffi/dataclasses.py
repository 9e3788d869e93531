# SPDX-License-Identifier: Apache-2.0
"""Classes of objects under tvm-ffi's names: ``register_object``, and what the standard library has for dataclasses."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import KW_ONLY, MISSING, Field
from typing import Any

from portcall import _core
from portcall._container import Array, Map
from portcall._core import Object
from portcall.ir._annotations import field as _field
from portcall.ir._annotations import is_class_variable
from portcall.ir._classes import Comparison, method, register_object
from portcall.ir._enum import Enum, EnumAttribute, IntEnum, StrEnum, entry

__all__ = [
    "KW_ONLY",
    "MISSING",
    "Enum",
    "EnumAttrMap",
    "Field",
    "IntEnum",
    "Object",
    "StrEnum",
    "asdict",
    "astuple",
    "auto",
    "c_class",
    "entry",
    "field",
    "fields",
    "is_dataclass",
    "method",
    "py_class",
    "replace",
]

EnumAttrMap = EnumAttribute
auto = entry

_COMPARISONS: dict[str | None, Comparison] = {
    "tree": "structure", "const-tree": "structure", "dag": "shared", "var": "variable", "singleton": "identity",
    None: "identity",
}  # fmt: skip
_DEFINES = ("def", "def-recursive", "def-non-recursive")


def field(*, default_factory: Any = MISSING, structural_eq: str | None = None, **options: Any) -> Any:
    """Set options of a field: ``portcall.field``.

    Raises:
        ValueError, TypeError: arguments that no field can have.
    """
    if default_factory is not MISSING:
        if not callable(default_factory):
            raise TypeError(f"default_factory must be a callable, got {default_factory!r}")
        options["default_factory"] = default_factory
    if structural_eq not in (None, "ignore", *_DEFINES):
        raise ValueError(f"structural_eq must be one of None, ignore, {', '.join(_DEFINES)}; got {structural_eq!r}")
    if structural_eq == "ignore":
        options.setdefault("compare", False)
    return _field(**options, defines=structural_eq in _DEFINES)


def py_class(
    cls_or_type_key: Any = None,
    /,
    *,
    type_key: str | None = None,
    structural_eq: str | None = "tree",
    slots: bool = True,
    frozen: bool = False,
    **options: Any,
) -> Any:
    """Define a type of objects by a class: ``portcall.register_object``, fields writable unless ``frozen``.

    Raises:
        ValueError: ``structural_eq`` is no kind of comparison.
    """
    if structural_eq not in _COMPARISONS:
        raise ValueError(f"structural_eq must be one of {', '.join(map(str, _COMPARISONS))}; got {structural_eq!r}")
    key = cls_or_type_key if isinstance(cls_or_type_key, str) else type_key
    register = register_object(key, compare=_COMPARISONS[structural_eq], frozen=frozen, **options)
    return register(cls_or_type_key) if isinstance(cls_or_type_key, type) else register


def c_class(type_key: str, *, frozen: bool | None = None, **options: Any) -> Any:
    """Take over the class of a type that C++ defined: ``portcall.register_object``.

    Annotations of fields that the type does not have are for type checkers only.
    """
    register = register_object(type_key, frozen=frozen or None, **options)
    index = _core.type_index_of(type_key)
    if index < 0:
        return register

    def take_over(cls: Any) -> Any:
        names = [access.__name__ for access, *_ in _core.describe_type(index)[5]]
        hints = inspect.get_annotations(cls)
        cls.__annotations__ = {
            name: hint for name, hint in hints.items() if name in names or is_class_variable(cls, name)
        }
        return register(cls)

    return take_over


def is_dataclass(obj: Any) -> bool:
    """Return whether this is a registered class or an object of one."""
    return _core.fields_of_class(obj if isinstance(obj, type) else type(obj)) is not None


def fields(obj: Any) -> tuple[Field[Any], ...]:
    """Return the fields of a registered class or of its object, as ``dataclasses.fields`` does.

    Raises:
        TypeError: it is no such class.
    """
    if not is_dataclass(obj):
        raise TypeError(f"fields() argument must be a c_class or py_class type or instance, got {type(obj).__name__}")
    return dataclasses.fields(obj)


def replace(obj: Any, /, **changes: Any) -> Any:
    """Return an object like this one with some fields changed."""
    return obj.__replace__(**changes)


def asdict(obj: Any, *, dict_factory: Callable[..., Any] = dict) -> Any:
    """Return the fields of an object as a dict, and so the objects in it; containers become lists and dicts.

    Raises:
        TypeError: it is no object of a registered class.
    """
    _check_instance(obj, "asdict")
    return _asdict_inner(obj, dict_factory)


def astuple(obj: Any, *, tuple_factory: Callable[..., Any] = tuple) -> Any:
    """Return the fields of an object as a tuple, and so the objects in it; containers become lists and dicts.

    Raises:
        TypeError: it is no object of a registered class.
    """
    _check_instance(obj, "astuple")
    return _astuple_inner(obj, tuple_factory)


def _check_instance(obj: Any, name: str) -> None:
    if isinstance(obj, type) or not is_dataclass(obj):
        raise TypeError(f"{name}() should be called on c_class / py_class instances, got {obj!r}")


def _asdict_inner(value: Any, factory: Callable[..., Any]) -> Any:
    def of_object(obj: Any) -> Any:
        return factory([(each.name, _asdict_inner(getattr(obj, each.name), factory)) for each in fields(obj)])

    return _plain(value, of_object, lambda part: _asdict_inner(part, factory), factory)


def _astuple_inner(value: Any, factory: Callable[..., Any]) -> Any:
    def of_object(obj: Any) -> Any:
        return factory([_astuple_inner(getattr(obj, each.name), factory) for each in fields(obj)])

    return _plain(value, of_object, lambda part: _astuple_inner(part, factory), dict)


def _plain(
    value: Any, of_object: Callable[[Any], Any], inner: Callable[[Any], Any], dict_factory: Callable[..., Any]
) -> Any:
    """Return a value with the objects in it as what ``of_object`` makes of them, containers as Python's own."""
    kind = type(value)
    if isinstance(value, Array):
        return [inner(part) for part in value]
    if isinstance(value, Map):
        return dict_factory([(inner(key), inner(part)) for key, part in value.items()])
    if isinstance(value, Object) and is_dataclass(value):
        return of_object(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return kind(*map(inner, value))
    if isinstance(value, (list, tuple)):
        return kind(map(inner, value))
    if isinstance(value, dict):
        pairs = ((inner(key), inner(part)) for key, part in value.items())
        return kind(value.default_factory, pairs) if hasattr(value, "default_factory") else kind(pairs)
    return copy.deepcopy(value)
