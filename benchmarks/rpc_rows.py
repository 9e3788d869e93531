# SPDX-License-Identifier: Apache-2.0
"""Sessions: calls, copies and opening, beside apache-tvm's client and server, and beside sockets alone.

Rules: both clients are in this process and pinned alike; each has sessions of its own, with servers pinned alike. What
is timed is a statement in a loop, as in calls.py. Ratios are of times: 0.85 of a bandwidth is 1.18 of a time.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tvm.rpc
from calls import TEXT, Row, loop
from method import Timer
from rpc_delay import delayed
from rpc_peers import HOST, Server, our_server, peers_server, raw_server
from rpc_raw import RawClient

import portcall
import portcall.rpc
from portcall.bench import format_size

CALL_TARGET, OPEN_TARGET = 1.1, 1.0
MANY, MANY_TARGET = 1000, 1 / 5
CALLBACK_TARGET = 2.5
DELAY, FAR_TARGET = 0.010, 1.5  # seconds each way
SOCKET_TARGET, NUMPY_TARGET, BYTES_TARGET = 1 / 0.85, 1 / 0.75, 1 / 0.75
SMALL_COPY_TARGET = 1 / 5
SMALL_COPY = 64 << 10
MEDIUM_COPY, LARGE_COPY = 16 << 20, 256 << 20
FILES = (1 << 20, 64 << 20)
AGAIN, AGAIN_TARGET = 100 << 20, 0.05
BYTES = (1 << 20, 16 << 20, 64 << 20)
FUNCTIONS = Path(__file__).resolve().parent / "rpc_functions.py"
ECHO = "testing.echo"  # every server has it
DIGEST_PAUSE = 1.0  # seconds after a first upload, in which both ends find the file's SHA-256
PAUSE = 0.02  # seconds after a session's end, for its server to clean up


def our_session(server: Server) -> Any:
    return portcall.rpc.connect(HOST, server.port)


def peers_session(server: Server) -> Any:
    return tvm.rpc.connect(HOST, server.port)


@contextlib.contextmanager
def four_sessions(core: int) -> Iterator[tuple[Any, Any, Any, Any]]:
    """Yield sessions of our client with either server, and of the peer's client with either."""
    with our_server(core) as ours, peers_server(core) as first, peers_server(core) as second:
        sessions = our_session(ours), our_session(first), peers_session(ours), peers_session(second)
        yield sessions
        sessions[0].close()
        sessions[1].close()


def call_rows(core: int) -> Iterator[Row]:
    """Yield one call at a time: both ends ours, and either end ours, against both ends the peer's."""
    with four_sessions(core) as sessions:
        both, our_client, our_end, peers = (session.get_function(ECHO) for session in sessions)
        other = loop("f(1)", f=peers)
        yield Row("call", "echo(1)", loop("f(1)", f=both), other, CALL_TARGET)
        yield Row("call-client", "echo(1), our client", loop("f(1)", f=our_client), other, CALL_TARGET)
        yield Row("call-server", "echo(1), our server", loop("f(1)", f=our_end), other, CALL_TARGET)
        timers = [loop("f(x)", f=f, x=TEXT) for f in (both, peers)]
        yield Row("call-text", "echo(40 characters)", timers[0], timers[1], CALL_TARGET)
        count = [session.get_function("testing.nop") for session in (sessions[0], sessions[3])]
        x = sessions[0].empty((16,)), tvm.runtime.empty((16,), "float32", sessions[3].cpu(0))
        timers = [loop("f(x, x)", f=f, x=tensor) for f, tensor in zip(count, x, strict=True)]
        yield Row("call-tensors", "nop(two remote tensors)", timers[0], timers[1], CALL_TARGET)


def callback_rows(core: int) -> Iterator[Row]:
    """Yield a call whose function calls one of the client, against a call."""
    with our_server(core) as ours, our_session(ours) as session:
        apply, echo = session.get_function("testing.apply"), session.get_function(ECHO)
        called = portcall.convert(lambda value: value)
        mine, other = loop("f(g, 1)", f=apply, g=called), loop("f(1)", f=echo)
        yield Row("callback", "echo(1), which calls back", mine, other, CALLBACK_TARGET)


