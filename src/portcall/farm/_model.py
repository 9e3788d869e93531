# SPDX-License-Identifier: Apache-2.0
"""The records of a farm: places, leases, events, and the rules that the state machine follows. No I/O here."""

from __future__ import annotations

import functools
import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeVar, get_args, get_origin, get_type_hints

from portcall.farm._constraints import Constraint, Tag, constraint_of

PlaceState = Literal["offline", "idle", "offered", "leased", "cleaning"]
Health = Literal["good", "unknown", "suspect", "quarantined", "bad", "maintenance", "retired"]
LeaseState = Literal["queued", "offered", "active", "ended"]
Class = Literal["urgent", "normal", "batch"]
Peer = Literal["portcall", "TVM"]

USABLE: tuple[Health, ...] = ("good", "unknown", "suspect")
CLASSES: tuple[Class, ...] = ("urgent", "normal", "batch")
MOST_PRIORITY = 10.0  # and the same below zero
_MOST = 1e300  # beyond it, sums are no numbers any more
_HALVES = re.compile("[\ud800-\udfff]")  # halves of surrogate pairs are no text

Record = TypeVar("Record", bound="Stored")


class Stored:
    """A record that goes through JSON."""

    TIMES: ClassVar[tuple[str, ...]]  # the fields that are moments; 0 is none
    TABLE: ClassVar[str]
    id: str

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are to be kept, all of them values of JSON."""
        record: Any = type(self)
        names, values = _kept(record)
        return dict(zip(names, values(self), strict=True))

    def go_back(self, text: str) -> None:
        """Be again what ``encode`` returned; what is not kept stays."""
        read = json.loads(text)
        vars(self).update({name: tuple(v) if name == "keys" else v for name, v in read.items()})

    def encode(self) -> str:
        """Return the record as text.

        Raises:
            ValueError: it cannot be stored.
        """
        try:
            self.id.encode()
            return json.dumps(self.to_dict())
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"cannot store {type(self).__name__} {self.id!r}: {error}") from None

    @classmethod
    def from_dict(cls: type[Record], values: Any) -> Record:
        """Make a record of what ``to_dict`` returned; fields of other versions are left out.

        Raises:
            ValueError: a field is missing, or has another type than it is declared with.
        """
        return cls(**read_fields(cls, values))

    def move_times(self, seconds: float) -> None:
        """Let all moments of the record be so much later."""
        for name in self.TIMES:
            value = getattr(self, name)
            if isinstance(value, dict):
                value = {key: moment + seconds for key, moment in value.items()}
            elif isinstance(value, list):
                value = [moment + seconds for moment in value]
            elif value:
                value += seconds
            setattr(self, name, value)


@functools.cache
def _kept(record: Any) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    """Return the names of the fields that are kept, and what gets their values."""
    names = tuple(f.name for f in fields(record) if f.metadata.get("kept", True))
    return names, operator.attrgetter(*names)


@functools.cache
def _declared(record: Any) -> dict[str, tuple[Any, bool]]:
    """Return the type of each field of a record, and whether it must be there."""
    hints = get_type_hints(record)
    needed = {f.name: f.default is MISSING and f.default_factory is MISSING for f in fields(record)}
    return {name: (hints[name], must) for name, must in needed.items()}


def read_fields(record: Any, values: Any) -> dict[str, Any]:
    """Return the fields of a record, out of a value of JSON; those of other versions are left out.

    Raises:
        ValueError: one is missing, or has another type than it is declared with.
    """
    if not isinstance(values, Mapping):
        raise ValueError("it is not an object")
    read = {}
    for name, (kind, must) in _declared(record).items():
        if name in values:
            if not fits(values[name], kind):
                raise ValueError(f"its {name} has another type or no possible value")
            read[name] = tuple(values[name]) if get_origin(kind) is tuple else values[name]
        elif must:
            raise ValueError(f"it has no {name}")
    return read


def fits(value: Any, kind: Any) -> bool:
    """Return whether a value of JSON is one of a declared type; numbers are finite, and texts can be sent."""
    if kind is str:
        return isinstance(value, str) and (value.isascii() or not _HALVES.search(value))
    if kind is int or kind is float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return number and abs(value) < _MOST and (kind is float or isinstance(value, int))
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return value in args
    if origin in (list, tuple):
        return isinstance(value, (list, tuple)) and all(fits(v, args[0]) for v in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(k, args[0]) and fits(v, args[1]) for k, v in value.items())
    return any(fits(value, one) for one in args) if args else isinstance(value, kind)


@dataclass(eq=False)
class Place(Stored):
    """One device that can be leased.

    Attributes:
        id: the same over restarts; TVM's servers get a new one with each connection.
        peer: who serves it.
        keys: the names that it is asked for by.
        tags: facts and labels.
        limited: the token of its agent is for certain keys.
        host, port: where clients connect directly; port 0: only through the farm.
        match_key: of a TVM server, what its next client must present; empty when that is used up.
        state, since, cause: what it does, since when, and why.
        health, health_since, health_reason, health_until: whether it may be used; until 0: until somebody says so.
        fence: grows with each lease; sessions of an older one are ended.
        lease: id of the lease that has it; empty for none.
        drain: no further leases after this one.
        failures: when it failed lately.
        patience: seconds beyond the rules that its hooks may take.
        checked: when it last passed a check; ``usual`` the seconds that each job of one took, of the
            last checks that it passed (a number in stores of earlier versions).
        cycles, cycled: how often its power was cycled since it last worked, and when.
        owner: the user whose token serves it; empty where none was asked for.
        quiet: its agent says that no session of leases up to this fence is left.
        cleaned: its agent says that nothing of leases up to this fence is left.
        not_before: when what is due is tried again, after it has failed.
    """

    TABLE = "places"
    TIMES = ("since", "health_since", "health_until", "failures", "checked", "cycled")

    id: str
    peer: Peer = "portcall"
    keys: tuple[str, ...] = ()
    tags: dict[str, Tag] = field(default_factory=dict)
    limited: bool = False
    host: str = ""
    port: int = 0
    match_key: str = ""
    state: PlaceState = "offline"
    since: float = 0
    cause: str = ""
    health: Health = "unknown"
    health_since: float = 0
    health_reason: str = ""
    health_until: float = 0
    fence: int = 0
    lease: str = ""
    drain: bool = False
    failures: list[float] = field(default_factory=list)
    patience: float = 0
    checked: float = 0
    usual: dict[str, list[float] | float] = field(default_factory=dict)
    cycles: int = 0
    cycled: float = 0
    owner: str = ""
    cleaned: int = 0
    quiet: int = field(default=0, metadata={"kept": False})
    armed: float = field(default=0, metadata={"kept": False})
    not_before: float = field(default=0, metadata={"kept": False})

    def ends_sessions_of(self, fence: int) -> bool:
        """Return whether its agent has not said yet that the sessions of the lease with this fence are over."""
        return self.peer == "portcall" and self.state == "cleaning" and self.quiet < fence == self.fence

    @property
    def facts(self) -> tuple[tuple[str, ...], dict[str, Tag], bool]:
        """What requests are held against."""
        return self.keys, self.tags, self.limited

    @property
    def free(self) -> bool:
        """Whether it may be offered now."""
        return self.state == "idle" and self.health in USABLE and not self.drain


@dataclass(eq=False)
class Lease(Stored):
    """The right to use a place, from the request to the end.

    Attributes:
        secret_hash: SHA-256 of what its holder shows; empty for TVM's clients.
        account: whom its use and its waiting are counted for; empty where that is the user.
        want: the constraint, as it was written; ``key_only`` says that it is a TVM client's key.
        keys: the place must have one of them, for which its token is; empty: any place.
        rank: the moment at which it counts as having come; the smallest is served first.
        ttl: seconds without a heartbeat until it ends.
        ceiling: seconds that it may last in all; 0 for any time.
        wait_until: when it leaves the queue; 0 for never.
        expires: when it ends without a further heartbeat; ``ends_at`` whatever happens, 0 for never.
        most: how many leases its user may have at once; 0 for any number.
        sessions: when each open session began, by its id.
        relay: its holder is at the proxy, where the place meets it.
        check: it is a check, which also places out of use take.
        claimed: its holder was heard since it became active.
        reason, by, detail: of the end.
    """

    TABLE = "leases"
    TIMES = ("rank", "wait_until", "created", "since", "expires", "ends_at", "sessions")

    id: str
    user: str
    want: str
    peer: Peer = "portcall"
    key_only: bool = False
    secret_hash: str = ""
    priority: float = 0
    class_: Class = "normal"
    rank: float = 0
    number: int = 0
    ttl: float = 60
    ceiling: float = 0
    wait_until: float = 0
    most: int = 0
    state: LeaseState = "queued"
    created: float = 0
    since: float = 0
    place: str = ""
    fence: int = 0
    match_key: str = ""
    expires: float = 0
    ends_at: float = 0
    sessions: dict[str, float] = field(default_factory=dict)
    check: bool = False
    relay: bool = False
    claimed: bool = field(default=False, metadata={"kept": False})
    reason: str = ""
    by: str = ""
    detail: str = ""
    account: str = ""
    keys: tuple[str, ...] = ()
    armed: float = field(default=0, metadata={"kept": False})
    not_before: float = field(default=0, metadata={"kept": False})

    @functools.cached_property
    def constraint(self) -> Constraint:
        """What it asks for. Raises: ValueError: that cannot be read."""
        return constraint_of(self.want, self.key_only)

    @property
    def line(self) -> tuple[bool, str, tuple[str, ...]]:
        """Who has the same waits in the same line."""
        return self.key_only, self.want, self.keys

    @property
    def payer(self) -> str:
        """The name under which the queue counts it."""
        return self.account or self.user

    @property
    def unclaimed(self) -> bool:
        """Whether it is active, but its holder does not know yet. TVM's clients give no sign of life."""
        return self.state == "active" and self.peer == "portcall" and not self.claimed


