# SPDX-License-Identifier: Apache-2.0
"""The server without Python under fire and without room: a little of ``make soak-board``, and a disk that is full."""

from __future__ import annotations

import resource

import pytest

from portcall import errors, rpc
from rpc.raw_client import EXCEPTION, RETURN, RawClient, text
from rpc.serving import serving
from rpc.soak import soak


def test_board_leaves_nothing_behind_after_sessions_that_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORTCALL_TEST_SERVER", "board")
    count = soak(32, 0, at_once=8)
    assert count["sessions"] == 32


def test_board_without_the_vm_says_how_to_get_one() -> None:
    with serving("--expose", "portcall.FindPlugin", program="board") as server, rpc.connect(server.address) as remote:
        with pytest.raises(errors.RemoteError, match=r"ModuleLoadError: .* --with vm"):
            remote["portcall.FindPlugin"]("relax.VMExecutable")
        assert remote["portcall.FindPlugin"]("opencl") == ""


def test_board_without_room_for_a_file_refuses_it_and_goes_on() -> None:
    with serving(program="board") as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        with RawClient(server.address).open() as client:
            assert client.call("tvm.rpc.server.upload", text("big"), text("x" * 200_000))[0] == EXCEPTION
            assert client.call("tvm.rpc.server.upload", text("small"), text("x"))[0] == RETURN
        while any(path.name.startswith("session-") for path in server.directories()):
            pass
