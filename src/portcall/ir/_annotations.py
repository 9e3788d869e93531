# SPDX-License-Identifier: Apache-2.0
"""Annotations of fields: the types that the core checks, and the checks that it leaves to Python."""

from __future__ import annotations

import dataclasses
import inspect
import numbers
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeVar

from portcall import _core
from portcall._container import Array, Dict, List, Map, Shape
from portcall._core import Object, PackedFunc
from portcall._device import Device
from portcall._dtype import DataType
from portcall._module import Module
from portcall._tensor import Tensor

ANY, OBJECT, FIRST_DYNAMIC, SELF = (_core.TYPE_INDEX[name] for name in ("Any", "Object", "DynObjectBegin", "Self"))
_ANNOTATIONS: dict[str, list[Any]] = {
    "Int": [int], "Bool": [bool], "Float": [float], "DataType": [DataType], "Device": [Device], "Object": [Object],
    "Str": [str], "Bytes": [bytes], "Function": [PackedFunc, Callable], "Shape": [Shape], "Tensor": [Tensor],
    "Array": [Array, list, tuple, Sequence], "Map": [Map, dict, Mapping], "Module": [Module], "List": [List],
    "Dict": [Dict],
}  # fmt: skip
_DECLARED = {annotation: _core.TYPE_INDEX[name] for name, them in _ANNOTATIONS.items() for annotation in them}


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """The settings of a field."""

    default: Any = dataclasses.MISSING
    default_factory: Callable[[], Any] | None = None
    compare: bool | Literal["identity"] = True
    defines: bool = False
    repr: bool = True
    kw_only: bool | None = None
    doc: str = ""

    @property
    def optional(self) -> bool:
        """Whether objects can be made without a value for it."""
        return self.default is not dataclasses.MISSING or self.default_factory is not None


def field(
    *,
    default: Any = dataclasses.MISSING,
    default_factory: Callable[[], Any] | None = None,
    compare: bool | Literal["identity"] = True,
    defines: bool = False,
    repr: bool = True,
    kw_only: bool | None = None,
    doc: str = "",
) -> Any:
    """Set options of a field of a registered class.

    Parameters:
        default: the value of objects that are made without one.
        default_factory: called without arguments for each such object instead.
        compare: False leaves the field out of structural equality and hash; "identity" lets it be equal only to the
            very same object.
        defines: the field's value is a variable that is defined here: two objects that differ in the names of such
            variables only are equal.
        repr: whether it is printed.
        kw_only: whether the constructor takes it by name only; the class's setting unless given.
        doc: one line about it.

    Raises:
        ValueError, TypeError: arguments that no field can have, such as a default that is mutable.
    """
    if default is not dataclasses.MISSING and default_factory is not None:
        raise ValueError("a field has a default or a default_factory, not both")
    if default_factory is not None and not callable(default_factory):
        raise TypeError(f"default_factory is called without arguments, got {default_factory!r}")
    if compare not in (True, False, "identity"):
        raise ValueError(f"compare is True, False or 'identity', got {compare!r}")
    if type(default).__hash__ is None and type(default) is not Map:
        factory = f"={type(default).__name__}" if isinstance(default, (list, dict, set)) else ""
        raise ValueError(f"a mutable default, {default!r}, would be shared: use default_factory{factory}")
    return Field(default, default_factory, compare, defines, repr, kw_only, doc)


def is_class_variable(cls: type, name: str) -> bool:
    annotation: Any = inspect.get_annotations(cls)[name]
    if isinstance(annotation, str):
        return "ClassVar" in annotation.partition("[")[0]
    return annotation is typing.ClassVar or typing.get_origin(annotation) is typing.ClassVar


