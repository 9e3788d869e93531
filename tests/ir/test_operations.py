# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="func-returns-value, index, misc, redundant-expr, type-arg"
"""Graphs of objects are compared, hashed, saved, walked and rewritten; laws hold for any graph."""

from __future__ import annotations

import functools
import math
import subprocess
import sys
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import portcall
from portcall import ir


@portcall.register_object("test.graphs.Node")
class Node(portcall.Object):
    left: object
    right: object = None
    note: str = portcall.field(default="", compare=False)


@portcall.register_object("test.graphs.Wide")
class Wide(Node):
    items: list
    table: dict = portcall.field(default_factory=dict, kw_only=True)


@portcall.register_object("test.graphs.Var", compare="variable")
class Var(portcall.Object):
    name: str = portcall.field(compare=False)


@portcall.register_object("test.graphs.Lambda")
class Lambda(portcall.Object):
    params: list = portcall.field(defines=True)
    body: object


@portcall.register_object("test.graphs.Cell", frozen=False)
class Cell(portcall.Object):
    value: object


leaves = (
    st.none() | st.booleans() | st.integers() | st.integers(-(2**200), 2**200) | st.floats() | st.binary(max_size=20)
    | st.text(max_size=20) | st.binary(max_size=12).map(lambda b: b.decode("utf-8", "surrogateescape"))
    | st.sampled_from([portcall.cpu(0), portcall.dtype("float32x4"), portcall.Shape((1, 2))])
)  # fmt: skip


@st.composite
def recipes(draw: st.DrawFn) -> list[Any]:
    """Steps that make a graph: each makes a node of values and of earlier nodes, given by their numbers."""
    steps = []
    for i in range(draw(st.integers(1, 12))):
        part = st.tuples(st.just("value"), leaves)
        if i:
            part |= st.tuples(st.just("node"), st.integers(0, i - 1))
        kind = draw(st.sampled_from(["node", "wide", "list", "dict", "tensor", "var", "lambda"]))
        steps.append((kind, draw(st.lists(part, min_size=2, max_size=5)), draw(st.integers(0, 255))))
    return steps


def build(steps: list[Any], note: str = "") -> Any:
    nodes: list[Any] = []
    for kind, parts, number in steps:
        values = [nodes[part] if source == "node" else part for source, part in parts]
        if kind == "node":
            nodes.append(Node(values[0], values[1], note))
        elif kind == "wide":
            nodes.append(
                Wide(values[0], right=values[1], note=note, items=values, table={"k": values[0], number: values[1]})
            )
        elif kind == "list":
            nodes.append(portcall.Array(values))
        elif kind == "dict":
            nodes.append(portcall.Map({"a": values[0], b"b": values[1], number: number}))
        elif kind == "tensor":
            nodes.append(portcall.tensor(np.full((2, 3), number, "uint8")))
        elif kind == "var":
            nodes.append(Var(str(number)))
        else:
            variable = Var(note)
            nodes.append(Lambda([variable], Node(values, variable)))
    return portcall.Array(nodes)


def without_variables(steps: list[Any]) -> list[Any]:
    """Free variables equal themselves alone, so two buildings of them differ."""
    return [("node" if kind == "var" else kind, parts, number) for kind, parts, number in steps]


@given(recipes())
def test_save_and_load_keep_sharing(steps: list[Any]) -> None:
    graph = build(without_variables(steps))
    for again in (
        ir.load_json(ir.save_json(graph)),
        ir.from_bytes(ir.to_bytes(graph)),
    ):
        assert ir.first_mismatch(graph, again) is None
        assert ir.structural_hash(graph) == ir.structural_hash(again)
        assert ir.save_json(again) == ir.save_json(graph)  # node for node: what was held twice is held twice
    assert ir.to_bytes(ir.from_bytes(ir.to_bytes(graph))) == ir.to_bytes(graph)


@given(recipes(), recipes())
def test_structural_equal_agrees_with_hash_and_first_mismatch(one: list[Any], other: list[Any]) -> None:
    same = build(without_variables(one)), build(without_variables(one), note="another name, which does not count")
    assert ir.structural_equal(*same)
    assert ir.structural_hash(same[0]) == ir.structural_hash(same[1])
    left, right = build(one), build(other)
    equal = ir.structural_equal(left, right)
    assert equal == ir.structural_equal(right, left) == (ir.first_mismatch(left, right) is None)
    if equal:
        assert ir.structural_hash(left) == ir.structural_hash(right)
    assert ir.structural_equal(left, left)


