# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="arg-type"
"""Graphs as objects: from JSON and back, passes of C++ and Python over them, the same results from the executor."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import numpy as np
import pytest

import portcall
from graph.models import CPU, EXT_DEV, Model, f32, mlp_json, mlp_params
from portcall import errors, graph
from portcall.graph import ir
from portcall.ir import PassContext, Sequential

portcall.ir.structural_hash(0)  # loads the library that the tests use, which stays


def names(nodes: Any) -> list[str]:
    return [node.name for node in nodes]


def folding_json() -> str:
    """out = relu(x + relu(a + b)), where a, b are parameters; ``dead`` is needed by nobody."""
    m = Model()
    x, a, b, c = (m.input(name, (4, 8)) for name in "xabc")
    weights = m.call("relu", [m.call("add", [a, b], f32(4, 8), name="ab")], f32(4, 8), name="weights")
    m.call("add", [weights, c], f32(4, 8), name="dead")
    return m.json(m.call("relu", [m.call("add", [x, weights], f32(4, 8), name="sum")], f32(4, 8), name="out"))


def folding_params() -> dict[str, Any]:
    random = np.random.default_rng(1)
    return {name: random.standard_normal((4, 8)).astype("float32") for name in "abc"}


def mixed_json() -> str:
    """Everything that a file may have: devices, views, several outputs, flat kernels, other attributes."""
    m = Model()
    x = m.input("x", (4, 8), device=CPU)
    there = m.call("__copy", [x], f32(4, 8), name="there", device=EXT_DEV)
    view = m.call("__nop", [there], f32(32), name="view", device=EXT_DEV, on=there)
    node, _ = m.call("split", [view], f32(16), f32(16), name="parts", device=EXT_DEV)
    m.call("add_flat", [(node, 0), (node, 1)], f32(4, 4), name="sum", flat=True, device=EXT_DEV)
    document = json.loads(m.json((node, 1), (node + 1, 0)))
    document["nodes"][-1]["control_deps"] = [1]
    document["nodes"][-1]["attrs"]["hash"] = "0123"
    document["attrs"]["storage_scope"] = ["list_str", [""] * len(m.shapes)]
    document["metadata"] = {"made by": ["a test"]}
    return json.dumps(document)


@pytest.mark.parametrize("text", [mlp_json(), folding_json(), mixed_json()], ids=["mlp", "folding", "mixed"])
def test_graph_ir_round_trip_gives_the_same_graph(text: str) -> None:
    objects = ir.from_json(text)
    assert ir.to_graph(objects) == graph.Graph.from_json(text)
    for again in (portcall.ir.load_json(portcall.ir.save_json(objects)), pickle.loads(pickle.dumps(objects))):
        assert portcall.ir.structural_equal(again, objects)
        assert ir.to_json(again) == ir.to_json(objects)


def test_graph_ir_nodes_and_values_are_objects() -> None:
    made = ir.from_json(mlp_json(), mlp_params())
    assert names(made.inputs) == ["x", "w1", "b1", "w2", "b2"]
    assert names(made.nodes) == ["x", "w1", "b1", "dense1", "relu", "w2", "b2", "dense2"]
    dense = made.nodes[3]
    assert (dense.op, dense.function, dense.attrs) == ("tvm_op", "dense", {"flatten_data": "0"})
    assert [value.node.name for value in dense.inputs] == ["x", "w1", "b1"]
    assert dense.inputs[0].node == made.inputs[0]
    kind = dense.outputs[0]
    assert (kind.shape, str(kind.dtype), kind.device_type) == ((4, 32), "float32", 0)
    assert made.inputs[0].data is None
    assert sorted(ir.params_of(made)) == ["b1", "b2", "w1", "w2"]
    assert [type(part) for part in (made, dense, dense.inputs[0], kind)] == [ir.Graph, ir.Node, ir.Value, ir.TensorType]


def test_graph_ir_from_graph_names_parameters_that_do_not_fit() -> None:
    with pytest.raises(errors.GraphError, match="no placeholder is called 'w9'"):
        ir.from_json(mlp_json(), {"w9": np.zeros(3, "float32")})
    with pytest.raises(errors.GraphError, match=r"'w1', is of type float32 \(32, 16\), but its data of float32 \(3,\)"):
        ir.from_json(mlp_json(), {"w1": np.zeros(3, "float32")})


def test_graph_ir_validate_names_the_node() -> None:
    made = ir.from_json(mlp_json())
    broken = made.replace(nodes=list(reversed(made.nodes)))
    with pytest.raises(errors.GraphError, match="what node number 0, 'dense2', reads, an output of 'relu'") as caught:
        Sequential([ir.remove_dead_code, ir.validate], "check")(broken)
    assert caught.value.__notes__[-1] == "in pass 'check'"
    assert caught.value.node == "dense2"
    with pytest.raises(errors.GraphError, match="'dense2'"):
        ir.to_graph(broken)


def call(name: str, function: str, *inputs: ir.Node, size: int = 2) -> ir.Node:
    return ir.Node(name, "tvm_op", function, [ir.Value(node) for node in inputs], [ir.TensorType((size,))])


def placeholder(name: str, size: int = 2, data: Any = None) -> ir.Node:
    return ir.Node(name, outputs=[ir.TensorType((size,))], data=None if data is None else portcall.tensor(data))


def graph_of(*nodes: ir.Node, results: Any = None) -> ir.Graph:
    outputs = [ir.Value(nodes[-1])] if results is None else results
    return ir.Graph([node for node in nodes if node.op == "null"], nodes, outputs, value_attrs={"storage_id": [1, 2]})


X, Y = placeholder("x"), placeholder("x")
SUM = call("sum", "add", X, X)
VALUE = ir.Value(X)
FLAWS = {
    "an input that comes later": (graph_of(SUM, X, results=[ir.Value(SUM)]), "sum"),
    "a node twice": (graph_of(X, SUM, SUM), "sum"),
    "no results": (graph_of(X, results=[]), ""),
    "a result that is not made": (graph_of(X, results=[ir.Value(SUM)]), "sum"),
    "a name twice": (graph_of(X, Y), "x"),
    "no name": (graph_of(X, call("", "f", X)), ""),
    "a placeholder that is not listed": (graph_of(X, SUM).replace(inputs=[]), "x"),
    "an input that is not there": (graph_of(X, SUM).replace(inputs=[X, Y]), "x"),
    "an input twice": (graph_of(X, SUM).replace(inputs=[X, X]), "x"),
    "a call as input": (graph_of(X, SUM).replace(inputs=[X, SUM]), "sum"),
    "an output that does not exist": (graph_of(X, SUM, results=[ir.Value(SUM, 1)]), "sum"),
    "an output below 0": (graph_of(X, SUM, results=[ir.Value(SUM, -1)]), "sum"),
    "another op": (graph_of(X, ir.Node("c", "conv", "f", [VALUE], [ir.TensorType((2,))])), "c"),
    "a call without a function": (graph_of(X, call("c", "", X)), "c"),
    "a call with data": (graph_of(X, SUM.replace(data=portcall.empty((2,)))), "sum"),
    "a negative extent": (graph_of(X, placeholder("y", -1)), "y"),
    "a view of another size": (graph_of(X, call("view", "__nop", X, size=3)), "view"),
    "a view of two inputs": (graph_of(X, call("view", "__nop", X, X)), "view"),
    "data of another shape": (graph_of(placeholder("w", 2, np.zeros(3, "float32"))), "w"),
    "data of another type": (graph_of(placeholder("w", 2, np.zeros(2, "int32"))), "w"),
    "a placeholder that reads": (graph_of(X, ir.Node("y", inputs=[VALUE], outputs=[ir.TensorType((2,))])), "y"),
    "a placeholder with two outputs": (graph_of(ir.Node("y", outputs=[ir.TensorType((2,))] * 2)), "y"),
    "a dependency that comes later": (graph_of(X, call("late", "f", X).replace(control_deps=[SUM]), SUM), "late"),
    "a value of no node": (graph_of(X, results=[ir.Value(VALUE)]), ""),
}


@pytest.mark.parametrize(("flawed", "node"), FLAWS.values(), ids=FLAWS)
def test_graph_ir_validate_finds_each_flaw(flawed: ir.Graph, node: str) -> None:
    assert ir.validate(graph_of(X, SUM)) is not None
    with pytest.raises(errors.GraphError) as caught:
        ir.validate(flawed)
    assert caught.value.node == node


def test_remove_dead_code_keeps_inputs_and_calls_without_outputs() -> None:
    unused, w, dead_w = (
        placeholder("unused"),
        placeholder("w", 2, np.ones(2, "float32")),
        placeholder("dw", 2, np.ones(2, "float32")),
    )
    first = call("first", "f", X)
    total = call("sum", "add", X, w).replace(control_deps=[first])
    dead = call("dead", "add", total, dead_w)
    effect = ir.Node("effect", "tvm_op", "log", [VALUE])
    made = graph_of(X, unused, w, dead_w, first, total, dead, effect, results=[ir.Value(total)])
    clean = ir.remove_dead_code(made)
    assert names(clean.nodes) == ["x", "unused", "w", "first", "sum", "effect"]
    assert names(clean.inputs) == ["x", "unused", "w"]
    assert dict(clean.value_attrs) == {}
    assert ir.remove_dead_code(clean) == clean


def test_fold_constants_handles_views_flat_kernels_and_devices(lib: portcall.Module) -> None:
    pair, single, flat = ir.TensorType((1, 2)), ir.TensorType((1, 1)), ir.TensorType((2,))

    def made_by(function: str, name: str, sources: list[Any], outputs: list[ir.TensorType], **more: Any) -> ir.Node:
        values = [source if isinstance(source, ir.Value) else ir.Value(source) for source in sources]
        return ir.Node(name, "tvm_op", function, values, outputs, **more)

    x = ir.Node("x", outputs=[single])
    a = ir.Node("a", outputs=[pair], data=portcall.tensor(np.array([[1, 2]], "float32")))
    b = ir.Node("b", outputs=[pair], data=portcall.tensor(np.array([[10, 20]], "float32")))
    ab = made_by("add", "a", [a, b], [pair])  # "a" is the name of a placeholder too
    twice = made_by("add", "twice", [ab, ab], [pair])
    parts = made_by("halves", "parts", [twice], [single, single])
    view = made_by("__nop", "view", [ab], [flat])
    level = made_by("add_flat", "flat", [view, view], [pair], attrs={"flatten_data": "1"})
    out = made_by("add", "out", [x, ir.Value(parts, 1)], [single])
    remote = made_by("add", "remote", [a, b], [ir.TensorType((1, 2), device_type=2)])
    last = made_by("f", "last", [out, level], [single], control_deps=[twice, out])
    nodes = (x, a, b, ab, twice, parts, view, level, out, remote, last)
    made = graph_of(*nodes, results=[ir.Value(last), ir.Value(out)])
    with PassContext(config={"library": lib}):
        folded = ir.validate(ir.fold_constants(ir.validate(made)))
        assert ir.fold_constants(folded) == folded
    assert names(folded.nodes) == [
        "x", "a", "b", "a_1", "twice", "parts_0", "parts_1", "view", "flat", "out", "remote", "last",
    ]  # fmt: skip
    assert names(folded.inputs) == ["x", "a", "b", "a_1", "twice", "parts_0", "parts_1", "view", "flat"]
    data = {name: tensor.numpy().tolist() for name, tensor in ir.params_of(folded).items()}
    assert (data["twice"], data["parts_1"], data["view"], data["flat"]) == ([[22, 44]], [[44]], [11, 22], [[22, 44]])
    assert [dep.name for dep in folded.nodes[-1].control_deps] == ["out"]
    assert names(ir.remove_dead_code(folded).nodes) == ["x", "parts_1", "flat", "out", "last"]


def test_fold_constants_and_remove_dead_code_keep_the_result(lib: portcall.Module) -> None:
    params, x = folding_params(), np.random.default_rng(2).standard_normal((4, 8)).astype("float32")
    made = ir.from_json(folding_json(), params)
    before = graph.create(folding_json(), lib, portcall.cpu())
    before.load_params(params)
    before.run(x=x)
    with PassContext(config={"library": lib}) as ctx:
        clean = Sequential([ir.validate, ir.fold_constants, ir.remove_dead_code, ir.validate], "clean")(made)
    assert names(clean.nodes) == ["x", "weights", "sum", "out"]
    assert names(made.nodes) == ["x", "a", "b", "c", "ab", "weights", "dead", "sum", "out"]
    expected = np.maximum(params["a"] + params["b"], 0)
    assert np.array_equal(ir.params_of(clean)["weights"].numpy(), expected)
    assert [timing.name.rpartition(".")[2] for timing in ctx.timings][:3] == [
        "validate", "fold_constants", "remove_dead_code",
    ]  # fmt: skip
    after = graph.create(ir.to_graph(clean), lib, portcall.cpu())
    after.load_params(ir.params_of(clean))
    after.run(x=x)
    assert np.array_equal(after.get_output(0).numpy(), before.get_output(0).numpy())
    assert np.array_equal(after.get_output(0).numpy(), np.maximum(x + expected, 0))


def test_fold_constants_without_library_or_kernel_is_an_error(lib: portcall.Module) -> None:
    made = ir.from_json(folding_json(), folding_params())
    with pytest.raises(ValueError, match=r"config=\{'library': library\}"):
        ir.fold_constants(made)
    renamed = portcall.ir.rewrite(
        made, lambda node: node.replace(function="nobody") if node.name == "ab" else None, ir.Node
    )
    with (
        PassContext(config={"library": lib}),
        pytest.raises(errors.GraphError, match="node 'ab' calls 'nobody', which the library lacks") as caught,
    ):
        ir.fold_constants(renamed)
    assert "at node 'ab' of the graph" in caught.value.__notes__
    assert caught.value.node == "ab"


def test_fold_constants_takes_unaligned_arrays(lib: portcall.Module) -> None:
    params = {name: np.frombuffer(b"\0" * 4 + a.tobytes(), "float32", offset=4).reshape(4, 8)
              for name, a in folding_params().items()}  # fmt: skip
    with PassContext(config={"library": lib}):
        folded = ir.fold_constants(ir.from_json(folding_json(), params))
    assert np.array_equal(ir.params_of(folded)["ab"].numpy(), params["a"] + params["b"])


def test_plan_storage_is_dropped_when_nodes_change(lib: portcall.Module) -> None:
    made = ir.from_json(folding_json(), folding_params())
    assert len(made.value_attrs["storage_id"]) == 9
    clean = ir.remove_dead_code(made)
    assert dict(clean.value_attrs) == {}
    assert "storage_id" not in ir.to_graph(clean).columns
    planned = ir.plan_storage(clean)
    assert len(planned.value_attrs["storage_id"]) == len(planned.nodes)
    assert len(set(planned.value_attrs["storage_id"])) < len(planned.nodes)
    assert ir.to_graph(planned).values[0].storage_id is not None
    assert portcall.get_global_func("portcall.graph.plan_storage")(clean).value_attrs == planned.value_attrs


def test_pass_of_python_runs_between_two_of_cpp(lib: portcall.Module) -> None:
    """relu(relu(x)) is relu(x): what C++ folds and Python simplifies, C++ cleans up, and the executor runs."""
    m = Model()
    x, a, b = (m.input(name, (4, 8)) for name in "xab")
    weights = m.call("add", [a, b], f32(4, 8), name="weights")
    inner = m.call("relu", [m.call("add", [x, weights], f32(4, 8), name="sum")], f32(4, 8), name="inner")
    text = m.json(m.call("relu", [inner], f32(4, 8), name="outer"))
    params = {name: value for name, value in folding_params().items() if name != "c"}

    @portcall.ir.register_pass("test.graph.relu_once", required=["portcall.graph.validate"])
    def relu_once(graph: ir.Graph) -> ir.Graph:
        def once(value: ir.Value) -> ir.Value | None:
            node = value.node
            source = node.inputs[0].node if node.function == "relu" else None
            return ir.Value(source) if source is not None and source.function == "relu" else None

        return graph.replace(outputs=[once(value) or value for value in graph.outputs])

    try:
        run = Sequential(["portcall.graph.fold_constants", "test.graph.relu_once", "portcall.graph.remove_dead_code"])
        made = ir.from_json(text, params)
        with PassContext(config={"library": lib}) as ctx:
            simple = run(made)
    finally:
        portcall.remove_global_func("test.graph.relu_once")
    assert [t.name.rpartition(".")[2] for t in ctx.timings][:4] == [
        "fold_constants", "validate", "relu_once", "remove_dead_code",
    ]  # fmt: skip
    assert names(simple.nodes) == ["x", "weights", "sum", "inner"]
    values = np.random.default_rng(3).standard_normal((4, 8)).astype("float32")
    results = []
    for source, given in ((text, params), (ir.to_graph(ir.plan_storage(simple)), ir.params_of(simple))):
        executor = graph.create(source, lib, portcall.cpu())
        executor.load_params(given)
        executor.run(x=values)
        results.append(executor.get_output(0).numpy())
    assert np.array_equal(*results)


def test_graph_ir_structural_equal_and_copy() -> None:
    one, other = ir.from_json(mlp_json(), mlp_params()), ir.from_json(mlp_json(), mlp_params(seed=1))
    assert portcall.ir.structural_equal(one, copy.deepcopy(one))
    assert portcall.ir.structural_hash(one) == portcall.ir.structural_hash(ir.from_json(mlp_json(), mlp_params()))
    assert str(portcall.ir.first_mismatch(one, other)).startswith("<root>.inputs[1].data: ")


def test_pass_error_names_the_node(lib: portcall.Module) -> None:
    def rename(node: ir.Node) -> ir.Node:
        return node.replace(name={"x": "input"}[node.name])

    with pytest.raises(KeyError) as caught:
        Sequential([ir.validate, lambda made: portcall.ir.rewrite(made, rename, ir.Node)], "renaming")(
            ir.from_json(mlp_json())
        )
    assert caught.value.args == ("w1",)
    assert caught.value.__notes__[0] == "at <root>.inputs[1], of type portcall.graph.Node"
    assert caught.value.__notes__[1].startswith("in pass 'test_pass_error_names")
