# SPDX-License-Identifier: Apache-2.0
"""Objects of described types: defined here as classes with annotations, or in C++, and seen from both.

    @portcall.register_object("demo.Add")
    class Add(Expr):
        lhs: Expr
        rhs: Expr
        span: str = portcall.field(default="", compare=False)

Objects live in the core; a Python object is a reference to one. Two are equal when they refer to the same one:
``structural_equal`` compares contents.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from portcall import _core
from portcall._container import Array, Dict, List, Map
from portcall._core import Object, PackedFunc
from portcall._function import convert
from portcall._module import Module
from portcall._signature import metadata_of, method_schema, schema_text, signature_of_method
from portcall._tensor import Tensor
from portcall.ir import _dataclass, _enum, _printing, _values
from portcall.ir._annotations import (
    ANY,
    FIRST_DYNAMIC,
    OBJECT,
    Field,
    acceptance_test,
    adds_fields,
    annotation_text,
    check_of,
    declared_type,
    describe_mismatch,
    entry_or_error,
    field,
    hints_of,
    is_class_variable,
    let_annotations_name,
    may_hold_variables,
)
from portcall.ir._operations import MADE_FROM_DESCRIPTIONS, unknown_type
from portcall.ir._operations import function as ir_function

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform

Obj = TypeVar("Obj", bound=Object)

# Flags of a field in the core.
_WRITABLE, _HAS_DEFAULT, _STATIC, _IGNORE, _FACTORY, _NOT_SHOWN, _NOT_COMPARED, _NOT_HASHED, _NOT_IN_INIT = (
    _core.FIELD_FLAG[name]
    for name in (
        "Writable", "HasDefault", "IsStaticMethod", "SEqHashIgnore", "DefaultFromFactory", "ReprOff", "CompareOff",
        "HashOff", "InitOff",
    )
)  # fmt: skip
_KW_ONLY, _DEFINES, _OPTIONAL, _IDENTITY = (
    _core.FIELD_FLAG[name] for name in ("KwOnly", "SEqHashDefSimple", "Optional", "Identity")
)

# Attributes of types, as libraries on tvm-ffi's headers write them: a constructor; what makes an object to be filled,
# beside which headers since 0.1.11 write a constructor unless told not to; a copier; and one that all their types have.
_INIT, _NEW, _COPY, _FINAL = "__ffi_init__", "__ffi_new__", "__ffi_shallow_copy__", "__ffi_type_final__"
_CHECK = "__portcall_check__"  # called with objects that C++ made of parts of another one's, when Python replaces some
_HOOKS = (
    "__s_equal__", "__s_hash__", "__s_visit__", "__data_to_json__", "__data_from_json__", "__ffi_repr__", "__ffi_eq__",
    "__ffi_hash__", "__ffi_compare__", "__ffi_convert__",
)  # fmt: skip

_OF_PYTHON = 1 << 9  # the flag of classes that Python's class statement made
_BUILT_IN = (Array, Map, Tensor, PackedFunc, Module)
_OBJECT_KEY = "ffi.Object"

Comparison = Literal["structure", "identity", "variable", "shared"]
_COMPARISONS: dict[Comparison, int] = {
    "structure": _core.STRUCTURE_KIND["TreeNode"],
    "identity": _core.STRUCTURE_KIND["UniqueInstance"],
    "variable": _core.STRUCTURE_KIND["FreeVar"],
    "shared": _core.STRUCTURE_KIND["DAGNode"],
}


if not TYPE_CHECKING:

    def dataclass_transform(**_: Any) -> Callable[[Any], Any]:
        """For type checkers; in Python's typing since 3.11."""
        return lambda function: function


