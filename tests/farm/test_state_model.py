# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="union-attr"
"""Random histories of a farm beside a slow model: one lease for a place, the right order, no loss, no starving."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from farm.machine import Desk
from portcall.farm._constraints import parse_constraint
from portcall.farm._deadlines import due_of_lease
from portcall.farm._model import CLASSES, Lease, Place, Refused, Rules

PLACES = ("p1", "p2", "p3")
KEYS = (("k",), ("k", "m"), ("m",))
TAGS: tuple[dict[str, Any], ...] = ({}, {"gpu": True}, {"ram": 4 << 30})
WANTS = ("k", "m", "k & gpu", "m & ram>=2GiB", "k & !gpu")
USERS = ("ann", "bob", "eve")
RULES = Rules(failures=2, quarantine=50, most_waiting_of_user=50)

places = st.sampled_from(PLACES)
small = st.integers(0, 30)


class SlowModel:
    """All that ever asked, in one list; the next one is found by looking at each of them."""

    def __init__(self) -> None:
        self.all: list[Lease] = []

    def rank(self, lease: Lease, waiting: list[Lease], use: float) -> float:
        same = [w for w in waiting if w.user == lease.user and urgency(w) >= urgency(lease)]
        step = {"urgent": -1, "normal": 0, "batch": 1}[lease.class_]
        moved = step * RULES.class_ - lease.priority * RULES.priority
        return lease.created + use + len(same) * RULES.charge + moved

    def eligible(self, place: Place, held: dict[str, int]) -> list[Lease]:
        return [
            lease
            for lease in self.all
            if lease.state == "queued"
            and parse_constraint(lease.want).holds(place.keys, place.tags)
            and not (lease.most and held.get(lease.user, 0) >= lease.most)
        ]


def urgency(lease: Lease) -> tuple[int, float]:
    return -CLASSES.index(lease.class_), lease.priority


class FarmHistories(RuleBasedStateMachine):
    """The rules are what peers, people and time may do, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk(RULES)
        self.desk.claims = False
        self.model = SlowModel()
        self.orders: dict[str, int] = {}  # for each place, the fence of the offer that its agent has not answered
        self.ending: dict[str, int] = {}
        self.known: dict[str, tuple[int, list[str]]] = {}  # what each agent knows: fence, sessions
        self.fences: dict[str, int] = {}

    @property
    def state(self) -> Any:
        return self.desk.state

    def held(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for lease in self.state.leases.values():
            if lease.place:
                counts[lease.user] = counts.get(lease.user, 0) + 1
        return counts

    def note(self) -> None:
        """Take what was said, as the agents would."""
        for effect in self.desk.take():
            if effect.what == "offer":
                id = effect.place.id
                assert effect.lease.fence > self.fences.get(id, 0), "a fence was given twice"
                self.fences[id] = effect.lease.fence
                self.orders[id] = effect.lease.fence
            elif effect.what == "end":
                self.ending[effect.place.id] = effect.fence

    @initialize()
    def begin(self) -> None:
        self.state.advance(1000.0)
        self.register("p1", 0, 0)

    @rule(id=places, keys=st.integers(0, 2), tags=st.integers(0, 2))
    def register(self, id: str, keys: int, tags: int) -> None:
        fence, sessions = self.known.get(id, (0, []))
        self.state.register(id, KEYS[keys], TAGS[tags], fence=fence, sessions=sessions)
        self.note()

    @rule(id=places)
    def start_again(self, id: str) -> None:
        self.known.pop(id, None)
        self.orders.pop(id, None)
        if id in self.state.places:
            self.state.register(id, ("k",), {})
        self.note()

    @rule(id=places)
    def lose(self, id: str) -> None:
        self.state.lost(id, "gone")
        self.note()

    @rule(
        want=st.sampled_from(WANTS),
        user=st.sampled_from(USERS),
        priority=st.integers(-3, 3),
        class_=st.sampled_from(CLASSES),
        most=st.sampled_from((0, 0, 1)),
        ttl=st.sampled_from((20, 1000)),
        ceiling=st.sampled_from((0, 40)),
        wait=st.sampled_from((0, 15)),
    )
    def ask(self, want: str, user: str, **options: Any) -> None:
        waiting = [lease for lease in self.model.all if lease.state == "queued"]
        matching = [p for p in self.state.places.values() if parse_constraint(want).holds(p.keys, p.tags)]
        if all(p.health == "retired" for p in matching):
            with pytest.raises(Refused):
                self.state.request(want, user, **options)
            return
        lease = self.state.request(want, user, **options)
        use = self.state.queue.use.of(user, self.state.now)
        assert abs(lease.rank - self.model.rank(lease, waiting, use)) < 1e-6
        self.model.all.append(lease)
        self.note()

    @rule(id=places, how=st.sampled_from(("accept", "decline", "late")))
    def answer_offer(self, id: str, how: str) -> None:
        fence = self.orders.pop(id, 0)
        if how == "decline":
            self.state.declined(id, fence, "hot")
        elif fence:
            self.state.accepted(id, fence - (how == "late"))
            self.known[id] = (fence, [])
        self.note()

    @rule(id=places)
    def finish_cleaning(self, id: str) -> None:
        fence = self.ending.pop(id, None)
        if fence is not None:
            self.known[id] = (fence, [])
            self.state.cleaned(id, fence)
            self.note()

    @rule(id=places, opens=st.booleans())
    def use_session(self, id: str, opens: bool) -> None:
        fence, sessions = self.known.get(id, (0, []))
        if opens:
            sessions.append(f"s{fence}-{len(sessions)}")
            self.state.session_opened(id, fence, sessions[-1])
        elif sessions:
            self.state.session_closed(id, fence, sessions.pop(), "closed")
        self.note()

    @precondition(lambda self: self.state.leases)
    @rule(choice=small, what=st.sampled_from(("heard", "release", "kick", "extend")))
    def change_lease(self, choice: int, what: str) -> None:
        id = list(self.state.leases)[choice % len(self.state.leases)]
        if what == "kick":
            self.state.kick(id, "bob", "because")
        elif what == "extend":
            self.state.extend(id, 100, 200)
        else:
            getattr(self.state, what)(id)
        self.note()

    @rule(id=places, health=st.sampled_from(("good", "maintenance", "retired", "bad")), drain=st.booleans())
    def change_place(self, id: str, health: Any, drain: bool) -> None:
        if id in self.state.places:
            self.state.set_health(id, health, "said so")
            self.state.drain(id, drain)
            self.note()

    @rule(seconds=st.sampled_from((1, 6, 20, 61)))
    def wait(self, seconds: int) -> None:
        self.state.advance(self.state.now + seconds)
        self.note()

    @rule()
    def restart(self) -> None:
        self.note()
        before = {lease.id for lease in self.state.leases.values()}
        stored = json.loads(json.dumps(list(self.desk.stored.values())))
        fresh = Desk(RULES)
        fresh.state._random = self.state._random
        fresh.state.load(
            [Place.from_dict(v) for v in stored if "want" not in v],
            [Lease.from_dict(v) for v in stored if "want" in v],
            json.loads(json.dumps(self.state.queue.use.to_dict())),
            self.state.now,
        )
        fresh.ended, fresh.stored = self.desk.ended, self.desk.stored
        self.desk = fresh
        assert set(self.state.leases) == before, "a restart loses or invents leases"
        self.model.all = [self.state.leases.get(old.id, old) for old in self.model.all]
        self.orders.clear()
        self.note()

    # ---- What always holds ----

    @invariant()
    def a_place_has_one_lease(self) -> None:
        holders = [lease for lease in self.state.leases.values() if lease.state in ("offered", "active")]
        assert len({lease.place for lease in holders}) == len(holders)
        for lease in holders:
            assert self.state.places[lease.place].lease == lease.id
        for place in self.state.places.values():
            assert not place.lease or self.state.leases[place.lease].place == place.id
            assert (place.state in ("offered", "leased")) <= bool(place.lease)

    @invariant()
    def nothing_is_lost(self) -> None:
        for lease in self.model.all:
            if lease.id in self.state.leases:
                assert lease.state in ("queued", "offered", "active")
            else:
                assert lease.state == "ended"
                assert lease.reason
        assert self.state.queue.size == sum(lease.state == "queued" for lease in self.state.leases.values())

    @invariant()
    def no_free_place_leaves_a_matching_request_waiting(self) -> None:
        held = self.held()
        for place in self.state.places.values():
            if place.free:
                assert not self.model.eligible(place, held)

    @invariant()
    def what_is_to_happen_has_a_deadline(self) -> None:
        due = self.state.next_deadline()
        for lease in self.state.leases.values():
            when = due_of_lease(lease)
            assert not when or (due is not None and due <= when)

    def teardown(self) -> None:
        """With agents that answer and places that are well, everybody who waits is served."""
        desk = self.desk
        desk.claims = True
        for lease in list(self.state.leases.values()):
            if lease.state != "queued":
                self.state.release(lease.id)
        for id, keys, tags in zip(PLACES, ((("k", "m"),) * 3), ({}, {"gpu": True}, {"ram": 4 << 30}), strict=True):
            self.state.register(id, keys, tags, fence=self.state.places[id].fence if id in self.state.places else 0)
            self.state.set_health(id, "good", "")
            self.state.drain(id, False)
            desk.answer()
        for _ in range(len(self.model.all) + 1):
            desk.answer()
            self.a_place_has_one_lease()
            for lease in list(self.state.leases.values()):
                if lease.state == "active":
                    self.state.release(lease.id)
        desk.answer()
        assert not self.state.leases, "somebody starves"


class Order(RuleBasedStateMachine):
    """One place, requests that wait: each grant goes to the request that the slow model takes."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk(RULES)
        self.model = SlowModel()
        self.state = self.desk.state
        self.state.register("p", ("k", "m"), {"gpu": True})
        self.holder = self.state.request("k", "first", ttl=1e9)
        self.desk.answer()

    @rule(
        want=st.sampled_from(("k", "m", "k & gpu")),
        user=st.sampled_from(USERS),
        priority=st.integers(-2, 2),
        class_=st.sampled_from(CLASSES),
        seconds=st.integers(0, 100),
    )
    def ask(self, want: str, user: str, seconds: int, **options: Any) -> None:
        self.state.advance(self.state.now + seconds)
        self.model.all.append(self.state.request(want, user, ttl=1e9, **options))

    @rule(choice=small)
    def withdraw(self, choice: int) -> None:
        waiting = [lease for lease in self.model.all if lease.state == "queued"]
        if waiting:
            self.state.release(waiting[choice % len(waiting)].id)

    @precondition(lambda self: any(lease.state == "queued" for lease in self.model.all))
    @rule(seconds=small)
    def serve_next(self, seconds: int) -> None:
        self.state.advance(self.state.now + seconds)
        best = min(
            self.model.eligible(self.state.places["p"], {}), key=lambda lease: (lease.rank, self.model.all.index(lease))
        )
        self.state.release(self.holder.id)
        self.desk.answer()
        assert best.state == "active"
        self.holder = best


FarmHistories.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
Order.TestCase.settings = settings(max_examples=40, stateful_step_count=30)
TestFarmHistories = FarmHistories.TestCase
TestOrder = Order.TestCase
