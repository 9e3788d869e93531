# SPDX-License-Identifier: Apache-2.0
"""TVM's importer of ONNX for shapes that are not fixed: what computes a shape is evaluated while the model is imported.

Each value then has a shape of the inputs' extents. Where that cannot be, as after NonZero, it has its own extents,
which are read when the model runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import helper, numpy_helper
from tvm import relax, tirx
from tvm.relax.frontend.onnx.onnx_frontend import onnx_input

from portcall.compile._importer import LONGEST, OWN, Importer, checked_take, halves, run_importer
from portcall.compile._labels import Labels
from portcall.compile._limits import check_values
from portcall.compile._model import infer_shapes
from portcall.compile._program import is_constant
from portcall.compile._rewriting import Graph
from portcall.compile._shapes import (
    Known,
    Shapes,
    Term,
    as_element,
    extent_of,
    known_array,
    known_shape,
    product,
    reshaped,
)
from portcall.compile._steps import STEPS
from portcall.compile._target import Target

Expr = Any
_RESHAPE = "vm.builtin.reshape"  # TVM's memory planner knows that its result lies where its argument does
_OWN = (
    "ArgMax",
    "ArgMin",
    "Clip",
    "CumSum",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "Max",
    "Min",
    "Mish",
    "ScatterElements",
    "ScatterND",
    "Sign",
    "Softplus",
    "ThresholdedRelu",
)  # of the importer's: for any shape
_MOST_KNOWN = 4096  # elements of a constant that is looked at
_BEYOND = 10**9  # an end of a slice that means all of it: exporters write this or the largest integer
# Operators of operands that have the same extents, or one.
_BROADCASTING = ("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mul",
                 "Mean", "Or", "Pow", "Sub", "Sum", "Where")  # fmt: skip


_SAME = (b"SAME_UPPER", b"SAME_LOWER", "SAME_UPPER", "SAME_LOWER")
# Operators that move a window over all axes but the first two.
_WINDOWS = ("AveragePool", "Conv", "ConvInteger", "LpPool", "MaxPool")


def import_dynamic(model: Any, target: Target, *, named: bool = True, labels: Labels | None = None) -> Any:
    """Return an ONNX model, whose shapes need not be fixed, as a module of Relax.

    Parameters:
        named: let variables stand for extents that are expressions.
        labels: learn which variables hold values of the model.

    Raises:
        ModelError: an operator cannot be imported.
    """
    if named:
        check_values(Graph(infer_shapes(model)))
    importer = _Dynamic({}, "float32", False, False)
    importer.named, importer.labels, importer.target = named, labels, target
    importer.own = {name: OWN[name] for name in _OWN}
    return run_importer(importer, model)


class _Dynamic(Importer):
    named = True

    def from_onnx(self, graph: Any, opset: int) -> Any:
        self._shapes = Shapes(opset)
        self._known: dict[Any, Known] = {}
        self._names = 0
        self._variables: list[tuple[Any, Any]] = []  # expressions of extents, and what stands for them
        return super().from_onnx(graph, opset)

    def _convert_operator(self, op_name: str, inputs: Any, attrs: dict[str, Any], opset: int) -> Any:
        with self.refused_node(op_name, list(inputs), attrs):
            return self._converted(op_name, inputs, attrs, opset)

    def _converted(self, op_name: str, inputs: Any, attrs: dict[str, Any], opset: int) -> Any:
        known = [None if each is None else self._known_of(each) for each in inputs]
        found = self._evaluated(op_name, inputs, known, attrs)
        if found is not None:
            values = [self._expression(each) for each in found]
            return values[0] if len(values) == 1 else relax.Tuple(values)
        ones = None
        if op_name in _WINDOWS and attrs.get("auto_pad") in _SAME:
            inputs, attrs, ones = self._padded(op_name, inputs, attrs)
        convert = _CONVERTERS.get(op_name)
        result: Any = None if convert is None else convert(self, list(inputs), known, attrs)
        if result is None:
            result = super()._convert_operator(op_name, self._prepared(op_name, inputs, known, attrs), attrs, opset)
        if ones is not None:  # how much of each window lies in the picture
            share = self.bb.emit(super()._convert_operator(op_name, onnx_input([ones]), attrs, opset))
            result = relax.op.divide(self.bb.emit(result), share)
        if isinstance(result, relax.Call):
            result = self.bb.emit(result, self.variable())
        if op_name in _WINDOWS:
            self._see_to_windows(op_name, result)
        return self._with_extents(result)

    # ---- what is known -----------------------------------------------------------------------------------------------

    def _known_of(self, e: Expr) -> Known | None:
        if is_constant(e):
            array = e.value.numpy()
            return known_array(array) if array.size <= _MOST_KNOWN and array.dtype.kind in "biuf" else None
        return self._known.get(e) if isinstance(e, relax.Var) else None

    def _evaluated(
        self, op: str, inputs: Sequence[Expr], known: Sequence[Known | None], attrs: Mapping[str, Any]
    ) -> list[Known] | None:
        if op in ("Shape", "Size"):
            shape = shape_of(inputs[0]) if known[0] is None else list(known[0].values.shape)
            if shape is None:
                return None
            if op == "Shape":
                return [known_shape(shape[attrs.get("start", 0) : attrs.get("end")])]
            return self._shapes.evaluate("ReduceProd", [known_shape(shape)], {"keepdims": 0})
        if not inputs or any(each is not None and k is None for each, k in zip(inputs, known, strict=True)):
            return None
        if all(k is None or k.is_constant for k in known) and op not in ("Cast", "Concat", "Gather", "Unsqueeze"):
            return self._computed(op, known, attrs)
        return self._shapes.evaluate(op, known, attrs)

    def _computed(self, op: str, known: Sequence[Known | None], attrs: Mapping[str, Any]) -> list[Known] | None:
        """Return the small results of a node whose inputs are constants."""
        shape = known[0].constant().tolist() if known[0] is not None and op == "ConstantOfShape" else []
        if op == "ConstantOfShape" and np.prod(shape) <= _MOST_KNOWN:
            value = numpy_helper.to_array(attrs["value"]) if "value" in attrs else np.zeros(1, "float32")
            return [known_array(np.full(shape, value.reshape(-1)[0], value.dtype))]
        return self._shapes.evaluate(op, known, attrs)

    def _expression(self, known: Known) -> Expr:
        """Return a tensor of values that are known."""
        if known.is_constant:
            return relax.const(known.constant(), known.dtype)
        extents = known.extents()
        if extents is None:  # terms with a factor: they are only read by what is known
            numerators = [getattr(each, "expr", None) for each in known.values.flat]
            scales = [float(getattr(each, "scale", each)) for each in known.values.flat]
            extents = [1 if each is None else each for each in numerators]
            made = self._tensor(extents, known.values.shape, known.dtype)
            factor = relax.const(np.array(scales, known.dtype).reshape(known.values.shape))
            made = self.bb.emit(relax.op.multiply(made, factor))
        else:
            made = self._tensor(extents, known.values.shape, known.dtype)
        self._known[made] = known
        return made

    def _tensor(self, extents: Sequence[Any], shape: Sequence[int], dtype: str) -> Expr:
        made = self.bb.emit(relax.op.shape_to_tensor(relax.ShapeExpr(list(extents))))
        if tuple(shape) != (len(extents),):
            made = self.bb.emit(relax.op.reshape(made, list(shape)))
        return made if dtype == "int64" else self.bb.emit(relax.op.astype(made, dtype))

    # ---- what is imported --------------------------------------------------------------------------------------------

    def _prepared(self, op: str, inputs: Any, known: Sequence[Known | None], attrs: Mapping[str, Any]) -> Any:
        """Return the inputs for TVM's converter: operands that fit."""
        made = type(inputs)(inputs)
        if op in _BROADCASTING:
            made[:] = self._aligned(list(inputs))
        if op == "Concat":
            made[:] = self._aligned(list(inputs), int(attrs.get("axis", 0)))
        if op == "Split":
            made[0] = self._of_parts(inputs[0], known, attrs)
        if op == STEPS:
            made[:] = self._of_one_batch(list(inputs))
        return made

    def _of_parts(self, x: Expr, known: Sequence[Known | None], attrs: Mapping[str, Any]) -> Expr:
        """Return what is split as long as its parts are together, which the last part would not be known to be."""
        given = known[1].extents() if len(known) > 1 and known[1] is not None else None
        sizes, shape = attrs.get("split", given), shape_of(x)
        if shape is None or sizes is None or not all(isinstance(size, int) for size in sizes):
            return x
        axis = int(attrs.get("axis", 0)) % len(shape)
        if isinstance(shape[axis], int):
            return x
        return self._cast(x, [*shape[:axis], sum(sizes), *shape[axis + 1 :]])

    def _of_one_batch(self, inputs: list[Expr]) -> list[Expr]:
        """Return the inputs of a recurrent layer, whose states and lengths are those of as many rows as it has."""
        batch = (shape_of(inputs[0]) or [None] * 2)[1]
        for place, each in enumerate(inputs[4:], 4):
            if each is not None and batch is not None:
                inputs[place] = self._cast(each, [batch, *(shape_of(each) or [])[1:]])
        return inputs

    def _aligned(self, operands: list[Expr], but: int | None = None) -> list[Expr]:
        """Let extents of operands that cannot be compared be the same: that is seen to when the model runs."""
        shapes = [None if each is None else shape_of(each) for each in operands]
        if any(shape is None for shape in shapes):
            return operands
        rank = max(len(shape or ()) for shape in shapes)
        free = -1 if but is None else (rank - 1 - but) % rank
        common: list[Any] = [1] * rank
        for shape in shapes:
            for axis, extent in enumerate(reversed(shape or ())):
                if _rank_of(extent) > _rank_of(common[axis]):
                    common[axis] = extent
        for place, shape in enumerate(shapes):
            wanted = [
                extent if self._fits(extent, common[axis], axis, but, free) else common[axis]
                for axis, extent in enumerate(reversed(shape or ()))
            ][::-1]
            if not all(map(_is, wanted, shape or ())):
                operands[place] = self._cast(operands[place], wanted)
        return operands

    def _fits(self, extent: Any, common: Any, axis: int, but: int | None, free: int) -> bool:
        return axis == free or (but is None and _is(extent, 1)) or self._same(extent, common)

    def _same(self, a: Any, b: Any) -> bool:
        if isinstance(a, int) and isinstance(b, int):
            return a == b
        return self._shapes.equal(a, b)

    def _cast(self, e: Expr, shape: Sequence[Any]) -> Expr:
        """Return a tensor as one of another shape, which it has: that is checked when the model runs.

        A call hides what shape it had: a pass of TVM's does not end where an extent is said to be min(extent, 512).
        """
        if shape_of(e) is not None:
            kind = relax.TensorType(dtype=e.ty.dtype, ndim=e.ty.ndim)
            e = self.bb.emit(relax.op.call_pure_packed(_RESHAPE, e, relax.ShapeExpr(shape_of(e)), ty_args=kind))
        return self.bb.match_cast(e, relax.TensorType(list(shape), e.ty.dtype))

    def _with_extents(self, made: Expr) -> Expr:
        """Let all extents of a tensor be numbers and variables; new ones are read when the model runs.

        Where its rank alone is known, each is new. An expression has the same variable wherever it comes up: passes and
        rules then see that an axis is one, and need not do arithmetic.
        """
        kind, shape = made.ty, shape_of(made)
        if not isinstance(kind, relax.TensorType) or kind.ndim < 1:
            return made
        if shape is None:
            return self._cast(made, self._fresh(kind.ndim))
        if not self.named or all(isinstance(extent, (int, tirx.Var)) for extent in shape):
            return made
        named = [each if isinstance(each, (int, tirx.Var)) else self._variable(each) for each in shape]
        return self._cast(made, named)

    def _variable(self, extent: Any) -> Any:
        known = next((variable for e, variable in self._variables if self._shapes.equal(e, extent)), None)
        if known is None:
            (known,) = self._fresh(1)
            self._variables.append((extent, known))
        return known

    def _meaning(self, extent: Any) -> Any:
        """Return the expression that a variable stands for, so that its factors are seen."""
        return next((e for e, variable in self._variables if variable.same_as(extent)), extent)

    def _fresh(self, count: int) -> list[Any]:
        self._names += 1
        return [tirx.Var(f"extent_{self._names}_{axis}", "int64") for axis in range(count)]

    # ---- converters --------------------------------------------------------------------------------------------------

    def _reshape(self, inputs: list[Expr], known: Sequence[Known | None], attrs: Mapping[str, Any]) -> Expr | None:
        data, target = shape_of(inputs[0]), None if known[1] is None else known[1].extents()
        if data is None or target is None:
            return None
        data = [self._meaning(extent) for extent in data]
        shape, exact = reshaped(data, target, bool(attrs.get("allowzero", 0)))
        if exact and self._same(product(data), product(shape)):
            return relax.op.reshape(inputs[0], shape)
        # The function compares the numbers of elements, and a pass of TVM's cannot do the arithmetic of such a shape.
        kind = relax.TensorType(shape, inputs[0].ty.dtype)
        return relax.op.call_pure_packed(_RESHAPE, inputs[0], relax.ShapeExpr(shape), ty_args=kind)

    def _flatten(self, inputs: list[Expr], known: Sequence[Known | None], attrs: Mapping[str, Any]) -> Expr | None:
        data = shape_of(inputs[0])
        if data is None:
            return None
        axis = int(attrs.get("axis", 1))
        axis += len(data) if axis < 0 else 0
        sizes = [self._shapes.evaluate("ReduceProd", [known_shape(part)], {"keepdims": 0})
                 for part in (data[:axis], data[axis:])]  # fmt: skip
        extents = [None if each is None else extent_of(each[0].values[()]) for each in sizes]
        return None if None in extents else relax.op.reshape(inputs[0], extents)

    def _squeeze(self, inputs: list[Expr], known: Sequence[Known | None], attrs: Mapping[str, Any]) -> Expr | None:
        data = shape_of(inputs[0])
        axes = attrs.get("axes") if len(inputs) < 2 else None if known[1] is None else known[1].constant().tolist()
        if data is None or axes is None:
            return None
        left = [extent for axis, extent in enumerate(data) if axis not in {int(a) % len(data) for a in axes}]
        wanted = [1 if axis in {int(a) % len(data) for a in axes} else extent for axis, extent in enumerate(data)]
        same = all(map(self._same, wanted, data))
        return relax.op.reshape(inputs[0] if same else self._cast(inputs[0], wanted), left)

    def _expand(self, inputs: list[Expr], known: Sequence[Known | None], attrs: Mapping[str, Any]) -> Expr | None:
        data, target = shape_of(inputs[0]), None if known[1] is None else known[1].extents()
        if data is None:
            return None
        if target is None:
            return self._expand_to(inputs, data)
        rank = max(len(data), len(target))
        data, target = [1] * (rank - len(data)) + data, [1] * (rank - len(target)) + target
        wanted = [a if _is(b, 1) else b for a, b in zip(data, target, strict=True)]
        fitting = [a if _is(a, 1) else b for a, b in zip(data, wanted, strict=True)]
        source = inputs[0]
        if not all(map(self._same, data, fitting)):
            source = self._cast(source, fitting[rank - len(shape_of(source) or ()) :])
        return relax.op.broadcast_to(source, relax.ShapeExpr(wanted))

    def _expand_to(self, inputs: list[Expr], data: list[Any]) -> Expr | None:
        """Return an Expand to a shape that is computed at run time; its extents of 1 leave those of the data."""
        given = shape_of(inputs[1])
        if given is None or not isinstance(given[0], int):
            return None
        rank = max(len(data), given[0])
        ones = relax.const(np.ones(rank - given[0], "int64"), "int64")
        target = inputs[1] if given[0] == rank else self.bb.emit(relax.op.concat([ones, inputs[1]], 0))
        own = self.bb.emit(relax.op.shape_to_tensor(relax.ShapeExpr([1] * (rank - len(data)) + data)))
        wanted = self.bb.emit(relax.op.where(relax.op.equal(target, relax.const(1, "int64")), own, target))
        shape = self._fresh(rank)
        self.bb.match_cast(self.bb.emit(relax.op.tensor_to_shape(wanted)), relax.ShapeType(shape))
        fitting = [a if isinstance(a, int) else b for a, b in zip(data, shape[rank - len(data) :], strict=True)]
        return relax.op.broadcast_to(self._cast(inputs[0], fitting), relax.ShapeExpr(shape))

    def _slice(self, inputs: list[Expr], known: Sequence[Known | None], attrs: Mapping[str, Any]) -> Expr | None:
        data = shape_of(inputs[0])
        if data is None or any(k is None for k, e in zip(known[1:], inputs[1:], strict=True) if e is not None):
            return None
        if len(inputs) < 3:
            return None
        starts, ends, axes, steps = (k.extents() if k is not None else None for k in [*known[1:], None, None][:4])
        if starts is None or ends is None:
            return None
        axes = list(range(len(starts))) if axes is None else [int(axis) % len(data) for axis in axes]
        steps = [1] * len(axes) if steps is None else [min(s, LONGEST) if isinstance(s, int) else s for s in steps]
        x, parts = inputs[0], []
        for axis, start, stop, step in zip(axes, starts, ends, steps, strict=True):
            if step == -1 and _is_last(start) and isinstance(stop, int) and stop <= -_BEYOND:
                x = self.bb.emit(relax.op.flip(x, axis))
            else:
                parts.append((axis, start, stop, step))
        if any(not isinstance(step, int) or step < 1 for *_, step in parts):
            return None
        if not parts:
            return x
        begin, end = [], []
        for axis, start, stop, _ in parts:
            bounds = self._of_one(start, stop, data[axis]) or [self._place(each, data[axis]) for each in (start, stop)]
            if any(bound is None for bound in bounds):
                return None
            begin.append(bounds[0])
            end.append(self._later(*bounds))
        axes, steps = [part[0] for part in parts], [part[3] for part in parts]
        return relax.op.strided_slice(x, axes, begin, end, steps, assume_inbound=True)

    def _of_one(self, start: Any, stop: Any, extent: Any) -> list[Any] | None:
        """Return where a slice of one element is, whose result is broadcast then; None for others.

        Where it would be empty, the model raises.
        """
        if isinstance(extent, int) or not isinstance(start, int) or not isinstance(stop, int):
            return None
        if start == -1 and stop >= _BEYOND:
            stop = 0
        if stop != start + 1:
            return None
        there = extent > start if start >= 0 else extent >= -start
        self.bb.emit(relax.op.assert_op(there, format=f"Slice: the axis has no element {start}"))
        begin = start if start >= 0 else extent + start
        return [begin, begin + 1]

    def _place(self, place: Any, extent: Any) -> Any:
        """Return where a place of a slice is between 0 and the extent; None if that is not known."""
        shapes, element, most = self._shapes, as_element(place), as_element(extent)
        if shapes.compared("Less", element, 0):
            element = shapes.plus(element, most)
        if not isinstance(element, Term) and element >= _BEYOND:
            return extent
        low = shapes.extreme("Max", element, 0)
        found = None if low is None else shapes.extreme("Min", low, most)
        return None if found is None else extent_of(found)

    def _later(self, begin: Any, end: Any) -> Any:
        """Return the end of a slice, which is nowhere before its begin."""
        found = self._shapes.extreme("Max", as_element(begin), as_element(end))
        return end if found is None else extent_of(found)

    def _constant(self, inputs: list[Expr], known: Sequence[Known | None], attrs: Mapping[str, Any]) -> Expr | None:
        """Return numbers that are an attribute; TVM's converter is for tensors."""
        for name, dtype in (("value_int", "int64"), ("value_float", "float32")):
            for given in (name, f"{name}s"):
                if given in attrs:
                    return relax.const(np.array(attrs[given], dtype), dtype)
        return None

    def _constant_of_shape(self, inputs: list[Expr], known: Sequence[Known | None], attrs: Mapping[str, Any]) -> Any:
        target = None if known[0] is None else known[0].extents()
        if target is None:
            return None
        value = numpy_helper.to_array(attrs["value"]) if "value" in attrs else np.zeros(1, "float32")
        number = value.reshape(-1)[0]
        make = relax.op.full if np.isfinite(number) else _broadcast  # TVM's code for the first cannot write infinity
        return make(relax.ShapeExpr(target), relax.const(number, str(value.dtype)))

    def _range(self, inputs: list[Expr], known: Sequence[Known | None], attrs: Mapping[str, Any]) -> Expr | None:
        extents = [None if each is None else each.extents() for each in known]
        if any(each is None for each in extents):
            self._see_to_step(inputs[2])
            return None
        dtype = known[0].dtype if known[0] is not None else "int64"
        made = relax.op.arange(*(_int64(each[0]) for each in extents if each is not None), dtype="int64")
        return made if dtype == "int64" else relax.op.astype(self.bb.emit(made), dtype)

    def _see_to_step(self, step: Expr) -> None:
        """Let a Range raise when it runs with the step 0, by which the processor would divide."""
        if not is_constant(step):
            zero = relax.const(0, str(step.ty.dtype))
            goes = self.bb.emit(relax.op.reshape(relax.op.not_equal(step, zero), []))
            self.bb.emit(relax.op.assert_op(goes, format="the step of a Range is 0"))

    def _see_to_windows(self, op_name: str, made: Expr) -> None:
        """Let an operator raise when it runs with fewer rows than its window has: means of nothing would be NaN."""
        for extent in (shape_of(made) or [])[2:]:
            if not isinstance(extent, (int, tirx.Var)):  # a variable is an extent of something that is there
                text = f"{op_name}: its window is larger than what it is moved over"
                self.bb.emit(relax.op.assert_op(extent > 0, format=text))

    def _padded(self, op_name: str, inputs: Any, attrs: dict[str, Any]) -> tuple[Any, dict[str, Any], Expr | None]:
        """Return the operands of an operator that pads by the size of the picture, and its attributes with numbers.

        How much it pads depends on the rest of an extent by the stride. Where that is not known, as much as it may be
        at most is put around the picture, and what the windows reach is cut out. Where means leave out the padding, the
        third is a picture of ones to which the same is done.
        """
        x, shape = inputs[0], shape_of(inputs[0])
        window = attrs.get("kernel_shape") or (shape_of(inputs[1]) or [None])[2:]
        if shape is None or op_name == "ConvInteger" or not all(isinstance(size, int) for size in window):
            return inputs, attrs, None
        upper = attrs["auto_pad"] in (b"SAME_UPPER", "SAME_UPPER")
        strides, dilations = (attrs.get(name) or [1] * len(window) for name in ("strides", "dilations"))
        pads, around, cuts = [], [(0, 0), (0, 0)], {}
        for axis, (size, stride, dilation) in enumerate(zip(window, strides, dilations, strict=True), 2):
            extent, span = shape[axis], (size - 1) * dilation + 1
            reach = ((extent + (stride - 1)) // stride - 1) * stride + span
            known = isinstance(extent, int) or stride == 1
            total = max(reach - extent, 0) if isinstance(extent, int) else span - 1
            pads.append(halves(total, upper) if known else (0, 0))
            around.append((0, 0) if known else halves(total, upper))
            if not known:
                begin = around[-1][0] - halves(tirx.max(reach - extent, _int64(0)), upper)[0]
                cuts[axis] = (begin, begin + reach)
        attrs = {name: value for name, value in attrs.items() if name != "auto_pad"}
        attrs["pads"] = tuple(pad for side in zip(*pads, strict=True) for pad in side)
        if not cuts:
            return inputs, attrs, None
        fill = _least(str(x.ty.dtype)) if op_name == "MaxPool" else 0
        padded = self._cut(x, around, cuts, fill)
        ones = None
        if op_name == "AveragePool" and not attrs.get("count_include_pad", 0):
            ones = relax.op.full(relax.ShapeExpr([1, *shape[1:]]), relax.const(1, str(x.ty.dtype)))
            ones = self._cut(self.bb.emit(ones), around, cuts, 0)
        return onnx_input([padded, *inputs[1:]]), attrs, ones

    def _cut(self, x: Expr, around: list[tuple[int, int]], cuts: Mapping[int, tuple[Any, Any]], fill: float) -> Expr:
        """Return a picture with padding around it, and of that what is in some places of some axes."""
        whole = self.bb.emit(relax.op.nn.pad(x, [each for pair in around for each in pair], pad_value=fill))
        begins, ends = zip(*cuts.values(), strict=True)
        return self.bb.emit(relax.op.strided_slice(whole, [*cuts], begins, ends, assume_inbound=True))

    def _resize(self, inputs: list[Expr], known: Sequence[Known | None], attrs: Mapping[str, Any]) -> Expr | None:
        """Return a Resize of a picture; its size is computed here, also from factors."""
        data = shape_of(inputs[0])
        _, _, scales, sizes = [*known, None, None, None][:4]
        if data is None or len(data) != 4 or "axes" in attrs or all(isinstance(each, int) for each in data):
            return None
        if attrs.get("coordinate_transformation_mode") == b"tf_crop_and_resize":
            return None
        extents = sizes.extents() if sizes is not None and sizes.values.size else None
        if extents is None and scales is not None and scales.values.size:
            made = [self._shapes.times(as_element(a), b) for a, b in zip(data, scales.values, strict=True)]
            extents = [None if each is None else extent_of(self._shapes.whole(each)) for each in made]
        if extents is None or any(each is None for each in extents):
            return None
        mode = attrs.get("mode", b"nearest").decode()
        return relax.op.image.resize2d(
            inputs[0], relax.ShapeExpr(extents[2:]), [0.0] * 4, "NCHW",
            {"nearest": "nearest_neighbor"}.get(mode, mode),
            attrs.get("coordinate_transformation_mode", b"half_pixel").decode(),
            attrs.get("nearest_mode", b"round_prefer_floor").decode(), attrs.get("cubic_coeff_a", -0.75),
            attrs.get("exclude_outside", 0), attrs.get("extrapolation_value", 0.0),
        )  # fmt: skip

    def _batch_norm(self, inputs: list[Expr], known: Sequence[Known | None], attrs: Mapping[str, Any]) -> Expr | None:
        """Return a BatchNormalization of an open number of channels, for which TVM has no code."""
        data, each = shape_of(inputs[0]), shape_of(inputs[1])
        if data is None or each is None or len(data) < 2 or isinstance(data[1], int):
            return None
        x, emit = self._cast(inputs[0], [data[0], each[0], *data[2:]]), self.bb.emit
        along = [each[0], *[1] * (len(data) - 2)]
        scale, shift, mean, variance = (emit(relax.op.reshape(self._cast(part, each), along)) for part in inputs[1:5])
        epsilon = relax.const(float(attrs.get("epsilon", 1e-5)), str(variance.ty.dtype))
        factor = emit(relax.op.divide(scale, emit(relax.op.sqrt(emit(relax.op.add(variance, epsilon))))))
        made = emit(relax.op.add(emit(relax.op.multiply(emit(relax.op.subtract(x, mean)), factor)), shift))
        return relax.Tuple([made, inputs[3], inputs[4]])

    def _topk(self, inputs: list[Expr], known: Sequence[Known | None], attrs: Mapping[str, Any]) -> Expr | None:
        """Return no elements where that many are wanted; TVM's function gives all of them then."""
        count = known[1].constant() if len(known) > 1 and known[1] is not None and known[1].is_constant else None
        if count is None or count.reshape(-1)[0] != 0 or inputs[0].ty.ndim < 1:
            return None
        axis = int(attrs.get("axis", -1)) % inputs[0].ty.ndim
        none = self.bb.emit(relax.op.strided_slice(inputs[0], [axis], [0], [0]))
        return relax.Tuple([none, self.bb.emit(relax.op.astype(none, "int64"))])

    def _tile(self, inputs: list[Expr], known: Sequence[Known | None], attrs: Mapping[str, Any]) -> Expr | None:
        data, times = shape_of(inputs[0]), None if known[1] is None else known[1].extents()
        if data is None or times is None or len(times) != len(data):
            return None
        apart = [extent for each in data for extent in (1, each)]
        wanted = [extent for pair in zip(times, data, strict=True) for extent in pair]
        whole = [a * b for a, b in zip(times, data, strict=True)]
        made = self.bb.emit(relax.op.reshape(inputs[0], apart))
        made = self.bb.emit(relax.op.broadcast_to(made, relax.ShapeExpr(wanted)))
        return relax.op.reshape(made, whole)

    def _gather(self, inputs: list[Expr], known: Sequence[Known | None], attrs: Mapping[str, Any]) -> Expr | None:
        """Return a Gather; negative indices count from the end."""
        data, indices = shape_of(inputs[0]), inputs[1]
        dtype = str(indices.ty.dtype)
        if data is None or dtype not in ("int32", "int64"):
            return None
        axis = int(attrs.get("axis", 0)) % len(data)
        if is_constant(indices) and not (indices.value.numpy() < 0).any():
            return checked_take(self.bb.normalize(relax.op.take(inputs[0], indices, axis)))
        extent = self._expression(known_shape([data[axis]]))
        extent = extent if dtype == "int64" else self.bb.emit(relax.op.astype(extent, dtype))
        negative = self.bb.emit(relax.op.less(indices, relax.const(0, dtype)))
        extent = extent if indices.ty.ndim else self.bb.emit(relax.op.reshape(extent, []))
        moved = self.bb.emit(relax.op.add(indices, extent))
        places = self.bb.emit(relax.op.where(negative, moved, indices))
        return checked_take(self.bb.normalize(relax.op.take(inputs[0], places, axis)))

    def _conv(self, inputs: list[Expr], known: Sequence[Known | None], attrs: Mapping[str, Any]) -> Expr | None:
        return self._high("Conv", inputs, attrs)

    def _transposed(self, inputs: list[Expr], known: Sequence[Known | None], attrs: Mapping[str, Any]) -> Expr | None:
        return self._high("ConvTranspose", inputs, attrs)

    def _high(self, op: str, inputs: list[Expr], attrs: Mapping[str, Any]) -> Expr | None:
        """Return a convolution over one axis as one over two, of a picture of height 1."""
        shape = shape_of(inputs[0])
        if shape is None or len(shape) != 3 or not is_constant(inputs[1]):
            return None
        high = dict(attrs)
        for name, one in (("kernel_shape", 1), ("strides", 1), ("dilations", 1), ("output_padding", 0)):
            if name in high:
                high[name] = (one, *high[name])
        if "pads" in high:
            high["pads"] = (0, high["pads"][0], 0, high["pads"][1])
        x = self.bb.emit(relax.op.expand_dims(inputs[0], 2))
        weights = inputs[1].value.numpy()
        weights = relax.const(np.expand_dims(weights, 2), str(weights.dtype))
        made = super()._convert_operator(op, onnx_input([x, weights, *inputs[2:]]), high, self.opset)
        return relax.op.squeeze(self.bb.emit(made), [2])

    def _cast_to(self, inputs: list[Expr], known: Sequence[Known | None], attrs: Mapping[str, Any]) -> Expr | None:
        """Return integers as other numbers; TVM's converter is for what does not fit."""
        dtype = str(helper.tensor_dtype_to_np_dtype(attrs["to"]))
        simple = str(inputs[0].ty.dtype)[0] in "iub" and dtype[0] == "f"
        return relax.op.astype(inputs[0], dtype) if simple else None


def _broadcast(shape: Expr, number: Expr) -> Expr:
    return relax.op.broadcast_to(number, shape)


def _least(dtype: str) -> float:
    """Return a number that no other one of a type is below."""
    return float("-inf") if dtype.startswith("float") else int(np.iinfo(dtype).min)


def shape_of(e: Expr) -> list[Any] | None:
    """Return the extents of a tensor, as numbers and expressions; None if they are not known."""
    shape = getattr(e.ty, "shape", None)
    if not isinstance(e.ty, relax.TensorType) or not isinstance(shape, relax.ShapeExpr):
        return None
    return [int(each.value) if isinstance(each, tirx.IntImm) else each for each in shape.values]


def _is_last(place: Any) -> bool:
    """Tell whether a slice backwards begins at the end."""
    return isinstance(place, int) and (place == -1 or place >= _BEYOND)


def _is(a: Any, b: Any) -> bool:
    """Tell whether two extents are the same expression or number."""
    return a is b or (isinstance(a, int) and isinstance(b, int) and a == b)


def _rank_of(extent: Any) -> int:
    """Return how much an extent says of what it is broadcast with: a number most, and 1 nothing."""
    return (3 if extent != 1 else 0) if isinstance(extent, int) else 2 if isinstance(extent, tirx.Var) else 1


def _int64(value: Any) -> Any:
    return tirx.const(value, "int64") if isinstance(value, int) else value


_CONVERTERS: Mapping[str, Callable[..., Expr | None]] = {
    "BatchNormalization": _Dynamic._batch_norm,
    "Cast": _Dynamic._cast_to, "Constant": _Dynamic._constant, "ConstantOfShape": _Dynamic._constant_of_shape,
    "Conv": _Dynamic._conv, "ConvTranspose": _Dynamic._transposed, "Expand": _Dynamic._expand,
    "Flatten": _Dynamic._flatten, "Gather": _Dynamic._gather, "Range": _Dynamic._range, "Reshape": _Dynamic._reshape,
    "Resize": _Dynamic._resize, "Slice": _Dynamic._slice, "Squeeze": _Dynamic._squeeze, "Tile": _Dynamic._tile,
    "TopK": _Dynamic._topk,
}  # fmt: skip
