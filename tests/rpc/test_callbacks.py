# SPDX-License-Identifier: Apache-2.0
"""Functions of the client that the server's code calls: nested, from threads, with errors, in floods."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from portcall import errors, rpc, testing
from portcall.rpc.client._connect import connect_without
from rpc import raw_client as raw
from rpc.relay import Plan, Relay
from rpc.serving import FUNCTIONS, Serving

SERVED = (
    FUNCTIONS
    + """
import threading
kept = []
@register("apply")
def apply(f, *args): return f(*args)
@register("hold")
def hold(f): kept.append(f)
@register("call_kept")
def call_kept(*args): return kept[-1](*args)
@register("drop")
def drop(): kept.clear()
@register("in_threads")
def in_threads(f, n):
    results = []
    threads = [threading.Thread(target=lambda i=i: results.append(f(i))) for i in range(n)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    return sorted(results)
@register("in_background")
def in_background(f, x):
    kept[:] = [threading.Thread(target=f, args=(x,))]
    kept[0].start()
@register("join")
def join(): kept.pop().join()
started, results = threading.Event(), []
@register("wait")
def wait(): started.wait()
@register("go_on")
def go_on(): started.set()
@register("sum")
def sum_of(x): return float(x.numpy().sum())
@register("sum_in_background")
def sum_in_background(f):
    def work():
        try: results.append(sum_of(f()))
        except Exception as error: results.append(str(error))
    kept[:] = [threading.Thread(target=work)]
    kept[0].start()
@register("result")
def result():
    kept.pop().join()
    return results.pop()
@register("name_of_error")
def name_of_error(f):
    try: f()
    except ValueError as error: return [type(error).__mro__[1].__name__, str(error)]
@register("many")
def many(f, n): return sum(f(i) for i in range(n))
@register("until_gone")
def until_gone(f, path):
    try:
        while True: f()
    except Exception as error:
        open(path, "w").write(getattr(error, "kind", type(error).__name__))
@register("fill_by")
def fill_by(f):
    import numpy
    array = numpy.zeros(4, "float32")
    f(array)
    return float(array.sum())
"""
)


@pytest.fixture(params=[1, 2, 3], ids=["direct", "chain", "long_chain"])
def remote(server: Serving, request: pytest.FixtureRequest) -> Iterator[rpc.Session]:
    """A session with a server, or one that goes on to a server from there, and again."""
    further = ["rpc.Connect", "127.0.0.1", server.port, "", False] * (request.param - 1)
    with rpc.connect(server.address, session_constructor_args=further) as session:
        yield session


# ---- Values ----


@pytest.mark.parametrize(
    "value", [None, 3, 2.5, True, "a text", "short", b"bytes", [1, {"k": "v"}], portcall.Shape([2])]
)
def test_callback_gets_values_and_returns_them(remote: rpc.Session, value: Any) -> None:
    got: list[Any] = []

    def take(x: Any) -> Any:
        got.append(x)
        return x

    result = remote["demo.apply"](take, value)
    assert got == [value]
    assert result == value


def test_callback_uses_tensors_of_the_session(remote: rpc.Session) -> None:
    apply = remote["demo.apply"]
    x = remote.tensor(np.arange(3.0))
    assert apply(lambda t: float(t.numpy().sum()), x) == 3.0
    apply(lambda t: t.copyfrom(t.numpy() + 5), x)
    np.testing.assert_array_equal(x.numpy(), [5, 6, 7])
    np.testing.assert_array_equal(apply(lambda t: t.numpy() * 2, x).numpy(), [10, 12, 14])


def test_callback_writes_to_an_array_that_the_server_lends(remote: rpc.Session) -> None:
    assert remote["demo.fill_by"](lambda t: t.copyfrom(np.ones(4, "float32"))) == 4.0


def test_callback_returns_a_function(remote: rpc.Session) -> None:
    add = remote["demo.apply"](lambda n: lambda x: x + n, 3)
    assert add(4) == 7


def test_callback_moves_many_bytes_both_ways(remote: rpc.Session) -> None:
    data = bytes(range(256)) * (1 << 16)
    assert remote["demo.apply"](lambda given: given[::-1], data) == data[::-1]


def test_callbacks_nest_up_to_a_limit(remote: rpc.Session) -> None:
    apply = remote["demo.apply"]

    def deep(n: int) -> int:
        return 0 if n == 0 else 1 + apply(deep, n - 1)

    assert deep(50) == 50
    with pytest.raises(RecursionError, match="64"):
        deep(100)
    assert apply(abs, -1) == 1


# ---- Errors ----


def test_error_of_a_callback_has_its_class_and_both_tracebacks(remote: rpc.Session) -> None:
    def fail_here() -> None:
        raise ValueError("of the callback")

    with pytest.raises(ValueError, match="of the callback") as caught:
        remote["demo.apply"](fail_here)
    assert isinstance(caught.value, errors.RemoteError)
    assert "in apply" in caught.value.remote_traceback
    assert "in fail_here" in caught.value.remote_traceback
    assert remote["demo.name_of_error"](fail_here) == ["RemoteError", "ValueError: of the callback"]


def test_result_of_a_callback_that_cannot_be_sent_is_named_as_such(remote: rpc.Session) -> None:
    with pytest.raises(errors.RemoteError, match="the result of a callback"):
        remote["demo.apply"](lambda: object())


@pytest.mark.parametrize("sessions", [1, 2], ids=["direct", "chain"])
def test_callback_to_a_closed_session_raises_in_the_server(server: Serving, tmp_path: Path, sessions: int) -> None:
    """The client dies inside of a callback: the server's code gets an error, and the session ends."""
    further = ["rpc.Connect", "127.0.0.1", server.port, "", False] * (sessions - 1)
    program = f"""
import os, sys
sys.path[:0] = {sys.path!r}
from portcall import rpc
with rpc.connect({server.address!r}, session_constructor_args={further!r}) as remote:
    remote["demo.until_gone"](lambda: os._exit(3), {str(tmp_path / "gone")!r})
"""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.DEVNULL, check=False, timeout=60)
    assert done.returncode == 3
    for _ in range(sessions):
        server.event("ended")
    assert (tmp_path / "gone").read_text() == "SessionBrokenError"