def hints_of(cls: type, key: str, meant: type, scope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the types of the fields that a class adds, its own name meaning ``meant``."""
    annotations = inspect.get_annotations(cls)
    # Alone, without those of base classes: these are evaluated where they stand.
    alone = type(cls.__name__, (), {"__annotations__": annotations, "__module__": cls.__module__})
    try:
        hints = typing.get_type_hints(alone, localns={**scope, cls.__name__: meant})
    except NameError as error:
        raise TypeError(
            f"an annotation of {cls.__name__} ('{key}') names something unknown: {error}. Types are registered before "
            "the fields that name them: of two that hold each other, the first names a base class of the second"
        ) from error
    return {
        name: typing.get_args(hint)[0] if typing.get_origin(hint) is Final else hint
        for name, hint in hints.items()
        if not is_class_variable(cls, name)
    }


def declared_type(hint: Any, cls: type, where: str) -> tuple[int, bool]:
    """Return the type index that values of an annotated field must have, and whether None will do."""
    if hint is Any or hint is object:
        return ANY, True
    if hint is None or hint is type(None):
        return 0, True
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        some = [part for part in typing.get_args(hint) if part is not type(None)]
        optional = len(some) < len(typing.get_args(hint))
        return (declared_type(some[0], cls, where)[0] if len(some) == 1 else ANY), optional
    if origin is Literal or isinstance(hint, TypeVar):
        return ANY, False
    kind = origin or hint
    declared = _DECLARED.get(kind)
    if declared is not None:
        return declared, False
    if kind is cls:
        return SELF, False
    if isinstance(kind, type) and issubclass(kind, Object):
        key = kind.__dict__.get("__portcall_key__")
        if key is None:
            raise TypeError(f"{where}: register {kind.__name__} first")
        return _core.type_index_of(key), False
    if isinstance(kind, type):
        return ANY, False
    raise TypeError(f"{where}: no value can have the type {hint!r}")


def may_hold_variables(hint: Any) -> bool:
    """Return whether values of an annotated type can be or contain objects with parts."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal or hint is type(None):
        return False
    if origin is not None:
        return any(map(may_hold_variables, args))
    if hint in (Any, object, *_ITEMIZED) or not isinstance(hint, type):
        return True
    return issubclass(hint, Object) and not issubclass(hint, (Tensor, PackedFunc, Module))


def annotation_text(hint: Any) -> str:
    """Return an annotation as text, registered classes by their keys."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is type(None):
        return "None"
    if isinstance(hint, type) and origin is None:
        return str(hint.__dict__.get("__portcall_key__", hint.__name__))
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(annotation_text, args))
    if origin in _ITEMIZED:
        return f"{origin.__name__}[{', '.join('...' if arg is ... else annotation_text(arg) for arg in args)}]"
    return str(hint).replace("typing.", "")


def check_of(hint: Any, where: str) -> Callable[[Any], None] | None:
    """Return the check that an annotation needs besides the core's check of the type; None if it needs no other."""
    accepts = acceptance_test(hint)
    if accepts is None or not _needs_check(hint):
        return None

    def check(value: Any) -> None:
        if not accepts(value):
            raise TypeError(f"{where}: expected {annotation_text(hint)}, got {describe_mismatch(hint, value)}")

    return check


_SEQUENCES = (list, Sequence, Array, List)
_MAPPINGS = (dict, Mapping, Map, Dict)
_ITEMIZED = (*_SEQUENCES, *_MAPPINGS, tuple)


def _needs_check(hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        some = [part for part in typing.get_args(hint) if part is not type(None)]
        return len(some) > 1 or _needs_check(some[0])
    if origin is None:
        return isinstance(hint, type) and not issubclass(hint, Object) and hint is not object and hint not in _DECLARED
    return True


def acceptance_test(hint: Any) -> Callable[[Any], bool] | None:
    """Return the test of an annotation; None if every value passes."""
    if any(hint is known for known in (Any, object, None)) or isinstance(hint, TypeVar):
        return None
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        parts = [acceptance_test(part) for part in args]
        if None in parts:
            return None
        return lambda value: any(part(value) for part in parts if part)
    if origin is Literal:
        return lambda value: any(value == choice and type(value) is type(choice) for choice in args)
    kind = origin or hint
    if kind is tuple and args and args[-1] is not ...:
        items = [acceptance_test(arg) for arg in args]
        return lambda value: (
            isinstance(value, (list, tuple, Array))
            and len(value) == len(items)
            and all(item is None or item(part) for item, part in zip(items, value, strict=True))
        )
    if kind in _SEQUENCES or kind is tuple:
        item = acceptance_test(args[0]) if args else None
        kinds = List if kind is List else (list, tuple, Array)
        return lambda value: isinstance(value, kinds) and (item is None or all(map(item, value)))
    if kind in _MAPPINGS:
        key, item = (acceptance_test(arg) for arg in args) if args else (None, None)
        return lambda value: (
            isinstance(value, Dict if kind is Dict else Mapping)
            and all((key is None or key(k)) and (item is None or item(v)) for k, v in value.items())
        )
    if kind is Callable or kind is PackedFunc or kind is typing.get_origin(Callable[..., Any]):
        return callable
    if kind in (Tensor, Shape) or not isinstance(kind, type):
        return None
    if "__portcall_key__" in kind.__dict__:  # by type, not by class: a class may have been registered again
        index = _core.type_index_of(kind.__dict__["__portcall_key__"])
        return lambda value: _core.is_object_of(value, index)
    accepted = {int: (int, numbers.Integral), float: (int, float, numbers.Real)}.get(kind, kind)
    return lambda value: isinstance(value, accepted)


def describe_mismatch(hint: Any, value: Any, at: str = "") -> str:
    """Describe a value that does not fit, or its first such part with the place."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    parts: list[tuple[Any, Any, str]] = []
    if origin in (typing.Union, types.UnionType):
        some = [part for part in args if part is not type(None)]
        if len(some) == 1:
            return describe_mismatch(some[0], value, at)
    elif origin is tuple and args[-1] is not ... and isinstance(value, (list, tuple, Array)):
        if len(value) != len(args):
            return f"{len(value)} items{' at ' + at if at else ''}"
        parts = [(arg, part, f"{at}[{i}]") for i, (arg, part) in enumerate(zip(args, value, strict=True))]
    elif origin in (*_SEQUENCES, tuple) and isinstance(value, (list, tuple, Array)):
        parts = [(args[0], part, f"{at}[{i}]") for i, part in enumerate(value)]
    elif origin in _MAPPINGS and isinstance(value, Mapping):
        parts = [(args[0], key, f"key {key!r}{' of ' + at if at else ''}") for key in value]
        parts += [(args[1], item, f"{at}[{key!r}]") for key, item in value.items()]
    for part_hint, part, place in parts:
        accepts = acceptance_test(part_hint)
        if accepts is not None and not accepts(part):
            return describe_mismatch(part_hint, part, place)
    shown = f" {value!r}" if isinstance(value, (int, float, str)) and len(repr(value)) <= 40 else ""
    return f"{type(value).__name__}{shown}{' at ' + at if at else ''}"
