# SPDX-License-Identifier: Apache-2.0
"""Start a farm: its options, and what it then says to whoever started it, to users and to boards."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import os
import re
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from portcall.cli._announce import Announcement, announcing, check_installed
from portcall.cli._command import Decorated, was_written, with_options
from portcall.cli._errors import INTERRUPTED, MAKE_CERTIFICATE, CommandError
from portcall.cli._ready import READY_FILE, print_ready, reachable, say_aside, time_warning

if TYPE_CHECKING:
    from portcall.farm import FarmOptions

STORE = "PORTCALL_FARM_STORE"
COPY = "farm.crt"  # how the lines for other machines call their copy of the certificate


def read_network(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Check networks; a callback of click."""
    if "none" in value and len(value) > 1:
        raise click.BadParameter("none leaves no place for another network", ctx, param)
    for text in value:
        try:
            if text != "none":
                ipaddress.ip_network(text)
        except ValueError as error:
            raise click.BadParameter(f"{error}; write it as 192.168.7.0/24, or none", ctx, param) from error
    return value


def read_names(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    """Check names of hosts; a callback of click."""
    for text in value:
        if not re.fullmatch(r"[\w-]+(\.[\w-]+)*\.?", text):
            raise click.BadParameter(f"'{text}' is not the name of a host alone, such as farm.example.com", ctx, param)
    return value


def server_options(function: Decorated) -> Decorated:
    """Add the options of the farm itself."""
    options = [
        click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on. Beyond this "
                     "machine a farm needs --tls-cert, and its users and boards need tokens."),
        click.option("--port", type=click.IntRange(0, 65535), default=9190, show_default=True, help="0 takes a free "
                     "one."),
        click.option("--name", "names", multiple=True, metavar="NAME", callback=read_names, help="A further name under "
                     "which browsers and others reach the farm, such as farm.example.com; it answers to its machine's "
                     "name, localhost and IP addresses anyway. Can be repeated."),
        click.option("--store", default="farm.db", show_default=True, metavar="FILE|URL", envvar=STORE, help="Keeps "
                     "everything over a restart; ':memory:' keeps nothing; redis://HOST:PORT/0 is for a farm of "
                     "several processes. Or PORTCALL_FARM_STORE, which other users of this machine do not see."),
        click.option("--tls-cert", default="", type=click.Path(), help="Certificate of the farm (PEM): users, boards "
                     "and browsers speak TLS."),
        click.option("--tls-key", default="", type=click.Path(), help="Its private key, where it is not in the same "
                     "file."),
        click.option("--tvm-network", "tvm_networks", multiple=True, metavar="NETWORK", callback=read_network,
                     help="From where TVM's servers and clients, which know no tokens, may come: 192.168.7.0/24. By "
                     "default this machine; none keeps them all out. Can be repeated."),
        click.option("--power-cycle", metavar="COMMAND", default="", help="Cycles the power of the board "
                     "PORTCALL_PLACE, when it is away for two minutes."),
        click.option("--power-cycles", type=click.IntRange(1, 1000), default=3, show_default=True, help="How often in "
                     "a row, before the board counts as bad."),
        click.option("--webhook", multiple=True, metavar="URL", help="Gets a POST when a board is quarantined, a key "
                     "has no board left, or somebody waits for long. Can be repeated."),
        click.option("--npm-package", default="", type=click.Path(), metavar="FOLDER", help="Serve the npm package's "
                     "page at /device?key=KEY, which makes a browser's tab a place."),
        click.option("--insecure", is_flag=True, help="Listen beyond this machine without TLS, in a network that you "
                     "trust."),
        click.option("--require-tokens", is_flag=True, help="Want tokens on this machine, too. TVM's "
                     "clients of this machine still need none: --tvm-network none."),
        click.option("--announce", is_flag=True, help="Let `portcall remote scan` find this farm in the local "
                     "network."),
        READY_FILE,
        click.option("--silent", is_flag=True, help="Log nothing."),
        click.option("--json", "json_to", is_flag=False, flag_value="-", metavar="[FILE]", help="Print the first line "
                     "as a JSON object, or write it into FILE (*.json)."),
        click.option("--debug", is_flag=True, help="Show the trace of an error."),
    ]  # fmt: skip
    return with_options(function, options)


def refuse_options(ctx: click.Context) -> None:
    """Refuse options of the farm before the name of another command, which would not see them.

    Raises:
        UsageError: there is one.
    """
    for param in ctx.command.params:
        if was_written(ctx, param):
            name, words = param.opts[0], f"{ctx.command_path} {ctx.invoked_subcommand}"
            raise click.UsageError(f"{name} is of `portcall farm` alone, which runs a farm; options of '{words}' come "
                                   f"after its name: {words} --help", ctx)  # fmt: skip


