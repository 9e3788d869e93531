# SPDX-License-Identifier: Apache-2.0
"""Calls of a farm's sessions: in one trace, over the farm to the board, and in the record of the board."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace as telemetry

from farm.boards import agent_board, client
from farm.running import running_farm
from portcall import rpc
from portcall.rpc.client import _trace

TRACE = 0x1234_5678_9ABC_DEF0_1234_5678_9ABC_DEF0


def lines_of(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line for line in lines if line["function"] == "portcall.rpc.machine"]


@pytest.mark.parametrize("relayed", [False, True])
def test_call_by_a_farm_is_in_one_trace_and_in_the_boards_record(relayed: bool, tmp_path: Path) -> None:
    path = tmp_path / "calls"
    relay: dict[str, Any] = {"relay": True} if relayed else {}
    with running_farm() as farm, agent_board(farm, "board", "k", audit=str(path), **relay), client(farm) as lab:
        with lab.request("k") as session, rpc.trace() as calls:
            machine = session["portcall.rpc.machine"]
            machine("{}")
            rpc.follow_opentelemetry()
            parent = telemetry.SpanContext(TRACE, 0x77, True, telemetry.TraceFlags(1))
            try:
                with telemetry.use_span(telemetry.NonRecordingSpan(parent)):
                    machine("{}")
            finally:
                _trace._state.telemetry = None
                _trace._update()
        fence = farm.do(lambda: farm.state.places["board"].fence)
    first, second = lines_of(path)
    assert first["ending"] == second["ending"] == "ok"
    assert second["trace"].split("-")[1] == f"{TRACE:032x}"
    assert first["trace"].split("-")[1] != second["trace"].split("-")[1]
    assert first["user"].endswith(f"lease {fence}")
    spans = [event for event in calls.events() if event["ph"] == "X" and event["cat"] != "wire"]
    assert [event["cat"] for event in spans] == ["client", "server", "kernel"] * 2
    for client_span, *inside in (spans[:3], spans[3:]):
        for event in inside:
            assert client_span["ts"] <= event["ts"]
            assert event["ts"] + event["dur"] <= client_span["ts"] + client_span["dur"] + 1e-3
