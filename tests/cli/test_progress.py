# SPDX-License-Identifier: Apache-2.0
"""The status line where standard error is no terminal: one line for each thing that is under way."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import pytest

from portcall import rpc
from portcall.cli._progress import Bar, StatusLine

Later = Callable[[StatusLine], None]


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    """Let hours pass, in which a line is refreshed; its thread does not run."""

    def refresh(status: StatusLine) -> None:
        for hours in (1, 2, 3):
            now = time.monotonic() + 3600 * hours
            with monkeypatch.context() as patch:
                patch.setattr(time, "monotonic", partial(float, now))
                status._refresh()

    return refresh


def test_status_line_prints_each_stage_once(later: Later, capsys: pytest.CaptureFixture[str]) -> None:
    status = StatusLine()
    for stage in ("loading", "tuning"):
        with status.expect(stage, 0):
            later(status)
    with status.count("compiling", "files") as advance:
        for done in range(3):
            advance(done, 3)
            later(status)
    assert capsys.readouterr().err.splitlines() == ["loading", "tuning", "compiling"]


def test_status_line_prints_what_is_waited_for_when_it_changes(
    later: Later, capsys: pytest.CaptureFixture[str]
) -> None:
    status = StatusLine()
    for place in (2, 2, 1):
        status.wait_for(f"place {place} of the queue")
        later(status)
    assert capsys.readouterr().err.splitlines() == [
        "waiting for place 2 of the queue",
        "waiting for place 1 of the queue",
    ]


def test_status_line_says_nothing_of_a_measurement_in_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    class Measuring:
        @staticmethod
        def activity() -> rpc.Activity:
            return rpc.Activity("a call", seconds=5.0, silent=5.0, sent=1, to_send=1, received=0, to_receive=0)

    status = StatusLine()
    status.watch(Measuring())  # type: ignore[arg-type]
    with status.expect("timing 20 repeats", 60):
        status._refresh()
    assert capsys.readouterr().err == ""
    status._refresh()
    assert capsys.readouterr().err.startswith("waiting for a call")


def test_bar_counts_things() -> None:
    bar = Bar("compiling", total=0, counted="files")
    assert bar.line(0).startswith("compiling  0.")
    bar.done, bar.total = 30, 120
    assert "[#####...............]  30 of 120 files, " in bar.line(0)


def test_progress_bar_stays_within_its_total() -> None:
    bar = Bar("parameters", total=100, in_pieces=True, done=40)
    assert "[########............]  40 B of 100 B" in bar.line(0)
    assert "[############........]  60 B of 100 B" in bar.line(20)
    assert "[####################]  100 B of 100 B" in bar.line(300)
    assert "  40 B of 100 B" in Bar("upload", total=100, done=40).line(20)
