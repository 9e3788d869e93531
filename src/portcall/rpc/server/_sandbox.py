# SPDX-License-Identifier: Apache-2.0
"""What this machine has to keep a session to its own directory."""

from __future__ import annotations

from dataclasses import dataclass

from portcall._module import session_library


@dataclass(frozen=True)
class Sandbox:
    """What the sandbox of ``portcall serve --sandbox`` is made of here.

    Attributes:
        found: the mechanisms of the kernel.
        missing: those that it lacks, with what they need.
        open: the groups of docs/security.md that sessions are not kept from, for what is missing.
        report: a line of all three.
    """

    found: str
    missing: tuple[str, ...]
    open: tuple[str, ...]
    report: str


def find_sandbox(mode: str = "best") -> Sandbox:
    """Return what this machine has for a sandbox. Processes try what changes something.

    Raises:
        OSError: ``mode`` is "require", and something is missing; the message says what.
    """
    found, missing, opened, report = session_library()["sandbox"](mode)
    return Sandbox(str(found), tuple(map(str, missing)), tuple(map(str, opened)), str(report))
