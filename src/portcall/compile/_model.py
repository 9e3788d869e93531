# SPDX-License-Identifier: Apache-2.0
"""Read an ONNX model, give it fixed shapes, and say what cannot be compiled before any long work begins."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import defs, helper, numpy_helper, shape_inference
from tvm.relax.frontend.onnx import onnx_frontend

from portcall.compile._quantized import OPERATORS
from portcall.errors import ModelError

Model = Any
Source = Any  # a path, bytes, or a ModelProto
_FEW = 8
_CONTROL_FLOW = ("If", "Loop", "Scan")
# The importer takes them, and what it makes cannot be a graph, or is wrong.
_REFUSED = {
    "NonZero": "its result's shape depends on values",
    "Unique": "its result's shape depends on values",
    "Compress": "its result's shape depends on values",
    "NonMaxSuppression": "its result's shape depends on values",
    "AllClassNMS": "its result's shape depends on values",
    "SequenceAt": "sequences are not supported",
    "SequenceConstruct": "sequences are not supported",
    "SequenceEmpty": "sequences are not supported",
    "SequenceErase": "sequences are not supported",
    "SequenceInsert": "sequences are not supported",
    "SequenceLength": "sequences are not supported",
    "SplitToSequence": "sequences are not supported",
    "ConcatFromSequence": "sequences are not supported",
    "Optional": "optional values are not supported",
    "OptionalGetElement": "optional values are not supported",
    "OptionalHasElement": "optional values are not supported",
}


@dataclass(frozen=True)
class Loaded:
    """A model as it was given.

    Attributes:
        name: of the file, or of the graph.
        digest: SHA-256 of the model, in hexadecimal.
    """

    model: Model
    name: str
    digest: str


def fix_inputs(model: Model, constants: Mapping[str, Any]) -> None:
    """Make inputs constants of these values, in place.

    Raises:
        ModelError: there is no such input.
    """
    for name, array in constants.items():
        place = next((k for k, value in enumerate(model.graph.input) if value.name == name), None)
        if place is None:
            raise ModelError(f"the model has no input '{name}' that could be constant")
        del model.graph.input[place]
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))


def load(source: Source) -> Loaded:
    """Read a model.

    Raises:
        ModelError: the file is damaged, no ONNX model, or lacks its external data; an opset that is not known; a node
            reads a value that nothing gives.
        OSError: the file cannot be read.
    """
    name = ""
    shown = f"'{os.fspath(source)}'" if isinstance(source, (str, os.PathLike)) else "the model"
    try:
        if isinstance(source, onnx.ModelProto):
            model, digest = source, hashlib.sha256(source.SerializeToString(deterministic=True)).hexdigest()
        elif isinstance(source, (bytes, bytearray, memoryview)):
            model, digest = onnx.load_model_from_string(bytes(source)), hashlib.sha256(source).hexdigest()
        else:
            name = Path(source).stem
            model, digest = onnx.load(os.fspath(source)), digest_of_file(source)
    except DecodeError as error:
        raise damaged(shown, error) from None
    except (onnx.checker.ValidationError, FileNotFoundError) as error:
        if name and not Path(source).is_file():
            raise
        raise ModelError(f"the data beside {shown} are missing or damaged: {error}") from None
    if not model.ByteSize():
        raise ModelError(f"{shown} is empty")
    if not model.graph.node and not model.graph.output:
        raise damaged(shown, "it has no nodes")
    check_opset(model)
    _check_inputs_given(model)
    return Loaded(model, name or model.graph.name or "model", digest)


def damaged(shown: str, reason: object) -> ModelError:
    return ModelError(f"{shown} is not an ONNX model, or it was cut off: {reason}")


def digest_of_file(path: str | os.PathLike[str]) -> str:
    """Return SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else _digest(file)


def _digest(file: Any) -> str:
    found = hashlib.sha256()
    while block := file.read(1 << 20):
        found.update(block)
    return found.hexdigest()


def check_opset(model: Model) -> None:
    newest = defs.onnx_opset_version()
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx") and entry.version > newest:
            raise ModelError(
                f"the model is of opset {entry.version}; the onnx package here knows those up to {newest}: "
                "pip install --upgrade onnx, or export the model for an older opset"
            )


def initializers(model: Model) -> set[str]:
    return {tensor.name for tensor in model.graph.initializer} | {t.values.name for t in model.graph.sparse_initializer}


def inputs_of(model: Model) -> list[Any]:
    """Return the inputs that are not weights."""
    known = initializers(model)
    return [value for value in model.graph.input if value.name not in known]


