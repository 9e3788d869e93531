# SPDX-License-Identifier: Apache-2.0
"""Write kernels as loops: what is inside of a ``with`` is the body of a loop.

    w = Writer(parallel=False)
    with w.loop(4) as i, w.vector(16) as l:
        w.store(y, i * 16 + l, x[i * 16 + l] + 1.0)
    function = w.function([x], [y])

Buffers are flat: one index, in elements. Indices are Python's ints as long as they are known, so that what is known
costs nothing when the kernel runs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
from tvm import s_tir, tirx

Index = Any  # an int, or an expression of one
Expr = Any
Buffer = Any

_WRITTEN = "portcall.written"  # an attribute of functions that are kernels already: the loop around all may be parallel


def flat_buffer(name: str, shape: Sequence[int], dtype: str) -> Buffer:
    """Return a buffer of all elements of a shape in a row."""
    return tirx.decl_buffer((max(1, prod(shape)),), dtype, name=name)


def float32(value: float) -> Expr:
    return tirx.const(value, "float32")


def floordiv(a: Index, b: Index) -> Index:
    return a // b if isinstance(a, int) else a if isinstance(b, int) and b == 1 else tirx.floordiv(a, b)


def floormod(a: Index, b: Index) -> Index:
    return a % b if isinstance(a, int) else 0 if isinstance(b, int) and b == 1 else tirx.floormod(a, b)


def at_least(a: Index, b: int) -> Index:
    return max(a, b) if isinstance(a, int) else tirx.max(a, b)


def at_most(a: Index, b: int) -> Index:
    return min(a, b) if isinstance(a, int) else tirx.min(a, b)


class Writer:
    """Collects the statements of one kernel.

    Parameters:
        parallel: whether the outermost loops that are written with ``outer`` run on several threads.
        index: the type of indices: 64 bits where extents are not known.
    """

    def __init__(self, parallel: bool = False, index: str = "int32") -> None:
        self.parallel, self.index = parallel, index
        self._blocks: list[list[Any]] = [[]]
        self._inside_parallel = False

    @contextlib.contextmanager
    def loop(self, extent: Index, begin: Index = 0, kind: Any = tirx.stmt.ForKind.SERIAL) -> Iterator[Index]:
        """Write a loop from ``begin`` to ``begin + extent``; a single turn, or nothing to do, needs no loop."""
        if isinstance(extent, int) and extent == 1:
            yield begin
            return
        variable = tirx.Var(f"i{len(self._blocks)}", self.index)
        begin, extent = (tirx.const(e, self.index) if isinstance(e, int) else e for e in (begin, extent))
        self._blocks.append([])
        yield variable
        body = self._blocks.pop()
        if body:
            self._blocks[-1].append(tirx.For(variable, begin, extent, kind, _sequence(body)))

    @contextlib.contextmanager
    def outer(self, extent: Index) -> Iterator[Index]:
        """Write a loop whose turns are independent. The outermost of at least two turns is parallel, if any is."""
        if not self.becomes_parallel or (isinstance(extent, int) and extent < 2):
            with self.loop(extent) as variable:
                yield variable
            return
        self._inside_parallel = True
        with self.loop(extent, kind=tirx.stmt.ForKind.PARALLEL) as variable:
            yield variable
        self._inside_parallel = False

    @property
    def becomes_parallel(self) -> bool:
        """Whether the next loop that is written with ``outer`` would be parallel."""
        return self.parallel and not self._inside_parallel

    def unrolled(self, extent: int) -> contextlib.AbstractContextManager[Index]:
        return self.loop(extent, kind=tirx.stmt.ForKind.UNROLLED)

    def vector(self, lanes: int) -> contextlib.AbstractContextManager[Index]:
        """Write a loop whose turns are the lanes of vectors."""
        return self.loop(lanes, kind=tirx.stmt.ForKind.VECTORIZED)

    @contextlib.contextmanager
    def when(self, condition: Expr) -> Iterator[None]:
        """Write statements that run if a condition holds."""
        self._blocks.append([])
        yield
        body = _sequence(self._blocks.pop())
        self._blocks[-1].append(tirx.IfThenElse(condition, body, None))

    @contextlib.contextmanager
    def repeat(self, condition: Expr) -> Iterator[None]:
        """Write statements that run again and again as long as a condition holds."""
        self._blocks.append([])
        yield
        body = _sequence(self._blocks.pop())
        self._blocks[-1].append(tirx.While(condition, body))

    def store(self, buffer: Buffer, index: Index | Sequence[Index], value: Expr) -> None:
        indices = list(index) if isinstance(index, (tuple, list)) else [index]
        self._blocks[-1].append(tirx.BufferStore(buffer, value, indices))

    def registers(self, *shape: int, dtype: str = "float32") -> Buffer:
        """Allocate a small array that LLVM can keep in registers."""
        return self._allocate(shape, dtype)

    def scratch(self, count: int, dtype: str = "float32") -> Buffer:
        """Allocate working memory."""
        return self._allocate((count,), dtype)

    def prefetch(self, buffer: Buffer, index: Index, locality: int) -> None:
        """Ask for the cache line of an element; ``locality`` is 3 for the nearest cache, and 0 for none."""
        address = tirx.call_intrin(
            "handle", "tirx.handle_add_byte_offset", buffer.data, index * np.dtype(str(buffer.dtype)).itemsize
        )
        self._blocks[-1].append(tirx.Evaluate(tirx.call_intrin("void", "tirx.prefetch", address, 0, locality, 1)))

    def declared(self, buffer: Buffer, data: Expr) -> Buffer:
        """Return a buffer whose elements are those at an address."""
        self._blocks[-1].append(tirx.DeclBuffer(buffer, data=data))
        return buffer

    def statement(self) -> Any:
        """Return what was written."""
        (statements,) = self._blocks
        return _sequence(statements)

    def function(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Any:
        """Return what was written as a function of TVM's."""
        made = tirx.PrimFunc([*inputs, *outputs], self.statement())
        return made.with_attr("tirx.noalias", True).with_attr("s_tir", True)

    def _allocate(self, shape: tuple[int, ...], dtype: str) -> Buffer:
        """TVM leaves less than 1,024 bytes of the scope "global" on the stack, and allocates all else."""
        buffer = tirx.decl_buffer(shape, dtype, name=f"b{len(self._blocks)}", scope="global")
        self._blocks[-1].append(tirx.AllocBuffer(buffer))
        return buffer


def as_written(function: Any) -> Any:
    """Return a kernel in the form in which passes of TVM's leave it as it is: around it is what they look for."""
    block = s_tir.SBlock([], [], [], "root", function.body)
    return function.with_body(s_tir.SBlockRealize([], True, block)).with_attr(_WRITTEN, True)


def written(function: Any, parallel: bool) -> Any | None:
    """Return such a kernel as it is to be compiled; None for other functions."""
    if not function.attrs.get(_WRITTEN, False):
        return None
    body = function.body.block.body
    if not parallel and isinstance(body, tirx.For):
        body = tirx.For(body.loop_var, body.min, body.extent, tirx.stmt.ForKind.SERIAL, body.body)
    return function.with_body(body)


def _sequence(statements: list[Any]) -> Any:
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(statements)
