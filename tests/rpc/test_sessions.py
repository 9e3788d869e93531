# SPDX-License-Identifier: Apache-2.0
"""Sessions without a connection to a server: this process, a child, memory, a user's transport, a chain."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from portcall import errors, rpc
from portcall.rpc.server._worker import connect_further
from portcall.testing import memory_transports
from rpc.serving import Serving, serving


class SocketTransport:
    """A transport as a user would write one, over anything with two ends; a little at a time."""

    def __init__(self, sock: socket.socket, most: int = 7, timeout: float | None = None) -> None:
        self.sock = sock
        self.most = most
        sock.settimeout(timeout)

    def send(self, data: bytes) -> int:
        return self.sock.send(data[: self.most])

    def receive(self, most: int) -> bytes:
        return self.sock.recv(min(most, self.most))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


@contextlib.contextmanager
def served(transport: rpc.Transport, *expose: str) -> Iterator[None]:
    """Serve a transport in a thread."""
    thread = threading.Thread(target=rpc.serve_over, args=(transport, expose or ("*",)))
    thread.start()
    yield
    thread.join(30)
    assert not thread.is_alive()


@contextlib.contextmanager
def local() -> Iterator[rpc.Session]:
    with rpc.LocalSession() as session:
        yield session


@contextlib.contextmanager
def popen() -> Iterator[rpc.Session]:
    with rpc.PopenSession() as session:
        yield session


@contextlib.contextmanager
def memory() -> Iterator[rpc.Session]:
    ours, theirs = memory_transports()
    with served(theirs), rpc.connect_over(ours, "memory") as session:
        yield session


@contextlib.contextmanager
def transport() -> Iterator[rpc.Session]:
    ours, theirs = socket.socketpair()
    with served(SocketTransport(theirs)), rpc.connect_over(SocketTransport(ours), "a line") as session:
        yield session


@contextlib.contextmanager
def chain() -> Iterator[rpc.Session]:
    with serving("--key", "second") as second, serving("--key", "first") as first:
        further = ["rpc.Connect", "127.0.0.1", second.port, "second", False]
        with rpc.connect(first.address, key="first", timeout=60, session_constructor_args=further) as session:
            yield session


@contextlib.contextmanager
def long_chain() -> Iterator[rpc.Session]:
    with serving("--key", "k") as server:
        hop = ["rpc.Connect", "127.0.0.1", server.port, "k", False]
        with rpc.connect(server.address, key="k", timeout=60, session_constructor_args=hop * 3) as session:
            yield session


KINDS = [local, popen, memory, transport, chain, long_chain]
Open = Callable[[], contextlib.AbstractContextManager[rpc.Session]]
every_kind = pytest.mark.parametrize("session", KINDS, ids=lambda kind: kind.__name__)
with_files = pytest.mark.parametrize("session", [local, popen, chain], ids=lambda kind: kind.__name__)


# ---- What all of them do ------------------------------------------------------------------------------------------


@every_kind
def test_session_kinds_call_copy_and_raise_alike(session: Open) -> None:
    with session() as remote:
        assert remote["testing.echo"]("text") == "text"
        assert remote["testing.echo"](b"bytes" * 1000) == b"bytes" * 1000
        array = np.arange(5000.0).reshape(50, 100)
        tensor = remote.tensor(array)
        np.testing.assert_array_equal(tensor.numpy(), array)
        row = tensor.view((100,), byte_offset=800)
        row.copyfrom(np.zeros(100))
        np.testing.assert_array_equal(tensor.numpy()[:3].sum(axis=1), array[:3].sum(axis=1) * [1, 0, 1])
        np.testing.assert_array_equal(remote["testing.echo"](array[:, ::2]).numpy(), array[:, ::2])
        with pytest.raises(ValueError, match="that is wrong"):
            remote["testing.test_raise_error"]("ValueError", "that is wrong")
        with pytest.raises(errors.FunctionNotFoundError):
            remote.get_function("nothing.of.that.name")
        assert remote["testing.echo"](1) == 1
        assert not remote.closed
        assert set(remote.stats()["seconds"]) == {"queue", "connect", "upload", "load", "copy", "run", "fetch"}
    assert remote.closed


@every_kind
def test_session_kinds_refuse_objects_of_a_closed_session(session: Open) -> None:
    with session() as remote:
        echo, tensor = remote["testing.echo"], remote.tensor([1.0])
        name = remote.name
    for use in (lambda: echo(1), tensor.numpy, lambda: tensor.copyfrom([2.0]), lambda: remote["testing.echo"]):
        with pytest.raises(errors.SessionClosedError, match=name):
            use()
    remote.close()


@with_files
def test_session_kinds_handle_files_and_libraries_alike(session: Open, kernel_library: Path) -> None:
    with session() as remote:
        assert remote.upload(kernel_library) == "kernels.so"
        assert remote.listdir() == ["kernels.so"]
        assert remote.download("kernels.so") == kernel_library.read_bytes()
        library = remote.load_module("kernels.so")
        assert library.type_key == "rpc"
        x, y = remote.tensor(np.zeros(4, "float32")), remote.empty((4,))
        library["add_one"](x, y)
        np.testing.assert_array_equal(y.numpy(), np.ones(4))
        array = np.zeros(4, "float32")
        library["add_one"](x, array)
        np.testing.assert_array_equal(array, np.ones(4))
        assert len(library.time_evaluator("add_one", remote.cpu(), number=2, repeat=3)(x, y).results) == 3
        with pytest.raises(ValueError, match="refused by the kernel"):
            library["refuse"]()
        remote.remove("kernels.so")
        assert remote.listdir() == []
        with pytest.raises(PermissionError):
            remote.download("../../etc/passwd")


def test_session_kinds_live_side_by_side() -> None:
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(rpc.LocalSession()) for _ in range(40)]
        sessions += [stack.enter_context(kind()) for kind in (popen, memory, transport)]
        tensors = [session.tensor([number]) for number, session in enumerate(sessions)]
        assert [tensor.numpy()[0] for tensor in tensors] == list(range(len(sessions)))
        with pytest.raises(ValueError, match="another session"):
            sessions[0]["testing.echo"](tensors[1])


# ---- This process -------------------------------------------------------------------------------------------------


def test_local_session_exposes_by_pattern(register: Callable[..., Any]) -> None:
    register("mine.double", lambda x: 2 * x)
    register("other.triple", lambda x: 3 * x)
    with rpc.LocalSession(["mine.*"]) as session:
        assert session["mine.double"](4) == 8
        with pytest.raises(PermissionError, match=r"other\.triple"):
            session.get_function("other.triple")


def test_local_session_deletes_its_files() -> None:
    with rpc.LocalSession() as session:
        session.upload(b"1", "file")
        place = session["tvm.rpc.server.workpath"]("file")
        assert Path(place).read_bytes() == b"1"
    assert not Path(place).parent.exists()


# ---- A child ------------------------------------------------------------------------------------------------------


def test_popen_session_child_ends_and_leaves_no_files() -> None:
    with rpc.PopenSession() as session:
        session.upload(b"1", "file")
        place = Path(session["tvm.rpc.server.workpath"]("file"))
        assert place.exists()
        pid = session.pid  # type: ignore[attr-defined]
        os.kill(pid, 0)
    assert not place.parent.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_popen_session_crash_error_has_the_signal() -> None:
    with rpc.PopenSession() as session:
        os.kill(session.pid, signal.SIGSEGV)  # type: ignore[attr-defined]
        for _ in range(2):
            with pytest.raises(errors.RemoteCrashError, match="crashed with SIGSEGV") as raised:
                session["testing.nop"]()
            assert raised.value.signal == "SIGSEGV"
            assert raised.value.peer == session.name


def test_popen_session_refuses_invalid_programs(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no such program"):
        rpc.PopenSession(tmp_path / "nothing")
    (tmp_path / "text").write_text("no program")
    with pytest.raises(PermissionError):
        rpc.PopenSession(tmp_path / "text")


def program(path: Path, body: str) -> Path:
    path.write_text(f"#!{sys.executable}\nimport sys, time\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_popen_session_custom_program_serves_on_its_descriptors(tmp_path: Path) -> None:
    body = """import portcall
