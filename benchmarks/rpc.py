# SPDX-License-Identifier: Apache-2.0
"""Compare portcall's RPC with apache-tvm's client and server, and its copies with what sockets alone can do.

``make bench-rpc`` runs this. What the rows mean is in docs/benchmarks.md; how it is measured, in method.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import rpc_rows
from calls import Row
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
from rpc_limits import limits
from rpc_peers import Cores, choose_cores, pinned_to
from run import chosen, measure

CALLS, QUICK_CALLS = Plan(runs=24, block_seconds=0.02), Plan(runs=6, block_seconds=0.01)
COPIES, QUICK_COPIES = Plan(runs=6, block_seconds=0.05), Plan(runs=3)
OPENING, QUICK_OPENING = Plan(runs=12), Plan(runs=3)
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
    Part("Callbacks, both ends on one core", ("callback", "call"), rpc_rows.callback_rows, (CALLS, QUICK_CALLS), True),
    Part("Calls, each end on its own core", ("portcall", "apache-tvm"), rpc_rows.apart_rows, (CALLS, QUICK_CALLS)),
    Part(
        "Many calls, both ends on one core", ("portcall", "apache-tvm"), rpc_rows.many_rows, (CALLS, QUICK_CALLS), True
    ),
    Part("Steps, 10 ms away", ("portcall", "one trip"), rpc_rows.far_rows, (OPENING, QUICK_OPENING)),
    Part("Copies, each end on its own core", ("portcall", "sockets"), rpc_rows.copy_rows, (COPIES, QUICK_COPIES)),
    Part("Byte strings, each end on its own core", ("portcall", "sockets"), rpc_rows.byte_rows, (COPIES, QUICK_COPIES)),
    Part("Files, each end on its own core", ("portcall", "sockets"), rpc_rows.file_rows, (COPIES, QUICK_COPIES)),
    Part("Uploads by content", ("again", "first"), rpc_rows.again_rows, (COPIES, QUICK_COPIES)),
    Part("Small copies", ("portcall", "apache-tvm"), rpc_rows.small_copy_rows, (CALLS, QUICK_CALLS)),
    Part("Opening a session", ("portcall", "apache-tvm"), rpc_rows.open_rows, (OPENING, QUICK_OPENING)),
)


@command(quick="Fewer and shorter rounds: a minute and a half, wider intervals.")
def main(quick: bool, only: tuple[str, ...], output: Output) -> None:
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
    output.finish(facts, empty_loop, groups, LIMITS, found)


def measure_limits(cores: Cores, quick: bool, only: tuple[str, ...]) -> list[Limit]:
    if only and not any(text in key for text in only for key in ("idle", "growth")):
        return []
    return [limit for limit in limits(cores.server, QUICK_SCALE if quick else 1.0) if chosen(limit.key, only)]


if __name__ == "__main__":
    main()
