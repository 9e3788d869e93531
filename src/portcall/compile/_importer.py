# SPDX-License-Identifier: Apache-2.0
"""TVM's importer of ONNX, with products of integers that it lacks, or computes in 32 bits throughout.

Weights are constant, and get their zero points subtracted; the zero point of what they are multiplied with becomes
something to subtract for each channel, since it is a factor of the sum of the weights.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import tvm
from onnx import NodeProto, defs, helper
from tvm import relax, tirx
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter, onnx_input

from portcall.compile._labels import Labels
from portcall.compile._program import is_constant
from portcall.compile._rewriting import ONNX_DOMAINS, ComputedError, opset_of
from portcall.compile._serial import best_place, call_kernel, scattered, scattered_elements, sums_so_far
from portcall.compile._steps import OPTIONAL, STEPS, Layer, StepsKernel
from portcall.compile._target import Target
from portcall.compile._topk import topk_kernel
from portcall.compile._trees import AGGREGATES, TREE_SUMS, tree_kernel
from portcall.compile._weights import array_of, is_apart
from portcall.errors import ModelError

Array = Any
_SERIES = {"float16": 4, "float32": 8, "float64": 17}  # terms of atanh up to 1/3: what follows is below half a bit
LONGEST = 1 << 30  # a step of a Slice
_HALF_PIXELS = 16  # the opset since which a RoiAlign takes half a pixel from its regions
_LONG_REASON = 400  # letters of what TVM says, which may print an operator with all that it knows of it
_OF_RANKS = re.compile(r"ndim=-1|MatchCast|statically known.* rank|unknown rank")  # in what TVM says
# Names of inputs that say what an operator does, or how large its result is.
_SAYING = {"axes", "axis", "constant_value", "depth", "ends", "k", "pads", "repeats", "roi", "scales", "shape", "size",
           "sizes", "split", "starts", "steps"}  # fmt: skip
_NO_RANK = "how many axes a value has is known only when the model runs, since it depends on values or on extents"
Expr = Any
_CONVOLUTIONS = {1: relax.op.nn.conv1d, 2: relax.op.nn.conv2d, 3: relax.op.nn.conv3d}


class RefusedError(ValueError):
    """What a converter of ours says of a node that it is not for."""


def import_model(
    model: Any,
    shapes: Mapping[str, Sequence[int]],
    target: Target,
    *,
    own: bool = True,
    labels: Labels | None = None,
    threads: int = 1,
) -> Any:
    """Return an ONNX model as a module of Relax, with its weights as constants.

    Parameters:
        own: import some operators as this module says, for graphs; their shapes are fixed.
        labels: learn which variables hold values of the model.
        threads: of the kernels that are written here.

    Raises:
        ModelError: an operator cannot be imported.
    """
    importer = Importer({name: list(shape) for name, shape in shapes.items()}, "float32", False, False)
    importer.own = OWN if own else {}
    importer.target, importer.labels, importer.parallel = target, labels, threads > 1
    importer.types = _types_of(model)
    return run_importer(importer, model)


def _types_of(model: Any) -> dict[str, str]:
    values = (*model.graph.value_info, *model.graph.output)
    kinds = {value.name: value.type.tensor_type.elem_type for value in values}
    return {name: str(helper.tensor_dtype_to_np_dtype(kind)) for name, kind in kinds.items() if kind}


def run_importer(importer: Importer, model: Any) -> Any:
    """Return an ONNX model as a module of Relax."""
    try:
        importer.model = model
        with contextlib.redirect_stdout(io.StringIO()):  # where it prints what it cannot convert, and raises, too
            return importer.from_onnx(model.graph, opset_of(model))
    except Exception:
        with contextlib.suppress(Exception):  # it may not have begun one
            importer.bb._end_block()  # or its destructor prints a warning
        raise


class Importer(ONNXGraphImporter):  # type: ignore[misc]
    own: Mapping[str, Callable[[Any, list[Any], dict[str, Any]], Any]] = {}
    labels: Labels | None = None
    target: Target  # which kernels that are written here are for
    parallel = False  # whether they may take several threads
    model: Any = None
    node: Any = None  # that is imported
    result = ""  # its first
    types: Mapping[str, str] = {}  # of results, as ONNX has them

    def _parse_value_proto(self, value: Any) -> Any:
        if isinstance(value, NodeProto):  # TVM asks for the name of each node before it imports it
            self.node, self.result = value, value.output[0]
        return super()._parse_value_proto(value)

    def variable(self) -> str:
        """Return the name of the variable for the first result of this node; empty where nobody wants to know."""
        return "" if self.labels is None else self.labels.mark(self.result)

    def _parse_array(self, tensor_proto: Any) -> Any:
        array = array_of(tensor_proto)
        return tvm.runtime.from_dlpack(array) if is_apart(tensor_proto) else tvm.runtime.tensor(array)

    def _check_for_unsupported_ops(self, graph: Any) -> None:
        """Do nothing: that was checked before, with the operators below."""

    def _convert_operator(self, op_name: str, inputs: Any, attrs: dict[str, Any], opset: int) -> Any:
        convert = self.own.get(op_name)
        with self.refused_node(op_name, list(inputs), attrs):
            name = self.variable()
            made = convert(self.bb, list(inputs), attrs) if convert is not None else None
            made = self._steps(list(inputs), attrs) if op_name == STEPS else made
            made = _of_each(op_name, list(inputs), attrs) if made is None else made
            if made is not None:
                return self.bb.emit(made, name)
            if op_name in _INDEXED:
                inputs = _within(self.bb, list(inputs), op_name, attrs)
            if op_name == "Pad":
                _check_wrapped(list(inputs), attrs)
            if op_name == "Slice":
                inputs = onnx_input(_with_steps(list(inputs)))
            if op_name in ("Div", "Mod"):
                inputs = onnx_input(_divisible(self.bb, list(inputs)))
            if op_name == "RoiAlign":
                inputs = onnx_input(_regions(self.bb, list(inputs), attrs, opset))
            made = super()._convert_operator(op_name, inputs, attrs, opset)
            if op_name == "Gather":
                made = self.bb.normalize(checked_take(made))
            if op_name == "OneHot":  # TVM's importer makes numbers of 64 bits of its values
                made = self.bb.normalize(relax.op.astype(self.bb.emit(made), str(inputs[2].ty.dtype)))
            read = inputs[: _OTHER_TYPES.get(op_name, 0)]
            if any(str(each.ty.dtype) != "float32" for each in read if each is not None):
                kind = self.types.get(self.result) or str(inputs[0].ty.dtype)
                made = self.bb.normalize(relax.op.astype(self.bb.emit(made), kind))
            is_tensor = isinstance(made, relax.Call) and isinstance(made.ty, relax.TensorType)
            return self.bb.emit(made, name) if name and is_tensor else made

    @contextlib.contextmanager
    def refused_node(self, op_name: str, inputs: list[Any], attrs: Mapping[str, Any]) -> Iterator[None]:
        """Say of what goes wrong in the import of a node which one it is."""
        try:
            yield
        except (ModelError, MemoryError):
            raise
        except Exception as error:
            name = attrs["tvm_custom"]["name"]
            computed = None if isinstance(error, RefusedError) else self._computed_input(inputs)
            reason = str(computed or error).strip().rpartition("\n")[2] or type(error).__name__
            reason = reason if len(reason) <= _LONG_REASON else f"{reason[:_LONG_REASON]}…"
            if computed is None and not isinstance(error, RefusedError):
                reason = _NO_RANK if _OF_RANKS.search(reason) else f"TVM cannot import it: {reason}"
            text = f"{f'node {name!r:.200}' if name else 'a node'}: {op_name}: {reason}"
            raise ModelError(text, problems=[text], hint=computed.hint if computed else "") from error

    def _computed_input(self, inputs: list[Any]) -> ComputedError | None:
        """Return the error for the first input that says what this node does, and is not constant."""
        if self.node is None or self.node.domain not in ONNX_DOMAINS or not defs.has(self.node.op_type):
            return None
        formal = defs.get_schema(self.node.op_type, opset_of(self.model), "").inputs
        words = [parameter.name.lower() for parameter in formal]
        for word, name, value in zip(words, self.node.input, inputs, strict=False):
            if word in _SAYING and value is not None and not is_constant(value):
                return ComputedError(self.model, name, word)
        return None

    def _steps(self, inputs: list[Any], attrs: dict[str, Any]) -> Expr:
        """Return all states of a recurrent layer, and the last ones."""
        x, r, *others = inputs
        names = [name.decode() if isinstance(name, bytes) else name for name in (attrs["kind"], *attrs["functions"])]
        words = [{"alpha": a, "beta": b} for a, b in zip(attrs["alpha"], attrs["beta"], strict=True)]
        layer = Layer(
            names[0], int(attrs["size"]), list(zip(names[1:], words, strict=True)), bool(attrs["turned"]),
            float(attrs["clip"]), bool(attrs["coupled"]), bool(attrs["linear"]),
        )  # fmt: skip
        given = {name: each for name, each in zip(OPTIONAL, others, strict=True) if each is not None}
        shape = list(x.ty.shape)
        steps, batch = (int(extent) if isinstance(extent, tirx.IntImm) else None for extent in shape[:2])
        dtype = str(x.ty.dtype)
        kernel = StepsKernel(layer, steps, batch, dtype, [*given], self.target, self.parallel).function()
        packed = relax.const(layer.packed(r.value.numpy(), self.target), dtype)
        states = [([shape[0], 1, shape[1], layer.size], dtype), *[([1, shape[1], layer.size], dtype)] * 2]
        results = states[: 3 if layer.kind == "LSTM" else 2]
        made = self.bb.emit(
            call_kernel(self.bb, kernel, f"{layer.kind.lower()}_steps", [x, packed, *given.values()], results)
        )
        return relax.Tuple([self.bb.emit(relax.TupleGetItem(made, k)) for k in range(len(results))])


def checked_take(made: Expr) -> Expr:
    """Return a Gather whose index may be too large: NaN, or for integers the last element, instead of a crash."""
    if not isinstance(made, relax.Call) or getattr(made.op, "name", "") != "relax.take":
        return made
    data, indices = made.args
    return relax.op.take(data, indices, made.attrs.axis, "nan" if data.ty.dtype.dtype in _FLOATS else "clip")


def _within(bb: Any, inputs: list[Any], name: str, attrs: dict[str, Any]) -> list[Any]:
    """Return the inputs of a node whose second one has places in the first, which are made to lie within it."""
    data, indices = inputs[:2]
    shape, dtype = list(data.ty.shape), indices.ty.dtype.dtype
    if name.endswith("ND"):
        first = int(attrs.get("batch_dims", 0))
        shape = shape[first : first + int(indices.ty.shape[-1])]
    else:
        shape = [shape[int(attrs.get("axis", 0))]]
    if all(isinstance(extent, int | tirx.IntImm) for extent in shape):
        extents = np.array([int(extent) for extent in shape])
        known = indices.value.numpy() if is_constant(indices) else None
        if known is not None and bool(((known >= -extents) & (known < extents)).all()):
            return inputs
        least, most = relax.const(-extents, dtype), relax.const(extents - 1, dtype)
    else:
        extents = bb.emit(relax.op.astype(bb.emit(relax.op.shape_to_tensor(relax.ShapeExpr(shape))), dtype))
        least, most = relax.op.negative(extents), relax.op.subtract(extents, relax.const(1, dtype))
    places = bb.emit(relax.op.maximum(indices, bb.emit(least)))
    return [data, bb.emit(relax.op.minimum(places, bb.emit(most))), *inputs[2:]]


def _of_each(name: str, inputs: list[Any], attrs: dict[str, Any]) -> Expr | None:
    """Return a reduction over no axes, where the node says that these mean none; TVM's importer leaves its input."""
    if name not in _EACH or not attrs.get("noop_with_empty_axes", 0):
        return None
    axes = _array(inputs, 1) if len(inputs) > 1 and inputs[1] is not None else np.zeros(0)
    return None if axes is None or axes.size else _EACH[name](inputs[0])