@dataclass_transform(eq_default=False, frozen_default=True, field_specifiers=(field,))
def register_object(
    type_key: Any = None,
    *,
    frozen: bool | None = None,
    kw_only: bool = False,
    init: bool = True,
    repr: bool = True,
    match_args: bool = True,
    compare: Comparison = "structure",
    eq: bool = False,
    order: bool = False,
    unsafe_hash: bool = False,
) -> Any:
    """Define a type of objects by a class with annotations, or take over the class of a type that C++ defined.

    Values of the fields are checked when Python makes an object or changes a field. What C++ makes, or is read from
    JSON or bytes, is checked by the types that the core knows: not for what containers hold, ``Literal`` and unions.

    Parameters:
        type_key: the type's name in every language; module and name of the class unless given.
        frozen: fields cannot be changed; ``replace`` makes another object. Otherwise they are writable. Those of Python
            are, unless told otherwise; those of C++ are what C++ says, and read-only with True.
        kw_only: the constructor takes fields by name only; after a line ``_: dataclasses.KW_ONLY`` they are, too.
        init: with False there is no constructor but one that the class defines, which sets the fields.
        repr: with False the class prints as one without fields.
        match_args: whether the class gets ``__match_args__``.
        compare: how objects of the type are compared by ``structural_equal``: by "structure", that is by their fields;
            by "identity"; as a "variable", which is equal to the one that is defined in the same place; or as something
            "shared", by fields and by where else it occurs.
        eq: ``==`` compares objects by their fields, all the way down, those with ``compare=False`` left out; otherwise
            it is identity. They have no hash then, unless ``unsafe_hash`` asks for one.
        order: ``<``, ``<=``, ``>`` and ``>=`` compare them likewise; only with ``eq``.
        unsafe_hash: ``hash()`` is that of the fields, which must not change while the object is a key.

    Raises:
        TypeError: an annotation that no value can have, a default that does not fit, a field that a base class has, a
            base class that is not registered, or, of a type that C++ defined, is not that of the type's base.
        ValueError: another type has this key.
    """
    if isinstance(type_key, type) and type_key.__flags__ & _OF_PYTHON:
        return register_object()(type_key)
    if type_key is not None and not isinstance(type_key, str):
        raise TypeError(
            f'register_object takes the key of a type, as in @register_object("demo.Add"); got {type_key!r}'
        )
    if order and not eq:
        raise ValueError("order=True needs eq=True: objects without an order between them must be equal")
    added: dict[str, Any] = {"__eq__": _values.EQUALITY, "__hash__": None} if eq else {}
    added |= {method.__name__: method for method in _values.ORDER} if order else {}
    added |= {"__hash__": _values.HASH} if unsafe_hash else {}
    added |= {} if init else {"__init__": _dataclass.no_constructor}
    added |= {} if repr else {"__repr__": Object.__repr__}
    added |= {} if match_args else {"__match_args__": ()}

    def register(cls: Any) -> Any:
        if not isinstance(cls, type):
            raise TypeError(f"register_object takes a subclass of portcall.Object, got {cls!r}")
        if not issubclass(cls, Object):
            if not cls.__flags__ & _OF_PYTHON:
                raise TypeError(f"register_object takes a subclass of portcall.Object, got {cls!r}")
            cls = _as_object(cls)
        key = type_key or f"{cls.__module__}.{cls.__qualname__}"
        index = _core.type_index_of(key)
        known = _core.registered_object_class(key)
        if 0 <= index < FIRST_DYNAMIC:
            raise ValueError(f"'{key}' is a built-in type; choose another key")
        own = index < 0 or (known is not None and "__portcall_own__" in known.__dict__)
        if issubclass(cls, _enum.Enum):
            if not own:
                _check_base(cls, key, index)
            return _make_enum_class(cls, key)
        _refuse_odd_attributes(cls)
        if own:
            scope = sys._getframe(1).f_locals  # a class in a function may name others that are there
            hints = hints_of(cls, key, cls, scope)
            if odd := next((name for name in hints if hasattr(Object, name)), None):
                raise TypeError(f"{cls.__name__}.{odd}: every object has an attribute of that name; rename the field")
            methods = _methods_of(cls)
            index = _define(cls, key, hints, frozen is not False, kw_only, compare)
            _add_to_type(key, index, methods)
            return _make_class(_add_methods(cls, added), key, index, scope)
        names = [access.__name__ for access, *_ in _core.describe_type(index)[5]]
        _refuse_to_hide(cls, names)
        unknown = [name for name in inspect.get_annotations(cls) if not is_class_variable(cls, name)]
        unknown = [name for name in unknown if name not in names]
        if unknown:
            raise TypeError(f"type '{key}' is defined elsewhere, and has no field {', '.join(unknown)}")
        _check_base(cls, key, index)
        return _make_class(_add_methods(cls, added), key, index, frozen=frozen is True)

    return register


