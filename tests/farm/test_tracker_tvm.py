# SPDX-License-Identifier: Apache-2.0
"""apache-tvm's servers and clients at a farm, as real processes."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from farm.running import RunningFarm, running_farm

pytestmark = pytest.mark.peers

SCRIPT = Path(__file__).parents[1] / "scripts" / "tvm_farm.py"


@pytest.fixture
def farm() -> Iterator[RunningFarm]:
    with running_farm() as farm:
        yield farm


@contextlib.contextmanager
def tvm(farm: RunningFarm, *words: object) -> Iterator[subprocess.Popen[str]]:
    """Run a peer of TVM until the end of the block."""
    mode, *more = map(str, words)
    command = [sys.executable, str(SCRIPT), mode, farm.host, str(farm.port), *more]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def free(farm: RunningFarm, count: int) -> None:
    farm.until(lambda: sum(place.free for place in farm.state.places.values()) == count)


def test_tracker_serves_tvms_servers_and_clients(farm: RunningFarm) -> None:
    with tvm(farm, "server", "k") as server:
        assert first_line(server) == "ready"
        free(farm, 1)
        with tvm(farm, "client", "k", 3) as client:
            assert client.wait(300) == 0
        free(farm, 1)
        with tvm(farm, "summary", "k") as asking:
            summary = json.loads(first_line(asking))
        assert summary["queue_info"]["k"] == {"free": 1, "pending": 0}
        assert [info["key"] for info in summary["server_info"]] == ["server:k"]
    farm.until(lambda: not farm.state.places)
    with tvm(farm, "summary", "k") as asking:
        assert json.loads(first_line(asking))["queue_info"] == {"k": {"free": 0, "pending": 0}}


def test_tracker_client_waits_and_a_killed_client_frees_the_server(farm: RunningFarm) -> None:
    with tvm(farm, "server", "k") as server, tvm(farm, "hold", "k") as holder:
        assert first_line(server) == "ready"
        assert first_line(holder) == "holding"
        with tvm(farm, "hold", "k") as waiting:
            farm.until(lambda: farm.state.queue.size == 1)
            holder.kill()
            assert first_line(waiting) == "holding"
        free(farm, 1)


def test_tracker_server_killed_in_a_session_ends_its_lease(farm: RunningFarm) -> None:
    with tvm(farm, "server", "k") as server, tvm(farm, "hold", "k") as holder:
        assert first_line(holder) == "holding"
        farm.until(lambda: farm.state.leases)
        server.stdin.close()  # type: ignore[union-attr]
        farm.until(lambda: not farm.state.leases and not farm.state.places)
