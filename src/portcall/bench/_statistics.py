# SPDX-License-Identifier: Apache-2.0
"""What a series of times says: an interval for its median, whether it shifts, whether it has two speeds.

Values are in the order in which they were measured; none is dropped. Error rates: docs/numbers.md.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

SHIFT_P = 0.001  # a shift as clear as this comes by chance once in a thousand quiet series
DIFFERENCE = 0.03  # of a median or a mean: less does not matter
SEPARATION = 5.0  # of two speeds, in Ashman's D
SMALLER_PART = 0.15  # of the values, at least, at the rarer speed: single spikes are none


@dataclass(frozen=True)
class Shift:
    """A place at which a series changes.

    Attributes:
        place: how many values come before it.
        before, after: medians of both sides.
    """

    place: int
    before: float
    after: float

    @property
    def change(self) -> float:
        """How much larger the values are after it; 0.05 is 5 %."""
        return self.after / self.before - 1


@dataclass(frozen=True)
class Speeds:
    """Two speeds: their means, and the share of values at the first, the faster one."""

    fast: float
    slow: float
    share: float


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Return an interval that holds the median of what ``values`` are samples of, with that confidence.

    Order statistics (the sign test; David and Nagaraja, Order Statistics, 7.1). Values that follow each other are
    alike: with autocorrelation r, n of them count as n (1 - r) / (1 + r) (Bayley and Hammersley 1946).
    """
    ordered = sorted(values)
    n, counted = len(ordered), effective(values)
    rank = median_rank(counted, confidence)
    at = max(int(rank * n / counted) - 1, 0) if rank else 0
    return ordered[at], ordered[n - 1 - at]


def percentile_interval(values: Sequence[float], p: float, confidence: float) -> tuple[float, float] | None:
    """Return an interval that holds the ``p`` quantile of what ``values`` are samples of, with that confidence.

    By order statistics, as for the median. None where the values are too few: no order statistic is high enough, or
    low enough.
    """
    ordered = sorted(values)
    n, counted = len(ordered), effective(values)
    low, high = rank_below(counted, p, confidence), rank_below(counted, 1 - p, confidence)
    if not (low and high):
        return None
    return ordered[max(int(low * n / counted) - 1, 0)], ordered[n - max(int(high * n / counted), 1)]


def percentile_needs(values: Sequence[float], p: float, confidence: float) -> int:
    """Return how many values like these an interval for the ``p`` quantile needs: p^n <= (1 - confidence) / 2."""
    rarer = min(p, 1 - p)
    return math.ceil(math.log((1 - confidence) / 2) / math.log(1 - rarer) * len(values) / effective(values))


def effective(values: Sequence[float]) -> int:
    """Return how many independent values these are worth, for they are alike with those beside them."""
    r = min(max(_autocorrelation(ranks(values)), 0.0), 0.99)
    return max(round(len(values) * (1 - r) / (1 + r)), 1)


def median_rank(n: int, confidence: float) -> int:
    """Return the largest k with P(Bin(n, 1/2) < k) <= (1 - confidence) / 2; 0 where there is none."""
    return rank_below(n, 0.5, confidence)


def rank_below(n: int, p: float, confidence: float) -> int:
    """Return the largest k with P(Bin(n, p) < k) <= (1 - confidence) / 2; 0 where there is none."""
    limit, below, k = (1 - confidence) / 2, 0.0, 0
    all_ways = math.lgamma(n + 1)
    while k < n:
        ways = all_ways - math.lgamma(k + 1) - math.lgamma(n - k + 1)
        below += math.exp(ways + k * math.log(p) + (n - k) * math.log1p(-p))
        if below > limit:
            break
        k += 1
    return k


def find_shift(values: Sequence[float]) -> Shift | None:
    """Return where a series changes, if it does so by 3 % or more and not by chance.

    Pettitt 1979, Applied Statistics 28:126: K is the maximum of |2 (R_1 + ... + R_t) - t (n + 1)| over t, for ranks R;
    p is about 2 exp(-6 K^2 / (n^3 + n^2)).
    """
    n, total, most, place = len(values), 0.0, -1.0, 0
    for t, rank in enumerate(ranks(values)[:-1], start=1):
        total += rank
        if (size := abs(2 * total - t * (n + 1))) > most:
            most, place = size, t
    if n < 4 or 2 * math.exp(-6 * most**2 / (n**3 + n**2)) >= SHIFT_P:
        return None
    before, after = statistics.median(values[:place]), statistics.median(values[place:])
    different = min(before, after) > 0 and max(before, after) / min(before, after) - 1 >= DIFFERENCE
    return Shift(place, before, after) if different else None


def find_speeds(values: Sequence[float]) -> Speeds | None:
    """Return the two speeds of a series that has two.

    The values are split where the variance between both parts is greatest (Otsu 1979). The parts are two speeds where
    D = sqrt(2) |m1 - m2| / sqrt(v1 + v2) (Ashman, Bird and Zepf 1994) is above 5, the means differ by 3 %, and 15 % of
    the values are in each.
    """
    ordered = sorted(values)
    n = len(ordered)
    sums = [0.0]
    for value in ordered:
        sums.append(sums[-1] + value)

    def between(k: int) -> float:
        return k * (n - k) * ((sums[n] - sums[k]) / (n - k) - sums[k] / k) ** 2

    if n < 10:
        return None
    k = max(range(1, n), key=between)
    parts = ordered[:k], ordered[k:]
    if min(map(len, parts)) < SMALLER_PART * n:
        return None
    (fast, slow), spreads = map(statistics.fmean, parts), [statistics.pvariance(part) for part in parts]
    distance = math.sqrt(2) * (slow - fast)
    if fast <= 0 or slow / fast - 1 < DIFFERENCE or distance <= SEPARATION * math.sqrt(sum(spreads)):
        return None
    return Speeds(fast, slow, k / n)


def ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each value, from 1; equal ones share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    found = [0.0] * len(values)
    at = 0
    while at < len(order):
        end = at
        while end + 1 < len(order) and values[order[end + 1]] == values[order[at]]:
            end += 1
        for place in order[at : end + 1]:
            found[place] = (at + end) / 2 + 1
        at = end + 1
    return found


def _autocorrelation(values: Sequence[float]) -> float:
    """Return the correlation of each value with the next, without the bias of short series (Kendall 1954).

    M. G. Kendall, Note on bias in the estimation of autocorrelation, Biometrika 41: it is too low by (1 + 4 r) / n.
    """
    mean, n = statistics.fmean(values), len(values)
    variance = sum((value - mean) ** 2 for value in values)
    if variance == 0 or n < 5:
        return 0.0
    r = sum((a - mean) * (b - mean) for a, b in itertools.pairwise(values)) / variance
    return (r * n + 1) / (n - 4)
