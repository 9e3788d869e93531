# SPDX-License-Identifier: Apache-2.0
"""Quantized models say what onnxruntime says, within one step of quantization."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import portcall
from compile.reference import make, onnxruntime_outputs, outputs
from compile.test_models import random
from portcall.errors import ModelError

pytestmark = pytest.mark.peers
QUANTIZE = Path(__file__).parents[1] / "scripts" / "quantize.py"
OF_BYTES = {"convolution of bytes", "depthwise of bytes", "matrix product of bytes"}


def node(op: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(op, [name.strip("-") for name in inputs.split()], [output], **attributes)


def small_cnn() -> Any:
    """A network as classifiers have it: windows of several kinds, a pooling, a residual, a product at the end."""
    generator = np.random.default_rng(0)
    shapes = {"w1": (16, 3, 3, 3), "w2": (24, 16, 3, 3), "wd": (24, 1, 3, 3), "w3": (24, 24, 1, 1), "w4": (24, 10)}
    weights = {name: generator.standard_normal(shape) / np.sqrt(np.prod(shape[1:])) for name, shape in shapes.items()}
    weights |= {f"b{k}": generator.standard_normal(count) * 0.1 for k, count in ((1, 16), (2, 24), (3, 24), (4, 10))}
    around = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    nodes = [
        node("Conv", "x w1 b1", "a", **around), node("Relu", "a", "ra"),
        node("MaxPool", "ra", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "p w2 b2", "c", strides=[2, 2], **around), node("Relu", "c", "rc"),
        node("Conv", "rc wd", "d", group=24, **around), node("Conv", "d w3 b3", "e", kernel_shape=[1, 1]),
        node("Add", "e rc", "f"), node("Relu", "f", "rf"), node("GlobalAveragePool", "rf", "g"),
        node("Flatten", "g", "h"), node("MatMul", "h w4", "m"), node("Add", "m b4", "y"),
    ]  # fmt: skip
    return make(nodes, {"x": [1, 3, 19, 18]}, ["y"], {name: a.astype("float32") for name, a in weights.items()})


@pytest.mark.parametrize(
    ("form", "kind"), [("qdq", "int8"), ("qdq", "uint8"), ("operators", "int8"), ("dynamic", "int8")]
)
def test_models_that_onnxruntime_quantized(form: str, kind: str, tmp_path: Path) -> None:
    onnx.save(small_cnn(), tmp_path / "m.onnx")
    paths = [str(tmp_path / name) for name in ("m.onnx", "q.onnx")]
    subprocess.run([sys.executable, QUANTIZE, *paths, form, kind], check=True, timeout=120, capture_output=True)
    model = onnx.load(tmp_path / "q.onnx")
    feeds = {"x": random(1, 3, 19, 18)}
    (expected,) = onnxruntime_outputs(model, feeds)
    made = portcall.compile.onnx(model, runtime="graph")
    (got,) = outputs(made, feeds)
    step = (expected.max() - expected.min()) / 255
    assert np.abs(got - expected).max() <= 1.5 * step
    assert set(made.kernels) >= {*OF_BYTES, "pooling"}
    if form != "dynamic":  # where the least and largest values are looked for
        assert "default" not in made.kernels


def test_quantized_values_by_hand() -> None:
    """QDQ around a convolution whose zero points are not 0, and a QLinearConv of the same numbers."""
    generator = np.random.default_rng(3)
    weights = generator.integers(0, 256, (8, 5, 3, 3)).astype("uint8")
    constants = {
        "w": weights, "sx": np.float32(0.02), "zx": np.uint8(100), "sw": np.float32(0.01), "zw": np.uint8(120),
        "sy": np.float32(0.07), "zy": np.uint8(140), "b": generator.integers(-900, 900, 8).astype("int32"),
        "sb": np.float32(0.0002), "zb": np.int32(0),
    }  # fmt: skip
    window = {"pads": [1, 0, 2, 1], "strides": [1, 2]}
    nodes = [
        node("QuantizeLinear", "x sx zx", "q"),
        node("DequantizeLinear", "q sx zx", "dx"), node("DequantizeLinear", "w sw zw", "dw"),
        node("DequantizeLinear", "b sb zb", "db"), node("Conv", "dx dw db", "c", **window),
        node("QuantizeLinear", "c sy zy", "first"),
        node("QLinearConv", "q sx zx w sw zw sy zy b", "second", **window),
    ]  # fmt: skip
    model = make(nodes, {"x": [2, 5, 9, 11]}, ["first", "second"], constants)
    feeds = {"x": random(2, 5, 9, 11)}
    made = portcall.compile.onnx(model, runtime="graph")
    for got, expected in zip(outputs(made, feeds), onnxruntime_outputs(model, feeds), strict=True):
        assert got.dtype == expected.dtype == np.uint8
        assert np.abs(got.astype(int) - expected.astype(int)).max() <= 1


class Integers:
    """Convolutions and products of random integers, and the same with floats, which are exact for such sizes."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.floats: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.inputs: dict[str, Any] = {}

    def one_of(self, *values: int) -> int:
        return int(self.generator.choice(values))

    def add(self, op: str, shape: list[int], weights: list[int], **attributes: Any) -> None:
        number = len(self.inputs)
        x, w, zx, zw, y = (f"{name}{number}" for name in ("x", "w", "zx", "zw", "y"))
        kinds = [self.generator.choice(["int8", "uint8"]) for _ in range(2)]
        for name, kind, extents in ((x, kinds[0], shape), (w, kinds[1], weights)):
            limits = np.iinfo(kind)
            array = self.generator.integers(limits.min, limits.max + 1, extents).astype(kind)
            (self.inputs if name == x else self.constants)[name] = array
        self.constants[zx] = np.array(self.one_of(0, 3, 100), kinds[0])
        self.constants[zw] = np.array(self.one_of(0, 0, 5), kinds[1])
        self.nodes.append(helper.make_node(f"{op}Integer", [x, w, zx, zw], [y], **attributes))
        shifted = []
        for name, zero in ((x, zx), (w, zw)):
            for step in (name, zero):
                self.floats.append(helper.make_node("Cast", [step], [f"{step}f"], to=onnx.TensorProto.FLOAT))
            self.floats.append(helper.make_node("Sub", [f"{name}f", f"{zero}f"], [f"{name}s"]))
            shifted.append(f"{name}s")
        self.floats.append(helper.make_node(op, shifted, [f"{y}f"], **attributes))
        self.floats.append(helper.make_node("Cast", [f"{y}f"], [y], to=onnx.TensorProto.INT32))

    def add_convolution(self) -> None:
        groups = self.one_of(1, 1, 1, 2)
        channels, results = self.one_of(1, 3, 6, 17, 32), self.one_of(1, 8, 16, 21, 70) * groups
        if self.one_of(0, 0, 0, 1):
            groups = results = channels = self.one_of(16, 21)
            channels = 1
        kernel = [self.one_of(1, 3), self.one_of(1, 2, 3)]
        attributes = {"strides": [self.one_of(1, 2), self.one_of(1, 1, 2)], "dilations": [1, self.one_of(1, 1, 2)]}
        attributes |= {"pads": [self.one_of(0, 1) for _ in range(4)], "group": [groups]}
        shape = [self.one_of(1, 2), channels * groups, self.one_of(5, 8), self.one_of(6, 9)]
        words: dict[str, Any] = {**attributes, "group": groups, "kernel_shape": kernel}
        self.add("Conv", shape, [results, channels, *kernel], **words)

    def model(self, nodes: list[Any]) -> Any:
        inputs = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in self.inputs.items()
        ]
        made = make(nodes, {}, [f"y{k}" for k in range(len(self.inputs))], self.constants)
        made.graph.input.extend(inputs)
        for value in made.graph.output:
            value.type.tensor_type.elem_type = onnx.TensorProto.INT32
        return onnx.shape_inference.infer_shapes(made)


