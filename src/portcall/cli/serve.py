# SPDX-License-Identifier: Apache-2.0
"""``portcall serve``: let other processes and machines call functions here."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import importlib
import itertools
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import portcall
from portcall import errors
from portcall.bench import parse_size
from portcall.cli._announce import Announcement, announcing, check_installed
from portcall.cli._command import Command, read_duration
from portcall.cli._errors import DEVICE, INTERRUPTED, CommandError, explain, message_of
from portcall.cli._output import print_warning
from portcall.cli._ready import READY_FILE, print_ready, reachable, time_warning
from portcall.cli._remote import read_token_file
from portcall.cli._server_options import OPTIONS
from portcall.cli._store import farm_token, server_token

if TYPE_CHECKING:
    from portcall.rpc import ServerOptions

EXAMPLES = """
portcall serve                                                this machine only, port 9090
portcall serve --port 0 --import my_functions.py              a free port, with your functions
portcall serve --max-sessions 1 --session-timeout 10m         one at a time, for ten minutes at most
portcall serve --host 0.0.0.0                                 other machines, too: makes a token
portcall serve --host 0.0.0.0 --key rasp --token-file token   the same with a token of yours
portcall serve --farm lab:9190 --key rasp4 --tag gpu=mali       a place of a farm, behind NAT, too
portcall serve --device cuda:1 --max-sessions 1               one GPU of several, which clients call cuda:0
portcall serve --host 0.0.0.0 --announce                      found by portcall remote scan
portcall serve --audit calls.jsonl                            write down each call
portcall serve --capsules 20                                  keep sessions that crash, of clients that agree
portcall serve --unix /run/user/1000/portcall.sock            no network at all
"""

MORE_PORTS = 100  # that an error proposes to try
MOST_LOCK = 90  # bytes; the name of such a socket has 107

TRY_DEVICE = """
import sys, portcall
try:
    device = portcall.device(sys.argv[1])
    portcall.empty((1,), "float32", device)
except portcall.errors.PortcallError as error:
    sys.exit(str(error))
