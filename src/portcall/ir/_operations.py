# SPDX-License-Identifier: Apache-2.0
"""What can be done with whole graphs of objects: compare, hash, save, load, walk and rewrite them.

All of it is in a separate library, ``libportcall_ir``, which is loaded when it is first needed. None of it uses the
stack for depth: a chain of 200,000 objects is as good as any other graph.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import importlib
from collections.abc import Callable
from typing import Any, Literal, TypeVar, overload

from portcall import _core
from portcall._core import Object
from portcall._function import get_global_func, registered_elsewhere
from portcall._module import IR_LIBRARY, Module, load_module

MADE_FROM_DESCRIPTIONS = "portcall.objects"  # the module of classes made from descriptions
Order = Literal["pre", "post"]
Obj = TypeVar("Obj", bound=Object)


@dataclasses.dataclass(frozen=True, slots=True)
class Mismatch:
    """Where two graphs differ first. ``str()`` of it is ``<root>.rhs.value: 1 != 2``.

    That leaves out the middle of a path of more than 100 steps; ``path`` is whole.
    """

    text: str
    path: str
    left: Any
    right: Any
    why: str

    def __str__(self) -> str:
        return self.text


def structural_equal(left: Any, right: Any, *, map_free_variables: bool = False) -> bool:
    """Return whether two values have the same structure: the same types and equal fields, all the way down.

    Values are equal to those of their own kind: 1, 1.0 and True are three. A NaN equals a NaN; 0.0 and -0.0 differ.
    Tensors are compared by data type, shape and bits; maps whatever the order of their entries; functions, modules and
    objects without a description by identity. Variables that are defined in the same place stand for each other.

    Parameters:
        map_free_variables: match variables that are defined nowhere, too, where they first occur.
    """
    equal: bool = function("portcall.ir.StructuralEqual")(left, right, map_free_variables)
    return equal


def structural_hash(value: Any, *, map_free_variables: bool = False) -> int:
    """Return a number of 64 bits (signed) that is the same for all values that are structurally equal.

    It is the same in every process, under every Python and on every machine, within a major version of portcall.

    Raises:
        ValueError: an object contains itself. The message shows the path.
    """
    number: int = function("portcall.ir.StructuralHash")(value, map_free_variables)
    return number


def first_mismatch(left: Any, right: Any, *, map_free_variables: bool = False) -> Mismatch | None:
    """Return where two values differ first, in the order of fields; None when they are structurally equal."""
    found = function("portcall.ir.FirstMismatch")(left, right, map_free_variables)
    return None if found is None else Mismatch(*found)


def save_json(value: Any, *, indent: int | None = None) -> str:
    """Return a graph as JSON: a list of nodes, in which a shared object stands once.

    Parameters:
        indent: spaces of indentation, with a line for each node; None for one line.

    Raises:
        TypeError: something cannot be saved: a function, a module, a pointer. The message has the path to it.
        ValueError: an object contains itself, and not through a List or a Dict. The message shows the path.
    """
    text: str = function("portcall.ir.SaveJson")(value, indent)
    return text


def load_json(text: str, *, max_nodes: int = 0, max_depth: int = 0) -> Any:
    """Return the value that ``save_json`` saved.

    A field that is missing takes its default. The text may be untrusted: memory is bounded by its size.

    Parameters:
        max_nodes: how many objects are made at most; 0 for any number.
        max_depth: how many objects there may be on the longest path from the root; 0 for any number. What contains
            itself is deeper than any other.

    Raises:
        ValueError: the text is not such JSON, or has unknown types, unknown fields or values that do not fit. The
            message has the node, the field, the line and the column.
    """
    if not isinstance(text, str):
        raise TypeError(f"load_json reads a str, got {text.__class__.__name__}; from_bytes reads bytes")
    return function("portcall.ir.LoadJson")(text, max_nodes, max_depth)


def to_bytes(value: Any) -> bytes:
    """Return a graph in a short binary form; sharing is kept.

    Raises:
        TypeError: something cannot be saved; see ``save_json``.
        ValueError: an object contains itself, and not through a List or a Dict.
    """
    data: bytes = function("portcall.ir.ToBytes")(value)
    return data


def from_bytes(data: bytes, *, max_nodes: int = 0, max_depth: int = 0) -> Any:
    """Return the value that ``to_bytes`` made bytes of; the bytes may be untrusted. Limits as of ``load_json``.

    Raises:
        ValueError: the bytes are damaged, or have unknown types. The message has the position.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"from_bytes reads bytes, got {data.__class__.__name__}; load_json reads a str")
    return function("portcall.ir.FromBytes")(data, max_nodes, max_depth)


