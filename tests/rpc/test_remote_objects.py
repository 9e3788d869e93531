# SPDX-License-Identifier: Apache-2.0
"""Objects that stay on the server: their fields, items and methods; iterators that stream; keyword arguments."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import portcall
from portcall import errors, rpc
from rpc.serving import FUNCTIONS, Serving

SERVED = (
    FUNCTIONS
    + """
import contextlib
@portcall.register_object("rpc_objects.Counter")
class Counter(portcall.Object):
    count: int
    steps: portcall.Array
    def plus(self, n): return self.count + n
    def _hidden(self): return 1

@register("counter")
def counter(): return Counter(40, [1, len])
@register("functions")
def functions(): return [len, max]
@register("table")
def table(): return {"a": len, "b": 2}
@register("sweep")
def sweep(n): yield from range(n)
@register("rows")
def rows(n):
    for i in range(n): yield [i, {"name": str(i)}]
@register("traced")
def traced(path):
    try:
        for i in range(1_000_000): yield i
    finally: open(path, "w").close()
@register("breaks")
def breaks(n):
    yield from range(n)
    raise KeyError("no more")
@register("kept")
def kept(): yield len
class Lamp:
    def __enter__(self): return "on"
    def __exit__(self, kind, error, trace):
        seen.append([kind and kind.__name__, str(error)])
        return kind is ValueError
seen = []
@register("lamp")
def lamp(): return Lamp()
@register("seen")
def seen_by_lamps(): return seen
@register("opened")
@contextlib.contextmanager
def opened(name):
    seen.append(["open", name])
    try: yield {"name": name}
    finally: seen.append(["close", name])