def get_object_class(type_key: str) -> type[Object]:
    """Return the class of a registered type, made from its description where no Python class was registered.

    Raises:
        KeyError: no type has this key. The message lists near ones.
    """
    if _core.type_index_of(type_key) < 0:
        raise unknown_type(type_key)
    cls = _core.registered_object_class(type_key) or class_of_type(type_key)
    return Object if cls is None else cls


def type_metadata(type_key: str) -> dict[str, Any]:
    """Return what is known of a described type, as values of JSON.

    Returns:
        ``type_key``, ``parent`` (empty for the root), ``doc``, ``fields``, ``methods`` and ``constructors``. A
        field has ``name``, ``type``, ``doc``, ``writable`` and ``has_default``, those of base types first; a
        method ``name``, ``doc``, ``static``, and ``type_schema`` where tvm-ffi's headers told it.

    Raises:
        KeyError: no type has this key. The message lists near ones.
    """
    index = _core.type_index_of(type_key)
    if index < 0:
        raise unknown_type(type_key)
    key, ancestors, doc, _, _, described, methods = _core.describe_type(index)
    of_fields = [
        {
            "name": access.__name__,
            "type": json.loads(schema or "{}").get("type") or schema_text(schema),
            "doc": access.__doc__,
            "writable": bool(flags & _WRITABLE),
            "has_default": bool(flags & _HAS_DEFAULT),
        }
        for access, flags, schema, *_ in described
    ]
    every = [
        {"name": name, "doc": text, "static": bool(flags & _STATIC), **metadata_of(schema)}
        for name, text, schema, flags, _ in methods
    ]
    of_methods = [each for each in every if not str(each["name"]).startswith("__")]
    made_by = [each for each in every if each["name"] == _INIT]
    parent = ancestors[-1] if ancestors else ""
    return {
        "type_key": key,
        "parent": parent,
        "doc": doc,
        "fields": of_fields,
        "methods": of_methods,
        "constructors": made_by,
    }


def fields(obj: Object | type[Object]) -> dict[str, _core.FieldAccess]:
    """Return the fields of an object or of a registered class by name, those of base classes first.

    Raises:
        TypeError: it is of no described type.
    """
    cls = obj if isinstance(obj, type) else type(obj)
    names = _core.fields_of_class(cls)
    if names is None:
        raise TypeError(f"{cls.__name__} is not a class of a described type")
    return {name: getattr(cls, name) for name in names}


def register_value_type(
    cls: type, type_key: str, *, encode: Callable[[Any], Any], decode: Callable[[Any], Any]
) -> None:
    """Let values of an existing Python type travel through calls, and live in fields and containers::

        portcall.ir.register_value_type(pathlib.PurePath, "demo.Path", encode=str, decode=pathlib.PurePath)

    Parameters:
        cls: the type; values of derived types travel too.
        type_key: the type's name in every language: an object with the one field ``value``.
        encode: returns what travels for a value of ``cls``: anything that calls take.
        decode: returns a value of ``cls`` for what ``encode`` returned.

    Raises:
        TypeError: values of ``cls`` travel already, as an int, a float, a str, bytes or an object.
    """
    for known in (int, float, str, bytes, bytearray, Object):
        if issubclass(cls, known):
            raise TypeError(f"a {cls.__name__} is a {known.__name__}, and travels as one")
    index = _core.define_type(type_key, OBJECT, f"a {cls.__name__}", 1, [("value", "", "{}", 0, ANY, None)])
    made = _make_class(type(cls.__name__, (Object,), {"__slots__": ()}), type_key, index, {})
    _core.register_object_class(type_key, made, lambda obj: decode(obj.value))
    _core.register_boxer(cls, lambda value: made(encode(value)))


