# SPDX-License-Identifier: Apache-2.0
"""Who is served next: waiting requests in lines, one for each thing asked for, ordered by rank. No I/O here.

The rank is the moment at which a request counts as having come: its arrival, earlier for its class and priority, later
for the recent use of its user and for each request that the same user has waiting already. The smallest rank is served
first. It never changes while a request waits, so a decision looks at the heads of lines only, and no one starves: a
request that came long enough ago is before every new one.
"""

from __future__ import annotations

import bisect
import math
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping

from portcall.farm._constraints import Clause
from portcall.farm._model import CLASSES, MOST_PRIORITY, Lease, Place, Rules, fits

_KEPT_LINES = 256  # without anybody in them
_MOST_LOOKS = 2000  # at a clause and a place, to say what a request waits for
Name = tuple[bool, str, tuple[str, ...]]  # what tells lines apart


class Line:
    """The requests that ask for the same, and the places that match."""

    def __init__(self, first: Lease) -> None:
        self.keys, self.constraint = first.keys, first.constraint
        # By -rank, -number and, for what was stored wrong, id: the first to serve is the last.
        self._leases: list[tuple[float, int, str, Lease]] = []
        self.waiting = 0  # those that are set aside, too
        self.places: set[str] = set()
        self.unmet: tuple[int, list[Clause] | None] = (-1, None)

    def allows(self, place: Place) -> bool:
        """Return whether the tokens of these requests are for the place, whatever they ask for."""
        return not self.keys or not set(self.keys).isdisjoint(place.keys)

    @property
    def kind(self) -> str:
        """What these requests may be given, whatever they ask for, in words."""
        return "place" + (f" with a key of your token ({', '.join(self.keys)})" if self.keys else "")

    def insert(self, lease: Lease) -> None:
        bisect.insort(self._leases, (-lease.rank, -lease.number, lease.id, lease))

    def remove(self, lease: Lease) -> None:
        """Remove a request, if it is there."""
        at = self._index(lease)
        if at < len(self._leases) and self._leases[at][-1] is lease:
            del self._leases[at]

    def position(self, lease: Lease) -> int:
        """Return the place of a request, from 1 on."""
        at = self._index(lease)
        return len(self._leases) - at + (at == len(self._leases) or self._leases[at][-1] is not lease)

    def _index(self, lease: Lease) -> int:
        return bisect.bisect_left(self._leases, (-lease.rank, -lease.number, lease.id))

    def head(self) -> Lease | None:
        """Return the request to serve first."""
        return self._leases[-1][-1] if self._leases else None


class Use:
    """What each user has used, in seconds, half of which is forgotten after a time."""

    def __init__(self, half_life: float) -> None:
        self._half_life = half_life
        self._known: dict[str, tuple[float, float]] = {}
        self._before: list[tuple[str, tuple[float, float]]] = []  # what each change of this turn has replaced

    def of(self, user: str, now: float) -> float:
        amount, at = self._known.get(user, (0.0, now))
        return amount * math.pow(0.5, max(0.0, now - at) / self._half_life)

    def add(self, user: str, seconds: float, now: float) -> None:
        self._before.append((user, self._known.get(user, (0.0, now))))
        self._known[user] = (self.of(user, now) + seconds, now)
        if len(self._known) > 10_000:
            self._known = {u: k for u, k in self._known.items() if self.of(u, now) >= 1.0}

    def move_times(self, seconds: float) -> None:
        """Let all that was used have been used so much later."""
        self._known = {user: (amount, at + seconds) for user, (amount, at) in self._known.items()}

    def settle(self) -> None:
        """Keep what was added."""
        self._before.clear()

    def undo(self) -> None:
        """Take back what was added since the last ``settle``."""
        self._known.update(reversed(self._before))
        self._before.clear()

    def to_dict(self) -> dict[str, tuple[float, float]]:
        return dict(self._known)

    def load(self, values: Mapping[str, tuple[float, float]]) -> None:
        self._known = {user: (v[0], v[1]) for user, v in values.items() if fits(v, list[float]) and len(v) == 2}


