# SPDX-License-Identifier: Apache-2.0
"""Run a command that compiles, and show how many files are done: ``[12/120]`` of ninja, which pip hides.

Usage: count_files.py LOG COMMAND... All that the command says is in the file LOG; of a failure its end is shown.
"""

import re
import subprocess
import sys
import time
from pathlib import Path

STEP = re.compile(r"\[(\d+)/(\d+)\]")
TENTHS = 10  # where stdout is no terminal, a line for each of them
SHOWN = 60  # lines of a failure


def run(log: Path, command: list[str]) -> int:
    """Run the command and return its exit status."""
    log.parent.mkdir(parents=True, exist_ok=True)
    terminal, start, told = sys.stdout.isatty(), time.monotonic(), 0
    with (
        log.open("w", buffering=1, errors="replace") as file,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as made,
    ):
        assert made.stdout is not None
        for line in made.stdout:
            file.write(line)
            found = STEP.search(line)
            if found is None:
                continue
            done, total = int(found[1]), int(found[2])
            text = f"compiled {done} of {total} files, {time.monotonic() - start:.0f} s"
            if terminal:
                told = done
                print(f"\r{text}\x1b[K", end="", flush=True)
            elif done * TENTHS // total > told:
                told = done * TENTHS // total
                print(text, flush=True)
    if terminal and told:
        print()
    if made.returncode != 0:
        print("".join(log.read_text(errors="replace").splitlines(keepends=True)[-SHOWN:]), end="", file=sys.stderr)
        print(f"failed; all of it is in {log}", file=sys.stderr)
    return made.returncode


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), sys.argv[2:]))