# ---- Defining --------------------------------------------------------------------------------------------------------


def _define(
    cls: type[Object], key: str, hints: dict[str, Any], frozen: bool, kw_only: bool, compare: Comparison
) -> int:
    if compare not in _COMPARISONS:
        raise ValueError(f"compare is one of {', '.join(_COMPARISONS)}; got {compare!r}")
    parents = [base for base in cls.__bases__ if issubclass(base, Object)]
    if len(parents) != 1:
        raise TypeError(f"{cls.__name__} derives from {len(parents)} classes of objects, expected 1")
    parent = parents[0]
    parent_index = OBJECT
    if parent is not Object:
        if issubclass(parent, _BUILT_IN):
            raise TypeError(f"{cls.__name__} cannot derive from {parent.__name__}; hold one in a field")
        if "__portcall_key__" not in parent.__dict__:
            raise TypeError(f"register {parent.__name__}, which {cls.__name__} derives from, first")
        parent_index = _core.type_index_of(parent.__dict__["__portcall_key__"])
        _refuse_to_hide(cls, _core.fields_of_class(parent) or ())
    described = []
    for name, hint in hints.items():
        if hint is dataclasses.KW_ONLY:
            kw_only = True
            continue
        given = _given(cls, name)
        if isinstance(given, dataclasses.Field):
            raise TypeError(f"{cls.__name__}.{name}: use portcall.field, not that of dataclasses")
        said = given if isinstance(given, Field) else field(default=given)
        declared, optional = declared_type(hint, cls, f"{cls.__name__}.{name}")
        accepts = acceptance_test(hint)
        if said.default is not dataclasses.MISSING and accepts is not None and not accepts(said.default):
            raise TypeError(
                f"{key}.{name}: expected a default of type {annotation_text(hint)}, "
                f"got {describe_mismatch(hint, said.default)}"
            )
        if said.defines and not may_hold_variables(hint):
            raise TypeError(f"{key}.{name}: defines=True is for variables, and {annotation_text(hint)} holds none")
        flags = 0 if (frozen if said.frozen is None else said.frozen) else _WRITABLE
        flags |= 0 if said.init else _NOT_IN_INIT
        flags |= _NOT_HASHED if said.hash is False else 0
        flags |= _OPTIONAL if optional else 0
        flags |= _HAS_DEFAULT if said.optional else 0
        flags |= _FACTORY if said.default_factory is not None else 0
        flags |= _IGNORE if said.compare is False else _IDENTITY if said.compare == "identity" else 0
        flags |= _DEFINES if said.defines else 0
        flags |= 0 if said.repr else _NOT_SHOWN
        flags |= _KW_ONLY if (kw_only if said.kw_only is None else said.kw_only) else 0
        default = said.default_factory or (None if said.default is dataclasses.MISSING else said.default)
        schema = json.dumps({"type": annotation_text(hint)})
        described.append((name, said.doc, schema, flags, declared, default))
    doc = inspect.cleandoc(cls.__doc__ or "")
    return _core.define_type(key, parent_index, doc, _COMPARISONS[compare], described)


def method(function: Any) -> Any:
    """Let every language call a method of a registered class, or a ``staticmethod``: it is one of the type's."""
    inner = getattr(function, "__func__", function)
    if isinstance(function, classmethod) or not callable(inner):
        raise TypeError(f"a method that every language can call is a function or a staticmethod, got {function!r}")
    inner.__portcall_method__ = True
    return function


