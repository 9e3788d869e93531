# SPDX-License-Identifier: Apache-2.0
"""Random convolutions and poolings, many in one model: groups, strides, dilations, uneven padding, odd sizes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile
from onnx import helper

import portcall
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
def test_onnx_random_convolutions(seed: int, options: dict[str, Any]) -> None:
    made = Convolutions(seed)
    for _ in range(COUNT):
        made.add()
    model = make(made.nodes, made.inputs, made.outputs, made.constants)
    compiled = check(model, dict(made.feeds()), **options)
    rules = set(compiled.kernels)
    assert {"convolution", "depthwise", f"winograd {options['winograd']}"} <= rules
    assert "default" not in rules


def test_onnx_random_poolings() -> None:
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
def test_onnx_makes_lrn_one_kernel(threads: int) -> None:
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


@pytest.mark.parametrize("processor", ["haswell", "skylake-avx512"])
def test_onnx_writes_long_functions_once_for_a_tile(processor: str) -> None:
    """An exponential for each register of a tile takes LLVM many times as long as the convolution."""
    sizes = {}
    for op in ("Relu", "Sigmoid"):
        convolutions = Convolutions(0)
        for shape, weights, groups in (([1, 40, 14, 28], [80, 40, 3, 3], 1), ([1, 48, 14, 28], [48, 1, 3, 3], 48)):
            attributes = {"pads": [1, 1, 1, 1], "strides": [2, 2], "group": groups}
            convolutions._add_nodes(shape, weights, attributes)
            number = len(convolutions.outputs)
            convolutions.nodes.append(helper.make_node(op, [convolutions.outputs.pop()], [f"a{number}"]))
            convolutions.outputs.append(f"a{number}")
        model = make(convolutions.nodes, convolutions.inputs, convolutions.outputs, convolutions.constants)
        check(model, dict(convolutions.feeds()), winograd="off")
        target = f"x86_64-linux-gnu:{processor}"
        made = portcall.compile.onnx(model, target=target, runtime="graph", check=False, winograd="off")
        sections = ELFFile(io.BytesIO(made.objects)).iter_sections()
        sizes[op] = sum(each["sh_size"] for each in sections if each["sh_flags"] & SH_FLAGS.SHF_EXECINSTR)
    assert sizes["Sigmoid"] < sizes["Relu"] + 6000


@pytest.mark.parametrize("op", ["SiLU", "Clip", "LeakyRelu", "HardSwish", "HardSigmoid"])
def test_onnx_makes_activations_part_of_convolutions_that_are_concatenated(op: str) -> None:
    generator = np.random.default_rng(0)
    constants: dict[str, Any] = {"low": np.float32(0), "high": np.float32(6)}
    nodes = []
    for number, (x, channels) in enumerate((("x", 8), ("y0", 16), ("y1", 16))):
        constants[f"w{number}"] = generator.standard_normal((16, channels, 3, 3), "float32") / 12
        constants[f"b{number}"] = generator.standard_normal(16, "float32")
        nodes.append(helper.make_node("Conv", [x, f"w{number}", f"b{number}"], [f"c{number}"], pads=[1, 1, 1, 1]))
        if op == "Clip":
            nodes.append(helper.make_node("Clip", [f"c{number}", "low", "high"], [f"y{number}"]))
        elif op != "SiLU":
            nodes.append(helper.make_node(op, [f"c{number}"], [f"y{number}"]))
        else:
            nodes.append(helper.make_node("Sigmoid", [f"c{number}"], [f"s{number}"]))
            nodes.append(helper.make_node("Mul", [f"c{number}", f"s{number}"], [f"y{number}"]))
    nodes.append(helper.make_node("Concat", ["y0", "y1", "y2"], ["y"], axis=1))
    model = make(nodes, {"x": [1, 8, 9, 11]}, ["y"], constants)
    made = check(model, {"x": generator.standard_normal((1, 8, 9, 11), "float32")}, winograd="off")
    assert made.kernels == {"convolution": 2, "element-wise": 1, "transpose": 1}  # the concatenation, the layout


def test_volumes_are_pictures() -> None:
    layers: list[tuple[list[int], list[int], dict[str, Any]]] = [
        ([2, 3, 7, 9, 8], [5, 3, 3, 3, 3], {"pads": [1] * 6}),
        ([2, 6, 7, 9, 8], [9, 2, 3, 3, 3], {"pads": [1] * 6, "group": 3, "strides": [2, 1, 1]}),
        ([1, 4, 9, 12, 7], [6, 4, 3, 2, 3],
         {"pads": [0, 1, 2, 3, 1, 0], "strides": [2, 1, 2], "dilations": [2, 3, 1]}),
        ([1, 4, 5, 6, 7], [8, 4, 1, 3, 3], {"strides": [3, 1, 1]}),
        ([1, 4, 5, 6, 7], [8, 4, 2, 1, 1], {"pads": [1, 0, 0, 0, 0, 0]}),
    ]  # fmt: skip
    random = np.random.default_rng(0)
    nodes, inputs, constants = [], {}, {}
    for k, (shape, weights, words) in enumerate(layers):
        inputs[f"x{k}"] = shape
        constants[f"w{k}"] = random.standard_normal(weights).astype("float32")
        constants[f"b{k}"] = random.standard_normal(weights[0]).astype("float32")
        nodes.append(helper.make_node("Conv", [f"x{k}", f"w{k}", f"b{k}"], [f"y{k}"], **words))
    feeds = {name: random.standard_normal(shape).astype("float32") for name, shape in inputs.items()}
    made = check(make(nodes, inputs, [f"y{k}" for k in range(len(layers))], constants), feeds)
    assert made.kernels["convolution"] == len(layers)
    assert "default" not in made.kernels
