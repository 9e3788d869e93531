# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="attr-defined, comparison-overlap, misc"
"""eq=, order= and unsafe_hash= of register_object; deep copies, of graphs that contain themselves too."""

from __future__ import annotations

import contextlib
import copy
import itertools
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall


@portcall.register_object("test.values.Version", eq=True, order=True, unsafe_hash=True)
class Version(portcall.Object):
    parts: list[int]
    label: Any = None
    note: str = portcall.field(default="", compare=False)


@portcall.register_object("test.values.Plain")
class Plain(portcall.Object):
    value: Any


@portcall.register_object("test.values.Box", eq=True, frozen=False)
class Box(portcall.Object):
    value: Any = None


@portcall.register_object("test.values.Ring", eq=True, unsafe_hash=True, frozen=False)
class Ring(portcall.Object):
    value: Any = None


@portcall.register_object("test.values.Sorted", eq=True, order=True)
class Sorted(portcall.Object):
    value: Any


@portcall.register_object("test.values.Modulo", eq=True, order=True, unsafe_hash=True)
class Modulo(portcall.Object):
    value: int

    def __ffi_compare__(self, other: Any, compare: Any) -> int:
        return int(compare(self.value % 10, other.value % 10))

    def __ffi_hash__(self, hash_of: Any) -> int:
        return int(hash_of(self.value % 10))

    def __s_equal__(self, other: Any, equal: Any) -> bool:
        return bool(equal(self.value % 10, other.value % 10, 0, "value"))

    def __s_hash__(self, start: int, hash_of: Any) -> int:
        return int(hash_of(self.value % 10, start, 0))

    def __data_to_json__(self) -> Any:
        return [self.value]

    @staticmethod
    def __data_from_json__(data: Any) -> Any:
        return Modulo(data[0])


_kept: list[Any] = []


@portcall.register_object("test.values.Keeping")
class Keeping(portcall.Object):
    def __s_equal__(self, other: Any, equal: Any) -> bool:
        _kept.append(equal)
        return True

    def __s_hash__(self, start: int, hash_of: Any) -> int:
        _kept.append(hash_of)
        return start


def test_object_eq_compares_fields_deeply() -> None:
    assert Version([1, 2], Plain("x")) == Version([1, 2], Plain("x"), "a note")
    assert Version([1, 2], Plain("x")) != Version([1, 2], Plain("y"))
    assert Version([1], {"a": [1], 2: None}) == Version([1], {2: None, "a": [1]})
    assert Version([1], {"a": 1}) != Version([1], {"b": 1})
    assert Version([1]) != [1]
    assert Plain(1) != Plain(1)


def test_object_ne_is_the_opposite_of_eq() -> None:
    assert [Version([1]) != other for other in (Version([1]), Version([2]), [1])] == [False, True, True]
    one = Plain(1)
    assert [one != other for other in (one, Plain(1), 1)] == [False, True, True]


@pytest.mark.parametrize(
    ("left", "right"),
    list(itertools.combinations([None, 0, 0.0, False, "", b"", "0", [0], portcall.List([0]), {0: 0}, Plain(0)], 2)),
    ids=repr,
)
def test_object_eq_of_different_types_is_false(left: Any, right: Any) -> None:
    assert Box(left) != Box(right)


def test_object_eq_compares_numbers_as_numbers() -> None:
    assert Box(float("nan")) == Box(float("nan"))
    assert Box(0.0) == Box(-0.0)
    assert Box(2**70) == Box(2**70) != Box(2**70 + 1)
    assert Box(np.ones(2, "float32")) == Box(np.ones(2, "float32")) != Box(np.zeros(2, "float32"))


def test_object_hash_needs_eq_and_agrees_with_it() -> None:
    assert len({Version([1], Plain(0.0)), Version([1], Plain(-0.0)), Version([1], {"a": 1}), Version([2])}) == 3
    with pytest.raises(TypeError, match="unhashable"):
        hash(Box(1))
    assert len({Plain(1), Plain(1)}) == 2


def test_object_hash_includes_keys_of_maps() -> None:
    hashes = {hash(Version([1], {key: 1})) for key in ("a", "b", 1, 1.5, b"a", True)}
    assert len(hashes) == 6
    assert hash(Version([1], {"a": 1, "b": 2})) != hash(Version([1], {"a": 2, "b": 1}))
    assert hash(Version([1], {"a": 1, "b": 2})) == hash(Version([1], {"b": 2, "a": 1}))
    assert hash(Version([1], {(1, 2): 0})) == hash(Version([1], {(1, 2): 0}))
    assert hash(Version([1], {Modulo(1): 0})) == hash(Version([1], {Modulo(11): 0}))


def test_object_order_treats_equal_maps_as_equal_and_has_none_for_others() -> None:
    same = Version([1], {"a": Plain(1)}), Version([1], {"a": Plain(1)})
    assert same[0] <= same[1] >= same[0]
    assert not same[0] < same[1]
    assert Version([1], {"a": 1}) < Version([2], {"a": 2})
    with pytest.raises(TypeError, match="no order"):
        Version([1], {"a": 1}) < Version([1], {"a": 2})  # noqa: B015
    function = portcall.convert(len)
    assert Version([1], function) <= Version([1], function)


