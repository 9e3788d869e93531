# SPDX-License-Identifier: Apache-2.0
"""Sessions that last: peers that are gone without a word, and another session in place of a lost one."""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trustme

import portcall
from portcall import errors, rpc
from portcall.rpc.server._silence import is_silent
from rpc import board
from rpc.raw_client import GET_FUNCTION, RawClient, frame, sequence, text
from rpc.relay import Plan, Relay, read_frame, saying
from rpc.serving import Serving, serving, wait_until

SO_ATTACH_FILTER = 26
LARGE = 1 << 20


def unplug(sock: socket.socket) -> None:
    """Have the kernel drop all that comes to a connection, so that nothing is acknowledged any more, as if its machine
    was gone: a filter of one instruction, "return 0".
    """
    instruction = ctypes.create_string_buffer(struct.pack("=HBBI", 0x06, 0, 0, 0))
    program = struct.pack("HxxxxxxP", 1, ctypes.addressof(instruction))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


# ---- The server is gone ----


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_heartbeat_ends_a_call_when_nothing_passes_the_network(serving_functions: Serving) -> None:
    with Relay(serving_functions.port) as relay:
        plan = relay.next(Plan())
        with rpc.connect("127.0.0.1", relay.port, key="k", options=rpc.ConnectOptions(heartbeat=3)) as session:
            assert "alive" in session.features
            nap = session["demo.nap"]
            plan.hold_down = 0  # the request passes, and nothing after it
            try:
                with pytest.raises(
                    errors.SessionBrokenError, match=r"no sign of life from 127.* for 3.* s, while a call"
                ):
                    nap(600)
            finally:
                plan.release.set()
            assert session.closed


def test_heartbeat_ends_a_copy_to_a_server_that_stopped(serving_functions: Serving) -> None:
    with rpc.connect(serving_functions.address, key="k", options=rpc.ConnectOptions(heartbeat=3)) as session:
        x = session.empty(64 << 20, "uint8")
        data = np.ones(64 << 20, "uint8")
        with stopped(session["demo.pid"]()), pytest.raises(errors.SessionBrokenError):
            x.copyfrom(data)


def test_heartbeat_waits_for_long_calls_and_what_is_posted_behind_them(serving_functions: Serving) -> None:
    with rpc.connect(serving_functions.address, key="k", options=rpc.ConnectOptions(heartbeat=3)) as session:
        nap, echo, data = session["demo.nap"], session["testing.echo"], np.ones(16 << 20, "uint8")
        nap(3.5)
        with session.pipeline():
            nap(3.5)
            copies = [session.tensor(data) for _ in range(3)]
            last = echo(7)
        assert last.result() == 7
        assert copies[-1].numpy()[-1] == 1


def test_heartbeat_does_not_count_while_the_client_is_busy(serving_functions: Serving) -> None:
    with rpc.connect(serving_functions.address, key="k", options=rpc.ConnectOptions(heartbeat=3)) as session:
        future = session["demo.nap"].future(0.1)
        with stopped_session_of(session):
            pass
        assert future.result() is None
        assert session["testing.echo"](1) == 1


@contextlib.contextmanager
def stopped_session_of(session: rpc.Session) -> Iterator[None]:
    """Nobody reads what comes for the session, for longer than its heartbeat."""
    threading.Event().wait(3.5)
    yield


def test_heartbeat_of_other_servers_is_that_of_their_machine() -> None:
    done = threading.Event()

    def vanish(sock: socket.socket) -> None:
        read_frame(sock)
        unplug(sock)
        done.wait()

    with saying(vanish) as port:
        session = rpc.connect("127.0.0.1", port, options=rpc.ConnectOptions(heartbeat=3))
        try:
            with pytest.raises(errors.SessionBrokenError):
                session.get_function("f")
        finally:
            done.set()


@pytest.mark.parametrize("words", [{"heartbeat": 1}, {"heartbeat": -3}, {"reconnect": -1}, {"reconnect": float("nan")}])
def test_connect_refuses_times_that_cannot_be(serving_functions: Serving, words: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(words))):
        rpc.connect(serving_functions.address, key="k", options=rpc.ConnectOptions(**words))  # type: ignore[arg-type]


