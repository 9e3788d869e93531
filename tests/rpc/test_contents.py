# SPDX-License-Identifier: Apache-2.0
"""Uploads by content: what the server has is not sent again, what it loads is what was asked for, parts are resumed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zstandard

from portcall import errors, rpc
from portcall.rpc.client._contents import Content
from portcall.rpc.server._files import Files
from rpc.serving import FUNCTIONS, Serving

SERVED = (
    FUNCTIONS
    + """
@register("overwrite")
def overwrite(path):
    with open(path, "r+b") as file: file.seek(70_000); file.write(b"other")
"""
)
SIZE = 12 << 20


def some_bytes(name: str, size: int = SIZE) -> bytes:
    return hashlib.shake_256(name.encode()).digest(1 << 20) * (size >> 20)


def sent(session: rpc.Session, source: Any, name: str) -> int:
    """Upload, and return how many bytes that took."""
    before = session.stats()["bytes_sent"]
    session.upload(source, name)
    after: int = session.stats()["bytes_sent"]
    return after - int(before)


def size_of_largest(folder: Path) -> int:
    sizes = [0]
    for file in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            sizes.append(file.stat().st_size)
    return max(sizes)


def test_upload_of_what_the_server_has_moves_no_data(server: Serving, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(some_bytes("one"))
    for target in ("a.bin", "b.bin"):
        with rpc.connect(server.address) as remote:
            count = sent(remote, file, target)
            assert (count > SIZE) == (target == "a.bin"), count
            assert sent(remote, some_bytes("one"), "c.bin") < 10_000
            assert remote.download(target) == remote.download("c.bin") == file.read_bytes()
            assert remote.listdir() == [target, "c.bin"]


@pytest.mark.parametrize("target", ["small", "large"])
def test_upload_compresses_on_request(server: Serving, target: str) -> None:
    size = 5_000_001 if target == "large" else 100_000
    data = np.random.default_rng(size).integers(0, 4, size, "uint8").tobytes()
    steps: list[tuple[int, int]] = []
    with rpc.connect(server.address) as remote:
        before = remote.stats()["bytes_sent"]
        remote.upload(data, target, progress=lambda done, all_: steps.append((done, all_)), compress="zstd")
        assert remote.stats()["bytes_sent"] - before < 0.5 * size
        assert remote.download(target) == data
        assert steps[-1] == (size, size)


def test_upload_sends_what_cannot_be_compressed_as_it_is(server: Serving) -> None:
    data = np.random.default_rng(1).bytes(5_000_001) + bytes(4 << 20)
    with rpc.connect(server.address) as remote:
        remote.upload(data, "a", compress="zstd")
        assert remote.download("a") == data
        remote.upload(b"", "empty", compress="zstd")
        assert remote.download("empty") == b""
        with pytest.raises(errors.ArgumentError):
            remote.upload(data, "a", compress="gzip")  # type: ignore[arg-type]


def zeros_packed(size: int) -> bytes:
    stream = zstandard.ZstdCompressor().compressobj()
    return b"".join(stream.compress(bytes(1 << 20)) for _ in range(size >> 20)) + stream.flush()


def wide_window() -> bytes:
    stream = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=27)
    ).compressobj()
    return stream.compress(b"1234567890") + stream.flush()


@pytest.mark.parametrize(
    ("packed", "size"),
    [
        (zeros_packed(256 << 20), 10), (zeros_packed(256 << 20), 16 << 20), (zeros_packed(1 << 20), 17 << 20),
        (zeros_packed(1 << 20), (1 << 20) - 1), (zeros_packed(1 << 20), (1 << 20) + 1), (zeros_packed(1 << 20), -1),
        (zeros_packed(1 << 20)[:-9], 1 << 20), (wide_window(), 10), (b"no frame", 8),
    ],
    ids=["bomb", "bomb of the most", "over the most", "less", "more", "negative", "cut", "wide window", "garbage"],
)  # fmt: skip
def test_server_unpacks_no_more_than_announced(server: Serving, packed: bytes, size: int) -> None:
    with rpc.connect(server.address) as remote:
        write, before = remote.get_function("portcall.rpc.file_write_zstd"), remote["demo.peak"]()
        with pytest.raises(errors.RemoteError) as caught:
            write("f", 0, packed, size)
        assert caught.value.kind == "ValueError"
        assert remote["demo.peak"]() - before < 100 << 20
        assert remote.listdir() == []


def test_upload_sends_files_that_differ_in_the_middle(server: Serving) -> None:
    data = bytearray(some_bytes("two"))
    with rpc.connect(server.address) as remote:
        assert sent(remote, data, "a") > SIZE
        data[SIZE // 2] ^= 1
        assert sent(remote, data, "b") > SIZE
        assert remote.download("b") == data
        assert remote.download("a") != data


def test_upload_reports_progress_of_what_the_server_has(server: Serving) -> None:
    steps: list[tuple[int, int]] = []
    with rpc.connect(server.address) as remote:
        for _ in range(2):
            steps.clear()
            remote.upload(some_bytes("three"), "a", progress=lambda done, size: steps.append((done, size)))
            assert steps[-1] == (SIZE, SIZE)
    assert len(steps) == 1


def test_load_module_refuses_what_was_changed_on_the_server(
    server: Serving, kernel_library: Path, tmp_path: Path
) -> None:
    padded = tmp_path / "kernels.so"
    padded.write_bytes(kernel_library.read_bytes() + bytes(1 << 20))
    with (
        rpc.connect(server.address) as remote,
        rpc.connect(server.address) as other,
        rpc.connect(server.address) as third,
    ):
        remote.upload(padded)
        assert sent(other, padded, "kernels.so") < 100_000
        assert other.load_module("kernels.so")["add"](2, 3) == 5
        remote["demo.overwrite"]("kernels.so")
        assert sent(third, padded, "kernels.so") < 100_000
        with pytest.raises(ValueError, match="upload it again"):
            third.load_module("kernels.so")


def test_upload_resumes_after_a_lost_connection(server: Serving) -> None:
    data = some_bytes("resumed", 40 << 20)

    class Lost(Exception):
        pass

    def lose(done: int, size: int) -> None:
        if done >= 20 << 20:
            os.kill(pid, 9)

    with rpc.connect(server.address) as remote:
        pid = remote["demo.pid"]()
        with pytest.raises(errors.RPCError):
            remote.upload(data, "big", progress=lose)
    with rpc.connect(server.address) as again:
        assert sent(again, data, "big") < 21 << 20
        assert again.download("big") == data


def test_upload_resumes_in_the_same_session(server: Serving) -> None:
    data = some_bytes("broken off", 40 << 20)

    class BrokenOff(Exception):
        pass

    def break_off(done: int, size: int) -> None:
        if done >= 20 << 20:
            raise BrokenOff

    with rpc.connect(server.address) as remote:
        with pytest.raises(BrokenOff):
            remote.upload(data, "big", progress=break_off)
        assert sent(remote, data, "big") < 21 << 20
        assert remote.download("big") == data


def test_session_closes_files_that_it_has_received(server: Serving) -> None:
    with rpc.connect(server.address) as remote:
        folder = Path(f"/proc/{remote['demo.pid']()}/fd")
        for name in ("v1", "v2", "v3"):
            remote.upload(some_bytes(name), "file")
        while size_of_largest(folder) >= SIZE:
            time.sleep(0.001)  # until digests are found, in the background


def test_upload_all_sends_to_several_sessions_with_one_progress(server: Serving, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(some_bytes("all"))
    steps: list[tuple[int, int]] = []
    with rpc.connect(server.address) as one, rpc.connect(server.address) as two:
        rpc.upload_all([one, two], file, progress=lambda done, size: steps.append((done, size)))
        assert one.download("file") == two.download("file") == file.read_bytes()
        assert steps[-1] == (2 * SIZE, 2 * SIZE)
        assert [done for done, _ in steps] == sorted(done for done, _ in steps)
        two.close()
        with pytest.raises(errors.RPCError):
            rpc.upload_all([one, two], file, "more")
        assert "more" in one.listdir()


def test_sessions_keep_the_same_content_at_the_same_time(server: Serving) -> None:
    def keep(remote: rpc.Session) -> None:
        remote.upload(b"same", "same")
        begin, keep = remote["portcall.rpc.content_begin"], remote["portcall.rpc.content_keep"]
        for _ in range(300):
            begin("same", 4, "a" * 64)
            keep("same", "a" * 64)

    with rpc.connect(server.address) as one, rpc.connect(server.address) as two, ThreadPoolExecutor(2) as pool:
        assert list(pool.map(keep, [one, two])) == [None, None]
        assert one["portcall.rpc.content_find"](4, "a" * 64) == "complete"


# ---- What is kept ----


@pytest.fixture
def contents(tmp_path: Path) -> Iterator[tuple[Any, Path]]:
    (tmp_path / "session").mkdir()
    files = Files(3 << 20, keeps=True)
    files.enter(str(tmp_path / "session"), str(tmp_path / "store"))
    functions = {name.rpartition(".")[2]: function for name, function in files.functions.items()}
    yield SimpleNamespace(**functions), tmp_path
    files.close()


def test_store_keeps_what_was_used_last(contents: tuple[Any, Path]) -> None:
    store, place = contents
    samples = [f"{i:064x}" for i in range(5)]
    for i, sample in enumerate(samples):
        (place / "session" / str(i)).write_bytes(bytes(1 << 20))
        os.utime(place / "session" / str(i), (1000 + i, 1000 + i))
        if i == 3:
            assert store.content_take("again", 1 << 20, samples[0], hashlib.sha256(bytes(1 << 20)).hexdigest())
        store.content_keep(str(i), sample)
        (place / "session" / str(i)).unlink()  # its limit is that of the store
    assert [store.content_find(1 << 20, sample) for sample in samples] == ["complete", "", "", "complete", "complete"]


def test_store_keeps_256_files(contents: tuple[Any, Path]) -> None:
    store, place = contents
    for i in range(260):
        (place / "session" / "file").write_bytes(b"x")
        store.content_keep("file", f"{i:064x}")
        (place / "session" / "file").unlink()
    assert [store.content_find(1, f"{i:064x}") for i in (0, 3, 4, 259)] == ["", "", "complete", "complete"]


@pytest.mark.parametrize("text", ["", "../../x", "0" * 63, "G" * 64, "0" * 64 + "/", 5, None])
def test_store_refuses_names_that_are_no_digests(contents: tuple[Any, Path], text: Any) -> None:
    store, place = contents
    good = "0" * 64
    (place / "session" / "a").write_bytes(b"x")
    for function, args in (
        (store.content_find, (1, text)), (store.content_take, ("a", 1, good, text)), (store.content_keep, ("a", text)),
        (store.content_begin, ("a", 1, text)), (store.content_resume, ("a", 1, text)),
    ):  # fmt: skip
        with pytest.raises((ValueError, TypeError)):
            function(*args)


def test_store_does_not_follow_links_or_leave_the_directory(contents: tuple[Any, Path]) -> None:
    store, place = contents
    good = "0" * 64
    (place / "secret").write_bytes(b"secret")
    (place / "session" / "link").symlink_to(place / "secret")
    os.link(place / "secret", place / "session" / "hard")
    for path in ("link", "hard", "../secret", str(place / "secret")):
        with pytest.raises((PermissionError, FileNotFoundError)):
            store.content_keep(path, good)
    assert store.content_find(6, good) == ""


def test_content_knows_when_a_file_has_changed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    for text in (b"a" * 300_000, b"b" * 300_000):
        file.write_bytes(text)
        with file.open("rb") as opened:
            assert Content(opened).digest() == hashlib.sha256(text).hexdigest()
        os.utime(file, (1000, 1000))
        with file.open("rb") as opened:
            assert Content(opened).digest() == Content(opened).digest() == hashlib.sha256(text).hexdigest()
