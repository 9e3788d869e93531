# SPDX-License-Identifier: Apache-2.0
"""Sustained runs, waiting until a machine is cool, and single calls; the machines and functions are made up."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats

from machines import TREES, plant
from portcall.bench import BenchmarkResult, Reading, _cooling, _latency, _sustained, cool, latency, sustain
from portcall.bench._statistics import effective, percentile_interval, percentile_needs, rank_below


@pytest.fixture(autouse=True)
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that does not tell its state: that of the one which runs the tests is no matter here."""
    for module in (_sustained, _latency):
        monkeypatch.setattr(module, "reader", lambda session: lambda: None)


class Machine:
    """Takes a millisecond a call, times ``slower(t)`` after t seconds of work; tells nothing of itself."""

    def __init__(self, slower: Callable[[float], float] = lambda t: 1.0, ends: float = math.inf) -> None:
        self.slower, self.ends, self.at = slower, ends, 0.0
        self.source = random.Random(3)
        self.asked: list[tuple[int, int, int]] = []

    def run(self, number: int, repeat: int, pause_ms: int = 0) -> BenchmarkResult:
        self.asked.append((number, repeat, pause_ms))
        values = []
        for _ in range(repeat):
            if self.at > self.ends:
                raise ConnectionError("the board went away")
            value = 1e-3 * self.slower(self.at) * (1 + self.source.gauss(0, 0.002))
            self.at += value * number
            values.append(value)
        return BenchmarkResult(tuple(values))


# ---- Sustained ----


def test_sustain_tells_burst_and_what_is_kept_up() -> None:
    throttles = lambda t: 1.0 if t < 30 else 1.25  # noqa: E731
    measured = sustain(Machine(throttles).run, 120)
    assert (measured.burst, measured.sustained) == pytest.approx((1e-3, 1.25e-3), rel=0.01)
    assert measured.kept == pytest.approx(0.8, abs=0.01)
    assert measured.full_s == pytest.approx(30, abs=3)
    assert measured.verdict.ok
    assert measured.error is None
    assert 1000 <= len(measured.result.results) <= 2000
    assert measured.to_dict()["sustained"]["kept"] == measured.kept
    assert "80%" in str(measured)


def test_sustain_of_a_steady_machine_keeps_all() -> None:
    measured = sustain(Machine().run, 60)
    assert measured.kept == pytest.approx(1, abs=0.01)
    assert measured.full_s is None


def test_sustain_says_that_it_has_not_settled() -> None:
    measured = sustain(Machine(lambda t: 1 + t / 100).run, 60)
    (finding,) = (each for each in measured.verdict.findings if each.code == "shift")
    assert "longer" in finding.advice
    assert not measured.verdict.ok


@pytest.mark.parametrize("error", [ConnectionError("away"), KeyboardInterrupt()])
def test_sustain_keeps_what_was_measured(error: BaseException) -> None:
    machine = Machine()

    def run(number: int, repeat: int) -> BenchmarkResult:
        if machine.at > 20:
            raise error
        return machine.run(number, repeat)

    measured = sustain(run, 60)
    assert measured.error is error
    assert 20 <= sum(measured.result.results) * measured.counts.number <= 23
    assert measured.verdict.findings[0].code == "ended"
    assert not measured.verdict.ok


def test_sustain_raises_where_nothing_was_measured() -> None:
    with pytest.raises(ConnectionError):
        sustain(Machine(ends=-1).run, 60)
    with pytest.raises(ValueError, match="0 seconds"):
        sustain(Machine().run, 0)


def test_sustain_asks_for_a_thousand_windows_at_most_where_a_clock_is_coarse() -> None:
    asked: list[int] = []

    def run(number: int, repeat: int) -> BenchmarkResult:
        asked.append(repeat)
        return BenchmarkResult((0.0,) * repeat)

    sustain(run, 0.01, 1)
    assert max(asked) == 1000


def test_sustain_times_something_however_short_it_is() -> None:
    assert sustain(Machine().run, 1e-6).result.results