@register("stats")
def stats(rows, limit=None, *, scale=1): return [len(rows), limit, scale]
"""
)


@pytest.fixture
def remote(server: Serving) -> Iterator[rpc.Session]:
    with rpc.connect(server.address) as session:
        yield session


def test_remote_object_shows_fields_and_methods(remote: rpc.Session) -> None:
    counter = remote["demo.counter"]()
    assert isinstance(counter, rpc.RemoteObject)
    assert (counter.count, counter.plus(2)) == (40, 42)
    assert isinstance(counter.steps, rpc.RemoteObject)
    assert {"count", "steps", "plus"} <= set(dir(counter))
    for name in ("missing", "_hidden", "__class_getitem__", "handle"):
        with pytest.raises(AttributeError):
            getattr(counter, name)
    with pytest.raises(AttributeError, match=r"Counter has no attribute 'missing'; it has count, steps, plus\(\)"):
        _ = counter.missing
    with pytest.raises(TypeError):
        len(counter)
    with pytest.raises(AttributeError, match="cannot be set from here"):
        counter.count = 5
    assert counter.count == 40
    assert "Counter with count, steps" in repr(counter)
    remote.close()
    assert repr(counter)


def test_remote_object_shows_items_and_length(remote: rpc.Session) -> None:
    functions, table = remote["demo.functions"](), remote["demo.table"]()
    assert (len(functions), len(table), bool(functions)) == (2, 2, True)
    assert functions[0]("abc") == 3
    assert table["b"] == 2
    assert [function([1, 2]) for function in functions] == [2, 2]
    for key in (2, -3):
        with pytest.raises(IndexError):
            functions[key]
    with pytest.raises(KeyError):
        table["c"]


def test_remote_object_refuses_names_that_a_description_lacks(remote: rpc.Session) -> None:
    counter = remote["demo.counter"]()
    for what in ("field", "call"):
        for name in ("__class__", "_hidden", "same_as", "missing"):
            with pytest.raises(AttributeError):
                remote[f"portcall.rpc.object_{what}"](counter, name)
    with pytest.raises(TypeError):
        remote["portcall.rpc.object_next"](counter, 1)


# ---- Iterators ----


def test_remote_generator_streams(remote: rpc.Session) -> None:
    assert list(remote["demo.sweep"](1000)) == list(range(1000))
    assert list(remote["demo.sweep"](0)) == []
    assert [(row[0], row[1]["name"]) for row in remote["demo.rows"](3)] == [(0, "0"), (1, "1"), (2, "2")]
    assert [function("ab") for function in remote["demo.kept"]()] == [2]


def test_remote_generator_ends_with_the_loop(remote: rpc.Session, tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    for i in remote["demo.traced"](str(ended)):
        if i == 5:
            break
    assert ended.exists()
    assert remote["demo.scale"](3, 4) == 12


def test_remote_generator_raises_after_its_items(remote: rpc.Session) -> None:
    for wanted in (0, 3, 50):
        seen: list[int] = []
        with pytest.raises(KeyError, match="no more"):
            seen.extend(iter(remote["demo.breaks"](wanted)))
        assert seen == list(range(wanted))


def test_two_remote_generators_take_turns(remote: rpc.Session) -> None:
    pairs = zip(remote["demo.sweep"](100), remote["demo.rows"](100), strict=True)
    assert all(i == row[0] for i, row in pairs)


# ---- Keyword arguments ----


def test_remote_function_takes_keyword_arguments(remote: rpc.Session) -> None:
    stats = remote["demo.stats"]
    assert list(stats([1, 2], limit=3)) == [2, 3, 1]
    assert list(stats(rows=[1], scale=2.5)) == [1, None, 2.5]
    with pytest.raises(TypeError, match="unexpected keyword"):
        stats([1], missing=1)
    with pytest.raises(errors.RemoteError):
        remote["testing.echo"](value=1)


def test_inspect_signature_of_a_remote_function(remote: rpc.Session) -> None:
    assert str(inspect.signature(remote["demo.stats"])) == "(rows, limit=None, *, scale=1)"
    assert not hasattr(remote["testing.echo"], "__signature__")
    ended = remote["demo.sweep"]
    remote.close()
    assert not hasattr(ended, "__signature__")


def test_packed_func_of_python_takes_keyword_arguments() -> None:
    func = portcall.convert(lambda rows, limit=None, *, scale=1: [type(rows).__name__, limit, scale])
    assert list(func([1], scale=2)) == ["Array", None, 2]
    with pytest.raises(TypeError):
        func([1], missing=2)
    with pytest.raises(errors.ArgumentError):
        portcall.get_global_func("testing.echo")(value=1)


def test_remote_context_manager_begins_and_ends_on_the_server(remote: rpc.Session) -> None:
    with remote["demo.opened"]("log") as log:
        assert dict(log) == {"name": "log"}
        assert remote["demo.seen"]() == [["open", "log"]]
    with pytest.raises(KeyError), remote["demo.opened"]("second"):
        raise KeyError("mine")
    assert remote["demo.seen"]() == [["open", "log"], ["close", "log"], ["open", "second"], ["close", "second"]]


def test_remote_context_manager_sees_the_error_and_may_take_it(remote: rpc.Session) -> None:
    class OwnError(Exception):
        pass

    lamp = remote["demo.lamp"]()
    assert lamp.type_name == "Lamp"
    with lamp as light:
        assert light == "on"
        raise ValueError("dark")
    with pytest.raises(OwnError), lamp:  # type: ignore[unreachable]
        raise OwnError("far away")
    with lamp:
        pass
    assert remote["demo.seen"]() == [["ValueError", "dark"], ["RuntimeError", "OwnError: far away"], [None, "None"]]
    counter = remote["demo.counter"]()
    assert counter.type_name == "rpc_objects.Counter"
    with pytest.raises(TypeError, match="context manager"), counter:
        pass


def test_local_session_shows_its_objects_and_makes_shapes() -> None:
    class Door:
        def __enter__(self) -> int:
            return 1

        def __exit__(self, *_: object) -> None:
            pass

    name = "test_remote_objects.door"
    portcall.register_func(name, Door)
    try:
        with rpc.LocalSession() as session, session[name]() as opened:
            assert opened == 1
            assert session[name]().type_name == "Door"
            assert session["ffi.Shape"](2, 3) == portcall.Shape((2, 3))
    finally:
        portcall.remove_global_func(name)