def test_object_order_is_that_of_the_fields() -> None:
    versions = [Version([1, 10]), Version([1]), Version([1, 2], "b"), Version([1, 2]), Version([1, 2], "a")]
    assert [[*v.parts, v.label] for v in sorted(versions)] == [
        [1, None], [1, 2, None], [1, 2, "a"], [1, 2, "b"], [1, 10, None],
    ]  # fmt: skip
    assert Version([1]) <= Version([1], None, "note") >= Version([1])
    assert not Version([1]) < Version([1])
    assert Version([2]) > Version([1], "x")
    with pytest.raises(TypeError):
        Version([1], "a") < Version([1], 1)  # noqa: B015
    with pytest.raises(TypeError):
        Version([1]) < 1  # type: ignore[operator]  # noqa: B015
    with pytest.raises(ValueError, match="eq=True"):
        portcall.register_object("test.values.Order", order=True)


def test_register_object_keeps_defined_eq_and_hash() -> None:
    @portcall.register_object("test.values.Own", eq=True, order=True, unsafe_hash=True)
    class Own(portcall.Object):
        value: int
        __match_args__ = ("value", "twice")

        @property
        def twice(self) -> int:
            return 2 * self.value

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own) and self.value % 10 == other.value % 10

        def __lt__(self, other: Any) -> bool:
            return False

    assert Own(1) == Own(11)
    assert not Own(1) < Own(2)
    assert Own(1) <= Own(2)
    assert hash(Own(1)) == hash(Own(1))
    match Own(3):
        case Own(3, twice):
            assert twice == 6
        case _:
            pytest.fail("__match_args__ of the class were replaced")


def test_register_object_hooks_are_methods() -> None:

    assert Modulo(1) == Modulo(11) < Modulo(2)
    assert Plain([Modulo(1)]) != Plain([Modulo(11)])
    assert Box([Modulo(1)]) == Box([Modulo(11)])
    assert hash(Modulo(1)) == hash(Modulo(11))
    assert portcall.ir.structural_equal([Modulo(1)], [Modulo(11)])
    assert portcall.ir.structural_hash([Modulo(1)]) == portcall.ir.structural_hash([Modulo(11)])
    assert portcall.ir.load_json(portcall.ir.save_json(Plain(Modulo(12)))).value.value == 12


def test_hook_function_kept_too_long_is_an_error() -> None:
    assert portcall.ir.structural_equal(Keeping(), Keeping())
    portcall.ir.structural_hash(Keeping())
    for function, arguments in zip(_kept, ([1, 1, 0, "x"], [1, 1, 0]), strict=True):
        with pytest.raises(RuntimeError):
            function(*arguments)
    _kept.clear()
    del function, arguments


@pytest.fixture(scope="module")
def hooks(libraries: dict[str, Path]) -> portcall.Module:
    return portcall.load_module(libraries["tvm_ffi_hooks_unlinked"])


def test_object_eq_uses_hooks_of_cpp(hooks: portcall.Module) -> None:
    money: Any = portcall.ir.get_object_class("hooks.Money")
    assert Box([money(5)]) == Box([money(5).annotated("a note")]) != Box([money(6)])
    assert Version([1], money(5)) < Version([1], money(6))
    assert hash(Version([1], money(5))) == hash(Version([1], money(5).annotated("x")))
    assert copy.deepcopy(Box([money(5)])) == Box([money(5)])
    with pytest.raises(TypeError, match="copied"):
        copy.deepcopy(Box(hooks["make_handle"]()))
    made = copy.deepcopy(portcall.ir.get_object_class("hooks.Range")(5, 2))
    assert (made.low, made.high) == (2, 5)


def test_list_that_contains_itself_is_copied_and_compared() -> None:
    inner = portcall.List([1])
    graph = Plain([inner, portcall.Dict({"a": inner})])
    inner.append(graph)
    made = copy.deepcopy(graph)
    assert not made.same_as(graph)
    assert made.value[0].same_as(made.value[1]["a"])
    assert made.value[0][1].same_as(made)
    assert (made.value[0][0], len(inner)) == (1, 2)
    box, other = Box(), Box()
    box.value, other.value = [box], [other]
    assert box == other
    again = copy.deepcopy(box)
    assert again.value[0].same_as(again)
    for looped in (inner, box, other):
        if isinstance(looped, Box):
            looped.value = None
        else:
            looped.clear()
    made.value[0].clear()
    again.value = None


def test_object_that_contains_itself_has_a_hash() -> None:
    rings = Ring(), Ring()
    for ring in rings:
        ring.value = [ring]
    assert rings[0] == rings[1] == Ring([rings[0]])
    assert hash(rings[0]) == hash(rings[1]) == hash(Ring([rings[0]]))
    for ring in rings:
        ring.value = None


