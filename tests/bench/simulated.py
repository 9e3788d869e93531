# SPDX-License-Identifier: Apache-2.0
"""Simulated machines on which two sides are compared, whose truth is known; and how often the answer is wrong.

``python tests/bench/simulated.py`` simulates 20,000 comparisons of each change, minutes (``make test-numbers``), and
prints the table of docs/numbers.md. It is seeded.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from dataclasses import dataclass
from multiprocessing import Pool

from portcall.bench import Comparison, compare

SEED = 20261124
BLOCKS_OF_A_ROUND = 8


@dataclass(frozen=True)
class World:
    """What disturbs. Shares of the time.

    Attributes:
        luck: of each process, for as long as it lives.
        noise: of each block; slow: of blocks that follow each other, 0.9 alike.
        spikes: probability that a block takes 10 to 100 % longer.
        first: the first block of a round takes so much longer.
        drift: growth from the first block of a comparison to the 300th.
    """

    luck: float = 0.003
    noise: float = 0.01
    slow: float = 0.0
    spikes: float = 0.0
    first: float = 0.0
    drift: float = 0.0


WORLDS = {
    "noise of 1 %": World(),
    "one block in 20 longer by 10 to 100 %": World(spikes=0.05),
    "the first place of a round 5 % slower": World(first=0.05),
    "slow noise of 3 %": World(slow=0.03),
    "it slows down by 10 %": World(drift=0.1),
    "luck of a process of 1 %": World(luck=0.01),
    "luck of 1 %, and long blocks": World(luck=0.01, spikes=0.05),
    "luck of 2 %": World(luck=0.02),
}


def simulate(world: World, change: float, seed: str, limit: float | None = None, margin: float = 0.01) -> Comparison:
    """Compare two sides in a world, the new one of which takes ``change`` times as long."""
    source = random.Random(seed)
    state = {"block": 0, "slow": 0.0}

    def side(factor: float):  # type: ignore[no-untyped-def]
        def opened():  # type: ignore[no-untyped-def]
            luck = 1 + source.gauss(0, world.luck)

            def timer(number: int) -> float:
                at = state["block"] = int(state["block"]) + 1
                state["slow"] = 0.9 * state["slow"] + source.gauss(0, world.slow * (1 - 0.81) ** 0.5)
                seconds = number * 1e-3 * factor * luck * (1 + source.gauss(0, world.noise)) * (1 + state["slow"])
                if world.spikes and source.random() < world.spikes:
                    seconds *= 1 + source.uniform(0.1, 1)
                if (at - 3) % (BLOCKS_OF_A_ROUND * 3 + 2) % BLOCKS_OF_A_ROUND == 0:  # each run begins with two others
                    seconds *= 1 + world.first
                return float(seconds * (1 + world.drift * at / 300))

            return timer

        return opened

    return compare(side(change), side(1.0), number=50, limit=limit, margin=margin)


def answers(name: str, change: float, count: int) -> tuple[Counter[str], float]:
    """Return how often each verdict is given in a world, and the mean number of runs."""
    found: Counter[str] = Counter()
    runs = 0
    for each in range(count):
        known = simulate(WORLDS[name], change, f"{SEED} {name} {change} {each}")
        found[known.verdict] += 1
        runs += len(known.ratios)
    return found, runs / count


def main() -> None:
    each = (int(sys.argv[1]) if len(sys.argv) > 1 else 20_000) // len(WORLDS)
    kinds = ("faster", "slower", "no difference", "not enough data")
    with Pool(2) as pool:
        for change in (1.0, 1.05, 0.95, 1.02):
            print(f"\n| the new side takes {change:.2f} of the time | {' | '.join(kinds)} | runs |\n|{' --- |' * 6}")
            rows = pool.starmap(answers, [(name, change, each) for name in WORLDS])
            for name, (found, runs) in zip(WORLDS, rows, strict=True):
                cells = (f"{found[kind] / each:.2%}" for kind in kinds)
                print(f"| {name} | {' | '.join(cells)} | {runs:.1f} |")
            total = sum((found for found, _ in rows), Counter[str]())
            print(f"| all {total.total():,} | {' | '.join(f'{total[kind] / total.total():.2%}' for kind in kinds)} | |")


if __name__ == "__main__":
    main()
