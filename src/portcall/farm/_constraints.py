# SPDX-License-Identifier: Apache-2.0
"""Constraints over the keys and tags of places: ``rasp4 & ram>=4GiB & arch=arm64 & !flaky``.

Clauses are joined by ``&`` (``?`` reads the same, so that ``rasp4?ram>=4GiB`` works where only a key is expected):

    name            the place has this key, or a tag of this name that is neither false nor empty; of a place whose
                    agent may serve certain keys only, one of the names must be a key
    !name           it has not
    name=value      also != < <= > >=; sizes have units (4GiB); only numbers have an order

A name with other characters than letters, digits and ``_.:@/+-`` stands in double quotes.
"""

from __future__ import annotations

import functools
import math
import operator
import re
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from portcall.bench import parse_size

Tag = str | int | float | bool

_WORD = r'"[^"]*"|[\w.:@/+-]+'
_CLAUSE = re.compile(rf"\s*(!?)\s*({_WORD})\s*(?:(!=|<=|>=|=|<|>)\s*({_WORD}))?\s*")
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MOST_CHARACTERS, _MOST_CLAUSES = 1000, 64


@dataclass(frozen=True)
class Clause:
    """One condition; ``compare`` is empty where only the presence of ``name`` counts."""

    name: str
    compare: str = ""
    value: str = ""
    negated: bool = False

    @functools.cached_property
    def number(self) -> float:
        """What the value is as a number."""
        return _number(self.value)

    def __str__(self) -> str:
        return f"{'!' if self.negated else ''}{self.name}{self.compare}{self.value}"

    def holds(self, keys: tuple[str, ...], tags: Mapping[str, Tag]) -> bool:
        """Return whether a place with these keys and tags meets this clause."""
        if self.compare:
            return (self.name in tags and _compare(tags[self.name], self)) is not self.negated
        return (self.name in keys or bool(tags.get(self.name, False))) is not self.negated


@dataclass(frozen=True)
class Constraint:
    """What a request asks for: clauses that all must hold. ``text`` is as it was written."""

    text: str
    clauses: tuple[Clause, ...]

    @functools.cached_property
    def _names(self) -> list[Clause]:
        """The clauses that are names which the place must have."""
        return [clause for clause in self.clauses if not clause.compare and not clause.negated]

    def holds(self, keys: tuple[str, ...], tags: Mapping[str, Tag], limited: bool = False) -> bool:
        """Return whether a place with these keys and tags matches.

        Parameters:
            limited: its agent may serve certain keys only, and must not get requests for others by its tags.
        """
        return all(clause.holds(keys, tags) for clause in self.clauses) and not self._by_tags(keys, limited)

    def missing(self, keys: tuple[str, ...], tags: Mapping[str, Tag], limited: bool = False) -> list[Clause]:
        """Return the clauses that such a place does not meet."""
        lacking = [clause for clause in self.clauses if not clause.holds(keys, tags)]
        return lacking or (self._names if self._by_tags(keys, limited) else [])

    def _by_tags(self, keys: tuple[str, ...], limited: bool) -> bool:
        """Whether such a place meets names by its tags alone that it must not."""
        return limited and bool(self._names) and not any(clause.name in keys for clause in self._names)

    def unmet(self, places: Iterable[tuple[tuple[str, ...], Mapping[str, Tag], bool]]) -> list[Clause]:
        """Return the clauses that none of these places meets, each of which is keys, tags and whether it is limited."""
        left = list(self.clauses)
        for facts in places:
            lacking = self.missing(*facts)
            left = [clause for clause in left if clause in lacking]
            if not left:
                break
        return left


_used: weakref.WeakValueDictionary[tuple[bool, str], Constraint] = weakref.WeakValueDictionary()


def constraint_of(want: str, key_only: bool) -> Constraint:
    """Return what a request asks for: one constraint for all that ask for the same. Raises: ValueError."""
    found = _used.get((key_only, want))
    if found is None:
        found = _used[key_only, want] = key_constraint(want) if key_only else parse_constraint(want)
    return found


def parse_constraint(text: str) -> Constraint:
    """Read a constraint.

    Raises:
        ValueError: the text is empty, too long, or has a clause of another form; the message shows where.
    """
    if len(text) > _MOST_CHARACTERS:
        raise ValueError(f"the constraint has {len(text)} characters (at most {_MOST_CHARACTERS})")
    clauses = []
    position = 0
    while True:
        found = _CLAUSE.match(text, position)
        if found is None or (found.end() < len(text) and text[found.end()] not in "&?"):
            rest = text[position if found is None else found.end() :].strip() or "its end"
            raise ValueError(
                f"cannot read the constraint {text!r} at {rest!r}: write it as 'rasp4 & ram>=4GiB & !flaky'"
            )
        negated, name, compare, value = found.groups()
        if value and math.isinf(_number(value)):
            raise ValueError(f"the constraint {text!r} has a number that is too large: {value[:40]!r}")
        clauses.append(Clause(name.strip('"'), compare or "", (value or "").strip('"'), bool(negated)))
        position = found.end() + 1
        if len(clauses) > _MOST_CLAUSES:
            raise ValueError(f"the constraint {text[:40]!r}… has more than {_MOST_CLAUSES} clauses")
        if found.end() >= len(text):
            return Constraint(text, tuple(clauses))


def key_constraint(key: str) -> Constraint:
    """Return the constraint of a TVM client's key: any text is a key; what follows a ``?`` are further clauses.

    Raises:
        ValueError: the part after the ``?`` cannot be read.
    """
    name, mark, rest = key.partition("?")
    clauses = (Clause(name),)
    return Constraint(key, clauses + parse_constraint(rest).clauses if mark else clauses)


def _number(value: Tag) -> float:
    """Return the number of a value, infinite where no float can hold it; NaN for what is none, such as the word inf."""
    for read in (float, parse_size):
        try:
            number = float(read(value))  # type: ignore[arg-type]
        except OverflowError:
            return math.inf
        except ValueError:
            continue
        return number if math.isfinite(number) or re.search(r"\d", str(value)) else math.nan
    return math.nan


@functools.lru_cache(1000)
def _number_of_tag(text: str) -> float:
    return _number(text)


def _compare(tag: Tag, clause: Clause) -> bool:
    compare, value = clause.compare, clause.value
    if isinstance(tag, bool):
        return _COMPARE[compare](str(tag).lower(), value.lower()) if compare in ("=", "!=") else False
    left, right = _number_of_tag(tag) if isinstance(tag, str) else _number(tag), clause.number
    if math.isfinite(left) and math.isfinite(right):
        return _COMPARE[compare](left, right)
    return _COMPARE[compare](str(tag), value) if compare in ("=", "!=") else False
