# SPDX-License-Identifier: Apache-2.0
"""``portcall farm``: hand out boards to many people; and see, reserve, and look after them."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import click

from portcall.bench import format_duration, format_size
from portcall.cli._command import Command, Decorated, Group, end_with_error, read_duration, with_options
from portcall.cli._errors import DEVICE, INTERRUPTED, CommandError
from portcall.cli._farm_check import check_places
from portcall.cli._farm_start import STORE, refuse_options, run_farm, server_options
from portcall.cli._output import console, print_facts, print_json, print_line, print_warning, table
from portcall.cli._remote import connect_farm
from portcall.cli._store import write_farm_token
from portcall.errors import FarmError

if TYPE_CHECKING:
    from portcall.farm import Farm, Lease

EXAMPLES = """
portcall farm                                          run a farm for this machine only, on port 9190
portcall farm --host 0.0.0.0 --tls-cert farm.pem       for other machines, too: prints what they type
portcall serve --farm lab:9190 --key rasp4             on a board: join the farm
portcall run k.so add_one --farm lab:9190 --key rasp4 …
portcall farm status                                   devices, leases, queue
portcall farm reserve 'rasp4 & ram>=4GiB' --shell      a shell with a board
"""

# What every board reports of itself.
FACTS = {"cores", "ram", "arch", "os", "kernel", "libc", "host", "portcall", "place"}

RESERVE = """
portcall farm reserve rasp4 --shell
portcall farm reserve 'rasp4 & !flaky' -- make tune
"""

REQUEST = """
export PORTCALL_LEASE=$(portcall farm request rasp4 --for 30m --wait 10m)
portcall farm release $PORTCALL_LEASE
"""

CHECK = """
portcall farm check
portcall farm check b1 b2
portcall farm check --every 10m --command "portcall bench golden.so f --arg ones:float32[9] --json -"
"""

PRIORITY = "Each step moves the request a minute to the front of the queue."

CLASS = "Urgent ones come an hour earlier, batch an hour later. By default normal, or what the token may."

TOKEN = """
portcall farm token ann                                a user
portcall farm token rasp-3 --role agent --key rasp4    a board
portcall farm token --list
portcall farm token --revoke ann
"""

PAIR = """
portcall farm pair rasp-3 --role agent --key rasp4     a board
portcall farm pair ann                                 a user, who may scan the code with a phone
"""

BACKUP = """
portcall farm backup
portcall farm backup && cp farm.db.backup /backups/farm-$(date +%F).db     the next one replaces it
"""
BACKUP_TIME = 600.0  # seconds

JOIN = """
portcall farm join ABCD-EFGH-JKMN --farm lab:9190 --save
portcall farm join ABCD-EFGH-JKMN --farm lab:9190 > token
"""


def farm_options(function: Decorated) -> Decorated:
    """Add the options that say which farm, and who asks."""
    options = [
        click.option("--farm", default="", envvar="PORTCALL_FARM", metavar="HOST:PORT",
                     help="The farm; or PORTCALL_FARM. By default 127.0.0.1:9190."),
        click.option("--token-file", type=click.Path(allow_dash=True), help="File with your token; or "
                     "PORTCALL_FARM_TOKEN."),
        click.option("--tls-ca", type=click.Path(), metavar="FILE", help="Speak TLS, and trust this "
                     "authority (PEM); or PORTCALL_FARM_CA."),
    ]  # fmt: skip
    return with_options(function, options)


# ---- Seeing ----


@click.command("status", cls=Command, examples="portcall farm status\nportcall farm status --watch")
@farm_options
@click.option("--watch", is_flag=True, help="Show it again every second, until Ctrl-C.")
def status(json_to: str | None, watch: bool, **given: Any) -> None:
    """Show devices, leases and the queue: since when, by whom, why."""
    with connect_farm(given) as farm:
        while True:
            found = farm.status()
            if json_to is not None:
                print_json(found, json_to)
            else:
                if watch:
                    click.clear()
                show_status(farm.address, found)
            if not watch:
                return
            time.sleep(1)


def show_status(address: str, found: dict[str, Any]) -> None:
    now = found["now"]
    free = sum(bool(place["free"]) for place in found["places"])
    counts = (counted(len(found["places"]), "place"), f"{free} free", counted(len(found["leases"]), "lease"))
    print_line(f"{address}: {', '.join(counts)}, {found['waiting_total']} waiting")
    if found["places"]:
        rows = [
            (p["place"], ", ".join(p["keys"]), p["state"], format_duration(max(0.0, now - p["since"])),
             "drained" if p["drain"] else p["health"], labels(p["tags"]), why_of(p))
            for p in found["places"]
        ]  # fmt: skip
        names = ("place", "keys", "state", "for", "health", "tags", "user, or why")
        console().print(table(names, rows, right=("for",)))
    if found["waiting"]:
        queue = [
            (
                str(w["position"]),
                w["user"],
                w["want"],
                rank_of(w),
                format_duration(max(0.0, now - w["created"])),
                w["why"],
            )
            for w in found["waiting"]
        ]
        console().print(table(("", "waiting", "for", "class", "since", "because"), queue, right=("since",)))


def why_of(place: dict[str, Any]) -> str:
    """Return who has a place, and why it is out of use; or what happened last."""
    return "; ".join(filter(None, (place["user"], place["health_reason"]))) or place["cause"]


def rank_of(request: dict[str, Any]) -> str:
    """Return the class of a request, and its priority where it has one."""
    priority = request["priority"]
    return f"{request['class']} {priority:+g}" if priority else request["class"]


def labels(tags: dict[str, Any]) -> str:
    """Return the tags that somebody gave, without the facts that each board reports."""
    given = {name: value for name, value in tags.items() if name not in FACTS}
    return ", ".join(name if value is True else f"{name}={value}" for name, value in given.items())


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


@click.command("who", cls=Command, examples="portcall farm who\nportcall farm who rasp4")
@farm_options
@click.argument("key", required=False)
def who(json_to: str | None, key: str | None, **given: Any) -> None:
    """Show who has which place."""
    with connect_farm(given) as farm:
        found = farm.status()
    places = {place["place"]: place for place in found["places"]}
    held = [
        lease for lease in found["leases"]
        if key is None or key == lease["place"] or key in places.get(lease["place"], {}).get("keys", ())
    ]  # fmt: skip
    if json_to is not None:
        print_json({"leases": held}, json_to)
        return
    rows = [
        (x["place"], x["user"], x["lease"], format_duration(max(0.0, found["now"] - x["since"])), str(x["sessions"]))
        for x in held
    ]
    if rows:
        console().print(table(("place", "user", "lease", "for", "sessions"), rows, right=("for", "sessions")))
    else:
        print_line("nobody has a place" if key is None else f"nobody has a place of '{key}'")


@click.command("history", cls=Command, examples="portcall farm history\nportcall farm history --place rasp-3 --json")
@farm_options
@click.option("--place", default="", help="Events of this place alone.")
@click.option("--lease", default="", help="Events of this lease alone.")
@click.option("--user", default="", help="Events of this user alone.")
@click.option("--last", default=40, show_default=True, type=click.IntRange(1, 10_000), help="How many lines.")
@click.option("--as", "form", default="table", show_default=True, type=click.Choice(["table", "csv", "jsonl"]),
              help="One line for each event, for other programs: csv, or jsonl.")  # fmt: skip
def history(
    json_to: str | None, place: str, lease: str, user: str, last: int, form: str, **given: Any
) -> None:  # fmt: skip
    """Show what happened: every change of a place and of a lease, with its cause."""
    filters = {name: value for name, value in (("place", place), ("lease", lease), ("of", user)) if value}
    with connect_farm(given) as farm:
        found = farm.command("history", limit=last, **filters)
    if json_to is not None:
        print_json(found, json_to)
        return
    if form != "table":
        print_events(found["events"], form)
        return
    rows = [
        (time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(e["time"])), e["what"], e["place"], e["user"], e["detail"])
        for e in found["events"]
    ]
    console().print(table(("time", "what", "place", "user", "why"), rows))


def print_events(events: list[dict[str, Any]], form: str) -> None:
    """Print a line for each event."""
    if form == "jsonl":
        for event in events:
            click.echo(json.dumps(event))
        return
    writer = csv.DictWriter(sys.stdout, ["number", "time", "what", "place", "lease", "user", "detail"])
    writer.writeheader()
    writer.writerows(events)


# ---- Leases ----


@click.command("reserve", cls=Command, examples=RESERVE)
@farm_options
@click.argument("want")
@click.argument("words", nargs=-1, metavar="[-- COMMAND…]")
@click.option("--shell", is_flag=True, help="Start a shell.")
@click.option("--wait", callback=read_duration, metavar="TIME", help="How long to wait for a place: 5m.")
@click.option("--limit", callback=read_duration, metavar="TIME", help="How long the lease may last.")
@click.option("--class", "class_", type=click.Choice(["urgent", "normal", "batch"]), help=CLASS)
@click.option("--priority", default=0.0, show_default=True, type=click.FloatRange(-10, 10), help=PRIORITY)
@click.pass_context
def reserve(
    ctx: click.Context, /, json_to: str | None, want: str, words: tuple[str, ...], shell: bool, wait: float | None,
    limit: float | None, class_: str | None, priority: float, **given: Any,
) -> None:  # fmt: skip
    """Lease a place while a command or a shell runs; `portcall run --farm` in it uses the lease."""
    if bool(words) == shell:
        raise click.UsageError("give either a command, after --, or --shell")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, exit_on_signal)
    with connect_farm(given) as farm, farm.lease(want, wait=wait, limit=limit or 0, class_=class_ or "",
                    priority=priority, on_wait=lambda text: click.echo(text, err=True)) as lease:  # fmt: skip
        if json_to is not None:
            print_json({"lease": lease.id, "place": lease.place}, json_to)
        else:
            click.echo(f"{lease.place} is yours (lease {lease.id})", err=True)
        environment = {**os.environ, **lease.environment}
        ctx.exit(run_in_lease(lease, words or (os.environ.get("SHELL", "/bin/sh"),), environment, shell))


def run_in_lease(lease: Lease, words: tuple[str, ...], environment: dict[str, str], shell: bool) -> int:
    """Run a command until it ends, or the farm ends its lease; return the exit code."""
    process = subprocess.Popen(words, env=environment)
    cut: list[str] = []

    def follow() -> None:
        why = lease.wait_for_end()
        if process.poll() is None:
            cut.append(why)
            print_warning(f"the lease of {lease.place} has ended: {why}", "portcall farm status shows who has it now")
            process.send_signal(signal.SIGHUP if shell else signal.SIGTERM)  # a shell ignores SIGTERM

    threading.Thread(target=follow, name="portcall-lease", daemon=True).start()
    try:
        code = process.wait()
    except KeyboardInterrupt:  # the command got the signal of the terminal, too
        process.wait()
        return INTERRUPTED
    except SystemExit:
        process.terminate()
        raise
    return DEVICE if cut else code


def exit_on_signal(number: int, frame: object) -> None:
    """End the command as a signal does, but give back or withdraw its lease first."""
    sys.exit(128 + number)


@click.command("request", cls=Command, examples=REQUEST)
@farm_options
@click.argument("want")
@click.option("--for", "duration", callback=read_duration, default="30m", show_default=True, metavar="TIME",
              help="How long the lease lasts, unless it is released before.")  # fmt: skip
@click.option("--wait", callback=read_duration, metavar="TIME", help="How long to wait for a place: 5m.")
@click.option("--class", "class_", type=click.Choice(["urgent", "normal", "batch"]), help=CLASS)
@click.option("--priority", default=0.0, show_default=True, type=click.FloatRange(-10, 10), help=PRIORITY)
def request(
    json_to: str | None, want: str, duration: float, wait: float | None, class_: str | None, priority: float,
    **given: Any,
) -> None:  # fmt: skip
    """Lease a place for a time, and print its ticket: for scripts, whose commands use it one after the other.

    `portcall run | bench | doctor` use the lease whose ticket PORTCALL_LEASE has. The ticket is a secret.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, exit_on_signal)
    with connect_farm(given) as farm:
        lease = farm.lease(want, ttl=duration, limit=duration, wait=wait, class_=class_ or "", priority=priority,
                           on_wait=lambda text: click.echo(text, err=True))  # fmt: skip
        show(json_to, {"lease": lease.id, "place": lease.place, "ticket": lease.ticket}, lease.ticket)
        lease.leave()


