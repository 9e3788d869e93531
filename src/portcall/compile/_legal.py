# SPDX-License-Identifier: Apache-2.0
"""Write operators of Relax as loops: each kind of call once, however often a model has it, as in loops."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax, tirx
from tvm_ffi import structural_equal

from portcall.compile._program import is_constant

Legalize = Callable[[Any, Any], Any]
_CALL_TIR = tvm.ir.Op.get("relax.call_tir")
_FEWEST = 1000  # calls of a model for which it is worth to compare them


def LegalizeOps(own: Mapping[str, Legalize]) -> Any:
    """Return TVM's pass, with functions of ours for some operators, that asks once for calls that are equal."""

    def run(module: Any, context: Any) -> Any:
        calls = [binding.value for block in module["main"].body.blocks for binding in block.bindings]
        calls = [call for call in calls if isinstance(call, relax.Call) and isinstance(call.op, tvm.ir.Op)]
        known: dict[str, Legalize] = dict(own)
        if len(calls) >= _FEWEST:
            for op in {call.op.name: call.op for call in calls}.values():
                legalize = own.get(op.name) or op.get_attr("FLegalize")
                if legalize is not None:
                    known[op.name] = _Once(legalize)
        return relax.transform.LegalizeOps(known)(module)

    return tvm.transform.module_pass(run, opt_level=0, name="LegalizeOnce")


@dataclass(frozen=True)
class _Made:
    """A call that was written: by what function, of which type, and where its operands stand among the call's."""

    call: Any
    function: Any
    types: Sequence[Any]
    places: Sequence[int]


class _Once:
    """Keeps what a function of TVM made of a call for those that differ in their tensors alone."""

    def __init__(self, legalize: Legalize) -> None:
        self.legalize = legalize
        self.made: dict[Any, list[_Made]] = defaultdict(list)

    def __call__(self, bb: Any, call: Any) -> Any:
        tensors = _tensors(call)
        if not all(map(is_fixed, tensors)):
            return self.legalize(bb, call)
        bucket = self.made[tuple(str(tensor.ty) for tensor in tensors)]
        for made in bucket:
            if _is_same(call, made.call):
                return relax.Call(
                    _CALL_TIR, [made.function, relax.Tuple([tensors[k] for k in made.places])], None, made.types
                )
        result = self.legalize(bb, call)
        if isinstance(result, relax.Call) and result.op == _CALL_TIR and len(result.args) == 2:
            operands = list(result.args[1].fields)
            places = [next((k for k, t in enumerate(tensors) if t.same_as(operand)), -1) for operand in operands]
            if -1 not in places and not _is_twice(tensors):
                bucket.append(_Made(call, result.args[0], list(result.ty_args), places))
        return result


def is_fixed(e: Any) -> bool:
    """Tell whether all extents of a value are numbers."""
    types = list(e.ty.fields) if isinstance(e.ty, relax.TupleType) else [e.ty]
    shapes = [getattr(each, "values" if isinstance(each, relax.ShapeType) else "shape", None) for each in types]
    return all(
        shape is not None
        and not isinstance(shape, relax.Var)
        and all(isinstance(extent, tirx.IntImm) for extent in shape)
        for shape in shapes
    )


def _tensors(call: Any) -> list[Any]:
    """Return the tensors that a call reads, those of a tuple one after the other."""
    parts = [part for each in call.args for part in (each.fields if isinstance(each, relax.Tuple) else [each])]
    return [part for part in parts if _is_tensor(part)]


def _is_twice(tensors: Sequence[Any]) -> bool:
    """Tell whether a call reads a tensor twice: what it became cannot be that of a call that reads two."""
    return any(a.same_as(b) for place, a in enumerate(tensors) for b in tensors[:place])


def _is_tensor(e: Any) -> bool:
    """Tell whether an operand is a tensor of which only the type counts: numbers become part of the loops."""
    return isinstance(e, relax.Var) or (is_constant(e) and len(e.value.shape) > 0)


def _is_same(call: Any, other: Any) -> bool:
    """Tell whether calls of an operator have equal attributes and numbers; their tensors have equal types."""
    if len(call.args) != len(other.args) or not structural_equal(call.attrs, other.attrs):
        return False
    return all(map(_is_same_operand, call.args, other.args))


def _is_same_operand(one: Any, other: Any) -> bool:
    if isinstance(one, relax.Tuple) and isinstance(other, relax.Tuple):
        return len(one.fields) == len(other.fields) and all(map(_is_same_operand, one.fields, other.fields))
    if _is_tensor(one) or _is_tensor(other):
        return _is_tensor(one) and _is_tensor(other)
    return bool(structural_equal(one, other))
