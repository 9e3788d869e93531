# SPDX-License-Identifier: Apache-2.0
"""How two things are compared: by ``portcall.bench.compare``, in this process, with blocks that each side fills.

A block of a side is so many of its calls as last ``Plan.block_seconds``, and counts as the mean time of one. The rest
is as docs/numbers.md says: rounds A B B A B A A B, three to a run, whose number is the ratio of the interquartile
means; looks after 6, 12, 24 and 48 runs; an interval of 99 % over all looks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from portcall import bench
from portcall.bench import Comparison
from portcall.bench._compare import calls_in as calls_in

# Runs something so many times and returns the seconds that all of it took.
Timer = Callable[[int], float]
Verdict = Literal["met", "missed", "not settled", "faster", "slower", "no difference", "not enough data"]
GATES: dict[str | None, Verdict] = {"passed": "met", "slower": "missed", "not settled": "not settled"}


@dataclass(frozen=True)
class Plan:
    """How long to measure.

    Attributes:
        runs: of a comparison, at most.
        block_seconds: how long a block lasts at least; 0 means one call.
    """

    runs: int
    block_seconds: float = 0.0


def compare(ours: Timer, other: Timer, plan: Plan, target: float | None = None) -> Comparison:
    """Measure two things by the rules above, until it is known which is faster, or whether a target is met."""
    sides = [block_of(timer, plan.block_seconds) for timer in (ours, other)]
    return bench.compare(lambda: sides[0], lambda: sides[1], number=1, runs=plan.runs, limit=target)


def block_of(timer: Timer, seconds: float) -> Timer:
    """Return the timer of one block, which returns what one of its calls takes. The first calls are made here."""
    calls = calls_in(timer, seconds)
    return lambda _: timer(calls) / calls


def verdict(measured: Comparison) -> Verdict:
    """Say whether the target is met; without one, which side is faster."""
    return GATES[measured.gate] if measured.gate else measured.verdict
