# SPDX-License-Identifier: Apache-2.0
"""``portcall version``: the version, alone on its line."""

from __future__ import annotations

import click

import portcall
from portcall.cli._command import Command
from portcall.cli._output import print_json

EXAMPLES = """
portcall version
portcall version --json
"""


@click.command("version", cls=Command, examples=EXAMPLES)
def command(json_to: str | None) -> None:
    if json_to is not None:
        print_json({"version": portcall.__version__}, json_to)
    else:
        click.echo(portcall.__version__)
