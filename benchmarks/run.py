# SPDX-License-Identifier: Apache-2.0
"""Compare portcall with the apache-tvm-ffi wheel: calls in this process, imports in processes of their own.

``make bench`` runs this. What the rows and columns mean is in docs/benchmarks.md; how it is measured, in method.py.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import calls
import click
import processes
from method import Plan, compare
from report import Group, Output, Result, command, environment, print_environment, print_group, reference

CALLS, QUICK_CALLS = Plan(runs=48, block_seconds=0.005), Plan(runs=6, block_seconds=0.001)
PROCESSES, QUICK_PROCESSES = Plan(runs=12), Plan(runs=3)
CACHE = Path(__file__).resolve().parent.parent / "build" / "bench"


@command(quick="Fewer and shorter rounds: half a minute, wider intervals.")
def main(quick: bool, only: tuple[str, ...], output: Output) -> None:
    """Compare portcall with tvm-ffi, and print a table with a verdict for each target."""
    call_plan, process_plan = (QUICK_CALLS, QUICK_PROCESSES) if quick else (CALLS, PROCESSES)
    facts = environment()
    empty_loop, findings = reference(call_plan)
    print_environment(facts, findings, empty_loop)
    groups: list[Group] = []
    with tempfile.TemporaryDirectory(prefix="portcall-bench-") as name:
        folder = Path(name)
        for title, columns, rows, plan in (
            ("Calls, beside tvm-ffi", ("portcall", "tvm-ffi"), calls.against_peer(folder), call_plan),
            ("What our own choices cost", ("portcall", "otherwise"), calls.own_costs(folder), call_plan),
            ("Processes, beside tvm-ffi", ("portcall", "other"), processes.rows(CACHE), process_plan),
        ):
            if plan is process_plan and not any(chosen(key, only) for key in processes.KEYS):
                continue  # the environments take a minute to make
            group = Group(title, columns, plan, measure(rows, plan, only))
            if not group.results:
                continue
            groups.append(group)
            print_group(group)
    output.finish(facts, empty_loop, groups)


def measure(rows: Iterable[calls.Row], plan: Plan, only: tuple[str, ...]) -> tuple[Result, ...]:
    results: list[Result] = []
    for row in rows:
        if not chosen(row.key, only):
            continue
        if sys.stderr.isatty():
            click.echo(f"\r\x1b[K{row.key}\r", err=True, nl=False)
        results.append(Result(row, compare(row.ours, row.other, plan, row.target)))
    return tuple(results)


def chosen(key: str, only: tuple[str, ...]) -> bool:
    return not only or any(text in key for text in only)


if __name__ == "__main__":
    main()
