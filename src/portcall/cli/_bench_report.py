# SPDX-License-Identifier: Apache-2.0
"""``portcall bench report``: read results that were kept, and show them again; nothing is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from portcall.bench import BenchmarkResult, headline_of, read_results, report, title_of
from portcall.cli._command import Command
from portcall.cli._errors import CommandError
from portcall.cli._output import print_json, print_line

EXAMPLES = """
portcall bench report times.json
portcall bench report report.html --json times.json
portcall bench report old.json new.json --html both.html
"""
WORD = "report"  # the first word of `portcall bench` that means this; a library of that name is ./report


@click.command(f"bench {WORD}", cls=Command, examples=EXAMPLES)
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
@click.option("--html", type=click.Path(dir_okay=False), metavar="FILE", help="Write a page about them, in one file.")
def command(files: Sequence[str], html: str | None, json_to: str | None) -> None:
    """Show results again that portcall bench wrote with --json or --html. A library of that name is ./report."""
    found = [result for file in files for result in results_of(file)]
    if html:
        write_page(found, html)
    if json_to is not None:
        print_json(found[0] if len(found) == 1 else {"schema": 1, "results": found}, json_to)
        return
    for place, each in enumerate(found):
        if place:
            print_line("")
        for line in lines_of(each):
            print_line(line)
    if html:
        print_line(f"report: {html}")


def results_of(file: str) -> list[Mapping[str, Any]]:
    """Return the results in a file.

    Raises:
        CommandError: it has none, or is damaged.
    """
    try:
        return read_results(file)
    except ValueError as error:
        raise CommandError(
            str(error), "it was not written by portcall bench, or not to its end", "portcall bench … --json times.json",
            kind="ValueError",
        ) from None  # fmt: skip


def write_page(results: Sequence[Mapping[str, Any]], file: str) -> None:
    """Write a report."""
    report(results, file)


def lines_of(result: Mapping[str, Any]) -> list[str]:
    """Return a stored result in words, as ``portcall bench`` said them."""
    lines = [title_of(result)]
    if "comparison" in result:
        lines.append(headline_of(result))
    else:
        lines.append(str(BenchmarkResult(tuple(result["results_s"]))))
        lines += [str(result["summary"])] if "summary" in result else []
        lines.append(headline_of(result))
        lines += [
            f"  {each.get('code')}: {each.get('advice')}"
            for each in result.get("warnings", [])
            if isinstance(each, dict) and not each.get("note")
        ]
    if isinstance(result.get("baseline"), dict):
        lines.append(str(result["baseline"].get("text")))
    if isinstance(result.get("error"), dict):
        lines.append(f"it ended early: {result['error'].get('message')}")
    return lines
