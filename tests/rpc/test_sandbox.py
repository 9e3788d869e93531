# SPDX-License-Identifier: Apache-2.0
"""Sessions in a sandbox: no way out, what is open is named, and ordinary work goes on."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from portcall import rpc, toolchain
from portcall.errors import RemoteCrashError
from rpc import board
from rpc.processes import descendants_of
from rpc.raw_client import RawClient, hello
from rpc.serving import FUNCTIONS, Program, Serving, command_of, serving, wait_until

ESCAPES = board.ROOT / "tests" / "native" / "escapes.cc"
IPC_CREAT, IPC_RMID = 0o1000, 0
PROGRAMS: tuple[Program, ...] = ("python", "board")


@pytest.fixture(scope="module")
def escapes() -> Path:
    return board.compiled("escapes.so", [ESCAPES], lambda made: toolchain.create_shared(ESCAPES, made))


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[tuple[str, int, int, int]]:
    """What sessions are to be kept from: files and sockets in a folder, a process, a port, things of System V."""
    for name in ("file", "long", "old", "moved"):
        (tmp_path / name).write_text("text")
    (tmp_path / "program").write_text("#!/bin/sh\n")
    (tmp_path / "program").chmod(0o755)
    libc = ctypes.CDLL(None, use_errno=True)
    with (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as victim,
        socket.create_server(("127.0.0.1", 0)) as tcp,
        socket.socket(socket.AF_UNIX) as named,
        socket.socket(socket.AF_UNIX) as abstract,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
    ):
        port = tcp.getsockname()[1]
        named.bind(str(tmp_path / "socket"))
        abstract.bind(f"\0portcall-{port}")
        datagrams.bind(str(tmp_path / "datagrams"))
        named.listen()
        abstract.listen()
        key = 0x70_0000_00 | port
        made = (libc.shmget(key, 4096, IPC_CREAT | 0o600), libc.semget(key, 1, IPC_CREAT | 0o600),
                libc.msgget(key, IPC_CREAT | 0o600))  # fmt: skip
        try:
            assert min(made) >= 0
            yield str(tmp_path), victim.pid, port, key
        finally:
            libc.shmctl(made[0], IPC_RMID, None)
            libc.semctl(made[1], 0, IPC_RMID)
            libc.msgctl(made[2], IPC_RMID, None)
            victim.kill()


def attempts(server: Serving, outside: tuple[Any, ...]) -> dict[str, int]:
    """The errors of all ways out, by their group and name."""
    with rpc.connect(server.address) as remote:
        remote.get_function("escape.prepare")(*outside)
        names = remote.get_function("escape.names")()
        return dict(zip(map(str, names), map(int, remote.get_function("escape.attempt")()), strict=True))


def check_survivors(server: Serving, expected: bool) -> None:
    """A program that a session starts is there when the session has ended, or goes with it."""
    with rpc.connect(server.address) as remote:
        pid = remote.get_function("escape.survive")()
        handle = os.pidfd_open(pid)
    try:
        if expected:
            server.event("ended", lambda event: event["session"] == 2)
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        assert select.select([handle], [], [], 60)[0]
    finally:
        os.close(handle)


def groups(names: Any) -> set[str]:
    return {name.partition(":")[0] for name in names}


@pytest.mark.parametrize("program", PROGRAMS)
def test_sandbox_has_no_way_out(program: Program, escapes: Path, outside: tuple[Any, ...]) -> None:
    with serving("--sandbox", "require", "--load-library", escapes, program=program) as server:
        assert server.event("sandbox")["open"] == ""
        tried = attempts(server, outside)
        assert len(tried) >= 40
        assert [name for name, error in tried.items() if not error] == []
        check_survivors(server, expected=False)


@pytest.mark.parametrize("hidden", ["landlock", "seccomp", "namespaces", "limit", "landlock seccomp namespaces"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_sandbox_names_what_is_open(
    program: Program, hidden: str, escapes: Path, outside: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PORTCALL_TEST_SANDBOX_HIDES", hidden)
    words = ("--sandbox", "best", "--load-library", escapes)
    with serving(*words, program=program) as server:
        named = set(server.event("sandbox")["open"].split(","))
        assert named == set(rpc.find_sandbox().open)  # which `portcall doctor` shows
        tried = attempts(server, outside)
        is_open = groups(name for name, error in tried.items() if not error)
        # A process that has capabilities, as root's have, is closed to one that has given them up.
        assert is_open | {"survivors", "memory"} == named | {"survivors", "memory"}
        check_survivors(server, "survivors" in named)


def test_server_waits_for_the_children_that_sessions_give_it(escapes: Path) -> None:
    words = ("--sandbox", "best", "--load-library", escapes)
    with serving(*words, program="python", PORTCALL_TEST_SANDBOX_HIDES="seccomp") as server:
        before = descendants_of(server.process.pid)
        with rpc.connect(server.address) as remote:
            assert [int(remote.get_function("escape.give_child")()) for _ in range(9)] == [0] * 9
            assert descendants_of(server.process.pid) > before
        wait_until(lambda: descendants_of(server.process.pid) == before)


@pytest.mark.parametrize("program", PROGRAMS)
def test_sandbox_goes_on_beside_a_session_with_all_its_processes(program: Program, escapes: Path) -> None:
    with serving("--sandbox", "require", "--load-library", escapes, program=program) as server:
        before = descendants_of(server.process.pid)
        with (
            rpc.connect(server.address) as first,
            rpc.connect(server.address) as full,
            rpc.connect(server.address) as second,
        ):
            assert full.get_function("escape.fill")() == errno.EAGAIN
            with rpc.connect(server.address) as later:
                for remote in (first, second, later):
                    assert remote.get_function("escape.survive")() > 0
        wait_until(lambda: descendants_of(server.process.pid) == before)


def marked(mark: str) -> list[str]:
    """The processes that have a word in their environment."""
    found = []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark.encode() in file.read_bytes():
                found.append(file.parent.name)
    return found


@pytest.mark.parametrize("hidden", ["nothing", "namespaces"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_sandbox_leaves_no_process_when_stopped_while_sessions_open(program: Program, hidden: str) -> None:
    mark = f"{os.getpid()}-{program}-{hidden}"
    words = ("--sandbox", "best")
    with serving(*words, program=program, PORTCALL_TEST_MARK=mark, PORTCALL_TEST_SANDBOX_HIDES=hidden) as server:
        clients = [RawClient(server.address) for _ in range(6)]
        for client in clients:
            client.send(hello())
        clients[0].read_reply()
        assert marked(mark)
        assert server.stop() == 0
        for client in clients:
            client.close()
    wait_until(lambda: not marked(mark))


@pytest.mark.parametrize("hidden", ["landlock", "seccomp", "namespaces", "limit"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_sandbox_require_refuses_to_start_without(program: Program, hidden: str, tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text("")
    command = [*command_of(program, tmp_path / "functions.py"), "--port", "0", "--sandbox", "require"]
    environment = {**os.environ, "PORTCALL_TEST_SANDBOX_HIDES": hidden}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    assert {"limit": "a limit of"}.get(hidden, hidden) in done.stderr.lower()


@pytest.mark.parametrize("program", PROGRAMS)
def test_sandbox_path_must_exist(program: Program, tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text("")
    command = [*command_of(program, tmp_path / "functions.py"), "--port", "0", "--sandbox", "best"]
    done = subprocess.run([*command, "--sandbox-path", tmp_path / "none"], capture_output=True, text=True)
    assert done.returncode == 2
    assert str(tmp_path / "none") in done.stderr


WORK = """
@register("threads")
def threads(n):
    import threading
    done = []
    started = [threading.Thread(target=done.append, args=(i,)) for i in range(n)]
    for thread in started: thread.start()
    for thread in started: thread.join()
    return len(done)