def bind_shapes(model: Model, shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Give every input a fixed shape, in place, and return the shapes.

    Raises:
        ModelError: an input has dimensions that are not fixed and not given; or a shape that does not fit it.
    """
    inputs = {value.name: value for value in inputs_of(model)}
    unknown = [name for name in shapes if name not in inputs]
    if unknown:
        raise ModelError(f"the model has no input '{unknown[0]}'; there is {', '.join(inputs) or 'none'}")
    found, problems = {}, []
    for name, value in inputs.items():
        if not value.type.HasField("tensor_type"):
            problems.append(f"input '{name}' is not a tensor: {value.type.WhichOneof('value')} is not supported")
            continue
        given = shapes.get(name)
        extents, flaw = _bound(value, given)
        if flaw:
            problems.append(flaw)
        else:
            found[name] = extents
            _set_shape(value, extents)
    if problems:
        raise ModelError("; ".join(problems), problems=problems)
    return found


def _bound(value: Any, given: Sequence[int] | None) -> tuple[tuple[int, ...], str]:
    """Return an input's fixed shape, or what is wrong."""
    tensor, name = value.type.tensor_type, value.name
    dims = list(tensor.shape.dim) if tensor.HasField("shape") else None
    fixed = None if dims is None else [dim.dim_value if dim.WhichOneof("value") == "dim_value" else -1 for dim in dims]
    if given is None:
        if fixed is not None and -1 not in fixed:
            return tuple(fixed), ""
        text = "no shape" if dims is None else "[" + ", ".join(
            dim.dim_param or "?" if extent < 0 else str(extent) for dim, extent in zip(dims, fixed or [], strict=True)
        ) + "]"  # fmt: skip
        example = "x".join(str(max(extent, 1)) for extent in fixed or [1])
        return (), f"input '{name}' has {text}, which is not fixed: --shape {name}={example}"
    extents = tuple(int(extent) for extent in given)
    if any(extent < 0 for extent in extents):
        return (), f"the shape {list(extents)} for input '{name}' has negative extents"
    if fixed is not None and (
        len(fixed) != len(extents) or any(a not in (-1, b) for a, b in zip(fixed, extents, strict=True))
    ):
        return (), f"input '{name}' cannot have the shape {list(extents)}: the model says {fixed} (-1: any)"
    return extents, ""


def _set_shape(value: Any, extents: Sequence[int]) -> None:
    value.type.tensor_type.shape.ClearField("dim")
    for extent in extents:
        value.type.tensor_type.shape.dim.add().dim_value = extent


def infer_shapes(model: Model) -> Model:
    """Return the model with the shapes of the values between its nodes.

    Raises:
        ModelError: the model contradicts itself.
    """
    try:
        return shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    except (shape_inference.InferenceError, onnx.checker.ValidationError) as error:
        raise ModelError(f"the shapes of the model do not fit: {_short(error)}") from None
    except ValueError:  # above 2 GiB it cannot be serialized; the importer finds the shapes itself
        return model


def _check_inputs_given(model: Model) -> None:
    """Refuse nodes that read a value that no input, weight or node has."""
    given = initializers(model) | {value.name for value in model.graph.input}
    given |= {name for node in model.graph.node for name in node.output}
    problems = [
        f"{name_of(node, number)} reads '{name}', which no node and no input gives"
        for number, node in enumerate(model.graph.node)
        for name in node.input
        if name and name not in given
    ]
    if problems:
        raise ModelError("; ".join(problems[:_FEW]), problems=problems)


def name_of(node: Any, number: int) -> str:
    return f"node '{node.name}'" if node.name else f"node {number}"


def check_operators(model: Model) -> None:
    """Refuse a model with operators that cannot be compiled.

    Raises:
        ModelError: with all of them, node by node.
    """
    problems = list(_flaws(model))
    if problems:
        shown = "\n  ".join(problems[:_FEW]) + (f"\n  … and {len(problems) - _FEW} more" * (len(problems) > _FEW))
        raise ModelError(f"{len(problems)} nodes of the model cannot be compiled:\n  {shown}", problems=problems)


def supported() -> set[str]:
    """Return the operators that can be imported."""
    return (set(onnx_frontend._get_convert_map()) | OPERATORS) - set(_REFUSED)


def _flaws(model: Model) -> Iterator[str]:
    known = supported()
    functions = {(function.domain, function.name) for function in model.functions}
    for number, node in enumerate(model.graph.node):
        name = name_of(node, number)
        if node.op_type in _CONTROL_FLOW:
            yield f"{name}: {node.op_type}: control flow is not supported"
        elif node.op_type in _REFUSED:
            yield f"{name}: {node.op_type}: {_REFUSED[node.op_type]}"
        elif node.op_type == "Dropout" and _trains(node, model):
            yield f"{name}: Dropout: training, and a mask that is used, are not supported"
        elif wrong := _unsupported_form(node):
            yield f"{name}: {node.op_type}: {wrong}"
        elif node.domain not in ("", "ai.onnx", "com.microsoft") and (node.domain, node.op_type) not in functions:
            yield f"{name}: {node.domain}.{node.op_type}: the domain is not known"
        elif node.op_type not in known and (node.domain, node.op_type) not in functions:
            yield f"{name}: {node.op_type}: the operator is not supported"


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
    return not known or bool(numpy_helper.to_array(known[0]).any())


def _unsupported_form(node: Any) -> str:
    """Say what of a node the importer would ignore; empty if nothing."""
    found = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    if node.op_type == "BatchNormalization" and found.get("training_mode", 0):
        return "training is not supported"
    if node.op_type == "RoiAlign" and found.get("mode", b"avg") == b"max":
        return "the mode max is not supported"
    if node.op_type == "IsInf" and not (found.get("detect_negative", 1) and found.get("detect_positive", 1)):
        return "it is supported for both signs only"
    if node.op_type == "SpaceToDepth" and found.get("mode", b"DCR") != b"DCR":
        return "the mode CRD is not supported"
    if node.op_type == "BitShift" and found.get("direction") not in (b"LEFT", b"RIGHT"):
        return "its direction is neither LEFT nor RIGHT"
    if node.op_type == "ConvTranspose" and "output_shape" in found:
        return "a given shape of the result is not supported"
    return ""


def _short(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
