# SPDX-License-Identifier: Apache-2.0
"""What tests cost, and which of them are slow: ``make slow-tests`` measures all, and writes tests/slow.txt.

As a plugin of pytest (``-p costs``) it notes the time of each test, with its share of the fixtures, in
``build/test-costs.jsonl``. As a program it reads that, and lists the functions that cost most, until the others
together fit into ``SECONDS`` on ``CORES`` cores.
"""

from __future__ import annotations

import json
import resource
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COSTS = ROOT / "build" / "test-costs.jsonl"
SLOW = ROOT / "tests" / "slow.txt"
CORES, SECONDS = 2, 180
HEAD = (
    "# Functions of tests that `make test` leaves out, with the seconds that they took: make slow-tests writes this.\n"
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    processor, clock = _processor(), time.monotonic()
    result = yield
    cost = max(_processor() - processor, time.monotonic() - clock)
    with COSTS.open("a") as file:
        file.write(json.dumps([item.nodeid, round(cost, 3)]) + "\n")
    return result


def _processor() -> float:
    used = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def function_of(nodeid: str) -> str:
    """Return the file and the function of a test, without its parameters."""
    return nodeid.partition("[")[0]


def choose(costs: dict[str, float]) -> dict[str, float]:
    """Return the functions that are left out, with their seconds: the most expensive ones."""
    left, chosen = sum(costs.values()), {}
    for name, cost in sorted(costs.items(), key=lambda item: -item[1]):
        if left <= CORES * SECONDS:
            break
        chosen[name] = cost
        left -= cost
    return chosen


def main() -> None:
    costs: dict[str, float] = defaultdict(float)
    for line in COSTS.read_text().splitlines():
        nodeid, cost = json.loads(line)
        costs[function_of(nodeid)] += cost
    chosen = choose(costs)
    SLOW.write_text(HEAD + "".join(f"{name} {cost:.1f}\n" for name, cost in sorted(chosen.items())))
    left = sum(costs.values()) - sum(chosen.values())
    print(
        f"{len(chosen)} of {len(costs)} functions are slow: {sum(chosen.values()):.0f} s; the others take {left:.0f} s"
    )


if __name__ == "__main__":
    main()
