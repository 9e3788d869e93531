# SPDX-License-Identifier: Apache-2.0
"""Squeezenet as the onnx package has it, with weights by NumPy: as a graph, and computed by onnxruntime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from kernels import onnx_layers
from portcall import graph


@dataclass(frozen=True)
class Squeezenet:
    """The model.

    Attributes:
        weights: by name, as ONNX has them.
        builder: a graph of it, with its parameters, not finished: what outputs it has is not said.
        entries: its values by the names that ONNX gives them.
    """

    model: Any
    network: onnx_layers.Network
    weights: dict[str, Any]
    builder: graph.GraphBuilder
    entries: dict[str, graph.Entry]

    @property
    def output(self) -> str:
        return str(self.model.graph.output[0].name)


def build(seed: int = 7) -> Squeezenet:
    model = onnx_layers.light_model("squeezenet")
    network = onnx_layers.read(model)
    weights = random_weights(network, seed)
    b = graph.GraphBuilder()
    entries = {network.input: b.input(network.input, network.input_shape)}
    for name, array in weights.items():
        entries[name] = b.param(name, array.transpose(2, 3, 1, 0).copy() if array.ndim == 4 else array)
    for layer in network.layers:
        sources = [entries[name] for name in layer.inputs]
        if layer.kernel is None:
            entries[layer.output] = b.reshape(sources[0], layer.shape, name=layer.output)
        else:
            entries[layer.output] = b.call(layer.kernel.name, sources, layer.shape, name=layer.output)
    return Squeezenet(model, network, weights, b, entries)


def random_weights(network: onnx_layers.Network, seed: int) -> dict[str, Any]:
    """Return weights under which values neither grow nor vanish from layer to layer."""
    random, weights = np.random.default_rng(seed), {}
    for name, shape in network.weights.items():
        width = np.sqrt(2 / np.prod(shape[1:])) if len(shape) == 4 else 0.1
        weights[name] = random.normal(0, width, shape).astype("float32")
    return weights


def picture() -> Any:
    """Return a landscape, 224 by 224, as models want pictures: a sky, a sun, hills, a fence, grain."""
    y, x = np.mgrid[0:224, 0:224] / 224
    image = np.stack([0.35 + 0.3 * y, 0.55 + 0.25 * y, 0.95 - 0.2 * y])
    image[:, (x - 0.7) ** 2 + (y - 0.25) ** 2 < 0.01] = [[1.0], [0.9], [0.5]]
    for height, colour in ((0.55, (0.3, 0.45, 0.25)), (0.7, (0.2, 0.35, 0.1))):
        hill = y > height + 0.08 * np.sin(9 * x + 20 * height)
        image[:, hill] = np.array(colour)[:, None] * (1.3 - y[hill])
    image[:, (y > 0.8) & (y < 0.95) & (x * 20 % 1 < 0.3)] = [[0.5], [0.35], [0.2]]
    image += np.random.default_rng(3).normal(0, 0.02, image.shape)
    pixels = (image.clip(0, 1) * 255).astype("uint8")
    mean, deviation = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    return ((pixels / 255 - mean[:, None, None]) / deviation[:, None, None])[None].astype("float32")


def by_onnxruntime(made: Squeezenet, x: Any, outputs: list[str]) -> list[Any]:
    """Return what onnxruntime computes for some values of the model."""
    old = made.model.graph
    nodes = [node for node in old.node if node.op_type != "ConstantOfShape"]
    inputs = [i for i in old.input if i.name == made.network.input]
    results = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in outputs]
    stored = [numpy_helper.from_array(array, name) for name, array in made.weights.items()]
    model = helper.make_model(
        helper.make_graph(nodes, old.name, inputs, results, stored),
        opset_imports=list(made.model.opset_import), ir_version=8,
    )  # fmt: skip
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, {made.network.input: x}))
