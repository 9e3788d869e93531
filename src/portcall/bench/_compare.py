# SPDX-License-Identifier: Apache-2.0
"""Compare two sides: run them in turns, in processes that are started for each run, until the answer is settled."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext

from portcall.bench._comparison import MARGIN, ROUND, ROUNDS, RUNS, Comparison, order, run_ratio
from portcall.errors import ConnectError, SessionTimeoutError

BLOCK_S = 0.05  # seconds that a block lasts, of the faster side
MOST_CALLS = 1 << 30

Timer = Callable[[int], float]  # makes so many calls, and returns the seconds that all of them took
Side = Callable[[], "AbstractContextManager[Timer] | Timer"]  # opens a side anew, best in a process of its own


def compare(
    new: Side,
    old: Side,
    *,
    margin: float = MARGIN,
    runs: int = RUNS,
    limit: float | None = None,
    number: int | None = None,
    block_s: float = BLOCK_S,
    on_run: Callable[[Comparison], object] = lambda comparison: None,
) -> Comparison:
    """Say whether the new side is faster than the old one: at least 6 runs, and as many more as the answer needs.

    ::

        def side(path):  # a process of its own, for each run
            session = portcall.rpc.PopenSession()
            ...
        c = portcall.bench.compare(lambda: side("new.so"), lambda: side("old.so"))
        c.verdict, c.ratio, c.interval

    Parameters:
        new, old: open a side; they return its timer, or what ``with`` makes one of, which is left after the run.
        margin: a difference that does not matter; 0.01 is 1 %.
        runs: how many there may be.
        limit: what the ratio may be at most; then runs go on until it is settled whether it is.
        number: calls in a block; chosen where it is not given, so that the faster side's last ``block_s`` seconds.
        on_run: called after each run with what is known, which is all that is left where a later run fails.

    Raises:
        ValueError: fewer than 3 runs, a negative margin, a limit that is not positive; a timer that tells no time.
    """
    if runs < 3:
        raise ValueError(f"{runs} runs are too few for an interval: give 3 or more")
    if not 0 <= margin < math.inf or not (limit is None or 0 < limit < math.inf):
        raise ValueError(f"margin {margin} and limit {limit} must be finite and not negative, and a limit not 0")
    if number is not None and number < 1:
        raise ValueError(f"invalid number {number} (must be 1 or more)")
    sides = (new, old)
    ratios: list[float] = []
    seconds: tuple[list[float], list[float]] = ([], [])
    together = True
    while True:
        first = len(ratios) % 2
        if together:
            try:
                number = _run(sides, first, number, block_s, ratios, seconds)
            except _NoRoomError as error:
                if ratios:
                    raise error.why from None
                together = False
        if not together:
            number = _run_apart(sides, first, number, block_s, ratios, seconds)
        medians = statistics.median(seconds[0]), statistics.median(seconds[1])
        known = Comparison(tuple(ratios), runs, margin, limit, number or 1, medians, together)
        on_run(known)
        if known.done:
            return known


class _NoRoomError(Exception):
    """The second side cannot be opened while the first one is."""

    def __init__(self, why: ConnectError | SessionTimeoutError) -> None:
        super().__init__(str(why))
        self.why = why


def _run(
    sides: tuple[Side, Side], first: int, number: int | None, block_s: float,
    ratios: list[float], seconds: tuple[list[float], list[float]],
) -> int:  # fmt: skip
    """Open both sides, that one first; add the ratio of a run, and the seconds of a call in each block."""
    with ExitStack() as opened:
        timers: dict[int, Timer] = {first: _enter(opened, sides[first])}
        try:
            timers[1 - first] = _enter(opened, sides[1 - first])
        except (ConnectError, SessionTimeoutError) as error:
            raise _NoRoomError(error) from error
        if number is None:
            number = max(calls_in(timers[side], block_s) for side in (first, 1 - first))
        else:
            for side in (first, 1 - first):
                timers[side](number)  # fills caches; not counted
        blocks: tuple[list[float], list[float]] = ([], [])
        for place in range(ROUNDS):
            for side in order(place + len(ratios)):
                blocks[side].append(timers[side](number) / number)
    _keep(blocks, ratios, seconds)
    return number


def _run_apart(
    sides: tuple[Side, Side], first: int, number: int | None, block_s: float,
    ratios: list[float], seconds: tuple[list[float], list[float]],
) -> int:  # fmt: skip
    """The same where there is room for one side at a time: one after the other, so runs differ by what drifts."""
    blocks: tuple[list[float], list[float]] = ([], [])
    for side in (first, 1 - first):
        with ExitStack() as opened:
            timer = _enter(opened, sides[side])
            if number is None:
                number = calls_in(timer, block_s)
            else:
                timer(number)
            blocks[side].extend(timer(number) / number for _ in range(len(ROUND) // 2 * ROUNDS))
    _keep(blocks, ratios, seconds)
    assert number is not None
    return number


def _keep(
    blocks: tuple[list[float], list[float]], ratios: list[float], seconds: tuple[list[float], list[float]]
) -> None:
    ratios.append(run_ratio(*blocks))
    for side in (0, 1):
        seconds[side].extend(blocks[side])


def _enter(opened: ExitStack, side: Side) -> Timer:
    made = side()
    return opened.enter_context(made if isinstance(made, AbstractContextManager) else nullcontext(made))


def calls_in(timer: Timer, seconds: float) -> int:
    """Return how many calls last so long, at least one. The first calls, which fill caches, are made here."""
    number = 1
    timer(number)
    while (taken := timer(number)) < seconds and number < MOST_CALLS:
        wanted = number * seconds / taken if taken > 0 else math.inf
        number = min(max(number + 1, math.ceil(min(wanted * 1.05, number * 10))), MOST_CALLS)
    return number
