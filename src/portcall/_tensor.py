# SPDX-License-Identifier: Apache-2.0
"""Tensors: memory with a shape, shared between languages and array libraries without copies."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

from portcall import _core
from portcall._arraylike import ArrayLike, Extents, extents_of
from portcall._device import Device, cpu
from portcall._device import device as as_device
from portcall._dtype import DataType
from portcall._dtype import dtype as as_dtype
from portcall._html import facts_as_html

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CPU = _core.DEVICE_TYPE["CPU"]


class Tensor(ArrayLike, _core.Tensor):
    """A tensor. Its memory lives as long as anything refers to it: this object, an array made from it, a library.

    One exception: a tensor that compiled code lends to a function for a call. After the call it raises ValueError, and
    arrays made from it are no longer valid; ``copyto(portcall.cpu())`` inside the function makes a copy to keep.

    ``shape``, ``strides`` (in elements), ``dtype``, ``device``, ``ndim``, ``size``, ``nbytes``, ``data_ptr``,
    ``is_contiguous`` and ``readonly`` describe it. ``t[1:]`` and ``t.view(shape)`` are views of it; arithmetic
    computes in NumPy and makes arrays (see ArrayLike).
    """

    __slots__ = ()
    __dlpack_c_exchange_api__ = _core.exchange_capsule()

    def numpy(self, *, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return the elements as a NumPy array: a view of the same memory on the host, else a copy.

        Elements of 4 bits (int4, uint4, float4_e2m1fn) are unpacked, into a read-only copy of ml_dtypes' types.

        Parameters:
            out: an array of the same shape and type to copy into, and to return.

        Raises:
            TypeError: NumPy has no such elements (see ``DataType.numpy``).
            ValueError: ``out`` has another shape.
        """
        if out is not None:
            tensor_over_array(out).copyfrom(self)
            return out
        if self.device.device_type != _CPU:
            host = empty(self.shape, self.dtype)
            host._copy_from(self)
            return host.numpy()
        return _as_array(self)

    def copyfrom(self, source: Any) -> Tensor:
        """Copy the elements of an array or tensor on any device into this one.

        Raises:
            ValueError: the shapes differ, or this tensor is read-only.
            TypeError: the element types differ.
        """
        if self.readonly:
            raise ValueError("the tensor is read-only")
        if not isinstance(source, _core.Tensor):
            source = _pack(source, self.dtype) if _is_packed(self.dtype) else array_like(source, self.dtype)
            source = _core.tensor_over(source)
        self._copy_from(source)
        return self

    def copyto(self, target: Any) -> Any:
        """Copy the elements into an array or tensor, or to a device, and return that."""
        if isinstance(target, Device):
            return empty(self.shape, self.dtype, target).copyfrom(self)
        tensor = target if hasattr(target, "copyfrom") else tensor_over_array(target)
        tensor.copyfrom(self)
        return target

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        if dl_device is not None and dl_device != self.__dlpack_device__():
            raise BufferError(f"the tensor is on {self.device}; copy it with copyto(device) first")
        source = self.copyto(self.device) if copy else self
        self.device._order(stream)
        return source._export(max_version is not None and max_version[0] >= 1)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device.device_type, self.device.device_id

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False and self.device.device_type != _CPU:
            raise ValueError(f"a tensor on {self.device} cannot become an array without a copy")
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"a {self.dtype} tensor cannot become an array of {dtype} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def _strides(self) -> tuple[int, ...]:
        return self.strides

    def _operand(self) -> NDArray[Any]:
        if self.device.device_type != _CPU:
            raise TypeError(f"a tensor on {self.device} has no arithmetic; .numpy() copies it to the host")
        return _as_array(self)

    def __repr__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        return f"<portcall.Tensor {self.dtype}[{shape}] on {self.device}{', read-only' if self.readonly else ''}>"

    def _repr_html_(self) -> str:
        facts = [
            ("type", self.dtype), ("shape", list(self.shape)), ("device", self.device),
            ("memory", f"{self.nbytes:,} bytes{', read-only' if self.readonly else ''}"),
        ]  # fmt: skip
        elements = ""
        if self.device.device_type == _CPU:
            with contextlib.suppress(TypeError):  # NumPy has no such elements
                elements = str(self.numpy())
        return facts_as_html("portcall.Tensor", facts, elements)


_core.register_class(_core.TYPE_INDEX["Tensor"], Tensor)


_PACKED_OF_NUMPY = ("int4", "uint4", "float4_e2m1fn")  # types of ml_dtypes, with a byte for each element


class _Memory:
    """What NumPy reads to make an array over a tensor's memory; the array keeps this, and this the tensor."""

    def __init__(self, tensor: Tensor, typestr: str, itemsize: int) -> None:
        self.tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "shape": tensor.shape,
            "typestr": typestr,
            "data": (tensor.data_ptr, tensor.readonly),
            "strides": None if tensor.is_contiguous else tuple(s * itemsize for s in tensor.strides),
        }


def _as_array(tensor: Tensor) -> NDArray[Any]:
    import numpy

    dtype = tensor.dtype.numpy()
    if _is_packed(tensor.dtype) and tensor.is_contiguous:
        return _unpack(tensor)
    if dtype.itemsize != tensor.dtype.itemsize or tensor.dtype.bits % 8:
        raise TypeError(f"NumPy keeps each element in bytes of its own; a {tensor.dtype} tensor packs them")
    known = dtype.isbuiltin == 1
    memory = _Memory(tensor, dtype.str if known else f"|V{dtype.itemsize}", dtype.itemsize)
    array = numpy.asarray(memory)
    return array if known else array.view(dtype)


def _is_packed(dtype: _core.DataType) -> bool:
    return dtype.bits == 4 and dtype.lanes == 1


