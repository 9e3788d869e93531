# SPDX-License-Identifier: Apache-2.0
"""``portcall bench --trace``: the nodes of a run, and beside them what its machine told before and after it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portcall.bench import Interval, Reading

if TYPE_CHECKING:
    from portcall.graph import Profile
    from portcall.rpc import Recorder
    from portcall.vm import Profile as CallProfile

LINKS = 62_500  # of the chain of multiplications
LEVELS: dict[
    str, Callable[[Reading], float | None]
] = {  # what a reading tells at its moment: a counter's name, and its value
    "temperature, °C": lambda reading: reading.temperature_c,
    "multiplications in a row, per us": lambda reading: LINKS / reading.probe_ns * 1e3 if reading.probe_ns else None,
    "memory, MiB": lambda reading: None if reading.rss_bytes is None else reading.rss_bytes / (1 << 20),
    "throttled, times": lambda reading: reading.throttles,
}


@contextlib.contextmanager
def recording(wanted: bool) -> Iterator[Recorder | None]:
    """Record the calls of sessions in a block, if that is wanted."""
    if not wanted:
        yield None
        return
    from portcall import rpc

    with rpc.trace() as calls:
        yield calls


def write_trace(
    profile: Profile | CallProfile, before: Reading | None, after: Reading | None, file: str,
    calls: Sequence[dict[str, Any]] = (),
) -> None:  # fmt: skip
    """Write a run for ui.perfetto.dev, with counters of its machine where that tells them, and the calls of a session.

    A machine's program has no nodes: nothing is written of it.
    """
    if not (hasattr(profile, "to_trace") and hasattr(profile, "span")):
        return
    trace = profile.to_trace()
    if before is not None and after is not None:
        trace["traceEvents"] += counters(before, after, profile.span)
    trace["traceEvents"] += calls
    Path(file).write_text(json.dumps(trace), encoding="utf-8")


def counters(before: Reading, after: Reading, seconds: float) -> list[dict[str, Any]]:
    """Return counters from the begin of a run to its end, as Chrome's trace format has them."""
    found = [
        (name, at, value)
        for name, of in LEVELS.items()
        for at, reading in ((0.0, before), (seconds, after))
        if (value := of(reading)) is not None
    ]
    interval = Interval(before, after, seconds)
    if before.waited_ns is not None and interval.elapsed_s > 0:
        share = interval.grown("waited_ns") / interval.elapsed_s
        found += [("waited for a core, %", at, share * 100) for at in (0.0, seconds)]
    return [
        {"ph": "C", "name": name, "pid": 1, "tid": 0, "ts": at * 1e6, "args": {"value": round(value, 3)}}
        for name, at, value in found
    ]
