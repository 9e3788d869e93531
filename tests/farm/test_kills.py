# SPDX-License-Identifier: Apache-2.0
"""kill -9 of agents, their servers and clients at each step of the protocol; then everything works again."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from farm.boards import place_command
from farm.running import RunningFarm, running_farm
from portcall.farm._model import Event
from rpc import board as program

CLIENT = """
import sys
import portcall.farm
with portcall.farm.connect(sys.argv[1], token="", user="ann") as farm, farm.lease("k", ttl=2) as lease:
    with lease.session() as session:
        assert session["portcall.rpc.machine"] is not None
        while sys.argv[2:] == ["keep"]:
            session["portcall.rpc.machine"]
print("done", flush=True)
"""


class Parties:
    """A farm in this process, a board and a client in theirs."""

    def __init__(self, farm: RunningFarm, stack: contextlib.ExitStack) -> None:
        self.farm = farm
        self.address = f"{farm.host}:{farm.port}"
        self._stack = stack
        self.board = self.start_board()

    def _run(self, *words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self._stack.callback(self._end, process)
        return process

    def _end(self, process: subprocess.Popen[str]) -> None:
        with process:
            process.terminate()

    def start_board(self) -> subprocess.Popen[str]:
        board = self._run(*place_command(), "--farm", self.address, "--key", "k", "--place", "b", "--silent")
        assert board.stdout is not None
        assert board.stdout.readline().startswith("listening")
        return board

    def start_client(self, *options: str) -> subprocess.Popen[str]:
        return self._run(sys.executable, "-c", CLIENT, self.address, *options)

    def server(self) -> int:
        """Return the server's process, or, where the server comes first, the agent's."""
        children = Path(f"/proc/{self.board.pid}/task/{self.board.pid}/children").read_text().split()
        return int(children[-1])


@pytest.fixture
def parties() -> Iterator[Parties]:
    with running_farm() as farm, contextlib.ExitStack() as stack:
        yield Parties(farm, stack)


@pytest.mark.parametrize(
    ("party", "step"),
    [
        ("agent", "place offered"),
        ("agent", "lease active"),
        ("agent", "session opened"),
        ("agent", "place cleaning"),
        ("server", "place offered"),
        ("server", "session opened"),
        ("client", "lease queued"),
        ("client", "lease active"),
        ("client", "session opened"),
        ("client", "place cleaning"),
    ],
)
def test_killed_party_leaves_a_farm_that_serves_the_next_client(parties: Parties, party: str, step: str) -> None:
    farm = parties.farm
    victims = {"agent": parties.board.pid, "server": parties.server()}
    killed: list[str] = []

    def kill(events: list[Event]) -> None:
        if not killed and any(event.what == step for event in events):
            os.kill(victims[party], signal.SIGKILL)
            killed.append(step)

    client = parties.start_client(*["keep"] * (step == "session opened"))
    victims["client"] = client.pid
    farm.do(lambda: farm.server.hub.watchers.append(kill))
    farm.until(lambda: killed)
    if party == "agent":
        parties.board.wait()
        parties.board = parties.start_board()  # as the init system does
    if party == "server" and step == "session opened" and program.under_test():
        client.kill()  # its session does not depend on the agent
    if party == "client":
        client.wait()
        farm.pass_time(15)  # a client that never showed
    client.wait()
    farm.until(lambda: not farm.state.leases and not farm.state.queue.size)
    again: Any = parties.start_client()
    assert again.stdout.readline() == "done\n"
    farm.until(lambda: [place.state for place in farm.state.places.values()] == ["idle"])
