# SPDX-License-Identifier: Apache-2.0
"""Measure objects: beside tvm-ffi's, apache-tvm's nodes and plain dataclasses; and graphs that are long and large.

``make bench-objects`` runs this, with the version of tvm-ffi that it needs. What the rows mean is in
docs/benchmarks.md; how it is measured, in method.py.
"""

from __future__ import annotations

import object_limits
import object_rows
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
from run import chosen, measure

ROUNDS, QUICK_ROUNDS = Plan(runs=12, block_seconds=0.01), Plan(runs=6, block_seconds=0.002)
LIMITS = "Long chains and large graphs"


@command(quick="Fewer rounds, graphs of a tenth the size.")
def main(quick: bool, only: tuple[str, ...], output: Output) -> None:
    """Measure objects, and print a table with a verdict for each target."""
    plan = QUICK_ROUNDS if quick else ROUNDS
    facts = environment()
    empty_loop, findings = reference(plan)
    print_environment(facts, findings, empty_loop)
    groups: list[Group] = []
    for title, other, rows in (
        ("Objects, beside the same classes of tvm-ffi", "tvm-ffi", object_rows.of_tvm_ffi()),
        ("Objects, beside nodes of apache-tvm", "apache-tvm", object_rows.of_tvm()),
        ("Objects, beside frozen dataclasses", "dataclasses", object_rows.of_dataclasses()),
    ):
        group = Group(title, ("portcall", other), plan, measure(rows, plan, only))
        if group.results:
            groups.append(group)
            print_group(group)
    found: list[Limit] = []
    if not only or any(chosen(key, only) for key in ("chain", "dag-memory", "dag-growth")):
        found = [limit for limit in object_limits.limits(quick) if chosen(limit.key, only)]
        print_limits(LIMITS, found)
    output.finish(facts, empty_loop, groups, LIMITS, found)


if __name__ == "__main__":
    main()
