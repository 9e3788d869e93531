# SPDX-License-Identifier: Apache-2.0
"""Work for many boards, and farms with TLS."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import trustme

import portcall
from farm.boards import board, client
from farm.running import running_farm
from portcall import errors, rpc
from portcall.farm import Executor, measure

FUNCTIONS = """
import os, signal
from portcall import register_func
@register_func("demo.crash_once", override=True)
def crash_once(path):
    if not os.path.exists(path):
        open(path, "w").close()
        os.kill(os.getpid(), signal.SIGSEGV)
    return os.getppid()
@register_func("demo.fail", override=True)
def fail(text): raise ValueError(text)
@register_func("demo.board", override=True)
def board(): return os.getppid()
"""


@pytest.fixture
def functions(tmp_path: Path) -> str:
    path = tmp_path / "functions.py"
    path.write_text(FUNCTIONS)
    return str(path)


def test_executor_runs_tasks_on_all_boards_and_retries_after_a_crash(tmp_path: Path, functions: str) -> None:
    def where(session: rpc.Session, number: int) -> tuple[int, int]:
        return number, session["demo.board"]()

    def crash(session: rpc.Session) -> Any:
        return session["demo.crash_once"](str(tmp_path / "crashed"))

    def fail(session: rpc.Session) -> Any:
        return session["demo.fail"]("wrong")

    progress: list[tuple[int, int]] = []
    with running_farm() as farm, board(farm, "a", imports=(functions,)), board(farm, "b", imports=(functions,)):
        with (
            client(farm) as lab,
            Executor(
                lab, "k", boards=2, call_timeout=60, on_progress=lambda *counts: progress.append(counts)
            ) as executor,
        ):
            done = list(executor.map(where, range(8)))
            assert [number for number, _ in done] == list(range(8))
            assert executor.submit(crash).result() > 0
            with pytest.raises(errors.RemoteError, match="wrong"):
                executor.submit(fail).result()
        assert sorted(progress)[-1] == (10, 10)
        farm.until(lambda: all(place.state == "idle" for place in farm.state.places.values()))
        with client(farm) as lab, Executor(lab, "k & gpu") as executor, pytest.raises(errors.FarmError):
            executor.submit(where, 1).result()
        with pytest.raises(RuntimeError):
            executor.submit(where, 1)


def test_executor_that_is_shut_down_ends_without_waiting_for_more_work(functions: str, tmp_path: Path) -> None:
    with running_farm() as farm, board(farm, imports=(functions,)), client(farm) as lab:
        executor = Executor(lab, "k", idle=1e6)
        assert executor.submit(lambda session: session["testing.echo"](1)).result(60) == 1
        executor.shutdown(wait=False)
        farm.until(lambda: not executor._threads)


def test_executor_tries_a_task_again_after_it_was_shut_down(functions: str, tmp_path: Path) -> None:
    begun, down = threading.Event(), threading.Event()

    def crash(session: rpc.Session) -> Any:
        begun.set()
        down.wait(60)
        return session["demo.crash_once"](str(tmp_path / "crashed"))

    with running_farm() as farm, board(farm, imports=(functions,)), client(farm) as lab:
        executor = Executor(lab, "k")
        future = executor.submit(crash)
        begun.wait(60)
        executor.shutdown(wait=False)
        down.set()
        assert future.result(60) > 0


def test_executor_measure_builds_on_one_and_measures_on_another() -> None:
    with concurrent.futures.ThreadPoolExecutor(2) as boards, concurrent.futures.ThreadPoolExecutor(2) as builders:
        for given in (None, builders):
            got = measure([3, 1, 2], lambda b: b + 1, executor=boards, build=lambda c: c * 10, builders=given)
            assert got == [31, 11, 21]
        assert measure([3, 1], str, executor=boards) == ["3", "1"]


def test_farm_with_tls_serves_leases_directly_and_proxied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    pem, ca = tmp_path / "farm.pem", tmp_path / "ca.pem"
    certificate.private_key_and_cert_chain_pem.write_to_path(str(pem))
    authority.cert_pem.write_to_path(str(ca))
    os.chmod(pem, 0o600)
    tls = rpc.TLSOptions(ca=str(ca))
    with running_farm(tls_certificate=str(pem)) as farm:
        for relay in (False, True):
            with board(farm, relay=relay, tls=tls), client(farm, tls=tls) as lab, lab.lease("k") as lease:
                for _ in range(2):
                    with lease.session() as session:
                        assert session["portcall.rpc.machine"] is not None
                with monkeypatch.context() as patch:  # as in a command that gets the lease
                    for name, value in lease.environment.items():
                        patch.setenv(name, value)
                    with (
                        portcall.farm.connect() as again,
                        again.resume(os.environ["PORTCALL_LEASE"]).session() as session,
                    ):
                        assert session["portcall.rpc.machine"] is not None
        with pytest.raises(errors.ConnectError), client(farm) as lab:
            lab.status()


@pytest.mark.peers
def test_measure_builds_on_dask_while_boards_measure() -> None:
    script = Path(__file__).parents[1] / "scripts" / "dask_measure.py"
    with running_farm() as farm, board(farm):
        command = [sys.executable, str(script), f"{farm.host}:{farm.port}", "k"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout == "[24, 8, 16]\n"