# ---- The client is gone ----


@contextlib.contextmanager
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
        with ours, theirs:
            yield ours, theirs


def looks() -> Iterator[Callable[[socket.socket, float], bool]]:
    """How each server looks at a connection."""
    yield is_silent
    compiled = portcall.load_module(board.silence())["is_silent"]
    yield lambda sock, seconds: bool(compiled(sock.fileno(), round(1000 * seconds)))


def test_a_client_that_does_not_acknowledge_is_silent() -> None:
    with connection() as (ours, theirs):
        unplug(theirs)
        assert not any(is_silent(ours, 0) for is_silent in looks())
        ours.send(b"x")
        wait_until(lambda: all(is_silent(ours, 0.5) for is_silent in looks()))


def test_a_client_that_does_not_read_is_not_silent() -> None:
    with connection() as (ours, theirs):
        ours.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                ours.send(bytes(1 << 20))
        for is_silent in looks():
            assert not any(is_silent(ours, 0.1) for _ in range(60) if not threading.Event().wait(0.02))
        assert theirs.recv(1)


@pytest.mark.campaign
def test_server_ends_the_session_of_a_client_that_is_gone() -> None:
    with serving() as server, RawClient(server.address).open() as client:
        unplug(client.sock)
        client.send(frame(GET_FUNCTION, sequence(text("testing.echo"))))  # the answer is never acknowledged
        server.event("silent")
        server.ended(client.name)


# ---- A session in place of a lost one ----


def lose(session: rpc.Session) -> None:
    with pytest.raises(errors.RemoteCrashError):
        session["demo.crash"](signal.SIGKILL)


def lost(use: Callable[[], Any]) -> errors.SessionLostError:
    with pytest.raises(errors.SessionLostError) as raised:
        use()
    return raised.value


def test_reconnect_opens_another_session_and_says_what_is_lost(
    serving_functions: Serving, kernel_library: Path
) -> None:
    with rpc.connect(serving_functions.address, key="k", options=rpc.ConnectOptions(reconnect=30)) as session:
        session.upload(kernel_library)
        lib = session.load_module(kernel_library.name)
        add, pid, echo = lib["add"], session["demo.pid"], session["testing.echo"]
        x, device, functions, first = session.tensor(np.ones(3)), session.cpu(), session["demo.functions"](), pid()
        lose(session)
        for use, what in (
            (lambda: add(1, 2), "the function 'add'"),
            (lambda: lib["add_one"], "a module"),
            (x.numpy, "a tensor"),
            (lambda: x.copyfrom(np.zeros(3)), "a tensor"),
            (lambda: session.empty(3, device=device), "the device cpu:0"),
            (lambda: functions[0], "an object"),
            (lambda: pid(), "the function 'demo.pid'"),
            (lambda: session["testing.echo"](x), "an argument of 'testing.echo'"),
            (lambda: session.tensor(np.ones(3)).copyfrom(x), "a tensor"),
        ):
            error = lost(use)
            assert error.lost == what
            assert "SIGKILL" in error.why
            assert error.peer == serving_functions.address
            assert pickle.loads(pickle.dumps(error)).lost == what
            assert str(error).startswith(f"{what} was lost at ")
        assert not session.closed
        assert session["demo.pid"]() != first
        assert session["testing.echo"](session.tensor(np.arange(3))).numpy().tolist() == [0, 1, 2]
        session.upload(kernel_library)
        assert session.load_module(kernel_library.name)["add"](1, 2) == 3
        assert lost(lambda: echo(1)).lost == "the function 'testing.echo'"
    with pytest.raises(errors.SessionClosedError):
        session["testing.echo"]


def test_reconnect_does_not_repeat_a_call(serving_functions: Serving, tmp_path: Path) -> None:
    with rpc.connect(serving_functions.address, key="k", options=rpc.ConnectOptions(reconnect=30)) as session:
        made, waiting = tmp_path / "made", tmp_path / "never"
        pid = session["demo.pid"]()
        session["demo.touch"](str(made))
        made.unlink()
        touch, wait = session["demo.touch"].future(str(made)), session["demo.wait_for"].future(str(waiting))
        wait_until(made.exists)
        made.unlink()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(errors.RemoteCrashError):
            wait.result()
        assert touch.done()
        assert session["demo.pid"]() != pid
        assert not made.exists()