def holder_of(lease: str) -> dict[str, str]:
    """Return the fields that name a lease, given its id or its ticket."""
    id, _, secret = lease.partition(":")
    return {"lease": id, "secret": secret} if secret else {"lease": id}


def lease_command(name: str, does: str, *, why: bool = False) -> Command:
    """Make a command that changes one lease."""

    @click.command(name, cls=Command, examples=f"portcall farm {name} LEASE" + (" --why 'demo at ten'" if why else ""),
                   help=does)  # fmt: skip
    @farm_options
    @click.argument("lease", metavar="LEASE|TICKET")
    def change(json_to: str | None, lease: str, **given: Any) -> None:
        more = {"why": given.pop("why")} if why else {}
        with connect_farm(given) as farm:
            found = farm.command(name, **holder_of(lease), **more)
            show(json_to, found, f"{name}: lease {found['lease']}")

    if why:
        change.params.append(click.Option(["--why"], required=True, help="What its holder will read."))
    assert isinstance(change, Command)
    return change


@click.command("extend", cls=Command, examples="portcall farm extend LEASE 30m")
@farm_options
@click.argument("lease", metavar="LEASE|TICKET")
@click.argument("duration", callback=read_duration)
def extend(json_to: str | None, lease: str, duration: float, **given: Any) -> None:
    """Let a lease last this much longer from now on, within its limit."""
    with connect_farm(given) as farm:
        found = farm.command("extend", **holder_of(lease), seconds=duration)
        show(json_to, found, f"extended lease {found['lease']}")


