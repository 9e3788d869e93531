# SPDX-License-Identifier: Apache-2.0
"""Transposes of matrices, such as changes of the layout, in small tiles: whole cache lines are read and written.

Without tiles each element of a result's row is on another line; lines a power of two apart share a place in the
cache, and are gone before their next element is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from portcall.compile._reading import NotThisKindError, Reading, moves, shape_of, strides
from portcall.compile._target import Target
from portcall.compile._writer import Index, Writer

_ROWS, _COLUMNS = 8, 16  # extents of a tile
_FEWEST = 256  # elements of a matrix


def write_transpose(reading: Reading, target: Target, parallel: bool) -> Any:
    """Return a function whose result consists of transposed matrices.

    Raises:
        NotThisKindError: it computes something, or moves elements in another way.
    """
    shape = shape_of(reading.result)
    if str(reading.result.dtype) == "bool":
        raise NotThisKindError("bits")
    batch, columns, rows = _matrices(reading, shape)
    w, buffers = Writer(parallel), reading.buffers()
    source, result = buffers.values()
    height, width = min(_ROWS, rows), min(_COLUMNS, columns)

    def tile(matrix: Index, row: Index, column: Index) -> None:
        """Write result[column + x, row + y] of source[row + y, column + x]."""
        begin, found = matrix * (rows * columns), w.registers(width * height, dtype=str(source.dtype))
        with w.loop(height) as y, w.vector(width) as x:
            w.store(found, x * height + y, source[begin + (row + y) * columns + column + x])
        with w.loop(width) as x, w.vector(height) as y:
            w.store(result, begin + (column + x) * rows + row + y, found[x * height + y])

    def down(matrix: Index, column: Index) -> None:
        with w.outer(rows // height) as number:
            tile(matrix, number * height, column)
        if rows % height:  # the last tile overlaps the one before
            tile(matrix, rows - height, column)

    with w.outer(batch) as matrix:
        with w.outer(columns // width) as number:
            down(matrix, number * width)
        if columns % width:
            down(matrix, columns - width)
    return w.function([source], [result])


def _matrices(reading: Reading, shape: Sequence[int]) -> tuple[int, int, int]:
    """Return how many matrices a function transposes, and their columns and rows."""
    for first in range(len(shape)):
        for middle in range(first + 1, len(shape)):
            batch, columns, rows = (prod(part) for part in (shape[:first], shape[first:middle], shape[middle:]))
            if min(columns, rows) == 1 or columns * rows < _FEWEST:
                continue

            def source(at: list[Index], first: int = first, middle: int = middle) -> Index:
                turned = [*range(first), *range(middle, len(shape)), *range(first, middle)]
                return sum(
                    at[axis] * step for axis, step in zip(turned, strides([shape[k] for k in turned]), strict=True)
                )

            if moves(reading, source):
                return batch, columns, rows
    raise NotThisKindError("no transposes")
