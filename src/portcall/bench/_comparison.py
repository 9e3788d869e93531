# SPDX-License-Identifier: Apache-2.0
"""What a comparison of two sides says: pure functions of the ratios of its runs.

A *block* is some calls of one side. A *round* is eight blocks, A B B A B A A B, the next one with A and B exchanged
(Thue and Morse): what grows evenly, and what hangs on the place in a round, cancels. A *run* is three rounds of a pair
of processes that were started for it, and its number the ratio of both sides' interquartile means: a block that was
disturbed does not count (with one block in 20 longer by 10 to 100 %, that answers in 15 runs where the median of the
rounds' ratios has no answer after 48). Runs are the unit: rounds of one pair share the addresses and the pages that the
pair happened to get (Kalibera and Jones 2013, Rigorous benchmarking in reasonable time).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from portcall.bench._stored import MOST_S

ROUND = (0, 1, 1, 0, 1, 0, 0, 1)  # sides of the blocks; 0 is the new one
ROUNDS = 3  # of a run
FIRST_LOOK, RUNS, FEWEST_RUNS = 6, 48, 3
CONFIDENCE = 0.99  # of a comparison, all of its looks together
MARGIN = 0.01  # a smaller difference does not matter

Verdict = Literal["faster", "slower", "no difference", "not enough data"]
GateVerdict = Literal["passed", "slower", "not settled"]


@dataclass(frozen=True)
class Comparison:
    """How long one side takes, over the other, and whether that is known.

    Attributes:
        ratios: time of the new side over that of the old one, of each run, in order.
        most: runs that there may be.
        margin: a difference that does not matter; 0.01 is 1 %.
        limit: what the ratio may be at most, by the user's word; runs go on until that is settled.
        number: calls in a block; the same for both sides.
        seconds: of a call, the median of the blocks, of both sides.
        together: both sides were open at the same time, and their blocks took turns.
    """

    ratios: tuple[float, ...]
    most: int = RUNS
    margin: float = MARGIN
    limit: float | None = None
    number: int = 1
    seconds: tuple[float, float] = (0.0, 0.0)
    together: bool = True

    @property
    def ratio(self) -> float:
        """The ratio: the mean of the logarithms of the runs' ones, as a factor."""
        return math.exp(statistics.fmean(map(math.log, self.ratios))) if self.ratios else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """Where the ratio lies, with 99 % confidence over all looks."""
        level = 1 - (1 - CONFIDENCE) / len(looks(self.most))
        low, high = mean_interval([math.log(ratio) for ratio in self.ratios], level)
        return math.exp(low), math.exp(high)

    @property
    def verdict(self) -> Verdict:
        """What can be said now; *no difference* by two one-sided tests (Schuirmann 1987)."""
        low, high = self.interval
        if 1 / (1 + self.margin) <= low and high <= 1 + self.margin:
            return "no difference"
        return "slower" if low > 1 else "faster" if high < 1 else "not enough data"

    @property
    def gate(self) -> GateVerdict | None:
        """Whether the ratio is within the limit; None without one."""
        return judge_gate(self.interval, self.limit)

    @property
    def settled(self) -> bool:
        """More runs would not change the answer."""
        return self.gate != "not settled" if self.limit is not None else self.verdict != "not enough data"

    @property
    def done(self) -> bool:
        """The answer is settled at a look, or there are as many runs as there may be."""
        runs = len(self.ratios)
        return runs >= self.most or (runs in looks(self.most) and self.settled)

    @property
    def next_look(self) -> int:
        """After how many runs it is looked at next, or was last."""
        return next((runs for runs in looks(self.most) if runs > len(self.ratios)), self.most)

    @property
    def runs_needed(self) -> int | None:
        """About how many runs would settle it, where they have not; None where none would, or too few runs tell.

        The width of the interval falls with the root of the runs: n (h / d)^2, for a half width h that must become d.
        """
        if self.settled or len(self.ratios) < FIRST_LOOK:
            return None
        low, high = map(math.log, self.interval)
        middle, half = (low + high) / 2, (high - low) / 2
        away = abs(middle - math.log(self.limit)) if self.limit is not None else 0.0
        if self.limit is None:
            away = max(abs(middle), math.log(1 + self.margin) - abs(middle))
        needed = len(self.ratios) * (half / away) ** 2 if away > 0 else math.inf
        return math.ceil(needed) if needed < 1e6 else None

    def to_dict(self) -> dict[str, object]:
        """Return the comparison, ready for JSON."""
        known = len(self.ratios) > 1
        return {
            "verdict": self.verdict,
            "ratio": self.ratio,
            "interval": list(self.interval) if known else None,
            "confidence": CONFIDENCE,
            "margin": self.margin,
            "runs": len(self.ratios),
            "runs_needed": self.runs_needed,
            "ratios": list(self.ratios),
            "number": self.number,
            "new_s": self.seconds[0],
            "old_s": self.seconds[1],
            "together": self.together,
            "limit": self.limit,
            "gate": self.gate,
        }

    def __str__(self) -> str:
        return self.words("the new one", "the old one")

    def words(self, new: str, old: str) -> str:
        """Return the comparison in a line; ``new`` and ``old`` are what the sides are called."""
        runs = f"{len(self.ratios)} run{'s' * (len(self.ratios) != 1)}"
        if len(self.ratios) < 2:
            return f"not enough data: {runs}"
        low, high = self.interval
        figures = f"{self.ratio:.3f} of the time of {old}, {low:.3f} to {high:.3f} ({CONFIDENCE:.0%}, {runs})"
        if self.limit is not None:
            gate = "slower than the limit" if self.gate == "slower" else self.gate
            return f"{gate}: {new} takes {figures}; the limit is {self.limit:.3f}{self._more()}"
        if self.verdict in ("faster", "slower"):
            return f"{new} is {self.verdict}: {figures}"
        return f"{self.verdict}: {new} takes {figures}{self._more()}"

    def _more(self) -> str:
        return f"; about {self.runs_needed:,} runs would do" if self.runs_needed else ""