# ---- Places ----


def place_command(name: str, does: str, *, why: str = "") -> Command:
    """Make a command that changes one place; ``why`` is an example of a reason, where it takes one."""

    @click.command(
        name, cls=Command, help=does, examples=f"portcall farm {name} PLACE" + (f" --why '{why}'" if why else "")
    )
    @farm_options
    @click.argument("place")
    def change(json_to: str | None, place: str, **given: Any) -> None:
        more = {"why": given.pop("why")} if why else {}
        with connect_farm(given) as farm:
            found = farm.command(name, place=place, **more)
            show(json_to, found, f"{place}: {found['state']}, {'drained' if found['drain'] else found['health']}")

    if why:
        change.params.append(click.Option(["--why"], required=True, help="What others will read."))
    assert isinstance(change, Command)
    return change


@click.command("hand-over", cls=Command, examples="portcall farm hand-over rasp-3 rasp-3-new")
@farm_options
@click.argument("place")
@click.argument("user")
def hand_over(json_to: str | None, place: str, user: str, **given: Any) -> None:
    """Let another user's token serve a place from now on; only its owner's does."""
    with connect_farm(given) as farm:
        found = farm.command("hand-over", place=place, to=user)
        show(json_to, found, f"{place} is served by {user} now")


@click.command("check", cls=Command, examples=CHECK)
@farm_options
@click.argument("places", nargs=-1, metavar="[PLACE…]")
@click.option("--command", "job", default="", help="What to run, in a shell.")
@click.option("--every", callback=read_duration, metavar="TIME", help="Again and again, until Ctrl-C: 10m.")
@click.option(
    "--tolerance", default=1.5, show_default=True, help="How many times as long as at first a place may take."
)
@click.option(
    "--limit", callback=read_duration, default="5m", show_default=True, metavar="TIME", help="How long it may take."
)
@click.pass_context
def check(
    ctx: click.Context, /, json_to: str | None, places: tuple[str, ...], job: str, every: float | None,
    tolerance: float, limit: float, **given: Any,
) -> None:  # fmt: skip
    """Lease each idle place, whatever its health, and see whether it works.

    Without a command a session is opened. A command's portcall uses the place. A failure quarantines the place; a
    passed check takes it out of quarantine. Where the command prints JSON with a median time, as
    `portcall bench --json -` does, the place must not be much slower than it was at first.
    """
    with connect_farm(given) as farm:
        while True:
            failed = check_places(farm, places, job, tolerance, limit, json_to)
            if every is None:
                ctx.exit(DEVICE if failed else 0)
            time.sleep(every)


