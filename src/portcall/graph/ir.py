# SPDX-License-Identifier: Apache-2.0
"""Graphs as objects, for passes to change: made of graph JSON, changed by passes in Python or C++, made JSON again::

    from portcall.graph import ir

    clean = portcall.Sequential([ir.validate, ir.fold_constants, my_pass, ir.remove_dead_code, ir.plan_storage])
    with portcall.PassContext(config={"library": lib}):
        better = clean(ir.from_json(Path("m.json"), params))
    m = portcall.graph.create(ir.to_graph(better), lib, portcall.cpu(0))
    m.load_params(ir.params_of(better))

Objects of the types here do not change: ``replace`` makes others. The types and all passes but ``plan_storage`` are in
C++ (``portcall/graph_ir.h``), where the same pipeline can be run.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import portcall
from portcall import DataType, Object, Shape, Tensor, _ir, errors
from portcall._tensor import array_like, tensor_over_array
from portcall.graph import _spec
from portcall.graph._module import GraphSource, read_graph
from portcall.graph._spec import CALL
from portcall.graph._storage import storage_ids

_ir.library()  # defines the types that the classes here stand for

_DERIVED = ("func_name", "num_inputs", "num_outputs")  # attributes that say again what a node is


@portcall.register_object("portcall.graph.TensorType")
class TensorType(Object):
    """What a value of a graph is; ``TensorType(shape, dtype="float32", device_type=0)``.

    Attributes:
        shape: its extents.
        dtype: the type of its elements.
        device_type: the kind of its device as DLPack numbers them; 0 stands for the graph's first device.
    """

    if TYPE_CHECKING:
        shape: Shape
        dtype: DataType
        device_type: int

        def __init__(self, shape: Sequence[int], dtype: DataType | str = "float32", device_type: int = 0) -> None: ...


@portcall.register_object("portcall.graph.Node")
class Node(Object):
    """A placeholder, which is a parameter if it has data, or a call of a kernel.

    Attributes:
        name: its name. Those of placeholders differ.
        op: ``null`` for a placeholder, ``tvm_op`` for a call.
        function: the kernel's name; empty for a placeholder.
        inputs: the values that it reads, in the order of the kernel's arguments.
        outputs: a TensorType for each value that it makes: the kernel's last arguments.
        attrs: texts under names, ``flatten_data`` among them.
        data: a parameter's tensor, or None.
        control_deps: nodes that are to run before.
    """

    if TYPE_CHECKING:
        name: str
        op: str = "null"
        function: str = ""
        inputs: Sequence[Value] = ()
        outputs: Sequence[TensorType] = ()
        attrs: Mapping[str, str] = {}
        data: Tensor | None = None
        control_deps: Sequence[Node] = ()


@portcall.register_object("portcall.graph.Value")
class Value(Object):
    """One output of a node."""

    if TYPE_CHECKING:
        node: Node
        index: int = 0


@portcall.register_object("portcall.graph.Graph")
class Graph(Object):
    """A graph of kernels.

    Attributes:
        inputs: the placeholders, parameters too, in the order of their index.
        nodes: all nodes, in the order of execution.
        outputs: the values that are its results.
        attrs: what else is known of it, by name.
        value_attrs: what is known of each value, by name, such as ``storage_id``, an Array of numbers. Passes that
            change the nodes drop it.
    """

    if TYPE_CHECKING:
        inputs: Sequence[Node]
        nodes: Sequence[Node]
        outputs: Sequence[Value]
        attrs: Mapping[str, Any] = {}
        value_attrs: Mapping[str, Any] = {}


_validated = portcall.get_global_func("portcall.graph.validate")
validate = portcall.Pass("portcall.graph.validate", _validated)
"""Returns the graph itself, or raises a GraphError that names the node."""

remove_dead_code = portcall.Pass(
    "portcall.graph.remove_dead_code", portcall.get_global_func("portcall.graph.remove_dead_code")
)
"""Drops nodes that no result needs. Inputs without data stay, and so do calls that make nothing."""

fold_constants = portcall.Pass(
    "portcall.graph.fold_constants", portcall.get_global_func("portcall.graph.fold_constants")
)
"""Runs the calls that read parameters only, with the kernels of the context's setting ``library``, on the host, and
puts parameters in their place."""


@portcall.register_pass("portcall.graph.plan_storage", override=True)
def plan_storage(graph: Graph) -> Graph:
    """Give values that are not needed at the same time the same ``storage_id``, for executors that know no better."""
    ids = storage_ids(to_graph(graph))
    columns = [name for name in graph.attrs.get("columns", ("dltype", "shape")) if name != "storage_id"]
    planned: Graph = graph.replace(
        attrs={**graph.attrs, "columns": [*columns, "storage_id"]},
        value_attrs={**graph.value_attrs, "storage_id": list(ids)},
    )
    return planned


def from_json(source: GraphSource, params: Mapping[str, Any] | None = None) -> Graph:
    """Return the graph of a JSON text, of a file (a path), or of a ``portcall.graph.Graph``.

    Parameters:
        source: the graph.
        params: arrays or tensors by the name of the placeholder that they are the data of. Those of the graph's inputs
            that have none are set at run time.

    Raises:
        GraphError: the source is no graph; a parameter is of another type than its placeholder, or has none.
    """
    return from_graph(read_graph(source), params)


def from_graph(graph: _spec.Graph, params: Mapping[str, Any] | None = None) -> Graph:
    """Return a checked graph as objects. Parameters and errors as of ``from_json``."""
    data = {name: _tensor_of(value) for name, value in (params or {}).items()}
    names = {graph.nodes[number].name for number in graph.inputs}
    unknown = next((name for name in data if name not in names), None)
    if unknown is not None:
        raise errors.GraphError(f"no placeholder is called {unknown!r}, of which there is a parameter", node=unknown)
    owners = graph.owners()
    made: list[Node] = []

    def value(entry: int) -> Value:
        return Value(made[owners[entry]], entry - graph.nodes[owners[entry]].outputs.start)

    for node in graph.nodes:
        kinds = graph.values[node.outputs.start : node.outputs.stop]
        made.append(
            Node(
                name=node.name,
                op=node.op,
                function=node.function,
                inputs=[value(entry) for entry in node.inputs],
                outputs=[TensorType(Shape(kind.shape), kind.dtype, kind.device_type or 0) for kind in kinds],
                attrs={name: text for name, text in node.attrs.items() if node.op != CALL or name not in _DERIVED},
                data=data.get(node.name) if node.op != CALL else None,
                control_deps=[made[number] for number in node.control_deps],
            )
        )
    attrs: dict[str, Any] = {"columns": list(graph.columns)}
    if graph.metadata is not None:
        attrs["metadata"] = json.dumps(graph.metadata)
    value_attrs: dict[str, Any] = {name: json.dumps(pair) for name, pair in graph.extra.items()}
    if "storage_id" in graph.columns:
        value_attrs["storage_id"] = [kind.storage_id for kind in graph.values]
    inputs = [made[number] for number in graph.inputs]
    result: Graph = _validated(Graph(inputs, made, [value(entry) for entry in graph.outputs], attrs, value_attrs))
    return result


def to_graph(graph: Graph) -> _spec.Graph:
    """Return a graph that an executor takes; data of parameters is left out, see ``params_of``.

    Raises:
        GraphError: it cannot be run.
    """
    checked: Graph = _validated(graph)
    numbers: dict[Node, int] = {}
    firsts: list[int] = [0]
    nodes, values = [], []
    for number, node in enumerate(checked.nodes):
        numbers[node] = number
        inputs = tuple([firsts[numbers[value.node]] + value.index for value in node.inputs])
        outputs = range(firsts[-1], firsts[-1] + len(node.outputs))
        firsts.append(outputs.stop)
        attrs = dict(node.attrs)
        if node.op == CALL:
            counts = {"num_outputs": str(len(outputs)), "num_inputs": str(len(inputs))}
            attrs = {**counts, "flatten_data": "0", "func_name": node.function, **attrs}
        deps = tuple([numbers[before] for before in node.control_deps])
        nodes.append(_spec.Node(node.op, node.name, inputs, outputs, attrs, deps))
        values += [_spec.Value(tuple(kind.shape), kind.dtype, None, kind.device_type or None) for kind in node.outputs]
    ids = checked.value_attrs.get("storage_id")
    if ids is not None:
        values = [dataclasses.replace(value, storage_id=i) for value, i in zip(values, ids, strict=True)]
    extra = {name: json.loads(text) for name, text in checked.value_attrs.items() if name != "storage_id"}
    there = {"dltype", "shape", "device_index", *checked.value_attrs}
    columns = tuple([name for name in checked.attrs.get("columns", ("dltype", "shape")) if name in there])
    if "device_index" not in columns and any(value.device_type for value in values):
        columns = (*columns, "device_index")
    metadata = json.loads(checked.attrs.get("metadata", "null"))
    results = tuple([firsts[numbers[value.node]] + value.index for value in checked.outputs])
    inputs = tuple([numbers[node] for node in checked.inputs])
    made = _spec.Graph(tuple(nodes), tuple(values), inputs, results, columns, extra, metadata)
    return _spec.Graph.from_json(made.to_json())  # which checks every number of it


def to_json(graph: Graph) -> str:
    """Return a graph as the JSON that executors read; data of parameters is left out, see ``params_of``.

    Raises:
        GraphError: it cannot be run.
    """
    return to_graph(graph).to_json()


def params_of(graph: Graph) -> dict[str, Tensor]:
    """Return the data of the graph's parameters by name, as ``GraphModule.load_params`` takes it."""
    return {node.name: node.data for node in graph.inputs if node.data is not None}


def _tensor_of(value: Any) -> Tensor:
    array = array_like(value)
    return array if isinstance(array, Tensor) else tensor_over_array(array)