@register("system_library")
def system_library():
    import ctypes, ctypes.util
    return ctypes.CDLL(ctypes.util.find_library("m")).abs(-3)
@register("starts_a_program")
def starts_a_program(): return __import__("subprocess").check_output(["echo", "hello"], text=True)
@register("writes")
def writes():
    with open("file", "w") as file: file.write("text")
    return __import__("tempfile").mkdtemp()
@register("spin")
def spin():
    while True: pass
"""


@pytest.mark.parametrize("words", [(), ("--no-fork",)], ids=["forked", "fresh"])
def test_sandbox_lets_ordinary_work_go_on(words: tuple[str, ...], kernel_library: Path) -> None:
    with serving("--sandbox", "require", *words, functions=FUNCTIONS + WORK, program="python") as server:
        with rpc.connect(server.address) as remote:
            remote.upload(kernel_library)
            assert remote.load_module(kernel_library.name)["add"](3, 4) == 7
            assert remote.get_function("demo.threads")(100) == 100
            assert remote.get_function("demo.system_library")() == 3
            assert remote.get_function("demo.starts_a_program")() == "hello\n"
            assert str(server.work) in remote.get_function("demo.writes")()
        for number in (signal.SIGABRT, signal.SIGKILL, signal.SIGSEGV):
            with rpc.connect(server.address) as remote, pytest.raises(RemoteCrashError) as caught:
                remote.get_function("demo.crash")(int(number))
            assert caught.value.signal == number.name


def test_cpu_limit_ends_a_session() -> None:
    with (
        serving("--cpu-limit", "1s", functions=FUNCTIONS + WORK, program="python") as server,
        rpc.connect(server.address) as remote,
        pytest.raises(RemoteCrashError) as caught,
    ):
        remote.get_function("demo.spin")()
    assert caught.value.signal == "SIGXCPU"


PEEK = """
@register("peek")
def peek():
    import ctypes, glob
    libc = ctypes.CDLL(None, use_errno=True)
    def error(result): return ctypes.get_errno() if result < 0 else 0
    class Piece(ctypes.Structure): _fields_ = [("at", ctypes.c_void_p), ("size", ctypes.c_size_t)]
    there, here = Piece(id(peek), 8), Piece(ctypes.addressof(ctypes.create_string_buffer(8)), 8)
    errors = {"read": error(libc.process_vm_readv(1, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)),
              "trace": error(libc.ptrace(0x4206, 1, None, None))}
    def opened(name):
        try: return open(name, "rb").read(1 << 16)
        except OSError as error: return error.errno
    for folder in glob.glob("/proc/[0-9]*"):
        status = opened(folder + "/status")
        if isinstance(status, bytes) and status.partition(b"NSpid:")[2].partition(b"N")[0].split()[1:] == [b"1"]:
            found = {file: opened(folder + file) for file in ("/mem", "/environ", "/maps")}
            if found["/mem"] != 3: errors |= found  # ESRCH: one of another server, which has ended
    return list(errors), list(errors.values())
"""


@pytest.mark.parametrize("hidden", ["landlock seccomp", "seccomp"])
def test_sandbox_hides_the_memory_of_its_first_process(hidden: str) -> None:
    # It is the server's memory.
    words, functions = ("--sandbox", "best"), FUNCTIONS + PEEK
    with (
        serving(*words, functions=functions, program="python", PORTCALL_TEST_SANDBOX_HIDES=hidden) as server,
        rpc.connect(server.address) as remote,
    ):
        names, errors = remote.get_function("demo.peek")()
    assert len(names) == (5 if "landlock" in hidden else 2)
    assert all(isinstance(error, int) and error for error in errors), (names, errors)
