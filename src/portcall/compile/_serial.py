# SPDX-License-Identifier: Apache-2.0
"""Kernels of operators whose turns depend on those before: ScatterND, ScatterElements, CumSum, ArgMax and ArgMin.

What reads the nodes is beside each kernel. Indices are counted from the end where they are negative, and never reach
memory outside of the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from math import prod
from typing import Any

from tvm import relax, tirx

from portcall.compile._program import is_constant
from portcall.compile._writer import Expr, Index, Writer, as_written

_LANES = 16  # of vectors: LLVM makes as many of them as the machine needs
_SIDE = 4  # vectors side by side, for the latency of a comparison
_REDUCTIONS: Mapping[str, Callable[[Expr, Expr], Expr]] = {
    "none": lambda old, new: new, "add": lambda old, new: old + new, "mul": lambda old, new: old * new,
    "max": tirx.max, "min": tirx.min,
}  # fmt: skip


def call_kernel(
    bb: Any, kernel: Any, name: str, inputs: Sequence[Any], results: Sequence[tuple[Sequence[Any], Any]]
) -> Any:
    """Return a call of a function of TVM's that is a kernel."""
    types = [relax.TensorType(shape, dtype) for shape, dtype in results]
    function = bb.add_func(kernel, name)
    return relax.op.call_tir(function, relax.Tuple(list(inputs)), types if len(types) > 1 else types[0])


def fixed(*values: Any) -> list[list[int]] | None:
    """Return the shapes of values; None where they are not known, or there are no elements."""
    shapes = []
    for value in values:
        extents = getattr(value.ty, "shape", None)
        if extents is None or not all(isinstance(extent, tirx.IntImm) and int(extent) for extent in extents):
            return None
        shapes.append([int(extent) for extent in extents])
    return shapes


def scattered(bb: Any, inputs: list[Any], attrs: dict[str, Any]) -> Any | None:
    """Return a tensor with slices replaced, or with more put into them, at places of the first axes: ScatterND."""
    found = fixed(*inputs)
    if found is None:
        return None
    shape, (*_, depth), _ = found
    parts = [prod(shape[:depth]), prod(shape[depth:])]
    count = prod(found[1][:-1])
    data, places, updates = (
        bb.emit(relax.op.reshape(value, to))
        for value, to in zip(inputs, (parts, [count, depth], [count, parts[1]]), strict=True)
    )
    dtype, kind = str(data.ty.dtype), str(places.ty.dtype)
    kernel = _scatter_kernel(parts, shape[:depth], count, dtype, kind, _reduction(attrs))
    made = bb.emit(call_kernel(bb, kernel, "scatter_nd", [data, places, updates], [(parts, dtype)]))
    return relax.op.reshape(made, shape)


def _reduction(attrs: Mapping[str, Any]) -> str:
    word = attrs.get("reduction", "none")
    return word.decode() if isinstance(word, bytes) else str(word)


def _scatter_kernel(parts: list[int], extents: list[int], count: int, dtype: str, kind: str, reduction: str) -> Any:
    data, result = (tirx.decl_buffer(parts, dtype, name=name) for name in ("data", "result"))
    places = tirx.decl_buffer((count, len(extents)), kind, name="places")
    updates = tirx.decl_buffer((count, parts[1]), dtype, name="updates")
    w, operation = Writer(index="int64"), _REDUCTIONS[reduction]
    with w.loop(parts[0]) as row, _across(w, parts[1]) as k:
        w.store(result, (row, k), data[row, k])
    with w.loop(count) as number:
        at: Index = 0
        for axis, extent in enumerate(extents):
            at = at * extent + _inside(places[number, axis], extent)
        row = w.registers(1, dtype="int64")
        w.store(row, 0, _long(at))
        with _across(w, parts[1]) as k:
            w.store(result, (row[0], k), operation(result[row[0], k], updates[number, k]))
    return as_written(w.function([data, places, updates], [result]))


