# SPDX-License-Identifier: Apache-2.0
"""What C++ on apache-tvm-ffi's headers decides for its types is honoured: constructors, copies, text, visitors."""

from __future__ import annotations

import copy
import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest

import portcall


@pytest.fixture(scope="module", autouse=True)
def library(libraries: dict[str, Path]) -> portcall.Module:
    return portcall.load_module(libraries["tvm_ffi_hooks_unlinked"])


def _class(name: str) -> Any:
    return portcall.ir.get_object_class(f"hooks.{name}")


@portcall.register_object("test.hooks.Pair")
class Pair(portcall.Object):
    left: Any
    right: Any = None


# ---- Constructors ----------------------------------------------------------------------------------------------------


def test_tvm_ffi_init_makes_objects() -> None:
    made = _class("Range")(5, 2)
    assert (made.low, made.high, made.width) == (2, 5, 3)
    named = _class("NamedRange")(9, 1, "n")
    assert (named.low, named.high, named.width, named.name) == (1, 9, 8, "n")
    assert isinstance(named, _class("Range"))


def test_tvm_ffi_init_wins_over_the_default_constructor() -> None:
    assert _class("Counter")(3).twice() == 6
    with pytest.raises(ValueError, match="a counter starts at zero or above, got -1"):
        _class("Counter")(-1)
    with pytest.raises(TypeError):
        _class("Counter")()


def test_tvm_ffi_make_by_key_constructs_from_fields(library: portcall.Module) -> None:
    make = library["make_by_key"]
    named = make("hooks.Name", ["n"])
    assert (named.text, named.item) == ("n", None)
    assert make("hooks.Name", ["n", 5]).item == 5
    for wrong, error in ([], "text"), (["n", 5, 6], "takes 2 values, got 3"), ([4], "text"):
        with pytest.raises(TypeError, match=error):
            make("hooks.Name", wrong)
    with pytest.raises(TypeError, match="flag"):  # which is given by name only
        make("hooks.Mixed", [3])


def test_tvm_ffi_init_checks_positional_arguments() -> None:
    with pytest.raises(TypeError):
        _class("Range")(5)
    with pytest.raises(TypeError):
        _class("Range")(5, "five")
    with pytest.raises(TypeError, match=r"by position only: \(arg0: 'int', arg1: 'int', /\)"):
        _class("Range")(1, high=2)
    assert str(inspect.signature(_class("Range"))).replace("'", "") == "(arg0: int, arg1: int, /)"


def test_register_object_uses_tvm_ffi_init(library: portcall.Module) -> None:
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


def test_tvm_ffi_type_without_constructor_is_made_by_cpp_only(library: portcall.Module) -> None:
    with pytest.raises(TypeError, match="made by C"):
        _class("Secret")()
    assert library["make_secret"]().value == 42


def test_tvm_ffi_required_fields_come_first() -> None:
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


def test_tvm_ffi_shallow_copy_keeps_hidden_members() -> None:
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


def test_tvm_ffi_objects_without_copy_constructor_refuse_copy(library: portcall.Module) -> None:
    with pytest.raises(TypeError, match="copied"):
        copy.copy(library["make_handle"]())


def test_tvm_ffi_repr_hook_is_used() -> None:
    money = _class("Money")
    assert repr(money(5)) == "5 cents"
    assert repr(money(5).annotated([1, money(3)])) == "5 cents for [1, 3 cents]"
    assert repr(Pair(money(5), [money(6)])) == "Pair(left=5 cents, right=[6 cents])"


# ---- Visitors and mutators -------------------------------------------------------------------------------------------


def test_tvm_ffi_visit_hooks_reach_containers_and_objects(library: portcall.Module) -> None:
    total = library["sum_integers"]
    assert total(Pair([1, 2, [3]], portcall.List([4, Pair(5)]))) == 15
    assert total(Pair([1, -2, "text", 3])) == "stopped"
    assert total(_class("Box")([1, 2])) == 3  # by the type's own hook


def test_tvm_ffi_mutators_copy_what_they_change(library: portcall.Module) -> None:
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


def test_tvm_ffi_maps_are_visited_by_key_and_value_and_changed_by_value(library: portcall.Module) -> None:
    graph = Pair(portcall.Map({"a": 1, "b": [2]}), portcall.Dict({3: 4}))
    assert library["sum_integers"](graph) == 10
    after = library["increment"](graph)
    assert dict(after.left) == {"a": 2, "b": [3]}
    assert (type(after.right), dict(after.right)) == (portcall.Dict, {3: 5})


