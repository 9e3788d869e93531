# SPDX-License-Identifier: Apache-2.0
"""Element types of tensors, by the names that compilers use: ``float32``, ``bfloat16``, ``float8_e4m3fn``, ``int8x4``.

Short names count bits: ``f32``, ``bf16``, ``i64``, ``u16``. Names such as ``i8`` and ``f4`` are refused, because NumPy
counts bytes there.

NumPy has no bfloat16, float8, float4 or int4; the ml_dtypes package defines them, and is imported only when
such a tensor becomes a NumPy array.
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from portcall import _core, errors
from portcall.extras import EXTRAS

if TYPE_CHECKING:
    import numpy

_PLAIN_CODES = {_core.TYPE_CODE[name] for name in ("Int", "UInt", "Float", "Complex", "Bool")}
_SHORT_NAME = re.compile(r"(bf|[fiuc])[0-9]+")
_CLEAR_NAMES = {"bf16", "f16", "f32", "f64", "i16", "i32", "i64", "u16", "u32", "u64", "c64", "c128"}


class DataType(_core.DataType):
    """An element type: ``code`` (as DLPack numbers them), ``bits`` and ``lanes``.

    Equal to its name, with the same hash, and to the NumPy type of the same elements. NumPy takes it for a type.
    Made of a name, in which ``i8`` counts bits, or of what ``dtype`` takes.

    Raises:
        ValueError: the text names no type.
    """

    __slots__ = ()

    def __init__(
        self, value: Any = "void", *, code: int | None = None, bits: int | None = None, lanes: int = 1
    ) -> None:
        if code is None and not isinstance(value, str):
            value = str(dtype(value))
        super().__init__(value, code=code, bits=bits, lanes=lanes)

    @staticmethod
    def from_dlpack_data_type(parts: tuple[int, int, int]) -> DataType:
        """Return the type of a code, of bits and of lanes."""
        code, bits, lanes = parts
        return DataType(code=code, bits=bits, lanes=lanes)

    def __repr__(self) -> str:
        return f"portcall.dtype('{self}')"

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype, (str(self),)

    @property
    def itemsize(self) -> int:
        """Bytes of one element, rounded up for types below a byte."""
        return (self.bits * self.lanes + 7) // 8

    @property
    def type_code(self) -> int:
        """The same as ``code``, by tvm-ffi's name."""
        return self.code

    def with_lanes(self, lanes: int) -> DataType:
        """Return the type of vectors of such elements."""
        scalar = str(self).removesuffix(f"x{self.lanes}") if self.lanes != 1 else str(self)
        return DataType(scalar if lanes == 1 else f"{scalar}x{lanes}")

    def _is(self, *names: str) -> bool:
        return self.code in {_core.TYPE_CODE[name] for name in names}

    @property
    def is_integer(self) -> bool:
        """Whether elements are integers, signed or not."""
        return self._is("Int", "UInt")

    @property
    def is_handle(self) -> bool:
        """Whether elements are pointers."""
        return self._is("OpaqueHandle")

    @property
    def is_bool(self) -> bool:
        """Whether elements are bools."""
        return self._is("Bool")

    @property
    def is_float(self) -> bool:
        """Whether elements are floating-point numbers, those of fewer bits and bfloat16 included."""
        return not self._is("Int", "UInt", "Bool", "Complex", "OpaqueHandle")

    @property
    def dtype(self) -> numpy.dtype[Any]:
        """The same as ``numpy()``, where NumPy looks for it: ``np.zeros(3, dtype=portcall.dtype("float32"))``."""
        return self.numpy()

    def numpy(self) -> numpy.dtype[Any]:
        """Return the NumPy type with the same elements.

        Raises:
            TypeError: neither NumPy nor ml_dtypes has such elements, or ml_dtypes is not installed.
        """
        import numpy

        if self.lanes != 1:
            raise TypeError(f"NumPy has no vector elements such as {self}")
        if self.code in _PLAIN_CODES and self.bits >= 8:
            return numpy.dtype("bool" if self.code == _core.TYPE_CODE["Bool"] else str(self))
        try:
            import ml_dtypes
        except ImportError:
            command = EXTRAS["dtypes"].command
            raise TypeError(f"NumPy needs the package ml_dtypes for {self}: {command}") from None
        scalar: type | None = getattr(ml_dtypes, str(self), None)
        if scalar is None:
            raise TypeError(f"neither NumPy nor ml_dtypes has elements of type {self}")
        return numpy.dtype(scalar)


_core.register_class(_core.TYPE_INDEX["DataType"], DataType)


def dtype(value: Any) -> DataType:
    """Return the DataType of a name, of a type of NumPy or torch, or of anything NumPy takes as one.

    Raises:
        ValueError: the name is that of no type, or the bytes of the NumPy type are in another machine's order.
        TypeError: NumPy takes ``value`` for no type; None, which NumPy takes for float64, is refused too.
    """
    if value is None:
        raise errors.ArgumentError(
            "dtype() takes a data type or its name, got None", expected="a data type", got="None"
        )
    if isinstance(value, DataType):
        return value
    if isinstance(value, str):
        if _SHORT_NAME.fullmatch(value) and value not in _CLEAR_NAMES:
            raise ValueError(f"{value!r} may count bits or, as in NumPy, bytes; write the full name, such as 'int8'")
        return DataType(value)
    if _is_dtype_of("torch", value):
        return DataType(str(value).removeprefix("torch."))
    import numpy

    found = numpy.dtype(value)
    if not found.isnative:
        raise ValueError(f"the elements of {found.str!r} are not in this machine's byte order; use {found.name!r}")
    return DataType(found.name)


def _is_dtype_of(package: str, value: Any) -> bool:
    return isinstance(value, getattr(sys.modules.get(package), "dtype", ()))


def _of_other_package(value: Any) -> DataType | None:
    """Return the DataType for an element type of NumPy or torch, None for anything else."""
    return dtype(value) if _is_dtype_of("numpy", value) or _is_dtype_of("torch", value) else None


_core.register_dtype_reader(_of_other_package)
