# SPDX-License-Identifier: Apache-2.0
"""Build a graph by hand, one call of a kernel after the other.

    b = GraphBuilder()
    x = b.input("x", (1, 784))
    w = b.param("w", weights)
    b.output(b.call("dense", [x, w], (1, 10)))
    m = portcall.graph.create(b.graph(), lib, portcall.cpu(0))
    m.load_params(portcall.graph.save_params(b.params))

Rules: what is wrong is an error of the call that said it, so that a graph once built can be run as far as its kernels
take the shapes that it gives them.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import portcall
from portcall import DataType, Device, Tensor, errors
from portcall._tensor import array_like, tensor_over_array
from portcall.graph._spec import CALL, COPY, NOP, PLACEHOLDER, Graph, Node, Value, check_text, shape_flaw, type_flaw
from portcall.graph._storage import storage_ids

_TAKEN = {NOP: "reshape()", COPY: "copy()"}


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A value of a graph that is being built: what a call of the builder returned, and what others read.

    Attributes:
        node: the name of the node that makes it.
        number: its number in the graph.
        shape, dtype: what it holds.
        device_type: the kind of its device as DLPack numbers them; None where the builder has no device.
    """

    builder: GraphBuilder
    node: str
    number: int
    shape: tuple[int, ...]
    dtype: DataType
    device_type: int | None

    def __repr__(self) -> str:
        return f"<{self.dtype}[{', '.join(map(str, self.shape))}] of node {self.node!r}>"


