# SPDX-License-Identifier: Apache-2.0
"""Models that cannot be compiled are refused with what is wrong, and nothing of them is left."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import portcall
from compile.reference import make
from compile.test_models import branches
from portcall.errors import ModelError

pytestmark = pytest.mark.peers


def refused(model: Any, **options: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        portcall.compile.from_onnx(model, **options)
    return caught.value


def test_from_onnx_lists_unsupported_operators_with_their_nodes() -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["n"], name="first"),
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("Unknown", ["y"], ["z"], name="second", domain="org.example"),
    ]
    model = make([nodes[0], nodes[1]], {"x": [2, 3]}, ["y"])
    model.graph.node.append(nodes[2])
    problems = refused(model).problems
    assert [("first" in text, "NonZero" in text) for text in problems[:1]] == [(True, True)]
    assert ["second" in text and "org.example" in text for text in problems[1:]] == [True]


@pytest.mark.parametrize("length", [0, 10, 500])
def test_from_onnx_refuses_a_truncated_file(length: int, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(branches().SerializeToString()[:length])
    said = str(refused(path))
    assert said.startswith(f"'{path}'")
    assert said.endswith("is empty") == (length == 0)


def test_from_onnx_names_a_value_without_producer() -> None:
    model = make([helper.make_node("Add", ["x", "nix"], ["y"], name="rr")], {"x": [2]}, ["y"])
    (problem,) = refused(model).problems
    assert "'rr' reads 'nix'" in problem


def test_from_onnx_names_missing_external_data(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(branches(), path, save_as_external_data=True, location="weights", size_threshold=0)
    portcall.compile.from_onnx(path)
    (tmp_path / "weights").unlink()
    refused(path)


def test_from_onnx_refuses_an_unknown_opset() -> None:
    model = branches()
    model.opset_import[0].version = 999
    assert "999" in str(refused(model))


@pytest.mark.parametrize(
    "shapes", [{"q": (1,)}, {"a": (3, 13)}, {"a": (3, 12, 1)}, {"a": (-1, 12)}], ids=["name", "extent", "rank", "sign"]
)
def test_from_onnx_refuses_wrong_shapes(shapes: dict[str, tuple[int, ...]]) -> None:
    refused(branches(), shapes=shapes)


def test_from_onnx_refuses_contradicting_shapes() -> None:
    model = make([helper.make_node("Add", ["a", "b"], ["c"])], {"a": [3], "b": [3]}, ["c"])
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 4
    refused(model)


@pytest.mark.parametrize("target", ["sparc-linux-gnu", "native:nonesuch", ""])
def test_from_onnx_refuses_unknown_targets(target: str) -> None:
    with pytest.raises(ValueError, match="target"):
        portcall.compile.from_onnx(branches(), target)


def test_bundle_save_full_disk_leaves_no_file(tmp_path: Path) -> None:
    made = portcall.compile.from_onnx(make(
        [helper.make_node("Add", ["x", "w"], ["y"])], {"x": [1 << 20]}, ["y"], {"w": np.ones(1 << 20, "float32")}
    ))  # fmt: skip
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            made.save(tmp_path / "m.so")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(tmp_path.iterdir()) == []


def test_bundle_save_killed_leaves_no_file(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys, portcall, portcall.graph._bundle as bundle\n"
        "bundle._write_param = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "portcall.compile.from_onnx(sys.argv[1]).save(sys.argv[2])\n"
    )
    onnx.save(branches(), tmp_path / "m.onnx")
    (tmp_path / "out").mkdir()
    command = [sys.executable, "-c", script, str(tmp_path / "m.onnx"), str(tmp_path / "out" / "m.so")]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert list((tmp_path / "out").iterdir()) == []
