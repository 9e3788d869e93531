# SPDX-License-Identifier: Apache-2.0
"""``portcall serve --audit``: a line for each call, whatever clients send and whatever becomes of the file."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from portcall import errors, rpc
from portcall.rpc.server._audit import Book, Heads, Ledger
from rpc.conftest import CLIENT_FUNCTIONS
from rpc.raw_client import (
    CALL,
    EXCEPTION,
    FREE,
    GET_FUNCTION,
    NESTED,
    POSTED,
    RETURN,
    RawClient,
    frame,
    integer,
    pointer,
    sequence,
    tensor,
    text,
)
from rpc.serving import serving, wait_until

PYTHON: Any = {"program": "python", "functions": CLIENT_FUNCTIONS}  # portcall-server has no such option


def lines_of(path: Path, count: int) -> list[dict[str, Any]]:
    """The lines of calls of the tests' own functions, once there are so many."""

    def own() -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return [line for line in lines if line["function"].startswith(("demo.", "add", "refuse"))]

    wait_until(lambda: len(own()) >= count)
    return own()


def test_audit_says_of_each_call_who_what_and_how(tmp_path: Path, kernel_library: Path) -> None:
    path = tmp_path / "calls.jsonl"
    with serving("--audit", path, **PYTHON) as server, rpc.connect(server.address) as remote:
        remote.get_function("demo.scale")(2, 3)
        with pytest.raises(ValueError, match="no"):
            remote.get_function("demo.fail")("no")
        x = np.zeros((2, 3), "float32")
        remote.upload(kernel_library)
        remote.load_module(kernel_library.name).add_one(x, remote.empty((2, 3)))
        remote.get_function("demo.adder")(2)(3)
        remote.get_function("demo.scale")(2, k=4)
        with remote.pipeline():
            remote.get_function("demo.scale")(5, 6)
        names = [line["function"] for line in map(json.loads, path.read_text().splitlines())]
        lines = lines_of(path, 7)
    facts = [(line["function"], line["arguments"], line["ending"]) for line in lines]
    assert facts == [
        ("demo.scale", ["int", "int"], "ok"),
        ("demo.fail", ["str"], "error"),
        ("add_one", ["float32[2, 3]", "float32[2, 3]"], "ok"),
        ("demo.adder", ["int"], "ok"),
        ("demo.adder()", ["int"], "ok"),
        ("demo.scale", ["int", "int"], "ok"),
        ("demo.scale", ["int", "int"], "posted"),
    ]
    assert "tvm.rpc.server.load_module" in names
    assert lines[1]["error"] == "ValueError"
    assert {line["session"] for line in lines} == {1}
    assert all(line["user"].startswith("127.0.0.1:") and line["time"].endswith("Z") for line in lines)
    assert all(line["duration_s"] >= 0 for line in lines[:-1])
    assert path.stat().st_mode & 0o777 == 0o600


