# SPDX-License-Identifier: Apache-2.0
"""Pipelines: requests that are posted, handles that are used before they exist, and errors that come later."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

import portcall
from portcall import errors, rpc
from portcall.rpc.wire._layouts import FETCH, SYNC
from rpc.raw_client import CALL, COPY_TO, EXCEPTION, FREE, RETURN, RawClient, frame, integer, pointer, sequence, tensor
from rpc.relay import Plan, Relay
from rpc.serving import Serving

LARGE = 24 << 20


@pytest.fixture(scope="module")
def remote(serving_functions: Serving) -> Iterator[rpc.Session]:
    with rpc.connect(serving_functions.address, key="k") as session:
        yield session


def test_dependent_steps_wait_for_one_answer(remote: rpc.Session) -> None:
    twice = remote["demo.twice"]
    a = np.arange(6, dtype="float32")
    remote["testing.echo"](0)
    before = remote.stats()["requests"]
    with remote.pipeline():
        x, y, _ = remote.tensor(a), remote.tensor(a * 2), remote.empty(3)
        assert isinstance(twice(x, y), portcall.Future)
        result = y.numpy()
    np.testing.assert_array_equal(result, a * 2 + 1)
    assert remote.stats()["requests"] - before == 2  # the copy back, and the end of the pipeline
    np.testing.assert_array_equal(x.numpy(), a + 1)


def test_results_are_arguments_before_they_exist(remote: rpc.Session) -> None:
    add, iota, total = remote["demo.add"], remote["demo.iota"], remote["demo.sum"]
    with remote.pipeline():
        five = add(add(1, 2), 2)
        text = add(add("a", "b"), "c")
        sum_of = total(iota(five))
        named = remote["testing.echo"](remote["testing.echo"])
        assert five.result() == 5
    assert (text.result(), sum_of.result(), sum_of.result()) == ("abc", 10, 10)
    assert named.result()(7) == 7
    assert add(five, 1) == 6  # of a pipeline that is over, in a call that is answered


def test_tensors_that_posted_calls_return_are_used_and_freed(remote: rpc.Session) -> None:
    with remote.pipeline():
        future = remote["demo.iota"](4)
    tensor = future.result()
    del future
    np.testing.assert_array_equal(tensor.numpy(), [0, 1, 2, 3])
    del tensor
    assert remote["testing.echo"](1) == 1


def test_the_first_error_is_raised_at_the_end(remote: rpc.Session) -> None:
    def fail_twice() -> None:
        with remote.pipeline():
            remote["demo.raise"]("KeyError", "first")
            remote["demo.raise"]("ValueError", "second")

    with pytest.raises(KeyError, match="first"):
        fail_twice()
    remote.sync()  # it was said


def test_what_uses_a_failed_request_has_its_error(remote: rpc.Session) -> None:
    fail, add, echo = remote["demo.raise"], remote["demo.add"], remote["testing.echo"]
    with remote.pipeline():
        lost = fail("KeyError", "lost")
        next_one = add(lost, 1)
        fine = echo(3)
        for future in (next_one, lost):
            with pytest.raises(KeyError, match="lost"):
                future.result()
        assert fine.result() == 3  # and it was said: the end of the pipeline is silent


def test_memory_that_is_not_there_fails_where_it_is_used(remote: rpc.Session) -> None:
    with remote.pipeline():
        x = remote.empty(1 << 50, "uint8")
        with pytest.raises(errors.RemoteError):
            x.view((4,)).numpy()
        del x


def test_large_copies_and_results_cross_each_other(remote: rpc.Session) -> None:
    """Far more than either side may keep: neither waits for the other."""
    echo = remote["testing.echo"]
    a = np.arange(LARGE, dtype="uint8")
    with remote.pipeline():
        tensors = [remote.tensor(a) for _ in range(6)]
        answers = [echo.future(bytes(8 << 20)) for _ in range(12)]
        tensors += [remote.tensor(a[: LARGE // 2]) for _ in range(3)]
    assert all(len(answer.result()) == 8 << 20 for answer in answers)
    np.testing.assert_array_equal(tensors[-1].numpy(), a[: LARGE // 2])


def test_a_flood_of_posted_requests_ends(remote: rpc.Session) -> None:
    add = remote["demo.add"]
    with remote.pipeline():
        value = add(0, 1)
        for _ in range(3000):
            value = add(value, 1)
    assert value.result() == 3001


def test_a_block_that_raises_leaves_the_session_usable(remote: rpc.Session) -> None:
    def fail() -> None:
        with remote.pipeline():
            remote["demo.raise"]("KeyError", "x")
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fail()
    with pytest.raises(KeyError):
        remote.sync()
    assert remote["testing.echo"](1) == 1


def test_files_and_modules_are_answered_inside(serving_functions: Serving) -> None:
    with rpc.connect(serving_functions.address, key="k") as remote, remote.pipeline():
        remote.upload(b"abc", "file")
        assert "file" in remote.listdir()
        assert remote.download("file") == b"abc"


def test_servers_of_tvm_answer_each_request(tvm_port: int) -> None:
    with rpc.connect("127.0.0.1", tvm_port, key="k") as session, session.pipeline():
        x = session.tensor(np.ones(3, "float32"))
        assert session["testing.echo"](5) == 5
        np.testing.assert_array_equal(x.numpy(), [1, 1, 1])


def test_calls_with_arrays_send_them_along(remote: rpc.Session) -> None:
    twice, array, other = remote["demo.twice"], np.zeros(3, "float32"), np.zeros(4, "float32")
    before = remote.stats()["requests"]
    twice(array, other)
    assert remote.stats()["requests"] - before == 4  # the call, its report, and two copies back
    assert array.tolist() == [1, 1, 1]
    assert other.tolist() == [1, 1, 1, 1]


def test_memory_that_is_not_there_is_an_error_outside_of_a_pipeline(remote: rpc.Session) -> None:
    with pytest.raises(errors.RemoteError):
        remote.empty(1 << 50, "uint8")
    remote.sync()


# ---- Small buffers, and connections that end ----


@contextlib.contextmanager
def tiny_buffers() -> Iterator[rpc.Session]:
    """A session over a pair of sockets that hold a few KiB; a request that hangs ends it."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            end.setsockopt(socket.SOL_SOCKET, option, 2048)
    descriptor = theirs.detach()
    serve = portcall.get_global_func("portcall.rpc.ServeSession")
    words = (descriptor, descriptor, ["*"], 0, None, -1, "pipeline,post,traceback", -1, -1, -1)
    thread = threading.Thread(target=serve, args=words)
    thread.start()
    descriptor = ours.detach()
    root = portcall.get_global_func("portcall.rpc.ConnectFds")(descriptor, descriptor, "tiny", 60.0, [])
    portcall.get_global_func("portcall.rpc.UseFeatures")(root, ["pipeline", "post"])
    with rpc.Session(root, "tiny") as session:
        yield session
    thread.join(30)


