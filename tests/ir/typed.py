# SPDX-License-Identifier: Apache-2.0
"""What type checkers know of a user's classes. ``make lint`` reads this file; nothing runs it.

An error that mypy is to find has a comment that ignores it: without the error the comment would be one.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import assert_type

import portcall


@portcall.register_object("typed.Expr")
class Expr(portcall.Object):
    pass


@portcall.register_object("typed.Var")
class Var(Expr):
    name: str


@portcall.register_object("typed.Add")
class Add(Expr):
    lhs: Expr
    rhs: Expr
    span: str = portcall.field(default="", compare=False)


@portcall.register_object("typed.Counter", frozen=False, kw_only=True)
class Counter(portcall.Object):
    count: int = 0
    seen: list[Expr] = portcall.field(default_factory=list)


def objects(x: Var) -> None:
    add = Add(x, rhs=x)
    assert_type(add, Add)
    assert_type(add.lhs, Expr)
    assert_type(add.replace(span="here"), Add)
    assert_type(portcall.ir.walk(add, Var), list[Var])
    assert_type(portcall.ir.walk(add), list[Any])
    Add(x)  # type: ignore[call-arg]
    Add(x, 2)  # type: ignore[arg-type]
    Add(x, x, spam="")  # type: ignore[call-arg]
    add.lhs = x  # type: ignore[misc]
    counter = Counter(count=3)
    counter.count += 1
    Counter(3)  # type: ignore[call-arg]
    match add:
        case Add(Var(name), rhs):
            assert_type(name, str)
            assert_type(rhs, Expr)


@portcall.ir.register_pass("typed.simplify", level=1)
def simplify(expr: Expr) -> Expr:
    return expr


def passes(expr: Expr) -> None:
    assert_type(simplify, portcall.ir.Pass)
    portcall.ir.Sequential([simplify, "typed.simplify", lambda found: found], name="all")(expr)
    portcall.ir.Pass("mine", lambda found: found, required=["typed.simplify"])
    with portcall.ir.PassContext(level=3, disabled=["typed.simplify"], config={"size": 1}) as context:
        assert_type(context.level, int)
