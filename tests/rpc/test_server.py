# SPDX-License-Identifier: Apache-2.0
"""A server and what reaches it: whatever a client sends, the server goes on. Entries of sections 1.3 and 12.2 of the
protocol's specification, byte by byte."""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from rpc.raw_client import (
    ACK,
    ALLOC,
    CALL,
    COPY_FROM,
    COPY_TO,
    EXCEPTION,
    GET_FUNCTION,
    INIT,
    MAGIC,
    MISMATCH,
    RETURN,
    SHUTDOWN,
    RawClient,
    frame,
    hello,
    init,
    integer,
    pointer,
    sequence,
    tensor,
    text,
)
from rpc.serving import FUNCTIONS, Serving, serving


@pytest.fixture(scope="module", params=["python", "board"])
def server(request: pytest.FixtureRequest) -> Iterator[Serving]:
    """``portcall serve``, and the server without Python."""
    with serving("--key", "k", "--handshake-timeout", "5s", program=request.param) as running:
        yield running


@pytest.fixture
def client(server: Serving) -> Iterator[RawClient]:
    with RawClient(server.address).open("k") as opened:
        yield opened


@pytest.fixture(autouse=True)
def _goes_on(server: Serving) -> Iterator[None]:
    """After each test the server serves a new client."""
    yield
    with RawClient(server.address).open("k") as another:
        assert another.echo(7) == 7


# ---- The handshake -----------------------------------------------------------------------------------------------


def test_server_session_opens_serves_and_closes(server: Serving) -> None:
    with RawClient(server.address) as client:
        client.send(hello("k"))
        assert client.read_reply() == "server:k"
        assert client.ask(init()) == (RETURN, sequence(struct.pack("<i", 0)))
        assert client.echo(3) == 3
        client.send(frame(SHUTDOWN))
        assert client.at_end()


def test_server_reads_a_hello_in_any_split(server: Serving) -> None:
    with RawClient(server.address) as client:
        for byte in hello("k", " -timeout=100"):
            client.send(bytes([byte]))
        assert client.read_reply() == "server:k"
    with RawClient(server.address) as client:
        client.send(hello("k") + init() + frame(GET_FUNCTION, sequence(text("testing.echo"))))
        assert client.read_reply() == "server:k"
        assert [client.read_frame()[0] for _ in range(2)] == [RETURN, RETURN]


@pytest.mark.parametrize(
    "data",
    [*(struct.pack("<ii", MAGIC, size) for size in (0, -1, 1 << 30)), b"GET / HTTP/1.1\r\n\r\n"],
    ids=["length 0", "length -1", "length 2^30", "wrong magic"],
)  # fmt: skip
def test_server_closes_without_answer_after_other_bytes(server: Serving, data: bytes) -> None:
    with RawClient(server.address) as client:
        client.send(data)
        assert client.at_end()


@pytest.mark.parametrize(
    "words",
    [b"client:", b"client:other", b"server:k", b"k", b"client:\xff\xfe", b"client:k -timeout=abc",
     b"client:k -timeout=nan", b"client:k -timeout=-1", b"   "],
    ids=repr,
)  # fmt: skip
def test_server_refuses_a_wrong_key_or_option(server: Serving, words: bytes) -> None:
    with RawClient(server.address) as client:
        client.send(struct.pack("<ii", MAGIC, len(words)) + words)
        assert struct.unpack("<i", client.read(4)) == (MISMATCH,)
        assert client.at_end()


def test_server_ignores_unknown_hello_options(server: Serving) -> None:
    with RawClient(server.address).open("k", " -new=1 word -timeout=50") as client:
        assert client.echo(1) == 1


@pytest.mark.parametrize("size", range(0, 18, 3))
def test_server_forgets_a_client_that_leaves_within_the_hello(server: Serving, size: int) -> None:
    with RawClient(server.address) as client:
        client.send(hello("k")[:size])
        name = client.name
    assert server.event("dropped", lambda event: event["peer"] == name)["how"] == "left"


