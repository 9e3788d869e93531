# SPDX-License-Identifier: Apache-2.0
"""``portcall run``, ``bench`` and ``inspect`` of libraries with an executable."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from portcall.cli import cli
from vm.compiled import Compiled

pytestmark = pytest.mark.peers


def run(*words: object) -> dict[str, object]:
    result = CliRunner().invoke(cli, [*map(str, words), "--json"])
    assert result.exit_code == 0, result.output
    found: dict[str, object] = json.loads(result.stdout)
    return found


def test_main_runs_and_its_results_are_saved(models: Compiled, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3), "float32"))
    x = f"@{tmp_path}/x.npy"
    run("run", models.path("outputs"), "--arg", x, "--arg", x, "--output", tmp_path / "y.npz")
    with np.load(tmp_path / "y.npz") as saved:
        assert sorted(saved) == ["result.0", "result.1.0", "result.1.1"]
        np.testing.assert_array_equal(saved["result.0"], np.full((2, 3), 2, "float32"))
    assert run("run", models.path("loop"), "main", "--arg", "ones:float32[4]")["outputs"] == {
        "result": {"dtype": "float32", "shape": [4], "min": 8.5, "mean": 8.5, "max": 8.5}
    }


def test_a_model_is_timed_and_profiled(models: Compiled) -> None:
    facts = run("bench", models.path("loop"), "--arg", "ones:float32[4]", "--number", 2, "--repeat", 2, "--profile")
    assert "vm.builtin.alloc_tensor" in json.dumps(facts["profile"])


def test_what_is_inside_is_shown(models: Compiled) -> None:
    facts = run("inspect", models.path("loop"))["executable"]
    assert isinstance(facts, dict)
    assert sorted(facts["signatures"]) == ["loop", "main"]
    assert facts["missing"] == []
    assert facts["listing"].strip() == models.listing("loop").strip()
    shown = CliRunner().invoke(cli, ["inspect", str(models.path("user")), "--strict"])
    assert "demo.scale" in shown.stdout
    assert shown.exit_code != 0


def test_wrong_names_and_arguments_are_errors(models: Compiled) -> None:
    for words in (["loob", "--arg", "ones:float32[4]"], ["--arg", "ones:float32[5]"], ["--input", "x=random"]):
        result = CliRunner().invoke(cli, ["run", str(models.path("loop")), *words])
        assert result.exit_code in (1, 2), result.output
