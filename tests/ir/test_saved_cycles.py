# SPDX-License-Identifier: Apache-2.0
"""Graphs that contain themselves through a List or a Dict are saved and read; broken ones are refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import portcall
from portcall import Array, Dict, List, Map, testing


@portcall.register_object("test.cycles.Node")
class Node(portcall.Object):
    left: object
    right: object = None


@portcall.register_object("test.cycles.Box", frozen=False)
class Box(portcall.Object):
    value: object


FORMS: dict[str, Callable[[Any], Any]] = {
    "json": lambda value: portcall.ir.load_json(portcall.ir.save_json(value)),
    "sorted json": lambda value: portcall.ir.load_json(
        json.dumps(json.loads(portcall.ir.save_json(value, indent=2)), sort_keys=True)
    ),
    "bytes": lambda value: portcall.ir.from_bytes(portcall.ir.to_bytes(value)),
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
}
pytestmark = pytest.mark.usefixtures("loops")
_made: list[Any] = []


@pytest.fixture
def loops() -> Any:
    """Take loops apart afterwards: what counts its holders is freed in no other way."""
    yield
    while _made:
        _made.pop().clear()


def loop(container: Any) -> Any:
    _made.append(container)
    return container


@pytest.fixture(params=list(FORMS.values()), ids=list(FORMS))
def again(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    return request.param  # type: ignore[no-any-return]


def test_save_list_and_dict_that_hold_themselves(again: Callable[[Any], Any]) -> None:
    items = loop(List([1]))
    items.append(items)
    made = loop(again(items))
    assert (type(made), len(made), made[0]) == (List, 2, 1)
    assert made[1].same_as(made)
    pairs = loop(Dict({"a": 1}))
    pairs["self"] = pairs
    made = loop(again(pairs))
    assert (type(made), list(made), made["a"]) == (Dict, ["a", "self"], 1)
    assert made["self"].same_as(made)


def test_save_cycle_through_objects_and_containers(again: Callable[[Any], Any]) -> None:
    children, table = loop(List()), loop(Dict())
    tree = Node(children, Map({"table": table, "tree": Array([children])}))
    children.extend([Node(1, tree), 2, Node(table)])
    table["tree"] = tree
    table["children"] = children
    made = again(tree)
    loop(made.left)
    loop(made.right["table"])
    assert made.left[0].right == made
    assert (made.left[0].left, made.left[1]) == (1, 2)
    assert made.left[2].left.same_as(made.right["table"])
    assert made.right["table"]["tree"] == made
    assert made.right["table"]["children"].same_as(made.left)
    assert made.right["tree"][0].same_as(made.left)
    assert portcall.ir.save_json(made) == portcall.ir.save_json(tree)


def test_save_long_cycle_needs_no_stack(again: Callable[[Any], Any]) -> None:
    first = node = loop(List())
    for _ in range(100_000):
        inner = List()
        node.append(Node(inner))
        node = inner
    node.append(first)
    made = inner = loop(again(first))
    for _ in range(100_000):
        inner = inner[0].left
    assert inner[0].same_as(made)


def test_save_without_cycle_has_the_old_format() -> None:
    shared = List([1])
    assert json.loads(portcall.ir.save_json(Array([shared, shared, Dict({"k": shared})])))["nodes"] == [
        {"ffi.List": [1]},
        {"ffi.Dict": [["k", {"ref": 0}]]},
        {"ffi.Array": [{"ref": 0}, {"ref": 0}, {"ref": 1}]},
    ]


def test_save_cycle_without_mutable_container_is_refused() -> None:
    box = Box(None)
    box.value = Array([box])
    try:
        for save in (portcall.ir.save_json, portcall.ir.to_bytes, pickle.dumps):
            with pytest.raises(ValueError, match="contains itself"):
                save(box)
    finally:
        box.value = None


def test_save_names_unsupported_values_in_a_cycle() -> None:
    items = loop(List())
    items.extend([items, Node(len)])
    with pytest.raises(TypeError, match=r"^<root>.*\[1\]\.left: .*'Function'"):
        portcall.ir.save_json(items)


def document(*nodes: str) -> str:
    return '{"portcall_json": 1, "nodes": [' + ", ".join(nodes) + '], "root": {"ref": 0}}'


def fill(key: str, ref: object, items: str) -> str:
    return f'{{"ffi.{key}": {{"ref": {ref}, "items": {items}}}}}'


LOOP = ('{"ffi.List": []}', fill("List", 0, '[{"ref": 0}]'))


@pytest.mark.parametrize(
    "text",
    [
        document(fill("List", 0, "[]")),
        document('{"ffi.List": []}', fill("List", 1, "[]")),
        document('{"ffi.List": []}', fill("List", -1, "[]")),
        document('{"ffi.List": []}', fill("Dict", 0, "[]")),
        document('{"ffi.Dict": []}', fill("List", 0, "[]")),
        document('{"ffi.Array": []}', fill("List", 0, "[]")),
        document('{"ffi.Array": []}', fill("Array", 0, "[]")),
        document('{"ffi.List": [1]}', fill("List", 0, "[2]")),
        document('{"ffi.Dict": []}', fill("Dict", 0, '[["k", 1], ["k", 2]]')),
        document('{"ffi.List": []}', '{"ffi.List": {"ref": 0}}'),
        document('{"ffi.List": []}', '{"ffi.List": {"items": []}}'),
        document('{"ffi.List": []}', '{"ffi.List": {"ref": 0, "ref": 0, "items": []}}'),
        document('{"ffi.List": []}', '{"ffi.List": {"ref": 0, "items": [], "more": 1}}'),
        document('{"ffi.List": []}', fill("List", 0, '[{"ref": 1}]')),
    ],
)
def test_load_json_refuses_malformed_cycles(text: str) -> None:
    with pytest.raises(ValueError, match=r"nodes\[[01]\]"):
        portcall.ir.load_json(text)


def test_load_limits_hold_for_cycles() -> None:
    text = document(*LOOP)
    with pytest.raises(ValueError, match="limit"):
        portcall.ir.load_json(text, max_nodes=1)
    with pytest.raises(ValueError, match="limit"):
        portcall.ir.load_json(text, max_depth=1000)
    items = loop(List())
    items.append(items)
    with pytest.raises(ValueError, match="limit"):
        portcall.ir.from_bytes(portcall.ir.to_bytes(items), max_depth=1000)


def test_from_bytes_refuses_truncated_cycles() -> None:
    items = loop(List())
    items.append(Dict({"k": items}))
    data = portcall.ir.to_bytes(items)
    for size in range(len(data)):
        with pytest.raises(ValueError, match="byte"):
            portcall.ir.from_bytes(data[:size])


def test_load_json_refused_cycle_leaves_nothing_behind() -> None:
    table = ('{"ffi.Dict": []}', fill("Dict", 2, '[["list", {"ref": 0}], ["self", {"ref": 2}]]'))
    with testing.no_leaks():
        for nodes in ((*LOOP, '{"test.cycles.Missing": {}}'), (*LOOP, *table, '{"ffi.Array": [{"ref": 9}]}')):
            with pytest.raises(ValueError, match=r"Missing|node 9"):
                portcall.ir.load_json(document(*nodes))
