# SPDX-License-Identifier: Apache-2.0
"""The state of the machine on which something is timed: read by the core, there, between the windows of a measurement.

What the core counts only grows, so two readings tell who had the processor between them. Every number may be missing:
what cannot be read is None, and says nothing.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Protocol

from portcall import _core
from portcall.bench._units import format_duration
from portcall.errors import FunctionNotFoundError, RemoteError

FUNCTION = "portcall.rpc.conditions"
WAITED, ASLEEP, STOLEN = 0.02, 0.02, 0.01  # shares of the time above which they are told
CLOCK = 1.03  # the chain of multiplications takes so many times as long
OTHERS = 0.02  # share of the time that other threads of the process worked, above which ours may wait for them


@dataclass(frozen=True)
class Finding:
    """One reason to distrust a measurement, or a note.

    Attributes:
        code: a word for programs, such as ``waited``.
        message: what was seen.
        advice: what to do about it.
        note: it spoils nothing by itself.
    """

    code: str
    message: str
    advice: str
    note: bool = False

    def to_dict(self) -> dict[str, object]:
        """Return the finding as a dictionary, ready for JSON."""
        return asdict(self)


_LISTS = {
    "governor": str, "clock_hz": int, "energy_from": str, "energy_uj": int, "energy_range_uj": int, "power_uw": int,
}  # fmt: skip


@dataclass(frozen=True)
class Reading:
    """One reading of a machine, by the thread that works there.

    Attributes:
        time_ns: when, by the monotonic clock there; clock_step_ns: the smallest step of that clock.
        probe_ns: how long a fixed chain of 62,500 multiplications takes, the best of three: the clock of the core.
        on_cpu_ns, waited_ns: how long the thread was on a core, and ready without one, since it began.
        process_ns: processor time of all threads of its process.
        stolen_ns: of the machine by its hypervisor; quota_ns: how long the process was stopped by its quota.
        involuntary: how often the thread lost its core; major_faults: reads of pages from disk.
        rss_bytes, peak_bytes: memory of the process, now and at most.
        load1, running: load average of a minute, and threads that run or could.
        governor, clock_hz: of the cores that the thread may use; clock_max_hz: their highest.
        temperature_c, critical_c: the hottest zone, and where the machine turns itself off.
        throttles, cooling, undervoltage: how often heat or power slowed cores; states of coolers; alarms. All added up.
        swap_in: pages that were read from swap.
        energy_from: names of sensors of energy or power, the first kind that can be read: the processors' packages by
            RAPL (since Linux 5.10 for root only), counters of energy of hwmon, power of hwmon.
        energy_uj, energy_range_uj: what each has counted, and after how much it begins again, 0 if that is not told.
        power_uw: what each says now, where they tell power.
        energy_j: what they counted since the first reading of a measurement; power is taken for even in between.
        hidden: 1 where it is a browser's tab in the background.
        cpus, cpus_allowed: processors that are on, and that the process may use; memory_bytes: of the machine.
    """

    time_ns: int | None = None
    clock_step_ns: int | None = None
    probe_ns: int | None = None
    on_cpu_ns: int | None = None
    waited_ns: int | None = None
    process_ns: int | None = None
    stolen_ns: int | None = None
    quota_ns: int | None = None
    involuntary: int | None = None
    major_faults: int | None = None
    rss_bytes: int | None = None
    peak_bytes: int | None = None
    load1: float | None = None
    running: int | None = None
    governor: list[str] = field(default_factory=list)
    clock_hz: list[int] = field(default_factory=list)
    clock_max_hz: int | None = None
    temperature_c: float | None = None
    critical_c: float | None = None
    throttles: int | None = None
    cooling: int | None = None
    undervoltage: int | None = None
    swap_in: int | None = None
    energy_from: list[str] = field(default_factory=list)
    energy_uj: list[int] = field(default_factory=list)
    energy_range_uj: list[int] = field(default_factory=list)
    power_uw: list[int] = field(default_factory=list)
    energy_j: float | None = None
    hidden: int | None = None
    cpus: int | None = None
    cpus_allowed: int | None = None
    memory_bytes: int | None = None

    @classmethod
    def from_json(cls, text: str) -> Reading:
        """Return what a machine told. Names that are not known, and values of other types, are left out.

        Raises:
            ValueError: it is not an object of JSON.
        """
        try:
            given = json.loads(text)
        except RecursionError:
            given = None
        if not isinstance(given, dict):
            raise ValueError("the conditions of a machine are not an object of JSON")
        kept: dict[str, Any] = {}
        for each in fields(cls):
            value = given.get(each.name)
            if each.name in _LISTS:
                kind = _LISTS[each.name]
                if isinstance(value, list) and all(type(item) is kind for item in value):
                    kept[each.name] = value
            elif type(value) in (int, float):
                kept[each.name] = value
        return cls(**kept)

    def to_dict(self) -> dict[str, Any]:
        """Return what was read, ready for JSON."""
        return {name: value for name, value in asdict(self).items() if value not in (None, [])}


class Session(Protocol):
    """What has functions by name: ``portcall.rpc.Session``."""

    def __getitem__(self, name: str, /) -> Any: ...


Reader = Callable[[], Reading | None]  # None: the machine does not tell


def reader(session: Session | None = None) -> Reader:
    """Return a function that reads this machine, or a session's. TVM's servers, and older ones, do not tell."""
    try:
        ask = session[FUNCTION] if session is not None else _core.get_global(FUNCTION)
    except (FunctionNotFoundError, RemoteError):
        return lambda: None

    meter = Meter()

    def read() -> Reading | None:
        try:
            return meter.add(Reading.from_json(ask(True))) if ask else None
        except (RemoteError, ValueError, TypeError):
            return None

    return read


class Meter:
    """Adds up what the sensors of a machine count from its first reading on."""

    def __init__(self) -> None:
        self._last: Reading | None = None
        self._joules = 0.0

    def add(self, reading: Reading) -> Reading:
        """Return the reading with the joules so far, or as it is where no sensor tells."""
        if not reading.energy_from:
            return reading
        last = self._last
        if last is None or last.energy_from == reading.energy_from:  # else it is looked at later
            self._last = reading
        if last is not None and last is not self._last:
            seconds = ((reading.time_ns or 0) - (last.time_ns or 0)) * 1e-9
            counted = zip(last.energy_uj, reading.energy_uj, reading.energy_range_uj, strict=False)
            powers = zip(last.power_uw, reading.power_uw, strict=False)
            self._joules += 1e-6 * (sum(_grown(*each) for each in counted) + sum(map(sum, powers)) / 2 * seconds)
        return replace(reading, energy_j=self._joules)


def _grown(before: int, after: int, wraps_at: int) -> int:
    return after - before if after >= before else after + wraps_at - before if wraps_at > before else 0


def check_machine(reading: Reading | None = None) -> list[Finding]:
    """Return what may spoil any measurement on a machine, this one if none is given. All are notes."""
    reading = reading or reader()() or Reading()
    return [finding for finding in (_governor(reading), _load(reading)) if finding is not None]


def _governor(reading: Reading) -> Finding | None:
    slow = sorted(set(reading.governor) - {"performance"})
    if not slow:
        return None
    return Finding(
        "governor",
        f"the CPU frequency governor is {' and '.join(slow)}: the clock may change while measuring",
        "sudo cpupower frequency-set -g performance",
        note=True,
    )


def _load(reading: Reading) -> Finding | None:
    cores = reading.cpus or 1
    if reading.load1 is None or reading.load1 <= max(1.0, cores / 2):
        return None
    return Finding(
        "load",
        f"the machine is busy: load average {reading.load1:.1f} on {cores} cores",
        "stop other work, or pin the run to a free core with taskset",
        note=True,
    )


@dataclass(frozen=True)
class Interval:
    """What lies between two readings.

    Attributes:
        first, last: the readings.
        busy_s: how long the measured function ran there, by its own clock, untimed calls included.
        windows: how many were timed in it.
        paced: there were pauses between calls, which are no part of the time that is accounted for. Nor is the time
            until a core was free after a pause: only what the calls took without a core is known to be theirs.
    """

    first: Reading
    last: Reading
    busy_s: float
    windows: int = 0
    paced: bool = False

    @property
    def elapsed_s(self) -> float:
        """How much time there is to account for."""
        elapsed = self.grown("time_ns")
        return min(elapsed, max(self.busy_s, self.grown("on_cpu_ns"))) if self.paced else elapsed

    def taken(self, name: str) -> float:
        """Return by how much a counter of time that others took from the calls grew, in seconds."""
        grown = self.grown(name)
        return min(grown, max(self.busy_s - self.grown("on_cpu_ns"), 0.0)) if self.paced else grown

    def grown(self, name: str) -> float:
        """Return by how much a counter grew; 0 if it cannot be read. Nanoseconds become seconds."""
        before: float | None = getattr(self.first, name)
        after: float | None = getattr(self.last, name)
        if before is None or after is None:
            return 0.0
        return max(after - before, 0) * (1e-9 if name.endswith("_ns") else 1)


def readings_of(intervals: Sequence[Interval]) -> tuple[Reading, ...]:
    """Return the readings around intervals that follow each other."""
    return (*(each.first for each in intervals[:1]), *(each.last for each in intervals))


def account(intervals: Sequence[Interval], on_host: bool) -> Iterator[Finding]:
    """Yield what took the processor away while a function was timed.

    Parameters:
        on_host: it computes on the processor, and so has no reason to sleep.
    """
    elapsed = sum(each.elapsed_s for each in intervals)
    if elapsed <= 0:
        return
    ran, quota = (sum(each.grown(name) for each in intervals) for name in ("on_cpu_ns", "quota_ns"))
    waited, stolen = (sum(each.taken(name) for each in intervals) for name in ("waited_ns", "stolen_ns"))
    if waited > WAITED * elapsed:
        text = f"other work had the core for {waited / elapsed:.0%} of the time"
        yield Finding("waited", text, "stop other programs, or pin this one to a free core: taskset -c 1 …")
    if stolen > STOLEN * elapsed:
        text = f"the hypervisor took {stolen / elapsed:.0%} of a core's time away"
        yield Finding("stolen", text, "measure when the host is quiet, or on a machine of its own")
    if quota > 0:
        text = f"a quota stopped the process for {format_duration(quota)}"
        yield Finding("quota", text, "give the container or the control group more of the processor")
    busy = sum(each.busy_s for each in intervals)
    others = sum(each.grown("process_ns") for each in intervals) - ran
    asleep = busy - ran - waited
    if on_host and ran > 0 and asleep > ASLEEP * elapsed and others < OTHERS * elapsed:
        faults = sum(each.grown("major_faults") for each in intervals)
        cause = f"; {faults:.0f} pages came from disk" if faults else ""
        text = f"the function slept for {asleep / elapsed:.0%} of the time{cause}"
        yield Finding("asleep", text, "it was stopped, or waits for a disk or a device: look with top and vmstat")


def changes(readings: Sequence[Reading]) -> Iterator[Finding]:
    """Yield what changed in the machine from the first reading to the last: its clock, its heat."""
    if any(each.hidden for each in readings):
        yield Finding("hidden", "the tab was in the background, where browsers slow it down", "bring it to the front")
    if len(readings) < 2:
        return
    first, last = readings[0], readings[-1]
    heat = f", at {last.temperature_c:.0f} °C" if last.temperature_c is not None else ""
    slowed = [
        word
        for name, word in (("throttles", "heat or power slowed the cores"), ("cooling", "coolers were turned up"),
                           ("undervoltage", "the supply's voltage was too low"))
        if (getattr(last, name) or 0) > (getattr(first, name) or 0)
    ]  # fmt: skip
    advice = "cool the board and measure again, or run it for minutes first to see what it keeps up"
    if slowed:
        yield Finding("throttled", " and ".join(slowed) + heat, advice)
    probes = [1 / each.probe_ns for each in readings if each.probe_ns]
    clocks = [min(each.clock_hz) for each in readings if each.clock_hz and min(each.clock_hz) > 0]
    for speeds in (probes, clocks):
        third = len(speeds) // 3
        if not third:
            continue
        levels = [statistics.median(speeds[at : at + third]) for at in (0, third, len(speeds) - third)]
        if max(levels) > CLOCK * min(levels):
            fell = levels.index(min(levels)) > levels.index(max(levels))
            share = 1 - min(levels) / max(levels) if fell else max(levels) / min(levels) - 1
            text = f"the clock {'fell' if fell else 'rose'} by {share:.0%} during the run{heat}"
            yield Finding("clock", text, advice if fell else "warm up longer, or fix the clock: cpupower frequency-set")
            return
