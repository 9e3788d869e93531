# SPDX-License-Identifier: Apache-2.0
"""Kernels that TVM's cache of keys and values calls: attention over pages and over a prompt, and rotations.

They have the parameters of TVM's, which they replace. Vectors run along the head; keys are taken in blocks, with one
exponential for all of a block. Where rotations are computed while keys are read, TVM's code is left in place, behind
the question for it. Windows of a prompt stay TVM's too: their size is a number in its code.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import tvm
from tvm import relax, s_tir, tirx

from portcall.compile import _math
from portcall.compile._parameters import add_up
from portcall.compile._reading import NotThisKindError
from portcall.compile._target import Target
from portcall.compile._writer import Buffer, Expr, Index, Writer, float32

_BLOCK = 16  # keys
_LOG2E = math.log2(math.e)
_LOWEST = -5e4  # of TVM's maxima, which are of logarithms to base 2
_NOTHING = -1e30
_FEWEST_LANES = 4


def use_attention(module: Any, target: Target) -> tuple[Any, Mapping[str, int]]:
    """Return a module with such kernels in the place of TVM's, and how many there are of each kind."""
    found: dict[str, int] = {}
    made = tvm.IRModule(dict(module.functions_items()), attrs=module.attrs)
    for name in sorted(_of_caches(module), key=lambda name: str(name.name_hint)):
        for begin, (rule, write) in _KERNELS.items():
            if str(name.name_hint).startswith(begin) and isinstance(module[name], tirx.PrimFunc):
                try:
                    made.update_func(name, write(module[name], target))
                except NotThisKindError:
                    continue
                found[rule] = found.get(rule, 0) + 1
    return made, found


def _of_caches(module: Any) -> set[Any]:
    """Return the names of the functions that caches are made with."""
    names: set[Any] = set()

    def visit(e: Any) -> None:
        if isinstance(e, relax.Call) and any(getattr(part, "global_symbol", "") == _CREATE for part in (e.op, *e.args)):
            relax.analysis.post_order_visit(e, note)

    def note(e: Any) -> None:
        if isinstance(e, tvm.ir.GlobalVar):
            names.add(e)

    for _, function in module.functions_items():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return names


_CREATE = "vm.builtin.paged_attention_kv_cache_create"


