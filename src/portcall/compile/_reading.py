# SPDX-License-Identifier: Apache-2.0
"""Read what TVM's legalization wrote for an operator, so that a rule can write a better kernel for the same values.

Such a function is a row of stages. Each gives one value for every place of its buffer: of places of others (S), or a
reduction over further axes (R). Stages without a reduction are inlined where their value is read, so that a chain such
as bias, residual, activation becomes part of the kernel in front of it.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from tvm import ir, s_tir, sym, tirx
from tvm_ffi import structural_equal

from portcall.compile import _math
from portcall.compile._writer import Expr, Index, flat_buffer, floordiv, floormod

# A place to load from: the buffer and its indices; returns None to continue reading through the buffer.
Load = Callable[[Any, "list[Index]"], "Expr | None"]
Decide = Callable[[Expr], "bool | None"]


class NotThisKindError(Exception):
    """A function is not what a rule is for."""


@dataclass(frozen=True)
class Stage:
    """One stage of a function.

    Attributes:
        kinds: a letter for each axis: S of the result, R of a reduction.
        axes, extents: the names and the sizes of the axes; these are expressions where they are not known.
        buffer, indices: where its value goes.
        value: the expression; in a reduction with the buffer itself among its operands.
        start: what a reduction begins with, or None.
    """

    name: str
    kinds: str
    axes: tuple[str, ...]
    extents: tuple[int, ...]
    buffer: Any
    indices: tuple[Any, ...]
    value: Any
    start: Any


def shape_of(buffer: Any) -> list[int]:
    return [integer(extent) for extent in buffer.shape]


def integer(value: Any) -> int:
    if type(value).__name__ != "IntImm":
        raise NotThisKindError("a shape that is not constant")
    return int(value.value)


def extent_of(value: Any) -> Any:
    """Return an extent as a number, or the expression that it is."""
    return int(value.value) if type(value).__name__ == "IntImm" else value


def is_one(extent: Any) -> bool:
    return isinstance(extent, int) and extent == 1


def are_same(extents: Sequence[Any], others: Sequence[Any]) -> bool:
    """Tell whether extents are the same numbers and expressions."""
    return len(extents) == len(others) and all(map(structural_equal, map(_named, extents), map(_named, others)))


def _named(extent: Any) -> Any:
    return tirx.const(extent, "int64") if isinstance(extent, int) else extent


def strides(shape: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    step: Any = 1
    for extent in reversed(shape):
        found.append(step)
        step *= extent
    return found[::-1]


def flat_index(buffer: Any, indices: Sequence[Index]) -> Index:
    """Return the place of an element when all of a buffer lies in a row."""
    shape = [extent_of(extent) for extent in buffer.shape]
    total: Index = 0
    for index, step, extent in zip(indices, strides(shape), shape, strict=True):
        if not is_one(extent):
            total = total + index * step
    return total


_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {"Add": operator.add, "Sub": operator.sub, "Mul": operator.mul}
_COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge, "EQ": operator.eq, "NE": operator.ne,
}  # fmt: skip
_ON_VALUES: Mapping[str, Callable[[Any, Any], Any]] = {
    "Div": tirx.div, "FloorDiv": tirx.floordiv, "FloorMod": tirx.floormod, "Max": tirx.max, "Min": tirx.min,
    "And": tirx.all, "Or": tirx.any, "RShift": operator.rshift, "BitwiseAnd": operator.and_,
}  # fmt: skip
_ON_NUMBERS: Mapping[str, Callable[[int, int], Any]] = {
    "FloorDiv": operator.floordiv, "FloorMod": operator.mod, "Max": max, "Min": min,
    "And": lambda a, b: bool(a and b), "Or": lambda a, b: bool(a or b),
}  # fmt: skip
_CALLS = {"exp", "tanh", "sqrt", "erf", "sigmoid", "log", "fabs", "floor", "ceil", "rsqrt", "round", "nearbyint",
          "trunc", "sin", "cos", "tan", "isnan", "isinf", "pow", "fmod"}  # fmt: skip


_MOST_WRITTEN = 1 << 14  # expressions
_LONG = {"exp", "tanh", "erf", "log", "sigmoid", "pow"}  # calls that are dozens of expressions
_MOST_CALLS = 64  # of these, that are written out
_DEEPEST = 2  # such calls of results of others, where what they read is written several times: TVM's passes double it


def is_written_too_often(stages: Sequence[Stage]) -> bool:
    """Tell whether too much is written out where stages stand in the places of all that read them."""
    known: dict[str, tuple[int, int, int]] = {}  # expressions, calls, and how many calls are inside of each other
    nothing, once = (0, 0, 0), 0
    for stage in stages:
        parts = list(walk(stage.value))
        read = [known.get(part.source.name, nothing) for part in parts if type(part).__name__ == "TensorLoad"]
        own = sum(type(part).__name__ == "Call" and _call_name(part) in _LONG for part in parts)
        once += own
        size, calls = len(parts) + sum(each[0] for each in read), own + sum(each[1] for each in read)
        depth = bool(own) + max((each[2] for each in read), default=0)
        again = calls > once + 2
        if size > _MOST_WRITTEN or (again and (calls > _MOST_CALLS or depth > _DEEPEST)):
            return True
        known[stage.buffer.name] = (size, calls, depth) if "R" not in stage.kinds else nothing
    return False


class Reading:
    """The stages of a function.

    Attributes:
        params: its buffers, the result last.
        stages: in order.
        inlined: the stages without a reduction by the name of their buffer.
        reductions: the others.

    Parameters:
        open_shapes: extents need not be known. Variables among the function's parameters are no buffers, and left out.

    Raises:
        NotThisKindError: it is not made of such stages, or has several results.
    """

    def __init__(self, function: Any, *, open_shapes: bool = False) -> None:
        self._extent = extent_of if open_shapes else integer
        params = [each for each in function.params if not open_shapes or hasattr(each, "shape")]
        self.params, self.stages = _with_own_names(params, _stages(function.body, self._extent))
        self.names = [buffer.name for buffer in self.params]
        extents = [extent for buffer in self.params for extent in self.shape(buffer) if not isinstance(extent, int)]
        parts = [part for extent in extents for part in walk(extent)]
        self._variables = {str(part.name) for part in parts if type(part).__name__ == "Var"}
        if any(name in self._variables for stage in self.stages for name in stage.axes):
            raise NotThisKindError("an extent with the name of an axis")
        self.reductions = [stage for stage in self.stages if "R" in stage.kinds]
        self.inlined = {stage.buffer.name: stage for stage in self.stages if "R" not in stage.kinds}
        if len({stage.buffer.name for stage in self.stages}) != len(self.stages):
            raise NotThisKindError("a buffer that is written twice")
        if any(stage.buffer.name in self.names[:-1] for stage in self.stages):
            raise NotThisKindError("several results")
        if is_written_too_often(self.stages):
            raise NotThisKindError("values that are read again and again")

    @property
    def result(self) -> Any:
        return self.params[-1]

    @property
    def inputs(self) -> list[Any]:
        return self.params[:-1]

    def buffers(self, prefix: str = "", sizes: Mapping[str, int] | None = None) -> dict[str, Any]:
        """Return a flat buffer for each parameter, by name.

        Parameters:
            sizes: of parameters that are packed, in elements.
        """
        packed = {name: [size] for name, size in (sizes or {}).items()}
        return {
            each.name: flat_buffer(prefix + each.name, packed.get(each.name) or shape_of(each), each.dtype)
            for each in self.params
        }

    def shape(self, buffer: Any) -> list[Any]:
        return [self._extent(extent) for extent in buffer.shape]

    def is_input(self, buffer: Any) -> bool:
        return buffer.name in self.names[:-1]

    @functools.cached_property
    def is_readable(self) -> bool:
        """Whether all that its result is computed from is known here, as functions are that LLVM has."""
        try:
            self.value_at(self.result, [tirx.Var(f"i{k}", "int32") for k in range(len(self.result.shape))],
                          lambda buffer, at: buffer[tuple(at)] if self.is_input(buffer) else None)  # fmt: skip
        except NotThisKindError:
            return False
        return True

    def value_at(self, buffer: Any, indices: Sequence[Index], load: Load, decide: Decide | None = None) -> Expr:
        """Return the value at a place of a stage's buffer, all stages before it inlined."""
        stage = self.inlined.get(buffer.name)
        if stage is None:
            raise NotThisKindError(f"the value of {buffer.name} is not known")
        names: dict[str, Index] = {}
        for target, index in zip(stage.indices, indices, strict=True):
            if type(target).__name__ == "Var":
                names[target.name] = index
        return self.rewrite(stage.value, names, load, decide)

    def rewrite(self, e: Expr, names: Mapping[str, Index], load: Load, decide: Decide | None = None) -> Expr:
        """Return an expression with other indices for its axes, and ``load`` for what it reads."""
        kind = type(e).__name__
        if kind == "Var":
            if e.name in self._variables:
                return e
            if e.name not in names:
                raise NotThisKindError(f"the axis {e.name} is not known")
            return names[e.name]
        if kind == "IntImm":
            return _integer_constant(e)
        if kind == "FloatImm":
            return e
        if kind == "TensorLoad":
            indices = [self.rewrite(index, names, load, decide) for index in e.indices]
            found = load(e.source, indices)
            return self.value_at(e.source, indices, load, decide) if found is None else found
        if kind == "Select" or (kind == "Call" and _call_name(e) == "if_then_else"):
            return self._choice(e, names, load, decide)
        if kind == "Cast":
            value = self.rewrite(e.value, names, load, decide)
            to = type_of(e)
            if isinstance(value, int) and to.startswith("int"):
                return value
            return tirx.Cast(to, _as_expr(value, e.value))
        if kind == "Not":
            return tirx.Not(_as_expr(self.rewrite(e.a, names, load, decide), e.a))
        if kind == "Call":
            return self._call(e, names, load, decide)
        if not (hasattr(e, "a") and hasattr(e, "b")):
            raise NotThisKindError(f"an expression of kind {kind}")
        a, b = self.rewrite(e.a, names, load, decide), self.rewrite(e.b, names, load, decide)
        if kind in ("Max", "Min") and decide is not None and type_of(e).startswith("int"):
            smaller = a <= b if isinstance(a, int) and isinstance(b, int) else decide(a <= b)
            if smaller is not None:
                return a if smaller == (kind == "Min") else b
        return _combine(kind, a, b, e)

    def _choice(self, e: Expr, names: Mapping[str, Index], load: Load, decide: Decide | None) -> Expr:
        parts = (e.condition, e.true_value, e.false_value) if type(e).__name__ == "Select" else tuple(e.args)
        condition = self.rewrite(parts[0], names, load, decide)
        known = condition if isinstance(condition, (bool, int)) else _constant_truth(condition)
        if known is None and decide is not None:
            known = decide(condition)
        if known is not None:
            return self.rewrite(parts[1] if known else parts[2], names, load, decide)
        yes, no = (_as_expr(self.rewrite(part, names, load, decide), part) for part in parts[1:])
        choose = tirx.Select if type(e).__name__ == "Select" else tirx.if_then_else
        return choose(_without_cast(condition), yes, no)

    def _call(self, e: Expr, names: Mapping[str, Index], load: Load, decide: Decide | None) -> Expr:
        name = _call_name(e)
        if name not in _CALLS:
            raise NotThisKindError(f"a call of {name}")
        arguments = [_as_expr(self.rewrite(part, names, load, decide), part) for part in e.args]
        return _math.call(name, arguments, type_of(e))

    def one_place(self, e: Expr, axes: Mapping[str, int]) -> int:
        """Return the value of an index where its axes have these values.

        Raises:
            NotThisKindError: it is not an index.
        """

        def no_load(buffer: Any, indices: list[Index]) -> Expr:
            raise NotThisKindError(f"an index that is read from {buffer.name}")

        found = self.rewrite(e, axes, no_load)
        if not isinstance(found, int):
            raise NotThisKindError("an index that is not an integer")
        return found


