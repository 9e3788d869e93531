# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="attr-defined"
"""The table of states of a connection, and how sessions end."""

from __future__ import annotations

import ast
import re
import socket
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
from portcall.rpc.server._link import Link
from portcall.rpc.server._log import Log
from portcall.rpc.server._loop import Loop
from portcall.rpc.server._messages import (
    WORKER_ORDERS,
    HandshakeFailed,
    HelloReceived,
    Message,
    ProofReceived,
    SendToClient,
)
from portcall.rpc.wire import _endings, _handshake
from portcall.rpc.wire._endings import KINDS, Ending, Progress, ending_of, error_of, last_message

ROOT = Path(__file__).parents[2]


def connection_in(state: State) -> Connection:
    ours, theirs = Link.pair()
    theirs.close()
    return Connection(1, socket.socket(), "a client", ours, -1, "/nowhere", 0.0, state)


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
    connection.link.close()


def test_every_state_has_rules_and_every_handshake_can_be_refused() -> None:
    assert set(RULES) == set(State)
    for state in State:
        rules = RULES[state]
        assert {rules.out_of_time, rules.client_gone} <= set(KINDS)
        assert rules.ignores or HandshakeFailed in rules.accepts
        assert (State.CLOSING in rules.following) == (state in HANDSHAKE)


# ---- Admission, with messages in any order ----


class Owner:
    """In place of the supervisor: no process is started."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []

    def order(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        raise AssertionError("no session is started here")

    def kill(self, connection: Connection, why: Ending) -> None: ...

    def on_client_gone(self, connection: Connection) -> None: ...

    def on_client_error(self, connection: Connection, error: Exception) -> None:
        self.errors.append(error)


TOKEN = "0123456789abcdef"
HELLOS = [
    _handshake.client_hello("k", nonce="1"), _handshake.client_hello("wrong", nonce="1"),
    _handshake.client_hello("k", extended=False), _handshake.client_hello("k")[:-1], _handshake.reason_hello("1", "x"),
    b"nonsense", b"",
]  # fmt: skip


class Conversation:
    """One worker that sends messages to an admission; keeps the orders that it gets."""

    def __init__(self, token: str) -> None:
        self.loop = Loop(lambda error: None)
        self.owner = Owner()
        self.listener = socket.socket()
        connections = Connections(self.loop, lambda _: None)
        options = ServerOptions(key="k", token=token, max_sessions=1)
        self.admission = Admission(
            options, self.listener, "/nowhere", connections, EndedSessions(), self.loop, Log("none"), self.owner
        )
        self.link, self.worker = Link.pair()
        self.worker.set_timeout(0)
        self.connection = Connection(1, socket.socket(), "a client", self.link, -1, "/nowhere", 0.0)
        connections.add(self.connection)
        self.sent: list[SendToClient] = []

    def send(self, message: Message) -> Exception | None:
        error = None
        try:
            self.admission._on_message(self.connection, message)
        except Exception as raised:
            error = raised
        try:
            while received := self.worker.receive(WORKER_ORDERS):
                assert isinstance(received[0], SendToClient)
                self.sent.append(received[0])
        except BlockingIOError:
            pass
        return error

    def close(self) -> None:
        self.admission.stop_accepting()
        self.loop.close()
        for thing in (self.listener, self.link, self.worker, self.connection.sock):
            thing.close()


MESSAGES = st.one_of(
    st.sampled_from(HELLOS).map(HelloReceived), st.binary(max_size=40).map(ProofReceived),
    st.just("right proof"), st.just(HandshakeFailed("gone")),
)  # fmt: skip


@given(st.booleans(), st.lists(MESSAGES, max_size=6))
@settings(max_examples=150)
def test_states_open_a_session_only_after_hello_and_proof(with_token: bool, messages: list[Message | str]) -> None:
    talk = Conversation(TOKEN if with_token else "")
    try:
        proved = False
        for each in messages:
            before, count = talk.connection.state, len(talk.sent)
            if isinstance(each, str):
                each = ProofReceived(_handshake.proof(TOKEN, "client", talk.connection.transcript))
                proved = proved or before is State.PROVING
            error = talk.send(each)
            after = talk.connection.state
            assert error is None or isinstance(error, errors.RemoteProtocolError)  # ends this connection
            assert after is before or before is not State.SERVING
            assert after in (before, *RULES[before].following, *RULES[State.WAITING].following)
            assert before not in (State.SERVING, State.CLOSING) or len(talk.sent) == count
        if talk.connection.state is State.SERVING:
            assert proved or not with_token
            assert talk.sent[-1].then == "serve"
        assert [order.then for order in talk.sent].count("serve") <= 1
        assert not talk.owner.errors
    finally:
        talk.close()


def test_states_have_the_process_id_before_serving() -> None:
    talk = Conversation("")
    assert talk.send(HelloReceived(HELLOS[0], 77)) is None
    assert talk.connection.pid == 77
    talk.close()


@pytest.mark.parametrize("token", ["", TOKEN])
def test_states_refuse_a_second_hello(token: str) -> None:
    talk = Conversation(token)
    hello = HelloReceived(HELLOS[0])
    talk.connection.state = State.WAITING
    assert talk.send(hello) is None
    assert talk.connection.state is State.CLOSING
    assert [order.then for order in talk.sent] == ["end"]
    talk.close()


# ---- Endings ----


def test_endings_table_has_every_ending_of_the_server() -> None:
    sources = (path.read_text() for path in (ROOT / "src/portcall/rpc").rglob("*.py"))
    calls = [node for text in sources for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    named = {call.args[0].value for call in calls if ast.unparse(call.func) == "Ending" and is_constant(call.args[0])}
    by_state = {how for rules in RULES.values() for how in (rules.out_of_time, rules.client_gone)}
    assert named | by_state == set(KINDS) - {"closed", "lost"}


def is_constant(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant)


def test_wire_page_lists_the_endings_that_clients_receive() -> None:
    page = (ROOT / "docs/wire.md").read_text()
    (row,) = [line for line in page.splitlines() if "`-ended=<how>`" in line]
    listed = set(re.findall(r"`(\w+)`", row.rpartition("|")[0].rpartition("|")[2]))
    assert listed == {how for how, kind in KINDS.items() if kind.client or how == "closed"} | {_endings.UNKNOWN}


@pytest.mark.parametrize("how", sorted(KINDS))
def test_error_of_gives_each_ending_its_error(how: str) -> None:
    ending = Ending(how, signal="SIGSEGV" if how == "crash" else "", code=3 if how == "exit" else 0, detail="5 s")
    error = error_of(ending.words(), "board:1")
    assert (error is None) == (not KINDS[how].client)
    if error is not None:
        assert type(error) is KINDS[how].error
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
    assert len(data) == _endings.PROGRESS_BYTES or progress == Progress()
