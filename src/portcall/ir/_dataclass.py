# SPDX-License-Identifier: Apache-2.0
"""What makes a registered class a dataclass to Python's standard library: its fields, its constructor, its class."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from portcall import _core
from portcall._core import Object
from portcall.ir._annotations import Field, Later

_ORDINARY = next(iter(dataclasses.make_dataclass("_", ["it"]).__dataclass_fields__.values()))._field_type  # type: ignore[attr-defined]


def fields_of(
    described: list[Any], hints: Mapping[str, Any], settings: Mapping[str, Field]
) -> dict[str, dataclasses.Field[Any]]:
    """Return the fields as ``dataclasses.fields`` gives them."""
    flag = _core.FIELD_FLAG
    made = {}
    for access, flags, _, _, default in described:
        name = access.__name__
        said = settings.get(name)
        given: dict[str, Any] = {}
        if flags & flag["DefaultFromFactory"]:
            given["default_factory"] = said.default_factory if said else default
        elif flags & flag["HasDefault"]:
            given["default"] = default
        one: Any = dataclasses.field(
            init=not flags & flag["InitOff"], repr=not flags & flag["ReprOff"],
            hash=not flags & (flag["HashOff"] | flag["SEqHashIgnore"]), kw_only=bool(flags & flag["KwOnly"]),
            compare=not flags & (flag["CompareOff"] | flag["SEqHashIgnore"]), **given,
        )  # fmt: skip
        hint = hints.get(name)
        one.name, one.type, one._field_type = name, hint.text if isinstance(hint, Later) else hint, _ORDINARY
        made[name] = one
    return made


def constructor(signature: inspect.Signature) -> Callable[..., None]:
    """Return the ``__init__`` of a class that defines none, so that ``inspect.signature`` of it says what it takes."""

    def __init__(self: Object, /, *args: Any, **kwargs: Any) -> None:
        Object.__init__(self, *args, **kwargs)

    myself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    made: Any = __init__
    made.__signature__ = inspect.Signature(
        [myself, *signature.parameters.values()], return_annotation=None, __validate_parameters__=False
    )
    made.__portcall_generated__ = True
    return __init__


def is_generated(init: Any) -> bool:
    return getattr(init, "__portcall_generated__", False)


def no_constructor(self: Object, *args: Any, **kwargs: Any) -> None:
    """The constructor of a class with ``init=False`` that defines none."""
    raise TypeError(
        f"{type(self).__name__} has no constructor (init=False): define __init__, or a function that makes it"
    )


def rebuild(cls: Any, body: dict[str, Any], bases: tuple[type, ...] | None = None) -> Any:
    """Rebuild a class with another body; ``super()`` and ``__class__`` in its functions mean the new one."""
    made = type(cls)(cls.__name__, bases or cls.__bases__, body)
    made.__qualname__ = cls.__qualname__
    for value in body.values():
        parts = [value, *(getattr(value, part, None) for part in ("__func__", "fget", "fset", "fdel"))]
        for function in map(inspect.unwrap, filter(inspect.isfunction, parts)):
            for cell in function.__closure__ or ():
                with contextlib.suppress(ValueError):  # a name that is not bound yet, such as the class's own
                    if cell.cell_contents is cls:
                        cell.cell_contents = made
    return made
