# SPDX-License-Identifier: Apache-2.0
"""The processes of this machine, as tests look at them."""

from __future__ import annotations

import contextlib
from pathlib import Path


def children_of(*parents: int) -> set[int]:
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) in parents:
                    found.add(int(entry.name))
    return found


def descendants_of(parent: int) -> set[int]:
    family = {parent}
    while more := children_of(*family) - family:
        family |= more
    return family - {parent}


def command_of(pid: int) -> bytes:
    """The words of a process; none once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