def _methods_of(cls: type) -> dict[str, Any]:
    """Return what ``method`` marked."""
    found = {}
    for name, value in cls.__dict__.items():
        if getattr(getattr(value, "__func__", value), "__portcall_method__", False) is True and name not in _HOOKS:
            if isinstance(value, classmethod):
                raise TypeError(
                    f"{cls.__name__}.{name} is a classmethod, which only Python can call; use a staticmethod"
                )
            found[name] = value
    return found


def _add_to_type(key: str, index: int, methods: Mapping[str, Any]) -> None:
    """Add methods of Python to a type; each calls what the class that is registered then has under its name."""
    known = {name for name, *_ in _core.describe_type(index)[6]}
    for name, value in methods.items():
        static = isinstance(value, staticmethod)
        if name not in known:

            def call(*args: Any, _name: str = name, _static: bool = static) -> Any:
                cls = _core.registered_object_class(key) if _static else type(args[0])
                return getattr(cls, _name)(*args)

            doc = inspect.getdoc(value) or ""
            schema = method_schema(getattr(value, "__func__", value), None if static else key)
            add = ir_function("portcall.ir.AddMethod")
            add(index, name, doc, schema, static, convert(call))


def _given(cls: type, name: str) -> Any:
    """Return what stands beside the annotation of a field: a default, its settings, or nothing."""
    owners = [cls, *(base for base in cls.__mro__[1:] if adds_fields(base, cls))]
    given = next((owner.__dict__[name] for owner in owners if name in owner.__dict__), dataclasses.MISSING)
    return dataclasses.MISSING if inspect.ismemberdescriptor(given) else given


def _as_object(cls: type) -> type[Object]:
    """Return a class that derives from Object, too."""
    body = {name: value for name, value in cls.__dict__.items() if name not in ("__dict__", "__weakref__")}
    bases = (Object, *(base for base in cls.__bases__ if base is not object))
    made: type[Object] = _dataclass.rebuild(cls, body, bases)
    return made


def _check_base(cls: type, key: str, index: int) -> None:
    """Check that a class stands where its type stands, which is defined already."""
    _, ancestors, *_ = _core.describe_type(index)
    wanted = _base_of(ancestors).__dict__.get("__portcall_key__", _OBJECT_KEY)
    keys = [base.__dict__.get("__portcall_key__") for base in cls.__mro__[1:]]
    given = next(filter(None, keys), _OBJECT_KEY)
    if given != wanted or issubclass(cls, _BUILT_IN):
        raise TypeError(
            f"type '{key}' derives from '{wanted}', and {cls.__name__} from '{given}': "
            f"derive it from portcall.ir.get_object_class({wanted!r})"
        )


def _refuse_odd_attributes(cls: type) -> None:
    """Instances have no attributes beside the fields, and a field has a type."""
    annotations = inspect.get_annotations(cls)
    for name, value in cls.__dict__.items():
        typed = name in annotations and not is_class_variable(cls, name)
        if isinstance(value, (Field, dataclasses.Field)) and not typed:
            raise TypeError(
                f"{cls.__name__}.{name} is a field without a type: write {name}: int = field(...), or its type"
            )
    if cls.__dict__.get("__slots__"):
        raise TypeError(
            f"{cls.__name__}.__slots__ is {cls.__dict__['__slots__']!r}: objects hold fields; annotate them"
        )


def _refuse_to_hide(cls: type, names: Sequence[str]) -> None:
    """Fields are attributes that no class has in another way."""
    annotations = inspect.get_annotations(cls)
    for name in names:
        value = cls.__dict__.get(name)
        if value is not None and name not in annotations and not isinstance(value, _core.FieldAccess):
            raise TypeError(f"{cls.__name__}.{name} hides a field of that name; rename it")


