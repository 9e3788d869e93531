# SPDX-License-Identifier: Apache-2.0
"""Kernels of the rules for functions of a module for the Relax VM, also where extents in front are not known.

What a function does to each element of its axes in front, such as batch and sequence, it does to a chunk of them: the
kernel of a chunk, whose extents are known, is run for as many as there are, and that of a smaller chunk for the rest.
Constants are packed when the model is compiled. Other functions are TVM's own.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.relax.expr_functor import PyExprMutator, mutator

from portcall.compile._convolution import Variant, choose_tile, weights_of, write_convolution
from portcall.compile._default import schedule_open
from portcall.compile._kernels import Kernel, Rules
from portcall.compile._linked import Weights, array_of, is_large
from portcall.compile._parameters import CHUNKS, PARAMETERS, read_parameters, with_matrix
from portcall.compile._pictures import write_picture
from portcall.compile._products import Product
from portcall.compile._program import Call, Program, Value, is_constant
from portcall.compile._reading import NotThisKindError, Reading, walk
from portcall.compile._registers import Result
from portcall.compile._target import Target
from portcall.compile._tiles import Tile
from portcall.compile._writer import Writer

_CALL_TIR = tvm.ir.Op.get("relax.call_tir")
_DEFAULT, _NAMED = "default", "portcall.named"
_ROWS = (64, 8, 1)  # of a product, in chunks; the second for what is left of the first, and the third for the rest
_FEW = 16  # elements of a chunk that are not worth a separate kernel


@dataclass(frozen=True)
class _Open:
    """Which extents of a function are not known: those in front, the same of all tensors that have any.

    Attributes:
        prefix: these extents: variables, and 1.
        sliced: which parameters have them.
    """

    prefix: tuple[Any, ...]
    sliced: tuple[bool, ...]

    def total(self) -> Any:
        return prod((e for e in self.prefix if not isinstance(e, tirx.IntImm)), start=tirx.const(1, "int64"))


def use_rules(
    module: Any,
    target: Target,
    winograd: str,
    names: Mapping[str, str] | None = None,
    weights: Weights | None = None,
) -> tuple[Any, Mapping[str, int]]:
    """Return a lowered module with kernels of the rules, and how many kernels each rule wrote.

    Parameters:
        names: how profiles are to call functions, by TVM's names.
        weights: where large weights are packed later, when they are written. Without it they are packed here.
    """
    functions = {
        str(name.name_hint): function
        for name, function in module.functions_items()
        if isinstance(function, tirx.PrimFunc)
    }
    changed = _Calls(module, functions, target, winograd, names or {}, weights)
    for name, function in list(module.functions_items()):
        if isinstance(function, relax.Function):
            changed.read(function)
            changed.builder_.update_func(name, changed.visit_expr(function))
    made = changed.builder_.get()
    for name in list(made.get_global_vars()):
        function = made[name]
        if isinstance(function, tirx.PrimFunc) and changed.rules.get(_name_of(name)) == _DEFAULT:
            made.update_func(name, schedule_open(function))
    made = relax.transform.DeadCodeElimination()(made)
    rules = Counter(changed.rules[name] for name in map(_name_of, made.get_global_vars()) if name in changed.rules)
    return made, dict(rules.most_common())


def _name_of(variable: Any) -> str:
    return str(variable.name_hint)


@mutator
class _Calls(PyExprMutator):  # type: ignore[misc]
    """Lets calls of functions of TVM's be calls of kernels."""

    def __init__(
        self,
        module: Any,
        functions: Mapping[str, Any],
        target: Target,
        winograd: str,
        names: Mapping[str, str],
        weights: Weights | None,
    ) -> None:
        super().__init__(module)
        self.weights = weights
        self.functions, self.target, self.winograd, self.names = dict(functions), target, winograd, names
        self.rules: dict[str, str] = {}  # by the name of the function
        self._kernels: dict[Any, tuple[Any, Mapping[int, Any]] | None] = {}
        self._renamed: dict[str, Any] = {}
        self._constants: dict[Any, Any] = {}
        self._values: dict[Any, Any] = {}

    def read(self, function: Any) -> None:
        """Note what the variables of a function are, before it is visited."""
        blocks = getattr(function.body, "blocks", ())
        self._values = {binding.var: binding.value for block in blocks for binding in block.bindings}

    def visit_call_(self, call: Any) -> Any:
        given = call
        call = self.visit_expr_post_order(call)
        if call.op != _CALL_TIR or not isinstance(call.args[1], relax.Tuple):
            return call
        name, arguments = str(call.args[0].name_hint), list(call.args[1].fields)
        found = self._of_matrix(name, arguments, given.args[1].fields)
        if found is None:
            found = self._found(name, arguments)
            if found is None:
                return relax.Call(call.op, [self._default(call.args[0]), *call.args[1:]], call.attrs, call.ty_args)
        variable, packs = found
        for place, (pack, packed) in packs.items():
            arguments[place] = self._packed(name, place, arguments[place], pack, packed)
        return relax.call_tir(variable, relax.Tuple(arguments), call.ty_args[0])

    def _found(self, name: str, arguments: Sequence[Any]) -> tuple[Any, Mapping[int, Any]] | None:
        key = (name, tuple(is_constant(each) for each in arguments))
        if key not in self._kernels:
            self._kernels[key] = self._kernel(name, arguments)
        return self._kernels[key]

    def _default(self, variable: Any) -> Any:
        """Return a function of TVM's under the name that it is to have."""
        name = _name_of(variable)
        if name in self.names and name not in self._renamed:
            function = self.functions[name].with_attr(_NAMED, True)  # equal ones become one, but not the one without it
            self._renamed[name] = self.builder_.add_func(function, self.names[name])
        variable = self._renamed.get(name, variable)
        self.rules[_name_of(variable)] = _DEFAULT
        return variable

    def _of_matrix(self, name: str, arguments: list[Any], given: Sequence[Any]) -> tuple[Any, Mapping[int, Any]] | None:
        """Return the kernel of a product that computes its matrix itself, and put what it takes for that in its place.

        Parameters:
            given: the arguments as they were before anything was changed.
        """
        for place, variable in enumerate(given):
            call = self._values.get(variable)
            if not isinstance(call, relax.Call) or call.op != _CALL_TIR:
                continue
            producer = self.functions[str(call.args[0].name_hint)]
            if not any(str(getattr(each, "dtype", "")).startswith("uint") for each in producer.params):
                continue
            both, parts = (
                f"{call.args[0].name_hint}_{name}_{place}",
                [self.visit_expr(each) for each in call.args[1].fields],
            )
            try:
                self.functions.setdefault(both, with_matrix(self.functions[name], place, producer))
            except NotThisKindError:
                continue
            changed = [*arguments[:place], *parts, *arguments[place + 1 :]]
            found = self._kernels.get(both) or self._kernel(both, changed, only=PARAMETERS)
            if found is not None:
                self._kernels[both] = found
                arguments[:] = changed
                return found
        return None

    def _packed(self, name: str, place: int, constant: Any, pack: Any, packed: Any) -> Any:
        """Return a constant as a kernel wants it.

        Parameters:
            packed: the kernel's buffer for it.
        """
        array = array_of(constant)
        key = (name, place, array.shape, hashlib.sha256(np.ascontiguousarray(array).data).digest())
        if key not in self._constants:
            make: Callable[[], Any] = lambda: np.ascontiguousarray(pack(array))  # noqa: E731
            shape, dtype = _shape(packed), str(packed.dtype)
            later = self.weights if is_large(shape, np.dtype(dtype)) else None
            self._constants[key] = relax.const(make()) if later is None else later.later(shape, dtype, make)
        return self._constants[key]

    def _kernel(self, name: str, arguments: Sequence[Any], only: str = "") -> tuple[Any, Mapping[int, Any]] | None:
        """Return the kernel of a function, and how its constants are packed, into which buffer; None without a rule."""
        function = self.functions[name]
        if len(function.params) != len(arguments) + 1:
            return None
        try:
            made, kernel = _write(name, function, arguments, self.target, self.winograd)
        except NotThisKindError:
            try:
                kernel = write_picture(name, function, [is_constant(each) for each in arguments], self.target)
            except NotThisKindError:
                return None
            made = kernel.function
        if only and kernel.rule != only:
            return None
        variable = self.builder_.add_func(made, self.names.get(name, f"{name}_chunks"))
        self.rules[str(variable.name_hint)] = kernel.rule
        return variable, {place: (pack, made.params[place]) for place, pack in kernel.packs.items()}