def _unpack(tensor: Tensor) -> NDArray[Any]:
    """Return a copy of elements of 4 bits, the first of each two in the lower half of a byte (as in DLPack)."""
    import numpy

    packed = tensor.view((tensor.nbytes,), "uint8").numpy()
    halves = numpy.stack((packed & 15, packed >> 4), -1).reshape(-1)[: math.prod(tensor.shape)]
    kind = tensor.dtype.numpy()
    if tensor.dtype.code == _core.TYPE_CODE["Int"]:
        halves = (halves ^ 8).astype("int8") - numpy.int8(8)
    whole = tensor.dtype.code in (_core.TYPE_CODE["Int"], _core.TYPE_CODE["UInt"])
    array = (halves.astype(kind) if whole else halves.view(kind)).reshape(tensor.shape)
    array.flags.writeable = False  # a change would not reach the tensor
    return array


def _pack(source: Any, dtype: DataType) -> Tensor:
    """Return a tensor with the numbers of an array as elements of 4 bits.

    Raises:
        TypeError: the array has elements of another type.
    """
    import numpy

    kind = dtype.numpy()
    array = numpy.asarray(source, dtype=None if hasattr(source, "dtype") else kind)
    if array.dtype != kind:
        raise TypeError(f"the tensor has elements of type {dtype}, the array {array.dtype}")
    whole = dtype.code in (_core.TYPE_CODE["Int"], _core.TYPE_CODE["UInt"])
    halves = (array.astype("int8") if whole else array).reshape(-1).view("uint8") & 15
    halves = numpy.append(halves, numpy.zeros(halves.size % 2, "uint8"))
    packed = empty(array.shape, dtype)
    packed.view((packed.nbytes,), "uint8").numpy()[:] = halves[::2] | halves[1::2] << 4
    return packed


def array_like(value: Any, dtype: DataType | None = None) -> Any:
    """Return an array that NumPy can read; arrays unchanged."""
    if hasattr(value, "__dlpack__") or hasattr(value, "__array_interface__"):
        return value
    import numpy

    return numpy.asarray(value, dtype=None if dtype is None else dtype.numpy())


def tensor_over_array(array: Any) -> Tensor:
    """Return a tensor over the memory of an array that will be written to."""
    made: Tensor = _core.tensor_over(array)
    return made


Remote_co = TypeVar("Remote_co", covariant=True)


class DeviceOfSession(Protocol[Remote_co]):
    """A device whose tensors are in the memory of a session, as ``portcall.rpc`` has them."""

    @property
    def session(self) -> Any: ...
    def _empty(self, shape: tuple[int, ...], dtype: _core.DataType, scope: str | None) -> Remote_co: ...


@overload
def empty(
    shape: Extents, dtype: Any = ..., *, device: DeviceOfSession[Remote_co], scope: str | None = ...
) -> Remote_co: ...
@overload
def empty(
    shape: Extents, dtype: Any = ..., device: Device | str | None = ..., *, scope: str | None = ...
) -> Tensor: ...
def empty(shape: Extents, dtype: Any = "float32", device: Any = None, *, scope: str | None = None) -> Any:
    """Return a tensor of uninitialised memory, aligned to 64 bytes, on ``cpu:0`` unless a device is given.

    On a device of a session it is a tensor of that session.

    Args:
        scope: memory other than the device's own, such as ``global.texture``, an image of OpenCL.

    Raises:
        ValueError: a negative extent, a size that no memory has, or a scope that the device does not have.
        DeviceError: this process does not support the device.
        MemoryError: the device has not that much memory.
    """
    target = cpu() if device is None else as_device(device)
    return target._empty(extents_of(shape), as_dtype(dtype), scope)


@overload
def tensor(source: Any, dtype: Any = ..., *, device: DeviceOfSession[Remote_co]) -> Remote_co: ...
@overload
def tensor(source: Any, dtype: Any = ..., device: Device | str | None = ...) -> Tensor: ...
def tensor(source: Any, dtype: Any = None, device: Any = None) -> Any:
    """Return a tensor with a copy of an array's elements, or of numbers in lists, aligned to 64 bytes.

    It is on the array's device unless another is given; on a device of a session it is a tensor of that session.

    Raises:
        ArgumentError: no tensor has such elements.
    """
    if dtype is not None or not (hasattr(source, "__dlpack__") or hasattr(source, "__array_interface__")):
        import numpy

        source = numpy.asarray(source, dtype=None if dtype is None else as_dtype(dtype).numpy())
    elements = str(getattr(source, "dtype", ""))
    if elements in _PACKED_OF_NUMPY:
        source = _pack(source, as_dtype(elements))
    view = _core.tensor_over(source)
    return empty(view.shape, view.dtype, view.device if device is None else device).copyfrom(view)


def from_dlpack(source: Any) -> Tensor:
    """Return a tensor over the memory of an object with ``__dlpack__``, or of a capsule; nothing is copied."""
    made: Tensor = _core.from_dlpack(source)
    return made


def set_alignment_policy(policy: Literal["copy", "error"]) -> None:
    """Set the policy for tensors that compiled code cannot use: not compact, or not 64-byte aligned.

    ``"copy"``, the default, gives the code an aligned copy and copies it back; ``"error"`` refuses the call.

    Raises:
        ValueError: an unknown policy.
    """
    if policy not in ("copy", "error"):
        raise ValueError(f"the alignment policy is 'copy' or 'error', not {policy!r}")
    _core.set_copies_allowed(policy == "copy")


def alignment_copy_stats() -> tuple[int, int]:
    """Return how many tensors were copied for compiled code so far, and their bytes in all."""
    count, nbytes = _core.copy_statistics()
    return count, nbytes
