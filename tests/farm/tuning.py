# SPDX-License-Identifier: Apache-2.0
"""TVM's meta_schedule tunes a matrix product on a farm with two boards of portcall: minutes.

PYTHONPATH=tests python tests/farm/tuning.py TVM_FFI TRIALS [RUNS]        (or: make test-tuning TUNING_RUNS=10)

TVM_FFI is the folder with the version of apache-tvm-ffi that the tuner needs. With RUNS it tunes so often with each of
``KINDS`` in turns, the same candidates each time, and prints how often which one won.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from bench.real import quota
from farm.running import running_farm

SCRIPT = Path(__file__).parents[1] / "scripts" / "tune_matmul.py"
BOARDS = ("b1", "b2")
QUIET, DISTURBED, CHECKED = KINDS = ("two quiet boards", "one has 70 % of a core", "the same, and boards look before")
CHECK = f"{sys.executable} -m portcall bench cool 20s"
SAME = 1.02  # times the best candidate's time, that a winner may take to be as good


def tune(kind: str, tvm_ffi: str, trials: str, strategy: str) -> dict[str, Any] | None:
    """Return what the tuner found, and which boards it used; None if it failed.

    Parameters:
        strategy: of the search; the candidates of replay-trace do not depend on what was measured.
    """
    with running_farm() as farm, contextlib.ExitStack() as stack:
        cache = stack.enter_context(tempfile.TemporaryDirectory())  # what is known of other places is left alone
        boards = {**os.environ, "XDG_CACHE_HOME": cache}
        if kind == CHECKED:
            look(boards)
        for number, name in enumerate(BOARDS):
            command = [sys.executable, "-m", "portcall", "serve", "--farm", f"{farm.host}:{farm.port}", "--key", "k",
                       "--place", name, "--silent", *(["--check", CHECK] if kind == CHECKED else [])]  # fmt: skip
            core = sorted(os.sched_getaffinity(0))[number % len(os.sched_getaffinity(0))]
            board = stack.enter_context(
                subprocess.Popen(["taskset", "-c", str(core), *command], stdout=subprocess.DEVNULL, env=boards)
            )
            stack.callback(board.terminate)
            if kind != QUIET and name == BOARDS[-1]:
                stack.enter_context(quota(board.pid))
        farm.until(lambda: sum(place.free for place in farm.state.places.values()) == len(BOARDS))
        script = [sys.executable, str(SCRIPT), farm.host, str(farm.port), "k", trials, strategy]
        done = subprocess.run(script, env={**os.environ, "PYTHONPATH": tvm_ffi}, stdout=subprocess.PIPE, text=True)
        farm.until(lambda: not farm.state.leases)
        events = farm.do(lambda: farm.server.hub.store.history(limit=100_000))
    if done.returncode:
        return None
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    found["used"] = Counter(event["place"] for event in events if event["what"] == "session opened")
    return found


def look(environment: dict[str, str]) -> None:
    """Let each board remember how fast it is when quiet, at this time: a host may change the clock for minutes."""
    command = [sys.executable, "-m", "portcall", "bench", "cool", "2m"]
    looking = [subprocess.Popen(command, env={**environment, "PORTCALL_PLACE": name}) for name in BOARDS]
    if any(each.wait() for each in looking):
        raise SystemExit("this machine is too busy: nobody can tell how fast its boards are")


def once(tvm_ffi: str, trials: str) -> int:
    """Tune once; return 1 if anything failed."""
    found = tune(QUIET, tvm_ffi, trials, "evolutionary")
    if found is None:
        return 1
    print(f"{len(found['seconds'])} trials, {found['failed']} failed; sessions: {dict(sorted(found['used'].items()))}; "
          f"the plain kernel {found['first'] * 1e3:.2f} ms, the best {found['best'] * 1e3:.2f} ms, "
          f"{'right' if found['right'] else 'WRONG'}")  # fmt: skip
    return 0 if found["right"] and not found["failed"] and len(found["used"]) == len(BOARDS) else 1


def compare(tvm_ffi: str, trials: str, runs: int) -> int:
    """Tune beside each kind of disturbance; return 1 if a tuning failed."""
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for run in range(runs):
        for kind in KINDS:
            made = tune(kind, tvm_ffi, trials, "replay-trace")
            if made is None:
                return 1
            found[kind].append(made)
            print(run + 1, kind, json.dumps(made), flush=True)
    quiet: dict[str, list[float]] = {}
    for each in found[QUIET]:
        for kernel, seconds in each["seconds"].items():
            quiet.setdefault(kernel, []).append(seconds)
    usual = {kernel: statistics.median(seconds) for kernel, seconds in quiet.items()}
    best = min(usual.values())
    print(f"\n| boards | tunings | the best won | within 2 % | slowest winner | sessions of {' and '.join(BOARDS)} |")
    print("| --- " * 6 + "|")
    for kind, rows in found.items():
        won = [usual[min(row["seconds"], key=row["seconds"].__getitem__)] for row in rows]
        used = " and ".join(str(sum(row["used"][name] for row in rows)) for name in BOARDS)
        good = sum(each <= SAME * best for each in won)
        print(f"| {kind} | {len(rows)} | {won.count(best)} | {good} | {max(won) / best:.2f} x | {used} |")
    return 0


if __name__ == "__main__":
    tvm_ffi, trials, runs = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0
    sys.exit(compare(tvm_ffi, trials, runs) if runs else once(tvm_ffi, trials))