class _Heads:
    """What attention is computed with, for one query and head after the other.

    Parameters:
        heads: how many of queries, and of keys.
    """

    def __init__(self, w: Writer, heads: tuple[int, int], width: int, target: Target, scale: Expr) -> None:
        self.w, self.width, self.scale = w, width, scale
        self.queries, self.group = heads[0], heads[0] // heads[1]
        self.lanes = math.gcd(width, target.lanes)
        if self.lanes < _FEWEST_LANES or heads[0] % heads[1]:
            raise NotThisKindError("heads of another width")
        self.vectors = width // self.lanes
        self.side = min(target.lanes, _BLOCK)

    def attend(
        self, query: Callable[[Index], Expr], keys: Buffer, values: Buffer, place: Callable[[Index], tuple[Expr, Expr]],
        count: Expr, output: Callable[[Index, Expr], None], lse: Callable[[Expr], None],
    ) -> None:  # fmt: skip
        """Write the attention of a query over some keys.

        Parameters:
            query: gives an element.
            keys, values: flat.
            place: gives where a key, and its value, begin.
            output, lse: store an element, and the logarithm of the sum to base 2.
        """
        w, lanes = self.w, self.lanes
        q, sums = ([w.registers(lanes) for _ in range(self.vectors)] for _ in range(2))
        most, total, factor, before = (w.registers(1) for _ in range(4))
        scores, dot, halves = w.registers(_BLOCK), w.registers(lanes), w.registers(_BLOCK)
        starts = [w.registers(_BLOCK, dtype="int64") for _ in range(2)]
        for v in range(self.vectors):
            with w.vector(lanes) as lane:
                w.store(q[v], lane, query(v * lanes + lane) * self.scale)
            with w.vector(lanes) as lane:
                w.store(sums[v], lane, float32(0))
        w.store(most, 0, float32(_LOWEST / _LOG2E))
        w.store(total, 0, float32(1))
        with w.loop(tirx.floordiv(count + (_BLOCK - 1), _BLOCK)) as block:
            here = tirx.min(count - block * _BLOCK, _BLOCK)
            with w.unrolled(_BLOCK // self.side) as part, w.vector(self.side) as lane:
                w.store(scores, part * self.side + lane, float32(_NOTHING))
            with w.loop(here) as j:
                for start, at in zip(starts, place(block * _BLOCK + j), strict=True):
                    w.store(start, j, at)
                for v in range(self.vectors):
                    with w.vector(lanes) as lane:
                        product = q[v][lane] * keys[starts[0][j] + v * lanes + lane]
                        w.store(dot, lane, dot[lane] + product if v else product)
                add_up(w, dot, lanes)
                w.store(scores, j, dot[0])
            w.store(before, 0, most[0])
            self._reduce(scores, halves, lambda a, b: tirx.max(a, b))
            w.store(most, 0, tirx.max(most[0], halves[0]))
            w.store(factor, 0, _math.exp(before[0] - most[0]))
            with w.unrolled(_BLOCK // self.side) as part, w.vector(self.side) as lane:
                at = part * self.side + lane
                w.store(scores, at, _math.exp(scores[at] - most[0]))
            self._reduce(scores, halves, lambda a, b: a + b)
            w.store(total, 0, total[0] * factor[0] + halves[0])
            for v in range(self.vectors):
                with w.vector(lanes) as lane:
                    w.store(sums[v], lane, sums[v][lane] * factor[0])
            with w.loop(here) as j:
                for v in range(self.vectors):
                    with w.vector(lanes) as lane:
                        value = values[starts[1][j] + v * lanes + lane]
                        w.store(sums[v], lane, sums[v][lane] + scores[j] * value)
        for v in range(self.vectors):
            with w.vector(lanes) as lane:
                output(v * lanes + lane, sums[v][lane] / total[0])
        lse(most[0] * float32(_LOG2E) + tirx.log2(total[0]))

    def _reduce(self, scores: Buffer, halves: Buffer, operation: Callable[[Expr, Expr], Expr]) -> None:
        """Put the scores of a block together, in the first element of another buffer."""
        count, source = _BLOCK // 2, scores
        while count:
            with self.w.vector(count) as lane:
                self.w.store(halves, lane, operation(source[lane], source[count + lane]))
            count, source = count // 2, halves


def _flat(w: Writer, buffer: Buffer) -> Buffer:
    """Return a view of a buffer with one axis, so that places in it have 64 bits."""
    extent = math.prod((tirx.Cast("int64", e) for e in buffer.shape), start=tirx.const(1, "int64"))
    return w.declared(tirx.decl_buffer((extent,), buffer.dtype, name=f"{buffer.name}_flat"), buffer.data)


def _int64(e: Expr) -> Expr:
    return tirx.Cast("int64", e)


def _write_paged(function: Any, target: Target) -> Any:
    """Write attention of one query of each sequence (13 parameters), or of several (15), over pages."""
    params = list(function.params)
    several = len(params) == 15
    if len(params) not in (13, 15):
        raise NotThisKindError("other parameters")
    q_indptr = params.pop(1) if several else None
    q, pages, indptr, table, lengths, _, _, output, lse = params[:9]
    causal = params[9] if several else None
    rotary, scale = params[-4], params[-1]
    _check_floats(q, pages, output)
    _, _, kv_heads, page, width = pages.shape
    kv_heads, page, width = int(kv_heads), int(page), int(width)
    sliding = len(lengths.shape) == 2
    if sliding and several:
        raise NotThisKindError("a window of a number in the code")
    w = Writer()
    heads = _Heads(w, (int(q.shape[1]), kv_heads), width, target, scale)
    flat = _flat(w, pages)
    with w.loop(indptr.shape[0] - 1) as b:
        begin = indptr[b]
        info = [lengths[k, b] for k in range(3)] if sliding else [lengths[b]]
        full = (indptr[b + 1] - begin - 1) * page + info[0]
        length = full - info[1] + info[2] if sliding else full
        length = tirx.if_then_else(indptr[b + 1] != begin, length, 0)

        def place(row: Expr, head: Expr, begin: Expr = begin, info: list[Expr] = info) -> tuple[Expr, Expr]:
            at = tirx.if_then_else(row < info[2], row, row - info[2] + info[1]) if sliding else row
            number = _int64(table[begin + tirx.floordiv(at, page)])
            inside = head * page + tirx.floormod(at, page)
            start = (number * (2 * kv_heads * page) + _int64(inside)) * width
            return start, start + kv_heads * page * width

        with w.loop(heads.queries) as h:
            first, count = (b, 1) if q_indptr is None else (q_indptr[b], q_indptr[b + 1] - q_indptr[b])
            with w.loop(count) as number:
                row = first + number if several else b
                seen = length
                if causal is not None:
                    seen = tirx.if_then_else(causal > 0, tirx.min(length, length - count + number + 1), length)
                heads.attend(
                    lambda d: q[row, h, d], flat, flat, lambda at: place(at, tirx.floordiv(h, heads.group)), seen,
                    lambda d, value: w.store(output, (row, h, d), value), lambda value: w.store(lse, (row, h), value),
                )  # fmt: skip
    return _beside(function, rotary, w)


def _write_ragged(function: Any, target: Target) -> Any:
    """Write attention of the queries of a prompt over its own keys."""
    if len(function.params) != 14:
        raise NotThisKindError("other parameters")
    q, q_indptr, k, v, kv_indptr, _, _, output, lse, causal, rotary, _, _, scale = function.params
    _check_floats(q, k, v, output)
    kv_heads, width = int(k.shape[1]), int(k.shape[2])
    if int(v.shape[2]) != width:
        raise NotThisKindError("values of another width")
    w = Writer()
    heads = _Heads(w, (int(q.shape[1]), kv_heads), width, target, scale)
    keys, values = _flat(w, k), _flat(w, v)
    with w.loop(q_indptr.shape[0] - 1) as b, w.loop(heads.queries) as h:
        first, count = q_indptr[b], q_indptr[b + 1] - q_indptr[b]
        begin, length = kv_indptr[b], kv_indptr[b + 1] - kv_indptr[b]
        with w.loop(count) as number:
            seen = tirx.if_then_else(causal > 0, tirx.min(length, length - count + number + 1), length)

            def place(row: Expr) -> tuple[Expr, Expr]:
                start = _int64(begin + row) * (kv_heads * width) + _int64(tirx.floordiv(h, heads.group) * width)
                return start, start

            heads.attend(
                lambda d: q[first + number, h, d], keys, values, place, seen,
                lambda d, value: w.store(output, (first + number, h, d), value),
                lambda value: w.store(lse, (first + number, h), value),
            )  # fmt: skip
    return _beside(function, rotary, w)


def _check_floats(*buffers: Buffer) -> None:
    if any(str(buffer.dtype) != "float32" for buffer in buffers):
        raise NotThisKindError("other types than float32")


def _beside(function: Any, rotary: Expr, w: Writer) -> Any:
    """Return a function that runs what was written, or its own code where keys are rotated while they are read."""
    old = function.body.block
    body = tirx.IfThenElse(rotary == 1, old.body, w.statement())
    root = s_tir.SBlock(old.iter_vars, old.reads, old.writes, old.name_hint, body, old.init, old.alloc_buffers)
    return function.with_body(s_tir.SBlockRealize([], True, root)).with_attr("tirx.noalias", True)


def _write_rotations(function: Any, target: Target) -> Any:
    """Let the loop over heads be the innermost: LLVM then computes sines and cosines once for all of them."""
    loops, statement = [], function.body.block.body
    while isinstance(statement, tirx.For):
        loops.append(statement)
        statement = statement.body
    if len(loops) != 3:
        raise NotThisKindError("other loops")
    for loop in (loops[1], loops[2], loops[0]):
        statement = tirx.For(loop.loop_var, loop.min, loop.extent, loop.kind, statement)
    old = function.body.block
    root = s_tir.SBlock(old.iter_vars, old.reads, old.writes, old.name_hint, statement, old.init, old.alloc_buffers)
    return function.with_body(s_tir.SBlockRealize([], True, root))


_KERNELS: Mapping[str, tuple[str, Callable[[Any, Target], Any]]] = {
    "batch_decode_paged_kv": ("attention", _write_paged),
    "batch_prefill_paged_kv": ("attention", _write_paged),
    "batch_prefill_ragged_kv": ("attention", _write_ragged),
    "fused_rope": ("rotation", _write_rotations),
}
