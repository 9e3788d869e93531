# SPDX-License-Identifier: Apache-2.0
"""The last day of each place, out of the farm's events: who had it, when it was idle, away or out of use. No I/O here.

Time goes in steps of five minutes. A step in which a place did one thing is a part of a run; of others the seconds of
each are kept. So a place takes little memory, whatever happens to it, and the figures are exact.
"""

from __future__ import annotations

import itertools
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from portcall.farm._model import USABLE, Health, Place, PlaceState

STEP = 300.0  # seconds
STEPS = 288  # of a day
_FRESH = 60.0  # seconds for which a picture of a place to which nothing happens is good
_MOST_IN_STEP = 12  # users who are told apart in one step
_MOST_WAITS = 20_000  # requests whose wait is kept
_ENOUGH = 0.25  # of a step for which a place was used: it is shown as used
_STATES, _HEALTHS = frozenset(get_args(PlaceState)), frozenset(get_args(Health))

Kind = Literal["used", "idle", "out", "offline"]


class Doing(NamedTuple):
    """What a place does, and for whom; the user is empty where it is nobody, or one of many."""

    kind: Kind
    user: str = ""


Seconds = dict[Doing, float]


class Run(NamedTuple):
    """Steps of the day in which a place mostly did one thing: from ``first`` to before ``last``, of 0 to STEPS."""

    first: int
    last: int
    doing: Doing


