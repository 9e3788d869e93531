# SPDX-License-Identifier: Apache-2.0
"""Rewrite an ONNX model into a smaller one of the same values, with NumPy, before it is imported.

Passes, in order: functions are replaced by what they consist of; steps that change nothing go; values without elements
become constants; what depends on constants and shapes alone is computed; sums of several become sums of two; and what
a channel is multiplied by, and what is added to it, goes into the convolution in front.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, inliner

from portcall.compile._borders import fold_borders
from portcall.compile._bytes import keep_bytes
from portcall.compile._checks import supported
from portcall.compile._contrib import replace_contrib
from portcall.compile._depths import replace_volumes
from portcall.compile._heights import add_heights
from portcall.compile._limits import check_values
from portcall.compile._ml import replace_ml
from portcall.compile._model import infer_shapes
from portcall.compile._operators import (
    group_concatenations,
    is_of_rows,
    replace_remainders,
    replace_shifts,
    write_out,
)
from portcall.compile._quantized import is_quantized, new_enough, replace_quantized
from portcall.compile._recurrent import replace_recurrent
from portcall.compile._resize import replace_resizes
from portcall.compile._rewriting import (
    CONVOLUTIONS,
    ONNX_DOMAINS,
    Graph,
    attribute_of,
    evaluated,
    inferred,
    opset_of,
    refusing,
)
from portcall.compile._steps import GATES
from portcall.compile._subpixels import replace_narrow
from portcall.errors import ModelError

Array = Any
Model = Any
_MOST_FOLDED = 1 << 26  # bytes of a constant that is made
_MOST_NODES = 1 << 20
_ROUNDS = 4
_RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
_DEFAULT_EPSILON = 1e-5


@refusing
def simplify(model: Model) -> Model:
    """Return the simplified model, its shapes inferred."""
    model = replace_ml(decompose(model), trees=True)
    if is_quantized(model):
        model = _with_integers(model)
    if any(node.op_type in GATES for node in model.graph.node):
        model = new_enough(model)
    model = infer_shapes(model)
    changed = Graph(model)
    changed.take_constants()
    keep_bytes(changed)
    model = infer_shapes(changed.model())
    for _ in range(_ROUNDS):
        changed = Graph(model)
        check_values(changed)
        drop_identities(changed)
        fold_empty(changed)
        count = fold_constants(changed)
        split_sums(changed)
        model = infer_shapes(changed.model())
        if not count:
            break
    changed = Graph(model)
    check_values(changed)
    replace_recurrent(changed)
    group_concatenations(changed)
    replace_resizes(changed)
    replace_shifts(changed)
    replace_remainders(changed)
    model = infer_shapes(changed.model())
    changed = Graph(model)
    if any(node.op_type in CONVOLUTIONS for node in changed.nodes):
        for change in (fold_borders, replace_volumes, add_heights, replace_narrow):
            change(changed)
            changed = Graph(infer_shapes(changed.model()))
    fold_scales(changed)
    return infer_shapes(changed.model())


def _with_integers(model: Model) -> Model:
    """Return a quantized model with products of integers and arithmetic in the place of what quantizes."""
    changed = Graph(infer_shapes(new_enough(model)))
    drop_identities(changed)
    fold_constants(changed, but=("QuantizeLinear", "DequantizeLinear"))
    replace_quantized(changed)
    return changed.model()


@refusing
def decompose(model: Model) -> Model:
    """Replace calls of functions, and operators that are not supported and consist of others."""
    if model.functions:
        _check_calls(model)
        model = inliner.inline_local_functions(model)
    model = write_out(replace_ml(replace_contrib(model), trees=False))
    known = supported()
    for _ in range(_ROUNDS):  # what consists of others that do, too
        wanted = {
            (node.domain, node.op_type)
            for node in model.graph.node
            if node.domain in ONNX_DOMAINS
            and (node.op_type not in known or _is_imported_wrongly(node))
            and _has_body(node, model)
        }
        if not wanted:
            break
        try:
            typed = infer_shapes(model)
            _add_types_of_weights(typed)
            _add_defaults(typed, wanted)
            model = inliner.inline_selected_functions(typed, sorted(wanted), inline_schema_functions=True)
        except RuntimeError as error:  # a value without a type
            raise ModelError(f"{', '.join(name for _, name in sorted(wanted))} cannot be decomposed: {error}") from None
    return model


@refusing
def without_recurrent(model: Any) -> Any:
    """Return a model, whose shapes need not be fixed, without recurrent layers."""
    if not any(node.op_type in GATES for node in model.graph.node):
        return model
    graph = Graph(inferred(model))
    graph.take_constants()
    fold_constants(graph)
    replace_recurrent(graph)
    return graph.model()


def _check_calls(model: Model) -> None:
    """Refuse a model whose functions call themselves, or that would have too many nodes without them."""
    functions = {(function.domain, function.name): function for function in model.functions}
    sizes: dict[tuple[str, str], int] = {}

    def size(nodes: Sequence[Any], callers: tuple[tuple[str, str], ...]) -> int:
        count = 0
        for node in nodes:
            key = (node.domain, node.op_type)
            if key in callers:
                raise ModelError(f"the function '{key[0]}.{key[1]}' calls itself, which a model's functions cannot")
            if key in functions and key not in sizes:
                sizes[key] = size(functions[key].node, (*callers, key))
            count += sizes.get(key, 1)
        return count

    if (count := size(model.graph.node, ())) > _MOST_NODES:
        raise ModelError(f"the model has {count:,} nodes, functions written out; at most {_MOST_NODES:,} are possible")


def _add_types_of_weights(model: Model) -> None:
    """Let a model list the types of its weights, too: what a function consists of may depend on them."""
    known = {value.name for value in (*model.graph.input, *model.graph.value_info, *model.graph.output)}
    model.graph.value_info.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in model.graph.initializer
        if tensor.name not in known
    )
    if any(not name for node in model.graph.node for name in node.input):  # it asks for the types of these as well
        model.graph.value_info.append(helper.make_tensor_value_info("", onnx.TensorProto.FLOAT, None))


def _add_defaults(model: Model, wanted: set[tuple[str, str]]) -> None:
    """Give nodes all their attributes: in the bodies of operators they have no defaults."""
    for node in model.graph.node:
        if (node.domain, node.op_type) not in wanted:
            continue
        given = {attribute.name for attribute in node.attribute}
        schema = onnx.defs.get_schema(node.op_type, opset_of(model), node.domain)
        node.attribute.extend(
            each.default_value
            for name, each in schema.attributes.items()
            if name not in given and each.default_value.name
        )


def _is_imported_wrongly(node: Any) -> bool:
    """Tell whether the importer does something else than the operator's definition says."""
    if node.op_type in ("LayerNormalization", "RMSNormalization"):
        return not is_of_rows(node)
    return bool(node.op_type == "Attention")


