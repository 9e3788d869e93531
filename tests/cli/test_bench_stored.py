# SPDX-License-Identifier: Apache-2.0
"""``portcall bench --against`` stored results: exit codes, errors that keep what was measured; JUnit, pyperf."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import Result

Invoke = Callable[..., Result]
ADD = ("add", "--arg", "1", "--arg", "2")


@pytest.fixture
def runs(invoke: Invoke, kernels: str, tmp_path: Path) -> Callable[..., Path]:
    """A folder of five stored results, made of one whose times are multiplied."""

    def made(factor: float = 1.0, **changed: Any) -> Path:
        folder = tmp_path / "runs"
        folder.mkdir()
        shown = invoke("bench", kernels, *ADD, "--repeat", "10", "--number", "1000", "--json", tmp_path / "one.json")
        assert shown.exit_code == 0, shown.output
        one = json.loads((tmp_path / "one.json").read_text())
        for k in range(5):
            times = [each * factor * (1 + k / 1000) for each in one["results_s"]]
            (folder / f"{k}.json").write_text(json.dumps({**one, "results_s": times, **changed}))
        return folder

    return made


@pytest.mark.parametrize(("factor", "code", "gate"), [(1e-3, 7, "slower"), (1e3, 0, "passed")])
def test_bench_against_stored_results_ends_with_what_the_gate_says(
    invoke: Invoke, kernels: str, runs: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    factor: float, code: int, gate: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    words = ("bench", kernels, *ADD, "--repeat", "10", "--against", runs(factor), "--fail-above", "5%")
    shown = invoke(*words, "--junit", tmp_path / "j.xml")
    assert shown.exit_code == code, shown.output
    assert ("::error" in shown.stdout) == bool(code)
    suite = ElementTree.parse(tmp_path / "j.xml").getroot()
    assert int(suite.attrib["failures"]) == bool(code)
    assert (suite.find("testcase/failure") is not None) == bool(code)
    assert invoke(*words, "--json", tmp_path / "a.json").exit_code == code
    assert json.loads((tmp_path / "a.json").read_text())["baseline"]["gate"] == gate


def test_bench_against_results_of_another_machine_keeps_what_was_measured(
    invoke: Invoke, kernels: str, runs: Callable[..., Path], tmp_path: Path
) -> None:
    other = runs(environment={"machine": "another"})
    shown = invoke("bench", kernels, *ADD, "--repeat", "10", "--against", other, "--json", tmp_path / "a.json")
    assert shown.exit_code == 1
    answer = json.loads((tmp_path / "a.json").read_text())
    assert answer["error"]["kind"] == "ValueError"
    assert len(answer["results_s"]) == 10


def test_bench_against_stored_results_that_cannot_be_used(
    invoke: Invoke, kernels: str, runs: Callable[..., Path], tmp_path: Path
) -> None:
    folder = runs()
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "empty").mkdir()
    for words, code in [
        (("--against", folder / "0.json"), 1),
        (("--against", tmp_path / "broken.json"), 1),
        (("--against", tmp_path / "empty"), 1),
        (("--against", folder, "--margin", "1%"), 2),
        (("--against", kernels, "--against", kernels), 2),
    ]:
        assert invoke("bench", kernels, *ADD, *words).exit_code == code


def test_bench_pyperf_writes_its_json(invoke: Invoke, kernels: str, tmp_path: Path) -> None:
    shown = invoke("bench", kernels, *ADD, "--repeat", "10", "--number", "1000", "--pyperf", tmp_path / "p.json")
    assert shown.exit_code == 0, shown.output
    suite = json.loads((tmp_path / "p.json").read_text())
    assert suite["version"] == "1.0"
    assert (suite["metadata"]["unit"], suite["metadata"]["loops"]) == ("second", 1000)
    assert len(suite["benchmarks"][0]["runs"][0]["values"]) == 10
