# SPDX-License-Identifier: Apache-2.0
"""Checks, quarantine, hooks, power cycles, webhooks."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farm.boards import board, client
from farm.machine import Desk
from farm.running import RunningFarm, running_farm
from farm.test_cli_farm import portcall, started
from portcall import errors
from portcall.farm._model import Refused, Rules
from portcall.rpc.server._hooks import run_hook

# ---- The state machine ----


@pytest.fixture
def desk() -> Desk:
    desk = Desk(Rules(cycles=2, cycle_after=100))
    desk.state.advance(1000)
    desk.state.register("b", ("k",))
    desk.answer()
    return desk


def check(desk: Desk, seconds: float = 0, why: str = "") -> str:
    lease = desk.state.check("b", "health", "s" * 32)
    desk.answer()
    assert lease.state == "active"
    failed = desk.state.checked(lease.id, "job", seconds, why, 1.5)
    desk.state.release(lease.id)
    desk.answer()
    return failed


def test_check_takes_idle_places_of_any_health(desk: Desk) -> None:
    state: Any = desk.state
    place = state.places["b"]
    for health in ("good", "suspect", "quarantined", "bad"):
        state.set_health("b", health, "said so")
        assert check(desk) == ""
        assert (place.health, place.state) == ("good", "idle")
    holder = state.request("k", "ann", ttl=1000)
    desk.answer()
    with pytest.raises(Refused, match="leased"):
        state.check("b", "health", "s" * 32)
    state.release(holder.id)
    desk.answer()
    state.set_health("b", "maintenance", "new fan")
    assert check(desk) == ""
    assert place.health == "maintenance"  # which a person ends


def test_check_failure_quarantines_and_keeps_requests(desk: Desk) -> None:
    place = desk.state.places["b"]
    assert check(desk, why="wrong result") == "wrong result"
    assert (place.health, "wrong result" in place.health_reason) == ("quarantined", True)
    lease: Any = desk.state.request("k", "ann", ttl=1e6)
    desk.answer()
    assert lease.state == "queued"
    assert check(desk) == ""
    assert lease.state == "active"


def test_check_fails_for_a_place_that_became_slower(desk: Desk) -> None:
    assert check(desk, 1.0) == ""
    assert check(desk, 1.4) == ""
    assert "1.60 times" in check(desk, 1.92)
    assert desk.state.places["b"].usual == {"job": [1.0, 1.4]}


def test_check_compares_with_the_last_twenty(desk: Desk) -> None:
    desk.state.places["b"].usual["job"] = 9.0  # of an earlier version
    for _ in range(25):
        assert check(desk, 1.0) == ""
    assert desk.state.places["b"].usual == {"job": [1.0] * 20}
    assert "2.00 times" in check(desk, 2.0)


def test_check_declined_by_the_agent_ends(desk: Desk) -> None:
    lease = desk.state.check("b", "health", "s" * 32)
    desk.take()
    desk.state.declined("b", lease.fence, "hot")
    desk.answer()
    assert (lease.state, lease.reason) == ("ended", "refused")
    assert desk.state.places["b"].state == "idle"


def test_power_cycles_of_an_absent_place_are_limited(desk: Desk) -> None:
    place = desk.state.places["b"]
    desk.state.lost("b", "gone")
    said = [effect.what for effect in desk.pass_time(1000)]
    assert said.count("cycle") == 2
    assert place.health == "bad"
    desk.state.register("b", ("k",))
    assert not desk.state.places["b"].free
    assert check(desk) == ""
    desk.state.lost("b", "gone")
    assert [effect.what for effect in desk.pass_time(150)].count("cycle") == 1


def test_power_is_not_cycled_for_places_that_left_or_in_maintenance(desk: Desk) -> None:
    desk.state.set_health("b", "maintenance", "new fan")
    desk.state.lost("b", "gone")
    assert "cycle" not in [effect.what for effect in desk.pass_time(1000)]


# ---- With agents ----


@pytest.fixture
def farm() -> Iterator[RunningFarm]:
    with running_farm() as farm:
        yield farm


def test_hooks_run_around_a_lease_and_a_failing_one_sends_the_request_elsewhere(
    farm: RunningFarm, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    hooks = {"prepare": f"echo before $PORTCALL_PLACE $PORTCALL_USER >> {note}", "clean": f"echo after >> {note}"}
    with board(farm, "b1", check="echo too hot; false"), client(farm) as lab:
        with board(farm, "b2", **hooks):
            with lab.lease("k") as lease, lease.session():
                assert lease.place == "b2"
            farm.until(lambda: farm.state.places["b2"].state == "idle")
            assert note.read_text().split("\n") == ["before b2 ann", "after", ""]
        assert "too hot" in farm.state.places["b1"].health_reason
        assert farm.state.places["b1"].health == "suspect"


def test_hook_after_a_lease_sees_whose_it_was(farm: RunningFarm, tmp_path: Path) -> None:
    note = tmp_path / "note"
    with board(farm, "b1", clean=f"echo $PORTCALL_PLACE $PORTCALL_USER $PORTCALL_LEASE_ID >> {note}"):
        leases = []
        for user in ("ann", "bob"):
            with client(farm, user=user) as lab, lab.lease("k") as lease:
                leases.append(lease.id)
            farm.until(lambda: farm.state.places["b1"].state == "idle")
        assert note.read_text().split("\n") == [f"b1 ann {leases[0]}", f"b1 bob {leases[1]}", ""]


def test_hook_that_hangs_is_ended_and_named(farm: RunningFarm) -> None:
    with board(farm, "b1", prepare="sleep 1000", hook_limit=0.1), client(farm) as lab:
        with pytest.raises(errors.SessionTimeoutError):
            lab.lease("k", wait=3)
        assert "longer than 0.1 s" in json.dumps(farm.do(lambda: farm.server.hub.store.history(place="b1")))


def test_hook_that_leaves_its_output_to_others_is_over_at_its_limit(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "end")
    child = f"setsid cat {tmp_path}/end"
    assert "longer than 0.1 s" in run_hook(f"{child} &", 0.1, {})
    (tmp_path / "end").write_text("")  # which ends it


def test_hook_that_says_a_lot_is_kept_to_its_last_line() -> None:
    said = run_hook("yes | head -c 10000000; echo; printf last; false", 60, {})
    assert said.endswith(": last")


def test_hook_after_a_lease_runs_once_and_keeps_the_place_though_its_agent_registers_again(
    farm: RunningFarm, tmp_path: Path
) -> None:
    note, end = tmp_path / "note", tmp_path / "end"
    os.mkfifo(end)
    with board(farm, "b1", clean=f"echo began >> {note}; cat {end}; echo ended >> {note}"), client(farm) as lab:
        lab.lease("k").release()
        farm.until(note.exists)

        def lose() -> None:
            agent = farm.server.api.agents.here["b1"]
            farm.server.api.agents.lose("b1", agent, "its connection ended")
            agent.news.tell()

        farm.do(lose)
        farm.until(lambda: farm.state.places["b1"].state == "cleaning")
        end.write_text("")
        with lab.lease("k"):
            assert note.read_text().split() == ["began", "ended"]
        end.write_text("")
        farm.until(lambda: farm.state.places["b1"].state == "idle")
        assert note.read_text().split() == ["began", "ended"] * 2


def test_hook_failure_in_clean_up_counts_against_the_place(farm: RunningFarm) -> None:
    with board(farm, "b1", clean="false"), client(farm) as lab:
        with lab.lease("k"):
            pass
        farm.until(lambda: farm.state.places["b1"].health == "suspect")


def test_lease_of_one_place_by_name(farm: RunningFarm) -> None:
    with board(farm, "b1"), board(farm, "b2"), client(farm) as lab, lab.lease("k & place=b2") as lease:
        assert lease.place == "b2"


def test_farm_check_command_compares_times(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        _, farm = stack.enter_context(started("farm", "--port", 0, "--store", ":memory:"))
        with started("serve", "--farm", farm, "--key", "k", "--place", "b1", "--silent"):
            where = {"PORTCALL_FARM": farm}
            assert portcall("farm", "check", **where)["passed"]
            report = tmp_path / "report.json"
            job = f"{sys.executable} -m portcall doctor --json {tmp_path}/d.json && cat {report}"
            for median, passed in ((0.010, True), (0.011, True), (0.030, False)):
                report.write_text(json.dumps({"results": {"median_s": median}}))
                found = portcall("farm", "check", "b1", "--command", job, code=0 if passed else 3, **where)
                assert (found["passed"], found["seconds"]) == (passed, median)
            assert json.loads((tmp_path / "d.json").read_text())["server"] == "b1"
            assert portcall("farm", "show", "b1", **where)["health"] == "quarantined"
            failing = portcall("farm", "check", "--command", "echo wrong >&2; false", code=3, **where)
            assert "wrong" in failing["why"]


# ---- What people should know at once ----


def test_webhooks_tell_of_a_quarantine_an_empty_key_and_a_long_wait() -> None:
    heard: list[dict[str, Any]] = []
    answers = [500]  # the first time

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status = answers.pop() if answers else 200
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if status == 200:
                heard.append(json.loads(body))
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        with running_farm(webhooks=(url,)) as farm:

            def change() -> None:
                with farm.server.hub.turn() as state:
                    state.register("b", ["k"])
                    state.set_health("b", "quarantined", "hot")
                    state.request("k", "ann", ttl=1e9)

            farm.do(change)
            farm.pass_time(1000)
            webhooks: Any = farm.server._webhooks
            farm.do(webhooks.find_long_waits)
            farm.until(lambda: {m["what"] for m in heard} >= {"place quarantined", "key empty", "long wait"})
            assert [m["key"] for m in heard if m["what"] == "key empty"] == ["k"]
        server.shutdown()
        thread.join()


def test_power_command_gets_the_name_of_the_place(tmp_path: Path) -> None:
    note = tmp_path / "note"
    with running_farm(power=f"echo $PORTCALL_PLACE > {note}.new; mv {note}.new {note}") as farm:

        def change() -> None:
            with farm.server.hub.turn() as state:
                state.register("b7", ["k"])
                state.lost("b7", "hung")

        farm.do(change)
        farm.pass_time(150)
        farm.until(note.exists)
        assert note.read_text() == "b7\n"