def test_object_order_is_that_of_numbers_for_data_types_and_devices() -> None:
    types = [portcall.DataType(name) for name in ("int32", "float16", "float32", "float32x2")]
    assert sorted([Sorted(each) for each in reversed(types)]) == [Sorted(each) for each in types]
    assert Sorted(portcall.cpu(1)) < Sorted(portcall.cuda(0)) < Sorted(portcall.cuda(1))


def test_deepcopy_shares_functions_and_copies_tensors() -> None:
    tensor, function = portcall.tensor(np.arange(3)), portcall.convert(len)
    made = copy.deepcopy(Plain([tensor, function, tensor]))
    assert not made.value[0].same_as(tensor)
    assert made.value[0].same_as(made.value[2])
    assert made.value[0].numpy().tolist() == [0, 1, 2]
    assert made.value[1] == function
    chain = None
    for _ in range(50_000):
        chain = Plain([chain])
    assert portcall.ir.structural_equal(copy.deepcopy(chain), chain)


@portcall.register_object("test.values.Node", eq=True, order=True, unsafe_hash=True)
class Node(portcall.Object):
    left: Any
    right: Any = None


def _shared(levels: int, leaf: Any) -> Any:
    for level in range(levels):
        leaf = Node(leaf, leaf) if level % 3 else Node([leaf, leaf], {"a": leaf})
    return leaf


def test_object_eq_order_and_hash_look_at_shared_objects_once() -> None:
    one, same, less = _shared(60, Node(1)), _shared(60, Node(1)), _shared(60, Node(0))
    assert one == same != less
    assert hash(one) == hash(same) != hash(less)
    one, same, less = (_shared_chain(60, leaf) for leaf in (1, 1, 0))
    assert less < one <= same
    assert one == same != less


def _shared_chain(levels: int, leaf: Any) -> Any:
    for _ in range(levels):
        leaf = Node([leaf], leaf)
    return leaf


def test_object_eq_order_and_hash_need_no_stack() -> None:
    one, same, less = (_chain(5_000, leaf) for leaf in (1, 1, 0))
    assert less < one == same != less
    assert hash(one) == hash(same) != hash(less)


def _chain(length: int, leaf: Any) -> Any:
    for i in range(length):
        leaf = Node(leaf) if i % 2 else Node([leaf])
    return leaf


@portcall.register_object("test.values.Either", eq=True, unsafe_hash=True)
class Either(portcall.Object):
    """Equal to another one of which either part is equal, or that cannot be compared."""

    left: Any
    right: Any

    def __ffi_eq__(self, other: Any, equal: Any) -> bool:
        return bool(equal(self.left, other.left) or equal(self.right, other.right))

    def __ffi_hash__(self, hash_of: Any) -> int:
        for part in (self.left, self.right):
            with contextlib.suppress(TypeError):
                return int(hash_of(part))
        return 0


def test_object_hook_goes_on_after_parts_that_differ() -> None:
    part, other = Node(Node(1), Node(2)), Node(Node(1), Node(3))
    assert Either(part, 1) == Either(other, 1)
    assert Either(part, 1) != Either(other, 2)
    assert Node(Either(part, 1), part) != Node(Either(other, 1), other)
    assert Node(Either(part, 1), Node(1)) == Node(Either(other, 1), Node(1))
    unhashable = Node(portcall.convert(len), Node(Unhashed(1)))
    assert hash(Either(unhashable, 5)) == hash(Either(Node(Unhashed(2)), 5))
    with pytest.raises(TypeError):
        hash(Node(Either(unhashable, 5), unhashable))


@portcall.register_object("test.values.Unhashed", eq=True)
class Unhashed(portcall.Object):
    value: int

    def __ffi_eq__(self, other: Any, equal: Any) -> bool:
        return bool(equal(self.value, other.value))


def test_deepcopy_keeps_what_items_of_python_share() -> None:
    leaf = Node(1)
    pair, again = copy.deepcopy([Node(leaf, leaf), leaf])
    assert pair.left.same_as(again)
    assert pair.right.same_as(again)
    assert not again.same_as(leaf)
    made = copy.deepcopy({"a": portcall.Array([leaf]), "b": portcall.List([leaf])})
    assert made["a"][0].same_as(made["b"][0])
    plain = copy.deepcopy(types.SimpleNamespace(one=leaf, other=Node(leaf)))
    assert plain.other.left.same_as(plain.one)
    assert not plain.one.same_as(again)


def test_deepcopy_that_failed_leaves_no_half_copy(hooks: portcall.Module) -> None:
    memo: dict[Any, Any] = {}
    leaf = Box(1)
    with pytest.raises(TypeError):
        copy.deepcopy(Box([leaf, hooks["make_handle"]()]), memo)
    made = copy.deepcopy(Box([leaf]), memo)
    assert made.value[0].value == 1
    assert copy.deepcopy(leaf, memo).same_as(made.value[0])