"""


def read_size(ctx: click.Context, param: click.Parameter, value: str | None) -> int:
    """Turn an option such as ``64MiB`` into bytes; a callback of click."""
    try:
        return 0 if value is None else parse_size(value)
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error


def check_address(ctx: click.Context, param: click.Parameter, value: str) -> str:
    """Refuse an address that clients cannot connect to; a callback of click."""
    from portcall import rpc

    try:
        if value and rpc.parse_address(value).path:
            raise ValueError(f"the address {value!r} is not of the form host[:port]")
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, param) from error
    return value


def option(name: str, *names: str, more: str = "", **how: Any) -> Callable[[Any], Any]:
    """An option that the server without Python has, too: its help and its default come from one place."""
    shared = OPTIONS[name]
    if not {"type", "is_flag"} & how.keys():
        how["metavar"] = shared.metavar
    default = shared.default or how.pop("default", "")
    text = shared.help + more
    return click.option(name, *names, help=text, default=default, show_default=bool(shared.default), **how)


@click.command("serve", cls=Command, examples=EXAMPLES)
@option("--host")
@option("--port", type=click.IntRange(0, 65535))
@option("--port-end", type=click.IntRange(1, 65536), default=None)
@option("--unix")
@option("--key")
@click.option("--import", "imports", multiple=True, type=click.Path(), metavar="FILE.py",
              help="Run a Python file, or call a function, PACKAGE.MODULE:NAME; sessions may use what it registers. "
              "Can be repeated.")  # fmt: skip
@option("--load-library")
@click.option("--device", "devices", multiple=True, metavar="KIND:INDEX", help="Let sessions use this device, and no "
              "others but the host; they count from 0 in each kind. Can be repeated.")  # fmt: skip
@option("--expose", multiple=True, default=())
@click.option("--allow-connect", is_flag=True, help="Let sessions connect to other servers.")
@option("--token-file", type=click.Path(), default=None, more=" With --host, one is made and kept if none is given.")
@click.option("--tls-cert", default="", type=click.Path(), help="Certificate of this server (PEM): speak TLS only.")
@click.option("--tls-key", default="", type=click.Path(), help="Its private key, where it is not in the same file.")
@click.option("--tls-ca", default="", type=click.Path(), help="Accept clients with a certificate of this authority.")
@option("--insecure", is_flag=True, default=False)
@option("--max-sessions", type=click.IntRange(min=0), default=0)
@option("--max-handshakes", type=click.IntRange(1, 1_000_000))
@option("--session-timeout", callback=read_duration, default=None)
@option("--handshake-timeout", callback=read_duration)
@option("--lost-client-grace", callback=read_duration)
@option("--memory-limit", callback=read_size, default=None)
@option("--disk-limit", callback=read_size, default=None)
@option("--cpu-limit", callback=read_duration, default=None)
@option("--sandbox", type=click.Choice(["best", "require"]), default=None)
@option("--sandbox-path", "sandbox_paths", multiple=True, type=click.Path(exists=True), default=())
@option("--max-frame", callback=read_size)
@option("--farm")
@option("--place")
@option("--tag", "tags", multiple=True, default=())
@option("--relay", is_flag=True, default=False)
@option("--custom-addr", callback=check_address)
@option("--check")
@option("--prepare")
@option("--clean")
@option("--hook-limit", callback=read_duration)
@click.option("--farm-ca", default="", type=click.Path(), metavar="FILE", help="Speak TLS with the farm; trust this.")
@option("--work-dir", type=click.Path(file_okay=False))
@READY_FILE
@option("--log-json", is_flag=True, default=False)
@option("--silent", is_flag=True, default=False)
@click.option("--announce", is_flag=True, help="Let `portcall remote scan` find this server in the local network.")
@click.option(
    "--audit",
    default="",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Add a line of JSON to this file for each call: who, which function, shapes, how long, how it ended.",
)
@click.option(
    "--capsules",
    default=0,
    metavar="NUMBER",
    help="Keep the last sessions that crashed, of clients that agree, for `portcall capsule run`.",
)
@click.option("--no-fork", is_flag=True, help="Start a fresh Python for each session.")
@click.pass_context
def command(ctx: click.Context, /, json_to: str | None, ready_file: str | None, **given: Any) -> None:
    """The first line on standard output is "listening on HOST:PORT"; with --json it is a JSON object.

    With --host the first start makes a token, keeps it for the next, and prints the line to paste on another machine.

    Each session is a process of its own with a directory of its own. Uploaded code has the rights of this user.
    """
    from portcall import rpc

    joins = bool(given["farm"])
    if given["custom_addr"] and not joins:
        raise click.UsageError("--custom-addr is the address that a farm tells its clients: it needs --farm")
    if given["custom_addr"] and given["relay"]:
        raise click.UsageError("--custom-addr and --relay exclude each other")
    if given["announce"]:
        if joins or given["unix"]:
            raise click.UsageError("--announce is for a server with an address of its own, without --farm and --unix")
        check_installed()
    if given["devices"]:
        os.environ["PORTCALL_VISIBLE_DEVICES"] = check_devices(given["devices"])
    if joins and ctx.get_parameter_source("port") is not click.core.ParameterSource.COMMANDLINE:
        given["port"] = 0  # the farm tells the address
    if not given["silent"] and (warning := time_warning(given["tls_cert"])):
        print_warning(*warning)
    options, invitation = (make_options(given, joins), "") if joins else with_token(make_options(given))

    told = contextlib.ExitStack()

    def print_ready_line(address: Any) -> None:
        facts = {**address.to_dict(), "pid": os.getpid()}
        print_ready(facts, json_to, ready_file, told)
        if given["announce"]:
            tls, token = bool(options.tls_certificate), bool(options.token)
            told.enter_context(announcing(Announcement("server", options.host, facts["port"], options.key, token, tls)))
        if invitation and options.log == "text":
            click.echo(invitation.format(address=reachable(options.host, facts["port"])), err=True)

    try:
        with told:
            ended_by = serve_place(given, options, print_ready_line) if joins else rpc.serve(options, print_ready_line)
    except errors.StartError as error:
        raise CommandError(
            without_our_frames(str(error)), "", "correct the file, or leave out --import or --load-library"
        ) from error
    except OSError as error:
        if error.errno != errno.EADDRINUSE or given["unix"] or joins:
            raise
        raise CommandError(str(error.strerror), "", further_ports(options), kind="OSError") from error
    ctx.exit(INTERRUPTED if ended_by == signal.SIGINT else 0)


def further_ports(options: ServerOptions) -> str:
    """Return what to do where the ports are taken."""
    end = (options.port_end or options.port + 1) + MORE_PORTS
    return "--port 0 takes a free one" + f", --port-end {end} looks further" * (end <= 1 << 16)


def check_devices(names: Sequence[str]) -> str:
    """Return the devices as plug-ins read them; refuse those that do not exist or do not work.

    A separate process looks at them: sessions are forked from this one, and no driver survives that.
    """
    devices = [open_named(name) for name in names]
    for device in devices:
        done = subprocess.run([sys.executable, "-c", TRY_DEVICE, str(device)], capture_output=True, text=True)
        if done.returncode:
            raise CommandError(
                f"device {device} does not work here", done.stderr.strip(), "portcall doctor lists the devices",
                DEVICE, "DeviceError",
            )  # fmt: skip
    return ",".join(map(str, devices))


def open_named(name: str) -> portcall.Device:
    try:
        return portcall.device(name)
    except ValueError as error:
        raise CommandError(str(error), next_step="portcall doctor lists the devices", kind="ValueError") from error


def make_options(given: dict[str, Any], joins: bool = False) -> ServerOptions:
    """Turn what was given on the command line, and the token's file or variable, into the options of a server."""
    from portcall import rpc

    log: Any = "none" if given["silent"] else "json" if given["log_json"] else "text"
    same = ("host", "port", "unix", "key", "expose", "allow_connect", "insecure", "max_sessions", "max_handshakes",
            "handshake_timeout", "lost_client_grace", "memory_limit", "disk_limit", "max_frame", "work_dir",
            "no_fork", "audit", "capsules")  # fmt: skip
    return rpc.ServerOptions(
        **{name: given[name] for name in same},
        port_end=given["port_end"] or 0,
        imports=given["imports"],
        libraries=tuple(filter(None, given["load_library"].split(":"))),
        token="" if joins else read_token_file(given["token_file"]) or os.environ.get("PORTCALL_TOKEN", ""),
        tls_certificate=given["tls_cert"],
        tls_key=given["tls_key"],
        tls_ca=given["tls_ca"],
        session_timeout=given["session_timeout"] or 0,
        cpu_limit=given["cpu_limit"] or 0,
        sandbox=given["sandbox"] or "",
        sandbox_paths=given["sandbox_paths"],
        log=log,
    )


