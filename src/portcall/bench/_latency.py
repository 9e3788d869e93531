# SPDX-License-Identifier: Apache-2.0
"""Single calls: percentiles with intervals, and how many calls one needs that the data cannot give."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from portcall.bench._conditions import Session, reader
from portcall.bench._counts import Counts
from portcall.bench._measure import Measurement, Progress, take, up_to
from portcall.bench._result import BenchmarkResult
from portcall.bench._statistics import percentile_interval, percentile_needs
from portcall.bench._units import format_duration
from portcall.bench._verdict import CONFIDENCE, judge

PERCENTILES = (50.0, 90.0, 99.0, 99.9)
TOTAL_S, PATIENCE_S = 2.0, 15.0  # seconds that calls take, about; and that enough of them for the 99th may take
ENOUGH, FEWEST, MOST = 450, 10, 8000  # of calls
BETWEEN_S = 1.0  # seconds between readings of paced calls

# Called with number, repeat and cooldown_interval_ms, as time evaluators are.
PacedMeasure = Callable[[int, int, int], BenchmarkResult]


@dataclass(frozen=True)
class Percentile:
    """A percentile of single calls.

    Attributes:
        p: 99 is the 99th.
        value, interval: seconds, and where the true one lies with 95 % confidence; None where the calls are too few.
        needs: calls that it needs.
    """

    p: float
    value: float | None
    interval: tuple[float, float] | None
    needs: int

    def __str__(self) -> str:
        if self.value is None or self.interval is None:
            return f"p{self.p:g} needs {self.needs:,} calls"
        low, high = map(format_duration, self.interval)
        return f"p{self.p:g} {format_duration(self.value)} ({low} to {high})"


@dataclass(frozen=True, kw_only=True)
class Latency(Measurement):
    """Times of single calls; ``percentiles`` of them, 50, 90, 99 and 99.9.

    Attributes:
        every_s: the pace that was asked for; None for calls in a row.
    """

    percentiles: tuple[Percentile, ...]
    every_s: float | None

    def to_dict(self) -> dict[str, Any]:
        """Return what was measured, in seconds and bytes, ready for JSON."""
        listed = [
            {
                "p": each.p,
                "value_s": each.value,
                "interval_s": each.interval and list(each.interval),
                "needs": each.needs,
            }
            for each in self.percentiles
        ]
        figures = {"percentiles": listed, "confidence": CONFIDENCE, "every_s": self.every_s}
        return {**super().to_dict(), "latency": figures}

    def __str__(self) -> str:
        return f"{self.result}\n{self.words()}\n{self.verdict}"

    def words(self) -> str:
        """Return the percentiles in a line."""
        return "; ".join(map(str, self.percentiles))


def latency(
    run: PacedMeasure,
    calls: int | None = None,
    every: float | None = None,
    *,
    session: Session | None = None,
    on_host: bool = True,
    limit: float | None = None,
    progress: Progress = lambda words, seconds: nullcontext(),
) -> Latency:
    """Time single calls.

    An error or Ctrl-C after the first calls ends it: what was measured is returned, with the error.

    Parameters:
        run: times calls, ``run(number, repeat, cooldown_interval_ms) -> BenchmarkResult``: time evaluators do.
        calls: how many; chosen where they are not given: as the 99th percentile needs if they take 15 s or less.
        every: seconds from the beginning of one call to that of the next, about: the machine rests in between for whole
            milliseconds. None for calls in a row.
        limit: seconds that the caller has for all of it.
        session, on_host, progress: as for ``measure``.

    Raises:
        ValueError: the pace is no time.
    """
    if every is not None and not 0 < every < 1e6:
        raise ValueError(f"a call every {every} seconds is no pace")
    with progress("timing a call", 0):
        each = run(1, 1, 0).min
    rest = max(round((every - each) * 1e3), 0) if every else 0
    period = max(each + rest * 1e-3, 1e-9)
    if calls is None:
        patience = PATIENCE_S if limit is None else limit / 4
        calls = min(ENOUGH, int(patience / period)) if ENOUGH * period > TOTAL_S else min(int(TOTAL_S / period), MOST)
        calls = max(calls, FEWEST)
    counts = Counts(1, calls, calls * period)

    def timed(number: int, repeat: int) -> BenchmarkResult:
        if not rest:
            return run(number, repeat, 0)
        # The first call that is timed follows one that is not, without the pause: it is a part of the warming up.
        return BenchmarkResult(run(number, repeat + 1, rest).results[1:])

    with progress(f"timing {calls:,} calls", counts.seconds):
        following = up_to(counts, BETWEEN_S) if rest else up_to(counts)
        taken = take(timed, 1, reader(session), following, paced=bool(rest), keep=True)
    result = BenchmarkResult(tuple(taken.values))
    verdict = judge(result, 1, taken.intervals, on_host=on_host, rest_s=rest * 1e-3)
    findings = tuple(
        replace(each, advice="single calls are too short for the clock: time many, without --latency")
        if each.code in ("short", "timer")
        else each
        for each in verdict.findings
    )
    return Latency(
        result=result,
        counts=Counts(1, len(taken.values), counts.seconds),
        intervals=tuple(taken.intervals),
        verdict=replace(verdict, findings=findings),
        error=taken.error,
        percentiles=tuple(percentile(result, p) for p in PERCENTILES),
        every_s=every,
    )


def percentile(result: BenchmarkResult, p: float) -> Percentile:
    """Return a percentile of single calls with its interval, or how many calls it needs."""
    interval = percentile_interval(result.results, p / 100, CONFIDENCE)
    needs = percentile_needs(result.results, p / 100, CONFIDENCE)
    return Percentile(p, None if interval is None else result.percentile(p), interval, needs)
