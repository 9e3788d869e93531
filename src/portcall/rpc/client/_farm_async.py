# SPDX-License-Identifier: Apache-2.0
"""Leases of a farm's places for programs with asyncio. Waiting never blocks the event loop; cancelling withdraws."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any, TypeVar

from portcall.rpc.client._farm import Farm, Lease
from portcall.rpc.client._farm_channel import FarmChannel
from portcall.rpc.client._session import Session
from portcall.rpc.wire._tls import TLSOptions

T = TypeVar("T")


def connect_async(
    address: str = "", *, token: str | None = None, tls: TLSOptions | None = None, user: str = ""
) -> AsyncFarm:
    """Return a farm for programs with asyncio; the arguments are those of ``connect``.

    async with portcall.farm.connect_async("lab:9190") as farm:
        async with farm.lease("rasp4", wait=300) as lease, lease.session() as session:
            result = await lease.run(measure, session)
    """
    return AsyncFarm(FarmChannel(address, token, tls, user))


class AsyncFarm:
    """A farm; an asynchronous context manager."""

    def __init__(self, channel: FarmChannel) -> None:
        self._channel = channel
        self._farm = Farm(channel)

    @contextlib.asynccontextmanager
    async def lease(self, want: str = "", **options: Any) -> AsyncIterator[AsyncLease]:
        """Wait for a place, lease it for the block, and give it back; options and errors: see ``Farm.lease``."""
        farm = Farm(self._channel.clone())
        waiting = asyncio.ensure_future(asyncio.to_thread(farm.lease, want, **options))
        try:
            lease = await asyncio.shield(waiting)
        except asyncio.CancelledError:
            farm._channel.close()  # the thread's question ends, and its request is withdrawn
            with contextlib.suppress(Exception):
                await waiting
            await asyncio.to_thread(farm.close)
            raise
        except BaseException:
            await asyncio.to_thread(farm.close)
            raise
        try:
            yield AsyncLease(lease)
        finally:
            await asyncio.shield(asyncio.to_thread(farm.close))

    async def status(self) -> dict[str, Any]:
        """Return what ``Farm.status`` does."""
        return await asyncio.to_thread(self._farm.status)

    async def command(self, what: str, **fields: Any) -> dict[str, Any]:
        """Give a command, as ``Farm.command`` does."""
        return await asyncio.to_thread(lambda: self._farm.command(what, **fields))

    async def close(self) -> None:
        """Close the connections; leases end with their own blocks."""
        await asyncio.to_thread(self._farm.close)

    async def __aenter__(self) -> AsyncFarm:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()


class AsyncLease:
    """The right to use a place, as long as the block of ``AsyncFarm.lease``.

    Attributes:
        lease: the same for programs without asyncio.
    """

    def __init__(self, lease: Lease) -> None:
        self.lease = lease

    @property
    def place(self) -> str:
        """The id of the place."""
        return self.lease.place

    @contextlib.asynccontextmanager
    async def session(self, **options: Any) -> AsyncIterator[Session]:
        """Open a session for the block. Its methods block: call them in ``run``."""
        session = await asyncio.to_thread(lambda: self.lease.session(**options))
        try:
            yield session
        finally:
            await asyncio.shield(asyncio.to_thread(session.close))

    async def run(self, work: Callable[..., T], *args: Any) -> T:
        """Return ``work(*args)``, called in a thread."""
        return await asyncio.to_thread(work, *args)

    async def extend(self, seconds: float) -> None:
        """Let the lease last that many seconds from now on, within its limit."""
        await asyncio.to_thread(self.lease.extend, seconds)
