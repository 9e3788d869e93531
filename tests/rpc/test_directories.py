# SPDX-License-Identifier: Apache-2.0
"""Deleting and counting what sessions leave: any depth, any rights, many names; and the process that does it."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import pytest

from portcall.rpc.server import _directories, _files
from portcall.rpc.server._directories import MOST_DEPTH, delete_tree, disk_usage
from portcall.rpc.server._directory_process import DirectoryProcess
from portcall.rpc.server._linking import unpack
from rpc.processes import children_of, command_of
from rpc.raw_client import RETURN, RawClient, integer, text
from rpc.serving import FUNCTIONS, Program, Serving, serving
from rpc.test_files import archive

DEEP = 1100  # more than Python's stack takes; the path is longer than the system takes


def dig(place: Path, depth: int, name: str = "deep-folder") -> None:
    """Make folders inside of folders, with a file in the last one."""
    folder = os.open(place, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=folder)
        inner = os.open(name, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    file = os.open("last", os.O_WRONLY | os.O_CREAT, dir_fd=folder)
    os.write(file, bytes(10_000))
    os.close(file)
    os.close(folder)


def test_delete_tree_deletes_any_depth(tmp_path: Path) -> None:
    place = tmp_path / "session"
    place.mkdir()
    dig(place, DEEP)
    dig(place, 3, "other")
    delete_tree(str(place))
    assert list(tmp_path.iterdir()) == []
    delete_tree(str(place))  # it is gone: nothing to do


def test_delete_tree_ignores_permissions_and_does_not_follow_links(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("kept")
    place = tmp_path / "session"
    (place / "a" / "b" / "c").mkdir(parents=True)
    (place / "a" / "b" / "c" / "file").write_text("x")
    (place / "a" / "link").symlink_to(kept)
    os.mkfifo(place / "a" / "pipe")
    for path in (place / "a" / "b" / "c", place / "a" / "b", place / "a", place):
        path.chmod(0)
    delete_tree(str(place))
    assert [path.name for path in tmp_path.rglob("*")] == ["kept", "file"]


def test_disk_usage_counts_allocated_blocks(tmp_path: Path) -> None:
    enough = 1 << 40
    (tmp_path / "a").write_bytes(bytes(100_000))
    once = disk_usage(str(tmp_path), enough)
    assert 100_000 <= once <= 200_000
    for number in range(10):
        os.link(tmp_path / "a", tmp_path / f"again-{number}")
    assert disk_usage(str(tmp_path), enough) == once + 10 * 512
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "b").write_bytes(bytes(100_000))
    (tmp_path / "closed").chmod(0o300)
    (tmp_path / "link").symlink_to("/")
    assert 2 * once <= disk_usage(str(tmp_path), enough) <= 4 * once
    assert disk_usage(str(tmp_path), 50_000) > 50_000
    assert disk_usage(str(tmp_path / "missing"), enough) == 0


def test_disk_usage_counts_deep_folders(tmp_path: Path) -> None:
    enough = 1 << 40
    dig(tmp_path, MOST_DEPTH - 1)
    assert 10_000 <= disk_usage(str(tmp_path), enough) <= enough
    dig(tmp_path, MOST_DEPTH, "deeper")
    assert disk_usage(str(tmp_path), enough) > enough


def test_unpack_refuses_deep_folders(tmp_path: Path) -> None:
    files = _files.Files()
    files.enter(str(tmp_path))
    place = tmp_path / "place"
    place.mkdir()
    for name in ("d/" * 1500 + "a.c", "d/" * 1500):
        (tmp_path / "a.tar").write_bytes(archive((name, None if name.endswith("/") else b"int x;")))
        with pytest.raises(ValueError, match="folders"):
            unpack(tmp_path / "a.tar", place, files)
    assert list(place.iterdir()) == []
    files.close()


# ---- The process ---------------------------------------------------------------------------------------------------


class Events:
    """What a supervisor does with a directory process: watches descriptors, and takes counts."""

    def __init__(self) -> None:
        self.actions: dict[int, object] = {}
        self.counts: dict[str, int] = {}
        self.process = DirectoryProcess(self.actions.__setitem__, self.actions.__delitem__, self.counts.__setitem__)

    def step(self) -> None:
        for descriptor in select.select(list(self.actions), [], [])[0]:
            self.actions[descriptor](descriptor)  # type: ignore[operator]


def test_directory_process_deletes_and_counts(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    dig(tmp_path / "a", DEEP)
    (tmp_path / "b").write_bytes(bytes(5000))
    events = Events()
    events.process.count(str(tmp_path), 1 << 40)
    events.process.count(str(tmp_path), 1 << 40)
    while not events.counts:
        events.step()
    assert list(events.counts) == [str(tmp_path)]
    events.process.delete(str(tmp_path / "a"))
    while (tmp_path / "a").exists():
        events.step()
    (tmp_path / "base" / "contents").mkdir(parents=True)
    assert events.process.finish(str(tmp_path / "base"))
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_directory_process_killed_is_restarted_with_its_orders(tmp_path: Path) -> None:
    events = Events()
    assert events.process.pid is not None
    os.kill(events.process.pid, signal.SIGSTOP)
    for number in range(200):  # more than fits into its socket
        (tmp_path / str(number)).mkdir()
        events.process.delete(str(tmp_path / str(number)))
    before = events.process.pid
    os.kill(before, signal.SIGKILL)
    while events.process.pid == before:
        events.step()
    while list(tmp_path.iterdir()):
        events.step()
    assert events.process.finish(str(tmp_path))
    assert not tmp_path.exists()


def test_directory_process_failing_leaves_all_to_the_next_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_directories, "__file__", str(tmp_path / "missing.py"))
    place = tmp_path / "place"
    (place / "inner").mkdir(parents=True)
    events = Events()
    events.process.delete(str(place))
    assert not events.process.finish(str(tmp_path))
    assert list(tmp_path.iterdir()) == [place]


# ---- In a server ---------------------------------------------------------------------------------------------------

DIGGING = """
@register("dig")
def dig(depth):
    for _ in range(depth):
        os.mkdir("deep-folder"); os.chdir("deep-folder")
    with open("last", "wb") as file: file.write(bytes(10_000_000))
