# SPDX-License-Identifier: Apache-2.0
"""The light models that the onnx package ships, with random weights in the place of those that it left out."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from compile.reference import onnxruntime_outputs

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NAMES = ("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
         "zfnet512")  # fmt: skip
MOVES = ("Unsqueeze", "Reshape", "Squeeze")
SPREAD = 2.0  # standard deviation of what a softmax at the end is given: else one result would be 1 and all others 0


def load(name: str, seed: int = 0) -> Any:
    """Return a model; each ConstantOfShape, which stands for weights, is a constant of numbers that fit its reader."""
    model = onnx.load(FOLDER / f"light_{name}.onnx")
    graph = model.graph
    generator = np.random.default_rng(seed)
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    readers = defaultdict(list)
    for node in graph.node:
        for place, value in enumerate(node.input):
            readers[value].append((node, place))
    nodes = []
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in constants:
            shape = tuple(int(extent) for extent in constants[node.input[0]])
            constants[node.output[0]] = weights(readers, node.output[0], shape, generator).astype("float32")
        else:
            nodes.append(node)
    inputs = [value for value in graph.input if value.name not in constants]
    used = {value for node in nodes for value in node.input}
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items() if name in used]
    made = helper.make_model(
        helper.make_graph(nodes, graph.name, inputs, list(graph.output), tensors),
        opset_imports=list(model.opset_import),
    )
    made.ir_version = 8
    return calibrated(made)


def weights(readers: Any, value: str, shape: tuple[int, ...], generator: np.random.Generator) -> Any:
    """Return weights under which values keep their size from layer to layer."""
    node, place = readers[value][0]
    while node.op_type in MOVES:
        node, place = readers[node.output[0]][0]
    if node.op_type == "Conv" and place == 1:
        return generator.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape)
    if node.op_type in ("Gemm", "MatMul") and place == 1:
        return generator.normal(0, np.sqrt(1 / shape[-1]), shape)
    if node.op_type == "Mul" or (node.op_type == "BatchNormalization" and place in (1, 4)):
        return generator.uniform(0.6, 1.4, shape)
    return generator.normal(0, 0.05, shape)


def calibrated(model: Any) -> Any:
    """Scale the weights in front of a softmax at the end."""
    makers = {name: node for node in model.graph.node for name in node.output}
    last = makers[model.graph.output[0].name]
    if last.op_type != "Softmax" or makers[last.input[0]].op_type != "Gemm":
        return model
    (found,) = onnxruntime_outputs(model, inputs(model), [last.input[0]])
    names = list(makers[last.input[0]].input)[1:]
    for tensor in model.graph.initializer:
        if tensor.name in names:
            array = numpy_helper.to_array(tensor) * np.float32(SPREAD / found.std())
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return model


def inputs(model: Any, seed: int = 1) -> dict[str, Any]:
    """Return random numbers for every input."""
    generator = np.random.default_rng(seed)
    found = {}
    for value in model.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        found[value.name] = generator.normal(0, 1, shape).astype("float32")
    return found
