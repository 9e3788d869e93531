# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="arg-type, func-returns-value"
"""What goes wrong between two processes: crashes, cuts at every place, silence, lies, crowds. A session that is hit
ends with an error that says what happened; the server and all other sessions go on, and nothing is left behind."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from portcall import errors, rpc
from rpc.conftest import CLIENT_FUNCTIONS
from rpc.raw_client import ACK, EXCEPTION, MAGIC, MISMATCH, NOTICE, RETURN, SHUTDOWN, frame, integer, sequence
from rpc.relay import Plan, Relay, message_ends, read_frame, saying
from rpc.serving import Serving, serving, wait_until

SERVED, SERVER_OPTIONS = CLIENT_FUNCTIONS, ("--key", "k")
ENDED = "ended dropped refused"
GOODBYE = 12  # bytes of Shutdown


@pytest.fixture
def session(server: Serving) -> Iterator[rpc.Session]:
    with rpc.connect(server.address, key="k", call_timeout=60) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _others_go_on(server: Serving) -> Iterator[None]:
    """A session that was there before and one that comes afterwards are not concerned."""
    with rpc.connect(server.address, key="k") as before:
        tensor = before.tensor(np.arange(1000))
        yield
        np.testing.assert_array_equal(tensor.numpy(), np.arange(1000))
    with rpc.connect(server.address, key="k") as after:
        assert after["demo.add"](1, 2) == 3


class Background:
    """A call in a thread, and how it ended."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.error: BaseException | None = None
        self._work = work
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self.error = error.with_traceback(None)

    def join(self) -> BaseException | None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        return self.error


def is_sent(session: rpc.Session) -> bool:
    doing = session.activity()
    return doing is not None and doing.what == "a call" and doing.sent == doing.to_send


