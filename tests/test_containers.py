# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="attr-defined, call-overload, index, list-item, var-annotated"
"""Array, Map and Shape behave like Python's own; lists, tuples and mappings are taken wherever they are."""

from __future__ import annotations

import collections
import copy
import gc
import pickle
import threading
import types
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import portcall
from portcall import Array, Map, Shape

echo = portcall.get_global_func("testing.echo")

pytestmark = pytest.mark.usefixtures("native")


def call(name: str, *arguments: Any) -> Any:
    return portcall.get_global_func(f"portcall_test.{name}")(*arguments)


# ---- Array -----------------------------------------------------------------------------------------------------------


def test_array_equals_the_list_or_tuple_it_was_made_from() -> None:
    for back in (echo([1, "two", None]), echo((1, "two", None))):
        assert type(back) is Array
        assert back == [1, "two", None]
        assert back == (1, "two", None)
        assert back == Array([1, "two", None])
        assert back != [1, "two"]
        assert back != "other"


def test_array_without_items_is_empty() -> None:
    for empty in (Array(), Array([]), echo([]), echo(())):
        assert len(empty) == 0
        assert list(empty) == []
        assert not empty
        assert empty == []


def test_array_is_a_sequence() -> None:
    array = Array(range(5))
    assert isinstance(array, Sequence)
    assert (array[0], array[-1], array[4]) == (0, 4, 4)
    assert array[1:4] == [1, 2, 3]
    assert array[::-1] == [4, 3, 2, 1, 0]
    assert list(reversed(array)) == [4, 3, 2, 1, 0]
    assert 3 in array
    assert 9 not in array
    assert array.index(2) == 2
    assert array.count(2) == 1
    assert repr(array) == "[0, 1, 2, 3, 4]"
    first, *rest = array
    assert (first, rest) == (0, [1, 2, 3, 4])


@pytest.mark.parametrize("index", [5, -6, 2**62, -(2**63)])
def test_array_index_out_of_range(index: int) -> None:
    with pytest.raises(IndexError):
        Array(range(5))[index]


def test_array_index_must_be_an_integer() -> None:
    with pytest.raises(TypeError):
        Array([1])["a"]


def test_array_cannot_be_changed() -> None:
    array = Array([1])
    with pytest.raises(TypeError, match="item assignment"):
        array[0] = 2
    with pytest.raises(AttributeError):
        array.append(2)


@pytest.mark.parametrize("kind", [Array, portcall.List])
def test_array_and_list_equal_themselves(kind: type[Array]) -> None:
    one = kind([float("nan")])
    assert one == one == echo(one)
    assert one != kind([float("nan")])


@pytest.mark.parametrize("kind", [Map, portcall.Dict])
def test_map_and_dict_equal_themselves(kind: type[Map]) -> None:
    one = kind({"k": float("nan")})
    assert one == one == echo(one)
    assert one != kind({"k": float("nan")})


@pytest.mark.parametrize("kind", [Array, portcall.List, Map, portcall.Dict])
def test_container_ne_is_the_opposite_of_eq(kind: Any) -> None:
    items, others = ({1: 2}, {1: 3}) if issubclass(kind, Map) else ([1, 2], [1, 3])
    assert [kind(items) != other for other in (kind(items), items, kind(others), others, 7)] == [False] * 2 + [True] * 3
    assert [items != other for other in (kind(items), kind(others))] == [False, True]


def test_array_hash_agrees_with_eq() -> None:
    assert hash(Array([1, "a"])) == hash((1, "a"))
    assert {Array([1, 2]): "x"}[(1, 2)] == "x"


def test_array_of_an_array_is_equal() -> None:
    inner = Array([1])
    outer = Array([inner, inner])
    assert outer == [[1], [1]]
    assert outer[0].same_as(outer[1])


def test_array_keeps_identity_of_nested_objects() -> None:
    tensor, func = portcall.empty(3), portcall.convert(lambda: 1)
    back = echo([tensor, [func, {"t": tensor}]])
    assert back[0].same_as(tensor)
    assert back[1][0].same_as(func)
    assert back[1][1]["t"].same_as(tensor)


def test_array_of_a_type_checks_each_item() -> None:
    assert call("sum", [1, 2, 3]) == 6
    assert call("sum", (np.int8(1), True)) == 2
    assert call("sum", Array([4])) == 4
    with pytest.raises(portcall.errors.ArgumentError, match=r"argument #0: expected Array\[int\], got Array"):
        call("sum", [1, "2"])


