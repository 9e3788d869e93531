# SPDX-License-Identifier: Apache-2.0
"""Devices: a kind and an index, such as ``cpu:0``. The kinds that work are those registered in the core."""

from __future__ import annotations

from typing import Any

from portcall import _core, errors
from portcall._container import Shape
from portcall._function import get_global_func

_MOST_KINDS = 64
_NAMES: dict[int, str] = {n: get_global_func("portcall.DeviceKindName")(n) for n in range(_MOST_KINDS)}
_KINDS = {name: number for number, name in _NAMES.items() if name.isidentifier()}  # "device(5)" has no name
_KINDS |= {
    "llvm": _KINDS["cpu"],
    "c": _KINDS["cpu"],
    "gpu": _KINDS["cuda"],
    "nvptx": _KINDS["cuda"],
    "cl": _KINDS["opencl"],
}

_ATTRIBUTES = {
    "exist": 0, "max_threads_per_block": 1, "warp_size": 2, "max_shared_memory_per_block": 3, "compute_version": 4,
    "device_name": 5, "max_clock_rate": 6, "multi_processor_count": 7, "max_thread_dimensions": 8,
    "api_version": 11, "driver_version": 12, "l2_cache_size_bytes": 13, "total_global_memory": 14,
    "available_global_memory": 15, "image_pitch_alignment": 16,
}  # fmt: skip


class Device(_core.Device):
    """A device of this process. Unknown attributes are None."""

    __slots__ = ()

    def __init__(self, device_type: int | str, device_id: int = 0, stand_in: _core.Object | None = None) -> None:
        if isinstance(device_type, str):
            named = device(device_type, device_id or None)
            device_type, device_id = named.device_type, named.device_id
        super().__init__(device_type, device_id, stand_in)

    @property
    def kind(self) -> str:
        """The kind's name, such as ``cuda``."""
        return _NAMES.get(self.device_type, f"device({self.device_type})")

    @property
    def type(self) -> str:
        """The same as ``kind``, by the name of torch and tvm-ffi."""
        return self.kind

    @property
    def index(self) -> int:
        """The same as ``device_id``, by the name of torch and tvm-ffi."""
        return self.device_id

    def dlpack_device_type(self) -> int:
        """Return the kind as DLPack numbers it, which is ``device_type``."""
        return self.device_type

    @property
    def exist(self) -> bool:
        """Whether the device exists and works."""
        return bool(self._number("exist"))

    def _empty(self, shape: tuple[int, ...], dtype: _core.DataType, scope: str | None) -> Any:
        if scope is None:
            return _core.empty_tensor(shape, dtype, self)
        return get_global_func("runtime.TVMTensorAllocWithScope")(Shape(shape), dtype, self, scope)

    def _check_serves(self, module: Any) -> None:
        """Refuse a module that runs elsewhere; a device of this process stands for that of its number anywhere."""

    def sync(self) -> None:
        """Wait for the work on the device's current stream.

        Raises:
            DeviceError: this process does not support the kind of device.
        """
        self._stream(6)

    def _order(self, consumer: int | None) -> None:
        """Have a stream of another package wait for our current one. DLPack numbers them: None and 1 are the default
        stream, -1 is none.
        """
        if self.device_type == _KINDS["cpu"] or consumer == -1:
            return
        current, theirs = self._stream(5), 0 if consumer is None or consumer == 1 else consumer
        if theirs != current:
            self._stream(4, theirs, current)

    def _stream(self, command: int, stream: int = 0, other: int = 0) -> int:
        number: int = get_global_func("portcall.DeviceStream")(command, self, stream, other)
        return number

    def _event_function(self, name: str) -> _core.PackedFunc | None:
        """Return a function of events; None where the device's server has none."""
        return get_global_func(f"portcall.Event{name}")

    def _attribute(self, name: str) -> Any:
        return self._attribute_number(_ATTRIBUTES[name])

    def _attribute_number(self, number: int) -> Any:
        return get_global_func("runtime.GetDeviceAttr")(self.device_type, self.device_id, number)

    def _number(self, name: str) -> int | None:
        value: int | None = self._attribute(name)
        return value

    def _text(self, name: str) -> str | None:
        value: str | None = self._attribute(name)
        return value

    @property
    def device_name(self) -> str | None:
        """The product's name."""
        return self._text("device_name")

    @property
    def multi_processor_count(self) -> int | None:
        """Cores or multiprocessors that this process may use."""
        return self._number("multi_processor_count")

    @property
    def total_global_memory(self) -> int | None:
        """Memory of the device in bytes."""
        return self._number("total_global_memory")

    @property
    def available_global_memory(self) -> int | None:
        """Free memory, in bytes."""
        return self._number("available_global_memory")

    @property
    def image_pitch_alignment(self) -> int | None:
        """Pixels that a row of an image in a buffer is a multiple of; 0 where a buffer cannot be an image."""
        return self._number("image_pitch_alignment")

    @property
    def l2_cache_size_bytes(self) -> int | None:
        """Size of the second-level cache in bytes."""
        return self._number("l2_cache_size_bytes")

    @property
    def max_threads_per_block(self) -> int | None:
        """Threads in one block, for devices with blocks."""
        return self._number("max_threads_per_block")

    @property
    def warp_size(self) -> int | None:
        """Threads that run in step."""
        return self._number("warp_size")

    @property
    def compute_version(self) -> str | None:
        """The device's generation, such as ``9.0``."""
        return self._text("compute_version")

    @property
    def driver_version(self) -> str | None:
        """The version of the device's driver."""
        return self._text("driver_version")

    def __str__(self) -> str:
        return f"{self.kind}:{self.device_id}"

    def __repr__(self) -> str:
        return f"portcall.device('{self}')"


_core.register_class(_core.TYPE_INDEX["Device"], Device)


def device(name: Any, device_id: int | None = None) -> Device:
    """Return a device: ``device("cuda:1")``, ``device("cuda", 1)``, ``device("cpu")``.

    Raises:
        ValueError: no such kind, or an index that is not a number.
        ArgumentError: neither a name, nor a number, nor a device.
    """
    if isinstance(name, Device):
        return name
    if isinstance(name, int):
        return Device(name, device_id or 0)
    if not isinstance(name, str):
        got = type(name).__name__
        expected = "a device, or a name such as 'cuda:0'"
        raise errors.ArgumentError(f"device() takes {expected}, got {got}", expected=expected, got=got)
    kind, colon, index = name.partition(":")
    if kind not in _KINDS:
        raise ValueError(f"unknown device kind {kind!r} in {name!r}; kinds are {', '.join(_KINDS)}")
    if colon and (device_id is not None or not index.isdigit()):
        raise ValueError(f"device {name!r}: give one index, as in 'cuda:0' or device('cuda', 0)")
    return Device(_KINDS[kind], int(index) if colon else device_id or 0)


def cpu(device_id: int = 0) -> Device:
    """Return the host, ``cpu:0``."""
    return Device(_KINDS["cpu"], device_id)


def cuda(device_id: int = 0) -> Device:
    """Return an NVIDIA GPU."""
    return Device(_KINDS["cuda"], device_id)


def opencl(device_id: int = 0) -> Device:
    """Return an OpenCL device; clinfo lists them."""
    return Device(_KINDS["opencl"], device_id)
