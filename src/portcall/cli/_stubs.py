# SPDX-License-Identifier: Apache-2.0
"""The text of a Python module that loads a library, with the types of its functions and classes."""

from __future__ import annotations

import ast
import builtins
import json
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import portcall
from portcall import ir

HEAD = '''# mypy: disable-error-code="overload-overlap, overload-cannot-match, override"
"""Functions and types of {library}, with their types. Written by: portcall stubs"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, MutableSequence, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, overload

import portcall

_library = portcall.load_module({place})
_USED = (Any, Callable, Mapping, MutableMapping, MutableSequence, Sequence, overload)


class _Array(Protocol):
    """Any array that has DLPack, such as NumPy's and torch's."""

    def __dlpack__(self, *args: Any, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

'''
# Schema: what a parameter takes, and what a result is.
PLAIN = {
    "int": "int", "float": "float", "bool": "bool", "None": "None", "Any": "Any", "ffi.String": "str",
    "std::string": "str", "const char*": "str", "ffi.SmallStr": "str", "ffi.Bytes": "bytes", "ffi.SmallBytes": "bytes",
    "ffi.Module": "portcall.Module", "ffi.Object": "portcall.Object", "void*": "Any", "str": "str", "bytes": "bytes",
    "DLTensor*": "_Array",
}  # fmt: skip
TAKEN = {
    **PLAIN, "ffi.Tensor": "_Array", "ffi.Shape": "Sequence[int]", "Device": "portcall.Device | str",
    "DataType": "portcall.DataType | str", "ffi.Function": "Callable[..., Any]",
}  # fmt: skip
GIVEN = {
    **PLAIN, "ffi.Tensor": "portcall.Tensor", "ffi.Shape": "portcall.Shape", "Device": "portcall.Device",
    "DataType": "portcall.DataType", "ffi.Function": "portcall.PackedFunc",
}  # fmt: skip
CONTAINERS = {
    "ffi.Array": ("Sequence", 1), "ffi.List": ("MutableSequence", 1), "ffi.Map": ("Mapping", 2),
    "ffi.Dict": ("MutableMapping", 2),
}  # fmt: skip
# Names in the types of fields, which portcall's headers and classes of Python spell as Python does.
OF_FIELDS = {
    "Array": "Sequence", "List": "MutableSequence", "Map": "Mapping", "Dict": "MutableMapping",
    "Tensor": "portcall.Tensor", "Shape": "portcall.Shape", "DataType": "portcall.DataType",
    "dtype": "portcall.DataType", "Device": "portcall.Device", "PackedFunc": "portcall.PackedFunc",
    "Module": "portcall.Module", "Object": "portcall.Object", "String": "str", "Bytes": "bytes",
}  # fmt: skip
BUILT_IN = {"int", "float", "bool", "str", "bytes", "None", "Any"}
# What the text uses, and so a library's functions and types cannot be called.
USED = {
    *dir(builtins), "Any", "Callable", "Mapping", "MutableMapping", "MutableSequence", "Path", "Protocol", "Sequence",
    "TYPE_CHECKING", "annotations", "overload", "portcall",
}  # fmt: skip


def stubs_of(module: portcall.Module, library: str, place: str) -> tuple[str, dict[str, list[str]]]:
    """Return the text of the module, and what is in it: ``functions``, ``globals`` and ``types`` by name.

    Parameters:
        library: the file's name, as it is shown.
        place: an expression of Python for its path.
    """
    registered = module.registered
    functions = set(portcall.list_global_func_names())
    keys = [
        name for name in registered if name not in functions and not name.startswith("ffi.")
    ]  # or it is tvm-ffi's own
    taken = set(USED)
    classes = {key: python_name(name, taken) for key, name in class_names(keys).items()}
    lines: list[str] = []
    runtime: list[str] = []
    for key in sorted(keys, key=lambda each: depth_of(each, keys)):
        lines += class_lines(classes[key], ir.type_metadata(key), classes)
        runtime.append(f"{classes[key]} = portcall.ir.get_object_class({key!r})")
    found: dict[str, list[str]] = {"functions": [], "globals": [], "types": keys}
    for name in module.list_function_names():
        python = python_name(name, taken)
        lines += function_lines(python, module.metadata(name), classes)
        runtime.append(f"{python} = _library[{name!r}]")
        found["functions"].append(name)
    for name in (name for name in registered if name in functions):
        python = python_name(name, taken)
        lines += function_lines(python, portcall.get_global_func_metadata(name), classes)
        runtime.append(f"{python} = portcall.get_global_func({name!r})")
        found["globals"].append(name)
    body = [f"    {line}".rstrip() for line in lines] or ["    pass"]
    otherwise = [f"    {line}" for line in runtime] or ["    pass"]
    text = HEAD.format(library=library, place=place)
    return text + "\n".join(["", "if TYPE_CHECKING:", *body, "", "else:", *otherwise, ""]), found


def class_names(keys: Sequence[str]) -> dict[str, str]:
    """Return a name for each type: the last part of its key, or all of it where two have the same."""
    last = [key.rpartition(".")[2] for key in keys]
    return {key: short if last.count(short) == 1 else key for key, short in zip(keys, last, strict=True)}


def python_name(name: str, taken: set[str]) -> str:
    """Return a name for a function that no other has."""
    made = valid(name)
    while made in taken:
        made += "_"
    taken.add(made)
    return made


def valid(name: str) -> str:
    made = re.sub(r"\W", "_", name)
    return f"_{made}" if not made.isidentifier() or keyword.iskeyword(made) else made


def depth_of(key: str, keys: Sequence[str]) -> int:
    """Return how many types of a list a type comes from: classes stand behind their bases."""
    parent = ir.type_metadata(key)["parent"]
    return 1 + depth_of(parent, keys) if parent in keys else 0


