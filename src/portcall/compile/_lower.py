# SPDX-License-Identifier: Apache-2.0
"""From a module of Relax to functions of TVM's: decomposition, layout, legalization, fusion."""

from __future__ import annotations

import functools
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from portcall.compile._constants import fold_with_numpy
from portcall.compile._labels import Labels
from portcall.compile._legal import LegalizeOps, is_fixed
from portcall.compile._products import is_product
from portcall.compile._program import is_constant
from portcall.compile._target import Target
from portcall.compile._transposed import legalize

_DATA, _WEIGHTS = "NHWC", "HWIO"  # the channels, the vector axis, lie in a row
_LAYOUT = {name: [_DATA, _WEIGHTS] for name in ("relax.nn.conv2d", "relax.nn.conv2d_transpose")}
_CONVOLUTION, _TRANSPOSED = (tvm.ir.Op.get(name) for name in _LAYOUT)
_CALL_TIR = tvm.ir.Op.get("relax.call_tir")
_MOST_WORK = 2.0  # times that of a transposed convolution, by zeros
_FEW = 8  # values whose concatenation may be part of what reads it
# Of calls without a convolution: how many in a row are kept from the pass for layouts, and how many beside one are not.
_LONG, _NEAR = 256, 32
# Of TVM's OpPatternKind: the largest that is one element by one, what moves elements, and what is never fused.
_BROADCAST, _INJECTIVE, _OPAQUE = 1, 2, 8


def lower(modules: list[Any], target: Target, labels: Labels | None = None) -> Any:
    """Return a module with a function for each step of the model, chains of element-wise operators fused.

    Batch normalizations are folded into convolutions before they are decomposed. Constants are folded with NumPy; what
    is left of them TVM compiles, which takes a hundred times as long.

    Parameters:
        modules: the module alone; it is taken out, so that weights go when there are others in their place.
    """
    module, transform = modules.pop(), relax.transform
    convolves = _has_convolution(module)
    passes = [
        transform.CanonicalizeBindings(),
        transform.FoldBatchnormToConv2D(),
        transform.DecomposeOpsForInference(),
        transform.CanonicalizeBindings(),
        fold_with_numpy,
        FoldRest(),
        *([ConvertLayout(), transform.Normalize(), fold_with_numpy, FoldRest(), PointwiseProducts()] * convolves),
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        LegalizeOps({_TRANSPOSED.name: legalize}),
        transform.AnnotateTIROpPattern(),
        transform.FoldConstant(),
        KeepApart(),
        *(labels.around(transform.FuseOps()) if labels else [transform.FuseOps()]),
        transform.FuseTIR(),
        transform.RewriteDataflowReshape(),
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.DeadCodeElimination(),
        transform.CanonicalizeBindings(),
        transform.ExpandTupleArguments(),
    ]
    with target.tvm:
        while passes:
            module = passes.pop(0)(module)  # a pass keeps what it was given
        return module


def lower_functions(module: Any, target: Target) -> Any:
    """Return a module of several functions, which may call each other and others' code, lowered as it is.

    Weights that are parameters are read as they lie: TVM's own passes transpose them at each call.
    """
    transform = relax.transform
    passes = [
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        FuseTransposed(),
        transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(),
        transform.FoldConstant(),
        transform.FuseOps(),
        transform.FuseTIR(),
        transform.RewriteDataflowReshape(),
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.DeadCodeElimination(),
    ]
    with target.tvm:
        return tvm.transform.Sequential(passes)(module)


def FuseTransposed() -> Any:
    """Return TVM's pass for products with a transposed matrix, where it can.

    It fails where a product is of a matrix with itself, and where the transposed matrix is read by others, too.
    """

    def run(module: Any, context: Any) -> Any:
        try:
            return relax.transform.FuseTransposeMatmul()(module)
        except (IndexError, AttributeError):  # other passes do the rest
            return module

    return tvm.transform.module_pass(run, opt_level=0, name="FuseTransposed")


def FoldRest() -> Any:
    """Return TVM's pass that folds constants, for modules where one is left: it looks for code for every call."""

    def run(module: Any, context: Any) -> Any:
        values = [binding.value for block in module["main"].body.blocks for binding in block.bindings]
        found = any(isinstance(value, relax.Call) and all(map(_is_known, value.args)) for value in values)
        return relax.transform.FoldConstant()(module) if found else module

    return tvm.transform.module_pass(run, opt_level=0, name="FoldRest")


