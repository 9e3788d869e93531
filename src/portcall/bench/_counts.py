# SPDX-License-Identifier: Apache-2.0
"""How many repeats of how many calls a benchmark makes, where the user leaves that to us."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from portcall.bench._result import BenchmarkResult

TOTAL_S = 2.0  # seconds that all repeats together take, about
SHORTEST_S = 0.01  # shortest repeat: reading the clock takes much less
REPEATS, ENOUGH, FEWEST = 40, 10, 3  # of repeats: usual, for a verdict, and of calls that take long
PATIENCE_S = 5.0  # seconds that enough repeats for a verdict may take
STEP = 64  # most by which the calls grow while the right number is looked for: the first times are the least sure
MOST_CALLS = 1 << 30
TRIES = 3
Measure = Callable[[int, int], BenchmarkResult]  # called with number and repeat


@dataclass(frozen=True)
class Counts:
    """What a benchmark does: ``repeat`` times ``number`` calls, taking about ``seconds``."""

    number: int
    repeat: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.repeat:,} repeat{'s' * (self.repeat > 1)} of {self.number:,} call{'s' * (self.number > 1)}"


def choose(
    measure: Measure, number: int | None, repeat: int | None, min_repeat_ms: int = 0, limit: float | None = None
) -> Counts:
    """Return counts: those given, and for the others what makes the times trustworthy in about two seconds.

    Parameters:
        min_repeat_ms: how long a repeat must last.
        limit: seconds that all may take, by the user's word.
    """
    total = TOTAL_S if limit is None else min(TOTAL_S, limit / 4)
    if number is None:
        shortest = max(SHORTEST_S, min_repeat_ms * 1e-3)
        number, seconds = calls_in(measure, max(total / (repeat or REPEATS), 2 * shortest))
    else:
        seconds = measure(number, 1).min * number
    seconds = max(seconds, min_repeat_ms * 1e-3)
    least = ENOUGH if limit is None and ENOUGH * seconds <= PATIENCE_S else FEWEST
    repeat = repeat or min(max(round(total / seconds) if seconds else REPEATS, least), REPEATS)
    return Counts(number, repeat, max(repeat * seconds, 1e-9))


def calls_in(measure: Measure, seconds: float) -> tuple[int, float]:
    """Return the largest power of two of calls that take so long at most, one if none does; and how long they take."""
    number = 1
    while True:
        each = max(measure(number, 1 if number == 1 else 2).min, seconds / MOST_CALLS)
        fitting = 1 << max(int(seconds / each), 1).bit_length() - 1
        enough = 1 if number == 1 else 2 * number  # the first call alone may have been slow
        if fitting <= enough or number == MOST_CALLS:
            return fitting, fitting * each
        number = min(fitting, number * STEP, MOST_CALLS)


def too_short(result: BenchmarkResult, counts: Counts) -> bool:
    """Say whether repeats turned out shorter than they should be: the machine was busy when they were chosen."""
    return result.min * counts.number < SHORTEST_S