def test_reconnect_sends_no_file_again(serving_functions: Serving) -> None:
    content = np.random.default_rng(3).bytes(LARGE)
    with rpc.connect(serving_functions.address, key="k", options=rpc.ConnectOptions(reconnect=30)) as session:
        session.upload(content, "file")
        lose(session)
        session.upload(content, "file")
        assert session.stats()["bytes_sent"] < LARGE / 10
        assert session.download("file") == content


def test_reconnect_after_the_connection_was_cut(serving_functions: Serving) -> None:
    with Relay(serving_functions.port) as relay:
        relay.next(Plan(messages_up=5))
        with rpc.connect("127.0.0.1", relay.port, key="k", options=rpc.ConnectOptions(reconnect=30)) as session:
            assert session["testing.echo"](1) == 1
            assert session["testing.echo"](2) == 2  # a look-up leaves nothing behind, and is made again
            assert len(relay.names) > 1


def test_reconnect_of_many_threads_opens_one_session(serving_functions: Serving) -> None:
    with rpc.connect(serving_functions.address, key="k", options=rpc.ConnectOptions(reconnect=30)) as session:
        lose(session)
        found: list[int] = []
        threads = [threading.Thread(target=lambda: found.append(session["demo.pid"]())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 8
        assert len(set(found)) == 1


def test_reconnect_takes_callbacks_output_and_timeouts_along(serving_functions: Serving) -> None:
    lines: list[str] = []
    options = rpc.ConnectOptions(on_output=lambda line, _: lines.append(line), heartbeat=3, reconnect=30)
    with rpc.connect(serving_functions.address, key="k", call_timeout=20, options=options) as session:
        features = session.features
        lose(session)
        assert session["demo.call"](lambda v: v + 1, 41) == 42
        session["demo.print"]("again")
        assert lines == ["again"]
        assert session.features == features
        with pytest.raises(errors.RemoteCrashError), session.pipeline():
            session["demo.crash"](signal.SIGKILL)
        with session.pipeline():
            x = session.tensor(np.ones(3, "float32"))
            session["demo.twice"](x, x)
        assert x.numpy().tolist() == [3, 3, 3]


@pytest.mark.parametrize("transport", ["unix", "tls"])
def test_reconnect_with_a_token_over_each_transport(transport: str, tmp_path: Path) -> None:
    token, tls = "a" * 32, None
    words: tuple[object, ...] = ("--unix", tmp_path / "socket")
    if transport == "tls":
        authority = trustme.CA()
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
        words, tls = ("--tls-cert", tmp_path / "server.pem"), rpc.TLSOptions(ca=str(tmp_path / "ca.pem"))
    with (
        serving(*words, PORTCALL_TOKEN=token) as server,
        rpc.connect(
            server.address, token=token, tls=tls, options=rpc.ConnectOptions(reconnect=30, heartbeat=3)
        ) as session,
    ):
        lose(session)
        assert session["demo.scale"](2, 3) == 6


def test_reconnect_gives_up_for_good(tmp_path: Path) -> None:
    waits: list[str] = []
    with serving() as server:
        session = rpc.connect(server.address, options=rpc.ConnectOptions(reconnect=0.5, on_wait=waits.append))
        scale = session["demo.scale"]
        server.stop()
    with pytest.raises(errors.SessionBrokenError):
        scale(2, 3)
    with pytest.raises(errors.ConnectError, match=r"0\.5 s") as raised:
        session["demo.scale"]
    assert raised.value.reason == "refused"
    assert any("again" in wait for wait in waits)
    assert session.closed
    with pytest.raises(errors.ConnectError):
        session["demo.scale"]
    session.close()


def test_reconnect_and_a_recording_exclude_each_other(serving_functions: Serving, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="record="):
        rpc.connect(
            serving_functions.address, key="k", options=rpc.ConnectOptions(reconnect=1, record=tmp_path / "session.rec")
        )