def test_server_ends_silent_connections(server: Serving) -> None:
    silent = [RawClient(server.address) for _ in range(10)]
    with RawClient(server.address).open("k") as client:
        assert client.echo(1) == 1
    for one in silent:
        assert one.at_end()
        one.close()
    assert server.event("dropped", lambda event: event["how"] == "silent")


def test_server_sessions_have_their_own_process_and_directory(server: Serving) -> None:
    clients = [RawClient(server.address).open("k") for _ in range(5)]
    for number, client in enumerate(clients):
        assert client.call("tvm.rpc.server.upload", text("name"), text(str(number)))[0] == RETURN
    assert len({client.call("demo.pid")[1] for client in clients}) == 5
    for number, client in enumerate(clients):
        assert client.call("tvm.rpc.server.download", text("name"))[1].endswith(str(number).encode())
        client.close()


# ---- Bad requests -------------------------------------------------------------------------------------------------

BAD_REQUESTS = {
    "unknown code": frame(99),
    "negative code": frame(-5),
    "code 0": frame(0),
    "a Return": frame(RETURN, sequence(integer(1))),
    "an Exception": frame(EXCEPTION, sequence(text("no"))),
    "a CopyAck": frame(ACK, b"1234"),
    "trailing bytes": frame(GET_FUNCTION, sequence(text("testing.echo")) + b"x"),
    "GetGlobalFunc of nothing": frame(GET_FUNCTION, sequence()),
    "a second InitServer": init(),
    "a sequence of 2^31 - 1": frame(GET_FUNCTION, struct.pack("<i", 2**31 - 1)),
    "a negative sequence": frame(GET_FUNCTION, struct.pack("<i", -1)),
    "a string of 2^63": frame(GET_FUNCTION, struct.pack("<iiQ", 1, 8, 2**63)),
    "call of handle 0": frame(CALL, struct.pack("<Q", 0) + sequence()),
    "call of no handle": frame(CALL, struct.pack("<Q", 12345678) + sequence()),
    "free of no handle": frame(10, sequence(pointer(12345678))),
    "allocation without arguments": frame(ALLOC, sequence()),
    "copy from nowhere": frame(COPY_FROM, tensor(12345678, 64) + struct.pack("<Q", 64)),
    "copy to nowhere": frame(COPY_TO, tensor(12345678, 4) + struct.pack("<Q", 4) + b"1234"),
    "copy to null": frame(COPY_TO, tensor(0, 4) + struct.pack("<Q", 4) + b"1234"),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_server_answers_a_bad_request_and_goes_on(client: RawClient, name: str) -> None:
    assert client.error(BAD_REQUESTS[name])
    assert client.echo(5) == 5


@pytest.mark.parametrize("index", [10, 13, 14, 63, 67, 69, 71, 72, 74, 128, 1000, -1, -(2**31)])
def test_server_refuses_values_of_unknown_type(client: RawClient, index: int) -> None:
    function = client.function("testing.echo")
    assert client.error(frame(CALL, struct.pack("<Qii", function, 1, index)))
    assert client.error(frame(CALL, struct.pack("<QiiIQ", function, 1, index, 67, 0)))
    assert client.echo(5) == 5


@pytest.mark.parametrize("index", [68, 73, 115])
@pytest.mark.parametrize("handle", [0, 12345678, 2**64 - 1])
def test_server_refuses_unknown_handles(client: RawClient, index: int, handle: int) -> None:
    inner = struct.pack("<I", 115) if index == 115 else b""
    function = client.function("testing.echo")
    assert client.error(frame(CALL, struct.pack("<Qii", function, 1, index) + inner + struct.pack("<Q", handle)))
    assert client.echo(5) == 5


def test_server_refuses_requests_before_init_server(server: Serving) -> None:
    with RawClient(server.address) as client:
        client.send(hello("k"))
        client.read_reply()
        for data in (
            frame(CALL, struct.pack("<Q", 1) + sequence()),
            frame(GET_FUNCTION, sequence(text("testing.echo"))),
        ):
            assert "InitServer" in client.error(data)
        assert "0.8.0" in client.error(frame(INIT, struct.pack("<Q", 5) + b"0.7.0" + sequence()))
        assert client.ask(init())[0] == RETURN
        assert client.echo(1) == 1


@pytest.mark.parametrize("length", [2**62, 2**63, 2**64 - 1, 2**40])
def test_server_ends_a_session_for_a_message_over_the_limit(client: RawClient, length: int) -> None:
    client.send(struct.pack("<Qi", length, GET_FUNCTION))
    code, body = client.read_frame()
    assert code == EXCEPTION
    assert b"limit" in body
    assert client.read_frame()[0] == SHUTDOWN
    assert client.at_end()


def test_server_refuses_a_copy_beyond_its_tensor(client: RawClient) -> None:
    _, body = client.ask(frame(ALLOC, sequence(struct.pack("<i", 7) + tensor(0, 8), struct.pack("<i", 0))))
    (data,) = struct.unpack_from("<Q", body, 8)
    assert client.ask(frame(COPY_TO, tensor(data, 8) + struct.pack("<Q", 8) + b"12345678"))[0] == RETURN
    for size, offset in ((9, 0), (8, 1), (1, 2**63), (2**40, 0)):
        assert client.error(frame(COPY_FROM, tensor(data, size, offset) + struct.pack("<Q", size)))
    assert client.error(frame(COPY_TO, tensor(data, 9) + struct.pack("<Q", 9) + b"123456789"))
    assert client.error(frame(COPY_TO, tensor(data, 8) + struct.pack("<Q", 2**60) + b"123456789"))
    assert client.ask(frame(COPY_FROM, tensor(data, 8) + struct.pack("<Q", 8))) == (ACK, b"12345678")


@pytest.mark.parametrize("size", [1, 7, 8, 11, 12, 20])
def test_server_logs_a_connection_lost_inside_a_message(server: Serving, size: int) -> None:
    with RawClient(server.address).open("k") as client:
        client.send(frame(GET_FUNCTION, sequence(text("testing.echo")))[:size])
        name = client.name
    assert server.ended(name)["how"] == "lost"


def test_server_functions_report_too_few_arguments(client: RawClient) -> None:
    for name in ("upload", "download", "load_module", "ModuleGetFunction", "ImportModule"):
        function = client.function(f"tvm.rpc.server.{name}")
        assert client.error(frame(CALL, struct.pack("<Q", function) + sequence()))
    assert client.echo(1) == 1


def test_server_time_evaluator_refuses_zero_counts(client: RawClient) -> None:
    numbers = [1, 0, 1, 1, 0, 100, 5, 0, 0]  # repeats_to_cooldown 0 with an interval
    nothing = struct.pack("<i", 0)
    code, _ = client.call("runtime.RPCTimeEvaluator", nothing, text("testing.nop"), *map(integer, numbers), text(""))
    assert code == EXCEPTION
    assert client.echo(1) == 1


def test_server_hides_functions_that_are_not_exposed(client: RawClient) -> None:
    for name in ("portcall.LiveNodes", "ffi.FunctionRemoveGlobal", "ffi.ModuleLoadFromFile", "portcall.rpc.Close"):
        assert "not offered" in client.error(frame(GET_FUNCTION, sequence(text(name))))
    code, body = client.ask(frame(GET_FUNCTION, sequence(text("no.such.function"))))
    assert (code, body[-8:]) == (RETURN, bytes(8))


# ---- Sessions that end badly --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGKILL", "SIGTERM"])
def test_server_crash_ends_one_session_and_is_reported(server: Serving, client: RawClient, name: str) -> None:
    with RawClient(server.address).open("k") as other:
        assert name in client.error(
            frame(CALL, struct.pack("<Q", client.function("demo.crash")) + sequence(integer(signal.Signals[name])))
        )
        assert client.at_end()
        assert server.ended(client.name)["signal"] == name
        assert other.echo(2) == 2


def test_server_exit_ends_one_session(server: Serving, client: RawClient) -> None:
    code, body = client.call("demo.exit", integer(3))
    assert code == EXCEPTION
    assert b"exited with code 3" in body
    assert server.ended(client.name)["code"] == 3


def test_server_answers_with_exceptions_of_any_class(client: RawClient) -> None:
    for name, argument in (("fail", text("boom")), ("leave", integer(3))):
        assert client.call(f"demo.{name}", argument)[0] == EXCEPTION
    assert client.echo(1) == 1


def test_server_deletes_the_session_directory_after_a_kill(server: Serving) -> None:
    with RawClient(server.address).open("k") as client:
        client.call("tvm.rpc.server.upload", text("a.txt"), text("hello"))
        folder = Path(client.call("tvm.rpc.server.workpath", text(""))[1][28:].decode())
        assert (folder / "a.txt").read_text() == "hello"
        client.call("demo.crash", integer(signal.SIGKILL))
        server.ended(client.name)
    assert wait_gone(server, folder.parent)


def wait_gone(server: Serving, folder: Path) -> bool:
    """Open sessions until a directory is gone, which a process of its own deletes."""
    for _ in range(200):
        if not folder.exists():
            return True
        with RawClient(server.address).open("k") as client:
            client.echo(1)
    return False


def test_server_ends_processes_that_a_session_started(server: Serving) -> None:
    with RawClient(server.address).open("k") as client:
        _, body = client.call("demo.start")
        (pid,) = struct.unpack_from("<q", body, 20)
        handle = os.pidfd_open(pid)
    try:
        assert select.select([handle], [], [], 30)[0]
    finally:
        os.close(handle)


def test_server_hooks_run_before_and_after_a_session(tmp_path: Path) -> None:
    said = tmp_path / "said"
    hooks = f"""
def note(word):
    with open({str(said)!r}, "a") as file: file.write(word + " ")
for word in ("start", "shutdown"):
    portcall.register_func("tvm.rpc.server." + word, lambda word=word: note(word))
register("note")(note)
"""
    with serving(functions=FUNCTIONS + hooks) as server:
        for ends_cleanly in (True, False):
            with RawClient(server.address).open() as client:
                client.call("demo.note", text("work"))
                if not ends_cleanly:
                    client.call("demo.crash", integer(signal.SIGKILL))
                name = client.name
            server.ended(name)
    assert said.read_text() == "start work shutdown start work "


# ---- Who may ask why ----------------------------------------------------------------------------------------------


def options_of(words: str) -> dict[str, str]:
    return dict(word.removeprefix("-").split("=", 1) for word in words.split()[1:])


def ask_why(server: Serving, reason: str) -> dict[str, str]:
    with RawClient(server.address) as client:
        client.send(hello("", f" -portcall=1 -reason={reason}"))
        return options_of(client.read_reply())


def test_server_reports_why_a_session_ended_on_a_new_connection(server: Serving) -> None:
    with RawClient(server.address) as client:
        client.send(hello("k", " -portcall=1"))
        mine = options_of(client.read_reply())
        client.ask(init())
        client.send(frame(CALL, struct.pack("<Q", client.function("demo.crash")) + sequence(integer(signal.SIGSEGV))))
        assert client.at_end()  # nothing in-band: it may ask
    reason = f"{mine['session']}.{mine['secret']}"
    assert ask_why(server, reason) == {"ended": "crash", "signal": "SIGSEGV", "call": "demo.crash%28int%29"}
    assert ask_why(server, f"{mine['session']}.{'0' * 32}") == {"ended": "unknown"}
    assert ask_why(server, "nonsense") == {"ended": "unknown"}


def test_server_sends_tvm_clients_no_extensions(server: Serving) -> None:
    with RawClient(server.address) as client:
        client.send(hello("k"))
        assert client.read_reply() == "server:k"


# ---- Stopping -----------------------------------------------------------------------------------------------------


def test_server_sigterm_ends_sessions_and_leaves_nothing() -> None:
    with serving() as server:
        clients = [RawClient(server.address).open() for _ in range(3)]
        clients[0].send(frame(CALL, struct.pack("<Q", clients[0].function("demo.hang")) + sequence()))
        clients[1].call("tvm.rpc.server.upload", text("a"), text("b"))
        assert server.stop() == 0
        assert list(server.work.iterdir()) == []
        for client in clients:
            assert client.at_end()
            client.close()
        with pytest.raises(OSError, match="refused"), socket.create_connection(("127.0.0.1", server.port)):
            pass
