# SPDX-License-Identifier: Apache-2.0
"""TVM's meta_schedule tunes a matrix product on a farm with two boards of portcall: minutes.

PYTHONPATH=tests python tests/farm/tuning.py TVM_FFI TRIALS        (or: make test-tuning)

TVM_FFI is the folder with the version of apache-tvm-ffi that the tuner needs.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

from farm.running import running_farm

SCRIPT = Path(__file__).parents[1] / "scripts" / "tune_matmul.py"
BOARDS = ("b1", "b2")


def main(tvm_ffi: str, trials: str) -> int:
    """Print what the tuner found and which boards measured it; return 1 if anything failed."""
    with running_farm() as farm, contextlib.ExitStack() as stack:
        where = f"{farm.host}:{farm.port}"
        for name in BOARDS:
            command = [sys.executable, "-m", "portcall", "serve", "--farm", where, "--key", "k", "--place", name]
            board = stack.enter_context(subprocess.Popen([*command, "--silent"], stdout=subprocess.PIPE, text=True))
            stack.callback(board.terminate)
        farm.until(lambda: sum(place.free for place in farm.state.places.values()) == len(BOARDS))
        tune = [sys.executable, str(SCRIPT), farm.host, str(farm.port), "k", trials]
        done = subprocess.run(tune, env={**os.environ, "PYTHONPATH": tvm_ffi}, stdout=subprocess.PIPE, text=True)
        farm.until(lambda: not farm.state.leases)
        events = farm.do(lambda: farm.server.hub.store.history(limit=100_000))
    if done.returncode:
        return 1
    found = json.loads(done.stdout.splitlines()[-1])
    used = Counter(event["place"] for event in events if event["what"] == "session opened")
    print(f"{found['trials']} trials, {found['failed']} failed; sessions: {dict(sorted(used.items()))}; "
          f"the plain kernel {found['first'] * 1e3:.2f} ms, the best {found['best'] * 1e3:.2f} ms, "
          f"{'right' if found['right'] else 'WRONG'}")  # fmt: skip
    return 0 if found["right"] and not found["failed"] and len(used) == len(BOARDS) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
