# SPDX-License-Identifier: Apache-2.0
"""Arithmetic of shapes that are not fixed: what exporters write between Shape and Reshape, in the inputs' extents.

An array is known if each element is a number, or an expression of extents: ``Shape -> Gather -> Mul -> Concat`` is then
a row of expressions, and a Reshape to it has a shape. Nodes that only move elements are evaluated by onnx's reference,
on the elements' numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, prod
from typing import Any

import numpy as np
import onnx
from onnx import helper
from onnx.reference import ReferenceEvaluator
from tvm import sym, tirx

Array = Any
Extent = Any  # an int, or an expression of int64
_MOST = 4096  # elements of an array whose elements are followed
_MOST_DENOMINATOR = 1 << 20
# Operators that move elements, with the places of what is moved; None for all inputs. Other inputs are constants.
_MOVES: Mapping[str, tuple[int, ...] | None] = {
    "Concat": None, "Expand": (0,), "Flatten": (0,), "Gather": (0,), "GatherElements": (0,), "GatherND": (0,),
    "Identity": (0,), "Reshape": (0,), "ScatterElements": (0, 2), "ScatterND": (0, 2), "Slice": (0,), "Split": (0,),
    "Squeeze": (0,), "Tile": (0,), "Transpose": (0,), "Unsqueeze": (0,),
}  # fmt: skip


@dataclass(frozen=True)
class Term:
    """An expression of extents times a number, such as 0.5 * h."""

    expr: Any
    scale: Fraction = Fraction(1)


@dataclass(frozen=True)
class Known:
    """An array of numbers and terms.

    Attributes:
        values: of dtype object.
        dtype: what the model says of its elements.
    """

    values: Array
    dtype: str

    @property
    def is_constant(self) -> bool:
        return not any(isinstance(each, Term) for each in self.values.flat)

    def constant(self) -> Array:
        return self.values.astype(self.dtype)

    def extents(self) -> list[Extent] | None:
        """Return the elements as a shape; None if some are no integers."""
        found = [extent_of(each) for each in self.values.flat]
        return None if any(each is None for each in found) else found


def known_array(array: Array) -> Known:
    values = np.empty(array.size, object)
    values[:] = array.flatten().tolist()
    return Known(values.reshape(array.shape), str(array.dtype))


def known_shape(extents: Sequence[Extent]) -> Known:
    values = np.empty(len(extents), object)
    values[:] = [as_element(extent) for extent in extents]
    return Known(values, "int64")


def as_element(extent: Extent) -> Any:
    """Return an extent as an element: a number if it is one."""
    if isinstance(extent, (int, np.integer)):
        return int(extent)
    return int(extent.value) if isinstance(extent, tirx.IntImm) else Term(extent)


def extent_of(element: Any) -> Extent | None:
    if not isinstance(element, Term):
        return int(element) if int(element) == element else None
    return element.expr if element.scale == 1 else None


class Shapes:
    """Evaluates nodes on arrays that are known."""

    def __init__(self, opset: int) -> None:
        self._opset = opset
        self._analyzer = sym.Analyzer()

    def evaluate(self, op: str, inputs: Sequence[Known | None], attrs: Mapping[str, Any]) -> list[Known] | None:
        """Return the results of a node; None if they are not known."""
        if any(each is not None and each.values.size > _MOST for each in inputs):
            return None
        if op in _MOVES:
            return self._move(op, inputs, attrs)
        given = [each for each in inputs if each is not None]
        if len(given) != len(inputs):
            return None
        made = self._compute(op, given, attrs)
        return None if made is None else [made]

    # ---- what moves elements -----------------------------------------------------------------------------------------

    def _move(self, op: str, inputs: Sequence[Known | None], attrs: Mapping[str, Any]) -> list[Known] | None:
        places = _MOVES[op]
        pool: list[Any] = []
        feeds: dict[str, Array] = {}
        names = []
        for place, each in enumerate(inputs):
            names.append(f"i{place}" if each is not None else "")
            if each is None:
                continue
            if places is None or place in places:
                feeds[names[-1]] = np.arange(len(pool), len(pool) + each.values.size).reshape(each.values.shape)
                pool += each.values.flat
            elif each.is_constant:
                feeds[names[-1]] = each.constant()
            else:
                return None
        found = self._run(op, names, feeds, attrs)
        dtype = next((each.dtype for each in inputs if each is not None), "int64")
        return None if found is None else [Known(_picked(pool, array), dtype) for array in found]

    def _run(self, op: str, names: list[str], feeds: Mapping[str, Array], attrs: Mapping[str, Any]) -> Any:
        count = int(attrs["tvm_custom"]["num_outputs"])
        results = [f"o{number}" for number in range(count)]
        node = helper.make_node(op, names, results, **{k: v for k, v in attrs.items() if k != "tvm_custom"})
        values = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in feeds.items()
        ]
        graph = helper.make_graph([node], op, values, [onnx.ValueInfoProto(name=name) for name in results])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self._opset)])
        try:
            return [np.asarray(array) for array in ReferenceEvaluator(model).run(None, dict(feeds))]
        except Exception:  # it is computed when the model runs, or refused by the import
            return None

    # ---- what computes -----------------------------------------------------------------------------------------------

    def _compute(self, op: str, inputs: list[Known], attrs: Mapping[str, Any]) -> Known | None:
        dtype = inputs[0].dtype
        if op in _BINARY and len(inputs) == 2:
            by = _BINARY[op]
            integers = dtype.startswith(("int", "uint"))
            return self._each(lambda a, b: by(self, a, b, integers), inputs, "bool" if op in _COMPARE else dtype)
        if op in ("Min", "Max"):
            made = inputs[0]
            for other in inputs[1:]:
                next_one = self._each(lambda a, b: self.extreme(op, a, b), [made, other], dtype)
                if next_one is None:
                    return None
                made = next_one
            return made
        if op == "Where":
            return self._each(lambda c, a, b: None if isinstance(c, Term) else a if c else b, inputs, inputs[1].dtype)
        if op in _UNARY and len(inputs) == 1:
            return self._each(lambda a: _UNARY[op](self, a), inputs, dtype)
        if op == "Cast":
            to = helper.tensor_dtype_to_np_dtype(attrs["to"])
            if to.kind == "f":
                return Known(inputs[0].values, str(to))
            if to.kind in "iu":
                return self._each(self._truncated, inputs, str(to))
        if op in ("ReduceProd", "ReduceSum") and (len(inputs) == 1 or inputs[1].is_constant):
            return self._reduced(op, inputs, attrs)
        return None

    def _each(self, function: Callable[..., Any], inputs: Sequence[Known], dtype: str) -> Known | None:
        try:
            arrays = np.broadcast_arrays(*(each.values for each in inputs))
        except ValueError:
            return None
        values = np.empty(arrays[0].shape, object)
        for place in np.ndindex(values.shape):
            try:
                values[place] = function(*(array[place] for array in arrays))
            except (ZeroDivisionError, OverflowError, ValueError):
                return None
            if values[place] is None:
                return None
        return Known(values, dtype)

    def _reduced(self, op: str, inputs: list[Known], attrs: Mapping[str, Any]) -> Known | None:
        values = inputs[0].values
        axes = inputs[1].constant().tolist() if len(inputs) > 1 else list(attrs.get("axes", range(values.ndim)))
        if values.ndim > 1 or (axes and axes not in ([0], [-1])):
            return None
        total: Any = 1 if op == "ReduceProd" else 0
        for each in values.flat:
            total = self.times(total, each) if op == "ReduceProd" else self.plus(total, each)
        made = np.empty((), object)
        made[()] = total
        return Known(made.reshape(1) if attrs.get("keepdims", 1) else made, inputs[0].dtype)

    def plus(self, a: Any, b: Any, integers: bool = False, sign: int = 1) -> Any:
        if not isinstance(a, Term) and not isinstance(b, Term):
            return a + sign * b
        x, y = _term(a), _term(b)
        if x is None or y is None:
            return None
        denominator = x.scale.denominator * y.scale.denominator // gcd(x.scale.denominator, y.scale.denominator)
        left, right = int(x.scale * denominator), int(y.scale * denominator)
        return self._term(x.expr * left + y.expr * (sign * right), Fraction(1, denominator))

    def times(self, a: Any, b: Any, integers: bool = False) -> Any:
        if not isinstance(a, Term) and not isinstance(b, Term):
            return a * b
        x, y = _term(a), _term(b)
        return None if x is None or y is None else self._term(x.expr * y.expr, x.scale * y.scale)

    def over(self, a: Any, b: Any, integers: bool = False) -> Any:
        if not isinstance(a, Term) and not isinstance(b, Term):
            return int(a / b) if integers else a / b
        x, y = _term(a), _term(b)
        if x is None or y is None or not y.scale:
            return None
        if not isinstance(b, Term):
            made = self._term(x.expr, x.scale / _fraction(b))
            return self._truncated(made) if integers else made
        found = divided(x.expr, y.expr)
        if found is None:
            return None
        made = self._term(found, x.scale / y.scale)
        return self._truncated(made) if integers else made

    def _remainder(self, a: Any, b: Any, integers: bool) -> Any:
        if not isinstance(a, Term) and not isinstance(b, Term):
            return a % b
        if isinstance(b, Term) or a.scale != 1 or b <= 0:
            return None
        return self._term(tirx.floormod(a.expr, _const(b)))

    def compared(self, kind: str, a: Any, b: Any) -> Any:
        """Return what a comparison says for all extents; None if that depends on them."""
        if not isinstance(a, Term) and not isinstance(b, Term):
            return {"Equal": a == b, "Less": a < b, "LessOrEqual": a <= b}[kind]
        difference = self.plus(a, b, sign=-1)
        if not isinstance(difference, Term):
            return None if difference is None else self.compared(kind, difference, 0)
        e, zero = difference.expr, _const(0)
        yes, no = {
            "Equal": ([tirx.EQ(e, zero)], [tirx.GT(e, zero), tirx.LT(e, zero)]),
            "Less": ([tirx.LT(e, zero)], [tirx.GE(e, zero)]),
            "LessOrEqual": ([tirx.LE(e, zero)], [tirx.GT(e, zero)]),
        }[kind]
        return True if any(map(self._proves, yes)) else False if any(map(self._proves, no)) else None

    def equal(self, a: Extent, b: Extent) -> bool:
        """Tell whether two extents are the same for all of the inputs."""
        return bool(self.compared("Equal", as_element(a), as_element(b)))

    def _proves(self, condition: Any) -> bool:
        """Tell whether a condition holds for all extents of one element and more."""
        for variable in tirx.analysis.undefined_vars(condition):
            self._analyzer.update(variable, sym.ConstIntBound(1, sym.ConstIntBound.POS_INF), override=True)
        return bool(self._analyzer.can_prove(condition))

    def extreme(self, op: str, a: Any, b: Any) -> Any:
        smaller = self.compared("LessOrEqual", a, b)
        if smaller is not None:
            return a if smaller == (op == "Min") else b
        x, y = extent_of(a), extent_of(b)
        if x is None or y is None:
            return None
        x, y = (_const(each) if isinstance(each, int) else each for each in (x, y))
        return self._term((tirx.min if op == "Min" else tirx.max)(x, y))

    def _truncated(self, a: Any) -> Any:
        """Return the integer part, of terms that are not negative."""
        return self.whole(a) if isinstance(a, Term) else int(a)

    def whole(self, a: Any, up: bool = False) -> Any:
        if not isinstance(a, Term):
            return -int(-a // 1) if up else int(a // 1)
        n, d = a.scale.numerator, a.scale.denominator
        return a if d == 1 else self._term(tirx.floordiv(a.expr * n + (d - 1 if up else 0), _const(d)))

    def _term(self, expr: Any, scale: Fraction = Fraction(1)) -> Any:
        """Return an element: a number where the expression is one."""
        expr = self._analyzer.simplify(expr)
        if not scale:
            return 0
        if isinstance(expr, tirx.IntImm):
            value = int(expr.value) * scale
            return int(value) if value.denominator == 1 else float(value)
        if scale.denominator == 1 and scale != 1:
            return Term(self._analyzer.simplify(expr * int(scale)))
        return Term(expr, scale)


def _const(value: int) -> Any:
    return tirx.const(int(value), "int64")


def _fraction(value: Any) -> Fraction:
    found = Fraction(value).limit_denominator(_MOST_DENOMINATOR)
    if np.float32(found.numerator / found.denominator) != np.float32(value):
        raise ValueError("no fraction")
    return found


def _term(value: Any) -> Term | None:
    """Return an element as a term."""
    if isinstance(value, Term):
        return value
    found = _fraction(value)
    return Term(_const(found.numerator), Fraction(1, found.denominator))


def _picked(pool: Sequence[Any], numbers: Array) -> Array:
    values = np.empty(numbers.shape, object)
    for place in np.ndindex(numbers.shape):
        values[place] = pool[int(numbers[place])]
    return values


_COMPARE = ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or")
_BINARY: Mapping[str, Callable[[Shapes, Any, Any, bool], Any]] = {
    "Add": lambda s, a, b, i: s.plus(a, b),
    "Sub": lambda s, a, b, i: s.plus(a, b, sign=-1),
    "Mul": lambda s, a, b, i: s.times(a, b),
    "Div": lambda s, a, b, i: s.over(a, b, i),
    "Mod": lambda s, a, b, i: s._remainder(a, b, i),
    "Equal": lambda s, a, b, i: s.compared("Equal", a, b),
    "Less": lambda s, a, b, i: s.compared("Less", a, b),
    "LessOrEqual": lambda s, a, b, i: s.compared("LessOrEqual", a, b),
    "Greater": lambda s, a, b, i: s.compared("Less", b, a),
    "GreaterOrEqual": lambda s, a, b, i: s.compared("LessOrEqual", b, a),
    "And": lambda s, a, b, i: bool(a and b),
    "Or": lambda s, a, b, i: bool(a or b),
}
_UNARY: Mapping[str, Callable[[Shapes, Any], Any]] = {
    "Floor": lambda s, a: s.whole(a),
    "Ceil": lambda s, a: s.whole(a, up=True),
    "Neg": lambda s, a: s.times(a, -1),
    "Not": lambda s, a: not a,
}


# ---- Expressions of extents ------------------------------------------------------------------------------------------


def _factors(e: Extent) -> tuple[int, list[Any]]:
    """Return the number and the other factors of a product."""
    if isinstance(e, (int, np.integer)):
        return int(e), []
    if isinstance(e, tirx.IntImm):
        return int(e.value), []
    if isinstance(e, tirx.Mul):
        (m, a), (n, b) = _factors(e.a), _factors(e.b)
        return m * n, a + b
    return 1, [e]


def divided(e: Extent, by: Extent) -> Extent | None:
    """Return a product divided by some of its factors; None if they are not all found."""
    analyzer = sym.Analyzer()
    number, left = _factors(e)
    divisor, right = _factors(by)
    for factor in right:
        place = next((k for k, other in enumerate(left) if analyzer.can_prove_equal(factor, other)), None)
        if place is None:
            return None
        del left[place]
    if not divisor or number % divisor:
        if len(left) == 1 and divisor:
            return tirx.floordiv(left[0] * number, _const(divisor))
        return None
    return prod(left, start=_const(number // divisor))


def reshaped(data: Sequence[Extent], target: Sequence[Extent], allow_zero: bool = False) -> tuple[list[Extent], bool]:
    """Return the shape that Reshape gives, where at most one extent is -1, and whether that one divides the others."""
    found = [
        data[place] if isinstance(each, int) and each == 0 and not allow_zero else each
        for place, each in enumerate(target)
    ]
    places = [place for place, each in enumerate(found) if isinstance(each, int) and each == -1]
    if not places:
        return found, True
    found[places[0]] = 1
    whole, rest = product(data), product(found)
    exact = divided(whole, rest)
    found[places[0]] = tirx.floordiv(whole, tirx.max(rest, _const(1))) if exact is None else exact
    return found, exact is not None


def product(extents: Sequence[Extent]) -> Any:
    """Return the number of elements that a shape has."""
    return prod((_const(e) if isinstance(e, int) else e for e in extents), start=_const(1))
