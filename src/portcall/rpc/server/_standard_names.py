# SPDX-License-Identifier: Apache-2.0
"""Functions that clients and tuners of TVM look up on a server by name, and that the core does not have.

They are registered in the processes of a server after the user's code, which may have functions of these names already.
Their behaviour is that of apache-tvm 0.27 where nothing else is said. What is left out: ``TVMTensorCopyFromBytes`` and
``TVMTensorCopyToBytes`` take addresses, which mean nothing in another process; the requests CopyToRemote and
CopyFromRemote do the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from portcall._container import Dict, List, Map, Shape
from portcall._device import Device, device
from portcall._dtype import DataType
from portcall._function import get_global_func, list_global_func_names, register_func
from portcall._module import Module
from portcall._tensor import Tensor, empty
from portcall.errors import ArgumentError

_LOW, _HIGH = 1.0, 10.0  # random_fill's range: positive, so that quantized kernels have work to do
_DISTINCT = 1 << 16  # elements of random_fill_for_measure before they repeat
_RUNTIMES = ("cuda", "opencl", "metal", "vulkan", "rocm", "hexagon", "webgpu", "ext_dev")  # by device
_NOT_RUNTIMES = ("llvm", "stackvm", "tflite", "micro")  # of TVM's, which portcall does not have


def register_standard_names() -> None:
    """Register each function unless there is one of its name."""
    taken = set(list_global_func_names())
    for name, func in FUNCTIONS.items():
        if name not in taken:
            register_func(name, func)


# ---- Containers ----------------------------------------------------------------------------------------------------


def _check(value: Any, kind: type, name: str) -> Any:
    if not isinstance(value, kind):
        raise ArgumentError(f"{name} takes a {kind.__name__} here, not {type(value).__name__}",
                            function=name, position=0, expected=kind.__name__, got=type(value).__name__)  # fmt: skip
    return value


def _index(items: List, index: int, end: int = 0) -> int:
    """Return an index within a list, or at most ``end`` after its last item."""
    if not 0 <= index < len(items) + end:
        raise IndexError(f"index {index} is out of bounds (the list has {len(items)} items)")
    return index


def _range(items: List, start: int, stop: int) -> slice:
    if not 0 <= start <= stop <= len(items):
        raise IndexError(f"range {start} to {stop} is out of bounds (the list has {len(items)} items)")
    return slice(start, stop)


def _list_method(name: str, action: Callable[..., Any]) -> Callable[..., Any]:
    return lambda items, *args: action(_check(items, List, name), *args)


def _set_slice(items: List, start: int, stop: int, values: List) -> None:
    items[_range(items, start, stop)] = list(values)


def _pairs(parts: tuple[Any, ...]) -> dict[Any, Any]:
    if len(parts) % 2:
        raise ValueError(f"ffi.Dict takes keys and values in turn, not {len(parts)} arguments")
    return dict(zip(parts[::2], parts[1::2], strict=True))


def iterate(mapping: Map | Dict) -> Callable[[int], Any]:
    """Return a cursor over the items that a mapping has now: 0 gives the key, 1 the value, 2 moves on.

    Moving on returns whether there is an item. After the last one, 0 and 1 raise IndexError.
    """
    items = list(mapping.items())
    place = 0

    def command(number: int) -> Any:
        nonlocal place
        if number == 2:
            place = min(place + 1, len(items))
            return place < len(items)
        if number not in (0, 1):
            raise ValueError(f"invalid command {number} (0 is the key, 1 the value, 2 moves on)")
        if place >= len(items):
            raise IndexError("there are no more items")
        return items[place][number]

    return command


def _delete(mapping: Dict, key: Any) -> None:
    mapping.pop(key, None)


# ---- Tensors and devices -------------------------------------------------------------------------------------------


def _fill(tensor: Tensor, distinct: int | None) -> None:
    """Fill a tensor with uniform random numbers from 1 to 10; integers are rounded down, and bools are true."""
    _check(tensor, Tensor, "tvm.contrib.random.random_fill")
    count = tensor.size
    drawn = np.random.default_rng().uniform(_LOW, _HIGH, count if distinct is None else min(count, distinct))
    host = empty(tensor.shape, tensor.dtype)
    try:
        array = host.numpy()
    except TypeError:
        raise TypeError(f"random_fill cannot fill elements of {tensor.dtype}") from None
    array[...] = np.resize(drawn, array.shape).astype(array.dtype)
    tensor.copyfrom(host)


def create_view(tensor: Tensor, shape: Any, dtype: DataType, byte_offset: int = 0) -> Tensor:
    """Return a tensor over a part of another one's memory.

    Raises:
        ValueError: the part does not lie within that memory.
    """
    _check(tensor, Tensor, "runtime.TVMTensorCreateView")
    return tensor.view(tuple(shape), dtype, byte_offset)


def copy_from_to(source: Tensor, target: Tensor) -> None:
    """Copy a tensor's elements into another one."""
    _check(source, Tensor, "runtime.TVMTensorCopyFromTo")
    _check(target, Tensor, "runtime.TVMTensorCopyFromTo").copyfrom(source)


