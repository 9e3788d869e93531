# SPDX-License-Identifier: Apache-2.0
"""The records of a farm in memory, with all that follows from them: the queue, deadlines, who holds how much. No I/O.

What follows is kept up to date by each change, and can be made anew from the records at any time.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from typing import Any

from portcall.farm._deadlines import Deadlines, due_of_lease, due_of_place
from portcall.farm._model import Effect, Event, Lease, Place, PlaceState, Rules
from portcall.farm._queue import Queue


class Records:
    """The places, leases and waiting requests of a farm.

    Parameters:
        rules: what it goes by.
        random_text: makes ids and match keys: given a number of bytes, twice as many hexadecimal digits.

    Attributes:
        places, leases: all places, and all leases that have not ended, by id.
        effects, events: what is to be sent and noted; the caller empties them.
        changed: places and leases that are to be stored, ended leases among them.
        due: what ``step`` deals with.
        draining: no new requests are taken.
    """

    def __init__(self, rules: Rules | None = None, random_text: Callable[[int], str] = secrets.token_hex) -> None:
        self.rules = rules or Rules()
        self.now = 0.0
        self.places: dict[str, Place] = {}
        self.leases: dict[str, Lease] = {}
        self.queue = Queue(self.rules)
        self.effects: list[Effect] = []
        self.events: list[Event] = []
        self.changed: dict[Place | Lease, None] = {}  # in their order
        self.forgotten: list[str] = []
        self.left: dict[str, None] = {}  # keys of places that are gone, the last to leave at the end
        self.draining = False
        self.due: Place | Lease | None = None
        self._random = random_text
        self._by_secret: dict[str, str] = {}
        self._held: dict[str, int] = {}  # leases that have a place, by whom they are counted for
        self._deadlines = Deadlines()

    def next_deadline(self) -> float | None:
        """Return when ``advance`` has something to do at the latest."""
        return self._deadlines.next()

    def _arm(self, thing: Place | Lease) -> None:
        self._deadlines.add(thing, due_of_place(thing, self.rules) if isinstance(thing, Place) else due_of_lease(thing))
        self._deadlines.trim(len(self.leases) + len(self.places), self._is_there)

    def _is_there(self, thing: Place | Lease) -> bool:
        return thing in (self.places.get(thing.id), self.leases.get(thing.id))

    # ---- Every change goes through these ----

    def _set_place(self, place: Place, state: PlaceState, cause: str) -> None:
        if place.state != state:
            self.note("place " + state, place=place.id, lease=place.lease, detail=cause)
            place.since = self.now
        place.state, place.cause = state, cause
        self.changed[place] = None
        self._arm(place)

    def _set_lease(self, lease: Lease, state: str, detail: str = "") -> None:
        lease.state = state  # type: ignore[assignment]
        lease.since = self.now
        self.changed[lease] = None
        self.note("lease " + state, place=lease.place, lease=lease.id, user=lease.user, detail=detail)
        self._arm(lease)

    def note(self, what: str, *, place: str = "", lease: str = "", user: str = "", detail: str = "") -> None:
        self.events.append(Event(self.now, what, place, lease, user, detail))

    def _say(self, what: Any, lease: Lease | None = None, place: Place | None = None, **more: Any) -> None:
        self.effects.append(Effect(what, place, lease, **more))

    # ---- Failed turns ----

    def go_back(self, texts: Mapping[Place | Lease, str]) -> None:
        """Be again what was encoded at the end of a turn; no place and no lease is another object afterwards.

        Signs of life, and that a match key was given out, are not encoded each time, and stay.
        """
        for record, text in texts.items():
            if isinstance(record, Lease):
                heard, given_out = record.expires, not record.match_key
                record.go_back(text)
                record.match_key = "" if given_out and record.state == "active" else record.match_key
                record.expires = max(record.expires, heard) if record.expires else 0
            else:
                record.go_back(text)
        self.places = {record.id: record for record in texts if isinstance(record, Place)}
        self.leases = {record.id: record for record in texts if isinstance(record, Lease)}
        self.changed, self.forgotten, self.events, self.effects = {}, [], [], []
        self._by_secret = {lease.secret_hash: id for id, lease in self.leases.items() if lease.secret_hash}
        self._held = {}
        self.queue.clear()
        self.queue.use.undo()
        for lease in self.leases.values():
            if lease.state != "queued":
                self._held[lease.payer] = self._held.get(lease.payer, 0) + 1
        for lease in sorted(self.leases.values(), key=lambda lease: (-lease.rank, -lease.number)):
            if lease.state == "queued":
                self.queue.line(lease, self.places)
                self.queue.enter(lease)
                if lease.most and self._held.get(lease.payer, 0) >= lease.most:
                    self.queue.block(lease)
        self._deadlines = Deadlines()
        for record in texts:
            record.armed = 0
            self._arm(record)
