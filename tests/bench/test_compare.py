# SPDX-License-Identifier: Apache-2.0
"""Comparisons: order, intervals, answers, and how often they are wrong in simulated worlds (simulated.py)."""

from __future__ import annotations

import contextlib
import math
import random
import statistics
from collections.abc import Iterator

import pytest
import scipy.stats

from bench.simulated import WORLDS, answers, simulate
from portcall.bench import Comparison, compare
from portcall.bench._compare import Timer
from portcall.bench._comparison import (
    judge_gate,
    looks,
    mean_interval,
    order,
    run_ratio,
    t_probability,
    t_quantile,
)
from portcall.errors import ConnectError


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 11, 23, 47])
def test_t_quantile_is_scipys(freedom: int) -> None:
    for p in (0.6, 0.975, 0.99875):
        assert t_quantile(p, freedom) == pytest.approx(scipy.stats.t.ppf(p, freedom), rel=1e-9)
        assert t_probability(p, freedom) == pytest.approx(scipy.stats.t.cdf(p, freedom), rel=1e-12)


def test_mean_interval_is_scipys() -> None:
    values = [1.0, 1.2, 0.9, 1.1, 1.05]
    expected = scipy.stats.t.interval(0.99, 4, statistics.fmean(values), scipy.stats.sem(values))
    assert mean_interval(values, 0.99) == pytest.approx(expected)
    assert mean_interval([1.0], 0.99) == (-math.inf, math.inf)


def test_run_ratio_is_that_of_scipys_trimmed_means() -> None:
    source = random.Random(9)
    new, old = ([source.expovariate(1) for _ in range(12)] for _ in range(2))
    assert run_ratio(new, old) == pytest.approx(scipy.stats.trim_mean(new, 0.25) / scipy.stats.trim_mean(old, 0.25))
    with pytest.raises(ValueError, match="too short"):
        run_ratio([0.0] * 12, old)
    for wrong in (math.nan, math.inf, -1.0, 1e300):
        with pytest.raises(ValueError, match="no time"):
            run_ratio([wrong] * 12, old)


def test_next_look_is_the_one_after_these_runs() -> None:
    assert [Comparison((1.0,) * runs, 20).next_look for runs in (0, 5, 6, 12, 20)] == [6, 6, 12, 20, 20]


def test_looks_end_at_the_last_run() -> None:
    assert looks(48) == (6, 12, 24, 48)
    assert looks(3) == (3,)
    assert looks(20) == (6, 12, 20)


def test_order_cancels_what_grows_and_what_hangs_on_the_place() -> None:
    for number in (0, 1):
        turns = order(number)
        for weight in (lambda place: 1, lambda place: place, lambda place: place**2):
            new, old = (sum(weight(p) for p, side in enumerate(turns) if side == wanted) for wanted in (0, 1))
            assert new == old
    assert [order(0)[place] + order(1)[place] for place in range(8)] == [1] * 8


@pytest.mark.parametrize(
    ("ratios", "verdict", "gate"),
    [
        ((1.0, 1.001, 0.999, 1.0, 1.001, 0.999), "no difference", "passed"),
        ((1.1, 1.101, 1.099, 1.1, 1.101, 1.099), "slower", "slower"),
        ((0.9, 0.901, 0.899, 0.9, 0.901, 0.899), "faster", "passed"),
        ((1.03, 1.031, 1.029, 1.03, 1.031, 1.029), "slower", "passed"),
        ((0.9, 1.1, 1.2, 0.8, 1.0, 1.05), "not enough data", "not settled"),
        ((1.0,), "not enough data", "not settled"),
    ],
)
def test_comparison_says_what_its_runs_say(ratios: tuple[float, ...], verdict: str, gate: str) -> None:
    known = Comparison(ratios, limit=1.05)
    assert (known.verdict, known.gate) == (verdict, gate)
    assert Comparison(ratios).gate is None
    told = known.to_dict()
    assert told["runs"] == len(ratios)
    assert (told["runs_needed"] is not None) == (gate == "not settled" and len(ratios) >= 6)
    assert verdict in str(Comparison(ratios))


def test_judge_gate_never_passes_what_may_be_slower() -> None:
    assert judge_gate((1.04, 1.06), 1.05) == "not settled"
    assert judge_gate((1.0, 1.05), 1.05) == "passed"
    assert judge_gate((1.051, 1.06), 1.05) == "slower"
    assert judge_gate((1.051, 1.06), None) is None


def test_compare_opens_both_sides_anew_for_each_run_in_turns() -> None:
    seen: list[str] = []

    @contextlib.contextmanager
    def side(name: str, seconds: float) -> Iterator[Timer]:
        def timer(number: int) -> float:
            seen.append(name.lower())
            return number * seconds

        seen.append(name)
        yield timer
        seen.append(f"-{name}")

    told: list[int] = []
    known = compare(lambda: side("A", 1.1e-3), lambda: side("B", 1e-3), on_run=lambda c: told.append(len(c.ratios)))
    assert known.verdict == "slower"
    assert known.ratio == pytest.approx(1.1)
    assert known.seconds == pytest.approx((1.1e-3, 1e-3))
    assert known.number >= 50
    assert told == [1, 2, 3, 4, 5, 6]
    words = "".join(seen)
    assert words.startswith("AB")
    assert "abbabaab" + "baababba" + "abbabaab" + "-B-ABAba" in words
    assert words.count("A") == words.count("-A") * 2 == 12


def test_compare_takes_plain_timers() -> None:
    assert compare(lambda: lambda n: n * 1e-3, lambda: lambda n: n * 1e-3).verdict == "no difference"


def test_compare_goes_one_after_the_other_where_only_one_side_can_be_open() -> None:
    opened: set[str] = set()

    @contextlib.contextmanager
    def side(name: str, seconds: float) -> Iterator[Timer]:
        if opened:
            raise ConnectError("busy")
        opened.add(name)
        try:
            yield lambda number: number * seconds
        finally:
            opened.clear()

    known = compare(lambda: side("A", 2e-3), lambda: side("B", 1e-3))
    assert (known.verdict, known.together) == ("slower", False)


def test_compare_keeps_what_it_has_when_a_side_goes_away() -> None:
    kept: list[Comparison] = []
    left = iter(range(9))

    def side() -> Timer:
        if next(left, None) is None:
            raise ConnectionError("the board is gone")
        return lambda number: number * 1e-3 * (1 + random.random())

    with pytest.raises(ConnectionError):
        compare(side, side, on_run=kept.append)
    assert len(kept[-1].ratios) == 4
    assert kept[-1].to_dict()["runs"] == 4


@pytest.mark.parametrize(
    "wrong",
    [{"runs": 2}, {"margin": -0.1}, {"limit": 0}, {"margin": math.nan}, {"limit": math.nan}, {"number": 0}],
)
def test_compare_refuses_what_it_cannot_do(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"runs|margin|number"):
        compare(lambda: lambda n: 1.0, lambda: lambda n: 1.0, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", WORLDS)
def test_compare_finds_5_percent_and_nothing_where_nothing_is(name: str) -> None:
    same, _ = answers(name, 1.0, 12)
    assert same["faster"] + same["slower"] <= 1
    slower, _ = answers(name, 1.05, 12)
    assert slower["slower"] >= 11


def test_compare_settles_a_limit() -> None:
    world = WORLDS["noise of 1 %"]
    found = [simulate(world, change, f"gate {change}", limit=1.05).gate for change in (1.0, 1.02, 1.1)]
    assert found == ["passed", "passed", "slower"]
