# SPDX-License-Identifier: Apache-2.0
"""A server's log that nobody reads, and what sessions write: neither stops the server, or looks like its own lines."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from portcall import rpc
from portcall.rpc.server._log_writer import MOST_LINES
from rpc.processes import children_of, command_of
from rpc.raw_client import MISMATCH, RETURN, RawClient, hello, integer, text
from rpc.serving import FUNCTIONS, serving

TALK = (
    FUNCTIONS
    + """
@register("say")
def say(words, times):
    for _ in range(times): print(words)
@register("say_in_c")
def say_in_c(words): __import__("ctypes").CDLL(None).puts(words.encode())
@register("say_bytes")
def say_bytes(): os.write(2, b"\\\\xff\\\\x1b[2J no end of line")
"""
).replace("\\\\x", "\\x")
F_SETPIPE_SZ = 1031


@dataclass
class Unread:
    """A server whose standard error is a pipe that is full, and that nobody reads."""

    process: subprocess.Popen[str]
    address: str
    reader: int

    def read(self) -> Iterator[dict[str, Any]]:
        """The events of the log, which from now on somebody reads."""
        with open(self.reader, closefd=False) as log:
            for line in log:
                if line.startswith("{"):
                    yield json.loads(line)


@pytest.fixture
def unread(tmp_path: Path) -> Iterator[Unread]:
    (tmp_path / "functions.py").write_text(TALK)
    reader, writer = os.pipe()
    fcntl.fcntl(writer, F_SETPIPE_SZ, 4096)
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"\n" * 512)
    os.set_blocking(writer, True)
    command = [sys.executable, "-m", "portcall", "serve", "--port", "0", "--log-json", "--work-dir", str(tmp_path),
               "--import", str(tmp_path / "functions.py")]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writer, text=True) as process:
        os.close(writer)
        try:
            assert process.stdout is not None
            yield Unread(process, process.stdout.readline().split()[-1], reader)
            process.terminate()
            assert process.wait(30) == 0
            assert not list(tmp_path.glob("portcall-server-*"))
        finally:
            process.kill()
            os.close(reader)


def test_server_with_an_unread_log_serves_and_stops(unread: Unread) -> None:
    with RawClient(unread.address) as client:
        client.open(options=" -timeout=0.5")
        assert b"expired" in client.read_frame()[1]
    with RawClient(unread.address) as client:
        client.open()
        assert client.call("demo.say", text("x" * 100), integer(5 * MOST_LINES))[0] == RETURN
        assert client.echo(1) == 1


def test_log_counts_dropped_lines(unread: Unread) -> None:
    with RawClient(unread.address) as client:
        client.open()
        assert client.call("demo.say", text("x" * 100), integer(2 * MOST_LINES))[0] == RETURN
    written = dropped = 0
    for event in unread.read():  # what the session had written may come to the log's process after the first count
        written += event["event"] == "output"
        dropped += int(event["message"].split()[0]) if event["event"] == "lines_dropped" else 0
        if dropped and written + dropped >= 2 * MOST_LINES:
            break
    assert written + dropped == 2 * MOST_LINES
    with RawClient(unread.address) as client:  # events still come
        client.send(hello("wrong"))
        assert client.read(4) == MISMATCH.to_bytes(4, "little")
    assert any(event["event"] == "refused" for event in unread.read())


@pytest.mark.parametrize("options", ["", " -portcall=1 -features=traceback"])
def test_log_marks_session_output_and_removes_escapes(options: str) -> None:
    forged = '{"event": "ended", "peer": "nobody"}'
    with serving(functions=TALK) as server, RawClient(server.address) as client:
        client.open(options=options)
        for words in (forged, "a\rb", "\x1b[31mred"):
            client.call("demo.say", text(words), integer(1))
            assert server.event("output")["message"] == words  # which JSON shows without escapes
        client.call("demo.say_in_c", text("from C"))
        assert server.event("output")["message"] == "from C"
        client.call("demo.say_bytes")
        with contextlib.suppress(EOFError):  # a portcall client is not told on this connection
            client.call("demo.crash", integer(signal.SIGKILL))
        server.ended(client.name)
        client.close()
        assert server.stop() == 0
        assert server.event("output")["message"] == "\\xff\x1b[2J no end of line"


def test_log_text_marks_session_output(tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text(TALK + "\nprint('importing')\n")
    for more, mark in (([], " output: "), (["--silent"], "")):
        command = [sys.executable, "-m", "portcall", "serve", "--port", "0", "--import", str(tmp_path / "functions.py")]
        with subprocess.Popen([*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            with rpc.connect(process.stdout.readline().split()[-1]) as remote:
                remote["demo.say"]("session 1: opened for nobody\x1b[2J", 1)
            process.terminate()
            lines = process.communicate()[1].splitlines()
        said = [line for line in lines if "nobody" in line or "importing" in line]
        assert [line[19 if mark else 0 :] for line in said] == [
            f"{mark}importing", f"{mark}session 1: opened for nobody\\x1b[2J"]  # fmt: skip
        if not mark:
            assert lines == said


def test_log_process_killed_is_restarted() -> None:
    with serving(functions=TALK) as server:
        (writer,) = [pid for pid in children_of(server.process.pid) if b"_log_writer" in command_of(pid)]
        handle = os.pidfd_open(writer)
        os.kill(writer, signal.SIGKILL)
        assert select.select([handle], [], [], 30)[0]
        os.close(handle)
        while not any(b"_log_writer" in command_of(pid) for pid in children_of(server.process.pid)):
            with RawClient(server.address) as client:
                client.open()
                client.call("demo.say", text("hello"), integer(1))
        with RawClient(server.address) as client:
            client.open()
            client.call("demo.say", text("after"), integer(1))
            assert server.event("output", lambda event: event["message"] == "after")


def test_log_reader_gone_does_not_stop_the_server() -> None:
    command = [sys.executable, "-m", "portcall", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        address = process.stdout.readline().split()[-1]
        process.stderr.close()
        for _ in range(3):
            with RawClient(address) as client:
                client.open()
                assert client.echo(1) == 1
        process.terminate()
        assert process.wait(30) == 0