def _with_steps(inputs: list[Any]) -> list[Any]:
    """Return the inputs of a Slice with no steps that are beyond all extents: TVM counts with them in 32 bits."""
    steps = inputs[4] if len(inputs) > 4 else None
    if steps is not None and is_constant(steps):
        array = steps.value.numpy()
        inputs[4] = relax.const(array.clip(-LONGEST, LONGEST), str(array.dtype))
    return inputs


def _regions(bb: Any, inputs: list[Any], attrs: dict[str, Any], opset: int) -> list[Any]:
    """Return the inputs of a RoiAlign from which TVM's importer may take half a pixel before it scales them."""
    x, regions, *others = inputs
    scale = float(attrs.get("spatial_scale", 1.0))
    default = "half_pixel" if opset >= _HALF_PIXELS else "output_half_pixel"
    mode = attrs.get("coordinate_transformation_mode", default)
    if mode not in (b"half_pixel", "half_pixel") or scale == 1:
        return inputs
    return [x, bb.emit(relax.op.add(regions, relax.const(0.5 - 0.5 / scale, str(regions.ty.dtype)))), *others]


def _check_wrapped(inputs: list[Any], attrs: dict[str, Any]) -> None:
    """Refuse a Pad that wraps what it also cuts off: TVM cuts first, and onnxruntime does not."""
    pads = _array(inputs, 1)
    if attrs.get("mode") not in (b"wrap", "wrap") or pads is None:
        return
    if any(a * b < 0 for a, b in pads.reshape(2, -1).T.tolist()):
        raise RefusedError("to wrap around an axis and cut some of it off at once is not supported")


