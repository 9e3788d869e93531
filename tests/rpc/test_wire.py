# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="func-returns-value, redundant-expr"
"""The laws of the wire, by an endpoint that is given bytes and gives bytes, and a codec of the tests' own: what was
sent is what is understood; a split changes nothing; any bytes give messages or RemoteProtocolError."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import portcall
from portcall import errors
from portcall.rpc.wire import _handshake
from portcall.rpc.wire._facts import DUPLICATE, MISMATCH
from rpc import captures
from rpc.captures import CALL, EXCEPTION, INIT, RETURN, Handle, Value

READ, WRITE = 1, 2
OPEN = captures.encode((INIT, (b"0.8.0", ())))
RETURNED_NONE = captures.encode((RETURN, (Value(captures.NONE),)))


class Server:
    """An event-driven server. Its peer takes ``room`` bytes at most until that is changed, and ``most`` at once."""

    def __init__(self, remote_key: str = "", expose: tuple[str, ...] = ("testing.*",)) -> None:
        self.sent = sent = bytearray()
        self.limits = limits = {"room": 1 << 40, "most": 1 << 40}

        def take(data: bytes) -> int:
            count = min(len(data), limits["most"], limits["room"] - len(sent))
            sent.extend(data[:count])
            return count

        make = portcall.get_global_func("portcall.rpc.EventDrivenServer")
        self.handle = make(take, remote_key, list(expose))

    def give(self, data: bytes, pieces: list[int] | None = None) -> bytes:
        """The answer to some bytes, which come in pieces of these sizes, the last again and again."""
        result, at = 1, 0
        for size in itertools.chain(pieces or [], itertools.repeat((pieces or [len(data) or 1])[-1])):
            result = self.handle(data[at : at + size], READ | WRITE)
            at += size
            if at >= len(data) or result == 0:
                break
        assert result in (0, 1)
        answer = bytes(self.sent)
        self.sent.clear()
        return answer

    def function(self, name: str) -> Handle:
        (answer,) = captures.frames(self.give(captures.encode((9, (Value(captures.TEXT, name.encode()),)))))
        handle: Handle = answer[1][0].content
        return handle


def call(function: Handle, *values: Value) -> bytes:
    return captures.encode((CALL, (function, values)))


def opened() -> Server:
    server = Server()
    assert server.give(OPEN) == RETURNED_NONE
    return server


# ---- What was sent is what is understood -----------------------------------------------------------------------------

int64 = st.integers(-(2**63), 2**63 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
values = st.one_of(
    st.just(Value(captures.NONE)),
    st.builds(Value, st.just(captures.INT), int64),
    st.builds(Value, st.just(captures.BOOL), st.integers(0, 1)),
    st.builds(Value, st.just(captures.FLOAT), st.binary(min_size=8, max_size=8)),
    st.builds(Value, st.just(captures.DTYPE), st.tuples(st.integers(0, 255), st.integers(0, 255), st.integers(0, 65535),
                                                       st.just(0))),
    st.builds(Value, st.just(captures.DEVICE), st.tuples(int32, int32)),
    st.builds(Value, st.just(captures.TEXT), st.text(max_size=40).map(str.encode)),
    st.builds(Value, st.just(captures.BYTES), st.binary(max_size=40)),
    st.builds(Value, st.sampled_from([11, 65, 64, 67, 70, 128]), st.text(max_size=40).map(str.encode), st.just(65)),
    st.builds(Value, st.sampled_from([12, 66]), st.binary(max_size=40), st.just(66)),
)  # fmt: skip
pieces = st.lists(st.integers(1, 60), min_size=1, max_size=20)


def as_result(value: Value) -> tuple[Value, Value]:
    """What a function that returns its argument answers: the announced type, and the value in the form of answers."""
    if value.type in (captures.TEXT, captures.STR, 11) or value.inner == captures.STR:
        return Value(captures.INT, 11 if len(value.content) <= 7 else 65), Value(captures.TEXT, value.content)
    if value.type == captures.BYTES or value.inner == captures.BYTES_OBJECT:
        return Value(captures.INT, 12 if len(value.content) <= 7 else 66), Value(captures.BYTES, value.content)
    return Value(captures.INT, value.type), value


@given(st.lists(values, min_size=1, max_size=6), pieces)
def test_wire_server_echoes_values(sent: list[Value], sizes: list[int]) -> None:
    server = opened()
    echo = server.function("testing.echo")
    answers = server.give(b"".join(call(echo, value) for value in sent), sizes)
    assert answers == b"".join(captures.encode((RETURN, as_result(value))) for value in sent)


# ---- A split changes nothing -----------------------------------------------------------------------------------------

REQUESTS = [c.data for c in captures.read() if c.is_frame and c.from_client]
frames = st.sampled_from(REQUESTS)
damage = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 255)), max_size=6)


def damaged(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    changed = bytearray(data)
    for place, byte in changes:
        if changed:
            changed[place % len(changed)] = byte
    return bytes(changed)


streams = st.one_of(
    st.binary(max_size=300),
    st.builds(damaged, st.lists(frames, max_size=12).map(b"".join), damage),
    st.builds(
        lambda stream, changes: OPEN + damaged(stream, changes), st.lists(frames, max_size=12).map(b"".join), damage
    ),
)


@settings(max_examples=300)
@given(streams, pieces)
def test_wire_server_answers_alike_for_bytes_in_any_split(stream: bytes, sizes: list[int]) -> None:
    whole, split = Server().give(stream), Server().give(stream, sizes)
    assert whole == split
    codes = [code for code, _ in captures.frames(whole)]
    assert set(codes) <= {RETURN, EXCEPTION, captures.ACK, captures.SHUTDOWN}
    assert captures.SHUTDOWN not in codes[:-1]


@given(streams, pieces, st.integers(1, 50))
def test_wire_server_answers_alike_for_a_slow_reader(stream: bytes, sizes: list[int], most: int) -> None:
    slow = Server()
    slow.limits["most"] = most
    assert slow.give(stream, sizes) == Server().give(stream)


# ---- The event-driven server -----------------------------------------------------------------------------------------


def test_wire_server_result_says_continue_send_or_stop() -> None:
    server = Server()
    server.limits["room"] = 0
    assert server.handle(OPEN, READ) == 2
    assert server.handle(b"", READ) == 2
    assert server.handle(b"", WRITE) == 2  # nobody takes any
    server.limits["room"] = 15
    assert server.handle(b"", WRITE) == 2
    server.limits["room"] = 100
    assert server.handle(b"", WRITE) == 1
    assert bytes(server.sent) == RETURNED_NONE
    assert server.handle(captures.encode((captures.SHUTDOWN, b"")), READ | WRITE) == 0
    assert server.handle(OPEN, READ | WRITE) == 0


def test_wire_server_sends_only_when_asked() -> None:
    server = Server()
    assert server.handle(OPEN, READ) == 2
    assert not server.sent
    assert server.handle(b"", WRITE) == 1
    assert bytes(server.sent) == RETURNED_NONE


@pytest.mark.parametrize("most", [1000, 100_000, 1 << 40])
def test_wire_server_serves_requests_after_a_full_output_empties(register: Callable[..., Any], most: int) -> None:
    register("test_wire.much", lambda: bytes(300_000))
    server = Server(expose=("test_wire.*",))
    server.give(OPEN)
    much = server.function("test_wire.much")
    server.limits["room"] = 0
    assert server.handle(call(much) * 5, READ | WRITE) == 2
    server.limits["most"] = most
    for _ in range(10_000):
        server.limits["room"] += 250_000
        if server.handle(b"", WRITE) == 1:
            break
    assert [len(content[1].content) for _, content in captures.frames(bytes(server.sent))] == [300_000] * 5


def test_wire_server_ends_a_peer_that_never_reads() -> None:
    server = opened()
    echo = server.function("testing.echo")
    request = call(echo, Value(captures.BYTES, bytes(100_000)))
    server.limits["room"] = 0
    for _ in range(600):
        assert server.handle(request, READ | WRITE) == 2
    with pytest.raises(errors.RemoteProtocolError, match="takes no answers"):
        server.handle(request * 200, READ | WRITE)
    assert server.handle(request, READ | WRITE) == 2  # the answers that there were may still be taken
    server.limits["room"] = 1 << 40
    assert server.handle(b"", WRITE) == 0


def test_wire_server_refuses_bytes_from_its_own_functions(register: Callable[..., Any]) -> None:
    servers: list[Server] = []
    register("test_wire.again", lambda: servers[0].handle(call(Handle(0x1000)), READ))
    servers.append(Server(expose=("test_wire.*",)))
    servers[0].give(OPEN)
    again = servers[0].function("test_wire.again")
    ((code, content),) = captures.frames(servers[0].give(call(again)))
    assert code == EXCEPTION
    assert b"at work already" in content[0].content
    assert servers[0].function("test_wire.again") == again
    servers.clear()


@pytest.mark.parametrize("taken", [-1, 100_000])
def test_wire_server_refuses_an_impossible_send_count(taken: int) -> None:
    handle = portcall.get_global_func("portcall.rpc.EventDrivenServer")(lambda data: taken, "", [])
    with pytest.raises(ValueError, match="send"):
        handle(OPEN, READ | WRITE)


def test_wire_server_passes_errors_of_send_on() -> None:
    sent, failures = bytearray(), [OSError("broken")]

    def send(data: bytes) -> int:
        if failures:
            raise failures.pop()
        sent.extend(data)
        return len(data)

    handle = portcall.get_global_func("portcall.rpc.EventDrivenServer")(send, "", [])
    with pytest.raises(OSError, match="broken"):
        handle(OPEN, READ | WRITE)
    assert handle(b"", WRITE) == 1
    assert bytes(sent) == RETURNED_NONE


def test_wire_server_has_tvms_registry_name() -> None:
    sent = bytearray()
    make = portcall.get_global_func("rpc.CreateEventDrivenServer")
    handle = make(lambda data: sent.extend(data) or len(data), "a name", "")
    assert handle(OPEN, READ | WRITE) == 1
    assert bytes(sent) == RETURNED_NONE


# ---- The first bytes -------------------------------------------------------------------------------------------------


@given(st.binary(max_size=30), pieces)
def test_wire_server_skips_the_rest_of_a_handshake(key: bytes, sizes: list[int]) -> None:
    assert Server("%toinit").give(struct.pack("<i", len(key)) + key + OPEN, sizes) == RETURNED_NONE


@pytest.mark.parametrize("size", [-1, -(2**31), 4097, 2**31 - 1])
def test_wire_server_ends_for_an_impossible_key_length(size: int) -> None:
    server = Server("%toinit")
    with pytest.raises(errors.RemoteProtocolError, match="a key of"):
        server.handle(struct.pack("<i", size), READ | WRITE)
    assert server.handle(OPEN, READ | WRITE) == 0
    assert not server.sent


def understood(reader: Any, data: bytes, sizes: list[int]) -> list[Any]:
    """What a reader makes of bytes in pieces; its last word may be an error."""
    heard: list[Any] = []
    at = 0
    for size in itertools.chain(sizes, itertools.repeat(sizes[-1])):
        try:
            message = reader.feed(data[at : at + size])
            while message is not None:
                heard.append(message)
                message = reader.feed(b"") if isinstance(message, _handshake.Notice) else None
        except errors.RPCError as error:
            return [*heard, type(error)]
        at += size
        if at >= len(data) or (heard and not isinstance(heard[-1], _handshake.Notice)):
            return heard
    raise AssertionError


starts = st.sampled_from([
    _handshake.client_hello("key", session_timeout=2.5, nonce="0" * 32),
    _handshake.client_hello("", extended=False),
    _handshake.reason_hello("7", "secret"),
    _handshake.notice("two sessions are before yours") + _handshake.server_reply("key", {"portcall": "1"}),
    _handshake.server_reply("key"),
    _handshake.refusal(MISMATCH),
    _handshake.refusal(DUPLICATE),
])  # fmt: skip
beginnings = st.one_of(st.binary(max_size=60), starts, st.builds(damaged, starts, damage))


@given(beginnings, pieces)
def test_hello_reader_takes_any_bytes_in_any_split(data: bytes, sizes: list[int]) -> None:
    whole = understood(_handshake.HelloReader(), data, [1000])
    assert whole == understood(_handshake.HelloReader(), data, sizes)
    assert all(isinstance(m, _handshake.Hello) or m is errors.RemoteProtocolError for m in whole)


@given(beginnings, pieces)
def test_reply_reader_takes_any_bytes_in_any_split(data: bytes, sizes: list[int]) -> None:
    whole = understood(_handshake.ReplyReader("key"), data, [1000])
    assert whole == understood(_handshake.ReplyReader("key"), data, sizes)
    kinds = (_handshake.Hello, _handshake.Notice)
    refused = (errors.RemoteProtocolError, errors.KeyMismatchError)
    assert all(isinstance(m, kinds) or m in refused for m in whole)


@given(st.text("abc:.-_09", max_size=30), st.floats(0.001, 1e6) | st.just(0), st.booleans())
def test_hello_reader_reads_what_client_hello_wrote(key: str, timeout: float, extended: bool) -> None:
    data = _handshake.client_hello(key, session_timeout=timeout, extended=extended, nonce="n")
    reader = _handshake.HelloReader()
    hello = reader.feed(data + b"rest")
    assert hello is not None
    expected = timeout if extended else math.ceil(timeout)  # servers of TVM read whole seconds
    assert (hello.key, hello.timeout, hello.is_portcall) == (key, expected, extended)
    assert (reader.transcript, reader.rest) == (data, b"rest")


@given(st.sampled_from(["a b", "a\tb", "\n", "a\vb"]))
def test_client_hello_refuses_a_key_with_whitespace(key: str) -> None:
    with pytest.raises(ValueError, match="whitespace"):
        _handshake.client_hello(key)


@given(st.binary(max_size=100), st.text(min_size=1, max_size=20), st.text(min_size=1, max_size=20))
def test_proof_depends_on_token_role_and_transcript(transcript: bytes, token: str, other: str) -> None:
    proof = _handshake.proof(token, "client", transcript)
    _handshake.check_proof(proof, token, "client", transcript)
    for wrong in [
        (token, "server", transcript),
        (token, "client", transcript + b"x"),
        (token + "x", "client", transcript),
    ]:
        with pytest.raises(errors.AuthenticationError):
            _handshake.check_proof(proof, *wrong)