def _is_known(e: Any) -> bool:
    """Tell whether what a call reads is the same at each run."""
    if isinstance(e, relax.Tuple):
        return all(map(_is_known, e.fields))
    return is_constant(e) or not isinstance(e, relax.Var | relax.Call | relax.TupleGetItem)


def ConvertLayout() -> Any:
    """Return a pass that lets convolutions have the layout that is wanted, and what is around them as far as TVM can.

    Where it cannot, as with values of five axes, each convolution is put between two changes of the layout. The time of
    TVM's pass grows with the square of the calls: a long row of them without a convolution, such as the turns of a
    loop, is kept from it.
    """

    def run(module: Any, context: Any) -> Any:
        try:
            parts = _parts(module["main"])
            return _by_parts(module, parts) if len(parts) > 1 else relax.transform.ConvertLayout(_LAYOUT)(module)
        except Exception:  # TVM's class for it is not public
            return _changed(module, _Layout(module))

    return tvm.transform.module_pass(run, opt_level=0, name="ConvertLayout")


def _parts(function: Any) -> list[tuple[bool, list[Any]]]:
    """Return the bindings of a function in rows, and whether there are convolutions in or near each."""
    bindings = [binding for block in function.body.blocks for binding in block.bindings]
    if len(function.body.blocks) != 1 or not all(map(is_fixed, [*function.params, *(b.var for b in bindings)])):
        return [(True, bindings)]  # what an extent is may be said in another part
    places = [place for place, binding in enumerate(bindings) if _is_convolution(binding.value)]
    parts, done = [], 0
    for last, following in zip([-_NEAR, *places], [*places, len(bindings) + _NEAR], strict=True):
        start, stop = last + _NEAR, following - _NEAR
        if stop - start >= _LONG:
            parts += [(True, bindings[done:start])] * (start > done) + [(False, bindings[start:stop])]
            done = stop
    return [*parts, *[(True, bindings[done:])] * (done < len(bindings))]


def _by_parts(module: Any, parts: list[tuple[bool, list[Any]]]) -> Any:
    """Return a module with other layouts in parts of its function, each of which is a function meanwhile."""
    main, function, made = module.get_global_var("main"), module["main"], []
    read = [{variable for binding in part for variable in relax.analysis.free_vars(binding.value)} for _, part in parts]
    read.append(set(relax.analysis.free_vars(function.body.body)))
    for place, (changes, part) in enumerate(parts):
        if not changes:
            made += part
            continue
        own = {binding.var: None for binding in part}
        left = [variable for variable in own if any(variable in following for following in read[place + 1 :])]
        result = relax.Var("left", relax.TupleType([variable.ty for variable in left]))
        block = relax.DataflowBlock([*part, relax.VarBinding(result, relax.Tuple(left))])
        given = [variable for variable in read[place] if variable not in own]
        alone = relax.Function(given, relax.SeqExpr([block], result), result.ty)
        changed = relax.transform.ConvertLayout(_LAYOUT)(tvm.IRModule({main: alone}))[main]
        changed = changed.bind_params(dict(zip(changed.params, given, strict=True)))
        bindings = {binding.var: binding for block in changed.body.blocks for binding in block.bindings}
        values = bindings.pop(changed.body.body).value.fields
        made += bindings.values()
        made += [relax.VarBinding(v, value) for v, value in zip(left, values, strict=True) if not v.same_as(value)]
    body = relax.SeqExpr([relax.DataflowBlock(made)], function.body.body)
    module.update_func(main, relax.Function(function.params, body, function.ret_ty, function.is_pure, function.attrs))
    return module


@mutator
class _Layout(PyExprMutator):  # type: ignore[misc]
    """Changes the layout in front of each convolution, and back after it."""

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if call.op not in (_CONVOLUTION, _TRANSPOSED) or call.attrs.data_layout != "NCHW":
            return call
        turned = call.op == _TRANSPOSED
        data, weights = (
            self.builder_.emit(relax.op.permute_dims(part, order))
            for part, order in zip(call.args, ([0, 2, 3, 1], [2, 3, 0, 1] if turned else [2, 3, 1, 0]), strict=True)
        )
        words = {name: list(map(int, getattr(call.attrs, name))) for name in ("strides", "padding", "dilation")}
        operator = relax.op.nn.conv2d
        if turned:
            operator, words["output_padding"] = relax.op.nn.conv2d_transpose, list(map(int, call.attrs.output_padding))
        made = operator(
            data, weights, **words, groups=int(call.attrs.groups), data_layout=_DATA, kernel_layout=_WEIGHTS,
            out_dtype=call.attrs.out_dtype,
        )  # fmt: skip
        return relax.op.permute_dims(self.builder_.emit(made), [0, 3, 1, 2])


