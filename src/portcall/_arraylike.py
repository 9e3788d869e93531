# SPDX-License-Identifier: Apache-2.0
"""What tensors of this process and of sessions have in common: their parts, and arithmetic through NumPy."""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from types import EllipsisType
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

from portcall._dtype import DataType
from portcall._dtype import dtype as as_dtype

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self

Extents: TypeAlias = SupportsIndex | Iterable[SupportsIndex]
Key: TypeAlias = "SupportsIndex | slice | EllipsisType | None"
_Operator: TypeAlias = Callable[[Any, Any], Any]


def _operators(name: str) -> tuple[_Operator, _Operator, _Operator]:
    """Return the methods for ``x + y``, ``y + x`` and ``x += y``, or for another operator."""
    compute, change = getattr(operator, f"__{name}__"), getattr(operator, f"__i{name}__")

    def forward(self: ArrayLike, other: Any) -> Any:
        return compute(self._operand(), _plain(other))

    def reflected(self: ArrayLike, other: Any) -> Any:
        return compute(_plain(other), self._operand())

    def in_place(self: ArrayLike, other: Any) -> Any:
        change(self._operand(), _plain(other))
        return self

    return forward, reflected, in_place


def _forward(name: str) -> Callable[..., Any]:
    compute = getattr(operator, f"__{name}__")
    return lambda self, *others: compute(self._operand(), *map(_plain, others))


def _plain(operand: Any) -> Any:
    return operand._operand() if isinstance(operand, ArrayLike) else operand