def test_timeout_holds_across_a_callback(server: Serving) -> None:
    waiting = threading.Event()
    with rpc.connect(server.address, call_timeout=0.3) as remote:
        with pytest.raises(errors.SessionTimeoutError):
            remote["demo.apply"](lambda: waiting.wait(1.0) and None)
        assert remote.closed


def test_functions_of_this_process_are_refused_by_servers_that_cannot_call_them(server: Serving) -> None:
    with connect_without(["callback"], server.address) as remote:
        echo = remote["testing.echo"]
        with pytest.raises(TypeError, match="argument #0"):
            echo(lambda: None)
        assert echo(1) == 1


PLANS = [Plan(messages_up=n) for n in (8, 11, 14, 30)] + [Plan(messages_down=n) for n in (6, 9, 12, 30)]


@pytest.mark.parametrize("plan", PLANS)
def test_connection_that_ends_with_requests_and_callbacks_on_their_way(server: Serving, plan: Plan) -> None:
    with Relay(server.port) as relay:
        relay.next(plan)
        with rpc.connect("127.0.0.1", relay.port, call_timeout=60) as session:
            apply, many, echo = session["demo.apply"], session["demo.many"], session["testing.echo"]
            data, calls, outcomes = bytes(70_000), [], []
            with contextlib.suppress(errors.RPCError), session.pipeline():
                calls += [many.future(lambda i: len(echo(data)) + i, 3), many.future(lambda i: apply(abs, -i), 4)]
                calls += [echo.future(data) for _ in range(5)]
                calls += [apply(lambda v: echo(v), i) for i in range(20)]
                calls[-1].result()
            for call in calls:
                with contextlib.suppress(errors.RPCError):
                    outcomes.append(call.result())
            assert len(outcomes) < 27
            assert session.closed
    with rpc.connect(server.address) as session:
        assert session["demo.apply"](abs, -3) == 3


