# SPDX-License-Identifier: Apache-2.0
"""Large weights beside a model instead of in it, while it is compiled: what copies a model does not copy them.

Within ``apart`` such a tensor of ONNX's says that its data are external, at a place that is known here only.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from contextvars import ContextVar
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.external_data_helper import uses_external_data

import portcall

Array = Any
Model = Any
Tensor = Any
_LARGE = 1 << 16  # bytes
_KINDS = ("float16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64")
_PREFIX = "portcall:"
_arrays: ContextVar[dict[str, Array] | None] = ContextVar("arrays", default=None)


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Keep large weights beside the models that are made here; these are of no use afterwards."""
    token = _arrays.set({})
    try:
        yield
    finally:
        _arrays.reset(token)


def is_apart(tensor: Tensor) -> bool:
    """Tell whether the elements of a tensor are beside its model."""
    arrays = _arrays.get()
    return arrays is not None and any(entry.value in arrays for entry in tensor.external_data)


def array_of(tensor: Tensor) -> Array:
    """Return the elements of a tensor."""
    arrays = _arrays.get()
    if arrays and is_apart(tensor):
        return arrays[tensor.external_data[0].value]
    return numpy_helper.to_array(tensor)


def tensor_of(array: Array, name: str) -> Tensor:
    """Return an array as a tensor of ONNX's."""
    arrays = _arrays.get()
    if arrays is None or array.nbytes < _LARGE or str(array.dtype) not in _KINDS:
        return numpy_helper.from_array(np.ascontiguousarray(array) if array.ndim else array, name)
    return kept(array if _place(array) in arrays else aligned(array), name)


def kept(array: Array, name: str) -> Tensor:
    """Return a tensor whose elements are in an ``aligned`` array, which is kept beside the models."""
    arrays = _arrays.get()
    assert arrays is not None, "outside of apart"
    arrays[_place(array)] = array
    made = onnx.TensorProto(
        name=name, dims=array.shape, data_type=helper.np_dtype_to_tensor_dtype(array.dtype),
        data_location=onnx.TensorProto.EXTERNAL,
    )  # fmt: skip
    made.external_data.add(key="location", value=_place(array))
    return made


def may_be_apart(tensor: Tensor) -> bool:
    """Tell whether a tensor is one that is kept beside its model, by its type and its extents."""
    if _arrays.get() is None or tensor.data_type not in _TENSORS or any(extent <= 0 for extent in tensor.dims):
        return False
    return bool(prod(tensor.dims) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize >= _LARGE)


@contextlib.contextmanager
def as_if_inside(model: Model) -> Iterator[None]:
    """Let the weights that are beside a model seem to be in it, for what reads those of other files."""
    beside = [tensor for tensor in model.graph.initializer if is_apart(tensor)]
    for tensor in beside:
        tensor.data_location = onnx.TensorProto.DEFAULT
    yield
    for tensor in beside:
        tensor.data_location = onnx.TensorProto.EXTERNAL


def aligned(array: Array) -> Array:
    """Return a copy that TVM and executors can use where it is."""
    return portcall.tensor(array).numpy()


def _place(array: Array) -> str:
    return f"{_PREFIX}{id(array)}"  # nothing else has this number as long as it is kept


def without_weights(model: Model) -> Model:
    """Return a copy of a model, with its large weights beside it within ``apart``."""
    graph = model.graph
    parts = {field.name: value for field, value in graph.ListFields() if field.name != "initializer"}
    made = onnx.ModelProto(**{field.name: value for field, value in model.ListFields() if field.name != "graph"})
    made.graph.CopyFrom(onnx.GraphProto(**parts))
    for tensor in graph.initializer:
        moves = may_be_apart(tensor) and not uses_external_data(tensor)
        made.graph.initializer.append(tensor_of(numpy_helper.to_array(tensor), tensor.name) if moves else tensor)
    return made


def copied(model: Model) -> Model:
    """Return a copy of a model, which may be changed."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    return made


_TENSORS = {helper.np_dtype_to_tensor_dtype(np.dtype(kind)) for kind in _KINDS}


def forget_all_but(*models: Model) -> None:
    """Drop weights that none of these models has."""
    arrays = _arrays.get()
    if arrays:
        used = {entry.value for model in models for tensor in model.graph.initializer for entry in tensor.external_data}
        for place in arrays.keys() - used:
            del arrays[place]
        give_back()


def give_back() -> None:
    """Give the system the memory back that is free, which glibc keeps, such as that of weights in another order."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # musl has none
    if trim is not None:
        trim(0)


def arrays_apart(model: Model) -> dict[str, Array]:
    """Return the weights of a model that are beside it, by name."""
    return {tensor.name: array_of(tensor) for tensor in model.graph.initializer if is_apart(tensor)}
