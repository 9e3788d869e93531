# SPDX-License-Identifier: Apache-2.0
"""Graph JSON, as TVM 0.6 to 0.19 and nnvm before them wrote it: read into frozen dataclasses, and written back.

A graph is a list of *nodes* in the order of execution: placeholders (inputs and parameters of the model; the file does
not tell them apart) and calls of kernels. Each node owns some *entries*, its outputs, which are numbered through the
whole graph: an entry is one value, with a shape, a type and a place in memory.

Rules: what is read is checked, every number of it, so that users of a Graph need not; an error names the place in
the file and the reason. Old forms (``attr`` for ``attrs``, inputs of two numbers, types without bits) are read, and
written in the form that came last.
"""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from portcall import DataType, errors

ORIGIN = "onnx"  # the attribute of a node with lines: what it computes of the model that was compiled
PLACEHOLDER = "null"
CALL = "tvm_op"
NOP = "__nop"
COPY = "__copy"
NODE_ATTRS = ("func_name", "num_inputs", "num_outputs", "flatten_data")

_Path = tuple["str | int", ...]
_TOP = ("nodes", "arg_nodes", "node_row_ptr", "heads", "attrs")
_NODE_KEYS = {"op", "name", "inputs", "attrs", "attr", "control_deps"}
_TAGS = {"shape": "list_shape", "dltype": "list_str", "storage_id": "list_int", "device_index": "list_int"}
_FLAT_SCOPES = ("", "global")
MOST_BYTES = 2**56  # of one value; sums of sizes stay within 64 bits
MOST_DIMENSIONS = 64
_MOST_ID = 2**63 - 1
_MOST_LANES = 2**15 - 1


@dataclass(frozen=True, slots=True)
class Value:
    """What an entry holds.

    Attributes:
        shape: its extents; empty for a scalar.
        dtype: the type of its elements.
        storage_id: the piece of memory that the graph gives it; None where the graph has no memory plan.
        device_type: the kind of its device as DLPack numbers them; None stands for the first device.
    """

    shape: tuple[int, ...]
    dtype: DataType
    storage_id: int | None = None
    device_type: int | None = None

    @property
    def nbytes(self) -> int:
        """Its size in bytes. An element narrower than a byte takes one."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Node:
    """A placeholder, or a call of a kernel.

    Attributes:
        op: ``null`` for a placeholder, ``tvm_op`` for a call.
        name: its name. Those of placeholders differ; those of calls may not.
        inputs: the entries that it reads, in the order of the kernel's arguments.
        outputs: the entries that it owns: the kernel's last arguments.
        attrs: what the file says of it, texts under names; ``func_name`` and the like are among them.
        control_deps: nodes that it was to come after; the order of the list has seen to that.
    """

    op: str
    name: str
    inputs: tuple[int, ...]
    outputs: range
    attrs: Mapping[str, str] = field(default_factory=dict)
    control_deps: tuple[int, ...] = ()

    @property
    def origin(self) -> tuple[str, ...]:
        """What it computes of the model that was compiled, such as ``Conv /stem/Conv``; empty if that is not known."""
        return tuple(self.attrs.get(ORIGIN, "").splitlines())

    @property
    def function(self) -> str:
        """The kernel's name, ``__nop`` or ``__copy``; empty for a placeholder."""
        return self.attrs["func_name"] if self.op == CALL else ""

    @property
    def flatten_data(self) -> bool:
        """Whether the kernel is given every tensor as one of one dimension."""
        return self.op == CALL and self.attrs["flatten_data"] == "1"


