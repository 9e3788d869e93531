# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="misc, no-any-return, type-arg"
"""A small IR of Python classes, which tests share."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Optional

import portcall


@portcall.register_object("test.classes.Expr")
class Expr(portcall.Object):
    """An expression."""


@portcall.register_object("test.classes.Var", compare="variable")
class Var(Expr):
    name: str


@portcall.register_object("test.classes.Const")
class Const(Expr):
    value: int


@portcall.register_object("test.classes.Add")
class Add(Expr):
    """The sum of two expressions."""

    operator: ClassVar[str] = "+"
    lhs: Expr
    rhs: Expr
    span: str = portcall.field(default="", compare=False, doc="where it stands")

    def flipped(self) -> Add:
        return Add(self.rhs, self.lhs, self.span)

    def own_class(self) -> type:
        return __class__  # type: ignore[name-defined]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)


@portcall.register_object("test.classes.Block")
class Block(Expr):
    body: list[Expr]
    names: dict[str, int] = portcall.field(default_factory=dict)
    tag: Optional[str] = None  # noqa: UP045
    outer: Block | None = None
    mode: Literal["fast", "small"] = portcall.field(default="fast", kw_only=True)
    anything: Any = None
    weight: float = 1.0
    either: int | str = 0
    pair: tuple[int, Expr] | None = None


@portcall.register_object("test.classes.Numbered")
class Numbered(portcall.Object):
    which: Literal[0, 1]
    many: tuple[int, ...] = ()
    nothing: None = None
    floats: list[float] = portcall.field(default_factory=list)


X, ONE = Var("x"), Const(1)


def define(key: str, annotations: dict[str, Any], base: type = portcall.Object, **more: Any) -> Any:
    return portcall.register_object(key)(type("Made", (base,), {"__annotations__": annotations, **more}))
