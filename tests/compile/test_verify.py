# SPDX-License-Identifier: Apache-2.0
"""What is compiled is compared with onnxruntime: when it is made, and by ``portcall verify``."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import portcall
from compile import encoder
from compile.reference import check
from compile.test_models import branches, random
from portcall.compile import _math
from portcall.errors import ModelError

pytestmark = pytest.mark.peers


def spoiled(made: Any, number: int) -> Any:
    """Return a compiled model with other weights in one of its kernels, counted among those of the weights."""
    params = dict(made.params)
    name = [name for name, array in params.items() if array.size > 1000][number]
    params[name] = params[name] * np.float32(1.1)
    return dataclasses.replace(made, params=params)


def test_verify_names_the_node_where_a_difference_begins() -> None:
    model = encoder.build(16, 32, 2, 1)
    made = portcall.compile.from_onnx(model)
    found = portcall.compile.verify(made.load(), model)
    assert found.ok
    assert found.worst < 1e-5
    assert found.first == ""
    wrong = spoiled(made, -1)
    found = portcall.compile.verify(wrong.load(), model)
    assert not found.ok
    last = [node for node in made.graph.nodes if node.function and "matmul" in node.function][-1]
    assert found.first == last.name


def test_verify_command_names_the_first_difference(tmp_path: Path) -> None:
    model = branches()
    onnx.save(model, tmp_path / "m.onnx")
    made = portcall.compile.from_onnx(model)
    made.save(tmp_path / "right.so")
    params = {name: array * np.float32(1.5) for name, array in made.params.items()}
    dataclasses.replace(made, params=params).save(tmp_path / "wrong.so")
    for name, code in (("right.so", 0), ("wrong.so", 1)):
        words = [
            sys.executable,
            "-m",
            "portcall",
            "verify",
            tmp_path / name,
            "--against",
            tmp_path / "m.onnx",
            "--json",
        ]
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
        assert done.returncode == code
        said = json.loads(done.stdout)
        assert [output["ok"] for output in said["outputs"]] == [code == 0, code == 0, True]
        assert bool(said["first"]) == (code == 1)


def test_verify_refuses_another_model() -> None:
    executor = portcall.compile.from_onnx(branches(), check=False).load()
    for change in ("input", "output"):
        model = branches()
        del getattr(model.graph, change)[1]
        if change == "input":
            model.graph.node[0].input[1] = "a"
        with pytest.raises(ModelError, match="another model"):
            portcall.compile.verify(executor, model)


def test_verify_refuses_wrong_inputs() -> None:
    model = branches()
    executor = portcall.compile.from_onnx(model, check=False).load()
    for name, shape in (("nix", (3, 12)), ("a", (3, 13))):
        with pytest.raises(ModelError, match=f"'{name}'"):
            portcall.compile.verify(executor, model, {name: random(*shape)})


def test_from_onnx_refuses_a_wrong_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    model = branches()
    portcall.compile.from_onnx(model)
    right = _math.exp
    monkeypatch.setitem(_math._FLOAT32, "exp", lambda x: right(x) * _math._c(1.5) + _math._c(1.0))
    with pytest.raises(ModelError, match="shares"):
        portcall.compile.from_onnx(model)
    portcall.compile.from_onnx(model, check=False)


def test_from_onnx_transformer_encoder() -> None:
    model = encoder.build()
    made = check(model, {"x": random(1, 32, 64)})
    assert made.kernels.get("default", 0) == 0
    check(model, {"x": random(1, 32, 64)}, threads=2)