def _has_body(node: Any, model: Model) -> bool:
    try:
        schema = onnx.defs.get_schema(node.op_type, opset_of(model), node.domain)
    except onnx.defs.SchemaError:
        return False
    return bool(schema.has_function or schema.has_context_dependent_function)


# ---- Steps that change nothing ---------------------------------------------------------------------------------------


def drop_identities(graph: Graph) -> None:
    """Remove Identity, Dropout as it is at inference, and sums of one; results of the model keep their names."""
    readers, names, kept = graph.readers(), {}, []
    for node in graph.nodes:
        drop = node.op_type == "Identity" or (node.op_type in ("Sum", "Max", "Min", "Concat") and len(node.input) == 1)
        if node.op_type == "Dropout":
            training = len(node.input) > 2 and node.input[2] and bool(np.any(graph.constants.get(node.input[2], True)))
            drop = not training and not any(readers[name] for name in node.output[1:])
        if drop and node.input[0] and node.output[0] not in graph.outputs:
            names[node.output[0]] = node.input[0]
        else:
            kept.append(node)
    graph.nodes = kept
    graph.rename(names)


def split_sums(graph: Graph) -> None:
    """Write sums of three or more values as sums of two."""
    nodes = []
    for node in graph.nodes:
        if node.op_type != "Sum" or len(node.input) < 2:
            nodes.append(node)
            continue
        total = node.input[0]
        for place, name in enumerate(node.input[1:], 1):
            target = node.output[0] if place == len(node.input) - 1 else f"{node.output[0]}/{place}"
            nodes.append(helper.make_node("Add", [total, name], [target]))
            total = target
    graph.nodes = nodes


# ---- Constants -------------------------------------------------------------------------------------------------------


