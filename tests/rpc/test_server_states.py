# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="attr-defined"
"""The table of states of a connection, and how sessions end."""

from __future__ import annotations

import ast
import os
import shutil
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portcall import errors
from portcall.rpc import ServerOptions
from portcall.rpc.server._admission import Admission
from portcall.rpc.server._connections import HANDSHAKE, RULES, Connection, Connections, State, StateError
from portcall.rpc.server._ended_sessions import EndedSessions
from portcall.rpc.server._log import Log
from portcall.rpc.server._loop import Loop
from portcall.rpc.server._messages import Message, StartSession
from portcall.rpc.wire import _handshake
from portcall.rpc.wire._endings import Ending, Progress, ending_of, error_of, last_message
from portcall.rpc.wire._facts import ENDINGS, MISMATCH, PROGRESS_BYTES

ROOT = Path(__file__).parents[2]


def connection_in(state: State) -> Connection:
    return Connection(1, socket.socket(), "a client", 0.0, state=state)


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("following", State)
def test_enter_takes_the_steps_of_the_table_only(state: State, following: State) -> None:
    connection = connection_in(state)
    if following in RULES[state].following:
        connection.enter(following)
        assert connection.state is following
    else:
        with pytest.raises(StateError):
            connection.enter(following)
        assert connection.state is state
    connection.sock.close()


def test_every_state_has_rules_and_no_handshake_has_a_process() -> None:
    assert set(RULES) == set(State)
    for rules in RULES.values():
        assert {rules.out_of_time, rules.client_gone} <= set(ENDINGS)
    assert [state for state in State if State.SERVING in RULES[state].following] == [State.STARTING]
    assert not {State.STARTING, State.SERVING} & set(HANDSHAKE)


# ---- Admission, with bytes in any order ----


TOKEN = "0123456789abcdef"
HELLOS = [
    _handshake.client_hello("k", nonce="1"), _handshake.client_hello("wrong", nonce="1"),
    _handshake.client_hello("k", extended=False), _handshake.client_hello("k")[:-1], _handshake.reason_hello("1", "x"),
    _handshake.client_hello("k").replace(b"portcall=1", b"portcall=x"), b"nonsense", b"\0", bytes(40),
]  # fmt: skip


