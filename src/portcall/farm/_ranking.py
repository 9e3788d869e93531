# SPDX-License-Identifier: Apache-2.0
"""Find the best of a few candidates: all of them are timed in turns, in a few sessions, on whichever board is free.

Of many figures that were measured one by one the least is too low: it is the one that luck helped most. So the best
few are timed again, beside each other. The session is the unit, as the run is of ``portcall.bench.compare``.
"""

from __future__ import annotations

import concurrent.futures
import functools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from portcall.bench._compare import BLOCK_S, Timer, calls_in
from portcall.bench._comparison import CONFIDENCE, FEWEST_RUNS, FIRST_LOOK, ROUNDS, interquartile_mean, mean_interval


@dataclass(frozen=True)
class Ranked:
    """A candidate beside the best one.

    Attributes:
        number: which of the candidates it is, from 0.
        ratio: its time over that of the best one.
        interval: where that ratio lies, with 99 % confidence; where 1 is in it, it may be the best one itself.
        seconds: of a call, the median of the sessions.
    """

    number: int
    ratio: float
    interval: tuple[float, float]
    seconds: float


def rank(
    candidates: Sequence[Any], timer: Callable[..., Timer], *, executor: concurrent.futures.Executor,
    runs: int = FIRST_LOOK, block_s: float = BLOCK_S,
) -> list[Ranked]:  # fmt: skip
    """Time candidates in turns, and return them with the best one first.

    ::

        figures = portcall.farm.measure(candidates, work, executor=boards)
        best = sorted(range(len(figures)), key=lambda n: figures[n].verdict.median)[:8]
        first = portcall.farm.rank([candidates[n] for n in best], timer, executor=boards)[0]
        candidates[best[first.number]]

    Parameters:
        timer: called with a session, where ``executor`` is of a farm, and a candidate; returns what makes so many calls
            and returns the seconds that all of them took.
        executor: as for ``measure``.
        runs: sessions, each with all candidates.
        block_s: how long the calls of the fastest candidate last, before it is the next one's turn.

    Raises:
        ValueError: no candidates, fewer than 3 runs, or calls that took no time.
    """
    if not candidates:
        raise ValueError("there are no candidates")
    if runs < FEWEST_RUNS:
        raise ValueError(f"{runs} runs are too few for an interval: give {FEWEST_RUNS} or more")
    tasks = [executor.submit(functools.partial(_run, timer, block_s, run), candidates) for run in range(runs)]
    times = [task.result() for task in tasks]
    logs = [[math.log(seconds) for seconds in of_run] for of_run in times]
    best = min(range(len(candidates)), key=lambda number: statistics.fmean(of_run[number] for of_run in logs))
    found = []
    for number in range(len(candidates)):
        beside = [of_run[number] - of_run[best] for of_run in logs]
        low, high = mean_interval(beside, CONFIDENCE)
        seconds = statistics.median(of_run[number] for of_run in times)
        found.append(Ranked(number, math.exp(statistics.fmean(beside)), (math.exp(low), math.exp(high)), seconds))
    return sorted(found, key=lambda each: each.ratio)


def _run(timer: Callable[..., Timer], block_s: float, run: int, *given: Any) -> list[float]:
    """Return the seconds of a call of each candidate: in a round forward and back, another one first in each."""
    *session, candidates = given
    timers = [timer(*session, candidate) for candidate in candidates]
    number = max(calls_in(each, block_s) for each in timers)
    blocks: list[list[float]] = [[] for _ in timers]
    for place in range(ROUNDS):
        first = (run * ROUNDS + place) % len(timers)
        order = [*range(first, len(timers)), *range(first)]
        for at in (*order, *reversed(order)):
            blocks[at].append(timers[at](number) / number)
    means = list(map(interquartile_mean, blocks))
    if not all(math.isfinite(mean) and mean > 0 for mean in means):
        raise ValueError(f"calls took {min(means)} s: they are too short for the clock")
    return means
