# SPDX-License-Identifier: Apache-2.0
"""A lease that ends while its holder waits for the key of a session."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from farm.light import Channel, RefusedError
from farm.running import running_farm


def test_session_of_a_lease_that_ends_meanwhile_is_refused() -> None:
    with running_farm() as farm:

        async def run() -> str:
            agent, ann, boss = (Channel(farm.port, user) for user in ("agent", "ann", "boss"))
            me = {"place": "b", "agent": (await agent.call("register", place="b", keys=["k"], instance="1"))["agent"]}
            request = asyncio.create_task(ann.call("request", hold=10, want="k", secret="s" * 32))
            (offer,) = (await agent.call("next", hold=10, **me))["orders"]
            done = [{"what": "accepted", "fence": offer["fence"]}]
            orders = asyncio.create_task(agent.call("next", hold=10, done=done, **me))
            view = await request
            holder = {"lease": view["lease"], "secret": "s" * 32}
            session = asyncio.create_task(ann.call("session", hold=10, **holder))
            (admit,) = (await orders)["orders"]
            assert admit["do"] == "admit"
            kick = asyncio.create_task(boss.call("kick", lease=view["lease"], why="demo"))
            (end,) = (await agent.call("next", hold=10, **me))["orders"]
            assert end["do"] == "end"
            late = {"what": "admitted", "fence": admit["fence"], "key": admit["key"]}
            await agent.call("report", done=[late, {"what": "ended", "fence": end["fence"]}], **me)
            await kick
            try:
                with pytest.raises(RefusedError) as raised:
                    await session
                return raised.value.reason
            finally:
                for channel in (agent, ann, boss):
                    with contextlib.suppress(OSError):
                        channel.close()

        assert asyncio.run(run()) == "ended"
