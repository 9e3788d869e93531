# SPDX-License-Identifier: Apache-2.0
"""An ONNX model while it is rewritten: nodes as a list, constants as arrays, shapes that are known."""

from __future__ import annotations

import functools
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import helper, shape_inference
from onnx.reference import ReferenceEvaluator

from portcall.compile._weights import array_of, is_apart, tensor_of
from portcall.errors import ModelError

Array = Any
Model = Any
ONNX_DOMAINS = ("", "ai.onnx")
CONVOLUTIONS = ("Conv", "ConvInteger", "ConvTranspose")
_LONG_NAME = 200  # letters of a name in a message
_DATA = 2  # axes of an input that holds data, and not a number or a shape
_FEW = 3  # elements that say how many there are
_LARGE = 1 << 16  # bytes of weights that say no shape
_PASSING = ("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape")  # operators that keep numbers as they are
_CONSTANTS_ARE_NO_INPUTS = 4  # the first version of ONNX's format in which they need not be


class Graph:
    """The nodes of a model, its constants as arrays, and what reads what.

    Attributes:
        source: the model.
    """

    def __init__(self, model: Model) -> None:
        self.source = model
        self.nodes = list(model.graph.node)
        self.constants: dict[str, Array] = {tensor.name: array_of(tensor) for tensor in model.graph.initializer}
        self.inputs = [value.name for value in model.graph.input if value.name not in self.constants]
        self.outputs = [value.name for value in model.graph.output]
        self.opset = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
        self._inferred = {
            value.name: value for group in (model.graph.input, model.graph.value_info, model.graph.output)
            for value in group
        }  # fmt: skip
        self._taken = {name for node in self.nodes for name in node.output} | set(self._inferred)
        self._unique = 0

    def readers(self) -> Counter[str]:
        """Count who reads a value; the caller reads outputs, and subgraphs read what they like."""
        found = Counter(name for node in self.nodes for name in all_inputs(node))
        found.update(self.outputs)
        return found

    def extents(self, name: str) -> list[int | str] | None:
        """Return the shape of a value, with names or ``?`` for what is not fixed; None if its rank is not known."""
        if name in self.constants:
            return list(self.constants[name].shape)
        value = self._inferred.get(name)
        return None if value is None else extents_of(value)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a value if all of it is known."""
        extents = self.extents(name)
        known = [extent for extent in extents or () if isinstance(extent, int)]
        return tuple(known) if extents is not None and len(known) == len(extents) else None

    def rank(self, name: str) -> int | None:
        """Return how many axes a value has, if it is known."""
        extents = self.extents(name)
        return None if extents is None else len(extents)

    def dtype(self, name: str) -> str:
        """Return the type of a value by NumPy's name; empty if it is not known."""
        if name in self.constants:
            return str(self.constants[name].dtype)
        kind = self._inferred[name].type.tensor_type.elem_type if name in self._inferred else 0
        return str(helper.tensor_dtype_to_np_dtype(kind)) if kind else ""

    def name(self, stem: str) -> str:
        """Return a name that no value has."""
        self._unique += 1
        name = f"{stem}/{self._unique}"
        while name in self.constants or name in self._taken:
            name += "_"
        return name

    def constant(self, stem: str, array: Array) -> str:
        """Add a constant and return its name."""
        name = self.name(stem)
        self.constants[name] = array
        return name

    def take_constants(self) -> None:
        """Make constants of the nodes Constant that hold tensors."""
        kept = []
        for node in self.nodes:
            value = attribute_of(node, "value", None) if node.op_type == "Constant" else None
            if value is None or node.output[0] in self.outputs:
                kept.append(node)
            else:
                self.constants[node.output[0]] = array_of(value)
        self.nodes = kept

    def drop_unused(self) -> None:
        """Remove nodes whose results are unused."""
        needed, kept = set(self.outputs), []
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                needed.update(all_inputs(node))
                kept.append(node)
        self.nodes = kept[::-1]

    def rename(self, names: dict[str, str]) -> None:
        """Let readers of some values read others."""

        def last(name: str) -> str:
            while name in names:
                name = names[name]
            return name

        for node in self.nodes:
            for place, name in enumerate(node.input):
                node.input[place] = last(name)

    def model(self) -> Model:
        """Return the model; unused constants are left out."""
        old = self.source.graph
        used = {name for node in self.nodes for name in all_inputs(node)} | set(self.outputs)
        inputs = [value for value in old.input if value.name not in self.constants]
        made = helper.make_model(
            helper.make_graph(self.nodes, old.name, inputs, list(old.output)),
            opset_imports=list(self.source.opset_import),
        )
        made.graph.initializer.extend(tensor_of(array, name) for name, array in self.constants.items() if name in used)
        made.ir_version = max(self.source.ir_version, _CONSTANTS_ARE_NO_INPUTS)
        return made


