# SPDX-License-Identifier: Apache-2.0
"""Measure something by windows, with readings of the machine in between, and judge the figure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from portcall.bench._conditions import Finding, Interval, Reader, Reading, Session, reader, readings_of
from portcall.bench._counts import TRIES, Counts, Measure, choose, too_short
from portcall.bench._result import BenchmarkResult
from portcall.bench._verdict import Verdict, judge

BETWEEN_S = 0.2  # seconds of windows between two readings, about
Progress = Callable[[str, float], AbstractContextManager[Any]]  # entered with what is done, and its seconds


@dataclass(frozen=True)
class Measurement:
    """A figure, what the machine did meanwhile, and whether the figure can be trusted.

    Attributes:
        result: seconds per call, of each window in order.
        counts: calls in a window, and windows.
        intervals: what the machine told around a few windows each, in order; empty where it does not tell.
        verdict: see Verdict.
        error: what ended it early, after some windows.
    """

    result: BenchmarkResult
    counts: Counts
    intervals: tuple[Interval, ...]
    verdict: Verdict
    error: BaseException | None = None

    @property
    def conditions(self) -> tuple[Reading, ...]:
        """Readings of the machine, before, between and after windows."""
        return readings_of(self.intervals)

    @property
    def peak_bytes(self) -> int | None:
        """The most memory that the process had, where the machine tells."""
        peaks = [each.peak_bytes for each in self.conditions if each.peak_bytes is not None]
        return max(peaks, default=None)

    @property
    def watts(self) -> float | None:
        """Mean power between the readings, of all that the sensors count; None where there is no sensor."""
        readings = [each for each in self.conditions if each.energy_j is not None and each.time_ns is not None]
        if len(readings) < 2 or readings[0].time_ns == readings[-1].time_ns:
            return None
        seconds = ((readings[-1].time_ns or 0) - (readings[0].time_ns or 0)) * 1e-9
        return ((readings[-1].energy_j or 0) - (readings[0].energy_j or 0)) / seconds

    @property
    def joules(self) -> float | None:
        """Energy of a call: the mean power times the median of its time; None where there is no sensor."""
        return None if self.watts is None else self.watts * self.result.median

    def energy(self) -> dict[str, Any]:
        """Return power, energy of a call, and the sensors that tell them, ready for JSON."""
        sensors = self.conditions[-1].energy_from if self.conditions else []
        return {"joules_per_call": self.joules, "watts": self.watts, "sensors": sensors}

    def to_dict(self) -> dict[str, Any]:
        """Return what was measured, in seconds and bytes, ready for JSON."""
        before = itertools.accumulate((each.windows for each in self.intervals), initial=0)
        return {
            **self.result.to_dict(),
            "verdict": self.verdict.to_dict(),
            "conditions": [
                {**reading.to_dict(), "windows": windows}
                for reading, windows in zip(self.conditions, before, strict=False)
            ],
            "memory_peak_bytes": self.peak_bytes,
            "energy": self.energy(),
            "warnings": [finding.to_dict() for finding in self.verdict.findings],
        }

    def __str__(self) -> str:
        return f"{self.result}\n{self.verdict}"


def measure(
    run: Measure,
    number: int | None = None,
    repeat: int | None = None,
    *,
    session: Session | None = None,
    on_host: bool = True,
    min_repeat_ms: int = 0,
    limit: float | None = None,
    keep: bool = False,
    progress: Progress = lambda words, seconds: nullcontext(),
) -> Measurement:
    """Measure by windows of 50 ms for about 2 s, and say whether the figure can be trusted.

    ::

        lib = portcall.load_module("kernels.so")
        m = portcall.bench.measure(lambda number, repeat: lib.time_evaluator("add_one", "cpu", number, repeat)(x, y))
        m.verdict.ok, m.verdict.interval, m.result.median

    Parameters:
        run: times so many calls, so many times: ``run(number, repeat) -> BenchmarkResult``.
        number: calls in a window; chosen where it is not given.
        repeat: windows; chosen where it is not given.
        session: where the function runs; None for this process.
        on_host: it computes on the processor, so sleep is suspicious.
        min_repeat_ms: how long a window lasts at least, which ``run`` sees to.
        limit: seconds that the caller has for all of it.
        keep: an error, or Ctrl-C, after the first windows ends it, and what was measured is returned, with the error.
        progress: entered with what is done now, and how many seconds it takes about; 0 when that is not known.
    """
    read = reader(session)
    for _ in range(TRIES):
        with progress("choosing how many calls to time", 0):
            counts = choose(run, number, repeat, min_repeat_ms, limit)
        with progress(f"timing {counts}", counts.seconds):
            taken = take(run, counts.number, read, up_to(counts), keep=keep)
        result = BenchmarkResult(tuple(taken.values))
        if number or taken.error or not too_short(result, counts):
            break
    verdict = judge(result, max(counts.number, _least_calls(result, min_repeat_ms)), taken.intervals, on_host=on_host)
    if taken.error:
        words = f"the run ended after {len(taken.values)} of {counts.repeat} windows: {_words(taken.error)}"
        ended = Finding("ended", words, "mend what ended it, and measure again")
        verdict = replace(verdict, ok=False, findings=(ended, *verdict.findings))
        counts = replace(counts, repeat=len(taken.values))
    return Measurement(result, counts, tuple(taken.intervals), verdict, taken.error)


def _words(error: BaseException) -> str:
    return "Ctrl-C" if isinstance(error, KeyboardInterrupt) else str(error) or type(error).__name__


def _least_calls(result: BenchmarkResult, min_repeat_ms: int) -> int:
    """Return how many calls a window had at least, for a shortest time of it."""
    return int(min_repeat_ms * 1e-3 / result.max) if result.max > 0 else 0


@dataclass
class Taken:
    """Windows and what the machine told around them.

    Attributes:
        values: seconds per call of each window.
        error: what ended it early.
    """

    values: list[float] = field(default_factory=list)
    intervals: list[Interval] = field(default_factory=list)
    error: BaseException | None = None


def up_to(counts: Counts, between_s: float = BETWEEN_S) -> Callable[[Sequence[float]], int]:
    """Return how many windows come next, for ``take``: so many as take about ``between_s``, until all are there."""
    at_once = max(int(between_s / max(counts.seconds / counts.repeat, 1e-9)), 1)
    return lambda values: min(at_once, counts.repeat - len(values))


def take(
    run: Measure,
    number: int,
    read: Reader,
    following: Callable[[Sequence[float]], int],
    *,
    paced: bool = False,
    keep: bool = False,
) -> Taken:
    """Time windows, a few at a time, with readings between them.

    Parameters:
        following: of the values so far, how many windows to time next; 0 ends it.
        paced: see Interval.
        keep: an error, or Ctrl-C, after the first windows ends it, and what was measured is returned.
    """
    taken = Taken()
    first = read()
    while (some := following(taken.values)) > 0:
        try:
            values = run(number, some).results
        except (Exception, KeyboardInterrupt) as error:
            if not (keep and taken.values):
                raise
            taken.error = error
            break
        taken.values.extend(values)
        last = read()
        if first is not None and last is not None:
            untimed = values[0]  # each run begins with a call that is not counted
            taken.intervals.append(Interval(first, last, sum(values) * number + untimed, len(values), paced))
        first = last
    return taken
