# SPDX-License-Identifier: Apache-2.0
"""Graphs as objects, for passes to change: made of graph JSON, changed by passes in Python or C++, made JSON again::

    from portcall.graph import ir

    clean = portcall.ir.Sequential([ir.validate, ir.fold_constants, my_pass, ir.remove_dead_code, ir.plan_storage])
    with portcall.ir.PassContext(config={"library": lib}):
        better = clean(ir.from_json(Path("m.json"), params))
    m = portcall.graph.create(ir.to_graph(better), lib, portcall.cpu(0))
    m.load_params(ir.params_of(better))

A node is a placeholder (an input; with data: a parameter) or a call of a kernel. It refers to what it reads, so a graph
is what its outputs reach; the list of its nodes is the order of execution. Objects of the types here do not change:
``replace`` makes others.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import portcall
from portcall import DataType, Module, Object, Shape, Tensor, errors
from portcall._tensor import array_like, tensor_over_array
from portcall.graph import _spec
from portcall.graph._module import GraphSource, read_graph
from portcall.graph._spec import CALL
from portcall.graph._storage import storage_ids
from portcall.ir import PassContext
from portcall.ir._passes import note_on_error

__all__ = [
    "Graph", "Node", "TensorType", "Value",
    "fold_constants", "from_graph", "from_json", "params_of", "plan_storage", "remove_dead_code", "to_graph", "to_json",
    "validate",
]  # fmt: skip

_DERIVED = ("func_name", "num_inputs", "num_outputs")  # attributes that say again what a node is
_PLACEHOLDER = "null"
_NOP = "__nop"  # a kernel that needs none: a view of its input with another shape
_COPY = "__copy"  # likewise: its input on another device


@portcall.register_object("portcall.graph.TensorType")
class TensorType(Object):
    """What a value of a graph is; ``TensorType(shape, dtype="float32", device_type=0)``.

    Attributes:
        shape: its extents.
        dtype: the type of its elements.
        device_type: the kind of its device as DLPack numbers them; 0 stands for the graph's first device.
    """

    shape: Shape
    dtype: DataType = portcall.dtype("float32")
    device_type: int = 0

    def __init__(self, shape: Sequence[int], dtype: DataType | str = "float32", device_type: int = 0) -> None:
        Object.__init__(self, shape=Shape(shape), dtype=portcall.dtype(dtype), device_type=device_type)

    def __str__(self) -> str:
        where = f" on devices of type {self.device_type}" if self.device_type else ""
        return f"{self.dtype} {tuple(self.shape)}{where}"

    @property
    def size(self) -> int:
        """The bits of all elements."""
        return self.dtype.bits * self.dtype.lanes * math.prod(self.shape)


@portcall.register_object("portcall.graph.Value")
class Value(Object):
    """One output of a node."""

    if TYPE_CHECKING:
        node: Node
    else:
        node: Object  # a Node, whose class comes next
    index: int = 0

    @property
    def type(self) -> TensorType:
        """What it is."""
        kind: TensorType = self.node.outputs[self.index]
        return kind


@portcall.register_object("portcall.graph.Node", compare="shared")
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

    name: str
    op: str = _PLACEHOLDER
    function: str = ""
    inputs: list[Value] = portcall.field(default_factory=list)
    outputs: list[TensorType] = portcall.field(default_factory=list)
    attrs: dict[str, str] = portcall.field(default_factory=dict)
    data: Tensor | None = None
    control_deps: list[Node] = portcall.field(default_factory=list)


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

    inputs: list[Node]
    nodes: list[Node]
    outputs: list[Value]
    attrs: dict[str, Any] = portcall.field(default_factory=dict)
    value_attrs: dict[str, Any] = portcall.field(default_factory=dict)


@portcall.ir.register_pass("portcall.graph.validate", override=True)
def validate(graph: Graph) -> Graph:
    """Return the graph itself, or raise a GraphError that names the node: an input that does not come before it, an
    output that does not exist, data of another type, names that occur twice, and the like."""
    _Validator(_checked(graph)).run()
    return graph


@portcall.ir.register_pass("portcall.graph.remove_dead_code", override=True)
def remove_dead_code(graph: Graph) -> Graph:
    """Drop nodes that no result needs. Inputs without data stay, for they are how the graph is called; so do calls that
    make nothing, for what they do is not in the graph. The graph itself if all are needed."""
    needed = {value.node for value in _checked(graph).outputs}
    for node in reversed(graph.nodes):  # a node comes before those that need it
        stays = node.data is None if node.op == _PLACEHOLDER else not node.outputs
        if stays or node in needed:
            needed |= {node, *(value.node for value in node.inputs), *node.control_deps}
    nodes = [node for node in graph.nodes if node in needed]
    if len(nodes) == len(graph.nodes):
        return graph
    return Graph([node for node in graph.inputs if node in needed], nodes, graph.outputs, graph.attrs)


@portcall.ir.register_pass("portcall.graph.fold_constants", override=True)
def fold_constants(graph: Graph) -> Graph:
    """Put a parameter in the place of each call that reads parameters only; the graph itself if there is none.

    The kernels run here, on the host: they are functions of the context's setting ``library``, or of what it imports.
    Calls on other devices stay.

    Raises:
        ValueError: there is no such setting.
        GraphError: the library does not have a kernel.
    """
    library = PassContext.current().config.get("library")
    if not isinstance(library, Module):
        raise ValueError(
            "folding constants takes the kernels' library: run it in a PassContext with config={'library': library}"
        )
    return _Folder(_checked(graph), library).run()


@portcall.ir.register_pass("portcall.graph.plan_storage", override=True)
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
        GraphError: the source is not a graph; a parameter is of another type than its placeholder, or has none.
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
    return validate.run(Graph(inputs, made, [value(entry) for entry in graph.outputs], attrs, value_attrs))  # type: ignore[no-any-return]


def to_graph(graph: Graph) -> _spec.Graph:
    """Return a graph that an executor takes; data of parameters is left out, see ``params_of``.

    Raises:
        GraphError: it cannot be run.
    """
    checked: Graph = validate.run(graph)
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
    return _spec.Graph.from_json(made.to_json())  # from_json checks every number


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


def _checked(graph: Any) -> Graph:
    if not isinstance(graph, Graph):
        raise TypeError(f"expected a graph of portcall.graph.ir, got {type(graph).__name__}")
    return graph


class _Validator:
    """Checks a graph node by node, in the order of execution."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._seen: set[Node] = set()
        self._names: set[str] = set()  # of placeholders

    def run(self) -> None:
        graph = self._graph
        for number, node in enumerate(graph.nodes):
            self._check(node, f"node number {number}, '{node.name}',")
        inputs: set[Node] = set()
        for node in graph.inputs:
            what = f"the input '{node.name}'"
            _require(node in self._seen, node, f"{what} is not among the nodes")
            _require(node.op == _PLACEHOLDER, node, f"{what} is a call, not a placeholder")
            _require(node not in inputs, node, f"{what} is in the list a second time")
            inputs.add(node)
        for node in graph.nodes:
            listed = node.op != _PLACEHOLDER or node in inputs
            _require(listed, node, f"the placeholder '{node.name}' is not among the inputs")
        _require(bool(graph.outputs), None, "the graph has no results")
        for value in graph.outputs:
            self._check_value(value, value.node, "a result of the graph")

    def _check(self, node: Node, here: str) -> None:
        _require(node not in self._seen, node, f"{here} is in the list a second time")
        _require(bool(node.name), node, f"{here} needs a name")
        for kind in node.outputs:
            shape = tuple(kind.shape)
            _require(min(shape, default=0) >= 0, node, f"{here} has an output of shape {shape}; extents are 0 or more")
        if node.op == _PLACEHOLDER:
            self._check_placeholder(node, here)
        else:
            self._check_call(node, here)
        self._seen.add(node)

    def _check_placeholder(self, node: Node, here: str) -> None:
        twice = f"{here} has the name of another placeholder; inputs are set by name"
        _require(node.name not in self._names, node, twice)
        self._names.add(node.name)
        alone = not node.inputs and not node.function
        _require(alone, node, f"{here} is a placeholder, and cannot read anything or call a function")
        count = len(node.outputs)
        _require(count == 1, node, f"{here} is a placeholder, which has one output, not {count}")
        if node.data is not None:
            kind, data = node.outputs[0], TensorType(Shape(node.data.shape), node.data.dtype)
            fits = (tuple(kind.shape), kind.dtype) == (tuple(data.shape), data.dtype)
            _require(fits, node, f"{here} is of type {kind}, but its data of {data}")

    def _check_call(self, node: Node, here: str) -> None:
        known = node.op == CALL
        _require(known, node, f"{here} has the op '{node.op}', which is neither '{_PLACEHOLDER}' nor '{CALL}'")
        _require(bool(node.function), node, f"{here} is a call of no function")
        _require(node.data is None, node, f"{here} has data, which only parameters have")
        for value in node.inputs:
            self._check_value(value, node, f"what {here} reads")
        for before in node.control_deps:
            ready = before in self._seen
            _require(ready, node, f"{here} is to run after '{before.name}', which does not come before it")
        if node.function in (_NOP, _COPY):
            counts = len(node.inputs), len(node.outputs)
            text = f"{here} calls {node.function}, which has one input and one output, not {counts[0]} and {counts[1]}"
            _require(counts == (1, 1), node, text)
            given, made = node.inputs[0].type, node.outputs[0]
            text = f"{here} calls {node.function} with {given} for {made}; both must be of one size"
            _require(given.size == made.size, node, text)

    def _check_value(self, value: Value, at: Node, what: str) -> None:
        _require(
            isinstance(value.node, Node), at, f"{what} is an output of a {type(value.node).__name__}, not of a Node"
        )
        made = value.node in self._seen
        _require(made, at, f"{what}, an output of '{value.node.name}', is not made before")
        count = len(value.node.outputs)
        exists = 0 <= value.index < count
        _require(exists, at, f"{what} is output {value.index} of '{value.node.name}', which has {count}")