# ---- Trust ----


def token_options(function: Decorated) -> Decorated:
    options = [
        click.option("--role", default="user", show_default=True,
                     type=click.Choice(["viewer", "user", "agent", "operator", "admin"]), help="What it allows."),
        click.option("--key", "keys", multiple=True, help="Good for places with this key only. Can be repeated."),
        click.option("--days", default=0.0, help="Days for which it is good; 0: no end."),
        click.option("--most-leases", default=0, help="How many leases its user may have at once; 0: any number."),
        click.option("--top-class", default="normal", show_default=True,
                     type=click.Choice(["urgent", "normal", "batch"]), help="The most urgent class to ask for."),
    ]  # fmt: skip
    return with_options(function, options)


def save_option(function: Decorated) -> Decorated:
    text = "Keep the token for this user's commands, instead of printing it."
    return with_options(function, [click.option("--save", is_flag=True, help=text)])


def token_fields(given: dict[str, Any]) -> dict[str, Any]:
    names = ("role", "days", "most_leases", "top_class")
    return {**{name: given[name] for name in names}, "keys": list(given["keys"])}


@click.command("token", cls=Command, examples=TOKEN)  # fmt: skip
@farm_options
@click.argument("user", required=False)
@token_options
@click.option("--list", "list_all", is_flag=True, help="List the tokens, without what is secret.")
@click.option("--revoke", default="", metavar="USER", help="End a user's tokens, or one that begins so; see --list.")
@save_option
def token(json_to: str | None, user: str | None, list_all: bool, revoke: str, save: bool, **given: Any) -> None:
    """Make a token for a user or a board; it is shown once."""
    with connect_farm(given) as farm:
        if revoke:
            found = farm.command("token-revoke", **{"token-of": revoke})
            if not found["revoked"]:
                raise CommandError(f"no token is of '{revoke}' or begins so", "", "portcall farm token --list")
            show(json_to, found, f"revoked: {found['revoked']}")
            if found["leases"]:
                named = ", ".join(f"{x['lease']} ({x['place'] or 'waits for ' + x['want']})" for x in found["leases"])
                print_warning(f"still open: {named}", "portcall farm kick LEASE --why WHY")
        elif list_all:
            found = farm.command("token-list")
            if json_to is not None:
                print_json(found, json_to)
                return
            rows = [
                (t["user"], t["role"], t["hint"] + "…", ", ".join(t["keys"]) or "all", str(t["most_leases"] or "any"),
                 t["top_class"], until(t["expires"]), t["by"])
                for t in found["tokens"]
            ]  # fmt: skip
            names = ("user", "role", "token", "keys", "leases", "top class", "until", "made by")
            console().print(table(names, rows, right=("leases",)))
        elif user:
            found = farm.command("token-make", **{"for": user, **token_fields(given)})
            show_token(json_to, farm, found, save)
        else:
            raise click.UsageError("give a user's name, or --list, or --revoke USER")


