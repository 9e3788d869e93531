# SPDX-License-Identifier: Apache-2.0
"""A server in which any call of the system may fail: an error ends one client at most, and nothing is left behind."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import select
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from portcall import rpc
from portcall.rpc import ServerOptions
from portcall.rpc.server._link import Link
from portcall.rpc.server._messages import ZYGOTE_REPORTS, SessionEnded, StartSession
from portcall.rpc.server._zygote import Zygote
from portcall.rpc.wire._facts import NOT_OPENED, SEE_LOG
from rpc.processes import children_of, command_of, descendants_of
from rpc.raw_client import RETURN, RawClient, hello, integer, text
from rpc.serving import FUNCTIONS, Serving, serving, wait_until
from rpc.soak import soak

PROGRAM = Path(__file__).with_name("failing_server.py")
ORPHAN = "\nregister('orphan')(lambda: (os.kill(os.getppid(), signal.SIGKILL), time.sleep(1000)))\n"
BROKEN = (OSError, EOFError, AssertionError)  # what a client sees whose session the server gave up


class FailingServer:
    """``failing_server.py``, at work; a context manager that stops it and looks for what it left."""

    def __init__(self, place: Path, token: str = "") -> None:
        (place / "functions.py").write_text(FUNCTIONS + ORPHAN)
        self.work = place / "work"
        self.work.mkdir()
        self.log = (place / "log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), str(place / "functions.py"), str(self.work), token],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
        )  # fmt: skip
        self.address = self.line()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def arm(self, call: int, name: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{call} {name}\n")
        self.process.stdin.flush()
        self.process.send_signal(signal.SIGUSR1)
        assert self.line() == "armed"

    def disarm(self) -> str:
        """Which call failed; empty when none did."""
        self.process.send_signal(signal.SIGUSR2)
        fired = self.line()
        if fired == "disarmed":
            return ""
        assert self.line() == "disarmed"
        return fired

    def descendants(self) -> list[int]:
        """Handles of all processes of the server."""
        handles = []
        for pid in descendants_of(self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                handles.append(os.pidfd_open(pid))
        return handles

    def __enter__(self) -> FailingServer:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None:
                assert self.process.poll() is None, "the server ended by itself"
                handles = self.descendants()
                self.process.terminate()
                assert self.process.wait(30) == 0
                for handle in handles:
                    assert select.select([handle], [], [], 30)[0]
                    os.close(handle)
                assert list(self.work.iterdir()) == []
        finally:
            self.process.kill()
            self.process.communicate()
            self.log.seek(0)
            sys.stderr.write(self.log.read()[-20000:])
            self.log.close()


def session_that_crashes(server: FailingServer) -> None:
    with RawClient(server.address) as client:
        client.open()
        assert client.call("tvm.rpc.server.upload", text("file"), text("contents"))[0] == RETURN
        client.call("demo.crash", integer(signal.SIGSEGV))
        assert client.at_end()


def session(server: FailingServer) -> None:
    with RawClient(server.address) as client:
        client.open()
        assert client.echo(5) == 5


def failing_call(server: FailingServer, first: Callable[[], None], call: int, name: str = "") -> str:
    """Let a call fail that ``first`` and a session after it lead to; its name, empty if there was none."""
    server.arm(call, name)
    hurt = 0
    for work in (first, lambda: session(server)):
        try:
            work()
        except BROKEN:
            hurt += 1
    fired = server.disarm()
    assert hurt <= bool(fired), fired
    session(server)
    return fired


def every_call(server: FailingServer, first: Callable[[], None]) -> Iterator[str]:
    """Let each call fail in turn that ``first`` and a session after it lead to; gives the names of these calls."""
    for call in itertools.count(1):
        fired = failing_call(server, first, call)
        if not fired:
            return
        yield fired


def test_supervisor_error_in_any_call_ends_one_client_at_most(tmp_path: Path) -> None:
    with FailingServer(tmp_path) as server, RawClient(server.address).open() as bystander:
        session(server)  # what there is to hear of the bystander's start was heard before it ended

        def work() -> None:
            session_that_crashes(server)

        calls = list(every_call(server, work))
        assert bystander.echo(9) == 9
        assert len(calls) > 40, calls
        for name in ("poll", "recvmsg", "sendmsg", "rmdir"):  # a count may miss them: the order is the system's
            for call in (1, 2):
                fired = failing_call(server, work, call, name)
                assert f"fired {name} " in fired or call > 1, fired
        assert bystander.echo(10) == 10


def test_supervisor_tells_no_stranger_what_failed(tmp_path: Path) -> None:
    with FailingServer(tmp_path, "a token of 16 letters") as server, RawClient(server.address) as client:
        server.arm(1, "urandom")
        client.send(hello("", " -portcall=1 -nonce=1"))
        assert client.read_notice() == NOT_OPENED + SEE_LOG
        assert client.at_end()
        assert server.disarm()
        log = Path(server.log.name)  # another process writes it
        wait_until(lambda: "an error for trial" in log.read_text())


@pytest.mark.campaign
def test_supervisor_starts_sessions_again_after_an_error_in_any_call(tmp_path: Path) -> None:
    def lose_zygote() -> None:
        with RawClient(server.address) as client:
            client.open()
            client.call("demo.orphan")

    with FailingServer(tmp_path) as server:
        calls = list(every_call(server, lose_zygote))
        assert len(calls) > 40, calls
        assert "fired fork_exec " in failing_call(server, lose_zygote, 1, "fork_exec")


# ---- The process that sessions come from --------------------------------------------------------------------------

# Files say whether the importing process goes on; each import is counted.
IMPORTED = (
    FUNCTIONS
    + """
