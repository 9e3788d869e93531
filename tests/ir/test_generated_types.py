# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="misc, valid-type"
"""Laws that hold for any types: made at run time from generated annotations, with graphs of their objects."""

from __future__ import annotations

import copy
import itertools
import pickle
import typing
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import portcall

_numbers = itertools.count()

finite = st.floats(allow_nan=True)
texts = st.text(max_size=12)
plain: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "int": (int, st.integers(-(2**63), 2**63 - 1)),
    "float": (float, finite),
    "bool": (bool, st.booleans()),
    "str": (str, texts),
    "bytes": (bytes, st.binary(max_size=12)),
    "object": (object, st.none() | st.integers() | finite | texts | st.booleans() | st.binary(max_size=4)),
    "maybe": (int | None, st.none() | st.integers(0, 9)),
    "either": (int | str, st.integers(0, 9) | texts),
    "list": (list[int], st.lists(st.integers(0, 9), max_size=4)),
    "dict": (dict[str, float], st.dictionaries(texts, finite, max_size=3)),
    "dtype": (portcall.DataType, st.sampled_from(["float32", "int8x4", "bool", "bfloat16"]).map(portcall.dtype)),
    "device": (portcall.Device, st.sampled_from([portcall.cpu(0), portcall.cuda(1)])),
    "shape": (portcall.Shape, st.lists(st.integers(0, 9), max_size=4).map(portcall.Shape)),
    "tensor": (
        portcall.Tensor, st.lists(st.integers(0, 255), max_size=6).map(lambda v: portcall.tensor(np.array(v, "uint8"))),
    ),
}  # fmt: skip
KINDS = [*plain, "child", "children", "maybe child"]


@st.composite
def families(draw: st.DrawFn) -> list[Any]:
    """Registered classes with drawn fields; later ones may derive from earlier ones and hold their objects."""
    classes: list[Any] = []
    number = next(_numbers)
    for i in range(draw(st.integers(1, 4))):
        base = draw(st.sampled_from([portcall.Object, *classes]))
        taken = set(getattr(base, "kinds", {}))
        kinds = {f"f{i}_{k}": draw(st.sampled_from(KINDS)) for k in range(draw(st.integers(0, 4)))}
        annotations: dict[str, Any] = {}
        body: dict[str, Any] = {"__annotations__": annotations}
        for name, kind in kinds.items():
            assert name not in taken
            child = draw(st.sampled_from([portcall.Object, *classes]))
            annotations[name] = {"child": child, "children": list[child], "maybe child": child | None}.get(
                kind, plain.get(kind, (None,))[0]
            )
            ignore = kind in plain and draw(st.integers(0, 4)) == 0
            body[name] = portcall.field(compare=not ignore)
            if ignore:
                ignored.add((number, name))
        made = type(f"T{i}", (base,), {**body, "__module__": __name__})
        cls: Any = portcall.register_object(f"test.generated.{number}.T{i}", frozen=draw(st.booleans()))(made)
        classes.append(cls)
        recipes[cls] = (base, annotations, kinds)
    return classes


recipes: dict[Any, Any] = {}
ignored: set[tuple[int, str]] = set()  # fields that are not compared, by the number of the family


def fields_of(cls: Any) -> dict[str, tuple[str, Any]]:
    if cls not in recipes:
        return {}
    base, annotations, kinds = recipes[cls]
    return {**fields_of(base), **{name: (kind, annotations[name]) for name, kind in kinds.items()}}


def child_class(hint: Any) -> Any:
    return next((part for part in typing.get_args(hint) if part is not type(None)), hint)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Any, Any]:
    """Two graphs made in the same way, with sharing, of objects of generated types; as Arrays of all their nodes."""
    classes = draw(families())
    made: list[tuple[Any, Any]] = []

    def fitting(cls: Any) -> list[tuple[Any, Any]]:
        return [pair for pair in made if isinstance(pair[0], cls)]

    for cls in draw(st.lists(st.sampled_from(classes), min_size=1, max_size=8)):
        values: dict[str, tuple[Any, Any]] = {}
        for name, (kind, hint) in fields_of(cls).items():
            if kind in plain:
                value = draw(plain[kind][1])
                values[name] = (value, copy.copy(value) if kind != "tensor" else portcall.tensor(value.numpy()))
                continue
            there = fitting(child_class(hint))
            if kind == "children":
                some = draw(st.lists(st.sampled_from(there), max_size=3)) if there else []
                values[name] = ([a for a, _ in some], [b for _, b in some])
            elif there and (kind == "child" or draw(st.booleans())):
                values[name] = draw(st.sampled_from(there))
            elif kind == "maybe child":
                values[name] = (None, None)
            else:
                break  # nothing to be its child yet
        else:
            one = cls(**{name: a for name, (a, _) in values.items()})
            made.append((one, cls(**{name: b for name, (_, b) in values.items()})))
    return portcall.Array([a for a, _ in made]), portcall.Array([b for _, b in made])


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> None:
    """Not so here: types stay for good, and Hypothesis remembers what it drew from."""


