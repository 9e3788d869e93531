# SPDX-License-Identifier: Apache-2.0
"""The verdict on one run: whether its figure can be trusted, why not, and what to do about it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from portcall.bench._conditions import Finding, Interval, Reading, account, changes, check_machine, readings_of
from portcall.bench._result import BenchmarkResult
from portcall.bench._statistics import Shift, Speeds, find_shift, find_speeds, median_interval
from portcall.bench._units import format_duration

CONFIDENCE = 0.95
FEWEST = 10  # windows from which anything can be said
NARROW = 0.02  # half of the interval, of the median
TIMER_STEPS, TIMER_COST = 100, 1e-7  # a window of so many steps of the clock, or costs of reading it, is right to 1 %
COARSE_STEPS, EQUAL = (
    1000,
    0.2,
)  # steps of a window below which, with that share of equal values, the clock is too coarse


@dataclass(frozen=True)
class Verdict:
    """What a run of windows says.

    Attributes:
        ok: nothing that was found spoils the figure.
        known: the machine told its state; where it does not, nothing suspicious was seen, and that is all.
        median, interval: seconds per call, and where the true median lies with 95 % confidence.
        windows, window_s: how many values, and how long each took.
        findings: reasons to distrust the figure, and notes.
    """

    ok: bool
    known: bool
    median: float
    interval: tuple[float, float]
    windows: int
    window_s: float
    findings: tuple[Finding, ...]

    def __str__(self) -> str:
        """Return the verdict in a line."""
        if not self.ok:
            return "not trustworthy: " + "; ".join(each.message for each in self.findings if not each.note)
        low, high = self.interval
        half = (high - low) / 2 / self.median if self.median else 0.0
        basis = f"{CONFIDENCE:.0%}; {self.windows} windows of {format_duration(self.window_s)}"
        words = "trustworthy" if self.known else "nothing suspicious seen"
        return f"{words}: {format_duration(self.median)} ± {half:.1%} ({basis})"

    def to_dict(self) -> dict[str, object]:
        """Return the verdict, in seconds, ready for JSON; the findings are apart."""
        return {
            "ok": self.ok,
            "text": str(self),
            "interval_s": list(self.interval),
            "confidence": CONFIDENCE,
            "windows": self.windows,
            "window_s": self.window_s,
        }


def judge(
    result: BenchmarkResult,
    number: int,
    intervals: Sequence[Interval] = (),
    *,
    on_host: bool = True,
    rest_s: float = 0.0,
) -> Verdict:
    """Judge a run.

    Parameters:
        result: seconds per call, of each window in order.
        number: calls in a window.
        intervals: what the machine told between windows; empty where it tells nothing.
        on_host: the function computes on the processor.
        rest_s: seconds between windows, in which nothing was timed.
    """
    readings = readings_of(intervals)
    window = result.median * number
    causes = [*account(intervals, on_host), *changes(readings)]
    interval = median_interval(result.results, CONFIDENCE) if len(result.results) > 1 else (result.min, result.max)
    found = [
        *causes,
        *_shape(result, window + rest_s, interval, causes),
        *_clock(result, number, readings),
        *(check_machine(readings[-1]) if readings else [_UNKNOWN]),
    ]
    return Verdict(
        ok=all(finding.note for finding in found),
        known=bool(readings),
        median=result.median,
        interval=interval,
        windows=len(result.results),
        window_s=window,
        findings=tuple(found),
    )


_UNKNOWN = Finding(
    "unknown",
    "the server does not report the state of its machine",
    "look at its load and its clock there, or serve with portcall of this version",
    note=True,
)


def _shape(
    result: BenchmarkResult, window: float, interval: tuple[float, float], causes: Sequence[Finding]
) -> Iterator[Finding]:
    """Yield what the series itself says: too few, a shift, two speeds, a wide interval."""
    n = len(result.results)
    if n < FEWEST:
        text = f"{n} value{'s' * (n > 1)} say little: an interval needs {FEWEST} or more"
        yield Finding("few", text, f"--repeat 40 takes {format_duration(40 * window)}")
        return
    speeds = find_speeds(result.results)
    shift = find_shift(result.results) or (speeds and _once(result.results, speeds))
    if shift:
        yield _of_shift(shift, n, window, causes)
    elif speeds is not None:
        text = (
            f"two speeds: {format_duration(speeds.fast)} ({speeds.share:.0%}) and {format_duration(speeds.slow)} "
            f"({1 - speeds.share:.0%})"
        )
        yield Finding("modes", text, "pin it to one core (taskset -c 1 …): it may have cores of two kinds")
    half = (interval[1] - interval[0]) / 2 / result.median if result.median > 0 else 0.0
    if half > NARROW:
        more = round(n * (half / NARROW) ** 2)
        text = f"the median is known to ± {half:.1%} only"
        advice = f"--repeat {more} takes {format_duration(more * window)}"
        yield Finding("unstable", text, "mend what disturbs it first" if causes else f"{advice}; or quiet the machine")


def _once(values: Sequence[float], speeds: Speeds) -> Shift | None:
    """Return the place at which one speed follows the other, if that happens once."""
    slow = [value > (speeds.fast + speeds.slow) / 2 for value in values]
    places = [at for at in range(1, len(slow)) if slow[at] != slow[at - 1]]
    if len(places) > 1:
        return None
    before, after = (speeds.slow, speeds.fast) if slow[0] else (speeds.fast, speeds.slow)
    return Shift(places[0], before, after)


def _of_shift(shift: Shift, n: int, window: float, causes: Sequence[Finding]) -> Finding:
    after = format_duration(shift.place * window)
    if shift.change < 0 and shift.place <= n // 2:
        text = f"not warm yet: the first {after} are {shift.before / shift.after - 1:.0%} slower"
        return Finding("shift", text, "run it again; raise --repeat, so that the first part matters less")
    words = f"{'slower' if shift.change > 0 else 'faster'} by {abs(shift.change):.0%} after {after}"
    reason = next((each.message for each in causes if each.code in ("clock", "throttled", "waited")), "")
    text = f"it gets {words}" + (f", while {reason}" if reason else "")
    return Finding("shift", text, "measure again; if it stays, the machine or the data changes while it runs")


def _clock(result: BenchmarkResult, number: int, readings: Sequence[Reading]) -> Iterator[Finding]:
    """Yield that windows are too short for the clock that timed them."""
    step = readings[-1].clock_step_ns if readings else None
    resolution = step * 1e-9 if step else time.get_clock_info("perf_counter").resolution
    shortest = result.min * number
    if shortest < TIMER_STEPS * max(resolution, TIMER_COST):
        text = f"a repeat lasted only {format_duration(shortest)}: reading the clock is more than 1 % of it"
        yield Finding("short", text, "raise --number, or give --min-repeat-ms 10")
    elif shortest < COARSE_STEPS * resolution and len(set(result.results)) <= (1 - EQUAL) * len(result.results):
        text = f"a repeat lasted {format_duration(shortest)}, the clock's step is {format_duration(resolution)}"
        yield Finding("timer", text, "raise --number, or give --min-repeat-ms 10")
