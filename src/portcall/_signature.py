# SPDX-License-Identifier: Apache-2.0
"""Signatures of compiled functions: what compilers of C++ wrote into a library, as text and as ``inspect.Signature``.

portcall's headers write the name of a function type as their compiler has it (``portcall/signature.h``), tvm-ffi's
write JSON. Either becomes ``(TensorView, float) -> Tensor``: the types of C++, without their namespace.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

_FUNCTION_TYPE = re.compile(r"\bF = (.+\))\]$")
_SPELLINGS = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"\(anonymous namespace\)::|\{anonymous\}::|portcall::|std::(__cxx11|__1)::(?=basic_)", ""),
        (r"(std::)?basic_string<char>", "std::string"),
        (r"(std::)?basic_string_view<char>", "std::string_view"),
        (r"\b(long unsigned int|unsigned long( long)?|long long unsigned int)\b", "uint64_t"),
        (r"\b(long long int|long int|long long)\b|\blong\b(?! double)", "int64_t"),
        (r"\b(short unsigned int|unsigned short)\b", "uint16_t"),
        (r"\b(short int|short)\b", "int16_t"),
        (r"\bunsigned char\b", "uint8_t"),
        (r"\bsigned char\b", "int8_t"),
        (r"\bunsigned int\b", "uint32_t"),
        (r"\s+(?=[>(&*])", ""),
        (r"\bMap<String>", "Map<String, Any>"),  # Clang leaves default arguments out
    )
)


def parts_of(text: str) -> tuple[list[str], str] | None:
    """Return the types of the parameters, and that of the result; None when the text is not a signature."""
    if text.startswith("{"):
        return _of_schema(text)
    found = _FUNCTION_TYPE.search(text)
    if not found:
        return None
    whole, depth, begin = found[1], 0, len(found[1])
    while begin and (depth or begin == len(whole)):
        begin -= 1
        depth += (whole[begin] in ")>") - (whole[begin] in "(<")
    inside = whole[begin + 1 : -1]
    return [_readable(each) for each in _split(inside)] if inside else [], _readable(whole[:begin])


def metadata_of(text: str) -> dict[str, str]:
    """Return what tvm-ffi's headers would say of a function: ``type_schema``, which is JSON.

    Empty when the library says nothing. A type of C++ that tvm-ffi has no name for keeps that of C++.
    """
    if text.startswith("{"):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}
    parts = parts_of(text)
    return {} if parts is None else {"type_schema": json.dumps(_function_schema(*parts))}


_SCHEMA_OF_CPP = {
    "bool": "bool", "void": "None", "float": "float", "double": "float", "long double": "float", "Any": "Any",
    "std::string": "ffi.String", "std::string_view": "ffi.String", "String": "ffi.String", "char*": "ffi.String",
    "Bytes": "ffi.Bytes", "Array": "ffi.Array", "std::vector": "ffi.Array", "List": "ffi.List", "Map": "ffi.Map",
    "Dict": "ffi.Dict", "Shape": "ffi.Shape", "ShapeView": "ffi.Shape", "Tensor": "ffi.Tensor",
    "TensorView": "DLTensor*", "DLTensor*": "DLTensor*", "DLDataType": "DataType", "DataType": "DataType",
    "Device": "Device", "DLDevice": "Device", "PackedFunc": "ffi.Function", "Module": "ffi.Module",
    "ObjectRef": "ffi.Object", "std::optional": "Optional", "Optional": "Optional",
}  # fmt: skip
_INTEGER = re.compile(r"(u?int\d*(_t)?|size_t|unsigned|char)$")


def _function_schema(parameters: list[str], result: str) -> dict[str, Any]:
    named = {"return": [_type_schema(result)], "params": list(map(_type_schema, parameters))}
    return {"type": "ffi.Function", "named_args": named}


def _type_schema(text: str) -> dict[str, Any]:
    """Return the schema of a type of C++, as ``_readable`` spells it."""
    text = re.sub(r"\bconst\b|&", "", text).strip()
    if _INTEGER.match(text):
        return {"type": "int"}
    name, opened, inside = text.partition("<")
    inside = inside.rpartition(">")[0]
    if name == "TypedPackedFunc":
        parts = parts_of(f"[F = {inside}]")
        return {"type": "ffi.Function"} if parts is None else _function_schema(*parts)
    schema: dict[str, Any] = {"type": _SCHEMA_OF_CPP.get(name, text)}
    if opened and name in _SCHEMA_OF_CPP:
        arguments = [_type_schema(each) for each in _split(inside) if "std::allocator" not in each]
        if any(each["type"] != "Any" for each in arguments):
            schema["args"] = arguments
    return schema


def shown(text: str) -> str:
    """Return a signature as shown after a function's name; empty when unknown."""
    parts = parts_of(text)
    return "" if parts is None else f"({', '.join(parts[0])}) -> {parts[1]}"


