# SPDX-License-Identifier: Apache-2.0
"""The agent of a place as the farm knows it, and how somebody waits for news."""

from __future__ import annotations

import asyncio
import secrets

from portcall.farm._model import Effect
from portcall.rpc.wire._farm import Admit, End, Offer, Order


class News:
    """Wakes all who wait for it. A timer and a future are all that waiting takes: thousands wait."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[bool]] = set()

    def tell(self) -> None:
        for future in self._waiting:
            _settle(future, True)

    async def wait(self, seconds: float) -> bool:
        """Return whether there was news within that time, from now on."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        timer = loop.call_later(seconds, _settle, future, False)
        self._waiting.add(future)
        try:
            return bool(await future)
        finally:
            timer.cancel()
            self._waiting.discard(future)


def _settle(future: asyncio.Future[bool], news: bool) -> None:
    if not future.done():
        future.set_result(news)


class Agent:
    """The agent of a place, between two of its questions."""

    def __init__(self, instance: str, user: str) -> None:
        self.secret = secrets.token_hex(16)
        self.instance, self.user = instance, user
        self.asked = 0  # questions, the last of which counts
        self.orders: list[Order] = []
        self.news = News()
        self.silence: asyncio.TimerHandle | None = None
        self.admitted: dict[str, News] = {}

    def order(self, effect: Effect) -> None:
        """Keep an effect for the next answer."""
        lease, place = effect.lease, effect.place
        assert place is not None
        if effect.what == "end":
            self.orders.append(
                End(effect.fence, lease.reason, lease=lease.id, user=lease.user)
                if lease is not None
                else End(effect.fence, "lease is over")
            )
        elif lease is not None:
            order = Offer if effect.what == "offer" else Admit
            key = effect.key or lease.match_key
            self.orders.append(order(lease.fence, key, lease.ceiling, lease.relay, lease=lease.id, user=lease.user))
        self.news.tell()
