# SPDX-License-Identifier: Apache-2.0
"""Measure objects: beside tvm-ffi's, apache-tvm's nodes and plain dataclasses; and graphs that are long and large.

``make bench-objects`` runs this, with the version of tvm-ffi that it needs. What the rows mean is in
docs/benchmarks.md; how it is measured, in method.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click
import object_limits
import object_rows
from method import Plan
from report import (
    Group,
    Limit,
    environment,
    limits_markdown,
    markdown,
    print_environment,
    print_group,
    print_limits,
    reference,
    write_json,
)
from run import chosen, measure

ROUNDS, QUICK_ROUNDS = Plan(rounds=12, block_seconds=0.01), Plan(rounds=6, block_seconds=0.002)
LIMITS = "Long chains and large graphs"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--json", "json_to", type=click.Path(dir_okay=False, path_type=Path), help="Write every sample to a file."
)
@click.option("--markdown", "markdown_to", type=click.Path(dir_okay=False, path_type=Path), help="Write the tables.")
@click.option("--quick", is_flag=True, help="Fewer rounds, graphs of a tenth the size.")
@click.option("--only", multiple=True, metavar="TEXT", help="Only rows whose key contains TEXT; may be repeated.")
@click.option("--check", is_flag=True, help="Exit with 1 if a target is missed.")
def main(json_to: Path | None, markdown_to: Path | None, quick: bool, only: tuple[str, ...], check: bool) -> None:
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
    if json_to is not None:
        write_json(json_to, facts, empty_loop, groups, limits=[limit.to_dict() for limit in found])
    if markdown_to is not None:
        text = markdown(facts, empty_loop, groups) + "\n" + limits_markdown(LIMITS, found)
        markdown_to.write_text(text, encoding="utf-8")
    missed = [result.row.key for group in groups for result in group.results if result.verdict == "missed"]
    missed += [limit.key for limit in found if limit.verdict == "missed"]
    if missed:
        print(f"\nmissed: {', '.join(missed)}")
    sys.exit(1 if check and missed else 0)


if __name__ == "__main__":
    main()