@pytest.mark.parametrize("target", ["native", "native:haswell", "native:x86-64"])
def test_random_products_of_integers_are_exact(target: str) -> None:
    made = Integers(5)
    for _ in range(14):
        made.add_convolution()
    for rows, steps, columns in ((1, 7, 5), (9, 64, 48), (3, 130, 33)):
        made.add("MatMul", [rows, steps], [steps, columns])
    compiled = portcall.compile.onnx(made.model(made.nodes), target, check=False, runtime="graph")
    assert set(compiled.kernels) >= OF_BYTES
    expected = onnxruntime_outputs(made.model(made.floats), made.inputs)
    for number, (got, right) in enumerate(zip(outputs(compiled, made.inputs), expected, strict=True)):
        np.testing.assert_array_equal(got, right, f"y{number}: {made.nodes[number]}")


def test_scales_that_are_not_constant_are_refused_by_name() -> None:
    nodes = [helper.make_node("QLinearMatMul", [*"abcdefgh"], ["y"], name="here")]
    shapes: dict[str, Any] = {"a": [2, 3], "d": [3, 4], "b": [], "c": [], "e": [], "f": [], "g": [], "h": []}
    kinds = {name: onnx.TensorProto.FLOAT if name in "beg" else onnx.TensorProto.UINT8 for name in shapes}
    made = make(nodes, {}, ["y"])
    made.graph.input.extend(helper.make_tensor_value_info(name, kinds[name], shape) for name, shape in shapes.items())
    made.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    with pytest.raises(ModelError, match=r"here.*scales") as caught:
        portcall.compile.onnx(made, runtime="graph")
    assert len(caught.value.problems) == 1


def test_sigmoid_between_two_roundings_of_a_product() -> None:
    """y * sigmoid(y), quantized at each step, as SiLU is; TVM makes no vectors of it."""
    generator = np.random.default_rng(4)
    constants = {
        "w": generator.integers(-90, 90, (32, 48)).astype("int8"), "sw": np.float32(0.01), "zw": np.int8(0),
        "sx": np.float32(0.02), "zx": np.uint8(128), "sy": np.float32(0.03), "zy": np.uint8(120),
        "ss": np.float32(1 / 255), "zs": np.uint8(0), "so": np.float32(0.02), "zo": np.uint8(20),
    }  # fmt: skip
    nodes = [
        node("QuantizeLinear", "x sx zx", "qx"), node("QLinearMatMul", "qx sx zx w sw zw sy zy", "qy"),
        node("DequantizeLinear", "qy sy zy", "y0"), node("Sigmoid", "y0", "s"),
        node("QuantizeLinear", "s ss zs", "qs"), node("DequantizeLinear", "qs ss zs", "s0"),
        node("Mul", "y0 s0", "o"), node("QuantizeLinear", "o so zo", "qo"), node("DequantizeLinear", "qo so zo", "y"),
    ]  # fmt: skip
    model, feeds = make(nodes, {"x": [5, 32]}, ["y"], constants), {"x": random(5, 32)}
    made = portcall.compile.onnx(model, runtime="graph")
    assert "matrix product of bytes" in made.kernels
    (got,), (expected,) = outputs(made, feeds), onnxruntime_outputs(model, feeds)
    assert np.abs(got - expected).max() <= 1.01 * 0.02