def test_server_that_crashes_in_a_callback_fails_all_that_wait(server: Serving) -> None:
    with rpc.connect(server.address) as session:
        pid, apply, echo = session["demo.pid"](), session["demo.apply"], session["testing.echo"]

        def crash() -> int:
            os.kill(pid, signal.SIGKILL)
            return int(echo(2))

        calls = [echo.future(1), apply.future(crash), echo.future(3)]
        for call in calls[1:]:
            with pytest.raises(errors.RemoteCrashError):
                call.result()
        assert session.closed


# ---- Threads and floods ----


def test_threads_of_the_server_call_back(remote: rpc.Session) -> None:
    assert remote["demo.in_threads"](lambda i: i * i, 20) == [i * i for i in range(20)]


def test_callback_comes_while_the_client_waits_for_nothing(remote: rpc.Session) -> None:
    came = threading.Event()
    seen = []

    def note(x: str) -> None:
        seen.append((x, remote["testing.echo"](1)))
        came.set()

    remote["demo.in_background"](note, "late")
    assert came.wait(30)
    assert seen == [("late", 1)]
    remote["demo.join"]()


def test_kept_function_is_called_later_and_freed_by_both_sides(remote: rpc.Session) -> None:
    class Adder:
        def __call__(self, x: int) -> int:
            return x + 1

    adder = Adder()
    gone = weakref.ref(adder)
    remote["demo.hold"](adder)
    del adder
    gc.collect()
    assert remote["demo.call_kept"](1) == 2
    remote["demo.drop"]()
    remote["testing.echo"](0)
    gc.collect()
    assert gone() is None


def test_function_is_freed_once_the_call_is_over(remote: rpc.Session) -> None:
    def function(x: int) -> int:
        return x

    gone = weakref.ref(function)
    assert remote["demo.apply"](function, 1) == 1
    with pytest.raises(errors.ArgumentError):
        remote["demo.apply"](function, object())  # was not sent
    del function
    gc.collect()
    assert gone() is None


def test_tensor_that_a_callback_frees_stays_for_requests_that_wait_for_the_callback(remote: rpc.Session) -> None:
    apply, echo, total = remote["demo.apply"], remote["testing.echo"], remote["demo.sum"]
    sent = threading.Event()
    held = [remote.tensor(np.arange(4.0))]

    def let_go() -> int:
        sent.wait()
        held.clear()
        return int(echo(1))  # takes the free along

    with remote.pipeline():
        first = apply(let_go)
        second = total(held[0])
        sent.set()
    assert (first.result(), second.result()) == (1, 6.0)


def test_tensor_that_a_thread_of_the_server_has_not_taken_yet_is_not_freed(server: Serving) -> None:
    """The client frees what its callback returned, while the server's thread does what was asked for before."""
    with raw.RawClient(server.address) as client:
        client.open(options=" -portcall=1 -features=callback,pipeline,post")
        begin, wait, go_on, result = (
            struct.pack("<Q", client.function("demo." + name)) + raw.sequence()
            for name in ("sum_in_background", "wait", "go_on", "result")
        )
        _, body = client.ask(raw.frame(raw.ALLOC, raw.sequence(struct.pack("<i", 7) + raw.tensor(0, 4), bytes(4))))
        (data,) = struct.unpack_from("<Q", body, 8)
        four = raw.tensor(data, 4) + struct.pack("<Q", 4)
        client.ask(raw.frame(raw.COPY_TO, four + bytes(range(4))))
        lent = struct.pack("<iiQ", 117, 117, 1)
        client.send(raw.frame(raw.CALL, begin[:8] + raw.sequence(lent)))
        frames = dict(client.read_frame() for _ in range(2))
        callback = frames[raw.NESTED | 66][:8]
        client.send(
            raw.frame(raw.CALL | raw.NESTED | raw.POSTED, callback + bytes(8) + wait)
            + raw.frame(raw.RETURN | raw.NESTED, callback + raw.sequence(struct.pack("<i", 7) + raw.tensor(data, 4)))
            + raw.frame(raw.FREE_DATA, raw.sequence(struct.pack("<iii", 6, 1, 0), raw.pointer(data)))
        )
        client.send(raw.frame(raw.CALL, go_on) + raw.frame(raw.CALL, result))
        answers = (body for code, body in iter(client.read_frame, None) if code == raw.RETURN)
        *_, body = itertools.islice(answers, 3)
        assert body[-8:] == struct.pack("<d", 6.0), body
        assert "names nothing" in client.error(raw.frame(raw.COPY_FROM, four))


