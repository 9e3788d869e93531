# SPDX-License-Identifier: Apache-2.0
"""Modules of Relax, compiled, say what NumPy and onnxruntime say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import portcall
from compile.reference import TOLERANCE, largest_error, make, onnxruntime_outputs
from compile.test_models import random
from portcall.compile import CompiledExecutable
from portcall.errors import ModelError
from portcall.inspect import inspect_library

pytestmark = pytest.mark.peers


def perceptron() -> tuple[Any, dict[str, Any]]:
    """Return a module whose batch is a symbol, and its parameters by the frontend's names."""
    from tvm.relax.frontend import nn

    class Perceptron(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(24, 40), nn.Linear(40, 10)

        def forward(self, x: Any) -> Any:
            return nn.op.softmax(self.second(nn.op.relu(self.first(x))))

    spec = {"forward": {"x": nn.spec.Tensor(("n", 24), "float32")}}
    module, params = Perceptron().export_tvm(spec=spec)
    values = {name: random(*map(int, value.shape), seed=k) / 5 for k, (name, value) in enumerate(params)}
    return module, values


def test_relax_perceptron_of_the_frontend() -> None:
    module, params = perceptron()
    made = portcall.compile.relax(module, params=params, shapes={"x": (3, 24)}, runtime="graph")
    x = random(3, 24)
    executor = made.load()
    executor.run(x=x)
    hidden = np.maximum(x @ params["first.weight"].T + params["first.bias"], 0)
    scores = hidden @ params["second.weight"].T + params["second.bias"]
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    assert largest_error(executor.get_output(0).numpy(), powers / powers.sum(axis=-1, keepdims=True)) <= TOLERANCE
    assert list(executor.get_output_info()[0]) == ["output"]
    assert made.kernels.get("default", 0) == 0
    assert made.graph.metadata["model"] == "forward"


def test_relax_convolutional_network_of_the_block_builder() -> None:
    from tvm import relax

    weights, bias = random(32, 3, 3, 3) / 5, random(32, seed=1)
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((1, 3, 20, 22), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.conv2d(x, relax.const(weights), padding=1, strides=2))
            y = builder.emit(relax.op.nn.relu(relax.op.add(y, relax.const(bias.reshape(1, -1, 1, 1)))))
            pooled = builder.emit(relax.op.mean(y, [2, 3]))
            results = builder.emit_output(relax.Tuple([y, pooled]))
        builder.emit_func_output(results)
    module = builder.get()
    text = module.script()
    made = portcall.compile.relax(module, threads=2, winograd="off", runtime="graph")
    assert module.script() == text
    executor = made.load()
    feeds = {"x": random(1, 3, 20, 22)}
    executor.run(**feeds)
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["y"]),
        helper.make_node("ReduceMean", ["y"], ["m"], axes=[2, 3], keepdims=0),
    ]
    expected = onnxruntime_outputs(make(nodes, {"x": [1, 3, 20, 22]}, ["y", "m"], {"w": weights, "b": bias}), feeds)
    for number, right in enumerate(expected):
        assert largest_error(executor.get_output(number).numpy(), right) <= TOLERANCE
    assert list(executor.get_output_info()[0]) == ["output_0", "output_1"]
    assert "convolution" in made.kernels


def test_relax_names_what_is_missing_or_wrong() -> None:
    module, params = perceptron()
    with pytest.raises(ModelError, match="'x'") as caught:
        portcall.compile.relax(module, params=params, runtime="graph")
    assert len(caught.value.problems) == 1
    for options in ({"params": {"third": params["first.bias"]}}, {"shapes": {"q": (1, 2)}}, {"function": "backward"}):
        with pytest.raises(ValueError, match="there is"):
            portcall.compile.relax(module, **options, runtime="graph")
    for shape in ((3, 25), (3,)):
        with pytest.raises(ModelError, match="shape"):
            portcall.compile.relax(module, params=params, shapes={"x": shape}, runtime="graph")
    with pytest.raises(TypeError, match="IRModule"):
        portcall.compile.relax(b"", "native", runtime="graph")


@pytest.mark.usefixtures("vm_pools")
def test_relax_reads_weights_that_are_parameters_as_they_lie(tmp_path: Path) -> None:
    module, params = perceptron()
    path = portcall.compile.relax(module, runtime="vm").save(tmp_path / "perceptron.so")
    info = portcall.vm.read_embedded(path)
    assert info is not None
    assert not [name for name in info.calls if "transpose" in name]
    x, (first, bias, second, last) = random(3, 24), params.values()
    found = portcall.vm.create(portcall.load_module(path))["forward"](x, first, bias, second, last).numpy()
    powers = np.exp(np.maximum(x @ first.T + bias, 0) @ second.T + last)
    assert largest_error(found, powers / powers.sum(axis=-1, keepdims=True)) <= TOLERANCE


def test_relax_for_webgpu_is_one_library_with_kernels_for_it(tmp_path: Path) -> None:
    module, _ = perceptron()
    made = portcall.compile.relax(module, "webgpu", runtime="auto")
    assert isinstance(made, CompiledExecutable)
    assert not made.runs_here
    found = inspect_library(made.save(tmp_path / "model.wasm"))
    assert {"relax.VMExecutable", "webgpu"} <= {each.kind for each in found.modules}
    with pytest.raises(ModelError):
        portcall.compile.relax(module, "webgpu", runtime="graph")
    with pytest.raises(ValueError, match="relax"):
        portcall.compile.onnx(tmp_path / "model.onnx", "webgpu")