Rows = dict[tuple[str, str], str | None]


def rows_of(changed: Iterable[Place | Lease], forgotten: Iterable[str]) -> Rows:
    """Return what is to be stored: texts by table and id, None for what is to be removed.

    Raises:
        ValueError: a record cannot be stored.
    """
    rows: Rows = {(Place.TABLE, id): None for id in forgotten}
    for record in changed:
        over = isinstance(record, Lease) and record.state == "ended"
        rows[record.TABLE, record.id] = None if over else record.encode()
    return rows


@dataclass(frozen=True)
class Event:
    """A line of the history."""

    time: float
    what: str
    place: str = ""
    lease: str = ""
    user: str = ""
    detail: str = ""


@dataclass(frozen=True)
class Effect:
    """What is to be said to a peer.

    Attributes:
        what: to the agent of a place ``offer`` (take this lease), ``admit`` (one more session of it) and ``end`` (end
            the sessions of this fence and older ones, clean up); to the farm ``cycle`` (cycle its power); to the holder
            of a lease ``granted``, ``requeued`` and ``ended``.
        key: of ``admit``, the match key.
        fence: of ``end``.
    """

    what: Literal["offer", "admit", "end", "cycle", "granted", "requeued", "ended"]
    place: Place | None = None
    lease: Lease | None = None
    key: str = ""
    fence: int = 0


