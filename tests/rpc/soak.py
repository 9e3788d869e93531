# SPDX-License-Identifier: Apache-2.0
"""A server under load and under fire: sessions that come, work and are killed, and then a look for what was left.

    python tests/rpc/soak.py --sessions 200 --seconds 60

Each client uploads a file, calls, leaves something behind (a program that it started, files) and then closes, crashes,
hangs up in the middle of a message, or lets its time run out. Meanwhile worker processes are killed at random, and the
process that sessions start from now and then. At the end there must be no process, directory or descriptor too many.
The tests do a little of it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import secrets
import signal
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from rpc import board
from rpc.processes import children_of, command_of
from rpc.raw_client import RETURN, RawClient, integer, text
from rpc.serving import Serving, serving

WAYS = ("close", "crash", "hang up", "expire", "kill")
BROKEN = (OSError, EOFError, AssertionError)


def session(server: Serving, way: str) -> str:
    """Be a client; returns how that went: "done" when all was as it should be."""
    with RawClient(server.address, timeout=60) as client:
        try:
            client.open(options=" -timeout=0.5" if way == "expire" else "")
            assert client.call("tvm.rpc.server.upload", text("file"), text("x" * 1000))[0] == RETURN
            assert client.echo(3) == 3
            client.call("demo.start")
            if way == "expire":
                client.read_frame()
            elif way == "hang up":
                client.send(b"\x08\x00\x00")
            elif way != "close":
                client.call("demo.crash", integer(signal.SIGSEGV if way == "crash" else signal.SIGKILL))
        except BROKEN:
            return "broken"
    return "done"


def zygote_of(server: Serving) -> int | None:
    found = [pid for pid in children_of(server.process.pid) if b"_zygote" in command_of(pid)]
    return found[0] if found else None


def processes_of(server: Serving) -> tuple[int | None, list[int]]:
    """The process without which there are no sessions, and those of sessions.

    In place of the zygote, the server without Python has the keeper of its directories.
    """
    if not board.under_test():
        zygote = zygote_of(server)
        return zygote, sorted(children_of(zygote)) if zygote else []
    children = sorted(children_of(server.process.pid))
    with contextlib.suppress(ProcessLookupError):
        workers = [pid for pid in children if os.getsid(pid) == pid]
        return next((pid for pid in children if pid not in workers), None), workers
    return None, []


def shoot(server: Serving, draw: random.Random, stop: threading.Event, count: Counter[str]) -> None:
    """Kill a session's process now and then, and more seldom the process that they come from."""
    while not stop.wait(0.2):
        zygote, workers = processes_of(server)
        victim = zygote if draw.random() < 0.03 else draw.choice(workers) if workers else None
        if victim is not None:
            count["zygote killed" if victim == zygote else "session killed"] += 1
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)


def descriptors(server: Serving) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def settle(server: Serving, first: int, patience: float = 60) -> int:
    """Wait until the server has no session left, and as few descriptors as at first; return how many it has."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        zygote, workers = processes_of(server)
        if zygote and not workers and not server.directories() and descriptors(server) <= first:
            break
        time.sleep(0.05)
    return descriptors(server)


def soak(sessions: int, seconds: float, at_once: int = 8, seed: int = 1, kill: bool = True) -> Counter[str]:
    """Run that many sessions, at least for that long; return what happened.

    Raises:
        AssertionError: the server ended, or something was left behind.
    """
    draw, count, stop = random.Random(seed), Counter[str](), threading.Event()
    mark = secrets.token_hex(8)  # all that the server starts has it in its environment
    with serving("--max-sessions", at_once, SOAK=mark) as server:
        assert session(server, "close") == "done"
        first = settle(server, 0, patience=1)
        shooter = threading.Thread(target=shoot, args=(server, draw, stop, count))
        if kill:
            shooter.start()
        until = time.monotonic() + seconds
        with ThreadPoolExecutor(2 * at_once) as pool:
            while count["sessions"] < sessions or time.monotonic() < until:
                ways = [draw.choice(WAYS) for _ in range(2 * at_once)]
                outcomes = list(pool.map(lambda way: session(server, way), ways))
                count.update(f"{way}: {outcome}" for way, outcome in zip(ways, outcomes, strict=True))
                count["sessions"] += len(ways)
        stop.set()
        if kill:
            shooter.join()
        settle(server, first)
        assert session(server, "close") == "done"
        left = settle(server, first)
        assert server.process.poll() is None, "the server ended"
        assert not server.directories(), server.directories()
        assert left <= first, f"{left - first} descriptors too many"
        # It, its log, its directories, and the zygote; the one without Python: it and its keeper.
        check_processes(mark, 2 if board.under_test() else 4)
        assert server.stop() == 0
    check_processes(mark, 0)
    return count


def check_processes(mark: str, expected: int, patience: float = 30) -> None:
    """Wait until a server and all that it started are that many: what was killed takes its time to end."""
    until = time.monotonic() + patience
    while len(left := marked(mark)) != expected:
        assert time.monotonic() < until, [command_of(pid) for pid in left]
        time.sleep(0.05)


def marked(mark: str) -> list[int]:
    """The processes that a server started, and it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if f"SOAK={mark}".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    for what, number in sorted(soak(given.sessions, given.seconds, seed=given.seed).items()):
        print(f"{number:8} {what}")
    print("nothing left behind: no process, directory or descriptor")


if __name__ == "__main__":
    main()