def sync_stream(target: Device, stream: int = 0) -> None:
    """Wait for a device's default stream. Others are handles of a session: the request DevStreamSync takes them."""
    if stream:
        raise ValueError(f"stream {stream} is not known here; use the request DevStreamSync")
    target.sync()


def runtime_enabled(name: str) -> bool:
    """Return whether a device of that kind can be used here.

    Raises:
        ValueError: TVM has no runtime of that name.
    """
    if name in ("cpu", "rpc"):
        return True
    if name in _NOT_RUNTIMES:
        return False
    if name not in _RUNTIMES:
        known = ", ".join(("cpu", "rpc", *_RUNTIMES, *_NOT_RUNTIMES))
        raise ValueError(f"unknown runtime {name!r} (expected one of {known})")
    return bool(device(name).exist)


def _system_lib(prefix: str = "") -> Module:
    module: Module = get_global_func("ffi.SystemLib")(prefix)
    return module


_LIST: dict[str, Callable[..., Any]] = {
    "GetItem": lambda items, index: items[_index(items, index)],
    "SetItem": lambda items, index, value: items.__setitem__(_index(items, index), value),
    "Size": len,
    "Contains": lambda items, value: value in items,
    "Append": lambda items, value: items.append(value),
    "Insert": lambda items, index, value: items.insert(_index(items, index, 1), value),
    "Pop": lambda items, index: items.pop(_index(items, index)),
    "Erase": lambda items, index: items.__delitem__(_index(items, index)),
    "EraseRange": lambda items, start, stop: items.__delitem__(_range(items, start, stop)),
    "ReplaceSlice": _set_slice,
    "Reverse": lambda items: items.reverse(),
    "Clear": lambda items: items.clear(),
    "Reserve": lambda items, count: None,  # memory grows by itself
}
_DICT: dict[str, Callable[..., Any]] = {
    "GetItem": lambda mapping, key: mapping[key],
    "SetItem": lambda mapping, key, value: mapping.__setitem__(key, value),
    "Size": len,
    "Count": lambda mapping, key: int(key in mapping),
    "Erase": _delete,
    "Clear": lambda mapping: mapping.clear(),
    "ForwardIterFunctor": iterate,
}


def _dict_method(name: str, action: Callable[..., Any]) -> Callable[..., Any]:
    return lambda mapping, *args: action(_check(mapping, Dict, name), *args)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "ffi.Shape": lambda *extents: Shape(extents),
    "ffi.String": lambda text: _check(text, str, "ffi.String"),
    "ffi.List": lambda *items: List(items),
    "ffi.Dict": lambda *parts: Dict(_pairs(parts)),
    **{f"ffi.List{name}": _list_method(f"ffi.List{name}", action) for name, action in _LIST.items()},
    **{f"ffi.Dict{name}": _dict_method(f"ffi.Dict{name}", action) for name, action in _DICT.items()},
    "ffi.MapForwardIterFunctor": lambda mapping: iterate(_check(mapping, Map, "ffi.MapForwardIterFunctor")),
    "ffi.ModuleGetTypeKind": lambda module: _check(module, Module, "ffi.ModuleGetTypeKind").type_key,
    "runtime.SystemLib": _system_lib,
    "runtime.RuntimeEnabled": runtime_enabled,
    "runtime.Device_StreamSync": sync_stream,
    "runtime.TVMTensorCreateView": create_view,
    "runtime.TVMTensorCopyFromTo": copy_from_to,
    "tvm.contrib.random.random_fill": lambda tensor: _fill(tensor, None),
    "tvm.contrib.random.random_fill_for_measure": lambda tensor: _fill(tensor, _DISTINCT),
    "rpc.testing.GetShapeSize": lambda shape: len(_check(shape, Shape, "rpc.testing.GetShapeSize")),
    "rpc.testing.GetShapeElem": lambda shape, index: _check(shape, Shape, "rpc.testing.GetShapeElem")[index],
}  # fmt: skip
