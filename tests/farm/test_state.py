# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="arg-type, comparison-overlap"
"""The state machine of a farm, case by case, without I/O."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from farm.machine import Desk
from portcall.farm._constraints import key_constraint, parse_constraint
from portcall.farm._model import Lease, Place, Refused, Rules
from portcall.farm._state import State

BOARD = {"arch": "arm64", "ram": 4 << 30, "gpu": "mali", "flaky": False}


@pytest.fixture
def desk() -> Desk:
    return Desk()


def states(desk: Desk, *leases: Lease) -> list[str]:
    return [lease.state for lease in leases]


# ---- Constraints ----


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("rasp4", True),
        ("pi", False),
        ("!rasp4", False),
        ("rasp4 & ram>=4GiB", True),
        ("ram>4GiB", False),
        ("arch=arm64&gpu&!flaky", True),
        ("flaky", False),
        ("arch!=arm64", False),
        ("arch>=arm64", False),  # text has no order
        ("ram<1e12", True),
        ('"rasp4"', True),
        ("absent!=3", False),  # a tag that is not there has no value
    ],
)
def test_constraint_holds_for_keys_and_tags(text: str, holds: bool) -> None:
    assert parse_constraint(text).holds(("rasp4",), BOARD) is holds


@pytest.mark.parametrize(
    ("text", "holds"),
    [("gpu", False), ("gpu & !flaky", False), ("rasp4 & gpu", True), ("gpu=mali", True), ("!flaky", True)],
)
def test_constraint_holds_for_a_limited_place_by_a_key_not_by_tags_alone(text: str, holds: bool) -> None:
    constraint = parse_constraint(text)
    assert constraint.holds(("rasp4",), BOARD)
    assert constraint.holds(("rasp4",), BOARD, limited=True) is holds
    assert constraint.missing(("rasp4",), BOARD, limited=True) is not holds
    facts: Any = ("rasp4",), BOARD, True
    assert bool(constraint.unmet([facts])) is not holds


@pytest.mark.parametrize(
    "text", ["", "&", "a &", "a & & b", "a b", "a >= ", "=3", "a=b=c", '"a', "x" * 2000, "&".join("x" * 65)]
)
def test_parse_constraint_refuses_malformed_text(text: str) -> None:
    with pytest.raises(ValueError, match="constraint"):
        parse_constraint(text)


def test_key_constraint_accepts_any_text_of_tvm_clients() -> None:
    assert key_constraint("127.0.0.1:5555").holds(("127.0.0.1:5555",), {})
    assert key_constraint("a & b").holds(("a & b",), {})
    assert key_constraint("rasp4?ram>=4GiB").holds(("rasp4",), BOARD)
    assert not key_constraint("rasp4?ram>4GiB").holds(("rasp4",), BOARD)


# ---- Leases ----


def test_state_offers_grants_and_cleans_a_free_place(desk: Desk) -> None:
    state = desk.state
    state.register("board", ["rasp4"], BOARD)
    lease = state.request("rasp4 & gpu", "ann")
    assert [e.what for e in desk.take()] == ["offer"]
    assert (state.places["board"].state, lease.state) == ("offered", "offered")
    state.accepted("board", lease.fence)
    assert [e.what for e in desk.take()] == ["granted"]
    assert lease.match_key.startswith("rasp4:")
    state.release(lease.id)
    assert {e.what for e in desk.take()} == {"end", "ended"}
    assert state.places["board"].state == "cleaning"
    state.cleaned("board", lease.fence)
    assert (state.places["board"].state, lease.reason) == ("idle", "released")


def test_state_declined_offer_keeps_its_rank(desk: Desk) -> None:
    state = desk.state
    state.register("one", ["k"])
    state.register("two", ["k"], {"special": True})
    lease = state.request("k", "ann")
    assert lease.place == "one"
    state.declined("one", lease.fence, "its disk is full")
    assert (lease.place, lease.state) == ("two", "offered")
    assert state.places["one"].health == "suspect"


def test_state_ignores_older_fences(desk: Desk) -> None:
    state = desk.state
    state.register("board", ["k"])
    first = state.request("k", "ann")
    state.accepted("board", 1)
    state.release(first.id)
    state.cleaned("board", 1)
    second = state.request("k", "ann")
    state.accepted("board", 1)
    state.declined("board", 1, "late")
    assert second.state == "offered"
    state.accepted("board", 2)
    state.session_opened("board", 1, "s")
    state.cleaned("board", 1)
    assert (second.state, second.sessions) == ("active", {})


def test_state_counts_a_failed_clean_up_once_and_at_its_fence(desk: Desk) -> None:
    state = desk.state
    state.register("board", ["k"])
    lease = state.request("k", "ann")
    state.accepted("board", 1)
    state.cleaned("board", 1, "of a lease that goes on")
    state.release(lease.id)
    state.cleaned("board", 0, "of an older one")
    for _ in range(3):
        state.cleaned("board", 1, "no space left")
    place = state.places["board"]
    assert (place.state, place.health, len(place.failures)) == ("idle", "suspect", 1)


def test_state_request_without_match_names_the_nearest_place(desk: Desk) -> None:
    desk.state.register("board", ["rasp4"], BOARD)
    with pytest.raises(Refused, match=r"board \(keys rasp4\) does not meet 'ram>=8GiB'") as caught:
        desk.state.request("rasp4 & ram>=8GiB", "ann")
    assert caught.value.reason == "no-match"
    assert desk.state.request("rasp4 & ram>=8GiB", "ann", hopeless=True).state == "queued"


def test_state_request_waits_for_an_offline_place(desk: Desk) -> None:
    desk.state.register("board", ["k"])
    desk.state.lost("board", "unplugged")
    lease = desk.state.request("k", "ann")
    assert lease.state == "queued"
    desk.state.register("board", ["k"])
    assert lease.state == "offered"


def test_state_request_with_the_same_secret_is_the_same_lease(desk: Desk) -> None:
    desk.state.register("board", ["k"])
    lease = desk.state.request("k", "ann", secret="s" * 64)
    assert desk.state.request("k", "ann", secret="s" * 64) is lease


def test_state_lease_ends_without_heartbeat_or_claim_and_at_its_limit(desk: Desk) -> None:
    state = desk.state
    desk.claims = False
    for id in ("a", "b", "c", "d"):
        state.register(id, [id])
    silent, long, unclaimed, short = (
        state.request("a", "x", ttl=20),
        state.request("b", "x", ttl=20, ceiling=50),
        state.request("c", "x"),
        state.request("d", "x", ttl=4),
    )
    desk.answer()
    state.heard(silent.id)
    state.heard(short.id)
    for _ in range(10):
        if long.state == "active":
            state.heard(long.id)
        desk.pass_time(6)
    assert [silent.reason, long.reason, unclaimed.reason, short.reason] == [
        "expired", "limit", "never claimed", "expired",
    ]  # fmt: skip
    assert {p.state for p in state.places.values()} == {"idle"}


def test_state_agent_back_in_time_resumes_its_lease(desk: Desk) -> None:
    state = desk.state
    state.register("board", ["k"])
    lease = state.request("k", "ann", ttl=1000)
    desk.answer()
    state.heard(lease.id)
    state.session_opened("board", 1, "s1")
    state.lost("board", "cable")
    desk.pass_time(10)
    state.register("board", ["k"], fence=1, sessions=["s1"])
    assert (lease.state, state.places["board"].state, list(lease.sessions)) == ("active", "leased", ["s1"])
    state.lost("board", "cable")
    desk.pass_time(60)
    assert lease.reason == "agent lost"
    state.register("board", ["k"], fence=1, sessions=["s1"])
    assert [e.what for e in desk.take() if e.place] == ["end"]
    assert state.places["board"].state == "cleaning"


@pytest.mark.parametrize("ends", ["while its agent is away", "before"])
def test_state_place_is_cleaned_up_before_it_is_used_again(desk: Desk, ends: str) -> None:
    state = desk.state
    state.register("board", ["k"])
    lease = state.request("k", "ann")
    desk.answer()
    if ends == "before":
        state.release(lease.id)  # and it is being cleaned up
    state.lost("board", "its connection ended")
    state.release(lease.id)
    desk.take()
    state.register("board", ["k"], fence=lease.fence)
    waiting = state.request("k", "bob")
    assert (state.places["board"].state, waiting.state) == ("cleaning", "queued")
    assert [(effect.what, effect.fence) for effect in desk.take()] == [("end", lease.fence)]
    state.cleaned("board", lease.fence)
    desk.answer()
    assert waiting.state == "active"


def test_state_agent_restart_ends_its_lease(desk: Desk) -> None:
    state = desk.state
    state.register("board", ["k"])
    lease = state.request("k", "ann")
    desk.answer()
    state.register("board", ["k"])
    assert (lease.reason, state.places["board"].state) == ("agent lost", "cleaning")
    (end,) = (effect for effect in desk.answer() if effect.what == "end")
    assert (end.fence, end.lease) == (lease.fence, lease)
    assert state.places["board"].state == "idle"


def test_state_offer_expires_without_answer(desk: Desk) -> None:
    state = desk.state
    state.register("board", ["k"])
    lease = state.request("k", "ann")
    state.advance(state.rules.offer)
    assert (lease.state, state.places["board"].state, state.places["board"].health) == ("queued", "offline", "suspect")


@pytest.mark.parametrize("answer", ["accepted", "declined"])
def test_state_agent_that_answers_an_offer_too_late_serves_again(desk: Desk, answer: str) -> None:
    state = desk.state
    place = state.register("board", ["k"])
    lease = state.request("k", "ann")
    fence = lease.fence
    state.advance(state.rules.offer)
    desk.take()
    getattr(state, answer)("board", fence, *["why"] * (answer == "declined"))
    assert (place.state, [e.what for e in desk.take()]) == ("cleaning", ["end"])
    state.cleaned("board", fence)
    assert (place.state, lease.state, lease.fence > fence) == ("offered", "offered", True)


def test_state_agent_that_cleans_up_too_late_serves_again(desk: Desk) -> None:
    state = desk.state
    place = state.register("board", ["k"])
    lease = state.request("k", "ann")
    state.accepted("board", lease.fence)
    state.release(lease.id)
    state.advance(state.now + state.rules.clean)
    assert place.state == "offline"
    state.cleaned("board", lease.fence)
    assert place.state == "idle"


def test_state_failures_quarantine_a_place(desk: Desk) -> None:
    state = desk.state
    state.register("board", ["k"])
    lease = state.request("k", "ann", ttl=1e6)
    for _ in range(3):
        fence = state.places["board"].fence
        state.declined("board", fence, "hot")
        state.cleaned("board", fence)
    assert (state.places["board"].health, lease.state) == ("quarantined", "queued")
    desk.take()
    desk.pass_time(state.rules.quarantine)
    assert (state.places["board"].health, lease.state) == ("suspect", "active")


def test_state_does_not_offer_drained_or_unhealthy_places(desk: Desk) -> None:
    state = desk.state
    state.register("board", ["k"])
    state.drain("board", True)
    lease = state.request("k", "ann")
    state.set_health("board", "maintenance", "new fan", "bob")
    state.drain("board", False)
    assert lease.state == "queued"
    state.set_health("board", "good", "fan is in")
    assert lease.state == "offered"


def test_state_kick_records_who_and_why(desk: Desk) -> None:
    desk.state.register("board", ["k"])
    lease = desk.state.request("k", "ann")
    desk.answer()
    desk.state.kick(lease.id, "bob", "demo at ten")
    assert (lease.reason, lease.by, lease.detail) == ("kicked", "bob", "demo at ten")


# ---- TVM's ends ----


def test_state_tvm_server_is_free_when_it_puts_again(desk: Desk) -> None:
    state = desk.state
    state.register("tvm-1", ["k"], peer="TVM", host="h", port=9090, match_key="k:0.5")
    lease = state.request("k", "tvm@h", peer="TVM", key_only=True, hopeless=True)
    assert (lease.state, lease.match_key) == ("active", "k:0.5")
    state.put("tvm-1", "h", 9090, "k:0.6")
    assert (lease.reason, state.places["tvm-1"].state) == ("released", "idle")


def test_state_tvm_lease_ends_with_its_session(desk: Desk) -> None:
    state = desk.state
    state.register("board", ["k"])
    lease = state.request("k", "tvm@h", peer="TVM", key_only=True)
    desk.answer()
    state.session_opened("board", 1, "s")
    desk.pass_time(10_000)
    assert lease.state == "active"
    state.session_closed("board", 1, "s", "closed")
    assert lease.state == "ended"


# ---- Order ----


def served(desk: Desk, wants: list[Lease]) -> list[str]:
    """Return the users in the order in which one place serves them."""
    order = []
    while any(lease.state in ("queued", "active") for lease in wants):
        desk.answer()
        active = next(lease for lease in wants if lease.state == "active")
        order.append(active.user)
        desk.state.release(active.id)
    return order


def test_queue_orders_by_class_priority_and_arrival(desk: Desk) -> None:
    state = desk.state
    wants = [
        state.request("k", name, priority=priority, class_=class_, hopeless=True)
        for name, priority, class_ in [
            ("a", 0, "normal"),
            ("b", 0, "normal"),
            ("c", 2, "normal"),
            ("d", 0, "urgent"),
            ("e", 10, "batch"),
            ("f", float("nan"), "normal"),
        ]
    ]
    state.register("board", ["k"])
    assert served(desk, wants) == ["d", "c", "a", "b", "f", "e"]


def test_queue_orders_one_users_requests_by_priority(desk: Desk) -> None:
    wants = [desk.state.request("k", "a", hopeless=True) for _ in range(30)]
    last = desk.state.request("k", "a", priority=1, hopeless=True)
    desk.state.register("board", ["k"])
    desk.answer()
    assert last.state == "active"
    assert states(desk, *wants) == ["queued"] * 30


def test_queue_is_fair_between_users(desk: Desk) -> None:
    wants = [desk.state.request("k", "greedy", hopeless=True) for _ in range(20)]
    wants += [desk.state.request("k", "modest", hopeless=True) for _ in range(2)]
    desk.state.register("board", ["k"])
    assert "modest" in served(desk, wants)[:2]


def test_queue_counts_recent_usage_and_forgets_it(desk: Desk) -> None:
    state = desk.state
    state.queue.use.add("greedy", 600, state.now)
    wants = [state.request("k", "greedy", hopeless=True), state.request("k", "modest", hopeless=True)]
    state.register("board", ["k"])
    assert served(desk, wants) == ["modest", "greedy"]
    assert state.queue.use.of("greedy", state.now + state.rules.half_life) == pytest.approx(300)


def test_queue_ages_requests_of_a_low_class(desk: Desk) -> None:
    state = desk.state
    state.register("board", ["k"])
    holder = state.request("k", "x", ttl=1e6)
    old = state.request("k", "patient", class_="batch", priority=-10, ttl=1e6)
    for _ in range(400):
        desk.pass_time(30)
        following = state.request("k", f"x{_}", class_="urgent", priority=10, ttl=1e6)
        state.release(holder.id)
        desk.answer()
        holder = following
        if old.state == "active":
            return
    raise AssertionError("the old request starves")


def test_queue_quota_delays_one_user_only(desk: Desk) -> None:
    state = desk.state
    for id in "pq":
        state.register(id, ["k"])
    first = state.request("k", "ann", most=1)
    second = state.request("k", "ann", most=1)
    other = state.request("k", "bob", most=1)
    desk.answer()
    assert states(desk, first, second, other) == ["active", "queued", "active"]
    state.release(other.id)
    desk.answer()
    assert second.state == "queued"
    state.release(first.id)
    desk.answer()
    assert second.state == "active"


def test_state_prefers_the_place_with_fewest_tags(desk: Desk) -> None:
    desk.state.register("special", ["k"], BOARD)
    desk.state.register("plain", ["k"])
    assert desk.state.request("k", "ann").place == "plain"


def test_state_refuses_too_many_requests() -> None:
    state = State(Rules(most_waiting_of_user=2, most_waiting=3))
    for user in ("a", "a", "b"):
        state.request("k", user, hopeless=True)
    for user in ("a", "c"):
        with pytest.raises(Refused) as caught:
            state.request("k", user, hopeless=True)
        assert caught.value.reason == "full"


def test_queue_quota_lets_the_next_request_have_a_free_place_as_soon_as_a_lease_ends(desk: Desk) -> None:
    for name in ("a", "b"):
        desk.state.register(name, ["k"])
    first, second = (desk.state.request("k", "eve", most=1) for _ in range(2))
    assert states(desk, first, second) == ["offered", "queued"]
    desk.state.release(first.id)  # its place is not clean yet, and the other one is free
    assert second.state == "offered"


def test_state_failed_offer_serves_all_who_may_have_a_place_now(desk: Desk) -> None:
    state = desk.state
    for name in ("a", "b", "c"):
        state.register(name, ["k"])
    first = state.request("k", "eve", ttl=1000)
    second = state.request("k", "eve", ttl=1000, most=1, priority=5)
    assert states(desk, first, second) == ["offered", "queued"]
    state.effects.clear()
    state.advance(state.now + desk.state.rules.offer)  # the agent does not answer
    assert states(desk, first, second) == ["offered", "offered"]


def test_queue_forgets_the_lines_that_nobody_is_in(desk: Desk) -> None:
    waiting = [desk.state.request(f"k & x{n}", "ann", hopeless=True) for n in range(300)]
    for n in range(300):
        with pytest.raises(Refused):
            desk.state.request(f"k & y{n}", "ann")
    for lease in waiting[:290]:
        desk.state.release(lease.id)
    assert len(desk.state.queue._lines) < 300
    desk.state.register("board", ["k"], {f"x{n}": True for n in range(300)})
    assert waiting[290].state == "offered"


def test_state_keeps_nothing_of_leases_that_ended(desk: Desk) -> None:
    desk.state.register("board", ["k"])
    first = weakref.ref(desk.state.request("k", "ann", ttl=86400))
    for _ in range(1100):
        desk.answer()
        desk.state.release(desk.state.places["board"].lease)
        desk.answer()
        desk.ended.clear()
        desk.state.request("k", "ann", ttl=86400)
    gc.collect()
    assert first() is None


def test_state_counts_positions_without_those_that_left_or_are_set_aside(desk: Desk) -> None:
    state = desk.state
    state.register("board", ["k"])
    state.request("k", "ann", most=1)
    waiting = [state.request("k", user, most=1) for user in ("bob", "ann", "eve", "joe")]
    state.release(waiting[0].id)
    assert state.queue.is_blocked(waiting[1])
    assert [state.queue.position(lease) for lease in waiting[1:]] == [1, 1, 2]
    state.queue.unblock("ann")
    assert [state.queue.position(lease) for lease in waiting[1:]] == [1, 2, 3]


# ---- Restarts ----


def test_state_restores_leases_queue_and_places(desk: Desk) -> None:
    state = desk.state
    state.register("board", ["k"], BOARD)
    held = state.request("k", "ann", secret="s" * 32, ttl=60)
    waits = state.request("k", "bob", ttl=60)
    tvm = state.request("k", "tvm@h", peer="TVM", key_only=True)
    desk.answer()
    state.heard(held.id)
    desk.answer()
    again = Desk()
    leases = [Lease.from_dict(v) for v in desk.stored.values() if "want" in v]
    places = [Place.from_dict(v) for v in desk.stored.values() if "want" not in v]
    again.state.load(places, leases, state.queue.use.to_dict(), state.now + 5)
    state = again.state
    assert {lease.state for lease in state.leases.values()} == {"active", "queued"}
    assert state.leases[held.id].match_key == ""  # it may have been used after the last turn
    assert tvm.id not in state.leases
    assert state.request("k", "ann", secret="s" * 32).id == held.id
    state.register("board", ["k"], BOARD, fence=1)
    again.answer()
    assert state.places["board"].state == "leased"
    state.release(held.id)
    again.answer()
    assert state.leases[waits.id].state == "active"
