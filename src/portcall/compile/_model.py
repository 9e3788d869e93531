# SPDX-License-Identifier: Apache-2.0
"""Read an ONNX model, and give it fixed shapes."""

from __future__ import annotations

import difflib
import hashlib
import heapq
import operator
import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper, shape_inference
from onnx.external_data_helper import ExternalDataInfo, load_external_data_for_model, uses_external_data

from portcall.compile._checks import ELEMENTS, ContradictionError, InvalidModelError, check_form, element_name
from portcall.compile._ml import without_maps
from portcall.compile._onnx_file import read_model, take_external
from portcall.compile._rewriting import Graph, all_inputs, extents_of, name_of, shapes_inferred
from portcall.compile._weights import as_if_inside, copied
from portcall.errors import ModelError

Model = Any
Missing = Callable[[Any, Sequence[str]], tuple[list[str], str]]
Source = Any  # a path, bytes, or a ModelProto
_BLOCK = 1 << 20
# Extents of pictures and of sequences: for the last two axes of four, and for all other axes but the batch.
_USUAL = ((224, 224, 128), (48, 320, 512), (128, 128, 16000), (640, 640, 224), (32, 32, 32), (1, 1, 1))
_NO_NAMES = ("", "?", "None")  # of extents, as exporters write them: each is one of its own
_EXPRESSION = re.compile(r"(\w+) *([-+*/]|//) *(\w+)")  # which onnxruntime does not compute, but exporters mean it
_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.floordiv, "//": operator.floordiv,
}  # fmt: skip
_OF_TYPES = "Inferred elem type differs"  # in what onnx says
_INFERENCE = re.compile(r"\(op_type:\s*(\w+)(?:, node name:\s*(.*?))?\):\s*(?:\[\w+\]\s*)?(.*)")


@dataclass(frozen=True)
class Loaded:
    """A model as it was given.

    Attributes:
        name: of the file, or of the graph.
        digest: SHA-256 of the model, in hexadecimal.
        notes: what is different in it, since no result of a compiled model can be that.
    """

    model: Model
    name: str
    digest: str
    notes: tuple[str, ...] = ()


def fix_inputs(model: Model, constants: Mapping[str, Any]) -> None:
    """Make inputs constants of these values, in place.

    Raises:
        ModelError: there is no such input, or it has another type.
    """
    for name, array in constants.items():
        place = next((k for k, value in enumerate(model.graph.input) if value.name == name), None)
        if place is None:
            raise _no_input(name, [value.name for value in inputs_of(model)])
        model.graph.initializer.append(numpy_helper.from_array(as_input(model.graph.input[place], array), name))
        del model.graph.input[place]


def _no_input(name: str, known: Sequence[str]) -> ModelError:
    near = difflib.get_close_matches(name, known, n=3)
    text = f"the model has no input '{name}'; its inputs are {', '.join(known) or 'none'}"
    return ModelError(text, hint=f"did you mean {' or '.join(near)}?" if near else "")


def as_input(value: Any, array: Any) -> Any:
    """Return an array in the type of an input, a number also in its shape."""
    given, tensor = np.asarray(array), value.type.tensor_type
    made = given.astype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    if made.dtype.kind in "biu" and not np.array_equal(made, given):
        raise ModelError(f"the input '{value.name}' is {made.dtype}, which {given.tolist()} is not")
    return made.reshape([1] * len(tensor.shape.dim)) if given.ndim == 0 else made


def load(source: Source) -> Loaded:
    """Read a model.

    Raises:
        InvalidModelError: the file is damaged, no ONNX model, or lacks its external data; an opset that is not known; a
            node reads a value that nothing gives.
        OSError: the file cannot be read.
    """
    name, shown = "", "the model"
    try:
        if isinstance(source, onnx.ModelProto):
            model, digest = source, hashlib.sha256(source.SerializeToString(deterministic=True)).hexdigest()
        elif isinstance(source, (bytes, bytearray, memoryview)):
            model, digest = onnx.load_model_from_string(bytes(source)), hashlib.sha256(source).hexdigest()
        else:
            name, shown = Path(source).stem, f"'{os.fspath(source)}'"
            model, digest = read_model(os.fspath(source)), digest_of_files([Path(source)])
    except DecodeError:
        raise InvalidModelError(
            f"{shown} is not an ONNX model, or it was cut off", hint="copy or export it again"
        ) from None
    if not model.ListFields():
        raise InvalidModelError(f"{shown} is empty", hint="copy or export it again")
    if name:
        folder = str(Path(source).parent)
        try:
            with as_if_inside(model):
                external_files(model, Path(source))
                take_external(model, folder)
            with as_if_inside(model):
                load_external_data_for_model(model, folder)
        except (onnx.checker.ValidationError, ValueError) as error:  # a place outside of the model's folder
            raise InvalidModelError(f"the weights of {shown} cannot be read: {error}", hint="export it again") from None
    model = _in_order(model)
    check_form(model, shown)
    changed, notes = without_maps(_with_unknown_extents(model))
    return Loaded(changed, name or model.graph.name or "model", digest, tuple(notes))