def refusing(change: Callable[[Model], Model]) -> Callable[[Model], Model]:
    """Return a function that rewrites a model, and refuses it where it raises what is no ModelError.

    Nodes are taken to be as onnx's operators are defined; what is not, and was not found before, ends up here.
    """

    @functools.wraps(change)
    def changed(model: Model) -> Model:
        try:
            return change(model)
        except (ModelError, MemoryError):
            raise
        except Exception as error:  # onnx raises many classes, and what is malformed can be anything
            text = f"the model is malformed: {type(error).__name__}: {str(error).partition(chr(10))[0]}"
            raise ModelError(text, problems=[text], hint="look at it with onnx.checker.check_model") from error

    return changed


class ComputedError(ValueError):
    """An input that says what a node does is not constant.

    Attributes:
        hint: the options that make it so.
    """

    def __init__(self, model: Model, name: str, word: str) -> None:
        behind = inputs_behind(model, name)
        given = {value.name: value.type.tensor_type for value in model.graph.input}
        # Data are no numbers to give: a model that takes its shapes from them is for other compilers.
        simple = [each for each in behind if len(given[each].shape.dim) < _DATA]
        if behind == [name]:
            super().__init__(f"its {word} must be constant, and '{name}' is an input of the model")
        elif behind:
            super().__init__(f"its {word} must be constant, and depends on the values of {', '.join(behind)}")
        else:
            super().__init__(f"its {word} must be constant, and depends on shapes that are not fixed")
        self.hint = "" if behind else "fix them: --shape NAME=SHAPE"
        if behind == simple and behind:
            self.hint = f"make constants of them: {' '.join(constant_words(dict.fromkeys(behind)))}"


class UnknownError(ValueError):
    """A shape is needed that may be known when nodes before are replaced."""