def _require(condition: bool, node: Node | None, text: str) -> None:
    if not condition:
        raise errors.GraphError(text, node=node.name if isinstance(node, Node) else "")


class _Folder:
    """Replaces calls by parameters, in the order of execution."""

    def __init__(self, graph: Graph, library: Module) -> None:
        self._graph = graph
        self._library = library
        self._folded: dict[Node, list[Node]] = {}  # parameters in the place of a call's outputs
        self._renewed: dict[Node, Node] = {}  # nodes whose inputs were replaced
        self._inputs = list(graph.inputs)
        self._names = {node.name for node in graph.inputs}

    def run(self) -> Graph:
        nodes: list[Node] = []
        for node in self._graph.nodes:
            now = self._with_new_inputs(node)
            if _is_constant(now):
                self._folded[node] = made = self._fold(now)
                nodes += made
                self._inputs += made
            else:
                nodes.append(now)
                if now is not node:
                    self._renewed[node] = now
        if not self._folded:
            return self._graph
        outputs = [self._new_value(value) for value in self._graph.outputs]
        return Graph(self._inputs, nodes, outputs, self._graph.attrs)

    def _new_value(self, value: Value) -> Value:
        if value.node in self._folded:
            return Value(self._folded[value.node][value.index])
        renewed = self._renewed.get(value.node)
        return value if renewed is None else Value(renewed, value.index)

    def _with_new_inputs(self, node: Node) -> Node:
        inputs = [self._new_value(value) for value in node.inputs]
        deps = [self._renewed.get(dep, dep) for dep in node.control_deps if dep not in self._folded]
        if inputs == list(node.inputs) and deps == list(node.control_deps):
            return node
        changed: Node = node.replace(inputs=inputs, control_deps=deps)
        return changed

    def _fold(self, node: Node) -> list[Node]:
        with note_on_error(f"at node '{node.name}' of the graph"):
            results = self._compute(node)
        made = []
        for number, (kind, data) in enumerate(zip(node.outputs, results, strict=True)):
            name = node.name if len(results) == 1 else f"{node.name}_{number}"
            made.append(Node(self._free_name(name), outputs=[kind], data=data))
        return made

    def _compute(self, node: Node) -> list[Tensor]:
        given = [_on_host(value.node.data) for value in node.inputs if value.node.data is not None]
        if node.function == _NOP:
            return [given[0].view(node.outputs[0].shape, node.outputs[0].dtype)]
        try:
            kernel = self._library.get_function(node.function, query_imports=True)
        except errors.FunctionNotFoundError:
            text = f"node '{node.name}' calls '{node.function}', which the library lacks"
            raise errors.GraphError(text, node=node.name) from None
        results = [portcall.empty(kind.shape, kind.dtype) for kind in node.outputs]
        flat = node.attrs.get("flatten_data") == "1"
        tensors = [tensor.view((math.prod(tensor.shape),)) if flat else tensor for tensor in (*given, *results)]
        kernel(*map(portcall.ReadOnly, tensors[: len(given)]), *tensors[len(given) :])  # parameters may be read-only
        return results

    def _free_name(self, name: str) -> str:
        """Return the name of a removed call if no other placeholder has it."""
        free, number = name, 0
        while free in self._names:
            number += 1
            free = f"{name}_{number}"
        self._names.add(free)
        return free


def _on_host(tensor: Tensor) -> Tensor:
    return tensor if tensor.device == portcall.cpu() else tensor.copyto(portcall.cpu())


def _is_constant(node: Node) -> bool:
    if node.op != CALL or node.function == _COPY or not node.outputs or not node.inputs:
        return False
    on_host = all(kind.device_type in (0, 1) for kind in node.outputs)
    return on_host and all(value.node.op == _PLACEHOLDER and value.node.data is not None for value in node.inputs)