def proves(analyzer: Any, condition: Expr) -> bool:
    """Tell whether TVM can prove a condition; it fails on some that have indices of 32 and of 64 bits."""
    try:
        return bool(analyzer.can_prove(condition))
    except TypeError:
        return False


def moves(reading: Reading, source: Callable[[list[Index]], Index]) -> bool:
    """Tell whether a function only moves all elements, each from the place of its input, in a row, by ``source``."""
    if reading.reductions or len(reading.inputs) != 1 or reading.inputs[0].dtype != reading.result.dtype:
        return False
    if prod(shape_of(reading.inputs[0])) != prod(shape_of(reading.result)):  # the first elements are no view of all
        return False
    analyzer, places = sym.Analyzer(), [tirx.Var(f"i{axis}", "int64") for axis in range(len(reading.result.shape))]
    for place, extent in zip(places, shape_of(reading.result), strict=True):
        analyzer.bind(place, ir.Range(0, extent))
    found: list[Index] = []

    def load(buffer: Any, at: list[Index]) -> Expr | None:
        if not reading.is_input(buffer):
            return None
        found.append(flat_index(buffer, at))
        return buffer[tuple(at)]

    try:
        value = reading.value_at(reading.result, places, load, lambda condition: proves(analyzer, condition) or None)
    except NotThisKindError:
        return False
    moved = type(value).__name__ == "TensorLoad" and len(found) == 1
    return moved and bool(analyzer.can_prove_equal(found[0], source(list(places))))


