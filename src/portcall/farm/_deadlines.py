# SPDX-License-Identifier: Apache-2.0
"""When something is due for a place or a lease, and what is due first. No I/O and no clock here."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from portcall.farm._model import Lease, Place, Rules

_SPARE = 1000  # entries of what is no longer there


class Deadlines:
    """The deadlines of all places and leases; each has one entry that counts, its earliest."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Place | Lease]] = []
        self._made = 0

    def add(self, thing: Place | Lease, when: float) -> None:
        """Let a thing be due at that time, or at the earlier one that it has; 0 is never."""
        when = max(when, thing.not_before) if when else 0
        if when and not 0 < thing.armed <= when:
            thing.armed = when
            self._made += 1
            heapq.heappush(self._heap, (when, self._made, thing))

    def trim(self, count: int, is_there: Callable[[Place | Lease], bool]) -> None:
        """Forget entries of what is no longer there, where there are many more than things."""
        if len(self._heap) > _SPARE + 2 * count:
            self._heap = [entry for entry in self._heap if is_there(entry[2])]
            heapq.heapify(self._heap)

    def next(self) -> float | None:
        """Return when the first is due."""
        return self._heap[0][0] if self._heap else None

    def pop(self, now: float) -> Place | Lease | None:
        """Take out the next thing that is due."""
        if not self._heap or self._heap[0][0] > now:
            return None
        thing = heapq.heappop(self._heap)[2]
        thing.armed = 0
        return thing


def due_of_place(place: Place, rules: Rules) -> float:
    """Return when a place is due; 0 for never."""
    due = [place.health_until] if place.health == "quarantined" and place.health_until else []
    if place.state in ("offered", "cleaning") and place.peer == "portcall":
        limit = rules.offer if place.state == "offered" else rules.clean
        due.append(place.since + limit + place.patience)
    if place.state == "offline":
        due += [cycle_due(place, rules)] if cycle_due(place, rules) else []
        due.append(place.since + (rules.lost_agent if place.lease else rules.keep_offline))
    return min(due, default=0.0)


def cycle_due(place: Place, rules: Rules) -> float:
    """Return when the power of a place that is away is to be cycled; 0 for never."""
    if place.state != "offline" or place.cycles > rules.cycles or not rules.cycles:
        return 0
    given_up = place.health in ("maintenance", "retired", "bad")
    return 0 if given_up else max(place.since, place.cycled) + rules.cycle_after


def due_of_lease(lease: Lease) -> float:
    """Return when a lease or a request is due; 0 for never."""
    due: list[float] = []
    if lease.state == "queued":
        due = [lease.wait_until, lease.expires]
    elif lease.state == "active":
        due = [lease.expires, lease.ends_at]
    return min(filter(None, due), default=0.0)