@given(recipes())
def test_rewrite_without_changes_returns_the_same_graph(steps: list[Any]) -> None:
    graph = build(steps)
    seen = []
    assert graph.same_as(ir.rewrite(graph, lambda node: seen.append(node)))
    assert len(seen) == len(ir.walk(graph)) == len(ir.walk(graph, order="post"))


def test_first_mismatch_has_path_and_values() -> None:
    left, right = Node(1, Node([1, {"k": 2}])), Node(1, Node([1, {"k": 3}]))
    mismatch = ir.first_mismatch(left, right)
    assert mismatch is not None
    assert str(mismatch) == '<root>.right.left[1]["k"]: 2 != 3'
    assert (mismatch.path, mismatch.left, mismatch.right) == ('<root>.right.left[1]["k"]', 2, 3)
    assert ir.first_mismatch(left, left) is None


@portcall.register_object("test.graphs.Owner")
class Owner(portcall.Object):
    what: object = portcall.field(compare="identity")


def test_first_mismatch_shows_values_and_has_a_whole_path() -> None:
    x, y = Var("foo"), Var("bar")
    assert "(name='foo')" in str(ir.first_mismatch([x], [y])).replace('"', "'")
    assert "foo" in str(ir.first_mismatch({x: 1}, {x: 2}))
    left: Any = 1
    right: Any = 2
    for _ in range(300):
        left, right = portcall.Array([left]), portcall.Array([right])
    found = ir.first_mismatch(left, right)
    assert found is not None
    assert found.path == "<root>" + "[0]" * 300
    assert len(str(found)) < 500
    with pytest.raises(TypeError, match=r"<root>\[0\]: .*register_value_type"):
        ir.save_json([{1, 2}])


def test_structural_equal_compares_marked_fields_by_identity() -> None:
    one, other = Node(1), Node(1)
    assert ir.structural_equal(one, other)
    assert ir.structural_equal(Owner(one), Owner(one))
    assert ir.structural_hash(Owner(one)) == ir.structural_hash(Owner(Node(2)))  # what is inside does not count
    assert str(ir.first_mismatch(Owner(one), Owner(other))) == (
        '<root>.what: test.graphs.Node(left=1, note="") != test.graphs.Node(left=1, note="") '
        "(the field is compared by identity)"
    )


@portcall.register_object("test.graphs.Single", compare="identity")
class Single(portcall.Object):
    value: int


@portcall.register_object("test.graphs.Shared", compare="shared")
class Shared(portcall.Object):
    value: int


def test_structural_equal_kind_is_chosen_by_the_class() -> None:
    one = Single(1)
    assert ir.structural_equal(Node(one), Node(one))
    assert str(ir.first_mismatch(Node(one), Node(Single(1)))).endswith("(the type is compared by identity)")
    twice = Shared(1)
    assert ir.structural_equal(Node(twice, twice), Node(other := Shared(1), other))
    assert str(ir.first_mismatch(Node(twice, twice), Node(Shared(1), Shared(1)))).endswith(
        "(they are shared differently)"
    )
    assert ir.structural_equal(Node(leaf := Node(1), leaf), Node(Node(1), Node(1)))


def test_save_json_indent() -> None:
    assert ir.save_json(Node(1)).count("\n") == 0
    lines = ir.save_json(Node([1]), indent=2).splitlines()
    assert lines[0] == "{"
    assert [line.index(line.strip()) for line in lines] == [0, 2, 2, 4, 4, 2, 2, 0]


def test_structural_equal_matches_variables_where_defined() -> None:
    x, y = Var("x"), Var("y")
    assert ir.structural_equal(Lambda([x], Node(x)), Lambda([y], Node(y)))
    assert not ir.structural_equal(Lambda([x], Node(x)), Lambda([y], Node(x)))
    assert not ir.structural_equal(x, y)
    assert ir.structural_equal(x, y, map_free_variables=True)
    assert ir.first_mismatch(x, y, map_free_variables=True) is None
    assert ir.structural_hash(x, map_free_variables=True) == ir.structural_hash(y, map_free_variables=True)


SNIPPET = """
import numpy as np, portcall
from portcall.ir import structural_hash
@portcall.register_object("test.graphs.Stable")
class Stable(portcall.Object):
    a: object
    b: object = None
print(structural_hash(Stable([1, 2.5, "text", None, b"bytes", 2**100, True], {"k": np.arange(6.0), "j": (1, 2)})))
"""