class Conversation:
    """One client of an admission, which has this in place of the supervisor: no process is started."""

    def __init__(self, token: str) -> None:
        self.loop = Loop(lambda error: None)
        self.listener = socket.socket()
        self.base = tempfile.mkdtemp()
        self.connections = Connections(self.loop, lambda _: None)
        options = ServerOptions(key="k", token=token, max_sessions=1)
        self.admission = Admission(
            options, self.listener, self.base, self.connections, EndedSessions(), self.loop, Log("none"), self
        )
        self.client, sock = socket.socketpair()
        self.client.setblocking(False)
        self.admission._begin(sock, "a client")
        (self.connection,) = self.connections
        self.orders: list[Message] = []
        self.errors: list[Exception] = []

    def order(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        self.orders.append(message)

    def kill(self, connection: Connection, why: Ending) -> None:
        self.forget(connection)

    def on_client_gone(self, connection: Connection) -> None:
        self.forget(connection)

    def on_client_error(self, connection: Connection, error: Exception) -> None:
        self.errors.append(error)

    def forget(self, connection: Connection) -> None:
        self.connections.remove(connection)
        self.loop.forget(connection.sock.fileno())
        connection.sock.close()
        if connection.progress >= 0:
            os.close(connection.progress)

    @property
    def open(self) -> bool:
        return len(self.connections) == 1

    def send(self, data: bytes) -> bytes:
        """Send bytes, let admission read, and return its answer."""
        self.client.send(data)
        self.admission._receive(self.connection)
        try:
            return self.client.recv(1 << 16)
        except (BlockingIOError, ConnectionResetError):
            return b""

    def close(self) -> None:
        self.admission.stop_accepting()
        if self.open:
            self.forget(self.connection)
        self.loop.close()
        for thing in (self.listener, self.client):
            thing.close()
        shutil.rmtree(self.base)


PIECES = st.one_of(st.sampled_from(HELLOS), st.binary(min_size=1, max_size=40), st.just("proof"))


@given(st.booleans(), st.lists(st.tuples(PIECES, st.integers(1, 60)), max_size=6))
@settings(max_examples=150, deadline=None)
def test_states_open_a_session_only_after_hello_and_proof(
    with_token: bool, pieces: list[tuple[bytes | str, int]]
) -> None:
    talk = Conversation(TOKEN if with_token else "")
    try:
        proved = False
        for each, step in pieces:
            before = talk.connection.state
            data = each if isinstance(each, bytes) else _handshake.proof(TOKEN, "client", talk.connection.transcript)
            proved = proved or (before is State.PROVING and each == "proof" and not talk.connection.proof)
            for begin in range(0, len(data), step):
                if not talk.open:
                    return
                state = talk.connection.state
                talk.send(data[begin : begin + step])
                assert talk.connection.state in (state, *RULES[state].following, State.STARTING)
            if talk.connection.state is State.STARTING:
                assert proved or not with_token
                (order,) = talk.orders
                assert isinstance(order, StartSession)
            else:
                assert not talk.orders
        assert not talk.errors
    finally:
        talk.close()


def test_states_serve_the_client_once_its_process_is_there() -> None:
    talk = Conversation("")
    hello = _handshake.client_hello("k")
    assert talk.send(hello + b"a request of the session") == b""
    assert talk.connection.state.value == "starting"
    talk.admission.begin(talk.connection)
    assert talk.connection.state.value == "serving"
    (order,) = talk.orders
    assert isinstance(order, StartSession)
    assert isinstance(_handshake.ReplyReader("k").feed(bytes.fromhex(order.reply)), _handshake.Hello)
    assert talk.connection.sock.recv(100) == b"a request of the session"  # left for it
    talk.close()


@pytest.mark.parametrize(
    ("sent", "answer"),
    [(b"GET / HTTP/1.1\r\n\r\n", b""), (_handshake.client_hello("no"), _handshake.refusal(MISMATCH))],
)  # fmt: skip
def test_states_refuse_without_a_process(sent: bytes, answer: bytes) -> None:
    talk = Conversation("")
    assert talk.send(sent) == answer
    assert not talk.open
    assert talk.orders == []
    talk.close()


# ---- Endings ----


def test_endings_table_has_every_ending_of_the_server() -> None:
    sources = (path.read_text() for path in (ROOT / "src/portcall/rpc").rglob("*.py"))
    calls = [node for text in sources for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    named = {call.args[0].value for call in calls if ast.unparse(call.func) == "Ending" and is_constant(call.args[0])}
    by_state = {how for rules in RULES.values() for how in (rules.out_of_time, rules.client_gone)}
    assert named | by_state == set(ENDINGS) - {"closed", "lost"}


def is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant)


@pytest.mark.parametrize("how", sorted(ENDINGS))
def test_error_of_gives_each_ending_its_error(how: str) -> None:
    ending = Ending(how, signal="SIGSEGV" if how == "crash" else "", code=3 if how == "exit" else 0, detail="5 s")
    error = error_of(ending.words(), "board:1")
    assert (error is None) == (not ENDINGS[how].client)
    if error is not None:
        assert type(error).__name__ == ENDINGS[how].error
        assert error.peer == "board:1"
        assert "{" not in str(error)
        assert isinstance(error, errors.RemoteCrashError) or error.reason == how
    assert "{" not in ending.text


@pytest.mark.parametrize("words", [{}, {"ended": "unknown"}, {"ended": "invented"}, {"ended": ""}])
def test_error_of_returns_none_for_other_words(words: dict[str, str]) -> None:
    assert error_of(words, "board:1") is None


@pytest.mark.parametrize(
    ("status", "state", "kill_reason", "expected"),
    [
        (0, 2, None, Ending("closed")), (0, 3, None, Ending("lost")), (0, 2, Ending("expired"), Ending("closed")),
        (9, 1, Ending("expired"), Ending("expired")), (11, 1, None, Ending("crash", signal="SIGSEGV")),
        (0, 1, None, Ending("exit")), (3 << 8, 2, None, Ending("exit", code=3)),
        (40, 1, None, Ending("crash", signal="SIG40")),
    ],
)  # fmt: skip
def test_ending_of_a_process(status: int, state: int, kill_reason: Ending | None, expected: Ending) -> None:
    assert ending_of(status, Progress(state), kill_reason) == expected


def test_last_message_is_for_tvm_clients_and_expired_sessions() -> None:
    assert b"RPCSessionTimeoutError: Your 5.0s session" in last_message(Ending("expired"), "portcall", 5)
    assert last_message(Ending("crash", signal="SIGSEGV"), "portcall", 0) == b""
    assert b"SIGSEGV" in last_message(Ending("crash", signal="SIGSEGV"), "TVM", 0)
    assert last_message(Ending("closed"), "TVM", 0) == b""


@given(st.binary(max_size=30))
def test_progress_of_any_bytes(data: bytes) -> None:
    progress = Progress.from_bytes(data)
    assert len(data) == PROGRESS_BYTES or progress == Progress()
