# SPDX-License-Identifier: Apache-2.0
"""Transposed convolutions, and paddings that are written in other ways than as numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from compile.reference import check, make
from compile.test_models import random

pytestmark = pytest.mark.peers

# channels, extents, results of a group, and the attributes
CASES: list[tuple[int, tuple[int, ...], int, dict[str, Any]]] = [
    (1, (1, 1), 1, {"kernel_shape": [1, 1]}),
    (16, (9, 7), 24, {"kernel_shape": [2, 2], "strides": [2, 2]}),
    (5, (6, 5), 17, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
    (8, (5, 9), 16, {"kernel_shape": [4, 4], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    (4, (7, 6), 3, {"kernel_shape": [3, 5], "pads": [1, 0, 0, 2]}),
    (6, (4, 5), 20, {"kernel_shape": [3, 2], "strides": [3, 1], "dilations": [2, 3], "pads": [0, 2, 1, 0]}),
    (6, (4, 5), 5, {"kernel_shape": [3, 3], "strides": [2, 2], "dilations": [2, 2]}),
    (4, (3, 4), 2, {"kernel_shape": [1, 2], "strides": [3, 4]}),  # with results that read nothing
    (3, (2, 3), 1, {"kernel_shape": [1, 1], "strides": [2, 2], "pads": [1, 0, 1, 1]}),  # of such alone
    (20, (5, 6), 1, {"kernel_shape": [4, 4], "strides": [2, 2], "pads": [1, 1, 1, 1], "group": 20}),
    (12, (5, 4), 6, {"kernel_shape": [3, 3], "strides": [2, 2], "group": 4}),
    (6, (7,), 17, {"kernel_shape": [16], "strides": [8], "pads": [4, 4]}),
    (34, (9,), 1, {"kernel_shape": [40], "strides": [10]}),
    (8, (11,), 1, {"kernel_shape": [4], "strides": [2], "pads": [1, 2], "group": 8, "dilations": [3]}),
    (3, (1,), 2, {"kernel_shape": [30], "strides": [1], "pads": [10, 3]}),
    (3, (4, 5), 4, {"kernel_shape": [3, 4], "strides": [2, 3], "auto_pad": "SAME_UPPER"}),
    (3, (4, 5), 4, {"kernel_shape": [4, 3], "strides": [1, 2], "auto_pad": "SAME_LOWER"}),
    (3, (4, 5), 4, {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "VALID"}),
    (3, (4, 5), 4, {"kernel_shape": [3, 3], "strides": [2, 2], "output_shape": [8, 10]}),
    (3, (4, 5), 4, {"kernel_shape": [3, 3], "strides": [2, 2], "output_shape": [6, 11], "auto_pad": "SAME_UPPER"}),
    (3, (6,), 4, {"kernel_shape": [5], "strides": [2], "output_shape": [12], "auto_pad": "SAME_LOWER"}),
    (16, (4, 5, 6), 8, {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2]}),
    (4, (3, 4, 5), 6, {"kernel_shape": [3] * 3, "strides": [2] * 3, "pads": [1] * 6, "output_padding": [1] * 3}),
    (
        3,
        (4, 3, 2),
        5,
        {"kernel_shape": [4, 3, 2], "strides": [3, 1, 2], "dilations": [1, 2, 1], "pads": [2, 0, 1, 1, 1, 0]},
    ),
]


@pytest.mark.parametrize("threads", [1, 2])
def test_transposed_convolutions(threads: int) -> None:
    constants: dict[str, Any] = {}
    nodes, inputs, outputs = [], {}, []
    for number, (channels, extents, width, words) in enumerate(CASES):
        groups = words.get("group", 1)
        inputs[f"x{number}"] = (1 + number % 2, channels, *extents)
        weights = random(channels, width, *words["kernel_shape"])
        constants[f"w{number}"] = weights / np.float32(np.sqrt(weights[:, 0].size / groups))
        constants[f"b{number}"] = random(width * groups)
        names = [f"{letter}{number}" for letter in "xwb"]
        nodes.append(helper.make_node("ConvTranspose", names, [f"t{number}"], **words))
        nodes.append(helper.make_node("LeakyRelu", [f"t{number}"], [f"y{number}"]))
        outputs.append(f"y{number}")
    feeds = {name: random(*shape) for name, shape in inputs.items()}
    made = check(make(nodes, inputs, outputs, constants), feeds, threads=threads)
    assert made.kernels["transposed convolution"] > 5
    assert made.kernels["convolution"] > 5  # with few results
    assert "default" not in made.kernels


def test_transposed_convolutions_between_others() -> None:
    """Results lie as the next convolution reads them, and what follows is computed where they are written."""
    constants: dict[str, Any] = {"a": random(16, 8, 1, 1), "b": random(16, 12, 2, 2), "c": random(8, 20, 1, 1)}
    constants.update({f"n{k}": np.abs(random(12)) for k in range(4)})
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["u"]),
        helper.make_node("ConvTranspose", ["u", "b"], ["v"], strides=[2, 2]),
        helper.make_node("BatchNormalization", ["v", "n0", "n1", "n2", "n3"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("Concat", ["r", "skip"], ["j"], axis=1),
        helper.make_node("Conv", ["j", "c"], ["y"]),
    ]
    inputs = {"x": (1, 8, 5, 6), "skip": (1, 8, 10, 12)}
    made = check(make(nodes, inputs, ["y"], constants), {name: random(*shape) for name, shape in inputs.items()})
    assert made.kernels["transposed convolution"] == 1
    assert "default" not in made.kernels


def test_transposed_convolutions_with_computed_weights() -> None:
    nodes = [helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2])]
    inputs = {"x": (1, 3, 4, 5), "w": (3, 4, 3, 3)}
    check(make(nodes, inputs, ["y"]), {name: random(*shape) for name, shape in inputs.items()})


@pytest.mark.parametrize("rank", [1, 2])
def test_paddings_beside_convolutions_are_part_of_them(rank: int) -> None:
    spatial = [20, 9][:rank]
    shape, window = (1, 6, *spatial), [3] * rank
    zeros = [0] * rank
    constants: dict[str, Any] = {
        "pads": np.array([0, 0, *[4] * rank, 0, 0, *[1] * rank]), "zero": np.float32(0),
        "starts": np.array(zeros), "ends": np.array([-2] * rank), "axes": np.arange(2, 2 + rank),
        **{name: random(6, 6, *window) / 8 for name in ("a", "b", "c")}, "d": random(6, 6, *[4] * rank) / 8,
    }  # fmt: skip
    nodes = [
        helper.make_node("Pad", ["x", "pads", "zero"], ["p"]),
        helper.make_node("Conv", ["p", "a"], ["u"], pads=[1] * (2 * rank)),
        helper.make_node("Conv", ["u", "b"], ["v"], pads=[2] * (2 * rank)),
        helper.make_node("Slice", ["v", "starts", "ends", "axes"], ["causal"]),
        helper.make_node("Relu", ["causal"], ["r"]),
        helper.make_node("Conv", ["r", "c"], ["s"], auto_pad="SAME_UPPER", strides=[2] * rank),
        helper.make_node("Conv", ["s", "d"], ["y"], auto_pad="SAME_LOWER"),
    ]
    made = check(make(nodes, {"x": shape}, ["y"], constants), {"x": random(*shape)})
    assert made.kernels["convolution"] == 4
    assert sum(made.kernels.values()) == 6  # and a change of the layout in front, and one behind


def test_paddings_that_convolutions_cannot_have_stay() -> None:
    constants: dict[str, Any] = {
        "channels": np.array([0, 1, 0, 0, 0, 1, 0, 0]), "sides": np.array([0, 0, 1, 2, 0, 0, 3, 1]),
        "less": np.array([0, 0, -1, 2, 0, 0, 0, 0]), "one": np.float32(1), "a": random(4, 6, 3, 3),
        "b": random(4, 4, 3, 3), "starts": np.array([1]), "ends": np.array([5]), "axes": np.array([2]),
        "zero": np.array([0]), "two": np.array([2]),
    }  # fmt: skip
    nodes = [
        helper.make_node("Pad", ["x", "channels"], ["p"]),
        helper.make_node("Conv", ["p", "a"], ["y0"]),
        helper.make_node("Pad", ["x", "sides", "one"], ["q"]),
        helper.make_node("Conv", ["q", "b"], ["y1"]),
        helper.make_node("Pad", ["x", "sides"], ["r"], mode="edge"),
        helper.make_node("Conv", ["r", "b"], ["y2"]),
        helper.make_node("Pad", ["x", "less"], ["s"]),
        helper.make_node("Conv", ["s", "b"], ["y3"]),
        helper.make_node("Conv", ["x", "b"], ["u"], pads=[1, 1, 1, 1]),
        helper.make_node("Slice", ["u", "starts", "ends", "axes"], ["y4"]),
        helper.make_node("Slice", ["u", "zero", "ends", "axes", "two"], ["y5"]),
        helper.make_node("Conv", ["x", "b"], ["v"]),
        helper.make_node("Slice", ["v", "zero", "two", "axes"], ["w"]),  # it takes more away than there is padding
        helper.make_node("Relu", ["w"], ["y6"]),
    ]
    check(make(nodes, {"x": (1, 4, 7, 8)}, [f"y{k}" for k in range(7)], constants), {"x": random(1, 4, 7, 8)})