def test_copies_both_ways_through_tiny_buffers_do_not_wait_for_each_other() -> None:
    a = np.arange(2 << 20, dtype="uint8")
    with tiny_buffers() as session:
        echo = session["testing.echo"]
        with session.pipeline():
            tensors, answers = [], []
            for _ in range(4):
                tensors.append(session.tensor(a))
                answers += [echo.future(a[:300_000].tobytes()) for _ in range(4)]
            fetched = [tensor.numpy() for tensor in tensors]
        assert all(answer.result() == a[:300_000].tobytes() for answer in answers)
        assert all((one == a).all() for one in fetched)


def test_floods_through_tiny_buffers_end() -> None:
    with tiny_buffers() as session:
        echo = session["testing.echo"]
        with session.pipeline():
            values = [echo(f"{i} " + "x" * 200) for i in range(2000)]
            last = [echo.future(i) for i in range(2000)]
        assert values[-1].result().startswith("1999 ")
        assert [future.result() for future in last] == list(range(2000))


def test_replies_larger_than_the_credit_cross_copies_through_tiny_buffers(
    register: Callable[..., None],
) -> None:
    """Small requests have answers of 72 MiB, which nobody takes while as much is sent."""
    register("test_pipeline.large", lambda: bytes(3 << 20))
    a = np.arange(3 << 20, dtype="uint8")
    with tiny_buffers() as session:
        large = session["test_pipeline.large"]
        with session.pipeline():
            answers, tensors = [], []
            for _ in range(24):
                answers.append(large.future())
                tensors.append(session.tensor(a))
        assert all(len(answer.result()) == 3 << 20 for answer in answers)
        assert (tensors[-1].numpy() == a).all()


