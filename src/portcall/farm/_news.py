# SPDX-License-Identifier: Apache-2.0
"""How somebody waits for news. A timer and a future are all that waiting takes: thousands wait."""

from __future__ import annotations

import asyncio


class News:
    """Wakes all who wait for it."""

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


class NewsOf:
    """News of each of many things, by its id."""

    def __init__(self) -> None:
        self._news: dict[str, News] = {}

    async def wait(self, id: str, seconds: float) -> bool:
        """Return whether there was news of a thing within that time, from now on."""
        return await self._news.setdefault(id, News()).wait(seconds)

    def tell(self, id: str) -> None:
        news = self._news.pop(id, None)
        if news is not None:
            news.tell()