def _in_order(model: Model) -> Model:
    """Return the model with each node after those whose results it reads, as some converters do not write them.

    onnxruntime takes them in any order. Where nodes read each other in a circle, they stay as they are.
    """
    order = _order(model.graph)
    if order is None:
        return model
    changed = copied(model)
    nodes = [changed.graph.node[number] for number in order]
    del changed.graph.node[:]
    changed.graph.node.extend(nodes)
    return changed


def _order(graph: Any) -> list[int] | None:
    """Return the nodes in an order in which each comes after those that it reads; None if it is theirs, or none is."""
    places = {name: number for number, node in enumerate(graph.node) for name in node.output if name}
    wanted = [{places[name] for name in all_inputs(node) if name in places} for node in graph.node]
    if all(before < number for number, found in enumerate(wanted) for before in found):
        return None
    readers: list[list[int]] = [[] for _ in wanted]
    for number, found in enumerate(wanted):
        for before in found:
            readers[before].append(number)
    left = [len(found) for found in wanted]
    ready = [number for number, count in enumerate(left) if not count]  # sorted, and so a heap
    order = []
    while ready:
        order.append(heapq.heappop(ready))
        for reader in readers[order[-1]]:
            left[reader] -= 1
            if not left[reader]:
                heapq.heappush(ready, reader)
    return order if len(order) == len(wanted) else None


def _with_unknown_extents(model: Model) -> Model:
    """Return the model with extents that it says to be -1 or 0, as some exporters write what they do not know, as such.

    What has no elements is said by its shape when it is compiled, or found by inference.
    """

    def wrong(graph: Any) -> list[Any]:
        values = (*graph.input, *graph.value_info, *graph.output)
        dims = (dim for value in values for dim in value.type.tensor_type.shape.dim)
        return [dim for dim in dims if dim.WhichOneof("value") == "dim_value" and dim.dim_value <= 0]

    if not wrong(model.graph):
        return model
    changed = copied(model)
    for dim in wrong(changed.graph):
        dim.Clear()
    return changed


def external_files(model: Model, path: Path) -> list[Path]:
    """Return the files beside a model that its weights are in.

    Raises:
        InvalidModelError: one of them is missing, or too short.
    """
    attributes = (attribute for node in model.graph.node for attribute in node.attribute)
    tensors = [*model.graph.initializer, *(tensor for a in attributes for tensor in (a.t, *a.tensors))]
    found = set()
    for tensor in filter(uses_external_data, tensors):
        info = ExternalDataInfo(tensor)
        place = path.parent / info.location
        end = int(info.offset or 0) + int(info.length or 0)
        if not place.is_file():
            raise InvalidModelError(
                f"the weights '{tensor.name}' of '{path}' are in '{place}', which does not exist",
                hint="put it beside the model",
            )
        if place.stat().st_size < end:
            raise InvalidModelError(
                f"the weights '{tensor.name}' of '{path}' end at byte {end:,} of '{place}', which has only "
                f"{place.stat().st_size:,}: it was cut off, or belongs to another model", hint="copy it again",
            )  # fmt: skip
        found.add(place)
    return sorted(found)


def digest_of_files(paths: Iterable[Path], prefix: bytes = b"") -> str:
    """Return SHA-256 of some bytes and files, in hexadecimal."""
    found = hashlib.sha256(prefix)
    for path in paths:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                found.update(block)
    return found.hexdigest()


def inputs_of(model: Model) -> list[Any]:
    """Return the inputs that are not weights."""
    weights = {tensor.name for tensor in model.graph.initializer}
    weights |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    return [value for value in model.graph.input if value.name not in weights]