def fold_empty(graph: Graph) -> None:
    """Make constants of values without elements, which kernels refuse, and leave them out of what is concatenated."""

    def is_empty(name: str) -> bool:
        return 0 in (graph.shape(name) or ()) and bool(graph.dtype(name))

    def empty(name: str) -> str:
        return graph.constant(name, np.zeros(graph.shape(name) or (), graph.dtype(name)))

    names = {name: empty(name) for name in graph.inputs if is_empty(name)}
    kept = []
    for node in graph.nodes:
        results = [name for name in node.output if name]
        found = [name for name in results if is_empty(name)]
        if len(found) == len(results) and node.op_type not in ("Identity", "Constant"):
            kept += [helper.make_node("Identity", [empty(name)], [name]) for name in found]
            continue
        if node.op_type.startswith("Scatter") and not found and is_empty(node.input[1]):
            kept.append(helper.make_node("Identity", [node.input[0]], results))
            continue
        if node.op_type == "MatMulInteger" and not found and is_empty(node.input[0]) and graph.shape(results[0]):
            zeros = graph.constant(results[0], np.zeros(graph.shape(results[0]) or (), "int32"))
            kept.append(helper.make_node("Identity", [zeros], results))
            continue
        if node.op_type == "Concat" and not found:
            left = [name for name in node.input if not is_empty(name)]
            del node.input[:]
            node.input.extend(left)
        kept.append(node)
    graph.nodes = kept
    graph.rename(names)


def fold_constants(graph: Graph, but: Sequence[str] = ()) -> int:
    """Compute what depends on constants and shapes alone, but not some operators; return how many nodes that were."""
    kept, count = [], 0
    shapes = {node.output[0]: node for node in graph.nodes if node.op_type == "Shape"}
    for node in graph.nodes:
        found = None if node.op_type in but else _computed(graph, node, shapes)
        if found is None or (node.op_type == "Identity" and node.output[0] in graph.outputs):
            kept.append(node)
            continue
        count += 1
        for name, array in zip(node.output, found, strict=False):
            if name in graph.outputs:
                kept.append(helper.make_node("Identity", [graph.constant(name, np.asarray(array))], [name]))
            elif name:
                graph.constants[name] = np.asarray(array)
    graph.nodes = kept
    return count


def _extents_in(graph: Graph, shape: Any) -> list[int | str] | None:
    """Return what a Shape gives, with words for extents that are not known."""
    extents = graph.extents(shape.input[0])
    return None if extents is None else extents[attribute_of(shape, "start", 0) : attribute_of(shape, "end", None)]


def _gathered(graph: Graph, node: Any, extents: Sequence[int | str] | None) -> list[Array] | None:
    """Return those extents of a shape that a Gather takes, if they are known, whatever the others are."""
    indices = graph.constants.get(node.input[1])
    if extents is None or indices is None or not np.all((-len(extents) <= indices) & (indices < len(extents))):
        return None
    taken = [extents[int(index)] for index in indices.reshape(-1)]
    if not all(isinstance(extent, int) for extent in taken):
        return None
    return [np.array(taken, "int64").reshape(indices.shape)]


def _computed(graph: Graph, node: Any, shapes: Mapping[str, Any]) -> list[Array] | None:
    """Return the results of a node that are known; ``shapes`` are the nodes that give shapes, by the names of these."""
    if node.op_type == "Shape":
        extents = _extents_in(graph, node)
        known = extents is not None and all(isinstance(extent, int) for extent in extents)
        return [np.array(extents, "int64")] if known else None
    if node.op_type == "Gather" and node.input[0] in shapes and node.input[0] not in graph.constants:
        return _gathered(graph, node, _extents_in(graph, shapes[node.input[0]]))
    if node.op_type in _RANDOM or any(a.HasField("g") or a.graphs for a in node.attribute):
        return None
    if any(name and name not in graph.constants for name in node.input):
        return None
    sizes = [graph.shape(name) for name in node.output if name]
    if any(size is not None and np.prod(size, dtype="int64") * 8 > _MOST_FOLDED for size in sizes):
        return None
    return evaluated(graph, node)


# ---- Scales and shifts of channels -----------------------------------------------------------------------------------


@dataclass
class _Affine:
    """``scale[c] * x + shift[c]`` for the channels of the value ``x``."""

    x: str
    scale: Array
    shift: Array


