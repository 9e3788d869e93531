# SPDX-License-Identifier: Apache-2.0
"""Limits of a server: sessions, time, memory, disk, connections; and what it does when its own processes fail."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from portcall import errors, rpc
from rpc.processes import descendants_of
from rpc.raw_client import (
    ACK,
    ALLOC,
    CALL,
    COPY_FROM,
    EXCEPTION,
    NOTICE,
    RETURN,
    RawClient,
    frame,
    hello,
    init,
    integer,
    sequence,
    tensor,
    text,
)
from rpc.serving import FUNCTIONS, Program, Serving, serving, wait_until

EXPIRED = 'RPCSessionTimeoutError: Your {}s session has expired, try to increase the "session_timeout" value.'


def zygote_of(server: Serving) -> int:
    """The process that sessions come from, which was started last."""
    pid = server.process.pid
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[-1])


def hang(client: RawClient) -> None:
    client.send(frame(CALL, struct.pack("<Q", client.function("demo.hang")) + sequence()))


def read_notice(client: RawClient) -> str:
    code, size = struct.unpack("<ii", client.read(8))
    assert code == NOTICE
    return client.read(size).decode()


def pid_of(client: RawClient, name: str = "demo.pid") -> int:
    (pid,) = struct.unpack_from("<q", client.call(name)[1], 20)
    return int(pid)


# ---- Time ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", [False, True])
def test_session_timeout_ends_the_session_with_tvms_words(busy: bool) -> None:
    with serving() as server, RawClient(server.address).open(options=" -timeout=1.5") as client:
        if busy:
            hang(client)
        code, body = client.read_frame()
        assert (code, body[16:].decode()) == (EXCEPTION, EXPIRED.format(1.5))
        assert client.at_end()
        assert server.ended(client.name)["how"] == "expired"


def test_session_timeout_of_a_client_is_capped() -> None:
    with serving("--session-timeout", "500ms") as server:
        for options in ("", " -timeout=1000"):
            with RawClient(server.address).open(options=options) as client:
                assert client.read_frame()[1][16:].decode() == EXPIRED.format(0.5)


def test_session_timeout_sends_nothing_within_an_answer() -> None:
    size = 64 << 20
    with serving() as server, RawClient(server.address).open(options=" -timeout=2") as client:
        _, body = client.ask(frame(ALLOC, sequence(struct.pack("<i", 7) + tensor(0, size), struct.pack("<i", 0))))
        (data,) = struct.unpack_from("<Q", body, 8)
        client.send(frame(COPY_FROM, tensor(data, size) + struct.pack("<Q", size)))
        # So much is to come, and nobody reads it in time.
        assert struct.unpack("<Qi", client.read(12)) == (size + 4, ACK)
        assert server.ended(client.name)["how"] == "expired"
        rest = b""
        while piece := client.sock.recv(1 << 20):
            rest += piece
        assert len(rest) < size
        assert b"RPCSessionTimeoutError" not in rest


def test_server_ends_work_of_a_client_that_left() -> None:
    with serving("--lost-client-grace", "0.2s") as server:
        with RawClient(server.address).open() as client:
            handle = os.pidfd_open(pid_of(client))
            name = client.name
            hang(client)
        wait_end(handle)
        assert server.ended(name)["how"] == "abandoned"


# ---- How many -----------------------------------------------------------------------------------------------------


def test_max_sessions_queues_clients_and_sends_notices() -> None:
    with serving("--max-sessions", 1) as server:
        first = RawClient(server.address).open()
        waiting = [RawClient(server.address) for _ in range(3)]
        for place, client in enumerate(waiting, start=1):
            client.send(hello("", " -portcall=1"))
            assert f"number {place} in its queue" in read_notice(client)
        tvm = RawClient(server.address)
        tvm.send(hello())
        server.event("waiting", lambda event: event["place"] == 4)
        waiting[0].close()  # a client that leaves lets the others move up
        assert "number 1 " in read_notice(waiting[1])
        assert "number 2 " in read_notice(waiting[2])
        first.close()
        assert waiting[1].read_reply().startswith("server:")
        assert "number 1 " in read_notice(waiting[2])
        for client in waiting[1:]:
            client.close()
        assert tvm.read_reply() == "server:"
        assert tvm.ask(init())[0] == RETURN
        tvm.close()


def test_end_reason_request_does_not_wait_in_the_queue() -> None:
    with serving("--max-sessions", 1) as server, RawClient(server.address).open(), RawClient(server.address) as client:
        client.send(hello("", " -portcall=1 -reason=1.x"))
        assert client.read_reply() == "server: -ended=unknown"


def test_server_drops_silent_connections_for_new_ones() -> None:
    with serving("--handshake-timeout", "1h", "--max-handshakes", 3) as server:
        silent = [RawClient(server.address) for _ in range(5)]  # of which 3 are taken in
        with RawClient(server.address).open() as client:
            assert client.echo(1) == 1
        server.event("dropped", lambda event: event["how"] == "crowded")
        for one in silent:
            one.close()


def test_server_serves_fifty_clients_at_once() -> None:
    with serving() as server:
        clients = [RawClient(server.address) for _ in range(50)]
        for client in clients:
            client.send(hello())
        for number, client in enumerate(clients):
            client.read_reply()
            assert client.ask(init())[0] == RETURN
            assert client.echo(number) == number
        for client in clients:
            client.close()


@pytest.mark.parametrize("spare", [0, 1, 2, 3, 7])
def test_server_out_of_descriptors_recovers(spare: int) -> None:
    with serving() as server:
        used = len(os.listdir(f"/proc/{server.process.pid}/fd"))
        soft, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (used + spare, hard))
        clients = [RawClient(server.address) for _ in range(10)]
        assert "cannot" in server.event("overload")["message"]
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
        with RawClient(server.address).open() as client:
            assert client.echo(1) == 1
        for client in clients:
            client.close()


@pytest.mark.parametrize("program", ["python", "board"])
def test_server_out_of_descriptors_tells_the_client(program: Program) -> None:
    with serving(program=program) as server:
        used = {int(name) for name in os.listdir(f"/proc/{server.process.pid}/fd")}
        first = next(number for number in range(len(used) + 1) if number not in used)
        soft, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
        most = next(number for number in range(first + 1, len(used) + 2) if number not in used)  # room for one
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (most, hard))
        with pytest.raises(errors.ConnectError, match="LimitNOFILE") as caught:
            rpc.connect(server.address)
        assert caught.value.reason == "not-opened"
        assert "LimitNOFILE" in server.event("dropped")["message"]
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
        rpc.connect(server.address).close()


def test_zygote_out_of_descriptors_tells_the_client() -> None:
    with serving(program="python") as server:
        zygote = zygote_of(server)
        used = len(os.listdir(f"/proc/{zygote}/fd"))
        soft, hard = resource.prlimit(zygote, resource.RLIMIT_NOFILE)
        resource.prlimit(zygote, resource.RLIMIT_NOFILE, (used + 3, hard))
        with pytest.raises(errors.ConnectError, match="LimitNOFILE") as caught:
            rpc.connect(server.address)
        assert caught.value.reason == "not-opened"
        resource.prlimit(zygote, resource.RLIMIT_NOFILE, (soft, hard))
        rpc.connect(server.address).close()


# ---- Memory and disk ----------------------------------------------------------------------------------------------


def test_memory_limit_refuses_and_the_session_goes_on() -> None:
    with serving("--memory-limit", "512MiB") as server, RawClient(server.address).open() as client:
        code, body = client.call("demo.keep", integer(1 << 30))
        assert (code, b"MemoryError" in body) == (EXCEPTION, True)
        assert client.call("demo.keep", integer(1 << 20))[0] == RETURN


def test_disk_limit_refuses_uploads() -> None:
    with serving("--disk-limit", "1MiB") as server, RawClient(server.address).open() as client:
        assert client.call("tvm.rpc.server.upload", text("a"), text("x" * 700_000))[0] == RETURN
        code, body = client.call("tvm.rpc.server.upload", text("b"), text("x" * 700_000))
        assert (code, b"--disk-limit" in body) == (EXCEPTION, True)
        assert client.call("demo.litter", integer(2 << 20))[0] == EXCEPTION  # one file: the kernel refuses it
        assert client.echo(1) == 1


def test_disk_limit_ends_a_session_whose_directory_grows() -> None:
    functions = (
        FUNCTIONS
        + """
