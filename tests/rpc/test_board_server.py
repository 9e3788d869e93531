# SPDX-License-Identifier: Apache-2.0
"""The server without Python under fire and without room: a little of ``make soak-board``, and a disk that is full."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from portcall import errors, rpc, toolchain
from portcall.rpc.wire._facts import NOT_OPENED, SEE_LOG
from rpc.raw_client import EXCEPTION, RETURN, RawClient, hello, text
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


# A buffer that is full, as the server sees it.
FULL = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/socket.h>

ssize_t send(int fd, const void* data, size_t size, int flags) {
  ssize_t (*real)(int, const void*, size_t, int) = (ssize_t(*)(int, const void*, size_t, int))dlsym(RTLD_NEXT, "send");
  if (!memmem(data, size, "-auth=token", 11)) return real(fd, data, size, flags);
  errno = EAGAIN;
  return -1;
}
"""


def test_board_tells_no_stranger_what_failed(tmp_path: Path) -> None:
    (tmp_path / "full.c").write_text(FULL)
    full = toolchain.create_shared(tmp_path / "full.c", tmp_path / "full.so")
    with (
        serving(program="board", LD_PRELOAD=str(full), PORTCALL_TOKEN="a token of 16 letters") as server,
        RawClient(server.address) as client,
    ):
        client.send(hello("", " -portcall=1 -nonce=1"))
        assert client.read_notice() == NOT_OPENED + SEE_LOG
        assert client.at_end()
        assert "takes no answer" in server.event("dropped")["message"]