def serve_place(given: dict[str, Any], options: ServerOptions, say_ready: Callable[[Any], None]) -> int:
    """Serve a place of a farm until a signal, and return its number."""
    from portcall import farm, rpc

    token = farm.Agent.take_token()
    key = given["key"]
    if not key:
        raise CommandError("a place of a farm needs a key", "", "add --key, such as --key rasp4")
    tags = dict(read_tag(text) for text in given["tags"])
    tls = rpc.TLSOptions(ca=given["farm_ca"]) if given["farm_ca"] else None
    channel = farm.FarmChannel(given["farm"], read_token_file(given["token_file"]) or token, tls)
    channel.token = channel.token or farm_token(str(channel.address))
    where = f"{channel.address.host}:{channel.address.port}"
    name, lock = (given["place"], None) if given["place"] else free_name(where, key)
    place = farm.PlaceOptions(name, (key,), tags, given["relay"] or None, given["custom_addr"],
                             **{name: given[name] for name in ("check", "prepare", "clean", "hook_limit")})  # fmt: skip

    def log(text: str) -> None:
        if options.log != "none":
            click.echo(text, err=True)

    agent = farm.Agent(channel, place, options, log)
    ended_by = 0

    def stop(number: int, frame: object) -> None:
        nonlocal ended_by
        ended_by = number
        agent.stop()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        with lock or contextlib.nullcontext():
            agent.run(say_ready)
    except (errors.AuthenticationError, errors.FarmError) as error:
        if error.reason not in ("farm-token", "role"):
            raise
        text = f"give --token-file FILE or PORTCALL_FARM_TOKEN; an admin makes one with: {make_token(key)}"
        cause = "a board needs a token of the role agent for its key"
        raise CommandError(message_of(error), cause, text, explain(error).exit_code, type(error).__name__) from error
    return ended_by


def free_name(farm: str, key: str) -> tuple[str, socket.socket]:
    """Return a name for a place that no other server of this machine has, and what keeps it from them until it closes.

    That is a socket without a file, so a server that was killed has its name again when it starts.
    """
    for number in itertools.count(1):
        name = f"{socket.gethostname()}-{key}" + f"-{number}" * (number > 1)
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(b"\0portcall-place " + f"{farm} {name}".encode()[-MOST_LOCK:])
            return name, lock
        except OSError as error:
            lock.close()
            if error.errno != errno.EADDRINUSE:
                raise
    raise AssertionError("unreachable")


def make_token(key: str) -> str:
    """Return the command with which an admin makes the token of a board."""
    return f"portcall farm token NAME --role agent --key {shlex.quote(key)}"


def read_tag(text: str) -> tuple[str, str | int | float | bool]:
    """Return a tag's name and value; without one it is true, and numbers are numbers."""
    name, equals, value = text.partition("=")
    if not equals:
        return name, True
    for read in (int, float):
        with contextlib.suppress(ValueError):
            return name, read(value)
    return name, value


def with_token(options: ServerOptions) -> tuple[ServerOptions, str]:
    """Return the options with a token, where other machines could connect and nothing keeps strangers out.

    The second value is the command for the other machine; empty where no token is needed.
    """
    if options.local or options.authenticated or options.insecure:
        return options, ""
    token, path, made = server_token()
    add = f"portcall remote add NAME {{address}}{f' --key {options.key}' if options.key else ''}"
    tls = " --tls-ca FILE" if options.tls_certificate else ""
    if made:
        text = f"made a token, kept in {path}; on another machine, paste:\n  echo {token} | {add}{tls} --token-file -"
    else:
        text = f"clients need the token in {path}: {add}{tls} --token-file FILE"
    return dataclasses.replace(options, token=token), text


def without_our_frames(text: str) -> str:
    """Return the words about code that failed to load, of its trace only the frames of that code; --debug shows all."""
    head, _, trace = text.partition("\nTraceback (most recent call last):\n")
    frames = re.findall(r"^  File .*\n(?:    .*\n)*", trace, re.MULTILINE)
    ours = (
        f'  File "{Path(portcall.__file__).parent}',
        '  File "<frozen ',
        f'  File "{Path(importlib.__file__).parent}',
    )
    return "\n".join([head, *(frame.rstrip() for frame in frames if not frame.startswith(ours))])
