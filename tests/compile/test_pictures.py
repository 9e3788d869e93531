# SPDX-License-Identifier: Apache-2.0
"""Convolutions over pictures whose extents are known when they run: the rule's kernels, at sizes of all kinds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

from compile.reference import largest_error, make
from portcall import compile
from portcall.compile._lower import lower_functions
from portcall.compile._pictures import write_picture
from portcall.compile._target import find_target
from portcall.compile._verify import reference

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("vm_pools")]
TOLERANCE = 1e-5
Node = helper.make_node
NAN = float("nan")


def random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


# Output channels, window, and the attributes; the input has 20 channels. The least picture that fits all is 5 x 6.
CONVOLUTIONS: list[tuple[int, tuple[int, int], dict[str, Any]]] = [
    (33, (3, 3), {"pads": [1, 1, 1, 1]}), (70, (3, 2), {"pads": [0, 2, 1, 0], "strides": [2, 3]}),
    (16, (1, 1), {"strides": [2, 2]}), (7, (3, 3), {"dilations": [2, 1], "pads": [1, 0, 0, 3]}), (24, (5, 6), {}),
    (12, (3, 3), {"group": 4, "dilations": [1, 2], "pads": [0, 1, 2, 1]}), (40, (3, 3), {"auto_pad": "SAME_UPPER"}),
    (20, (3, 3), {"group": 20, "pads": [1, 1, 1, 1]}),
    (20, (5, 3), {"group": 20, "strides": [3, 2], "pads": [2, 0, 4, 1]}),
]  # fmt: skip
SIZES = [(1, 5, 6), (2, 6, 7), (1, 17, 23), (3, 9, 64)]


def test_convolutions_of_all_kinds_are_right_at_all_sizes() -> None:
    nodes, weights = [], {}
    for k, (channels, window, attributes) in enumerate(CONVOLUTIONS):
        weights[f"w{k}"] = random(channels, 20 // attributes.get("group", 1), *window, seed=k)
        weights[f"b{k}"] = random(channels, seed=k)
        nodes.append(Node("Conv", ["x", f"w{k}", f"b{k}"], [f"y{k}"], **attributes))
    model = make(nodes, {"x": ["n", 20, "h", "w"]}, [f"y{k}" for k in range(len(nodes))], weights)
    made = compile.onnx(model, check=False, runtime="vm")
    assert made.kernels["convolution"] == 7
    assert made.kernels["depthwise"] == 2
    machine = made.load()
    for n, h, w in SIZES:
        x = random(n, 20, h, w)
        for got, expected in zip(machine(x), reference(model, {"x": x}).values(), strict=True):
            assert largest_error(got.numpy(), expected) <= TOLERANCE


def test_what_follows_is_part_of_the_kernel() -> None:
    """A residual block, with an activation that is long enough for a loop over the sums."""
    nodes = [
        Node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]), Node("Sigmoid", ["c"], ["s"]),
        Node("Mul", ["c", "s"], ["m"]),
        Node("Add", ["m", "x"], ["a"]), Node("Conv", ["a", "d"], ["e"], pads=[1, 1, 1, 1], group=19),
        Node("Relu", ["e"], ["r"]), Node("MaxPool", ["r"], ["p"], kernel_shape=[5, 5], pads=[2, 2, 2, 2]),
        Node("Conv", ["p", "w"], ["y"], pads=[2, 0, 0, 2]),
    ]  # fmt: skip
    weights = {"w": random(19, 19, 3, 3), "b": random(19), "d": random(19, 1, 3, 3)}
    model = make(nodes, {"x": ["n", 19, "h", "w"]}, ["y"], weights)
    made = compile.onnx(model, check=False, runtime="vm")
    assert [made.kernels[rule] for rule in ("convolution", "depthwise", "pooling")] == [2, 1, 1]
    machine = made.load()
    for shape in ((1, 19, 1, 1), (2, 19, 1, 13), (1, 19, 30, 12)):
        x = random(*shape)
        (expected,) = reference(model, {"x": x}).values()
        assert largest_error(machine(x).numpy(), expected) <= TOLERANCE


def test_means_of_large_pictures_are_not_rounded_more_than_onnxruntime_does() -> None:
    nodes = [Node("Conv", ["x", "d"], ["c"], group=24), Node("GlobalAveragePool", ["c"], ["y"])]
    model = make(nodes, {"x": [1, 24, 160, 160]}, ["y", "c"], {"d": random(24, 1, 3, 3)})
    x = random(1, 24, 160, 160) * np.float32(0.3) + np.float32(1)
    executor = compile.onnx(model, check=False, runtime="graph").load()
    executor.run(x=x)
    mean, picture = (executor.get_output(k).numpy().astype("float64") for k in (0, 1))
    assert largest_error(mean, picture.mean((2, 3), keepdims=True)) <= 1e-6


def test_transposed_convolutions_are_others() -> None:
    kinds: list[tuple[int, int, int, dict[str, Any]]] = [
        (24, 2, 2, {}), (1, 2, 2, {}), (17, 3, 2, {"pads": [1, 0, 1, 1], "output_padding": [1, 0]}),
        (16, 4, 2, {"pads": [1, 1, 1, 1]}), (3, 3, 1, {"pads": [1, 0, 0, 2]}),
    ]  # fmt: skip
    nodes: list[Any] = []
    weights: dict[str, Any] = {}
    for k, (channels, size, stride, words) in enumerate(kinds):
        weights |= {f"w{k}": random(8, channels, size, size, seed=k), f"b{k}": random(channels, seed=k)}
        names = ["x", f"w{k}", f"b{k}"]
        nodes.append(Node("ConvTranspose", names, [f"y{k}"], strides=[stride, stride], **words))
    model = make(nodes, {"x": ["n", 8, "h", "w"]}, [f"y{k}" for k in range(len(kinds))], weights)
    made = compile.onnx(model, check=False, runtime="vm")
    assert made.kernels["convolution"] == 3
    assert made.kernels["matrix product"] == 2
    machine = made.load()
    for n, h, w in ((1, 1, 1), (2, 3, 5), (1, 12, 9)):
        x = random(n, 8, h, w)
        for got, expected in zip(machine(x), reference(model, {"x": x}).values(), strict=True):
            assert largest_error(got.numpy(), expected) <= TOLERANCE


def test_windows_that_are_larger_than_the_picture_raise() -> None:
    nodes = [Node("Conv", ["x", "w"], ["y"], pads=[1, 0, 0, 0])]
    model = make(nodes, {"x": ["n", 3, "h", "w"]}, ["y"], {"w": random(8, 3, 3, 4)})
    machine = compile.onnx(model, check=False, runtime="vm").load()
    assert machine(random(1, 3, 2, 4)).shape == (1, 8, 1, 1)
    for shape in ((1, 3, 1, 4), (1, 3, 2, 3), (0, 3, 1, 3)):
        with pytest.raises(AssertionError, match="its window is larger"):
            machine(random(*shape))
    with pytest.raises(ValueError, match="is negative"):
        machine(random(1, 3, 9, 2))


@pytest.mark.parametrize("attributes", [
    {"padding": (1, 2, 0, 1)}, {"strides": (2, 3)}, {"groups": 19, "padding": (0, 1, 1, 1), "strides": (1, 2)},
])  # fmt: skip
def test_nothing_outside_is_read_or_written(attributes: dict[str, Any]) -> None:
    """The picture lies between elements that are no numbers, and the result between others, which stay."""
    import tvm
    from tvm import relax, tirx

    weights = random(3, 3, 1 if "groups" in attributes else 19, 19)
    n, h, w = (tirx.Var(name, "int64") for name in "nhw")
    x = relax.Var("x", relax.TensorType([n, h, w, 19], "float32"))
    builder, target = relax.BlockBuilder(), find_target("native")
    with builder.function("main", [x]):
        layouts = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
        builder.emit_func_output(builder.emit(relax.op.nn.conv2d(x, relax.const(weights), **layouts, **attributes)))
    module = lower_functions(builder.get(), target)
    (function,) = (f for _, f in module.functions_items() if isinstance(f, tirx.PrimFunc))
    kernel = write_picture("main", function, [False, True], target)
    built = tvm.compile(tvm.IRModule({"main": kernel.function.with_attr("global_symbol", "main")}), target.tvm)
    arrays = [tvm.runtime.tensor(np.ascontiguousarray(pack(weights))) for pack in kernel.packs.values()]
    arrays = arrays or [tvm.runtime.tensor(weights)]
    for shape in ((1, 3, 3, 19), (2, 4, 5, 19), (1, 5, 40, 19), (1, 60, 61, 19)):
        expected = _convolved(random(*shape), weights, attributes)
        around, data = _between(NAN, shape)
        data[...] = random(*shape)
        frame, result = _between(7.0, expected.shape)
        built["main"](tvm.runtime.from_dlpack(data), *arrays, tvm.runtime.from_dlpack(result))
        assert largest_error(result, expected) <= TOLERANCE
        assert np.isnan(around).sum() == around.size - data.size
        frame_without = np.concatenate([frame[:1024], frame[1024 + result.size :]])
        np.testing.assert_array_equal(frame_without, 7.0)


def _between(value: float, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """Return a row of elements, and an array that lies in it behind 1,024 of them."""
    size = int(np.prod(shape))
    raw = np.full(size + 2048 + 16, value, "float32")
    row = raw[-raw.ctypes.data % 64 // 4 :][: size + 2048]
    return row, row[1024 : 1024 + size].reshape(shape)


def _convolved(x: Any, weights: Any, attributes: dict[str, Any]) -> Any:
    """Return what onnxruntime computes, in the order NHWC."""
    words = {"pads": list(attributes.get("padding", (0, 0, 0, 0))), "strides": list(attributes.get("strides", (1, 1)))}
    group = attributes.get("groups", 1)
    nodes = [Node("Conv", ["x", "w"], ["y"], group=group, **words)]
    model = make(nodes, {"x": [None, 19, None, None]}, ["y"], {"w": weights.transpose(3, 2, 0, 1).copy()})
    (y,) = reference(model, {"x": x.transpose(0, 3, 1, 2).copy()}).values()
    return y.transpose(0, 2, 3, 1)