def test_array_names_the_index_of_an_unsupported_item() -> None:
    with pytest.raises(portcall.errors.ArgumentError, match=r"argument #0: item 2: expected .*surrogate") as caught:
        echo([1, 2, "\ud800"])
    assert (caught.value.function, caught.value.position) == ("testing.echo", 0)
    with pytest.raises(portcall.errors.ArgumentError, match=r"^item 1: expected .*surrogate"):
        Array([1, "\ud800"])


def test_argument_list_that_contains_itself_is_a_value_error() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError, match=r"testing\.echo\(\): argument #1: .* contains itself"):
        echo(1, loop)
    for make in (Array, portcall.List, lambda items: portcall.List().extend(items), lambda items: Map({1: items})):
        with pytest.raises(ValueError, match=r"^a list or dict that contains itself"):
            make(loop)
    ring: dict[str, Any] = {}
    ring["self"] = [ring, *range(20)]
    with pytest.raises(ValueError, match="contains itself"):
        echo(ring)


def test_argument_lists_that_are_shared_are_converted_once() -> None:
    shared: Any = [1]
    for level in range(60):  # without sharing 2**60 lists
        shared = [shared, shared] if level % 2 else {"a": shared, "b": (shared, *range(9))}
    for made in (echo(shared), echo([shared])[0], Array([shared])[0], portcall.List([shared, shared])[1]):
        inside = made[0]
        assert inside.same_as(made[1])
        assert inside["a"].same_as(inside["b"][0])
    nothing: list[Any] = []
    both = portcall.List([nothing, nothing])
    assert both[0].same_as(both[1])


def test_argument_values_that_a_mapping_makes_are_not_confused() -> None:
    class Fresh(dict[str, Any]):
        def items(self) -> Any:
            return [(f"key {k}", [k]) for k in range(100)]

    made = echo([Fresh(), Fresh()])
    assert made[0] == made[1] == {f"key {k}": [k] for k in range(100)}


def test_argument_nested_beyond_the_limit_is_a_recursion_error() -> None:
    def nest(depth: int) -> Any:
        value: Any = 7
        for _ in range(depth):
            value = [value]
        return value

    with pytest.raises(RecursionError):
        echo(nest(100_000))
    back = echo(nest(200))
    for _ in range(200):
        (back,) = back
    assert back == 7


def test_container_chain_longer_than_the_stack_is_released() -> None:
    chain: Any = []
    for _ in range(200_000):
        chain = Map({"next": Array([chain])})
    del chain
    assert echo([1]) == [1]


# ---- Map -------------------------------------------------------------------------------------------------------------


def test_map_equals_the_dict_it_was_made_from() -> None:
    source = {"b": 1, "a": [2, 3], 5: None, b"raw": {"inner": 1.5}}
    back = echo(source)
    assert type(back) is Map
    assert isinstance(back, Mapping)
    assert back == source
    assert source == back
    assert back != {"b": 1}
    assert list(back) == ["b", "a", 5, b"raw"]
    assert next(iter(back.items())) == ("b", 1)
    assert list(back.values())[1] == [2, 3]
    assert repr(back) == "{'b': 1, 'a': [2, 3], 5: None, b'raw': {'inner': 1.5}}"


def test_map_without_pairs_is_empty() -> None:
    for empty in (Map(), Map({}), echo({})):
        assert len(empty) == 0
        assert empty == {}
        assert not empty
        assert "a" not in empty


@pytest.mark.parametrize(
    "mapping",
    [
        collections.OrderedDict([("a", 1)]),
        collections.defaultdict(int, a=1),
        types.MappingProxyType({"a": 1}),
        collections.ChainMap({"a": 1}),
        Map({"a": 1}),
        Map([("a", 1)]),
    ],
    ids=lambda m: type(m).__name__,
)
def test_map_accepts_every_mapping(mapping: Any) -> None:
    assert echo(mapping) == {"a": 1}


def test_map_missing_key_is_a_key_error() -> None:
    with pytest.raises(KeyError) as caught:
        Map({"a": 1})["b"]
    assert caught.value.args == ("b",)
    assert Map({"a": 1}).get("b", 9) == 9


