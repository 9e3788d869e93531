# SPDX-License-Identifier: Apache-2.0
"""Say all that is wrong with an ONNX model before any long work begins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import onnx
from onnx import defs, helper, numpy_helper
from onnx.external_data_helper import uses_external_data
from tvm.relax.frontend.onnx import onnx_frontend

from portcall.compile._ml import OPERATORS as OF_ML
from portcall.compile._quantized import OPERATORS
from portcall.compile._rewriting import (
    ONNX_DOMAINS,
    constant_words,
    deciding_inputs,
    inputs_behind,
    name_of,
    opset_of,
)  # fmt: skip
from portcall.compile._steps import GATES
from portcall.compile._trees import ML
from portcall.compile._weights import array_of, is_apart
from portcall.errors import ModelError

Model = Any
_FEW = 8
_OLDEST_IR = 3  # models from it on say their opsets
_DECIDED = "which these inputs decide"
_OPTIONAL = defs.OpSchema.FormalParameterOption.Optional
_EXPORT_AGAIN = "copy or export it again"
_FIXED_ONLY = "it is for graphs only, whose shapes are fixed"
# Operators that are imported, of which a graph cannot be made; the Relax VM can have some.
_DEPENDS = "the shape of its result depends on values"
_NOT_IN_GRAPHS = {
    "If": "a graph has no control flow",
    **dict.fromkeys(("Loop", "Scan"), "constants and fixed shapes do not say how often it turns, or over 512 times"),
    **dict.fromkeys(("NonZero", "Unique", "Compress", "NonMaxSuppression", "AllClassNMS"), _DEPENDS),
    **dict.fromkeys(
        ("SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength",
         "SplitToSequence", "ConcatFromSequence"), "sequences are not supported"),
    **dict.fromkeys(("Optional", "OptionalGetElement", "OptionalHasElement"), "optional values are not supported"),
}  # fmt: skip


# Types of elements: what tensors hold, but no floats of 8 bits, to which TVM does not round.
ELEMENTS = {
    getattr(onnx.TensorProto, name)
    for name in ("FLOAT", "UINT8", "INT8", "UINT16", "INT16", "INT32", "INT64", "BOOL", "FLOAT16", "DOUBLE", "UINT32",
                 "UINT64", "BFLOAT16")
}  # fmt: skip


def element_name(kind: int) -> str:
    return next((name for name, number in onnx.TensorProto.DataType.items() if number == kind), str(kind))


class InvalidModelError(ModelError):
    """A model that nothing can run: it is damaged, or contradicts itself."""


class ContradictionError(ModelError):
    """The shapes of a model, or those that its inputs were given, do not fit together."""


def check_form(model: Model, shown: str) -> None:
    """Refuse a model that is not well formed.

    Parameters:
        shown: what messages call it.

    Raises:
        InvalidModelError: with all that is wrong: versions that are not known, nodes and results that read what nothing
            gives, nodes with too few inputs, damaged weights.
    """
    if not model.graph.node and not model.graph.output:
        raise InvalidModelError(f"{shown} is not an ONNX model, or it was cut off: it has no nodes", hint=_EXPORT_AGAIN)
    _check_versions(model)
    if not model.graph.output:
        raise InvalidModelError(f"{shown} has no results", hint=_EXPORT_AGAIN)
    problems = list(_malformed_names(model))
    problems = problems or [*_open_values(model), *_malformed_nodes(model), *_damaged_weights(model)]
    if problems:
        raise InvalidModelError("; ".join(_few(problems)), problems=problems, hint="export the model again")


def _few(problems: Sequence[str]) -> list[str]:
    rest = len(problems) - _FEW
    return [*problems[:_FEW], *([f"and {rest} more"] if rest > 0 else [])]


def _check_versions(model: Model) -> None:
    newest, opset = defs.onnx_opset_version(), opset_of(model)
    said = {entry.version for entry in model.opset_import if entry.domain in ONNX_DOMAINS}
    if len(said) > 1:
        raise InvalidModelError(
            f"the model says to be of several opsets: {', '.join(map(str, sorted(said)))}", hint=_EXPORT_AGAIN
        )
    if not said and model.ir_version >= _OLDEST_IR and any(node.domain in ONNX_DOMAINS for node in model.graph.node):
        raise InvalidModelError("the model does not say of which opset it is, or it was cut off", hint=_EXPORT_AGAIN)
    for word, version, known in (("opset", opset, newest), ("IR version", model.ir_version, onnx.IR_VERSION)):
        if not 1 <= version <= known:
            raise InvalidModelError(
                f"the model is of {word} {version}; the onnx package here knows 1 to {known}",
                hint=f"pip install --upgrade onnx, or export the model for opset {newest} or an older one",
            )


def _malformed_names(model: Model) -> Iterator[str]:
    """Yield names that are no text, inputs without one or with the same one, and values that two nodes give."""
    values = [*model.graph.input, *model.graph.output, *model.graph.initializer]
    texts = [value.name for value in values]
    texts += [text for n in model.graph.node for text in (n.name, n.op_type, n.domain, *n.input, *n.output)]
    for text in texts:
        if isinstance(text, bytes):  # protobuf says so of what is not UTF-8
            yield f"the name {text!r:.200} is not UTF-8"
            return
    given = {tensor.name for tensor in model.graph.initializer}
    seen: set[str] = set()
    for value in model.graph.input:
        if not value.name or value.name in seen:
            yield f"two inputs are called '{value.name}'" if value.name else "an input has no name"
        seen.add(value.name)
    given |= seen
    for number, node in enumerate(model.graph.node):
        for name in filter(None, node.output):
            if name in given:
                yield f"{name_of(node, number)}: {node.op_type}: it gives '{name}', which is given already"
            given.add(name)


def _open_values(model: Model) -> Iterator[str]:
    """Yield what is wrong with nodes and results that read a value that nothing has given before."""
    given = {tensor.name for tensor in model.graph.initializer} | {
        t.values.name for t in model.graph.sparse_initializer
    }
    given |= {value.name for value in model.graph.input}
    every = {name for node in model.graph.node for name in node.output}
    for number, node in enumerate(model.graph.node):
        for name in node.input:
            if name and name not in given:
                why = "a later node gives" if name in every else "no node and no input gives"
                yield f"{name_of(node, number)}: {node.op_type}: it reads '{name}', which {why}"
        given.update(node.output)
    for value in model.graph.output:
        if value.name not in given:
            yield f"result '{value.name}': no node gives it"


def _malformed_nodes(model: Model) -> Iterator[str]:
    functions = _functions(model)
    for number, node in enumerate(model.graph.node):
        try:
            schema = defs.get_schema(node.op_type, opset_of(model), "") if node.domain in ONNX_DOMAINS else None
        except defs.SchemaError:
            continue
        if schema is None or (node.domain, node.op_type) in functions:
            continue
        name = f"{name_of(node, number)}: {node.op_type}"
        if not schema.min_input <= (count := len(node.input)) <= schema.max_input:
            yield f"{name}: it has {count} inputs, which is too {'few' if count < schema.min_input else 'many'}"
        for place, text in enumerate(node.input):
            if not text and schema.inputs[min(place, len(schema.inputs) - 1)].option != _OPTIONAL:
                yield f"{name}: its input {place} is missing"
        if len(node.output) < schema.min_output:
            yield f"{name}: it has {len(node.output)} results, which is too few"
        if len(node.output) > schema.max_output:
            yield f"{name}: it has {len(node.output)} results, which is too many"
        if wrong := _malformed_bodies(node):
            yield f"{name}: {wrong}"
        given = {attribute.name: attribute for attribute in node.attribute}
        if len(given) < len(node.attribute):
            yield f"{name}: it has an attribute twice"
        yield from (
            f"{name}: its attribute '{word}' is one of a function" for word in given if given[word].ref_attr_name
        )
        for word, attribute in schema.attributes.items():
            kind = given[word].type if word in given else 0
            if attribute.required and word not in given:
                yield f"{name}: it has no attribute '{word}'"
            elif kind and kind != attribute.type.value:  # models of old versions do not say them
                kinds = [onnx.AttributeProto.AttributeType.Name(each) for each in (kind, attribute.type.value)]
                yield f"{name}: its attribute '{word}' is of the type {kinds[0]} instead of {kinds[1]}"


def _malformed_bodies(node: Any) -> str:
    """Say what is wrong with the numbers of inputs and results of a node's graphs; empty if nothing."""
    fewest = {"If": (0, 0), "Loop": (2, 1), "Scan": (0, 0)}.get(node.op_type)
    for attribute in node.attribute:
        if fewest is None or not attribute.HasField("g"):
            continue
        body, inputs = attribute.g, 0 if node.op_type == "If" else max(len(node.input), fewest[0])
        for word, count, wanted in (
            ("inputs", len(body.input), inputs),
            ("results", len(body.output), len(node.output) + fewest[1]),
        ):
            if count != wanted:
                return f"its graph '{attribute.name}' has {count} {word} instead of {wanted}"
    return ""


