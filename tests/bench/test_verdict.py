# SPDX-License-Identifier: Apache-2.0
"""Verdicts: what spoils a figure, what is a note; and measurements of functions that disturb themselves."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from portcall.bench import BenchmarkResult, Interval, Reading, judge, measure

SOURCE = random.Random(7)
STEADY = BenchmarkResult(tuple(1e-3 * (1 + SOURCE.gauss(0, 0.002)) for _ in range(40)))
QUIET = Interval(
    Reading(time_ns=0, on_cpu_ns=0, waited_ns=0, clock_step_ns=20, probe_ns=100),
    Reading(time_ns=10**9, on_cpu_ns=10**9, waited_ns=0, clock_step_ns=20, probe_ns=100, load1=0.1, cpus=2),
    1.0,
)


def codes(result: BenchmarkResult, number: int = 50, intervals: tuple[Interval, ...] = (QUIET,)) -> list[str]:
    return [finding.code for finding in judge(result, number, intervals).findings]


def scaled(values: tuple[float, ...], by: float, first: int, last: int = 40) -> BenchmarkResult:
    return BenchmarkResult(tuple(x * (by if first <= at < last else 1) for at, x in enumerate(values)))


def test_steady_run_is_trustworthy() -> None:
    verdict = judge(STEADY, 50, [QUIET])
    assert verdict.ok
    assert verdict.findings == ()
    assert str(verdict).startswith("trustworthy: 1.00 ms ± 0.")
    assert verdict.interval[0] < verdict.median < verdict.interval[1]
    assert verdict.to_dict()["windows"] == 40
    assert verdict.window_s == pytest.approx(0.05, rel=0.01)


def test_run_on_a_machine_that_tells_nothing_is_not_called_trustworthy() -> None:
    verdict = judge(STEADY, 50)
    assert verdict.ok
    assert not verdict.known
    assert [finding.code for finding in verdict.findings] == ["unknown"]
    assert str(verdict).startswith("nothing suspicious seen")


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (scaled(STEADY.results, 1.1, 20), "faster|slower"),
        (scaled(STEADY.results, 1.2, 0, 6), "not warm yet"),
    ],
)
def test_shift_spoils_a_figure(result: BenchmarkResult, expected: str) -> None:
    verdict = judge(result, 50, [QUIET])
    assert not verdict.ok
    (finding,) = (each for each in verdict.findings if each.code == "shift")
    assert any(word in finding.message for word in expected.split("|"))


def test_time_of_a_shift_has_the_rests_in_it() -> None:
    verdict = judge(scaled(STEADY.results, 1.1, 20), 50, [QUIET], rest_s=1.0)
    (finding,) = (each for each in verdict.findings if each.code == "shift")
    assert "after 21" in finding.message  # 20 windows of 0.05 s, and as many rests
    assert verdict.window_s == pytest.approx(0.0525, rel=0.01)


def test_two_speeds_spoil_a_figure() -> None:
    mixed = BenchmarkResult(tuple(x * (1.2 if at % 3 == 0 else 1) for at, x in enumerate(STEADY.results)))
    assert "modes" in codes(mixed)


def test_wide_interval_and_few_values_spoil_a_figure() -> None:
    source = random.Random(8)
    wide = BenchmarkResult(tuple(1e-3 * (1 + source.gauss(0, 0.2)) for _ in range(40)))
    assert codes(wide) == ["unstable"]
    assert codes(BenchmarkResult((1e-3, 1e-3))) == ["few"]
    assert codes(BenchmarkResult((1e-3,))) == ["few"]


def test_short_windows_and_coarse_clocks_spoil_a_figure() -> None:
    assert codes(STEADY, number=50, intervals=(QUIET,)) == []
    assert codes(BenchmarkResult((1e-8,) * 40), number=1) == ["short"]
    coarse = Interval(QUIET.first, replace(QUIET.last, clock_step_ns=10**6), 1.0)
    assert codes(BenchmarkResult((0.2, 0.201) * 20), 1, (coarse,)) == ["timer"]


def test_cause_is_named_before_what_it_did() -> None:
    slow = replace(QUIET.last, on_cpu_ns=5 * 10**8, waited_ns=5 * 10**8, load1=9)
    verdict = judge(scaled(STEADY.results, 1.2, 20), 50, [replace(QUIET, last=slow)])
    assert next(finding.code for finding in verdict.findings) == "waited"
    assert "load" in [finding.code for finding in verdict.findings if finding.note]
    assert str(verdict).startswith("not trustworthy: other work had the core for 50% of the time")


def test_measure_times_windows_and_reads_the_machine_between_them() -> None:
    asked: list[tuple[int, int]] = []

    def run(number: int, repeat: int) -> BenchmarkResult:
        asked.append((number, repeat))
        return BenchmarkResult(tuple(1e-5 * (1 + SOURCE.gauss(0, 0.001)) for _ in range(repeat)))

    measured = measure(run)
    assert len(measured.result.results) == measured.counts.repeat == 40
    assert sum(repeat for number, repeat in asked if number == measured.counts.number) >= 40
    windows = asked[-(len(measured.conditions) - 1) :]
    assert sum(repeat for _, repeat in windows) == 40
    assert len(measured.conditions) >= 6
    told = measured.to_dict()
    assert told["verdict"]["windows"] == 40
    assert len(told["conditions"]) == len(measured.conditions)
    assert measured.peak_bytes is not None


def test_measure_keeps_given_counts_and_shows_progress() -> None:
    said: list[str] = []

    class Shown:
        def __init__(self, words: str, seconds: float) -> None:
            said.append(words)

        def __enter__(self) -> None: ...
        def __exit__(self, *error: object) -> None: ...

    measured = measure(lambda n, r: BenchmarkResult((1e-3,) * r), 7, 12, progress=Shown)
    assert (measured.counts.number, measured.counts.repeat) == (7, 12)
    assert said == ["choosing how many calls to time", "timing 12 repeats of 7 calls"]
