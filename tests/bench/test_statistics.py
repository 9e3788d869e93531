# SPDX-License-Identifier: Apache-2.0
"""Intervals, shifts and two speeds: on series whose truth is known, with the rates at which they are wrong."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import pytest
import scipy.stats

from portcall.bench import _statistics
from portcall.bench._statistics import find_shift, find_speeds, median_interval, median_rank, ranks

N, SERIES = 40, 300
Noise = Callable[[random.Random], list[float]]


def normal(sd: float) -> Noise:
    return lambda source: [1 + source.gauss(0, sd) for _ in range(N)]


def skewed(sd: float) -> Noise:
    return lambda source: [1 + sd * source.expovariate(1) for _ in range(N)]


def alike(r: float, sd: float) -> Noise:
    def series(source: random.Random) -> list[float]:
        at, values = source.gauss(0, sd), []
        for _ in range(N):
            values.append(1 + at)
            at = r * at + source.gauss(0, sd * math.sqrt(1 - r * r))
        return values

    return series


def spiked(sd: float) -> Noise:
    def series(source: random.Random) -> list[float]:
        return [x * (1 + (source.random() < 0.05) * source.uniform(0.1, 1)) for x in normal(sd)(source)]

    return series


def coarse(sd: float) -> Noise:
    return lambda source: [round(x * 200) / 200 for x in normal(sd)(source)]


QUIET = {
    "normal": normal(0.01),
    "skewed": skewed(0.01),
    "alike": alike(0.5, 0.01),
    "very alike": alike(0.8, 0.01),
    "spiked": spiked(0.01),
    "coarse": coarse(0.01),
}


def share(wanted: Callable[[list[float]], object], noise: Noise, count: int = SERIES) -> float:
    source = random.Random(20261123)
    return sum(wanted(noise(source)) is not None for _ in range(count)) / count


@pytest.mark.parametrize("noise", QUIET.values(), ids=QUIET.keys())
def test_quiet_series_have_neither_a_shift_nor_two_speeds(noise: Noise) -> None:
    assert share(lambda values: find_shift(values) or find_speeds(values), noise) <= 0.02


def test_find_shift_finds_where_and_how_much() -> None:
    source = random.Random(1)
    values = [x * (1.05 if at >= 25 else 1) for at, x in enumerate(normal(0.01)(source))]
    shift = find_shift(values)
    assert shift is not None
    assert abs(shift.place - 25) <= 2
    assert shift.change == pytest.approx(0.05, abs=0.01)


@pytest.mark.parametrize("by", [lambda at: 1.05 if at >= 20 else 1, lambda at: 1 + 0.2 * math.exp(-at / 6)])
def test_find_shift_finds_steps_of_5_percent_and_warm_ups(by: Callable[[int], float]) -> None:
    changed = lambda source: [x * by(at) for at, x in enumerate(normal(0.01)(source))]  # noqa: E731
    assert share(find_shift, changed) >= 0.95


def test_find_shift_leaves_small_steps_alone() -> None:
    small = lambda source: [x * (1.015 if at >= 20 else 1) for at, x in enumerate(normal(0.002)(source))]  # noqa: E731
    assert share(find_shift, small) == 0


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0, 1.0], [1.0] * 40, [0.0] * 40, [0.0] * 20 + [1.0] * 20])
def test_degenerate_series_have_no_shift_by_zero_and_no_speeds(values: list[float]) -> None:
    assert find_shift(values) is None
    assert find_speeds(values) is None


def test_find_speeds_finds_both_and_their_shares() -> None:
    source = random.Random(2)
    values = [x * (1.1 if at % 10 < 3 else 1) for at, x in enumerate(normal(0.005)(source))]
    speeds = find_speeds(values)
    assert speeds is not None
    assert (speeds.fast, speeds.slow, speeds.share) == pytest.approx((1, 1.1, 0.7), abs=0.01)


@pytest.mark.parametrize(("name", "most"), [("normal", 0.006), ("alike", 0.011), ("very alike", 0.022)])
def test_median_interval_holds_the_median(name: str, most: float) -> None:
    source, held, width = random.Random(3), 0, 0.0
    for _ in range(SERIES):
        low, high = median_interval(QUIET[name](source))
        held += low <= 1 <= high
        width += (high - low) / 2 / SERIES
    assert held / SERIES >= 0.91
    assert width <= most


@pytest.mark.parametrize("n", [1, 2, 5, 6, 9, 10, 40, 400])
def test_median_rank_is_that_of_the_sign_test(n: int) -> None:
    k = median_rank(n, 0.95)
    # P(Bin(n, 1/2) < k) is the distribution function at k - 1
    assert scipy.stats.binom.cdf(k - 1, n, 0.5) <= 0.025 if k else True
    assert k == n // 2 or scipy.stats.binom.cdf(k, n, 0.5) > 0.025


def test_ranks_are_scipys() -> None:
    source = random.Random(4)
    values = [source.choice((1.0, 2.0, 3.5)) for _ in range(50)]
    assert ranks(values) == scipy.stats.rankdata(values).tolist()


def test_autocorrelation_is_not_biased() -> None:
    source = random.Random(5)
    found = [_statistics._autocorrelation(alike(0.5, 1)(source)) for _ in range(SERIES)]
    assert statistics.fmean(found) == pytest.approx(0.5, abs=0.03)
