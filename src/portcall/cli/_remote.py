# SPDX-License-Identifier: Apache-2.0
"""What commands share that work with a server: options, a session, and words on what is waited for."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from portcall.bench import format_duration
from portcall.cli._command import read_duration
from portcall.cli._errors import CommandError
from portcall.cli._output import print_line

if TYPE_CHECKING:
    from portcall.rpc import Session

PATIENCE = 1.0  # seconds that need no explanation
TICK = 0.1
BAR_BYTES = 1 << 20  # smaller files are there before a bar is drawn
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def session_options(function: Decorated) -> Decorated:
    """Add the options that say how to open a session."""
    options = [
        click.option("--key", default="", help="The key that the server was started with."),
        click.option("--token-file", type=click.Path(), help="File with the server's token; or PORTCALL_TOKEN."),
        click.option("--tls-ca", type=click.Path(), metavar="FILE", help="Speak TLS, and trust this authority (PEM)."),
        click.option("--tls-cert", type=click.Path(), metavar="FILE", help="Our own certificate and key (PEM)."),
        click.option("--connect-timeout", default="10s", show_default=True, metavar="TIME", callback=read_duration,
                     help="How long to wait for the session, in the server's queue too."),
    ]  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


def read_token_file(path: str | None) -> str | None:
    """Return the token of a file; None where none was given, so that the environment decides.

    Raises:
        CommandError: the file is empty.
        OSError: it cannot be read.
    """
    if path is None:
        return None
    token = Path(path).read_text(encoding="utf-8").strip()
    if not token:
        raise CommandError(f"the token file '{path}' is empty", "", f"openssl rand -hex 32 > {path}, for both sides")
    return token


@contextlib.contextmanager
def open_session(address: str, given: dict[str, Any], call_timeout: float | None = None) -> Iterator[Session]:
    """Open a session, and close it at the end; stderr says what is waited for, once that takes a while.

    Raises:
        RPCError: the server is not there, or does not let us in.
    """
    from portcall import rpc

    tls = None
    if given["tls_ca"] or given["tls_cert"]:
        tls = rpc.TLSOptions(ca=given["tls_ca"] or "", certificate=given["tls_cert"] or "")
    with Waiting() as waiting:
        session = rpc.connect(
            address,
            key=given["key"],
            timeout=given["connect_timeout"],
            token=read_token_file(given["token_file"]),
            tls=tls,
            call_timeout=call_timeout or 0,
            on_wait=waiting.wait_for,
        )
        with session:
            waiting.watch(session)
            yield session


class Waiting:
    """Says on stderr what is waited for: a line that goes again on a terminal, else one line now and then."""

    def __init__(self) -> None:
        self._session: Session | None = None
        self._text, self._since = "", time.monotonic()
        self._lines = 0
        self._done = threading.Event()
        self._terminal = sys.stderr.isatty()
        self._thread = threading.Thread(target=self._run, name="portcall-waiting", daemon=True)

    def wait_for(self, text: str) -> None:
        """Say from now on that this is waited for."""
        self._text, self._since = text, time.monotonic()

    def watch(self, session: Session) -> None:
        """Say from now on what the session waits for."""
        self._text = ""
        self._session = session

    def __enter__(self) -> Waiting:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        shown = False
        while not self._done.wait(TICK):
            text, seconds = self._now()
            if seconds >= PATIENCE:
                shown |= self._show(text, seconds)
            elif shown:
                shown = self._hide()
        if shown:
            self._hide()

    def _now(self) -> tuple[str, float]:
        if self._text:
            return self._text, time.monotonic() - self._since
        doing = self._session.activity() if self._session else None
        return (str(doing), doing.seconds) if doing else ("", 0.0)

    def _show(self, text: str, seconds: float) -> bool:
        if self._terminal:
            width = shutil.get_terminal_size().columns
            sys.stderr.write(f"\rwaiting for {text}"[:width] + "\x1b[K")
            sys.stderr.flush()
        elif seconds >= PATIENCE * 4**self._lines:
            self._lines += 1
            click.echo(f"waiting for {text}", err=True)
        return True

    def _hide(self) -> bool:
        self._lines = 0
        if self._terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
        return False


def upload(session: Session, path: str, check: bool) -> str:
    """Send a file; a bar on a terminal shows how far it is. Returns its name over there."""
    size = os.path.getsize(path)
    if size < BAR_BYTES or not sys.stderr.isatty():
        return session.upload(path, check=check)
    with byte_bar(f"upload {os.path.basename(path)}", size) as show:
        return session.upload(path, progress=show, check=check)


@contextlib.contextmanager
def byte_bar(text: str, total: int) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on stderr, which is a terminal; what is returned takes the bytes that are done, and those in all."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(text, total=total)
        yield lambda done, of: progress.update(task, completed=done, total=of)


def facts_of(session: Session) -> dict[str, object]:
    """Return what a report says of a session."""
    return {"peer": session.name, "server": session.peer_kind, **session.stats()}


def print_clocks(session: Session) -> None:
    """Print how long each part took."""
    parts = (f"{name} {format_duration(seconds)}" for name, seconds in session.stats()["seconds"].items() if seconds)
    print_line(f"with {session.name}: {', '.join(parts)}")