"""


def await_deletion(server: Serving) -> None:
    while any(path.name.startswith("session-") for path in server.directories()):
        pass


def test_server_deletes_deep_folders_of_a_session(tmp_path: Path) -> None:
    with serving(functions=FUNCTIONS + DIGGING) as server:
        for _ in range(2):
            with RawClient(server.address).open() as client:
                assert client.call("demo.dig", integer(DEEP))[0] == RETURN
        await_deletion(server)


@pytest.mark.parametrize("program", ["python", "board"])
def test_server_that_is_stopped_ends_before_all_is_deleted_and_the_next_one_goes_on(program: Program) -> None:
    with serving(program=program) as first:
        children = children_of(first.process.pid)
        (pid,) = [child for child in children if program == "board" or b"_directories" in command_of(child)]
        with RawClient(first.address).open() as client:
            assert client.call("tvm.rpc.server.upload", text("file"), text("hello"))[0] == RETURN
            os.kill(pid, signal.SIGSTOP)
            name = client.name
        first.ended(name)
        assert first.stop() == 0
        (left,) = first.directories()
        assert (left / "files" / "file").read_text() == "hello"
        assert not command_of(pid)
        with serving(program=program, work=first.work):
            while left.parent.exists():
                pass


def test_disk_limit_counts_files_below_the_longest_path() -> None:
    with (
        serving("--disk-limit", "1MiB", functions=FUNCTIONS + DIGGING) as server,
        RawClient(server.address).open() as client,
    ):
        client.call("demo.dig", integer(DEEP))
        assert server.ended(client.name)["how"] == "disk"
        await_deletion(server)
