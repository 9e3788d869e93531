# SPDX-License-Identifier: Apache-2.0
"""``portcall run``, ``bench`` and ``inspect`` of libraries with an executable."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from portcall.cli import cli
from rpc.serving import serving
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
    assert shown.stdout.startswith("executable")  # with its functions and their types, before the library
    assert shown.exit_code != 0


def test_run_vm_wrong_names_and_arguments_are_errors(models: Compiled) -> None:
    for words in (["loob", "--arg", "ones:float32[4]"], ["--arg", "ones:float32[5]"], ["--input", "y=random"]):
        result = CliRunner().invoke(cli, ["run", str(models.path("loop")), *words])
        assert result.exit_code in (1, 2), result.output


def test_run_vm_takes_arguments_by_name_and_fills_them(models: Compiled, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((4, 3), "float32"))
    x = f"x=@{tmp_path}/x.npy"
    facts = run("run", models.path("shapes"), "--input", x, "--input", "s=[2]", "--fill", "zeros")
    assert facts["arguments"] == [x[2:], "zeros", "[2]", "zeros"]
    assert facts["outputs"]["result.5"]["shape"] == [2, 2]  # type: ignore[index]
    facts = run("run", models.path("tuples"), "--arg", "ones", "--input", "t.1.1=range", "--fill", "ones")
    assert facts["outputs"]["result.1.1"]["max"] == 1  # type: ignore[index]
    assert facts["arguments"] == ["(ones, (ones, range))"]
    facts = run("run", models.path("loop"), "loop", "--input", "x=ones", "--arg", 3)
    assert facts["outputs"]["result"]["min"] == 4  # type: ignore[index]
    assert run("bench", models.path("branch"), "--fill", "random", "--number", 1, "--repeat", 1)["function"] == "main"


@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("encoder", ["--fill", "random"], "the size of batch, length in ids: R.Tensor"),
        ("encoder", [], "nothing is given for ids: R.Tensor"),
        ("encoder", ["--input", "ids=random:int64[1,7]"], "got int64 elements"),
        ("encoder", ["--input", "ids=random:int32[7]"], "got shape [7]"),
        ("encoder", ["--input", "isd=random"], "did you mean ids?"),
        ("encoder", ["--input", "random"], "does not name its input"),
        ("shapes", ["--input", "x=ones:float32[4,3]", "--input", "y=ones:float32[4]", "--fill", "ones"], "with m = 3"),
        ("shapes", ["--input", "s=two", "--fill", "ones"], "cannot read the shape 'two'"),
        ("loop", ["--arg", "ones", "--arg", "ones"], "takes 1 argument, got 2"),
        ("loop", ["--arg", "ones", "--input", "x=ones"], "given twice"),
        ("loop", ["--arg", "ones", "--out", "float32[4]"], "--out is not for models of the Relax VM"),
    ],
)
def test_run_vm_asks_for_what_it_does_not_know(name: str, words: list[str], said: str, models: Compiled) -> None:
    result = CliRunner().invoke(cli, ["run", str(models.path(name)), *words])
    assert result.exit_code in (1, 2)
    assert said in result.output


def test_run_vm_on_a_server(models: Compiled) -> None:
    with serving("--key", "k") as running:
        remote = ("--rpc", f"127.0.0.1:{running.port}", "--key", "k")
        facts = run("run", models.path("loop"), "--input", "x=ones", *remote)
        assert facts["outputs"]["result"]["max"] == 8.5  # type: ignore[index]
        facts = run("bench", models.path("loop"), "--fill", "ones", "--number", 2, "--repeat", 2, "--profile", *remote)
        assert "vm.builtin.alloc_tensor" in json.dumps(facts["profile"])
