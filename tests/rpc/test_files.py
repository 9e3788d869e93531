# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="misc, no-untyped-call, return-value"
"""Files of a session: reading and writing in its directory and nowhere else, and libraries made of what is there."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import resource
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import portcall
from portcall import toolchain
from portcall.errors import CompileError
from portcall.rpc.client._library_check import objects
from portcall.rpc.server._files import Files
from portcall.rpc.server._linking import unpack

SOURCE = """
#include <portcall/portcall.h>
PORTCALL_EXPORT_TYPED(add, [](int64_t a, int64_t b) { return a + b; })
"""
LEADING_OUT = ["../secret", "a/../../secret", "..", "sub/..", "/etc/passwd", "/", "//etc/passwd", "up/secret", "link/x"]
ODD_NAMES = ["link", "up", "device", "pipe", "twin"]  # of special files, or not only of this directory


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with everything in it that should not be followed, beside a secret."""
    (tmp_path / "secret").write_text("secret")
    made = tmp_path / "root"
    (made / "sub").mkdir(parents=True)
    (made / "link").symlink_to(tmp_path / "secret")
    (made / "up").symlink_to(tmp_path)
    (made / "device").symlink_to("/dev/zero")
    os.mkfifo(made / "pipe")
    os.link(tmp_path / "secret", made / "twin")
    return made


class Called:
    """The functions for the files of a directory as methods, by the ends of their names."""

    def __init__(self, root: Path, limit: int = 0) -> None:
        self.files = Files(limit)
        self.files.enter(str(root))

    def __getattr__(self, name: str) -> Any:
        functions = self.files.functions
        return next(function for full, function in functions.items() if full.rpartition(".")[2] == name)


@pytest.fixture
def files(root: Path) -> Iterator[Called]:
    called = Called(root)
    yield called
    called.files.close()


def test_folder_upload_listdir_download_and_remove(files: Called, root: Path) -> None:
    files.upload("sub/a.txt", b"hello")
    assert files.listdir("sub") == "a.txt"
    assert files.download("sub/a.txt") == files.download(str(root / "sub/a.txt")) == b"hello"
    assert files.workpath("sub/a.txt") == str(root / "sub" / "a.txt")
    files.remove("sub/a.txt")
    files.remove("sub/a.txt")  # which is not an error
    assert files.listdir("sub") == ""
    with pytest.raises(FileNotFoundError, match=r"cannot find file 'sub/a\.txt'"):
        files.download("sub/a.txt")


@pytest.mark.parametrize("path", [*LEADING_OUT, *ODD_NAMES])
def test_folder_reads_nothing_outside(files: Called, path: str) -> None:
    for read in (files.download, files.file_size, files.file_digest, files.load_module, files.download_linked_module):
        with pytest.raises(OSError, match=r"."):
            read(path)