# ---- Structure -------------------------------------------------------------------------------------------------------


def test_tvm_ffi_equal_and_hash_hooks_are_used() -> None:
    name = _class("Name")
    assert portcall.ir.structural_equal(name("A", [1]), name("a", [1]))
    assert not portcall.ir.structural_equal(name("A", [1]), name("a", [2]))
    assert not portcall.ir.structural_equal(name("A", [1]), name("b", [1]))
    nested, other = Pair([name("A", name("B"))]), Pair([name("a", name("b"))])
    assert portcall.ir.structural_equal(nested, other)
    assert portcall.ir.structural_hash(nested) == portcall.ir.structural_hash(other)
    assert portcall.ir.structural_hash(nested) != portcall.ir.structural_hash(Pair([name("A", name("C"))]))
    same = name("A", [1])
    assert portcall.ir.structural_equal(Pair(same, same), Pair(name("a", [1]), name("A", [1])))


def test_first_mismatch_passes_through_tvm_ffi_hooks() -> None:
    name = _class("Name")
    found = portcall.ir.first_mismatch(Pair([name("A", [1, 2])]), Pair([name("a", [1, 3])]))
    assert found is not None
    assert (found.path, found.left, found.right) == ("<root>.left[0].item[1]", 2, 3)
    found = portcall.ir.first_mismatch(Pair(name("A")), Pair(name("B")))
    assert found is not None
    assert (found.path, found.left.text, found.right.text) == ("<root>.left", "A", "B")


def test_tvm_ffi_equal_hook_mismatch_is_remembered() -> None:
    name = _class("Name")
    shared, changed = portcall.Array([1, portcall.Array([2])]), portcall.Array([1, portcall.Array([3])])
    left = Pair([name("x", shared), shared], shared)
    assert not portcall.ir.structural_equal(left, Pair([name("X", changed), changed], changed))


def test_tvm_ffi_hooks_nested_too_deeply_are_an_error() -> None:
    name = _class("Name")
    left = right = None
    for _ in range(3000):
        left, right = name("a", left), name("A", right)
    with pytest.raises(ValueError, match="deep"):
        portcall.ir.structural_equal(left, right)
    with pytest.raises(ValueError, match="deep"):
        portcall.ir.structural_hash(left)


# ---- Saving ----------------------------------------------------------------------------------------------------------


def test_save_uses_tvm_ffi_hooks() -> None:
    money = _class("Money")(7)
    graph = Pair([money, money], _class("Money")(8))
    for again in (
        portcall.ir.load_json(portcall.ir.save_json(graph)),
        portcall.ir.from_bytes(portcall.ir.to_bytes(graph)),
        pickle.loads(pickle.dumps(graph)),
    ):
        assert [again.left[0].cents(), again.left[1].cents(), again.right.cents()] == [7, 7, 8]
        assert again.left[0] == again.left[1]


def test_load_json_reports_an_error_of_a_tvm_ffi_hook() -> None:
    text = portcall.ir.save_json(_class("Money")(7))
    for wrong in (text.replace("7", '"seven"'), text.replace('"":7', ""), text.replace('"":7', '"note":null')):
        assert wrong != text
        with pytest.raises(ValueError, match=r"hooks\.Money"):
            portcall.ir.load_json(wrong)


def test_load_json_checks_lists_that_are_filled_later() -> None:
    def document(item: str) -> str:
        nodes = '{"ffi.List": []}, {"hooks.Totals": {"values": {"ref": 0}}}, {"ffi.List": {"ref": 0, "items": [%s]}}'
        return '{"portcall_json": 1, "nodes": [' + nodes % item + '], "root": {"ref": 1}}'

    assert list(portcall.ir.load_json(document("1, 2")).values) == [1, 2]
    for wrong in ('"text"', '1, {"ref": 0}'):
        with pytest.raises(ValueError, match=r"hooks\.Totals\.values"):
            portcall.ir.load_json(document(wrong))


def test_save_tvm_ffi_enum_entries_by_name_or_number(library: portcall.Module) -> None:
    red, low = library["color_of"]("red"), library["level_of"](10)
    graph = Pair([red, low], red)
    for again in (
        portcall.ir.load_json(portcall.ir.save_json(graph)),
        portcall.ir.from_bytes(portcall.ir.to_bytes(graph)),
    ):
        assert (again.left[0], again.left[1], again.right) == (red, low, red)
    assert '"red"' in portcall.ir.save_json(red)
    assert "10" in portcall.ir.save_json(low)
    for wrong in (portcall.ir.save_json(red).replace("red", "blue"), portcall.ir.save_json(low).replace("10", "11")):
        with pytest.raises(ValueError, match="no entry"):
            portcall.ir.load_json(wrong)


