# SPDX-License-Identifier: Apache-2.0
"""Constraints over the keys and tags of places: ``rasp4 & ram>=4GiB & arch=arm64 & !flaky``.

Clauses are joined by ``&`` (``?`` reads the same, so that ``rasp4?ram>=4GiB`` works where only a key is expected):

    name            the place has this key, or a tag of this name that is neither false nor empty
    !name           it has not
    name=value      also != < <= > >=; sizes have units (4GiB); only numbers have an order

A name with other characters than letters, digits and ``_.:@/+-`` stands in double quotes.
"""

from __future__ import annotations

import math
import operator
import re
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
MOST_CHARACTERS = 1000


@dataclass(frozen=True)
class Clause:
    """One condition; ``compare`` is empty where only the presence of ``name`` counts."""

    name: str
    compare: str = ""
    value: str = ""
    negated: bool = False

    def __str__(self) -> str:
        return f"{'!' if self.negated else ''}{self.name}{self.compare}{self.value}"

    def holds(self, keys: tuple[str, ...], tags: Mapping[str, Tag]) -> bool:
        """Return whether a place with these keys and tags meets this clause."""
        if self.compare:
            return (self.name in tags and _compare(tags[self.name], self.compare, self.value)) is not self.negated
        return (self.name in keys or bool(tags.get(self.name, False))) is not self.negated


@dataclass(frozen=True)
class Constraint:
    """What a request asks for: clauses that all must hold. ``text`` is as it was written."""

    text: str
    clauses: tuple[Clause, ...]

    def holds(self, keys: tuple[str, ...], tags: Mapping[str, Tag]) -> bool:
        """Return whether a place with these keys and tags matches."""
        return all(clause.holds(keys, tags) for clause in self.clauses)

    def missing(self, keys: tuple[str, ...], tags: Mapping[str, Tag]) -> list[Clause]:
        """Return the clauses that such a place does not meet."""
        return [clause for clause in self.clauses if not clause.holds(keys, tags)]

    def unmet(self, places: Iterable[tuple[tuple[str, ...], Mapping[str, Tag]]]) -> list[Clause]:
        """Return the clauses that none of these places meets, each of which is keys and tags."""
        left = list(self.clauses)
        for keys, tags in places:
            left = [clause for clause in left if not clause.holds(keys, tags)]
            if not left:
                break
        return left


def parse_constraint(text: str) -> Constraint:
    """Read a constraint.

    Raises:
        ValueError: the text is empty, too long, or has a clause of another form; the message shows where.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"the constraint has {len(text)} characters (at most {MOST_CHARACTERS})")
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
        if value and _is_too_large(value):
            raise ValueError(f"the constraint {text!r} has a number that is too large: {value[:40]!r}")
        clauses.append(Clause(name.strip('"'), compare or "", (value or "").strip('"'), bool(negated)))
        position = found.end() + 1
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


def _is_too_large(text: str) -> bool:
    """Return whether a text is a number that no float can hold; ``inf`` is a word."""
    try:
        return text[-1:].isdigit() and math.isinf(float(text))
    except ValueError:
        pass
    try:
        return math.isinf(float(parse_size(text)))
    except OverflowError:
        return True
    except ValueError:
        return False


def _number(value: Tag) -> float | None:
    """Return a finite number; None for any other value."""
    try:
        number = float(value)
    except OverflowError:
        return None
    except ValueError:
        try:
            number = float(parse_size(str(value)))
        except (ValueError, OverflowError):
            return None
    return number if math.isfinite(number) else None


def _compare(tag: Tag, compare: str, value: str) -> bool:
    if isinstance(tag, bool):
        return _COMPARE[compare](str(tag).lower(), value.lower()) if compare in ("=", "!=") else False
    left, right = _number(tag), _number(value)
    if left is not None and right is not None:
        return _COMPARE[compare](left, right)
    return _COMPARE[compare](str(tag), value) if compare in ("=", "!=") else False
