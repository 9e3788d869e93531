# SPDX-License-Identifier: Apache-2.0
"""Sessions that were recorded are served again: the same values, errors and output, without the server."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import portcall
from portcall import errors, rpc, testing
from portcall.rpc._replay import Recording
from portcall.rpc.client._record import keep_frames
from rpc.serving import FUNCTIONS, Serving

SERVER_OPTIONS = ("--key", "k")
SERVED = (
    FUNCTIONS
    + """
@register("say")
def say(text): print(text)
"""
)


def read_exactly(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (piece := sock.recv(size - len(data))):
        data += piece
    return bytes(data)


def program(remote: rpc.Session) -> list[object]:
    """Do some of everything, and return what came of it."""
    results: list[object] = [remote["demo.scale"](3, 4), remote["demo.cwd"](), tuple(remote["ffi.Shape"](2, 3))]
    there = remote.tensor(np.arange(6, dtype="float32"))
    remote["demo.fill"](there, 5)
    results.append(there.numpy().tolist())
    results.append(remote["demo.adder"](5)(6))
    with pytest.raises(ValueError, match="boom") as raised:
        remote["demo.fail"]("boom")
    results += [type(raised.value).__name__, raised.value.remote_traceback.splitlines()[1:]]  # type: ignore[attr-defined]
    remote.upload(b"x" * 500_000, "file")
    results.append(remote.download("file"))
    return results


def test_replay_gives_what_the_recorded_session_gave(server: Serving, tmp_path: Path) -> None:
    path = tmp_path / "session.rec"
    with rpc.connect(server.address, key="k", options=rpc.ConnectOptions(record=path)) as remote:
        expected = program(remote)
    with testing.replay(path) as board:
        for _ in range(2):
            with rpc.connect(board.address, key="k") as remote:
                assert program(remote) == expected


def test_replay_gives_output_too(server: Serving, tmp_path: Path) -> None:
    path = tmp_path / "session.rec"
    printed: list[str] = []
    with rpc.connect(
        server.address, key="k", options=rpc.ConnectOptions(record=path, on_output=lambda line, _: printed.append(line))
    ) as remote:
        remote["demo.say"]("hello")
    with testing.replay(path) as board:
        with rpc.connect(
            board.address, options=rpc.ConnectOptions(on_output=lambda line, _: printed.append(line))
        ) as remote:
            remote["demo.say"]("hello")
        assert printed == ["hello", "hello"]
        with rpc.connect(board.address) as remote:
            remote["demo.say"]("hello")
        assert len(printed) == 2


def test_replay_refuses_what_was_not_recorded(server: Serving, tmp_path: Path) -> None:
    path = tmp_path / "session.rec"
    with rpc.connect(server.address, key="k", options=rpc.ConnectOptions(record=path)) as remote:
        remote["demo.scale"](3, 4)
    with testing.replay(path) as board, rpc.connect(board.address) as remote:
        scale = remote["demo.scale"]
        with pytest.raises(errors.RemoteError, match="recording"):
            scale(3, 5)
        assert scale(3, 4) == 12
        with pytest.raises(errors.RemoteError, match="recording"):
            scale(3, 4)


@pytest.mark.parametrize("damage", ["other", "cut", "empty"])
def test_replay_refuses_files_that_are_no_recordings(server: Serving, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "session.rec"
    with rpc.connect(server.address, key="k", options=rpc.ConnectOptions(record=path)) as remote:
        remote["demo.scale"](3, 4)
    whole = path.read_bytes()
    path.write_bytes({"other": b"x" + whole, "cut": whole[:-5], "empty": b""}[damage])
    with pytest.raises(ValueError, match=r"session\.rec"):
        testing.replay(path)


def test_recording_moves_large_frames_both_ways_at_once(tmp_path: Path) -> None:
    frame = (8 << 20).to_bytes(8, "little") + bytes(8 << 20)
    server, far = socket.socketpair()
    descriptor, pump = keep_frames(far.detach(), tmp_path / "both", {})
    with server, socket.socket(fileno=descriptor) as client, ThreadPoolExecutor(3) as pool:
        answering = pool.submit(server.sendall, frame)  # before it reads
        reading = pool.submit(read_exactly, client, len(frame))
        pool.submit(client.sendall, frame)
        answering.result()
        assert (read_exactly(server, len(frame)), reading.result()) == (frame, frame)
    pump.join()
    assert [len(e.request) for e in Recording.read(tmp_path / "both").exchanges] == [len(frame)]


def test_connect_refuses_a_recording_that_cannot_be_written(server: Serving, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        rpc.connect(server.address, key="k", options=rpc.ConnectOptions(record=tmp_path / "missing" / "file"))
    assert portcall.get_global_func("testing.echo")(1) == 1
