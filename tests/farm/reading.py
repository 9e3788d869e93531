# SPDX-License-Identifier: Apache-2.0
"""What a process finds in other processes of its user: in their words, environment and memory.

python reading.py PID…          with the words to look for on standard input; prints "PID WHERE WORD" for each find
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

_DROP, _MOST_PRIVILEGES = 24, 64  # PR_CAPBSET_DROP of prctl(2)
_PIECE = 8 << 20
_prctl = ctypes.CDLL(None).prctl


def found_by_others(pids: list[int], *words: str) -> set[tuple[int, str, str]]:
    """Return where a process without privileges, of this user, finds which of these words."""
    done = subprocess.run(
        [sys.executable, __file__, *map(str, pids)], input=" ".join(words), capture_output=True, text=True, check=True,
        preexec_fn=drop_privileges,
    )  # fmt: skip
    rows = [line.split() for line in done.stdout.splitlines()]
    return {(int(pid), where, word) for pid, where, word in rows}


def family(pid: int) -> list[int]:
    """Return a process and all that it started."""
    children = [int(c) for task in Path(f"/proc/{pid}/task").iterdir() for c in (task / "children").read_text().split()]
    return [pid, *(other for child in children for other in family(child))]


def drop_privileges() -> None:
    """Before a program is started: it is not to have what root has, which may read everything."""
    for privilege in range(_MOST_PRIVILEGES):
        _prctl(_DROP, privilege, 0, 0, 0)


def search(pid: str, words: list[bytes]) -> None:
    for name in ("cmdline", "environ", "mem"):
        try:
            pieces = memory(pid) if name == "mem" else [Path(f"/proc/{pid}/{name}").read_bytes()]
            found = {word for data in pieces for word in words if word in data}
        except OSError:
            continue
        for word in found:
            print(pid, name, word.decode())


def memory(pid: str) -> list[bytes]:
    data = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as mem:
        for line in maps:
            bounds, rights = line.split()[:2]
            if not rights.startswith("rw"):
                continue
            first, last = (int(bound, 16) for bound in bounds.split("-"))
            for at in range(first, last, _PIECE):
                try:
                    mem.seek(at)
                    data.append(mem.read(min(_PIECE, last - at)))
                except (OSError, ValueError):
                    break
    return data


if __name__ == "__main__":
    wanted = sys.stdin.read().encode().split()
    for number in sys.argv[1:]:
        search(number, wanted)
