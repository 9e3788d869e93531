# SPDX-License-Identifier: Apache-2.0
"""Element types of tensors, by the names that compilers use: ``float32``, ``bfloat16``, ``float8_e4m3fn``, ``int8x4``.

NumPy has no bfloat16, float8, float4 or int4 of its own; the ml_dtypes package defines them, and is imported only when
such a tensor becomes a NumPy array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from portcall import _core, errors

if TYPE_CHECKING:
    import numpy

_TYPE_INDEX = 5
_PLAIN_CODES = {0: "int", 1: "uint", 2: "float", 5: "complex", 6: "bool"}


class DataType(_core.DataType):
    """An element type: ``code`` (as DLPack numbers them), ``bits`` and ``lanes``. Equal to its name.

    Raises:
        ValueError: the text names no type.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return f"portcall.dtype('{self}')"

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype, (str(self),)

    @property
    def itemsize(self) -> int:
        """Bytes of one element, rounded up for types below a byte."""
        return (self.bits * self.lanes + 7) // 8

    def numpy(self) -> numpy.dtype[Any]:
        """Return the NumPy type with the same elements.

        Raises:
            TypeError: neither NumPy nor ml_dtypes has such elements, or ml_dtypes is not installed.
        """
        import numpy

        if self.lanes != 1:
            raise TypeError(f"NumPy has no vector elements such as {self}")
        if self.code in _PLAIN_CODES and self.bits >= 8:
            return numpy.dtype("bool" if self.code == 6 else str(self))
        try:
            import ml_dtypes
        except ImportError:
            raise TypeError(f"NumPy needs the package ml_dtypes for {self}: pip install ml_dtypes") from None
        scalar: type | None = getattr(ml_dtypes, str(self), None)
        if scalar is None:
            raise TypeError(f"neither NumPy nor ml_dtypes has elements of type {self}")
        return numpy.dtype(scalar)


_core.register_class(_TYPE_INDEX, DataType)


def dtype(value: Any) -> DataType:
    """Return the DataType of a name, of a NumPy type, or of anything NumPy takes as one.

    Raises:
        ValueError: the name is that of no type.
        TypeError: NumPy takes ``value`` for no type; None, which NumPy takes for float64, is refused too.
    """
    if value is None:
        raise errors.ArgumentError(
            "dtype() takes a data type or its name, got None", expected="a data type", got="None"
        )
    if isinstance(value, DataType):
        return value
    if isinstance(value, str):
        return DataType(value)
    import numpy

    return DataType(numpy.dtype(value).name)
