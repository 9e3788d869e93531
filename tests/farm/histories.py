# SPDX-License-Identifier: Apache-2.0
"""Random histories of a farm of two processes on Redis, one of which is killed, or believes too long that it leads.
Some answers of Redis are lost.

``python tests/farm/histories.py COUNT SEED`` runs many: ``make farm-histories``.
"""

from __future__ import annotations

import contextlib
import random
import sys
from typing import Any

from farm.redis_server import running_redis
from portcall.farm._model import Effect, Refused, Rules, rows_of
from portcall.farm._redis import RedisStore
from portcall.farm._state import State
from portcall.farm._store import StoreError

PLACES = ("p1", "p2")
LIKELY = {"register": 4, "request": 4, "accept": 7, "clean": 5, "release": 2, "hear": 1, "lose": 1, "take over": 1}
RULES = Rules(failures=100)
LOST = 0.01  # of Redis's answers: what was asked is done, or not


class Process:
    """One process of a farm, without its protocols: it decides, writes, and then tells."""

    def __init__(self, url: str, world: World) -> None:
        self.store: Any = RedisStore(url, "here:1")
        self.world = world
        self.led = self.store.lead()
        self.store._run = self.run  # type: ignore[assignment,method-assign,unused-ignore]
        self.state = State(RULES)
        if self.led:
            places, leases = self.store.load()
            self.state.load(places, leases, {}, world.now)
            self.flush()

    def run(self, *words: Any) -> Any:
        """Let Redis run a script whose answer may be lost, or which may not have come there."""
        lost = self.world.random.random()
        found = None if lost < LOST else RedisStore._run(self.store, *words)
        if lost < 2 * LOST:
            self.world.unanswered += 1
            raise StoreError("lost")
        return found

    def flush(self) -> None:
        """Write what has changed, and tell those concerned; a process that was deposed tells nobody anything."""
        state = self.state
        while state.changed or state.events or state.effects or state.forgotten:
            effects, state.effects = state.effects, []
            try:
                self.store.save(rows_of(state.changed, state.forgotten), state.events, state.now, None)
            except StoreError:
                self.led = False
                return
            state.changed.clear()
            state.forgotten.clear()
            state.events.clear()
            for effect in effects:
                self.world.hear(self, effect)


class World:
    """The agents, the holders, and what must never happen."""

    def __init__(self, url: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 1000.0
        self.url = url
        self.offers: dict[str, list[int]] = {}
        self.endings: dict[str, list[int]] = {}
        self.fences: dict[str, int] = {}
        self.given: dict[tuple[str, int], str] = {}  # lease of each fence
        self.granted = 0
        self.takeovers = 0
        self.unanswered = 0
        self.reader = RedisStore(url)
        self.reader._redis.flushall()
        self.processes = [self.leader()]

    def hear(self, process: Process, effect: Effect) -> None:
        place, lease = effect.place, effect.lease
        if place is not None and lease is not None and place.lease == lease.id:  # else the same turn has taken it back
            stored = {p.id: p for p in self.reader.load()[0]}[place.id]
            assert (stored.lease, stored.fence) == (lease.id, lease.fence), (
                "somebody was notified of what is not stored"
            )
        if effect.what == "offer" and place is not None and lease is not None and lease.fence:
            known = self.given.setdefault((place.id, lease.fence), lease.id)
            assert known == lease.id, "a fence was given twice"
            assert lease.fence >= self.fences.get(place.id, 0), "a fence does not grow"
            self.fences[place.id] = lease.fence
            self.offers.setdefault(place.id, []).append(place.fence)
        elif effect.what == "end" and place is not None:
            self.endings.setdefault(place.id, []).append(effect.fence)
        self.granted += effect.what == "granted"

    def step(self) -> None:
        """Let one thing happen at one process, perhaps one that was deposed."""
        process = self.processes[-1] if self.random.random() < 0.8 else self.random.choice(self.processes[-2:])
        state = process.state
        self.now += self.random.choice((0.0, 0.1, 3.0))
        state.advance(self.now)
        place = self.random.choice(PLACES)
        leases = sorted(state.leases)
        [what] = self.random.choices(list(LIKELY), list(LIKELY.values()))
        if what == "register":
            state.register(place, ["k"], fence=self.fences.get(place, 0) if self.random.random() < 0.8 else 0)
        elif what == "request":
            with contextlib.suppress(Refused):
                state.request("k", self.random.choice("abc"), ttl=60)
        elif what == "accept" and self.offers.get(place):
            state.accepted(place, self.offers[place].pop())
        elif what == "clean" and self.endings.get(place):
            state.cleaned(place, self.endings[place].pop())
        elif what in ("release", "hear") and leases:
            getattr(state, "release" if what == "release" else "heard")(self.random.choice(leases))
        elif what == "lose":
            state.lost(place, "gone")
        if what != "take over" or self.random.random() < 0.5:  # else killed before it wrote
            process.flush()
        if what == "take over":
            self.take_over()

    def leader(self) -> Process:
        """Let a new process take over."""
        while True:
            self.reader._redis.delete("{portcall-farm}:leader")  # its time is over
            process = Process(self.url, self)
            if process.led:
                return process
            process.store.close()

    def take_over(self) -> None:
        before = {lease.id for lease in self.reader.load()[1]}
        process = self.leader()
        ended = {e["lease"] for e in process.store.history(limit=1000) if e["what"] == "lease ended"}
        assert before <= process.state.leases.keys() | ended, "a lease is lost"
        self.processes.append(process)
        self.takeovers += 1

    def check(self) -> None:
        active = [lease.place for lease in self.reader.load()[1] if lease.state == "active"]
        assert len(set(active)) == len(active), "two leases of one place"

    def close(self) -> None:
        for process in self.processes:
            process.store.close()
        self.reader.close()


def run_history(url: str, seed: int, steps: int = 40) -> tuple[int, int, int]:
    """Run one history; return the numbers of grants, of takeovers, and of answers that were lost."""
    world = World(url, seed)
    try:
        for _ in range(steps):
            world.step()
        world.check()
        return world.granted, world.takeovers, world.unanswered
    finally:
        world.close()


def main(count: int, seed: int) -> None:
    totals = [0, 0, 0]
    with running_redis() as url:
        for number in range(seed, seed + count):
            found = run_history(url, number)
            totals = [a + b for a, b in zip(totals, found, strict=True)]
            if (number - seed + 1) % 1000 == 0:
                print(f"{number - seed + 1} histories, {totals[0]} grants, {totals[1]} takeovers, "
                      f"{totals[2]} answers lost", flush=True)  # fmt: skip


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
