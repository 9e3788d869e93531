# SPDX-License-Identifier: Apache-2.0
"""``portcall serve --capsules``: the server keeps the last sessions that crashed, of clients that agree."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from portcall import errors, rpc, testing
from portcall.rpc.server._capsules import Keeper, send_verdict
from portcall.rpc.wire._endings import Ending
from rpc.serving import Serving, serving
from rpc.test_capsule import library as library

AGREES = rpc.ConnectOptions(server_capsule=True)


def crash(server: Serving, library: Path, options: rpc.ConnectOptions | None) -> errors.RemoteCrashError:
    with rpc.connect(server.address, options=options) as remote:
        remote.upload(library)
        function = remote.load_module("k.so")["crash_at"]
        x = remote.tensor(np.arange(5, dtype="float32"))
        function(x, 1)
        with pytest.raises(errors.RemoteCrashError) as raised:
            function(x, 3)
    return raised.value


def keeping(folder: Path, *words: object) -> Any:
    return serving("--capsules", 2, *words, program="python", XDG_CACHE_HOME=str(folder))


@pytest.mark.parametrize("words", [(), ("--no-fork", "--audit", os.devnull)], ids=["forked", "spawned"])
def test_server_keeps_the_last_sessions_that_crash(words: tuple[str, ...], library: Path, tmp_path: Path) -> None:
    folder = tmp_path / "portcall" / "capsules"
    with keeping(tmp_path, *words) as server:
        crash(server, library, None)  # others do not agree, and the server has the library from now on
        assert list(folder.iterdir()) == []
        messages = [str(crash(server, library, AGREES)) for _ in range(3)]
        kept = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        assert [any(path.name in message for path in kept) for message in messages] == [False, True, True]
        assert kept[1].name in messages[2]
        assert kept[1].stat().st_mode & 0o777 == 0o600
        said = server.event("kept", lambda event: kept[1].name in event["message"])
        facts = testing.read_capsule(kept[1])
        assert (facts["session"], facts["signal"]) == (said["session"], "SIGSEGV")
        assert facts["call"] == "crash_at(float32[5], int)"
        assert "at 3" in facts["stderr"]
        assert not facts["incomplete"]
        here = testing.run_capsule(kept[1])
        assert (here.crashed, here.requests) == (True, here.requests_all)
        there = testing.run_capsule(kept[1], server.address)
        assert (there.crashed, len(list(folder.iterdir()))) == (True, 2)


def test_server_keeps_nothing_of_sessions_that_end_well_are_killed_or_lost(tmp_path: Path) -> None:
    folder = tmp_path / "portcall" / "capsules"
    with keeping(tmp_path) as server:
        for timeout in (0, 0.2):
            with rpc.connect(server.address, options=AGREES, session_timeout=timeout) as remote:
                if timeout:
                    with pytest.raises(errors.SessionTimeoutError):
                        remote.get_function("demo.hang")()
                else:
                    remote.get_function("demo.scale")(2, 3)
            server.event("ended")
        remote = rpc.connect(server.address, options=AGREES)
        server.stop()
        with pytest.raises(errors.RPCError):
            remote.get_function("demo.pid")()
    assert list(folder.iterdir()) == []


def test_server_without_capsules_keeps_none_of_clients_that_agree(server: Serving, tmp_path: Path) -> None:
    with rpc.connect(server.address, options=AGREES) as remote, pytest.raises(errors.RemoteCrashError) as raised:
        remote.get_function("demo.crash")(11)
    assert ".capsule" not in str(raised.value)


def test_server_that_has_no_place_for_capsules_says_so_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "portcall").write_text("no folder")
    command = [sys.executable, "-m", "portcall", "serve", "--port", "0", "--capsules", "1"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, str(tmp_path / "portcall") in done.stderr) == (1, True)


def test_keeper_of_a_session_beyond_its_limit_keeps_the_facts(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    keeper = Keeper(tmp_path, reader, 1, limit=100)
    keeper.requests(memoryview((200).to_bytes(8, "little") + bytes(200)))
    name = send_verdict(writer, Ending("crash", signal="SIGBUS", last_words='"\\\udc80\0' * 50), {"session": 7})
    os.close(writer)
    keeper.finish()
    os.close(reader)
    facts = testing.read_capsule(tmp_path / name)
    assert (facts["session"], facts["signal"], "100" in facts["incomplete"]) == (7, "SIGBUS", True)


def test_keeper_leaves_nothing_without_a_verdict(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    keeper = Keeper(tmp_path, reader, 1)
    keeper.requests(memoryview((8).to_bytes(8, "little") + bytes(8)))
    assert send_verdict(writer, Ending("closed"), {}) == ""
    os.close(writer)
    keeper.finish()
    os.close(reader)
    assert list(tmp_path.iterdir()) == []


def test_verdict_that_nobody_takes_keeps_nothing() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    assert send_verdict(writer, Ending("crash", signal="SIGBUS"), {}) == ""
    os.close(writer)