def wait_for_end(pid: int) -> None:
    """Wait until a process that is not our child has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], 60)[0], f"process {pid} is still there"
    finally:
        os.close(handle)


# ---- Crashes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGKILL", "SIGFPE", "SIGBUS"])
def test_remote_crash_error_has_the_signal_each_time(session: rpc.Session, name: str) -> None:
    crash, tensor = session["demo.crash"], session.tensor([1])
    for use in (lambda: crash(int(signal.Signals[name])), lambda: crash(0), tensor.numpy, session.listdir):
        with pytest.raises(
            errors.RemoteCrashError, match=f"with {session.name} crashed on the server with {name}"
        ) as raised:
            use()
        assert (raised.value.signal, raised.value.peer) == (name, session.name)
    assert isinstance(session.end_reason(), errors.RemoteCrashError)


def test_remote_crash_error_has_the_exit_code(session: rpc.Session) -> None:
    with pytest.raises(errors.RemoteCrashError, match="exited with code 3") as raised:
        session["demo.exit"](3)
    assert raised.value.signal == ""


def test_session_ends_after_the_answer_in_which_a_device_failed_for_good() -> None:
    with serving("--key", "k", functions=CLIENT_FUNCTIONS) as own, rpc.connect(own.address, key="k") as session:
        session["demo.lose_device"]()
        with pytest.raises(errors.SessionBrokenError) as broken:
            session["demo.add"](1, 2)
        assert broken.value.reason == "device"


def test_worker_killed_in_a_call_ends_the_call(session: rpc.Session) -> None:
    pid, hang = session["demo.pid"](), session["demo.hang"]
    call = Background(hang)
    wait_until(lambda: is_sent(session))
    os.kill(pid, signal.SIGKILL)
    assert isinstance(error := call.join(), errors.RemoteCrashError)
    assert error.signal == "SIGKILL"


def test_worker_killed_in_a_copy_to_it_ends_the_copy(session: rpc.Session) -> None:
    array = np.zeros(64 << 20, "uint8")
    pid, tensor = session["demo.pid"](), session.empty(array.shape, "uint8")
    tensor.view((1,)).copyfrom(array[:1])  # what is asked once for all copies is known now
    os.kill(pid, signal.SIGSTOP)
    copy = Background(lambda: tensor.copyfrom(array))
    wait_until(
        lambda: (doing := session.activity()) is not None and 0 < doing.sent < doing.to_send and doing.silent > 0.05
    )
    doing = session.activity()
    assert doing is not None
    assert str(doing).startswith("a copy to it: sent ")
    os.kill(pid, signal.SIGKILL)
    assert isinstance(copy.join(), errors.RemoteCrashError)


def test_worker_killed_in_a_copy_from_it_ends_the_copy(server: Serving) -> None:
    with Relay(server.port) as relay:
        plan = relay.next(Plan(hold_down=1 << 20))
        with rpc.connect("127.0.0.1", relay.port, key="k") as session:
            pid, tensor = session["demo.pid"](), session.empty((64 << 20,), "uint8")
            copy = Background(tensor.numpy)
            assert plan.held.wait(60)
            wait_until(lambda: (doing := session.activity()) is not None and doing.received > 900_000)
            os.kill(pid, signal.SIGKILL)
            wait_for_end(pid)
            plan.release.set()
            assert isinstance(error := copy.join(), errors.RPCError)
            assert error.peer == session.name


def test_call_timeout_ends_a_call_of_a_stopped_worker(session: rpc.Session) -> None:
    pid, echo = session["demo.pid"](), session["testing.echo"]
    session.set_call_timeout(0.2)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(errors.SessionTimeoutError, match="nothing came or went for"):
        echo(1)
    assert session.closed
    os.kill(pid, signal.SIGCONT)
    wait_for_end(pid)


def test_session_activity_names_the_file_in_transfer(session: rpc.Session) -> None:
    pid, size = session["demo.pid"](), 9 << 20
    seen = []

    def look(done: int, _: int) -> None:
        seen.append(str(session.activity()).partition(", for ")[0])

    session.upload(bytes(size), target="big", progress=look)
    assert seen[0] == "upload of 'big': sent 4,194,304 of 9,437,184 bytes"
    seen.clear()
    session.download("big", progress=look)
    assert seen[0] == "download of 'big': received 4,194,304 of 9,437,184 bytes"
    assert session.activity() is None

    def stop(done: int, _: int) -> None:
        session.set_call_timeout(0.3)
        os.kill(pid, signal.SIGSTOP)

    with pytest.raises(errors.SessionTimeoutError, match=r"; upload of 'big': 4,194,304 of 9,437,184 bytes$"):
        session.upload(b"x" * size, target="big", progress=stop)
    os.kill(pid, signal.SIGCONT)
    wait_for_end(pid)


def test_server_killed_breaks_its_sessions() -> None:
    with rpc.Server() as server, rpc.connect(server.address) as session:
        echo = session["testing.echo"]
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not server.running)

        def echo_on() -> None:  # the session's process ends soon after the server
            while True:
                echo(1)

        with pytest.raises(errors.SessionBrokenError, match=session.name):
            echo_on()
        with pytest.raises(errors.SessionBrokenError, match=session.name):
            echo(1)
        with pytest.raises(errors.ConnectError):
            rpc.connect(server.address)


def test_session_close_and_finalizers_do_not_wait_for_a_stuck_server(session: rpc.Session) -> None:
    pid = session["demo.pid"]()
    things: list[Any] = [session.tensor([n]) for n in range(2000)]
    things += [session["testing.echo"], session["demo.adder"](1), session["demo.array"](), session.system_lib()]
    os.kill(pid, signal.SIGSTOP)
    things.clear()
    gc.collect()
    session.close()
    os.kill(pid, signal.SIGCONT)
    wait_for_end(pid)


# ---- Cuts ---------------------------------------------------------------------------------------------------------


def scenario(port: int) -> None:
    """A session with every kind of request in it."""
    with rpc.connect("127.0.0.1", port, key="k", timeout=30, call_timeout=30) as session:
        assert session["demo.add"](1, 2) == 3
        array = np.arange(3000, dtype="float32")
        tensor = session.tensor(array)
        assert (tensor.numpy() == array).all()
        session["demo.fill"](array[:100], 2.0)
        session.upload(b"contents" * 100, "file")
        assert session.download("file") == b"contents" * 100
        other = session.empty((3000,)).copyfrom(tensor)
        del tensor
        with contextlib.suppress(ValueError):
            session["demo.fail"]("expected")
        assert session["demo.sum"](other) == np.arange(3000).sum()


@pytest.fixture(scope="module")
def recorded(server: Serving) -> tuple[bytes, bytes]:
    with Relay(server.port) as relay:
        scenario(relay.port)
        return bytes(relay.up), bytes(relay.down)


def run_with_cut(server: Serving, plan: Plan) -> None:
    """Run the scenario, which ends with an error; then wait until the server has noticed."""
    with Relay(server.port) as relay:
        relay.next(plan)
        with pytest.raises((errors.ConnectError, errors.SessionBrokenError)) as raised:
            scenario(relay.port)
        assert raised.value.peer == f"127.0.0.1:{relay.port}"
        name = relay.names[0]
    server.event(ENDED, lambda event: event["peer"] == name)


@pytest.mark.parametrize("way", ["up", "down"])
def test_connection_cut_between_two_messages_breaks_the_session(
    server: Serving, recorded: tuple[bytes, bytes], way: str
) -> None:
    messages = len(message_ends(recorded[way == "down"]))
    assert messages > 20
    for count in range(messages):
        run_with_cut(server, Plan(**{f"messages_{way}": count}))


@pytest.mark.parametrize("way", ["up", "down"])
def test_connection_cut_anywhere_breaks_the_session(server: Serving, recorded: tuple[bytes, bytes], way: str) -> None:
    size = len(recorded[way == "down"]) - GOODBYE  # which nobody waits for
    for place in sorted(random.Random(size).sample(range(size), 200)):
        run_with_cut(server, Plan(**{f"cut_{way}": place}))


def test_connection_cut_in_a_large_copy_frees_the_server(server: Serving) -> None:
    with Relay(server.port) as relay:
        relay.next(Plan(cut_up=20 << 20))
        with rpc.connect("127.0.0.1", relay.port, key="k") as session:
            pid = session["demo.pid"]()
            with pytest.raises(errors.SessionBrokenError):
                session.tensor(np.zeros(64 << 20, "uint8"))
        wait_for_end(pid)
        assert server.ended(relay.names[0])["how"] == "lost"


def test_slow_connection_loses_nothing(server: Serving) -> None:
    for piece in (1, 7, 1000):
        with Relay(server.port) as relay:
            relay.next(Plan(piece=piece))
            scenario(relay.port)


# ---- Silence ------------------------------------------------------------------------------------------------------


def never(sock: socket.socket) -> None:
    """Say nothing until the peer leaves."""
    while sock.recv(1 << 16):
        pass


def test_connect_timeout_for_a_peer_that_sends_nothing() -> None:
    with (
        saying(never, shake_hands=False) as port,
        pytest.raises(
            errors.SessionTimeoutError, match=r"no session within 1 s; waited for: the server's answer"
        ) as raised,
    ):
        rpc.connect("127.0.0.1", port, timeout=1)
    assert raised.value.peer == f"127.0.0.1:{port}"


def test_connect_timeout_for_a_peer_that_stops_in_the_handshake() -> None:
    def half(sock: socket.socket) -> None:
        sock.sendall(struct.pack("<ii", MAGIC, 100) + b"server:")
        never(sock)

    with saying(half, shake_hands=False) as port, pytest.raises(errors.SessionTimeoutError):
        rpc.connect("127.0.0.1", port, timeout=1)


def test_connect_timeout_for_a_peer_that_opens_no_session() -> None:
    def reply(sock: socket.socket) -> None:
        sock.sendall(struct.pack("<ii", MAGIC, 7) + b"server:")
        never(sock)

    with (
        saying(reply, shake_hands=False) as port,
        pytest.raises(errors.SessionTimeoutError, match=r"opening the session took more than .* raise timeout="),
    ):
        rpc.connect("127.0.0.1", port, timeout=1)


def test_connect_timeout_is_not_extended_by_single_bytes() -> None:
    def drip(sock: socket.socket) -> None:
        while True:
            sock.sendall(struct.pack("<ii", NOTICE, 4) + b"wait")
            if select.select([sock], [], [], 0.02)[0] and not sock.recv(1 << 16):
                return

    said: list[str] = []
    with saying(drip, shake_hands=False) as port, pytest.raises(errors.SessionTimeoutError, match="waited for: wait"):
        rpc.connect("127.0.0.1", port, timeout=1, options=rpc.ConnectOptions(on_wait=said.append))
    assert "wait" in said


def test_connect_escapes_a_servers_notices() -> None:
    def shout(sock: socket.socket) -> None:
        text = b"\x1b[2Jfull\x1b]0;title\x07"
        sock.sendall(struct.pack("<ii", NOTICE, len(text)) + text)
        never(sock)

    said: list[str] = []
    with saying(shout, shake_hands=False) as port, pytest.raises(errors.SessionTimeoutError, match="waited for: full"):
        rpc.connect("127.0.0.1", port, timeout=1, options=rpc.ConnectOptions(on_wait=said.append))
    assert said[-1] == "full"


# ---- Lies ---------------------------------------------------------------------------------------------------------

NONE = struct.pack("<i", 0)
HANDLE = sequence(struct.pack("<iQ", 4, 0x1000))
LIES = {
    "a frame of 2^63 bytes": struct.pack("<Qi", 1 << 63, RETURN),
    "a frame of 2^40 bytes": struct.pack("<Qi", 1 << 40, RETURN),
    "a frame without a code": struct.pack("<Q", 3) + b"abc",
    "an unknown code": frame(99),
    "a request in the place of an answer": frame(9, HANDLE),
    "no values": frame(RETURN, sequence()),
    "two values": frame(RETURN, sequence(NONE, NONE)),
    "an int for a handle": frame(RETURN, sequence(integer(5))),
    "a count of values that is too large": frame(RETURN, struct.pack("<i", 1 << 30)),
    "a negative count of values": frame(RETURN, struct.pack("<i", -1)),
    "an unknown type": frame(RETURN, sequence(struct.pack("<iQ", 55, 0))),
    "text that is longer than its message": frame(RETURN, sequence(struct.pack("<iQ", 8, 1 << 40) + b"short")),
    "bytes too many": frame(RETURN, HANDLE + b"more"),
    "a truncated value": frame(RETURN, HANDLE[:-3]),
    "a tensor with a negative extent": frame(
        RETURN, sequence(struct.pack("<iQiiiBBHqQ", 7, 1, 1, 0, 1, 2, 32, 1, -5, 0))),
    "a tensor with two thousand dimensions": frame(
        RETURN, sequence(struct.pack("<iQiiiBBH", 7, 1, 1, 0, 2000, 2, 32, 1))),
    "an acknowledged copy that nobody asked for": frame(ACK, b"bytes"),
    "an exception without text": frame(EXCEPTION, sequence()),
    "an exception with a number as text": frame(EXCEPTION, sequence(integer(1))),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_remote_protocol_error_for_wrong_answers(lie: bytes) -> None:
    def answer(sock: socket.socket) -> None:
        read_frame(sock)
        sock.sendall(lie)
        never(sock)

    with saying(answer) as port, rpc.connect("127.0.0.1", port, call_timeout=30) as session:
        for _ in range(2):
            with pytest.raises(errors.RemoteProtocolError, match="broke the protocol") as raised:
                session.get_function("f")
            assert raised.value.peer == session.name
        assert session.closed


@pytest.mark.parametrize("size", [0, 1, 11, 13, 1 << 40])
def test_remote_tensor_copy_of_another_size_is_refused(size: int) -> None:
    out = np.full(3, 7, "float32")

    def answer(sock: socket.socket) -> None:
        read_frame(sock)
        sock.sendall(frame(RETURN, HANDLE))
        read_frame(sock)  # the question for a limit of packets
        sock.sendall(frame(RETURN, sequence(struct.pack("<iQ", 4, 0))))
        read_frame(sock)
        sock.sendall(struct.pack("<Qi", 4 + size, ACK) + bytes(min(size, 1000)))
        never(sock)

    with saying(answer) as port, rpc.connect("127.0.0.1", port, call_timeout=30) as session:
        tensor = session.empty((3,))
        with pytest.raises(errors.RemoteProtocolError, match=f"a copy of 12 bytes was answered with {size}"):
            tensor.numpy(out=out)
    assert (out == 7).all()


CALL_RESULTS = {
    "no type": sequence(NONE),
    "a type that is not a number": sequence(NONE, NONE),
    "a handle for a number": sequence(integer(70), integer(3)),
    "three values, of which the last is not a handle": sequence(integer(68), struct.pack("<iQ", 4, 5), integer(3)),
}


@pytest.mark.parametrize("result", CALL_RESULTS.values(), ids=CALL_RESULTS.keys())
def test_remote_result_that_is_invalid_is_an_error(result: bytes) -> None:
    def answer(sock: socket.socket) -> None:
        read_frame(sock)
        sock.sendall(frame(RETURN, HANDLE))
        read_frame(sock)
        sock.sendall(frame(RETURN, result))
        never(sock)

    with saying(answer) as port, rpc.connect("127.0.0.1", port, call_timeout=30) as session:
        function = session["f"]
        with contextlib.suppress(errors.RemoteProtocolError):
            function()


@pytest.mark.parametrize("data", [
    b"HTTP/1.1 400 Bad Request\r\n\r\n", struct.pack("<ii", MAGIC, -1), struct.pack("<ii", MAGIC, 1 << 30),
    struct.pack("<ii", NOTICE, 1 << 30),
    struct.pack("<ii", MAGIC, 2) + b"\xff\xfe",
])  # fmt: skip
def test_connect_invalid_reply_is_a_protocol_error_with_the_peer(data: bytes) -> None:
    def answer(sock: socket.socket) -> None:
        sock.sendall(data)
        never(sock)

    with saying(answer, shake_hands=False) as port, pytest.raises(errors.RemoteProtocolError) as raised:
        rpc.connect("127.0.0.1", port, timeout=30)
    assert raised.value.peer == f"127.0.0.1:{port}"
    assert str(raised.value).startswith(raised.value.peer)


def test_connect_refusal_and_close_in_the_handshake_are_connect_errors() -> None:
    with (
        saying(lambda sock: sock.sendall(struct.pack("<i", MISMATCH)), shake_hands=False) as port,
        pytest.raises(errors.KeyMismatchError),
    ):
        rpc.connect("127.0.0.1", port, timeout=30)
    with (
        saying(lambda _: None, shake_hands=False) as port,
        pytest.raises(errors.ConnectError, match="in the handshake"),
    ):
        rpc.connect("127.0.0.1", port, timeout=30)


def test_session_broken_when_the_server_shuts_down_instead_of_answering() -> None:
    def answer(sock: socket.socket) -> None:
        read_frame(sock)
        sock.sendall(frame(SHUTDOWN))

    failure = "ended the session because of a failure on its side"
    with (
        saying(answer) as port,
        rpc.connect("127.0.0.1", port) as session,
        pytest.raises(errors.SessionBrokenError, match=failure),
    ):
        session.get_function("f")


# ---- Ctrl-C -------------------------------------------------------------------------------------------------------


@pytest.fixture
def _interrupts() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt here, whatever runs the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interrupts")
def test_keyboard_interrupt_ends_a_remote_call_and_frees_the_server(tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text(CLIENT_FUNCTIONS)
    options: dict[str, Any] = {"imports": (str(tmp_path / "functions.py"),), "lost_client_grace": 0.2}
    with rpc.Server(**options) as server, rpc.connect(server.address) as session:
        pid, hang = session["demo.pid"](), session["demo.hang"]
        interrupt = Background(lambda: (wait_until(lambda: is_sent(session)), os.kill(os.getpid(), signal.SIGINT)))
        with pytest.raises(KeyboardInterrupt):
            hang()
        interrupt.join()
        assert session.closed
        with pytest.raises(errors.SessionClosedError, match="a call was interrupted by KeyboardInterrupt"):
            hang()
        wait_for_end(pid)
        with rpc.connect(server.address) as another:
            assert another["demo.add"](1, 2) == 3


@pytest.mark.usefixtures("_interrupts")
def test_keyboard_interrupt_while_another_thread_calls_keeps_the_session(session: rpc.Session, tmp_path: Path) -> None:
    wait_for, add, gate = session["demo.wait_for"], session["demo.add"], tmp_path / "gate"
    call = Background(lambda: wait_for(str(gate)))
    wait_until(lambda: is_sent(session))
    waiting = threading.Event()
    interrupt = Background(lambda: (waiting.wait(), os.kill(os.getpid(), signal.SIGINT)))

    def wait_for_turn() -> None:
        waiting.set()
        add(1, 2)

    with pytest.raises(KeyboardInterrupt):
        wait_for_turn()
    interrupt.join()
    gate.touch()
    assert call.join() is None
    assert add(1, 2) == 3


def test_keyboard_interrupt_closes_the_session_and_a_second_ends_the_program(server: Serving) -> None:
    program = """