def vectorizable(function: Any) -> Any:
    """Return a function that was written, whose loops over the lanes of vectors TVM can read.

    Its pass for them visits both sides of some products twice, and takes what has a name there for two values.

    Raises:
        NotThisKindError: it cannot.
    """
    try:
        tirx.transform.VectorizeLoop()(ir.IRModule({"main": function}))
    except Exception as error:  # TVM's class for it is not public
        raise NotThisKindError("a name inside of a product of vectors") from error
    return function


def type_of(e: Any) -> str:
    for attribute in ("ty", "expr_ty"):
        found = getattr(getattr(e, attribute, None), "dtype", None)
        if found is not None:
            return str(found)
    raise NotThisKindError("an expression without a type")


def walk(e: Any) -> Iterator[Any]:
    """Yield an expression and all parts of it."""
    yield e
    parts = [getattr(e, name, None) for name in ("a", "b", "value", "body", "condition", "true_value", "false_value")]
    for part in (*parts, *getattr(e, "args", ()), *getattr(e, "indices", ())):
        if hasattr(part, "ty") or hasattr(part, "expr_ty"):
            yield from walk(part)


def _without_cast(condition: Expr) -> Expr:
    """Return a truth value that is compared with 0 as an integer, as TVM's function for Where does, as it is."""
    if type(condition).__name__ == "LT" and _constant_truth(condition.a) is False:
        value = condition.b
        if type(value).__name__ == "Cast" and type_of(value.value) == "bool":
            return value.value
    return condition