def apart_rows(core: int) -> Iterator[Row]:
    """Yield calls where each end has a core of its own: most of that time is the kernel waking a core."""
    with our_server(core) as ours, peers_server(core) as peers, our_session(ours) as session:
        f, g = session.get_function(ECHO), peers_session(peers).get_function(ECHO)
        yield Row("call-apart", "echo(1)", loop("f(1)", f=f), loop("f(1)", f=g))


def many_rows(core: int) -> Iterator[Row]:
    """Yield many calls on their way at once against as many of the peer's, which waits for each."""
    with our_server(core) as ours, peers_server(core) as peers, our_session(ours) as session:
        f, g = session.get_function(ECHO), peers_session(peers).get_function(ECHO)
        mine = loop("for future in [f.future(i) for i in many]: future.result()", f=f, many=range(MANY))
        theirs = loop("for i in many: f(i)", f=g, many=range(MANY))
        yield Row("call-many", f"{MANY:,} calls of echo on their way", mine, theirs, MANY_TARGET)
        yield Row(
            "call-map", f"echo.map({MANY:,} rows)", loop("f.map(many)", f=f, many=range(MANY)), theirs, MANY_TARGET
        )


def far_rows(core: int) -> Iterator[Row]:
    """Yield steps that depend on each other against one round trip, through a proxy that delays."""
    with our_server(core) as ours, delayed(ours.port, DELAY) as port, portcall.rpc.connect(HOST, port) as session:
        nop, echo, array = session.get_function("testing.nop"), session.get_function(ECHO), np.ones(256, "float32")

        def steps(number: int) -> float:
            start = time.perf_counter()
            for _ in range(number):
                with session.pipeline():
                    x, y, out = session.tensor(array), session.tensor(array), session.empty(256)
                    nop(x, y, out)
                    out.numpy()
            return time.perf_counter() - start

        text = "allocate 3, copy 2 to it, call, copy 1 back"
        yield Row("far-steps", text, steps, loop("f(1)", f=echo), FAR_TARGET, "echo(1): one round trip")
        arrays = loop("f(a, a)", f=nop, a=array)
        yield Row("far-arrays", "nop(array of this process)", arrays, loop("f(1)", f=echo), None, "echo(1)")


def copy_rows(core: int) -> Iterator[Row]:
    """Yield copies of tensors against the same bytes through sockets."""
    with our_server(core) as ours, raw_server(core) as raw, our_session(ours) as session:
        sockets = RawClient(raw.port)
        for size in (MEDIUM_COPY, LARGE_COPY):
            remote, local = session.empty((size,), "uint8"), np.ones(size, np.uint8)
            tensor = portcall.empty((size,), "uint8")
            remote.copyfrom(local)
            put, get = loop("put(n)", put=sockets.put, n=size), loop("get(n)", get=sockets.get, n=size)
            n = format_size(size).replace(".0", "")
            key = n.replace(" ", "")
            text = f"copyfrom(array of {n})"
            yield Row(f"to-{key}", text, loop("x.copyfrom(a)", x=remote, a=local), put, SOCKET_TARGET)
            text = f"numpy(out=array of {n})"
            yield Row(f"from-{key}", text, loop("x.numpy(out=a)", x=remote, a=local), get, SOCKET_TARGET)
            text = f"copyto(tensor of {n})"
            yield Row(f"tensor-{key}", text, loop("x.copyto(t)", x=remote, t=tensor), get, SOCKET_TARGET)
            text = f"numpy() of {n}"
            yield Row(f"numpy-{key}", text, loop("x.numpy()", x=remote), get, NUMPY_TARGET)
        sockets.close()


