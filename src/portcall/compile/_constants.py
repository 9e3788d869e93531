# SPDX-License-Identifier: Apache-2.0
"""Fold constants of a Relax module with NumPy: TVM's own pass compiles a function for each of them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from portcall.compile._program import is_constant

Array = Any
_MOST_AT_ONCE = 1 << 26  # bytes of constants that are made in a turn
_MOST_MADE = 1 << 26  # bytes of a constant that is larger than what it is made of
_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "relax.add": np.add,
    "relax.subtract": np.subtract,
    "relax.multiply": np.multiply,
    "relax.divide": np.divide,
    "relax.less": np.less,
}
_UNARY: dict[str, Callable[[Array], Array]] = {
    "relax.sqrt": np.sqrt,
    "relax.rsqrt": lambda a: (1 / np.sqrt(a)).astype(a.dtype),
    "relax.negative": np.negative,
    "relax.isnan": np.isnan,
}


def fold_with_numpy(module: Any) -> Any:
    """Fold constants of a module in place, and return it.

    It is not a pass of TVM's, which keeps the functions that it was given.
    """
    names = [name for name, function in module.functions_items() if isinstance(function, relax.Function)]
    while names:
        if not _fold_some(module, names[-1]):
            names.pop()
    return module


def _fold_some(module: Any, name: Any) -> bool:
    """Fold constants of a function, and return whether there are more.

    Those that are made, and those that they are made of, are in memory together. So many large ones are made in turns.
    """
    folder = _Folder(module)
    module.update_func(name, folder.visit_expr(module[name]))
    left = bool(folder.left and folder.made)
    if folder.made > _MOST_AT_ONCE:
        del folder
        gc.collect()  # mutators of TVM's are in circles, with the module as it was
    return left


def _fold(call: Any) -> Array | None:
    """Return the value of a call of constants; None if it is not known here."""
    name = call.op.name
    values = [_value(argument) for argument in call.args]
    if not values or values[0] is None or not is_constant(call.args[0]):
        return None
    first = values[0]
    if name in _BINARY and values[1] is not None:
        nbytes = prod(np.broadcast_shapes(first.shape, values[1].shape)) * first.itemsize
        if nbytes > max(_MOST_MADE, first.nbytes, values[1].nbytes):
            return None
        if first.dtype.kind in "iub" and name == "relax.divide":
            return None
        return _BINARY[name](first, values[1])
    if name == "relax.matmul" and values[1] is not None and first.dtype == values[1].dtype == "float32":
        made = first.size * values[1].shape[-1] // first.shape[-1] * first.itemsize
        return np.matmul(first, values[1]) if first.ndim == values[1].ndim == 2 and made <= _MOST_MADE else None
    if name in _UNARY:
        return _UNARY[name](first)
    if name == "relax.where" and values[1] is not None and values[2] is not None:
        return np.where(first, values[1], values[2])
    if name == "relax.permute_dims":
        axes = call.attrs.axes
        return np.transpose(first, None if axes is None else [int(axis) for axis in axes])
    if name in ("relax.reshape", "relax.broadcast_to") and isinstance(call.args[1], relax.ShapeExpr):
        if not all(isinstance(extent, tirx.IntImm) for extent in call.args[1].values):
            return None
        shape = [int(extent) for extent in call.args[1].values]
        if prod(shape) * first.itemsize > max(_MOST_MADE, first.nbytes):
            return None
        return first.reshape(shape) if name == "relax.reshape" else np.broadcast_to(first, shape)
    if name == "relax.strided_slice":
        return _sliced(call, first)
    if name == "relax.expand_dims":
        return np.expand_dims(first, tuple(int(axis) for axis in call.attrs.axis))
    if name == "relax.squeeze":
        axes = call.attrs.axis
        return np.squeeze(first, None if axes is None else tuple(int(axis) for axis in axes))
    return None


def _sliced(call: Any, first: Array) -> Array | None:
    """Return a part of a constant; None unless it starts within it and its numbers are known."""
    fields = [list(part.fields) if isinstance(part, relax.Tuple) else [None] for part in call.args[1:]]
    if not all(isinstance(each, tirx.IntImm) for field in fields for each in field):
        return None
    numbers = [[int(each.value) for each in field if each is not None] for field in fields]
    axes, begin, end, strides = [*numbers, [1] * len(numbers[0])][:4]
    slices = [slice(None)] * first.ndim
    for axis, b, e, step in zip(axes, begin, end, strides, strict=True):
        if not (0 <= b <= e and step > 0):
            return None
        slices[axis] = slice(b, e, step)
    return first[tuple(slices)]


def _value(e: Any) -> Array | None:
    if isinstance(e, tirx.FloatImm | tirx.IntImm):
        return np.asarray(e.value, str(e.ty.dtype))
    return e.value.numpy() if is_constant(e) else None


@mutator
class _Folder(PyExprMutator):  # type: ignore[misc]
    """Replaces calls of constants, and the variables that they are bound to.

    Attributes:
        made: bytes of the constants that were made.
        left: whether calls are left that may be folded in another turn.
    """

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self.made, self.left = 0, False
        self._known: dict[Any, Any] = {}  # values of variables

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if self.made > _MOST_AT_ONCE:
            self.left = self.left or any(map(is_constant, call.args))
            return call
        found = _fold(call) if isinstance(call.op, tvm.ir.Op) else None
        if found is None:
            return call
        self.made += found.nbytes
        array = np.ascontiguousarray(found).reshape(np.shape(found))  # ascontiguousarray makes a row of a number
        return relax.const(array, str(array.dtype))

    def visit_var_binding_(self, binding: Any) -> None:
        value = self.visit_expr(binding.value)
        if is_constant(value) and isinstance(binding.var, relax.DataflowVar):
            self._known[binding.var] = value
            return
        self.builder_.emit_normalized(relax.VarBinding(binding.var, self.builder_.normalize(value)))

    def visit_var_(self, variable: Any) -> Any:
        found = self._known.get(variable)
        return super().visit_var_(variable) if found is None else found

    visit_dataflow_var_ = visit_var_
