# SPDX-License-Identifier: Apache-2.0
"""The command line with devices: OpenCL by PoCL and CUDA by the fake driver, here and on a server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devices.conftest import FakeDriver
from portcall import rpc
from portcall.cli._call import Call, about_error

ONES = ("--arg", "ones:float32[100]")
ADD = ("add", *ONES, *ONES, "--out", "float32[100]")
DEVICE_ERROR = 3  # the exit code


def portcall_command(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "portcall", *map(str, words)], capture_output=True, text=True, timeout=300, check=False
    )


def result_of(*words: object) -> dict[str, Any]:
    done = portcall_command(*words, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def server(driver: FakeDriver) -> Iterator[rpc.Server]:
    with rpc.Server() as running:
        yield running


@pytest.mark.parametrize("kind", ["opencl", "cuda"])
def test_run_and_bench_call_a_library_on_the_device(
    kind: str, libraries: dict[str, Path], server: rpc.Server, driver: FakeDriver
) -> None:
    for place in ((), ("--rpc", server.address)):
        call = (libraries[kind], *ADD, "--device", f"{kind}:0", *place)
        found = result_of("run", *call)
        assert (found["device"], found["outputs"]["out0"]["mean"]) == (f"{kind}:0", 2.0)
        assert result_of("bench", *call, "--number", 2, "--repeat", 2)["device"] == f"{kind}:0"


def test_run_says_why_a_device_does_not_exist(
    libraries: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PORTCALL_LIBCUDA", str(tmp_path / "none.so"))
    done = portcall_command("run", libraries["cuda"], *ADD, "--device", "cuda:0")
    assert done.returncode == DEVICE_ERROR
    assert "none.so" in done.stderr


@pytest.mark.parametrize("there", [False, True])
def test_run_names_the_device_that_the_library_is_for(
    there: bool, libraries: dict[str, Path], server: rpc.Server
) -> None:
    done = portcall_command("run", libraries["opencl"], *ADD, *(("--rpc", server.address) if there else ()))
    assert done.returncode == 1
    assert "--device opencl:0" in done.stderr


def test_run_of_a_function_of_the_host_on_a_device_says_to_leave_that_out() -> None:
    call = Call("kernels.so", "add_one", ())
    said = "add_one(): argument #0: expected a tensor in the host's memory, got one on opencl:0"  # of portcall/tensor.h
    assert about_error(call, "ValueError", said)[1] == "leave out --device"


def test_serve_gives_sessions_the_named_device_alone(driver: FakeDriver, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "portcall", "serve", "--port", "0", "--silent", "--device", "cuda:1", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        address = json.loads(process.stdout.readline())["address"]
        with rpc.connect(address) as remote:
            assert [remote.device("cuda", i).exist for i in range(2)] == [True, False]
            assert not remote.device("opencl").exist
            assert remote.tensor([1, 2], device=remote.device("cuda")).numpy().tolist() == [1, 2]
    finally:
        process.terminate()
        process.communicate()


@pytest.mark.parametrize(("name", "code"), [("cuda:7", DEVICE_ERROR), ("nonsense", 1)])
def test_serve_refuses_a_device_that_does_not_work(name: str, code: int, driver: FakeDriver) -> None:
    done = portcall_command("serve", "--port", 0, "--device", name)
    assert done.returncode == code
    assert name in done.stderr
