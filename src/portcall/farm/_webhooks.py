# SPDX-License-Identifier: Apache-2.0
"""Tells other programs, by HTTP, what people should know at once.

Each message is a POST with a JSON object: ``what``, ``text``, and ``place``, ``key`` or ``lease``. It is sent again, a
few times, where nobody takes it.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import aiohttp

from portcall.farm._hub import Hub
from portcall.farm._model import USABLE, Event

LOOK = 30.0  # seconds between two looks at who waits
LONG_WAIT = 600.0
_PAUSES = (0.0, 2.0, 10.0)
_TIMEOUT = 10.0
_MOST_LEFT = 1000
_TOLD = ("place quarantined", "place bad", "place power cycle")


class Webhooks:
    """Sends messages, one after the other, until ``close``.

    Args:
        hub: the farm.
        urls: where to.
    """

    def __init__(self, hub: Hub, urls: tuple[str, ...]) -> None:
        self._hub = hub
        self._urls = urls
        self._left: asyncio.Queue[dict[str, Any]] = asyncio.Queue(_MOST_LEFT)
        self._empty: set[str] = set()
        self._long: set[str] = set()
        hub.watchers.append(self.watch)
        self._tasks = [asyncio.ensure_future(self._send()), asyncio.ensure_future(self._look())]

    def watch(self, events: list[Event]) -> None:
        """Take note of the events of a turn."""
        for event in events:
            if event.what in _TOLD:
                self._say(event.what, f"{event.place}: {event.detail}", place=event.place)
        if any(event.what.startswith("place ") for event in events):
            self._find_empty_keys()

    def _find_empty_keys(self) -> None:
        """Say which keys have no place any more that could be handed out."""
        places = self._hub.state.places.values()
        usable = {key for p in places if p.state != "offline" and p.health in USABLE and not p.drain for key in p.keys}
        empty = {key for place in places for key in place.keys} - usable
        for key in sorted(empty - self._empty):
            self._say("key empty", f"no place of '{key}' can be handed out", key=key)
        self._empty = empty

    def find_long_waits(self) -> None:
        """Say who has waited too long, once each."""
        state = self._hub.state
        waiting = {x.id: x for x in state.leases.values() if x.state == "queued" and x.created + LONG_WAIT < state.now}
        for id in waiting.keys() - self._long:
            lease = waiting[id]
            self._say("long wait", f"{lease.user} has waited {LONG_WAIT:g} s for '{lease.want}'", lease=id)
        self._long = set(waiting)

    def _say(self, what: str, text: str, **more: str) -> None:
        with contextlib.suppress(asyncio.QueueFull):
            self._left.put_nowait({"what": what, "text": text, "time": self._hub.state.now, **more})

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            self.find_long_waits()

    async def _send(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_TIMEOUT)) as session:
            while True:
                message = await self._left.get()
                for url in self._urls:
                    await self._send_to(session, url, message)

    async def _send_to(self, session: aiohttp.ClientSession, url: str, message: dict[str, Any]) -> None:
        why = ""
        for pause in _PAUSES:
            await asyncio.sleep(pause)
            try:
                async with session.post(url, json=message) as answer:
                    if answer.status < 300:
                        return
                    why = f"it answers with {answer.status}"
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
                why = str(error)
        self._hub.log("webhook", f"cannot tell {url} of {message['what']!r}: {why}")

    async def close(self) -> None:
        """Send nothing more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