def bind_shapes(
    model: Model, shapes: Mapping[str, Sequence[int | None]], *, fixed: bool = True, missing: Missing | None = None
) -> dict[str, tuple[int, ...]]:
    """Give inputs their shapes, in place, and return those that are fixed.

    Parameters:
        shapes: by name; an extent that is None stays as the model has it. Extents of one name are equal: what is given
            for one input holds for those without a shape, too.
        fixed: all of them must be.
        missing: return what else the model lacks than the shapes of some inputs, and what to do.

    Raises:
        ModelError: an input has dimensions that are neither fixed nor given; or a shape that does not fit it.
    """
    inputs = {value.name: value for value in inputs_of(model)}
    unknown = [name for name in shapes if name not in inputs]
    if unknown:
        raise _no_input(unknown[0], list(inputs))
    found, problems, options = {}, [], []
    named = {
        word: int(extent)
        for name, given in shapes.items()
        for word, extent in zip(extents_of(inputs[name]) or (), given, strict=False)
        if isinstance(word, str) and word != "?" and extent is not None
    }
    for name, value in inputs.items():
        if not value.type.HasField("tensor_type"):
            problems.append(f"input '{name}' is not a tensor: {value.type.WhichOneof('value')} is not supported")
            continue
        if (kind := value.type.tensor_type.elem_type) not in ELEMENTS:
            problems.append(f"input '{name}' has elements of the type {element_name(kind)}, which is not supported")
            continue
        said, given = extents_of(value), shapes.get(name)
        if given is None and said is not None:
            given = [named.get(each, computed(each, named)) if isinstance(each, str) else each for each in said]
        if given is not None:
            extents = [None if extent is None else int(extent) for extent in given]
            fits = said is None or (
                len(said) == len(extents)
                and all(b is None or isinstance(a, str) or a == b for a, b in zip(said, extents, strict=True))
            )
            if not fits or min((extent for extent in extents if extent is not None), default=0) < 0:
                shape = _text(["?" if extent is None else extent for extent in extents])
                problems.append(f"input '{name}' cannot have the shape {shape}: the model says {_text(said)}")
                continue
            dims = value.type.tensor_type.shape.dim
            dims.extend(onnx.TensorShapeProto.Dimension() for _ in range(len(extents) - len(dims)))
            for dim, extent in zip(dims, extents, strict=True):
                if extent is not None:
                    dim.dim_value = extent
            said = extents_of(value)
        if said is not None and len(known := [extent for extent in said if isinstance(extent, int)]) == len(said):
            found[name] = tuple(known)
        elif said is None:
            problems.append(f"the model does not say how many axes the input '{name}' has")
            options.append(name)
        elif fixed:
            problems.append(f"input '{name}' has the shape {_text(said)}, which is not fixed")
            options.append(name)
    if problems:
        more, hint = _what_to_do(model, options, missing)
        raise ModelError("; ".join([*problems, *more]), problems=[*problems, *more], hint=hint)
    return found


def _what_to_do(model: Model, names: Sequence[str], missing: Missing | None) -> tuple[list[str], str]:
    """Return what else a model lacks than the shapes of some inputs, and what to do."""
    if not names:
        return [], "portcall inspect lists the inputs and their shapes"
    words = " ".join(f"--shape {name}=?x?" for name in names)
    return missing(model, names) if missing else ([], f"give it, with a number or ? for each axis: {words}")


def with_shapes(model: Model, shapes: Mapping[str, Sequence[int]]) -> Model:
    """Return a copy of a model whose inputs have the shapes that are given."""
    made = copied(model)
    for value in made.graph.input:
        dims = value.type.tensor_type.shape.dim
        for dim, extent in zip(dims, shapes.get(value.name, ()), strict=False):
            dim.dim_value = extent
    return made


def shape_words(shapes: Mapping[str, Sequence[int]]) -> list[str]:
    """Return the options that give inputs their shapes."""
    return [f"--shape {name}={'x'.join(map(str, shape))}" for name, shape in shapes.items()]


def likely_shapes(model: Model, names: Sequence[str], batch: int = 1) -> Iterator[dict[str, list[int]]]:
    """Yield shapes that inputs may have: usual sizes for which shapes can be inferred.

    The first extent is the batch; what has the same name has the same extent. There is at least one.
    """
    known = {value.name: extents_of(value) for value in model.graph.input if value.name in names}
    said = {name: ["?"] if extents is None else extents for name, extents in known.items()}
    batches = {extents[0] for extents in said.values() if extents}

    def inner(extents: Sequence[int | str], place: int) -> bool:
        """Tell whether an extent between others may be the batch of a state."""
        return len(extents) == 3 and place == 1 and all(isinstance(extents[k], int) for k in (0, 2))

    def shapes(height: int, width: int, length: int, states: bool) -> dict[str, list[int]]:
        found = {}
        for name, extents in said.items():
            sizes = [length] * max(0, len(extents) - 2) + [height, width] if len(extents) > 3 else [length] * 3
            found[name] = [
                extent
                if isinstance(extent, int)
                else batch
                if not place or (extent != "?" and extent in batches) or (states and inner(extents, place))
                else size
                for place, (extent, size) in enumerate(zip(extents, sizes, strict=False))
            ]
        pairs = [(word, size) for name, sizes in found.items() for word, size in zip(said[name], sizes, strict=False)]
        values = {word: size for word, size in pairs if isinstance(word, str) and word != "?"}
        for name, sizes in found.items():
            for place, word in enumerate(said[name][: len(sizes)]):
                sizes[place] = max(1, computed(word, values) or sizes[place])
        return found

    with_states = len(said) > 1 and any(inner(extents, 1) for extents in said.values())
    any_fit, first = False, shapes(*_USUAL[0], False)
    for states in (False, True)[: 1 + with_states]:
        for usual in _USUAL:
            found = shapes(*usual, states)
            try:
                infer_shapes(with_shapes(model, found))
            except ModelError:
                continue
            any_fit = True
            yield found
    if not any_fit:
        yield first


