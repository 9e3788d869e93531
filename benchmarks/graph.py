# SPDX-License-Identifier: Apache-2.0
"""Measure graphs: a node beside a C++ loop, a model beside apache-tvm's Relax VM, creation, bundles, sessions, memory.

``make bench-graph`` runs this. What the rows mean is in docs/benchmarks.md; how it is measured, in method.py.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import graph_rows
from method import Plan
from report import (
    Group,
    Limit,
    Output,
    command,
    environment,
    print_environment,
    print_group,
    print_limits,
    reference,
)
from rpc_peers import choose_cores, pinned_to
from run import chosen, measure

RUNS, QUICK_RUNS = Plan(runs=24, block_seconds=0.01), Plan(runs=6, block_seconds=0.005)
CREATION, QUICK_CREATION = Plan(runs=12), Plan(runs=3)
QUICK_SCALE = 0.25
LIMITS = "What graphs take"


@command(quick="Fewer and shorter rounds: half a minute, wider intervals.")
def main(quick: bool, only: tuple[str, ...], output: Output) -> None:
    """Measure graphs, and print a table with a verdict for each target."""
    cores = choose_cores()
    facts = environment()
    runs, creation = (QUICK_RUNS, QUICK_CREATION) if quick else (RUNS, CREATION)
    groups: list[Group] = []
    with pinned_to(cores.server), tempfile.TemporaryDirectory(prefix="portcall-bench-") as name:
        folder = Path(name)
        empty_loop, findings = reference(QUICK_RUNS)
        print_environment(facts, findings, empty_loop)
        for title, rows, plan in (
            ("Runs", graph_rows.run_rows(folder), runs),
            ("Creation", graph_rows.creation_rows(folder), creation),
            ("Over a session, both ends on one core", graph_rows.remote_rows(cores.server, folder), runs),
        ):
            group = Group(title, ("portcall", "otherwise"), plan, measure(rows, plan, only))
            if group.results:
                groups.append(group)
                print_group(group)
        found = [*node_limit(groups), *memory(folder, QUICK_SCALE if quick else 1.0, only)]
        print_limits(LIMITS, found)
    output.finish(facts, empty_loop, groups, LIMITS, found)


def node_limit(groups: Iterable[Group]) -> Iterator[Limit]:
    """Yield what a node costs above the same call in a loop."""
    for result in (result for group in groups for result in group.results if result.row.key == "nodes"):
        measured = result.comparison
        each = (measured.seconds[0] - measured.seconds[1]) / graph_rows.NODES
        whole = f"{measured.seconds[0] / graph_rows.NODES * 1e9:.1f} ns with the call"
        yield Limit("node", "a node, above its call", round(each * 1e9, 2), graph_rows.NODE_LIMIT * 1e9, "ns", whole)


def memory(folder: Path, scale: float, only: tuple[str, ...]) -> list[Limit]:
    if only and not any(text in key for text in only for key in ("memory-file", "memory-blob")):
        return []
    return [limit for limit in graph_rows.memory_limits(folder, scale) if chosen(limit.key, only)]


if __name__ == "__main__":
    main()