@pytest.mark.parametrize("plan", [Plan(messages_up=n) for n in (6, 7, 9, 12)] + [Plan(messages_down=n) for n in (5, 8)])
def test_a_connection_that_ends_in_a_pipeline_ends_it(serving_functions: Serving, plan: Plan) -> None:
    def work(session: rpc.Session) -> None:
        with session.pipeline():
            for _ in range(20):
                x = session.tensor(np.ones(5, "float32"))
                session["demo.twice"](x, x)
                x.numpy()

    with Relay(serving_functions.port) as relay:
        relay.next(plan)
        with rpc.connect("127.0.0.1", relay.port, key="k", call_timeout=30) as session:
            with pytest.raises(errors.RPCError):
                work(session)
            with pytest.raises(errors.RPCError):
                session.sync()


# ---- What a server is sent ----


def test_posted_requests_by_hand(serving_functions: Serving) -> None:
    target = (1 << 63) + 1
    with RawClient(serving_functions.address).open("k", " -portcall=1 -features=post") as client:
        sync, echo = SYNC.pack(1, 1, 1), struct.pack("<Q", client.function("testing.echo"))

        def post(code: int, handle: int, body: bytes) -> None:
            client.send(frame(code + 0x100, struct.pack("<Q", handle) + body))

        post(CALL, target, echo + sequence(integer(5)))
        assert client.ask(sync)[0] == RETURN
        for handle in (target, 5, (1 << 63) - 1):  # in use; not the client's
            post(CALL, handle, echo + sequence(integer(6)))
            assert "may not" in client.error(sync)
        for code in (0, 1, 2, 4, 6, 8, 22, 64, 65):  # what cannot be posted
            post(code, target + code, b"")
            assert client.ask(sync)[0] == EXCEPTION, code
        for body in (b"", b"\xff" * 40, echo, echo + sequence(integer(1)) + b"x"):
            post(CALL, target + 100, body)
            assert client.ask(sync)[0] == EXCEPTION
            post(FREE, 0, sequence(pointer(target + 100)))  # silently: it never came to be
        post(COPY_TO, 0, tensor(target, 4) + struct.pack("<Q", 4) + b"abcd")  # a number is no memory
        assert client.ask(sync)[0] == EXCEPTION
        assert client.ask(FETCH.pack(1, 4, target))[1] == struct.pack("<iiqiq", 2, 1, 1, 1, 5)
        post(FREE, 0, sequence(pointer(target)))
        assert client.ask(FETCH.pack(1, 4, target))[0] == EXCEPTION
        assert client.ask(sync)[0] == RETURN
        assert client.echo(3) == 3


def test_a_client_without_posts_cannot_post(serving_functions: Serving) -> None:
    with RawClient(serving_functions.address).open("k") as client:
        assert client.ask(SYNC.pack(1, 1, 1))[0] == EXCEPTION
        assert client.ask(frame(CALL + 0x100, bytes(20)))[0] == EXCEPTION
        assert client.echo(3) == 3
