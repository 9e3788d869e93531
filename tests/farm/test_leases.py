# SPDX-License-Identifier: Apache-2.0
"""Leases and sessions of portcall's clients, with agents as they are on a board, over a farm that runs."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import portcall
from farm.boards import board, client, process_board
from farm.running import RunningFarm, running_farm
from portcall import errors, rpc
from portcall.cli._errors import explain
from portcall.farm._agents import Agent
from portcall.farm._command import ApiError
from rpc import serving

FUNCTIONS = "rpc.serving"


@pytest.fixture
def farm() -> Iterator[RunningFarm]:
    with running_farm() as farm:
        yield farm


@pytest.mark.parametrize("relay", [False, True], ids=["direct", "through the farm"])
def test_lease_serves_several_sessions_until_released(farm: RunningFarm, relay: bool) -> None:
    with board(farm, relay=relay), client(farm) as lab:
        with lab.lease("k & cores>=1") as lease:
            for _ in range(3):
                with lease.session() as session:
                    assert session["portcall.rpc.machine"] is not None
            with lease.session() as one, lease.session() as two:
                assert one["portcall.rpc.machine"] is not None
                assert two["portcall.rpc.machine"] is not None
                farm.until(lambda: len(farm.state.leases[lease.id].sessions) == 2)
        farm.until(lambda: farm.state.places["board"].state == "idle")
        assert not farm.state.leases


def test_lease_end_ends_its_sessions_with_the_reason(farm: RunningFarm) -> None:
    with board(farm), client(farm) as lab, lab.lease("k", ttl=3) as lease, lease.session() as session:
        machine = session["portcall.rpc.machine"]
        with client(farm, user="bob") as boss:
            boss.command("kick", lease=lease.id, why="demo at ten")
        with pytest.raises(errors.RPCError):
            list(iter(machine, "forever"))
        with pytest.raises(errors.FarmError, match="demo at ten"):
            lease.session()
        farm.until(lambda: farm.state.places["board"].state == "idle")


def test_lease_wait_reports_position_and_holder(farm: RunningFarm) -> None:
    with board(farm), client(farm) as lab:
        heard: list[str] = []
        first = lab.lease("k")

        def hear(text: str) -> None:
            heard.append(text)
            first.release()

        with lab.lease("k", on_wait=hear) as second:
            assert second.place == "board"
        assert "number 1 in the queue: board has been with ann" in heard[0]


def test_lease_fails_at_once_without_match_and_keeps_its_timeout(farm: RunningFarm) -> None:
    with board(farm), client(farm) as lab:
        with pytest.raises(errors.FarmError, match="board") as caught:
            lab.lease("k & gpu")
        assert caught.value.reason == "no-match"
        with lab.lease("k"), pytest.raises(errors.SessionTimeoutError):
            lab.lease("k", wait=0.05)
        assert not farm.state.queue.size


def test_lease_wait_that_ends_says_what_it_waited_for(farm: RunningFarm) -> None:
    with board(farm), client(farm) as lab:
        lab.command("maintain", place="board", why="new fan")
        with pytest.raises(errors.SessionTimeoutError, match="new fan") as caught:
            lab.lease("k", wait=0.05)
        explained = explain(caught.value)
        assert explained.cause == ""
        assert "--wait" in explained.next_step


def test_lease_session_refuses_guessed_and_used_keys(farm: RunningFarm) -> None:
    with board(farm), client(farm) as lab, lab.lease("k") as lease:
        address, key, _ = lease._route(None)
        with rpc.connect(str(address), key=key, token=""):
            for wrong in (key, "k", "k:0.5", ""):
                with pytest.raises(errors.KeyMismatchError):
                    rpc.connect(str(address), key=wrong, token="")


def test_lease_session_keeps_its_timeout_while_the_board_is_away(farm: RunningFarm) -> None:
    with process_board(farm, "b", "k") as process, client(farm) as lab, lab.lease("k") as lease:
        lease.session().close()
        process.kill()
        farm.until(lambda: "b" not in farm.server.api.agents.here)
        with pytest.raises(errors.ConnectError) as caught:
            lease.session(timeout=0.05)
        assert (caught.value.reason, caught.value.peer) == ("agent", "b")


def test_lease_session_opens_again_after_a_loss_until_the_lease_ends(farm: RunningFarm, tmp_path: Path) -> None:
    functions = tmp_path / "functions.py"
    functions.write_text(serving.FUNCTIONS)
    with (
        board(farm, imports=(str(functions),)), client(farm) as lab, lab.lease("k") as lease,
        lease.session(reconnect=30) as session,
    ):  # fmt: skip
        pid, crash = session["demo.pid"], session["demo.crash"]
        first = pid()
        with pytest.raises(errors.RemoteCrashError):
            crash(signal.SIGKILL)
        with pytest.raises(errors.SessionLostError):
            pid()
        pid = session["demo.pid"]
        assert pid() != first
        lease.release()
        with pytest.raises(errors.RPCError):
            pid()
        with pytest.raises(errors.FarmError):
            session["demo.pid"]
        assert session.closed


def test_agent_with_a_taken_name_is_refused(farm: RunningFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portcall.rpc.server._agent.TAKEN", 0.1)  # the server without Python has its own
    with board(farm), pytest.raises(errors.FarmError, match="another process serves"), board(farm):
        pass


def test_farm_restart_keeps_leases_sessions_and_the_queue(tmp_path: Any) -> None:
    store = str(tmp_path / "farm.db")
    with contextlib.ExitStack() as stack:
        farm = RunningFarm(store=store)
        stack.callback(lambda: farm.stop())
        agent = stack.enter_context(board(farm))
        lab = stack.enter_context(client(farm))
        lease = lab.lease("k", ttl=30)
        session = stack.enter_context(lease.session())
        outcome: list[portcall.farm.Lease] = []
        waiter = threading.Thread(target=lambda: outcome.append(lab.lease("k")))
        waiter.start()
        farm.until(lambda: farm.state.queue.size == 1)
        port = farm.port
        farm.stop()
        assert session["portcall.rpc.machine"] is not None
        farm = RunningFarm(store=store, port=port)
        farm.until(lambda: farm.state.places["board"].state == "leased")
        assert farm.state.leases[lease.id].state == "active"
        assert len(farm.state.leases[lease.id].sessions) == 1
        with lease.session() as another:
            assert another["portcall.rpc.machine"] is not None
        lease.release()
        waiter.join()
        assert outcome[0].place == "board"
        assert agent is not None


@pytest.mark.parametrize("relay", [False, True])
def test_lease_opens_its_first_session_after_a_farm_restart(tmp_path: Any, relay: bool) -> None:
    store = str(tmp_path / "farm.db")
    with contextlib.ExitStack() as stack:
        farm = RunningFarm(store=store)
        stack.callback(lambda: farm.stop())
        stack.enter_context(board(farm, relay=relay))
        lease = stack.enter_context(client(farm)).lease("k", ttl=30)
        port = farm.port
        farm.stop()
        farm = RunningFarm(store=store, port=port)
        with lease.session() as session:  # it may come before the agent does
            assert session["portcall.rpc.machine"] is not None


def test_agent_gone_makes_its_place_offline(farm: RunningFarm) -> None:
    with client(farm) as lab:
        with board(farm):
            lease = lab.lease("k")
        farm.until(lambda: not farm.state.places)
        farm.until(lambda: not farm.state.leases)
        with pytest.raises(errors.FarmError):
            lease._ask("session")


def test_lease_wait_ends_when_the_connection_is_gone(farm: RunningFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portcall.farm._leases.GONE", 0.01)
    with board(farm), client(farm) as lab, lab.lease("k"):
        lose_a_waiting_client(farm)
        farm.until(lambda: farm.state.queue.size == 0)


def lose_a_waiting_client(farm: RunningFarm) -> None:
    """Ask for a board as bob, and close the connection while the farm holds the request."""

    def call_and_fail() -> None:
        with contextlib.suppress(errors.RPCError):
            view = gone.call("request", want="k", secret="s" * 32)
            gone.call("wait", hold=15, lease=view["lease"], secret="s" * 32, seen=view["position"])

    with contextlib.closing(portcall.farm.FarmChannel(f"{farm.host}:{farm.port}", token="", user="bob")) as gone:
        waiter = threading.Thread(target=call_and_fail)
        waiter.start()
        farm.until(lambda: farm.server.api.leases._asking)
        gone.close()
        waiter.join()


def test_lease_request_survives_a_reconnect(farm: RunningFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portcall.farm._leases.GONE", 3600)
    with board(farm), client(farm) as lab, lab.lease("k"):
        lose_a_waiting_client(farm)
        farm.until(lambda: farm.server.api.leases._gone)
        with client(farm, user="bob") as back:
            view = back.command("request", hold=0.01, want="k", secret="s" * 32)
        assert view["state"] == "queued"
        assert not farm.server.api.leases._gone


def test_status_shows_an_unclaimed_lease_as_offered(farm: RunningFarm) -> None:
    def grant() -> str:
        with farm.server.hub.turn() as state:
            state.register("b", ["k"])
            lease = state.request("k", "bob", ttl=1000)
            state.accepted("b", lease.fence)
            return str(lease.id)

    id = farm.do(grant)
    with client(farm) as lab:
        found = lab.status()
        assert (found["places"][0]["state"], found["leases"][0]["state"]) == ("offered", "offered")

        def hear() -> None:
            with farm.server.hub.turn() as state:
                state.heard(id)

        farm.do(hear)
        found = lab.status()
        assert (found["places"][0]["state"], found["leases"][0]["state"]) == ("leased", "active")


@pytest.mark.parametrize(
    ("do", "more"),
    [
        ("renew", {}),
        ("extend", {"seconds": 5}),
        ("session", {}),
        ("kick", {"why": "x"}),
        ("checked", {}),
        ("keep", {"job": "f", "seconds": 1}),
    ],
)
def test_command_for_a_lease_whose_time_is_over_just_now_says_so(
    farm: RunningFarm, do: str, more: dict[str, Any]
) -> None:
    def late() -> Any:
        with farm.server.hub.turn() as state:
            state.register("b", ["k"])
            lease = state.check("b", "ann", "s" * 32, ttl=5)
            state.accepted("b", lease.fence)
            lease.match_key = ""
        farm.server.api.agents.here["b"] = Agent("one", "")
        farm.server.hub._offset += 60
        return farm.server.api.call({"do": do, "lease": lease.id, "secret": "s" * 32, **more}, "")

    with pytest.raises(ApiError) as caught:
        asyncio.run_coroutine_threadsafe(farm.do(late), farm._loop).result(30)
    assert (caught.value.reason, caught.value.status) == ("ended", 410)


def test_agents_last_question_counts_though_the_one_before_is_open(farm: RunningFarm) -> None:
    api = farm.server.api

    async def ask() -> None:
        agent = (await api.call({"do": "register", "place": "b", "keys": ["k"]}, ""))["agent"]
        question = {"do": "next", "place": "b", "agent": agent}
        before = [asyncio.create_task(api.call(question, "")) for _ in range(2)]
        await asyncio.sleep(0)
        last = asyncio.create_task(api.call(question, ""))
        assert await before[0] == {"orders": []}
        before[1].cancel()  # its connection ends only now
        await asyncio.wait(before)
        assert farm.state.places["b"].state == "idle"
        silence = api.agents.here["b"].silence
        assert silence is not None
        assert silence.cancelled()  # nothing ends a place whose agent waits for an answer
        request = asyncio.create_task(api.call({"do": "request", "want": "k", "secret": "s" * 32}, ""))
        assert [order["do"] for order in (await last)["orders"]] == ["offer"]
        request.cancel()
        await asyncio.wait([request])

    asyncio.run_coroutine_threadsafe(ask(), farm._loop).result(30)


def test_lease_keeps_a_thousand_sessions_and_match_keys(farm: RunningFarm) -> None:
    hub = farm.server.hub

    def fill() -> None:
        with hub.turn() as state:
            state.register("b", ["k"])
            lease = state.request("k", "ann", ttl=1000)
            state.accepted("b", lease.fence)
        with hub.turn() as state:
            for number in range(2000):
                state.session_opened("b", lease.fence, str(number))
                state.admit(lease.id)

    farm.do(fill)
    (lease,) = farm.state.leases.values()
    assert len(lease.sessions) == len(hub.session_keys) == 1000
    farm.do(lambda: hub.ensure(lambda state: state.release(lease.id)))
    assert not hub.session_keys