def test_callbacks_of_posted_calls_and_futures(remote: rpc.Session) -> None:
    apply = remote["demo.apply"]
    with remote.pipeline():
        posted = [apply(lambda v, i=i: v + i, 1) for i in range(100)]
    assert [f.result() for f in posted] == list(range(1, 101))
    assert [f.result() for f in [apply.future(lambda v: -v, i) for i in range(300)]] == [-i for i in range(300)]


def test_callbacks_during_a_flood_of_large_requests(remote: rpc.Session) -> None:
    """Requests and answers of more bytes than a connection holds, while the server's code calls back and back."""
    echo, many = remote["testing.echo"], remote["demo.many"]
    data = bytes(4 << 20)
    nested = remote["testing.echo"]
    slow = many.future(lambda i: len(nested(data)) + i, 5)
    answers = [echo.future(data) for _ in range(30)]
    with remote.pipeline():
        tensors = [remote.tensor(np.full(1 << 20, i, "uint8")) for i in range(30)]
    assert slow.result() == 5 * len(data) + 10
    assert all(len(answer.result()) == len(data) for answer in answers)
    assert [int(t.numpy()[0]) for t in tensors] == list(range(30))


def test_several_threads_of_the_client_have_callbacks(remote: rpc.Session) -> None:
    apply = remote["demo.apply"]
    results: list[int] = []

    def work(k: int) -> None:
        results.extend(apply(lambda v: apply(lambda w: w + k, v), 100) for _ in range(20))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(results) == sorted([100 + k for k in range(6)] * 20)


def test_callbacks_with_small_buffers_do_not_wait_for_each_other() -> None:
    """Both ends have sockets of a few KiB, and send each other far more at once."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, 2048)
    portcall.register_func("test_callbacks.pass_on", lambda f, x: f(x) + f(x), override=True)
    serve = portcall.get_global_func("portcall.rpc.ServeSession")
    descriptor = theirs.detach()
    served = threading.Thread(
        target=lambda: serve(descriptor, descriptor, ["*"], 0, None, -1, "callback,pipeline,post,values", -1, -1, -1)
    )
    served.start()
    try:
        mine = ours.detach()
        root = portcall.get_global_func("portcall.rpc.ConnectFds")(mine, mine, "the other end", 0.0, [])
        portcall.get_global_func("portcall.rpc.UseFeatures")(root, ["callback", "pipeline", "post", "values"])
        with rpc.Session(root, "the other end") as remote:
            pass_on, echo = remote["test_callbacks.pass_on"], remote["testing.echo"]
            data = bytes(300_000)
            calls = [pass_on.future(lambda x: echo(x), data) for _ in range(8)]
            answers = [echo.future(data) for _ in range(40)]
            assert [len(call.result()) for call in calls] == [600_000] * 8
            assert all(len(answer.result()) == 300_000 for answer in answers)
    finally:
        served.join(60)
        portcall.remove_global_func("test_callbacks.pass_on")
    assert not served.is_alive()


def test_callbacks_are_recorded_and_replayed(server: Serving, tmp_path: Path) -> None:
    def program(remote: rpc.Session) -> list[Any]:
        apply, echo = remote["demo.apply"], remote["testing.echo"]
        return [apply(lambda v: v + 1, 1), apply(lambda v: echo(v) * 2, 5), remote["demo.many"](lambda i: i, 4)]

    with rpc.connect(server.address, options=rpc.ConnectOptions(record=tmp_path / "session")) as remote:
        first = program(remote)
    with testing.replay(tmp_path / "session") as board, rpc.connect(board.address) as remote:
        assert program(remote) == first


def test_functions_of_local_sessions_and_child_processes_are_called() -> None:
    portcall.register_func("test_callbacks.twice", lambda f, x: f(f(x)), override=True)
    try:
        with rpc.LocalSession() as here:
            assert here["test_callbacks.twice"](lambda v: v * 3, 2) == 18
    finally:
        portcall.remove_global_func("test_callbacks.twice")
    with rpc.PopenSession() as child:
        assert child["testing.apply"](lambda v: v + 1, 41) == 42
