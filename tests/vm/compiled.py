# SPDX-License-Identifier: Apache-2.0
"""Models that apache-tvm compiled, with what its own machine answers."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import portcall

COMPILE = Path(__file__).parents[1] / "scripts" / "compile_relax.py"
MODES = ("bytecode", "compiled")


@dataclass(frozen=True)
class Compiled:
    """A folder of models; see ``compile_relax.py``."""

    folder: Path

    def path(self, name: str, mode: str = "bytecode") -> Path:
        return self.folder / f"{name}-{mode}.so"

    def listing(self, name: str, mode: str = "bytecode") -> str:
        return self.path(name, mode).with_suffix(".txt").read_text()

    def calls(self, name: str) -> tuple[str, list[tuple[Any, ...]], list[Any]]:
        """The function, the arguments of each call, and the results of each call."""
        function, calls, results = pickle.loads((self.folder / f"{name}.pickle").read_bytes())
        return function, [tuple(map(given, call)) for call in calls], list(map(given, results))

    def machine(self, name: str, mode: str = "bytecode") -> portcall.vm.VirtualMachine:
        return portcall.vm.create(portcall.load_module(self.path(name, mode)))


def compile_with(python: str | Path, folder: Path, *names: str) -> Compiled:
    """Compile the models, or those that are named, with the apache-tvm of an interpreter, unless they are there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            done = subprocess.run([python, COMPILE, folder, *names], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            (folder / "complete").touch()
    return Compiled(folder)


def language_model(cache_dir: Path, mode: str) -> Path:
    """Return the folder of the language model of ``language_model.py``, compiled by the installed apache-tvm."""
    source = Path(__file__).parent / "language_model.py"
    digest = hashlib.sha256(source.read_bytes() + importlib.metadata.version("apache-tvm").encode()).hexdigest()[:16]
    return compile_language(sys.executable, cache_dir / f"language-{mode}-{digest}", mode)


def compile_language(python: str | Path, folder: Path, mode: str) -> Path:
    """Compile the language model with the apache-tvm of an interpreter, unless it is there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "params.json").exists():
            command = [python, Path(__file__).parent / "language_model.py", folder, mode]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
    return folder


def given(value: Any) -> Any:
    """A value of the file as portcall has it."""
    if isinstance(value, tuple) and value and isinstance(value[0], str):
        return portcall.Shape(value[1])
    return tuple(map(given, value)) if isinstance(value, tuple) else value


def same(value: Any, expected: Any) -> bool:
    """Say whether a result is that of TVM, bit for bit."""
    if isinstance(expected, portcall.Shape):
        return isinstance(value, portcall.Shape) and value == expected
    if isinstance(expected, tuple):
        return isinstance(value, tuple) and len(value) == len(expected) and all(map(same, value, expected))
    if isinstance(expected, np.ndarray):
        array = value.numpy()
        return bool(
            array.dtype == expected.dtype and array.shape == expected.shape and array.tobytes() == expected.tobytes()
        )
    return bool(value == expected)


def scale(x: Any, factor: int, _text: str, out: Any) -> None:
    """Fill an output, as the model ``user`` wants it."""
    out.numpy()[:] = x.numpy() * factor
