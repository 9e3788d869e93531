# SPDX-License-Identifier: Apache-2.0
"""Load damaged copies of a library, each in a process of its own, and say how each ended.

    python load_damaged.py LIBRARY FOLDER < CASES > OUTCOMES

A case is {"cut": n}, the first n bytes, or {"flip": [[offset, mask], ...]}. An outcome is "loads", the error as
"Class: message", or "signal N". Processes are forked, which is cheap as long as this one has no threads.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import portcall


def damage(data: bytes, case: dict[str, Any]) -> bytes:
    damaged = bytearray(data[: case.get("cut", len(data))])
    for offset, mask in case.get("flip", ()):
        damaged[offset] ^= mask
    return bytes(damaged)


def load(path: Path) -> str:
    try:
        portcall.load_module(path)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "loads"


def load_in_child(path: Path) -> str:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, load(path).encode(errors="replace"))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        text = answer.read().decode()
    _, status = os.waitpid(child, 0)
    return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else text


def main() -> None:
    data, folder = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2])
    outcomes = []
    for number, case in enumerate(json.load(sys.stdin)):
        path = folder / f"damaged-{number}.so"
        path.write_bytes(damage(data, case))
        outcomes.append(load_in_child(path))
        path.unlink()
    json.dump(outcomes, sys.stdout)


if __name__ == "__main__":
    main()
