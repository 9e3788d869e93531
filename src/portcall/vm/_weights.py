# SPDX-License-Identifier: Apache-2.0
"""Weights of a model as TVM's tools write them: shards, and a list of what is where in ``tensor-cache.json``.

The list is ``{"records": [{"dataPath", "format": "raw-shard", "nbytes", "records": [{"name", "shape", "dtype",
"format", "nbytes", "byteOffset"}]}]}``; older tools call it ``ndarray-cache.json``. A tensor is ``raw``, or
``f32-to-bf16``: the upper halves of its float32.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import portcall
from portcall.errors import ModelError

LISTS = ("tensor-cache.json", "ndarray-cache.json")
MOST_BYTES = 64 << 20  # of a list; those of the largest models have less than one million
MOST_EXTENTS = 32
_ALIGNED = 64  # bytes, which compiled code relies on


@dataclass(frozen=True)
class Weight:
    """A weight in a file.

    Attributes:
        part: its bytes, of a private mapping of the file, which the system reads when they are used.
        dtype: of the elements in the model.
        halves: the bytes are the upper halves of float32.
    """

    name: str
    shape: list[int]
    dtype: portcall.DataType
    part: Any
    halves: bool

    def array(self) -> Any:
        """Return it as an array, over the mapping where that has the elements as they are."""
        import numpy

        if not self.halves:
            return numpy.frombuffer(self.part, self.dtype.numpy()).reshape(self.shape)
        found = numpy.empty(self.shape, numpy.float32)
        self._widen(found)
        return found

    def tensor(self) -> Any:
        """Return it as a tensor of this process: over the mapping where kernels can use that, else a copy."""
        array = None if self.halves else self.array()
        if array is not None and array.size and array.ctypes.data % _ALIGNED == 0 and hasattr(array, "__dlpack__"):
            try:
                return portcall.from_dlpack(array)
            except (BufferError, TypeError):  # a type that NumPy does not have itself
                return portcall.tensor(array)
        if array is not None:
            return portcall.tensor(array)
        made = portcall.empty(self.shape, "float32")
        self._widen(made.numpy())
        return made

    def _widen(self, out: Any) -> None:
        """Write float32 of the halves, without memory of its own."""
        numbers = out.view("uint32")
        numbers[...] = self.part.view("uint16").reshape(self.shape)
        numbers <<= 16


def read(folder: str | os.PathLike[str]) -> Iterator[Weight]:
    """Yield the weights in a folder, in the order of its list.

    Raises:
        FileNotFoundError: the folder has no list.
        ModelError: the list or a shard is damaged; the message names the file.
    """
    path = _list_of(Path(folder))
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ModelError(f"{path}: not a list of weights: it has {size:,} bytes")
    try:
        shards = [(shard["dataPath"], shard["format"], _number(shard["nbytes"]), shard["records"]) for shard in
                  json.loads(path.read_text("utf-8"))["records"]]  # fmt: skip
        records = [[_record(r) for r in records] for *_, records in shards]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ModelError(f"{path}: not a list of weights as TVM's tools write it ({error!r})") from None
    for (name, form, nbytes, _), inside in zip(shards, records, strict=True):
        yield from _shard(path, name, form, nbytes, inside)


def _list_of(folder: Path) -> Path:
    for name in LISTS:
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(f"'{folder}' has no weights: there is neither {LISTS[0]} nor {LISTS[1]}")


def _number(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.40} is no size")
    return value


def _record(r: Any) -> tuple[str, list[int], str, str, int, int]:
    if not isinstance(r["shape"], list):
        raise TypeError(f"the shape of '{r['name']}' is no list")
    shape = [_number(n) for n in r["shape"]]
    return str(r["name"]), shape, str(r["dtype"]), r["format"], _number(r["nbytes"]), _number(r["byteOffset"])


def _shard(
    listed: Path, name: Any, form: str, nbytes: int, records: list[tuple[str, list[int], str, str, int, int]]
) -> Iterator[Weight]:
    import numpy

    if not isinstance(name, str) or Path(name).name != name or name == ".." or not name.isprintable():
        raise ModelError(
            f"{listed}: the shard {name!r:.100} is not beside it: it must be the name of a file in this folder"
        )
    path = listed.parent / name
    if form != "raw-shard":
        raise ModelError(f"{listed}: the shard '{name}' has the format '{form}', only raw-shard is known")
    size = path.stat().st_size if os.path.isfile(path) else None  # also where the name is too long
    if size != nbytes:
        found = "it is missing" if size is None else f"it has {size:,} bytes"
        raise ModelError(f"{path}: a shard of {nbytes:,} bytes, but {found}: was it copied to the end?")
    _check_places(path, nbytes, records)
    whole = numpy.memmap(path, numpy.uint8, "c") if nbytes else numpy.empty(0, numpy.uint8)
    for key, shape, dtype, kind, count, offset in records:
        part = whole[offset : offset + count]
        halves = kind == "f32-to-bf16" and dtype == "float32"
        try:
            element = portcall.dtype(dtype)
            size = 2 if halves else element.numpy().itemsize
        except (ValueError, TypeError) as error:
            raise ModelError(f"{listed}: '{key}' has the data type {dtype!r}: {error}") from None
        fits = len(shape) <= MOST_EXTENTS and math.prod(shape) * size == count
        if not fits or kind not in ("raw", "f32-to-bf16"):
            raise ModelError(f"{listed}: '{key}' is {dtype}{shape} in the format '{kind}', but has {count} bytes")
        yield Weight(key, shape, element, part, halves)


def _check_places(path: Path, nbytes: int, records: list[tuple[str, list[int], str, str, int, int]]) -> None:
    """Weights are inside of their shard, and none is in the bytes of another."""
    end, before = 0, ""
    for key, *_, count, offset in sorted(records, key=lambda record: record[5]):
        if offset + count > nbytes:
            raise ModelError(f"{path}: '{key}' has {count} bytes at {offset}, the shard {nbytes}")
        if offset < end and count:
            raise ModelError(f"{path}: '{key}' begins at {offset}, within '{before}'")
        end, before = offset + count, key
