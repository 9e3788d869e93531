# SPDX-License-Identifier: Apache-2.0
"""The one door of a farm for texts and numbers from outside: what passes can be stored, shown and sent on. No I/O here.

A text has no control characters, and no halves of surrogate pairs, which JSON can write and UTF-8 cannot.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_USUAL = 200  # characters
_MOST = {"want": 1000, "why": 1000, "job": 1000, "secret": 1000, "host": 255, "tag": 500}
_UNFIT = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_LEASE = re.compile("[0-9a-f]{16}")
_MOST_INTEGER = 1 << 63
_MOST_DEPTH = 32
_MOST_FACTS = 8192  # characters of the keys and tags of a place
_MOST_TAGS = 100


def check_text(value: Any, name: str, *, least: int = 1, most: int = 0) -> str:
    """Return a text that is fit to be kept; its longest length goes by its name.

    Raises:
        ValueError: it is none, or names a place by what browsers take for a folder; the message names it.
    """
    most = most or _MOST.get(name, _USUAL)
    if not isinstance(value, str) or not least <= len(value) <= most:
        raise ValueError(f"the field {name!r} must be a text of {least}-{most} characters")
    found = _UNFIT.search(value)
    if found:
        raise ValueError(f"the field {name!r} has the character {found[0]!a}: leave control characters out")
    if name == "place" and value in (".", ".."):
        raise ValueError(f"invalid name {value!r} of a place: no page can be called so")
    return value


def readable(value: Any, name: str) -> str:
    """Return what a program said, which may have any characters, as a text that is fit to be kept.

    Raises:
        ValueError: it is no text.
    """
    if not isinstance(value, str):
        raise ValueError(f"the field {name!r} must be a text")
    return _UNFIT.sub(" ", value[: _MOST.get(name, _USUAL)])


def check_number(value: Any, name: str, low: float, high: float) -> float:
    """Return a number within limits.

    Raises:
        ValueError: it is none, or beyond them.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        named = name.replace("_", "-")  # as the options of the command are
        raise ValueError(f"invalid {named} {str(value)[:40]} (must be {low:g}-{high:,.15g})")
    return value


def check_value(value: Any, name: str) -> None:
    """Check a value of JSON, with all that is in it.

    Raises:
        ValueError: it has a text or a number that cannot be kept, or is too deep to be a part of another value.
    """
    left = [(value, 0)]
    while left:
        item, depth = left.pop()
        if depth > _MOST_DEPTH:
            raise ValueError(f"the field {name!r} has more than {_MOST_DEPTH} values in each other")
        if isinstance(item, dict):
            left += [(inner, depth + 1) for inner in (*item, *item.values())]
        elif isinstance(item, (list, tuple)):
            left += [(inner, depth + 1) for inner in item]
        elif isinstance(item, str):
            check_text(item, name, least=0, most=len(item) or 1)
        elif isinstance(item, (int, float)) and not -_MOST_INTEGER < item < _MOST_INTEGER:
            raise ValueError(f"the field {name!r} has the number {str(item)[:40]} (must be within -2^63 and 2^63)")


def check_facts(keys: Sequence[str], tags: Any) -> None:
    """Check the tags of a place, and that they and its keys are no more than each picture of the farm may have.

    Raises:
        ValueError: they cannot be kept; the message names what is wrong.
    """
    if not isinstance(tags, dict) or len(tags) > _MOST_TAGS:
        raise ValueError(f"the tags of a place must be an object of at most {_MOST_TAGS} values")
    size = sum(map(len, keys))
    for name, value in tags.items():
        check_text(name, "tag")
        if not isinstance(value, (str, int, float, bool)):
            raise ValueError(f"invalid tag {name[:40]!r} (must be a text, a number, true or false)")
        check_value(value, f"tag {name[:40]}")
        length = len(str(value)) + len(name)
        if length > _MOST["tag"]:
            raise ValueError(f"the tag {name[:40]!r} is too long (at most {_MOST['tag']} characters)")
        size += length
    if size > _MOST_FACTS:
        raise ValueError(f"the keys and tags of a place have {size} characters (at most {_MOST_FACTS})")


def is_lease(id: str) -> bool:
    """Return whether a text has the form of a lease's id."""
    return _LEASE.fullmatch(id) is not None
