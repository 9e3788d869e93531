# SPDX-License-Identifier: Apache-2.0
"""``portcall bench --against results.json``: a new figure beside those of earlier runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from portcall.bench import Baseline, baseline, check_many, clock_then, is_result
from portcall.cli._bench_report import results_of
from portcall.cli._errors import SLOWER, UNTRUSTED, CommandError
from portcall.cli._output import print_line, print_warning

Results = Sequence[Mapping[str, Any]]
NEXT = "measure both now: --against OLD.so; or keep five or more results with --json runs/1.json, then --against runs"


def stored_side(given: dict[str, Any]) -> Results | None:
    """Return the stored results that --against names; None where it names a library or a model, or nothing.

    Raises:
        click.UsageError: options do not fit together.
        CommandError: they are damaged, or too few.
    """
    files = [file for word in given["against"] for file in _files(word)]
    if not any(is_result(file) for file in files):
        if len(files) > 1:
            raise click.UsageError("--against takes one library or model; only stored results may be several")
        given["against"] = files[0] if files else None
        return None
    for option in ("against_rpc", "margin", "runs"):
        if given[option] is not None:
            raise click.UsageError(f"--{option.replace('_', '-')} is not for stored results: nothing runs again")
    given["against"] = None
    found = [result for file in files for result in results_of(file)]
    try:
        check_many(found)
    except ValueError as error:
        raise CommandError(str(error), next_step=NEXT, kind="ValueError") from None
    return found


def _files(word: str) -> list[str]:
    if not Path(word).is_dir():
        return [word]
    found = sorted(map(str, Path(word).glob("*.json")))
    if not found:
        raise CommandError(f"no *.json in the folder '{word}'", next_step=NEXT, kind="ValueError")
    return found


def compare_stored(report: Mapping[str, Any], stored: Results, given: dict[str, Any]) -> Baseline:
    """Compare what was measured with stored results.

    Raises:
        CommandError: they are of something else.
    """
    limit = None if given["fail_above"] is None else 1 + given["fail_above"]
    try:
        return baseline(report, stored, limit)
    except ValueError as error:
        raise CommandError(str(error), next_step=NEXT, kind="ValueError") from None


def show_stored(usual: Baseline, report: Mapping[str, Any], stored: Results) -> None:
    """Print how a figure is beside the stored ones, and what makes that doubtful."""
    print_line(str(usual))
    doubtful = sum(not (each.get("verdict") or {}).get("ok", True) for each in stored)
    if doubtful:
        print_warning(f"{doubtful} of the {len(stored)} stored figures were not trustworthy", NEXT)
    if (clock := clock_then(report, stored)) is not None:
        print_warning(f"the clock of this machine is {clock:.2f} times as fast as it was then", NEXT)


def stored_code(usual: Baseline) -> int:
    """Return what the command ends with."""
    return {"slower": SLOWER, "not settled": UNTRUSTED}.get(usual.gate or "", 0)