def _damaged_weights(model: Model) -> Iterator[str]:
    read = {name for node in model.graph.node for name in node.input}
    for sparse in model.graph.sparse_initializer:
        if sparse.values.name in read:
            yield f"weights '{sparse.values.name}': they are sparse, which is not supported"
    for tensor in model.graph.initializer:
        try:
            if is_apart(tensor):
                continue
            if uses_external_data(tensor):
                yield f"weights '{tensor.name}': they are in a file beside the model: give its path, not its bytes"
            else:
                numpy_helper.to_array(tensor)
        except KeyError:
            yield f"weights '{tensor.name}': their type {tensor.data_type} is not known"
        except (ValueError, TypeError) as error:
            yield f"weights '{tensor.name}' {list(tensor.dims)}: {error}"


# ---- Operators -------------------------------------------------------------------------------------------------------


def check_operators(model: Model, *, graph: bool = True) -> None:
    """Refuse a model with operators that cannot be compiled.

    Parameters:
        graph: to a graph; else for the Relax VM.

    Raises:
        ModelError: with all of them, node by node.
    """
    problems = list(_flaws(model, graph))
    if problems:
        count = f"{len(problems)} node{'s' * (len(problems) > 1)}"
        raise ModelError(
            f"{count} of the model cannot be compiled:\n  " + "\n  ".join(_few(problems)), problems=problems,
            hint=_deciding_words(model, problems) or _graph_words(problems) or "export the model with other operators",
        )  # fmt: skip


