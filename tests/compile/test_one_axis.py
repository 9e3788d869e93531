# SPDX-License-Identifier: Apache-2.0
"""Convolutions over one axis, wide windows, and what stands between them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from compile.reference import check, make
from compile.test_models import random

pytestmark = pytest.mark.peers


def conv(x: str, y: str, shape: tuple[int, ...], *, op: str = "Conv", constants: dict[str, Any], **words: Any) -> Any:
    """Return a node with weights of a shape, and a bias."""
    constants[f"{y}_w"] = random(*shape) / np.float32(np.sqrt(np.prod(shape[1:])))
    constants[f"{y}_b"] = random(shape[0])
    return helper.make_node(op, [x, f"{y}_w", f"{y}_b"], [y], **words)


@pytest.mark.parametrize("threads", [1, 2])
def test_convolutions_of_one_axis(threads: int) -> None:
    constants: dict[str, Any] = {}
    # channels, width, results, and the attributes: ones and odd sizes, and windows that are wider than the picture
    cases: list[tuple[int, int, int, dict[str, Any]]] = [
        (1, 1, 1, {}),
        (1, 700, 34, {"kernel_shape": [160], "strides": [40]}),
        (1, 333, 3, {"kernel_shape": [31], "pads": [15, 15], "strides": [3]}),
        (5, 37, 17, {"kernel_shape": [13], "pads": [0, 20], "dilations": [3]}),
        (16, 9, 16, {"kernel_shape": [31], "pads": [15, 15], "group": 16}),
        (20, 41, 20, {"kernel_shape": [15], "pads": [7, 7], "group": 20, "strides": [2], "dilations": [2]}),
        (8, 50, 24, {"kernel_shape": [3], "pads": [2, 0], "dilations": [2], "group": 4}),
        (8, 1, 16, {"kernel_shape": [12], "pads": [20, 3], "group": 2}),
        (12, 25, 40, {"kernel_shape": [5], "auto_pad": "SAME_UPPER", "strides": [2]}),
        (12, 24, 7, {"kernel_shape": [4], "auto_pad": "SAME_LOWER"}),
        (36, 40, 33, {"kernel_shape": [3], "auto_pad": "VALID"}),
    ]
    nodes, inputs, feeds = [], {}, {}
    for number, (channels, width, results, words) in enumerate(cases):
        shape = (1 + number % 2, channels, width)
        weights = (results, channels // words.get("group", 1), *words.get("kernel_shape", [1]))
        nodes.append(conv(f"x{number}", f"c{number}", weights, constants=constants, **words))
        inputs[f"x{number}"], feeds[f"x{number}"] = shape, random(*shape)
    model = make(nodes, inputs, [f"c{number}" for number in range(len(cases))], constants)
    made = check(model, feeds, threads=threads)
    assert {"convolution", "depthwise"} <= set(made.kernels)
    assert "default" not in made.kernels


def test_wide_windows_of_pictures() -> None:
    constants: dict[str, Any] = {}
    nodes = [
        conv("x", "a", (16, 3, 3, 17), constants=constants, pads=[1, 8, 1, 8], strides=[2, 1]),
        conv("a", "b", (16, 1, 13, 13), constants=constants, pads=[6, 6, 6, 6], group=16),
        helper.make_node("MaxPool", ["b"], ["c"], kernel_shape=[1, 15], pads=[0, 7, 0, 7]),
        helper.make_node("AveragePool", ["c"], ["y"], kernel_shape=[3, 12], pads=[1, 6, 1, 5], strides=[1, 3]),
    ]
    made = check(make(nodes, {"x": (1, 3, 9, 31)}, ["y"], constants), {"x": random(1, 3, 9, 31)})
    assert "default" not in made.kernels


def test_pictures_of_one_column_are_as_those_of_one_row() -> None:
    """What follows a convolution reads its own row there, too."""
    constants: dict[str, Any] = {"places": random(1, 1, 40, 1)}
    nodes = [
        conv("x", "a", (32, 8, 5, 1), constants=constants, pads=[2, 0, 2, 0]),
        helper.make_node("Add", ["a", "places"], ["b"]),
        conv("b", "c", (32, 1, 15, 1), constants=constants, pads=[9, 0, 5, 0], group=32),
        helper.make_node("Add", ["c", "b"], ["d"]),
        helper.make_node("MaxPool", ["d"], ["e"], kernel_shape=[3, 1], strides=[2, 1], pads=[1, 0, 0, 0]),
        conv("e", "f", (24, 16, 3, 1), constants=constants, dilations=[2, 1], strides=[3, 1], group=2),
        helper.make_node("LeakyRelu", ["f"], ["y"]),
    ]
    made = check(make(nodes, {"x": (2, 8, 40, 1)}, ["y"], constants), {"x": random(2, 8, 40, 1)})
    assert {name: made.kernels[name] for name in ("convolution", "depthwise", "pooling")} == {
        "convolution": 2,
        "depthwise": 1,
        "pooling": 1,
    }


def test_what_stands_between_convolutions_of_one_axis_keeps_their_layout() -> None:
    """One change of the layout in front, and one behind: all else is done in place, or by the kernels."""
    constants: dict[str, Any] = {"scale": random(16, 1), "slope": random(1, 16, 1), "low": np.float32(-0.5)}
    constants.update({f"bn{k}": np.abs(random(16)) for k in range(4)})
    nodes = [
        conv("x", "c0", (16, 8, 3), constants=constants, pads=[1, 1]),
        helper.make_node("BatchNormalization", ["c0", "bn0", "bn1", "bn2", "bn3"], ["n"]),
        helper.make_node("PRelu", ["n", "slope"], ["p"]),
        conv("p", "c1", (16, 1, 5), constants=constants, pads=[2, 2], group=16),
        helper.make_node("Mul", ["c1", "scale"], ["m"]),
        helper.make_node("Add", ["p", "m"], ["s"]),
        conv("s", "c2", (32, 16, 1), constants=constants),
        helper.make_node("Split", ["c2"], ["left", "right"], axis=-2, num_outputs=2),
        helper.make_node("Sigmoid", ["right"], ["gate"]),
        helper.make_node("Mul", ["left", "gate"], ["g"]),
        helper.make_node("ReduceMean", ["g"], ["mean"], axes=[-1]),
        conv("mean", "e", (16, 16, 1), constants=constants),
        helper.make_node("Mul", ["g", "e"], ["w"]),
        helper.make_node("MaxPool", ["w"], ["pool"], kernel_shape=[2], strides=[2]),
        helper.make_node("Concat", ["pool", "pool"], ["join"], axis=1),
        helper.make_node("Clip", ["join", "low"], ["clip"]),
        conv("clip", "y", (8, 32, 3), constants=constants, pads=[1, 1]),
    ]
    nodes[7].ClearField("attribute")
    nodes[7].attribute.append(helper.make_attribute("axis", -2))
    made = check(make(nodes, {"x": (1, 8, 30)}, ["y"], constants), {"x": random(1, 8, 30)})
    assert "default" not in made.kernels
    assert made.kernels["element-wise"] == 6  # the two changes, the sum, the gates, the concatenation


def test_transposes_around_convolutions_of_one_axis_go() -> None:
    """Channels that come last, as in speech models, lie as kernels want them."""
    constants: dict[str, Any] = {"w": random(24, 24)}
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        conv("t", "c", (24, 24, 3), constants=constants, pads=[1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Transpose", ["r"], ["back"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["back", "w"], ["y"]),
    ]
    made = check(make(nodes, {"x": (1, 33, 24)}, ["y"], constants), {"x": random(1, 33, 24)})
    assert made.kernels == {"convolution": 1, "matrix product": 1}


def test_values_of_one_axis_that_others_read() -> None:
    constants: dict[str, Any] = {"shape": np.array([2, -1])}
    nodes = [
        conv("x", "c", (6, 4, 3), constants=constants),
        helper.make_node("Relu", ["c"], ["y"]),  # a result, which is read, too
        helper.make_node("Transpose", ["y"], ["t"], perm=[2, 0, 1]),
        helper.make_node("Softmax", ["y"], ["soft"], axis=1),
        helper.make_node("ReduceMax", ["y"], ["most"], axes=[2], keepdims=0),
        helper.make_node("ReduceSum", ["y", "one"], ["sum"], keepdims=1),
        helper.make_node("Reshape", ["y", "shape"], ["flat"]),
        helper.make_node("Transpose", ["v"], ["u"], perm=[1, 2, 0]),
        helper.make_node("Mul", ["y", "u"], ["product"]),
        helper.make_node("Squeeze", ["picture", "two"], ["squeezed"]),
        conv("squeezed", "s", (5, 4, 1), constants=constants),
        helper.make_node("Unsqueeze", ["s", "two"], ["high"]),
    ]
    constants["one"], constants["two"] = np.array([1]), np.array([2])
    inputs = {"x": (2, 4, 9), "v": (7, 2, 6), "picture": (1, 4, 1, 5)}
    outputs = ["y", "t", "soft", "most", "sum", "flat", "product", "high"]
    check(make(nodes, inputs, outputs, constants), {name: random(*shape) for name, shape in inputs.items()})


def test_quantized_convolutions_of_one_axis() -> None:
    generator = np.random.default_rng(0)
    constants = {
        "xs": np.float32(0.02), "xz": np.uint8(120), "ws": np.full(8, 0.01, "float32"), "wz": np.zeros(8, "int8"),
        "w": generator.integers(-100, 100, (8, 4, 5)).astype("int8"),
        "b": generator.integers(-1000, 1000, 8).astype("int32"), "ys": np.float32(0.05), "yz": np.uint8(128),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
        helper.make_node("QLinearConv", ["q", "xs", "xz", "w", "ws", "wz", "ys", "yz", "b"], ["c"], pads=[2, 2]),
        helper.make_node("DequantizeLinear", ["c", "ys", "yz"], ["y"]),
    ]
    made = check(make(nodes, {"x": (1, 4, 40)}, ["y"], constants), {"x": random(1, 4, 40)})
    assert made.kernels["convolution of bytes"] == 1


@pytest.mark.parametrize("threads", [1, 2])
def test_transposes_in_tiles(threads: int) -> None:
    cases: list[tuple[tuple[int, ...], list[int]]] = [
        ((1, 64, 40, 32), [0, 2, 3, 1]), ((2, 17, 19, 3), [0, 3, 1, 2]), ((3, 100), [1, 0]), ((100, 3), [1, 0]),
        ((5, 33, 9), [0, 2, 1]), ((6, 7, 8), [2, 0, 1]), ((3, 16, 1, 20), [0, 3, 2, 1]), ((4, 7, 5, 11), [0, 2, 1, 3]),
    ]  # fmt: skip
    nodes = [helper.make_node("Transpose", [f"x{k}"], [f"y{k}"], perm=perm) for k, (_, perm) in enumerate(cases)]
    inputs = {f"x{k}": shape for k, (shape, _) in enumerate(cases)}
    feeds = {name: random(*shape) for name, shape in inputs.items()}
    made = check(make(nodes, inputs, [f"y{k}" for k in range(len(cases))]), feeds, threads=threads)
    assert made.kernels["transpose"] == 7
    assert made.kernels["element-wise"] == 1  # it is no matrix
