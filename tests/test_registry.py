# SPDX-License-Identifier: Apache-2.0
"""One table of functions for Python, C and C++, and functions as values."""

from __future__ import annotations

import functools
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import portcall
from portcall.errors import AlreadyRegisteredError, ArgumentError, FunctionNotFoundError

Register = Callable[..., portcall.PackedFunc]

pytestmark = pytest.mark.usefixtures("native")


@pytest.fixture
def name() -> Any:
    """A name in the registry that is free before and after the test."""
    yield "portcall_test.registered"
    if portcall.get_global_func("portcall_test.registered", allow_missing=True):
        portcall.remove_global_func("portcall_test.registered")


# ---- Registration ----------------------------------------------------------------------------------------------------


def test_register_func_makes_a_function_available(name: str) -> None:
    returned = portcall.register_func(name, lambda x, k: x * k)
    found = portcall.get_global_func(name)
    assert found(3, 4) == 12
    assert returned.same_as(found)
    assert found.name == name
    assert repr(found) == f"PackedFunc({name})"


def test_register_func_as_decorator_returns_the_function(name: str) -> None:
    @portcall.register_func(name)
    def double(x: int) -> int:
        return 2 * x

    assert double(4) == 8
    assert type(double).__name__ == "function"
    assert portcall.get_global_func(name)(4) == 8


def test_register_func_without_name_takes_the_functions() -> None:
    @portcall.register_func
    def portcall_test_named_by_itself() -> str:
        return "it"

    assert portcall.get_global_func("portcall_test_named_by_itself")() == "it"
    portcall.remove_global_func("portcall_test_named_by_itself")


def test_register_func_again_needs_override(name: str) -> None:
    portcall.register_func(name, lambda: 1)
    with pytest.raises(AlreadyRegisteredError, match=rf"'{name}' is already registered; pass override=True") as caught:
        portcall.register_func(name, lambda: 2)
    assert caught.value.name == name
    assert portcall.get_global_func(name)() == 1
    portcall.register_func(name, lambda: 3, override=True)
    assert portcall.get_global_func(name)() == 3

    @portcall.register_func(name, override=True)
    def four() -> int:
        return 4

    assert portcall.get_global_func(name)() == 4


def test_register_func_override_keeps_held_functions(name: str) -> None:
    portcall.register_func(name, lambda: "old")
    held = portcall.get_global_func(name)
    portcall.register_func(name, lambda: "new", override=True)
    assert held() == "old"
    portcall.remove_global_func(name)
    assert held() == "old"


def test_remove_global_func_releases_the_function(name: str) -> None:
    class Callee:
        def __call__(self) -> int:
            return 1

    first, second = Callee(), Callee()
    gone = weakref.ref(first)
    portcall.register_func(name, first)
    del first
    gc.collect()
    assert gone() is not None
    portcall.register_func(name, second, override=True)
    assert gone() is None


@pytest.mark.parametrize(
    ("callee", "arguments", "result"),
    [
        (functools.partial(pow, 2), (5,), 32),
        (str.upper, ("abc",), "ABC"),
        ("a-b".split, ("-",), ["a", "b"]),
        (int, ("17",), 17),
        (type("Callable", (), {"__call__": lambda self, x: x + 1})(), (1,), 2),
        (portcall.get_global_func("testing.echo"), ("x",), "x"),
    ],
    ids=["partial", "method", "bound method", "class", "instance", "PackedFunc"],
)
def test_register_func_takes_any_callable(name: str, callee: Any, arguments: tuple[Any, ...], result: Any) -> None:
    portcall.register_func(name, callee)
    assert portcall.get_global_func(name)(*arguments) == result


def test_register_func_needs_a_name_for_unnamed_callables() -> None:
    with pytest.raises(ArgumentError, match="has no name"):
        portcall.register_func(functools.partial(pow, 2))


@pytest.mark.parametrize("odd", ["", " ", "nul\0inside", "日本", "a" * 5000, "with space", "x\n"])
def test_register_func_accepts_any_name_but_the_empty_one(odd: str) -> None:
    if not odd:
        with pytest.raises(ValueError, match="needs a name"):
            portcall.register_func(odd, len)
        return
    portcall.register_func(odd, lambda: 5)
    assert portcall.get_global_func(odd)() == 5
    assert odd in portcall.list_global_func_names()
    portcall.remove_global_func(odd)
    assert portcall.get_global_func(odd, allow_missing=True) is None


# ---- Look-up ---------------------------------------------------------------------------------------------------------


def test_get_global_func_missing_is_an_error_unless_allowed() -> None:
    with pytest.raises(FunctionNotFoundError, match=r"no global function is named 'portcall_test.absent'") as caught:
        portcall.get_global_func("portcall_test.absent")
    assert caught.value.name == "portcall_test.absent"
    assert portcall.get_global_func("portcall_test.absent", allow_missing=True) is None


def test_get_global_func_missing_proposes_similar_names() -> None:
    with pytest.raises(FunctionNotFoundError, match=r"did you mean 'testing.echo'") as caught:
        portcall.get_global_func("testing.ecko")
    assert "testing.echo" in caught.value.near


def test_get_global_func_missing_without_similar_names() -> None:
    with pytest.raises(FunctionNotFoundError) as caught:
        portcall.get_global_func("zzzzzzzzzzzzzz")
    assert caught.value.near == ()
    assert "did you mean" not in str(caught.value)


