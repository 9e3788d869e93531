# SPDX-License-Identifier: Apache-2.0
"""``portcall bench --html`` and ``portcall bench report``: a page, and what is read of it and of JSON again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from portcall.bench import Cooled, Finding, Reading, read_results
from portcall.cli import _bench_cool
from portcall.cli._bench_trace import counters

Invoke = Callable[..., Result]
ADD = ("add", "--arg", "1", "--arg", "2")


def test_bench_report_shows_again_what_bench_said(invoke: Invoke, kernels: str, tmp_path: Path) -> None:
    page, stored, both = tmp_path / "r.html", tmp_path / "r.json", tmp_path / "both.html"
    said = invoke("bench", kernels, *ADD, "--repeat", "10", "--html", page)
    assert said.exit_code == 0, said.output
    again = invoke("bench", "report", page)
    assert again.exit_code == 0, again.output
    verdict = [line for line in said.stdout.splitlines() if "trustworthy" in line]
    assert verdict
    assert set(verdict) <= set(again.stdout.splitlines())
    assert invoke("bench", "report", page, "--json", stored).exit_code == 0
    assert read_results(stored) == read_results(page)
    assert "--html" in read_results(page)[0]["environment"]["command"]
    assert invoke("bench", "report", stored, page, "--html", both).exit_code == 0
    assert read_results(both) == [*read_results(stored), *read_results(page)]


def test_bench_report_of_a_damaged_file_is_a_user_error(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('{"schema": 1, "results_s": [')
    shown = invoke("bench", "report", tmp_path / "r.json", "--json")
    assert shown.exit_code == 1
    assert json.loads(shown.stdout)["error"]["kind"] == "ValueError"
    assert invoke("bench", "report", tmp_path / "none.json").exit_code == 1
    assert invoke("bench", "report").exit_code == 2


def test_bench_takes_report_with_a_path_for_a_library(invoke: Invoke, tmp_path: Path) -> None:
    shown = invoke("bench", tmp_path / "report", *ADD)
    assert shown.exit_code == 1
    assert "report" in shown.stderr


def test_trace_has_counters_of_the_machine() -> None:
    before = Reading(time_ns=0, probe_ns=62_500, on_cpu_ns=0, waited_ns=0, temperature_c=50)
    after = Reading(time_ns=1_000_000, probe_ns=125_000, on_cpu_ns=750_000, waited_ns=250_000, temperature_c=51)
    events = counters(before, after, 0.001)
    values = [(each["ts"], each["args"]["value"]) for each in events]
    assert {each["ph"] for each in events} == {"C"}
    assert values == [(0, 50), (1000, 51), (0, 1000), (1000, 500), (0, 25), (1000, 25)]
    assert counters(Reading(), Reading(), 0.001) == []


@pytest.mark.parametrize(("reached", "code"), [(True, 0), (False, 6)])
def test_bench_cool_ends_with_whether_the_machine_is_cool(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, reached: bool, code: int
) -> None:
    asked = []

    def cool(limit: float, *, place: str, **options: object) -> Cooled:
        asked.append((limit, place))
        return Cooled(reached, 3.0, None if reached else Finding("hot", "it is hot", "wait"))

    monkeypatch.setattr(_bench_cool, "cool", cool)
    monkeypatch.setenv("PORTCALL_PLACE", "b1")
    shown = invoke("bench", "cool", "2m", "--json")
    assert shown.exit_code == code
    assert json.loads(shown.stdout)["cool"] == reached
    assert invoke("bench", "cool", "2m").exit_code == code
    assert asked == [(120.0, "b1")] * 2
    assert invoke("bench", "cool").exit_code == 2
