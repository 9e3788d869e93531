# SPDX-License-Identifier: Apache-2.0
"""Keyword arguments and defaults for functions that take their arguments by position."""

from __future__ import annotations

import functools
import inspect
import keyword
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

__all__ = ["make_kwargs_wrapper", "make_kwargs_wrapper_from_signature"]

_EMPTY = inspect.Parameter.empty
_BY_NAME, _ANY_WAY = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD


def make_kwargs_wrapper(
    target_func: Callable[..., Any],
    arg_names: Sequence[str],
    arg_defaults: tuple[Any, ...] = (),
    kwonly_names: Sequence[str] | None = None,
    kwonly_defaults: Mapping[str, Any] | None = None,
    prototype: Callable[..., Any] | None = None,
) -> Callable[..., Any]:
    """Return a function of these parameters, which calls ``target_func`` with all of them by position.

    Parameters:
        arg_defaults: those of the last parameters.
        prototype: the function whose name and docstring the new one gets.

    Raises:
        ValueError, TypeError: names that parameters cannot have, or defaults of none of them.
    """
    by_name, defaults = list(kwonly_names or ()), dict(kwonly_defaults or {})
    if not isinstance(arg_defaults, tuple):
        raise TypeError(f"arg_defaults must be a tuple, got {type(arg_defaults).__name__}")
    if len(arg_defaults) > len(arg_names):
        raise ValueError(
            f"arg_defaults has {len(arg_defaults)} values but only {len(arg_names)} positional arguments take one"
        )
    names = [*arg_names, *by_name]
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"Argument name must be a string, got {type(name).__name__}: {name!r}")
        if keyword.iskeyword(name):
            raise ValueError(
                f"Invalid argument name: {name!r} is a Python keyword and cannot be used as a parameter name"
            )
        if not name.isidentifier():
            raise ValueError(f"Invalid argument name: {name!r} is not a valid Python identifier")
    for kind, some in ("argument", list(arg_names)), ("keyword-only argument", by_name):
        if len(set(some)) != len(some):
            raise ValueError(f"Duplicate {kind} names found in: {some}")
    if both := set(arg_names) & set(by_name):
        raise ValueError(f"Arguments cannot be both positional and keyword-only: {', '.join(sorted(both))}")
    for name in defaults:
        if name not in by_name:
            raise ValueError(f"Default provided for {name!r} which is not in kwonly_names: {by_name}")
    given = dict(zip(list(arg_names)[len(arg_names) - len(arg_defaults) :], arg_defaults, strict=True)) | defaults
    return _wrapper(target_func, list(arg_names), by_name, given, prototype)


def make_kwargs_wrapper_from_signature(
    target_func: Callable[..., Any],
    signature: inspect.Signature,
    prototype: Callable[..., Any] | None = None,
    exclude_arg_names: Iterable[str] | None = None,
) -> Callable[..., Any]:
    """Return a function with the parameters of a signature, which calls ``target_func`` with them by position.

    Parameters:
        exclude_arg_names: parameters that the new function does not have.

    Raises:
        ValueError: the signature has ``*args`` or ``**kwargs``, or a parameter without a default after one with it.
    """
    left_out = set(exclude_arg_names or ())
    parameters = [each for each in signature.parameters.values() if each.name not in left_out]
    for each in parameters:
        if each.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD):
            raise ValueError(f"{str(each).partition(':')[0]} not supported in wrapper generation")
    by_position = [each for each in parameters if each.kind is not _BY_NAME]
    optional = [each for each in by_position if each.default is not _EMPTY]
    if by_position[len(by_position) - len(optional) :] != optional:
        raise ValueError("Required positional parameters cannot follow parameters with defaults")
    by_name = [each for each in parameters if each.kind is _BY_NAME]
    return make_kwargs_wrapper(
        target_func,
        [each.name for each in by_position],
        tuple(each.default for each in optional),
        [each.name for each in by_name],
        {each.name: each.default for each in by_name if each.default is not _EMPTY},
        prototype,
    )


def _wrapper(
    target: Callable[..., Any], names: list[str], by_name: list[str], defaults: Mapping[str, Any], prototype: Any
) -> Callable[..., Any]:
    # Python binds arguments of functions that it has compiled faster than a Signature does. The names are identifiers,
    # and what the text says beside them stands here.
    taken, function, given = {*names, *by_name}, "target", "defaults"
    while function in taken or given in taken:
        function, given = f"_{function}", f"_{given}"
    words = [f"{name}={given}[{name!r}]" if name in defaults else name for name in names]
    words += ["*"] * bool(by_name)
    words += [f"{name}={given}[{name!r}]" if name in defaults else name for name in by_name]
    text = f"def wrapper({', '.join(words)}): return {function}({', '.join([*names, *by_name])})"
    space: dict[str, Any] = {function: target, given: defaults}
    exec(text, space)
    made: Callable[..., Any] = space["wrapper"]
    if prototype is not None:
        functools.update_wrapper(made, prototype, updated=())
        del made.__wrapped__  # type: ignore[attr-defined]
    return made