place = os.environ["PLACE"]
with open(place + "/count", "a") as file: file.write("x")
if os.path.exists(place + "/die"): os.kill(os.getpid(), signal.SIGKILL)
if os.path.exists(place + "/fail"): raise RuntimeError("not this time")
while os.path.exists(place + "/wait"): time.sleep(0.01)
"""
    + ORPHAN
)


def lose_zygote(server: Serving) -> None:
    with RawClient(server.address) as client:
        client.open()
        client.call("demo.orphan")


@pytest.mark.parametrize("how", ["die", "fail"])
def test_zygote_is_started_until_it_lives(tmp_path: Path, how: str) -> None:
    with serving(functions=IMPORTED, PLACE=str(tmp_path)) as server:
        (tmp_path / how).touch()
        lose_zygote(server)
        restart = server.event("restart", lambda event: event["attempt"] == 3)
        assert how != "fail" or "not this time" in restart["message"]
        (tmp_path / how).unlink()
        with RawClient(server.address) as client:
            client.open()
            assert client.echo(1) == 1


@pytest.fixture
def zygote(tmp_path: Path) -> Iterator[tuple[Zygote, Link]]:
    """A zygote in this process, and the other end of its link."""
    ours, theirs = Link.pair()
    with ours, theirs:
        ours.set_timeout(30)
        yield Zygote(theirs, ServerOptions(), str(tmp_path)), ours


def test_session_that_cannot_be_started_is_reported(
    zygote: tuple[Zygote, Link], monkeypatch: pytest.MonkeyPatch
) -> None:
    process, link = zygote
    sleeping = subprocess.Popen(["sleep", "1000"])

    def fail(*_: object) -> int:
        raise BlockingIOError(errno.EAGAIN, "no more processes")

    def report() -> SessionEnded:
        received = link.receive(ZYGOTE_REPORTS)
        assert received is not None
        assert isinstance(received[0], SessionEnded)
        return received[0]

    def start(descriptors: list[int]) -> SessionEnded:
        process._start(StartSession(5, "/nowhere", "", "all", "me", ""), descriptors)
        return report()

    def two() -> list[int]:
        return [os.open("/dev/null", os.O_RDONLY) for _ in range(2)]

    before = len(os.listdir("/proc/self/fd"))
    assert "too many open files" in start([os.open("/dev/null", os.O_RDONLY)]).error
    monkeypatch.setattr(process, "_fork", fail)
    assert "no more processes" in start(two()).error
    monkeypatch.setattr(process, "_fork", lambda *_: (sleeping.pid, 0))
    monkeypatch.setattr(os, "pidfd_open", fail)
    assert start(two()).number == 5
    with pytest.raises(ChildProcessError):  # it has been killed, and waited for
        os.waitpid(sleeping.pid, 0)
    sleeping.returncode = -signal.SIGKILL
    assert len(os.listdir("/proc/self/fd")) == before
    process._kill(5)
    assert report().number == 5  # again, in case that the first report was lost


def test_worker_ends_if_its_zygote_ended_before_it_ran() -> None:
    program = "from portcall.rpc.server._worker import die_with_parent; die_with_parent(1); print('still here')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, b"", b"")


def test_server_stops_during_a_slow_import_of_a_new_zygote(tmp_path: Path) -> None:
    with serving(functions=IMPORTED, PLACE=str(tmp_path)) as server:
        (tmp_path / "wait").touch()
        lose_zygote(server)
        server.event("restart")
        waiting = RawClient(server.address)
        while len((tmp_path / "count").read_text()) < 2:
            assert server.process.poll() is None
        assert server.stop() == 0
        waiting.close()


def test_server_stops_while_it_starts(tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text(IMPORTED)
    (tmp_path / "wait").touch()
    command = [sys.executable, "-m", "portcall", "serve", "--port", "0", "--import", str(tmp_path / "functions.py"),
               "--work-dir", str(tmp_path)]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "PLACE": str(tmp_path)}
    ) as process:
        while not (tmp_path / "count").exists():
            assert process.poll() is None
        process.terminate()
        assert process.communicate()[0] == b""
        assert process.returncode == 0
    assert not list(tmp_path.glob("portcall-server-*"))


def test_server_ends_a_sessions_processes_after_the_zygote_was_killed() -> None:
    functions = FUNCTIONS + "\nregister('kill_parent')(lambda: os.kill(os.getppid(), signal.SIGKILL))\n"
    with serving(functions=functions) as server, RawClient(server.address).open() as client:
        (pid,) = struct.unpack_from("<q", client.call("demo.start")[1], 20)
        handle = os.pidfd_open(pid)
        with contextlib.suppress(*BROKEN):
            client.call("demo.kill_parent")
        assert select.select([handle], [], [], 30)[0]
        os.close(handle)


def test_supervisor_stop_is_logged() -> None:
    with serving() as server:
        server.process.send_signal(signal.SIGSTOP)
        try:
            said = f"kill -CONT {server.process.pid}"
            assert any(said in line for line in server.lines())
        finally:
            server.process.send_signal(signal.SIGCONT)


# ---- Times --------------------------------------------------------------------------------------------------------


def test_server_accepts_timeouts_of_a_month() -> None:
    with serving("--session-timeout", "720h", "--handshake-timeout", "720h") as server:
        for options in ("", " -timeout=2147484", f" -timeout={30 * 86400}"):
            with RawClient(server.address) as client:
                client.open(options=options)
                assert client.echo(1) == 1
        with rpc.connect(server.address, session_timeout=30 * 86400) as remote:
            assert remote["testing.echo"](2) == 2


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, 2e9])
def test_server_options_refuses_timeouts_out_of_range(seconds: float) -> None:
    for name in ("session_timeout", "handshake_timeout", "lost_client_grace"):
        with pytest.raises(ValueError, match=name):
            ServerOptions(**{name: seconds})  # type: ignore[arg-type]
    with serving() as server, pytest.raises(ValueError, match="session_timeout"):
        rpc.connect(server.address, session_timeout=seconds)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 1e10])
def test_connect_refuses_a_timeout_out_of_range(seconds: float) -> None:
    with pytest.raises(ValueError, match="invalid timeout"):
        rpc.connect("127.0.0.1:1", timeout=seconds)


@pytest.mark.parametrize("name", ["memory_limit", "disk_limit", "max_frame", "max_sessions", "max_handshakes", "port"])
@pytest.mark.parametrize("value", [-1, 1 << 63, 1.5])
def test_server_options_refuses_sizes_and_counts_out_of_range(name: str, value: float) -> None:
    with pytest.raises((ValueError, TypeError), match=name):
        ServerOptions(**{name: value})  # type: ignore[arg-type]


# ---- Left behind --------------------------------------------------------------------------------------------------


def test_server_keeps_nothing_of_sessions_that_are_killed() -> None:
    assert soak(sessions=32, seconds=2)["sessions"] >= 32  # `make soak` does more of it


def test_server_removes_directories_of_killed_servers(tmp_path: Path) -> None:
    def start() -> rpc.Server:
        return rpc.Server(work_dir=str(tmp_path))

    with start() as living, rpc.connect(living.address) as remote:
        remote.upload(b"1", "file")
        before = set(tmp_path.iterdir())
        killed = start()
        with rpc.connect(killed.address) as another:
            another.upload(b"1", "file")
            (left,) = set(tmp_path.iterdir()) - before
            (zygote,) = [pid for pid in children_of(killed.pid) if b"_zygote" in command_of(pid)]
            os.kill(killed.pid, signal.SIGSTOP)  # so that neither cleans up after the other
            os.kill(zygote, signal.SIGKILL)
            os.kill(killed.pid, signal.SIGKILL)
        killed.terminate()
        assert left.exists()
        with start() as following, rpc.connect(following.address):
            pass
        assert not left.exists()
        assert remote.download("file") == b"1"
    assert list(tmp_path.iterdir()) == []


def test_server_ends_with_its_program_after_a_fork() -> None:
    program = """
import os, signal
from portcall import rpc
server = rpc.Server()
if os.fork() == 0:
    os.close(1)
    signal.pause()  # the child has copies of all pipes
print(server.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        try:
            with contextlib.suppress(ProcessLookupError):
                handle = os.pidfd_open(pid)
                assert select.select([handle], [], [], 30)[0]
                os.close(handle)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_server_is_not_stopped_by_a_forked_child() -> None:
    with rpc.Server() as server:
        child = os.fork()
        if child == 0:
            server.__exit__(None, None, None)
            os._exit(0)
        os.waitpid(child, 0)
        with rpc.connect(server.address) as remote:
            assert remote["testing.echo"](1) == 1
