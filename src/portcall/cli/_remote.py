# SPDX-License-Identifier: Apache-2.0
"""What commands share that work with a server: options, a session, and words on how it went."""

from __future__ import annotations

import contextlib
import difflib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from portcall.bench import format_duration
from portcall.cli._command import Decorated, read_duration, with_options
from portcall.cli._errors import DEVICE, CommandError, message_of
from portcall.cli._output import print_line, print_warning
from portcall.cli._progress import StatusLine
from portcall.cli._store import NAME, Remote, farm_token, read_remotes
from portcall.errors import ConnectError

if TYPE_CHECKING:
    from portcall.farm import Farm, Lease
    from portcall.rpc import Session


def session_options(function: Decorated) -> Decorated:
    """Add the options for opening a session."""
    options = [
        click.option("--key", default="", envvar=["PORTCALL_KEY", "TVM_TRACKER_KEY"], help="The key that the "
                     "server was started with; with --farm what to ask for: 'rasp4 & ram>=4GiB'. Or PORTCALL_KEY."),
        click.option("--farm", default="", metavar="HOST:PORT", help="Lease a place of this farm for --key, and work "
                     "there. PORTCALL_FARM counts where --key is given and no server."),
        click.option("--wait", callback=read_duration, metavar="TIME", help="How long to wait for the farm's place."),
        click.option("--token-file", type=click.Path(), help="File with the server's token; or PORTCALL_TOKEN."),
        click.option("--tls-ca", type=click.Path(), metavar="FILE", help="Speak TLS, and trust this authority (PEM)."),
        click.option("--tls-cert", type=click.Path(), metavar="FILE", help="Your certificate and key (PEM)."),
        click.option("--connect-timeout", default="10s", show_default=True, metavar="TIME", callback=read_duration,
                     help="How long to wait for the session, in the server's queue too."),
    ]  # fmt: skip
    return with_options(function, options)