def _combine(kind: str, a: Any, b: Any, e: Any) -> Any:
    if kind in _ARITHMETIC or kind in _COMPARISONS:
        if not (isinstance(a, int) and isinstance(b, int)):
            a, b = _same_type(a, b, e)
        return (_ARITHMETIC.get(kind) or _COMPARISONS[kind])(a, b)
    if kind not in _ON_VALUES:
        raise NotThisKindError(f"an expression of kind {kind}")
    if isinstance(a, int) and isinstance(b, int):
        if kind not in _ON_NUMBERS:
            raise NotThisKindError(f"{kind} of integers")
        return _ON_NUMBERS[kind](a, b)
    if kind == "FloorDiv" and isinstance(b, int):
        return floordiv(a, b)
    if kind == "FloorMod" and isinstance(b, int):
        return floormod(a, b)
    a, b = _same_type(a, b, e)
    if kind in ("Max", "Min") and type(b).__name__ == "FloatImm":  # what is no number stays so, as in x86's maximum
        a, b = b, a
    return _ON_VALUES[kind](a, b)


def _same_type(a: Any, b: Any, e: Any) -> tuple[Any, Any]:
    """Give a number that stands beside an expression that one's type."""
    if isinstance(a, int):
        return tirx.const(a, type_of(b)), b
    if isinstance(b, int):
        return a, tirx.const(b, type_of(a))
    if type_of(a) != type_of(b):  # an index of ours has 32 bits, a value that is read may have 64
        wide = type_of(e.a)
        return tirx.Cast(wide, a), tirx.Cast(wide, b)
    return a, b


def _integer_constant(e: Any) -> Any:
    """Return an integer or a truth value of an index as Python's."""
    return bool(e.value) if type_of(e) == "bool" else int(e.value)


def _as_expr(value: Any, like: Any) -> Expr:
    return tirx.const(value, type_of(like)) if isinstance(value, (bool, int)) else value


def _constant_truth(e: Expr) -> bool | None:
    return bool(e.value) if type(e).__name__ == "IntImm" else None


def _call_name(e: Any) -> str:
    return str(getattr(e.op, "name", "")).rpartition(".")[2]


def _with_own_names(params: list[Any], stages: list[Stage]) -> tuple[list[Any], list[Stage]]:
    """Return parameters and stages whose buffers have different names, by which rules know them.

    TVM gives a function that it has not fused the names of what its operator is made of, some of them twice.
    """
    buffers = list(dict.fromkeys([*params, *(stage.buffer for stage in stages)]))
    own: dict[Any, Any] = {}
    taken = {str(buffer.name) for buffer in buffers}
    if len(taken) == len(buffers):
        return params, stages
    names: set[str] = set()
    for buffer in buffers:
        name, number = str(buffer.name), 1
        while name in names or (number > 1 and name in taken):
            number += 1
            name = f"{buffer.name}_{number}"
        names.add(name)
        own[buffer] = tirx.decl_buffer(buffer.shape, buffer.dtype, name=name)
    renamed = [replace(s, buffer=own[s.buffer], value=_with_buffers(s.value, own)) for s in stages]
    return [own[buffer] for buffer in params], renamed


