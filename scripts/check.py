#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make targets in lanes, one lane beside the other: most of them leave a part of the cores idle.

Usage: check.py 'TARGET TARGET ...' ... What a target printed is in build/check/TARGET.log, and the last of it is told
each minute. The first target that fails ends the others, and its last lines are printed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

LOGS = Path("build/check")
LINES = 200  # of what failed
TELL_S = 60  # seconds between words of what goes on


class Lanes:
    """Lanes that run at the same time, until one of them fails."""

    def __init__(self, count: int) -> None:
        # Compilers' runs have a share of the cores each.
        self._environment = os.environ | {"CMAKE_BUILD_PARALLEL_LEVEL": str(max(1, (os.cpu_count() or 1) // count))}
        self._lock = threading.Lock()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.ended = threading.Event()  # before all was done

    def run(self, targets: list[str]) -> None:
        for target in targets:
            began = time.monotonic()
            process = self._start(target)
            if process is None:
                return
            _, status, used = os.wait4(process.pid, 0)
            code = process.returncode = os.waitstatus_to_exitcode(status)
            took = f"{time.monotonic() - began:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of processor"
            with self._lock:
                del self._running[target]
                if not self.ended.is_set():
                    print(f"{target}: {'failed' if code else 'passed'} in {took}", flush=True)
                    if code:
                        print(f"the end of {LOGS / target}.log:", *lines_of(target)[-LINES:], sep="\n", flush=True)
                        self._end()

    def tell(self) -> None:
        with self._lock:
            for target in self._running:
                print(f"  {target}:", *lines_of(target)[-1:], flush=True)

    def end(self) -> None:
        with self._lock:
            self._end()

    def _start(self, target: str) -> subprocess.Popen[bytes] | None:
        with self._lock, (LOGS / f"{target}.log").open("wb") as output:
            if self.ended.is_set():
                return None
            process = subprocess.Popen(
                ["make", "--no-print-directory", target], stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True, env=self._environment,
            )  # fmt: skip
            self._running[target] = process
            return process

    def _end(self) -> None:
        self.ended.set()
        for process in self._running.values():
            with suppress(ProcessLookupError):  # it has just ended
                os.killpg(process.pid, signal.SIGTERM)


def lines_of(target: str) -> list[str]:
    return (LOGS / f"{target}.log").read_text(errors="replace").splitlines()


def main() -> int:
    LOGS.mkdir(parents=True, exist_ok=True)
    print(f"in lanes, with what they print in {LOGS}:", *sys.argv[1:], sep="\n  ", flush=True)
    lanes = Lanes(len(sys.argv) - 1)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ThreadPoolExecutor(len(sys.argv)) as pool:
        running = [pool.submit(lanes.run, targets.split()) for targets in sys.argv[1:]]
        try:
            while wait(running, TELL_S).not_done:
                lanes.tell()
        except KeyboardInterrupt:
            lanes.end()
    for lane in running:
        lane.result()  # raises what kept it from running
    return int(lanes.ended.is_set())


if __name__ == "__main__":
    sys.exit(main())