def _write(name: str, function: Any, arguments: Sequence[Any], target: Target, winograd: str) -> tuple[Any, Kernel]:
    if not all(hasattr(each, "shape") for each in function.params):
        raise NotThisKindError("extents among the parameters")
    known = _open_extents(function)
    if known is None:
        (kernel,) = _kernels(name, [function], arguments, target, winograd)
        return _joined(function, None, [(1, kernel)]), kernel
    rows: Sequence[int] = [each for each in _ROWS if each == 1 or _is_small(function, known)]
    if _has_parameter(_of(function, known, 1), arguments):
        rows = CHUNKS
    chunks = [_of(function, known, count) for count in rows]
    kernels = _kernels(name, chunks, arguments, target, winograd)
    return _joined(function, known, list(zip(rows, kernels, strict=True))), kernels[0]


def _has_parameter(function: Any, arguments: Sequence[Any]) -> bool:
    """Tell whether a function is a product with a matrix that is not known yet."""
    try:
        product, _ = read_parameters(Reading(function))
    except NotThisKindError:
        return False
    return not is_constant(arguments[product.weights])


def _is_small(function: Any, known: _Open) -> bool:
    """Tell whether chunks of several elements are faster: of products of rows, and of what has few elements."""
    rest = [int(extent) for extent in list(function.params[-1].shape)[len(known.prefix) :]]
    reductions = [
        block for block in _blocks(function.body) if any(int(axis.iter_type) == 2 for axis in block.iter_vars)
    ]
    product = len(reductions) == 1 and sum(int(axis.iter_type) == 2 for axis in reductions[0].iter_vars) == 1
    return prod(rest) < _FEW or (len(rest) == 1 and product)


