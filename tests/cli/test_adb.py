# SPDX-License-Identifier: Apache-2.0
"""``adb://`` in connect and deploy, with a command that answers as adb does. No device was tried."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from portcall import deploy, errors, rpc
from rpc import board, sshd
from rpc.processes import command_of
from rpc.serving import wait_until

FAKE = Path(__file__).parents[1] / "rpc" / "fake_adb.py"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The home of a device with the serial number "board"; what is forwarded to it ends afterwards."""
    folder = tmp_path / "device"
    folder.mkdir()
    monkeypatch.setenv("PORTCALL_ADB", shlex.join([sys.executable, str(FAKE), str(folder)]))
    yield folder
    deploy.remove("adb://board")
    for way in ways(folder):
        os.kill(int(way.name), signal.SIGTERM)


def ways(home: Path) -> list[Path]:
    return list(home.with_name("device-ways").glob("*"))


def test_deploy_and_connect_by_adb(home: Path) -> None:
    with pytest.raises(errors.ConnectError) as raised:
        rpc.connect("adb://board", timeout=60)
    assert raised.value.reason == "no-server"
    settings = deploy.Settings("rasp", "127.0.0.1", sshd.free_port())
    first = deploy.deploy("adb://board", settings, board.program())
    again = deploy.deploy("adb://board", settings, board.program())
    assert (first.sent, again.sent, again.restarted) == (True, False, False)
    assert (again.address, again.pid, len(ways(home))) == (first.address, first.pid, 1)
    assert first.address != f"127.0.0.1:{settings.port}"  # a port here, which adb forwards
    with rpc.connect(first.address, token=first.token, timeout=60) as remote:
        assert remote.peer_kind == "portcall"
    with rpc.connect("adb://board", timeout=60) as remote:
        assert (remote.name, remote.peer_kind) == ("adb://board", "portcall")
        assert remote.empty((4,), "float32").shape == (4,)
        assert len(ways(home)) == 2
    wait_until(lambda: len(ways(home)) == 1)
    assert deploy.remove("adb://board")
    assert not command_of(first.pid)


def test_adb_without_such_a_device_or_command_says_so(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for use in (deploy.look, rpc.connect):
        with pytest.raises(errors.ConnectError) as raised:
            use("adb://other")
        assert raised.value.reason == "adb"
    with monkeypatch.context() as patch:
        patch.setenv("PORTCALL_ADB", "no-such-adb")
        with pytest.raises(errors.ConnectError) as raised:
            rpc.connect("adb://board")
        assert raised.value.reason == "no-adb"


@pytest.mark.parametrize("address", ["adb://-x", "adb://a b", "adb://a/b"])
def test_adb_address_is_a_serial_number(address: str) -> None:
    with pytest.raises(ValueError, match="adb://"):
        rpc.connect(address)
