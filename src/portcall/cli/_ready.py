# SPDX-License-Identifier: Apache-2.0
"""What ``portcall serve`` and ``portcall farm`` say once clients can connect: to people, to programs, in a file."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Mapping
from pathlib import Path

import click

from portcall.cli._errors import MAKE_CERTIFICATE
from portcall.cli._server_options import OPTIONS
from portcall.errors import printable

READY_FILE = click.option("--ready-file", type=click.Path(dir_okay=False), help=OPTIONS["--ready-file"].help)


def print_ready(
    facts: Mapping[str, object], json_to: str | None, ready_file: str | None, at_end: contextlib.ExitStack
) -> None:
    """Print the first line, and write the files that programs wait for: the object of ``--json``, each in one line.

    ``at_end`` removes the ready file, which says that somebody serves, unless it is another's by then.
    """
    line = json.dumps(facts)
    for path in (ready_file, json_to):
        if path not in (None, "-"):
            write_whole(Path(str(path)), line + "\n", private=bool(facts.get("token")))
    if ready_file:
        at_end.callback(remove_own, Path(ready_file), line + "\n")
    click.echo(line if json_to == "-" else f"listening on {facts['address']}")


def remove_own(path: Path, text: str) -> None:
    """Remove a file that has this text."""
    with contextlib.suppress(OSError, ValueError):
        if path.read_text() == text:
            path.unlink()


def time_warning(certificate: str) -> tuple[str, str] | None:
    """Return a warning of a certificate to serve with that no client trusts today, and advice; None for none."""
    if not certificate:
        return None
    from portcall import rpc

    why = rpc.time_problem(Path(certificate).read_bytes())
    advice = f"make another one: {MAKE_CERTIFICATE.format(host=socket.gethostname())}"
    return (f"the certificate '{certificate}' {why}", advice) if why else None


def say_aside(text: str) -> None:
    """Print lines on standard error, and go on where they are not read: what serves must not wait for its readers."""

    def write() -> None:
        with contextlib.suppress(OSError):
            os.write(2, f"{printable(text)}\n".encode())  # no lock of Python's is held meanwhile

    thread = threading.Thread(target=write, name="portcall-ready", daemon=True)
    thread.start()
    thread.join(1)


def reachable(host: str, port: int) -> str:
    """Return the address by which another machine reaches this one: the one that goes out, where all are bound."""
    if host.strip("[]") in ("", "0.0.0.0", "::"):
        host = socket.gethostname()
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect(("192.0.2.1", 9))  # nothing is sent: the system only picks a local address
            host = sock.getsockname()[0]
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def write_whole(path: Path, text: str, private: bool = False) -> None:
    """Write a file that a reader sees whole or not at all; a private one only this user reads."""
    new = path.with_name(path.name + ".new")
    try:
        new.unlink(missing_ok=True)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666), "w") as file:
            file.write(text)
        new.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