from portcall import rpc
portcall.register_func("mine.answer", lambda: 42)
import socket
sock = socket.socket(fileno=int(sys.argv[1]))
class Line:
    def send(self, data): return sock.send(data)
    def receive(self, most): return sock.recv(most)
    def close(self): sock.close()
rpc.serve_over(Line(), ["mine.*"])"""
    with rpc.PopenSession(program(tmp_path / "mine", body)) as session:
        assert session["mine.answer"]() == 42
        with pytest.raises(errors.FunctionNotFoundError):
            session.upload(b"1", "file")


def test_popen_session_reports_a_program_that_ends_or_is_silent(tmp_path: Path) -> None:
    with pytest.raises(errors.RemoteCrashError, match="exited with code 3"):
        rpc.PopenSession(program(tmp_path / "ends", "sys.exit(3)"))
    with pytest.raises(errors.SessionTimeoutError, match="opening the session"):
        rpc.PopenSession(program(tmp_path / "silent", "time.sleep(1000)"), timeout=0.3)


# ---- Transports ---------------------------------------------------------------------------------------------------


def test_connect_over_memory_serves_exposed_functions_only(register: Callable[..., Any]) -> None:
    register("mine.answer", lambda: 42)
    ours, theirs = memory_transports()
    with served(theirs, "mine.*"), rpc.connect_over(ours) as session:
        assert session["mine.answer"]() == 42
        with pytest.raises(PermissionError):
            session.get_function("testing.echo")


def test_connect_over_closed_transport_breaks_the_session() -> None:
    ours, theirs = socket.socketpair()
    with served(SocketTransport(theirs)):
        session = rpc.connect_over(SocketTransport(ours), "a line")
        theirs.shutdown(socket.SHUT_RDWR)
        for _ in range(2):
            with pytest.raises(errors.SessionBrokenError, match="a line"):
                session["testing.nop"]()
        assert session.closed


def test_connect_over_transport_may_time_out_itself() -> None:
    ours, theirs = socket.socketpair()
    with theirs, pytest.raises(errors.SessionTimeoutError, match="the transport to a line gave up"):
        rpc.connect_over(SocketTransport(ours, timeout=0.05), "a line")


@pytest.mark.parametrize(("error", "kind"), [
    (ConnectionResetError, errors.SessionBrokenError), (TimeoutError, errors.SessionTimeoutError),
    (ZeroDivisionError, ZeroDivisionError),
])  # fmt: skip
def test_connect_over_transport_error_ends_the_session(error: type[Exception], kind: type[Exception]) -> None:
    ours, theirs = memory_transports()

    class Failing:
        broken = False
        closed = 0

        def send(self, data: bytes) -> int:
            if self.broken:
                raise error("on the way")
            return ours.send(data)

        def receive(self, most: int) -> bytes:
            return ours.receive(most)

        def close(self) -> None:
            self.closed += 1
            ours.close()

    line = Failing()
    with served(theirs):
        session = rpc.connect_over(line, "a line")
        line.broken = True
        with pytest.raises(kind, match="on the way"):
            session["testing.nop"]()
        with pytest.raises(errors.RPCError):
            session["testing.nop"]()
        session.close()
    assert line.closed == 1


@pytest.mark.parametrize("answer", [0, -1, 1 << 40, "text", None])
def test_connect_over_transport_with_a_wrong_send_count_breaks_the_session(answer: Any) -> None:
    class Liar:
        def send(self, data: bytes) -> Any:
            return answer

        def receive(self, most: int) -> bytes:
            return b""

        def close(self) -> None:
            pass

    with pytest.raises((errors.SessionBrokenError, TypeError)):
        rpc.connect_over(Liar())


def test_connect_over_transport_with_too_many_bytes_breaks_the_session() -> None:
    class Liar:
        def send(self, data: bytes) -> int:
            return len(data)

        def receive(self, most: int) -> bytes:
            return bytes(most + 1)

        def close(self) -> None:
            pass

    with pytest.raises(errors.SessionBrokenError, match="gave"):
        rpc.connect_over(Liar())


def test_session_is_a_module(serving_functions: Serving) -> None:
    with rpc.connect(serving_functions.address, key="k", options=rpc.ConnectOptions(name="the board")) as session:
        assert isinstance(session.module, portcall.Module)
        assert session.module.type_key == "rpc"
        assert session.module["testing.echo"](3) == 3
        assert session.name == "the board"
        with pytest.raises(errors.FunctionNotFoundError, match="the board"):
            session.get_function("nothing")


# ---- Chains -------------------------------------------------------------------------------------------------------


def test_chain_error_of_the_last_server_arrives_whole() -> None:
    with long_chain() as session:
        with pytest.raises(ValueError, match=r"^ValueError: too far$") as raised:
            session["demo.fail"]("too far")
        assert isinstance(raised.value, errors.RemoteError)
        assert raised.value.message == "too far"


def test_chain_connect_error_names_the_missing_link(serving_functions: Serving) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    further = ["rpc.Connect", "127.0.0.1", port, "k", False]
    with pytest.raises(errors.RemoteError, match=f"cannot connect to 127.0.0.1:{port}"):
        rpc.connect(serving_functions.address, key="k", session_constructor_args=further)


@pytest.mark.parametrize(
    "arguments", [["no.Constructor"], ["rpc.Connect"], ["rpc.Connect", 1, 2, 3], ["rpc.PopenSession", b"x"]]
)
def test_session_constructor_failure_is_a_remote_error(serving_functions: Serving, arguments: list[Any]) -> None:
    with pytest.raises(errors.RemoteError):
        rpc.connect(serving_functions.address, key="k", session_constructor_args=arguments)


PROGRAM = f"""#!{sys.executable}
import os, sys
from portcall import get_global_func, register_func
register_func("demo.pid", os.getpid)
get_global_func("portcall.rpc.ServeFds")(int(sys.argv[1]), int(sys.argv[2]), ["*"], 0, None)
"""


def test_session_constructor_starts_the_clients_program(tmp_path: Path) -> None:
    (tmp_path / "program").write_text(PROGRAM)
    (tmp_path / "program").chmod(0o700)
    with serving("--key", "k", "--expose", "rpc.Popen*") as server:
        for binary in (PROGRAM.encode(), str(tmp_path / "program")):
            further = ["rpc.PopenSession", binary]
            with rpc.connect(server.address, key="k", timeout=60, session_constructor_args=further) as session:
                x = session.tensor(np.arange(3, dtype="float32"))
                np.testing.assert_array_equal(x.numpy(), [0, 1, 2])
                program = os.pidfd_open(session.get_function("demo.pid")())
            assert select.select([program], [], [], 20)[0], "the program ends with its session"
            os.close(program)
        for wrong, said in ((b"#!/bin/false\n", "ended with code 1"), ("/no/such", "No such file"), (5, "not int")):
            with pytest.raises(errors.RemoteError, match=said):
                rpc.connect(server.address, key="k", session_constructor_args=["rpc.PopenSession", wrong])


def test_session_constructor_starts_no_program_unless_exposed(serving_functions: Serving) -> None:
    with pytest.raises(PermissionError, match=r"--expose rpc\.PopenSession"):
        rpc.connect(serving_functions.address, key="k", session_constructor_args=["rpc.PopenSession", PROGRAM.encode()])


def test_session_constructor_arguments_are_checked_locally(serving_functions: Serving) -> None:
    with pytest.raises(TypeError, match="a session constructor takes"):
        rpc.connect(serving_functions.address, key="k", session_constructor_args=["rpc.Connect", [1, 2]])


@pytest.mark.parametrize("middle", [0, 1], ids=["two hops", "three hops"])
def test_chain_crash_at_the_end_has_signal_and_hop(middle: int) -> None:
    with serving("--key", "far") as far, serving("--key", "near") as near:
        hops = ["rpc.Connect", "127.0.0.1", near.port, "near", False] * middle
        hops += ["rpc.Connect", "127.0.0.1", far.port, "far", False]
        with (
            rpc.connect(near.address, key="near", timeout=60, session_constructor_args=hops) as session,
            rpc.connect(near.address, key="near", timeout=60, session_constructor_args=hops) as beside,
        ):
            crash, tensor = session["demo.crash"], session.tensor([1.0])
            for use in (lambda: crash(signal.SIGSEGV), lambda: crash(0), tensor.numpy, session.listdir):
                with pytest.raises(errors.RemoteCrashError, match=f"^{near.address}: .*{far.address}") as raised:
                    use()
                assert (raised.value.signal, raised.value.peer) == ("SIGSEGV", near.address)
            assert beside["testing.echo"](1) == 1
        assert near.event("ended")["how"] == "closed"


def test_chain_crash_in_the_middle_is_of_the_first_server() -> None:
    with serving("--key", "far") as far, serving("--key", "near") as near:
        hop = ["rpc.Connect", "127.0.0.1", far.port, "far", False]
        with rpc.connect(near.address, key="near") as beside:
            pid = beside["demo.pid"]()
            zygote = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            others = Path(f"/proc/{zygote}/task/{zygote}/children")
            before = others.read_text().split()
        with rpc.connect(near.address, key="near", timeout=60, session_constructor_args=hop) as session:
            (middle,) = set(others.read_text().split()) - set(before)
            os.kill(int(middle), signal.SIGABRT)
            with pytest.raises(errors.RemoteCrashError, match=f"with {near.address} crashed .* SIGABRT") as raised:
                session["testing.nop"]()
            assert raised.value.signal == "SIGABRT"


def test_chain_exit_at_the_end_has_no_signal() -> None:
    with chain() as session:
        with pytest.raises(errors.RemoteCrashError, match="exited with code 3") as raised:
            session["demo.exit"](3)
        assert raised.value.signal == ""


FORKING = """
import gc, os, sys
import numpy as np
import portcall
from portcall import errors, rpc