def _kernels(
    name: str, functions: Sequence[Any], arguments: Sequence[Any], target: Target, winograd: str
) -> list[Kernel]:
    """Return a kernel for each of some functions that differ in an extent in front; they share packed constants."""
    program = Program([], [], [], {f"{name}_{number}": each for number, each in enumerate(functions)})
    rules = Rules(program, target, winograd, False)
    found: list[Kernel] = []
    tile: Tile | None = None
    for number, function in enumerate(functions):
        inputs = [
            Value(
                str(buffer.name), _shape(buffer), str(buffer.dtype), each.value.numpy() if is_constant(each) else None
            )
            for buffer, each in zip(function.params, arguments, strict=False)
        ]
        output = function.params[-1]
        call = Call(f"{name}_{number}", inputs, [Value("output", _shape(output), str(output.dtype))])
        product = rules.product_of(call)
        if product is not None and len(functions) > 1:
            wanted = choose_tile(product.window, target, Variant())
            tile = wanted if tile is None else Tile(
                min(tile.rows, product.window.ow), tile.vectors, tile.weights_outside, tile.prefetch)  # fmt: skip
            found.append(_product(product, tile, target, name))
            continue
        kernel = rules.choose(call)
        if kernel.rule == _DEFAULT or (found and kernel.packs):
            raise NotThisKindError("no rule")
        found.append(kernel)
    return found


def _product(product: Product, tile: Tile, target: Target, name: str) -> Kernel:
    """Return a product of a few rows with a constant matrix, or a small convolution, packed for a tile of more."""
    window, reading = product.window, product.reading
    weights = weights_of(window, tile, target)
    w = Writer()
    steps = window.kh * window.kw * window.group_channels
    buffers = reading.buffers("", {reading.names[product.weights]: weights.size(steps)})
    *inputs, output = buffers.values()
    write_convolution(w, product, target, tile, Variant(), buffers, Result(output, window.o))
    return Kernel(name, "matrix product", w.function(inputs, [output]), {product.weights: weights.pack})