@pytest.mark.parametrize(
    "key",
    [
        *("", "short", "a long key on the heap", "nul\0inside", b"", b"raw", b"raw bytes on the heap"),
        *(0, -1, 2**63 - 1, 2**63, -(2**64), 2**200, True, False, None, 1.5, 0.0, float("inf")),
        *((1, 2), ((1, "a"), 2**70), Shape((3, 4)), ()),
    ],
    ids=repr,
)
def test_map_key_of_every_type_is_found_by_value(key: Any) -> None:
    back = echo({"other": 0, key: "found", 12345: 1})
    assert back[key] == "found"
    assert key in back
    assert list(back)[1] == key


def test_map_object_key_is_found_by_identity() -> None:
    tensor, other = portcall.empty(2), portcall.empty(2)
    back = Map({tensor: "t"})
    assert back[tensor] == "t"
    assert other not in back
    for find in (back.__getitem__, portcall.Dict(back).__getitem__, portcall.Dict(back).__delitem__):
        with pytest.raises(KeyError) as caught:
            find(other)
        assert "identity" in caught.value.__notes__[0]
    with pytest.raises(KeyError) as caught:
        back["text"]
    assert not hasattr(caught.value, "__notes__")


def test_map_key_minus_zero_is_zero() -> None:
    assert Map({0.0: "zero"})[-0.0] == "zero"


def test_map_keys_true_and_one_differ() -> None:
    """As the other languages of the ABI have it; a Python dict would take them for one."""
    assert True not in Map({1: "one"})


def test_map_keys_with_equal_hashes_are_found() -> None:
    source = {k * 2**32: k for k in range(3000)}
    back = echo(source)
    assert dict(back.items()) == source
    assert all(back[key] == value for key, value in source.items())


def test_map_of_a_type_is_looked_up_in_cpp() -> None:
    assert call("look_up", {"a": [1]}, "a") == [1]
    with pytest.raises(KeyError):
        call("look_up", {"a": 1}, "b")
    with pytest.raises(portcall.errors.ArgumentError, match=r"expected Map\[str, any value\], got Map"):
        call("look_up", {1: 1}, "b")


def test_map_cannot_be_changed() -> None:
    with pytest.raises(TypeError, match="item assignment"):
        Map({"a": 1})["a"] = 2


# ---- Shape -----------------------------------------------------------------------------------------------------------


def test_shape_is_a_tuple() -> None:
    shape = Shape([2, np.int64(3)])
    assert shape == (2, 3)
    assert isinstance(shape, tuple)
    assert repr(shape) == "Shape(2, 3)"
    assert type(echo(shape)) is Shape
    assert type(echo((2, 3))) is Array
    assert call("volume", shape) == 6
    assert call("volume", Shape()) == 1


@pytest.mark.parametrize("values", [(2**63,), (-(2**63) - 1,)])
def test_shape_refuses_an_extent_beyond_int64(values: tuple[int, ...]) -> None:
    with pytest.raises((OverflowError, portcall.errors.ArgumentError)):
        echo(Shape(values))


def test_shape_refuses_other_values() -> None:
    with pytest.raises(TypeError):
        Shape([1.5])
    with pytest.raises(TypeError):
        Shape(["a"])


def test_shape_pickles_and_copies() -> None:
    assert pickle.loads(pickle.dumps(Shape((1, 2)))) == Shape((1, 2))
    assert type(copy.deepcopy(Shape((1, 2)))) is Shape


# ---- Both ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [Array, Map])
def test_container_made_without_its_constructor_is_an_error(cls: Any) -> None:
    empty = cls.__new__(cls)
    for use in (len, list, repr, lambda x: x[0], lambda x: x.type_key, echo, lambda x: echo([x])):
        with pytest.raises((ValueError, TypeError), match="not initialised"):
            use(empty)


@given(st.lists(st.integers() | st.text(st.characters(exclude_categories=["Cs"])), max_size=10), st.data())
def test_array_slices_as_a_list_does(items: list[Any], data: st.DataObject) -> None:
    part = data.draw(st.slices(max(len(items), 1)))
    assert Array(items)[part] == items[part]


@given(st.dictionaries(st.integers() | st.text(st.characters(exclude_categories=["Cs"])), st.integers(), max_size=20))
def test_map_finds_what_a_dict_finds(items: dict[Any, int]) -> None:
    back = Map(items)
    assert dict(back) == items
    assert list(back.items()) == list(items.items())


# ---- List and Dict: containers that change ---------------------------------------------------------------------------

CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 9)),
        st.tuples(st.just("insert"), st.integers(-12, 12), st.integers(0, 9)),
        st.tuples(st.just("setitem"), st.integers(-4, 4), st.integers(0, 9)),
        st.tuples(st.just("delitem"), st.integers(-4, 4)),
        st.tuples(st.just("setslice"), st.slices(6), st.lists(st.integers(0, 9), max_size=4)),
        st.tuples(st.just("delslice"), st.slices(6)),
        st.tuples(st.just("extend"), st.lists(st.integers(0, 9), max_size=4)),
        st.tuples(st.just("reverse")),
        st.tuples(st.just("sort")),
        st.tuples(st.just("pop")),
    ),
    max_size=12,
)


def change(target: Any, what: tuple[Any, ...]) -> Any:
    """Apply a change; the type of the error when it is refused."""
    name, *arguments = what
    try:
        if name in ("setitem", "setslice"):
            target[arguments[0]] = arguments[1]
        elif name in ("delitem", "delslice"):
            del target[arguments[0]]
        else:
            return getattr(target, name)(*arguments)
    except (IndexError, ValueError) as error:
        return type(error)
    return None


@given(st.lists(st.integers(0, 9), max_size=6), CHANGES)
def test_list_changes_as_pythons_does(items: list[int], changes: list[tuple[Any, ...]]) -> None:
    ours, model = portcall.List(items), list(items)
    same = echo(ours)
    for what in changes:
        assert change(ours, what) == change(model, what), what
        assert same == model
        assert list(ours) == model
    assert repr(ours) == repr(model)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.one_of(st.none(), st.integers())), max_size=20))
def test_dict_changes_as_pythons_does(pairs: list[tuple[str, int | None]]) -> None:
    ours, model = portcall.Dict(), {}
    same = echo(ours)
    for key, value in pairs:
        if value is None:
            assert ours.pop(key, "none") == model.pop(key, "none")
        else:
            ours[key] = model[key] = value
        assert list(same.items()) == list(model.items())
    with pytest.raises(KeyError, match="'z'"):
        del ours["z"]


def test_list_and_dict_keep_their_types() -> None:
    inner = portcall.List([1])
    outer = portcall.Dict({"a": inner})
    back = echo(outer)
    assert type(back) is portcall.Dict
    assert type(back["a"]) is portcall.List
    back["a"].append(2)
    assert inner == [1, 2]
    assert isinstance(inner, (Array, Sequence))
    assert isinstance(outer, (Map, Mapping))
    with pytest.raises(IndexError, match="index 5 is out of range for 2 items"):
        inner[5] = 1


def test_argument_list_changed_while_it_is_read_is_safe() -> None:
    class Number:
        def __index__(self) -> int:
            given.clear()
            gc.collect()
            return 1

    given = [Number(), object(), "a text that is longer than seven bytes" + str(id(object()))]
    _, other, text = given
    names = [type(other), text]
    del other, text
    received = echo(given)
    assert given == []
    assert [received[0], type(received[1]), received[2]] == [1, *names]


# ---- Containers that contain themselves ------------------------------------------------------------------------------


@pytest.fixture
def loops() -> Any:
    """A List and a Dict that contain themselves and each other; cleared at the end, since references are counted."""
    both, pairs = portcall.List([1]), portcall.Dict({"one": 1})
    both.extend([both, Array([pairs])])
    pairs["both"], pairs["self"] = both, pairs
    yield both, pairs
    both.clear()
    pairs.clear()


def test_repr_of_containers_that_contain_themselves_ends(loops: Any) -> None:
    both, pairs = loops
    assert repr(both) == "[1, [...], [{'one': 1, 'both': [...], 'self': {...}}]]"
    assert repr(pairs) == "{'one': 1, 'both': [1, [...], [{...}]], 'self': {...}}"
    assert repr([both[1], both]) == f"[{both!r}, {both!r}]"


def test_hash_of_lists_and_dicts_is_that_of_what_they_hold() -> None:
    assert len({portcall.List([1, [2]]), Array([1, [2]]), portcall.List([1, portcall.List([2])])}) == 1
    assert hash(portcall.Dict({"a": 1, "b": 2})) == hash(portcall.Map({"b": 2, "a": 1}))


def nested(cls: Any, depth: int, copies: int) -> Any:
    """Containers inside of each other, each one that many times."""
    value = cls([1]) if issubclass(cls, Array) else cls({"a": 1})
    for _ in range(depth):
        value = cls([value] * copies if issubclass(cls, Array) else {str(i): value for i in range(copies)})
    return value