def _divisible(bb: Any, inputs: list[Any]) -> list[Any]:
    """Return the operands of a Div or Mod of integers with 1 as the divisor where it would stop the process.

    That is 0, and -1 for signed numbers, by which the smallest one cannot be divided: x is negated before.
    """
    x, divisor = inputs[:2]
    dtype = str(divisor.ty.dtype)
    known = divisor.value.numpy() if is_constant(divisor) else None
    if dtype.startswith("float") and known is not None and known.size == 1 and not known.any() and len(x.ty.shape):
        return [x, relax.const(known.reshape(1), dtype), *inputs[2:]]  # TVM refuses a number that is 0
    if not dtype.startswith(("int", "uint")) or (known is not None and not np.isin(known, (0, -1)).any()):
        return inputs
    one = relax.const(1, dtype)
    if dtype.startswith("int"):
        minus = bb.emit(relax.op.equal(divisor, relax.const(-1, dtype)))
        x = bb.emit(relax.op.where(minus, relax.op.negative(x), x))
        divisor = bb.emit(relax.op.where(minus, one, divisor))
    zero = bb.emit(relax.op.equal(divisor, relax.const(0, dtype)))
    return [x, bb.emit(relax.op.where(zero, one, divisor)), *inputs[2:]]


def _array(inputs: list[Any], place: int) -> Array | None:
    """Return a constant operand; None if it is not constant."""
    if place >= len(inputs) or inputs[place] is None:
        return np.zeros((), "int32")
    return inputs[place].value.numpy() if is_constant(inputs[place]) else None


