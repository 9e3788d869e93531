# SPDX-License-Identifier: Apache-2.0
"""A library on portcall's headers runs in tvm-ffi's runtime too, and says there what it cannot do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "anywhere.py"


@pytest.mark.parametrize("runtime", ["portcall", pytest.param("tvm_ffi", marks=pytest.mark.peers)])
def test_library_on_our_headers_runs_in_either_runtime(build_native: Callable[[str], Path], runtime: str) -> None:
    words = [sys.executable, SCRIPT, runtime, build_native("anywhere.cc")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)  # type: ignore[arg-type]
    assert (done.returncode, done.stderr) == (0, "")
    if runtime == "portcall":
        assert done.stdout == "True\n"
    else:
        assert done.stdout.startswith("RuntimeError: ")
        assert "PortcallDeviceGetAPI" in done.stdout
