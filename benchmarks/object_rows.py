# SPDX-License-Identifier: Apache-2.0
"""Objects of three systems, made of the same classes: portcall's, tvm-ffi's and plain frozen dataclasses; and nodes of
apache-tvm, whose classes are in C++.

Rules: as in calls.py. A tree is full, 16 levels deep: 32,768 numbers below 32,767 sums. Two trees are equal, and no
object is in both. The classes of tvm-ffi are made with its ``py_class``, as a user makes them.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from calls import Row, loops
from tvm import ir, tirx
from tvm_ffi import serialization
from tvm_ffi.dataclasses import py_class

import portcall

PINNED = "0.1.14.post1"  # with 0.1.15.post2 save_json of apache-tvm's nodes crashes
LEVELS = 15
READ, MAKE, SAVE_AND_LOAD, COMPARE = 1.0, 0.5, 0.5, 1.0  # targets: ratios to the peers
Pair = tuple[Any, Any]


@portcall.register_object("bench.objects.Expr")
class Expr(portcall.Object):
    """An expression."""


@portcall.register_object("bench.objects.Const")
class Const(Expr):
    value: int


@portcall.register_object("bench.objects.Add")
class Add(Expr):
    lhs: Expr
    rhs: Expr


@py_class("bench.objects.peer.Expr", structural_eq="tree")
class PeerExpr(tvm_ffi.Object):
    """An expression."""


@py_class("bench.objects.peer.Const", structural_eq="tree")
class PeerConst(PeerExpr):
    value: int


@py_class("bench.objects.peer.Add", structural_eq="tree")
class PeerAdd(PeerExpr):
    lhs: PeerExpr
    rhs: PeerExpr


@dataclass(frozen=True)
class PlainConst:
    value: int


@dataclass(frozen=True)
class PlainAdd:
    lhs: PlainConst | PlainAdd
    rhs: PlainConst | PlainAdd


def tree(add: Callable[[Any, Any], Any], const: Callable[[int], Any]) -> Any:
    nodes = [const(i) for i in range(2**LEVELS)]
    while len(nodes) > 1:
        nodes = [add(*pair) for pair in zip(nodes[::2], nodes[1::2], strict=True)]
    return nodes[0]


def of_tvm_ffi() -> Iterator[Row]:
    """Yield what is done with objects, beside the same classes of tvm-ffi."""
    if tvm_ffi.__version__ != PINNED:
        raise RuntimeError(f"compared with tvm-ffi {PINNED}, found {tvm_ffi.__version__}: run make bench-objects")
    yield from small_rows((Add, PeerAdd), (Const, PeerConst), READ, MAKE)
    trees = tree(Add, Const), tree(PeerAdd, PeerConst)
    others = tree(Add, Const), tree(PeerAdd, PeerConst)
    save = portcall.ir.save_json, serialization.to_json_graph_str
    load = portcall.ir.load_json, serialization.from_json_graph_str
    yield from tree_rows(trees, others, save, load)


def of_tvm() -> Iterator[Row]:
    """Yield the same beside nodes of apache-tvm, which also have a type and a place in the source."""
    number: Callable[[int], Any] = lambda value: tirx.IntImm("int32", value)  # noqa: E731
    yield from small_rows((Add, tirx.Add), (Const, number), READ, MAKE, fields=("a", "b"), key="tvm-")
    trees = tree(Add, Const), tree(tirx.Add, number)
    others = tree(Add, Const), tree(tirx.Add, number)
    save, load = (portcall.ir.save_json, ir.save_json), (portcall.ir.load_json, ir.load_json)
    yield from tree_rows(trees, others, save, load, key="tvm-")


def of_dataclasses() -> Iterator[Row]:
    """Yield the same beside frozen dataclasses, which save and load with pickle and compare with ``==``."""
    yield from small_rows((Add, PlainAdd), (Const, PlainConst), key="plain-")
    trees, others = (tree(Add, Const), tree(PlainAdd, PlainConst)), (tree(Add, Const), tree(PlainAdd, PlainConst))
    save, load = (portcall.ir.to_bytes, pickle.dumps), (portcall.ir.from_bytes, pickle.loads)
    data = save[0](trees[0]), save[1](trees[1])
    yield Row("plain-save", "save the tree, binary", *loops("f(x)", f=save, x=trees), against="pickle")
    yield Row("plain-load", "load the tree, binary", *loops("f(x)", f=load, x=data), against="pickle")
    hashes = portcall.ir.structural_hash, hash
    yield Row("plain-hash", "hash the tree", *loops("f(x)", f=hashes, x=trees), against="hash()")
    equal: Pair = portcall.ir.structural_equal, PlainAdd.__eq__
    yield Row("plain-equal", "compare two trees", *loops("f(x, y)", f=equal, x=trees, y=others), against="==")


def small_rows(
    add: Pair, const: Pair, read: float | None = None, make: float | None = None, fields: Pair = ("lhs", "rhs"),
    key: str = "",
) -> Iterator[Row]:  # fmt: skip
    leaf = const[0](5), const[1](5)
    node = add[0](*leaf[:1] * 2), add[1](*leaf[1:] * 2)
    of_number = loops("x.value", x=leaf)
    yield Row(f"{key}read-int", "read an attribute, an int", *of_number, read)
    ours, _ = loops("x.lhs", x=node)
    _, theirs = loops(f"x.{fields[0]}", x=node)
    yield Row(f"{key}read-object", "read an attribute, an object", ours, theirs, read)
    yield Row(f"{key}make", "make an object of 2 fields", *loops("f(x, x)", f=add, x=leaf), make)


def tree_rows(trees: Pair, others: Pair, save: Pair, load: Pair, key: str = "") -> Iterator[Row]:
    text = save[0](trees[0]), save[1](trees[1])
    both = "load(save(x))"
    yield Row(f"{key}save", "save the tree as JSON", *loops("save(x)", save=save, x=trees))
    yield Row(f"{key}load", "load the tree from JSON", *loops("load(x)", load=load, x=text))
    yield Row(f"{key}save-load", "save and load the tree", *loops(both, save=save, load=load, x=trees), SAVE_AND_LOAD)
    hashes = portcall.ir.structural_hash, tvm_ffi.structural_hash
    yield Row(f"{key}hash", "hash the tree", *loops("f(x)", f=hashes, x=trees), COMPARE)
    equal = portcall.ir.structural_equal, tvm_ffi.structural_equal
    yield Row(f"{key}equal", "compare two trees", *loops("f(x, y)", f=equal, x=trees, y=others), COMPARE)
