# SPDX-License-Identifier: Apache-2.0
"""Printing: results as tables or JSON on stdout, problems on stderr, colours only where they are wanted."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from portcall.cli._errors import Explanation
from portcall.errors import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Where stdout is not a terminal, lines may be this long.
PLAIN_WIDTH = 120
# Libraries may export thousands of functions, and graphs have as many nodes; with --all every one is listed.
LISTED = 40
# Names of kernels that a compiler made of the operators in them: what numbers them, and how much of one is shown.
NUMBERED, LONG = re.compile(r"_?\d+$"), 60


def console() -> Console:
    """Return a rich console on the present stdout; rich itself obeys NO_COLOR."""
    from rich.console import Console

    return Console(
        file=sys.stdout, width=None if sys.stdout.isatty() else PLAIN_WIDTH, highlight=False, soft_wrap=False
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> Table:
    """Return a plain table: no frame, headings in bold, the columns named in ``right`` aligned to the right."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        aligned = column in right
        made.add_column(column, justify="right" if aligned else "left", overflow="fold", no_wrap=aligned)
    for row in rows:
        made.add_row(*(Text(printable(cell)) for cell in row))
    return made


def print_facts(facts: Iterable[tuple[str, str]]) -> None:
    """Print facts: names and values, which may take several lines."""
    listed = list(facts)
    width = max(len(name) for name, _ in listed)
    out = console()
    for name, text in listed:
        for number, line in enumerate(text.splitlines() or [""]):
            out.print(f"[bold]{name if number == 0 else '':<{width}}[/]  ", end="")
            print_line(line)


def listed(lines: Sequence[str], everything: bool) -> str:
    """Return lines as one text; of many only the first, unless all are wanted."""
    if everything or len(lines) <= LISTED:
        return "\n".join(lines)
    return "\n".join((*lines[:LISTED], f"… and {len(lines) - LISTED} more (--all lists them)"))


def counted(names: Iterable[str]) -> list[str]:
    """Return names that a compiler numbered, as ``add x 3`` for add, add1 and add2, and long ones in part."""
    stems = Counter(NUMBERED.sub("", name) for name in names)
    short = ((stem if len(stem) <= LONG else f"{stem[: LONG - 1]}…", count) for stem, count in stems.items())
    return [f"{stem} x {count}" if count > 1 else stem for stem, count in short]


def print_line(text: str, label: str = "", colour: str = "") -> None:
    """Print a line of any length, after a label in a colour."""
    out = console()
    if label:
        out.print(f"[{colour}]{label}[/]: ", end="")
    out.print(printable(text), markup=False, soft_wrap=True)


def print_json(result: Mapping[str, object], to: str) -> None:
    """Write one JSON object to stdout (``to`` is ``-``) or into a file; numbers that are not finite become null."""
    text = json.dumps(finite(result), indent=2, allow_nan=False)
    if to == "-":
        click.echo(text)
    else:
        Path(to).write_text(text + "\n", encoding="utf-8")


def print_problem(problem: Explanation) -> None:
    """Say on stderr what went wrong, the likely cause and the next step."""
    say("error", problem.what, "red")
    if problem.cause:
        echo_error(f"  likely cause: {problem.cause}")
    if problem.next_step:
        echo_error(f"  next: {problem.next_step}")


def drop_unwritten() -> None:
    """Give up what standard output does not take: Python would try again at its end, and change the exit code."""
    try:
        sys.stdout.flush()
    except OSError:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def print_warning(text: str, advice: str) -> None:
    """Say on stderr what makes a result doubtful, and what to do about it."""
    say("warning", text, "yellow")
    echo_error(f"  advice: {advice}")


def say(word: str, text: str, colour: str) -> None:
    wanted = False if os.environ.get("NO_COLOR") else None
    click.echo(f"{click.style(word, fg=colour, bold=True)}: {printable(text)}", err=True, color=wanted)


def echo_error(text: str) -> None:
    """Print a line on stderr."""
    click.echo(printable(text), err=True)


def finite(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