def test_audit_line_is_there_before_the_answer(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    with serving("--audit", path, "--no-fork", **PYTHON) as server, rpc.connect(server.address) as remote:
        scale = remote.get_function("demo.scale")
        for count in range(1, 20):
            scale(1, 1)
            assert path.read_text().count("demo.scale") == count


def test_audit_has_the_call_that_crashed_and_sessions_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    with serving("--audit", path, **PYTHON) as server:
        with rpc.connect(server.address) as other, rpc.connect(server.address) as remote:
            with pytest.raises(errors.RemoteCrashError):
                remote.get_function("demo.crash")(11)
            other.get_function("demo.scale")(2, 3)
        lines = lines_of(path, 2)
    assert sorted((line["function"], line["ending"], line["session"]) for line in lines) == [
        ("demo.crash", "unanswered", 2), ("demo.scale", "ok", 1),
    ]  # fmt: skip


def test_audit_callbacks_and_large_copies_go_through(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    with serving("--audit", path, **PYTHON) as server, rpc.connect(server.address) as remote:
        scale = remote.get_function("demo.scale")
        assert remote.get_function("demo.call")(lambda v: scale(v, 3), 4) == 12
        data = np.arange(3_000_000, dtype="float64")
        assert (remote.tensor(data).numpy() == data).all()
        assert scale.map([(i, 2) for i in range(100)]) == [2 * i for i in range(100)]
        lines = lines_of(path, 102)
    assert [(line["function"], line["arguments"]) for line in lines[:2]] == [
        ("demo.scale", ["int", "int"]), ("demo.call", ["function", "int"]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "body", [b"", b"\1", sequence(), b"\xff\xff\xff\x7f" * 9, sequence(tensor(1, 8))[:30], b"\x80" * 70_000]
)
def test_audit_survives_what_is_no_call(tmp_path: Path, body: bytes) -> None:
    path = tmp_path / "calls.jsonl"
    with serving("--audit", path, **PYTHON) as server, RawClient(server.address) as client:
        client.open()
        for code in (CALL, GET_FUNCTION, 10, 0x203):
            client.sock.sendall(frame(code, body))
        client.sock.sendall(frame(GET_FUNCTION, sequence(text("demo.scale"))))
        wait_until(lambda: client.read_frame()[0] == RETURN)
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_audit_names_cannot_make_lines_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    book = Book(str(path))
    ledger = Ledger(book, {})
    name = 'x"}\n{"function": "forged"}\x1b[2J' + "y" * 5000
    ledger.requests(memoryview(frame(GET_FUNCTION, sequence(text(name)))))
    ledger.answers(memoryview(frame(RETURN, sequence(pointer(7)))))
    ledger.requests(memoryview(frame(CALL, (7).to_bytes(8, "little") + sequence(integer(1)))))
    ledger.answers(memoryview(frame(RETURN, sequence(integer(1), integer(2)))))
    book.close()
    (line,) = path.read_bytes().splitlines()
    assert b"\x1b" not in line
    assert json.loads(line)["function"] == name[:200]


CALLBACK, CHOSEN = 66, 1 << 63


def u64(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in numbers)


class Conversation:
    """What a client and its session say, to a ledger."""

    def __init__(self, path: Path) -> None:
        self._path, self._book = path, Book(str(path))
        self._ledger = Ledger(self._book, {})

    def asks(self, code: int, body: bytes) -> None:
        self._ledger.requests(memoryview(frame(code, body)))

    def answers(self, code: int, body: bytes) -> None:
        self._ledger.answers(memoryview(frame(code, body)))

    def looks_up(self, name: str, handle: int) -> None:
        self.asks(GET_FUNCTION, sequence(text(name)))
        self.answers(RETURN, sequence(pointer(handle)))

    def calls(self, handle: int, code: int = RETURN, answer: bytes = sequence(integer(1), integer(2))) -> None:
        self.asks(CALL, u64(handle) + sequence(integer(1)))
        self.answers(code, answer)

    def lines(self) -> list[dict[str, Any]]:
        self._ledger.finish()
        self._book.close()
        return [json.loads(line) for line in self._path.read_text().splitlines()]


def test_audit_names_a_function_that_was_looked_up_twice_and_freed_once(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    with serving("--audit", path, **PYTHON) as server, RawClient(server.address) as client:
        client.open()
        handles = [client.function("demo.scale") for _ in range(2)]
        assert handles[0] == handles[1]
        client.ask(frame(FREE, sequence(pointer(handles[0]))))
        assert client.ask(frame(CALL, u64(handles[0]) + sequence(integer(2), integer(3))))[0] == RETURN
        assert lines_of(path, 1)[0]["function"] == "demo.scale"


@pytest.mark.parametrize(
    "free", [sequence(pointer(7), pointer(8)), sequence(integer(7)), sequence(pointer(7)) + b"x", b""]
)
def test_audit_forgets_no_name_for_a_free_that_is_refused(tmp_path: Path, free: bytes) -> None:
    talk = Conversation(tmp_path / "calls")
    talk.looks_up("f", 7)
    talk.asks(FREE + POSTED, u64(0) + free)
    talk.calls(7)
    assert [line["function"] for line in talk.lines()] == ["f"]


def test_audit_handle_that_a_client_fills_again_has_both_names(tmp_path: Path) -> None:
    talk = Conversation(tmp_path / "calls")
    talk.looks_up("f", 7)
    talk.asks(GET_FUNCTION + POSTED, u64(CHOSEN) + sequence(text("f")))
    talk.asks(CALL + POSTED, u64(7, 7) + sequence())  # the session refuses both: these handles are taken
    talk.asks(GET_FUNCTION + POSTED, u64(CHOSEN) + sequence(text("harmless")))
    talk.calls(7)
    talk.calls(CHOSEN)
    talk.asks(FREE + POSTED, u64(0) + sequence(pointer(CHOSEN)))
    talk.asks(GET_FUNCTION + POSTED, u64(CHOSEN) + sequence(text("g")))
    talk.calls(CHOSEN)
    assert [line["function"] for line in talk.lines()] == ["f", "f", "f or harmless", "g"]


def test_audit_keeps_a_name_as_long_as_a_callback_may_use_it(tmp_path: Path) -> None:
    talk = Conversation(tmp_path / "calls")
    talk.looks_up("f", 7)
    talk.answers(CALLBACK + NESTED, u64(1, 0, 3) + sequence())
    talk.asks(FREE + POSTED, u64(0) + sequence(pointer(7)))
    talk.calls(7)
    talk.asks(RETURN + NESTED, u64(1) + sequence(integer(1)))
    talk.calls(7)
    assert [line["function"] for line in talk.lines()] == ["f", "a function without a name"]


@pytest.mark.parametrize(
    ("code", "answer", "error"),
    [
        (EXCEPTION, sequence(text("")), "an error without a class"),
        (EXCEPTION, sequence(text(": words")), "an error without a class"),
        (EXCEPTION, b"", "an error without a class"),
        (EXCEPTION, sequence(text("KeyError: words")), "KeyError"),
        (RETURN, b"\1", None),
        (RETURN, sequence(integer(68)), None),
    ],
)
def test_audit_has_a_line_whatever_the_session_answers(
    tmp_path: Path, code: int, answer: bytes, error: str | None
) -> None:
    talk = Conversation(tmp_path / "calls")
    talk.looks_up("f", 7)
    talk.calls(7, code, answer)
    (line,) = talk.lines()
    assert (line["function"], line["ending"], line.get("error")) == ("f", "error" if error else "ok", error)


def test_heads_of_any_split_are_the_same() -> None:
    data = frame(3, b"abc") + b"\0" * 8 + frame(7, b"x" * 100_000) + frame(4)
    whole = list(Heads().feed(memoryview(data)))
    for size in (1, 7, 8, 9, 4096):
        heads = Heads()
        pieces = [data[i : i + size] for i in range(0, len(data), size)]
        assert [head for piece in pieces for head in heads.feed(memoryview(piece))] == whole
    assert [len(head) for head in whole] == [7, 65536, 4]


def test_audit_of_a_full_disk_says_what_it_lacks(tmp_path: Path) -> None:
    path = tmp_path / "calls"
    script = "\n".join(
        [
            "import resource, signal, sys",
            "from portcall.rpc.server._audit import Book",
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)",
            "book = Book(sys.argv[1])",
            "resource.setrlimit(resource.RLIMIT_FSIZE, (25, resource.RLIM_INFINITY))",
            "for number in range(4): book.write({'number': number})",
            "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)",
            "book.write({'number': 4})",
        ]
    )
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
    assert done.stderr.count("lacks calls") == 1
    lines = path.read_text().splitlines()
    assert lines[0] == '{"number": 0}'
    assert lines[-2:] == ['{"lost": 3}', '{"number": 4}']


@pytest.mark.parametrize("kind", ["folder", "missing", "pipe"])
def test_audit_that_cannot_be_written_is_told_at_the_start(tmp_path: Path, kind: str) -> None:
    path = {"folder": tmp_path, "missing": tmp_path / "no" / "file", "pipe": tmp_path / "pipe"}[kind]
    if kind == "pipe":
        os.mkfifo(path)
    with pytest.raises((OSError, errors.StartError), match="audit"):
        rpc.Server(audit=str(path)).terminate()


def test_audit_of_a_device_that_is_full_leaves_sessions_alone(tmp_path: Path) -> None:
    with serving("--audit", "/dev/full", **PYTHON) as server, rpc.connect(server.address) as remote:
        assert remote.get_function("demo.scale")(2, 3) == 6
        assert remote.get_function("demo.scale")(2, 4) == 8
        assert "lacks calls" in server.event("output")["message"]
