# SPDX-License-Identifier: Apache-2.0
"""Sessions with a server that the system's ssh starts: Debian's sshd, with keys, directly and through a jump host."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from portcall import errors, rpc
from rpc import sshd
from rpc.processes import children_of, command_of, descendants_of
from rpc.serving import FUNCTIONS, wait_until


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sshd.Machine]:
    """A machine to which a server with functions was deployed."""
    folder = tmp_path_factory.mktemp("ssh")
    with sshd.machine(folder) as made:
        functions = folder / "functions.py"
        functions.write_text(FUNCTIONS)
        made.deploy(f'exec {shlex.quote(sys.executable)} -m portcall serve --import {functions} "$@"')
        yield made


@pytest.fixture(autouse=True)
def by_its_config(there: sshd.Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORTCALL_SSH", there.ssh)
    monkeypatch.setenv("PORTCALL_TOKEN", "of another server")


def folders() -> list[Path]:
    """The two folders with a socket of a connection: here and there."""
    [ssh] = ssh_processes()
    [forwarding] = [word for word in command_of(ssh).decode().split("\0") if word.startswith("-L")]
    return [Path(path).parent for path in forwarding.removeprefix("-L").split(":")]


def gone(paths: list[Path]) -> bool:
    return not any(path.exists() for path in paths)


def ssh_processes() -> set[int]:
    return {pid for pid in children_of(os.getpid()) if command_of(pid).startswith(b"ssh\0")}


def sshds_of(there: sshd.Machine) -> list[int]:
    """The processes of sshd that have the connections."""
    return [pid for pid in descendants_of(there.process.pid) if command_of(pid).startswith(b"sshd: ")]


@pytest.mark.parametrize("host", ["board", "behind"])
def test_connect_by_ssh_starts_a_server_for_a_session(host: str) -> None:
    with rpc.connect(f"ssh://{host}", timeout=60) as remote:
        assert (remote.name, remote.peer_kind) == (f"ssh://{host}", "portcall")
        data = np.arange(100000, dtype="float32")
        tensor = remote.empty(data.shape, "float32")
        tensor.copyfrom(data)
        assert (tensor.numpy() == data).all()
        assert remote.get_function("demo.scale")(4, 5) == 20
        session = remote.get_function("demo.pid")()
        made = folders()
        assert [path.stat().st_mode & 0o777 for path in made] == [0o700, 0o700]
    assert not ssh_processes()
    wait_until(lambda: not command_of(session) and gone(made))


def test_connect_by_ssh_says_how_a_session_crashed_and_opens_another() -> None:
    options = rpc.ConnectOptions(reconnect=30)
    with rpc.connect("ssh://board", timeout=60, options=options) as remote:
        with pytest.raises(errors.RemoteCrashError) as caught:
            remote.get_function("demo.crash")(int(signal.SIGSEGV))
        assert caught.value.signal == "SIGSEGV"
        assert remote.get_function("demo.scale")(4, 5) == 20


def test_connect_by_ssh_opens_parallel_sessions_over_one_connection() -> None:
    with rpc.connect("ssh://board", timeout=60, parallel=3) as remote:
        assert len(ssh_processes()) == 1
        assert len(remote.get_function("demo.scale").map([(k, 2) for k in range(9)])) == 9
    assert not ssh_processes()


def test_connect_by_ssh_that_is_cut_ends_the_server_and_starts_another_one() -> None:
    options = rpc.ConnectOptions(reconnect=30)
    with rpc.connect("ssh://board", timeout=60, options=options) as remote:
        session = remote.get_function("demo.pid")()
        [ssh], made = ssh_processes(), folders()
        os.kill(ssh, signal.SIGKILL)
        wait_until(lambda: not command_of(session))
        assert remote.get_function("demo.pid")() != session
    wait_until(lambda: gone(made))


def test_connect_by_ssh_starts_another_when_the_machine_is_silent(there: sshd.Machine) -> None:
    options = rpc.ConnectOptions(heartbeat=3, reconnect=60)
    with rpc.connect("ssh://board", timeout=60, options=options) as remote:
        pid = remote.get_function("demo.pid")
        session, silent = pid(), sshds_of(there)
        for process in silent:
            os.kill(process, signal.SIGSTOP)
        try:
            with pytest.raises(errors.SessionBrokenError):
                pid()
            assert remote.get_function("demo.pid")() != session
        finally:
            for process in silent:
                os.kill(process, signal.SIGKILL)
    wait_until(lambda: not command_of(session))


def test_connect_by_ssh_async_is_cancelled() -> None:
    made: list[Path] = []

    async def cancelled() -> None:
        opening = asyncio.ensure_future(rpc.connect_async("ssh://board", timeout=60))
        while not any(command_of(pid).count(b"-L") for pid in ssh_processes()):
            await asyncio.sleep(0.002)
        made.extend(folders())
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    asyncio.run(cancelled())
    wait_until(lambda: not ssh_processes() and gone(made))


def test_connect_by_ssh_tells_what_is_missing(there: sshd.Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def reason(address: str) -> str:
        with pytest.raises(errors.ConnectError) as caught:
            rpc.connect(address, timeout=60)
        return caught.value.reason

    assert reason("ssh://nobody@board") == "ssh"
    assert reason("ssh://board:1") == "ssh"
    with there.without_server():
        assert reason("ssh://board") == "no-server"
    with there.server("echo it is broken >&2; exit 3"):
        assert reason("ssh://board") == "not-started"
    with there.server("exec sleep 1000"), pytest.raises(errors.SessionTimeoutError):
        rpc.connect("ssh://board", timeout=1)
    with pytest.raises(ValueError, match="token="):
        rpc.connect("ssh://board", token="t")
    monkeypatch.setenv("PORTCALL_SSH", "/no/such/ssh")
    assert reason("ssh://board") == "no-ssh"