def signature_of(func: Any, python: Callable[..., Any] | None, text: str) -> inspect.Signature:
    """Return the signature of a PackedFunc: of the function of Python that it is, or in a library's words.

    Raises:
        AttributeError: the function has no signature.
    """
    if python is not None:
        return inspect.signature(python)
    parts = parts_of(text)
    if parts is None:
        raise AttributeError(f"{func!r} carries no signature", name="__signature__", obj=func)
    return _signature(*parts)


def signature_of_method(metadata: str, own: bool) -> inspect.Signature | None:
    """Return the signature of a method by its metadata of tvm-ffi's headers; None when they do not say it.

    Parameters:
        own: whether the first argument is the object that it is called on.
    """
    parts = parts_of(metadata)
    return None if parts is None else _signature(*parts, own=own)


def _signature(types: list[str], result: str, own: bool = False) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_ONLY
    names = ["self"] if own else []
    names += [f"arg{i}" for i in range(len(types) - len(names))]
    parameters = [inspect.Parameter(name, kind, annotation=type_) for name, type_ in zip(names, types, strict=True)]
    return inspect.Signature(parameters, return_annotation=result)


def to_plain(signature: inspect.Signature) -> list[Any]:
    """Return a signature as what travels: annotations as text, and of defaults those that are values."""
    plain: list[Any] = [_annotation_text(signature.return_annotation)]
    for parameter in signature.parameters.values():
        optional = parameter.default is not inspect.Parameter.empty
        is_value = optional and isinstance(parameter.default, (type(None), bool, int, float, str))
        default = parameter.default if is_value else None
        text = _annotation_text(parameter.annotation)
        plain.append([parameter.name, int(parameter.kind), text, optional, is_value, default])
    return plain


def from_plain(plain: Any) -> inspect.Signature:
    """Return the signature of what ``to_plain`` returned, maybe in another process; another default is ``...``.

    Raises:
        ValueError, TypeError: these are not such lists.
    """
    result, *rest = plain
    parameters = []
    for name, kind, annotation, optional, is_value, default in rest:
        shown = inspect.Parameter.empty if not optional else default if is_value else ...
        annotation = inspect.Parameter.empty if annotation is None else annotation
        parameters.append(inspect.Parameter(name, inspect._ParameterKind(kind), default=shown, annotation=annotation))
    return inspect.Signature(parameters, return_annotation=inspect.Signature.empty if result is None else result)


def _annotation_text(annotation: Any) -> str | None:
    if annotation is inspect.Signature.empty:
        return None
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


_SCHEMA_NAMES = {
    int: "int", float: "float", bool: "bool", str: "ffi.String", bytes: "ffi.Bytes", None: "None", type(None): "None",
}  # fmt: skip


def method_schema(function: Callable[..., Any], own: str | None) -> str:
    """Return the metadata of a function of Python that is a type's method, as tvm-ffi's headers write it.

    Parameters:
        own: the key of the type whose object is the first argument; None if there is none.
    """
    try:
        signature = inspect.signature(function, eval_str=True)
    except (NameError, TypeError, ValueError):  # an annotation may name what is not there yet
        signature = inspect.signature(function)
    names = []
    for each in (signature.return_annotation, *(one.annotation for one in signature.parameters.values())):
        plain = isinstance(each, (type, type(None)))
        key = getattr(each, "__portcall_key__", None) if plain else None
        names.append({"type": key or (_SCHEMA_NAMES.get(each, "Any") if plain else "Any")})
    if own is not None and len(names) > 1:
        names[1] = {"type": own}
    return json.dumps({"type_schema": json.dumps({"type": "ffi.Function", "args": names})})


def _split(text: str) -> Iterator[str]:
    depth = begin = 0
    for place, letter in enumerate(text):
        depth += (letter in "(<") - (letter in ")>")
        if letter == "," and not depth:
            yield text[begin:place]
            begin = place + 1
    yield text[begin:]


def _readable(text: str) -> str:
    for pattern, name in _SPELLINGS:
        text = pattern.sub(name, text)
    return text.strip()


def schema_text(metadata: str) -> str:
    """Return the type of a field by its metadata of tvm-ffi's headers; empty when they do not say it."""
    try:
        return _schema_text(json.loads(json.loads(metadata)["type_schema"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def _of_schema(text: str) -> tuple[list[str], str] | None:
    try:
        return _parts_of_schema(json.loads(json.loads(text)["type_schema"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _parts_of_schema(schema: Any) -> tuple[list[str], str]:
    """Return the parts of a function's type as text."""
    parameters, result = _parts_of_function(schema)
    return list(map(_schema_text, parameters)), _schema_text(result)


def _parts_of_function(schema: Any) -> tuple[list[Any], Any]:
    """Return the parts of a function's type: since 0.1.15 by names, before in one list, the result first."""
    named = schema.get("named_args")
    result, *parameters = [*named["return"], *named["params"]] if named else schema["args"]
    return parameters, result


def _schema_text(schema: Any) -> str:
    name = str(schema["type"]).removeprefix("ffi.")
    if "named_args" in schema:
        parameters, result = _parts_of_schema(schema)
        return f"{name}<{result}({', '.join(parameters)})>"
    inside = ", ".join(map(_schema_text, schema.get("args") or ()))
    return f"{name}<{inside}>" if inside else name
