# SPDX-License-Identifier: Apache-2.0
"""A time for one call: what is stopped, what is not begun, what goes on; and the session, which lives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from portcall import errors, rpc
from portcall.rpc.client._connect import connect_without
from rpc import board
from rpc.serving import Serving

ENDS = "goes-on" if board.under_test() else "stopped"  # of a function that waits
python_only = pytest.mark.skipif(board.under_test(), reason="only Python's code is stopped")
SERVED = """
import os, time, portcall
@portcall.register_func("demo.tidy")
def tidy(path):
    try:
        while not os.path.exists(path): time.sleep(0.005)
    except KeyboardInterrupt:
        return "tidy"
@portcall.register_func("demo.calls_back")
def calls_back(f, path):
    f()
    while not os.path.exists(path): time.sleep(0.005)
"""


@pytest.fixture
def remote(serving_functions: Serving) -> Iterator[rpc.Session]:
    with rpc.connect(serving_functions.address, key="k") as session:
        yield session


def overdue(call: Callable[[], Any]) -> str:
    """What became of a call whose time is over."""
    with pytest.raises(errors.CallTimeoutError) as raised:
        call()
    assert isinstance(raised.value, TimeoutError)
    assert raised.value.peer
    return raised.value.reason


def test_call_that_takes_too_long_ends_and_the_session_goes_on(remote: rpc.Session, tmp_path: Path) -> None:
    flag, wait = tmp_path / "flag", remote["demo.wait_for"]
    assert overdue(lambda: wait.with_timeout(0.2)(str(flag))) == ENDS
    flag.touch()
    assert wait(str(flag)) is None
    assert remote["demo.scale"](2, 3) == 6
    assert not remote.closed
    flag.unlink()
    assert overdue(wait.with_timeout(0.2).future(str(flag)).result) == ENDS
    flag.touch()
    assert remote["demo.scale"](2, 3) == 6


def test_call_with_a_timeout_awaited(remote: rpc.Session, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    assert overdue(lambda: asyncio.run(remote["demo.wait_for"].with_timeout(0.2).aio(str(flag)))) == ENDS
    flag.touch()


def test_calls_that_are_in_time_return_what_they_do(remote: rpc.Session) -> None:
    echo, x = remote["testing.echo"].with_timeout(60), np.zeros(3, "float32")
    assert [echo(i) for i in range(20)] == list(range(20))
    assert [call.result() for call in [echo.future(i) for i in range(2000)]] == list(range(2000))
    remote["demo.twice"].with_timeout(60)(x, x)
    assert x.tolist() == [2, 2, 2]
    with pytest.raises(KeyError):
        remote["demo.raise"].with_timeout(60)("KeyError", "x")
    with remote.pipeline():
        results = [echo(i) for i in range(600)]
    assert [result.result() for result in results] == list(range(600))


def test_call_that_waits_for_another_is_not_begun(remote: rpc.Session, tmp_path: Path) -> None:
    flag, made = tmp_path / "flag", tmp_path / "made"
    wait, touch, echo = remote["demo.wait_for"], remote["demo.touch"], remote["testing.echo"]
    first, second = wait.future(str(flag)), touch.with_timeout(0.2).future(str(made))
    third = touch.with_timeout(0.8).future(str(made))
    assert overdue(second.result) == "not-begun"
    assert overdue(third.result) == "not-begun"
    flag.touch()
    assert first.result() is None
    assert echo(1) == 1
    assert overdue(second.result) == "not-begun"  # as the server says it
    assert not made.exists()


def test_call_of_a_pipeline_is_not_begun(remote: rpc.Session, tmp_path: Path) -> None:
    flag, made = tmp_path / "flag", tmp_path / "made"
    wait, touch, echo = remote["demo.wait_for"], remote["demo.touch"], remote["testing.echo"]
    late: list[portcall.Future] = []

    def run() -> None:
        with remote.pipeline():
            wait(str(flag))
            touch.with_timeout(0.1)(str(made))
            late.append(echo.with_timeout(0.1)(5))
            overdue(echo.with_timeout(0.8).future(1).result)
            flag.touch()

    assert overdue(run) == "not-begun"
    assert overdue(late[0].result) == "not-begun"
    assert not made.exists()
    assert echo(1) == 1


def test_call_with_a_timeout_wants_a_time_and_a_session(remote: rpc.Session) -> None:
    for wrong in (0, -1, float("nan"), float("inf"), 1e10):
        with pytest.raises(ValueError, match="timeout"):
            remote["testing.echo"].with_timeout(wrong)
    with pytest.raises(TypeError):
        portcall.convert(len).with_timeout(1)


def test_call_with_a_timeout_closes_a_session_that_cannot_cancel(serving_functions: Serving, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    with connect_without({"cancel"}, serving_functions.address, key="k") as session:
        assert "cancel" not in session.features
        with pytest.raises(errors.SessionTimeoutError):
            session["demo.wait_for"].with_timeout(0.2)(str(flag))
        assert session.closed
    flag.touch()


def test_parallel_sessions_have_calls_with_a_timeout(serving_functions: Serving, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    with rpc.connect(serving_functions.address, key="k", parallel=2) as session:
        wait = session["demo.wait_for"].with_timeout(0.2)
        assert overdue(lambda: wait(str(flag))) == ENDS
        assert overdue(wait.future(str(flag)).result) == ENDS
        flag.touch()


@python_only
def test_call_that_is_stopped_may_tidy_up_and_have_names(server: Serving, tmp_path: Path) -> None:
    flag = str(tmp_path / "flag")
    with rpc.connect(server.address) as session:
        assert session["demo.tidy"].with_timeout(0.2)(path=flag) == "tidy"
        assert overdue(lambda: session["demo.calls_back"].with_timeout(0.2)(lambda: None, flag)) == "stopped"
        assert session["testing.echo"](1) == 1


def test_call_that_is_stopped_in_a_child_process() -> None:
    with rpc.PopenSession() as session:
        wait = session["testing.echo"].with_timeout(60)
        assert wait(1) == 1
        assert "cancel" in session.features
