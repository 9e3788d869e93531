# SPDX-License-Identifier: Apache-2.0
"""A small IR of expressions: types, a graph, saving, comparing, and a pipeline of passes. docs/ir.md explains it.

python examples/mini_ir.py
"""

from __future__ import annotations

import pickle

import portcall


@portcall.register_object("mini.Expr")
class Expr(portcall.Object):
    """An expression."""


@portcall.register_object("mini.Var", compare="variable")
class Var(Expr):
    """A variable. Which one it is says where it is defined, not its name."""

    name: str = portcall.field(compare=False)


@portcall.register_object("mini.Const")
class Const(Expr):
    value: int


@portcall.register_object("mini.Binary")
class Binary(Expr):
    op: str
    lhs: Expr
    rhs: Expr
    span: str = portcall.field(default="", compare=False, doc="where it stands in the source")


@portcall.register_object("mini.Function")
class Function(portcall.Object):
    params: list[Var] = portcall.field(defines=True)
    body: Expr


@portcall.ir.register_pass("mini.fold_constants")
def fold_constants(func: Function) -> Function:
    """Compute what is known: from the leaves up, so that one walk is enough."""

    def fold(node: Binary) -> Expr | None:
        if not (isinstance(node.lhs, Const) and isinstance(node.rhs, Const)):
            return None  # the node stays
        left, right = node.lhs.value, node.rhs.value
        return Const({"+": left + right, "*": left * right}[node.op])

    return portcall.ir.rewrite(func, fold, Binary)


@portcall.ir.register_pass("mini.simplify", level=1, required=["mini.fold_constants"])
def simplify(func: Function) -> Function:
    """x * 1 and x + 0 are x."""
    neutral = {"*": 1, "+": 0}

    def shorten(node: Binary) -> Expr | None:
        return node.lhs if isinstance(node.rhs, Const) and node.rhs.value == neutral.get(node.op) else None

    return portcall.ir.rewrite(func, shorten, Binary)


def example(name: str) -> Function:
    """f(x) = (x * (2 + -1)) + (3 * 4)."""
    x = Var(name)
    one = Binary("+", Const(2), Const(-1), span="line 1")
    return Function([x], Binary("+", Binary("*", x, one), Binary("*", Const(3), Const(4))))


def main() -> None:
    """Show what can be done with the function of ``example``."""
    func, other = example("x"), example("y")
    print("body:     ", func.body)
    print("equal:    ", portcall.ir.structural_equal(func, other), "although one says x and the other y")
    print("same hash:", portcall.ir.structural_hash(func) == portcall.ir.structural_hash(other))
    changed = func.replace(body=func.body.replace(rhs=Const(12)))
    print("mismatch: ", portcall.ir.first_mismatch(func, changed))

    text = portcall.ir.save_json(func)
    print("JSON:     ", portcall.ir.structural_equal(portcall.ir.load_json(text), func))
    print("pickle:   ", portcall.ir.structural_equal(pickle.loads(pickle.dumps(func)), func))
    print("variables:", [var.name for var in portcall.ir.walk(func, Var)])

    pipeline = portcall.ir.Sequential(["mini.simplify"], name="mini.pipeline")
    with portcall.ir.PassContext(level=1) as ctx:
        better = pipeline(func)
    print("better:   ", better.body)
    print("passes:   ", [timing.name for timing in ctx.timings])

    broken = Function([], Binary("-", Const(1), Const(2)))
    try:
        pipeline(broken)
    except KeyError as error:
        print("error:    ", repr(error), *error.__notes__, sep="\n            ")


if __name__ == "__main__":
    main()
