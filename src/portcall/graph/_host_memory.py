# SPDX-License-Identifier: Apache-2.0
"""Where the inputs, parameters and results of an executor lie: in this process, or in the session that runs it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import portcall
from portcall import Module, Object, get_global_func
from portcall.graph._params import bytes_of, host_tensor
from portcall.graph._storage import aligned

REMOTE = "rpc"  # the type key of modules of sessions
HOST = (1, 0)  # DLPack's kind and index
_REMOTE_TENSOR = "portcall.rpc.Tensor"


class HostMemory(Protocol):
    """Memory that an executor reads its inputs from.

    Attributes:
        label: what tells the executor from one of this process, in text.
        batch: bytes of parameters that are put there at once; 0 for one at a time.
    """

    label: str
    batch: int

    def staged(self, index: int, tensor: Any) -> Any:
        """Return a tensor there with the elements, which is used again for the same input."""

    def sent(self, tensor: Any) -> Any:
        """Return a tensor there with the elements, or the given one if it is there."""

    def keep(self, tensors: Iterable[Any], sizes: Sequence[int], ours: bool) -> list[Any]:
        """Return tensors there for good: copies, unless they are ``ours``. ``sizes`` has the bytes of each."""

    def empty(self, like: Any) -> Any:
        """Return a tensor there of the shape and type that ``like`` has."""

    def in_place(self, tensor: Any) -> Any:
        """Return a tensor whose memory an executor may use; raise ValueError when it is elsewhere."""


def memory_of(module: Module) -> HostMemory:
    """Return the memory of an executor."""
    return SessionMemory(module) if module.type_key == REMOTE else ProcessMemory()


def is_remote(value: Any) -> bool:
    """Tell whether a value is a tensor of a session."""
    return isinstance(value, Object) and value.type_key == _REMOTE_TENSOR


class ProcessMemory:
    """The memory of this process: tensors are used where they are."""

    label = ""
    batch = 0

    def staged(self, index: int, tensor: Any) -> Any:
        return tensor

    def sent(self, tensor: Any) -> Any:
        return tensor

    def keep(self, tensors: Iterable[Any], sizes: Sequence[int], ours: bool) -> list[Any]:
        return [tensor if ours else portcall.tensor(tensor) for tensor in tensors]

    def empty(self, like: Any) -> Any:
        return portcall.empty(like.shape, like.dtype)

    def in_place(self, tensor: Any) -> Any:
        return tensor


class SessionMemory:
    """The host memory of the session that a module belongs to."""

    label = ", in a session"
    batch = 16 << 20

    def __init__(self, module: Module) -> None:
        self._module = module
        self._stages: dict[int, Object] = {}

    def staged(self, index: int, tensor: Any) -> Any:
        """Return a tensor of the server with the elements, which is used again for the same input."""
        stage = None if is_remote(tensor) else self._stages.pop(index, None)  # another thread makes its own
        if stage is None:
            stage = self.sent(tensor)
        else:
            get_global_func("portcall.rpc.CopyTo")(stage, tensor)
        if stage is not tensor:
            self._stages[index] = stage
        return stage

    def sent(self, tensor: Any) -> Any:
        """Return a new tensor of the server with the elements, or the given one if it is there."""
        if is_remote(tensor):
            return tensor
        made = self.empty(tensor)
        get_global_func("portcall.rpc.CopyTo")(made, tensor)
        return made

    def keep(self, tensors: Iterable[Any], sizes: Sequence[int], ours: bool) -> list[Any]:
        """Return tensors of the server with the elements, in one piece of memory."""
        if len(sizes) == 1:
            return [self.sent(tensor) for tensor in tensors]
        offsets = [0, *itertools.accumulate(map(aligned, sizes))]
        packed = portcall.empty(offsets[-1], "uint8")
        places: list[Any] = []
        for tensor, offset in zip(tensors, offsets, strict=False):
            if is_remote(tensor):  # it is there already
                places.append(tensor)
                continue
            compact = host_tensor(tensor)  # it must live while its bytes are read
            bytes_of(packed)[offset : offset + compact.nbytes] = bytes_of(compact)
            places.append((list(compact.shape), compact.dtype, offset))
        there, view = self.sent(packed), get_global_func("portcall.rpc.View")
        return [view(there, *place) if isinstance(place, tuple) else place for place in places]

    def empty(self, like: Any) -> Any:
        """Return a tensor of the server of the shape and type that ``like`` has."""
        return get_global_func("portcall.rpc.Empty")(self._module, list(like.shape), like.dtype, *HOST)

    def in_place(self, tensor: Any) -> Any:
        """Return a tensor whose memory an executor may use; raise ValueError when it is elsewhere."""
        if not is_remote(tensor):
            raise ValueError("the memory must be of the session: session.tensor(array) makes a tensor there")
        return tensor