class ArrayLike:
    """Base of Tensor and RemoteTensor.

    ``t[key]`` takes the keys of NumPy that select without copying: integers, slices, ``...`` and None. It is a view: a
    tensor over part of the memory, which it keeps; where no axis is left, it is the element, as a NumPy scalar.
    ``t[key] = value`` copies an array or tensor with elements of the same type, or numbers, and broadcasts.

    Arithmetic and ``<``, ``<=``, ``>``, ``>=`` compute in NumPy and make NumPy arrays; ``t += x`` writes to the tensor.
    Tensors of devices and of sessions do none. ``==`` of two tensors says whether they are the same object, as for all
    objects; with an array it compares elements.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def shape(self) -> tuple[int, ...]: ...
        @property
        def dtype(self) -> DataType: ...
        def numpy(self) -> NDArray[Any]: ...
        def copyfrom(self, source: Any) -> Any: ...
        def _operand(self) -> NDArray[Any]: ...
        def _part(
            self, shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: DataType, byte_offset: int
        ) -> Self: ...

    def view(self, shape: Extents, dtype: Any = None, byte_offset: SupportsIndex = 0) -> Self:
        """Return a tensor over part of the same memory, with another shape and, if given, other elements.

        Raises:
            ValueError: it would go past the end, or this tensor is not compact.
        """
        extents, kind, offset = extents_of(shape), self.dtype if dtype is None else as_dtype(dtype), int(byte_offset)
        if not is_compact(self.shape, self._strides()):
            raise ValueError("a view with another shape needs a compact tensor; t.copyto(t.device) makes one")
        if offset < 0 or min(extents, default=0) < 0:
            raise ValueError(f"a view has no negative extents and offsets, got {extents} at {offset}")
        size, nbytes = _num_bytes(self.shape, self.dtype), _num_bytes(extents, kind)
        if offset + nbytes > size:
            raise ValueError(f"a view of {nbytes} bytes at offset {offset} goes past the end of {size} bytes")
        return self._part(extents, None, kind, offset)

    def __getitem__(self, key: Key | tuple[Key, ...]) -> Any:
        part = self._select(key)
        return part if part.shape else part.numpy()[()]

    def __setitem__(self, key: Key | tuple[Key, ...], value: Any) -> None:
        import numpy

        part = self._select(key)
        if not getattr(value, "shape", ()):  # a number, or lists of them
            value = numpy.asarray(value, part.dtype.numpy())
        if tuple(value.shape) != part.shape:
            value = numpy.broadcast_to(numpy.asarray(value), part.shape)
        part.copyfrom(value)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without dimensions has no length")
        return int(self.shape[0])

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self)))

    def _strides(self) -> tuple[int, ...]:
        return tuple(math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape)))

    def _select(self, key: Any) -> Self:
        offset, shape, strides = select(self.shape, self._strides(), key)
        dtype = self.dtype
        bits = offset * dtype.bits * dtype.lanes
        if bits % 8:
            raise ValueError(f"elements of {dtype} share bytes; this part starts inside of one")
        return self._part(shape, None if is_compact(shape, strides) else strides, dtype, bits // 8)

    if not TYPE_CHECKING:  # for whom a name that is not here stays an error

        def __getattr__(self, name: str) -> Any:
            text = f"{type(self).__name__!r} object has no attribute {name!r}"
            numpy = sys.modules.get("numpy")
            if numpy is not None and not name.startswith("_") and hasattr(numpy.ndarray, name):
                text += f"; arrays have: .numpy().{name}"
            raise AttributeError(text)

    __add__, __radd__, __iadd__ = _operators("add")
    __sub__, __rsub__, __isub__ = _operators("sub")
    __mul__, __rmul__, __imul__ = _operators("mul")
    __truediv__, __rtruediv__, __itruediv__ = _operators("truediv")
    __floordiv__, __rfloordiv__, __ifloordiv__ = _operators("floordiv")
    __mod__, __rmod__, __imod__ = _operators("mod")
    __pow__, __rpow__, __ipow__ = _operators("pow")
    __matmul__, __rmatmul__, __imatmul__ = _operators("matmul")
    __and__, __rand__, __iand__ = _operators("and")
    __or__, __ror__, __ior__ = _operators("or")
    __xor__, __rxor__, __ixor__ = _operators("xor")
    __lshift__, __rlshift__, __ilshift__ = _operators("lshift")
    __rshift__, __rrshift__, __irshift__ = _operators("rshift")
    __lt__, __le__, __gt__, __ge__ = map(_forward, ("lt", "le", "gt", "ge"))
    __neg__, __pos__, __abs__, __invert__ = map(_forward, ("neg", "pos", "abs", "invert"))


def extents_of(shape: Extents) -> tuple[int, ...]:
    """Return the extents of a shape, or of the only axis."""
    return tuple(map(operator.index, shape if isinstance(shape, Iterable) else (shape,)))


def is_compact(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent not in (1, 0) and stride != expected:
            return 0 in shape
        expected *= extent
    return True


def select(shape: tuple[int, ...], strides: tuple[int, ...], key: Any) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Return (offset, shape, strides) of the part that a key names, in elements.

    Raises:
        IndexError: there is no such element, or the key has too many entries.
        TypeError: a key of another kind.
    """
    keys = key if isinstance(key, tuple) else (key,)
    rest = len(shape) - sum(entry is not None and entry is not Ellipsis for entry in keys)
    gaps = sum(entry is Ellipsis for entry in keys)
    if rest < 0 or gaps > 1:
        raise IndexError(f"the key {key!r} has too many entries for a tensor with {len(shape)} dimensions")
    offset, axis = 0, 0
    extents: list[int] = []
    steps: list[int] = []
    for entry in keys if gaps else (*keys, Ellipsis):
        if entry is None:
            extents.append(1)
            steps.append(0)
        elif entry is Ellipsis:
            extents += shape[axis : axis + rest]
            steps += strides[axis : axis + rest]
            axis += rest
        elif isinstance(entry, slice):
            chosen = range(*entry.indices(shape[axis]))
            offset += chosen.start * strides[axis] if chosen else 0
            extents.append(len(chosen))
            steps.append(chosen.step * strides[axis])
            axis += 1
        else:
            offset += _position(entry, axis, shape[axis]) * strides[axis]
            axis += 1
    return offset, tuple(extents), tuple(steps)


def _position(entry: Any, axis: int, extent: int) -> int:
    if isinstance(entry, bool) or not hasattr(entry, "__index__") or getattr(entry, "shape", None):
        raise TypeError(
            f"a tensor takes integers, slices, ... and None between brackets, got {type(entry).__name__}; "
            "t.numpy()[key] takes every key of NumPy"
        )
    index = operator.index(entry)
    if not -extent <= index < extent:
        raise IndexError(f"index {index} is out of range for axis {axis} with extent {extent}")
    return index % extent


def _num_bytes(shape: tuple[int, ...], dtype: DataType) -> int:
    return (math.prod(shape) * dtype.bits * dtype.lanes + 7) // 8
