# SPDX-License-Identifier: Apache-2.0
"""The server without Python, for the tests that ``portcall serve`` has: see ``serving``.

``PORTCALL_TEST_SERVER=board`` runs these tests with it (``make test-board``), all but ``DIFFERENCES``; with
``PORTCALL_BOARD_SERVER`` it is that program and not the one that is compiled here.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from portcall import __version__, toolchain

ROOT = Path(__file__).parents[2]
CORE = ROOT / "core"


def under_test() -> bool:
    """Whether ``serving`` starts the server without Python by default."""
    return os.environ.get("PORTCALL_TEST_SERVER") == "board"


def compiled(name: str, sources: Sequence[Path], make: Callable[[Path], object]) -> Path:
    """Return what ``make`` compiles of the sources, kept from run to run, by content."""
    digest = hashlib.sha256(toolchain.find_compiler("c++").version().encode())
    for path in (*sources, *sorted((CORE / "include").rglob("*.h"))):
        digest.update(path.read_bytes())
    folder = Path(os.environ.get("PORTCALL_TEST_CACHE") or ROOT / "build" / "test-libraries") / "board"
    folder.mkdir(parents=True, exist_ok=True)
    stem, suffix = os.path.splitext(name)
    made = folder / f"{stem}-{digest.hexdigest()[:16]}{suffix}"
    with (folder / "lock").open("w") as lock:  # other workers wait for the first one
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            make(made)
    return made


def program() -> Path:
    """Return the server."""
    if given := os.environ.get("PORTCALL_BOARD_SERVER"):
        return Path(given)
    sources = sorted((CORE / "board").glob("*.cc"))
    options = (f"-I{CORE}", "-DPORTCALL_BUILDING", f'-DPORTCALL_VERSION="{__version__}"', "-O1")
    headers = [*(CORE / "board").glob("*.h"), *(CORE / "bytes").glob("*.h")]
    return compiled(
        "portcall-server",
        [*sources, *sorted(headers)],
        lambda made: toolchain.create_executable(sources, made, options),
    )


def functions() -> Path:
    """Return the library with the functions that ``serving`` registers."""
    source = ROOT / "tests" / "native" / "board_functions.cc"
    return compiled("board_functions.so", [source], lambda made: toolchain.create_shared(source, made))
