# SPDX-License-Identifier: Apache-2.0
"""``portcall bench`` for minutes and call by call: what it says, which options fit together, what an error leaves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from portcall.bench import _sustained

Invoke = Callable[..., Result]
ADD = ("add", "--arg", "1", "--arg", "2")


def test_bench_sustained_tells_burst_and_sustained(invoke: Invoke, kernels: str, tmp_path: Path) -> None:
    shown = invoke("bench", kernels, *ADD, "--sustained", "300ms")
    assert shown.exit_code == 0, shown.output
    assert [line for line in shown.stdout.splitlines() if line.startswith("burst ")]
    invoke("bench", kernels, *ADD, "--sustained", "300ms", "--number", "50000", "--json", tmp_path / "a.json")
    answer = json.loads((tmp_path / "a.json").read_text())
    assert set(answer["sustained"]) == {"burst_s", "sustained_s", "kept", "full_s"}
    assert answer["number"] == 50000


def test_bench_latency_refuses_percentiles_of_few_calls(invoke: Invoke, kernels: str, tmp_path: Path) -> None:
    words = ("bench", kernels, "wear", "--arg", "1000000", "--latency", "--repeat", "60")
    shown = invoke(*words)
    assert shown.exit_code == 0, shown.output
    assert "p99 needs" in shown.stdout
    assert invoke(*words, "--every", "1ms", "--json", tmp_path / "a.json").exit_code == 0
    answer = json.loads((tmp_path / "a.json").read_text())
    assert (answer["number"], answer["repeat"], answer["latency"]["every_s"]) == (1, 60, 0.001)
    assert [each["value_s"] is None for each in answer["latency"]["percentiles"]][2:] == [True, True]


@pytest.mark.parametrize(
    "way",
    [
        ("--latency", "--repeat", "100000"),
        ("--sustained", "10m", "--number", "100"),
        ("--number", "100", "--repeat", "9999"),
    ],
)
def test_bench_keeps_what_was_measured_before_an_error(
    invoke: Invoke, kernels: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: tuple[str, ...]
) -> None:
    monkeypatch.setattr(_sustained, "BETWEEN_S", 0.05)
    words = ("bench", kernels, "wear", "--arg", "1000000", *way, "--json", tmp_path / "a.json")
    ended = invoke(*(word if word != "1000000" else calls_until_worn(invoke, kernels) for word in words))
    assert ended.exit_code == 1
    assert "worn out" in ended.stderr
    answer: dict[str, Any] = json.loads((tmp_path / "a.json").read_text())
    assert answer["error"]["kind"] == "ValueError"
    assert len(answer["results_s"]) > 1
    assert "verdict" in answer


def calls_until_worn(invoke: Invoke, kernels: str) -> str:
    """Return a number of calls that ends a run of many after some: calls are counted for all of the process."""
    answer = json.loads(invoke("run", kernels, "worn", "--json").stdout)
    return str(int(answer["returned"]) + 3000)


@pytest.mark.parametrize(
    "words",
    [
        ("--sustained", "1s", "--latency"),
        ("--every", "10ms"),
        ("--sustained", "1s", "--repeat", "4"),
        ("--latency", "--number", "4"),
        ("--latency", "--min-repeat-ms", "4"),
        ("--sustained", "5m", "--timeout", "1m"),
        ("--sustained", "0s"),
        ("--sustained", "5"),
        ("--latency", "--every", "0ms"),
        ("--cool", "soon"),
    ],
)
def test_bench_refuses_ways_that_make_no_sense(invoke: Invoke, kernels: str, words: tuple[str, ...]) -> None:
    assert invoke("bench", kernels, *ADD, *words).exit_code == 2