class Queue:
    """All waiting requests."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self.use = Use(rules.half_life)
        self._number = self._changes = 0
        self.clear()

    def clear(self) -> None:
        """Forget all requests and lines; what users have used, and the numbers of requests, go on."""
        self._lines: dict[Name, Line] = {}
        self._idle: dict[Name, None] = {}  # lines without anybody in them
        self._of_place: dict[str, set[Name]] = {}
        self._waiting: Counter[str] = Counter()
        self._standing: defaultdict[str, Counter[tuple[int, float]]] = defaultdict(Counter)
        self._blocked: defaultdict[str, deque[Lease]] = defaultdict(deque)
        self.size = 0

    # ---- Requests ----

    def rank(self, lease: Lease, now: float) -> float:
        """Return when a request counts as having come."""
        own = self._standing.get(lease.payer, Counter())
        class_ = CLASSES.index(lease.class_)  # urgent is served earlier, batch later
        urgency = (-class_, lease.priority)
        ahead = sum(count for standing, count in own.items() if standing >= urgency)
        later = self.use.of(lease.payer, now) + ahead * self._rules.charge
        return lease.created + later - lease.priority * self._rules.priority + (class_ - 1) * self._rules.class_

    def enter(self, lease: Lease) -> None:
        """Let a request wait; one that has waited before stands where it stood."""
        line = self._lines[lease.line]
        self._idle.pop(lease.line, None)
        lease.number = lease.number or self._number + 1
        self._number = max(self._number, lease.number)
        line.insert(lease)
        line.waiting += 1
        self._count(lease, 1)

    def leave(self, lease: Lease) -> None:
        """Forget a request; its state is no longer ``queued``."""
        line = self._lines[lease.line]
        line.remove(lease)
        line.waiting -= 1
        if not line.waiting:
            self._rest(lease.line)
        self._count(lease, -1)
        if lease in self._blocked.get(lease.payer, ()):
            self._blocked[lease.payer].remove(lease)

    def _count(self, lease: Lease, step: int) -> None:
        self.size += step
        payer = lease.payer
        self._waiting[payer] += step
        standing = (-CLASSES.index(lease.class_), lease.priority)
        self._standing[payer][standing] += step
        if not self._standing[payer][standing]:
            del self._standing[payer][standing]
        if not self._waiting[payer]:
            del self._waiting[payer]
            del self._standing[payer]

    def waiting_of(self, user: str) -> int:
        return self._waiting[user]

    def block(self, lease: Lease) -> None:
        """Set the head of a line aside, until its user has one lease less."""
        self._lines[lease.line].remove(lease)
        self._blocked[lease.payer].append(lease)

    def unblock(self, user: str) -> list[Lease]:
        """Put back into line what waited for one of its user's leases to end; return it."""
        back = list(self._blocked.pop(user, ()))
        for lease in back:
            self._lines[lease.line].insert(lease)
        return back

    def position(self, lease: Lease) -> int:
        """Return the place in line, from 1 on, among the requests with the same constraint."""
        return self._lines[lease.line].position(lease)

    def is_blocked(self, lease: Lease) -> bool:
        """Return whether only its user's own leases keep a request waiting."""
        return lease in self._blocked.get(lease.payer, ())

    def sizes(self) -> dict[str, int]:
        """Return how many wait for each constraint."""
        sizes: Counter[str] = Counter()
        for line in self._lines.values():
            sizes[line.constraint.text] += line.waiting
        return {text: size for text, size in sizes.items() if size}

    # ---- Lines and places ----

    def line(self, lease: Lease, places: Mapping[str, Place]) -> Line:
        """Return the line for a request.

        Raises:
            ValueError: its constraint cannot be read.
        """
        line = self._lines.get(lease.line)
        if line is None:
            line = self._lines[lease.line] = Line(lease)
            for place in places.values():
                self._try_line(place, lease.line, line)
            self._rest(lease.line)
        return line

    def unmet(self, line: Line, places: Collection[Place]) -> list[Clause] | None:
        """Return the clauses of a line that none of these places meets; None where it allows none of them.

        There may be none, also where looking would take long: no one else is to wait for that.
        """
        if line.unmet[0] != self._changes:
            known = [place.facts for place in places if line.allows(place)]
            few = len(known) * len(line.constraint.clauses) <= _MOST_LOOKS
            line.unmet = self._changes, (line.constraint.unmet(known) if few else []) if known else None
        return line.unmet[1]

    def _rest(self, name: Name) -> None:
        """Keep an empty line; where those are many, the one goes that has been so for longest."""
        self._idle[name] = None
        if len(self._idle) > _KEPT_LINES:
            name = next(iter(self._idle))
            del self._idle[name]
            for place in self._lines.pop(name).places:
                self._of_place[place].discard(name)

    def _try_line(self, place: Place, name: Name, line: Line) -> None:
        if line.allows(place) and line.constraint.holds(*place.facts):
            line.places.add(place.id)
            self._of_place.setdefault(place.id, set()).add(name)

    def add_place(self, place: Place) -> None:
        """Take note of a place, or of its new keys and tags."""
        self.remove_place(place)
        for name, line in self._lines.items():
            self._try_line(place, name, line)

    def remove_place(self, place: Place) -> None:
        self._changes += 1
        for name in self._of_place.pop(place.id, ()):
            self._lines[name].places.discard(place.id)

    def heads(self, place: Place) -> Iterator[Lease]:
        """Yield the first request of each line that the place matches."""
        for name in self._of_place.get(place.id, ()):
            head = self._lines[name].head()
            if head is not None:
                yield head


def settle_priority(value: float) -> float:
    """Return a priority within the limits, in steps of a tenth; 0 for what is not a number."""
    if value != value:
        return 0.0
    return round(max(-MOST_PRIORITY, min(MOST_PRIORITY, float(value))), 1)
