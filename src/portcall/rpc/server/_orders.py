# SPDX-License-Identifier: Apache-2.0
"""What a farm tells an agent to do, read from JSON. No I/O here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

_MOST_TEXT = 1000  # characters
_MOST_KEY = 399  # bytes, as the server without Python
_MOST_FENCE = 1 << 53


@dataclass(frozen=True)
class Order:
    """One order.

    Attributes:
        do: ``offer``, ``admit`` or ``end``.
        fence: of the lease; ``end`` means it and those before it.
        key: what its client presents.
        lease, user: its id and who has it.
        limit: seconds that its session may last; 0 for any time.
        relay: its client comes through the farm.
    """

    do: str
    fence: int
    key: str = ""
    lease: str = ""
    user: str = ""
    limit: float = 0
    relay: bool = False

    @classmethod
    def read(cls, said: object) -> Order:
        """Read an order.

        Raises:
            ValueError: it is none that can be carried out.
        """
        if not isinstance(said, dict):
            raise ValueError("an order must be an object")
        what, fence, limit = said.get("do"), fence_of(said), said.get("limit", 0)
        if what not in ("offer", "admit", "end"):
            raise ValueError(f"there is no order {str(what)[:40]!r}")
        if fence is None:
            raise ValueError(f"its fence is {str(said.get('fence'))[:40]!r}")
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 <= limit < math.inf:
            raise ValueError(f"its limit is {str(limit)[:40]!r} (must be seconds)")
        texts = {name: _text(name, said.get(name, "")) for name in ("key", "lease", "user")}
        key = texts["key"]
        if what != "end" and (not key or key != "".join(key.split()) or len(key.encode()) > _MOST_KEY):
            raise ValueError(f"its key {key[:40]!r} is none")
        return cls(str(what), fence, limit=float(limit), relay=said.get("relay") is True, **texts)


def fence_of(said: dict[Any, Any]) -> int | None:
    """Return the fence that an order names; None where it is none."""
    fence = said.get("fence")
    return fence if type(fence) is int and 0 <= fence < _MOST_FENCE else None


def _text(name: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > _MOST_TEXT or "\0" in value:  # which no variable of a hook can have
        raise ValueError(f"its {name} is {str(value)[:40]!r} (must be a text without zero bytes)")
    value.encode()  # half of a surrogate pair is a ValueError
    return value