def function_lines(name: str, metadata: Mapping[str, Any], classes: Mapping[str, str], own: str = "") -> list[str]:
    """Return a function without a body.

    Parameters:
        own: "self" for a method, whose first parameter is the object, "static" for one without it, "init" for a
            constructor, empty otherwise.
    """
    parts = parts_of(metadata)
    parameters = ["*args: Any"]
    result = "Any"
    if parts is not None:
        schemas = parts[0][1:] if own == "self" else parts[0]
        parameters = [f"arg{i}: {annotation(schema, classes, TAKEN)}" for i, schema in enumerate(schemas)]
        result = annotation(parts[1], classes, GIVEN)
        if parameters:
            parameters.append("/")
    if own in ("self", "init"):
        parameters.insert(0, "self")
    if own == "init":
        result = "None"
    lines = ["@staticmethod"] if own == "static" else []
    doc = [f"    {line}" for line in doc_lines(str(metadata.get("doc") or ""))]
    head = f"def {name}({', '.join(parameters)}) -> {result}:"
    return [*lines, head, *doc, "    ..."] if doc else [*lines, f"{head} ..."]


def overload_lines(
    name: str, overloads: Sequence[Mapping[str, Any]], classes: Mapping[str, str], own: str
) -> list[str]:
    """Return a function of one or several signatures."""
    if len(overloads) == 1:
        return function_lines(name, overloads[0], classes, own)
    lines = [line for each in overloads for line in ("@overload", *function_lines(name, each, classes, own))]
    return [*lines, *function_lines(name, {}, classes, own)]


def class_lines(name: str, metadata: Mapping[str, Any], classes: Mapping[str, str]) -> list[str]:
    base = classes.get(metadata["parent"], "portcall.Object")
    lines = [f"class {name}({base}):", *(f"    {line}" for line in doc_lines(metadata["doc"]))]
    body: list[str] = ["def __init__(self, *args: Any, **fields: Any) -> None: ..."]
    if metadata["constructors"]:
        body = overload_lines("__init__", metadata["constructors"], classes, "init")
    for each in metadata["fields"]:
        if valid(each["name"]) != each["name"]:
            continue
        text = field_annotation(each["type"], classes)
        if each["writable"]:
            body.append(f"{each['name']}: {text}")
        else:
            body += ["@property", f"def {each['name']}(self) -> {text}: ..."]
    methods: dict[str, list[Mapping[str, Any]]] = {}
    for each in metadata["methods"]:
        methods.setdefault(each["name"], []).append(each)
    for method, overloads in methods.items():
        if valid(method) == method:
            body += overload_lines(method, overloads, classes, "static" if overloads[0]["static"] else "self")
    return [*lines, *(f"    {line}" for line in body)]


def doc_lines(doc: str) -> Iterator[str]:
    if doc:
        text = doc.strip().replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
        text += " " if text.endswith('"') else ""
        yield from f'"""{text}"""'.splitlines()


def parts_of(metadata: Mapping[str, Any]) -> tuple[list[Any], Any] | None:
    """Return the schemas of the parameters, and that of the result; None where they are not told."""
    try:
        return parts_of_schema(json.loads(metadata["type_schema"]))
    except (ValueError, KeyError, TypeError):
        return None


def parts_of_schema(schema: Mapping[str, Any]) -> tuple[list[Any], Any]:
    named = schema.get("named_args")
    result, *parameters = [*named["return"], *named["params"]] if named else schema["args"]
    return parameters, result


def annotation(schema: Mapping[str, Any], classes: Mapping[str, str], plain: Mapping[str, str]) -> str:
    """Return the annotation of a type; ``Any`` for one that is not known."""
    name, given = str(schema["type"]), list(schema.get("args") or ())
    inside = [annotation(each, classes, plain) for each in given]
    if name in classes:
        return classes[name]
    if name in CONTAINERS:
        kind, count = CONTAINERS[name]
        return f"{kind}[{', '.join((inside + ['Any'] * count)[:count])}]"
    if name == "ffi.Function" and plain is TAKEN and ("named_args" in schema or given):
        parameters, result = parts_of_schema(schema)
        takes = ", ".join(annotation(each, classes, GIVEN) for each in parameters)
        return f"Callable[[{takes}], {annotation(result, classes, TAKEN)}]"
    if name == "Optional" and inside:
        return f"{inside[0]} | None"
    if name == "Variant" and inside:
        return " | ".join(dict.fromkeys(inside))
    if name == "Tuple" and inside:
        return f"tuple[{', '.join(inside)}]" if plain is TAKEN else "Sequence[Any]"
    return plain.get(name, "portcall.Object" if re.fullmatch(r"\w+(\.\w+)+", name) else "Any")


def field_annotation(text: str, classes: Mapping[str, str]) -> str:
    """Return the annotation of a field by its type in words; ``Any`` where that is not one of Python."""
    made = re.sub(r"<([^()]*)>", r"[\1]", text.replace("ffi.", ""))
    made = re.sub(r"Optional\[([^\[\]]*(?:\[[^\[\]]*\])?)\]", r"\1 | None", made)

    def named(found: re.Match[str]) -> str:
        name = found[0]
        known = classes.get(name) or OF_FIELDS.get(name) or (name if name in BUILT_IN else "")
        return known or ("portcall.Object" if "." in name else "Any")

    made = re.sub(r"[A-Za-z_][\w.]*", named, made)
    try:
        ast.parse(made, mode="eval")
    except SyntaxError:
        return "Any"
    return made if re.fullmatch(r"[\w.\[\], |]+", made) and "Any[" not in made else "Any"
