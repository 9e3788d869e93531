# SPDX-License-Identifier: Apache-2.0
"""The lines of docs/ir.md do what the page says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "ir.md"
PROGRAM = """
import doctest, sys
failed, run = doctest.testfile(sys.argv[1], module_relative=False, encoding="utf-8")
sys.exit(failed or run < 40)
"""


def test_ir_page_code_runs() -> None:
    # In a process of its own: what the page registers, passes among them, stays.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, PAGE], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
