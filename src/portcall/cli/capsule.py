# SPDX-License-Identifier: Apache-2.0
"""``portcall capsule``: sessions that crashed and were kept (``ConnectOptions(capsule=folder)``)."""

from __future__ import annotations

import shlex
from typing import Any

import click

from portcall.cli._command import Command, Group, read_limit
from portcall.cli._errors import CRASH, USER_ERROR, CommandError
from portcall.cli._output import print_facts, print_json, print_line
from portcall.cli._remote import read_token_file, session_options
from portcall.cli._store import NAME, Remote, read_remotes

EXAMPLES = """
portcall capsule show crashes/crash-20260101-120000-x.capsule
portcall capsule run FILE                                  here, in a process of its own
portcall capsule run FILE --rpc board.local:9090           on another board
portcall capsule run FILE --backtrace                      under gdb, which prints where it crashed
portcall capsule run FILE --debugger 'gdb --args'          under gdb, to look around
"""
SHOW = "portcall capsule show FILE"
BACKTRACE = "gdb --batch -iex 'set debuginfod enabled off' -ex run -ex bt --args"


@click.command("show", cls=Command, examples=SHOW)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.pass_context
def show(ctx: click.Context, /, file: str, json_to: str | None) -> None:
    """Function, types of arguments, signal, stderr, files with their SHA-256."""
    from portcall import testing

    facts = testing.read_capsule(file)
    damaged = facts.get("damaged", "")
    if json_to is not None:
        print_json(facts, json_to)
        ctx.exit(USER_ERROR if damaged else 0)
    files = facts.pop("files", None)
    rows = [(name, str(value)) for name, value in facts.items() if value and name != "message"]
    if isinstance(files, dict):
        rows += [
            (f"file {name}", str(each.get("sha256", ""))) for name, each in files.items() if isinstance(each, dict)
        ]
    print_facts(rows or [("facts", "none")])
    if damaged:
        raise CommandError(f"the capsule '{file}' is damaged: {damaged}", "", "copy it again; it cannot be run")


@click.command("run", cls=Command, examples=EXAMPLES)
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--rpc", "address", metavar="REMOTE", help="Run it on this server, by name or HOST:PORT.")
@click.option("--backtrace", is_flag=True, help="Run it here under gdb, and print where it crashed.")
@click.option("--debugger", metavar="WORDS", help="Words in front of the command of the process here.")
@click.option("--timeout", default="5m", show_default=True, callback=read_limit, metavar="TIME",
              help="How long an answer may take.")  # fmt: skip
@session_options
@click.pass_context
def run(
    ctx: click.Context, /, file: str, address: str | None, backtrace: bool, debugger: str | None, timeout: float,
    json_to: str | None, **given: Any,
) -> None:  # fmt: skip
    """Does again what the client of that session did: uploads, copies and calls, in the same order. Exits with 5 where
    it crashes again. A process here may do whatever you may, and loads the capsule's libraries: run those alone that
    you trust, or have a server with --rpc.
    """
    from portcall import rpc, testing

    if given["farm"]:
        raise click.UsageError("--farm is not for capsules: portcall farm reserve, and --rpc")
    remotes = read_remotes() if address and NAME.fullmatch(address) else {}
    remote = remotes.get(address or "") or Remote(address or "")
    ca, certificate = given["tls_ca"] or remote.tls_ca, given["tls_cert"] or remote.tls_cert
    found = testing.run_capsule(
        file, remote.address, given["key"] or remote.key, token=read_token_file(given["token_file"]) or remote.token,
        tls=rpc.TLSOptions(ca=ca, certificate=certificate) if ca or certificate else None,
        debugger=shlex.split(debugger or (BACKTRACE if backtrace else "")), timeout=timeout,
    )  # fmt: skip
    if json_to is not None:
        print_json(found.to_dict(), json_to)
    elif found.crashed:
        words = [f"after {found.requests} of {found.requests_all} requests", *filter(None, [found.ending])]
        print_line("; ".join(words), "crashed", "red")
    else:
        print_line(f"all of {found.requests_all} requests were answered", "no crash", "green")
    if found.differs and json_to is None:
        print_line(f"answer {found.differs} was another; times and paths are, too", "differs", "yellow")
    if found.crashed:
        ctx.exit(CRASH)


command = Group(
    "capsule",
    examples=EXAMPLES,
    summaries={show: "Show how a session crashed.", run: "Do again what crashed, here or on a server."},
)
