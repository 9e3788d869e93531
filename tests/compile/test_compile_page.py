# SPDX-License-Identifier: Apache-2.0
"""docs/compile.md does what it says: its Python blocks run, in order, with small models of the names that it uses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import portcall
from compile.reference import make
from compile.test_relax import perceptron

pytestmark = pytest.mark.peers
PAGE = Path(__file__).parents[2] / "docs" / "compile.md"


def test_compile_page_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vm_pools: None) -> None:
    monkeypatch.chdir(tmp_path)
    relu = helper.make_node("Relu", ["data"], ["y"])
    onnx.save(make([relu], {"data": [1, 4]}, ["y"]), "resnet50.onnx")
    onnx.save(make([relu], {"data": ["n", 4]}, ["y"]), "m.onnx")
    module, params = perceptron()
    x = np.array([[-1, 0, 1, 2]], "float32")
    names: dict[str, Any] = {"portcall": portcall, "x": x, "module": module, "params": params}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for block in blocks:
        exec(compile(block.replace("(1, 3, 224, 224)", "(1, 24)"), PAGE.name, "exec"), names)
    np.testing.assert_array_equal(names["executor"].get_output(0).numpy(), np.maximum(x, 0))
    assert isinstance(names["made"], portcall.compile.CompiledExecutable)  # of m.onnx, whose rows are not fixed
    assert len(blocks) == 3
    names.clear()
