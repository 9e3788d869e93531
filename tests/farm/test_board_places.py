# SPDX-License-Identifier: Apache-2.0
"""Places of a farm without Python; ``make test-board`` runs the tests of other places with them, too."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from farm.boards import client, process_board
from farm.running import RunningFarm, running_farm
from portcall import errors


def test_board_serves_a_lease_across_restarts_of_its_agent_and_of_the_farm(tmp_path: Path) -> None:
    store = str(tmp_path / "farm.db")
    with contextlib.ExitStack() as stack:
        farm = RunningFarm(store=store)
        stack.callback(lambda: farm.stop())
        board = stack.enter_context(process_board(farm, "b", "k", tags={"fans": 2, "gpu": True}))
        tags = farm.state.places["b"].tags
        assert (tags["fans"], tags["gpu"], tags["cores"] >= 1) == (2, True, True)
        lease = stack.enter_context(client(farm)).lease("k & fans>=2", ttl=30)
        session = stack.enter_context(lease.session())
        agent = Path(f"/proc/{board.pid}/task/{board.pid}/children").read_text().split()[1]
        before = farm.do(lambda: farm.server.api.agents.here["b"])
        os.kill(int(agent), signal.SIGKILL)
        farm.until(lambda: farm.server.api.agents.here.get("b") not in (None, before))
        port = farm.port
        farm.stop()
        farm = RunningFarm(store=store, port=port)
        farm.until(lambda: farm.state.places["b"].state == "leased")
        assert len(farm.state.leases[lease.id].sessions) == 1
        assert session["testing.echo"](7) == 7
        lease.release()
        farm.until(lambda: farm.state.places["b"].state == "idle")


def test_board_waits_for_a_farm_where_others_answered_nonsense() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    answers = (b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n[[[[", b"HTTP/1.1 200 OK\r\n\r\n")
    farms: list[RunningFarm] = []

    def answer() -> None:
        with listener:
            for said in answers:
                peer, _ = listener.accept()
                with peer:
                    peer.recv(1 << 16)
                    peer.sendall(said)
        farms.append(RunningFarm(port=port))

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        with process_board(f"127.0.0.1:{port}", "b", "k"):
            thread.join()
            with client(farms[0]) as lab, lab.lease("k") as lease, lease.session() as session:
                assert session["testing.echo"](7) == 7
    finally:
        thread.join()
        farms[0].stop()


def test_board_ends_where_the_farm_wants_another_token() -> None:
    with running_farm(require_tokens=True) as farm:
        token = farm.do(lambda: farm.server.access.make("admin", user="b", role="agent"))
        with pytest.raises(errors.FarmError, match="--token-file"), process_board(farm, "b", "k", token="ptk_wrong"):
            pass
        with process_board(farm, "b", "k", token=token):
            assert farm.state.places["b"].state == "idle"
