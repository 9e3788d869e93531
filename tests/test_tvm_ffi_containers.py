# SPDX-License-Identifier: Apache-2.0
"""Containers and code on tvm-ffi's headers, which read and change them in place: both sides see the same, whichever of
them made a container and whichever changed it last."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import portcall

Made = portcall.Map | portcall.Dict
SIZES = [0, 1, 2, 4, 5, 9, 100]
KEYS: dict[str, Callable[[int], Any]] = {
    "int": lambda i: i - 2,
    "short str": lambda i: f"{i}",
    "long str": lambda i: f"{i} is a key that does not fit in a cell",
    "bytes": lambda i: b"%d" % i,
    "long bytes": lambda i: b"%d is a key that does not fit" % i,
    "float": lambda i: i / 4,
    "wide int": lambda i: 2**80 + i,
    "tuple": lambda i: (i, "a"),
    "Shape": lambda i: portcall.Shape((i, 2)),
    "object": lambda i: portcall.Dict({i: i}),
}


@pytest.fixture(scope="module")
def lib(libraries: dict[str, Path]) -> portcall.Module:
    return portcall.load_module(libraries["tvm_ffi_containers_unlinked"])


def flat(mapping: Any) -> list[Any]:
    return [part for pair in mapping.items() for part in pair]


@pytest.mark.parametrize("kind", KEYS)
def test_tvm_ffi_maps_are_read_both_ways(lib: portcall.Module, kind: str) -> None:
    for size in [*SIZES, 100_000 if kind in ("int", "long str") else 1000]:
        check_map(lib, kind, size)


def check_map(lib: portcall.Module, kind: str, size: int) -> None:
    keys = [KEYS[kind](i) for i in range(size)]
    pairs = [part for i, key in enumerate(keys) for part in (key, i)]
    ours = portcall.Map(dict(zip(keys, range(size), strict=True))) if kind != "object" else None
    for made in filter(None, (ours, lib["make_map"](pairs), lib["make_dict"](pairs))):
        assert len(made) == size
        assert list(made.values()) == list(range(size))
        assert [made[key] for key in keys[-50:]] == list(range(size))[-50:]
        assert "not there" not in made
        assert KEYS[kind](size) not in made
        read = lib["dict_pairs" if isinstance(made, portcall.Dict) else "map_pairs"](made)
        assert list(read) == pairs
    if size:
        assert lib["map_get"](lib["make_map"](pairs), keys[-1]) == size - 1


def test_tvm_ffi_maps_arrive_in_any_container(lib: portcall.Module) -> None:
    map_ = {f"key {i}": i for i in range(20)}
    small = {"a": 1}
    assert lib["nested_pairs"]([map_, small, portcall.Dict(map_), {}]) == [flat(map_), flat(small), flat(map_), []]
    assert lib["pairs_of_result"](lambda: map_) == flat(map_)
    assert lib["give_map"](lambda given: dict(given), flat(map_)) == map_
    assert portcall.get_global_func("portcall_test.map_pairs")(map_) == flat(map_)
    assert portcall.get_global_func("portcall_test.make_map")(flat(map_)) == map_
    assert lib["typed_sum"](map_) == sum(range(20))
    with pytest.raises(TypeError, match="Map"):
        lib["typed_sum"]({"a": "text"})


def test_tvm_ffi_fields_and_methods_take_containers(lib: portcall.Module) -> None:
    assert lib is not None
    holder: Any = portcall.ir.get_object_class("portcall_test.Holder")({"a": 1}, portcall.Dict(), portcall.List([7]))
    for i in range(30):
        holder.put(i, str(i))
    want = {i: str(i) for i in range(30)}
    assert (holder.map, holder.dict) == ({"a": 1} | want, want)
    assert holder.list == [7, *want.values()]
    holder.dict[0] = "changed"
    holder.list.append(None)
    holder.map = want
    holder.extra = {"deep": [want]}
    assert holder.extra["deep"][0] == want
    pairs, changed, items = holder.all()
    assert pairs == flat(want)
    assert dict(zip(changed[::2], changed[1::2], strict=True)) == want | {0: "changed"}
    assert items == [7, *want.values(), None]


def test_tvm_ffi_map_is_copied_before_a_change_if_shared(lib: portcall.Module) -> None:
    for size in (1, 4, 5, 50):
        kept = portcall.Map({i: i for i in range(size)})
        assert lib["map_set"](kept, "new", 1) == dict(kept) | {"new": 1}
        assert len(lib["map_erase"](kept, 0)) == size - 1
        assert lib["map_clear"](kept) == {}
        assert kept == {i: i for i in range(size)}


def test_tvm_ffi_map_keys_of_both_zeros_are_one(lib: portcall.Module) -> None:
    for size in (1, 20):
        for zero in (0.0, -0.0):
            made = lib["make_dict"]([zero, "zero", *flat({float(i): i for i in range(1, size)})])
            made[-zero] = "changed"
            assert (len(made), made[0.0], made[-0.0]) == (size, "changed", "changed")


def test_tvm_ffi_containers_release_their_items(lib: portcall.Module) -> None:
    class Token:
        count = 0

        def __init__(self) -> None:
            Token.count += 1

        def __del__(self) -> None:
            Token.count -= 1

    def keep() -> Callable[[], Token]:
        token = Token()
        return lambda: token

    for make in (portcall.Dict, lambda: lib["make_dict"]([])):
        made = make()
        for i in range(40):
            lib["dict_set"](made, i, keep()) if i % 2 else made.__setitem__(i, keep())
        assert Token.count == 40
        lib["dict_erase"](made, 3)
        del made[5]
        assert Token.count == 38
        lib["dict_clear"](made)
        assert Token.count == 0
        made[1] = keep()
        lib["dict_set"](made, 2, keep())
        del made
        assert Token.count == 0
    for make in (portcall.List, lambda: lib["make_list"]([])):
        items = make()
        for i in range(40):
            lib["list_push"](items, keep()) if i % 2 else items.append(keep())
        lib["list_erase"](items, 3)
        del items[5]
        assert Token.count == 38
        del items
        assert Token.count == 0


def test_tvm_ffi_map_is_read_by_many_threads(lib: portcall.Module) -> None:
    made = portcall.Map({f"a key of thread {i}": i for i in range(500)})
    want, failed = flat(made), []

    def read() -> None:
        for _ in range(20):
            if list(lib["map_pairs"](made)) != want or flat(made) != want:
                failed.append(1)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


keys = st.one_of(
    st.integers(-40, 40),
    st.integers(0, 30).map(str),
    st.integers(0, 9).map(lambda i: f"a long key number {i}"),
    st.binary(max_size=2),
    st.floats(0.5, 4, width=16),
    st.tuples(st.integers(0, 3), st.booleans()),
)
steps = st.lists(st.tuples(st.sampled_from("sssssedc"), st.booleans(), keys), max_size=150)


@given(start=st.lists(keys, unique=True, max_size=8), theirs_first=st.booleans(), steps=steps)
def test_tvm_ffi_dict_is_changed_by_both_sides(
    libraries: dict[str, Path], start: list[Any], theirs_first: bool, steps: list[tuple[str, bool, Any]]
) -> None:
    lib = portcall.load_module(libraries["tvm_ffi_containers_unlinked"])
    model: dict[Any, Any] = {key: i for i, key in enumerate(start)}
    made = lib["make_dict"](flat(model)) if theirs_first else portcall.Dict(model)
    for number, (what, theirs, key) in enumerate(steps):
        if what == "s":
            model[key] = number
            lib["dict_set"](made, key, number) if theirs else made.__setitem__(key, number)
        elif what == "c" and number % 7 == 0:
            model.clear()
            lib["dict_clear"](made) if theirs else made.clear()
        elif key in model:
            del model[key]
            lib["dict_erase"](made, key) if theirs else made.__delitem__(key)
        assert made == model
        assert all(made[key] == value for key, value in model.items())
    read = lib["dict_pairs"](made)
    assert dict(zip(read[::2], read[1::2], strict=True)) == model
    assert list(read) == flat(made)


moves = st.lists(
    st.tuples(st.sampled_from(["push", "insert", "erase", "set", "resize"]), st.booleans(), st.integers(0, 100)),
    max_size=80,
)


@given(start=st.integers(0, 6), theirs_first=st.booleans(), moves=moves)
def test_tvm_ffi_list_is_changed_by_both_sides(
    libraries: dict[str, Path], start: int, theirs_first: bool, moves: list[tuple[str, bool, int]]
) -> None:
    lib = portcall.load_module(libraries["tvm_ffi_containers_unlinked"])
    model: list[Any] = [f"item number {i} of the list" for i in range(start)]
    made = lib["make_list"](model) if theirs_first else portcall.List(model)
    for number, (what, theirs, place) in enumerate(moves):
        value, i = f"value number {number}", place % (len(model) + 1)
        if what == "push":
            model.append(value)
            lib["list_push"](made, value) if theirs else made.append(value)
        elif what == "insert":
            model.insert(i, value)
            lib["list_insert"](made, i, value) if theirs else made.insert(i, value)
        elif what == "resize":
            model[:] = (model + [None] * 3)[: min(i + 3, len(model) + 3)]
            lib["list_resize"](made, len(model)) if theirs else made.__setitem__(slice(None), model)
        elif i < len(model) and what == "erase":
            del model[i]
            lib["list_erase"](made, i) if theirs else made.__delitem__(i)
        elif i < len(model):
            model[i] = value
            lib["list_set"](made, i, value) if theirs else made.__setitem__(i, value)
        assert made == model
        assert list(lib["list_items"](made)) == model


def test_dict_whose_keys_tvm_ffi_exchanges_in_a_loop_over_it_is_a_runtime_error(lib: portcall.Module) -> None:
    made = portcall.Dict({i: i for i in range(10)})
    looking = iter(made)
    lib["dict_erase"](made, next(looking))
    made["new"] = 0
    with pytest.raises(RuntimeError):
        next(looking), next(looking), list(looking)
    made = portcall.Dict({i: i for i in range(10)})
    for key in list(made):
        lib["dict_erase"](made, key)
        made[f"new {key}"] = key
    assert made == {f"new {i}": i for i in range(10)}


def test_array_contains_compares_as_keys_do() -> None:
    contains = portcall.get_global_func("ffi.ArrayContains")
    array = portcall.Array([1, "a text that is long enough", 2.0, (1, 2), None])
    assert all(contains(array, item) for item in array)
    assert not any(contains(array, other) for other in (2, 1.0, "a text", (2, 1)))
    assert not contains([], None)
    for wrong in ((), (array,), (array, 1, 2), (1, 1)):
        with pytest.raises(TypeError):
            contains(*wrong)