@pytest.mark.parametrize("cls", [Array, portcall.List, portcall.Map, portcall.Dict])
def test_containers_are_equal_and_hashed_at_any_depth_and_however_shared(cls: Any) -> None:
    for depth, copies in ((3000, 1), (60, 2)):
        one, same, less = nested(cls, depth, copies), nested(cls, depth, copies), nested(cls, depth - 1, copies)
        assert one == same
        assert one != less
        assert hash(one) == hash(same) != hash(less)


def test_containers_that_contain_themselves_are_equal_if_nothing_differs() -> None:
    rings = [portcall.List([i // 2]) for i in range(3)]
    for ring in rings:
        ring.append(ring)
    assert rings[0] == rings[1] != rings[2]
    for ring in rings:
        ring.clear()


def test_hash_of_containers_that_contain_themselves_is_found(loops: Any) -> None:
    both, pairs = loops
    assert {hash(both), hash(pairs), hash(Array([both])), hash(portcall.Map({"a": [pairs]}))} == {hash(both)}
    alone = portcall.List()
    alone.append(alone)
    assert alone in {portcall.List([alone])}
    assert hash(Array([1])) == hash(portcall.List([1]))
    alone.clear()


def test_repr_of_a_list_that_another_thread_prints_too_is_whole() -> None:
    here, texts, shown = threading.get_ident(), [], []

    class Item:
        def __repr__(self) -> str:
            if threading.get_ident() == here:
                thread = threading.Thread(target=lambda: texts.append(repr(shown[0])))
                thread.start()
                thread.join()
            return "item"

    shown.append(portcall.List([Item()]))
    assert (repr(shown[0]), texts) == ("[item]", ["[item]"])
    shown.pop().clear()


@pytest.mark.parametrize("root", [0, 1], ids=["List", "Dict"])
def test_deepcopy_keeps_cycles(loops: Any, root: int) -> None:
    made = copy.deepcopy(loops[root])
    both, pairs = (made, made[2][0]) if root == 0 else (made["both"], made)
    assert both[1].same_as(both)
    assert both[2][0].same_as(pairs)
    assert pairs["both"].same_as(both)
    assert pairs["self"].same_as(pairs)
    assert not both.same_as(loops[0])
    both.clear()
    pairs.clear()


def test_walk_visits_what_contains_itself_once(loops: Any) -> None:
    for root in loops:
        for order in ("pre", "post"):
            found = portcall.ir.walk(root, order=order)
            assert sorted(type(obj).__name__ for obj in found) == ["Array", "Dict", "List"]


def test_closure_in_its_own_list_is_printed_copied_and_walked() -> None:
    own = portcall.List()

    def closure() -> Any:
        return own

    own.append(closure)
    function = own[0]
    assert repr(own) == "[PackedFunc(closure)]"
    assert copy.deepcopy(own)[0].same_as(function)
    assert [found.same_as(wanted) for found, wanted in zip(portcall.ir.walk(own), (own, function), strict=True)]
    own.clear()


@pytest.mark.parametrize("view", ["__iter__", "keys", "values", "items"])
@pytest.mark.parametrize(("seen", "gone"), [(1, 3), (1, 1), (2, 1), (2, 3)])
def test_dict_that_gets_another_key_for_one_while_it_is_iterated_is_a_runtime_error(
    view: str, seen: int, gone: int
) -> None:
    pairs = portcall.Dict({1: 2, 3: 4})
    looking = iter(getattr(pairs, view)())
    for _ in range(seen):
        next(looking)
    del pairs[gone]
    pairs[5] = 6
    with pytest.raises(RuntimeError):
        list(looking)


@pytest.mark.parametrize("view", ["__iter__", "keys", "values", "items"])
def test_dict_whose_values_change_is_iterated(view: str) -> None:
    pairs = portcall.Dict({float("nan"): 1, "a text that is long enough": 2, (1, 2): 3})
    for _ in getattr(pairs, view)():
        for key in list(pairs):
            pairs[key] = 4
    assert list(pairs.values()) == [4, 4, 4]


@pytest.mark.parametrize("view", ["__iter__", "keys", "values", "items"])
@pytest.mark.parametrize("seen", [1, 2], ids=["half", "end"])
@pytest.mark.parametrize("kind", [dict, portcall.Dict])
def test_dict_that_grows_while_it_is_iterated_is_a_runtime_error(kind: Any, view: str, seen: int) -> None:
    pairs = kind({1: 2, 3: 4})
    looking = iter(getattr(pairs, view)())
    for _ in range(seen):
        next(looking)
    pairs[5] = 6
    with pytest.raises(RuntimeError):
        next(looking)
