# SPDX-License-Identifier: Apache-2.0
"""Reading what a store has kept. What is damaged there is set aside, and is no reason for a farm not to start."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from portcall.farm._model import Event, Lease, Place, fits, read_fields

R = TypeVar("R")
Read = Callable[[str, Any], R]  # of a name and a value of JSON; raises ValueError


def damage(table: str, name: str, why: str) -> str:
    """Return what is said of a record that was set aside."""
    return f"a record of the {table} cannot be read and was set aside: {name!r}: {why}"


def read_rows(rows: Iterable[tuple[str, Any]], read: Read[R]) -> tuple[dict[str, R], list[tuple[str, Any, str]]]:
    """Return what the rows have, by name; and the name, text and fault of each that cannot be read."""
    found, damaged = {}, []
    for name, text in rows:
        try:
            found[name] = read(name, json.loads(text))
        except (ValueError, TypeError, RecursionError) as error:
            damaged.append((name, text, str(error)))
    return found, damaged


def read_place(name: str, values: Any) -> Place:
    """Return a stored place. Raises: ValueError."""
    place = Place.from_dict(values)
    if place.id != name or not place.keys:
        raise ValueError("it has no key" if place.id == name else f"its id is {place.id!r}")
    return place


def read_lease(name: str, values: Any) -> Lease:
    """Return a stored lease. Raises: ValueError."""
    lease = Lease.from_dict(values)
    if lease.id != name:
        raise ValueError(f"its id is {lease.id!r}")
    if not lease.check:
        _ = lease.constraint  # raises where it cannot be read
    return lease


def read_event(number: str, values: Any) -> dict[str, Any]:
    """Return a line of the history. Raises: ValueError."""
    return {"number": int(number), **vars(Event(**read_fields(Event, values)))}


def read_fact(text: Any, default: Any) -> Any:
    """Return a fact; the default where there is none, or it cannot be read or is of another type."""
    try:
        value = default if text is None else json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return default
    return value if fits(value, float if isinstance(default, int) else type(default)) else default