def test_sustain_takes_heat_for_granted_and_other_work_not(monkeypatch: pytest.MonkeyPatch) -> None:
    at = iter(range(10_000))

    def read() -> Reading:
        t = next(at)
        waited = 10**9 * min(t, 3)  # at the beginning alone
        return Reading(time_ns=t * 10**9, on_cpu_ns=t * 10**9, waited_ns=waited, throttles=t, probe_ns=100 + t)

    monkeypatch.setattr(_sustained, "reader", lambda session: read)
    verdict = sustain(Machine().run, 60).verdict
    assert [(each.code, each.note) for each in verdict.findings] == [
        ("throttled", True), ("clock", True), ("waited", False),
    ]  # fmt: skip


# ---- Cool ----


@pytest.fixture
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[Reading]], None]:
    """A machine that has these states, one after each wait; the last one stays."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(_cooling, "AWAKE", 1)

    def become(given: list[Reading]) -> None:
        left = list(given)
        monkeypatch.setattr(_cooling, "reader", lambda session: lambda: left.pop(0) if len(left) > 1 else left[0])

    return become


COOL, HOT = Reading(probe_ns=100, temperature_c=40.0), Reading(probe_ns=130, temperature_c=80.0)


def test_cool_waits_for_the_best_that_is_known(states: Callable[[list[Reading]], None]) -> None:
    naps: list[float] = []
    states([COOL])
    first = cool(60, place="board", sleep=naps.append)
    assert (first.reached, first.seconds) == (True, 20)  # nothing was known: it became no better
    states([HOT, HOT, Reading(probe_ns=100, temperature_c=60.0), Reading(probe_ns=100, temperature_c=42.0), HOT])
    second = cool(60, place="board", sleep=naps.append)
    assert (second.reached, second.seconds, second.finding) == (True, 3, None)
    assert sum(naps) == 23
    states([HOT])
    assert cool(60, place="another", sleep=naps.append).seconds == 20


def test_cool_gives_up_in_time(states: Callable[[list[Reading]], None]) -> None:
    states([COOL])
    cool(60, sleep=lambda seconds: None)
    states([HOT])
    third = cool(2.5, sleep=lambda seconds: None)
    assert (third.reached, third.seconds) == (False, 2.5)
    assert third.finding is not None
    assert third.finding.code == "hot"
    assert "80 °C" in third.finding.message


@pytest.mark.parametrize(("counter", "code"), [("waited_ns", "waited"), ("stolen_ns", "stolen"), ("quota_ns", "quota")])
def test_cool_waits_until_nothing_takes_the_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counter: str, code: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(_cooling, "WORK_S", 0.01)
    now: dict[str, Any] = {"time_ns": 0, "on_cpu_ns": 0, counter: 0}
    taken = 0

    def read() -> Reading:
        for name, more in (("time_ns", 100), ("on_cpu_ns", 100 - taken), (counter, taken)):
            now[name] += more
        return Reading(probe_ns=100, **now)

    monkeypatch.setattr(_cooling, "reader", lambda session: read)

    def sleep(seconds: float) -> None:
        nonlocal taken
        taken = max(taken - 10, 0)

    assert cool(60, sleep=sleep).reached
    taken = 30
    found = cool(2, sleep=sleep)
    assert (found.reached, found.finding and found.finding.code) == (False, code)
    taken = 30
    assert cool(60, sleep=sleep) == _cooling.Cooled(True, 3)


def test_cool_needs_no_wait_where_a_machine_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_cooling, "reader", lambda session: lambda: None)
    assert cool(60) == _cooling.Cooled(True, 0)


@pytest.mark.parametrize("text", ["", "{", "7", "[7]", '[{"probe_ns": "x"}]'])
def test_cool_begins_anew_after_a_damaged_file(states: Callable[[list[Reading]], None], text: str) -> None:
    states([COOL])
    _cooling._file_of("board").write_text(text)
    assert cool(60, place="board", sleep=lambda seconds: None).reached


def test_cool_reads_the_heat_of_a_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_core: None) -> None:
    root, zone = plant(tmp_path / "tree", TREES["pi"][0]), "sys/class/thermal/thermal_zone0/temp"
    monkeypatch.setenv("PORTCALL_MACHINE_ROOT", str(root))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(_cooling, "NEAR", 1e9)  # this machine's own clock does not matter here
    monkeypatch.setattr(_cooling, "WORK_S", 0)  # nor does other work
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        (root / zone).write_text(f"{80_000 - 10_000 * len(naps)}\n")

    assert cool(60, place="pi", sleep=lambda seconds: None).reached
    (root / zone).write_text("80000\n")
    cooled = cool(60, place="pi", sleep=sleep)
    assert (cooled.reached, len(naps)) == (True, 3)  # 48.3 °C was the least


# ---- Latency ----


def test_latency_gives_percentiles_with_intervals() -> None:
    measured = latency(Machine().run, 1000)
    assert [each.p for each in measured.percentiles if each.interval] == [50, 90, 99]
    p50, _, p99, p999 = measured.percentiles
    assert p50.interval is not None
    assert p50.value is not None
    assert p50.interval[0] < p50.value < p50.interval[1]
    assert p999.value is None
    assert p999.needs == pytest.approx(3688, rel=0.2)
    assert p50.value < (p99.value or 0)
    assert measured.to_dict()["latency"]["percentiles"][3]["value_s"] is None
    assert "p99.9 needs" in str(measured)


def test_latency_rests_between_calls_and_counts_none_that_was_not_paced() -> None:
    machine = Machine()
    measured = latency(machine.run, 90, every=0.033)
    paced = machine.asked[1:]
    assert {(number, pause) for number, _, pause in paced} == {(1, 32)}
    assert sum(repeat for _, repeat, _ in paced) == 90 + len(paced)
    assert len(measured.result.results) == 90


@pytest.mark.parametrize(
    ("each", "every", "calls"),
    [(1e-3, None, 2000), (0.02, None, 450), (1e-3, 0.1, 150), (60.0, None, 10), (1e-6, None, 8000)],
)
def test_latency_chooses_as_many_calls_as_percentiles_need(each: float, every: float | None, calls: int) -> None:
    measured = latency(lambda number, repeat, pause: BenchmarkResult((each,) * repeat), every=every)
    assert len(measured.result.results) == pytest.approx(calls, rel=0.01)


def test_latency_keeps_what_was_measured_and_refuses_no_pace() -> None:
    measured = latency(Machine(ends=0.5).run, 10_000)
    assert isinstance(measured.error, ConnectionError)
    assert 300 <= len(measured.result.results) <= 500
    for every in (0, -1, math.nan, math.inf):
        with pytest.raises(ValueError, match="no pace"):
            latency(Machine().run, every=every)


@pytest.mark.parametrize("p", [0.01, 0.5, 0.9, 0.99, 0.999])
def test_ranks_are_those_of_the_binomial_distribution(p: float) -> None:
    for n in (1, 5, 36, 72, 368, 3688, 8000):
        k = rank_below(n, p, 0.95)
        assert k == 0 or scipy.stats.binom.cdf(k - 1, n, p) <= 0.025 + 1e-9
        assert k == n or scipy.stats.binom.cdf(k, n, p) > 0.025 - 1e-9


@pytest.mark.parametrize(("p", "needs"), [(0.5, 6), (0.9, 36), (0.95, 72), (0.99, 368), (0.999, 3688)])
def test_percentiles_need_as_many_calls_as_their_intervals(p: float, needs: int) -> None:
    values = np.random.default_rng(1).permutation(np.linspace(1, 2, needs)).tolist()
    scale = needs / effective(values)
    assert percentile_needs(values, p, 0.95) == pytest.approx(needs * scale, abs=1 + scale)
    assert rank_below(needs, 1 - p, 0.95) == 1
    assert rank_below(needs - 1, 1 - p, 0.95) == 0


@pytest.mark.parametrize("p", [0.5, 0.9, 0.99])
def test_percentile_intervals_hold_the_truth(p: float) -> None:
    source, truth, held, runs = np.random.default_rng(5), scipy.stats.expon.ppf(p), 0, 200
    for _ in range(runs):
        interval = percentile_interval(source.exponential(size=600).tolist(), p, 0.95)
        held += interval is None or interval[0] <= truth <= interval[1]
    assert held / runs >= 0.92
