# SPDX-License-Identifier: Apache-2.0
"""Compare portcall's RPC with apache-tvm's client and server, and its copies with what sockets alone can do.

``make bench-rpc`` runs this. What the rows mean is in docs/benchmarks.md; how it is measured, in method.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import rpc_rows
from calls import Row
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
from rpc_limits import limits
from rpc_peers import Cores, choose_cores, pinned_to
from run import chosen, measure

CALLS, QUICK_CALLS = Plan(rounds=40, block_seconds=0.02), Plan(rounds=10, block_seconds=0.01)
COPIES, QUICK_COPIES = Plan(rounds=20, block_seconds=0.1), Plan(rounds=6)
OPENING, QUICK_OPENING = Plan(rounds=20), Plan(rounds=6)
QUICK_SCALE = 0.1
LIMITS = "What sessions take"


@dataclass(frozen=True)
class Part:
    """Rows that are measured with the client on one core.

    Attributes:
        title, columns: as of a group.
        rows: called with the core of the servers.
        plans: the whole one and the quick one.
        together: whether the client has the servers' core, or one of its own.
    """

    title: str
    columns: tuple[str, str]
    rows: Callable[[int], Iterator[Row]]
    plans: tuple[Plan, Plan]
    together: bool = False


PARTS = (
    Part("Calls, both ends on one core", ("portcall", "apache-tvm"), rpc_rows.call_rows, (CALLS, QUICK_CALLS), True),
    Part("Calls, each end on its own core", ("portcall", "apache-tvm"), rpc_rows.apart_rows, (CALLS, QUICK_CALLS)),
    Part("Copies, each end on its own core", ("portcall", "sockets"), rpc_rows.copy_rows, (COPIES, QUICK_COPIES)),
    Part("Files, each end on its own core", ("portcall", "sockets"), rpc_rows.file_rows, (COPIES, QUICK_COPIES)),
    Part("Small copies", ("portcall", "apache-tvm"), rpc_rows.small_copy_rows, (CALLS, QUICK_CALLS)),
    Part("Opening a session", ("portcall", "apache-tvm"), rpc_rows.open_rows, (OPENING, QUICK_OPENING)),
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--json", "json_to", type=click.Path(dir_okay=False, path_type=Path), help="Write every sample to a file."
)
@click.option("--markdown", "markdown_to", type=click.Path(dir_okay=False, path_type=Path), help="Write the tables.")
@click.option("--quick", is_flag=True, help="Fewer and shorter rounds: a minute and a half, wider intervals.")
@click.option("--only", multiple=True, metavar="TEXT", help="Only rows whose key contains TEXT; may be repeated.")
@click.option("--check", is_flag=True, help="Exit with 1 if a target is missed.")
def main(json_to: Path | None, markdown_to: Path | None, quick: bool, only: tuple[str, ...], check: bool) -> None:
    """Compare portcall's RPC with apache-tvm's and with sockets, and print a table with a verdict for each target."""
    cores = choose_cores()
    facts = environment()
    facts["cores used"] = f"{cores.client} (client) and {cores.server} (servers)"
    with pinned_to(cores.client):
        empty_loop, findings = reference(QUICK_CALLS)
    print_environment(facts, findings, empty_loop)
    with pinned_to(cores.client):
        found = measure_limits(cores, quick, only)
    print_limits(LIMITS, found)
    groups: list[Group] = []
    for part in PARTS:
        plan = part.plans[quick]
        with pinned_to(cores.server if part.together else cores.client):
            group = Group(part.title, part.columns, plan, measure(part.rows(cores.server), plan, only))
        if group.results:
            groups.append(group)
            print_group(group)
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


def measure_limits(cores: Cores, quick: bool, only: tuple[str, ...]) -> list[Limit]:
    if only and not any(text in key for text in only for key in ("idle", "growth")):
        return []
    return [limit for limit in limits(cores.server, QUICK_SCALE if quick else 1.0) if chosen(limit.key, only)]


if __name__ == "__main__":
    main()
