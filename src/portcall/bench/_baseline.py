# SPDX-License-Identifier: Apache-2.0
"""Compare a new figure with stored ones: what they vary by says between which figures the next one is as usual."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from portcall.bench._comparison import GateVerdict, judge_gate, t_quantile
from portcall.bench._stored import Result, list_of, median_of, number_of, part_of, title_of

FEWEST = 5  # stored figures: of fewer it is not known by how much they vary
CONFIDENCE = 0.98  # of both sides: 1 % each
CLOCK = 1.03  # times as fast as then, or as slow, is told
MEMORY = 0.02  # by which the memory that a machine tells may differ: its system keeps some for itself
MACHINE = ("machine", "processor", "cpus")  # what an environment tells of it
WHAT = ("function", "arguments", "inputs", "device", "end_to_end")  # ran; and of a model its file


@dataclass(frozen=True)
class Baseline:
    """A figure beside stored ones of the same machine.

    Attributes:
        medians: seconds of a call, of each stored run.
        median: of the new run.
        limit: what the ratio may be at most, by the user's word.
    """

    medians: tuple[float, ...]
    median: float
    limit: float | None = None

    @property
    def ratio(self) -> float:
        """The new figure over the mean of the stored ones, of their logarithms."""
        return self.median / math.exp(self._mean)

    @property
    def interval(self) -> tuple[float, float]:
        """Where the ratio lies where only chance differs from run to run: by a prediction interval, of 98 %.

        For k stored runs with standard deviation s it is t(0.99, k - 1) s sqrt(1 + 1 / k) wide on both sides.
        """
        k = len(self.medians)
        spread = statistics.stdev(map(math.log, self.medians))
        half = t_quantile((1 + CONFIDENCE) / 2, k - 1) * spread * math.sqrt(1 + 1 / k)
        return self.ratio * math.exp(-half), self.ratio * math.exp(half)

    @property
    def verdict(self) -> Literal["faster", "slower", "as usual"]:
        """Whether the new figure is outside of what is usual."""
        low, high = self.interval
        return "slower" if low > 1 else "faster" if high < 1 else "as usual"

    @property
    def gate(self) -> GateVerdict | None:
        """Whether the ratio is within the limit; None without one."""
        return judge_gate(self.interval, self.limit)

    @property
    def _mean(self) -> float:
        return statistics.fmean(map(math.log, self.medians))

    def to_dict(self) -> dict[str, Any]:
        """Return it ready for JSON."""
        return {
            "verdict": self.verdict, "ratio": self.ratio, "interval": list(self.interval), "confidence": CONFIDENCE,
            "stored_s": list(self.medians), "median_s": self.median, "limit": self.limit, "gate": self.gate,
        }  # fmt: skip

    def __str__(self) -> str:
        low, high = self.interval
        figures = f"{self.ratio:.3f} of the time of {len(self.medians)} stored runs, {low:.3f} to {high:.3f}"
        figures += f" ({CONFIDENCE:.0%})"
        if self.limit is None:
            usual = self.verdict if self.verdict == "as usual" else f"{self.verdict} than usual"
            return f"{usual}: {figures}"
        gate = "slower than the limit" if self.gate == "slower" else self.gate
        return f"{gate}: {figures}; the limit is {self.limit:.3f}"


def baseline(new: Result, stored: Sequence[Result], limit: float | None = None) -> Baseline:
    """Compare a result with stored ones.

    Raises:
        ValueError: they are too few, or of another machine, function or model.
    """
    for each in stored:
        check_same(new, each)
    check_many(stored)
    return Baseline(tuple(median_of(each) for each in stored), median_of(new), limit)


def check_many(stored: Sequence[Result]) -> None:
    """Refuse stored results that are too few, or comparisons.

    Raises:
        ValueError: see there.
    """
    if any("comparison" in each for each in stored):
        raise ValueError("a stored comparison has ratios, and no figure to compare with")
    if len(stored) < FEWEST:
        raise ValueError(f"how much runs differ is not told by {len(stored)} of them: {FEWEST} or more do")
    if min(map(median_of, stored)) <= 0:
        raise ValueError("a stored figure is 0 s")


def check_same(new: Result, old: Result) -> None:
    """Refuse a stored result that is of something else.

    Raises:
        ValueError: it is of another machine, function or model, or was measured in another way.
    """
    here, there = _place(new), _place(old)
    for name in here.keys() & there.keys():
        if here[name] != there[name]:
            raise ValueError(f"{title_of(old)} was measured on another machine: {name} {there[name]}, now {here[name]}")
    memory = [_last(each, "memory_bytes") for each in (new, old)]
    if None not in memory and abs((memory[0] or 0) - (memory[1] or 0)) > MEMORY * (memory[0] or 0):
        raise ValueError(f"{title_of(old)} was measured on another machine: one with other memory")
    for name in WHAT:
        if new.get(name) != old.get(name):
            raise ValueError(f"the stored figure is of something else: {name} {old.get(name)}, now {new.get(name)}")
    if "function" not in new and title_of({**new, "title": None}) != title_of({**old, "title": None}):
        raise ValueError(f"the stored figure is of another model: {title_of(old)}, now {title_of(new)}")
    for way in ("sustained", "latency"):
        if (way in new) != (way in old):
            raise ValueError(f"one of both figures was measured with --{way}, the other one without it")


def clock_then(new: Result, stored: Sequence[Result]) -> float | None:
    """Return how fast the clock is now, over that of the stored runs, where they differ by 3 % or more."""
    then = [probe for each in stored if (probe := _probe(each))]
    now = _probe(new)
    if not then or not now:
        return None
    ratio = statistics.median(then) / now
    return ratio if max(ratio, 1 / ratio) >= CLOCK else None


def _probe(result: Result) -> float | None:
    probes = [probe for each in list_of(result, "conditions") if (probe := number_of(each, "probe_ns"))]
    return statistics.median(probes) if probes else None


def _place(result: Result) -> dict[str, object]:
    """Return what tells a machine from others: of a server its name, and its processors by its readings."""
    peer = part_of(result, "rpc").get("peer")
    found: dict[str, object] = {"at": peer or "this machine"}
    if peer is None:
        environment = part_of(result, "environment")
        found.update((name, environment[name]) for name in MACHINE if environment.get(name))
    if (cpus := _last(result, "cpus")) is not None:
        found["processors"] = int(cpus)
    return found


def _last(result: Result, name: str) -> float | None:
    readings = list_of(result, "conditions")
    return number_of(readings[-1], name) if readings else None