def _with_buffers(e: Expr, own: Mapping[Any, Any]) -> Expr:
    """Return an expression that loads from other buffers."""

    def changed(part: Expr) -> Expr:
        return _with_buffers(part, own)

    kind = type(e).__name__
    if kind == "TensorLoad":
        return own.get(e.source, e.source)[tuple(map(changed, e.indices))]
    if kind == "Call":
        return ir.Call(e.op, list(map(changed, e.args)), e.attrs, ret_ty=e.ty)
    if kind == "Select":
        return tirx.Select(changed(e.condition), changed(e.true_value), changed(e.false_value))
    if kind == "Cast":
        return tirx.Cast(type_of(e), changed(e.value))
    if kind == "Not":
        return tirx.Not(changed(e.a))
    if hasattr(e, "a") and hasattr(e, "b"):
        return type(e)(changed(e.a), changed(e.b))
    if any(type(part).__name__ == "TensorLoad" for part in walk(e)):
        raise NotThisKindError(f"an expression of kind {kind}")
    return e


def with_infinite_starts(function: Any) -> Any:
    """Let maxima and minima of floats begin with an infinite value.

    TVM begins with the largest finite one, which is then the maximum of values that are all -inf: of a masked row.
    """
    return function.with_body(_changed(function.body, _infinite))


def with_buffers(statement: Any, own: Mapping[Any, Any]) -> Any:
    """Return stages that load from other buffers."""

    def change(block: Any, body: Any) -> tuple[Any, Any]:
        if type(body).__name__ == "BufferStore":
            body = tirx.BufferStore(body.buffer, _with_buffers(body.value, own), body.indices)
        return body, block.init

    return _changed(statement, change)


def _changed(statement: Any, change: Callable[[Any, Any], tuple[Any, Any]]) -> Any:
    """Return a statement with other bodies of its blocks, and other values that these begin with."""
    kind = type(statement).__name__
    if kind == "SeqStmt":
        return tirx.SeqStmt([_changed(part, change) for part in statement.seq])
    if kind == "For":
        old = statement
        body = _changed(old.body, change)
        return tirx.For(old.loop_var, old.min, old.extent, old.kind, body, old.thread_binding, old.annotations)
    if kind != "SBlockRealize":
        return statement
    block = statement.block
    body, init = change(block, _changed(block.body, change))
    made = s_tir.SBlock(
        block.iter_vars, block.reads, block.writes, block.name_hint, body, init, block.alloc_buffers,
        block.match_buffers, block.annotations,
    )  # fmt: skip
    return s_tir.SBlockRealize(statement.iter_values, statement.predicate, made)


def _infinite(block: Any, body: Any) -> tuple[Any, Any]:
    init = block.init
    sign = {"Max": -1, "Min": 1}.get(type(getattr(body, "value", None)).__name__, 0)
    if sign and type(init).__name__ == "BufferStore" and type(init.value).__name__ == "FloatImm":
        dtype = type_of(init.value)
        if float(init.value.value) == sign * float(np.finfo(dtype).max):
            init = tirx.BufferStore(init.buffer, tirx.const(sign * float("inf"), dtype), init.indices)
    return body, init


def _stages(statement: Any, extent: Callable[[Any], Any]) -> list[Stage]:
    """Return the stages in a statement, in order."""
    kind = type(statement).__name__
    if kind == "SeqStmt":
        return [stage for part in statement.seq for stage in _stages(part, extent)]
    if kind == "For":
        return _stages(statement.body, extent)
    if kind != "SBlockRealize":
        raise NotThisKindError(f"a statement of kind {kind}")
    block = statement.block
    if block.name_hint == "root":
        return _stages(block.body, extent)
    store = block.body
    if type(store).__name__ != "BufferStore":
        raise NotThisKindError(f"a stage with a body of kind {type(store).__name__}")
    kinds = "".join({0: "S", 2: "R"}.get(int(axis.iter_type), "?") for axis in block.iter_vars)
    if "?" in kinds:
        raise NotThisKindError("an axis that runs in order")
    start = None if block.init is None else block.init.value
    return [
        Stage(
            block.name_hint, kinds, tuple(axis.var.name for axis in block.iter_vars),
            tuple(extent(axis.dom.extent) for axis in block.iter_vars), store.buffer, tuple(store.indices),
            store.value, start,
        )
    ]  # fmt: skip
