# SPDX-License-Identifier: Apache-2.0
"""The kernel of TopK: a heap of the best elements so far, whose root is the worst of them."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from portcall.compile._writer import Buffer, Expr, Index, Writer, as_written


def topk_kernel(outer: int, extent: int, inner: int, k: int, dtype: str, largest: bool) -> Any:
    """Return a function of x [outer, extent, inner] that gives the best k values and their places, the best first.

    Of equal values the first is the better one.
    """
    x = tirx.decl_buffer((outer, extent, inner), dtype, name="x")
    values = tirx.decl_buffer((outer, k, inner), dtype, name="values")
    places = tirx.decl_buffer((outer, k, inner), "int64", name="places")
    w = Writer(parallel=True)
    with w.outer(outer) as row, w.loop(inner) as column:
        heap = _Heap(w, k, dtype, largest)
        with w.loop(k) as number:
            heap.put(number, x[row, number, column], number)
        with w.loop(k // 2) as number:
            start = k // 2 - 1 - number
            heap.sink(start, k, heap.values[start], heap.places[start])
        with w.loop(extent - k, begin=k) as number:
            found = x[row, number, column]
            with w.when(found > heap.values[0] if largest else found < heap.values[0]):
                heap.sink(0, k, found, number)
        with w.loop(k) as number:
            last = k - 1 - number
            w.store(values, (row, last, column), heap.values[0])
            w.store(places, (row, last, column), tirx.Cast("int64", heap.places[0]))
            heap.sink(0, last, heap.values[last], heap.places[last])
    return as_written(w.function([x], [values, places]))


class _Heap:
    """Elements with their places; each is worse than the two below it."""

    def __init__(self, w: Writer, size: int, dtype: str, largest: bool) -> None:
        self.w, self.largest = w, largest
        self.values, self.places = w.scratch(size, dtype), w.scratch(size, "int32")
        self.value, self.place = w.registers(1, dtype=dtype), w.registers(1, dtype="int32")
        self.at: Buffer = w.registers(2, dtype="int32")  # where it is, and the worse of the two below

    def put(self, at: Index, value: Expr, place: Expr) -> None:
        self.w.store(self.values, at, value)
        self.w.store(self.places, at, place)

    def worse(self, one: Index, value: Expr, place: Expr) -> Expr:
        other = self.values[one]
        less = other < value if self.largest else other > value
        return tirx.any(less, tirx.all(other == value, self.places[one] > place))

    def sink(self, start: Index, size: Index, value: Expr, place: Expr) -> None:
        """Write that an element takes the place of another, and goes down to where it belongs."""
        w, at = self.w, self.at
        w.store(self.value, 0, value)
        w.store(self.place, 0, place)
        w.store(at, 0, start)
        w.store(at, 1, 2 * start + 1)
        with w.repeat(at[1] < size):
            with w.when(at[1] + 1 < size), w.when(self.worse(at[1] + 1, self.values[at[1]], self.places[at[1]])):
                w.store(at, 1, at[1] + 1)
            with w.when(self.worse(at[1], self.value[0], self.place[0])):
                self.put(at[0], self.values[at[1]], self.places[at[1]])
                w.store(at, 0, at[1])
            w.store(at, 1, tirx.Select(at[0] == at[1], 2 * at[1] + 1, size))
        self.put(at[0], self.value[0], self.place[0])
