# SPDX-License-Identifier: Apache-2.0
"""A turn is kept whole or not at all: errors in it, and texts and numbers that cannot be kept, cost one request."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farm import injected
from farm.boards import client
from farm.running import RunningFarm, TrackerPeer, running_farm
from portcall import errors
from portcall.farm import _hub, _leases
from portcall.farm._model import Event, Place
from portcall.farm._store import Store

HALF = "\ud800"
HUGE = 10**400


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[RunningFarm]:
    with running_farm(store=str(tmp_path / "farm.db")) as farm:
        yield farm


def is_well(farm: RunningFarm) -> bool:
    """Whether others are served, and what they do is stored."""
    with client(farm) as lab:
        lab.command("register", place="well", keys=["well"], tags={"ram": 4})
        lab.command("request", want="well & ram>=4", secret="w" * 40, hold=0.001)
    hub = farm.server.hub
    stored = farm.do(lambda: {place.id for place in hub.store.load()[0]})
    return not hub.store_error and stored == farm.do(lambda: set(farm.state.places))


# ---- An error anywhere ----


def test_an_error_at_any_call_costs_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hub, "_AGAIN", 0.0)
    monkeypatch.setattr(_leases, "END_PATIENCE", 0.0)
    assert injected.compare("call", step=7) > 100


def test_a_turn_that_fails_leaves_nothing_behind(farm: RunningFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    with client(farm) as lab:
        lab.command("register", place="b", keys=["k"])
        before = farm.do(lambda: farm.state.places["b"].to_dict())

        def fail(*args: Any, **more: Any) -> None:
            raise RuntimeError("a mistake")

        monkeypatch.setattr(farm.state, "_set_lease", fail)
        with pytest.raises(errors.FarmError):
            lab.command("request", want="k", secret="s" * 40, hold=0.001)
        monkeypatch.undo()
        assert farm.do(lambda: (farm.state.places["b"].to_dict(), farm.state.leases, farm.state.queue.size)) == (
            before, {}, 0,
        )  # fmt: skip
        assert lab.command("request", want="k", secret="s" * 40, hold=0.001)["state"] == "offered"


def test_what_is_due_and_fails_keeps_nothing_else_from_happening(
    farm: RunningFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client(farm) as lab:
        for name in ("bad", "good"):
            lab.command("register", place=name, keys=["k"])
            lab.command("quarantine", place=name, seconds=5)
        usual = farm.state.set_health

        def fail_for_one(id: str, *args: Any, **more: Any) -> None:
            if id == "bad":
                raise RuntimeError("a mistake")
            usual(id, *args, **more)

        monkeypatch.setattr(farm.state, "set_health", fail_for_one)
        farm.pass_time(6)
        health = {place["place"]: place["health"] for place in lab.status()["places"]}
        assert health == {"bad": "quarantined", "good": "suspect"}
        monkeypatch.undo()
        farm.pass_time(6)
        assert lab.status()["places"][0]["health"] == "suspect"


def test_watchers_and_listeners_that_fail_cost_nobody_anything(farm: RunningFarm) -> None:
    def fail(*args: Any) -> None:
        raise RuntimeError("a mistake")

    farm.do(lambda: farm.server.hub.watchers.insert(0, fail))
    assert is_well(farm)


# ---- Texts ----


@pytest.mark.parametrize("text", [HALF, "a\0b", "a\nb", "\x1b[31m", "x" * 1001])
@pytest.mark.parametrize(
    ("command", "field", "fields"),
    [
        ("request", "want", {"want": "TEXT", "secret": "s" * 40}),
        ("request", "user", {"want": "k", "secret": "s" * 40, "user": "TEXT"}),
        ("register", "place", {"place": "TEXT", "keys": ["k"]}),
        ("register", "key", {"place": "b", "keys": ["TEXT"]}),
        ("register", "tag", {"place": "b", "keys": ["k"], "tags": {"TEXT": 1}}),
        ("register", "tag", {"place": "b", "keys": ["k"], "tags": {"name": "TEXT"}}),
        ("register", "host", {"place": "b", "keys": ["k"], "host": "TEXT"}),
        ("register", "instance", {"place": "b", "keys": ["k"], "instance": "TEXT"}),
        ("register", "session", {"place": "b", "keys": ["k"], "sessions": ["TEXT"]}),
        ("quarantine", "why", {"place": "there", "why": "TEXT"}),
        ("token-make", "for", {"for": "TEXT"}),
        ("token-make", "key", {"for": "ann", "keys": ["TEXT"]}),
        ("history", "of", {"of": "TEXT"}),
    ],
)
def test_texts_that_cannot_be_kept_are_refused_by_name(
    shared: RunningFarm, command: str, field: str, fields: dict[str, Any], text: str
) -> None:
    with client(shared) as lab:
        lab.command("register", place="there", keys=["there"])
        sent = json.loads(json.dumps(fields).replace('"TEXT"', json.dumps(text)))
        with pytest.raises(errors.FarmError, match=field) as caught:
            lab.command(command, **{"hold": 0.001, **sent})
        assert caught.value.reason == "invalid"
        assert is_well(shared)


@pytest.fixture(scope="module")
def shared() -> Iterator[RunningFarm]:
    with running_farm() as farm:
        yield farm


@pytest.mark.parametrize(
    "message",
    [
        '[4, "k", "\\ud800", 1]',
        '[4, "\\ud800", "ann", 1]',
        '[4, "k", "a\\u0000b", 1]',
        '[3, "\\ud800", [1, "k:1"], null]',
        '[3, "k", [1, "\\ud800"], null]',
        '[3, "k", [1, "k:1"], "\\ud800"]',
        '[5, {"key": "server:k", "addr": [null, 1], "more": ["\\ud800"]}]',
        '[5, {"key": "server:k", "addr": [null, 1e999]}]',
        f'[4, "k?ram>={HUGE}", "ann", 1]',
    ],
)
def test_tracker_refuses_what_cannot_be_kept(shared: RunningFarm, message: str) -> None:
    with TrackerPeer(shared) as peer:
        assert json.loads(peer.ask(message))[0] == -1
    assert is_well(shared)


def test_tracker_takes_any_number_for_a_priority(shared: RunningFarm) -> None:
    with TrackerPeer(shared) as server, TrackerPeer(shared) as peer:
        server.ask('[3, "any", [1, "any:1"], null]')
        assert json.loads(peer.ask(f'[4, "any", "ann", {HUGE}]'))[0] == 0


def test_what_agents_programs_say_is_made_fit(farm: RunningFarm) -> None:
    with client(farm) as lab:
        agent = lab.command("register", place="b", keys=["k"])["agent"]
        fence = lab.command("request", want="k", secret="s" * 40, hold=0.001)["fence"]
        report = {"what": "declined", "fence": fence, "why": f"hot\n\x1b[31m{HALF}" + "x" * 5000}
        lab.command("report", place="b", agent=agent, done=[report])
        [place] = lab.status()["places"]
        assert place["health_reason"].startswith("hot")
        assert place["health_reason"].isprintable()
    assert is_well(farm)


def test_reports_are_taken_whole_or_not_at_all(farm: RunningFarm) -> None:
    with client(farm) as lab:
        agent = lab.command("register", place="b", keys=["k"])["agent"]
        fence = lab.command("request", want="k", secret="s" * 40, hold=0.001)["fence"]
        with pytest.raises(errors.FarmError):
            lab.command("report", place="b", agent=agent, done=[{"what": "accepted", "fence": fence}, {"what": "x"}])
        assert [place["state"] for place in lab.status()["places"]] == ["offered"]


def test_a_record_that_cannot_be_stored_is_dropped_with_its_request(farm: RunningFarm) -> None:
    def register() -> None:
        with farm.server.hub.turn() as state:
            state.register(f"b{HALF}", ["k"])

    with pytest.raises(ValueError, match="cannot store Place"):
        farm.do(register)
    assert list(farm.state.places) == []
    assert is_well(farm)


# ---- Numbers ----


@pytest.mark.parametrize("number", [HUGE, -HUGE, 1 << 63, float("inf"), float("nan")])
def test_numbers_that_cannot_be_kept_are_refused(shared: RunningFarm, number: float) -> None:
    with client(shared) as lab:
        for command, fields in (
            ("register", {"place": "b", "keys": ["k"], "tags": {"ram": number}}),
            ("register", {"place": "b", "keys": ["k"], "port": number}),
            ("request", {"want": "k", "secret": "s" * 40, "ttl": number}),
            ("request", {"want": "k", "secret": "s" * 40, "limit": number}),
            ("request", {"want": "k", "secret": "s" * 40, "seen": number}),
            ("history", {"limit": number}),
        ):
            with pytest.raises(errors.FarmError) as caught:
                lab.command(command, **fields)
            assert caught.value.reason == "invalid"
        with pytest.raises(errors.FarmError) as caught:
            lab.command("request", want=f"k & ram>={HUGE}", secret="s" * 40, hold=0.001)
        assert caught.value.reason == "invalid"
    assert is_well(shared)


# ---- The store ----


def test_a_turn_that_is_not_stored_is_stored_later(farm: RunningFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = farm.server.hub

    def full(*args: Any) -> None:
        raise UnicodeEncodeError("utf-8", HALF, 0, 1, "whatever the store says")

    monkeypatch.setattr(hub.store, "save", full)
    with client(farm) as lab:
        lab.command("register", place="b", keys=["k"])
        assert hub.store_error
        monkeypatch.undo()
        farm.do(hub._on_timer)
        assert not hub.store_error
        assert farm.do(lambda: [place.id for place in hub.store.load()[0]]) == ["b"]


def test_a_place_that_came_back_while_nothing_could_be_stored_is_stored(
    farm: RunningFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = farm.server.hub

    def full(*args: Any) -> None:
        raise OSError("disk full")

    with client(farm) as lab:
        agent = lab.command("register", place="b", keys=["k"])["agent"]
        monkeypatch.setattr(hub.store, "save", full)
        lab.command("leave", place="b", agent=agent)
        lab.command("register", place="b", keys=["k"])
        monkeypatch.undo()
    assert is_well(farm)


def test_a_place_with_the_name_of_a_lease_takes_nothing_from_it(farm: RunningFarm) -> None:
    with client(farm) as lab:
        id = lab.command("request", want="k", secret="s" * 40, hold=0.001, hopeless=True)["lease"]
        lab.command("register", place=id, keys=["k"])
        hub = farm.server.hub
        assert farm.do(lambda: [lease.state for lease in hub.store.load()[1]]) == ["offered"]


@pytest.mark.parametrize("what", ["token-make", "token-revoke", "redeem"])
def test_tokens_change_only_where_that_is_stored(farm: RunningFarm, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    with client(farm) as lab:
        lab.command("token-make", **{"for": "ann"})
        fields = {"token-make": {"for": "bob"}, "token-revoke": {"token-of": "ann"},
                  "redeem": {"code": lab.command("pair", **{"for": "bob"})["code"]}}[what]  # fmt: skip
        before = lab.command("token-list")
        store: Any = farm.server.hub.store
        farm.do(lambda: store._db.execute("PRAGMA query_only = 1"))
        with pytest.raises(errors.FarmError) as caught:
            lab.command(what, **fields)
        assert caught.value.reason == "store"
        assert lab.command("token-list") == before
        farm.do(lambda: store._db.execute("PRAGMA query_only = 0"))
        lab.command(what, **fields)
        assert lab.command("token-list") != before


# ---- The clock ----


def test_a_store_of_a_wrong_clock_follows_the_right_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, ahead = str(tmp_path / "farm.db"), 3650 * 86400.0
    secret = "s" * 40

    def begin(real: float = 0.0) -> RunningFarm:
        with monkeypatch.context() as patch:
            patch.setattr("portcall.farm._hub.time.time", lambda: now + real)
            return RunningFarm(store=path)

    now = time.time()
    farm = begin()  # the right clock
    with client(farm) as lab:
        lab.command("register", place="first", keys=["k"])
    farm.stop()
    farm = begin(ahead)
    with client(farm) as lab:
        agent = lab.command("register", place="b", keys=["k"])["agent"]
        lab.command("request", want="b & place=b", secret=secret, hold=0.001, hopeless=True, wait=500)
        lab.command("quarantine", place="b", seconds=100)
        assert agent
    farm.stop()
    farm = begin()
    try:
        with client(farm) as lab:
            status = lab.status()
            assert abs(status["now"] - now) < 100
            [waiting] = status["waiting"]
            assert abs(waiting["created"] - now) < 100
            assert abs(farm.state.leases[waiting["lease"]].wait_until - now - 500) < 100
            assert abs(farm.state.places["b"].health_until - now - 100) < 100
            new = lab.command("request", want="k & new", secret="n" * 40, hold=0.001, hopeless=True, ttl=30)
            assert abs(new["expires"] - now - 30) < 100
            history = lab.command("history", limit=1000)["events"]
            assert [e["time"] for e in history] == sorted(e["time"] for e in history)
            assert [e["number"] for e in history] == list(range(1, len(history) + 1))
            assert max(e["time"] for e in history) < now + 100
            farm.pass_time(101)
            assert farm.state.places["b"].health == "suspect"
    finally:
        farm.stop()


def test_store_set_clock_back_keeps_the_order(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "farm.db"))
    store.save({}, [Event(at, "x") for at in (1.0, 9.9, 10.1, 10.4)], 10.5, None)
    store.set_clock_back(10.0, 0.5)
    assert [e["time"] for e in store.history()] == [1.0, 9.9, 9.9, 9.9]
    store.close()


# ---- Fair shares ----


def test_tvm_clients_of_one_address_share_whatever_names_they_give(shared: RunningFarm) -> None:
    with TrackerPeer(shared) as one, TrackerPeer(shared) as two:
        one.send('[4, "fair", "ann", 0]')
        shared.until(lambda: shared.state.queue.waiting_of("tvm@127.0.0.1") == 1)
        two.send('[4, "fair", "bob", 0]')
        shared.until(lambda: sum(lease.want == "fair" for lease in shared.state.leases.values()) == 2)
        first, second = shared.do(
            lambda: sorted((x for x in shared.state.leases.values() if x.want == "fair"), key=lambda x: x.number)
        )
        assert (first.user, second.user) == ("ann@127.0.0.1", "bob@127.0.0.1")
        assert shared.state.queue.waiting_of("tvm@127.0.0.1") == 2
        assert second.rank - second.created >= shared.state.rules.charge


# ---- History ----


def test_history_answers_pages_in_order(farm: RunningFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_hub, "_PAGE", 3)
    with client(farm) as lab:
        for _ in range(5):
            lab.command("register", place="b", keys=["k"])
            lab.command("drain", place="b")
        whole = farm.do(lambda: farm.server.hub.store.history(limit=1000))
        assert lab.command("history", limit=1000)["events"] == whole
        assert lab.command("history", limit=4)["events"] == whole[-4:]
        of_place = [event for event in whole if event["place"] == "b"]
        assert lab.command("history", limit=1000, place="b")["events"] == of_place


def test_store_history_of_a_lease_looks_at_its_own_events_only(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "farm.db"))
    for name in ("place", "lease", "user"):
        plan = store._db.execute(
            f"EXPLAIN QUERY PLAN SELECT * FROM events WHERE number > 0 AND {name} = 'x' AND {name} != '' "
            "ORDER BY number DESC LIMIT 5"
        ).fetchall()
        assert f"of_{name}" in str(plan)
        assert "TEMP B-TREE" not in str(plan)
    store.close()


@pytest.mark.parametrize("id", ["x", "../", "0" * 15, "0" * 17, "G" * 16])
def test_a_lease_with_no_possible_id_is_unknown_at_once(
    shared: RunningFarm, monkeypatch: pytest.MonkeyPatch, id: str
) -> None:
    monkeypatch.setattr(shared.server.hub.store, "history", lambda **more: pytest.fail("the store was asked"))
    with client(shared) as lab, pytest.raises(errors.FarmError) as caught:
        lab.command("lease", lease=id)
    assert caught.value.reason == "unknown"


def test_place_go_back_is_what_encode_returned() -> None:
    place = Place("b", keys=("k", "m"), tags={"ram": 4}, failures=[1.0], usual={"job": [2.0]})
    text = place.encode()
    place.keys, place.tags["ram"], place.fence = ("x",), 5, 9
    place.failures.clear()
    place.go_back(text)
    assert place.encode() == text
    assert isinstance(place.keys, tuple)