def test_tvm_ffi_enum_entries_are_compared_by_identity(library: portcall.Module) -> None:
    red, green = library["color_of"]("red"), library["color_of"]("green")
    assert red == library["color_of"]("red") != green
    assert portcall.ir.structural_equal(red, library["color_of"]("red"))
    assert not portcall.ir.structural_equal(red, green)
    assert list(library["read_enum"](red)) == [0, "red"]
    assert list(library["read_enum"](library["level_of"](20))) == [20, "high"]
    with pytest.raises(ValueError, match="blue"):
        library["color_of"]("blue")
    with pytest.raises(TypeError):
        _class("Color")()


# ---- Fields ----------------------------------------------------------------------------------------------------------


@portcall.register_object("test.hooks.Celsius")
class Celsius(portcall.Object):
    degrees: float

    @staticmethod
    def __ffi_convert__(value: Any) -> Any:
        if value == "wrong":
            return 1
        if value < -273.15:
            raise ValueError(f"{value} is below absolute zero")
        return Celsius(value)


@portcall.register_object("test.hooks.Weather")
class Weather(portcall.Object):
    now: Celsius


def test_tvm_ffi_convert_hook_applies_to_fields() -> None:
    Money = _class("Money")

    @portcall.register_object("test.hooks.Wallet", frozen=False)
    class Wallet(portcall.Object):
        money: Money  # type: ignore[valid-type]
        spare: Money | None = None  # type: ignore[valid-type]

    for cls in (Wallet, _class("Purse")):
        holder: Any = cls(5)
        assert (type(holder.money), holder.money.cents()) == (Money, 5)
        kept = holder.money
        holder.money = 7
        assert (holder.money.cents(), kept.cents()) == (7, 5)
        holder.money = kept
        assert holder.money.same_as(kept)
        with pytest.raises(TypeError, match="money: "):
            cls("five")
        with pytest.raises(TypeError, match="money: "):
            holder.money = [5]
        assert holder.money.same_as(kept)
    assert Wallet(1).spare is None
    assert Wallet(1, 2).spare.cents() == 2  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        Wallet(None)


def test_register_object_convert_hook_of_python() -> None:
    assert Weather(21.5).now.degrees == 21.5  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="below absolute zero"):
        Weather(-300)  # type: ignore[arg-type]
    for wrong in ("wrong", [1]):
        with pytest.raises(TypeError, match=r"Weather\.now: expected test\.hooks\.Celsius"):
            Weather(wrong)  # type: ignore[arg-type]


def test_register_object_fields_written_by_cpp_are_checked(library: portcall.Module) -> None:
    @portcall.register_object("test.hooks.Base", frozen=False)
    class Base(portcall.Object):
        number: int
        scale: float = 1.0

    @portcall.register_object("test.hooks.Derived", frozen=False)
    class Derived(Base):
        base: Base | None = None
        anything: Any = None

    made, write = Derived(1), library["write_field"]
    for name, value in (("number", 2), ("scale", 0.5), ("base", Base(3)), ("base", None), ("anything", "text")):
        write(made, name, value)
        assert getattr(made, name) == value
    write(made, "scale", 2)
    assert type(made.scale) is float
    for name, wrong in (("number", "two"), ("scale", None), ("base", Pair(1)), ("base", 1)):
        before = getattr(made, name)
        with pytest.raises(TypeError, match=f"{name}: expected"):
            write(made, name, wrong)
        assert getattr(made, name) == before


def test_register_object_last_of_many_fields_is_checked(library: portcall.Module) -> None:
    fields = {f"f{i}": int for i in range(100)}
    many: Any = portcall.register_object("test.hooks.Many", frozen=False)(
        type("Many", (portcall.Object,), {"__annotations__": fields})
    )
    made = many(*range(100))
    for i in (0, 1, 64, 99):
        library["write_field"](made, f"f{i}", -i)
        assert getattr(made, f"f{i}") == -i
        with pytest.raises(TypeError, match=f"f{i}: expected"):
            library["write_field"](made, f"f{i}", "text")
