# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="arg-type, dict-item, list-item"
"""A graph built by hand is the one meant, and what is wrong is an error of the call that said it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import portcall
from portcall import errors
from portcall.graph import Graph, GraphBuilder


def test_graph_builder_builds_calls_views_and_several_outputs() -> None:
    b = GraphBuilder()
    x = b.input("x", (2, 4))
    w = b.param("w", shape=(3, 4))
    y = b.call("dense", [x, w], (2, 3), attrs={"hash": "12"})
    left, right = b.call("split", [y], [(2, 1), (2, 2)], ["float32", "int8"], flatten_data=True)
    flat = b.reshape(y, (-1,))
    b.output(flat, left)
    b.output(right, x)
    graph = b.graph()
    assert [(node.name, node.function) for node in graph.nodes] == [
        ("x", ""), ("w", ""), ("dense", "dense"), ("split", "split"), ("reshape", "__nop"),
    ]  # fmt: skip
    assert graph.nodes[2].attrs["hash"] == "12"
    assert [node.inputs for node in graph.nodes] == [(), (), (0, 1), (2,), (2,)]
    assert [node.flatten_data for node in graph.nodes] == [False, False, False, True, False]
    assert graph.inputs == (0, 1)
    assert graph.outputs == (5, 3, 4, 0)
    assert [(value.shape, str(value.dtype)) for value in graph.values[2:]] == [
        ((2, 3), "float32"), ((2, 1), "float32"), ((2, 2), "int8"), ((6,), "float32"),
    ]  # fmt: skip
    assert (right.node, right.shape, str(right.dtype)) == ("split", (2, 2), "int8")
    assert repr(left) == "<float32[2, 1] of node 'split'>"


def test_graph_builder_call_with_one_shape_in_a_list_returns_a_tuple() -> None:
    b = GraphBuilder()
    x = b.input("x", ())
    assert len(b.call("f", [x], [()])) == 1
    assert b.call("f", [x], ()).shape == ()


def test_graph_builder_json_has_storage_ids() -> None:
    b = GraphBuilder()
    x = b.input("x", (4,))
    for _ in range(4):
        x = b.call("relu", [x], (4,))
    b.output(b.reshape(x, (2, 2)))
    graph = Graph.from_json(b.to_json())
    assert [value.storage_id for value in graph.values] == [0, 1, 2, 1, 2, 2]
    assert graph.to_json() == b.to_json()
    assert graph.nodes == b.graph().nodes


def test_graph_builder_makes_unique_names() -> None:
    b = GraphBuilder()
    x = b.input("relu", (4,))
    names = [b.call("relu", [x], (4,)).node, b.call("relu", [x], (4,), name="mine").node, b.reshape(x, (2, 2)).node]
    assert names == ["relu_1", "mine", "reshape"]
    assert b.call("relu", [x], (4,)).node == "relu_2"


def test_graph_builder_keeps_parameters_by_name() -> None:
    b = GraphBuilder()
    weights = np.ones((3, 2), "float16")
    weights.flags.writeable = False
    tensor = portcall.tensor(np.zeros(2), "bfloat16")
    assert str(b.param("w", weights).dtype) == "float16"
    assert str(b.param("t", tensor).dtype) == "bfloat16"
    assert b.param("l", [1.5, 2]).shape == (2,)
    b.param("later", shape=(), dtype="int64")
    assert b.params["w"] is weights
    assert b.params["t"] is tensor
    assert list(b.params) == ["w", "t", "l"]


def test_graph_builder_places_values_on_the_device_of_their_first_input() -> None:
    b = GraphBuilder("cpu")
    x, w = b.input("x", (4,)), b.param("w", shape=(4,), device="cuda")
    there = b.call("add", [b.copy(x, "cuda"), w], (4,))
    back = b.reshape(b.copy(there, portcall.cpu()), (2, 2))
    b.output(back, b.call("fill", [], (4,), device="cuda"), b.call("fill", [], (4,)))
    kinds = [value.device_type for value in b.graph().values]
    assert kinds == [1, 2, 2, 2, 1, 1, 2, 1]
    assert json.loads(b.to_json())["attrs"]["device_index"] == ["list_int", kinds]
    assert GraphBuilder().input("x", ()).device_type is None


WRONG: dict[str, tuple[Callable[[GraphBuilder, Any], Any], type[Exception], str]] = {
    "a name twice": (lambda b, x: b.input("x", (1,)), errors.GraphError, "the name 'x' is taken"),
    "a call's name twice": (lambda b, x: b.call("f", [x], (1,), name="x"), errors.GraphError, "'x' is taken"),
    "no name": (lambda b, x: b.input("", (1,)), errors.ArgumentError, "a name, got ''"),
    "a name that is not a str": (lambda b, x: b.call("f", [x], (1,), name=3), errors.ArgumentError, "a text as a name"),
    "half a name": (lambda b, x: b.input("\ud800", (1,)), errors.GraphError, "surrogate"),
    "a number as a shape": (lambda b, x: b.input("y", 5), errors.ArgumentError, "a shape, a list of whole numbers"),
    "fractions as a shape": (lambda b, x: b.call("f", [x], (1.5,)), errors.ArgumentError, "a shape"),
    "no shape": (lambda b, x: b.call("f", [x], None), errors.ArgumentError, "a shape"),
    "a negative extent": (lambda b, x: b.input("y", (-1,)), errors.GraphError, "static shapes"),
    "a huge shape": (lambda b, x: b.input("y", (2**40, 2**40)), errors.GraphError, r"2\*\*56"),
    "many dimensions": (lambda b, x: b.input("y", (1,) * 65), errors.GraphError, "65 dimensions"),
    "no type": (lambda b, x: b.input("y", (1,), "float"[:3]), errors.GraphError, "unknown data type 'flo'"),
    "odd bits": (lambda b, x: b.input("y", (1,), "int3"), errors.GraphError, "elements of 3 bits"),
    "a view as a call": (lambda b, x: b.call("__nop", [x], (1,)), errors.GraphError, "reshape"),
    "a copy as a call": (lambda b, x: b.call("__copy", [x], (1,)), errors.GraphError, "copy"),
    "no function": (lambda b, x: b.call("", [x], (1,)), errors.ArgumentError, "the name of a kernel"),
    "one input": (lambda b, x: b.call("f", x, (1,)), errors.ArgumentError, "a list of values of this graph"),
    "an array as an input": (lambda b, x: b.call("f", [np.ones(1)], (1,)), errors.ArgumentError, "values that input"),
    "types without shapes": (lambda b, x: b.call("f", [x], (1,), ["int8"] * 2), errors.GraphError, "1 shapes and 2"),
    "attributes": (lambda b, x: b.call("f", [x], (1,), attrs={"a": 1}), errors.GraphError, "a text expected, got 1"),
    "a device alone": (lambda b, x: b.input("y", (1,), device="cuda"), errors.GraphError, "GraphBuilder"),
    "a copy to nowhere": (lambda b, x: b.copy(x, "cuda"), errors.GraphError, "GraphBuilder"),
    "a shape that does not fit": (lambda b, x: b.reshape(x, (3, 3)), errors.GraphError, "has 8 elements"),
    "a rest that does not fit": (lambda b, x: b.reshape(x, (3, -1)), errors.GraphError, "has 8 elements"),
    "two rests": (lambda b, x: b.reshape(x, (-1, -1)), errors.GraphError, "each extent is 0 or more"),
    "another builder's value": (lambda b, x: GraphBuilder().output(x), errors.GraphError, "another builder"),
    "an invalid result": (lambda b, x: b.output("x"), errors.ArgumentError, "values that input"),
    "no results": (lambda b, x: b.graph(), errors.GraphError, "name them with output"),
    "a parameter of nothing": (lambda b, x: b.param("w"), errors.ArgumentError, "an array, or shape="),
    "a parameter of objects": (lambda b, x: b.param("w", object()), errors.ArgumentError, "an array or tensor"),
}


@pytest.mark.parametrize("name", WRONG)
def test_graph_builder_wrong_call_changes_nothing(name: str) -> None:
    call, kind, words = WRONG[name]
    b = GraphBuilder()
    x = b.input("x", (2, 4))
    with pytest.raises(kind, match=words):
        call(b, x)
    b.output(x)
    assert len(b.graph().nodes) == 1
    assert b.params == {}


def test_graph_builder_refuses_inputs_on_another_device() -> None:
    b = GraphBuilder("cpu")
    x, w = b.input("x", (4,)), b.input("w", (4,), device="cuda")
    with pytest.raises(errors.GraphError, match=r"'add' runs on cpu, but its input .* is on cuda; copy\(\) moves it"):
        b.call("add", [x, w], (4,))
