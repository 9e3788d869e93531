# SPDX-License-Identifier: Apache-2.0
"""Wait until a machine is as cool as it was at its best, which is remembered for each place, and has a core free."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from portcall._folders import cache_folder
from portcall.bench._conditions import Finding, Interval, Reader, Reading, Session, account, reader
from portcall.bench._measure import Progress
from portcall.bench._units import format_duration

NEAR, WARMER_C = 1.01, 3.0  # the probe, times the best, and degrees above the coolest, that are cool
STEADY_S = 20.0  # where nothing is remembered: neither gets better for so long
STEP_S = 1.0
AWAKE_S, AWAKE = 0.05, 20  # seconds of readings, and most of them, that wake a clock up
WORK_S = 0.3  # seconds of work that show whether others take the core: quotas are for tenths of a second
REMEMBERED = 20  # states at the beginning of measurements


@dataclass(frozen=True)
class Cooled:
    """How a wait ended.

    Attributes:
        reached: the machine is cool and nothing takes its core away, or it does not tell.
        seconds: how long it took.
        finding: what is not so; None where it is.
    """

    reached: bool
    seconds: float
    finding: Finding | None = None


def cool(
    limit: float,
    *,
    session: Session | None = None,
    place: str = "",
    progress: Progress = lambda words, seconds: nullcontext(),
    sleep: Callable[[float], None] = time.sleep,
) -> Cooled:
    """Wait until the machine is cool: its clock within 1 % of the best known, its heat within 3 °C of the least.

    Nor may other work, a quota or a hypervisor take the core away; from a session's thread, a quota alone is seen.
    Where nothing is known of the place, it waits until neither improves for 20 s. What it ends with is remembered.

    Parameters:
        limit: seconds to wait at most.
        session: the machine; None for this one.
        place: a name for the machine, under which its states are remembered.
        sleep: waits so many seconds.
    """
    read = reader(session)
    known = _remembered(place)
    waited, steady_since, best = 0.0, 0.0, _awake(read)
    if best is None:
        return Cooled(True, 0.0)
    now = best
    with progress("waiting until the machine is cool", limit):
        while True:
            cooled = _as_cool(now, known) if known else waited - steady_since >= STEADY_S
            taken = _taken(read, alone=session is None) if cooled else None
            if cooled and taken is None:
                break
            if waited >= limit:
                return Cooled(False, waited, taken or _finding(now, known, waited))
            step = min(STEP_S, limit - waited)
            sleep(step)
            waited += step
            now = _awake(read) or now
            if _better(now, best):
                best, steady_since = now, waited
    _remember(place, [*known, now])
    return Cooled(True, waited)


def _awake(read: Reader) -> Reading | None:
    """Return a reading of a core that is awake: the clock of an idle one may be low, and not by heat."""
    began, last, fastest = time.monotonic(), None, 0
    for _ in range(AWAKE):
        last = read()
        if last is None or last.probe_ns is None:
            break
        fastest = min(fastest or last.probe_ns, last.probe_ns)
        if time.monotonic() - began > AWAKE_S:
            break
    return replace(last, probe_ns=fastest) if last and fastest else last


def _taken(read: Reader, *, alone: bool) -> Finding | None:
    """Return what takes the core away from work.

    Parameters:
        alone: the thread that reads is this one, and does nothing else; a session's waits for requests in between.
    """
    first = last = read()
    until = time.monotonic() + WORK_S
    while first and last and first.time_ns and time.monotonic() < until:
        last = read()
    if not (first and last):
        return None
    work = Interval(first, last, 0.0, paced=not alone)
    work = replace(work, busy_s=work.grown("time_ns" if alone else "on_cpu_ns"))
    return next(account([work], on_host=alone), None)


def _better(now: Reading, best: Reading) -> bool:
    faster = now.probe_ns and best.probe_ns and now.probe_ns * NEAR < best.probe_ns
    heats = (now.temperature_c, best.temperature_c)
    return bool(faster) or (None not in heats and (now.temperature_c or 0) <= (best.temperature_c or 0) - 1)


def _as_cool(now: Reading, known: Sequence[Reading]) -> bool:
    probes = [each.probe_ns for each in known if each.probe_ns]
    heats = [each.temperature_c for each in known if each.temperature_c is not None]
    fast = not (probes and now.probe_ns) or now.probe_ns <= NEAR * min(probes)
    return fast and (not heats or now.temperature_c is None or now.temperature_c <= min(heats) + WARMER_C)


def _finding(now: Reading, known: Sequence[Reading], waited: float) -> Finding:
    probes = [each.probe_ns for each in known if each.probe_ns]
    slower = f", its clock {1 - min(probes) / now.probe_ns:.0%} below its best" if probes and now.probe_ns else ""
    heat = f", at {now.temperature_c:.0f} °C" if now.temperature_c is not None else ""
    text = f"the machine is not cool after {format_duration(waited)}{slower}{heat}"
    return Finding("hot", text, "wait longer, cool it, or measure what it keeps up: --sustained 5m")


# ---- What is remembered ----


def _file_of(place: str) -> Path:
    return cache_folder("bench") / f"{hashlib.sha256(place.encode()).hexdigest()[:16]}.json"


def _remembered(place: str) -> list[Reading]:
    try:
        states = json.loads(_file_of(place).read_text(encoding="utf-8"))
        return [Reading.from_json(json.dumps(state)) for state in states][-REMEMBERED:]
    except (OSError, ValueError, TypeError):
        return []


def _remember(place: str, states: Sequence[Reading]) -> None:
    kept = [{"probe_ns": each.probe_ns, "temperature_c": each.temperature_c} for each in states[-REMEMBERED:]]
    with contextlib.suppress(OSError):  # the next time begins anew
        file = _file_of(place)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(kept), encoding="utf-8")
        part.replace(file)