@pytest.mark.parametrize("path", LEADING_OUT)
def test_folder_writes_and_removes_nothing_outside(files: Called, root: Path, path: str) -> None:
    for act in (
        lambda: files.upload(path, b"new"),
        lambda: files.file_write(path, 6, b"x"),
        lambda: files.remove(path),
    ):
        with pytest.raises(OSError, match=r"."):
            act()
    assert (root.parent / "secret").read_text() == "secret"
    assert sorted(os.listdir(root.parent)) == ["root", "secret"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_folder_replaces_links_and_keeps_their_targets(files: Called, root: Path, name: str) -> None:
    with pytest.raises(PermissionError):
        files.file_write(name, 6, b"x")
    files.upload(name, b"new")
    assert files.download(name) == b"new"
    files.remove(name)
    assert (root.parent / "secret").read_text() == "secret"
    assert sorted(os.listdir(root.parent)) == ["root", "secret"]


def test_folder_path_refuses_or_stays_inside(files: Called, root: Path) -> None:
    @given(st.lists(st.sampled_from(["..", ".", "", "a", "sub", "/", "up", "\0", "é"]), max_size=6).map("/".join))
    def check(path: str) -> None:
        try:
            whole = files.workpath(path)
        except (PermissionError, ValueError):
            return
        assert os.path.normpath(whole) == whole
        assert whole == str(root) or whole.startswith(f"{root}/")

    check()


def test_remove_of_the_directory_itself_does_nothing(files: Called) -> None:
    before = files.listdir()
    files.remove("")
    assert files.listdir() == before


def test_folder_refuses_directories_and_invalid_arguments(files: Called) -> None:
    for act in (lambda: files.upload("sub", b""), lambda: files.remove("sub"), lambda: files.upload("", b"")):
        with pytest.raises(IsADirectoryError):
            act()
    with pytest.raises(FileNotFoundError, match="cannot find folder 'none'"):
        files.upload("none/a", b"")
    with pytest.raises(TypeError):
        files.download(3)
    with pytest.raises(TypeError, match="contents of a file"):
        files.upload("a", 2.5)
    with pytest.raises(ValueError, match="NUL"):
        files.download("a\0b")


def test_file_write_and_file_read_work_in_pieces(files: Called) -> None:
    data = os.urandom(10_000)
    done = 0
    while done < len(data):
        done = files.file_write("big", done, data[done : done + 3000])
    assert files.file_size("big") == 10_000
    assert b"".join(files.file_read("big", offset, 4096) for offset in range(0, 12_288, 4096)) == data
    assert files.file_read("big", 20_000, 10) == b""
    assert files.file_digest("big") == hashlib.sha256(data).hexdigest()
    with pytest.raises(ValueError, match="has 10000 bytes"):
        files.file_write("big", 5, b"")
    with pytest.raises(ValueError, match="cannot read"):
        files.file_read("big", -1, 10)
    assert files.file_write("empty", 0, b"") == 0


def test_file_write_leaves_no_part_of_a_piece(files: Called, root: Path) -> None:
    files.file_write("f", 0, b"ab")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        for name, start in (("f", 2), ("other", 0)):
            with pytest.raises(OSError, match="large"):
                files.file_write(name, start, bytes(2000))
            assert (root / name).stat().st_size == start
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_file_write_takes_and_file_fill_fills_tensors(files: Called) -> None:
    data = np.arange(1000, dtype="int32")
    assert files.file_write("a", 0, portcall.tensor(data[:600])) == 2400
    assert files.file_write("a", 2400, portcall.tensor(data[600:])) == 4000
    assert files.download("a") == data.tobytes()
    target = portcall.tensor(np.zeros(300, "int32"))
    assert files.file_fill("a", 400, target) == 1200
    np.testing.assert_array_equal(target.numpy(), data[100:400])
    assert files.file_fill("a", 3996, target) == 4
    assert target.numpy()[0] == 999
    assert files.file_fill("a", 5000, target) == 0
    with pytest.raises(TypeError):
        files.file_fill("a", 0, b"bytes")
    with pytest.raises(ValueError, match="compact tensor on the host"):
        files.file_write("b", 0, portcall.from_dlpack(data[::2]))
    locked = np.zeros(4, "int32")
    locked.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        files.file_fill("a", 0, portcall.from_dlpack(locked))


def test_upload_replaces_a_file_without_changing_open_ones(files: Called, root: Path) -> None:
    files.upload("a", b"old")
    with (root / "a").open("rb") as before:
        files.upload("a", b"newer")
        assert before.read() == b"old"
    assert files.download("a") == b"newer"


def test_disk_limit_counts_all_files(root: Path) -> None:
    files = Called(root, limit=1_000_000)
    files.upload("a", bytes(600_000))
    with pytest.raises(OSError, match="--disk-limit"):
        files.upload("b", bytes(600_000))
    with pytest.raises(OSError, match="--disk-limit"):
        files.file_write("a", 600_000, bytes(600_000))
    files.upload("b", bytes(300_000))


# ---- Modules ------------------------------------------------------------------------------------------------------


@pytest.fixture
def put(root: Path) -> Callable[[str, bytes], None]:
    return lambda name, data: (root / name).write_bytes(data) and None


def archive(*members: tuple[str, bytes | None], change: Callable[[tarfile.TarInfo], None] = lambda _: None) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data or b"")
            info.type = tarfile.DIRTYPE if data is None else tarfile.REGTYPE
            change(info)
            tar.addfile(info, io.BytesIO(data) if data is not None and info.isreg() else None)
    return made.getvalue()


