# SPDX-License-Identifier: Apache-2.0
"""What all commands share: ``--json``, ``--debug``, help with examples first, and one way out for errors."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

import click
from click.core import ParameterSource

import portcall
from portcall import errors
from portcall.bench import parse_duration
from portcall.cli._errors import explain
from portcall.cli._output import drop_unwritten, print_json, print_problem

HELP_WIDTH = 100
COMPLETION = """Completion by the Tab key: a line in ~/.bashrc, the same with zsh_source in ~/.zshrc:
  eval "$(_PORTCALL_COMPLETE=bash_source {name})"
"""
# An empty word mostly comes of "$NAME" in a script, and --rpc "" must not mean this machine.
MAY_BE_EMPTY = ("key",)

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


@dataclass(frozen=True)
class Settings:
    """What the program decides for its commands.

    Attributes:
        isolate: foreign code runs in a separate process, so that its crash can be reported.
    """

    isolate: bool = False


def with_options(function: Decorated, options: Sequence[Callable[[Decorated], Decorated]]) -> Decorated:
    """Add options to a command, in the order in which its help lists them."""
    for option in reversed(options):
        function = option(function)
    return function


class Command(click.Command):
    """A command with ``--json [FILE]`` and ``--debug``; its callback gets ``json_to`` (None, ``-`` or a file).

    Attributes:
        examples: lines for the head of the help page.
        summary: the first line of the help page; the group fills it in from its table.
    """

    def __init__(self, *args: Any, examples: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self.examples = examples
        self.summary = ""
        self.params += [
            click.Option(
                ["--json", "json_to"],
                is_flag=False,
                flag_value="-",
                metavar="[FILE]",
                help="Print the result as JSON, or write it into FILE (*.json).",
            ),
            click.Option(["--debug"], is_flag=True, help="Show the trace of an error."),
        ]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, list(normalize_json_option(args)))
        refuse_empty(ctx, self.params)
        return rest

    def invoke(self, ctx: click.Context) -> Any:
        debug = ctx.params.pop("debug")
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.ClickException, click.Abort, BrokenPipeError):
            raise
        except (Exception, KeyboardInterrupt) as error:
            end_with_error(ctx, error, debug)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_head(self.summary, self.examples, formatter)
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_options(ctx, formatter)


class Group(click.Group):
    """A group of commands, whose help begins with examples; of a name that is wrong it proposes near ones.

    Parameters:
        summaries: the summary of each in the list of commands.

    Attributes:
        summary: the first line of the help page.
    """

    def __init__(
        self, name: str, examples: str, summaries: Mapping[Command, str] | None = None, **options: Any
    ) -> None:
        super().__init__(name, **options)
        self.examples = examples
        self.summary = self.help or ""
        for command, summary in (summaries or {}).items():
            command.summary = summary
            self.add_command(command)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, list(normalize_json_option(args)))
        refuse_empty(ctx, self.params)
        return rest

    def summaries(self) -> list[tuple[str, str]]:
        """Return the names of the commands, and their summaries."""
        return [(name, command.summary) for name, command in self.commands.items() if isinstance(command, Command)]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            near = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            ctx.fail(f"No such command '{args[0]}'.{f' Did you mean {near[0]!r}?' if near else ''}")
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_head(self.summary, self.examples, formatter)
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        with formatter.section("Commands"):
            formatter.write_dl(self.summaries())
        click.Command.format_options(self, ctx, formatter)
        formatter.write("\nEvery command has --help with examples, --json and --debug.\n")


class LazyGroup(Group):
    """A group whose commands are imported when they are run or asked for help, not when they are listed."""

    def __init__(
        self,
        name: str,
        commands_table: dict[str, tuple[str, str]],
        examples: str,
        aliases: dict[str, str] | None = None,
        **options: Any,
    ) -> None:
        settings = {"max_content_width": HELP_WIDTH, "help_option_names": ["--help", "-h"]}
        super().__init__(name, examples, context_settings=settings, **options)
        self.params.append(
            click.Option(["--version", "-V"], is_flag=True, is_eager=True, expose_value=False, callback=print_version,
                         help="Print the version and exit.")
        )  # fmt: skip
        self.commands_table = commands_table
        self.aliases = aliases or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands_table)

    def summaries(self) -> list[tuple[str, str]]:
        return [(name, summary) for name, (_, summary) in self.commands_table.items()]

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help(ctx, formatter)
        formatter.write(COMPLETION.format(name=self.name))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        cmd_name = self.aliases.get(cmd_name, cmd_name)
        if cmd_name not in self.commands_table:
            return None
        module, summary = self.commands_table[cmd_name]
        command = importlib.import_module(module).command
        assert isinstance(command, (Command, Group))
        command.summary = summary
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.ClickException as error:
            error.message = errors.printable(error.message)  # type: ignore[misc]
            raise
        except KeyboardInterrupt as error:  # while a command is imported, or reads its words
            end_with_error(ctx, error, debug=False)


def print_version(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    """Print the version, alone on its line, and exit; a callback of click."""
    if wanted:
        click.echo(portcall.__version__)
        ctx.exit()


def read_duration(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Turn an option such as ``500ms``, ``3s`` or ``2m`` into seconds; a callback of click."""
    try:
        return None if value is None else parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def read_limit(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Read a limit of time, which must be positive."""
    seconds = read_duration(ctx, param, value)
    if seconds == 0:
        raise click.BadParameter(f"'{value}' leaves no time; without the option there is no limit", ctx, param)
    return seconds


def end_with_error(ctx: click.Context, error: BaseException, debug: bool) -> NoReturn:
    """Report an error and end the command with the error's exit code.

    With ``--json`` it is an object on stdout, or in the file, and then text as well: who looks on sees it. Where the
    object cannot be written, which may be the very error, the text is all there is.
    """
    problem = explain(error, ctx.info_name or "")
    if debug:
        click.echo(errors.printable("".join(traceback.format_exception(error))), err=True, nl=False)
    json_to = ctx.params.get("json_to")
    told = False
    if json_to is not None:
        with contextlib.suppress(OSError):
            print_json(problem.to_dict(), json_to)
            told = json_to == "-"
    if not told:
        print_problem(problem)
    drop_unwritten()
    ctx.exit(problem.exit_code)


def normalize_json_option(args: Sequence[str]) -> Iterator[str]:
    """Give each ``--json`` its value: the next word if that is a ``.json`` file or ``-``, else ``-`` for stdout.

    So that in ``bench --json kernels.so f`` the library is not taken for a file to write.
    """
    words = iter(args)
    for word in words:
        if word == "--":
            yield word
            yield from words
        elif word == "--json":
            following = next(words, None)
            if following is not None and (following == "-" or following.endswith(".json")):
                yield f"--json={following}"
                continue
            yield "--json=-"
            if following is not None:
                yield from normalize_json_option([following, *words])
        else:
            yield word


def refuse_empty(ctx: click.Context, params: Sequence[click.Parameter]) -> None:
    """Refuse words that are empty.

    Raises:
        BadParameter: one is, and must not be.
    """
    for param in params:
        if ctx.params.get(param.name or "") == "" and was_written(ctx, param) and param.name not in MAY_BE_EMPTY:
            raise click.BadParameter("it is empty; is a variable of the shell not set?", ctx, param)


def was_written(ctx: click.Context, param: click.Parameter) -> bool:
    return ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE


def write_head(summary: str, examples: str, formatter: click.HelpFormatter) -> None:
    formatter.write(f"{summary}\n\nExamples:\n")
    for line in examples.strip().splitlines():
        formatter.write(f"  {line}\n")
    formatter.write_paragraph()