@dataclass(frozen=True, slots=True)
class Graph:
    """A checked graph.

    Attributes:
        nodes: in the order of execution.
        values: what each entry holds.
        inputs: the placeholders, as node numbers, in the order of their index.
        outputs: the entries that are the graph's results, in the order of their index.
        columns: the names of the graph's attributes in the order of the file.
        extra: attributes that do not bear on execution, as the file has them.
        metadata: whatever the file has under that name, or None.
    """

    nodes: tuple[Node, ...]
    values: tuple[Value, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    columns: tuple[str, ...] = ("dltype", "storage_id", "shape")
    extra: Mapping[str, Any] = field(default_factory=dict)
    metadata: Any = None

    @classmethod
    def from_json(cls, text: str | bytes) -> Graph:
        """Read a graph.

        Raises:
            GraphError: the text is not a graph, or one that cannot be run; ``path`` says where.
        """
        return _Reader(_parse(text)).graph()

    def to_json(self) -> str:
        """Return the file's text, laid out as the compilers did.

        A file of a compiler (TVM 0.6 to 0.19) comes out as it went in, byte for byte. Version numbers of inputs, which
        nothing ever read, become 0; keys after ``metadata``, which end the reading of old executors, are dropped.
        """
        return _layout(_document(self), 0)

    def owners(self) -> list[int]:
        """Return, for each entry, the number of the node that owns it."""
        return [number for number, node in enumerate(self.nodes) for _ in node.outputs]


def type_flaw(dtype: DataType) -> str:
    """Say why no value can have elements of a type; empty if values can."""
    if not dtype.bits or not dtype.lanes:
        return "elements of no size"
    if dtype.lanes > _MOST_LANES:
        return "elements whose size the machine scales"
    if dtype.bits % 8 and dtype.bits not in (1, 4):
        return f"elements of {dtype.bits} bits; types of whole bytes, of 1 and of 4 bits can lie in memory"
    return ""


def shape_flaw(shape: Sequence[int], dtype: DataType) -> str:
    """Say why no value can have a shape of extents from 0; empty if values can."""
    if len(shape) > MOST_DIMENSIONS:
        return f"{len(shape)} dimensions; {MOST_DIMENSIONS} are the most"
    if (
        math.prod(extent or 1 for extent in shape) * dtype.itemsize > MOST_BYTES
    ):  # the strides of an empty one count too
        return f"shape {_show(list(shape))} takes more than 2**56 bytes"
    return ""


# ---- reading ---------------------------------------------------------------------------------------------------------


def _fail(at: _Path, reason: str, node: str = "") -> NoReturn:
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in at).removeprefix(".")
    raise errors.GraphError(f"{path}: {reason}" if path else reason, path=path, node=node)


def _show(value: Any) -> str:
    return reprlib.repr(value)


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise errors.GraphError(f"the key {_show(twice)} occurs twice in one object")
    return found


def _no_constant(text: str) -> NoReturn:
    raise errors.GraphError(f"{text} is not a number that a graph may have")


def _parse(text: str | bytes) -> dict[str, Any]:
    try:
        document = json.loads(text, object_pairs_hook=_distinct, parse_constant=_no_constant)
    except errors.GraphError:
        raise
    except (ValueError, RecursionError) as error:
        raise errors.GraphError(f"not a graph, for it is not JSON: {error}") from None
    if type(document) is not dict:
        raise errors.GraphError(f"an object with {', '.join(_TOP)} expected, got {_show(document)}")
    return document