def looks(most: int) -> tuple[int, ...]:
    """Return after how many runs an answer is looked for, which share the level (Bonferroni): 6, 12, 24, 48."""
    found, at = [], FIRST_LOOK
    while at < most:
        found.append(at)
        at *= 2
    return (*found, most)


def judge_gate(interval: tuple[float, float], limit: float | None) -> GateVerdict | None:
    """Say whether a ratio is within a limit, by the interval that holds it; None without a limit."""
    if limit is None:
        return None
    low, high = interval
    return "slower" if low > limit else "passed" if high <= limit else "not settled"


def order(number: int) -> tuple[int, ...]:
    """Return the sides of the blocks of a round; of every second one they are exchanged."""
    return ROUND if number % 2 == 0 else tuple(1 - side for side in ROUND)


def run_ratio(new: Sequence[float], old: Sequence[float]) -> float:
    """Return the ratio of a run, of the seconds of both sides' blocks.

    Raises:
        ValueError: a side took no time.
    """
    times = interquartile_mean(new), interquartile_mean(old)
    if not all(0 < each <= MOST_S for each in times):
        why = "their calls are too short for the clock" if 0 in times else "that is no time"
        raise ValueError(f"calls took {times[0]} and {times[1]} s, say their timers: {why}")
    return times[0] / times[1]


def interquartile_mean(values: Sequence[float]) -> float:
    """Return the mean of the middle half; of fewer than four values, of all."""
    quarter = len(values) // 4
    return statistics.fmean(sorted(values)[quarter : len(values) - quarter])


def mean_interval(values: Sequence[float], confidence: float) -> tuple[float, float]:
    """Return the interval that holds the mean of what ``values`` are samples of (Student's t); one value has none."""
    n = len(values)
    if n < 2:
        return -math.inf, math.inf
    half = t_quantile((1 + confidence) / 2, n - 1) * statistics.stdev(values) / math.sqrt(n)
    mean = statistics.fmean(values)
    return mean - half, mean + half


def t_quantile(p: float, freedom: int) -> float:
    """Return the value that Student's t, with so many degrees of freedom, is below with probability p, 0.5 <= p < 1."""
    low, high = 0.0, 1.0
    while t_probability(high, freedom) < p:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if t_probability(middle, freedom) < p else (low, middle)
    return high


def t_probability(t: float, freedom: int) -> float:
    """Return the probability that Student's t is below t >= 0.

    Abramowitz and Stegun 26.7.3 and 26.7.4: finite sums, which are exact for whole degrees of freedom.
    """
    angle = math.atan(t / math.sqrt(freedom))
    square = math.cos(angle) ** 2
    odd = freedom % 2
    term, total = (math.cos(angle), 0.0) if odd else (1.0, 0.0)
    for k in range(2 + odd, freedom + 1, 2):
        total += term
        term *= square * (k - 1) / k
    within = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
    return (1 + within) / 2