def byte_rows(core: int) -> Iterator[Row]:
    """Yield byte strings as arguments and as results, against the same bytes through sockets."""
    with (
        our_server(core, "--import", str(FUNCTIONS)) as ours,
        raw_server(core) as raw,
        our_session(ours) as session,
    ):
        sockets = RawClient(raw.port)
        take, make = session.get_function("testing.nop"), session.get_function("bench.bytes")
        for size in BYTES:
            put, get = loop("put(n)", put=sockets.put, n=size), loop("get(n)", get=sockets.get, n=size)
            n = format_size(size).replace(".0", "")
            key = n.replace(" ", "")
            target = BYTES_TARGET if size >= MEDIUM_COPY else None
            yield Row(f"bytes-to-{key}", f"nop(bytes of {n})", loop("f(b)", f=take, b=b"x" * size), put, target)
            yield Row(f"bytes-from-{key}", f"bytes of {n} as a result", loop("f(n)", f=make, n=size), get, target)
        sockets.close()


def file_rows(core: int) -> Iterator[Row]:
    """Yield files sent to a directory in memory and fetched from it, against the same bytes through sockets."""
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as place,
        our_server(core, "--work-dir", place) as ours,
        raw_server(core) as raw,
        our_session(ours) as session,
    ):
        sockets = RawClient(raw.port)
        for size in FILES:
            content, numbers = bytearray(size), itertools.count()  # new for each upload: the server keeps what it has
            session.upload(content, "file")
            put, get = loop("put(n)", put=sockets.put, n=size), loop("get(n)", get=sockets.get, n=size)
            n = format_size(size).replace(".0", "")
            key = n.replace(" ", "")
            renew = "content[:8] = next(numbers).to_bytes(8, 'little'); send(content, 'file')"
            send = loop(renew, send=session.upload, content=content, numbers=numbers)
            yield Row(f"upload-{key}", f"upload(bytes of {n})", send, put)
            yield Row(f"download-{key}", f"download(file of {n})", loop("fetch('file')", fetch=session.download), get)
        sockets.close()


def again_rows(core: int) -> Iterator[Row]:
    """Yield a file that the server has, sent again, against one that it does not have."""
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as place,
        our_server(core, "--work-dir", place) as ours,
        our_session(ours) as session,
    ):
        file = Path(place, "sent")
        file.write_bytes(bytes(AGAIN))
        numbers = itertools.count()

        def send_new(number: int) -> float:
            total = 0.0
            for _ in range(number):
                with file.open("r+b") as opened:
                    opened.write(next(numbers).to_bytes(8, "little"))
                total += timeit.timeit(lambda: session.upload(file), number=1)
            time.sleep(DIGEST_PAUSE)
            return total

        send_new(1)
        again = loop("send(file)", send=session.upload, file=file)
        yield Row(
            "upload-again",
            "upload(file of 100 MB that the server has)",
            again,
            send_new,
            AGAIN_TARGET,
            "one that it has not",
        )


def small_copy_rows(core: int) -> Iterator[Row]:
    with our_server(core) as ours, peers_server(core) as peers, our_session(ours) as session:
        local = np.ones(SMALL_COPY, np.uint8)
        peers_end = peers_session(peers)
        mine, theirs = session.tensor(local), tvm.runtime.tensor(local, peers_end.cpu(0))
        n = format_size(SMALL_COPY).replace(".0", "")
        timers = [loop("x.copyfrom(a)", x=x, a=local) for x in (mine, theirs)]
        yield Row("small-to", f"copyfrom(array of {n})", timers[0], timers[1], SMALL_COPY_TARGET)
        timers = [loop("x.numpy()", x=x) for x in (mine, theirs)]
        yield Row("small-from", f"numpy() of {n}", timers[0], timers[1], SMALL_COPY_TARGET)


def open_rows(core: int) -> Iterator[Row]:
    with our_server(core) as ours, peers_server(core) as peers:
        mine = opening(lambda: our_session(ours), lambda session: session.close())
        theirs = opening(lambda: peers_session(peers), lambda _: None)
        yield Row("open", "open a session, look up echo, call it", mine, theirs, OPEN_TARGET)


def opening(connect: Callable[[], Any], close: Callable[[Any], None]) -> Timer:
    """Return a timer of sessions up to the end of their first call. Neither their end nor its aftermath is timed."""

    def run(number: int) -> float:
        total = 0.0
        for _ in range(number):
            start = time.perf_counter()
            session = connect()
            session.get_function(ECHO)(1)
            total += time.perf_counter() - start
            close(session)
            del session
            time.sleep(PAUSE)
        return total

    return run
