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
    kind = inspect.Parameter.POSITIONAL_ONLY
    parameters = [inspect.Parameter(f"arg{i}", kind, annotation=type_) for i, type_ in enumerate(parts[0])]
    return inspect.Signature(parameters, return_annotation=parts[1])


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


def _of_schema(text: str) -> tuple[list[str], str] | None:
    try:
        schema = json.loads(json.loads(text)["type_schema"])
        result, *parameters = map(_schema_text, schema["args"])
    except (ValueError, KeyError, TypeError):
        return None
    return parameters, result


def _schema_text(schema: Any) -> str:
    name = str(schema["type"]).removeprefix("ffi.")
    inside = ", ".join(map(_schema_text, schema.get("args") or ()))
    return f"{name}<{inside}>" if inside else name