def sharing(graph: Any) -> list[list[int]]:
    """For each object, in the order of a walk, the numbers of the objects that it refers to."""
    objects = portcall.ir.walk(graph)
    numbers = {obj.handle_value: i for i, obj in enumerate(objects)}
    found: list[list[int]] = []
    for obj in objects:
        below: list[int] = []
        portcall.ir.map_children(obj, lambda part, below=below: below.append(numbers.get(part.handle_value, -1))
                              if isinstance(part, portcall.Object) else None)  # fmt: skip
        found.append(below)
    return found


@settings(max_examples=150)
@given(graphs())
def test_save_and_load_keep_equality_and_sharing(pair: tuple[Any, Any]) -> None:
    graph, _ = pair
    for again in (
        portcall.ir.load_json(portcall.ir.save_json(graph)),
        portcall.ir.load_json(portcall.ir.save_json(graph, indent=1)),
        portcall.ir.from_bytes(portcall.ir.to_bytes(graph)),
        copy.deepcopy(graph),
    ):
        assert portcall.ir.first_mismatch(graph, again) is None
        assert portcall.ir.structural_hash(graph) == portcall.ir.structural_hash(again)
        assert [type(node) for node in again] == [type(node) for node in graph]
        assert sharing(again) == sharing(graph)
        assert portcall.ir.save_json(again) == portcall.ir.save_json(graph)  # fields that are not compared, too


@settings(max_examples=50)
@given(graphs())
def test_pickle_keeps_equality(pair: tuple[Any, Any]) -> None:
    again = pickle.loads(pickle.dumps(pair[0]))
    assert portcall.ir.structural_equal(again, pair[0])
    assert sharing(again) == sharing(pair[0])


@settings(max_examples=150)
@given(graphs(), st.data())
def test_structural_equal_agrees_with_hash_and_first_mismatch(pair: tuple[Any, Any], data: st.DataObject) -> None:
    one, other = pair
    assert portcall.ir.first_mismatch(one, other) is None
    assert portcall.ir.structural_hash(one) == portcall.ir.structural_hash(other)
    nodes = [*one, *other]
    if not nodes:
        return
    left, right = data.draw(st.sampled_from(nodes)), data.draw(st.sampled_from(nodes))
    equal = portcall.ir.structural_equal(left, right)
    assert equal == portcall.ir.structural_equal(right, left) == (portcall.ir.first_mismatch(left, right) is None)
    if equal:
        assert portcall.ir.structural_hash(left) == portcall.ir.structural_hash(right)
    if type(left) is not type(right):
        assert not equal


@settings(max_examples=100)
@given(graphs(), st.data())
def test_first_mismatch_finds_a_changed_field_if_it_is_compared(pair: tuple[Any, Any], data: st.DataObject) -> None:
    nodes = [node for node in pair[0] if any(kind == "int" for kind, _ in fields_of(type(node)).values())]
    if not nodes:
        return
    node = data.draw(st.sampled_from(nodes))
    name = data.draw(st.sampled_from([n for n, (kind, _) in fields_of(type(node)).items() if kind == "int"]))
    changed = node.replace(**{name: getattr(node, name) ^ 1})
    mismatch = portcall.ir.first_mismatch(node, changed)
    if (int(node.type_key.split(".")[2]), name) in ignored:
        assert mismatch is None
        assert portcall.ir.structural_hash(node) == portcall.ir.structural_hash(changed)
    else:
        assert str(mismatch) == f"<root>.{name}: {getattr(node, name)} != {getattr(changed, name)}"
    assert portcall.ir.save_json(changed) != portcall.ir.save_json(node)