def scattered_elements(bb: Any, inputs: list[Any], attrs: dict[str, Any]) -> Any | None:
    """Return a tensor with elements replaced, or with more put into them, at places of one axis: ScatterElements."""
    found = fixed(*inputs)
    if found is None or not found[0]:
        return None
    shape, taken, _ = found
    axis = int(attrs.get("axis", 0)) % len(shape)
    dtype, kind = str(inputs[0].ty.dtype), str(inputs[1].ty.dtype)
    data, result = (tirx.decl_buffer(shape, dtype, name=name) for name in ("data", "result"))
    places, updates = (
        tirx.decl_buffer(taken, word, name=name) for name, word in (("places", kind), ("updates", dtype))
    )
    w, operation = Writer(index="int64"), _REDUCTIONS[_reduction(attrs)]
    with ExitStack() as loops:
        at = [loops.enter_context(w.loop(extent)) for extent in shape[:-1]]
        at.append(loops.enter_context(_across(w, shape[-1])))
        w.store(result, at, data[tuple(at)])
    with ExitStack() as loops:
        at = [loops.enter_context(w.loop(extent)) for extent in taken]
        place = w.registers(1, dtype="int64")
        w.store(place, 0, _long(_inside(places[tuple(at)], shape[axis])))
        to = (*at[:axis], place[0], *at[axis + 1 :])
        w.store(result, to, operation(result[to], updates[tuple(at)]))
    kernel = as_written(w.function([data, places, updates], [result]))
    return call_kernel(bb, kernel, "scatter_elements", inputs, [(shape, dtype)])


def sums_so_far(bb: Any, inputs: list[Any], attrs: dict[str, Any]) -> Any | None:
    """Return the sums of the elements up to each one, or of those before it: CumSum."""
    found = fixed(inputs[0])
    if found is None or not found[0] or not is_constant(inputs[1]):
        return None
    (shape,), dtype = found, str(inputs[0].ty.dtype)
    axis = int(inputs[1].value.numpy().reshape(-1)[0]) % len(shape)
    exclusive, turned = (bool(attrs.get(name, 0)) for name in ("exclusive", "reverse"))
    parts = (prod(shape[:axis]), extent := shape[axis], prod(shape[axis + 1 :]))
    x, result = (tirx.decl_buffer(parts, dtype, name=name) for name in ("x", "result"))
    w = Writer(parallel=True)
    with w.outer(parts[0]) as row:
        total = w.scratch(parts[2], dtype)
        with _across(w, parts[2]) as k:
            w.store(total, k, tirx.const(0, dtype))
        with w.loop(extent) as number:
            at = extent - 1 - number if turned else number
            with _across(w, parts[2]) as k:
                if exclusive:
                    w.store(result, (row, at, k), total[k])
                w.store(total, k, total[k] + x[row, at, k])
                if not exclusive:
                    w.store(result, (row, at, k), total[k])
    flat = bb.emit(relax.op.reshape(inputs[0], parts))
    made = bb.emit(call_kernel(bb, as_written(w.function([x], [result])), "cumsum", [flat], [(parts, dtype)]))
    return relax.op.reshape(made, shape)


