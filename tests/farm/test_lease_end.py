# SPDX-License-Identifier: Apache-2.0
"""The end of a lease: its sessions end before anybody hears of it, and before the place is given to somebody else."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import portcall
from farm.boards import board, client
from farm.running import RunningFarm, running_farm
from portcall import errors, rpc


@pytest.fixture
def farm() -> Iterator[RunningFarm]:
    with running_farm() as farm:
        yield farm


class HandAgent:
    """The agent of the place ``board`` with the key ``k``, which says only what a test lets it say."""

    def __init__(self, farm: RunningFarm) -> None:
        self._channel = portcall.farm.FarmChannel(f"{farm.host}:{farm.port}", token="", user="board")
        found = self._channel.call("register", place="board", keys=["k"], host="127.0.0.1", port=9, instance="one")
        self._secret = found["agent"]

    def next(self, *done: dict[str, Any]) -> list[dict[str, Any]]:
        """Report, and return the next orders."""
        answer = self._channel.call("next", hold=10, place="board", agent=self._secret, done=list(done))
        return list(answer["orders"])

    def report(self, what: str, fence: int) -> None:
        done = [{"what": what, "fence": fence}]
        self._channel.call("report", place="board", agent=self._secret, done=done)

    def accept(self) -> int:
        """Take an offer, and return its fence."""
        (offer,) = (order for order in self.next() if order["do"] == "offer")
        self.report("accepted", offer["fence"])
        return int(offer["fence"])

    def close(self) -> None:
        self._channel.close()


@pytest.fixture
def agent(farm: RunningFarm) -> Iterator[HandAgent]:
    with contextlib.closing(HandAgent(farm)) as agent:
        yield agent


class Background(threading.Thread):
    """Calls something in a thread of its own."""

    def __init__(self, call: Any) -> None:
        super().__init__()
        self._call = call
        self.value: Any = None
        self.start()

    def run(self) -> None:
        self.value = self._call()


@pytest.mark.parametrize("how", ["release", "kick"])
def test_lease_end_waits_for_a_slow_agent(farm: RunningFarm, agent: HandAgent, how: str) -> None:
    with client(farm) as lab, client(farm, user="bob") as other:
        asked = Background(lambda: lab.lease("k"))
        fence = agent.accept()
        asked.join()
        lease = asked.value
        end = lease.release if how == "release" else lambda: other.command("kick", lease=lease.id, why="now")
        ending = Background(end)
        (order,) = agent.next()
        assert (order["do"], order["fence"]) == ("end", fence)
        farm.until(lambda: farm.server.api.agents.ends._news)  # it waits for the agent
        waiting = Background(lambda: other.lease("k"))
        farm.until(lambda: farm.state.queue.size == 1)
        assert ending.is_alive()
        agent.report("ended", fence)  # its hook goes on
        ending.join()
        assert farm.state.places["board"].state == "cleaning"
        assert farm.state.queue.size == 1
        agent.report("cleaned", fence)
        assert agent.accept() == fence + 1
        waiting.join()
        assert waiting.value.place == "board"
        ending = Background(waiting.value.release)
        agent.next()
        agent.report("cleaned", fence + 1)  # as agents without such hooks say
        ending.join()
        assert farm.state.places["board"].state == "idle"


def test_lease_end_is_answered_though_the_agent_is_silent(
    farm: RunningFarm, agent: HandAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("portcall.farm._leases.END_PATIENCE", 0.05)
    with client(farm) as lab:
        asked = Background(lambda: lab.lease("k"))
        fence = agent.accept()
        asked.join()
        asked.value.release()
        waiting = Background(lambda: lab.lease("k"))
        farm.until(lambda: farm.state.queue.size == 1)
        farm.pass_time(farm.state.rules.clean + 1)
        assert farm.state.places["board"].state == "offline"  # nobody gets it while its sessions may go on
        assert farm.state.queue.size == 1
        agent.report("cleaned", fence)
        assert agent.accept() == fence + 1
        waiting.join()
        ending = Background(waiting.value.release)
        agent.report("cleaned", fence + 1)
        ending.join()


@pytest.mark.parametrize("relay", [False, True], ids=["direct", "through the farm"])
@pytest.mark.parametrize("how", ["release", "kick"])
def test_lease_end_leaves_no_session_to_call(farm: RunningFarm, how: str, relay: bool) -> None:
    with board(farm, relay=relay), client(farm) as lab:
        for _ in range(5):
            lease = lab.lease("k")
            with lease.session() as session, lease.session() as second:
                calls = [each["portcall.rpc.machine"] for each in (session, second)]
                if how == "release":
                    lease.release()
                else:
                    lab.command("kick", lease=lease.id, why="now")
                for call in calls:
                    with pytest.raises(errors.RPCError):
                        call()


def test_lease_has_parallel_sessions_which_end_with_it(farm: RunningFarm) -> None:
    with board(farm), client(farm) as lab, lab.lease("k") as lease, lease.session(parallel=2) as session:
        assert isinstance(session, rpc.ParallelSession)
        assert [each["testing.echo"](i) for i, each in enumerate(session.sessions)] == [0, 1]
        before = [each.stats()["requests"] for each in session.sessions]
        assert session["testing.echo"].map(range(20)) == list(range(20))
        assert all(each.stats()["requests"] >= n + 10 for each, n in zip(session.sessions, before, strict=True))
        lease.release()
        for each in session.sessions:
            with pytest.raises(errors.RPCError):
                each["testing.echo"]


def test_place_of_a_new_lease_ends_what_is_left_of_older_ones(farm: RunningFarm) -> None:
    """The farm believes an agent that comes back without sessions; a key that was not used yet is none."""
    with board(farm), client(farm) as lab, client(farm, user="bob") as other:
        lease = lab.lease("k")
        address, unused, _ = lease._route(None)
        with lease.session() as session:
            machine = session["portcall.rpc.machine"]

            def end_unheard() -> None:
                told = farm.server.hub.agents.pop("board")
                with farm.server.hub.turn() as state:
                    state.release(lease.id)
                farm.server.hub.agents["board"] = told
                with farm.server.hub.turn() as state:
                    state.cleaned("board", state.places["board"].fence)

            farm.do(end_unheard)
            with other.lease("k") as next_lease, next_lease.session() as theirs:
                assert theirs["portcall.rpc.machine"] is not None
                with pytest.raises(errors.RPCError):
                    machine()
                with pytest.raises(errors.KeyMismatchError):
                    rpc.connect(str(address), key=unused, token="")
