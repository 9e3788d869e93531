# SPDX-License-Identifier: Apache-2.0
"""docs/graph.md does what it says: its lines are run, in order, and print what stands below them."""

from __future__ import annotations

import doctest
import subprocess
from pathlib import Path

import pytest

from portcall import toolchain

ROOT = Path(__file__).parents[2]


def test_the_page_on_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    page = str(ROOT / "docs" / "graph.md")
    failed, run = doctest.testfile(page, module_relative=False, encoding="utf-8")
    assert failed == 0, "what differs was printed"
    assert run > 50
    program = toolchain.create_executable("examples/cpp/run_bundle.cc", "run_bundle")
    done = subprocess.run(
        [program, "model.so", "x", "1", "-2", "3", "4"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["float32(1,", "2):", "26.5", "3.5"]
