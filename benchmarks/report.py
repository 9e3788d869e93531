# SPDX-License-Identifier: Apache-2.0
"""What a run prints and writes: the machine, a table for each group of rows, JSON with the ratio of every run."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

import click
from calls import Row, loop
from method import Plan, Timer, calls_in, verdict
from rich.console import Console
from rich.table import Table
from rich.text import Text

from portcall.bench import BenchmarkResult, Comparison, Finding, check_machine, format_duration, judge

SCHEMA = 2
PACKAGES = ("portcall", "apache-tvm-ffi", "apache-tvm", "numpy", "torch")
GOVERNORS = Path("/sys/devices/system/cpu")
REFERENCES = 80  # blocks of the empty loop
PLAIN_WIDTH = 150  # where stdout is not a terminal
COLOURS = {"met": "green", "faster": "green", "missed": "red", "slower": "red"}


@dataclass(frozen=True)
class Result:
    """A row and what was measured for it."""

    row: Row
    comparison: Comparison

    @property
    def verdict(self) -> str:
        if self.row.limit is not None:
            return "met" if self.comparison.seconds[0] <= self.row.limit else "missed"
        return verdict(self.comparison)

    def to_dict(self) -> dict[str, object]:
        row = {"key": self.row.key, "text": self.row.text, "against": self.row.against}
        return {**row, **self.comparison.to_dict(), "limit_s": self.row.limit, "verdict": self.verdict}


@dataclass(frozen=True)
class Group:
    """Rows that are compared with the same other side.

    Attributes:
        title: the heading.
        columns: what the two sides are called.
        plan: how its rows are measured.
    """

    title: str
    columns: tuple[str, str]
    plan: Plan
    results: tuple[Result, ...]


@dataclass(frozen=True)
class Limit:
    """A number and what it may be at most.

    Attributes:
        key, text: as of a row.
        value, limit: in ``unit``.
        detail: what else was seen.
    """

    key: str
    text: str
    value: float
    limit: float
    unit: str
    detail: str = ""

    @property
    def verdict(self) -> str:
        return "met" if self.value <= self.limit else "missed"

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "verdict": self.verdict}


def environment() -> dict[str, object]:
    """Return what a reader needs to judge the numbers; nothing that names the machine."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "cores usable": len(os.sched_getaffinity(0)),
        "governor": governor(),
        "load average": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}, {' '.join(platform.libc_ver())}",
        "python": f"{platform.python_implementation()} {platform.python_version()}, {platform.python_compiler()}",
        **versions,
    }


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def governor() -> str:
    names = {path.read_text().strip() for path in GOVERNORS.glob("cpu*/cpufreq/scaling_governor")}
    return " and ".join(sorted(names)) or "not visible"


def reference(plan: Plan) -> tuple[float, list[Finding]]:
    """Return what an empty loop takes for each turn, and what speaks against measuring now."""
    timer: Timer = loop("pass")
    number = calls_in(timer, plan.block_seconds)
    result = BenchmarkResult(tuple(timer(number) / number for _ in range(REFERENCES)))
    found = judge(result, number).findings
    return result.median, [*check_machine(), *(finding for finding in found if not finding.note)]


def console() -> Console:
    return Console(width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False)


def print_environment(facts: Mapping[str, object], findings: Sequence[Finding], empty_loop: float) -> None:
    out = console()
    width = max(map(len, facts))
    for name, value in facts.items():
        out.print(f"[bold]{name:<{width}}[/]  ", Text(str(value)), sep="")
    out.print(f"[bold]{'empty loop':<{width}}[/]  {format_duration(empty_loop)} a turn: part of every call, both sides")
    for finding in findings:
        out.print(f"[yellow]warning[/]: {finding.message}; {finding.advice}")


