# SPDX-License-Identifier: Apache-2.0
"""``portcall deploy``: bring a server to a board by ssh, have it run there, and give it a name here."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from portcall.cli._command import Command, read_duration
from portcall.cli._errors import DEVICE, CommandError
from portcall.cli._output import print_facts, print_json, print_line
from portcall.cli._progress import StatusLine
from portcall.cli._remote import read_token_file
from portcall.cli._store import NAME, Remote, farm_token, read_remotes, write_remotes
from portcall.cli.doctor import ask_server, print_report
from portcall.errors import StartError

if TYPE_CHECKING:
    from portcall.deploy import Deployed, Machine, Settings

EXAMPLES = """
portcall deploy pi@raspberrypi.local                  then: portcall run … --rpc raspberrypi.local
portcall deploy board --name rasp --port 9091         an alias of ssh's configuration, and a name
portcall deploy board --farm lab:9190 --key rasp4     a place of a farm
portcall deploy board --wheel portcall-….whl          where there is Python: the server with it
portcall deploy adb://SERIAL --name rasp              a board that adb gets to
portcall deploy board --status                        what runs there
portcall deploy board --update                        a new program, with the same settings
portcall deploy board --remove
"""


@click.command("deploy", cls=Command, examples=EXAMPLES)
@click.argument("host", metavar="[USER@]HOST")
@click.option(
    "--name", default="", help="The name of the remote that is saved, and of the farm's place; else the host."
)
@click.option("--host", "listen", default="0.0.0.0", show_default=True, help="The address there to listen on.")
@click.option("--port", default=9090, show_default=True, type=click.IntRange(1, 65535), help="Where it listens.")
@click.option("--key", default="", help="Label that clients must ask for; not a secret.")
@click.option("--farm", default="", metavar="HOST:PORT", help="Be a place of this farm, whose clients alone come in.")
@click.option("--token-file", type=click.Path(), help="File with the farm's token; or PORTCALL_FARM_TOKEN.")
@click.option("--program", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
              help="Send this file of `portcall board build`; by default one is compiled.")  # fmt: skip
@click.option("--wheel", "wheels", type=click.Path(exists=True, dir_okay=False), metavar="FILE", multiple=True,
              help="Serve with this wheel, which Python installs there; again for what it needs.")  # fmt: skip
@click.option("--connect-timeout", default="10s", show_default=True, metavar="TIME", callback=read_duration,
              help="How long to wait for a session with the new server.")  # fmt: skip
@click.option("--update", "action", flag_value="update", help="Send the program again; the settings stay.")
@click.option("--remove", "action", flag_value="remove", help="End the server there, and delete its files.")
@click.option("--status", "action", flag_value="status", help="Say what runs there, and change nothing.")
def command(json_to: str | None, host: str, action: str | None, **given: Any) -> None:
    """The system's ssh does it all (or PORTCALL_SSH), so its configuration and keys apply. Doing it again changes
    nothing; if the connection is lost, the server that ran there runs on."""
    from portcall import deploy

    if given["program"] and given["wheels"]:
        raise click.UsageError("--program and --wheel exclude each other")
    wheels = given["wheels"]
    try:
        if action == "status":
            print_status(host, deploy.look(host), json_to)
        elif action == "remove":
            print_removed(host, deploy.remove(host), json_to)
        else:
            with StatusLine() as status:
                if action == "update":
                    done = deploy.update(host, given["program"], wheels=wheels, progress=status.say)
                else:
                    settings = settings_of(host, given)
                    secret = read_token_file(given["token_file"]) or os.environ.get("PORTCALL_FARM_TOKEN", "")
                    done = deploy.deploy(
                        host, settings, given["program"], wheels=wheels,
                        farm_token=secret or farm_token(settings.farm), progress=status.say,
                    )  # fmt: skip
            finish(host, done, given, json_to)
    except StartError as error:
        raise CommandError(str(error), "", f"portcall deploy {host} --status", DEVICE, "StartError") from error


def settings_of(host: str, given: dict[str, Any]) -> Settings:
    from portcall.deploy import Settings

    name = given["name"] or re.sub(r"^(?:(?:ssh|adb)://)?(?:[^@]*@)?([^:/]*).*$", r"\1", host)
    if not NAME.fullmatch(name):
        raise CommandError(f"invalid name '{name}' (letters, digits, '.', '_' and '-')", "", "--name NAME")
    return Settings(name, given["listen"], given["port"], given["key"], given["farm"])


def words_of(host: str, settings: Settings, given: dict[str, Any]) -> list[str]:
    """Return the words that deploy a server again, which may have been removed."""
    words = [host, "--name", settings.name, "--host", settings.host, "--port", str(settings.port)]
    words += ["--key", settings.key] if settings.key else []
    words += ["--program", os.path.abspath(given["program"])] if given["program"] else []
    return words + [word for wheel in given["wheels"] for word in ("--wheel", os.path.abspath(wheel))]


def finish(host: str, done: Deployed, given: dict[str, Any], json_to: str | None) -> None:
    """Save the remote, and look whether the server works from here."""
    name = done.settings.name
    facts: dict[str, Any] = {
        "name": name, "host": host, "address": done.address, "settings": asdict(done.settings), "pid": done.pid,
        "machine": described(done.machine), "sent": done.sent, "restarted": done.restarted, "doctor": None,
    }  # fmt: skip
    state = "runs" if done.restarted else "ran there already, in this way"
    if not done.settings.farm:
        again = shlex.join(words_of(host, done.settings, given))
        write_remotes({**read_remotes(), name: Remote(done.address, done.settings.key, done.token, deploy=again)})
        before = done.machine.settings
        if json_to is None:
            print_line(f"the server {state}; {name} is {done.address}")
        if json_to is None and before and before != done.settings:
            print_line(f"before, it was that of portcall deploy {shlex.join(words_of(host, before, given))}")
        session = {"key": "", "token_file": None, "tls_ca": None, "tls_cert": None}
        report = ask_server(name, {**session, "connect_timeout": given["connect_timeout"]})
        facts["doctor"] = report.to_dict()
        if json_to is None:
            print_report(report, name, session)
    elif json_to is None:
        print_line(f"the server {state}, for the farm {done.settings.farm}: portcall farm status")
    if json_to is not None:
        print_json(facts, json_to)


def described(machine: Machine) -> dict[str, Any]:
    return {name: value for name, value in asdict(machine).items() if name not in ("settings", "pid", "address")}


def print_status(host: str, machine: Machine, json_to: str | None) -> None:
    if json_to is not None:
        print_json({"host": host, **asdict(machine)}, json_to)
        return
    running = f"process {machine.pid}, {machine.address}" if machine.pid else "not running"
    settings = machine.settings
    print_facts([
        ("machine", f"{machine.system} {machine.machine}, {machine.libc or 'an unknown C library'}"),
        ("target", machine.target or "none: there is no server for it"),
        ("python", machine.python or "none"),
        ("services", machine.service),
        ("program", machine.version or "none"),
        *([("server", running), ("name", settings.name)] if settings else []),
        *([("farm", settings.farm)] if settings and settings.farm else []),
    ])  # fmt: skip


def print_removed(host: str, was_there: bool, json_to: str | None) -> None:
    if json_to is not None:
        print_json({"host": host, "removed": was_there}, json_to)
    else:
        print_line(f"the server on {host} is removed" if was_there else f"nothing was deployed to {host}")
