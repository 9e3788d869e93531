# SPDX-License-Identifier: Apache-2.0
"""Which argument does not have the type of its parameter: asked when a call has failed, so that others cost nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from portcall.vm._executable import Parameter


def misfit(function: str, parameters: Sequence[Parameter], values: Sequence[Any]) -> Exception | None:
    """Return the error that names the first tensor of another type or shape than expected; None if all fit.

    The classes are those that the machine raises: TypeError for what is no tensor, ValueError for another element type
    or number of dimensions, RuntimeError for other extents. Those that are expressions, such as ``n * 2``, are not
    looked at.
    """
    known: dict[str, tuple[int, str]] = {}
    for parameter, value in _tensors(parameters, values):
        wanted = parameter.shape
        expected = _type(parameter.dtype, wanted)
        if not hasattr(value, "shape") or not hasattr(value, "dtype"):
            return TypeError(f"{function}(): {parameter.name} is of type {type(value).__name__}, expected {expected}")
        shape = tuple(value.shape)
        text = f"{function}(): {parameter.name} is {_type(value.dtype, shape)}, expected {expected}"
        if parameter.dtype and str(value.dtype) != parameter.dtype:
            return ValueError(text)
        if wanted is None:
            continue
        if len(wanted) != len(shape):
            return ValueError(text)
        for axis, (extent, got) in enumerate(zip(wanted, shape, strict=True)):
            if isinstance(extent, int) and extent != got:
                return RuntimeError(f"{text}: dimension {axis} is {got} instead of {extent}")
            if isinstance(extent, str) and extent.isidentifier():
                before, where = known.setdefault(extent, (got, parameter.name))
                if before != got:
                    return RuntimeError(f"{text}: {extent} is {got} here, and {before} in {where}")
    return None


def _tensors(parameters: Sequence[Parameter], values: Sequence[Any]) -> list[tuple[Parameter, Any]]:
    """Return the tensors with their parameters, those of tuples too."""
    found: list[tuple[Parameter, Any]] = []
    for parameter, value in zip(parameters, values, strict=False):
        if parameter.kind == "tuple" and isinstance(value, (tuple, list)):
            found += _tensors(parameter.items, value)
        elif parameter.kind == "tensor":
            found.append((parameter, value))
    return found


def _type(dtype: object, shape: Sequence[int | str] | None) -> str:
    return f"{dtype or 'a tensor'}{'' if shape is None else '[' + ', '.join(map(str, shape)) + ']'}"