class Nodes:
    """Nodes that take the place of one.

    Attributes:
        node: the one.
        nodes: what was written.
    """

    def __init__(self, graph: Graph, node: Any) -> None:
        self.graph, self.node = graph, node
        self.nodes: list[Any] = []

    def add(self, op: str, *inputs: str, out: str = "", **attributes: Any) -> str:
        """Write a node with one result, and return its name."""
        name = out or self.graph.name(f"{self.node.output[0] or self.node.op_type}/{op}")
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def several(self, op: str, inputs: Iterable[str], count: int, **attributes: Any) -> list[str]:
        """Write a node with some results, and return their names."""
        names = [self.graph.name(f"{self.node.output[0] or self.node.op_type}/{op}") for _ in range(count)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names

    def stored(self, array: Any, dtype: str = "float32") -> str:
        """Return the name of a new constant."""
        return self.graph.constant(f"{self.node.op_type}/constant", np.asarray(array, dtype))

    def input(self, place: int) -> str:
        """Return what the node reads; empty if it has no such input."""
        return self.node.input[place] if place < len(self.node.input) else ""

    def output(self, place: int) -> str:
        return self.node.output[place] if place < len(self.node.output) else ""

    def constant(self, place: int, word: str) -> Array:
        """Return an input that must be constant.

        Raises:
            ValueError: it is not.
        """
        if self.input(place) not in self.graph.constants:
            raise ComputedError(self.graph.source, self.input(place), word)
        return self.graph.constants[self.input(place)]

    def rank(self, name: str) -> int:
        """Return how many axes a value has.

        Raises:
            UnknownError: that is not known.
        """
        found = self.graph.rank(name)
        if found is None:
            raise UnknownError(f"the rank of '{name}' is not known")
        return found

    def extent(self, name: str, axis: int) -> int:
        """Return an extent of a value.

        Raises:
            UnknownError: its shape is not known.
        """
        shape = self.graph.shape(name)
        if shape is None:
            raise UnknownError(f"the shape of '{name}' is not fixed")
        return shape[axis]

    def attribute(self, name: str, default: Any = None) -> Any:
        return attribute_of(self.node, name, default)

    def reduced(self, op: str, x: str, axes: Iterable[int], out: str = "", keepdims: int = 1) -> str:
        """Write a reduction, whose axes are an attribute in older opsets, and an input in newer ones."""
        newer = self.graph.opset.get("ai.onnx", 1) >= (13 if op == "ReduceSum" else 18)
        if newer:
            return self.add(op, x, self.stored(list(axes), "int64"), out=out, keepdims=keepdims)
        return self.add(op, x, out=out, axes=list(axes), keepdims=keepdims)


def replace_operators(
    model: Model, writer_of: Callable[[Any], Callable[[Nodes], None] | None], complete: bool = True
) -> Model:
    """Return the model with other nodes in the place of some.

    Parameters:
        writer_of: returns what writes the nodes for one, or None. It raises ValueError for what is not supported, and
            UnknownError to be asked again when the shapes after other nodes are known.
        complete: refuse the model if such shapes remain unknown; else these nodes stay.

    Raises:
        ModelError: one of them has a form that is not supported.
    """
    while any(writer_of(node) for node in model.graph.node):
        graph = Graph(inferred(model))
        graph.take_constants()
        nodes: list[Any] = []
        waiting, count = None, 0
        for number, node in enumerate(graph.nodes):
            made, write = Nodes(graph, node), writer_of(node)
            try:
                if write is not None:
                    write(made)
                    count += 1
                nodes += [node] if write is None else made.nodes
            except UnknownError as error:
                nodes.append(node)
                waiting = refusal(node, number, error)
            except ValueError as error:
                raise refusal(node, number, error) from None
        if waiting is not None and not count:
            if complete:
                raise waiting
            return model
        graph.nodes = nodes
        model = graph.model()
    return model


def replace_nodes(graph: Graph, op: str, oldest: int, replaced: Callable[[Graph, Any], list[Any] | None]) -> None:
    """Put other nodes in the place of those of an operator, as far as there are any, for opsets from ``oldest`` on."""
    if graph.opset["ai.onnx"] < oldest:
        return
    nodes: list[Any] = []
    for node in graph.nodes:
        wanted = node.op_type == op and node.domain in ONNX_DOMAINS
        nodes += (replaced(graph, node) if wanted else None) or [node]
    graph.nodes = nodes


def inferred(model: Model) -> Model:
    """Return the model with the shapes that are found, as it is if it contradicts itself: that is said later."""
    try:
        return shapes_inferred(model, strict=False)
    except (shape_inference.InferenceError, onnx.checker.ValidationError, ValueError):
        return model


def shapes_inferred(model: Model, strict: bool = True) -> Model:
    """Return the model with inferred shapes; onnx, which copies a model several times, does not see large weights."""
    graph, given = model.graph, {value.name for value in model.graph.input}
    large = [tensor for tensor in graph.initializer if is_apart(tensor) or prod(tensor.dims) > _LARGE // 8]
    light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    names = {tensor.name for tensor in large}
    parts = {field.name: value for field, value in graph.ListFields() if field.name != "initializer"}
    light.graph.CopyFrom(onnx.GraphProto(**parts))
    light.graph.initializer.extend(tensor for tensor in graph.initializer if tensor.name not in names)
    light.graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in large
        if tensor.name not in given
    )
    found = shape_inference.infer_shapes(light, strict_mode=strict, data_prop=not _has_long_rows(model))
    del found.graph.input[len(graph.input) :]
    found.graph.initializer.extend(large)
    return found


def _has_long_rows(model: Model) -> bool:
    """Tell whether onnx would write down each of many elements, as if they were a shape."""
    constants = {t.name: t for t in model.graph.initializer if prod(t.dims) <= _FEW and not t.external_data}
    for node in model.graph.node:
        value = attribute_of(node, "value", None) if node.op_type == "Constant" and node.output else None
        if value is not None and prod(value.dims) <= _FEW:
            constants[node.output[0]] = value
        if node.op_type not in ("ConstantOfShape", "Range") or any(name not in constants for name in node.input):
            continue
        given = [array_of(constants[name]).reshape(-1) for name in node.input]
        sizes = (
            given[0].tolist() if node.op_type == "ConstantOfShape" else [abs(float(given[1][0]) - float(given[0][0]))]
        )
        if prod(sizes) > _LARGE:
            return True
    return False


def subgraphs(node: Any) -> list[Any]:
    """Return the graphs in a node, such as the branches of an If."""
    return [graph for a in node.attribute for graph in (*([a.g] if a.HasField("g") else []), *a.graphs)]


def all_inputs(node: Any) -> Iterable[str]:
    """Yield what a node reads, its subgraphs included."""
    yield from node.input
    for graph in subgraphs(node):
        for inner in graph.node:
            yield from all_inputs(inner)


def rename_values(node: Any, names: Mapping[str, str]) -> None:
    """Let a node, and what is in it, read and give values of other names, in place."""
    for part in (node.input, node.output):
        for place, name in enumerate(part):
            part[place] = names.get(name, name)
    for inner in subgraphs(node):
        own = {tensor.name for tensor in inner.initializer} | {value.name for value in inner.input}
        outer = {old: new for old, new in names.items() if old not in own}
        for each in inner.node:
            rename_values(each, outer)
        for value in inner.output:
            value.name = outer.get(value.name, value.name)


def opset_of(model: Model) -> int:
    """Return the version of ONNX's own operators."""
    return int(next((entry.version for entry in model.opset_import if entry.domain in ONNX_DOMAINS), 1))


def extents_of(value: Any) -> list[int | str] | None:
    """Return the shape of an input or another value, with names or ``?`` for what is not fixed; None if it has none."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return [d.dim_value if d.WhichOneof("value") == "dim_value" else d.dim_param or "?" for d in tensor.shape.dim]


def name_of(node: Any, number: int) -> str:
    name = f"{node.name[:_LONG_NAME]}…" if len(node.name) > _LONG_NAME else node.name
    return f"node '{name}'" if name else f"node {number}"


def refusal(node: Any, number: int, reason: object) -> ModelError:
    """Return the error for one node that cannot be compiled."""
    text = f"{name_of(node, number)}: {node.op_type}: {reason}"
    return ModelError(text, problems=[text], hint=reason.hint if isinstance(reason, ComputedError) else "")


def attribute_of(node: Any, name: str, default: Any) -> Any:
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def inputs_behind(model: Model, name: str) -> list[str]:
    """Return the inputs of a model that a value depends on by more than their shapes."""
    makers = {output: node for node in model.graph.node for output in node.output}
    inputs = {value.name for value in model.graph.input} - {tensor.name for tensor in model.graph.initializer}
    found: dict[str, None] = {}
    seen, left = {name}, [name]
    while left:
        current = left.pop()
        if current in inputs:
            found[current] = None
        node = makers.get(current)
        for other in () if node is None or node.op_type in ("Shape", "Size") else node.input:
            if other not in seen:
                seen.add(other)
                left.append(other)
    return list(found)


def deciding_inputs(model: Model) -> dict[str, int | None]:
    """Return the inputs that decide Ifs, with an integer that is compared with them; None where there is none."""
    ifs = [node for node in model.graph.node if node.op_type == "If"]
    names = dict.fromkeys(name for node in ifs for name in inputs_behind(model, node.input[0]))
    return {name: _value_that_decides(model, name) for name in names}


def constant_words(values: Mapping[str, int | None]) -> list[str]:
    """Return the options that make constants of inputs."""
    return [f"--constant {name}={'VALUE' if value is None else value}" for name, value in values.items()]


def _value_that_decides(model: Model, name: str) -> int | None:
    """Return an integer with which an input is compared; None if there is none."""
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    same = {name}
    for node in model.graph.node:
        value = attribute_of(node, "value", None) if node.op_type == "Constant" else None
        if value is not None:
            constants[node.output[0]] = value
        elif node.op_type in _PASSING and node.input[0] in same:
            same.add(node.output[0])
        elif node.op_type == "Equal" and same.intersection(node.input):
            others = [array_of(constants[other]) for other in node.input if other in constants]
            if others and others[0].size == 1 and float(others[0].reshape(-1)[0]).is_integer():
                return int(others[0].reshape(-1)[0])
    return None


def evaluated(graph: Graph, node: Any) -> list[Array] | None:
    """Return what onnx's reference implementation says; None where it has none."""
    feeds = {name: graph.constants[name] for name in node.input if name}
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()
    ]
    results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    made = helper.make_graph([node], "constant", values, results)
    imports = [helper.make_opsetid("" if domain == "ai.onnx" else domain, v) for domain, v in graph.opset.items()]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of empty arrays, say
            found = ReferenceEvaluator(helper.make_model(made, opset_imports=imports)).run(None, feeds)
    except Exception:  # it is computed when the model runs, or refused by the import
        return None
    if not all(isinstance(array, (np.ndarray, np.generic)) for array in found):
        return None
    by_name = iter(found)
    return [np.asarray(next(by_name)) if name else None for name in node.output]