import sys, threading, portcall
from portcall import rpc
session = rpc.connect(sys.argv[1], key="k")
pid, nap = session["demo.pid"](), session["demo.nap"]
def tell():
    while (doing := session.activity()) is None or doing.sent < doing.to_send: pass
    print(pid, flush=True)
threading.Thread(target=tell, daemon=True).start()
try:
    nap(3.0)
except KeyboardInterrupt:
    print(session.closed, flush=True)
    sys.stdin.read()
"""
    command, pipe = [sys.executable, "-c", program, server.address], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "True\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == -signal.SIGINT
    wait_for_end(pid)


# ---- Crowds -------------------------------------------------------------------------------------------------------


def test_server_survives_fifty_clients_that_crash_and_leave(server: Serving) -> None:
    def work(number: int) -> str:
        with rpc.connect(server.address, key="k", timeout=60, call_timeout=60) as session:
            array = np.full(10_000, number, "float32")
            tensor = session.tensor(array)
            if number % 5 == 1:
                with pytest.raises(errors.RemoteCrashError):
                    session["demo.crash"](signal.SIGSEGV)
                return "crashed"
            if number % 5 == 2:
                session.close()
                return "left"
            for _ in range(20):
                assert session["demo.sum"](tensor) == 10_000 * number
            assert (tensor.numpy() == array).all()
            return "done"

    with ThreadPoolExecutor(50) as pool:
        outcomes = list(pool.map(work, range(50)))
    assert outcomes.count("done") == 30
    assert outcomes.count("crashed") == 10


def test_server_keeps_nothing_of_ended_sessions(server: Serving) -> None:
    """Run last: the server has seen every fault above."""
    pids = []
    for _ in range(5):
        with rpc.connect(server.address, key="k") as session:
            pids.append(session["demo.pid"]())
            session.upload(b"1", "file")
    for pid in pids:
        wait_for_end(pid)
    descriptors = len(os.listdir(f"/proc/{server.process.pid}/fd"))
    with rpc.connect(server.address, key="k") as session:
        pid = session["demo.pid"]()
    wait_for_end(pid)
    with rpc.connect(server.address, key="k") as session:
        session["testing.nop"]()
        wait_until(lambda: len(os.listdir(f"/proc/{server.process.pid}/fd")) <= descriptors + 8)
    zygote = children_of(server.process.pid)
    wait_until(lambda: sum(len(children_of(pid)) for pid in zygote) <= 2)  # of the fixture's session, at most


def children_of(parent: int) -> list[int]:
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                if int((process / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                    found.append(int(process.name))
    return found