@register("scatter")
def scatter():
    for number in range(5):
        with open(f"part{number}", "wb") as file:
            file.write(bytes(500_000))
"""
    )
    with serving("--disk-limit", "1MiB", functions=functions) as server, RawClient(server.address).open() as client:
        assert client.call("demo.scatter")[0] == RETURN
        assert server.ended(client.name)["how"] == "disk"


def test_message_limit_refuses_long_messages() -> None:
    with serving("--max-frame", "64KiB") as server, RawClient(server.address).open() as client:
        assert b"limit" in client.call("tvm.rpc.server.upload", text("a"), text("x" * 70_000))[1]
        assert client.read_frame()[0] == 1
        assert client.at_end()


# ---- The server's own processes -----------------------------------------------------------------------------------


def test_server_sees_its_sessions_end_where_who_started_it_ignores_that() -> None:
    with contextlib.ExitStack() as stack:
        before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        try:
            server = stack.enter_context(serving("--sandbox", "best"))
        finally:
            signal.signal(signal.SIGCHLD, before)
        found = server.event("sandbox")["message"]
        with RawClient(server.address).open() as client:
            name = client.name
        server.ended(name)
    with serving("--sandbox", "best") as usual:
        assert usual.event("sandbox")["message"] == found


@pytest.mark.parametrize("handler", ["signal.SIG_IGN", "lambda *_: os.waitpid(-1, 0)"])
def test_zygote_waits_for_its_sessions_whatever_the_imported_code_does_with_signals(
    handler: str,
) -> None:
    functions = f"""
