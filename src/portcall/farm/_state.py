# SPDX-License-Identifier: Apache-2.0
"""The state machine of a farm: places, leases, the queue. No I/O, no clock: time comes in with ``advance``.

    lease   queued -> offered -> active -> ended(reason)          an offer that fails goes back to queued
    place   offline -> idle -> offered -> leased -> cleaning -> idle     and offline from any of them

The caller, which does the I/O, calls ``advance`` and then one of the methods, sends ``effects``, stores ``changed`` and
``events``, and empties the three.

Rules:

* A place has one lease at most. Each lease of a place has a higher fence than the one before.
* Each change of a state goes through one of two functions, and has a cause and a time.
* What a peer reports for another fence than the present one is ignored.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from portcall.farm._constraints import Tag
from portcall.farm._deadlines import cycle_due, due_of_lease, due_of_place
from portcall.farm._model import USABLE, Class, Health, Lease, Peer, Place, Refused
from portcall.farm._queue import settle_priority
from portcall.farm._records import Records

_NAMED = 3  # places that a refusal names as the nearest
_SUFFIX_BYTES = 16  # random bytes at the end of a match key
_MOST_FAILURES = 100  # of a place, which are kept
_MOST_LEFT = 1024  # keys of places that are gone
MOST_SESSIONS = 1000  # of a lease
CHECKS = 20  # times of a check whose median is the usual one


def hash_secret(secret: str) -> str:
    """Return what is stored of a secret of 128 bits or more."""
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()


class State(Records):
    """What may happen, and what follows from it."""

    # ---- Time ----

    def advance(self, now: float) -> None:
        """Let time pass, and do all that is due. Time never goes back."""
        while self.step(now):
            pass

    def step(self, now: float) -> bool:
        """Let time pass, and do one thing that is due; return whether there was one. It is in ``due`` meanwhile."""
        self.now = max(self.now, now)
        self.due = thing = self._deadlines.pop(self.now)
        if isinstance(thing, Place):
            self._place_is_due(thing)
        elif thing is not None:
            self._lease_is_due(thing)
        return thing is not None

    def _cycle(self, place: Place) -> None:
        place.cycles, place.cycled = place.cycles + 1, self.now
        if place.cycles > self.rules.cycles:
            self.set_health(place.id, "bad", f"still away after its power was cycled {self.rules.cycles} times")
            return
        self.changed[place] = None
        place.cause = f"power cycle {place.cycles} of {self.rules.cycles}"
        self.note("place power cycle", place=place.id, detail=place.cause)
        self._say("cycle", place=place)

    def _place_is_due(self, place: Place) -> None:
        due = due_of_place(place, self.rules)
        if self.places.get(place.id) is not place or not due:
            return
        if due > self.now:
            self._arm(place)
            return
        if place.health == "quarantined" and 0 < place.health_until <= self.now:
            self.set_health(place.id, "suspect", "the time of its quarantine is over")
        elif 0 < cycle_due(place, self.rules) <= self.now:
            self._cycle(place)
        elif place.state in ("offered", "cleaning"):
            doing = "answer an offer" if place.state == "offered" else "clean up"
            self.failed(place.id, f"its agent did not {doing} in time")
            self.lost(place.id, f"its agent did not {doing} in time")
        elif place.lease and place.since + self.rules.lost_agent <= self.now:
            self._end(self.leases[place.lease], "agent lost", detail=place.cause)
        elif not place.lease and place.since + self.rules.keep_offline <= self.now:
            self._forget(place)
            return
        self._arm(place)

    def _lease_is_due(self, lease: Lease) -> None:
        due = due_of_lease(lease)
        if lease.state == "ended" or not due or due > self.now:
            if lease.state != "ended":
                self._arm(lease)
            return
        if lease.state == "queued":
            out_of_time = lease.wait_until and lease.wait_until <= self.now
            self._end(lease, "waited too long" if out_of_time else "withdrawn")
        elif lease.ends_at and lease.ends_at <= self.now:
            self._end(lease, "limit")
        else:
            self._end(lease, "expired" if lease.claimed else "never claimed")

    # ---- Places ----

    def register(
        self,
        id: str,
        keys: Sequence[str],
        tags: Mapping[str, Tag] | None = None,
        *,
        peer: Peer = "portcall",
        host: str = "",
        port: int = 0,
        match_key: str = "",
        fence: int = 0,
        sessions: Sequence[str] = (),
        patience: float = 0,
        limited: bool = False,
    ) -> Place:
        """Take in a place, or one that comes back; ``fence`` and ``sessions`` are what its agent knows of.

        Its name is a tag, too: ``place=b1`` asks for this one.

        Raises:
            ValueError: it has no key.
        """
        if not id or not keys or not all(keys):
            raise ValueError("a place needs an id and at least one key")
        place = self.places.get(id)
        if place is None:
            place = self.places[id] = Place(id, peer)
            self.note("place registered", place=id, detail=", ".join(keys))
        known = place.facts
        place.peer, place.keys, place.tags = peer, tuple(keys), {**(tags or {}), "place": id}
        place.limited = limited
        place.patience = patience
        place.host, place.port, place.match_key = host, port, match_key
        place.fence = max(place.fence, fence)
        if known != place.facts:
            self.queue.add_place(place)
        self.changed[place] = None
        if place.state == "offered" or (place.state == "leased" and place.fence > fence):
            self.lost(id, "its agent started again")
        self._came_back(place, fence, sessions)
        return place

    def _came_back(self, place: Place, fence: int, sessions: Sequence[str]) -> None:
        lease = self.leases.get(place.lease)
        if lease is not None and lease.fence == fence and lease.state == "active":
            lease.sessions = {name: lease.sessions.get(name, self.now) for name in sessions}
            self._set_place(place, "leased", "its agent came back")
            if lease.peer == "TVM" and not sessions and lease.since + self.rules.claim < self.now:
                self._end(lease, "released", detail="its session ended while the agent was away")
            return
        if lease is not None:
            self._end(lease, "agent lost", detail="its agent started again")
        if sessions or place.cleaned < place.fence:
            self._clean_up(place, "a lease that is over was not cleaned up", lease)
            return
        self._set_place(place, "idle", "registered")
        self._serve(place)

    def put(self, id: str, host: str, port: int, match_key: str) -> None:
        """Take the new match key of a TVM server: its session, if there was one, is over."""
        place = self.places[id]
        place.host, place.port, place.match_key = host, port, match_key
        self.changed[place] = None
        lease = self.leases.get(place.lease)
        if lease is not None and lease.peer == "portcall" and lease.state == "active":
            lease.sessions.clear()
            lease.match_key = match_key
            return self._say("granted", lease, place)  # a key for its next session
        if lease is not None:
            self._end(lease, "released", detail="its session ended")
        self._set_place(place, "idle", "the server waits for a client")
        return self._serve(place)

    def lost(self, id: str, cause: str) -> None:
        """Take note that a place's agent is gone; a lease waits for it to come back, TVM's servers are forgotten."""
        place = self.places.get(id)
        if place is None or place.state == "offline":
            return
        lease = self.leases.get(place.lease)
        if lease is not None and lease.state == "offered":
            self._requeue(lease, cause)
        self._set_place(place, "offline", cause)
        if place.peer == "TVM":
            if place.lease:
                self._end(self.leases[place.lease], "agent lost", detail=cause)
            self._forget(place)

    def remove(self, id: str, cause: str = "its agent left") -> None:
        """Forget a place that left in order; its lease ends."""
        place = self.places.get(id)
        if place is not None:
            self._set_place(place, "offline", cause)
            if place.lease:
                self._end(self.leases[place.lease], "agent lost", detail=cause)
            self._forget(place)

    def _forget(self, place: Place) -> None:
        del self.places[place.id]
        self.queue.remove_place(place)
        for key in place.keys:
            self.left.pop(key, None)
            self.left[key] = None
        while len(self.left) > _MOST_LEFT:
            del self.left[next(iter(self.left))]
        self.changed.pop(place, None)
        self.forgotten.append(place.id)
        self.note("place forgotten", place=place.id, detail=place.cause)

    def knows(self, key: str) -> bool:
        """Return whether there is a place with this key, or was one since the farm's start."""
        return key in self.left or any(key in place.keys for place in self.places.values())

    def accepted(self, id: str, fence: int) -> None:
        """Take an agent's word that it is ready for the lease that it was offered."""
        place = self._offered(id, fence)
        if place is not None:
            self._activate(place, self.leases[place.lease])

    def declined(self, id: str, fence: int, why: str) -> None:
        """Take an agent's word that its place cannot be used: the request goes back to where it stood."""
        place = self._offered(id, fence)
        if place is not None:
            self._requeue(self.leases[place.lease], why)
            self._clean_up(place, why)
            self.failed(id, why)

    def _offered(self, id: str, fence: int) -> Place | None:
        """Return the place whose agent answers an offer; one that answers too late is cleaned up."""
        place = self.places.get(id)
        if place is None or place.fence != fence or place.state not in ("offered", "offline"):
            return None
        if place.state == "offline" and not place.lease:
            self._clean_up(place, "its agent answered an offer too late")
        return place if place.state == "offered" else None

    def _clean_up(self, place: Place, why: str, lease: Lease | None = None) -> None:
        self._set_place(place, "cleaning", why)
        self._say("end", lease, place, fence=place.fence)

    def cleaned(self, id: str, fence: int, why: str = "") -> None:
        """Take an agent's word that nothing of the leases up to this fence is left, which may come late.

        Args:
            why: cleaning up failed nevertheless; empty where it did not.
        """
        place = self.places.get(id)
        if place is not None and place.fence == fence and place.state in ("cleaning", "offline") and not place.lease:
            place.cleaned = fence
            if why:
                self.failed(id, why)
            self._set_place(place, "idle", "cleaned up")
            self._serve(place)

    def failed(self, id: str, why: str, at_once: bool = False) -> None:
        """Count a failure of a place; too many of them, or one with ``at_once``, quarantine it."""
        place = self.places[id]
        lately = [t for t in place.failures[-_MOST_FAILURES:] if t > self.now - self.rules.failure_window]
        place.failures = [*lately, self.now]
        self.note("place failed", place=id, lease=place.lease, detail=why)
        if at_once and place.health in (*USABLE, "quarantined"):
            self.set_health(id, "quarantined", why, until=self.now + self.rules.quarantine)
        elif len(place.failures) >= self.rules.failures and place.health in USABLE:
            text = f"failed {len(place.failures)} times within {self.rules.failure_window:g} s, at last: {why}"
            self.set_health(id, "quarantined", text, until=self.now + self.rules.quarantine)
        elif place.health in USABLE:
            self.set_health(id, "suspect", why)

    def set_health(self, id: str, health: Health, reason: str, by: str = "", until: float = 0) -> None:
        """Say whether a place may be used; a lease that it has goes on."""
        place = self.places[id]
        if place.health != health:
            place.health_since = self.now
        if health == "good":
            place.failures, place.cycles = [], 0
        place.health, place.health_reason, place.health_until = health, reason, until
        self.changed[place] = None
        self.note("place " + health, place=id, user=by, detail=reason)
        self._arm(place)
        self._serve(place)

    def drain(self, id: str, wanted: bool, by: str = "") -> None:
        """Hand a place out no more after its present lease, or again."""
        place = self.places[id]
        place.drain = wanted
        self.changed[place] = None
        self.note("place drained" if wanted else "place back in use", place=id, user=by)
        self._serve(place)

    # ---- Requests and leases ----

    def request(
        self, want: str, user: str, *, peer: Peer = "portcall", secret: str = "", priority: float = 0,
        class_: Class = "normal", ttl: float = 60, ceiling: float = 0, wait: float = 0, most: int = 0,
        key_only: bool = False, hopeless: bool = False, account: str = "", keys: Sequence[str] = (),
    ) -> Lease:  # fmt: skip
        """Ask for a place; the lease is offered at once where a place is free. The same secret gives the same lease.

        Parameters:
            want: a constraint; with ``key_only`` a TVM client's key.
            wait: seconds to wait at most; 0 forever.
            most: how many leases the user may have at once; further requests wait. 0: any number.
            hopeless: wait even where no known place could ever match.
            account: whom it is counted for, where the user's name is one that anybody can give.
            keys: the place must have one of them; empty: any place.

        Raises:
            Refused: it can never be fulfilled, or the queue is full.
        """
        hashed = hash_secret(secret) if secret else ""
        if hashed in self._by_secret:
            return self.leases[self._by_secret[hashed]]
        lease = Lease(self._random(8), user, want, peer, key_only, hashed, settle_priority(priority), class_)
        lease.ttl, lease.ceiling, lease.most, lease.created, lease.account = ttl, ceiling, most, self.now, account
        lease.keys = tuple(sorted(set(keys)))
        try:
            line = self.queue.line(lease, self.places)
        except ValueError as error:
            raise Refused(str(error), "invalid") from None
        if self.draining:
            raise Refused("the farm takes no new requests, since it is about to stop", "draining")
        own = self.queue.waiting_of(lease.payer)
        if self.queue.size >= self.rules.most_waiting or own >= self.rules.most_waiting_of_user:
            raise Refused(f"too many requests wait already ({self.queue.size}, of {lease.payer} {own})", "full")
        if not hopeless and all(self.places[id].health == "retired" for id in line.places):
            raise Refused(self._why_none(lease), "no-match")
        lease.wait_until = self.now + wait if wait else 0
        lease.expires = self.now + ttl if peer == "portcall" else 0
        lease.rank = self.queue.rank(lease, self.now)
        self.leases[lease.id] = lease
        if hashed:
            self._by_secret[hashed] = lease.id
        self.queue.enter(lease)
        self._set_lease(lease, "queued", want)
        if most and self._held.get(lease.payer, 0) >= most:
            self.queue.block(lease)
        else:
            place = min(filter(None, map(self._free, line.places)), key=self._preference, default=None)
            if place is not None:
                self._serve(place)
        return lease

    def check(self, id: str, user: str, secret: str, ttl: float = 60) -> Lease:
        """Lease an idle place for a check, whatever its health; the same secret gives the same lease.

        Raises:
            Refused: it is not idle.
        """
        place, hashed = self.places[id], hash_secret(secret)
        if hashed in self._by_secret:
            return self.leases[self._by_secret[hashed]]
        if place.state != "idle" or place.health == "retired" or place.peer == "TVM":
            raise Refused(f"{id} is {place.state if place.health != 'retired' else 'retired'}, not idle", "busy")
        lease = Lease(self._random(8), user, f"check of {id}", secret_hash=hashed, check=True, ttl=ttl)
        lease.created = lease.rank = self.now
        self.leases[lease.id] = lease
        self._by_secret[hashed] = lease.id
        self._offer(place, lease)
        return lease

    def checked(self, id: str, job: str, seconds: float, why: str, tolerance: float) -> str:
        """Take the result of a check; return why the place failed it, or an empty text.

        Args:
            id: of the lease.
            job: what was done; ``seconds`` (0: not timed) are compared with the median of the last times on this place.
            why: it failed; empty where it did not.
            tolerance: by how much the seconds may be longer, as a factor.
        """
        lease = self.leases[id]
        place = self.places[lease.place]
        known = place.usual.get(job, [])
        times = known if isinstance(known, list) else [known]
        usual = statistics.median(times) if times else 0
        if not why and seconds and usual and seconds > usual * tolerance:
            why = f"took {seconds:.3g} s, {seconds / usual:.2f} times its usual {usual:.3g} s"
        if why:
            self.failed(place.id, f"check failed: {why}", at_once=True)
            return why
        if seconds:
            place.usual[job] = [*times, seconds][-CHECKS:]
        place.checked = self.now
        self.changed[place] = None
        self.note(
            "place checked", place=place.id, lease=id, user=lease.user, detail=f"{seconds:.3g} s" if seconds else ""
        )
        if place.health in (*USABLE, "quarantined", "bad"):
            self.set_health(place.id, "good", "passed a check")
        return ""

    def _why_none(self, lease: Lease) -> str:
        """Say why no known place could match, and which come nearest."""
        line = self.queue.line(lease, self.places)
        constraint, known = line.constraint, (p for p in self.places.values() if p.health != "retired")
        near = sorted((len(constraint.missing(*p.facts)), p.id) for p in known if line.allows(p))
        said = []
        for _, id in near[:_NAMED]:
            place = self.places[id]
            lacks = " and ".join(f"'{clause}'" for clause in constraint.missing(*place.facts))
            said.append(f"{id} (keys {', '.join(place.keys)}) does not meet {lacks}")
        return f"no {line.kind} could ever match {lease.want!r}; " + ("; ".join(said) or "none is registered")

    def _free(self, id: str) -> Place | None:
        place = self.places[id]
        return place if place.free else None

    def _preference(self, place: Place) -> tuple[bool, int, float]:
        """Order places: healthy first, special last, then the one that has been idle longest."""
        return place.health == "suspect", len(place.keys) + len(place.tags), place.since

    def _serve(self, place: Place) -> None:
        """Offer a free place to the request that counts as having come first."""
        while place.free and self.places.get(place.id) is place:
            best = min(self.queue.heads(place), key=lambda lease: (lease.rank, lease.number), default=None)
            if best is None:
                return
            if best.most and self._held.get(best.payer, 0) >= best.most:
                self.queue.block(best)
            else:
                self._offer(place, best)

    def _offer(self, place: Place, lease: Lease) -> None:
        place.fence += 1
        place.lease, lease.place, lease.fence = lease.id, place.id, place.fence
        self._set_lease(lease, "offered")
        if not lease.check:
            self.queue.leave(lease)
        self._held[lease.payer] = self._held.get(lease.payer, 0) + 1
        if place.peer == "TVM":
            lease.match_key = place.match_key
            return self._activate(place, lease)
        lease.match_key = self.new_match_key(place, lease)
        self._set_place(place, "offered", f"to {lease.user}")
        return self._say("offer", lease, place)

    def new_match_key(self, place: Place, lease: Lease) -> str:
        """Return a match key that cannot be guessed, beginning with a key of the place as TVM's ends expect it."""
        first = lease.want.partition("?")[0]
        first = first.partition("&")[0].strip()
        key = first if first in place.keys else place.keys[0]
        return f"{key}:{self._random(_SUFFIX_BYTES)}"

    def _activate(self, place: Place, lease: Lease) -> None:
        lease.expires = self.now + self.rules.claim
        if lease.peer == "TVM" and place.peer == "TVM":
            lease.expires = 0  # nothing tells whether it is claimed but the server's polls: see ``unclaimed``
        lease.ends_at = self.now + lease.ceiling if lease.ceiling else 0
        self._set_place(place, "leased", f"to {lease.user}")
        self._set_lease(lease, "active")
        self._say("granted", lease, place)

    def _requeue(self, lease: Lease, why: str) -> None:
        """Let a request whose offer failed wait again, where it stood."""
        place = self.places[lease.place]
        if lease.check:
            self._end(lease, "refused", detail=why)
            return
        place.lease = lease.place = lease.match_key = ""
        self._give_back(lease)
        lease.fence, lease.expires = 0, self.now + lease.ttl if lease.peer == "portcall" else 0
        self.queue.line(lease, self.places)
        self._set_lease(lease, "queued", why)
        self.queue.enter(lease)
        self._say("requeued", lease)
        line = self.queue.line(lease, self.places)
        for other in sorted(filter(None, map(self._free, line.places)), key=self._preference):
            if other is not place:
                self._serve(other)

    def _give_back(self, lease: Lease) -> None:
        self._held[lease.payer] -= 1
        if not self._held[lease.payer]:
            del self._held[lease.payer]
        for back in self.queue.unblock(lease.payer):
            line = self.queue.line(back, self.places)
            for place in filter(None, map(self._free, sorted(line.places))):
                self._serve(place)

    def heard(self, id: str) -> None:
        """Take a sign of life of a lease's holder."""
        lease = self.leases[id]
        lease.claimed = lease.state == "active"
        lease.expires = self.now + lease.ttl
        self._arm(lease)

    def extend(self, id: str, seconds: float, most: float = 0, by: str = "") -> Lease:
        """Let a lease last that many seconds from now on, within ``most`` (0: any), at the wish of ``by`` if given."""
        lease = self.leases[id]
        if lease.ends_at:
            limit = lease.since + most if most else float("inf")
            lease.ends_at = min(self.now + seconds, limit)
            self.changed[lease] = None
            self.note("lease extended", place=lease.place, lease=id, user=lease.user, detail=by and f"by {by}")
            self._arm(lease)
        return lease

    def release(self, id: str, by: str = "") -> None:
        """End a lease, or take a request back, at the wish of its holder."""
        lease = self.leases.get(id)
        if lease is not None:
            self._end(lease, "withdrawn" if lease.state == "queued" else "released", by=by)

    def kick(self, id: str, by: str, why: str) -> None:
        """End somebody's lease; the holder reads who did, and why."""
        self._end(self.leases[id], "kicked", by=by, detail=why)

    def unclaimed(self, id: str) -> None:
        """Take note that a TVM server still waits for the client of its lease, long after the grant."""
        lease = self.leases.get(self.places[id].lease)
        if lease is not None:
            self._end(lease, "never claimed")

    def admit(self, id: str) -> str:
        """Return the match key of one more session of an active lease; its agent is notified."""
        lease = self.leases[id]
        place = self.places[lease.place]
        key = self.new_match_key(place, lease)
        self._say("admit", lease, place, key=key)
        return key

    def session_opened(self, id: str, fence: int, session: str) -> None:
        """Take an agent's word that a session of its lease began."""
        lease = self._lease_at(id, fence)
        if lease is not None and len(lease.sessions) < MOST_SESSIONS:
            lease.sessions[session] = self.now
            if lease.peer == "TVM":
                lease.expires = 0  # it lasts as long as the session
            self.changed[lease] = None
            self.note("session opened", place=id, lease=lease.id, user=lease.user)

    def session_closed(self, id: str, fence: int, session: str, how: str) -> None:
        """Take an agent's word that a session ended; a TVM client's lease ends with it."""
        lease = self._lease_at(id, fence)
        if lease is not None and session in lease.sessions:
            del lease.sessions[session]
            self.changed[lease] = None
            self.note("session closed", place=id, lease=lease.id, user=lease.user, detail=how)
            if lease.peer == "TVM":
                self._end(lease, "released", detail=f"its session ended: {how}")

    def _lease_at(self, id: str, fence: int) -> Lease | None:
        place = self.places.get(id)
        lease = self.leases.get(place.lease) if place is not None and place.fence == fence else None
        return lease if lease is not None and lease.state == "active" else None

    def _end(self, lease: Lease, reason: str, by: str = "", detail: str = "") -> None:
        before = lease.state
        lease.reason, lease.by, lease.detail = reason, by, detail
        if before == "active":
            self.queue.use.add(lease.payer, self.now - lease.since, self.now)
        self._set_lease(lease, "ended", f"{reason}{f' by {by}' if by else ''}{f': {detail}' if detail else ''}")
        del self.leases[lease.id]
        self._by_secret.pop(lease.secret_hash, None)
        place = self.places.get(lease.place)
        if before == "queued":
            self.queue.leave(lease)
        if place is not None and place.lease == lease.id:
            place.lease = ""
            self.changed[place] = None
            if reason == "released":
                place.cycles = 0
            if place.state in ("offered", "leased"):
                self._clean_up(place, f"the lease of {lease.user} ended: {reason}", lease)
            else:
                self._arm(place)
        self._say("ended", lease, place)
        if before in ("offered", "active"):
            self._give_back(lease)

    # ---- Restarts ----

    def load(self, places: Sequence[Place], leases: Sequence[Lease], use: Mapping[str, Any], now: float) -> None:
        """Take over what was stored: agents are away, holders get a time of grace, requests keep their rank."""
        self.now = now
        self.queue.use.load(use)
        kept = {p.id: p for p in places if p.peer == "portcall"}
        for place in kept.values():
            self.places[place.id] = place
            self._set_place(place, "offline", "the farm started again")
            place.since = now
        for lease in sorted(leases, key=lambda lease: lease.number):
            self._load_lease(lease, kept.get(lease.place))
        for place in kept.values():
            if place.lease and getattr(self.leases.get(place.lease), "place", "") != place.id:
                place.lease = ""
            self._arm(place)
        for place in places:
            if place.id not in kept:
                self.forgotten.append(place.id)

    def _load_lease(self, lease: Lease, place: Place | None) -> None:
        waiting = lease.state in ("queued", "offered")
        if (waiting and (lease.check or lease.peer == "TVM")) or (
            not waiting and (place is None or place.lease != lease.id)
        ):
            lease.reason = "farm restarted"
            return self._set_lease(lease, "ended", lease.reason)
        self.leases[lease.id] = lease
        if lease.secret_hash:
            self._by_secret[lease.secret_hash] = lease.id
        grace = lease.ttl if lease.peer == "portcall" else self.rules.lost_agent
        if waiting:
            if place is not None and place.lease == lease.id:
                place.lease = ""
            lease.place, lease.fence, lease.match_key = "", 0, ""
            lease.expires = self.now + grace
            self.queue.line(lease, self.places)
            self._set_lease(lease, "queued", "the farm started again")
            return self.queue.enter(lease)
        lease.expires = max(lease.expires, self.now) + grace if lease.expires else 0
        lease.claimed = True
        lease.match_key = ""  # whether its holder has used it is not known: the next session gets another
        self._held[lease.payer] = self._held.get(lease.payer, 0) + 1
        self.changed[lease] = None
        return self._arm(lease)