def _narrow(weights: Array) -> Array:
    """Return integers in the smallest type that holds them."""
    fits = all(np.iinfo("int8").min <= each <= np.iinfo("int8").max for each in (weights.min(), weights.max()))
    return np.ascontiguousarray(weights).astype("int8" if fits else "int16")


def _weights(inputs: list[Any], along: Sequence[int]) -> Array | None:
    """Return the second operand less its zero point, as 32-bit integers."""
    weights, zero = _array(inputs, 1), _array(inputs, 3)
    if weights is None or zero is None or not weights.size:
        return None
    return weights.astype("int32") - (
        zero.astype("int32").reshape(along) if zero.size > 1 else int(zero.reshape(-1)[0])
    )


def _convolution(bb: Any, inputs: list[Any], attrs: dict[str, Any]) -> Expr:
    x, rank = inputs[0], len(inputs[0].ty.shape)
    along = [-1, *[1] * (rank - 1)]
    weights = _weights(inputs, along)
    if weights is None or rank - 2 not in _CONVOLUTIONS:
        raise RefusedError("ConvInteger needs constant weights, and 1 to 3 axes of space")
    zero = _array(inputs, 2)
    fill = 0 if zero is None else int(zero.reshape(-1)[0])
    dilations = [int(each) for each in attrs.get("dilations", [1] * (rank - 2))]
    strides = [int(each) for each in attrs.get("strides", [1] * (rank - 2))]
    pads = _pads(x, weights.shape[2:], strides, dilations, attrs)
    if any(pads):
        sides = [(pads[k], pads[k + rank - 2]) for k in range(rank - 2)]
        inner = [int(extent) for extent in list(x.ty.shape)[2:]]
        x = bb.emit(relax.op.nn.pad(x, [0, 0, 0, 0, *(each for side in sides for each in side)], "constant", fill))
        if zero is None:  # padding means the zero point, which is computed
            frame = np.pad(np.zeros((1, 1, *inner), x.ty.dtype.dtype), [(0, 0), (0, 0), *sides], constant_values=1)
            point = bb.emit(relax.op.reshape(inputs[2], ()))
            x = bb.emit(relax.op.add(x, bb.emit(relax.op.multiply(relax.const(frame), point))))
    sums = _CONVOLUTIONS[rank - 2](
        x, relax.const(_narrow(weights)), strides, 0, dilations, int(attrs.get("group", 1)), out_dtype="int32"
    )
    each = weights.sum(axis=tuple(range(1, rank)), dtype="int32").reshape([1, -1, *[1] * (rank - 2)])
    if zero is None:
        point = bb.emit(relax.op.reshape(bb.emit(relax.op.astype(inputs[2], "int32")), ()))
        return relax.op.subtract(bb.emit(sums), bb.emit(relax.op.multiply(point, relax.const(each))))
    return relax.op.subtract(bb.emit(sums), relax.const(fill * each)) if fill else sums


