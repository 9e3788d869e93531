# SPDX-License-Identifier: Apache-2.0
"""What a machine keeps up: a long run, its speed at the beginning and at the end."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

from portcall.bench._conditions import Finding, Interval, Session, account, reader
from portcall.bench._counts import SHORTEST_S, Counts, Measure, calls_in
from portcall.bench._measure import Measurement, Progress, take
from portcall.bench._result import BenchmarkResult
from portcall.bench._units import format_duration
from portcall.bench._verdict import Verdict, judge

WINDOWS, WINDOW_S = 1000, 0.05  # at least so many windows as long as possible, and the shortest
BETWEEN_S = 1.0  # seconds between two readings: a board must not rest
BURST_S = 2.0  # what a short measurement sees, and at most a tenth of a long one
AT_ONCE = 1000  # windows between two readings at most
PART = 4  # the last quarter is what it keeps up
KEPT = 0.95  # of the speed of the burst
ALLOWED = ("clock", "throttled")  # heat is what a long run looks for


@dataclass(frozen=True, kw_only=True)
class Sustained(Measurement):
    """A long run. Its verdict is on the last quarter of it.

    Attributes:
        burst: seconds per call at the beginning, as a short measurement sees them.
        sustained: seconds per call in the last quarter.
        full_s: for how long the speed was 95 % of that at the beginning, or more; None for all the time.
    """

    burst: float
    sustained: float
    full_s: float | None

    @property
    def kept(self) -> float:
        """The share of the speed at the beginning that is kept up."""
        return self.burst / self.sustained if self.sustained else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return what was measured, in seconds and bytes, ready for JSON."""
        figures = {"burst_s": self.burst, "sustained_s": self.sustained, "kept": self.kept, "full_s": self.full_s}
        return {**super().to_dict(), "sustained": figures}

    def __str__(self) -> str:
        return f"{self.result}\n{self.words()}\n{self.verdict}"

    def words(self) -> str:
        """Return both figures in a line."""
        full = "" if self.full_s is None else f", {KEPT:.0%} or more of it for {format_duration(self.full_s)}"
        both = f"burst {format_duration(self.burst)}, sustained {format_duration(self.sustained)}"
        return f"{both}: {self.kept:.0%} of the speed{full}"


def sustain(
    run: Measure,
    seconds: float,
    number: int | None = None,
    *,
    session: Session | None = None,
    on_host: bool = True,
    progress: Progress = lambda words, seconds: nullcontext(),
) -> Sustained:
    """Measure for minutes, without a rest, and say what is kept up.

    An error or Ctrl-C after the first windows ends it: what was measured is returned, with the error.

    Parameters:
        run, number, session, on_host, progress: as for ``measure``.
        seconds: how long.

    Raises:
        ValueError: no time.
    """
    if not seconds > 0:
        raise ValueError(f"a long run of {seconds} seconds has no time: it needs 10 or more")
    with progress("choosing how many calls to time", 0):
        window = max(WINDOW_S, seconds / WINDOWS)
        calls, each = (number, run(number, 1).min * number) if number else calls_in(run, max(window, 2 * SHORTEST_S))
        at_once = max(min(int(min(BETWEEN_S, seconds / 40) / max(each, 1e-9)), AT_ONCE), 1)

    began = time.monotonic()

    def following(values: Sequence[float]) -> int:
        return at_once if not values or max(sum(values) * calls, time.monotonic() - began) < seconds else 0

    with progress(f"timing for {format_duration(seconds)}", seconds):
        taken = take(run, calls, reader(session), following, keep=True)
    values, error = taken.values, taken.error
    verdict = _verdict(values, calls, taken.intervals, on_host)
    if error is not None:
        after = format_duration(sum(values) * calls)
        why = "Ctrl-C" if isinstance(error, KeyboardInterrupt) else str(error) or type(error).__name__
        text = f"the run ended after {after} of {format_duration(seconds)}: {why}"
        ended = Finding("ended", text, "mend what ended it, and measure again")
        verdict = replace(verdict, ok=False, findings=(ended, *verdict.findings))
    groups = _groups(values, calls, min(BURST_S, sum(values) * calls / 10))
    burst, sustained = groups[0][1], verdict.median
    slow = [at for at, median in groups if median * KEPT > burst] if sustained * KEPT > burst else []
    return Sustained(
        result=BenchmarkResult(tuple(values)),
        counts=Counts(calls, len(values), max(sum(values) * calls, 1e-9)),
        intervals=tuple(taken.intervals),
        verdict=verdict,
        error=error,
        burst=burst,
        sustained=sustained,
        full_s=slow[0] if slow else None,
    )


def _verdict(values: Sequence[float], number: int, intervals: Sequence[Interval], on_host: bool) -> Verdict:
    """Judge the last quarter; who had the processor counts for all of the run."""
    last = max(len(values) // PART, 1)
    ends = itertools.accumulate(each.windows for each in reversed(intervals))
    tail = [
        each for each, so_far in zip(reversed(intervals), ends, strict=True) if so_far <= last or each is intervals[-1]
    ]
    verdict = judge(BenchmarkResult(tuple(values[-last:])), number, tail[::-1], on_host=on_host)
    found = [replace(each, note=True) if each.code in ALLOWED else each for each in verdict.findings]
    found = [
        replace(each, message=f"in the last quarter {each.message}", advice="it has not settled: measure for longer")
        if each.code == "shift"
        else each
        for each in found
    ]
    codes = {each.code for each in found}
    found += [each for each in account(intervals, on_host) if each.code not in codes]
    return replace(verdict, ok=all(each.note for each in found), findings=tuple(found))


def _groups(values: Sequence[float], number: int, seconds: float) -> list[tuple[float, float]]:
    """Return when groups of windows began, which take so many seconds each, and their medians."""
    groups: list[tuple[float, float]] = []
    group: list[float] = []
    began = at = 0.0
    for value in values:
        group.append(value)
        at += value * number
        if at - began >= seconds:
            groups.append((began, statistics.median(group)))
            began, group = at, []
    return groups or [(0.0, statistics.median(values))]
