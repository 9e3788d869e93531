# SPDX-License-Identifier: Apache-2.0
"""Agents of places before a farm that refuses them, answers nonsense or gives orders that nobody can carry out."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farm.boards import agent_board, board, place_command
from farm.fake_farm import FakeFarm, http, refusal

NONSENSE = {
    "refusals": [
        refusal(400, "invalid"), refusal(404, "unknown"), refusal(409, "taken"), refusal(500, "internal"),
        refusal(403, "origin"),
    ],
    "other servers": [
        http(401, b'{"message": "log in"}'), http(403, b"<html>"), http(200, b"<html>"), http(204, b""),
        http(302, b'{"orders": []}'),
    ],
    "wrong answers": [
        http(200, b"{}"), http(200, b"[]"), http(200, b'{"orders": 7, "agent": 7}'), http(200, b"[" * 100_000),
        http(200, b'{"orders": {"do": "end"}, "agent": ""}'),
    ],
    "wrong bytes": [
        b"", b"HTTP/1.1\r\n\r\n", b"SSH-2.0-x\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n",
        b"HTTP/1.1 OK OK\r\nContent-Length: 99999999999999\r\n\r\n",
    ],
    "forgotten": [refusal(409, "register")] * 4,
}  # fmt: skip
ORDERS: list[Any] = [
    None, 7, "end", [], {}, {"do": "dance", "fence": 1}, {"do": "end"}, {"do": "end", "fence": "1"},
    {"do": "end", "fence": 1.5}, {"do": ["end"], "fence": 1}, {"do": "admit", "fence": 1},
    {"do": "admit", "fence": 1, "key": 7}, {"do": "admit", "fence": 1, "key": "k:1", "limit": "long"},
    {"do": "admit", "fence": 1, "key": "k:1", "limit": 1e300},
]  # fmt: skip
OFFERS: list[dict[str, Any]] = [
    {"key": "k:1", "user": "ann\0root"}, {"key": "k:1", "lease": "l\0"}, {"key": ""}, {"key": "k 1"},
    {"key": "k" * 5000}, {"key": "k:1", "user": 7}, {"key": "k:1", "limit": -1},
]  # fmt: skip


@pytest.fixture
def fake() -> Iterator[FakeFarm]:
    with FakeFarm() as fake:
        yield fake


@pytest.mark.parametrize("kind", NONSENSE)
def test_agent_that_has_served_tries_again_whatever_the_farm_answers(fake: FakeFarm, kind: str) -> None:
    with board(fake, relay=True):
        fake.say(*NONSENSE[kind])
        fake.until(lambda: not fake.nonsense)
        fake.commands.clear()
        fake.until(lambda: fake.count("next") >= 2)
        fake.give({"do": "end", "fence": 7})
        fake.until(lambda: [r for r in fake.done() if (r["what"], r["fence"]) == ("cleaned", 7)])


def test_agent_begins_once_the_farm_answers_well(fake: FakeFarm) -> None:
    fake.say(refusal(400, "invalid"), refusal(409, "taken"), refusal(503, "busy"))
    with board(fake):
        assert fake.count("register") == 4


def test_agent_ends_where_the_farm_refuses_its_token_after_it_has_served(fake: FakeFarm) -> None:
    for answer in (refusal(401, "token", "it was revoked"), refusal(403, "role", "not for your keys")):
        with subprocess.Popen(
            [*place_command(), "--farm", f"{fake.host}:{fake.port}", "--key", "k", "--silent"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            assert process.stdout.readline().startswith("listening")
            fake.say(answer)
            assert process.wait(60) in (1, 3)


def test_agent_outlives_refusals_of_its_reports(fake: FakeFarm) -> None:
    def reported() -> bool:
        fake.orders[:] = [{"do": "offer", "fence": 1, "key": "k:1", "lease": "l", "user": "ann"}]
        return fake.count("report") > 0

    with board(fake, prepare="true"):
        for answer in (*NONSENSE["refusals"], refusal(409, "register"), http(200, b"x"), b""):
            fake.refuse["report"] = answer
            fake.commands.clear()
            fake.until(reported)
            del fake.refuse["report"]
            fake.until(lambda: fake.count("register") or fake.count("report") > 1)
        fake.commands.clear()
        fake.until(lambda: fake.count("next") >= 2)


@pytest.mark.parametrize("prepare", ["", "true"])
def test_agent_declines_what_it_cannot_carry_out_and_goes_on(fake: FakeFarm, prepare: str) -> None:
    with board(fake, prepare=prepare, relay=False):
        fake.give(*ORDERS)
        for fence, offer in enumerate(OFFERS, 10):
            fake.give({"do": "offer", "fence": fence, **offer})
        fake.give({"do": "offer", "fence": 99, "key": "k:99", "lease": "l", "user": "ann"})
        fake.until(lambda: len(fake.done()) > len(OFFERS))  # an offer with a hook is answered by a thread of its own
        answers = {r["fence"]: (r["what"], bool(r.get("why"))) for r in fake.done()}
        declined = dict.fromkeys(range(10, 10 + len(OFFERS)), ("declined", True))
        assert answers == declined | {99: ("accepted", False)}


def test_agent_logs_a_trouble_once(fake: FakeFarm, tmp_path: Path) -> None:
    log = tmp_path / "log"
    words = [*place_command(), "--farm", f"{fake.host}:{fake.port}", "--key", "k"]
    with log.open("w") as file, subprocess.Popen(words, stdout=subprocess.PIPE, stderr=file, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("listening")
        fake.say(*[refusal(400, "invalid", "no such thing")] * 3)
        fake.until(lambda: not fake.nonsense)
        fake.commands.clear()
        fake.until(lambda: fake.count("next") >= 2)
        process.terminate()
        process.wait()
    assert log.read_text().count("no such thing") == 1


@pytest.mark.parametrize("name", ["portcall-relay", "portcall-prepare"])
def test_agent_declines_what_it_has_no_thread_for(fake: FakeFarm, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    start = threading.Thread.start

    def fail(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    hooks = {"prepare": "true"} if name == "portcall-prepare" else {}
    with agent_board(fake, "board", "k", relay=True, **hooks):
        monkeypatch.setattr(threading.Thread, "start", fail)
        fake.give({"do": "offer", "fence": 1, "key": "k:1"})
        (declined,) = fake.until(fake.done)
        assert (declined["what"], declined["fence"]) == ("declined", 1)
        monkeypatch.undo()
        fake.give({"do": "offer", "fence": 2, "key": "k:2"})
        assert fake.until(lambda: fake.done()[1:])[0]["what"] == "accepted"


@pytest.mark.parametrize("clean", ["", "echo clean-$PORTCALL_LEASE_ID >> "])
def test_agent_runs_the_hooks_of_its_place_one_after_the_other(fake: FakeFarm, tmp_path: Path, clean: str) -> None:
    """An offer whose hook runs is over, since the farm lost the connection."""
    log, gate = tmp_path / "log", tmp_path / "gate"
    os.mkfifo(gate)
    prepare = f"echo prepare-$PORTCALL_LEASE_ID >> {log}; cat {gate}; echo prepared-$PORTCALL_LEASE_ID >> {log}"
    first, second = (["prepare-1", "prepared-1", *["clean-1"] * bool(clean)], ["prepare-2", "prepared-2"])

    def goes_on_after(lines: list[str]) -> None:
        with gate.open("w"):  # once it is read
            assert log.read_text().split() == lines

    def reported(what: str, fence: int) -> bool:
        return any((report["what"], report["fence"]) == (what, fence) for report in fake.done())

    def offer(fence: int) -> dict[str, Any]:
        return {"do": "offer", "fence": fence, "key": f"k:{fence}", "lease": str(fence), "user": "ann"}

    with board(fake, prepare=prepare, relay=False, **({"clean": clean + str(log)} if clean else {})):
        fake.give(offer(1))
        fake.until(lambda: fake.count("next") >= 2)
        fake.say(refusal(409, "register"))
        fake.until(lambda: fake.count("register") >= 2)
        asked = fake.count("next")
        fake.give({"do": "end", "fence": 1})
        fake.until(lambda: fake.count("next") > asked + 1)
        goes_on_after(first[:1])
        fake.until(lambda: reported("cleaned", 1))
        assert log.read_text().split() == first
        fake.give(offer(2))
        goes_on_after([*first, *second[:1]])
        fake.until(lambda: reported("accepted", 2))
        assert log.read_text().split() == [*first, *second]
        assert not reported("accepted", 1)
