# SPDX-License-Identifier: Apache-2.0
"""Objects by value: what goes into a call and comes out of it as it is, what stays a reference, what is refused."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import portcall
from portcall import errors, ir, rpc
from portcall.rpc.wire import _values
from portcall.rpc.wire._facts import MOST_DEPTH
from rpc.raw_client import EXCEPTION, RETURN, RawClient, frame, integer, sequence, text
from rpc.relay import saying
from rpc.serving import FUNCTIONS, Serving, serving

BY_VALUE = 116
SERVED = (
    FUNCTIONS
    + """
@portcall.register_object("rpc_values.Point")
class Point(portcall.Object):
    x: int
    y: float

@portcall.register_object("rpc_values.Unknown")
class Unknown(portcall.Object):
    name: str
    point: Point

@register("same")
def same(value): return value
@register("kinds")
def kinds(value): return [type(item).__name__ for item in value]
@register("point")
def point(x, y): return Point(x, y)
@register("unknown")
def unknown(name): return [Unknown(name, Point(1, 2.0))]
@register("name_of")
def name_of(unknowns): return unknowns[0].name
@register("with_function")
def with_function(): return [len]
@register("calls")
def calls(functions): return functions[0]("abc")
@register("stats")
def stats(rows, limit=None, *, scale=1): return {"n": len(rows), "limit": limit, "scale": scale, "rows": rows}
@register("total")
def total(rows): return sum(float(row.numpy().sum()) for row in rows)
@register("deep")
def deep(depth):
    value = []
    for _ in range(depth): value = [value]
    return value
