# SPDX-License-Identifier: Apache-2.0
"""An encoder of a transformer, made with onnx.helper: attention, normalization, feed-forward, as in BERT."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from compile.reference import make


def build(length: int = 32, width: int = 64, heads: int = 4, layers: int = 2, seed: int = 0) -> Any:
    """Return a model of the input x [1, length, width] and the output y of the same shape."""
    made = _Encoder(length, width, heads, seed)
    x = "x"
    for layer in range(layers):
        x = made.layer(x, layer)
    made.add("Identity", [x], output="y")
    return make(made.nodes, {"x": [1, length, width]}, ["y"], made.constants)


class _Encoder:
    def __init__(self, length: int, width: int, heads: int, seed: int) -> None:
        self.length, self.width, self.heads = length, width, heads
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.generator = np.random.default_rng(seed)

    def add(self, op: str, inputs: list[str], output: str = "", **attributes: Any) -> str:
        name = output or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def dense(self, x: str, inputs: int, outputs: int) -> str:
        weights = self.generator.standard_normal((inputs, outputs)) / np.sqrt(inputs)
        product = self.add("MatMul", [x, self.constant(weights.astype("float32"))])
        return self.add("Add", [product, self.constant(self.generator.standard_normal(outputs).astype("float32") / 10)])

    def split(self, x: str, order: list[int]) -> str:
        shape = self.constant(np.array([1, self.length, self.heads, self.width // self.heads], "int64"))
        return self.add("Transpose", [self.add("Reshape", [x, shape])], perm=order)

    def normalize(self, x: str) -> str:
        scale = self.constant(self.generator.uniform(0.5, 1.5, self.width).astype("float32"))
        shift = self.constant(self.generator.standard_normal(self.width).astype("float32") / 10)
        return self.add("LayerNormalization", [x, scale, shift], axis=-1)

    def layer(self, x: str, number: int) -> str:
        q, k, v = (self.dense(x, self.width, self.width) for _ in range(3))
        scores = self.add("MatMul", [self.split(q, [0, 2, 1, 3]), self.split(k, [0, 2, 3, 1])])
        size = self.constant(np.float32(np.sqrt(self.width // self.heads)))
        shares = self.add("Softmax", [self.add("Div", [scores, size])], axis=-1)
        mixed = self.add("Transpose", [self.add("MatMul", [shares, self.split(v, [0, 2, 1, 3])])], perm=[0, 2, 1, 3])
        flat = self.add("Reshape", [mixed, self.constant(np.array([1, self.length, self.width], "int64"))])
        x = self.normalize(self.add("Add", [x, self.dense(flat, self.width, self.width)]))
        hidden = self.dense(x, self.width, 4 * self.width)
        half = self.add("Mul", [hidden, self.constant(np.float32(0.5))])
        bell = self.add("Erf", [self.add("Mul", [hidden, self.constant(np.float32(1 / np.sqrt(2)))])])
        active = self.add("Mul", [half, self.add("Add", [bell, self.constant(np.float32(1.0))])])
        return self.normalize(self.add("Add", [x, self.dense(active, 4 * self.width, self.width)]))
