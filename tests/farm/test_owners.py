# SPDX-License-Identifier: Apache-2.0
"""Whose token may serve a place, or get one."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import portcall
from farm.boards import board, client, place_command
from farm.reading import drop_privileges, family, found_by_others
from farm.running import RunningFarm, running_farm
from portcall import errors
from portcall.farm import _agents
from portcall.farm._model import Place


@pytest.fixture
def farm() -> Iterator[RunningFarm]:
    with running_farm(require_tokens=True) as farm:
        yield farm


def token(farm: RunningFarm, user: str, role: str = "agent", keys: tuple[str, ...] = ()) -> str:
    return str(farm.do(lambda: farm.server.access.make("admin", user=user, role=role, keys=keys)))


@contextlib.contextmanager
def agent(farm: RunningFarm, shown: str = "", user: str = "") -> Iterator[portcall.farm.FarmChannel]:
    """A hand-made agent, which gives single commands."""
    with contextlib.closing(portcall.farm.FarmChannel(f"{farm.host}:{farm.port}", shown, user=user)) as channel:
        yield channel


def register(channel: portcall.farm.FarmChannel, instance: str, key: str = "k") -> str:
    return str(channel.call("register", place="b", keys=[key], instance=instance)["agent"])


def refused(channel: portcall.farm.FarmChannel, *words: str) -> str:
    with pytest.raises(errors.FarmError) as caught:
        register(channel, *words)
    return caught.value.reason


def lose(farm: RunningFarm) -> None:
    api = farm.server.api
    farm.do(lambda: api.agents.lose("b", api.agents.here["b"], "its connection ended"))


def test_place_is_refused_to_other_users_whatever_its_agent_does(farm: RunningFarm) -> None:
    with agent(farm, token(farm, "b")) as mine, agent(farm, token(farm, "eve", keys=("evil",))) as other:
        secret = register(mine, "one")
        assert refused(other, "two", "evil") == "taken"  # between two questions
        mine.call("next", hold=0.01, place="b", agent=secret)
        assert refused(other, "one", "evil") == "taken"
        lose(farm)
        assert refused(other, "two", "evil") == "taken"
        place = farm.state.places["b"]
        assert (place.keys, place.owner, place.state) == (("k",), "b", "offline")


def test_place_of_an_agent_that_was_heard_lately_is_refused_to_another_instance() -> None:
    with running_farm() as farm, agent(farm, user="ann") as mine, agent(farm, user="bob") as other:
        secret = register(mine, "one")
        assert refused(other, "two") == "taken"
        mine.call("next", hold=0.01, place="b", agent=secret)
        assert refused(other, "two") == "taken"
        register(mine, "one")
        lose(farm)
        register(other, "two")
        assert farm.state.places["b"].owner == ""


def test_agents_word_counts_with_its_users_token_only(farm: RunningFarm) -> None:
    with agent(farm, token(farm, "b")) as mine, agent(farm, token(farm, "eve")) as other:
        secret = register(mine, "one")
        for what in ("next", "report"):
            with pytest.raises(errors.FarmError) as caught:
                other.call(what, place="b", agent=secret)
            assert caught.value.reason == "register"
        other.call("leave", place="b", agent=secret)
        assert farm.state.places["b"].state == "idle"


def test_token_that_was_revoked_meanwhile_gets_no_answer_that_was_held_back(farm: RunningFarm) -> None:
    shown = token(farm, "b")
    with agent(farm, shown) as board, concurrent.futures.ThreadPoolExecutor() as pool:
        orders = pool.submit(board.call, "next", hold=10, place="b", agent=register(board, "one"))
        farm.until(lambda: farm.server.api.agents.here["b"].asked)
        farm.do(lambda: farm.server.access.revoke("b", "admin"))
        farm.do(lambda: farm.server.api.agents.here["b"].news.tell())
        with pytest.raises(errors.AuthenticationError):
            orders.result()


def test_place_stays_with_its_user_over_renewed_tokens_and_restarts(tmp_path: Path) -> None:
    store = str(tmp_path / "farm.db")
    with running_farm(store=store, require_tokens=True) as farm:
        with agent(farm, token(farm, "b")) as mine:
            register(mine, "one")
        farm.do(lambda: farm.server.access.revoke("b", "admin"))
    with running_farm(store=store, require_tokens=True) as farm:
        with agent(farm, token(farm, "eve")) as other:
            assert refused(other, "two") == "taken"
        with agent(farm, token(farm, "b")) as again:
            register(again, "three")


def test_place_without_an_owner_goes_to_the_first_that_registers_it(farm: RunningFarm) -> None:
    old = {name: value for name, value in Place("b", keys=("k",)).to_dict().items() if name != "owner"}
    farm.do(lambda: farm.state.places.update(b=Place.from_dict(old)))
    with agent(farm, token(farm, "b")) as mine, agent(farm, token(farm, "eve")) as other:
        register(mine, "one")
        assert refused(other, "two") == "taken"


def test_hand_over_gives_a_place_to_another_user(farm: RunningFarm) -> None:
    boss = client(farm, token=token(farm, "boss", "admin"))
    with boss, agent(farm, token(farm, "b")) as mine, agent(farm, token(farm, "new")) as other:
        secret = register(mine, "one")
        with client(farm, token=token(farm, "op", "operator")) as operator, pytest.raises(errors.FarmError) as caught:
            operator.command("hand-over", place="b", to="op")
        assert caught.value.reason == "role"
        with pytest.raises(errors.FarmError) as caught:
            boss.command("hand-over", place="b", to="nobody")
        assert caught.value.reason == "unknown-user"
        assert boss.command("hand-over", place="b", to="new")["owner"] == "new"
        with pytest.raises(errors.FarmError) as caught:
            mine.call("next", place="b", agent=secret)
        assert caught.value.reason == "register"
        assert refused(mine, "one") == "taken"
        register(other, "two")


def test_board_outlives_that_its_place_is_somebody_elses(farm: RunningFarm) -> None:
    shown = token(farm, "b")
    boss = client(farm, token=token(farm, "boss", "admin"))
    with boss, agent(farm, token(farm, "new")) as other, board(farm, "b", token=shown):
        boss.command("hand-over", place="b", to="new")
        secret = register(other, "two")
        other.call("next", hold=0.5, place="b", agent=secret)
        assert farm.state.places["b"].owner == "new"
        boss.command("hand-over", place="b", to="b")
        farm.until(lambda: farm.state.places["b"].state == "idle")
        lab: Any = client(farm, token=token(farm, "ann", "user"))
        with lab, lab.lease("k") as lease, lease.session() as session:
            assert session["portcall.rpc.machine"] is not None


@contextlib.contextmanager
def running(*words: str, shown: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command with a token in its environment."""
    environment = {**os.environ, "PORTCALL_FARM_TOKEN": shown}
    with subprocess.Popen(
        words, env=environment, stdout=subprocess.PIPE, preexec_fn=drop_privileges
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.terminate()


@pytest.mark.parametrize("asks", ["a token", "none"])
def test_sessions_find_neither_the_token_of_their_board_nor_what_makes_it_the_place(asks: str) -> None:
    with contextlib.ExitStack() as stack:
        farm = stack.enter_context(running_farm(require_tokens=asks == "a token"))
        shown, ann = token(farm, "b"), token(farm, "ann", "user")
        words = [*place_command(), "--farm", f"{farm.host}:{farm.port}", "--key", "k", "--place", "b", "--silent"]
        server = stack.enter_context(running(*words, shown=shown))
        control = stack.enter_context(running("sleep", "600", shown=shown))
        assert server.stdout is not None
        assert server.stdout.readline().startswith(b"listening")
        lease = stack.enter_context(stack.enter_context(client(farm, token=ann)).lease("k"))
        stack.enter_context(lease.session())
        agent = farm.server.api.agents.here["b"]
        found = found_by_others([control.pid, *family(server.pid)], shown, agent.secret, agent.instance)
        assert {(pid, word) for pid, _, word in found} == {(control.pid, shown)}


def test_check_needs_a_token_for_a_key_of_the_place(farm: RunningFarm) -> None:
    boss = token(farm, "boss", "operator", keys=("other",))
    with agent(farm, token(farm, "b")) as mine, agent(farm, boss) as channel:
        register(mine, "one")
        with pytest.raises(errors.FarmError) as caught:
            channel.call("check", place="b", secret="s" * 32, hold=0)
        assert caught.value.reason == "role"
        assert not farm.state.leases


def asked(channel: portcall.farm.FarmChannel, want: str = "k & other", secret: str = "s" * 32) -> dict[str, Any]:
    return channel.call("request", want=want, secret=secret, hold=0, hopeless=True)


def serve(
    farm: RunningFarm, place: str, key: str, limited: tuple[str, ...] = (), **tags: Any
) -> portcall.farm.FarmChannel:
    """Register a place that accepts its first offer."""
    channel = portcall.farm.FarmChannel(f"{farm.host}:{farm.port}", token(farm, "boss", keys=limited))
    secret = channel.call("register", place=place, keys=[key], tags=tags)["agent"]
    for order in channel.call("next", place=place, agent=secret, hold=0.01)["orders"]:
        done = {"what": "accepted", "fence": order["fence"]}
        channel.call("report", place=place, agent=secret, done=[done])
    return channel


def test_users_serve_so_many_places_with_so_many_facts(farm: RunningFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_agents, "_MOST_PLACES", 2)
    shown = token(farm, "lab", "agent"), token(farm, "other", "agent")
    with agent(farm, shown[0]) as lab, agent(farm, shown[1]) as other:
        for place in ("a", "b", "b"):
            lab.call("register", place=place, keys=["k"], instance=place)
        with pytest.raises(errors.FarmError, match="2 places already"):
            lab.call("register", place="c", keys=["k"])
        with pytest.raises(errors.FarmError, match="at most 8192"):
            other.call("register", place="c", keys=["k"], tags={f"t{number}": "x" * 400 for number in range(21)})
        other.call("register", place="c", keys=["k"])
    assert set(farm.state.places) == {"a", "b", "c"}


@pytest.mark.parametrize("restart", [False, True])
def test_token_for_a_key_gets_no_place_that_has_it_as_a_tag_only(tmp_path: Path, restart: bool) -> None:
    with contextlib.ExitStack() as stack:
        options = {"require_tokens": True, "store": str(tmp_path / "farm.db")}
        farm = stack.enter_context(running_farm(**options))
        shown = token(farm, "ann", "user", keys=("k", "k2"))
        ann = stack.enter_context(agent(farm, shown))
        stack.enter_context(contextlib.closing(serve(farm, "tagged", "other", k=True)))
        with pytest.raises(errors.FarmError, match="key of your token") as caught:
            ann.call("request", want="k & other", secret="s" * 32, hold=0)
        assert "tagged" not in str(caught.value)
        for want in ("k & other", "other & k", "place=tagged"):
            view = asked(ann, want, want.ljust(32))
            assert (view["state"], "tagged" in view["why"]) == ("queued", False)
        if restart:
            farm.stop()
            farm = stack.enter_context(running_farm(**options))
            ann = stack.enter_context(agent(farm, shown))
            stack.enter_context(contextlib.closing(serve(farm, "tagged", "other", k=True)))
            assert farm.state.places["tagged"].free
        stack.enter_context(contextlib.closing(serve(farm, "mine", "k2", k=True, other=True)))
        assert asked(ann, "k & other", "k & other".ljust(32))["place"] == "mine"


def test_board_whose_token_is_for_a_key_gets_no_request_for_another_by_a_tag(farm: RunningFarm) -> None:
    with contextlib.ExitStack() as stack:
        ann = stack.enter_context(agent(farm, token(farm, "ann", "user")))
        stack.enter_context(contextlib.closing(serve(farm, "tagged", "other", ("other",), k=True)))
        for want in ("k", "k & arch!=arm"):
            assert asked(ann, want, want.ljust(32))["state"] == "queued"
        stack.enter_context(contextlib.closing(serve(farm, "free", "third", k=True)))
        assert asked(ann, "k", "k".ljust(32))["place"] == "free"
        assert farm.state.places["tagged"].limited


def test_token_gets_nothing_that_was_asked_for_with_one_for_other_keys(farm: RunningFarm) -> None:
    with contextlib.ExitStack() as stack:
        with agent(farm, token(farm, "ann", "user", keys=("k", "other"))) as ann:
            lease = asked(ann, "k")["lease"]
        farm.do(lambda: farm.server.access.revoke("ann", "boss"))
        new = stack.enter_context(agent(farm, token(farm, "ann", "user", keys=("other",))))
        again: dict[str, dict[str, Any]] = {
            "wait": {"lease": lease}, "request": {"want": "k", "secret": "s" * 32}, "session": {"lease": lease},
        }  # fmt: skip

        def are_refused(*commands: str) -> None:
            for name in commands:
                with pytest.raises(errors.FarmError) as caught:
                    new.call(name, hold=0, **again[name])
                assert caught.value.reason == "role"

        are_refused("wait", "request")
        stack.enter_context(contextlib.closing(serve(farm, "b", "k")))
        farm.until(lambda: farm.state.leases[lease].state == "active")
        are_refused("wait", "request", "session")
