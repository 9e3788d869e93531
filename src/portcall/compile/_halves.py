# SPDX-License-Identifier: Apache-2.0
"""Networks of float16 and bfloat16, as they are exported for GPUs, computed in float32.

Processors have few instructions for such numbers, the rules have no kernels of them, and onnxruntime computes them in
float32 as well. Inputs and results keep their types.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

from onnx import TensorProto, helper, numpy_helper

from portcall.compile._rewriting import rename_values, subgraphs
from portcall.compile._weights import array_of, tensor_of

Model = Any
Node = Any
_HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
# Where the time of networks goes. Models without any of these compute in the types that they say, such as one that
# rounds to float16.
_HEAVY = {
    "Attention", "Conv", "ConvTranspose", "Einsum", "FusedConv", "FusedGemm", "FusedMatMul", "GRU", "Gemm", "LSTM",
    "MatMul", "MultiHeadAttention", "RNN",
}  # fmt: skip
_TYPES = ("to", "dtype", "output_dtype", "output_datatype", "stash_type", "softmax_precision")  # attributes


def widened(model: Model) -> Model:
    """Let a network of such numbers compute in float32, in place, and return it."""
    graph = model.graph
    nodes = list(_nodes(graph))
    if not any(map(_is_half, _everything(graph))) or not any(node.op_type in _HEAVY for node in nodes):
        return model
    taken = {name for node in nodes for name in (*node.input, *node.output)}
    weights = {tensor.name for tensor in graph.initializer}
    inputs = {value.name: value for value in graph.input if value.name not in weights and _is_half(value)}
    outputs = {value.name: value for value in graph.output if value.name not in inputs and _is_half(value)}
    names = {name: _free(f"{name}_float32", taken) for name in (*inputs, *outputs)}
    for node in graph.node:
        rename_values(node, names)
    for tensor in graph.initializer:
        tensor.name = names.get(tensor.name, tensor.name)
    _widen(graph, keep={*inputs, *outputs})
    first = [_cast(name, names[name], TensorProto.FLOAT) for name in inputs]
    last = [_cast(names[name], name, _type(value)) for name, value in outputs.items()]
    changed = [*first, *graph.node, *last]
    del graph.node[:]
    graph.node.extend(changed)
    return model


def _cast(name: str, made: str, to: int) -> Node:
    return helper.make_node("Cast", [name], [made], to=to)


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _nodes(graph: Any) -> Iterator[Node]:
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from _nodes(inner)


def _everything(graph: Any) -> Iterator[Any]:
    """Yield what has a type: tensors, inputs and results."""
    yield from (*graph.initializer, *graph.input, *graph.output)
    for node in _nodes(graph):
        yield from (attribute.t for attribute in node.attribute if attribute.HasField("t"))


def _type(each: Any) -> int:
    """Return the type of the elements of a tensor, or of a value."""
    return int(each.data_type if isinstance(each, TensorProto) else each.type.tensor_type.elem_type)


def _is_half(each: Any) -> bool:
    return _type(each) in _HALVES


def _widen(graph: Any, keep: Container[str] = ()) -> None:
    """Let a graph have float32 in the place of all such numbers.

    Parameters:
        keep: inputs and results that stay as they are.
    """
    for tensor in graph.initializer:
        if _is_half(tensor):
            tensor.CopyFrom(tensor_of(array_of(tensor).astype("float32"), tensor.name))
    for value in (*graph.input, *graph.output, *graph.value_info):
        if _is_half(value) and value.name not in keep:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t") and _is_half(attribute.t):
                array = numpy_helper.to_array(attribute.t).astype("float32")
                attribute.t.CopyFrom(numpy_helper.from_array(array, attribute.t.name))
            if attribute.name in _TYPES and attribute.i in _HALVES:
                attribute.i = TensorProto.FLOAT
        for inner in subgraphs(node):
            _widen(inner)
