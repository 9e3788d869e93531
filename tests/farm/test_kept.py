# SPDX-License-Identifier: Apache-2.0
"""Figures that are kept: their lines in the history, the curves of a place's page, ``portcall bench --keep``."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from typing import Any

import pytest

from farm.boards import agent_board, client
from farm.running import running_farm
from portcall.farm._kept import KEPT, Figure, curves

JOB = "f(<x>) on cpu:0"


def events(*figures: Figure) -> list[dict[str, Any]]:
    return [{"time": 60.0 * at, "what": KEPT, "detail": str(figure)} for at, figure in enumerate(figures)]


@pytest.mark.parametrize("figure", [Figure(JOB, 1.5e-9, 1e-9, 2e-9, True), Figure("a\nb: c", 0, 0, 0, False)])
def test_figure_is_read_from_its_line(figure: Figure) -> None:
    assert Figure.read(str(figure)) == figure


@pytest.mark.parametrize("line", ["", "x", "1..2 s (1 to 2), trustworthy: f", "1 s (1 to 2): f"])
def test_figure_is_not_read_from_other_lines(line: str) -> None:
    assert Figure.read(line) is None


def test_curves_are_of_what_was_measured_more_than_once() -> None:
    good, bad = Figure(JOB, 1e-3, 9e-4, 1.1e-3, True), Figure(JOB, 2e-3, 1e-3, 3e-3, False)
    assert curves([]) == curves(events(good)) == ""
    drawn = curves([*events(good, bad, good), {"time": 1.0, "what": "other", "detail": str(good)}])
    assert (drawn.count("<svg"), drawn.count('class="ci"')) == (1, 3)
    assert "<x>" not in drawn


def test_bench_keep_puts_its_figure_into_the_history_and_on_the_page() -> None:
    with running_farm() as farm, agent_board(farm, "b1", "k"), client(farm) as lab:
        where = f"{farm.host}:{farm.port}"
        with lab.lease("k") as lease:
            lease.keep("testing.nop()", 1e-6, (9e-7, 1.1e-6), True)
        words = ["bench", "testing.nop", "--number", "9", "--repeat", "2", "--farm", where, "--key", "k", "--keep"]
        done = subprocess.run(
            [sys.executable, "-m", "portcall", *words, "--json"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        measured = json.loads(done.stdout)
        events = lab.command("history", place="b1")["events"]
        kept = [Figure.read(each["detail"]) for each in events if each["what"] == KEPT]
        assert [figure and figure.ok for figure in kept] == [True, False]  # two windows are too few to trust
        assert kept[1] is not None
        assert kept[1].seconds == pytest.approx(measured["median_s"], rel=1e-4)
        assert kept[1].job == "testing.nop()"
        page = http.client.HTTPConnection(farm.host, farm.port)
        page.request("GET", "/place/b1")
        assert page.getresponse().read().count(b'class="card curve"') == (
            kept[0] is not None and kept[0].job == kept[1].job
        )
        page.close()


def test_bench_keep_needs_a_farm() -> None:
    words = ["bench", "k.so", "f", "--keep"]
    assert subprocess.run([sys.executable, "-m", "portcall", *words], capture_output=True, check=False).returncode == 2