class GraphBuilder:
    """Builds a graph.

    Parameters:
        device: where values are for which no device is given, such as ``"cuda"``; only its kind counts. A
            graph of one device needs none: it runs on whatever device its executor is given.

    Attributes:
        params: the arrays of parameters by name, as they were given.
    """

    def __init__(self, device: Device | str | None = None) -> None:
        self.params: dict[str, Any] = {}
        self._device = None if device is None else portcall.device(device).device_type
        self._nodes: list[Node] = []
        self._values: list[Value] = []
        self._inputs: list[int] = []
        self._outputs: list[int] = []
        self._names: set[str] = set()

    def input(
        self, name: str, shape: Sequence[int], dtype: Any = "float32", *, device: Device | str | None = None
    ) -> Entry:
        """Add an input of the model.

        Raises:
            GraphError: the name is taken; a shape or a type that no value has; a device, but none for the builder.
            ArgumentError: an argument of the wrong type.
        """
        if type(name) is not str or not name:
            _bad("input", 0, "a name", name)
        value = self._value("input", name, shape, dtype, self._device_type(name, device))
        (entry,) = self._add(PLACEHOLDER, self._name(name, ""), (), [value], {})
        self._inputs.append(len(self._nodes) - 1)
        return entry

    def param(
        self,
        name: str,
        array: Any = None,
        *,
        shape: Sequence[int] | None = None,
        dtype: Any = "float32",
        device: Device | str | None = None,
    ) -> Entry:
        """Add a parameter of the model: an array or tensor, which goes into ``params``; or its shape and type only.

        Raises: as ``input`` does.
        """
        if (array is None) == (shape is None):
            raise errors.ArgumentError("param() takes an array, or shape= and dtype=", function="param")
        if array is None:
            return self.input(name, shape or (), dtype, device=device)
        try:
            array = array_like(array)
            tensor = array if isinstance(array, Tensor) else tensor_over_array(array)
        except (TypeError, ValueError):
            _bad("param", 1, "an array or tensor", array)
        entry = self.input(name, tensor.shape, tensor.dtype, device=device)
        self.params[name] = array
        return entry

    def call(
        self,
        func: str,
        inputs: Sequence[Entry],
        shape: Sequence[int] | Sequence[Sequence[int]],
        dtype: Any = "float32",
        *,
        name: str = "",
        device: Device | str | None = None,
        flatten_data: bool = False,
        attrs: Mapping[str, str] | None = None,
    ) -> Any:
        """Add a call of a kernel, which is given ``inputs`` and then the outputs.

        Parameters:
            func: the kernel's name.
            inputs: what it reads.
            shape: that of its output; for several outputs a list of shapes.
            dtype: that of its output; of several outputs a list of types, or one for all.
            name: the node's name; one is made from ``func`` if it is empty.
            device: where it runs; where its first input is, or where the builder is.
            flatten_data: whether the kernel gets every tensor with one dimension.
            attrs: further texts to be kept with the node.

        Returns:
            The output; a tuple of them if ``shape`` is a list of shapes.

        Raises:
            GraphError: the name is taken; an input belongs to another builder, or is on another device; a shape or a
                type that no value has.
            ArgumentError: an argument of the wrong type.
        """
        if type(func) is not str or not func:
            _bad("call", 0, "the name of a kernel", func)
        if func in _TAKEN:
            raise errors.GraphError(f"{func!r} is not a kernel; {_TAKEN[func]} adds such a node")
        sources = self._entries("call", inputs)
        node_name = self._name(name, func)
        kind = self._device_type(node_name, device, sources)
        self._check_devices(node_name, sources, kind)
        for key, text in (attrs or {}).items():
            check_text(text, ("attrs", check_text(key, ("attrs",))))
        several = _is_sequence(shape) and len(shape) > 0 and all(_is_sequence(each) for each in shape)
        shapes = list(shape) if several else [shape]
        types = list(dtype) if isinstance(dtype, (list, tuple)) else [dtype] * len(shapes)
        if len(types) != len(shapes):
            raise errors.GraphError(f"{node_name!r} has {len(shapes)} shapes and {len(types)} types", node=node_name)
        values = [self._value("call", node_name, s, t, kind) for s, t in zip(shapes, types, strict=True)]
        made = self._add_call(node_name, func, sources, values, flatten_data, dict(attrs or {}))
        return made if several else made[0]

    def reshape(self, x: Entry, shape: Sequence[int], *, name: str = "") -> Entry:
        """Add a view of a value with another shape: no copy, no work. One extent may be -1, for what is left.

        Raises:
            GraphError: the shape has another number of elements; the name is taken.
            ArgumentError: an argument of the wrong type.
        """
        (source,) = self._entries("reshape", [x])
        node_name = self._name(name, "reshape")
        extents = _extents("reshape", 1, shape)
        count = math.prod(source.shape)
        if extents.count(-1) == 1:
            known = math.prod(extent for extent in extents if extent != -1)
            extents = tuple([count // max(known, 1) if extent == -1 else extent for extent in extents])
        value = self._value("reshape", node_name, extents, source.dtype, source.device_type)
        if math.prod(extents) != count:
            reason = f"{source!r} has {count} elements, which {_words(shape)} cannot hold"
            raise errors.GraphError(f"{node_name!r}: {reason}", node=node_name)
        return self._add_call(node_name, NOP, [source], [value])[0]

    def copy(self, x: Entry, device: Device | str, *, name: str = "") -> Entry:
        """Add a copy of a value to another device.

        Raises:
            GraphError: the name is taken; the builder has no device.
            ArgumentError: an argument of the wrong type.
        """
        (source,) = self._entries("copy", [x])
        node_name = self._name(name, "copy")
        value = Value(source.shape, source.dtype, None, self._device_type(node_name, device))
        return self._add_call(node_name, COPY, [source], [value])[0]

    def output(self, *entries: Entry) -> None:
        """Make values results of the graph, in this order, after those that are there already.

        Raises:
            GraphError: a value belongs to another builder.
            ArgumentError: an argument of the wrong type.
        """
        self._outputs += [entry.number for entry in self._entries("output", entries)]

    def graph(self) -> Graph:
        """Return the graph, whose memory is not planned yet.

        Raises:
            GraphError: it has no outputs.
        """
        if not self._outputs:
            raise errors.GraphError("the graph has no results; name them with output()")
        columns = ("dltype", "shape") if self._device is None else ("dltype", "device_index", "shape")
        inputs, outputs = tuple(self._inputs), tuple(self._outputs)
        return Graph(tuple(self._nodes), tuple(self._values), inputs, outputs, columns)

    def to_json(self) -> str:
        """Return the graph as the JSON that executors of TVM read too, with storage ids.

        Raises:
            GraphError: it has no outputs.
        """
        graph = self.graph()
        ids = storage_ids(graph)
        values = tuple([dataclasses.replace(v, storage_id=i) for v, i in zip(graph.values, ids, strict=True)])
        columns = (*graph.columns[:-1], "storage_id", "shape")
        return dataclasses.replace(graph, values=values, columns=columns).to_json()

    # ---- checks ----

    def _name(self, name: str, make_from: str) -> str:
        """Return the name of a new node: ``name`` if it is free, or one made from a function's."""
        if type(name) is not str:
            _bad("call", None, "a text as a name", name)
        check_text(name, ())
        if name in self._names:
            raise errors.GraphError(f"the name {name!r} is taken by another node", node=name)
        made, number = name or make_from, 0
        while made in self._names:
            number += 1
            made = f"{make_from}_{number}"
        return made

    def _device_type(self, node: str, device: Device | str | None, sources: Sequence[Entry] = ()) -> int | None:
        if device is None:
            return sources[0].device_type if sources else self._device
        if self._device is None:
            raise errors.GraphError(
                f"{node!r} is given a device, but values without one have none: GraphBuilder(device=…) gives them one",
                node=node,
            )
        return portcall.device(device).device_type

    def _check_devices(self, node: str, sources: Sequence[Entry], kind: int | None) -> None:
        for source in sources:
            if source.device_type != kind:
                places = f"runs on {_kind(kind)}, but its input {source!r} is on {_kind(source.device_type)}"
                raise errors.GraphError(f"{node!r} {places}; copy() moves it", node=node)

    def _entries(self, function: str, entries: Sequence[Entry]) -> list[Entry]:
        if not isinstance(entries, (list, tuple)):
            _bad(function, 1, "a list of values of this graph", entries)
        for entry in entries:
            if not isinstance(entry, Entry):
                _bad(function, None, "values that input(), param(), call(), reshape() or copy() returned", entry)
            if entry.builder is not self:
                raise errors.GraphError(f"{entry!r} belongs to another builder", node=entry.node)
        return list(entries)

    def _value(self, function: str, node: str, shape: Any, dtype: Any, device: int | None) -> Value:
        extents = _extents(function, 1, shape)
        try:
            value = Value(extents, portcall.dtype(dtype), None, device)
        except ValueError as error:
            raise errors.GraphError(f"{node!r}: {error}", node=node) from None
        flaw = type_flaw(value.dtype) or shape_flaw(extents, value.dtype)
        if any(extent < 0 for extent in extents):
            flaw = f"shape {_words(extents)}: graphs have static shapes, so each extent is 0 or more"
        if flaw:
            raise errors.GraphError(f"{node!r}: {flaw}", node=node)
        return value

    # ---- additions ----

    def _add_call(
        self,
        name: str,
        func: str,
        sources: Sequence[Entry],
        values: Sequence[Value],
        flatten_data: bool = False,
        attrs: Mapping[str, str] | None = None,
    ) -> tuple[Entry, ...]:
        own = {
            "num_outputs": str(len(values)),
            "num_inputs": str(len(sources)),
            "flatten_data": str(int(flatten_data)),
            "func_name": func,
        }
        return self._add(CALL, name, tuple([source.number for source in sources]), values, {**(attrs or {}), **own})

    def _add(
        self, op: str, name: str, inputs: tuple[int, ...], values: Sequence[Value], attrs: Mapping[str, str]
    ) -> tuple[Entry, ...]:
        first = len(self._values)
        outputs = range(first, first + len(values))
        self._nodes.append(Node(op, name, inputs, outputs, attrs))
        self._values += values
        self._names.add(name)
        return tuple(
            [Entry(self, name, n, v.shape, v.dtype, v.device_type) for n, v in zip(outputs, values, strict=True)]
        )


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _extents(function: str, position: int, shape: Any) -> tuple[int, ...]:
    try:
        return tuple([operator.index(extent) for extent in shape])
    except TypeError:
        _bad(function, position, "a shape, a list of whole numbers", shape)


def _words(shape: Any) -> str:
    return f"({', '.join(map(str, shape))})"


def _kind(device_type: int | None) -> str:
    return "the first device" if device_type is None else Device(device_type).kind


def _bad(function: str, position: int | None, expected: str, got: Any) -> NoReturn:
    raise errors.ArgumentError(
        f"{function}() takes {expected}, got {got!r}",
        function=function,
        position=position,
        expected=expected,
        got=repr(got),
    )
