# SPDX-License-Identifier: Apache-2.0
"""``portcall help``: the same as ``--help`` after the command."""

from __future__ import annotations

import click

from portcall.cli._command import Command
from portcall.cli._output import print_json

EXAMPLES = """
portcall help
portcall help run
portcall help remote add
"""


@click.command("help", cls=Command, examples=EXAMPLES)
@click.argument("words", nargs=-1, metavar="[COMMAND]")
@click.pass_context
def command(ctx: click.Context, json_to: str | None, words: tuple[str, ...]) -> None:
    """Without a command: the list of all commands."""
    assert ctx.parent is not None
    shown = ctx.parent
    for word in words:
        if not isinstance(shown.command, click.Group):
            raise click.UsageError(f"'{shown.command_path}' has no commands of its own: {word}")
        _, found, _ = shown.command.resolve_command(shown, [word])
        assert found is not None
        shown = click.Context(found, shown, info_name=word)
    text = shown.command.get_help(shown)
    if json_to is not None:
        print_json({"help": text}, json_to)
    else:
        click.echo(text)
