# SPDX-License-Identifier: Apache-2.0
"""docs/graph.md does what it says: its lines are run, in order, and print what stands below them. So does README.md."""

from __future__ import annotations

import doctest
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from graph.models import Model, array, close, f32
from portcall import graph, toolchain

ROOT = Path(__file__).parents[2]


def test_graph_page_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    page = str(ROOT / "docs" / "graph.md")
    failed, run = doctest.testfile(page, module_relative=False, encoding="utf-8")
    assert failed == 0, "what differs was printed"
    assert run > 50
    program = toolchain.create_executable("examples/cpp/run_bundle.cc", "run_bundle")
    done = subprocess.run(
        [program, "model.so", "x", "1", "-2", "3", "4"], capture_output=True, text=True, timeout=600, check=True
    )
    assert done.stdout.split() == ["float32(1,", "2):", "26.5", "3.5"]


@pytest.mark.peers
def test_readme_graph_example_runs(libraries: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (example,) = [block for block in blocks if "graph.GraphModule(" in block]
    draft, w, b, x = Model(), array(3, 8), array(3, seed=2), array(2, 8, seed=3)
    sources = [draft.input("data", (2, 8)), draft.input("w", (3, 8)), draft.input("b", (3,))]
    json = draft.json(draft.call("dense", sources, f32(2, 3)))
    graph.export_bundle(tmp_path / "resnet50.so", json, libraries["layers"], {"w": w, "b": b})
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"portcall": portcall, "np": np, "x": x}
    exec(compile(example, "README.md", "exec"), names)
    close(names["y"], x @ w.T + b)
    names["m"].run(data=2 * x)
    close(names["m"].get_output(0), 2 * x @ w.T + b)
    names.clear()
