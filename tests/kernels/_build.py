# SPDX-License-Identifier: Apache-2.0
"""What the build scripts beside this file share: one compiler call, one manifest.

Rules: a compiler that fails ends the build with its whole output, nothing is skipped; every library says
its own binding mode (``-z lazy`` or ``-z now``), since compilers of different distributions have different
defaults; a script run as ``python SCRIPT OUTDIR [NAME...]`` writes its libraries and ``manifest.json`` into
OUTDIR.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

CC = os.environ.get("CC", "cc")
CXX = os.environ.get("CXX", "c++")
LAZY = "-Wl,-z,lazy"
NOW = "-Wl,-z,now"


@dataclass(frozen=True)
class Library:
    """One file that a build made; ``functions`` maps each exported name to its signature and meaning."""

    path: str
    functions: dict[str, str]
    notes: str = ""
    objects: list[str] = field(default_factory=list)


def run_compiler(*command: str | Path) -> None:
    """Run one compiler or linker command.

    Raises:
        RuntimeError: it is missing or failed; the message holds the command and everything it printed.
    """
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise RuntimeError(f"cannot run the compiler {words[0]!r}: {error}") from error
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}\nexited with {done.returncode}:\n{done.stdout}{done.stderr}")


def main(builders: Mapping[str, Callable[[str, Path], Library]], arguments: Sequence[str]) -> None:
    """Build the libraries named on the command line, or all, and write the manifest.

    A builder is called with its own name and the output directory. Paths in the manifest are relative to it.
    """
    if not arguments:
        sys.exit(f"usage: {sys.argv[0]} OUTDIR [NAME...]; names: {', '.join(builders)}")
    outdir, names = Path(arguments[0]), arguments[1:] or list(builders)
    unknown = sorted(set(names) - set(builders))
    if unknown:
        sys.exit(f"no library named {', '.join(unknown)}; there are {', '.join(builders)}")
    outdir.mkdir(parents=True, exist_ok=True)
    manifest = {name: asdict(builders[name](name, outdir)) for name in names}
    (outdir / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