def fold_scales(graph: Graph) -> None:
    """Put chains of BatchNormalization, Mul and Add with a constant for each channel into the convolution in front.

    A chain without a convolution becomes one Mul and one Add, with constants of four axes: with three the layout pass
    would go back to NCHW.
    """
    readers = graph.readers()
    convolutions = {node.output[0]: node for node in graph.nodes if node.op_type == "Conv"}
    chains: dict[str, _Affine] = {}
    affine = {id(node): _affine(graph, node) for node in graph.nodes}
    inner = set()
    for node in graph.nodes:
        step = affine[id(node)]
        if step is None:
            continue
        before = chains.get(step.x)
        if before is not None and readers[step.x] == 1:
            inner.add(step.x)
            step = _Affine(before.x, before.scale * step.scale, before.shift * step.scale + step.shift)
        chains[node.output[0]] = step
    nodes, names = [], {}
    for node in graph.nodes:
        result = node.output[0] if node.output else ""
        if affine[id(node)] is None:
            nodes.append(node)
            continue
        if result in inner:
            continue
        chain = chains[result]
        convolution = convolutions.get(chain.x)
        if convolution is not None and readers[chain.x] == 1 and _into_convolution(graph, convolution, chain):
            if result in graph.outputs:
                convolution.output[0] = result
            else:
                names[result] = chain.x
        else:
            nodes += _as_mul_and_add(graph, chain, result)
    graph.nodes = nodes
    graph.rename(names)


def _affine(graph: Graph, node: Any) -> _Affine | None:
    """Return what a node does if it scales and shifts channels of an NCHW value."""
    constants = graph.constants
    if node.op_type == "BatchNormalization" and len([n for n in node.output if n]) == 1:
        if attribute_of(node, "training_mode", 0) or any(name not in constants for name in node.input[1:5]):
            return None
        if len(graph.shape(node.input[0]) or ()) != 4:
            return None
        scale, shift, mean, variance = (constants[name].astype("float64") for name in node.input[1:5])
        if constants[node.input[1]].dtype != np.float32:
            return None
        factor = scale / np.sqrt(variance + attribute_of(node, "epsilon", _DEFAULT_EPSILON))
        return _Affine(node.input[0], factor, shift - mean * factor)
    if node.op_type not in ("Mul", "Add") or len(node.input) != 2:
        return None
    for x, other in (node.input, tuple(node.input)[::-1]):
        constant, shape = constants.get(other), graph.shape(x)
        if constant is None or x in constants or constant.dtype != np.float32 or shape is None or len(shape) != 4:
            continue
        extents = (1,) * (4 - constant.ndim) + constant.shape
        if constant.ndim in (3, 4) and extents == (1, shape[1], 1, 1):
            values = constant.reshape(-1).astype("float64")
            zero, one = np.zeros_like(values), np.ones_like(values)
            return _Affine(x, values, zero) if node.op_type == "Mul" else _Affine(x, one, values)
    return None


def _into_convolution(graph: Graph, node: Any, chain: _Affine) -> bool:
    """Scale the weights and the bias of a convolution; False if they are not constant."""
    inputs = [name for name in node.input if name]
    weights = [graph.constants[name] for name in inputs[1:] if name in graph.constants]
    if len(weights) != len(inputs) - 1 or any(array.dtype != np.float32 for array in weights):
        return False
    kernel = weights[0].astype("float64")
    bias = weights[1].astype("float64") if len(weights) > 1 else np.zeros(kernel.shape[0])
    scale = chain.scale.reshape(-1, *[1] * (kernel.ndim - 1))
    made = (kernel * scale).astype("float32"), (bias * chain.scale + chain.shift).astype("float32")
    del node.input[:]
    node.input.extend([inputs[0], graph.constant(f"{inputs[1]}/scaled", made[0]), graph.constant("bias", made[1])])
    return True


def _as_mul_and_add(graph: Graph, chain: _Affine, result: str) -> list[Any]:
    nodes, x = [], chain.x
    shape = (1, -1, 1, 1)
    scaled, shifted = bool(np.any(chain.scale != 1)), bool(np.any(chain.shift != 0))
    if scaled or not shifted:
        target = f"{result}/scaled" if shifted else result
        factor = graph.constant("scale", chain.scale.reshape(shape).astype("float32"))
        nodes.append(helper.make_node("Mul", [x, factor], [target]))
        x = target
    if shifted:
        shift = graph.constant("shift", chain.shift.reshape(shape).astype("float32"))
        nodes.append(helper.make_node("Add", [x, shift], [result]))
    return nodes