def check_text(value: Any, at: _Path) -> str:
    """Return a text that can be written as UTF-8; anything else is a GraphError at ``at``."""
    if type(value) is not str:
        _fail(at, f"a text expected, got {_show(value)}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            _fail(at, f"{_show(value)} has half of a surrogate pair, which is not text")
    return value


def _list(value: Any, at: _Path, size: int | None = None, what: str = "") -> list[Any]:
    if type(value) is not list:
        _fail(at, f"a list expected, got {_show(value)}")
    if size is not None and len(value) != size:
        _fail(at, f"{len(value)} elements, but {size} {what}")
    return value


def _check_number(value: Any, at: _Path, stop: int, what: str) -> None:
    """Refuse what is not a whole number from 0 up to, but not including, ``stop``."""
    if type(value) is not int or not 0 <= value < stop:
        _fail(at, f"{what}, got {_show(value)}")


def _bits(value: Value) -> int:
    return math.prod(value.shape) * value.dtype.bits * value.dtype.lanes


class _Reader:
    """Reads one document. ``firsts`` has the first entry of each node read so far, and then the next free one."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.nodes: list[Node] = []
        self.firsts = [0]

    def graph(self) -> Graph:
        metadata = self._top_level()
        names: dict[str, int] = {}
        for here, raw in enumerate(_list(self.document["nodes"], ("nodes",))):
            node = self._node(raw, here)
            if node.op == PLACEHOLDER and names.setdefault(node.name, here) != here:
                reason = f"node {names[node.name]} is a placeholder of that name too; inputs are set by name"
                _fail(("nodes", here, "name"), f"{_show(node.name)}: {reason}", node.name)
            self.nodes.append(node)
        self._row_ptr()
        columns, values, extra = self._columns()
        inputs, outputs = self._arg_nodes(), self._heads()
        for here, node in enumerate(self.nodes):
            if node.op == CALL and node.function in (NOP, COPY):
                self._built_in(node, here, values)
        return Graph(tuple(self.nodes), values, inputs, outputs, columns, extra, metadata)

    def _top_level(self) -> Any:
        """Check that all keys are there, and no others before ``metadata``, which is returned."""
        for key in self.document:
            if key == "metadata":  # old executors stop reading here
                break
            if key not in _TOP:
                _fail((), f"unknown key {_show(key)}; a graph has {', '.join(_TOP)} and perhaps metadata")
        missing = [key for key in _TOP if key not in self.document]
        if missing:
            _fail((), f"no {' and no '.join(missing)}; a graph has {', '.join(_TOP)}")
        return self.document.get("metadata")

    def _node(self, raw: Any, here: int) -> Node:
        at: _Path = ("nodes", here)
        if type(raw) is not dict:
            _fail(at, f"an object expected, got {_show(raw)}")
        if not raw.keys() <= _NODE_KEYS:
            unknown = next(key for key in raw if key not in _NODE_KEYS)
            _fail(at, f"unknown key {_show(unknown)}; a node has op, name, inputs, attrs and control_deps")
        for key in ("op", "name", "inputs"):
            if key not in raw:
                _fail(at, f"no {key}")
        op, name = raw["op"], check_text(raw["name"], (*at, "name"))
        if op not in (PLACEHOLDER, CALL):
            reason = f"{_show(op)} is neither 'null' (a placeholder) nor 'tvm_op' (a call); was the model compiled?"
            _fail((*at, "op"), reason, name)
        attrs = self._node_attrs(raw, at)
        inputs = tuple(
            [
                self._entry(item, here, (*at, "inputs", k))
                for k, item in enumerate(_list(raw["inputs"], (*at, "inputs")))
            ]
        )
        deps = raw.get("control_deps", [])
        for k, dep in enumerate(_list(deps, (*at, "control_deps"))):
            _check_number(dep, (*at, "control_deps", k), here, f"a node before node {here} expected")
        if op == PLACEHOLDER:
            outputs = self._check_placeholder(inputs, attrs, at, name)
        else:
            outputs = self._check_call(inputs, attrs, at, name)
        first = self.firsts[-1]
        self.firsts.append(first + outputs)
        return Node(op, name, inputs, range(first, first + outputs), attrs, tuple(deps))

    def _node_attrs(self, raw: dict[str, Any], at: _Path) -> dict[str, str]:
        if "attr" in raw and "attrs" in raw:
            _fail(at, "attr and attrs, which are two names of one thing")
        key = "attr" if "attr" in raw else "attrs"
        attrs = raw.get(key, {})
        if type(attrs) is not dict:
            _fail((*at, key), f"an object expected, got {_show(attrs)}")
        for name, value in attrs.items():
            if type(value) is not str or not value.isascii() or not name.isascii():
                check_text(name, (*at, key))
                check_text(value, (*at, key, name))
        return attrs

    def _check_placeholder(self, inputs: tuple[int, ...], attrs: dict[str, str], at: _Path, name: str) -> int:
        if inputs:
            _fail((*at, "inputs"), "a placeholder reads nothing", name)
        if attrs.get("num_outputs", "1") != "1":
            _fail((*at, "attrs", "num_outputs"), f"{_show(attrs['num_outputs'])}: a placeholder has one output", name)
        return 1

    def _check_call(self, inputs: tuple[int, ...], attrs: dict[str, str], at: _Path, name: str) -> int:
        for key in NODE_ATTRS:
            if key not in attrs:
                _fail((*at, "attrs"), f"no {key}", name)
        if not attrs["func_name"]:
            _fail((*at, "attrs", "func_name"), "empty", name)
        counts = attrs["num_inputs"], attrs["num_outputs"]
        for key, count in zip(("num_inputs", "num_outputs"), counts, strict=True):
            if not (count.isascii() and count.isdigit() and len(count) < 10):
                _fail((*at, "attrs", key), f"a number as a text expected, got {_show(count)}", name)
        if int(counts[0]) != len(inputs):
            _fail((*at, "attrs", "num_inputs"), f"{counts[0]}, but the node has {len(inputs)} inputs", name)
        if attrs["flatten_data"] not in ("0", "1"):
            _fail((*at, "attrs", "flatten_data"), f"'0' or '1' expected, got {_show(attrs['flatten_data'])}", name)
        return int(counts[1])

    def _entry(self, item: Any, here: int, at: _Path) -> int:
        """Return the entry that ``item``, [node, output] or [node, output, version], means to node ``here``."""
        if type(item) is not list or not 2 <= len(item) <= 3 or not all(type(number) is int for number in item):
            _fail(at, f"[node, output] or [node, output, version] expected, got {_show(item)}")
        node, output = item[0], item[1]
        if not 0 <= node < here:
            count = len(self.document["nodes"])
            if not 0 <= node < count:
                _fail(at, f"there is no node {_show(node)}; there are {count}")
            _fail(at, f"node {node} is not before node {here}; nodes run in the order of the list")
        outputs = self.firsts[node + 1] - self.firsts[node]
        if not 0 <= output < outputs:
            reason = f"node {node}, {_show(self.nodes[node].name)}, has no output {_show(output)}; it has {outputs}"
            _fail(at, reason, self.nodes[node].name)
        entry: int = self.firsts[node] + output
        return entry

    def _row_ptr(self) -> None:
        given = _list(self.document["node_row_ptr"], ("node_row_ptr",), len(self.firsts), "(nodes and 1) are needed")
        for here, (number, first) in enumerate(zip(given, self.firsts, strict=True)):
            if type(number) is not int or number != first:
                reason = f"{first} expected, as many outputs as the nodes before it have, got {_show(number)}"
                _fail(("node_row_ptr", here), reason)

    def _arg_nodes(self) -> tuple[int, ...]:
        seen: set[int] = set()
        count = len(self.nodes)
        for k, number in enumerate(_list(self.document["arg_nodes"], ("arg_nodes",))):
            _check_number(number, ("arg_nodes", k), count, f"a node from 0 to {count - 1} expected")
            if self.nodes[number].op != PLACEHOLDER:
                _fail(("arg_nodes", k), f"node {number} is a call, not a placeholder", self.nodes[number].name)
            if number in seen:
                _fail(("arg_nodes", k), f"node {number} a second time", self.nodes[number].name)
            seen.add(number)
        for number, node in enumerate(self.nodes):
            if node.op == PLACEHOLDER and number not in seen:
                _fail(("arg_nodes",), f"node {number}, the placeholder {_show(node.name)}, is missing", node.name)
        return tuple(self.document["arg_nodes"])

    def _heads(self) -> tuple[int, ...]:
        heads = _list(self.document["heads"], ("heads",))
        return tuple([self._entry(item, len(self.nodes), ("heads", k)) for k, item in enumerate(heads)])

    def _columns(self) -> tuple[tuple[str, ...], tuple[Value, ...], dict[str, Any]]:
        """Return the names of the graph's attributes, the values that they describe, and the other attributes."""
        attrs = self.document["attrs"]
        if type(attrs) is not dict:
            _fail(("attrs",), f"an object expected, got {_show(attrs)}")
        for name in ("shape", "dltype"):
            if name not in attrs:
                _fail(("attrs",), f"no {name}")
        columns = {name: self._column(attrs[name], name) for name in attrs if name in _TAGS}
        extra = {name: self._extra(attrs[name], name) for name in attrs if name not in _TAGS}
        count = self.firsts[-1]
        shapes, types = columns["shape"], self._types(columns["dltype"])
        ids, devices = columns.get("storage_id", [None] * count), columns.get("device_index", [None] * count)
        reason = "a number from 0 expected (a negative one stood for memory of a shape known at run time only)"
        for k, storage_id in enumerate(columns.get("storage_id", ())):
            _check_number(storage_id, ("attrs", "storage_id", 1, k), _MOST_ID + 1, reason)
        for k, device in enumerate(columns.get("device_index", ())):
            if type(device) is not int or not 1 <= device < 2**31:
                _fail(("attrs", "device_index", 1, k), f"a DLPack device type, from 1, expected, got {_show(device)}")
        values = [
            Value(self._shape(shape, dtype, k), dtype, storage_id, device)
            for k, (shape, dtype, storage_id, device) in enumerate(zip(shapes, types, ids, devices, strict=True))
        ]
        return tuple(attrs), tuple(values), extra

    def _column(self, pair: Any, name: str) -> list[Any]:
        at = ("attrs", name)
        payload = self._tagged(pair, at, (_TAGS[name],))
        return _list(payload, (*at, 1), self.firsts[-1], "entries (the outputs of all nodes)")

    def _tagged(self, pair: Any, at: _Path, tags: Sequence[str]) -> Any:
        if type(pair) is not list or len(pair) != 2 or type(pair[0]) is not str:
            _fail(at, f"a pair of {' or '.join(tags)} and what it holds expected, got {_show(pair)}")
        if pair[0] not in tags:
            _fail((*at, 0), f"{' or '.join(tags)} expected, got {_show(pair[0])}")
        return pair[1]

    def _extra(self, pair: Any, name: str) -> Any:
        """Check an attribute that does not bear on execution: a list of numbers, a number, or flat memory scopes."""
        at = ("attrs", check_text(name, ("attrs",)))
        if name == "storage_scope":
            scopes = _list(self._tagged(pair, at, ("list_str",)), (*at, 1), self.firsts[-1], "entries")
            for k, scope in enumerate(scopes):
                if scope not in _FLAT_SCOPES:
                    reason = "only flat memory ('' or 'global') can be planned; compile the model without textures"
                    _fail((*at, 1, k), f"{_show(scope)}: {reason}")
            return pair
        payload = self._tagged(pair, at, ("list_int", "size_t"))
        numbers = _list(payload, (*at, 1)) if pair[0] == "list_int" else [payload]
        if not all(type(number) is int for number in numbers):
            _fail((*at, 1), f"{pair[0]} holds whole numbers, got {_show(payload)}")
        return pair

    def _types(self, names: list[Any]) -> list[DataType]:
        known: dict[Any, DataType] = {}
        types = []
        for k, name in enumerate(names):
            dtype = known.get(name) if type(name) is str else None
            if dtype is None:
                dtype = known[name] = self._type(name, ("attrs", "dltype", 1, k))
            types.append(dtype)
        return types

    def _type(self, name: Any, at: _Path) -> DataType:
        try:
            dtype = DataType(check_text(name, at))
        except errors.GraphError:
            raise
        except ValueError as error:
            _fail(at, str(error))
        flaw = type_flaw(dtype)
        if flaw:
            _fail(at, f"{_show(name)}: {flaw}")
        return dtype

    def _shape(self, shape: Any, dtype: DataType, entry: int) -> tuple[int, ...]:
        size = dtype.itemsize
        for k, extent in enumerate(_list(shape, ("attrs", "shape", 1, entry))):
            if type(extent) is not int or extent < 0:
                self._wrong_extent(extent, ("attrs", "shape", 1, entry, k))
            size *= extent or 1
        if size > MOST_BYTES or len(shape) > MOST_DIMENSIONS:
            _fail(("attrs", "shape", 1, entry), shape_flaw(shape, dtype))
        return tuple(shape)

    def _wrong_extent(self, extent: Any, at: _Path) -> NoReturn:
        if type(extent) is str or (type(extent) is int and extent < 0):
            reason = (
                "an extent that is known at run time only; a graph has static shapes, so compile the model with such"
            )
            _fail(at, f"{_show(extent)}: {reason}")
        _fail(at, f"a whole number from 0 expected, got {_show(extent)}")

    def _built_in(self, node: Node, here: int, values: tuple[Value, ...]) -> None:
        at: _Path = ("nodes", here)
        if len(node.inputs) != 1 or len(node.outputs) != 1:
            counts = f"{len(node.inputs)} inputs and {len(node.outputs)} outputs"
            _fail(at, f"{node.function} has one input and one output, not {counts}", node.name)
        source, target = values[node.inputs[0]], values[node.outputs[0]]
        if source.nbytes != target.nbytes or _bits(source) != _bits(target):
            sizes = f"{source.dtype} {list(source.shape)} to one of {target.dtype} {list(target.shape)}"
            _fail(at, f"{node.function} from a value of {sizes}; both must be of one size", node.name)
        if node.function == NOP and source.device_type != target.device_type:
            kinds = f"{source.device_type} and {target.device_type}"
            _fail(at, f"{NOP} moves nothing between devices (types {kinds}); {COPY} does", node.name)


# ---- writing ---------------------------------------------------------------------------------------------------------


def _document(graph: Graph) -> dict[str, Any]:
    """Return the document with its keys in the order of the compilers. Tuples are to be laid out one item a line."""
    owners = graph.owners()

    def entry(number: int) -> tuple[int, int, int]:
        node = owners[number]
        return node, number - graph.nodes[node].outputs.start, 0

    nodes = []
    for node in graph.nodes:
        written: dict[str, Any] = {"op": node.op, "name": node.name}
        if node.attrs:
            written["attrs"] = dict(node.attrs)
        written["inputs"] = [entry(number) for number in node.inputs]
        if node.control_deps:
            written["control_deps"] = list(node.control_deps)
        nodes.append(written)
    payloads = {
        "shape": [list(value.shape) for value in graph.values],
        "dltype": [str(value.dtype) for value in graph.values],
        "storage_id": [value.storage_id for value in graph.values],
        "device_index": [value.device_type for value in graph.values],
    }
    attrs = {name: [_TAGS[name], payloads[name]] if name in _TAGS else graph.extra[name] for name in graph.columns}
    document = {
        "nodes": nodes,
        "arg_nodes": list(graph.inputs),
        "heads": [entry(number) for number in graph.outputs],
        "attrs": attrs,
        "node_row_ptr": [0, *(node.outputs.stop for node in graph.nodes)],
    }
    return document if graph.metadata is None else {**document, "metadata": graph.metadata}


def _layout(value: Any, depth: int) -> str:
    """Lay out as the compilers did: an item a line, but up to ten numbers on one; a space after each comma."""
    if isinstance(value, dict):
        items = [f"{_layout(name, 0)}: {_layout(item, depth + 1)}" for name, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [_layout(item, depth + 1) for item in value]
        if isinstance(value, list) and len(value) <= 10 and all(type(item) is int for item in value):
            return f"[{', '.join(items)}]"
    else:
        return json.dumps(value, ensure_ascii=False)
    left, right = "{}" if isinstance(value, dict) else "[]"
    if not items:
        return left + right
    indent = "\n" + "  " * depth
    return left + ", ".join(f"{indent}  {item}" for item in items) + indent + right
