# SPDX-License-Identifier: Apache-2.0
"""The event loop of the supervisor: descriptors, times, and a barrier round each call.

Rules:

* An action that raises harms no other: its owner is asked to end what failed, or it is tried again after a pause.
* No wait is without a bound, and no wait is longer than the system takes.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field

LONGEST_WAIT = 60.0  # seconds
PAUSE = 1.0  # seconds until what failed is tried again

Action = Callable[[], object]
OnError = Callable[[Exception], object]


@dataclass(eq=False)
class Watch:
    """A descriptor that is watched."""

    descriptor: int
    events: int
    action: Action
    failed: OnError | None


@dataclass(order=True)
class Timer:
    """An action at a time; ``cancel`` keeps it from happening."""

    when: float
    order: int
    action: Action | None = field(compare=False)
    failed: OnError | None = field(compare=False)

    def cancel(self) -> None:
        self.action = None


class Loop:
    """Waits for descriptors and times, and calls what was asked for.

    Parameters:
        on_error: called with each error that an action raised.
    """

    def __init__(self, on_error: OnError) -> None:
        self._on_error = on_error
        self._poll = select.epoll()
        self._watches: dict[int, Watch] = {}
        self._timers: list[Timer] = []
        self._many_timers = 1000
        self._order = itertools.count()

    def watch(
        self, descriptor: int, action: Action, *, events: int = select.EPOLLIN, failed: OnError | None = None
    ) -> None:
        """Call ``action`` whenever a descriptor has ``events``, until it is forgotten.

        An error goes to ``failed``, which ends what the descriptor belongs to. Without it, or where it raises too, the
        descriptor is left alone for ``PAUSE`` seconds.
        """
        self._register(descriptor, events)
        self._watches[descriptor] = Watch(descriptor, events, action, failed)

    def _register(self, descriptor: int, events: int) -> None:
        try:
            self._poll.register(descriptor, events)
        except FileExistsError:  # it could not be unregistered
            self._poll.modify(descriptor, events)

    def forget(self, descriptor: int) -> None:
        """Watch a descriptor no more; call it before the descriptor is closed."""
        if self._watches.pop(descriptor, None) is not None:
            with contextlib.suppress(OSError):  # it pauses
                self._poll.unregister(descriptor)

    def call_at(self, when: float, action: Action, failed: OnError | None = None) -> Timer:
        """Call ``action`` once at a time of ``time.monotonic``; one that fails is tried again after a pause."""
        timer = Timer(when, next(self._order), action, failed)
        heapq.heappush(self._timers, timer)
        if len(self._timers) > self._many_timers:  # most were cancelled, long before their time
            self._timers = [timer for timer in self._timers if timer.action is not None]
            heapq.heapify(self._timers)
            self._many_timers = max(1000, 2 * len(self._timers))
        return timer

    def call_after(self, seconds: float, action: Action, failed: OnError | None = None) -> Timer:
        return self.call_at(time.monotonic() + seconds, action, failed)

    def step(self) -> None:
        """Wait for what comes next, and do it."""
        for watch in self._wait():
            if self._watches.get(watch.descriptor) is not watch:  # an earlier one of these events has ended it
                continue
            if not self.guard(watch.action, watch.failed) and self._watches.get(watch.descriptor) is watch:
                self._pause(watch)
        now = time.monotonic()
        while self._timers and self._timers[0].when <= now:
            timer = heapq.heappop(self._timers)
            if timer.action is not None and not self.guard(timer.action, timer.failed):
                self.call_at(now + PAUSE, timer.action, timer.failed)

    def guard(self, action: Action, failed: OnError | None = None) -> bool:
        """Call an action; return whether it, or ``failed`` with its error, came to an end."""
        try:
            action()
        except Exception as error:
            self._report(error)
            if failed is None:
                return False
            try:
                failed(error)
            except Exception as another:
                self._report(another)
                return False
        return True

    def close(self) -> None:
        self._poll.close()

    def _wait(self) -> list[Watch]:
        while self._timers and self._timers[0].action is None:
            heapq.heappop(self._timers)
        left = self._timers[0].when - time.monotonic() if self._timers else LONGEST_WAIT
        try:
            found = self._poll.poll(min(max(left, 0.0), LONGEST_WAIT))
        except OSError as error:
            self._report(error)
            time.sleep(PAUSE / 10)
            return []
        ready = []
        for descriptor, _ in found:
            if descriptor in self._watches:
                ready.append(self._watches[descriptor])
            else:  # it could not be unregistered
                with contextlib.suppress(OSError):
                    self._poll.unregister(descriptor)
        return ready

    def _pause(self, watch: Watch) -> None:
        with contextlib.suppress(OSError):
            self._poll.unregister(watch.descriptor)
        self.call_after(PAUSE, lambda: self._resume(watch))

    def _resume(self, watch: Watch) -> None:
        if self._watches.get(watch.descriptor) is watch:
            self._register(watch.descriptor, watch.events)

    def _report(self, error: Exception) -> None:
        with contextlib.suppress(Exception):
            self._on_error(error)


def run_all(*steps: Action) -> None:
    """Take every step, whatever the others raise.

    Raises:
        Exception: the first error, afterwards.
    """
    first: Exception | None = None
    for step in steps:
        try:
            step()
        except Exception as error:
            first = first or error
    if first is not None:
        raise first
