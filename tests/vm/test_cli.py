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


def test_run_vm_saves_results_of_main(models: Compiled, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((2, 3), "float32"))
    x = f"@{tmp_path}/x.npy"
    run("run", models.path("outputs"), "--arg", x, "--arg", x, "--output", tmp_path / "y.npz")
    with np.load(tmp_path / "y.npz") as saved:
        assert sorted(saved) == ["result.0", "result.1.0", "result.1.1"]
        np.testing.assert_array_equal(saved["result.0"], np.full((2, 3), 2, "float32"))
    assert run("run", models.path("loop"), "main", "--arg", "ones:float32[4]")["outputs"] == {
        "result": {"dtype": "float32", "shape": [4], "min": 8.5, "mean": 8.5, "max": 8.5}
    }


def test_bench_vm_times_and_profiles(models: Compiled) -> None:
    facts = run("bench", models.path("loop"), "--arg", "ones:float32[4]", "--number", 2, "--repeat", 2, "--profile")
    assert "vm.builtin.alloc_tensor" in json.dumps(facts["profile"])


def test_inspect_vm_shows_functions_and_instructions(models: Compiled) -> None:
    facts = run("inspect", models.path("loop"))["executable"]
    assert isinstance(facts, dict)
    assert sorted(facts["signatures"]) == ["loop", "main"]
    assert facts["missing"] == []
    assert facts["listing"].strip() == models.listing("loop").strip()
    shown = CliRunner().invoke(cli, ["inspect", str(models.path("user")), "--strict"])
    assert "demo.scale" in shown.stdout
    assert shown.exit_code != 0


def test_run_vm_wrong_names_and_arguments_are_errors(models: Compiled) -> None:
    for words in (["loob", "--arg", "ones:float32[4]"], ["--arg", "ones:float32[5]"], ["--input", "x=random"]):
        result = CliRunner().invoke(cli, ["run", str(models.path("loop")), *words])
        assert result.exit_code in (1, 2), result.output
