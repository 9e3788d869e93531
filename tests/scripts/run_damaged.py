# SPDX-License-Identifier: Apache-2.0
"""Load and run executables that were damaged, with the kernels that TVM compiled for them. Only errors may come of it.

    python run_damaged.py FOLDER COUNT SEED MODEL …

FOLDER has models as compile_relax.py writes them. Prints how many were refused, could not be set up, failed and ran.
"""

from __future__ import annotations

import pickle
import random
import struct
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import portcall
from portcall import inspect, vm
from portcall.vm._executable import KIND

NUMBERS = (0, 1, -1, 2, 7, 1 << 20, 1 << 31, 1 << 54, (1 << 54) + 1, 1 << 62, -(1 << 63))
MOST_CALLS = 3000  # a function that calls itself twice would not end
CODE = 4000  # bytes at the end, which are mostly instructions


def damaged(payload: bytes, chance: random.Random) -> bytes:
    """Return the bytes with one to three changes: other bytes, other numbers, bytes that are missing."""
    data = bytearray(payload)
    for _ in range(chance.randint(1, 3)):
        first = 0 if chance.random() < 0.4 else max(0, len(data) - CODE)
        at = chance.randrange(first, len(data))
        kind = chance.random()
        if kind < 0.5:
            data[at] = chance.randrange(256)
        elif kind < 0.9:
            number = chance.choice(NUMBERS) if chance.random() < 0.5 else chance.randrange(30)
            data[at : at + 8] = struct.pack("<q", number)[: len(data) - at]
        else:
            del data[at : at + chance.randint(1, 16)]
    return bytes(data)


def run(payload: bytes, kernels: portcall.Module, arguments: list[Any]) -> str:
    """Return how far it came."""
    try:
        executable = portcall.get_global_func(f"ffi.Module.load_from_bytes.{KIND}")(payload)
    except portcall.errors.PortcallError:
        return "refused"
    executable.import_module(kernels)
    try:
        machine = vm.create(executable)
    except (portcall.errors.PortcallError, ValueError, TypeError, RuntimeError):
        return "not set up"
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > MOST_CALLS:
            raise TimeoutError

    machine.module["set_instrument"](count)
    outcome = "ran"
    for name in machine.functions:
        parameters = machine.signature(name).parameters
        try:
            calls = 0
            machine.module[name](*(arguments + arguments * 4)[: len(parameters)])
        except Exception:  # any error will do
            outcome = "failed"
    machine.module["set_instrument"](None)
    return outcome


def main() -> None:
    folder, count, seed = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    for name in ("demo.scale", "demo.same", "demo.dtype"):
        portcall.register_func(name, lambda *_: None)
    for model in sys.argv[4:]:
        path = folder / f"{model}-bytecode.so"
        payload = inspect.embedded_payload(path, (KIND,))
        assert payload is not None
        (kernels,) = portcall.load_module(path).imported_modules
        _, calls, _ = pickle.loads((folder / f"{model}.pickle").read_bytes())
        arguments = [portcall.tensor(value) if hasattr(value, "shape") else value for value in calls[0]]
        outcomes = Counter(
            run(damaged(payload, random.Random(f"{seed} {model} {i}")), kernels, arguments) for i in range(count)
        )
        print(model, dict(outcomes), flush=True)


if __name__ == "__main__":
    main()
