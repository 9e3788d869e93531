# SPDX-License-Identifier: Apache-2.0
"""Write the page portcall(1) from the help of the command and its sub-commands.

Usage: man_page.py FILE
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

import portcall
from portcall.cli import cli


def escaped(text: str) -> str:
    """Return text as troff prints it; a line never begins with a request."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\n".join(f"\\&{line}" if line[:1] in (".", "'") else line for line in text.splitlines())


def section(title: str, *texts: str) -> Iterator[str]:
    yield f'.SH "{escaped(title)}"'
    yield from texts


def examples(text: str) -> Iterator[str]:
    yield from (".PP", ".nf", escaped(text.strip()), ".fi")


def pages(command: click.Command, ctx: click.Context) -> Iterator[str]:
    """Yield the sections of a command, and those of its own commands."""
    yield f'.SH "{escaped(ctx.command_path)}"'
    yield escaped(getattr(command, "summary", ""))
    yield from (".PP", f"\\fB{escaped(ctx.command_path)}\\fR {escaped(' '.join(command.collect_usage_pieces(ctx)))}")
    for paragraph in (command.help or "").split("\n\n"):
        if paragraph.strip():
            yield from (".PP", escaped(" ".join(paragraph.split())))
    for param in command.get_params(ctx):
        record = param.get_help_record(ctx)
        if record is not None and record[1]:
            yield from (".TP", f"\\fB{escaped(record[0])}\\fR", escaped(record[1]))
    yield from examples(getattr(command, "examples", ""))
    yield from sub_pages(command, ctx)


def sub_pages(command: click.Command, ctx: click.Context) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name in command.list_commands(ctx):
            below = command.get_command(ctx, name)
            assert below is not None
            yield from pages(below, click.Context(below, info_name=name, parent=ctx))


def page() -> str:
    """Return the whole page."""
    ctx = click.Context(cli, info_name="portcall", **cli.context_settings)
    lines = [
        f'.TH PORTCALL 1 "" "portcall {portcall.__version__}" "User Commands"',
        *section("NAME", f"portcall \\- {escaped((cli.help or '').split(':')[0].lower())}"),
        *section("SYNOPSIS", "\\fBportcall\\fR COMMAND [OPTIONS] [ARGUMENTS]"),
        *section("DESCRIPTION", escaped(cli.help or ""), *examples(cli.examples)),
        *sub_pages(cli, ctx),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    place = Path(sys.argv[1])
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(page(), encoding="utf-8")
