# SPDX-License-Identifier: Apache-2.0
"""docs/calls.md does what it says: its lines are run, in order, and print what stands below them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from portcall import toolchain

ROOT = Path(__file__).parents[1]
PROGRAM = """
import doctest, sys
failed, run = doctest.testfile(sys.argv[1], module_relative=False, encoding="utf-8", optionflags=doctest.ELLIPSIS)
sys.exit(failed or run < 30)
"""


def test_calls_page_code_runs(tmp_path: Path) -> None:
    toolchain.create_shared(ROOT / "src" / "portcall" / "cli" / "demo_kernels.cc", tmp_path / "kernels.so")
    # In a process of its own: the page changes settings and the registry.
    command = [sys.executable, "-c", PROGRAM, str(ROOT / "docs" / "calls.md")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
