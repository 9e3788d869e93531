# SPDX-License-Identifier: Apache-2.0
"""Random convolutions and poolings, many in one model: groups, strides, dilations, uneven padding, odd sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import helper

from compile.reference import check, make

pytestmark = pytest.mark.peers
COUNT = 20
EPILOGUES = ("", "Relu", "Sigmoid")


class Convolutions:
    """A model of convolutions, each with an input and an output of its own."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.inputs: dict[str, list[int]] = {}
        self.constants: dict[str, Any] = {}
        self.outputs: list[str] = []

    def one_of(self, *values: int) -> int:
        return int(self.generator.choice(values))

    def add(self) -> None:
        groups = self.one_of(1, 1, 2, 4)
        channels, results = self.one_of(1, 3, 5, 8, 16, 34, 48) * groups, self.one_of(1, 3, 16, 17, 40, 64) * groups
        if self.one_of(0, 0, 1):
            groups = channels = results = self.one_of(8, 16, 20, 35, 136)
        kernel = [self.one_of(1, 1, 3, 3, 5, 7), self.one_of(1, 3, 3, 5)]
        strides, dilations = [1, 1], [1, 1]
        pads = [kernel[0] // 2, kernel[1] // 2, kernel[0] // 2, kernel[1] // 2]
        if self.one_of(0, 1):
            strides, dilations = [self.one_of(1, 2, 3), self.one_of(1, 2)], [self.one_of(1, 2), self.one_of(1, 1, 2)]
            pads = [self.one_of(0, 1, 2, 3) for _ in range(4)]
        elif self.one_of(0, 1):  # one for Winograd
            kernel, pads, groups = [3, 3], [1, 1, 1, 1], 1
            channels, results = self.one_of(32, 48), self.one_of(32, 80)
        shape = [self.one_of(1, 1, 2), channels, self.one_of(13, 14, 23), self.one_of(13, 19, 28)]
        attributes = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads, "group": groups}
        weights = [results, channels // groups, *kernel]
        self._add_nodes(shape, weights, attributes)

    def _add_nodes(self, shape: list[int], weights: list[int], attributes: dict[str, Any]) -> None:
        number = len(self.outputs)
        self.inputs[f"x{number}"] = shape
        array = self.generator.standard_normal(weights) / np.sqrt(np.prod(weights[1:]))
        self.constants[f"w{number}"] = array.astype("float32")
        self.constants[f"b{number}"] = self.generator.standard_normal(weights[0]).astype("float32")
        names = [f"{letter}{number}" for letter in "xwb"]
        self.nodes.append(helper.make_node("Conv", names, [f"c{number}"], **attributes))
        epilogue = EPILOGUES[number % len(EPILOGUES)]
        if epilogue:
            self.nodes.append(helper.make_node(epilogue, [f"c{number}"], [f"y{number}"]))
        self.outputs.append(f"y{number}" if epilogue else f"c{number}")

    def feeds(self) -> Iterator[tuple[str, Any]]:
        for name, shape in self.inputs.items():
            yield name, self.generator.standard_normal(shape).astype("float32")


@pytest.mark.parametrize(("seed", "options"), [(0, {"winograd": "f4"}), (1, {"winograd": "f2", "threads": 2})])
def test_from_onnx_random_convolutions(seed: int, options: dict[str, Any]) -> None:
    made = Convolutions(seed)
    for _ in range(COUNT):
        made.add()
    model = make(made.nodes, made.inputs, made.outputs, made.constants)
    compiled = check(model, dict(made.feeds()), **options)
    rules = set(compiled.kernels)
    assert {"convolution", "depthwise", f"winograd {options['winograd']}"} <= rules
    assert "default" not in rules


def test_from_onnx_random_poolings() -> None:
    generator = np.random.default_rng(2)
    nodes, inputs, outputs = [], {}, []
    for number in range(10):
        kernel, stride = (int(generator.choice(values)) for values in ([2, 3, 5], [1, 2, 3]))
        pad = int(generator.integers(0, kernel // 2 + 1))
        op = ("MaxPool", "AveragePool")[number % 2]
        shape = [1, int(generator.choice([3, 16, 20, 33])), 13, int(generator.choice([14, 17]))]
        pads = {"kernel_shape": [kernel, kernel], "strides": [stride, stride], "pads": [pad, pad, pad, pad]}
        inputs[f"x{number}"] = shape
        weights = f"w{number}"
        nodes.append(helper.make_node("Conv", [f"x{number}", weights], [f"c{number}"], kernel_shape=[1, 1]))
        nodes.append(helper.make_node(op, [f"c{number}"], [f"y{number}"], **pads))
        outputs.append(f"y{number}")
    constants = {
        f"w{k}": generator.standard_normal((shape[1], shape[1], 1, 1)).astype("float32")
        for k, shape in enumerate(inputs.values())
    }
    feeds = {name: generator.standard_normal(shape).astype("float32") for name, shape in inputs.items()}
    check(make(nodes, inputs, outputs, constants), feeds)


@pytest.mark.parametrize("threads", [1, 2])
def test_from_onnx_makes_lrn_one_kernel(threads: int) -> None:
    generator = np.random.default_rng(3)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("LRN", ["c"], ["y"], size=5, alpha=0.1, beta=0.75, bias=1.5),
    ]
    weights = generator.standard_normal((40, 8, 1, 1)).astype("float32")
    feeds = {"x": generator.standard_normal((1, 8, 7, 9)).astype("float32")}
    made = check(make(nodes, {"x": [1, 8, 7, 9]}, ["y"], {"w": weights}), feeds, threads=threads)
    assert made.kernels["local sums"] == 1
    assert "default" not in made.kernels
