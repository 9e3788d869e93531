# SPDX-License-Identifier: Apache-2.0
"""Sessions that crashed are kept in capsules, which are run again, here and on servers."""

from __future__ import annotations

import errno
import json
import os
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from portcall import errors, rpc, testing, toolchain
from portcall.cli import cli
from portcall.rpc import _capsule_run
from portcall.rpc.client._capsule import FIRST_LINE, Capsule
from rpc.serving import Serving

KERNEL = """
#include <portcall/portcall.h>
#include <csignal>
#include <cstdio>
PORTCALL_EXPORT_TYPED(crash_at, [](portcall::TensorView x, int64_t at) {
  std::fprintf(stderr, "at %d\\n", static_cast<int>(at));
  if (x.data<float>()[at] > 2) std::raise(SIGSEGV);
})
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("capsule")
    (folder / "k.cc").write_text(KERNEL + "static const char kPadding[400000] = {1};\n")
    return toolchain.create_shared(folder / "k.cc", folder / "k.so")


def crash(server: Serving, library: Path, folder: Path, **options: int) -> errors.RemoteCrashError:
    """Have a session crash, of which others had sent the library before."""
    for capsule in (None, folder):
        with rpc.connect(server.address, options=rpc.ConnectOptions(capsule=capsule, **options)) as remote:  # type: ignore[arg-type]
            remote.upload(library)
            function = remote.load_module("k.so")["crash_at"]
            x = remote.tensor(np.arange(5, dtype="float32"))
            assert x.numpy()[4] == 4
            function(x, 1)
            if capsule is not None:
                with pytest.raises(errors.RemoteCrashError) as raised:
                    function(x, 3)
                return raised.value
    raise AssertionError


def test_capsule_crashes_again_here_under_a_debugger_and_on_a_server(
    server: Serving, library: Path, tmp_path: Path
) -> None:
    error = crash(server, library, tmp_path / "folder")
    (path,) = (tmp_path / "folder").iterdir()
    assert str(path) in str(error)
    assert path.stat().st_mode & 0o777 == 0o600
    facts = testing.read_capsule(path)
    assert (facts["signal"], facts["call"], facts["peer"]) == ("SIGSEGV", error.call, server.address)
    assert facts["files"]["k.so"]["nbytes"] == library.stat().st_size
    assert "at 3" in facts["stderr"]
    assert not facts["incomplete"]
    here = testing.run_capsule(path)
    assert (here.crashed, here.requests) == (True, here.requests_all)
    assert "SIGSEGV" in here.ending
    mark = tmp_path / "mark"
    words = [sys.executable, "-c", f"import os, sys; open({str(mark)!r}, 'w'); os.execv(sys.argv[1], sys.argv[1:])"]
    assert testing.run_capsule(path, debugger=words).crashed
    assert mark.exists()
    there = testing.run_capsule(path, server.address)
    assert (there.crashed, there.requests) == (True, there.requests_all)
    assert "SIGSEGV" in there.ending
    assert len(list((tmp_path / "folder").iterdir())) == 1


def test_capsule_commands_show_and_run(server: Serving, library: Path, tmp_path: Path) -> None:
    crash(server, library, tmp_path)
    (path,) = map(str, tmp_path.iterdir())

    def portcall(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, ["capsule", *words])
        return done.exit_code, done.stdout

    code, text = portcall("show", path)
    assert (code, "crash_at(float32[5], int)" in text, "SIGSEGV" in text) == (0, True, True)
    code, text = portcall("run", path, "--json")
    assert (code, json.loads(text)["crashed"]) == (5, True)
    code, text = portcall("run", path, "--rpc", server.address)
    assert (code, "SIGSEGV" in text) == (5, True)
    code, text = portcall("run", path, "--debugger", "env")
    assert (code, text.endswith("requests\n")) == (5, True)
    code, text = portcall("run", path, "--debugger", "no-such-program", "--json")
    assert (code, json.loads(text)["error"]["kind"]) == (1, "FileNotFoundError")


@pytest.mark.parametrize("cut", ["in a frame", "between frames"])
def test_capsule_that_was_cut_off_shows_what_is_left(cut: str, server: Serving, library: Path, tmp_path: Path) -> None:
    crash(server, library, tmp_path)
    (path,) = tmp_path.iterdir()
    frames = _capsule_run.read_capsule(path).frames
    end = frames.end - len([frame for _, frame in frames][-1]) - 1
    os.truncate(path, end + (cut == "in a frame"))
    done = CliRunner().invoke(cli, ["capsule", "show", str(path)])
    assert (done.exit_code, "crash_at(float32[5], int)" in done.stdout, "cut off" in done.stderr) == (1, True, True)
    done = CliRunner().invoke(cli, ["capsule", "show", str(path), "--json"])
    assert (done.exit_code, json.loads(done.stdout)["signal"]) == (1, "SIGSEGV")
    with pytest.raises(ValueError, match="cut off"):
        testing.run_capsule(path)


def test_capsule_gives_a_debugger_no_names_of_its_own_descriptors(
    server: Serving, library: Path, tmp_path: Path
) -> None:
    crash(server, library, tmp_path / "folder")
    (path,) = (tmp_path / "folder").iterdir()
    words = ["env", "LD_DEBUG=files", f"LD_DEBUG_OUTPUT={tmp_path / 'files'}"]  # what is loaded, by the linker's names
    assert testing.run_capsule(path, debugger=words).crashed
    names = re.findall(r"file=(/proc/self/\S*/fd/\S*) ", "".join(each.read_text() for each in tmp_path.glob("files.*")))
    assert names
    assert not any(map(os.path.exists, names))  # this process is no more that one than a debugger is


def test_capsule_on_a_full_disk_keeps_the_facts(server: Serving, library: Path, tmp_path: Path) -> None:
    def writing(self: Capsule, facts: dict[str, Any], name: str) -> str:
        if not self._why:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(self, facts, name)

    write = Capsule._write
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Capsule, "_write", writing)
        error = crash(server, library, tmp_path)
    (path,) = tmp_path.iterdir()
    assert str(path) in str(error)
    assert "space" in testing.read_capsule(path)["incomplete"]


def test_capsule_that_cannot_be_kept_says_why(server: Serving, library: Path, tmp_path: Path) -> None:
    def writing(self: Capsule, facts: dict[str, Any], name: str) -> str:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Capsule, "_write", writing)
        error = crash(server, library, tmp_path / "folder")
    assert os.strerror(errno.EROFS) in str(error)
    assert "portcall capsule run" not in str(error)


def test_capsule_gives_back_the_room_of_what_it_cannot_keep(tmp_path: Path) -> None:
    kept = Capsule(tmp_path, 1 << 20)
    kept.writelines([b"x" * 5000])  # some of it may be held back
    kept.drop("no room")
    kept._frames.flush()
    assert os.fstat(kept._frames.fileno()).st_blocks * 512 <= 8192


@pytest.mark.parametrize("kind", ["pipe", "/dev/zero", "sparse"])
def test_capsule_that_is_no_file_or_without_end_is_an_error(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "sparse":
        path.write_bytes(FIRST_LINE + b"{}\n")
        os.truncate(path, 40 << 30)  # more than fits into memory
    with pytest.raises(ValueError, match="capsule"):
        testing.run_capsule(kind if kind.startswith("/") else path)


def test_capsule_that_no_longer_crashes_says_so(server: Serving, library: Path, tmp_path: Path) -> None:
    crash(server, library, tmp_path)
    (path,) = tmp_path.glob("*.capsule")
    data = path.read_bytes()
    floats = np.arange(5, dtype="float32").tobytes()
    assert floats in data
    (tmp_path / "other").write_bytes(data.replace(floats, np.zeros(5, "float32").tobytes(), 1))
    found = testing.run_capsule(tmp_path / "other")
    assert not found.crashed
    assert found.differs


def test_session_that_ends_well_leaves_no_capsule(server: Serving, library: Path, tmp_path: Path) -> None:
    with rpc.connect(server.address, options=rpc.ConnectOptions(capsule=tmp_path)) as remote:
        remote.upload(library)
        with pytest.raises(errors.RemoteError):
            remote.load_module("none.so")
    assert list(tmp_path.iterdir()) == []


def test_capsule_of_a_session_beyond_the_limit_has_the_facts_alone(
    server: Serving, library: Path, tmp_path: Path
) -> None:
    crash(server, library, tmp_path, capsule_limit=1000)
    (path,) = tmp_path.iterdir()
    assert path.stat().st_size < 10_000
    assert "1,000" in testing.read_capsule(path)["incomplete"]
    with pytest.raises(ValueError, match="1,000"):
        testing.run_capsule(path)


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return open, ("taken", "w")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        pickle.dumps(Evil()),
        FIRST_LINE,
        FIRST_LINE + b"{}",
        FIRST_LINE + b"[]\n",
        FIRST_LINE + b"[" * 100_000 + b"\n",
        FIRST_LINE + b"{}\n\2" + bytes(8),
        FIRST_LINE + b"{}\n\0" + b"\xff" * 8,
        FIRST_LINE + b"{}\n\0\4\0\0",
        FIRST_LINE + b"{}\n" + bytes(90),
        FIRST_LINE + b'{"a":' + b"[" * 450 + b"]" * 450 + b"}\n\0\4",
    ],
)
def test_damaged_capsule_is_an_error(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(ValueError, match="file"):
        testing.run_capsule("file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_hostile_capsule_does_not_hang(tmp_path: Path) -> None:
    facts = {"files": {"../../x": {}}, "features": "no list", "stderr": "\x1b[2J", "incomplete": ""}
    head = FIRST_LINE + json.dumps(facts).encode() + b"\n"
    garbage = (16).to_bytes(8, "little") + b"\x7f" * 16
    (tmp_path / "file").write_bytes(head + (b"\0" + garbage) * 3 + b"\1" + garbage)
    assert "\x1b" not in str(testing.read_capsule(tmp_path / "file"))
    with pytest.raises(TimeoutError):  # nothing answers such frames
        testing.run_capsule(tmp_path / "file", timeout=1)


@pytest.mark.parametrize("other", ["reconnect", "record", "parallel"])
def test_capsule_is_of_one_session(server: Serving, other: str, tmp_path: Path) -> None:
    options = {"reconnect": {"reconnect": 1}, "record": {"record": tmp_path / "r"}, "parallel": {}}[other]
    with pytest.raises(ValueError, match="capsule="):
        rpc.connect(
            server.address,
            parallel=2 if other == "parallel" else 1,
            options=rpc.ConnectOptions(capsule=tmp_path, **options),  # type: ignore[arg-type]
        )
