# SPDX-License-Identifier: Apache-2.0
"""``portcall bench cool``: wait until this machine is as cool as at its best, before each lease of a farm's place."""

from __future__ import annotations

import os

import click

from portcall.bench import cool, format_duration
from portcall.cli._command import Command, read_limit
from portcall.cli._errors import UNTRUSTED
from portcall.cli._output import print_json, print_line
from portcall.cli._progress import StatusLine

EXAMPLES = """
portcall bench cool 2m && ./my-benchmark
portcall serve --farm lab:9190 --key rasp4 --check 'portcall bench cool 2m' --hook-limit 3m
"""
WORD = "cool"  # a library of that name is ./cool


@click.command(f"bench {WORD}", cls=Command, examples=EXAMPLES)
@click.argument("limit", callback=read_limit, metavar="TIME")
@click.pass_context
def command(ctx: click.Context, limit: float, json_to: str | None) -> None:
    """Wait, at most so long, until the clock of this machine is within 1 % of the fastest that is remembered of it, its
    heat within 3 °C of the least, and nothing takes a core away from 0.3 s of work. Exit with 6 where it does not get
    there: as --check of `portcall serve --farm` that sends the request to another board. Where the machine does not
    tell, nothing is waited for.
    """
    with StatusLine() as status:
        found = cool(limit, place=os.environ.get("PORTCALL_PLACE", ""), progress=status.expect)
    why = found.finding.message if found.finding else ""
    if json_to is not None:
        print_json({"cool": found.reached, "seconds": found.seconds, "why": why}, json_to)
    else:
        print_line(why or f"cool, after {format_duration(found.seconds)}")
    ctx.exit(0 if found.reached else UNTRUSTED)
