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
from portcall._device import Device, device
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
    init: bool = True
    repr: bool = True
    hash: bool | None = None
    frozen: bool | None = None
    kw_only: bool | None = None
    converter: Callable[[Any], Any] | None = None
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
    init: bool = True,
    repr: bool = True,
    hash: bool | None = None,
    frozen: bool | None = None,
    kw_only: bool | None = None,
    converter: Callable[[Any], Any] | None = None,
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
        init: whether the constructor takes it. One that it does not take, without a default, is None until it is set.
        repr: whether it is printed.
        hash: whether it is part of ``hash()``; as ``compare`` unless given.
        frozen: it cannot be changed; the class's setting unless given.
        kw_only: whether the constructor takes it by name only; the class's setting unless given.
        converter: called with each value that the constructor or an assignment gets; the field holds what it returns.
        doc: one line about it.

    Raises:
        ValueError, TypeError: arguments that no field can have, such as a default that is mutable.
    """
    if default is not dataclasses.MISSING and default_factory is not None:
        raise ValueError("a field has a default or a default_factory, not both")
    for name, function in ("default_factory", default_factory), ("converter", converter):
        if function is not None and not callable(function):
            raise TypeError(f"{name} is a function, got {function!r}")
    if compare not in (True, False, "identity"):
        raise ValueError(f"compare is True, False or 'identity', got {compare!r}")
    if type(default).__hash__ is None or isinstance(default, (List, Dict)):
        factory = f"={type(default).__name__}" if isinstance(default, (list, dict, set)) else ""
        raise ValueError(f"a mutable default, {default!r}, would be shared: use default_factory{factory}")
    return Field(default, default_factory, compare, defines, init, repr, hash, frozen, kw_only, converter, doc)


def is_class_variable(cls: type, name: str) -> bool:
    annotation: Any = inspect.get_annotations(cls)[name]
    if isinstance(annotation, str):
        return "ClassVar" in annotation.partition("[")[0]
    return annotation is typing.ClassVar or typing.get_origin(annotation) is typing.ClassVar


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Later:
    """An annotation that names a class that is not there yet: of two that hold each other, the second."""

    text: str
    resolve: Callable[[], Any]


_registered: dict[tuple[str, str], type] = {}  # the classes that annotations may name, by module and name


def let_annotations_name(cls: type) -> None:
    _registered[cls.__module__, cls.__name__] = cls


def hints_of(cls: type, key: str, meant: type, scope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the types of the fields that a class adds, its own name meaning ``meant``.

    An annotation that names something unknown is a ``Later``. Of base classes that are no objects, fields count too.
    """
    hints: dict[str, Any] = {}
    for owner in [base for base in reversed(cls.__mro__[1:]) if adds_fields(base, cls)] + [cls]:
        space = {**scope, cls.__name__: meant}
        for name, annotation in inspect.get_annotations(owner).items():
            if is_class_variable(owner, name):
                continue
            hint = _resolved(owner, annotation, space, key)
            hints[name] = typing.get_args(hint)[0] if typing.get_origin(hint) is Final else hint
    return hints


def adds_fields(base: type, cls: type) -> bool:
    """Return whether the annotations of a base class, which is no object, are fields of ``cls``."""
    if not inspect.get_annotations(base) or base.__module__ == "typing":
        return False
    above = [owner for owner in cls.__mro__[1:] if issubclass(owner, Object)]
    return not issubclass(base, Object) and not any(issubclass(owner, base) for owner in above)


def _resolved(owner: type, annotation: Any, scope: Mapping[str, Any], key: str) -> Any:
    # Alone, without those of base classes: these are evaluated where they stand.
    alone = type(owner.__name__, (), {"__annotations__": {"it": annotation}, "__module__": owner.__module__})
    try:
        return typing.get_type_hints(alone, localns=dict(scope))["it"]
    except NameError:
        text = annotation if isinstance(annotation, str) else str(annotation)

    def resolve() -> Any:
        known = {name: cls for (module, name), cls in _registered.items() if module == owner.__module__}
        try:
            return typing.get_type_hints(alone, localns={**known, **scope})["it"]
        except NameError as error:
            raise TypeError(f"an annotation of {owner.__name__} ('{key}') names something unknown: {error}") from error

    return Later(text, resolve)


def declared_type(hint: Any, cls: type, where: str) -> tuple[int, bool]:
    """Return the type index that values of an annotated field must have, and whether None will do."""
    if hint is Any or hint is object or isinstance(hint, Later):
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
    if isinstance(hint, Later):
        return True
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
    if isinstance(hint, Later):
        return hint.text
    if hint is type(None):
        return "None"
    if isinstance(hint, type) and origin is None:
        return str(hint.__dict__.get("__portcall_key__", hint.__name__))
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(annotation_text, args))
    if origin in _ITEMIZED:
        return f"{origin.__name__}[{', '.join('...' if arg is ... else annotation_text(arg) for arg in args)}]"
    return str(hint).replace("typing.", "")


def check_of(hint: Any, where: str, converter: Callable[[Any], Any] | None = None) -> Callable[[Any], Any] | None:
    """Return what makes, of a value for a field, the value that is kept, after the checks that the core leaves to
    Python; None if it keeps the value and there are none."""
    payload = payload_reader(hint)
    if isinstance(hint, Later):
        known: list[Callable[[Any], Any] | None] = []

        def check_later(value: Any) -> Any:
            if not known:
                known.append(_check_fully(hint.resolve(), where))
            value = value if converter is None else converter(value)
            return value if known[0] is None else known[0](value)

        return check_later
    check = _check_fully(hint, where) if _needs_check(hint) else None
    steps = [step for step in (converter, payload, check) if step is not None]
    if not steps:
        return None
    if len(steps) == 1:
        return steps[0]

    def run(value: Any) -> Any:
        for step in steps:
            value = step(value)
        return value

    return run


def payload_reader(hint: Any) -> Callable[[Any], Any] | None:
    """Return what makes, of a plain value, what a field holds: the entry of a number or a text for enums with such
    values, a data type or a device for its name."""
    if hint is DataType or hint is Device:
        return lambda value: (hint if hint is DataType else device)(value) if isinstance(value, str) else value
    kind = next((part for part in (hint, *typing.get_args(hint)) if getattr(part, "__portcall_payload__", None)), None)
    return None if kind is None else lambda value: entry_of(kind, value)


def entry_of(kind: Any, value: Any) -> Any:
    """Return the entry of an enum for its number or text; other values as they are."""
    known = type(value) is kind.__portcall_payload__ and any(value == each.value for each in kind)
    return kind(value) if known else value


def entry_or_error(where: str, kind_of: Callable[[], Any], value: Any) -> Any:
    """Return an entry as it is, or the one of a number or a text.

    Raises:
        TypeError: the enum has no such entry.
    """
    kind = kind_of()
    entry = entry_of(kind, value)
    if not isinstance(entry, Object):
        known = ", ".join(repr(each.value) for each in kind)
        raise TypeError(f"{where}: expected an entry of {annotation_text(kind)} or its value ({known}), got {value!r}")
    return entry


def _check_fully(hint: Any, where: str) -> Callable[[Any], Any] | None:
    accepts = acceptance_test(hint)
    if accepts is None:
        return None

    def check(value: Any) -> Any:
        if not accepts(value):
            raise TypeError(f"{where}: expected {annotation_text(hint)}, got {describe_mismatch(hint, value)}")
        return value

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
    if any(hint is known for known in (Any, object, None)) or isinstance(hint, (TypeVar, Later)):
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
