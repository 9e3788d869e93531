# SPDX-License-Identifier: Apache-2.0
"""Where the time of one call goes."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, astuple, dataclass, fields


@dataclass(frozen=True)
class ProfileRow:
    """A function that was called by instructions.

    Attributes:
        calls: how often.
        time: in seconds, all calls together.
        share: of the time of all rows.
    """

    name: str
    calls: int
    time: float
    share: float


@dataclass(frozen=True)
class Profile:
    """The functions that one call of a model called, by time. Clocks around each add some 50 ns to a call."""

    function: str
    rows: tuple[ProfileRow, ...]

    @property
    def total(self) -> float:
        """Seconds, all rows together."""
        return sum(row.time for row in self.rows)

    @classmethod
    def from_text(cls, function: str, text: str) -> Profile:
        """Read what a machine tells: a line with calls, nanoseconds and name for each function."""
        lines = [line.split(" ", 2) for line in text.splitlines()]
        total = sum(int(nanoseconds) for _, nanoseconds, _ in lines) or 1
        rows = [ProfileRow(name, int(calls), int(ns) * 1e-9, int(ns) / total) for calls, ns, name in lines]
        return cls(function, tuple(sorted(rows, key=lambda row: -row.time)))

    @classmethod
    def from_json(cls, text: str) -> Profile:
        """Read what ``to_json`` wrote.

        Raises:
            ValueError: it is something else.
        """
        try:
            facts = json.loads(text)
            return cls(facts["function"], tuple(ProfileRow(**row) for row in facts["rows"]))
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"this is not the JSON of a profile: {error}") from None

    def to_json(self) -> str:
        """Return the facts as JSON, times in seconds."""
        return json.dumps(self.to_dict(), indent=2)

    def to_csv(self) -> str:
        """Return a line for each function, the slowest first, below one with the names; times in seconds."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerows([[each.name for each in fields(ProfileRow)], *map(astuple, self.rows)])
        return out.getvalue()

    def to_dict(self) -> dict[str, object]:
        return {"function": self.function, "total": self.total, "rows": [asdict(row) for row in self.rows]}

    def __str__(self) -> str:
        lines = [f"{row.time * 1e6:12.1f} us {row.share:6.1%} {row.calls:8,}  {row.name}" for row in self.rows]
        return "\n".join([f"{self.function}: {self.total * 1e6:.1f} us in {len(lines)} functions", *lines])
