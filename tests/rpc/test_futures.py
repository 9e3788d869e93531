# SPDX-License-Identifier: Apache-2.0
"""Results that come later: many calls on their way in one session, of one thread and of several."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import portcall
from portcall import errors, rpc
from rpc.serving import Serving

LARGE = 1 << 20


@pytest.fixture
def remote(serving_functions: Serving) -> Iterator[rpc.Session]:
    with rpc.connect(serving_functions.address, key="k") as session:
        yield session


def test_results_come_in_the_order_of_the_calls(remote: rpc.Session) -> None:
    echo = remote["testing.echo"]
    futures = [echo.future(i) for i in range(3000)]  # more than may be on their way at once
    assert [future.result() for future in futures] == list(range(3000))


def test_results_can_be_taken_in_any_order_and_again(remote: rpc.Session) -> None:
    echo = remote["testing.echo"]
    futures = [echo.future(i) for i in range(50)]
    assert [future.result() for future in reversed(futures)] == list(range(49, -1, -1))
    assert futures[0].result() == 0
    assert futures[0].done()


def test_an_error_is_that_of_its_call_alone(remote: rpc.Session) -> None:
    echo, fail = remote["testing.echo"], remote["demo.raise"]
    first, bad, last = echo.future(1), fail.future("KeyError", "lost"), echo.future(2)
    assert last.result() == 2
    for _ in range(2):
        with pytest.raises(KeyError, match="lost"):
            bad.result()
    assert isinstance(bad.exception(), KeyError)
    assert first.exception() is None


def test_a_wait_that_is_over_too_early_is_repeated(remote: rpc.Session, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    future = remote["demo.wait_for"].future(str(flag))
    with pytest.raises(TimeoutError):
        future.result(timeout=0)
    assert not future.done()
    flag.touch()
    assert future.result(timeout=60) is None


def test_what_nobody_waits_for_is_sent(remote: rpc.Session, tmp_path: Path) -> None:
    flags = [tmp_path / str(i) for i in range(3)]
    touch = remote["demo.touch"]
    futures = [touch.future(str(flag)) for flag in flags]
    seen = threading.Event()
    while not all(flag.exists() for flag in flags):
        seen.wait(0.001)
    assert [future.result() for future in futures] == [None] * 3


def test_large_arguments_and_results_cross_each_other(remote: rpc.Session) -> None:
    echo = remote["testing.echo"]
    payloads = [bytes([i]) * LARGE for i in range(40)]
    assert [f.result() for f in [echo.future(p) for p in payloads]] == payloads


def test_results_of_the_session_are_its_own_objects(remote: rpc.Session) -> None:
    iota, total = remote["demo.iota"], remote["demo.sum"]
    arrays = [iota.future(n) for n in range(1, 4)]
    assert [total(array.result()) for array in arrays] == [0, 1, 3]
    del arrays
    assert remote["testing.echo"](1) == 1


def test_a_call_with_arrays_of_this_process_is_over_at_once(remote: rpc.Session) -> None:
    x, y = np.zeros(3, "float32"), np.zeros(3, "float32")
    future = remote["demo.twice"].future(x, y)
    assert future.done()
    np.testing.assert_array_equal(x, [1, 1, 1])


def test_threads_do_not_wait_for_the_answers_of_others(remote: rpc.Session, tmp_path: Path) -> None:
    """All requests of the threads are on their way while the first one is not answered."""
    flag = tmp_path / "flag"
    echo = remote["testing.echo"]
    first = remote["demo.wait_for"].future(str(flag))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(echo, i) for i in range(8)]
        futures = [echo.future(i) for i in range(8)]
        flag.touch()
        assert [call.result(60) for call in calls] == list(range(8))
        assert [future.result(60) for future in futures] == list(range(8))
    assert first.result() is None


def test_coroutines_go_on_while_arrays_travel(remote: rpc.Session, tmp_path: Path) -> None:
    """A call with arrays of this process waits for its answer in a thread."""
    flag = tmp_path / "flag"
    array, twice = np.zeros(3, "float32"), remote["demo.twice"]

    async def main() -> None:
        waiting = remote["demo.wait_for"].future(str(flag))
        call = asyncio.ensure_future(twice.aio(array, array))
        await asyncio.sleep(0)
        flag.touch()
        await call
        assert await waiting is None

    asyncio.run(main())
    np.testing.assert_array_equal(array, [2, 2, 2])


def test_many_threads_share_a_session(remote: rpc.Session) -> None:
    echo = remote["testing.echo"]

    def work(seed: int) -> bool:
        for i in range(100):
            value = seed * 1000 + i
            if (echo.future(value).result() if i % 2 else echo(value)) != value:
                return False
        return True

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(6)))


def test_coroutines_await_calls(remote: rpc.Session) -> None:
    echo, fail = remote["testing.echo"], remote["demo.raise"]

    async def main() -> list[object]:
        return await asyncio.gather(
            *(echo.aio(i) for i in range(50)), fail.aio("KeyError", "x"), return_exceptions=True
        )

    *values, error = asyncio.run(main())
    assert values == list(range(50))
    assert isinstance(error, KeyError)


def test_a_future_becomes_one_of_the_standard_library(remote: rpc.Session) -> None:
    futures = [remote["testing.echo"].future(i).as_concurrent() for i in range(5)]
    done, _ = concurrent.futures.wait(futures, timeout=60)
    assert {future.result() for future in done} == set(range(5))


def test_closing_ends_calls_that_are_on_their_way(serving_functions: Serving, tmp_path: Path) -> None:
    session = rpc.connect(serving_functions.address, key="k")
    future = session["demo.wait_for"].future(str(tmp_path / "never"))
    session.close()
    with pytest.raises(errors.SessionClosedError):
        future.result()


def test_a_call_that_takes_too_long_ends_the_session_with_all_calls(serving_functions: Serving, tmp_path: Path) -> None:
    with rpc.connect(serving_functions.address, key="k", call_timeout=0.2) as session:
        wait, echo = session["demo.wait_for"], session["testing.echo"]
        futures = [wait.future(str(tmp_path / "never")), echo.future(1)]
        for future in futures:
            with pytest.raises(errors.RPCError):
                future.result()
        assert session.closed


def test_the_time_of_a_call_begins_when_those_before_it_are_answered(serving_functions: Serving) -> None:
    with rpc.connect(serving_functions.address, key="k", call_timeout=2) as session:
        nap = session["demo.nap"]
        futures = [nap.future(0.15) for _ in range(16)]
        assert [future.result() for future in futures] == [None] * 16


def test_functions_of_this_process_and_of_tvms_servers_take_the_same_call(tvm_port: int) -> None:
    assert portcall.convert(lambda x: x + 1).future(2).result() == 3
    with pytest.raises(KeyError):
        portcall.convert({}.__getitem__).future(1).result()
    with rpc.connect("127.0.0.1", tvm_port, key="k") as session:
        echo = session["testing.echo"]
        assert [future.result() for future in [echo.future(i) for i in range(5)]] == list(range(5))


def test_map_calls_once_for_each_row(remote: rpc.Session) -> None:
    echo, add = remote["testing.echo"], remote["demo.sum"]
    assert echo.map(range(3000)) == list(range(3000))  # more than may be on their way at once
    assert echo.map(f"row {i}" for i in range(3)) == ["row 0", "row 1", "row 2"]
    assert echo.map([("a",), "b", None, 2.5]) == ["a", "b", None, 2.5]
    assert echo.map([]) == []
    arrays = remote["demo.iota"].map([1, 2, 3])
    assert add.map(arrays) == [0, 1, 3]
    assert [array.tolist() for array in echo_arrays(remote)] == [[1, 1, 1], [1, 1, 1]]


def echo_arrays(remote: rpc.Session) -> list[np.ndarray]:
    """Return arrays of this process to which a remote function wrote, in two rows."""
    rows = [(np.zeros(3, "float32"), np.zeros(3, "float32")) for _ in range(2)]
    assert remote["demo.twice"].map(rows) == [None, None]
    return [x for x, _ in rows]


def test_map_raises_the_first_error_with_its_row(remote: rpc.Session) -> None:
    echo = remote["testing.echo"]
    sent = remote.stats()["requests"]
    with pytest.raises(Exception, match="argument") as raised:
        echo.map([0, 1, (), *range(3, 3000)])  # a call without an argument
    assert raised.value.row == 2  # type: ignore[attr-defined]
    assert remote.stats()["requests"] - sent < 1000  # no more were begun
    assert echo(5) == 5
    with pytest.raises(errors.ArgumentError) as refused:
        echo.map([0, 1, 2, (3, object())])  # before any call
    assert (refused.value.row, refused.value.position) == (3, 1)  # type: ignore[attr-defined]
    with pytest.raises(KeyError) as lost:
        remote["demo.raise"].map([("KeyError", "lost")] * 3)
    assert lost.value.row == 0  # type: ignore[attr-defined]


def test_map_of_a_session_that_is_over_says_so(serving_functions: Serving) -> None:
    with rpc.connect(serving_functions.address, key="k") as session:
        echo = session["testing.echo"]
    with pytest.raises(errors.SessionClosedError) as raised:
        echo.map(range(2000))
    assert raised.value.row == 0  # type: ignore[attr-defined]


def test_map_of_functions_of_this_process_and_of_tvms_servers(tvm_port: int) -> None:
    divide = portcall.convert(lambda x, y=2: x // y)
    assert divide.map([4, (9, 3)]) == [2, 3]
    with pytest.raises(ZeroDivisionError) as raised:
        divide.map([1, (1, 0), 3])
    assert raised.value.row == 1  # type: ignore[attr-defined]
    with rpc.connect("127.0.0.1", tvm_port, key="k") as session:
        assert session["testing.echo"].map(range(5)) == list(range(5))