def test_structural_hash_is_the_same_in_every_process() -> None:
    numbers = {
        subprocess.run([sys.executable, "-c", SNIPPET], capture_output=True, text=True, check=True, env=env).stdout
        for env in ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2"})
    }
    assert numbers == {"-3515705814479192867\n"}


def test_walk_selects_by_class_and_key() -> None:
    inner = Wide(1, right=2, items=[Node(3)])
    graph = Node(inner, [inner, Var("x")])
    assert ir.walk(graph, Node) == [graph, inner, inner.items[0]]
    assert ir.walk(graph, Node, order="post") == [inner.items[0], inner, graph]
    assert ir.walk(graph, "test.graphs.Wide") == [inner]
    assert len(ir.walk(graph, portcall.Object)) == len(ir.walk(graph)) == 7
    seen: list[Any] = []
    ir.visit(graph, lambda node: seen.append(node) or node == graph, Node)
    assert seen == [graph, inner]
    with pytest.raises(ValueError, match="order is 'pre' or 'post', got 'in'"):
        ir.walk(graph, order="in")  # type: ignore[call-overload]
    with pytest.raises(KeyError, match=r"test\.graphs\.Nobody"):
        ir.walk(graph, "test.graphs.Nobody")


def test_walk_passes_exceptions_of_visitors_on() -> None:
    class OwnError(Exception):
        pass

    error = OwnError("mine")

    def fail(node: Any) -> None:
        raise error

    with pytest.raises(OwnError) as caught:
        ir.visit(Node(1), fail)
    assert caught.value is error
    with pytest.raises(OwnError):
        ir.rewrite(Node(1), fail)


def test_rewrite_copies_only_changed_objects() -> None:
    kept, changed = Node("kept"), Node("old")
    graph = Node([kept, changed], Node(changed))
    out = ir.rewrite(graph, lambda node: Node("new") if node.left == "old" else None, Node)
    assert out.left[0] == kept
    assert out.left[1] == out.right.left
    assert out.left[1].left == "new"
    assert graph.left[1] == changed
    assert ir.map_children(kept, lambda value: "other" if value == "kept" else None).left == "other"
    assert ir.map_children(kept, lambda value: None) == kept


def test_save_refuses_unsupported_values_with_their_path() -> None:
    for save in (ir.save_json, ir.to_bytes):
        with pytest.raises(TypeError, match=r'^<root>\.left\[1\]\["f"\]: a value of type \'Function\' cannot be saved'):
            save(Node([1, {"f": len}]))
        cell = Cell(None)
        cell.value = Node(cell)
        with pytest.raises(ValueError, match=r"^<root>\.value\.left: is <root> again: an object that contains itself"):
            save(cell)
        cell.value = None


def test_ir_operations_on_a_chain_200000_deep() -> None:
    def chain() -> Any:
        node = None
        for i in range(200_000):
            node = Node(i, node)
        return node

    one, two = chain(), chain()
    assert ir.structural_equal(one, two)
    assert ir.structural_hash(one) == ir.structural_hash(two)
    assert ir.structural_equal(ir.load_json(ir.save_json(one)), one)
    assert ir.structural_equal(ir.from_bytes(ir.to_bytes(one)), one)
    assert len(ir.walk(one)) == 200_000


def test_ir_operations_are_linear() -> None:
    """Its paths are too many to count: only visits that remember come to an end."""
    node: Any = "bottom"
    for _ in range(1_000_000):
        node = Node(node, node)
    data = ir.to_bytes(node)
    assert len(data) < 8_000_000
    again = ir.from_bytes(data)
    assert ir.structural_equal(node, again)
    assert ir.structural_hash(node) == ir.structural_hash(again)


def test_save_json_floats_are_exact() -> None:
    for value in (0.1, -0.0, 5e-324, 1.7976931348623157e308, math.inf, -math.inf, 1e22, 123456789012345680.0):
        for back in (
            ir.load_json(ir.save_json(value)),
            ir.from_bytes(ir.to_bytes(value)),
        ):
            assert isinstance(back, float)
            assert (back, math.copysign(1, back)) == (value, math.copysign(1, value))
    assert math.isnan(ir.load_json(ir.save_json(math.nan)))