@dataclass(frozen=True)
class Rules:
    """What the state machine goes by; durations are seconds.

    Attributes:
        claim: for a holder to show a first sign of life after the grant.
        offer: for an agent to answer an offer.
        clean: for an agent to clean up.
        lost_agent: for an agent to come back during a lease.
        priority: how much waiting one step of priority is worth.
        class_: how much waiting a class is worth.
        charge: how much later each further waiting request of a user counts.
        half_life: after which half of what a user has used is forgotten.
        failures, failure_window: so many failures in that time quarantine a place.
        quarantine: for how long.
        most_waiting: requests in the queue; and of one user.
        tvm_ceiling: how long a session of a TVM client may last; 0 for any time.
        cycles: how often the power of a place that is away is cycled at most; 0 for never.
        cycle_after: how long it must be away before, each time.
        keep_offline: how long an absent place is remembered.
    """

    claim: float = 10
    offer: float = 5
    clean: float = 30
    lost_agent: float = 30
    priority: float = 60
    class_: float = 3600
    charge: float = 10
    half_life: float = 3600
    failures: int = 3
    failure_window: float = 600
    quarantine: float = 600
    most_waiting: int = 100_000
    most_waiting_of_user: int = 10_000
    tvm_ceiling: float = 0
    cycles: int = 0
    cycle_after: float = 120
    keep_offline: float = 30 * 86400


class Refused(Exception):
    """A request that cannot be fulfilled.

    Attributes:
        reason: ``no-match``, ``quota``, ``full``, ``draining``, ``busy`` or ``invalid``.
    """

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text)
        self.reason = reason
