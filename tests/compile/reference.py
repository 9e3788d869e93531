# SPDX-License-Identifier: Apache-2.0
"""What onnxruntime says of a model, to compare with."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import portcall

SCRIPT = Path(__file__).parents[1] / "scripts" / "onnx_reference.py"
TOLERANCE = 1e-4  # of the largest value


def onnxruntime_outputs(model: Any, feeds: Mapping[str, Any], names: Sequence[str] | None = None) -> list[Any]:
    """Return outputs of a model, or other values of it by name."""
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    if names is not None:
        del changed.graph.output[:]
        changed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / name for name in ("model.onnx", "inputs.npz", "outputs.npz")]
        onnx.save(changed, paths[0])
        np.savez(paths[1], **feeds)
        subprocess.run([sys.executable, SCRIPT, *paths], check=True, timeout=300)
        with np.load(paths[2]) as found:
            return [found[value.name] for value in changed.graph.output]


def largest_error(got: Any, expected: Any) -> float:
    """Return the largest difference, relative to the largest value."""
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    if expected.dtype.kind in "biu":
        return float((got != expected).sum())
    assert np.isfinite(expected).all()
    size = np.abs(expected).max() or 1.0
    return float(np.abs(got - expected).max() / size)


def outputs(compiled: Any, feeds: Mapping[str, Any]) -> list[Any]:
    """Return what a compiled model says."""
    executor = compiled.load(portcall.cpu())
    executor.run(**feeds)
    return [executor.get_output(k).numpy() for k in range(executor.get_num_outputs())]


def check(model: Any, feeds: Mapping[str, Any], **options: Any) -> Any:
    """Compile a model, compare it with onnxruntime, and return what was compiled."""
    made = portcall.compile.onnx(model, **options, runtime="graph")
    for got, expected in zip(outputs(made, feeds), onnxruntime_outputs(model, feeds), strict=True):
        assert largest_error(got, expected) <= TOLERANCE
    return made


def make(
    nodes: Sequence[Any], inputs: Mapping[str, Sequence[Any]], outputs: Sequence[str],
    constants: Mapping[str, Any] | None = None, opset: int = 17, dtype: str = "float32",
) -> Any:  # fmt: skip
    """Return a model of some nodes; extents of inputs may be names."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        list(nodes), "made",
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8
    inferred = onnx.shape_inference.infer_shapes(model)
    for value in inferred.graph.output:  # every result needs a type
        if not value.type.HasField("tensor_type"):
            value.type.tensor_type.elem_type = kind
    return inferred
