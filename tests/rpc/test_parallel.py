# SPDX-License-Identifier: Apache-2.0
"""Several sessions behind one object: what runs at the same time, where calls go, and what one that is lost leaves."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import portcall
from portcall import errors, rpc
from rpc.serving import Serving, serving, wait_until


@pytest.fixture
def remote(serving_functions: Serving) -> Iterator[rpc.ParallelSession]:
    with rpc.connect(serving_functions.address, key="k", parallel=3) as session:
        assert isinstance(session, rpc.ParallelSession)
        yield session


def pids(remote: rpc.ParallelSession) -> list[int]:
    """The processes of the sessions, in their order."""
    return pids_of(remote.sessions)


def pids_of(sessions: Sequence[rpc.Session]) -> list[int]:
    return [one._find("demo.pid")() for one in sessions]  # type: ignore[misc]


def test_calls_of_several_threads_run_at_the_same_time(remote: rpc.ParallelSession, tmp_path: Path) -> None:
    """Each call waits for what the next one does: in one session they would wait for ever."""
    wait, touch = remote["demo.wait_for"], remote["demo.touch"]
    flags = [str(tmp_path / name) for name in "ab"]
    threads = [threading.Thread(target=wait, args=(flag,)) for flag in flags]
    for thread in threads:
        thread.start()
    for flag, thread in reversed(list(zip(flags, threads, strict=True))):
        touch(flag)
        thread.join(60)
        assert not thread.is_alive()


def test_futures_and_coroutines_go_to_idle_sessions(remote: rpc.ParallelSession, tmp_path: Path) -> None:
    wait, touch, echo = remote["demo.wait_for"], remote["demo.touch"], remote["testing.echo"]
    flags = [str(tmp_path / name) for name in "abcd"]
    first, second = wait.future(flags[0]), wait.future(flags[1])
    touch(flags[1])
    assert second.result(60) is None

    async def main() -> object:
        waiting = asyncio.ensure_future(wait.aio(flags[2]))
        await asyncio.sleep(0)
        await touch.aio(flags[2])
        await waiting
        return await asyncio.gather(*(echo.aio(i) for i in range(2)))

    assert asyncio.run(main()) == [0, 1]
    assert not first.done()
    touch(flags[0])
    assert first.result(60) is None


def test_map_shares_rows_among_idle_sessions(remote: rpc.ParallelSession, tmp_path: Path) -> None:
    assert remote["demo.pid"].map([()] * 9) == pids(remote) * 3
    tensors = [each.tensor(np.full(2, i, "float32")) for i, each in enumerate(remote.sessions)]
    assert [result.session for result in remote["testing.echo"].map(tensors)] == list(remote.sessions)
    busy = remote["demo.wait_for"].future(flag := str(tmp_path / "busy"))
    assert set(remote["demo.pid"].map([()] * 10)) == set(pids_of(remote.sessions[1:]))
    Path(flag).touch()
    busy.result(60)
    assert remote["testing.echo"].map(range(2000)) == list(range(2000))
    with pytest.raises(KeyError) as raised:
        remote["demo.raise"].map([("KeyError", "lost")] * 3)
    assert raised.value.row == 0  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="#0 and #1") as two:
        remote["testing.echo"].map([1, (tensors[0], tensors[1])])
    assert two.value.row == 1  # type: ignore[attr-defined]
    assert remote["testing.echo"].map([]) == []


def test_a_program_that_waits_for_each_call_uses_the_first_session(remote: rpc.ParallelSession) -> None:
    pid = remote["demo.pid"]
    assert len(set(pids(remote))) == 3
    assert {pid() for _ in range(9)} == {pids(remote)[0]}
    assert set(asyncio.run(together(pid, 6))) == set(pids(remote))


async def together(function: portcall.PackedFunc, count: int) -> list[int]:
    return list(await asyncio.gather(*(function.aio() for _ in range(count))))


def test_what_a_session_has_made_is_used_in_it(
    remote: rpc.ParallelSession, kernel_library: Path, tmp_path: Path
) -> None:
    remote.upload(kernel_library)
    lib = remote.load_module(kernel_library.name)
    flag = tmp_path / "flag"
    one, two = remote.sessions[1:]
    x, y = one.tensor(np.arange(4, dtype="float32")), two.tensor(np.zeros(4, "float32"))
    first = remote["demo.wait_for"].future(str(flag))
    result = one.empty(4)
    lib.add_one(x, result)  # while the first session is busy
    assert result.numpy().tolist() == [1, 2, 3, 4]
    assert lib["add"](1, 2) == 3
    for function, other in ((lib["add_one"], y), (remote["testing.echo"], two.cpu())):
        with pytest.raises(ValueError, match="#0 and #1"):
            function(x, other)
    assert remote["testing.echo"](y).session is two
    local = np.zeros(4, "float32")
    lib.add_one(np.arange(4, dtype="float32"), local)
    assert local.tolist() == [1, 2, 3, 4]
    flag.touch()
    first.result(60)


def test_functions_and_modules_are_arguments(remote: rpc.ParallelSession, kernel_library: Path) -> None:
    remote.upload(kernel_library)
    lib, call, echo = remote.load_module(kernel_library.name), remote["demo.call"], remote["testing.echo"]
    tensor = remote.sessions[2].tensor(np.ones(3, "float32"))
    assert call(lib["add"], 1, 2) == 3
    assert call(echo, tensor).session is remote.sessions[2]
    assert call(lambda v: v + 1, 41) == 42
    assert isinstance(echo(lib), portcall.Module)
    assert echo(echo.future(tensor)).session is remote.sessions[2]
    adders = [each.get_function("demo.adder")(1) for each in remote.sessions[1:]]
    assert [call(adder, 1) for adder in adders] == [2, 2]
    with pytest.raises(errors.FunctionNotFoundError):
        remote["demo.missing"]
    with pytest.raises(errors.FunctionNotFoundError):
        lib["missing"]


def test_files_are_sent_to_each_session(remote: rpc.ParallelSession) -> None:
    large = np.random.default_rng(5).bytes(1 << 20)
    remote.upload(b"small", "small")
    remote.upload(large, "large")
    assert [one._find("tvm.rpc.server.download")("small") for one in remote.sessions] == [b"small"] * 3  # type: ignore[misc]
    assert all(one.download("large") == large for one in remote.sessions)
    assert remote.stats()["bytes_sent"] < 1.5 * len(large)
    remote.remove("small")
    assert all(one.listdir() == ["large"] for one in remote.sessions)


def test_a_pipeline_is_one_of_the_first_session(remote: rpc.ParallelSession, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    echo, wait = remote["testing.echo"], remote["demo.wait_for"]
    with remote.pipeline():
        waiting = wait(str(flag))
        results = [echo(i) for i in range(3)]
        flag.touch()
    assert waiting.result() is None
    assert [result.result() for result in results] == [0, 1, 2]


def test_a_session_that_crashes_is_left_out(remote: rpc.ParallelSession, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    touch, first = remote["demo.touch"], remote["demo.wait_for"].future(str(flag))
    with pytest.raises(errors.RemoteCrashError) as raised:
        remote["demo.crash"](signal.SIGKILL)
    assert raised.value.signal == "SIGKILL"
    assert [one.closed for one in remote.sessions[1:]] == [True, False]
    touch(str(flag))
    first.result(60)
    assert len(set(asyncio.run(together(remote["demo.pid"], 6)))) == 2
    assert not remote.closed
    with pytest.raises(errors.RemoteCrashError):  # the first one
        remote["demo.crash"](signal.SIGKILL)
    assert remote["testing.echo"](1) == 1
    with pytest.raises(errors.RPCError):
        remote.tensor(np.ones(3))
    with pytest.raises(errors.RemoteCrashError):
        remote["demo.crash"](signal.SIGKILL)
    with pytest.raises(errors.RPCError):
        remote["testing.echo"]
    assert remote.closed


def test_a_lost_session_is_opened_again(serving_functions: Serving, tmp_path: Path) -> None:
    options = rpc.ConnectOptions(reconnect=30)
    with rpc.connect(serving_functions.address, key="k", parallel=2, options=options) as remote:
        flag = tmp_path / "flag"
        first = remote["demo.wait_for"].future(str(flag))
        with pytest.raises(errors.RemoteCrashError):
            remote["demo.crash"](signal.SIGKILL)
        flag.touch()
        first.result(60)
        assert len(set(asyncio.run(together(remote["demo.pid"], 4)))) == 2


def test_closing_ends_all_of_them(serving_functions: Serving, tmp_path: Path) -> None:
    remote = rpc.connect(serving_functions.address, key="k", parallel=3)
    flag = tmp_path / "flag"
    waits = [remote["demo.wait_for"].future(str(flag)) for _ in range(3)]
    remote.close()
    flag.touch()
    for call in waits:
        with pytest.raises(errors.SessionClosedError):
            call.result()
    assert remote.closed


def test_parallel_sessions_need_a_server_that_has_them(tvm_port: int, tmp_path: Path) -> None:
    with pytest.raises(errors.ConnectError) as raised:
        rpc.connect("127.0.0.1", tvm_port, key="k", parallel=2)
    assert raised.value.reason == "one-session"
    with serving("--max-sessions", "2") as server:
        with pytest.raises(errors.SessionTimeoutError) as timeout:
            rpc.connect(server.address, timeout=1, parallel=3)
        assert "parallel=3" in timeout.value.hint
        wait_until(lambda: not server.directories())  # those that were open are closed
        for wrong in (0, -1, 65):
            with pytest.raises(ValueError, match="parallel"):
                rpc.connect(server.address, parallel=wrong)
        with pytest.raises(ValueError, match="record="):
            rpc.connect(server.address, parallel=2, options=rpc.ConnectOptions(record=tmp_path / "a.rec"))
