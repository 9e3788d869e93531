# SPDX-License-Identifier: Apache-2.0
"""Executables that were damaged, loaded and run with real kernels. ``make fuzz-vm`` runs many more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vm.compiled import Compiled

pytestmark = pytest.mark.peers
SCRIPT = Path(__file__).parents[1] / "scripts" / "run_damaged.py"
WRONG_CALLS = SCRIPT.with_name("run_wrong_calls.py")
MODELS = ("branch", "loop", "tuples", "shapes", "data", "closures", "topk")


def test_executable_damaged_gives_errors_only(models: Compiled) -> None:
    words = [sys.executable, str(SCRIPT), str(models.folder), "60", "make test", *MODELS]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) == len(MODELS)
    assert "refused" in done.stdout
    assert "ran" in done.stdout


def test_functions_of_a_language_model_survive_wrong_calls(compiled: Path) -> None:
    words = [sys.executable, str(WRONG_CALLS), str(compiled), "20000", "make test"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ran" in done.stdout
    assert "ValueError" in done.stdout
