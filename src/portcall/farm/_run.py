# SPDX-License-Identifier: Apache-2.0
"""Running a farm until a signal."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
from asyncio import sslproto
from collections.abc import Awaitable, Callable
from typing import Any

from portcall.extras import needed
from portcall.farm._access import Access
from portcall.farm._log import FarmLog
from portcall.farm._server import FarmOptions, Server
from portcall.rpc.wire._address import Address

_TLS_BUFFER = 32 << 10  # bytes of each connection; asyncio's own are 256 KiB, and filled with zeros


async def start(options: FarmOptions, log: FarmLog) -> tuple[Address, Access | None, Callable[[], Awaitable[None]]]:
    """Start a farm, or one process of it; return its address, its tokens where it decides, and what ends it."""
    if options.shared:
        with needed("farm", "a farm on Redis"):
            from portcall.farm._member import Member

        member = Member(options, log)
        return member.address, await member.start(), member.stop
    server = Server(options, log=log)
    address = await server.start()
    return address, server.access, server.stop


def serve(options: FarmOptions, on_ready: Callable[[Address, Access | None], Any]) -> int:
    """Run a farm in this process until SIGTERM or SIGINT, and return the signal's number.

    Parameters:
        options: its settings.
        on_ready: called once peers can connect, with its address, and its tokens unless another process decides.

    Raises:
        ValueError, OSError: it cannot start; the message says what to do.
    """

    async def run() -> int:
        loop = asyncio.get_running_loop()
        ended: asyncio.Queue[int] = asyncio.Queue()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.put_nowait, number)
        log = FarmLog(options.silent)
        log.start()
        try:
            address, access, stop = await start(options, log)
            try:
                on_ready(address, access)
                return await ended.get()
            finally:
                await stop()
        finally:
            log.close()

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if options.store != ":memory:" and not options.shared:
        os.umask(os.umask(0o077) | 0o077)  # the store has secrets of leases, as hashes, and who did what
    setattr(sslproto.SSLProtocol, "max_size", _TLS_BUFFER)  # noqa: B010 (it is declared as final)
    gc.freeze()  # what was imported stays, and thousands of peers make few cycles
    gc.set_threshold(20_000)
    return asyncio.run(run())
