# SPDX-License-Identifier: Apache-2.0
"""Arguments and results: what Python has, as a machine takes it, here or in a session; and back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import portcall
from portcall import Array, Device, Module, PackedFunc, Shape
from portcall.errors import FunctionNotFoundError, RemoteError
from portcall.vm._types import dtype_of, items_of, kind_of

REMOTE = "rpc"  # the kind of modules of sessions
_REMOTE_OBJECT = "portcall.rpc.Object"
_REMOTE_TENSOR = "portcall.rpc.Tensor"


class Values(Protocol):
    """How values go in and come out."""

    def call(self, function: PackedFunc, machine: Module, name: str, arguments: list[Any]) -> Any:
        """Call a function of a machine with arguments that were given, and return the result as a user has it."""
        ...

    def given(self, value: Any, type_text: str) -> Any:
        """Return an argument as the machine takes it."""
        ...

    def shape(self, extents: Any, after: Any = None) -> Any:
        """Return a shape as the machine takes it; `after` is a posted call that returns nothing, and comes first."""
        ...


def is_array(value: Any) -> bool:
    return hasattr(value, "__dlpack__") or hasattr(value, "__array_interface__")


def number_as_array(value: float, type_text: str) -> Any:
    """Return a number as an array without dimensions, of the type that a parameter has."""
    import numpy

    return numpy.asarray(value, dtype=dtype_of(type_text) or None)


def is_shape(value: Any, type_text: str) -> bool:
    """Say whether a tuple stands for a shape."""
    return isinstance(value, Shape) or (kind_of(type_text) == "shape" and isinstance(value, (tuple, list)))


def converted(
    value: Any, type_text: str, tensor: Callable[[Any], Any], shape: Callable[[Any], Any], group: Callable[[Any], Any]
) -> Any:
    """Return an argument with its arrays, shapes and tuples made by the functions that are given."""
    if is_array(value):
        return tensor(value)
    if is_shape(value, type_text):
        return shape(value)
    if isinstance(value, (tuple, list, Array)):
        types = items_of(type_text)
        items = [
            converted(item, types[i] if i < len(types) else "", tensor, shape, group) for i, item in enumerate(value)
        ]
        return group(items)
    number = isinstance(value, (bool, int, float)) and kind_of(type_text) == "tensor"
    return tensor(number_as_array(value, type_text)) if number else value


class LocalValues:
    """Values of this process."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def given(self, value: Any, type_text: str) -> Any:
        # The core copies tensors that lie elsewhere, or not as kernels need them.
        return converted(value, type_text, _as_tensor, Shape, tuple)

    def shape(self, extents: Any, after: Any = None) -> Any:
        return Shape(extents)

    def call(self, function: PackedFunc, machine: Module, name: str, arguments: list[Any]) -> Any:
        return self._taken(function(*arguments))

    def _taken(self, value: Any) -> Any:
        return tuple(self._taken(item) for item in value) if isinstance(value, Array) else value


def _as_tensor(value: Any) -> Any:
    if isinstance(value, portcall.Tensor):
        return value
    return portcall.from_dlpack(value) if _is_foreign(value) else portcall.tensor(value)


def _is_foreign(value: Any) -> bool:
    """Say whether it is a tensor of another framework, whose memory may be used."""
    return hasattr(value, "__dlpack__") and not hasattr(value, "__array_interface__")


class RemoteValues:
    """Values of a session. Tuples and shapes stay there as objects: functions of the server make and read them."""

    def __init__(self, session: Any, device: Any) -> None:
        self._session = session
        self._device = device
        self._functions: dict[str, Any] = {}
        self._lock = threading.Lock()  # what is set and read belongs to the machine

    def given(self, value: Any, type_text: str) -> Any:
        return converted(value, type_text, self._tensor, self.shape, self._tuple)

    def _tensor(self, value: Any) -> Any:
        remote = getattr(value, "type_key", "") == _REMOTE_TENSOR
        return value if remote else self._session.tensor(value, self._device)

    def shape(self, extents: Any, after: Any = None) -> Any:
        numbers = [number for extent in extents for number in (0, int(extent))]  # 0: a number, no variable
        return self._function("vm.builtin.make_shape")(after, len(numbers) // 2, *numbers)

    def _tuple(self, items: list[Any]) -> Any:
        return self._function("vm.builtin.make_tuple")(*items)

    def call(self, function: PackedFunc, machine: Module, name: str, arguments: list[Any]) -> Any:
        if self._session.peer_kind != "TVM":
            return self._taken(function(*arguments))
        # A server of TVM lends tensors to a function: a model that returns an argument, or puts it into a tuple, fails.
        with self._lock:
            machine["set_input"](name, *arguments)
            machine["invoke_stateful"](name)
            return self._output(machine, name)

    def _output(self, machine: Module, *place: Any) -> Any:
        count = machine["get_output_arity"](*place)
        if count == -1:
            return self._taken(machine["get_output"](*place))
        return tuple(self._output(machine, *place, i) for i in range(count))

    def _taken(self, value: Any) -> Any:
        if getattr(value, "type_key", "") != _REMOTE_OBJECT:
            return value
        try:
            size = self._function("ffi.ArraySize")(value)
        except RemoteError:  # not a tuple: a shape, or what only the server knows
            return self._read_shape(value)
        get = self._function("ffi.ArrayGetItem")
        return tuple(self._taken(get(value, i)) for i in range(size))

    def _read_shape(self, value: Any) -> Any:
        try:
            extents = self._function("relax.run.shape_to_tensor")(value)
        except (RemoteError, FunctionNotFoundError):
            return value
        return Shape(extents.numpy().tolist())

    def _function(self, name: str) -> Any:
        if name not in self._functions:  # each look-up is a round trip
            self._functions[name] = self._session.get_function(name)
        return self._functions[name]
