# SPDX-License-Identifier: Apache-2.0
"""What may have spoiled a measurement: the state of the machine, and the shape of the numbers.

Reads only /proc and /sys, and skips what it cannot read. A finding is a reason to distrust a result;
it never changes one.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from portcall.bench._result import BenchmarkResult
from portcall.bench._units import format_duration

# Above this share of the mean, the spread is reported.
VARIATION_LIMIT = 0.05
# A sample this many times the timer's step, or the cost of reading it (seconds), is measured to 1 %.
TIMER_STEPS = 100
TIMER_COST = 1e-7
GOVERNORS = "sys/devices/system/cpu"


@dataclass(frozen=True)
class Finding:
    """One reason to distrust a measurement.

    Attributes:
        code: a word for programs, such as ``governor``.
        message: what was seen.
        advice: what to do about it.
    """

    code: str
    message: str
    advice: str

    def to_dict(self) -> dict[str, str]:
        """Return the finding as a dictionary, ready for JSON."""
        return asdict(self)


def check_conditions(result: BenchmarkResult, repeat_seconds: float, root: Path = Path("/")) -> list[Finding]:
    """Return what may have spoiled ``result``; empty when nothing was found.

    Parameters:
        result: what was measured.
        repeat_seconds: how long the shortest repeat lasted, all of its calls together.
        root: the folder in which ``proc`` and ``sys`` lie.
    """
    found = [too_short(repeat_seconds), unstable(result)]
    return [*check_machine(root), *(finding for finding in found if finding is not None)]


def check_machine(root: Path = Path("/")) -> list[Finding]:
    """Return what may spoil any measurement on this machine; empty when nothing was found."""
    return [finding for finding in (governor(root), load(root)) if finding is not None]


def governor(root: Path) -> Finding | None:
    names: set[str] = set()
    for file in sorted(root.joinpath(GOVERNORS).glob("cpu*/cpufreq/scaling_governor")):
        try:
            names.add(file.read_text().strip())
        except OSError:
            continue
    slow = sorted(names - {"performance"})
    if not slow:
        return None
    return Finding(
        "governor",
        f"the CPU frequency governor is {' and '.join(slow)}: the clock changes while measuring",
        "sudo cpupower frequency-set -g performance",
    )


def load(root: Path) -> Finding | None:
    try:
        average = float(root.joinpath("proc/loadavg").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    cores = os.cpu_count() or 1
    if average <= max(1.0, cores / 2):
        return None
    return Finding(
        "load",
        f"the machine is busy: load average {average:.1f} on {cores} cores",
        "stop other work, or pin the run to a free core with taskset",
    )


def too_short(repeat_seconds: float) -> Finding | None:
    if repeat_seconds >= TIMER_STEPS * max(time.get_clock_info("perf_counter").resolution, TIMER_COST):
        return None
    return Finding(
        "short",
        f"a repeat lasted only {format_duration(repeat_seconds)}: reading the clock is more than 1 % of it",
        "raise --number, or give --min-repeat-ms 10",
    )


def unstable(result: BenchmarkResult) -> Finding | None:
    if len(result.results) < 2 or result.mean <= 0:
        return None
    variation = result.std / result.mean
    if variation <= VARIATION_LIMIT:
        return None
    return Finding(
        "unstable",
        f"the results vary by {variation:.1%} of their mean (coefficient of variation, limit {VARIATION_LIMIT:.0%})",
        "repeat it when the machine is quiet, and compare the median or the minimum",
    )