def test_function_not_found_error_is_a_lookup_and_value_error() -> None:
    with pytest.raises(LookupError):
        portcall.get_global_func("portcall_test.absent")
    with pytest.raises(ValueError):  # noqa: PT011 - what TVM raises
        portcall.get_global_func("portcall_test.absent")


def test_list_global_func_names_is_sorted(name: str) -> None:
    portcall.register_func(name, len)
    names = portcall.list_global_func_names()
    assert names == sorted(names)
    assert len(set(names)) == len(names)
    assert {name, "testing.echo", "portcall_test.add"} <= set(names)


def test_remove_global_func_twice_is_an_error(name: str) -> None:
    portcall.register_func(name, len)
    portcall.remove_global_func(name)
    assert portcall.get_global_func(name, allow_missing=True) is None
    assert name not in portcall.list_global_func_names()
    with pytest.raises(FunctionNotFoundError):
        portcall.remove_global_func(name)


# ---- Both directions -------------------------------------------------------------------------------------------------


def test_get_global_func_returns_functions_of_cpp() -> None:
    add = portcall.get_global_func("portcall_test.add")
    assert add(2, 3) == 5
    assert add.name == "portcall_test.add"


def test_cpp_function_checks_the_number_of_arguments() -> None:
    with pytest.raises(ArgumentError, match=r"portcall_test.int8\(\): expected 1 argument, got 2"):
        portcall.get_global_func("portcall_test.int8")(1, 2)
    with pytest.raises(ArgumentError, match="expected at least 2 arguments, got 1"):
        portcall.get_global_func("portcall_test.add")(1)


def test_cpp_function_keeps_its_state() -> None:
    first, second = (
        portcall.get_global_func("portcall_test.counter")(),
        portcall.get_global_func("portcall_test.counter")(),
    )
    assert [first(1), first(2), second(10)] == [1, 3, 10]


def test_cpp_function_calls_python_through_typed_function() -> None:
    call_typed = portcall.get_global_func("portcall_test.call_typed")
    assert call_typed(lambda a, b: a * 10 + b) == 34
    with pytest.raises(TypeError, match="expected int, got str"):
        call_typed(lambda a, b: "34")


def test_cpp_function_optional_parameter_takes_none() -> None:
    maybe = portcall.get_global_func("portcall_test.maybe")
    assert maybe(None) is False
    assert maybe(0) is True


@given(st.integers(0, 40))
def test_packed_func_call_takes_any_number_of_arguments(n: int) -> None:
    count = portcall.convert(lambda *xs: len(xs))
    assert count(*range(n)) == n
    assert count(*["a long text argument"] * n) == n
    assert portcall.get_global_func("testing.apply")(lambda *xs: list(xs), *range(n)) == list(range(n))


# ---- PackedFunc ------------------------------------------------------------------------------------------------------


def test_convert_keeps_the_name_of_a_function() -> None:
    def spoken() -> None: ...

    assert portcall.convert(spoken).name == "spoken"
    assert "PackedFunc(at 0x" in repr(portcall.convert(functools.partial(pow, 2)))


def test_convert_leaves_a_packed_func_as_it_is() -> None:
    func = portcall.convert(len)
    assert portcall.convert(func) is func


def test_packed_func_call_refuses_keywords() -> None:
    with pytest.raises(ArgumentError, match=r"testing.echo\(\) takes positional arguments only, got x=") as caught:
        portcall.get_global_func("testing.echo")(x=1)
    assert caught.value.function == "testing.echo"


def test_packed_func_eq_is_identity_of_the_function() -> None:
    one, other = portcall.get_global_func("testing.echo"), portcall.get_global_func("testing.echo")
    assert one == other
    assert hash(one) == hash(other)
    assert one != portcall.get_global_func("testing.nop")
    assert one != "testing.echo"  # type: ignore[comparison-overlap]


def test_packed_func_class_cannot_be_called() -> None:
    with pytest.raises(TypeError, match=r"portcall.convert"):
        portcall.PackedFunc(len)
    unmade = portcall.PackedFunc.__new__(portcall.PackedFunc)
    with pytest.raises(TypeError):
        unmade()
    with pytest.raises(ValueError, match="not initialised"):
        _ = unmade.name
    with pytest.raises(ArgumentError, match="not initialised"):
        portcall.get_global_func("testing.echo")(unmade)


def test_convert_takes_a_bound_method() -> None:
    heard: list[str] = []
    portcall.get_global_func("testing.apply")(heard.append, "hello")
    assert heard == ["hello"]


def test_packed_func_is_released_with_its_last_reference() -> None:
    def callee() -> None: ...

    gone = weakref.ref(callee)
    func = portcall.convert(callee)
    del callee
    assert gone() is not None
    del func
    assert gone() is None


# ---- Threads ---------------------------------------------------------------------------------------------------------


def test_registry_is_thread_safe() -> None:
    """Every thread registers, finds, lists, replaces and removes names of its own and one that all of them share."""
    failures: list[BaseException] = []
    start = threading.Barrier(8)

    def work(k: int) -> None:
        mine = f"portcall_test.thread_{k}"
        try:
            start.wait()
            for n in range(200):
                portcall.register_func(mine, lambda n=n: n)
                portcall.register_func("portcall_test.shared", lambda n=n: n, override=True)
                assert portcall.get_global_func(mine)() == n
                assert portcall.get_global_func("portcall_test.shared")() in range(200)
                assert mine in portcall.list_global_func_names()
                portcall.remove_global_func(mine)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    portcall.remove_global_func("portcall_test.shared")
    assert not failures
