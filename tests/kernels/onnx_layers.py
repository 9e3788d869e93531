# SPDX-License-Identifier: Apache-2.0
"""The layers of an image classifier in ONNX as calls of kernels: what a graph is built of, what is compiled for it.

Rules: values of four dimensions are kept with the channels last, and weights of convolutions accordingly, so that
kernels find what they do at once side by side; a dropout is nothing; layers of the same kind and shapes are one kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import numpy_helper

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Kernel:
    """What is compiled once.

    Attributes:
        kind: to_channels_last, conv, relu, max_pool, average, concat or softmax.
        inputs, output: shapes. The inputs of ``conv`` are data, weights and bias.
        window, stride, padding: in pixels, both ways.
    """

    kind: str
    inputs: tuple[Shape, ...]
    output: Shape
    window: int = 1
    stride: int = 1
    padding: int = 0

    @property
    def name(self) -> str:
        shapes = "_".join("x".join(map(str, shape)) for shape in (*self.inputs[:2], self.output))
        return f"{self.kind}_{shapes}" + (f"_s{self.stride}" if self.stride > 1 else "")


@dataclass(frozen=True)
class Layer:
    """A node of the model: ``kernel`` is None for one that only gives its input another shape."""

    output: str
    inputs: tuple[str, ...]
    shape: Shape
    kernel: Kernel | None = None


@dataclass(frozen=True)
class Network:
    """A model: its input, its layers in the order of execution, and the shapes of its weights, as ONNX has them."""

    input: str
    input_shape: Shape
    weights: dict[str, Shape]
    layers: tuple[Layer, ...]


def light_model(name: str) -> Any:
    """Return one of the models without weights that the onnx package has for its own tests."""
    return onnx.load(Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / f"light_{name}.onnx")


def read(model: Any) -> Network:
    """Return the layers of a model.

    Raises:
        ValueError: it has an operator, or one used in a way, that is not known here.
    """
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    (data,) = [i for i in model.graph.input if i.name not in stored]
    shape = tuple(d.dim_value for d in data.type.tensor_type.shape.dim)
    reader = _Reader(data.name, shape)
    for node in model.graph.node:
        if node.op_type == "ConstantOfShape":
            reader.weights[node.output[0]] = tuple(map(int, stored[node.input[0]]))
        else:
            for name in node.input:
                if name in stored:
                    reader.weights.setdefault(name, stored[name].shape)
            reader.add(node)
    return Network(data.name, shape, reader.weights, tuple(reader.layers))


class _Reader:
    def __init__(self, data: str, shape: Shape) -> None:
        self.weights: dict[str, Shape] = {}
        self.layers: list[Layer] = []
        self._names = {data: "channels_last"}  # of a value of the model: what it is called here
        self._shapes: dict[str, Shape] = {}
        n, c, h, w = shape
        self._emit("channels_last", [data], Kernel("to_channels_last", (shape,), (n, h, w, c)))

    def add(self, node: Any) -> None:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        source = self._names[node.input[0]]
        shape, output = self._shapes[source], node.output[0]
        self._names[output] = output
        if node.op_type == "Dropout":
            self._names[output] = source
        elif node.op_type == "Conv":
            o, _, *window = self.weights[node.input[1]]
            size = _window(attributes, window)
            inputs = (shape, (*window, shape[3], o), (o,))
            kernel = Kernel("conv", inputs, _slid(shape, o, *size), *size)
            self._emit(output, [source, *node.input[1:]], kernel)
        elif node.op_type == "MaxPool":
            size = _window(attributes, attributes["kernel_shape"])
            self._emit(output, [source], Kernel("max_pool", (shape,), _slid(shape, shape[3], *size), *size))
        elif node.op_type == "Relu":
            self._emit(output, [source], Kernel("relu", (shape,), shape))
        elif node.op_type == "Concat" and attributes["axis"] == 1:
            sources = [self._names[name] for name in node.input]
            shapes = tuple(self._shapes[name] for name in sources)
            self._emit(output, sources, Kernel("concat", shapes, (*shape[:3], sum(each[3] for each in shapes))))
        elif node.op_type == "GlobalAveragePool":
            self._emit(output, [source], Kernel("average", (shape,), (shape[0], 1, 1, shape[3])))
        elif node.op_type == "Softmax" and shape[1:3] == (1, 1):
            rows = (shape[0], shape[3])
            self._emit(f"{output}_rows", [source], None, rows)
            self._emit(f"{output}_flat", [f"{output}_rows"], Kernel("softmax", (rows,), rows))
            self._emit(output, [f"{output}_flat"], None, (*rows, 1, 1))
        else:
            raise ValueError(f"no layer is known for {node.op_type} {attributes} of {shape}")

    def _emit(self, output: str, inputs: list[str], kernel: Kernel | None, shape: Shape = ()) -> None:
        self._shapes[output] = kernel.output if kernel else shape
        self.layers.append(Layer(output, tuple(inputs), self._shapes[output], kernel))


def _window(attributes: dict[str, Any], window: Any) -> tuple[int, int, int]:
    """Return extent, stride and padding where they are the same both ways."""
    different = {tuple(window), tuple(attributes.get("strides", (1, 1))), tuple(attributes.get("pads", (0,)))}
    if any(len(set(each)) != 1 for each in different) or attributes.get("group", 1) != 1:
        raise ValueError(f"a window that is not square, or in groups: {attributes}")
    return window[0], attributes.get("strides", (1,))[0], attributes.get("pads", (0,))[0]


def _slid(shape: Shape, channels: int, window: int, stride: int, padding: int) -> Shape:
    n, h, w, _ = shape
    rows, columns = ((extent + 2 * padding - window) // stride + 1 for extent in (h, w))
    return (n, rows, columns, channels)
