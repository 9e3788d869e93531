# SPDX-License-Identifier: Apache-2.0
"""Large graphs of objects, in a process of their own each: what they take, and whether that grows with them.

``python benchmarks/object_limits.py chain 200000`` goes through one chain, ``dag 1000000`` through a graph in which
each node holds two earlier ones; either prints seconds of each step and the most memory of the process, as JSON.
"""

from __future__ import annotations

import io
import json
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from report import Limit

import portcall

CHAIN, DAG = 200_000, 1_000_000
MOST_GB, MOST_GROWTH = 2.0, 15.0  # ten times as many nodes, with half as much again for caches and noise
CHAIN_SECONDS = 10.0


@portcall.register_object("bench.limits.Node")
class Node(portcall.Object):
    value: int
    left: object = None
    right: object = None


def chain(size: int) -> Any:
    node = None
    for i in range(size):
        node = Node(i, node)
    return node


def dag(size: int) -> Any:
    draw = random.Random(1)
    nodes: list[Any] = []
    for i in range(size):
        # The one before, so that the last reaches all, and one of the last thousand.
        nodes.append(Node(i, nodes[-1], nodes[draw.randrange(max(0, i - 1000), i)]) if i else Node(i))
    return nodes[-1]


def go_through(make: Callable[[int], Any], size: int) -> dict[str, float]:
    """Return the seconds of each step; a step that gives something wrong is an error."""
    seconds: dict[str, float] = {}

    def step(name: str, do: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = do()
        seconds[name] = time.perf_counter() - start
        return result

    one, other = step("make", lambda: make(size)), make(size)
    text = step("save", lambda: portcall.ir.save_json(one))
    again = step("load", lambda: portcall.ir.load_json(text))
    data = step("save, binary", lambda: portcall.ir.to_bytes(one))
    once_more = step("load, binary", lambda: portcall.ir.from_bytes(data))
    assert step("compare", lambda: portcall.ir.structural_equal(one, other))
    assert portcall.ir.structural_equal(again, one)
    assert portcall.ir.structural_equal(once_more, one)
    number = step("hash", lambda: portcall.ir.structural_hash(one))
    assert number == portcall.ir.structural_hash(again)
    assert len(step("walk", lambda: portcall.ir.walk(one, Node))) == size
    assert len(step("repr", lambda: repr(one))) < 10_000
    step("show", lambda: portcall.ir.show(one, file=io.StringIO()))

    def drop() -> None:
        nonlocal again
        again = None

    step("free", drop)
    return seconds


def limits(quick: bool) -> Iterator[Limit]:
    size = CHAIN // 10 if quick else CHAIN
    found = in_a_process("chain", size)
    whole = sum(found["seconds"].values())
    yield Limit("chain", f"a chain {size:,} deep, all steps", whole, CHAIN_SECONDS, "s", describe(found["seconds"]))
    size = DAG // 10 if quick else DAG
    large, small = in_a_process("dag", size), in_a_process("dag", size // 10)
    yield Limit("dag-memory", f"a graph of {size:,} nodes, most memory", large["gigabytes"], MOST_GB, "GB")
    growth = sum(large["seconds"].values()) / sum(small["seconds"].values())
    detail = describe(large["seconds"])
    yield Limit("dag-growth", "its time over that of a tenth as many", growth, MOST_GROWTH, "x", detail)


def describe(seconds: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3f}" for name, value in seconds.items())


def in_a_process(kind: str, size: int) -> Any:
    done = subprocess.run(
        [sys.executable, Path(__file__), kind, str(size)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{kind} {size} ended with {done.returncode}: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


if __name__ == "__main__":
    seconds = go_through({"chain": chain, "dag": dag}[sys.argv[1]], int(sys.argv[2]))
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(json.dumps({"seconds": {k: round(v, 4) for k, v in seconds.items()}, "gigabytes": round(gigabytes, 3)}))
