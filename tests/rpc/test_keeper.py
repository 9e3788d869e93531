# SPDX-License-Identifier: Apache-2.0
"""The process of the server without Python that keeps the directories: what happens when it is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from rpc.processes import children_of
from rpc.raw_client import RETURN, RawClient, text
from rpc.serving import serving


def test_keeper_that_is_killed_is_replaced_and_sessions_go_on() -> None:
    with serving(program="board") as server:
        (keeper,) = children_of(server.process.pid)
        with RawClient(server.address).open() as client:
            os.kill(keeper, signal.SIGKILL)
            server.event("restart")
            assert client.call("tvm.rpc.server.upload", text("a"), text("hello"))[0] == RETURN
            folder = Path(client.call("tvm.rpc.server.workpath", text(""))[1][28:].decode())
            name = client.name
        server.ended(name)
        for _ in range(2000):
            with RawClient(server.address).open() as another:
                assert another.call("tvm.rpc.server.upload", text("a"), text("hello"))[0] == RETURN
            if not folder.parent.exists():
                return
        raise AssertionError("the directory of the session is still there")