def print_group(group: Group) -> None:
    made = Table(title=group.title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    made.add_column("what")
    for column in (*group.columns, "ratio", "99 % interval", "runs", "target"):
        made.add_column(column, justify="right")
    made.add_column("verdict")
    for result in group.results:
        made.add_row(*map(Text, cells(result)), Text(result.verdict, COLOURS.get(result.verdict, "")))
        if result.row.against:
            made.add_row(Text(f"  against {result.row.against}", "dim"))
    out = console()
    out.print()
    out.print(made)


def cells(result: Result) -> list[str]:
    row, measured = result.row, result.comparison
    low, high = measured.interval
    target = f"{row.target:.2f}" if row.target is not None else ""
    return [
        row.text,
        *map(format_duration, measured.seconds),
        f"{measured.ratio:.3f}",
        f"{low:.3f} to {high:.3f}",
        str(len(measured.ratios)),
        format_duration(row.limit) if row.limit is not None else target,
    ]


def markdown(facts: Mapping[str, object], empty_loop: float, groups: Iterable[Group]) -> str:
    """Return the report as tables for docs/benchmarks.md."""
    lines = [", ".join(f"{name} {value}" for name, value in facts.items() if name != "load average"), ""]
    lines += [f"An empty loop takes {format_duration(empty_loop)} a turn.", ""]
    for group in groups:
        lines += [f"### {group.title}", ""]
        columns = ("key", "what", *group.columns, "ratio", "99 % interval", "runs", "target", "verdict")
        lines += [f"| {' | '.join(columns)} |", f"| {' | '.join(['---'] * len(columns))} |"]
        for result in group.results:
            what, *numbers = cells(result)
            text = f"{what}, against {result.row.against}" if result.row.against else what
            lines.append(f"| {' | '.join((f'`{result.row.key}`', text, *numbers, result.verdict))} |")
        lines.append("")
    return "\n".join(lines)


def print_limits(title: str, found: Iterable[Limit]) -> None:
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("what", "portcall", "limit", "verdict", ""):
        made.add_column(column, justify="right" if column in ("portcall", "limit") else "left")
    for limit in found:
        made.add_row(*limit_cells(limit), Text(limit.verdict, COLOURS[limit.verdict]), Text(limit.detail, "dim"))
    if made.row_count:
        console().print()
        console().print(made)


def limit_cells(limit: Limit) -> list[str]:
    return [limit.text, f"{limit.value:.4g} {limit.unit}", f"{limit.limit:g} {limit.unit}"]


def limits_markdown(title: str, found: Iterable[Limit]) -> str:
    columns = ("key", "what", "portcall", "limit", "verdict")
    rows = [columns, ["---"] * len(columns), *((f"`{x.key}`", *limit_cells(x), x.verdict) for x in found)]
    return "\n".join([f"### {title}", "", *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def write_json(
    file: Path, facts: Mapping[str, object], empty_loop: float, groups: Iterable[Group], **further: object
) -> None:
    """Write everything that was measured: the ratio of each run, in order; times in seconds."""
    document = {
        "schema": SCHEMA,
        "command": sys.argv,
        "environment": facts,
        "empty_loop_s": empty_loop,
        "groups": [
            {
                "title": group.title,
                "most_runs": group.plan.runs,
                "block_seconds": group.plan.block_seconds,
                "rows": [result.to_dict() for result in group.results],
            }
            for group in groups
        ],
        **further,
    }
    file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class Output:
    """Where results go beside the terminal, and whether a missed target fails the command."""

    json_to: Path | None
    markdown_to: Path | None
    check: bool

    def finish(
        self,
        facts: Mapping[str, object],
        empty_loop: float,
        groups: list[Group],
        title: str = "",
        limits: Sequence[Limit] = (),
    ) -> None:
        """Write the files, name the targets that were missed, and end the process; ``title`` is that of the limits."""
        if self.json_to is not None:
            further = {"limits": [limit.to_dict() for limit in limits]} if title else {}
            write_json(self.json_to, facts, empty_loop, groups, **further)
        if self.markdown_to is not None:
            text = markdown(facts, empty_loop, groups) + ("\n" + limits_markdown(title, limits) if title else "")
            self.markdown_to.write_text(text, encoding="utf-8")
        missed = [result.row.key for group in groups for result in group.results if result.verdict == "missed"]
        missed += [limit.key for limit in limits if limit.verdict == "missed"]
        if missed:
            print(f"\nmissed: {', '.join(missed)}")
        sys.exit(1 if self.check and missed else 0)


def command(quick: str) -> Callable[[Callable[[bool, tuple[str, ...], Output], None]], click.Command]:
    """Make a command of a function that measures; ``quick`` says what the option does."""

    def decorate(measure: Callable[[bool, tuple[str, ...], Output], None]) -> click.Command:
        @click.command(context_settings={"help_option_names": ["-h", "--help"]}, help=measure.__doc__)
        @click.option(
            "--json",
            "json_to",
            type=click.Path(dir_okay=False, path_type=Path),
            help="Write the ratio of every run to a file.",
        )
        @click.option(
            "--markdown", "markdown_to", type=click.Path(dir_okay=False, path_type=Path), help="Write the tables."
        )
        @click.option("--quick", is_flag=True, help=quick)
        @click.option(
            "--only", multiple=True, metavar="TEXT", help="Only rows whose key contains TEXT; may be repeated."
        )
        @click.option("--check", is_flag=True, help="Exit with 1 if a target is missed.")
        def main(
            json_to: Path | None, markdown_to: Path | None, quick: bool, only: tuple[str, ...], check: bool
        ) -> None:
            measure(quick, only, Output(json_to, markdown_to, check))

        return main

    return decorate
