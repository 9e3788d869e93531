# SPDX-License-Identifier: Apache-2.0
"""What a farm orders the agent of a place to do, and what the agent reports: the only list of both. No I/O here.

Each is a JSON object. Its name in ``facts/farm.json`` is ``do`` in an order and ``what`` in a report; the other
fields have the names of the attributes. Fields that the list does not have are skipped, so that farms and agents of
several versions work together. ``core/board/farm`` has an agent as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, TypeVar

from portcall.rpc.wire import _facts
from portcall.rpc.wire._texts import check_number, check_text, readable

_MAX_FENCE = (1 << 53) - 1  # numbers of JSON are exact up to it
_MOST_USER = 1000  # characters: those of TVM have long names, and an address

_M = TypeVar("_M", bound="Order | Report")


class FarmMessageError(ValueError):
    """A value that is no order, or no report.

    Attributes:
        name: which one it would be; empty where it names none.
        fence: the one that it names; None where it names none.
    """

    def __init__(self, text: str, name: str = "", fence: int | None = None) -> None:
        super().__init__(text)
        self.name = name
        self.fence = fence


# ---- Orders ----


@dataclass(frozen=True)
class Order:
    """The base of all orders.

    Attributes:
        fence: of the lease: each lease of a place has a higher one than those before it.
        lease, user: the lease's id and who has it, for the place's own commands.
    """

    fence: int
    lease: str = field(default="", kw_only=True)
    user: str = field(default="", kw_only=True)


@dataclass(frozen=True)
class ClientOrder(Order):
    """Let one client in.

    Attributes:
        key: what the client presents.
        limit: seconds that the session may last; 0 for any time.
        relay: the client comes through the farm.
    """

    key: str
    limit: float = 0
    relay: bool = False


@dataclass(frozen=True)
class Offer(ClientOrder):
    """Let the first client of a new lease in. The answer is Accepted or Declined."""


@dataclass(frozen=True)
class Admit(ClientOrder):
    """Let one more client of a lease in. The answer is Admitted."""


@dataclass(frozen=True)
class End(Order):
    """End the sessions of this lease and those before it. The answers are Ended and Cleaned."""

    why: str = ""


# ---- Reports ----


@dataclass(frozen=True)
class Report:
    """The base of all reports."""

    fence: int


@dataclass(frozen=True)
class Accepted(Report):
    """The client of an offer may come in with this key."""

    key: str = ""


@dataclass(frozen=True)
class Declined(Report):
    """An offer cannot be carried out."""

    why: str = ""


@dataclass(frozen=True)
class Admitted(Report):
    """One more client may come in with this key."""

    key: str


@dataclass(frozen=True)
class Opened(Report):
    """A session of a lease began; ``session`` is its number."""

    session: str


@dataclass(frozen=True)
class Closed(Report):
    """A session of a lease ended."""

    session: str
    why: str = ""


@dataclass(frozen=True)
class Ended(Report):
    """No session of a lease is left; the place is being cleaned."""


@dataclass(frozen=True)
class Cleaned(Report):
    """Nothing of a lease is left. ``why`` says why the place is not fit for another one; it is empty where it is."""

    why: str = ""


ORDERS: dict[str, type[Order]] = dict(zip(_facts.ORDERS, (Offer, Admit, End), strict=True))
REPORTS: dict[str, type[Report]] = dict(
    zip(_facts.REPORTS, (Accepted, Declined, Admitted, Opened, Closed, Ended, Cleaned), strict=True)
)
NAMES: dict[type[Order | Report], str] = {cls: name for name, cls in (ORDERS | REPORTS).items()}


def write(message: Order | Report) -> dict[str, Any]:
    """Return an order or a report as the object of JSON that it is."""
    name = {"do" if isinstance(message, Order) else "what": NAMES[type(message)]}
    return name | {each.name: getattr(message, each.name) for each in fields(message)}


def read_order(said: object) -> Order:
    """Read an order.

    Raises:
        FarmMessageError: it cannot be carried out; the message names what is wrong.
    """
    return _read(said, "order", "do", ORDERS)


def read_report(said: object) -> Report:
    """Read a report.

    Raises:
        FarmMessageError: it is none; the message names what is wrong.
    """
    return _read(said, "report", "what", REPORTS)


def _read(said: object, noun: str, name_field: str, known: Mapping[str, type[_M]]) -> _M:
    if not isinstance(said, dict):
        raise FarmMessageError(f"the {noun} must be an object")
    name = said.get(name_field)
    cls = known.get(name) if isinstance(name, str) else None
    if cls is None:
        named = ascii(name)[:40] if isinstance(name, str) else "without a name"
        raise FarmMessageError(f"there is no {noun} {named} (known are {', '.join(known)})")
    values: dict[str, Any] = {}
    try:
        for each in fields(cls):
            if each.name in said:
                values[each.name] = _CHECKS[each.name](said[each.name])
            elif each.default is MISSING:
                raise ValueError(f"the field {each.name!r} is missing")
    except ValueError as error:
        raise FarmMessageError(f"wrong {noun} {name!r}: {error}", str(name), values.get("fence")) from None
    return cls(**values)


def _fence(value: Any) -> int:
    if type(value) is not int:
        raise ValueError("the field 'fence' must be an integer")
    return int(check_number(value, "fence", 0, _MAX_FENCE))


def _key(value: Any) -> str:
    text = check_text(value, "key", most=_facts.MAX_CLIENT_KEY)
    if text != "".join(text.split()) or len(text.encode()) > _facts.MAX_CLIENT_KEY:
        raise ValueError(f"the field 'key' must have no whitespace and at most {_facts.MAX_CLIENT_KEY} bytes")
    return text


def _relay(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("the field 'relay' must be true or false")
    return value


_CHECKS: dict[str, Callable[[Any], Any]] = {
    "fence": _fence,  # the first field of each, so that it is known where another one is wrong
    "key": _key,
    "lease": lambda value: check_text(value, "lease", least=0),
    "user": lambda value: check_text(value, "user", least=0, most=_MOST_USER),
    "limit": lambda value: float(check_number(value, "limit", 0, _facts.MOST_SECONDS)),
    "relay": _relay,
    "session": lambda value: check_text(value, "session"),
    "why": lambda value: readable(value, "why"),
}