def _joined(function: Any, known: _Open | None, kernels: Sequence[tuple[int, Kernel]]) -> Any:
    """Return one function that runs the kernels, the largest chunks first."""
    packs = kernels[0][1].packs
    params = []
    for place, buffer in enumerate(function.params):
        packed = kernels[0][1].function.params[place] if place in packs else None
        shape = buffer.shape if packed is None else packed.shape
        params.append(tirx.decl_buffer(shape, buffer.dtype, name=f"{buffer.name}_whole"))
    statements, first = [], tirx.const(0, "int64")
    left = tirx.const(1, "int64") if known is None else known.total()
    for number, (rows, kernel) in enumerate(kernels):
        variable = tirx.Var(f"chunk_{number}", "int64")
        count = tirx.floordiv(left, tirx.const(rows, "int64")) if rows > 1 else left
        body: list[Any] = []
        for place, (flat, whole) in enumerate(zip(kernel.function.params, params, strict=True)):
            data = whole.data
            if known is not None and known.sliced[place]:
                size = int(flat.shape[0]) // rows * np.dtype(str(flat.dtype)).itemsize
                offset = (first + variable * rows) * size
                data = tirx.call_intrin("handle", "tirx.handle_add_byte_offset", whole.data, offset)
            body.append(tirx.DeclBuffer(flat, data=data))
        chunk = tirx.SeqStmt([*body, kernel.function.body])
        kind = tirx.stmt.ForKind.SERIAL
        statements.append(chunk if known is None else tirx.For(variable, tirx.const(0, "int64"), count, kind, chunk))
        first = first + count * rows
        left = tirx.floormod(left, tirx.const(rows, "int64")) if rows > 1 else left
    made = tirx.PrimFunc(params, statements[0] if len(statements) == 1 else tirx.SeqStmt(statements))
    return made.with_attr("tirx.noalias", True).with_attr("s_tir", True)


# ---- Extents that are not known --------------------------------------------------------------------------------------


def _shape(buffer: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in buffer.shape)


def _is_fixed(buffer: Any) -> bool:
    return all(isinstance(extent, tirx.IntImm) for extent in buffer.shape)


def _of(function: Any, known: _Open, count: int) -> Any:
    """Return a function for so many elements of the axes in front."""
    variables = [extent for extent in known.prefix if isinstance(extent, tirx.Var)]
    sizes = [*[1] * (len(variables) - 1), count]
    numbers = dict(zip((v.name for v in variables), sizes, strict=True))
    shapes = {}
    for buffer in function.params:
        if not _is_fixed(buffer):
            extents = [numbers[e.name] if isinstance(e, tirx.Var) else int(e) for e in buffer.shape]
            shapes[buffer] = tirx.decl_buffer([tirx.const(e, "int64") for e in extents], buffer.dtype, name=buffer.name)
    return function.specialize(shapes)


def _open_extents(function: Any) -> _Open | None:
    """Return which extents of a function are not known; None if all are.

    Raises:
        NotThisKindError: they are not in front, or elements of them depend on each other.
    """
    if all(map(_is_fixed, function.params)):
        return None
    shape = list(function.params[-1].shape)
    places = [place for place, extent in enumerate(shape) if not isinstance(extent, tirx.IntImm)]
    if not places:
        raise NotThisKindError("extents that are only read")
    prefix = tuple(shape[: places[-1] + 1])
    names = [extent.name for extent in prefix if isinstance(extent, tirx.Var)]
    if len(set(names)) != len(names) or any(not isinstance(e, tirx.Var) and str(e) not in _ONES for e in prefix):
        raise NotThisKindError("extents that are computed")
    sliced = tuple(_has(buffer, prefix) for buffer in function.params)
    for block in _blocks(function.body):
        _check(block, prefix)
    return _Open(prefix, sliced)


