# SPDX-License-Identifier: Apache-2.0
"""``portcall bench --farm … --keep``: one lease for the measurement and for its figure."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from portcall.cli._progress import StatusLine
from portcall.cli._remote import lease_place, session_of, uses_farm

if TYPE_CHECKING:
    from portcall.farm import Lease
    from portcall.rpc import Session


def open_kept(given: dict[str, Any], stack: contextlib.ExitStack) -> Lease:
    """Lease a place for all of a command, and let what it opens be a session with that place.

    Raises:
        click.UsageError: there is no farm.
    """
    if given["rpc"] or not uses_farm(None, given):
        raise click.UsageError("--keep is for --farm, which has the history")
    status = stack.enter_context(StatusLine())
    lease = stack.enter_context(lease_place(given, status))

    @contextlib.contextmanager
    def opened() -> Iterator[tuple[Session, StatusLine]]:
        with session_of(lease, given, given["timeout"], status) as session:
            yield session, status

    given["open"] = opened
    return lease