def until(expires: float) -> str:
    """Return the day on which a token ends, for people."""
    if not expires:
        return ""
    return time.strftime("%Y-%m-%d", time.localtime(expires)) + (", over" if expires < time.time() else "")


@click.command("backup", cls=Command, examples=BACKUP)
@farm_options
def backup(json_to: str | None, **given: Any) -> None:
    """Have the farm write a whole copy of its store beside it, FILE.backup, while it runs."""
    with connect_farm(given) as farm:
        found = farm.command("backup", hold=BACKUP_TIME)
        show(json_to, found, f"{found['path']}, {format_size(found['nbytes'])}, on the machine of the farm")


@click.command("pair", cls=Command, examples=PAIR)
@farm_options
@click.argument("user")
@token_options
def pair(json_to: str | None, user: str, **given: Any) -> None:
    """Make a code that a board or a colleague turns into a token once, within ten minutes."""
    with connect_farm(given) as farm:
        found = farm.command("pair", **{"for": user, **token_fields(given)})
        page = f"http{'s' if farm.speaks_tls else ''}://{farm.address}/pair?code={found['code']}"
        save = f"{found['code']} --farm {farm.address}{' --tls-ca FILE' if farm.speaks_tls else ''} --save"
        show(json_to, {**found, "page": page}, f"{found['code']}\nthere: portcall farm join {save}")
        if json_to is None and (picture := as_picture(page)):
            click.echo(f"or scan this with a phone, for {page}\n{picture}")


def as_picture(text: str) -> str:
    """Return a QR code as text; empty where no package draws one, or no terminal shows it."""
    if not sys.stdout.isatty():
        return ""
    try:
        import segno
    except ModuleNotFoundError:
        return ""
    out = io.StringIO()
    segno.make(text, micro=False).terminal(out, compact=True)
    return out.getvalue()