_ONES = ("1", "T.int64(1)")


def _has(buffer: Any, prefix: Sequence[Any]) -> bool:
    """Tell whether a tensor has the extents in front; one with others, or in other places, is not of this kind."""
    if _is_fixed(buffer):
        return False
    shape = list(buffer.shape)
    rest = shape[len(prefix) :]
    if len(shape) < len(prefix) or not all(isinstance(extent, tirx.IntImm) for extent in rest):
        raise NotThisKindError("extents that are not in front")
    for a, b in zip(shape, prefix, strict=False):
        same = a.same_as(b) or (str(a) in _ONES and str(b) in _ONES)
        if not same:
            raise NotThisKindError("other extents in front")
    return True


def _blocks(statement: Any) -> Iterator[Any]:
    """Yield the stages of a function.

    Raises:
        NotThisKindError: it has something else.
    """
    kind = type(statement).__name__
    if kind == "SeqStmt":
        for part in statement.seq:
            yield from _blocks(part)
    elif kind == "For":
        yield from _blocks(statement.body)
    elif kind == "SBlockRealize":
        block = statement.block
        if block.name_hint == "root":
            yield from _blocks(block.body)
        elif type(block.body).__name__ == "BufferStore":
            yield block
        else:
            raise NotThisKindError("a stage of several statements")
    else:
        raise NotThisKindError(f"a statement of kind {kind}")


def _check_shared(block: Any, prefix: Sequence[Any], extents: Container[str]) -> None:
    """See that nothing of a chunk, nor how large it is, goes into what all chunks share."""
    values = [block.body.value, *([] if block.init is None else [block.init.value])]
    parts = [part for value in (*values, *(axis.dom.extent for axis in block.iter_vars)) for part in walk(value)]
    if any(type(part).__name__ == "TensorLoad" and _has(part.source, prefix) for part in parts):
        raise NotThisKindError("sums over elements in front")
    if any(isinstance(part, tirx.Var) and str(part.name) in extents for part in parts):
        raise NotThisKindError("an extent in front as a number")


def _check(block: Any, prefix: Sequence[Any]) -> None:
    """See that a stage computes each element of the axes in front by itself."""
    store = block.body
    extents = {str(extent.name) for extent in prefix if isinstance(extent, tirx.Var)}
    if not _has(store.buffer, prefix):
        _check_shared(block, prefix, extents)
        return
    axes = list(store.indices)[: len(prefix)]
    own = {str(axis.var.name) for axis in block.iter_vars}
    front = set()
    for axis, extent in zip(axes, prefix, strict=True):
        if isinstance(extent, tirx.Var):
            if not isinstance(axis, tirx.Var) or axis.name not in own or axis.name in front:
                raise NotThisKindError("elements in another place")
            front.add(str(axis.name))
    rest = list(store.indices)[len(prefix) :]

    def visit(e: Any) -> None:
        if type(e).__name__ == "TensorLoad":
            behind = list(e.indices)
            if _has(e.source, prefix):
                for index, axis, extent in zip(behind, axes, prefix, strict=False):
                    if isinstance(extent, tirx.Var) and not index.same_as(axis):
                        raise NotThisKindError("elements of another place")
                behind = behind[len(prefix) :]
            for index in behind:
                visit(index)
            return
        if isinstance(e, tirx.Var) and (str(e.name) in front or str(e.name) in extents):
            raise NotThisKindError("elements that differ by their place")
        for part in _parts(e):
            visit(part)

    others = [axis.dom.extent for axis in block.iter_vars if axis.var.name not in front]
    for each in (*rest, store.value, *([] if block.init is None else [block.init.value]), *others):
        visit(each)


def _parts(e: Any) -> Iterator[Any]:
    parts = [getattr(e, name, None) for name in ("a", "b", "value", "condition", "true_value", "false_value")]
    for part in (*parts, *getattr(e, "args", ())):
        if hasattr(part, "ty") or hasattr(part, "expr_ty"):
            yield part
