# SPDX-License-Identifier: Apache-2.0
"""Machines of sessions: our client on our server and on TVM's, TVM's client on our server."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import portcall
from portcall import errors, rpc, vm
from rpc.serving import serving
from vm.compiled import MODES, Compiled, same

pytestmark = pytest.mark.peers
SCRIPTS = Path(__file__).parents[1] / "scripts"
TVM_SERVER = Path(__file__).parents[1] / "rpc" / "tvm_server.py"
NAMES = ("perceptron", "encoder", "branch", "loop", "tuples", "outputs", "shapes", "data", "closures")


@pytest.fixture(scope="module")
def ours() -> Iterator[int]:
    with serving("--key", "k") as running:
        yield running.port


@pytest.fixture(scope="module")
def theirs() -> Iterator[int]:
    command = [sys.executable, str(TVM_SERVER), "k"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())
        process.communicate()


@pytest.fixture(params=["ours", "theirs"])
def session(request: pytest.FixtureRequest, ours: int, theirs: int) -> Iterator[rpc.Session]:
    port = ours if request.param == "ours" else theirs
    with rpc.connect("127.0.0.1", port, key="k", call_timeout=60) as made:
        yield made


def open_machine(session: rpc.Session, path: Path) -> vm.VirtualMachine:
    return vm.create(session.load_module(session.upload(path)), session.cpu())


@pytest.mark.parametrize("mode", MODES)
def test_open_machine_runs_remotely_as_locally(mode: str, session: rpc.Session, models: Compiled) -> None:
    for name in NAMES:
        if name == "tuples" and session.peer_kind != "portcall":
            continue  # a server of TVM cannot make a tuple of the tensors of a client
        function, calls, results = models.calls(name)
        run = open_machine(session, models.path(name, mode))[function]
        for arguments, expected in zip(calls, results, strict=True):
            assert same(run(*arguments), expected), name


def test_open_machine_takes_and_returns_remote_tensors(session: rpc.Session, models: Compiled) -> None:
    m = open_machine(session, models.path("loop"))
    x = session.tensor(np.ones(4, "float32"))
    y = m(m(x))
    assert isinstance(y, rpc.RemoteTensor)
    assert same(y, np.full(4, 16, "float32"))
    assert m.benchmark(x, number=2, repeat=2).min > 0


def test_open_machine_errors_keep_their_class(session: rpc.Session, models: Compiled) -> None:
    m = open_machine(session, models.path("loop"))
    expected = ValueError if session.peer_kind == "portcall" else errors.RemoteError
    with pytest.raises(expected, match="x"):
        m(np.ones(4, "float64"))
    assert same(m(np.ones(4, "float32")), np.full(4, 8.5, "float32"))


def test_open_machine_profile_needs_a_portcall_server(ours: int, models: Compiled) -> None:
    with rpc.connect("127.0.0.1", ours, key="k", call_timeout=60) as session:
        m = open_machine(session, models.path("chain"))
        assert sum(row.calls for row in m.profile(np.ones(4, "float32")).rows) > 100
        assert str(m.signature()).startswith("main(x: R.Tensor")
        with pytest.raises(ValueError, match="of this process"):
            vm.create(portcall.load_module(models.path("chain")), session.cpu())


def test_vm_builtin_refuses_a_clients_pointer(ours: int) -> None:
    with rpc.connect("127.0.0.1", ours, key="k", call_timeout=60) as session, pytest.raises(errors.PortcallError):
        session.get_function("vm.builtin.alloc_storage")


@pytest.mark.parametrize("mode", MODES)
def test_server_runs_machines_for_tvm_clients(mode: str, ours: int, models: Compiled) -> None:
    command = [sys.executable, str(SCRIPTS / "tvm_vm_client.py"), str(ours), str(models.folder), mode]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
