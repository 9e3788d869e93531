# SPDX-License-Identifier: Apache-2.0
"""A new figure beside stored ones: how often it is wrong, on seeded series; what cannot be compared."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from portcall.bench import Baseline, baseline, clock_then

ROUNDS = 2000


def verdicts(factor: float, spread: float, k: int = 5) -> list[Baseline]:
    noise = random.Random(30)

    def run() -> float:
        return math.exp(noise.gauss(0, spread))

    return [Baseline(tuple(run() for _ in range(k)), run() * factor, 1.05) for _ in range(ROUNDS)]


@pytest.mark.parametrize("spread", [0.005, 0.02, 0.04])
def test_baseline_calls_an_unchanged_figure_slower_in_1_of_100(spread: float) -> None:
    same = verdicts(1.0, spread)
    allowed = ROUNDS * 0.01 + 3 * math.sqrt(ROUNDS * 0.01)
    assert sum(each.verdict == "slower" for each in same) <= allowed
    assert sum(each.verdict == "faster" for each in same) <= allowed
    assert sum(each.gate == "slower" for each in same) <= allowed


def test_baseline_finds_10_percent_and_its_gate_does_not_pass_it() -> None:
    slower = verdicts(1.1, 0.01)
    assert sum(each.verdict == "slower" for each in slower) >= 0.98 * ROUNDS
    assert sum(each.gate == "passed" for each in slower) <= 0.01 * ROUNDS
    assert sum(each.gate == "passed" for each in verdicts(1.0, 0.005)) >= 0.98 * ROUNDS


def stored(**changed: Any) -> dict[str, Any]:
    return {
        "schema": 1, "function": "f", "library": "k.so", "arguments": ["1"], "device": "cpu:0",
        "results_s": [1.0, 1.01, 0.99], "environment": {"machine": "x86_64", "cpus": 2, "processor": "A"},
        "conditions": [{"cpus": 2, "memory_bytes": 1000, "probe_ns": 100}], **changed,
    }  # fmt: skip


def test_baseline_takes_results_of_another_library_and_system() -> None:
    system = {"machine": "x86_64", "cpus": 2, "processor": "A", "system": "Linux-9"}
    old = [stored(library="old.so", environment=system, results_s=[1.0 + k / 1000]) for k in range(5)]
    assert baseline(stored(), old).verdict == "as usual"
    assert baseline(stored(), old, 1.05).to_dict()["gate"] == "passed"
    assert clock_then(stored(), old) is None
    assert clock_then(stored(conditions=[{"probe_ns": 50}]), old) == 2
    for odd in (math.nan, math.inf, 10**400):
        assert baseline(stored(conditions=[{"cpus": odd, "memory_bytes": odd, "probe_ns": odd}]), old).ratio < 1.01


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"environment": {"machine": "aarch64"}}, "another machine"),
        ({"environment": {"machine": "x86_64", "processor": "B"}}, "another machine"),
        ({"conditions": [{"cpus": 4}]}, "another machine"),
        ({"conditions": [{"cpus": 2, "memory_bytes": 2000}]}, "another machine"),
        ({"rpc": {"peer": "board:9090"}}, "another machine"),
        ({"function": "g"}, "function"),
        ({"arguments": ["2"]}, "arguments"),
        ({"device": "opencl:0"}, "device"),
        ({"latency": {}}, "--latency"),
        ({"function": None, "bundle": "m.so"}, "function"),
        ({"results_s": [0.0]}, "0 s"),
        ({"comparison": {"ratios": [1.0]}}, "comparison"),
    ],
)
def test_baseline_refuses_results_of_something_else(changed: dict[str, Any], named: str) -> None:
    old = [stored() for _ in range(5)]
    with pytest.raises(ValueError, match=named):
        baseline(stored(), [*old, stored(**changed)])


def test_baseline_refuses_another_model() -> None:
    def model(file: str) -> dict[str, Any]:
        whole = stored(bundle=file, inputs={"x": "1"})
        return {name: value for name, value in whole.items() if name not in ("function", "library", "arguments")}

    assert baseline(model("a/m.so"), [model("m.so")] * 5).ratio == 1
    with pytest.raises(ValueError, match="another model"):
        baseline(model("m.so"), [model("n.so")] * 5)


def test_baseline_refuses_few_figures() -> None:
    with pytest.raises(ValueError, match="5 or more"):
        baseline(stored(), [stored()] * 4)