@overload
def walk(value: Any, type: type[Obj], *, order: Order = "pre") -> list[Obj]: ...
@overload
def walk(value: Any, type: str | None = None, *, order: Order = "pre") -> list[Any]: ...
def walk(value: Any, type: type[Object] | str | None = None, *, order: Order = "pre") -> list[Any]:
    """Return the objects of a graph, each once: before what they hold ("pre"), or after it ("post").

    Parameters:
        type: objects of this class, or of this type key, and what derives from it; None for all, containers, tensors
            and functions too.
    """
    return list(function("portcall.ir.Collect")(value, _key_of(type), _is_post(order)))


def visit(
    value: Any, func: Callable[[Any], object], type: type[Object] | str | None = None, *, order: Order = "pre"
) -> None:
    """Call ``func`` with the objects that ``walk`` returns. In order "pre", False as its result leaves out what the
    object holds. The graph must not be changed meanwhile."""
    function("portcall.ir.Walk")(value, _key_of(type), _is_post(order), _callable("visit", func))


def rewrite(value: Any, func: Callable[[Any], Any], type: type[Object] | str | None = None) -> Any:
    """Return a graph with objects replaced, from the leaves up: each by ``func(object)``, None meaning itself.

    Each object is handed over once, with what it holds replaced already. Holders of a replaced object are rebuilt; all
    else stays the very same object.

    Raises:
        TypeError: a replacement does not fit the field that is to hold it.
        ValueError: an object contains itself.
    """
    return function("portcall.ir.Rewrite")(value, _key_of(type), _callable("rewrite", func))


def map_children(value: Any, func: Callable[[Any], Any]) -> Any:
    """Return ``value`` with each field, item, key or value that it holds replaced by ``func(it)``, None meaning itself.

    The same object when nothing was replaced.
    """
    return function("portcall.ir.MapChildren")(value, _callable("map_children", func))


def deep_copy(value: Any, memo: dict[Any, Any]) -> Any:
    """Return a copy of a graph, tensors included; functions, modules and entries of enums are the same ones in it.

    Parameters:
        memo: that of ``copy.deepcopy``. What several graphs share is copied once for each memo.

    Raises:
        TypeError: an object of a C++ type without a copy constructor.
    """
    if "portcall.DeepCopier" not in memo:
        memo["portcall.DeepCopier"] = function("portcall.ir.DeepCopier")()
    return memo["portcall.DeepCopier"](value)


def reduce(value: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return what pickle calls to make an object again: its binary form, and the modules that define its types.

    Raises:
        TypeError, ValueError: it cannot be saved; see ``to_bytes``.
    """
    classes = map(_core.registered_object_class, function("portcall.ir.TypeKeys")(value))
    modules = {cls.__module__ for cls in classes if cls is not None and cls.__module__ != MADE_FROM_DESCRIPTIONS}
    return _unpickle, (to_bytes(value), tuple(sorted(modules)))


def _unpickle(data: bytes, modules: tuple[str, ...]) -> Any:
    for module in modules:
        importlib.import_module(module)
    return from_bytes(data)


def _callable(caller: str, func: Any) -> Any:
    if not callable(func):
        raise TypeError(f"{caller} takes a function to call with objects, got {func!r}")
    return func


def _is_post(order: str) -> bool:
    if order not in ("pre", "post"):
        raise ValueError(f"order is 'pre' or 'post', got {order!r}")
    return order == "post"


def _key_of(type: type[Object] | str | None) -> str:
    if type is None or type is Object:
        return ""
    key = type if isinstance(type, str) else getattr(type, "__dict__", {}).get("__portcall_key__")
    if key is None:
        raise TypeError(f"type is a registered class or its key, got {type!r}")
    if key and _core.type_index_of(key) < 0:
        library()  # it describes some
        if _core.type_index_of(key) < 0:
            raise unknown_type(key)
    return str(key)


def unknown_type(type_key: str) -> KeyError:
    """Return the error for a key that no type has; it lists those that are like it."""
    near = difflib.get_close_matches(type_key, _core.type_keys(), 3)
    hint = f"did you mean {' or '.join(map(repr, near))}?" if near else "is the library that defines it loaded?"
    return KeyError(f"no type has the key {type_key!r}; {hint}{registered_elsewhere()}")


@functools.cache
def function(name: str) -> _core.PackedFunc:
    """Return a function that the library's C++ registered."""
    library()
    return get_global_func(name)


@functools.cache
def library() -> Module:
    """Load the library from the core's folder."""
    return load_module(IR_LIBRARY)