def run_farm(ctx: click.Context, given: dict[str, Any]) -> None:
    """Serve until a signal."""
    from portcall import farm

    options = make_options(given)
    warning = time_warning(options.tls_certificate)
    is_new = not options.shared and not os.path.exists(options.store)  # ":memory:" is no file

    if given["announce"]:
        check_installed()
    told = contextlib.ExitStack()

    def say_ready(address: Any, access: Any) -> None:
        token = ""
        if access is not None and access.required and not access.list():
            token = access.make("portcall farm", user="admin", role="admin", top_class="urgent")
        facts = facts_of(options, address, token)
        print_ready(facts, given["json_to"], given["ready_file"], told)
        sys.stdout.flush()
        if given["announce"]:
            needs_tokens, tls = bool(facts["needs_tokens"]), bool(facts["tls"])
            told.enter_context(announcing(Announcement("farm", options.host, address.port, "", needs_tokens, tls)))
        if given["json_to"] == "-":
            return
        if not options.silent:
            text = f"warning: {warning[0]}\n  advice: {warning[1]}\n" if warning else ""
            say_aside(text + (welcome(options, facts) if is_new or token else page_of(facts)))
        elif token:
            say_aside(f"made a token for the user admin, shown this once: {token}")

    with told:
        ended_by = farm.serve(options, say_ready)
    ctx.exit(INTERRUPTED if ended_by == 2 else 0)


def make_options(given: dict[str, Any]) -> FarmOptions:
    """Turn what was given on the command line into the options of a farm."""
    from portcall import farm

    if given["tls_key"] and not given["tls_cert"]:
        raise click.UsageError("--tls-key needs --tls-cert, the certificate of this key")
    networks = tuple(text for text in given["tvm_networks"] if text != "none")
    same = ("host", "port", "names", "store", "tls_key", "insecure", "require_tokens", "silent", "npm_package")
    try:
        return farm.FarmOptions(
            **{name: given[name] for name in same},
            tvm_networks=networks if given["tvm_networks"] else farm.FarmOptions.tvm_networks,
            tls_certificate=given["tls_cert"],
            power=given["power_cycle"],
            cycles=given["power_cycles"],
            webhooks=given["webhook"],
        )
    except ValueError as error:
        safe = given["tls_cert"] or given["insecure"] or farm.FarmOptions(host=given["host"], insecure=True).local
        next_step = "" if safe else MAKE_CERTIFICATE.format(host=socket.gethostname())
        raise CommandError(str(error), "", next_step, kind="ValueError") from error


def facts_of(options: FarmOptions, address: Any, token: str) -> dict[str, object]:
    """Return what a program wants to know of a farm that is ready; ``token`` was made now, or is empty."""

    tls = bool(options.tls_certificate)
    if options.names:
        places = [str(dataclasses.replace(address, host=name)) for name in options.names]
    elif address.host not in ("0.0.0.0", "::"):
        places = [str(address)]
    elif tls:  # the certificate has a name
        places = [str(dataclasses.replace(address, host=socket.gethostname()))]
    else:
        places = [reachable(address.host, address.port)]
    return {
        **address.to_dict(),
        "pid": os.getpid(),
        "urls": [f"http{'s' if tls else ''}://{place}" for place in places],
        "store": options.shown_store,
        "tls": tls,
        "needs_tokens": options.require_tokens or not options.local,
        "token": token,
    }


def page_of(facts: dict[str, Any]) -> str:
    return f"page, for a browser: {' '.join(facts['urls'])}"


def welcome(options: FarmOptions, facts: dict[str, Any]) -> str:
    """Return what users and boards type, and where the page is, for a first start. Each line can be copied."""
    there = facts["urls"][0].partition("://")[2]
    for_boards, for_users = (f" --farm-ca {COPY}", f" --tls-ca {COPY}") if facts["tls"] else ("", "")
    join = f"  portcall farm join CODE --farm {there}{for_users} --save"
    serve = f"  portcall serve --farm {there}{for_boards} --key rasp4"
    status = f"  portcall farm status --farm {there}{for_users}"
    lines = [page_of(facts)]
    if not facts["needs_tokens"]:
        return "\n".join([*lines, "on a board, type:", serve, "as a user, type:", status])
    if facts["token"]:
        ca = f" PORTCALL_FARM_CA={Path(options.tls_certificate).absolute()}" if facts["tls"] else ""
        lines += [
            "made a token for the user admin, shown this once; the page asks for it, too. Type here:",
            f"  export PORTCALL_FARM={there}{ca} PORTCALL_FARM_TOKEN={facts['token']}",
        ]
    lines += [
        "a board and a user need a code each, good for ten minutes; as the user admin, type:",
        "  portcall farm pair rasp-3 --role agent --key rasp4",
        "  portcall farm pair ann",
        "on the board, type, with its code:", join, serve,
        "on the user's machine, type, with the user's code:", join, status,
    ]  # fmt: skip
    if facts["tls"]:
        lines.append(f"{COPY}: a copy of the certificate of this farm, without its private key")
    return "\n".join(lines)