import os, signal
signal.signal(signal.SIGCHLD, {handler})
signal.signal(signal.SIGINT, signal.SIG_DFL)
"""
    with serving(program="python", functions=functions) as server, RawClient(server.address).open() as first:
        with RawClient(server.address).open() as second:
            assert second.echo(1) == 1
            name = second.name
        server.ended(name)
        os.kill(zygote_of(server), signal.SIGINT)
        assert first.echo(1) == 1


def test_zygote_with_threads_spawns_instead_of_forking() -> None:
    threads = FUNCTIONS + "\nimport threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    for words, functions, reason in (((), threads, "1 thread"), (("--no-fork",), FUNCTIONS, "--no-fork")):
        with serving(*words, functions=functions) as server, RawClient(server.address).open() as client:
            assert reason in server.event("spawning")["message"]
            assert client.call("demo.scale", integer(2), integer(3))[0] == RETURN
            client.call("demo.crash", integer(signal.SIGSEGV))
            assert server.ended(client.name)["signal"] == "SIGSEGV"


def test_zygote_with_numpy_still_forks() -> None:
    functions = "import numpy\nimport numpy.linalg\n" + FUNCTIONS
    with serving(functions=functions) as server, RawClient(server.address).open() as client:
        assert client.echo(1) == 1
        server.event("opened")
        assert "spawning" not in {event["event"] for event in server.log}


def test_zygote_and_its_sessions_have_no_numpy_of_their_own() -> None:
    with serving() as server, RawClient(server.address).open() as client:
        assert client.call("demo.scale", integer(2), integer(3))[0] == RETURN
        for pid in descendants_of(server.process.pid):
            assert "/numpy" not in Path(f"/proc/{pid}/maps").read_text()


def test_server_starts_a_new_zygote_after_a_kill() -> None:
    # From within a call: then the session is sure to have sent all that came before, and may get its end.
    functions = FUNCTIONS + "\nregister('orphan')(lambda: (os.kill(os.getppid(), signal.SIGKILL), time.sleep(1000)))\n"
    with serving(functions=functions) as server, RawClient(server.address).open() as client:
        handle = os.pidfd_open(pid_of(client))
        assert client.call("demo.orphan")[0] == EXCEPTION
        wait_end(handle)
        assert client.at_end()
        server.event("restart")
        with RawClient(server.address).open() as another:
            assert another.echo(1) == 1


def test_supervisor_kill_ends_sessions_and_directories() -> None:
    with serving() as server:
        client = RawClient(server.address).open()
        handles = [os.pidfd_open(pid) for pid in descendants_of(server.process.pid)]
        server.process.kill()
        server.process.wait()
        server.stopped = True
        assert client.at_end()
        client.close()
        for handle in handles:
            wait_end(handle)
        assert list(server.work.iterdir()) == []


def wait_end(handle: int) -> None:
    assert select.select([handle], [], [], 30)[0]
    os.close(handle)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def targets_of(descriptors: Path) -> Iterator[str]:
    for each in descriptors.iterdir():
        with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
            yield os.readlink(each)


def test_server_leaks_no_descriptors_in_a_hundred_sessions() -> None:
    with serving() as server:
        supervisor = Path(f"/proc/{server.process.pid}/fd")
        with RawClient(server.address).open() as client:
            zygote = Path(f"/proc/{parent_of(pid_of(client))}/fd")
            name = client.name
        server.ended(name)

        def count() -> tuple[int, int]:
            # The end of a session is told before its descriptors are closed, that of its progress last.
            wait_until(lambda: not any("portcall-progress" in target for target in targets_of(supervisor)))
            return len(list(supervisor.iterdir())), len(list(zygote.iterdir()))

        before = count()
        for _ in range(100):
            with RawClient(server.address).open() as client:
                client.echo(1)
                name = client.name
            server.ended(name)
        assert count() == before