"""
)


@portcall.register_object("rpc_values.Point")
class Point(portcall.Object):
    x: int
    y: float


@pytest.fixture
def remote(server: Serving) -> Iterator[rpc.Session]:
    with rpc.connect(server.address) as session:
        yield session


def plain(value: Any) -> Any:
    """The value with Python's own containers."""
    if isinstance(value, (portcall.Array, portcall.List, list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (portcall.Map, portcall.Dict, dict)):
        return {key: plain(item) for key, item in value.items()}
    return value


@pytest.mark.parametrize(
    "value",
    [[], [1, 2.5, None, True, "text", b"bytes"], {"a": [1, {"b": ("c", {})}]}, [[[]]], [2**70], {1: 2}, ["x" * 100_000],
     [portcall.dtype("float16"), portcall.cpu(0)]],
    ids=lambda value: str(value)[:20],
)  # fmt: skip
def test_call_takes_and_returns_containers_by_value(remote: rpc.Session, value: Any) -> None:
    assert plain(remote["demo.same"](value)) == plain(value)


def test_call_takes_arrays_inside_of_containers(remote: rpc.Session) -> None:
    x = np.arange(6, dtype="float32").reshape(2, 3)
    assert remote["demo.total"]([x, x[:, ::2], portcall.tensor(x)]) == 15 + 10 + 15
    back = remote["demo.same"]({"k": (x, "s")})
    np.testing.assert_array_equal(back["k"][0].numpy(), x)


def test_call_shows_a_function_what_it_would_see_here(remote: rpc.Session) -> None:
    assert list(remote["demo.kinds"]([1, 2.5, {"k": 1}, (2,), "s"])) == ["int", "float", "Map", "Array", "str"]


def test_call_returns_shapes_by_value(remote: rpc.Session) -> None:
    assert tuple(remote["ffi.Shape"](2, 3)) == (2, 3)
    assert remote["demo.same"](portcall.Shape([4, 5])) == (4, 5)


def test_call_takes_and_returns_described_objects_by_value(remote: rpc.Session) -> None:
    point = remote["demo.point"](3, 4.5)
    assert (type(point), point.x, point.y) == (Point, 3, 4.5)
    assert ir.structural_equal(remote["demo.same"]([point, point]), [point, point])


def test_call_returns_references_to_objects_of_unknown_types(remote: rpc.Session) -> None:
    unknown = remote["demo.unknown"]("me")
    assert isinstance(unknown, rpc.RemoteObject)
    assert remote["demo.name_of"](unknown) == "me"


def test_call_returns_references_to_what_cannot_be_saved(remote: rpc.Session) -> None:
    functions = remote["demo.with_function"]()
    assert isinstance(functions, rpc.RemoteObject)
    assert remote["demo.calls"](functions) == 3


def test_call_of_cpp_returns_references_to_containers_of_tensors(remote: rpc.Session) -> None:
    there = remote.tensor(np.arange(3.0))
    array = remote["ffi.Array"](there, 1)
    assert isinstance(array, rpc.RemoteObject)
    assert isinstance(remote["ffi.ArrayGetItem"](array, 0), rpc.RemoteTensor)


@pytest.mark.parametrize("inner", [len, portcall.get_global_func("testing.nop")])
def test_call_refuses_what_cannot_be_sent_with_its_type_and_place(remote: rpc.Session, inner: Any) -> None:
    with pytest.raises(errors.ArgumentError, match=r"\[1\].*'Function'"):
        remote["demo.same"]([1, inner])
    with pytest.raises(errors.ArgumentError, match=r"portcall\.rpc\.Tensor"):
        remote["demo.same"]([remote.empty(3)])
    assert remote["demo.scale"](3, 4) == 12


def test_call_limits_depth_both_ways(remote: rpc.Session) -> None:
    deep: list[Any] = []
    for _ in range(MOST_DEPTH + 1):
        deep = [deep]
    with pytest.raises(errors.RemoteError, match="cannot be read"):
        remote["demo.same"](deep)
    with pytest.raises(errors.RemoteProtocolError):
        remote["demo.deep"](MOST_DEPTH + 1)
    assert remote["demo.scale"](3, 4) == 12


def test_server_sends_values_only_to_clients_that_know_them(server: Serving) -> None:
    with RawClient(server.address).open(options=" -portcall=1 -features=traceback") as client:
        code, body = client.call("demo.deep", integer(1))
        assert (code, struct.unpack_from("<iiqi", body)) == (RETURN, (2, 1, 71, 4))  # a handle
        code, _ = client.call("demo.same", by_value(_values.to_value(portcall.Array([1]), 1) or b""))
        assert code == EXCEPTION
        assert client.echo(5) == 5


@pytest.mark.parametrize("features", ["traceback", "values"])
@pytest.mark.parametrize("further", [False, True])
def test_sessions_of_constructors_send_values_only_to_clients_that_know_them(features: str, further: bool) -> None:
    options = f" -portcall=1 -features={features}"
    with serving(functions=SERVED) as last, serving(*["--allow-connect"] * further, functions=SERVED) as first:
        way = (
            [text("rpc.Connect"), text("127.0.0.1"), integer(last.port), text("")]
            if further
            else [text("rpc.LocalSession")]
        )
        with RawClient(first.address).open(options=options, arguments=tuple(way)) as client:
            code, body = client.call("demo.deep", integer(1))
        wanted = BY_VALUE if features == "values" else 4
        assert (code, struct.unpack_from("<iiqi", body)) == (RETURN, (2, 1, 71, wanted))


# ---- Bytes ----


def by_value(data: bytes) -> bytes:
    return struct.pack("<iiQ", BY_VALUE, BY_VALUE, len(data)) + data


@pytest.fixture(scope="module")
def raw(server: Serving) -> Iterator[RawClient]:
    with RawClient(server.address).open(options=" -portcall=1 -features=values") as client:
        yield client


GOOD = _values.to_value(portcall.Array([1, "two", {"three": [4.0, None]}, np.arange(3)]), _values._ALWAYS) or b""


@settings(max_examples=150)
@given(data=st.data())
def test_server_reads_a_value_or_answers_an_exception_for_any_bytes(raw: RawClient, data: st.DataObject) -> None:
    damaged = bytearray(GOOD)
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, len(damaged)))
        damaged[place : place + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    code, body = raw.call("demo.same", by_value(bytes(damaged)))
    assert code in (RETURN, EXCEPTION)
    if damaged == GOOD:
        assert struct.unpack_from("<iiqii", body) == (2, 1, 71, BY_VALUE, BY_VALUE)
    assert raw.echo(1) == 1


@settings(max_examples=50)
@given(st.binary(max_size=40), st.booleans())
def test_client_reads_a_value_or_raises_for_any_bytes(data: bytes, typed: bool) -> None:
    values = [struct.pack("<iq", 1, 71), by_value(data)]
    if typed:
        values.append(struct.pack("<iQ", 4, 9))

    def serve(sock: Any) -> None:
        sock.sendall(frame(RETURN, sequence(struct.pack("<iQ", 4, 5))) + frame(RETURN, sequence(*values)))
        with contextlib.suppress(OSError):
            while sock.recv(4096):
                pass

    with saying(serve) as port, rpc.connect("127.0.0.1", port, timeout=30) as remote:
        portcall.get_global_func("portcall.rpc.UseFeatures")(remote.module, ["values"])
        func = remote["f"]
        with contextlib.suppress(errors.RemoteProtocolError):
            assert isinstance(func(), rpc.RemoteObject)
        remote.close()
