# SPDX-License-Identifier: Apache-2.0
"""The counts that a benchmark chooses, with a clock of our own."""

from __future__ import annotations

import pytest

from portcall.bench import BenchmarkResult
from portcall.bench._counts import choose


class Function:
    """Takes so many seconds a call; the first measurements take longer, as on a busy machine."""

    def __init__(self, seconds: float, delays: tuple[float, ...] = ()) -> None:
        self.seconds = seconds
        self.delays = list(delays)
        self.calls = 0

    def measure(self, number: int, repeat: int) -> BenchmarkResult:
        self.calls += number * repeat
        delays = [self.delays.pop(0) if self.delays else 0 for _ in range(repeat)]
        return BenchmarkResult(tuple(self.seconds + delay / number for delay in delays))


@pytest.mark.parametrize("seconds", [1e-10, 7e-9, 2e-6, 3.3e-4, 0.011, 0.049])
def test_choose_makes_repeats_of_two_seconds_in_all(seconds: float) -> None:
    counts = choose(Function(seconds).measure, None, None)
    assert counts.repeat == 40
    assert counts.number & (counts.number - 1) == 0
    assert 0.01 <= counts.number * seconds <= 0.05
    assert counts.seconds == pytest.approx(counts.number * seconds * 40)


@pytest.mark.parametrize(("seconds", "repeat"), [(0.06, 33), (0.2, 10), (0.5, 10), (0.6, 3), (60.0, 3)])
def test_choose_makes_fewer_repeats_of_slow_calls(seconds: float, repeat: int) -> None:
    function = Function(seconds)
    counts = choose(function.measure, None, None)
    assert (counts.number, counts.repeat) == (1, repeat)
    assert function.calls == 1


@pytest.mark.parametrize("delays", [(0.02,), (0.02, 0.02), (0.0, 0.03)])
def test_choose_ignores_a_slow_first_call(delays: tuple[float, ...]) -> None:
    counts = choose(Function(2e-8, delays).measure, None, None)
    assert counts.number * 2e-8 >= 0.01


def test_choose_keeps_given_counts() -> None:
    counts = choose(Function(1e-6).measure, 5, None)
    assert (counts.number, counts.repeat, str(counts)) == (5, 40, "40 repeats of 5 calls")
    counts = choose(Function(1e-6).measure, None, 1)
    assert counts.repeat == 1
    assert 1 <= counts.number * 1e-6 <= 2
    assert str(counts) == f"1 repeat of {counts.number:,} calls"


def test_choose_respects_min_repeat_ms_and_its_limit() -> None:
    assert choose(Function(1e-6).measure, None, None, min_repeat_ms=300).number * 1e-6 >= 0.3
    assert choose(Function(1e-6).measure, None, None, limit=1.0).seconds <= 0.25


def test_choose_ends_for_a_function_that_takes_no_time() -> None:
    assert choose(Function(0.0).measure, None, None).number == 1 << 30