def read_token_file(path: str | None) -> str | None:
    """Return the token of a file (``-``: of standard input); None where none was given: the environment decides.

    Raises:
        CommandError: the file is empty.
        OSError: it cannot be read.
    """
    if path is None:
        return None
    try:
        token = (sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")).strip()
    except UnicodeDecodeError as error:
        raise CommandError(f"the token file '{path}' is not text", "it is another file", "") from error
    if not token:
        raise CommandError(f"the token file '{path}' is empty", "", f"openssl rand -hex 32 > {path}, for both sides")
    if path != "-" and os.stat(path).st_mode & 0o077:
        print_warning(f"others on this machine can read the token file '{path}'", f"chmod 600 {shlex.quote(path)}")
    return token


@contextlib.contextmanager
def open_session(
    address: str,
    given: dict[str, Any],
    call_timeout: float | None = None,
    shared: StatusLine | None = None,
    heartbeat: float = 0,
) -> Iterator[tuple[Session, StatusLine]]:
    """Open a session, and close it at the end; stderr shows a long wait.

    Parameters:
        address: the name of a remote, which has its address, key, token and certificates; or an address.
        shared: shows the waits, where several sessions do so.
        heartbeat: as of ``portcall.rpc.ConnectOptions``, for a server that is named.

    Raises:
        RPCError: the server is not there, or does not let us in.
    """
    from portcall import rpc

    if not address:
        with lease_session(given, call_timeout) as opened:
            yield opened
        return
    remotes = read_remotes() if NAME.fullmatch(address) else {}
    remote = remotes.get(address) or Remote(address)
    ca, certificate = given["tls_ca"] or remote.tls_ca, given["tls_cert"] or remote.tls_cert
    tls = rpc.TLSOptions(ca=ca, certificate=certificate) if ca or certificate else None
    token = read_token_file(given["token_file"]) or remote.token or None
    with status_line(shared) as status, next_steps(address, remotes):
        session = rpc.connect(
            remote.address,
            key=given["key"] or remote.key,
            timeout=given["connect_timeout"],
            token=token,
            tls=tls,
            call_timeout=call_timeout or 0,
            options=rpc.ConnectOptions(
                name=address if address in remotes else "",
                on_wait=status.wait_for,
                on_output=status.print_output,
                heartbeat=heartbeat,
            ),
        )
        with session:
            status.watch(session)
            yield session, status


def uses_farm(address: str | None, given: dict[str, Any]) -> bool:
    """Return whether a command works on a place of a farm, since no server is named."""
    named = os.environ.get("PORTCALL_FARM") or os.environ.get("TVM_TRACKER_HOST")
    wanted = given["farm"] or (given["key"] and named) or os.environ.get("PORTCALL_LEASE")
    return not address and bool(wanted)


def connect_farm(given: dict[str, Any]) -> Farm:
    """Return the farm that the options or the environment name; by default that of this machine."""
    from portcall import farm as farms
    from portcall import rpc

    tls = rpc.TLSOptions(ca=given["tls_ca"]) if given["tls_ca"] else None
    token = read_token_file(given["token_file"])
    named = os.environ.get("PORTCALL_FARM") or os.environ.get("TVM_TRACKER_HOST")
    farm = farms.connect(given["farm"] or ("" if named else "127.0.0.1:9190"), token=token, tls=tls)
    if token is None and not os.environ.get("PORTCALL_FARM_TOKEN"):
        farm.use_token(farm_token(farm.address))
    return farm


def take_lease(farm: Farm, given: dict[str, Any], on_wait: Callable[[str], None] | None) -> Lease:
    """Lease a place of a farm, or take the lease of PORTCALL_LEASE.

    Raises:
        CommandError: nothing says what to ask for.
        RPCError: as ``Farm.lease``.
    """
    if ticket := os.environ.get("PORTCALL_LEASE", ""):
        return farm.resume(ticket)
    if not given["key"]:
        raise CommandError("--farm needs --key, which says what to ask for", "", "portcall farm status")
    return farm.lease(given["key"], wait=given["wait"], on_wait=on_wait)


@contextlib.contextmanager
def lease_session(given: dict[str, Any], call_timeout: float | None) -> Iterator[tuple[Session, StatusLine]]:
    """Lease a place of a farm, and open a session in it."""
    with (
        StatusLine() as status,
        lease_place(given, status) as lease,
        session_of(lease, given, call_timeout, status) as session,
    ):
        yield session, status


@contextlib.contextmanager
def lease_place(given: dict[str, Any], status: StatusLine) -> Iterator[Lease]:
    """Lease a place of a farm, or take the lease of PORTCALL_LEASE, and give it back at the end."""
    with connect_farm(given) as farm, take_lease(farm, given, status.wait_for) as lease:
        yield lease


@contextlib.contextmanager
def session_of(
    lease: Lease, given: dict[str, Any], call_timeout: float | None, status: StatusLine
) -> Iterator[Session]:
    """Open a session with a place that is leased, and close it at the end."""
    with lease.session(
        timeout=given["connect_timeout"],
        call_timeout=call_timeout or 0,
        on_wait=status.wait_for,
        on_output=status.print_output,
    ) as session:
        status.watch(session)
        yield session


def status_line(shared: StatusLine | None) -> AbstractContextManager[StatusLine]:
    """Return the line that is shared, which goes on afterwards, or one of its own."""
    return contextlib.nullcontext(shared) if shared else StatusLine()


@contextlib.contextmanager
def next_steps(address: str, remotes: Mapping[str, Remote]) -> Iterator[None]:
    """Propose the remotes whose names resemble a host that is not known, and to deploy again what is gone."""
    try:
        yield
    except ConnectError as error:
        if error.reason == "refused" and address in remotes and remotes[address].deploy:
            again = f"portcall deploy {remotes[address].deploy}"
            raise CommandError(message_of(error), "no server runs there", again, DEVICE, "ConnectError") from error
        near = difflib.get_close_matches(address, remotes, n=3)
        if error.reason != "unknown-host" or not near:
            raise
        text, cause = f"there is no remote and no host '{address}'", f"did you mean {' or '.join(near)}?"
        raise CommandError(text, cause, "portcall remote list", DEVICE, "ConnectError") from error


def facts_of(session: Session) -> dict[str, object]:
    """Return the facts of a session for a report."""
    return {"peer": session.name, "server": session.peer_kind, **session.stats()}


def print_clocks(session: Session, runs: str) -> None:
    """Print how long each part took; ``runs``: what its calls are."""
    clocks = {runs if name == "run" else name: seconds for name, seconds in session.stats()["seconds"].items()}
    parts = (f"{name} {format_duration(seconds)}" for name, seconds in clocks.items() if seconds)
    print_line(f"with {session.name}: {', '.join(parts)}")
