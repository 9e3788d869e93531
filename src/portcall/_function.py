# SPDX-License-Identifier: Apache-2.0
"""The registry: one table of functions for Python, C and C++."""

from __future__ import annotations

import builtins
import difflib
import os
from collections.abc import Callable
from typing import Any, Literal, TypeVar, overload

from portcall import _core, errors
from portcall._container import Array
from portcall._core import PackedFunc

_F = TypeVar("_F", bound=Callable[..., Any])
_E = TypeVar("_E", bound=type[Exception])
_FEW_NAMES = 8

# Kinds that arrive as the exception of that name: Python's own, and those of portcall itself.
for _cls in (
    *vars(builtins).values(), errors.AlreadyRegisteredError, errors.ArgumentError, errors.CompileError,
    errors.DeviceError, errors.FunctionNotFoundError, errors.GraphError, errors.ModuleLoadError,
):  # fmt: skip
    if isinstance(_cls, type) and issubclass(_cls, Exception):
        _core.register_error_class(_cls.__name__, _cls)
del _cls
_core.register_error_class("InternalError", RuntimeError)  # tvm-ffi's name for a failed check, and for std::exception


def convert(value: Any) -> Any:
    """Return a value as every language gets it.

    A callable becomes a PackedFunc; a list or a tuple an Array, a mapping a Map, an array of NumPy or torch a Tensor,
    and so what they hold. Numbers, text and objects stay what they are.
    """
    if isinstance(value, _core.Object):
        return value
    if callable(value):
        return _core.convert_function(value, getattr(value, "__name__", ""))
    return Array((value,))[0]


@overload
def register_func(name: str, func: None = None, *, override: bool = False) -> Callable[[_F], _F]: ...
@overload
def register_func(name: str, func: Callable[..., Any], *, override: bool = False) -> PackedFunc: ...
@overload
def register_func(name: _F, func: None = None, *, override: bool = False) -> _F: ...
def register_func(name: Any, func: Any = None, *, override: bool = False) -> Any:
    """Register a function under a global name, for every language.

    ``register_func("a.b", f)`` returns the PackedFunc. ``@register_func("a.b")``, and ``@register_func``, which takes
    the function's own name, leave the decorated function as it is.

    Raises:
        AlreadyRegisteredError: the name is taken and ``override`` is false.
        ArgumentError: what is registered is not callable.
    """
    if not isinstance(name, str):
        own_name = getattr(name, "__name__", "")
        if callable(name) and not own_name:
            got = type(name).__name__
            raise errors.ArgumentError(
                f"the {got} to register has no name of its own: give one, register_func(name, func)",
                function="register_func", expected="a function with a name", got=got,
            )  # fmt: skip
        _register(own_name, name, override)
        return name
    if func is not None:
        return _register(name, func, override)

    def decorate(decorated: _F) -> _F:
        _register(name, decorated, override)
        return decorated

    return decorate


def _register(name: str, func: Any, override: bool) -> PackedFunc:
    if not callable(func):
        got = type(func).__name__
        raise errors.ArgumentError(
            f"register_func() takes a callable, got {got}", function="register_func", expected="a callable", got=got
        )
    packed = _core.convert_function(func, name)
    try:
        _core.set_global(name, packed, override)
    except errors.AlreadyRegisteredError:
        raise errors.AlreadyRegisteredError(
            f"a global function {name!r} is already registered; pass override=True to replace it", name=name
        ) from None
    return packed


@overload
def get_global_func(name: str, allow_missing: Literal[False] = False) -> PackedFunc: ...
@overload
def get_global_func(name: str, allow_missing: bool) -> PackedFunc | None: ...
def get_global_func(name: str, allow_missing: bool = False) -> PackedFunc | None:
    """Return the function registered as ``name``.

    One table holds the functions registered from C, C++ and Python; the caller does not see the difference.

    Raises:
        FunctionNotFoundError: nothing has that name and ``allow_missing`` is false. The message lists near names.
    """
    func = _core.get_global(name)
    if func is None and not allow_missing:
        raise not_found(f"no global function is named {name!r}{registered_elsewhere()}", name, list_global_func_names())
    return func


def get_global_func_metadata(name: str) -> dict[str, Any]:
    """Return what is known of a global function's types, as tvm-ffi has it: ``type_schema``, a text of JSON.

    Empty for a function that does not say its types, and for one of Python, of which ``inspect.signature`` tells.

    Raises:
        FunctionNotFoundError: nothing has that name.
    """
    from portcall._signature import metadata_of  # few programs ask, and it loads a lot

    return dict(metadata_of(_core.signature_text(get_global_func(name))))


def registered_elsewhere() -> str:
    """Return what to add to the error for a name that is not registered: libraries that register names elsewhere."""
    linked = list(get_global_func("portcall.loader.ForeignLibraries")())
    if not linked:
        return ""
    names = ", ".join(f"'{errors.printable(os.path.basename(path))}'" for path in linked)
    return (
        f"; {names} {'is' if len(linked) == 1 else 'are'} linked with libtvm_ffi.so, and what is registered there "
        "is not known here: load it with foreign='adopt', or build it without -ltvm_ffi"
    )


def not_found(what: str, name: str, names: list[str]) -> errors.FunctionNotFoundError:
    """Return the error for a missing function, with the names that resemble it, or all when there are few."""
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    hint = f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    if names and not near and len(names) <= _FEW_NAMES:
        hint = f"; there {'is' if len(names) == 1 else 'are'} {', '.join(names)}"
    return errors.FunctionNotFoundError(what + hint, name=name, near=near)


def list_global_func_names() -> list[str]:
    """Return the names of all global functions, sorted."""
    return list(get_global_func("portcall.ListGlobalNames")())


def remove_global_func(name: str) -> None:
    """Remove a name from the registry; references to the function stay valid.

    Raises:
        FunctionNotFoundError: nothing has that name.
    """
    if not get_global_func("ffi.FunctionRemoveGlobal")(name):
        raise not_found(f"no global function is named {name!r}", name, list_global_func_names())


@overload
def register_error(name: str, cls: None = None) -> Callable[[_E], _E]: ...
@overload
def register_error(name: str, cls: _E) -> _E: ...
@overload
def register_error(name: _E, cls: None = None) -> _E: ...
def register_error(name: Any, cls: Any = None) -> Any:
    """Have errors of a kind raised in other languages arrive as an exception class.

    ``@register_error`` registers a class under its own name, ``@register_error("Kind")`` under another. The class is
    called with the message alone. Unregistered kinds arrive as RuntimeError.

    Raises:
        ArgumentError: the class is not an exception.
    """
    if isinstance(name, str) and cls is None:
        return lambda decorated: register_error(name, decorated)
    kind, cls = (name, cls) if isinstance(name, str) else (getattr(name, "__name__", ""), name)
    if not (isinstance(cls, type) and issubclass(cls, Exception)):
        raise errors.ArgumentError(
            f"register_error() takes a class of exceptions, got {cls!r}", expected="an exception class", got=repr(cls)
        )
    _core.register_error_class(kind, cls)
    return cls