def test_rewrite_refuses_other_values_as_types() -> None:
    with pytest.raises(TypeError, match="type is a registered class or its key, got <function"):
        portcall.ir.rewrite([1], lambda _: None, lambda value: value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: ir.rewrite([1], 3), "rewrite"),  # type: ignore[arg-type]
        (lambda: ir.visit([1], None), "visit"),  # type: ignore[arg-type]
        (lambda: ir.map_children([1], "f"), "map_children"),  # type: ignore[arg-type]
        (lambda: ir.load_json(b"{}"), "load_json"),  # type: ignore[arg-type]
        (lambda: ir.from_bytes("{}"), "from_bytes"),  # type: ignore[arg-type]
    ],
)
def test_ir_operations_name_themselves_to_who_calls_them_wrongly(call: Any, name: str) -> None:
    with pytest.raises(TypeError, match=f"^{name} "):
        call()


@portcall.register_object("test.graphs.Typed", frozen=False)
class Typed(portcall.Object):
    items: list[Node]
    names: portcall.List[str] = portcall.field(default_factory=portcall.List)
    table: portcall.Dict[str, int] = portcall.field(default_factory=portcall.Dict)
    mode: Literal["one", "two"] = "one"


def test_rewrite_and_map_children_check_what_they_put_into_fields() -> None:
    typed = Typed([Node(1)])
    for put_in in ("text", [Node(1)]):
        with pytest.raises(TypeError, match=r"test\.graphs\.Typed\.items") as caught:
            ir.rewrite([typed], lambda _, put_in=put_in: put_in, Node)
        assert any("test.graphs.Typed" in note and "[0]" in note for note in caught.value.__notes__)
    with pytest.raises(TypeError, match=r"test\.graphs\.Typed\.mode"):
        ir.map_children(typed, lambda value: "three" if value == "one" else None)
    other = ir.rewrite(typed, lambda _: Wide(1, items=[]), Node)
    assert isinstance(other.items[0], Wide)
    assert ir.map_children(typed, lambda value: "two" if value == "one" else None).mode == "two"


def test_items_that_are_put_into_a_field_are_checked_when_another_object_gets_them() -> None:
    changes: list[Any] = [lambda typed: typed.names.append(1), lambda typed: typed.table.update(a="text")]
    for change in changes:
        typed = Typed([Node(1)])
        change(typed)
        with pytest.raises(TypeError, match=r"Typed\.(names|table)"):
            typed.replace(mode="two")
        with pytest.raises(TypeError, match=r"Typed\.(names|table)"):
            ir.rewrite(typed, lambda _: Node(2), Node)
        with pytest.raises(TypeError):
            typed.names, typed.table = typed.names, typed.table


def test_structural_equal_of_a_variable_that_is_met_twice_is_that_of_tvm_ffi() -> None:
    """A variable is matched where the walk first meets it: where it is defined, or free. It stays so to the end."""
    from tvm_ffi import Object, dataclasses, structural_equal

    def define(key: str, kind: str, fields: dict[str, Any], **settings: str) -> Any:
        body = {"__annotations__": fields, **{k: dataclasses.field(structural_eq=v) for k, v in settings.items()}}
        return dataclasses.py_class(f"test.tvm_ffi.{key}", structural_eq=kind)(type(key, (Object,), body))

    their_var = define("Var", "var", {"name": str}, name="ignore")
    their_lambda = define("Lambda", "tree", {"params": list, "body": Object}, params="def")
    their_node = define("Node", "tree", {"left": Object, "right": Object})

    def compare(equal: Any, var: Any, function: Any, pair: Any) -> list[bool]:
        x, y = var("x"), var("y")
        fx, fy, fx_again = function([x], x), function([y], y), function([x], x)
        cases = [((fx, x), (fy, y)), ((x, fx), (y, fy)), ((fx, x), (fy, x)), ((x, fx), (x, fy))]
        cases += [((fx, fx_again), (fx, fy)), ((fx, fx), (fx, fy)), ((fx, fx), (fy, fx))]
        return [equal(pair(*left), pair(*right)) for left, right in cases]

    for free in (False, True):
        ours = compare(functools.partial(ir.structural_equal, map_free_variables=free), Var, Lambda, Node)
        equal = functools.partial(structural_equal, map_free_vars=free)
        assert ours == compare(equal, their_var, their_lambda, their_node) == [True, free, *[False] * 5]
