# SPDX-License-Identifier: Apache-2.0
"""A C++ program without Python runs a model."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from portcall import toolchain
from vm.compiled import MODES, Compiled

pytestmark = pytest.mark.peers
EXAMPLE = Path(__file__).parents[2] / "examples" / "cpp" / "run_relax.cc"


def test_cpp_program_runs_a_vm_model_without_python(models: Compiled, tmp_path: Path) -> None:
    program = toolchain.create_executable(EXAMPLE, tmp_path / "run_relax", options=("-Wall", "-Wextra", "-Werror"))
    for mode in MODES:
        words = [str(program), str(models.path("loop", mode)), "main", "4"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env={})
        assert (done.returncode, done.stdout) == (0, "4 elements, the first is 8.5\n"), done.stderr
    done = subprocess.run([*words[:-1], "5"], capture_output=True, text=True, timeout=60, check=False, env={})
    assert done.returncode == 1
    assert done.stderr.startswith("RuntimeError: ErrorContext(fn=main, loc=param[0], param=x")