@dataclass
class _Track:
    """What is known of a place."""

    state: str = ""
    health: str = "good"
    drain: bool = False
    user: str = ""
    since: float = 0
    changes: int = 0
    runs: deque[tuple[int, int, Doing]] = field(default_factory=deque)
    steps: dict[int, Seconds] = field(default_factory=dict)

    def doing(self) -> Doing | None:
        if not self.state:
            return None
        if self.state == "offline":
            return Doing("offline")
        if self.state != "idle":
            return Doing("used", self.user)
        return Doing("out" if self.drain or self.health not in USABLE else "idle")

    def change(self, at: float, **fields: Any) -> None:
        """Let it be otherwise from a moment on."""
        self._keep(at)
        self.since = max(self.since, at)
        self.changes += 1
        vars(self).update(fields)

    def _keep(self, until: float) -> None:
        doing = self.doing()
        if doing is None or until <= self.since:
            return
        first, last = int(self.since // STEP), int(until // STEP)
        if first == last:
            self._add(first, doing, until - self.since)
            return
        self._add(first, doing, (first + 1) * STEP - self.since)
        if last > first + 1:
            self.runs.append((first + 1, last, doing))
        if until > last * STEP:
            self._add(last, doing, until - last * STEP)

    def _add(self, step: int, doing: Doing, seconds: float) -> None:
        found = self.steps.setdefault(step, {})
        _add(found, doing if doing in found or len(found) < _MOST_IN_STEP else Doing(doing.kind), seconds)

    def trim(self, start: int) -> None:
        """Forget the steps before one."""
        while self.runs and self.runs[0][1] <= start:
            self.runs.popleft()
        while self.steps and (oldest := next(iter(self.steps))) < start:
            del self.steps[oldest]

    def until(self, now: float) -> _Track:
        """Return what it has done since its last change."""
        open_ = _Track(self.state, self.health, self.drain, self.user, self.since)
        open_._keep(now)
        return open_


class PlaceDay:
    """What a place did in the last day.

    Attributes:
        seconds: for how long it did each thing.
        runs: what to show, in the order of time.
    """

    def __init__(self, track: _Track, now: float) -> None:
        start, open_ = int(now // STEP) - STEPS + 1, track.until(now)
        track.trim(start)
        open_.trim(start)
        self.seconds: Seconds = {}
        shown: list[Doing | None] = [None] * STEPS
        for first, last, doing in (*track.runs, *open_.runs):
            first, last = max(first, start), min(last, start + STEPS)  # a clock that was ahead has noted later ones
            _add(self.seconds, doing, (last - first) * STEP)
            shown[first - start : last - start] = [doing] * (last - first)
        for step, found in (track.steps | open_.steps).items():
            if step >= start + STEPS:
                continue
            if step in open_.steps and step in track.steps:
                found = dict(found)  # which is of the second
                for doing, seconds in track.steps[step].items():
                    _add(found, doing, seconds)
            for doing, seconds in found.items():
                _add(self.seconds, doing, seconds)
            shown[step - start] = _most(found)
        self.runs: list[Run] = []
        first = 0
        for each, group in itertools.groupby(shown):
            last = first + len(list(group))
            if each is not None:
                self.runs.append(Run(first, last, each))
            first = last

    def total(self, *kinds: Kind) -> float:
        return sum(seconds for doing, seconds in self.seconds.items() if doing.kind in kinds)


def use_of(days: Sequence[PlaceDay]) -> float | None:
    """Return the part of the time for which places were used, of that for which they could be; None if never."""
    there = sum(day.total("used", "idle") for day in days)
    return sum(day.total("used") for day in days) / there if there else None


def _add(seconds: Seconds, doing: Doing, more: float) -> None:
    seconds[doing] = seconds.get(doing, 0) + more


def _most(found: Seconds) -> Doing:
    if len(found) == 1:
        return next(iter(found))
    used = [doing for doing in found if doing.kind == "used"]
    enough = sum(found[doing] for doing in used) >= _ENOUGH * sum(found.values())
    return max(used if used and enough else found, key=found.__getitem__)


class Day:
    """The last day of a farm. The caller gives it the events, in their order."""

    def __init__(self) -> None:
        self._tracks: dict[str, _Track] = {}
        self._pictures: dict[str, tuple[tuple[int, int], PlaceDay]] = {}
        self._queued: dict[str, float] = {}
        self._waits: deque[tuple[float, float]] = deque(maxlen=_MOST_WAITS)

    def begin(self, events: Iterable[Mapping[str, Any]], places: Iterable[Place], users: Mapping[str, str]) -> None:
        """Take the first events, of which some may be older than a day.

        Parameters:
            places: as they are now: what no event says has not changed meanwhile.
            users: who has each of them.
        """
        events = list(events)
        said = {(event["place"], _about(event["what"])) for event in events}
        for place in places:
            id = place.id
            track = self._tracks[id] = _Track()
            if (id, "health") not in said:
                track.health = place.health
            if (id, "drain") not in said:
                track.drain = place.drain
            if (id, "state") not in said:
                track.state, track.user, track.since = place.state, users.get(id, ""), place.since
        for event in events:
            self.take(event)

    def take(self, event: Mapping[str, Any]) -> None:
        """Take the next event."""
        what, id, lease, at = event["what"], event["place"], event["lease"], event["time"]
        if what == "lease queued":
            self._queued.setdefault(lease, at)
        elif what == "lease active" and lease in self._queued:
            self._waits.append((at, at - self._queued.pop(lease)))
        elif what == "lease ended":
            self._queued.pop(lease, None)
        about, word = _about(what), what.partition(" ")[2]
        if not id or not about:
            return
        if about == "end":
            self._tracks.pop(id, None)
            self._pictures.pop(id, None)
            return
        track = self._tracks.setdefault(id, _Track())
        if about == "state":
            track.change(at, state=word)
        elif about == "health":
            track.change(at, health=word)
        elif about == "drain":
            track.change(at, drain=word == "drained")
        else:
            track.change(at, user=event["user"])

    def place(self, id: str, now: float) -> PlaceDay | None:
        """Return the last day of a place; None where nothing is known of it. It may be a minute old."""
        track = self._tracks.get(id)
        if track is None:
            return None
        key = track.changes, int(now / _FRESH + hash(id) % 60 / 60)  # not all of them at once
        if id not in self._pictures or self._pictures[id][0] != key:
            self._pictures[id] = key, PlaceDay(track, now)
        return self._pictures[id][1]

    def median_wait(self, now: float) -> tuple[float, int] | None:
        """Return the median of the seconds that requests of the last day waited for a place, and their number."""
        while self._waits and self._waits[0][0] < now - STEP * STEPS:
            self._waits.popleft()
        if not self._waits:
            return None
        return statistics.median(wait for _, wait in self._waits), len(self._waits)


def _about(what: str) -> str:
    """Return what of a place an event concerns; empty where it is nothing that is shown."""
    kind, _, word = what.partition(" ")
    if kind == "place":
        if word in _STATES:
            return "state"
        if word in _HEALTHS:
            return "health"
        return {"drained": "drain", "back in use": "drain", "forgotten": "end"}.get(word, "")
    return "user" if what in ("lease offered", "lease active") else ""
