# SPDX-License-Identifier: Apache-2.0
"""Measure the server without Python beside ``portcall serve``: size, memory, sessions, calls, copies, sandboxes.

``make bench-board`` runs this. Each time is taken in turn from both servers, in rounds, and is the least of them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from portcall import board, rpc

ROUNDS = 40
CALLS = 200
COPY = 16 << 20
TARGET = f"{platform.machine()}-linux-gnu"


@contextlib.contextmanager
def running(*command: str) -> Iterator[tuple[str, int]]:
    """Run a server; gives its address and its process."""
    with subprocess.Popen([*command, "--json", "--silent", "--port", "0"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        facts = json.loads(server.stdout.readline())
        try:
            yield facts["address"], facts["pid"]
        finally:
            server.terminate()


def children_of(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def megabytes(pid: int, what: str) -> float:
    """Return a line of a process's memory, in MB: ``Rss``, or ``Private_Dirty``, which no other process has."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(f"{what}:")) / 1000


def session_memory(address: str, pid: int) -> float:
    """Return the resident memory of the process of one session."""
    before = set(children_of(pid))
    with rpc.connect(address) as session:
        session["testing.echo"](1)
        (worker,) = set(children_of(pid)) - before
        return megabytes(worker, "Rss")


def open_and_call(address: str) -> float:
    begin = time.perf_counter()
    with rpc.connect(address) as session:
        session["testing.echo"](1)
        return time.perf_counter() - begin


def call(session: rpc.Session) -> float:
    echo = session["testing.echo"]
    begin = time.perf_counter()
    for _ in range(CALLS):
        echo(1)
    return (time.perf_counter() - begin) / CALLS


def copy(session: rpc.Session) -> float:
    array = np.zeros(COPY, "uint8")
    tensor = session.empty(array.shape, "uint8")
    tensor.copyfrom(array)
    begin = time.perf_counter()
    tensor.copyfrom(array)
    tensor.numpy()
    return time.perf_counter() - begin


def compare(ours: Callable[[], float], other: Callable[[], float], rounds: int) -> tuple[float, float]:
    """Return the least of both, taken in turn: other work on the machine only adds to a time."""
    pairs = [(ours(), other()) for _ in range(rounds)]
    return min(a for a, _ in pairs), min(b for _, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--program", type=Path, help="measure this one, and compile none")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        program = given.program or board.build_server(TARGET, Path(folder, "portcall-server"))
        print(f"size of one file                  {program.stat().st_size / 1e6:8.2f} MB   limit 1.2")
        address, pid = stack.enter_context(running(str(program)))
        serve = (sys.executable, "-m", "portcall", "serve")
        theirs, _ = stack.enter_context(running(*serve))
        confined, _ = stack.enter_context(running(str(program), "--sandbox=best"))
        also_confined, _ = stack.enter_context(running(*serve, "--sandbox=best"))
        keeper = children_of(pid)[0]
        print(f"memory of the server (RSS)        {megabytes(pid, 'Rss'):8.2f} MB   limit 3")
        print(f"  of its keeper, its own          {megabytes(keeper, 'Private_Dirty'):8.2f} MB")
        print(f"memory of a session (RSS)         {session_memory(address, pid):8.2f} MB   limit 2.5")
        mine = stack.enter_context(rpc.connect(address))
        other = stack.enter_context(rpc.connect(theirs))
        opening = "open, first call, close"

        def opened(address: str) -> Callable[[], float]:
            return lambda: open_and_call(address)

        rows: list[tuple[str, Callable[[], float], str, Callable[[], float], float, str]] = [
            (opening, opened(address), "portcall serve", opened(theirs), 1e3, "ms"),
            ("a call", lambda: call(mine), "portcall serve", lambda: call(other), 1e6, "us"),
            (f"{COPY >> 20} MiB and back", lambda: copy(mine), "portcall serve", lambda: copy(other), 1e3, "ms"),
            (f"{opening}, --sandbox", opened(confined), "without", opened(address), 1e3, "ms"),
            ("  the same of portcall serve", opened(also_confined), "without", opened(theirs), 1e3, "ms"),
        ]
        for name, first, beside, second, factor, unit in rows:
            a, b = compare(first, second, given.rounds)
            print(f"{name:<35}  {a * factor:8.2f} {unit}   {beside} {b * factor:8.2f} {unit}   ratio {a / b:.2f}")


if __name__ == "__main__":
    main()
