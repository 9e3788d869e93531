# SPDX-License-Identifier: Apache-2.0
"""``portcall compile``, and models in the place of bundles in other commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from compile.test_models import branches, random

pytestmark = pytest.mark.peers


def portcall(*words: object, code: int = 0) -> Any:
    """Run the command with ``--json`` and return the object."""
    command = [sys.executable, "-m", "portcall", *map(str, words), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    onnx.save(branches(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_compile_then_run(model: Path, tmp_path: Path) -> None:
    said = portcall("compile", model, "-o", tmp_path / "m.so")
    assert said["inputs"] == ["a", "b"]
    assert (tmp_path / "m.so").stat().st_size == said["nbytes"]
    np.save(tmp_path / "a.npy", random(3, 12))
    done = portcall("run", tmp_path / "m.so", "--input", f"a=@{tmp_path / 'a.npy'}", "--input", "b=zeros")
    assert list(done["outputs"]) == ["positive", "shares", "same"]


def test_run_compiles_a_model_once_and_again_when_it_changes(model: Path, tmp_path: Path) -> None:
    kept = tmp_path / "cache" / "portcall" / "models"
    for command in (
        ("run", "--fill", "random"),
        ("run", "--fill", "random"),
        ("bench", "--fill", "ones"),
        ("inspect",),
    ):
        done = portcall(command[0], model, *command[1:])
        assert command[0] == "inspect" or done["model"] == str(model)
        assert len(list(kept.iterdir())) == 1
    changed = branches()
    changed.producer_name = "another"
    onnx.save(changed, model)
    portcall("run", model, "--fill", "random")
    assert len(list(kept.iterdir())) == 2


def test_run_compiles_a_model_for_the_machine_of_a_server(model: Path, tmp_path: Path) -> None:
    portcall("run", model, "--target", "wasm32", "--fill", "random", code=1)  # not this machine's
    (made,) = (tmp_path / "cache" / "portcall" / "models").iterdir()
    assert (made.suffix, made.read_bytes()[:4]) == (".wasm", b"\0asm")


def test_compile_damaged_model_is_a_user_error(model: Path) -> None:
    model.write_bytes(b"\x08\x07")
    for command in ("compile", "run", "inspect"):
        error = portcall(command, model, code=1)["error"]
        assert error["kind"] == "ModelError"
        assert str(error).count(str(model)) == 1


def test_compile_command_compiles_sources(tmp_path: Path) -> None:
    (tmp_path / "f.c").write_text("int f(void) { return 1; }")
    portcall("compile", tmp_path / "f.c", "-o", tmp_path / "f.so")
    assert (tmp_path / "f.so").is_file()
    (tmp_path / "f.c").write_text("int f(")
    assert portcall("compile", tmp_path / "f.c", "-o", tmp_path / "g.so", code=1)["error"]["kind"] == "CompileError"
    assert not (tmp_path / "g.so").exists()


def test_compile_command_says_what_to_do(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "m.so"
    error = portcall("compile", model, "-o", output, "--shape", "nix=1", code=1)["error"]
    assert (error["kind"], "'nix'" in error["message"]) == ("ModelError", True)
    onnx.save(branches(), model, save_as_external_data=True, location="weights", size_threshold=0)
    (tmp_path / "weights").unlink()
    error = portcall("compile", model, "-o", output, code=1)["error"]
    assert str(tmp_path / "weights") in error["message"]
    assert error["next"]
    assert not output.exists()


def test_compile_help_loads_no_compiler() -> None:
    script = "import sys\nfrom portcall.cli import cli\ntry: cli(['compile', '--help'])\nfinally: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.rpartition("\n\n")[2].split()}
    assert not loaded & {"tvm", "onnx", "numpy"}
