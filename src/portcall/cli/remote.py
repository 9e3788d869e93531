# SPDX-License-Identifier: Apache-2.0
"""``portcall remote``: give servers names, so that ``--rpc rasp`` is enough."""

from __future__ import annotations

import difflib
import os
from dataclasses import asdict
from typing import Any

import click

from portcall.cli._announce import scan
from portcall.cli._command import Command, Group, read_duration
from portcall.cli._errors import CommandError
from portcall.cli._output import console, print_facts, print_json, print_line, table
from portcall.cli._remote import read_token_file
from portcall.cli._store import NAME, Remote, folder, read_remotes, write_remotes

EXAMPLES = """
portcall remote add rasp board.local --token-file token      then: portcall run … --rpc rasp
portcall remote scan                                          who announces itself in this network
portcall remote list
portcall remote show rasp --token
portcall remote remove rasp
"""
ADD = """
portcall remote add rasp board.local --token-file token
portcall remote add rasp board.local:9091 --key rasp --token-file -      reads the token from standard input
portcall remote add lab lab.example.com --tls-ca ca.pem --tls-cert mine.pem
"""
LIST = """
portcall remote list
portcall remote list --json
"""
SCAN = """
portcall remote scan
portcall remote scan --for 5s --json
portcall remote scan --interface 192.168.7.4      only in the network of this address of your machine
"""
SHOW = """
portcall remote show rasp
portcall remote show rasp --token > token       the token alone
"""
REMOVE = """
portcall remote remove rasp
"""


@click.command("add", cls=Command, examples=ADD)
@click.argument("name")
@click.argument("address", metavar="HOST[:PORT]|ssh://HOST")
@click.option("--key", default="", help="The key that the server was started with.")
@click.option("--token-file", type=click.Path(allow_dash=True), help="File with the server's token, which is kept.")
@click.option("--tls-ca", default="", type=click.Path(), metavar="FILE", help="Speak TLS, and trust this authority.")
@click.option("--tls-cert", default="", type=click.Path(), metavar="FILE", help="Your certificate and key (PEM).")
def add(json_to: str | None, name: str, address: str, token_file: str | None, **given: Any) -> None:
    """An existing name gets the new address. The token is kept in a file that only you can read."""
    from portcall.rpc import parse_address

    if not NAME.fullmatch(name):
        raise CommandError(
            f"invalid name '{name}' (letters, digits, '.', '_' and '-')", next_step="portcall remote add --help"
        )
    remotes = read_remotes()
    tls = {option: os.path.abspath(path) if path else "" for option, path in given.items() if option != "key"}
    remote = Remote(str(parse_address(address, ssh=True)), given["key"], read_token_file(token_file) or "", **tls)
    write_remotes({**remotes, name: remote})
    if json_to is not None:
        print_json(remote.to_dict(name), json_to)
    else:
        print_line(f"{name} is {remote.address}; try it: portcall doctor {name}")


@click.command("list", cls=Command, examples=LIST)
def list_all(json_to: str | None) -> None:
    """Tokens are not printed."""
    remotes = read_remotes()
    if json_to is not None:
        print_json({"remotes": [remote.to_dict(name) for name, remote in remotes.items()]}, json_to)
    elif not remotes:
        print_line("no server has a name yet: portcall remote add NAME HOST:PORT --token-file FILE")
    else:
        rows = [
            (name, remote.address, remote.key, "yes" if remote.token else "", "yes" if uses_tls(remote) else "")
            for name, remote in remotes.items()
        ]
        console().print(table(("name", "address", "key", "token", "TLS"), rows))


@click.command("show", cls=Command, examples=SHOW)
@click.argument("name")
@click.option(
    "--token", "with_token", is_flag=True, help="Print the token alone, for a file: it lets anyone use the server."
)
def show(json_to: str | None, name: str, with_token: bool) -> None:
    """The token is printed only with --token."""
    remote = find(name)
    if json_to is not None:
        print_json(remote.to_dict(name, with_token), json_to)
        return
    if with_token:
        if not remote.token:
            step = f"portcall remote add {name} {remote.address} --token-file FILE"
            raise CommandError(f"no token is kept for '{name}'", "", step)
        click.echo(remote.token)
        return
    facts = remote.to_dict(name)
    facts["token"] = "kept; --token prints it" if remote.token else ""
    print_facts((key.replace("_", " "), str(value)) for key, value in facts.items() if value)


@click.command("remove", cls=Command, examples=REMOVE)
@click.argument("name")
def remove(json_to: str | None, name: str) -> None:
    """The server itself is not touched."""
    remote = find(name)
    write_remotes({other: kept for other, kept in read_remotes().items() if other != name})
    if json_to is not None:
        print_json(remote.to_dict(name), json_to)
    else:
        print_line(f"{name} ({remote.address}) is removed")


@click.command("scan", cls=Command, examples=SCAN)
@click.option("--for", "seconds", default="3s", show_default=True, callback=read_duration, metavar="TIME",
              help="How long to wait for answers.")  # fmt: skip
@click.option("--interface", default="", metavar="ADDRESS", help="Ask in the network of this address of the machine.")
def scan_all(json_to: str | None, seconds: float, interface: str) -> None:
    """List servers (serve --announce) and farms (farm --announce) in the local network.

    Anyone there can announce anything, so this is no proof of who it is: only the token is.
    """
    (found, left_out), remotes = scan(seconds, interface), read_remotes()
    saved = {one: [name for name, remote in remotes.items() if remote.address == one.address] for one in found}
    if json_to is not None:
        print_json({"found": [{**asdict(one), "saved_as": saved[one]} for one in found], "left_out": left_out},
                   json_to)  # fmt: skip
    elif not found:
        print_line("nobody announces a server or a farm here: portcall serve --host 0.0.0.0 --announce")
    else:
        columns = ("address", "kind", "key", "token", "TLS", "announced as", "saved as")
        rows = [
            (one.address, one.kind, one.key, "yes" if one.token else "", "yes" if one.tls else "", one.name,
             ", ".join(saved[one]))
            for one in found
        ]  # fmt: skip
        console().print(table(columns, rows))
        if left_out:
            print_line(f"{left_out:,} more are not shown; somebody may announce what is not there", "more", "yellow")


def find(name: str) -> Remote:
    remotes = read_remotes()
    if name in remotes:
        return remotes[name]
    near = difflib.get_close_matches(name, remotes, n=3)
    cause = f"did you mean {' or '.join(near)}?" if near else ""
    raise CommandError(f"there is no remote '{name}' in {folder()}", cause, "portcall remote list")


def uses_tls(remote: Remote) -> bool:
    return bool(remote.tls_ca or remote.tls_cert)


command = Group(
    "remote",
    examples=EXAMPLES,
    summaries={
        add: "Give a server a name.",
        scan_all: "Find servers in the local network.",
        list_all: "List the servers that have names.",
        show: "Show what is known of a server.",
        remove: "Forget a server.",
    },
)
