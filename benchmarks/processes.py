# SPDX-License-Identifier: Apache-2.0
"""Whole processes, interleaved: importing, and the command line, from wheels in environments of their own.

Rules: portcall is installed from a wheel, as users have it; an editable install adds an import hook. Each run is a
fresh ``python -I``, with the site-packages of its environment and compiled bytecode, files being in the page cache.
The time of an import is what the process itself sees pass between the statement's start and its end, so the start of
the interpreter is not in it. Versions of other packages are those of the environment that runs the benchmark.

Two environments: ``shared`` has portcall, tvm-ffi and NumPy, and nothing else that tvm-ffi would import (it imports
torch where that is installed); ``alone`` has tvm-ffi with what it requires, which NumPy is not.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from calls import Row
from method import Timer

ROOT = Path(__file__).resolve().parent.parent
IMPORT_TARGET = 0.5
HELP_LIMIT = 0.2
KEYS = ("import", "import-alone", "process", "help")
IMPORT = "import time; start = time.perf_counter(); import {}; print(time.perf_counter() - start)"
OURS = ("numpy", "click", "rich")
PEER = ("apache-tvm-ffi",)


def rows(folder: Path) -> Iterator[Row]:
    """Yield the comparisons of processes. ``folder`` keeps the environments for the next time."""
    wheel = build_wheel(folder)
    shared = make_environment(folder / "shared", [str(wheel), *map(pin, OURS + PEER)])
    alone = make_environment(folder / "alone", list(map(pin, PEER)))
    ours, portcall = import_timer(shared, "portcall"), shared / "bin" / "portcall"
    text = "import portcall"
    yield Row("import", text, ours, import_timer(shared, "tvm_ffi"), IMPORT_TARGET, "import tvm_ffi, NumPy installed")
    yield Row("import-alone", text, ours, import_timer(alone, "tvm_ffi"), IMPORT_TARGET, "import tvm_ffi, no NumPy")
    start, whole = process_timer(shared, "-c", "import portcall"), process_timer(shared, "-c", "import tvm_ffi")
    yield Row("process", "python -c 'import portcall', all of it", start, whole, None, "the same of tvm_ffi")
    nothing = process_timer(shared, "-c", "pass")
    help_page = process_timer(shared, str(portcall), "--help")
    yield Row("help", "portcall --help, all of it", help_page, nothing, None, "python -c pass", HELP_LIMIT)


def import_timer(environment: Path, package: str) -> Timer:
    command = python(environment, "-c", IMPORT.format(package))

    def run(number: int) -> float:
        return sum(
            float(subprocess.run(command, capture_output=True, check=True, env=clean()).stdout) for _ in range(number)
        )

    return run


def process_timer(environment: Path, *arguments: str) -> Timer:
    command = python(environment, *arguments)

    def run(number: int) -> float:
        start = time.perf_counter()
        for _ in range(number):
            subprocess.run(command, capture_output=True, check=True, env=clean())
        return time.perf_counter() - start

    return run


def python(environment: Path, *arguments: str) -> list[str]:
    return [str(environment / "bin" / "python"), "-I", *arguments]


def clean() -> dict[str, str]:
    """Return the environment variables without those that change what an interpreter imports or a package does."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PORTCALL", "TVM"))}


def pin(package: str) -> str:
    return f"{package}=={metadata.version(package)}"


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this source tree; only what changed since the last time is compiled."""
    made = folder / "wheel"
    shutil.rmtree(made, ignore_errors=True)
    options = ["--no-deps", "--no-build-isolation", "-C", f"build-dir={folder / 'cmake'}", "-w", str(made)]
    pip("wheel", *options, str(ROOT))
    (wheel,) = made.glob("*.whl")
    return wheel


def make_environment(folder: Path, requirements: Sequence[str]) -> Path:
    """Return a virtual environment that holds ``requirements`` and nothing else, not even pip."""
    digest = hashlib.sha256("\n".join((sys.version, *requirements)).encode())
    for wheel in (Path(word) for word in requirements if word.endswith(".whl")):
        digest.update(wheel.read_bytes())
    stamp = folder / "contents"
    if not stamp.exists() or stamp.read_text() != digest.hexdigest():
        venv.EnvBuilder(clear=True, symlinks=True).create(folder)
        pip("--python", str(folder / "bin" / "python"), "install", *requirements)
        stamp.write_text(digest.hexdigest())
    return folder


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\nexited with {done.returncode}:\n{done.stdout}")
