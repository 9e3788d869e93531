# SPDX-License-Identifier: Apache-2.0
"""Read a file of ONNX's with its large weights beside the model from the beginning.

Protobuf would have both the file's bytes and the weights in memory. So its fields are walked over here, and a large
weight is read into its array. How they are written: https://protobuf.dev/programming-guides/encoding. Their numbers are
those of onnx.proto.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple

import onnx
from google.protobuf.message import DecodeError
from onnx import helper, numpy_helper
from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

import portcall
from portcall.compile._weights import kept, may_be_apart, tensor_of

Model = Any
_GRAPH, _INITIALIZER, _RAW_DATA = 7, 5, 9  # of ModelProto, GraphProto, TensorProto
_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5
_MOST_HEAD = 20  # bytes of a field in front of its content: two numbers of at most 10 bytes


class _Field(NamedTuple):
    """A field: its number, where it begins, where its content begins, and where both end."""

    number: int
    begin: int
    content: int
    end: int


def read_model(path: str) -> Model:
    """Read a model, but not the files beside it. Within ``apart``, its large weights are beside it.

    Raises:
        DecodeError: it is no ONNX file, or was cut off.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        return _File(file if file.seekable() else io.BytesIO(file.read())).model()


def take_external(model: Model, folder: str) -> None:
    """Read large weights from files beside a model, one after the other, and keep them beside it within ``apart``.

    Raises:
        ValueError, onnx.checker.ValidationError: one cannot be read.
    """
    for tensor in filter(uses_external_data, model.graph.initializer):
        if may_be_apart(tensor):
            load_external_data_for_tensor(tensor, folder)
            tensor.CopyFrom(tensor_of(numpy_helper.to_array(tensor), tensor.name))


class _File:
    def __init__(self, file: Any) -> None:
        self._file = file

    def model(self) -> Model:
        outside, graph = bytearray(), bytearray()
        for field in self._fields(0, self._file.seek(0, os.SEEK_END)):
            if field.number != _GRAPH:
                outside += self._bytes(field.begin, field.end)
                continue
            for part in self._fields(field.content, field.end):
                graph += self._weight(part) if part.number == _INITIALIZER else self._bytes(part.begin, part.end)
        model = onnx.ModelProto.FromString(bytes(outside))
        if graph:
            model.graph.MergeFromString(bytes(graph))
        return model

    def _weight(self, field: _Field) -> bytes:
        """Return the field of a weight; without its elements if these are many, which are beside the model then."""
        parts = list(self._fields(field.content, field.end))
        raw = [part for part in parts if part.number == _RAW_DATA]
        if len(raw) == 1:
            rest = [self._bytes(part.begin, part.end) for part in parts if part.number != _RAW_DATA]
            made = self._apart(onnx.TensorProto.FromString(b"".join(rest)), raw[0])
            if made is not None:
                content: bytes = made.SerializeToString()
                return _number(_INITIALIZER << 3 | _SIZED) + _number(len(content)) + content
        return self._bytes(field.begin, field.end)

    def _apart(self, tensor: Any, raw: _Field) -> Any | None:
        """Return a tensor with the elements of a field beside it; None if they are not to be."""
        if not may_be_apart(tensor) or uses_external_data(tensor) or isinstance(tensor.name, bytes):  # no UTF-8
            return None
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        if prod(tensor.dims) * dtype.itemsize != raw.end - raw.content:
            return None
        array = portcall.empty(tuple(tensor.dims), dtype.name).numpy()
        self._file.seek(raw.content)
        if self._file.readinto(array.reshape(-1).view("uint8").data) != array.nbytes:
            raise DecodeError("the file was cut off while it was read")
        return kept(array, tensor.name)

    def _fields(self, begin: int, end: int) -> Iterator[_Field]:
        """Yield the fields of a message.

        Raises:
            DecodeError: they are not those of a message of this size.
        """
        while begin < end:
            head = self._bytes(begin, min(begin + _MOST_HEAD, end))
            key, used = _first_number(head)
            size = {_FIXED64: 8, _FIXED32: 4}.get(key & 7, 0)
            if key & 7 in (_VARINT, _SIZED):
                value, more = _first_number(head[used:])
                used += more
                size = value if key & 7 == _SIZED else 0
            elif not size:
                raise DecodeError(f"a field of kind {key & 7}")
            content, stop = begin + used, begin + used + size
            if stop > end:
                raise DecodeError("a field that ends after its message")
            yield _Field(key >> 3, begin, content, stop)
            begin = stop

    def _bytes(self, begin: int, end: int) -> bytes:
        self._file.seek(begin)
        found: bytes = self._file.read(end - begin)
        if len(found) < end - begin:
            raise DecodeError("the file was cut off while it was read")
        return found


def _first_number(data: bytes) -> tuple[int, int]:
    """Return the number that bytes begin with, seven bits in each of its bytes, and how many bytes it has."""
    value = 0
    for place, byte in enumerate(data[:10]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, place + 1
    raise DecodeError("a number without an end")


def _number(value: int) -> bytes:
    made = bytearray()
    while value >= 128:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])