def PointwiseProducts() -> Any:
    """Return a pass that writes 1x1 convolutions of pictures of unknown sizes as products of rows of pixels.

    Transposed ones of unknown sizes go back to the layout that TVM has code for.
    """

    def run(module: Any, context: Any) -> Any:
        return _changed(module, _Pointwise(module))

    return tvm.transform.module_pass(run, opt_level=0, name="PointwiseProducts")


@mutator
class _Pointwise(PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if call.op == _TRANSPOSED and call.attrs.data_layout == _DATA:
            known = all(isinstance(extent, tirx.IntImm) for extent in call.args[0].ty.shape)
            return call if known else self._transposed(call)
        if call.op != _CONVOLUTION or (call.attrs.data_layout, call.attrs.kernel_layout) != (_DATA, _WEIGHTS):
            return call
        data, weights = call.args
        numbers = [int(n) for n in (*call.attrs.strides, *call.attrs.dilation, call.attrs.groups)]
        shape, kernel = list(data.ty.shape), list(weights.ty.shape)
        fixed = all(isinstance(extent, tirx.IntImm) for extent in shape)
        if fixed or any(int(n) != 1 for n in (*numbers, *kernel[:2])) or any(int(n) for n in call.attrs.padding):
            return call
        if not is_constant(weights):
            return call
        matrix = weights.value.numpy().reshape([int(extent) for extent in kernel[2:]])
        return relax.op.matmul(data, relax.const(matrix))

    def _transposed(self, call: Any) -> Any:
        """Return a transposed convolution as another operator, or in the layout in which alone TVM has code for it."""
        made = self._beside(call)
        if made is not None:
            return made
        data = self.builder_.emit(relax.op.permute_dims(call.args[0], [0, 3, 1, 2]))
        attrs, weights = call.attrs, call.args[1]
        if attrs.kernel_layout == _WEIGHTS:
            weights = self.builder_.emit(relax.op.permute_dims(weights, [2, 3, 0, 1]))
        numbers = (
            list(map(int, each)) for each in (attrs.strides, attrs.padding, attrs.output_padding, attrs.dilation)
        )
        made = relax.op.nn.conv2d_transpose(data, weights, *numbers, int(attrs.groups), "NCHW", "IOHW")
        return relax.op.permute_dims(self.builder_.emit(made), [0, 2, 3, 1])

    def _beside(self, call: Any) -> Any | None:
        """Return a transposed convolution as one of stride 1 that makes all pixels of a stride at once, as channels.

        They are put beside each other then. None where that is too much work, as the window is filled up with zeros.
        """
        (data, weights), attrs, emit = call.args, call.attrs, self.builder_.emit
        if not is_constant(weights) or int(attrs.groups) != 1 or any(int(step) != 1 for step in attrs.dilation):
            return None
        array = weights.value.numpy()
        array = array if attrs.kernel_layout == _WEIGHTS else array.transpose(2, 3, 0, 1)
        strides, pads, more = (list(map(int, each)) for each in (attrs.strides, attrs.padding, attrs.output_padding))
        window, (c, o) = array.shape[:2], array.shape[2:]
        taps = [-(-size // stride) for size, stride in zip(window, strides, strict=True)]
        filled = [tap * stride for tap, stride in zip(taps, strides, strict=True)]
        left = [
            full - size + end - extra for full, size, end, extra in zip(filled, window, pads[2:], more, strict=True)
        ]
        if min(left) < 0 or prod(filled) > _MOST_WORK * prod(window):
            return None
        wide = np.zeros((*filled, c, o), array.dtype)
        wide[: window[0], : window[1]] = array
        (rows, columns), (down, across) = strides, taps
        parts = wide.reshape(down, rows, across, columns, c, o)[::-1, :, ::-1].transpose(0, 2, 4, 1, 3, 5)
        kernel = relax.const(np.ascontiguousarray(parts.reshape(down, across, c, rows * columns * o)))
        if down == across == 1:
            pixels = emit(relax.op.matmul(data, relax.const(kernel.value.numpy()[0, 0])))
        else:
            padding = [down - 1, across - 1] * 2
            pixels = emit(relax.op.nn.conv2d(data, kernel, padding=padding, data_layout=_DATA, kernel_layout=_WEIGHTS))
        n, height, width, _ = pixels.ty.shape
        apart = emit(relax.op.reshape(pixels, [n, height, width, rows, columns, o]))
        beside = emit(relax.op.permute_dims(apart, [0, 1, 3, 2, 4, 5]))
        whole = emit(relax.op.reshape(beside, [n, height * rows, width * columns, o]))
        if not any((*left, *pads)):
            return whole
        _, oh, ow, _ = call.ty.shape
        ends = [pads[0] + oh, pads[1] + ow]
        return relax.op.strided_slice(whole, [1, 2], pads[:2], ends, assume_inbound=True)


def _changed(module: Any, mutator: Any) -> Any:
    """Return the module with its function changed by a mutator."""
    module.update_func(module.get_global_var("main"), mutator.visit_expr(module["main"]))
    return module


def KeepApart() -> Any:
    """Return a pass that keeps some functions out of their readers, into which FuseOps would put them.

    One is what follows a product, and is smaller than its reader: in one function no rule for products finds its sums
    in the places of the result, such as the gate of each channel in all pixels. Another is a concatenation of many,
    such as the turns of a loop: what reads it would have a choice in a choice for each. A Slice from the
    first element on, which TVM takes for one that goes element by element, is not fused with the product in front.
    """

    def run(module: Any, context: Any) -> Any:
        makers: dict[Any, Any] = {}  # the function that makes what follows a product, by its variable
        small: set[Any] = set()
        is_product_of = functools.cache(lambda name: is_product(module[name]))  # equal steps share their function
        for binding in (binding for block in module["main"].body.blocks for binding in block.bindings):
            call, variable = binding.value, binding.var
            if not isinstance(call, relax.Call) or call.op != _CALL_TIR:
                continue
            name, following = call.args[0], [part for part in call.args[1] if part in makers]
            if name.name_hint.startswith("concatenate") and len(call.args[1]) > _FEW:
                small.add(name)
            one_by_one = int(module[name].attrs.get("op_pattern", _OPAQUE)) <= _BROADCAST
            if one_by_one and any(_is_cut(part, variable) for part in call.args[1]):
                module.update_func(name, module[name].with_attr("op_pattern", _INJECTIVE))
                one_by_one = False
            if one_by_one:  # others, such as a concatenation, are not fused with what follows a product
                small.update(makers[part] for part in following if _size(part) < _size(variable))
            if following if one_by_one else is_product_of(name):
                makers[variable] = name
        for name in small:
            module.update_func(name, module[name].with_attr("op_pattern", _OPAQUE))
        return module

    return tvm.transform.module_pass(run, opt_level=0, name="KeepApart")


def _is_cut(e: Any, result: Any) -> bool:
    """Tell whether a result has less of an axis than the tensor that it is made of."""
    shapes: list[Any] = [getattr(each.ty, "shape", None) for each in (e, result)]
    if not all(isinstance(shape, relax.ShapeExpr) for shape in shapes):
        return False
    given, made = (list(shape) for shape in shapes)
    pairs = [pair for pair in zip(given, made, strict=False) if all(isinstance(each, tirx.IntImm) for each in pair)]
    return len(given) == len(made) and any(int(a) > int(b) for a, b in pairs)


def _size(e: Any) -> int:
    """Return how many elements a tensor has; none of anything else."""
    shape = getattr(e.ty, "shape", None)
    extents = list(shape) if isinstance(shape, relax.ShapeExpr) else [0]
    return prod(int(extent) if isinstance(extent, tirx.IntImm) else 0 for extent in extents)


def _is_convolution(e: Any) -> bool:
    return isinstance(e, relax.Call) and e.op in (_CONVOLUTION, _TRANSPOSED)


def _has_convolution(module: Any) -> bool:
    """Tell whether there is anything to choose a layout for: without it the pass fails on some operators."""
    found: list[bool] = []

    def visit(e: Any) -> None:
        found.append(_is_convolution(e))

    relax.analysis.post_order_visit(module["main"], visit)
    return any(found)