def best_place(largest: bool) -> Callable[[Any, list[Any], dict[str, Any]], Any | None]:
    """Return what imports an ArgMax or an ArgMin."""

    def convert(bb: Any, inputs: list[Any], attrs: dict[str, Any]) -> Any | None:
        found = fixed(inputs[0])
        if found is None or not found[0]:
            return None
        (shape,), dtype = found, str(inputs[0].ty.dtype)
        axis = int(attrs.get("axis", 0)) % len(shape)
        parts = (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
        kernel = _place_kernel(parts, dtype, largest, bool(attrs.get("select_last_index", 0)))
        flat = bb.emit(relax.op.reshape(inputs[0], parts))
        made = bb.emit(call_kernel(bb, kernel, "best_place", [flat], [((parts[0], parts[2]), "int64")]))
        kept = [1] if attrs.get("keepdims", 1) else []
        return relax.op.reshape(made, [*shape[:axis], *kept, *shape[axis + 1 :]])

    return convert


def _place_kernel(parts: tuple[int, int, int], dtype: str, largest: bool, last: bool) -> Any:
    """Return a function of x [outer, extent, inner] that says where the best, first or last of equal elements is.

    What is no number is never better, nor is anything better than it.
    """
    outer, extent, inner = parts
    x = tirx.decl_buffer(parts, dtype, name="x")
    places = tirx.decl_buffer((outer, inner), "int64", name="places")
    w = Writer(parallel=True)

    def better(new: Expr, old: Expr, or_equal: bool) -> Expr:
        one, other = (new, old) if largest else (old, new)
        return one >= other if or_equal else one > other

    def put(number: Index, value: Expr, where: Expr, old: Expr | None = None) -> None:
        """Write that a lane is compared with a later element, or one at any place; the value is the last to change."""
        found = better(value, best[number], last and old is None)
        if old is not None:
            found = tirx.any(found, tirx.all(value == best[number], where > old if last else where < old))
        w.store(place, number, tirx.Select(found, where, place[number]))
        w.store(best, number, tirx.Select(found, value, best[number]))

    along = inner == 1
    lanes = min(_LANES, 1 << ((extent if along else inner).bit_length() - 1))
    with w.outer(outer) as row:
        if along:
            count, left = divmod(extent, lanes)
            side = min(_SIDE, count)
            best, place = w.registers(side * lanes, dtype=dtype), w.registers(side * lanes, dtype="int32")
            with w.vector(side * lanes) as lane:
                w.store(best, lane, x[row, 0, 0])
                w.store(place, lane, tirx.const(0, "int32"))
            turns, rest = divmod(count, side)
            for first, times, size in ((0, turns, side), (turns * side, 1, rest)):
                with w.loop(times) as turn, w.unrolled(size) as u, w.vector(lanes) as lane:
                    at = (first + turn * size + u) * lanes + lane
                    put(u * lanes + lane, x[row, at, 0], at)
            size = side * lanes
            while size > 1:  # the other half, or less of it, is put into the first
                size, other = (size + 1) // 2, size // 2
                with w.vector(other) as lane:
                    put(lane, best[size + lane], place[size + lane], place[lane])
            with w.loop(left) as number:
                at = count * lanes + number
                put(0, x[row, at, 0], at)
            w.store(places, (row, 0), tirx.Cast("int64", place[0]))
        else:
            vectors = -(-inner // lanes)
            with w.loop(vectors) as vector:
                begin = tirx.min(vector * lanes, inner - lanes) if inner % lanes else vector * lanes
                best, place = w.registers(lanes, dtype=dtype), w.registers(lanes, dtype="int32")
                with w.vector(lanes) as lane:
                    w.store(best, lane, x[row, 0, begin + lane])
                    w.store(place, lane, tirx.const(0, "int32"))
                with w.loop(extent - 1, begin=1) as number, w.vector(lanes) as lane:
                    put(lane, x[row, number, begin + lane], number)
                with w.vector(lanes) as lane:
                    w.store(places, (row, begin + lane), tirx.Cast("int64", place[lane]))
    return as_written(w.function([x], [places]))


@contextmanager
def _across(w: Writer, extent: int) -> Iterator[Index]:
    """Write a loop over elements that lie beside each other, in vectors where their number allows it."""
    if extent % _LANES:
        with w.loop(extent) as k:
            yield k
        return
    with w.loop(extent // _LANES) as turn, w.vector(_LANES) as lane:
        yield turn * _LANES + lane


def _inside(place: Expr, extent: int) -> Expr:
    """Return an index within an axis, counted from the end where it is negative."""
    number = tirx.Cast("int64", place)
    number = tirx.Select(number < 0, number + extent, number)
    return tirx.max(tirx.const(0, "int64"), tirx.min(number, tirx.const(extent - 1, "int64")))


def _long(index: Index) -> Expr:
    return tirx.const(index, "int64") if isinstance(index, int) else index
