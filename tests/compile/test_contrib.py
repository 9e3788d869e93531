# SPDX-License-Identifier: Apache-2.0
"""Operators of com.microsoft, which onnxruntime's optimizers and quantizers write, beside onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from onnx import ValueInfoProto, helper, numpy_helper

import portcall
from compile.reference import outputs
from compile.test_models import random
from portcall.compile._verify import reference
from portcall.errors import ModelError

pytestmark = pytest.mark.peers


def model_of(
    nodes: Sequence[Any], inputs: Mapping[str, Any], results: Sequence[str], constants: Mapping[str, Any], opset: int
) -> Any:
    """A model of nodes whose inputs are like some arrays."""
    graph = helper.make_graph(
        list(nodes), "contrib",
        [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in
         inputs.items()],
        [ValueInfoProto(name=name) for name in results],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )  # fmt: skip
    imports = [helper.make_opsetid(*pair) for pair in (("", opset), ("com.microsoft", 1), ("ai.onnx.ml", 3))]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def compare(
    nodes: Sequence[Any], inputs: Mapping[str, Any], results: Sequence[str],
    constants: Mapping[str, Any] | None = None, opset: int = 17, atol: float = 1e-5,
) -> Any:  # fmt: skip
    """Compile a model and compare it with onnxruntime."""
    model = model_of(nodes, inputs, results, constants or {}, opset)
    expected = reference(model, inputs)
    for name, value in zip(results, expected.values(), strict=True):  # graphs must know types of results
        place = results.index(name)
        model.graph.output[place].CopyFrom(
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape))  # fmt: skip
    made = portcall.compile.onnx(model, check=False, runtime="graph")
    for mine, theirs in zip(outputs(made, inputs), expected.values(), strict=True):
        assert (mine.shape, mine.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_allclose(mine, theirs, atol=atol, rtol=1e-5)
    return made


def op(kind: str, inputs: Sequence[str], outputs: Sequence[str] = ("y",), **words: Any) -> Any:
    return helper.make_node(kind, list(inputs), list(outputs), "the node", domain="com.microsoft", **words)


def plain(kind: str, inputs: Sequence[str], outputs: Sequence[str] = ("y",), **words: Any) -> Any:
    return helper.make_node(kind, list(inputs), list(outputs), **words)


def weights_of_bytes(*shape: int, dtype: str = "int8") -> Any:
    limits = np.iinfo(dtype)
    return np.random.default_rng(7).integers(limits.min, limits.max + 1, shape).astype(dtype)


HIDDEN, STEPS, BATCH, INPUTS = 16, 7, 2, 12


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize(("dtype", "direction"), [("int8", "forward"), ("uint8", "bidirectional"), ("int8", "reverse")])
def test_quantized_lstm(dtype: str, direction: str, by_channel: bool) -> None:
    both, gates = 2 if direction == "bidirectional" else 1, 4 * HIDDEN
    sizes = (both, gates) if by_channel else (both,)
    generator = np.random.default_rng(3)
    zero = np.full(sizes, 0 if dtype == "int8" else 120, dtype)
    constants = {
        "w": weights_of_bytes(both, INPUTS, gates, dtype=dtype), "b": random(both, 2 * gates),
        "r": weights_of_bytes(both, HIDDEN, gates, dtype=dtype),
        "ws": generator.uniform(0.002, 0.004, sizes).astype("float32"),
        "rs": generator.uniform(0.002, 0.004, sizes).astype("float32"), "wz": zero, "rz": zero,
    }  # fmt: skip
    node = op("DynamicQuantizeLSTM", ["x", "w", "r", "b", "", "h", "c", "", "ws", "wz", "rs", "rz"],
              ["y", "y_h", "y_c"], direction=direction, hidden_size=HIDDEN)  # fmt: skip
    inputs = {"x": random(STEPS, BATCH, INPUTS), "h": random(both, BATCH, HIDDEN) / 4, "c": random(both, BATCH, HIDDEN)}
    compare([node], inputs, ["y", "y_h", "y_c"], constants, atol=0.012, opset=11)


X, Y = random(2, 6, 8), random(2, 8, 5)
BYTES, SIGNED = weights_of_bytes(4, 8, dtype="uint8"), weights_of_bytes(8, 5)
SCALE, ZERO = np.float32(0.02), np.uint8(118)


@pytest.mark.parametrize("words", [{}, {"transA": 1}, {"transB": 1, "alpha": 0.5}, {"transA": 1, "transBatchB": 1}])
def test_products_with_transposes(words: dict[str, Any]) -> None:
    a = random(2, 3, 8, 6) if words.get("transA") else random(2, 3, 6, 8)
    b = random(2, 3, 5, 8) if words.get("transB") else random(8, 2, 3, 5) if words.get("transBatchB") else random(8, 5)
    compare([op("FusedMatMul", ["a", "b"], **words)], {"a": a}, ["y"], {"b": b})


@pytest.mark.parametrize("activation", [
    ("Relu", []), ("Clip", [0.1, 0.9]), ("LeakyRelu", [0.2]), ("HardSigmoid", [0.3, 0.4]), ("Tanh", [])])  # fmt: skip
def test_convolutions_and_products_with_activations(activation: tuple[str, list[float]]) -> None:
    kind, parameters = activation
    w, b = random(4, 3, 3, 3), random(4)
    node = op("FusedConv", ["x", "w", "b", "z"], activation=kind, pads=[1, 1, 1, 1],
              activation_params=parameters or None)  # fmt: skip
    compare([node], {"x": random(1, 3, 6, 6), "z": random(1, 4, 6, 6)}, ["y"], {"w": w, "b": b})
    if kind != "Clip":
        alpha, beta = (*parameters, None, None)[:2]
        node = op("FusedGemm", ["x", "w", "b"], activation=kind, transB=1, activation_alpha=alpha, activation_beta=beta)
        compare([node], {"x": random(3, 8)}, ["y"], {"w": random(5, 8), "b": random(5)})


def test_products_of_bytes() -> None:
    constants = {"b": SIGNED, "s": np.full(5, 0.01, "float32"), "z": np.zeros(5, "int8"), "bias": random(5)}
    node = op("DynamicQuantizeMatMul", ["x", "b", "s", "z", "bias"])
    compare([node], {"x": X}, ["y"], constants, atol=1e-3)
    node = op("MatMulIntegerToFloat", ["x", "b", "xs", "s", "xz", "z", "bias"])
    compare([node], {"x": BYTES}, ["y"], {**constants, "xs": SCALE, "xz": ZERO})


@pytest.mark.parametrize(("bits", "zero"), [(4, "packed"), (4, ""), (8, "packed"), (4, "floats")])
def test_products_of_a_few_bits(bits: int, zero: str) -> None:
    rows, columns, size = 40, 5, 16
    blocks = -(-rows // size)
    constants = {
        "b": weights_of_bytes(columns, blocks, size * bits // 8, dtype="uint8"), "s": random(columns * blocks) / 8,
    }  # fmt: skip
    if zero == "packed":
        constants["z"] = weights_of_bytes(columns * -(-blocks * bits // 8), dtype="uint8")
    elif zero:
        constants["z"] = np.full(columns * blocks, 7.5, "float32")
    node = op("MatMulNBits", ["x", "b", "s", *(["z"] if zero else [])], K=rows, N=columns, bits=bits, block_size=size)
    compare([node], {"x": random(3, rows)}, ["y"], constants, atol=1e-3)


@pytest.mark.parametrize("kind", ["Gelu", "FastGelu", "QuickGelu", "BiasGelu"])
def test_activations(kind: str) -> None:
    bias = {"b": random(8)} if kind == "BiasGelu" else {}
    compare([op(kind, ["x", *bias])], {"x": X}, ["y"], bias, opset=12)


def test_normalizations() -> None:
    constants = {"g": random(8), "b": random(8), "bias": random(8)}
    inputs = {"x": X, "skip": random(*X.shape)}
    compare([op("SkipLayerNormalization", ["x", "skip", "g", "b", "bias"])], inputs, ["y"], constants)
    compare([op("SkipLayerNormalization", ["x", "skip", "g"], ["y", "", "", "sum"])], inputs, ["y", "sum"], constants)
    node = op("SkipSimplifiedLayerNormalization", ["x", "skip", "g"], ["y", "", "", "sum"], epsilon=1e-6)
    compare([node], inputs, ["y", "sum"], constants, opset=13)
    nodes = [plain("LayerNormalization", ["x", "g", "b"], ["n"], epsilon=1e-6),  # as onnxruntime writes it
             plain("SimplifiedLayerNormalization", ["n", "g"], axis=-1)]  # fmt: skip
    compare(nodes, {"x": X}, ["y"], constants, opset=12)


def test_embeddings() -> None:
    ids = np.array([[1, 2, 3], [4, 5, 0]], "int32")
    constants = {"w": random(6, 8), "p": random(5, 8), "s": random(2, 8), "g": random(8), "b": random(8)}
    node = op("EmbedLayerNormalization", ["ids", "kinds", "w", "p", "s", "g", "b", "mask"], ["y", "lengths"])
    mask = np.array([[1, 1, 0], [1, 1, 1]], "int32")
    compare([node], {"ids": ids, "kinds": ids % 2, "mask": mask}, ["y", "lengths"], constants)
    node = op("EmbedLayerNormalization", ["ids", "", "w", "p", "", "g", "b"], ["y", "lengths", "sum"])
    compare([node], {"ids": ids}, ["y", "lengths", "sum"], constants)


MASK = np.array([[1, 1, 0, 1, 1, 0], [1, 1, 1, 1, 1, 1]], "int32")


@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("causal", [0, 1])
def test_attention(past: bool, causal: int) -> None:
    constants, inputs = {"w": random(8, 24), "b": random(24)}, {"x": X}
    names, results = ["x", "w", "b", "", ""], ["y"]
    if past:
        inputs["past"], names[4] = random(2, 2, 2, 3, 4), "past"
        results.append("present")
    else:
        inputs["mask"], names[3] = MASK, "mask"
    node = op("Attention", names, results, num_heads=2, unidirectional=causal)
    compare([node], inputs, results, constants)


def test_attention_of_bytes_and_of_several_operands() -> None:
    constants = {"w": weights_of_bytes(8, 24), "b": random(24), "xs": SCALE, "ws": np.float32(0.01), "xz": ZERO,
                 "wz": np.int8(0), "bias": random(24)}  # fmt: skip
    node = op("QAttention", ["x", "w", "b", "xs", "ws", "mask", "xz", "wz"], num_heads=2)
    inputs = {"x": weights_of_bytes(2, 6, 8, dtype="uint8"), "mask": MASK}
    compare([node], inputs, ["y"], constants, atol=1e-4)
    inputs = {"q": X, "k": random(2, 5, 8), "v": random(2, 5, 8), "added": random(1, 2, 6, 5)}
    node = op("MultiHeadAttention", ["q", "k", "v", "bias", "", "added"], num_heads=2)
    compare([node], inputs, ["y"], constants)


def test_operators_of_quantized_values() -> None:
    scales = {"s": SCALE, "z": ZERO, "t": np.float32(0.03), "u": np.uint8(3), "c": np.array([True, False] * 4)}
    inputs = {"x": BYTES}
    step = 1.01  # what lies between two steps is rounded up or down
    one = np.float32(1 / 256)
    node = op("QLinearSoftmax", ["x", "s", "z", "one", "zero"], opset=13, axis=-1)
    compare([node], inputs, ["y"], {**scales, "one": one, "zero": np.uint8(0)}, atol=step)
    older = op("QLinearSoftmax", ["x", "s", "z", "one", "zero"], opset=11, axis=1)  # over all axes from this one on
    compare([older], {"x": weights_of_bytes(2, 3, 4, dtype="uint8")}, ["y"],
            {**scales, "one": one, "zero": np.uint8(0)}, atol=step)  # fmt: skip
    compare([op("QLinearWhere", ["c", "x", "s", "z", "y0", "t", "u", "t", "u"])], inputs, ["y"],
            {**scales, "y0": weights_of_bytes(4, 8, dtype="uint8")}, atol=step)  # fmt: skip
    pool = op("NhwcMaxPool", ["x"], kernel_shape=[2, 2], strides=[2, 2])
    compare([pool], {"x": weights_of_bytes(1, 4, 6, 3, dtype="uint8")}, ["y"])


def test_distances() -> None:
    for metric in ("euclidean", "sqeuclidean"):
        compare([op("CDist", ["x", "t"], metric=metric)], {"x": random(3, 4)}, ["y"], {"t": 2 + random(9, 4)})


def test_what_cannot_be_said_names_the_node() -> None:
    nodes = [op("MatMulNBits", ["x", "b", "s", "", "g"], K=8, N=5, bits=4, block_size=8)]
    constants = {"b": BYTES, "s": random(5), "g": np.zeros(8, "int32")}
    with pytest.raises(ModelError, match=r"the node.*g_idx"):
        portcall.compile.onnx(model_of(nodes, {"x": random(3, 8)}, ["y"], constants, 17), runtime="graph")
