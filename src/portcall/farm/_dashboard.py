# SPDX-License-Identifier: Apache-2.0
"""Keeps the last day of a farm up to date, out of its store."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from portcall.farm._day import STEP, STEPS, Day
from portcall.farm._hub import Hub
from portcall.farm._store import StoreError

_PAGE = 1000
_MOST_READ = 50_000  # events that are read at first, the last ones


class Dashboard:
    """The last day of a farm, which is read when somebody looks."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._last = 0
        self._reading = asyncio.Lock()
        self.day: Day | None = None

    async def update(self) -> Day:
        """Return the last day until now, or until when the store could be read last."""
        async with self._reading:
            with contextlib.suppress(StoreError):
                newest = self._newest()
                if self.day is None or newest < self._last:  # the store has lost its events
                    self.day = await self._begin(newest)
                for after in range(self._last, newest, _PAGE):
                    until = min(after + _PAGE, newest)
                    for event in self._hub.store.history(after=after, before=until + 1, limit=_PAGE):
                        self.day.take(event)
                    self._last = until
                    await asyncio.sleep(0)
        return self.day or Day()

    def _newest(self) -> int:
        found = self._hub.store.history(limit=1)
        return int(found[0]["number"]) if found else 0

    def _users(self) -> dict[str, str]:
        """Return who has each place."""
        return {lease.place: lease.user for lease in self._hub.state.leases.values() if lease.place}

    async def _begin(self, newest: int) -> Day:
        """Read the events of the last day, the newest first, and return it."""
        start, read = self._hub.now() - STEP * STEPS, list[dict[str, Any]]()
        before = newest + 1
        while before > 1 and len(read) < _MOST_READ:
            page = self._hub.store.history(before=before, limit=_PAGE)
            if not page:
                break
            read += reversed(page)
            before = page[0]["number"]
            if page[0]["time"] < start:
                break
            await asyncio.sleep(0)
        day = Day()
        day.begin(reversed(read), self._hub.state.places.values(), self._users())
        self._last = newest
        return day