def _make_class(cls: Any, key: str, index: int, scope: Mapping[str, Any] | None = None, frozen: bool = False) -> Any:
    """Make the class that stands for a type: without a dictionary, with an attribute for each field.

    Parameters:
        scope: what annotations may name beside the globals of their module; None when C++ defined the type.
        frozen: let Python change no field.
    """
    _, _, doc, _, _, described, methods = _core.describe_type(index)
    accesses = {access.__name__: access for access, *_ in described}
    for access in accesses.values() if frozen else ():
        access.writable = False
    names = tuple(accesses)
    body = {name: value for name, value in cls.__dict__.items() if name not in ("__dict__", "__weakref__")}
    settable = tuple(access.__name__ for access, flags, *_ in described if not flags & _NOT_IN_INIT)
    places = [i for i, (_, flags, *_) in enumerate(described) if not flags & (_KW_ONLY | _NOT_IN_INIT)]
    foreign = _core.type_attribute(index, _FINAL) is not None
    # As in tvm-ffi, constructors take the fields without a default first.
    positional = tuple(sorted(places, key=lambda i: described[i][1] & _HAS_DEFAULT))
    required = any(not flags & (_HAS_DEFAULT | _NOT_IN_INIT) for _, flags, *_ in described)
    body.setdefault("__match_args__", tuple(names[i] for i in places))
    body |= {**accesses, "__slots__": (), "__portcall_key__": key, "__portcall_copy__": _copier(key, index)}
    if scope is not None:
        body["__portcall_own__"] = True
    if doc and not body.get("__doc__"):
        body["__doc__"] = doc
    init = _constructor(key, index)
    any_arguments = _ANY_POSITIONAL
    signatures: dict[str, list[inspect.Signature]] = {}  # several of an overloaded method
    for name, _, metadata, flags, _ in methods:
        signature = signature_of_method(metadata, not flags & _STATIC)
        signatures.setdefault(name, []).extend(() if signature is None else (signature,))
    for name, text, _, flags, function in methods:
        if name != _INIT:
            body.setdefault(name, _method(key, name, text, flags, function, signatures[name]))
    if inits := [each.replace(return_annotation=inspect.Signature.empty) for each in signatures.get(_INIT, ())]:
        any_arguments = inits[0] if len(inits) == 1 else _ANY_POSITIONAL
        body["__signatures__"] = tuple(inits)
    body["__portcall_shown__"] = tuple(access.__name__ for access, flags, *_ in described if not flags & _NOT_SHOWN)
    if scope is not None:
        _register_hooks(cls, index)
    left_out = _NOT_COMPARED if foreign else _NOT_COMPARED | _IGNORE
    compared = [(access.__name__, flags) for access, flags, *_ in described if not flags & left_out]
    body["__portcall_compared__"] = tuple((name, flags & _IDENTITY != 0) for name, flags in compared)
    body["__portcall_hashed__"] = tuple(
        (name, flags & _IDENTITY != 0) for name, flags in compared if not flags & _NOT_HASHED
    )
    shown = _core.type_attribute(index, "__ffi_repr__")
    body["__portcall_repr__"] = None if shown is None else staticmethod(shown)
    if not any(base is not Object and issubclass(base, Object) for base in cls.__bases__):
        for function in _COMMON:
            body.setdefault(function.__name__, function)
    if "__init__" not in body:
        body.setdefault("__signature__", _signature(described, positional) if init is None else any_arguments)
        _add_constructor(cls, body)
    settings = dict(getattr(cls, "__portcall_settings__", {}))
    settings |= {name: value for name in names if isinstance(value := _given(cls, name), Field)}
    body["__portcall_settings__"] = settings
    made = _dataclass.rebuild(cls, body)
    let_annotations_name(made)
    hints = dict(getattr(made, "__portcall_hints__", {}))
    if scope is not None:
        hints |= hints_of(cls, key, made, scope)
        made.__portcall_hints__ = hints
    made.__dataclass_fields__ = _dataclass.fields_of(described, hints, settings)
    for name, access in accesses.items():
        converter = settings[name].converter if name in settings else None
        access.check = check_of(hints.get(name), f"{key}.{name}", converter)
    _take_values_of_enums(key, described)
    checks = {i: access.check for i, access in enumerate(accesses.values()) if access.check is not None}
    made.__portcall_checked__ = tuple(access for access in accesses.values() if access.check is not None)
    _core.set_type_attribute(index, _CHECK, _check_fields if checks else None)
    post_init = hasattr(made, "__post_init__")
    generated = _dataclass.is_generated(made.__init__)
    _core.register_reflected(
        made, index, names, positional, settable, checks or None, post_init, init, generated, required
    )
    if issubclass(made, _enum.Enum):
        _core.register_object_class(key, made, _enum.single_entry)
        _enum.forget_entries(key)
    else:
        _core.register_object_class(key, made)
    return made


