# SPDX-License-Identifier: Apache-2.0
"""How two things are compared: interleaved blocks, paired ratios, bootstrap intervals, a control.

Rules:

* A block runs one side so many times that it lasts ``block_seconds``, and counts the mean time of a run.
* A round is four blocks, A B B A or, every second time, B A A B, so that a drifting clock meets both sides alike. Its
  ratio is the time of both A blocks over that of both B blocks.
* A comparison is the median of the rounds' ratios. Its interval is the 2.5 and 97.5 percentile of that median over
  resampled rounds (a bootstrap with a fixed seed). No round is dropped.
* The control is the same with A in all four places. How far the interval of its ratio lies from 1 is the noise floor:
  a smaller difference counts as none.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

RESAMPLES = 2000
SEED = 20240229

# Runs something so many times and returns the seconds that all of it took.
Timer = Callable[[int], float]
Verdict = Literal["met", "missed", "not settled", "faster", "slower", "no difference"]


@dataclass(frozen=True)
class Plan:
    """How long to measure.

    Attributes:
        rounds: rounds of a comparison; as many again are run for the control.
        block_seconds: how long a block lasts at least; 0 means one run.
    """

    rounds: int
    block_seconds: float = 0.0


@dataclass(frozen=True)
class Side:
    """What was measured of one side: seconds of one run, an entry for each block, in order."""

    number: int
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


@dataclass(frozen=True)
class Comparison:
    """Two sides and what their rounds say about them.

    Attributes:
        ratios: time of ``ours`` over that of ``other``, an entry for each round.
        control: the same of ``ours`` over itself.
        interval: 95 % bootstrap interval of the median of ``ratios``.
        noise: the largest deviation from 1 in the interval of ``control``.
    """

    ours: Side
    other: Side
    ratios: tuple[float, ...]
    control: tuple[float, ...]
    interval: tuple[float, float]
    noise: float

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    def verdict(self, target: float | None) -> Verdict:
        """Say whether the ratio is at most ``target``; without one, whether there is a difference at all."""
        low, high = self.interval
        if target is not None:
            return "met" if high <= target else "missed" if low > target else "not settled"
        if low <= 1 + self.noise and high >= 1 - self.noise:
            return "no difference"
        return "faster" if high < 1 else "slower"


def compare(ours: Timer, other: Timer, plan: Plan) -> Comparison:
    """Measure two things by the rules above. The first runs, which fill caches, are not counted."""
    numbers = [calibrate(timer, plan.block_seconds) for timer in (ours, other)]
    samples: tuple[list[float], list[float]] = ([], [])
    ratios: list[float] = []
    control: list[float] = []
    for number in range(plan.rounds):
        order = (0, 1, 1, 0) if number % 2 == 0 else (1, 0, 0, 1)
        blocks = [(ours, other)[side](numbers[side]) / numbers[side] for side in order]
        for side, seconds in zip(order, blocks, strict=True):
            samples[side].append(seconds)
        ratios.append(paired_ratio(order, blocks))
        control.append(paired_ratio(order, [ours(numbers[0]) for _ in order]))
    low, high = bootstrap_interval(control)
    return Comparison(
        ours=Side(numbers[0], tuple(samples[0])),
        other=Side(numbers[1], tuple(samples[1])),
        ratios=tuple(ratios),
        control=tuple(control),
        interval=bootstrap_interval(ratios),
        noise=max(abs(low - 1), abs(high - 1)),
    )


def calibrate(timer: Timer, block_seconds: float) -> int:
    """Return how many runs last ``block_seconds``."""
    number = 1
    while (seconds := timer(number)) < block_seconds:
        missing = block_seconds / max(seconds, 1e-7)
        number = max(number + 1, int(number * min(missing * 1.1, 10)))
    return number


def paired_ratio(order: Sequence[int], blocks: Sequence[float]) -> float:
    """Return the time of the blocks in the places of A over that of those in the places of B."""
    first, second = (sum(b for side, b in zip(order, blocks, strict=True) if side == wanted) for wanted in (0, 1))
    return first / second


def bootstrap_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median of ``values``."""
    source = random.Random(SEED)
    medians = sorted(statistics.median(source.choices(values, k=len(values))) for _ in range(RESAMPLES))
    return medians[round(RESAMPLES * 0.025)], medians[round(RESAMPLES * 0.975) - 1]
