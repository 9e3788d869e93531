# SPDX-License-Identifier: Apache-2.0
"""What C++ on apache-tvm-ffi's headers decides for its types is honoured: constructors, copies, text, visitors."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import pytest

import portcall


@pytest.fixture(scope="module", autouse=True)
def library(libraries: dict[str, Path]) -> portcall.Module:
    return portcall.load_module(libraries["tvm_ffi_hooks_unlinked"])


def _class(name: str) -> Any:
    return portcall.object_class(f"hooks.{name}")


@portcall.register_object("test.hooks.Pair")
class Pair(portcall.Object):
    left: Any
    right: Any = None


# ---- Constructors ----------------------------------------------------------------------------------------------------


def test_a_constructor_of_cpp_makes_the_objects() -> None:
    made = _class("Range")(5, 2)
    assert (made.low, made.high, made.width) == (2, 5, 3)
    named = _class("NamedRange")(9, 1, "n")
    assert (named.low, named.high, named.width, named.name) == (1, 9, 8, "n")
    assert isinstance(named, _class("Range"))


def test_it_does_so_when_there_is_a_default_constructor_too() -> None:
    assert _class("Counter")(3).twice() == 6
    with pytest.raises(ValueError, match="a counter starts at zero or above, got -1"):
        _class("Counter")(-1)
    with pytest.raises(TypeError):
        _class("Counter")()


def test_its_arguments_are_checked_and_have_no_names() -> None:
    with pytest.raises(TypeError):
        _class("Range")(5)
    with pytest.raises(TypeError):
        _class("Range")(5, "five")
    with pytest.raises(TypeError, match="by position"):
        _class("Range")(1, high=2)
    assert [p.kind for p in inspect.signature(_class("Range")).parameters.values()] == [
        inspect.Parameter.VAR_POSITIONAL
    ]


def test_a_class_that_takes_its_type_over_uses_it(library: portcall.Module) -> None:
    known = _class("Counter")
    try:

        @portcall.register_object("hooks.Counter")
        class Counter(portcall.Object):
            def __init__(self, text: str) -> None:
                super().__init__(int(text))

        made: Any = Counter("4")
        assert (made.count, made.twice()) == (4, 8)
    finally:
        portcall._core.register_object_class("hooks.Counter", known)


def test_a_type_without_a_constructor_is_made_by_cpp_only(library: portcall.Module) -> None:
    with pytest.raises(TypeError, match="made by C"):
        _class("Secret")()
    assert library["make_secret"]().value == 42


def test_required_fields_come_before_those_with_defaults() -> None:
    mixed = _class("Mixed")
    made = mixed(1, flag=3)
    assert (made.value, made.scale, made.flag, made.cache) == (1, 1, 3, 5)
    assert mixed(1, 2, flag=3).scale == 2
    assert str(inspect.signature(mixed)).replace(" ", "").startswith("(value")
    assert list(inspect.signature(mixed).parameters) == ["value", "scale", "flag"]
    assert mixed.__match_args__ == ("scale", "value")
    for wrong in ({}, {"flag": 3, "cache": 3}):
        with pytest.raises(TypeError):
            mixed(1, **wrong)


# ---- Copies and text -------------------------------------------------------------------------------------------------


def test_copies_keep_what_no_field_shows() -> None:
    counter = _class("Counter")(3)
    assert copy.copy(counter).twice() == 6
    changed = counter.replace(count=9)
    assert (changed.count, changed.twice(), counter.count) == (9, 6, 3)
    ranges = _class("Range")(5, 2).replace(width=0)
    assert (ranges.low, ranges.high, ranges.width) == (2, 5, 0)
    with pytest.raises(TypeError, match="has no field 'lo'"):
        ranges.replace(lo=1)
    with pytest.raises(TypeError):
        ranges.replace(low="one")


def test_objects_without_a_copy_constructor_are_not_copied(library: portcall.Module) -> None:
    with pytest.raises(TypeError, match="copied"):
        copy.copy(library["make_handle"]())


def test_the_text_is_that_of_the_hook() -> None:
    money = _class("Money")
    assert repr(money(5)) == "5 cents"
    assert repr(money(5).annotated([1, money(3)])) == "5 cents for [1, 3 cents]"
    assert repr(Pair(money(5), [money(6)])) == "Pair(left=5 cents, right=[6 cents])"


# ---- Visitors and mutators -------------------------------------------------------------------------------------------


def test_visitors_go_into_containers_and_objects_of_all_kinds(library: portcall.Module) -> None:
    total = library["sum_integers"]
    assert total(Pair([1, 2, [3]], portcall.List([4, Pair(5)]))) == 15
    assert total(Pair([1, -2, "text", 3])) == "stopped"
    assert total(_class("Box")([1, 2])) == 3  # by the type's own hook


def test_mutators_copy_what_they_change(library: portcall.Module) -> None:
    increment = library["increment"]
    text = "a text that is long enough"
    before = Pair([1, text, b"bytes that are long enough", 2**70], portcall.List([2, Pair(3)]))
    after = increment(before)
    assert list(after.left) == [2, text, b"bytes that are long enough", 2**70]
    assert type(after.right) is portcall.List
    assert (after.right[0], after.right[1].left) == (3, 4)
    assert (before.left[0], before.right[0], before.right[1].left) == (1, 2, 3)
    unchanged = portcall.Array([text])
    assert increment(unchanged).same_as(unchanged)
    with pytest.raises(TypeError, match="shallow_copy"):
        increment(library["make_handle"]())


def test_maps_are_visited_and_mutated_by_their_values(library: portcall.Module) -> None:
    graph = Pair(portcall.Map({"a": 1, "b": [2]}), portcall.Dict({3: 4}))
    assert library["sum_integers"](graph) == 7
    after = library["increment"](graph)
    assert dict(after.left) == {"a": 2, "b": [3]}
    assert (type(after.right), dict(after.right)) == (portcall.Dict, {3: 5})