def _take_values_of_enums(key: str, described: Sequence[Any]) -> None:
    """Let fields of C++ that hold an enum with numbers or texts take these."""
    for access, _, metadata, *_ in described:
        type_key = schema_text(metadata)
        index = _core.type_index_of(type_key)
        if access.check is None and index >= 0 and {"ffi.IntEnum", "ffi.StrEnum"} & set(_core.describe_type(index)[1]):
            where = f"{key}.{access.__name__}"
            access.check = functools.partial(entry_or_error, where, functools.partial(get_object_class, type_key))


def _add_constructor(cls: Any, body: dict[str, Any]) -> None:
    if "__init__" not in cls.__dict__ or _dataclass.is_generated(cls.__init__):  # as the standard library's dataclass
        body["__init__"] = _dataclass.constructor(body["__signature__"])


def _make_enum_class(cls: Any, key: str) -> Any:
    changes = _enum.define(cls, key)
    body = {name: value for name, value in cls.__dict__.items() if name not in (*changes, "__dict__", "__weakref__")}
    body |= {name: value for name, value in changes.items() if value is not None}
    return _make_class(type(cls)(cls.__name__, cls.__bases__, body), key, _core.type_index_of(key))


def _add_methods(cls: Any, added: Mapping[str, Any]) -> Any:
    """Add methods to a class that does not define them. Python has put ``__hash__ = None`` beside an ``__eq__``."""
    for name, method in added.items():
        if cls.__dict__.get(name) is None:
            setattr(cls, name, method)
    return cls


@convert
def _check_fields(obj: Any) -> None:
    for access in type(obj).__portcall_checked__:
        access.check(access.__get__(obj))


def _register_hooks(cls: Any, index: int) -> None:
    """Let the methods of a class with the names of hooks be those of its type."""
    for name in _HOOKS:
        method = cls.__dict__.get(name)
        if method is not None:
            _core.set_type_attribute(index, name, getattr(method, "__func__", method))


def _method(
    key: str, name: str, doc: str, flags: int, function: PackedFunc, signatures: Sequence[inspect.Signature]
) -> Any:
    """Return a method of a class. An overloaded one has its signatures in ``__signatures__``, and in its text."""
    overloaded = len(signatures) > 1
    if flags & _STATIC and not overloaded:
        return staticmethod(function)

    def method(self: Object, *args: Any) -> Any:
        return function(self, *args)

    def static(*args: Any) -> Any:
        return function(*args)

    made: Any = static if flags & _STATIC else method
    made.__name__, made.__qualname__, made.__doc__ = name, f"{key}.{name}", doc
    if overloaded:
        made.__signatures__ = tuple(signatures)
        made.__doc__ = "\n".join([*(f"{name}{each}" for each in signatures), *filter(None, ("", doc))])
    elif signatures:
        made.__signature__ = signatures[0]
    return staticmethod(made) if flags & _STATIC else made


_ANY_POSITIONAL = inspect.Signature([inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL)])