def _deciding_words(model: Model, problems: Sequence[str]) -> str:
    """Return which constants solve all problems; empty if others are among them."""
    if not all(_DECIDED in text for text in problems):
        return ""
    return f"make constants of them: {' '.join(constant_words(deciding_inputs(model)))}"


def _graph_words(problems: Sequence[str]) -> str:
    """Return what to do where a graph can hold all that an executable cannot; empty otherwise."""
    return "compile it to a graph: --runtime graph" if all(_FIXED_ONLY in text for text in problems) else ""


def supported() -> set[str]:
    """Return the operators that can be imported for a graph."""
    return (set(onnx_frontend._get_convert_map()) | OPERATORS | set(GATES) | {"CumProd"}) - set(_NOT_IN_GRAPHS)


def _functions(model: Model) -> set[tuple[str, str]]:
    return {(function.domain, function.name) for function in model.functions}


def _flaws(model: Model, graph: bool) -> Iterator[str]:
    inputs = {value.name for value in model.graph.input}
    for value in model.graph.output:
        if graph and value.name in inputs:
            yield f"result '{value.name}': it is an input, too, which it cannot be in a graph"
    known = supported() if graph else {"If", *GATES, *onnx_frontend._get_convert_map()}
    functions = _functions(model)
    for number, node in enumerate(model.graph.node):
        if (node.domain, node.op_type) in functions:
            continue
        name = name_of(node, number)
        if graph and node.op_type == "If" and (behind := inputs_behind(model, node.input[0])):
            yield f"{name}: If: {_NOT_IN_GRAPHS['If']}, {_DECIDED}: {', '.join(behind)}"
        elif graph and node.op_type in _NOT_IN_GRAPHS:
            yield f"{name}: {node.op_type}: {_NOT_IN_GRAPHS[node.op_type]}"
        elif node.op_type == "Dropout" and _trains(node, model):
            yield f"{name}: Dropout: training, and a mask that is used, are not supported"
        elif wrong := _unsupported_form(node, graph):
            yield f"{name}: {node.op_type}: {wrong}"
        elif node.domain == ML and node.op_type in OF_ML:
            if not graph:
                yield f"{name}: {node.op_type}: {_FIXED_ONLY}"
        elif node.domain == ML:
            yield f"{name}: {node.op_type}: the operator is not supported"
        elif node.domain not in (*ONNX_DOMAINS, "com.microsoft"):
            yield f"{name}: {node.domain}.{node.op_type}: the domain is not known"
        elif node.op_type not in known:
            only_graphs = not graph and node.op_type in supported()
            yield f"{name}: {node.op_type}: {_FIXED_ONLY if only_graphs else 'the operator is not supported'}"


def _trains(node: Any, model: Model) -> bool:
    """Tell whether a Dropout does anything: its mask is read, or its third input is not constantly false."""
    read = {name for other in model.graph.node for name in other.input} | {value.name for value in model.graph.output}
    if any(name in read for name in node.output[1:]):
        return True
    if len(node.input) < 3 or not node.input[2]:
        return False
    known = [tensor for tensor in model.graph.initializer if tensor.name == node.input[2]]
    known += [
        attribute.t
        for other in model.graph.node
        if other.op_type == "Constant" and other.output[0] == node.input[2]
        for attribute in other.attribute
        if attribute.name == "value"
    ]
    return not known or bool(array_of(known[0]).any())


def _unsupported_form(node: Any, graph: bool) -> str:
    """Say what of a node the importer would ignore; empty if nothing."""
    found = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    if node.op_type == "BatchNormalization" and found.get("training_mode", 0):
        return "training is not supported"
    if node.op_type == "RoiAlign" and found.get("mode", b"avg") == b"max":
        return "the mode max is not supported"
    if node.op_type == "MaxPool" and len(node.output) > 1 and node.output[1]:
        return "its second result, the places of the maxima, is not supported"
    if node.op_type == "IsInf" and not (found.get("detect_negative", 1) and found.get("detect_positive", 1)):
        return "it is supported for both signs only"
    if node.op_type == "SpaceToDepth" and found.get("mode", b"DCR") != b"DCR":
        return "the mode CRD is supported for fixed shapes only"
    if node.op_type == "Cast" and found.get("to") not in ELEMENTS:
        return f"the type {element_name(found.get('to', 0))} is not supported"
    if node.op_type == "BitShift" and found.get("direction") not in (b"LEFT", b"RIGHT"):
        return "its direction is neither LEFT nor RIGHT"
    if not graph and node.op_type == "Resize" and found.get("antialias", 0):
        return f"antialias: {_FIXED_ONLY}"  # TVM's importer leaves it out
    if not graph and node.op_type == "ConvTranspose" and "output_shape" in found:
        return "a given shape of the result is for graphs only, whose shapes are fixed"
    return ""