def in_a_child(work):
    pid = os.fork()
    if pid == 0:
        work()
        sys.exit(0)  # with all that Python does at its end, and that contexts do
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

def use():
    for call in (lambda: session.listdir(), lambda: tensor.numpy()):
        try:
            call()
        except errors.SessionClosedError as error:
            assert str(os.getppid()) in str(error)
        else:
            raise AssertionError("a copy used the session")
    assert session.closed

def collect():
    global session, tensor
    del session, tensor
    gc.collect()

with rpc.Server() as server:
    for make in (lambda: rpc.connect(server.address), rpc.PopenSession, rpc.LocalSession):
        with make() as session:
            session.upload(b"content", "name")
            tensor = session.tensor(np.arange(3.0))
            in_a_child(lambda: None)
            in_a_child(lambda: session.close())
            if not isinstance(session, rpc.LocalSession):
                in_a_child(use)
            in_a_child(collect)
            assert session.download("name") == b"content"
            assert tensor.numpy().tolist() == [0, 1, 2]
            assert not session.closed
    in_a_child(server.terminate)
    assert server.running
print("done")
"""


def test_session_in_a_forked_child_is_left_to_the_parent() -> None:
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_chain_waits_for_its_next_server_as_long_as_its_client_waits() -> None:
    """It is the client's time that counts: none of its own, and the end when the client has gone."""
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(1) as pool:
        client, ours = socket.socketpair()
        with client, ours:
            opening = pool.submit(connect_further, frozenset(), ours.fileno(), *silent.getsockname())
            accepted, _ = silent.accept()
            with accepted:
                assert accepted.recv(1)
                client.close()
                with pytest.raises(errors.RPCError) as caught:
                    opening.result()
    assert not isinstance(caught.value, errors.SessionTimeoutError)
