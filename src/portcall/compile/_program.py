# SPDX-License-Identifier: Apache-2.0
"""A lowered model as a list of calls: which function makes which values of which others.

It is read from the main function of a TVM module, and is all that the later passes and the emission know of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from portcall.errors import ModelError

Array = Any
_LARGE = 1 << 16  # elements
_VIEWS = ("relax.reshape", "relax.memory.view", "relax.expand_dims", "relax.squeeze", "relax.flatten")


@dataclass(eq=False)
class Value:
    """A tensor of the model.

    Attributes:
        data: its elements, if it is a constant.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    data: Array | None = None


@dataclass(eq=False)
class Call:
    """A step of the model.

    Attributes:
        function: the name of a function of the program; empty for a view, which has another shape of the same elements.
        joined: the calls whose results this one puts together in slices, if a pass has moved them here.
        behind: the calls that are computed within this one, in order, each with the place of its result among the
            inputs of the next; this call's own inputs come last.
        nchw: the first input has the order NCHW, although the function says NHWC.
        shuffled: the input lies as it did before a shuffle of its channels into so many groups.
        order: the channels of its constants are to be taken in this order.
        nodes: labels of the nodes of the model that it computes, where they are known.
    """

    function: str
    inputs: list[Value]
    outputs: list[Value]
    joined: list[Call] = field(default_factory=list)
    behind: list[tuple[Call, int]] = field(default_factory=list)
    nchw: bool = False
    shuffled: int = 0
    order: tuple[int, ...] = ()
    nodes: list[str] = field(default_factory=list)


@dataclass
class Program:
    """Inputs, steps in order, results, and the functions of TVM's by name."""

    inputs: list[Value]
    calls: list[Call]
    outputs: list[Value]
    functions: Mapping[str, Any]

    def users(self) -> dict[Value, list[Call]]:
        """Return the calls that read each value."""
        found: dict[Value, list[Call]] = defaultdict(list)
        for call in self.calls:
            for value in dict.fromkeys(call.inputs):
                found[value].append(call)
        return found

    def makers(self) -> dict[Value, Call]:
        """Return the call that makes each value."""
        return {value: call for call in self.calls for value in call.outputs}

    def drop_unused(self) -> None:
        """Remove the calls whose results are unused."""
        needed = set(self.outputs)
        kept = []
        for call in reversed(self.calls):
            if needed.intersection(call.outputs):
                needed.update(call.inputs)
                kept.append(call)
        self.calls = kept[::-1]


def read_program(module: Any) -> Program:
    """Return the program of a lowered module.

    Raises:
        ModelError: the model has values or steps that a graph cannot have: symbolic shapes, control flow.
    """
    return _Reader(module).read()


class _Reader:
    def __init__(self, module: Any) -> None:
        self._functions = {
            str(name.name_hint): function
            for name, function in module.functions_items()
            if isinstance(function, tirx.PrimFunc)
        }
        self._main = module["main"]
        self._values: dict[Any, list[Value]] = {}
        self._constants: dict[Any, Value] = {}
        self._calls: list[Call] = []

    def read(self) -> Program:
        inputs = []
        for parameter in self._main.params:
            (made,) = _values_of(parameter.ty, str(parameter.name))
            self._values[parameter] = [made]
            inputs.append(made)
        body = self._main.body
        if isinstance(body, relax.SeqExpr):
            for block in body.blocks:
                for binding in block.bindings:
                    self._bind(binding)
            body = body.body
        outputs = self._flat(body)
        program = Program(inputs, self._calls, outputs, self._functions)
        program.drop_unused()
        return program

    def _bind(self, binding: Any) -> None:
        value, variable = binding.value, binding.var
        if not isinstance(binding, relax.VarBinding):
            raise ModelError(f"the model has a {type(binding).__name__}, which a graph cannot have")
        name = value.op.name if isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op) else ""
        if isinstance(value, relax.ShapeExpr):
            return  # for a view, which has its shape in its type
        if name == "relax.call_tir" and len(value.args) == 2:
            made = _values_of(value.ty_args[0], str(variable.name))
            self._calls.append(Call(str(value.args[0].name_hint), self._flat(value.args[1]), made))
            self._values[variable] = made
        elif name in _VIEWS:
            made = _values_of(variable.ty, str(variable.name))
            self._calls.append(Call("", self._flat(value.args[0])[:1], made))
            self._values[variable] = made
        elif isinstance(value, relax.Call):
            raise ModelError(f"the model needs {name or value.op}, which only the virtual machine of TVM can do")
        else:
            self._values[variable] = self._flat(value)

    def _flat(self, e: Any) -> list[Value]:
        """Return the values of an expression; those of a tuple one after the other."""
        if isinstance(e, relax.Tuple):
            return [value for part in e.fields for value in self._flat(part)]
        if isinstance(e, relax.TupleGetItem):
            return [self._flat(e.tuple_value)[e.index]]
        if is_constant(e):
            return [self._constant(e)]
        if isinstance(e, relax.Var) and e in self._values:
            return self._values[e]
        raise ModelError(f"the model has a value of kind {type(e).__name__}, which a graph cannot have")

    def _constant(self, e: Any) -> Value:
        array = _elements(e.value)
        key = (array.dtype.str, array.shape, hash(array.tobytes()))
        if key not in self._constants:
            name = f"p{len(self._constants)}"
            data = np.ascontiguousarray(array).reshape(array.shape)  # ascontiguousarray makes a row of a number
            self._constants[key] = Value(name, tuple(array.shape), str(e.value.dtype), data)
        return self._constants[key]


def _elements(tensor: Any) -> Array:
    """Return the elements of a constant; those of a large one stay where they are."""
    plain = str(tensor.dtype) in ("float32", "int8", "uint8", "int32", "int64")
    return np.from_dlpack(tensor) if plain and prod(tensor.shape) >= _LARGE else tensor.numpy()


def is_constant(e: Any) -> bool:
    return type(e).__name__ in ("Constant", "GenericConst")


def _values_of(kind: Any, name: str) -> list[Value]:
    """Return the values of a type: one of a tensor, several of a tuple."""
    word = type(kind).__name__
    if word.startswith("Tuple"):
        return [value for number, part in enumerate(kind.fields) for value in _values_of(part, f"{name}_{number}")]
    if not word.startswith("Tensor") or kind.shape is None:
        raise ModelError(f"the value '{name}' has no fixed shape, or is not a tensor")
    shape = [extent for extent in kind.shape if isinstance(extent, tirx.IntImm)]
    if len(shape) != len(list(kind.shape)):
        text = ", ".join(map(str, kind.shape))
        raise ModelError(f"the value '{name}' has the shape [{text}], which depends on the values of other tensors")
    return [Value(name, tuple(int(extent.value) for extent in shape), str(kind.dtype))]
