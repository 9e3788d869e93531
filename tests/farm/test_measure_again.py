# SPDX-License-Identifier: Apache-2.0
"""``portcall.farm.measure`` measures candidates again whose figures cannot be trusted."""

from __future__ import annotations

import concurrent.futures
from collections import Counter

import pytest

from portcall.bench import BenchmarkResult, Counts, Measurement, judge
from portcall.farm import measure

CALLS = 10**6


def figure(*spreads: float) -> Measurement:
    """A figure whose windows differ by so much by turns: by more than a few per cent it cannot be trusted."""
    result = BenchmarkResult(tuple(1e-3 * (1 + spread) for spread in spreads * 20))
    return Measurement(result, Counts(CALLS, 40, 1.0), (), judge(result, CALLS))


GOOD, BAD, WORSE = figure(0, 0.001), figure(0, 0.2), figure(0, 0.9)


@pytest.mark.parametrize("build", [None, str.upper])
def test_measure_measures_doubtful_candidates_again(build: object) -> None:
    plans: dict[str, list[object]] = {
        "A": [GOOD],
        "B": [BAD, GOOD],
        "C": [BAD, WORSE, BAD],
        "D": [WORSE, BAD, WORSE],
        "E": [BAD, 3, GOOD],
    }
    calls: Counter[str] = Counter()

    def work(name: str) -> object:
        calls[name] += 1
        planned = plans[name.upper()][calls[name] - 1]
        if planned == 3:
            raise RuntimeError("lost")
        return planned

    with concurrent.futures.ThreadPoolExecutor(1) as one:
        found = measure(list("ABCDE"), work, executor=one, build=build)  # type: ignore[arg-type]
    assert found == [GOOD, GOOD, BAD, BAD, GOOD]
    assert dict(calls) == {"A": 1, "B": 2, "C": 3, "D": 3, "E": 3}


def test_measure_once_where_it_is_asked_for() -> None:
    with concurrent.futures.ThreadPoolExecutor(1) as one:
        assert measure("AB", lambda name: BAD, executor=one, again=0) == [BAD, BAD]
        assert measure("AB", lambda name: name, executor=one) == ["A", "B"]
