# SPDX-License-Identifier: Apache-2.0
"""What a session's code prints reaches its client, in order with its calls; a crash names the call that ran."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from portcall import errors, rpc
from portcall.rpc.wire._endings import Progress
from portcall.rpc.wire._facts import PROGRESS_BYTES
from rpc.raw_client import CALL, MAGIC, RETURN, RawClient, frame, integer, sequence, text
from rpc.relay import read, read_frame, saying
from rpc.serving import FUNCTIONS, Serving, serving

OUTPUT = 32
SERVED = (
    FUNCTIONS
    + """
import ctypes
libc = ctypes.CDLL(None)
@register("say")
def say(text): print(text)
@register("complain")
def complain(text): print(text, file=sys.stderr)
@register("say_in_c")
def say_in_c(text): libc.puts(text.encode())
@register("flood")
def flood(count, path=""):
    for i in range(count): print(f"{i:100}")
    if path: open(path, "w").close()
@register("say_and_wait")
def say_and_wait(path):
    print("before")
    while not os.path.exists(path): time.sleep(0.005)
@register("part")
def part(text): sys.stdout.write(text); sys.stdout.flush()
@register("crash_with")
def crash_with(x, text, number, last):
    os.write(2, last.encode())
    os.kill(os.getpid(), number)
@register("close_streams")
def close_streams(): os.close(1); os.close(2)
"""
)


@pytest.fixture(scope="module", params=["python", "board"])
def either(request: pytest.FixtureRequest) -> Iterator[Serving]:
    with serving(functions=SERVED, program=request.param) as running:
        yield running


class Printed(list[tuple[str, str]]):
    """Collects lines."""

    def __call__(self, line: str, stream: str) -> None:
        self.append((line, stream))


def test_on_output_gets_lines_in_order_with_the_calls(server: Serving) -> None:
    printed = Printed()
    with rpc.connect(server.address, options=rpc.ConnectOptions(on_output=printed)) as remote:
        assert "output" in remote.features
        for i in range(50):
            remote["demo.say"](f"line {i}")
            assert printed[-1] == (f"line {i}", "stdout")
        remote["demo.complain"]("oh")
        remote["demo.say_in_c"]("from C")
        assert printed[50:] == [("oh", "stderr"), ("from C", "stdout")]
        assert remote["demo.scale"](3, 4) == 12
    server.event("output", lambda event: event["message"] == "from C")


def test_on_output_gets_a_line_while_its_call_runs(server: Serving, tmp_path: Path) -> None:
    go = tmp_path / "go"
    with rpc.connect(server.address, options=rpc.ConnectOptions(on_output=lambda line, stream: go.touch())) as remote:
        remote["demo.say_and_wait"](str(go))  # returns when on_output has made the file


def test_on_output_gets_a_line_that_comes_in_parts_whole(server: Serving) -> None:
    printed = Printed()
    with rpc.connect(server.address, options=rpc.ConnectOptions(on_output=printed)) as remote:
        remote["demo.part"]("one ")
        remote["demo.part"]("line\nand the ")
        assert printed == [("one line", "stdout")]
        remote["demo.part"]("rest\n")
        assert printed[1:] == [("and the rest", "stdout")]


def test_on_output_gets_no_escapes(server: Serving) -> None:
    printed = Printed()
    with rpc.connect(server.address, options=rpc.ConnectOptions(on_output=printed)) as remote:
        remote["demo.say"]("\x1b[31mred\x1b[0m \x07")
    assert printed == [("red ", "stdout")]


def test_connect_without_on_output_leaves_output_to_the_log(server: Serving) -> None:
    with rpc.connect(server.address) as remote:
        assert "output" not in remote.features
        remote["demo.say"]("only for the log, once")
    assert server.event("output", lambda event: "only for the log" in event["message"])


def test_on_output_keeps_the_order_of_a_flood_and_says_what_is_missing(server: Serving) -> None:
    printed = Printed()
    with rpc.connect(server.address, options=rpc.ConnectOptions(on_output=printed)) as remote:
        remote["demo.flood"](30_000)
        remote["demo.say"]("end")
    assert printed.pop() == ("end", "stdout")
    numbers = [int(line) for line, _ in printed if not line.startswith("[")]
    missing = sum(int(line[1:].split()[0]) for line, _ in printed if line.startswith("["))
    assert numbers == sorted(set(numbers))
    assert len(numbers) + missing == 30_000


def test_server_drops_output_of_a_client_that_does_not_read(server: Serving, tmp_path: Path) -> None:
    with RawClient(server.address).open(options=" -portcall=1 -features=output") as client:
        flood, done = client.function("demo.flood"), tmp_path / "done"
        call = sequence(integer(150_000), text(str(done)))
        client.send(frame(CALL, struct.pack("<Q", flood) + call))
        until = time.monotonic() + 60
        while not done.exists():
            assert time.monotonic() < until, "code that prints waits for its client"
            time.sleep(0.01)
        count = missing = 0
        while (read := client.read_frame())[0] == OUTPUT:
            stream, dropped, size = struct.unpack_from("<iQQ", read[1])
            assert (stream, len(read[1])) == (1, 20 + size)
            missing += dropped
            count += read[1][20:].count(b"\n")  # after the head
        assert read[0] == RETURN
        assert 0 < count < 150_000
        code, body = client.ask(frame(CALL, struct.pack("<Q", flood) + sequence(integer(1), text(str(done)))))
        assert code == OUTPUT
        missing += struct.unpack_from("<iQ", body)[1]
        assert count + missing == 150_000


def test_session_may_close_its_streams(server: Serving) -> None:
    with rpc.connect(server.address, options=rpc.ConnectOptions(on_output=Printed())) as remote:
        remote["demo.close_streams"]()
        assert remote["demo.scale"](3, 4) == 12


def test_on_output_may_raise(server: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(line: str, stream: str) -> None:
        raise ValueError(f"cannot print {line}")

    with rpc.connect(server.address, options=rpc.ConnectOptions(on_output=refuse)) as remote:
        remote["demo.say"]("this")
        assert remote["demo.scale"](3, 4) == 12
    assert "cannot print this" in capsys.readouterr().err


# ---- Crashes ----


def test_remote_crash_error_has_the_call_and_the_last_lines_of_stderr(server: Serving) -> None:
    lines = "".join(f"line {i}\n" for i in range(20)) + "and then"
    with rpc.connect(server.address) as remote:
        with pytest.raises(errors.RemoteCrashError, match="SIGSEGV") as raised:
            remote["demo.crash_with"](np.zeros((3, 4), "float32"), "text", 11, lines)
        assert raised.value.call == "demo.crash_with(float32[3, 4], str, int, str)"
        assert raised.value.stderr.splitlines() == [*(f"line {i}" for i in range(11, 20)), "and then"]
        assert raised.value.call in str(raised.value)
        assert "and then" in str(raised.value)
    assert (
        "demo.crash_with(float32[3, 4], str, int, str)"
        in server.event("ended", lambda e: e["how"] == "crash")["message"]
    )


def test_remote_crash_error_of_an_exit_has_the_call(server: Serving) -> None:
    with rpc.connect(server.address) as remote:
        with pytest.raises(errors.RemoteCrashError, match="exited with code 3") as raised:
            remote["demo.exit"](3)
        assert raised.value.call == "demo.exit(int)"
        assert raised.value.stderr == ""


def test_remote_crash_error_has_the_types_of_its_call_alone(either: Serving) -> None:
    with rpc.connect(either.address) as remote:
        remote["demo.fill"](remote.tensor(np.zeros((3, 4), "float32")), 1.0)
        with pytest.raises(errors.RemoteCrashError) as raised:
            remote["demo.exit"](3)
        assert raised.value.call == "demo.exit(int)"


@given(st.binary(min_size=PROGRESS_BYTES, max_size=PROGRESS_BYTES) | st.binary(max_size=100))
def test_progress_reads_any_bytes(data: bytes) -> None:
    progress = Progress.from_bytes(data)
    assert len(progress.call) < 2000


# ---- A server that lies ----


def output(stream: int, dropped: int, data: bytes) -> bytes:
    return frame(OUTPUT, struct.pack("<iQQ", stream, dropped, len(data)) + data)


@contextlib.contextmanager
def session_with(answer: bytes, words: str, **options: Any) -> Iterator[rpc.Session]:
    """A session with a server that opens it with these words, and then says only this."""

    def serve(sock: socket.socket) -> None:
        read(sock, struct.unpack("<ii", read(sock, 8))[1])
        sock.sendall(struct.pack("<ii", MAGIC, len(words)) + words.encode())
        read_frame(sock)
        sock.sendall(frame(RETURN, struct.pack("<ii", 1, 0)))
        read_frame(sock)
        sock.sendall(answer)
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(4096):
                pass

    given = rpc.ConnectOptions(**options)
    with (
        saying(serve, shake_hands=False) as port,
        rpc.connect("127.0.0.1", port, timeout=30, options=given) as session,
    ):
        yield session


OFFERED = "server: -portcall=1 -features=output"
FOUND = frame(RETURN, struct.pack("<iiQ", 1, 4, 0))


def test_client_takes_output_before_any_answer() -> None:
    printed = Printed()
    answer = output(1, 0, b"a\n") + output(2, 5, b"b\nc") + FOUND
    with session_with(answer, OFFERED, on_output=printed) as remote:
        assert remote._find("x") is None
    assert [stream for _, stream in printed] == ["stdout", "stderr", "stderr"]
    assert (printed[0][0], printed[2][0]) == ("a", "b")
    assert "5" in printed[1][0]


@pytest.mark.parametrize(
    "answer",
    [output(0, 0, b"x"), output(3, 0, b"x"), output(1, 0, b"x")[:-1], frame(OUTPUT, b"\1\0\0\0"),
     frame(OUTPUT, struct.pack("<iQQ", 1, 0, 5) + b"abc"), frame(OUTPUT, struct.pack("<iQQ", 1, 0, 1) + b"abc")],
    ids=["no stream", "another stream", "cut off", "too short", "shorter than it says", "longer"],
)  # fmt: skip
def test_client_refuses_output_that_is_wrong(answer: bytes) -> None:
    with session_with(answer, OFFERED, on_output=Printed()) as remote:
        with pytest.raises((errors.RemoteProtocolError, errors.SessionBrokenError)):
            remote._find("x")
        assert remote.closed


@pytest.mark.parametrize(("words", "options"), [(OFFERED, {}), ("server: -portcall=1", {"on_output": Printed()})])
def test_client_refuses_output_that_was_not_agreed_upon(words: str, options: dict[str, Any]) -> None:
    answer = output(1, 0, b"x") + FOUND
    with session_with(answer, words, **options) as remote, pytest.raises(errors.RemoteProtocolError):
        remote._find("x")


@settings(max_examples=30)
@given(st.binary(max_size=60))
def test_client_reads_text_or_raises_for_any_output_frame(body: bytes) -> None:
    answer = frame(OUTPUT, body) + FOUND
    with (
        session_with(answer, OFFERED, on_output=Printed()) as remote,
        contextlib.suppress(errors.RemoteProtocolError),
    ):
        assert remote._find("x") is None