@click.command("join", cls=Command, examples=JOIN)
@farm_options
@click.argument("code")
@save_option
def join(json_to: str | None, code: str, save: bool, **given: Any) -> None:
    """Turn a pairing code into a token, which is printed; with --save it is kept for this farm."""
    with connect_farm(given) as farm:
        show_token(json_to, farm, farm.command("redeem", code=code), save)


def show_token(json_to: str | None, farm: Farm, found: dict[str, Any], save: bool) -> None:
    """Print a token, or keep it for the commands of this user."""
    if save:
        path = write_farm_token(farm.address, found["token"])
        show(json_to, {"saved": str(path)}, f"saved in {path}: commands use it for {farm.address}")
    else:
        show(json_to, found, found["token"])


def show(json_to: str | None, found: dict[str, Any], text: str) -> None:
    if json_to is not None:
        print_json(found, json_to)
    else:
        for line in text.splitlines():
            print_line(line)


@click.command("show", cls=Command, examples="portcall farm show b1\nportcall farm show LEASE")
@farm_options
@click.argument("name", metavar="PLACE|LEASE")
def show_one(json_to: str | None, name: str, **given: Any) -> None:
    """Show all that is known of a place, or of a lease."""
    with connect_farm(given) as farm:
        status = farm.status()
        places = [place for place in status["places"] if place["place"] == name]
        try:
            found = {**places[0], "now": status["now"]} if places else farm.command("lease", lease=name)
        except FarmError as error:
            if error.reason != "unknown":
                raise
            see = "portcall farm status lists the places, portcall farm who the leases"
            raise CommandError(f"there is no place and no lease '{name}'", "", see, kind="FarmError") from error
    if json_to is not None:
        print_json(found, json_to)
    else:
        now = found.pop("now")
        print_facts([(name, shown_fact(name, value, now)) for name, value in found.items() if value not in ("", 0)])


def shown_fact(name: str, value: Any, now: float) -> str:
    """Return a field of a place or a lease for people."""
    if isinstance(value, dict):
        return ", ".join(f"{key}={format_size(v) if key == 'ram' else v}" for key, v in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if name in ("created", "since", "health_since", "checked"):
        return (
            f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(value))}, {format_duration(max(0.0, now - value))} ago"
        )
    if name in ("expires", "ends_at"):
        return f"in {format_duration(max(0.0, value - now))}"
    return format_duration(value) if name == "ttl" else str(value)


SUMMARIES: dict[Command, str] = {
    status: "Show devices, leases and the queue.",
    who: "Show who has which place.",
    history: "Show what happened, and why.",
    reserve: "Lease a place while a command or a shell runs.",
    request: "Lease a place for a time, for the commands of a script.",
    show_one: "Show all that is known of a place or a lease.",
    extend: "Let a lease last longer.",
    lease_command("release", "Give a place back."): "Give a place back.",
    lease_command("kick", "End somebody's lease.", why=True): "End somebody's lease; its holder reads why.",
    check: "Check idle places, once or again and again.",
    place_command("drain", "Hand a place out no more after its present lease."): "Hand a place out no more.",
    place_command("undrain", "Hand a drained place out again."): "Hand a drained place out again.",
    place_command("maintain", "Keep a place for maintenance.", why="new fan"): "Keep a place for maintenance.",
    place_command("quarantine", "Keep a place out of use.", why="reboots at random"): "Keep a place out of use.",
    place_command("good", "Say that a place is well again."): "Say that a place is well again.",
    place_command("retire", "Take a place out of use for good."): "Take a place out of use for good.",
    hand_over: "Let another user's token serve a place.",
    token: "Make, list and revoke tokens.",
    pair: "Make a code for a board or a colleague.",
    join: "Turn a pairing code into a token.",
    backup: "Write a copy of the farm's store.",
}


@click.group("farm", cls=Group, examples=EXAMPLES, summaries=SUMMARIES, invoke_without_command=True)
@server_options
@click.pass_context
def command(ctx: click.Context, /, **given: Any) -> None:
    """Without a command, run a farm until Ctrl-C. The options below are for that."""
    os.environ.pop(STORE, None)  # it may have a password, which no command that is started from here needs
    if ctx.invoked_subcommand is not None:
        refuse_options(ctx)
        return
    debug = given.pop("debug")
    try:
        run_farm(ctx, given)
    except (click.exceptions.Exit, click.ClickException):
        raise
    except (Exception, KeyboardInterrupt) as error:
        end_with_error(ctx, error, debug)