def _pads(x: Expr, window: Sequence[int], strides: list[int], dilations: list[int], attrs: dict[str, Any]) -> list[int]:
    """Return the padding before each axis, then that after each."""
    auto = attrs.get("auto_pad", b"NOTSET")
    auto = auto.decode() if isinstance(auto, bytes) else auto
    if auto in ("NOTSET", "VALID"):
        return [int(each) for each in attrs.get("pads", ())] if auto == "NOTSET" else []
    pads = []
    for extent, size, stride, dilation in zip(list(x.ty.shape)[2:], window, strides, dilations, strict=True):
        turns = -(-int(extent) // stride)
        total = max(0, (turns - 1) * stride + (size - 1) * dilation + 1 - int(extent))
        pads.append(halves(total, auto == "SAME_UPPER"))
    return [pad for side in zip(*pads, strict=True) for pad in side]


def halves(total: Any, upper: bool) -> tuple[Any, Any]:
    """Return the padding in front and at the end; the larger half is at the end where ``upper`` says so."""
    small = total // 2
    return (small, total - small) if upper else (total - small, small)


def _product(bb: Any, inputs: list[Any], attrs: dict[str, Any]) -> Expr | None:
    """Return a product with a constant matrix [steps, columns]; None for others, which TVM's importer takes."""
    weights = _weights(inputs, [1, -1])
    if weights is None or weights.ndim != 2:
        return None
    a, zero = inputs[0], _array(inputs, 2)
    sums = bb.emit(relax.op.matmul(a, relax.const(_narrow(weights)), out_dtype="int32"))
    columns = weights.sum(axis=0, dtype="int32")
    if zero is not None and not zero.any():
        return sums
    point = relax.const(zero.astype("int32")) if zero is not None else bb.emit(relax.op.astype(inputs[2], "int32"))
    if len(point.ty.shape) == 1 and int(point.ty.shape[0]) != 1:  # one for each row
        point = bb.emit(relax.op.expand_dims(point, -1))
    return relax.op.subtract(sums, bb.emit(relax.op.multiply(point, relax.const(columns))))


def _extreme(compare: Callable[[Expr, Expr], Expr]) -> Callable[[Any, list[Any], dict[str, Any]], Expr]:
    """Return what imports a maximum or a minimum; TVM's importer puts all values into one tensor first."""

    def convert(bb: Any, inputs: list[Any], attrs: dict[str, Any]) -> Expr:
        made, *others = inputs
        for number, other in enumerate(others):
            made = bb.emit(made) if number else made
            both = compare(made, other)
            if any(map(_is_number, (made, other))) or str(made.ty.dtype) not in _FLOATS:
                made = both
            else:  # the comparison keeps the second one where one of them is no number
                made = relax.op.where(relax.op.isnan(made), made, bb.emit(both))
        return made

    return convert


def _is_number(e: Expr) -> bool:
    return is_constant(e) and e.value.numpy().size == 1


def _sign(bb: Any, inputs: list[Any], attrs: dict[str, Any]) -> Expr | None:
    """Return the sign of numbers; what is no number stays so. TVM's operator is not for unsigned ones."""
    x = inputs[0]
    dtype = str(x.ty.dtype)
    if dtype.startswith("uint"):
        return relax.op.minimum(x, relax.const(1, dtype))
    if dtype not in _FLOATS:
        return None
    return relax.op.where(relax.op.isnan(x), x, bb.emit(relax.op.sign(x)))


def _thresholded(bb: Any, inputs: list[Any], attrs: dict[str, Any]) -> Expr:
    """Return what is above a limit, and 0 elsewhere; TVM's importer multiplies by 0, which infinity does not become."""
    x = inputs[0]
    limit, zero = (relax.const(float(value), x.ty.dtype) for value in (attrs.get("alpha", 1.0), 0.0))
    return relax.op.where(relax.op.greater(x, limit), x, zero)


def _power(bb: Any, inputs: list[Any], attrs: dict[str, Any]) -> Expr | None:
    """Return a small power as a product: the exponent of TVM's function is not known when its code is written."""
    exponent = _array(inputs, 1)
    x = inputs[0]
    if exponent is None or exponent.size != 1 or exponent.ndim > len(x.ty.shape) or str(x.ty.dtype) in _ROUNDED:
        return None
    power = float(exponent.reshape(()))
    if power not in (2, 3):
        return None
    square = relax.op.multiply(x, x)
    return square if power == 2 else relax.op.multiply(bb.emit(square), x)


def _clipped(bb: Any, inputs: list[Any], attrs: dict[str, Any]) -> Expr | None:
    """Return a maximum and a minimum; those of TVM's importer are functions without a layout, and hide NaN."""
    value = inputs[0]
    dtype = str(value.ty.dtype)
    for place, name, compare in ((1, "min", relax.op.maximum), (2, "max", relax.op.minimum)):
        bound = _bound(inputs[place : place + 1], attrs.get(name))
        if bound is None:  # computed: NaN as the second operand stays
            if inputs[place].ty.ndim:
                return None
            value = bb.emit(compare(inputs[place], value))
        elif bound.size and not np.isnan(bound).any():  # NaN bounds nothing
            value = bb.emit(compare(value, relax.const(bound.reshape(()), dtype)))
    return value


def leaky_relu(bb: Any, inputs: list[Any], attrs: dict[str, Any]) -> Expr | None:
    """Return the larger of a value and a part of it; TVM's own operator has no layout, and is not fused."""
    x, alpha = inputs[0], float(attrs.get("alpha", 0.01))
    if not 0 < alpha <= 1:
        return None
    return relax.op.maximum(x, bb.emit(relax.op.multiply(x, relax.const(alpha, x.ty.dtype))))


def hard_sigmoid(bb: Any, inputs: list[Any], attrs: dict[str, Any]) -> Expr:
    """Return ``max(0, min(1, alpha * x + beta))`` of operators that have a layout."""
    x, parts = inputs[0], (attrs.get("alpha", 0.2), attrs.get("beta", 0.5), 0.0, 1.0)
    alpha, beta, zero, one = (relax.const(float(part), x.ty.dtype) for part in parts)
    line = bb.emit(relax.op.add(bb.emit(relax.op.multiply(x, alpha)), beta))
    return relax.op.minimum(bb.emit(relax.op.maximum(line, zero)), one)


def hard_swish(bb: Any, inputs: list[Any], attrs: dict[str, Any]) -> Expr:
    return relax.op.multiply(inputs[0], bb.emit(hard_sigmoid(bb, inputs, {"alpha": 1 / 6})))


def _bound(given: list[Any], attribute: Any) -> Array | None:
    """Return the only bound that an input or an attribute gives, or none; None if it is computed."""
    if given and given[0] is not None:
        return given[0].value.numpy() if is_constant(given[0]) else None
    return np.array([] if attribute is None else [attribute])


def _cast(bb: Any, inputs: list[Any], attrs: dict[str, Any]) -> Expr | None:
    """Return floats between two constants as integers; TVM's importer looks for NaN and for what does not fit.

    For int32 it computes in 64 bits, for which most processors have no vectors. Here what does not fit, and NaN, become
    the least number, as the instruction of x86 says, and so onnxruntime.
    """
    dtype = helper.tensor_dtype_to_np_dtype(attrs["to"])
    given = str(getattr(inputs[0].ty, "dtype", "")) if isinstance(inputs[0], relax.Expr) else ""
    if dtype == "int32" and given in ("float32", "float64") and not is_constant(inputs[0]):
        limit = [relax.const(np.asarray(sign * 2.0**31, given), given) for sign in (1, -1)]
        fits = bb.emit(relax.op.less(bb.emit(relax.op.abs(inputs[0])), limit[0]))
        return relax.op.astype(bb.emit(relax.op.where(fits, inputs[0], limit[1])), "int32")
    if dtype.kind not in "iu" or dtype.itemsize > 2:
        return None
    value, bounds = inputs[0], {}
    for name in ("relax.minimum", "relax.maximum"):
        value = bb.lookup_binding(value) if isinstance(value, relax.Var) else value
        if not isinstance(value, relax.Call) or getattr(value.op, "name", "") != name or not is_constant(value.args[1]):
            return None
        bounds[name] = value.args[1].value.numpy()
        value = value.args[0]
    limits = np.iinfo(dtype)
    if bounds["relax.maximum"].min() < limits.min or bounds["relax.minimum"].max() > limits.max:
        return None
    return relax.op.astype(inputs[0], str(dtype))


def _sampled(bb: Any, inputs: list[Any], attrs: dict[str, Any]) -> None:
    """Refuse a GridSample of other elements than floats, of which nobody says how they are rounded."""
    if str(inputs[0].ty.dtype) not in _FLOATS:
        raise RefusedError(f"elements of {inputs[0].ty.dtype} are not supported")


def _equal(bb: Any, inputs: list[Any], attrs: dict[str, Any]) -> Expr | None:
    """Return whether two truth values are the same; TVM compares them as floats."""
    if str(inputs[0].ty.dtype) != "bool":
        return None
    return relax.op.logical_not(bb.emit(relax.op.logical_xor(*inputs)))


def _wide(function: Callable[[Expr], Expr]) -> Callable[[Any, list[Any], dict[str, Any]], Expr | None]:
    """Return what computes a function of float16 in float32; TVM has it for no less."""

    def convert(bb: Any, inputs: list[Any], attrs: dict[str, Any]) -> Expr | None:
        if str(inputs[0].ty.dtype) != "float16":
            return None
        return relax.op.astype(bb.emit(function(bb.emit(relax.op.astype(inputs[0], "float32")))), "float16")

    return convert


def softplus(bb: Any, inputs: list[Any], attrs: dict[str, Any]) -> Expr:
    """Return log(1 + e**x), exact where it is small, too: TVM's importer adds the small number to 1 first.

    It is max(x, 0) + log(1 + u) for u = e**-|x|; and log(1 + u) = 2 * atanh(s) for s = u / (2 + u), at most 1/3, is
    a series.
    """
    x = inputs[0]
    dtype = str(x.ty.dtype)

    def c(value: float) -> Expr:
        return relax.const(value, dtype)

    u = bb.emit(relax.op.exp(relax.op.negative(relax.op.abs(x))))
    s = bb.emit(relax.op.divide(u, relax.op.add(u, c(2.0))))
    square = bb.emit(relax.op.multiply(s, s))
    terms = _SERIES.get(dtype, _SERIES["float32"])
    total = c(2.0 / (2 * terms - 1))
    for k in range(terms - 1, 0, -1):
        total = relax.op.add(relax.op.multiply(total, square), c(2.0 / (2 * k - 1)))
    return relax.op.add(relax.op.maximum(x, c(0.0)), bb.emit(relax.op.multiply(total, s)))


def _elu(alpha: float, scale: float = 1.0, *, divided: bool = False) -> Callable[..., Expr]:
    """Return what imports scale * (max(x, 0) + alpha * (e**min(x, 0) - 1)); Celu divides that x by alpha.

    TVM's importer writes it with a product of the exponential, which its pass for vectors cannot always read.
    """

    def convert(bb: Any, inputs: list[Any], attrs: dict[str, Any]) -> Expr:
        x, factor, outer = inputs[0], float(attrs.get("alpha", alpha)), float(attrs.get("gamma", scale))

        def c(value: float) -> Expr:
            return relax.const(value, str(x.ty.dtype))

        low = bb.emit(relax.op.minimum(relax.op.divide(x, c(factor)) if divided else x, c(0.0)))
        below = bb.emit(relax.op.multiply(relax.op.subtract(relax.op.exp(low), c(1.0)), c(outer * factor)))
        above = bb.emit(relax.op.maximum(x, c(0.0)))
        return relax.op.add(above if outer == 1 else bb.emit(relax.op.multiply(above, c(outer))), below)

    return convert


def _hyperbolic(sign: int) -> Callable[[Any, list[Any], dict[str, Any]], Expr]:
    """Return what imports cosh(x) = (e**|x| + e**-|x|) / 2, or with the other sign sinh(x), a series near 0.

    TVM has no code for vectors of them.
    """

    def convert(bb: Any, inputs: list[Any], attrs: dict[str, Any]) -> Expr:
        given = inputs[0]
        kind = str(given.ty.dtype)
        wide = "float32" if kind == "float16" else kind
        x = given if wide == kind else bb.emit(relax.op.astype(given, wide))

        def c(value: float) -> Expr:
            return relax.const(value, wide)

        size = bb.emit(relax.op.maximum(x, relax.op.negative(x)))
        e = bb.emit(relax.op.exp(size))
        part = relax.op.divide(c(0.5), e)
        made = bb.emit((relax.op.add if sign > 0 else relax.op.subtract)(relax.op.multiply(e, c(0.5)), part))
        if sign < 0:
            square = bb.emit(relax.op.multiply(x, x))
            total = c(1.0)
            for k in range(2 * _SERIES.get(wide, _SERIES["float32"]), 1, -2):
                total = relax.op.add(relax.op.multiply(total, relax.op.multiply(square, c(1 / (k * (k + 1))))), c(1.0))
            signed = relax.op.where(relax.op.less(x, c(0.0)), relax.op.negative(made), made)
            made = bb.emit(relax.op.where(relax.op.less(size, c(1.0)), relax.op.multiply(total, x), signed))
        return made if wide == kind else relax.op.astype(made, kind)

    return convert


def mish(bb: Any, inputs: list[Any], attrs: dict[str, Any]) -> Expr:
    return relax.op.multiply(inputs[0], bb.emit(relax.op.tanh(bb.emit(softplus(bb, inputs, attrs)))))


# What TVM computes in another type than it says, and how many inputs decide: GridSample in float32, sums of integers in
# 64 bits.
_OTHER_TYPES = {"GridSample": 2, "RoiAlign": 2, "ReduceMean": 1, "ReduceSumSquare": 1, "ReduceL1": 1}
# Reductions that change each element, too.
_EACH: Mapping[str, Callable[[Expr], Expr]] = {
    "ReduceL1": relax.op.abs, "ReduceL2": relax.op.abs, "ReduceLogSum": relax.op.log,
    "ReduceSumSquare": lambda x: relax.op.multiply(x, x),
}  # fmt: skip
# What reads or writes where its second input says; TVM's functions for them do not look whether that is inside.
_INDEXED = {"GatherElements", "GatherND", "ScatterElements", "ScatterND"}
_FLOATS = {"float16", "float32", "float64"}
_ROUNDED = {"float16", "bfloat16"}  # whose powers are not products, each of which would be rounded


def _tree_sums(bb: Any, inputs: list[Any], attrs: dict[str, Any]) -> Expr:
    """Return the sums of an ensemble of trees, which a kernel computes that is written already."""
    rows, features = (int(extent) for extent in inputs[0].ty.shape)
    words = ("nodes", "splits", "roots", "leaf_targets", "leaf_weights")
    tables = {word: each.value.numpy() for word, each in zip(words, inputs[1:], strict=True)}
    targets = int(attrs["targets"])
    kernel = tree_kernel(rows, features, tables, targets, AGGREGATES[int(attrs["aggregate"])])
    return call_kernel(bb, kernel, "trees", inputs, [((rows, targets), inputs[0].ty.dtype)])


def _topk(bb: Any, inputs: list[Any], attrs: dict[str, Any]) -> Expr | None:
    """Return the best values and their places; TVM's importer calls its own library for them."""
    extents = getattr(inputs[0].ty, "shape", None)
    k = _array(inputs, 1) if len(inputs) > 1 else np.asarray(attrs["k"])
    if k is None or extents is None or not all(isinstance(extent, tirx.IntImm) for extent in extents):
        return None
    shape, count = [int(extent) for extent in extents], int(k.reshape(-1)[0])
    axis = int(attrs.get("axis", -1)) % len(shape)
    if not 0 < count <= shape[axis]:
        raise RefusedError(f"it wants {count} of {shape[axis]} elements")
    parts = (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
    dtype = str(inputs[0].ty.dtype)
    kernel = topk_kernel(*parts, count, dtype, bool(attrs.get("largest", 1)))
    flat = bb.emit(relax.op.reshape(inputs[0], parts))
    made = (parts[0], count, parts[2])
    both = bb.emit(call_kernel(bb, kernel, "topk", [flat], [(made, dtype), (made, "int64")]))
    shape[axis] = count
    return relax.Tuple([bb.emit(relax.op.reshape(bb.emit(relax.TupleGetItem(both, k)), shape)) for k in range(2)])


def _products_so_far(bb: Any, inputs: list[Any], attrs: dict[str, Any]) -> Expr:
    """Return the products of the elements up to each one, or of those before it."""
    axis = _array(inputs, 1)
    if axis is None:
        raise ValueError("its axis is computed")
    x, place = inputs[0], int(axis.reshape(-1)[0])
    turned = bool(attrs.get("reverse", 0))
    x = bb.emit(relax.op.flip(x, place)) if turned else x
    made = relax.op.cumprod(x, place, exclusive=bool(attrs.get("exclusive", 0)))
    return relax.op.flip(bb.emit(made), place) if turned else made


OWN: Mapping[str, Callable[[Any, list[Any], dict[str, Any]], Any]] = {
    "ArgMax": best_place(largest=True),
    "ArgMin": best_place(largest=False),
    "ConvInteger": _convolution,
    "CumSum": sums_so_far,
    "CumProd": _products_so_far,
    "Equal": _equal,
    "GridSample": _sampled,
    **{name: _wide(getattr(relax.op, name.lower())) for name in ("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh")},
    "Celu": _elu(1.0, divided=True),
    "Cosh": _hyperbolic(1),
    "Elu": _elu(1.0),
    "Selu": _elu(1.67326319217681884765625, 1.05070102214813232421875),
    "Sinh": _hyperbolic(-1),
    "MatMulInteger": _product,
    "Max": _extreme(relax.op.maximum),
    "Min": _extreme(relax.op.minimum),
    "ScatterElements": scattered_elements,
    "ScatterND": scattered,
    "Sign": _sign,
    "ThresholdedRelu": _thresholded,
    "Cast": _cast,
    TREE_SUMS: _tree_sums,
    "Clip": _clipped,
    "TopK": _topk,
    "Pow": _power,
    "Softplus": softplus,
    "Mish": mish,
    "LeakyRelu": leaky_relu,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": hard_swish,
}
