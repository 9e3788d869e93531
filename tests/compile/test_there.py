# SPDX-License-Identifier: Apache-2.0
"""Compiled models and sources on a server that runs as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import portcall
from compile.reference import TOLERANCE, check, largest_error, make, onnxruntime_outputs
from compile.test_models import branches, random
from portcall import graph, rpc
from rpc.serving import Serving, serving

pytestmark = pytest.mark.peers


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving() as running:
        yield running


def command(*words: object, code: int = 0) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "portcall", *map(str, words), "--json"], capture_output=True, check=False
    )
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_remote_bundle_computes_the_same_on_a_server(server: Serving, tmp_path: Path) -> None:
    model = branches()
    feeds = {"a": random(3, 12), "b": random(3, 12, seed=1)}
    place = portcall.compile.onnx(model, runtime="graph").save(tmp_path / "m.so")
    expected = onnxruntime_outputs(model, feeds)
    with rpc.connect(server.address, call_timeout=60) as session:
        session.upload(place)
        executor = graph.GraphModule(session.load_module("m.so")["default"](session.cpu()))
        executor.run(**feeds)
        for number, right in enumerate(expected):
            assert largest_error(executor.get_output(number).numpy(), right) <= TOLERANCE
        assert portcall.compile.verify(executor, model).ok


def test_run_remote_runs_a_bundle(server: Serving, tmp_path: Path) -> None:
    portcall.compile.onnx(branches(), runtime="graph").save(tmp_path / "m.so")
    for name, seed in (("a", 0), ("b", 1)):
        np.save(tmp_path / f"{name}.npy", random(3, 12, seed=seed))
    words = ["run", tmp_path / "m.so", *(f"--input={name}=@{tmp_path / name}.npy" for name in "ab")]
    here, there = command(*words), command(*words, "--rpc", server.address)
    assert here["outputs"] == there["outputs"]
    assert list(there["outputs"]) == ["positive", "shares", "same"]


def test_sources_are_compiled_for_a_server(server: Serving, tmp_path: Path) -> None:
    source = tmp_path / "kernels.cc"
    source.write_text(
        "#include <portcall/portcall.h>\n"
        "int64_t Twice(int64_t x) { return 2 * x; }\n"
        "PORTCALL_EXPORT_TYPED(twice, Twice)\n"
    )
    made = command("compile", source, "-o", tmp_path / "kernels.so", "--for", server.address)
    assert made["target"].startswith("x86_64-linux") or made["target"].startswith("aarch64-linux")
    with rpc.connect(server.address, call_timeout=60) as session:
        session.upload(tmp_path / "kernels.so")
        assert session.load_module("kernels.so")["twice"](21) == 42
    error = command("compile", source, "--for", "127.0.0.1:1", code=3)["error"]
    assert error["kind"] == "ConnectError"
    assert command("compile", source, "--for", "sparc", code=1)["error"]["kind"] == "ValueError"


def test_types_other_than_float32() -> None:
    """Halves, truth values and integers, as inputs and as results."""
    nodes = [
        helper.make_node("Cast", ["h"], ["f"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Greater", ["f", "limit"], ["large"]),
        helper.make_node("And", ["large", "t"], ["chosen"]),
        helper.make_node("Where", ["chosen", "i", "j"], ["picked"]),
        helper.make_node("Mul", ["h", "h"], ["square"]),
        helper.make_node("Add", ["i", "j"], ["sum"]),
    ]
    feeds = {
        "h": random(5, 7).astype("float16"), "t": random(5, 7, seed=1) > 0,
        "i": np.arange(35, dtype="int64").reshape(5, 7), "j": np.full((5, 7), -3, "int64"),
    }  # fmt: skip
    model = make(nodes, {}, ["chosen", "picked", "square", "sum"], {"limit": np.float32(0.2)})
    model.graph.input.extend(
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    )
    model = onnx.shape_inference.infer_shapes(model)
    kinds = (onnx.TensorProto.BOOL, onnx.TensorProto.INT64, onnx.TensorProto.FLOAT16, onnx.TensorProto.INT64)
    for value, kind in zip(model.graph.output, kinds, strict=True):
        value.type.tensor_type.elem_type = kind
    for got, right in zip(_run(model, feeds), onnxruntime_outputs(model, feeds), strict=True):
        assert got.dtype == right.dtype
        np.testing.assert_allclose(got.astype("float64"), right.astype("float64"), rtol=1e-3)


def _run(model: Any, feeds: dict[str, Any]) -> list[Any]:
    executor = portcall.compile.onnx(model, runtime="graph").load()
    executor.run(**feeds)
    return [executor.get_output(number).numpy() for number in range(executor.get_num_outputs())]


def test_shapes_from_the_command_line(tmp_path: Path) -> None:
    model = make([helper.make_node("Relu", ["x"], ["y"])], {"x": ["batch", 3]}, ["y"])
    onnx.save(model, tmp_path / "m.onnx")
    made = command("compile", tmp_path / "m.onnx", "-o", tmp_path / "m.so", "--shape", "x=2x3")
    assert made["inputs"] == ["x"]
    done = command("run", tmp_path / "m.so", "--input", "x=ones")
    assert done["outputs"]["y"]["shape"] == [2, 3]
    check(model, {"x": random(2, 3)}, shapes={"x": (2, 3)})
