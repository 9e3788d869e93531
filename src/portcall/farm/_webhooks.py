# SPDX-License-Identifier: Apache-2.0
"""Tells other programs, by HTTP, what people should know at once.

Each message is a POST with a JSON object: ``what``, ``text``, and ``place``, ``key`` or ``lease``. It is sent again, a
few times, where a receiver does not take it. Each has its own queue and task: none waits for another.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp

from portcall.farm._hub import Hub
from portcall.farm._model import USABLE, Event
from portcall.farm._shown import host_of

LOOK = 30.0  # seconds between two looks at who waits
LONG_WAIT = 600.0
_PAUSES = (0.0, 2.0, 10.0)
_TIMEOUT = 10.0
_MOST_LEFT = 1000
_TOLD = ("place quarantined", "place bad", "place power cycle")


class Receiver:
    """Who gets messages, one after the other; its address may have secrets, so only its host is shown."""

    def __init__(self, hub: Hub, url: str) -> None:
        self._hub = hub
        self._url = url
        self._host = host_of(url)
        self._labels = f"{{receiver={json.dumps(self._host, ensure_ascii=False)}}}"
        self._left: asyncio.Queue[dict[str, Any]] = asyncio.Queue(_MOST_LEFT)
        self._count("sent", 0)
        self._count("failed", 0)

    def _count(self, what: str, number: int = 1) -> None:
        self._hub.counts[f"portcall_farm_webhooks_{what}", self._labels] += number

    def tell(self, message: dict[str, Any]) -> None:
        """Send a message when those before it are sent; drop it where too many are left."""
        try:
            self._left.put_nowait(message)
        except asyncio.QueueFull:
            self._failed(message, f"{_MOST_LEFT} messages wait for it already")

    async def send(self) -> None:
        """Send what there is, without end."""
        session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_TIMEOUT), cookie_jar=aiohttp.DummyCookieJar())
        async with session:
            while True:
                message = await self._left.get()
                why = ""
                for pause in _PAUSES:
                    await asyncio.sleep(pause)
                    why = await self._send_once(session, message)
                    if not why:
                        self._count("sent")
                        break
                else:
                    self._failed(message, why)

    async def _send_once(self, session: aiohttp.ClientSession, message: dict[str, Any]) -> str:
        """Send a message; return why it was not taken. The answer's body is not read."""
        try:
            async with session.post(self._url, json=message, allow_redirects=False) as answer:
                answer.close()
                return "" if 200 <= answer.status < 300 else f"it answers with {answer.status}"
        except Exception as error:  # whatever it is, the next message may get through; its text may have the address
            return getattr(error, "strerror", None) or type(error).__name__

    def _failed(self, message: dict[str, Any], why: str) -> None:
        self._count("failed")
        self._hub.log("webhook", f"cannot tell {self._host} of {message['what']!r}: {why}")


class Webhooks:
    """Sends messages until ``close``.

    Args:
        hub: the farm.
        urls: where to.
    """

    def __init__(self, hub: Hub, urls: tuple[str, ...]) -> None:
        self._hub = hub
        self._receivers = [Receiver(hub, url) for url in urls]
        self._empty: set[str] = set()
        self._long: set[str] = set()
        hub.watchers.append(self.watch)
        self._tasks = [asyncio.ensure_future(receiver.send()) for receiver in self._receivers]
        self._tasks.append(asyncio.ensure_future(self._look()))

    def watch(self, events: list[Event]) -> None:
        """Take note of the events of a turn."""
        for event in events:
            if event.what in _TOLD:
                self._say(event.what, f"{event.place}: {event.detail}", place=event.place)
        if any(event.what.startswith("place ") for event in events):
            self._find_empty_keys()

    def _find_empty_keys(self) -> None:
        """Say which keys have no place any more that could be handed out. After a start, agents have time to come."""
        hub = self._hub
        places, expects = hub.state.places.values(), hub.now() < hub.started + hub.state.rules.lost_agent
        here = [p for p in places if p.state != "offline" or (expects and p.since <= hub.started)]
        usable = {key for p in here if p.health in USABLE and not p.drain for key in p.keys}
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
        for receiver in self._receivers:
            receiver.tell({"what": what, "text": text, "time": self._hub.state.now, **more})

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            self.find_long_waits()
            self._find_empty_keys()

    async def close(self) -> None:
        """Send nothing more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