def expression_of(extent: int | str, names: Container[str]) -> tuple[str, str, str] | None:
    """Return an operand, an operator and an operand where an extent is computed of others: ``past + 1``."""
    found = _EXPRESSION.fullmatch(extent) if isinstance(extent, str) else None
    if found is None:
        return None
    parts = (found[1], found[3])
    known = all(part.isdigit() or part in names for part in parts) and not all(part.isdigit() for part in parts)
    return (found[1], found[2], found[3]) if known else None


def computed(extent: int | str, values: Mapping[str, int]) -> int | None:
    """Return an extent that is computed of others; None for any other one, and where these are not known."""
    parts = expression_of(extent, values)
    if parts is None:
        return None
    left, right = (int(part) if part.isdigit() else values[part] for part in (parts[0], parts[2]))
    return None if parts[1] in "//" and right == 0 else _OPERATIONS[parts[1]](left, right)


def name_extents(model: Model) -> None:
    """Name each extent of the inputs that is not fixed, so that no two are one, and no name is taken for an expression.

    Exporters leave names out, and write ``?`` and ``None`` for any extent, and names such as ``batch-size``.
    """
    dims = [dim for value in inputs_of(model) for dim in value.type.tensor_type.shape.dim]
    words = {dim.dim_param for dim in dims if dim.dim_param}
    taken, made = set(words), dict[str, str]()

    def free(name: str) -> str:
        number, found = 1, name
        while found in taken:
            found = f"{name}{(number := number + 1)}"
        taken.add(found)
        return found

    for dim in dims:
        word = dim.dim_param
        if dim.WhichOneof("value") != "dim_value" and word.strip() in _NO_NAMES:
            dim.dim_param = free("extent")
        elif word and not word.isidentifier() and expression_of(word, words) is None:
            made[word] = dim.dim_param = made.get(word) or free(re.sub(r"\W|^(?=\d)", "_", word))


def _text(shape: Sequence[int | str] | None) -> str:
    return "?" if shape is None else f"[{', '.join(map(str, shape))}]"


def type_text(value: Any) -> str:
    """Return the type of an input, such as ``float32[n, 4]``; a dimension without a name is ``?``."""
    return f"{onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)}{_text(extents_of(value))}"


def infer_shapes(model: Model) -> Model:
    """Return the model with the shapes of the values between its nodes.

    A shape that the model declares for what a node computes, and that is not so, is left out, as onnxruntime does.

    Raises:
        ContradictionError: the model contradicts itself.
    """
    try:
        return shapes_inferred(model)
    except (shape_inference.InferenceError, onnx.checker.ValidationError) as error:
        less = copied(model)
        for value in (*less.graph.value_info, *less.graph.output):
            value.type.tensor_type.ClearField("shape")
        try:
            return shapes_inferred(less)
        except (shape_inference.InferenceError, onnx.checker.ValidationError):
            raise _contradiction(model, str(error).strip().partition("\n")[0]) from None
    except ValueError:  # above 2 GiB it cannot be serialized; the importer finds the shapes itself
        return model


def _known(graph: Graph, name: str) -> str:
    """Return what is known of the type of a value."""
    shape = graph.extents(name)
    return graph.dtype(name) + (_text(shape) if shape is not None else "" if graph.dtype(name) else "?")


def _contradiction(model: Model, said: str) -> ModelError:
    """Return the error for shapes that do not fit, with the node and what it reads, if onnx says it."""
    found = _INFERENCE.search(said)
    if found is None:
        return ContradictionError(f"the shapes of the model do not fit: {said}")
    op, name, reason = found.groups(default="")
    graph = Graph(shape_inference.infer_shapes(model))
    nodes = [(k, node) for k, node in enumerate(graph.nodes) if node.op_type == op and node.name == name]
    if _OF_TYPES in reason:
        reason = "its inputs are of types that do not fit"
    text = f"{name_of(nodes[0][1], nodes[0][0]) if len(nodes) == 1 else f'a node {op}'}: {op}: {reason}"
    if len(nodes) == 1:
        shapes = ", ".join(f"'{each}' {_known(graph, each)}" for each in nodes[0][1].input if each)
        text += f"; it reads {shapes}"
    return ContradictionError(
        f"the shapes of the model do not fit: {text}",
        problems=[text],
        hint="correct the model, or the shapes of its inputs",
    )