def _constructor(key: str, index: int) -> Callable[..., Any] | None:
    """Return the constructor of a C++ type; None if objects are made from its fields."""
    if _core.type_attribute(index, "__portcall_init__"):
        return None
    init: Callable[..., Any] | None = _core.type_attribute(index, _INIT)
    if callable(init):
        return init
    _, _, _, creator, *_ = _core.describe_type(index)
    if not creator or _core.type_attribute(index, _NEW) is None:
        return None

    def refuse(*_: Any) -> Any:
        raise TypeError(f"objects of type '{key}' are made by C++ only")

    return refuse


def _copier(key: str, index: int) -> Callable[[Object], Any] | None:
    """Return the copier of a C++ type; None if another object with the same fields is a copy."""
    if _core.type_attribute(index, _FINAL) is None:
        return None
    copy: Callable[[Object], Any] | None = _core.type_attribute(index, _COPY)

    def refuse(_: Object) -> Any:
        raise TypeError(f"objects of type '{key}' cannot be copied: their C++ type has no copy constructor")

    return refuse if copy is None else staticmethod(copy)


def _signature(described: list[Any], positional: tuple[int, ...]) -> inspect.Signature:
    parameters = []
    by_name = [i for i, (_, flags, *_) in enumerate(described) if flags & _KW_ONLY and not flags & _NOT_IN_INIT]
    by_name.sort(key=lambda i: described[i][1] & _HAS_DEFAULT)
    for access, flags, schema, _, default in (described[i] for i in (*positional, *by_name)):
        kind = inspect.Parameter.KEYWORD_ONLY if flags & _KW_ONLY else inspect.Parameter.POSITIONAL_OR_KEYWORD
        shown: Any = inspect.Parameter.empty
        if flags & _HAS_DEFAULT:
            shown = ... if flags & _FACTORY else default
        annotation = json.loads(schema or "{}").get("type") or schema_text(schema) or inspect.Parameter.empty
        parameters.append(inspect.Parameter(access.__name__, kind, default=shown, annotation=annotation))
    return inspect.Signature(parameters)


def class_of_type(key: str) -> type[Object] | None:
    """Make the class of a type that C++ described; None when it described nothing."""
    index = _core.type_index_of(key)
    _, ancestors, _, creator, _, described, methods = _core.describe_type(index)
    nothing = not described and not methods and not creator and _core.type_attribute(index, _COPY) is None
    if nothing and not _enum.is_enum(ancestors):
        return None
    name = key.rpartition(".")[2]
    made: type[Object] = _make_class(
        type(name, (_base_of(ancestors),), {"__slots__": (), "__module__": MADE_FROM_DESCRIPTIONS}),
        key,
        index,
    )
    return made


def _base_of(ancestors: list[str]) -> type[Object]:
    """Return the class of the nearest ancestor that has one."""
    for ancestor in reversed(ancestors[1:]):
        cls: type[Object] | None = _core.registered_object_class(ancestor) or class_of_type(ancestor)
        if cls is not None:
            return cls
    return Object


# ---- What all of them can do -----------------------------------------------------------------------------------------


@_printing.mark_generated_repr
def __repr__(self: Object) -> str:
    return _printing.line(self)


def _repr_html_(self: Object) -> str:
    return _printing.as_html(self)


def replace(self: Object, /, **changes: Any) -> Any:
    """Return an object like this one with some fields changed.

    Raises:
        TypeError: a field that the class does not have, or a value that does not fit.
    """
    cls: Any = type(self)
    if cls.__portcall_copy__ is None:
        values = {name: getattr(self, name) for name in fields(self)}
        # What is in these may have changed since they were checked.
        changeable = {name: value for name, value in values.items() if isinstance(value, (List, Dict))}
        return _core.create_object(cls, values, changeable | changes)
    copy = cls.__portcall_copy__(self)
    _core.change_fields(cls, copy, changes)
    return copy


def __replace__(self: Object, /, **changes: Any) -> Any:  # for copy.replace of Python 3.13
    return replace(self, **changes)


def __copy__(self: Object) -> Any:
    return replace(self)


_enum.set_registrar(register_object)
_COMMON = (__repr__, _repr_html_, replace, __replace__, __copy__)