def test_download_linked_module_links_sources_objects_and_archives(
    files: Called, root: Path, tmp_path: Path, put: Callable[[str, bytes], None]
) -> None:
    put("k.cc", SOURCE.encode())
    assert files.load_module("k.cc")["add"](1, 2) == 3
    assert "k.cc.so" in files.listdir()
    compiler = toolchain.find_compiler("c++")
    made = tmp_path / "k.o"
    words = (*compiler.command, *compiler.flags(), f"-I{toolchain.include_dir()}", "-c", str(root / "k.cc"))
    subprocess.run([*words, "-o", made], check=True)
    put("k.o", made.read_bytes())
    assert files.load_module("k.o")["add"](1, 2) == 3
    put(
        "k.tar",
        archive(("lib", None), ("lib/k.o", made.read_bytes()), ("devc.c", b"int unused;"), ("notes.md", b"hello")),
    )
    for _ in range(2):
        assert files.load_module("k.tar")["add"](1, 2) == 3
    linked = files.download_linked_module("k.tar")
    assert linked == files.download("k.tar.so") == files.download_linked_module("k.tar.so")
    put("k.so", linked)
    assert files.load_module("k.so")["add"](1, 2) == 3
    assert not [name for name in os.listdir(root) if name.startswith(".")]


def test_load_module_reports_failed_links(files: Called, put: Callable[[str, bytes], None]) -> None:
    put("bad.cc", b"this is no C++")
    with pytest.raises(CompileError, match=r"bad\.cc"):
        files.load_module("bad.cc")
    put("notes.md", b"hello")
    with pytest.raises(ValueError, match=r"unknown kind '\.md'"):
        files.load_module("notes.md")
    put("bad.tar", b"no archive")
    with pytest.raises(ValueError, match=r"bad\.tar"):
        files.load_module("bad.tar")
    put("empty.tar", archive(("notes.md", b"hello")))
    with pytest.raises(ValueError, match=r"empty\.tar"):
        files.load_module("empty.tar")
    with pytest.raises(FileNotFoundError, match="cannot find file"):
        files.load_module("missing.so")


def test_disk_limit_counts_linked_and_unpacked_files(root: Path, put: Callable[[str, bytes], None]) -> None:
    files = Called(root, limit=100_000)
    put("bomb.tar", gzip.compress(archive(("zeros.c", bytes(1 << 20)))))
    with pytest.raises(OSError, match="1048576 more are over the limit"):
        files.load_module("bomb.tar")
    assert sorted(files.listdir().split(",")) == sorted(["bomb.tar", "sub", *ODD_NAMES])
    files.remove("bomb.tar")
    put("large.cc", SOURCE.encode().ljust(60_000))
    with pytest.raises(OSError, match="60000 more are over the limit"):
        files.load_module("large.cc")


@pytest.mark.parametrize("compressed", [False, True])
def test_unpack_refuses_truncated_archives(files: Called, tmp_path: Path, compressed: bool) -> None:
    whole = archive(("a.c", b"int x;" * 100), ("b.c", os.urandom(700)))
    whole = gzip.compress(whole) if compressed else whole[: 2 * (512 + 1024) + 512]  # no more than the format asks
    place = tmp_path / "place"
    for size in [*range(0, len(whole), 256), len(whole) - 1]:
        (tmp_path / "a.tar").write_bytes(whole[:size])
        place.mkdir()
        with pytest.raises(ValueError, match="was not copied whole"):
            unpack(tmp_path / "a.tar", place, files.files)
        shutil.rmtree(place)
        with pytest.raises(ValueError, match="whole"):
            list(objects(tmp_path / "a.tar", ".tar"))
    (tmp_path / "a.tar").write_bytes(whole)
    place.mkdir()
    assert [path.name for path in unpack(tmp_path / "a.tar", place, files.files)] == ["a.c", "b.c"]


@pytest.mark.parametrize("name", ["../a.c", "/tmp/a.c", "x/../../a.c", "..", "x/.."])
def test_unpack_refuses_members_that_lead_outside(files: Called, tmp_path: Path, name: str) -> None:
    (tmp_path / "a.tar").write_bytes(archive((name, b"int x;")))
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(PermissionError, match="leads outside"):
        unpack(tmp_path / "a.tar", place, files.files)


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE], ids=repr
)
def test_unpack_refuses_special_files(files: Called, tmp_path: Path, kind: bytes) -> None:
    def change(info: tarfile.TarInfo) -> None:
        info.type, info.linkname, info.size = kind, "/etc/passwd", 0

    (tmp_path / "a.tar").write_bytes(archive(("a.c", b""), change=change))
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(ValueError, match="not an ordinary file"):
        unpack(tmp_path / "a.tar", place, files.files)
    assert list(place.iterdir()) == []
