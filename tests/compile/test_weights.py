# SPDX-License-Identifier: Apache-2.0
"""Weights that are beside a model while it is compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import portcall
from portcall.compile import _dynamic, _verify, _vm
from portcall.compile._importer import import_model
from portcall.compile._program import is_constant
from portcall.compile._rewriting import Graph, shapes_inferred
from portcall.compile._target import Target, find_target
from portcall.compile._weights import apart, array_of, arrays_apart, forget_all_but, is_apart, without_weights

SHAPE = (256, 128)
WEIGHTS = np.random.default_rng(0).standard_normal(SHAPE).astype("float32")
FEW = np.arange(SHAPE[1], dtype="float32")


def a_model(rows: int | str = 2) -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Add", ["m", "b"], ["y"])]
    values = [helper.make_tensor_value_info(name, 1, [rows, n]) for name, n in zip("xy", SHAPE, strict=True)]
    weights = [numpy_helper.from_array(WEIGHTS, "w"), numpy_helper.from_array(FEW, "b")]
    graph = helper.make_graph(nodes, "two", values[:1], values[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_large_weights_are_beside_a_model_and_small_ones_in_it() -> None:
    model = a_model()
    with apart():
        light = without_weights(model)
        assert [is_apart(tensor) for tensor in light.graph.initializer] == [True, False]
        assert light.ByteSize() < FEW.nbytes + 500
        assert [*arrays_apart(light)] == ["w"]
        np.testing.assert_array_equal(array_of(light.graph.initializer[0]), WEIGHTS)
    assert model == a_model()
    assert without_weights(model) == model  # outside of it, a copy


def test_what_rewrites_a_model_shares_its_weights() -> None:
    with apart():
        light = without_weights(a_model())
        first = Graph(light)
        second = Graph(shapes_inferred(first.model()))
        assert second.constants["w"] is first.constants["w"]
        assert second.shape("y") == (2, SHAPE[1])


def test_weights_that_no_model_has_are_forgotten() -> None:
    with apart():
        light = without_weights(a_model())
        forget_all_but(light)
        assert is_apart(light.graph.initializer[0])
        forget_all_but()
        assert not is_apart(light.graph.initializer[0])


def test_onnxruntime_gets_the_weights() -> None:
    x = np.ones((2, SHAPE[0]), "float32")
    with apart():
        got = _verify.reference(without_weights(a_model()), {"x": x})["y"]
    np.testing.assert_allclose(got, x @ WEIGHTS + FEW, rtol=1e-4, atol=1e-4)


def test_a_model_cannot_say_that_its_weights_are_there() -> None:
    model = a_model()
    with apart():
        said = without_weights(model).graph.initializer[0]
    with apart():
        assert not is_apart(said)


@pytest.mark.peers
@pytest.mark.usefixtures("vm_pools")
def test_a_model_for_the_relax_vm_is_compiled_and_compared_with_its_weights_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    light: list[bool] = []

    def import_dynamic(model: onnx.ModelProto, target: Target, **words: Any) -> object:
        light.extend(is_apart(tensor) for tensor in model.graph.initializer if tensor.name == "w")
        return _dynamic.import_dynamic(model, target, **words)

    monkeypatch.setattr(_vm, "import_dynamic", import_dynamic)
    made = portcall.compile.onnx(a_model("rows"), runtime="vm")
    assert light
    assert all(light)
    assert made.unchecked == ""


@pytest.mark.peers
def test_weights_are_borrowed_while_a_graph_is_compiled_and_checked() -> None:
    from tvm import relax

    shapes = {"x": (2, SHAPE[0])}
    with apart():
        light = without_weights(a_model())
        found: list[Any] = []
        relax.analysis.post_order_visit(import_model(light, shapes, find_target("native"))["main"], found.append)
        constants = [np.from_dlpack(each.value) for each in found if is_constant(each)]
        weights = array_of(light.graph.initializer[0])
        assert [np.shares_memory(each, weights) for each in constants if each.shape == SHAPE] == [True]
    made = portcall.compile.onnx(a_model(), runtime="graph")
    executor = made._borrowing()
    assert made.params
    assert all(np.shares_memory(executor.get_input(name).numpy(), array) for name, array in made.params.items())
    assert made.unchecked == ""
