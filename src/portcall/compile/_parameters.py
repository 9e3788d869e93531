# SPDX-License-Identifier: Apache-2.0
"""Products of rows with a matrix [columns, steps] that is a parameter, as language models have them.

Rows of both lie along the steps, so vectors run over these, and nothing is packed: a tile is a few rows by a few
columns, each of whose sums is a vector that is added up at the end. Each row of the matrix is read once for all rows of
a chunk; how many rows these are, ``_chunks`` sees to. One row takes as long as the matrix takes to be read.

The matrix may be computed from parameters, such as integers of 4 bits with a factor for each group of them. A few of
its rows are then computed at once, for all rows of the chunk, by the function that gives an element.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from tvm import ir, s_tir, sym, tirx

from portcall.compile._products import Place, Product, factors, rows_by_matrix
from portcall.compile._reading import NotThisKindError, Reading, flat_index, shape_of, with_buffers
from portcall.compile._registers import for_tiles
from portcall.compile._target import Target
from portcall.compile._tiles import segments, split_evenly
from portcall.compile._writer import Buffer, Expr, Index, Writer, float32

PARAMETERS = "product with a parameter"
CHUNKS = (32, 4, 2, 1)  # rows that are multiplied at once, where their number is known when the kernel runs
_ROWS = 4  # of a tile
_LATENCY = 8  # sums that are added to side by side, so that none waits for the addition before
_BITS = 32  # of a word


@dataclass(frozen=True)
class Groups:
    """How a matrix is computed from words of integers, and a factor for each group of these.

    Attributes:
        word: the integers of a word.
        group: those with the same factor.
    """

    word: int
    group: int


def read_parameters(reading: Reading) -> tuple[Product, Groups | None]:
    """Read a function that is such a product, with what follows it, and how its matrix is computed.

    Raises:
        NotThisKindError: it is something else.
    """
    stage, x, w, window = rows_by_matrix(reading)
    if [str(index) for index in w.indices] != list(stage.axes[-2:]):
        raise NotThisKindError("no matrix of two axes on the right, whose rows are columns of the result")
    if any(str(b.dtype) != "float32" for b in (x.source, w.source, stage.buffer, reading.result)):
        raise NotThisKindError("other types than float32")
    if not all(stage.extents):
        raise NotThisKindError("nothing to add up, or no sums")
    groups, source = None, w.source
    if not reading.is_input(source):
        groups, source = _read_groups(reading, source)
    names = reading.names
    return Product(reading, window, names.index(x.source.name), names.index(source.name), stage).checked(), groups


def _read_groups(reading: Reading, matrix: Buffer) -> tuple[Groups, Buffer]:
    """Return how a matrix is computed, and the words that it is computed from."""
    read: dict[str, Buffer] = {}

    def load(buffer: Buffer, at: list[Index]) -> Expr | None:
        if not reading.is_input(buffer):
            return None
        read[buffer.name] = buffer
        return buffer[tuple(at)]

    reading.value_at(matrix, [tirx.Var(name, "int32") for name in ("column", "step")], load)
    words = [b for b in read.values() if str(b.dtype) == f"uint{_BITS}"]
    scales = [b for b in read.values() if str(b.dtype) == "float32"]
    columns, steps = shape_of(matrix)
    if len(words) != 1 or len(scales) != 1 or len(read) != 2:
        raise NotThisKindError("no words with factors")
    shapes = [shape_of(words[0]), shape_of(scales[0])]
    if any(len(shape) != 2 or shape[0] != columns for shape in shapes):
        raise NotThisKindError("words in another order")
    word, group = (_repeats(reading, matrix, each) for each in (words[0], scales[0]))
    if word not in (4, 8) or group % word or steps % group:
        warnings.warn(
            f"weights [{columns}, {steps}] in groups of {group}, {word} in a word: no kernel of portcall has them, "
            "and TVM's are used", stacklevel=2)  # fmt: skip
        raise NotThisKindError("other groups")
    return Groups(word, group), words[0]


def _repeats(reading: Reading, matrix: Buffer, source: Buffer) -> int:
    """Return how many elements of a row are computed from the same element of another buffer."""

    def place(step: int) -> Index:
        found: list[Index] = []

        def load(buffer: Buffer, at: list[Index]) -> Expr | None:
            if buffer.name == source.name:
                found.append(at[1])
            return buffer[tuple(at)] if reading.is_input(buffer) else None

        reading.value_at(matrix, [0, step], load)
        if not found or not isinstance(found[0], int):
            raise NotThisKindError("elements in other places")
        return found[0]

    low, high = 0, shape_of(matrix)[1]  # the first has the place of the first step, the other is behind those that have
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if place(middle) == place(0) else (low, middle)
    return high


def with_matrix(function: Any, place: int, producer: Any) -> Any:
    """Return a product whose matrix is computed inside: a parameter of it is what another function returns."""
    matrix, result = function.params[place], producer.params[-1]
    if shape_of(matrix) != shape_of(result):
        raise NotThisKindError("a matrix of another shape")
    first, second = (each.body.block for each in (producer, function))
    body = tirx.SeqStmt([first.body, with_buffers(second.body, {matrix: result})])
    root = s_tir.SBlock([], [], [], "root", body, None, [result, *first.alloc_buffers, *second.alloc_buffers])
    params = [*function.params[:place], *producer.params[:-1], *function.params[place + 1 :]]
    return tirx.PrimFunc(params, s_tir.SBlockRealize([], True, root)).with_attr("s_tir", True)


def write_parameters(reading: Reading, target: Target, parallel: bool) -> Any:
    """Return a function that computes such a product, for one thread.

    Raises:
        NotThisKindError: it is something else.
    """
    product, groups = read_parameters(reading)
    if parallel or product.window.c < 2 * target.lanes:
        raise NotThisKindError("several threads, or few steps")
    buffers = reading.buffers()
    *inputs, output = buffers.values()
    kernel = _Kernel(Writer(), product, groups, target, buffers, output)
    kernel.write()
    return kernel.w.function(inputs, [output])


@dataclass
class _Kernel:
    w: Writer
    product: Product
    groups: Groups | None
    target: Target
    buffers: dict[str, Buffer]
    output: Buffer

    def __post_init__(self) -> None:
        names, window = self.product.reading.names, self.product.window
        self.x, self.weights = (self.buffers[names[k]] for k in (self.product.data, self.product.weights))
        self.rows, self.columns, self.steps = window.ow, window.o, window.c

    def write(self) -> None:
        chunks = segments(split_evenly(self.rows, CHUNKS[0]))
        for_tiles(self.w, self.w.loop, chunks, lambda row, part: self._chunk(row, part.rows))

    def _chunk(self, row: Index, count: int) -> None:
        rows = split_evenly(count, _ROWS)
        width = min(self.target.accumulators // rows[0][1], self.target.registers // 4, self.columns)
        full, rest = divmod(self.columns, width)
        for turns, begin, columns in ((full, 0, width), (1, full * width, rest)):
            if turns and columns:
                with self.w.loop(turns) as number:
                    self._columns(row, rows, begin + number * columns, columns)

    def _columns(self, row: Index, rows: list[tuple[int, int]], column: Index, columns: int) -> None:
        weights, places = self._panel(column, columns)
        for_tiles(self.w, self.w.loop, segments(rows), lambda at, part: self._tile(
            row + at, part.rows, column, weights, places))  # fmt: skip

    def _panel(self, column: Index, columns: int) -> tuple[Buffer, list[Index]]:
        """Return some rows of the matrix: where they are, and where each begins."""
        if self.groups is None:
            return self.weights, [(column + c) * self.steps for c in range(columns)]
        w, lanes, group = self.w, self.groups.word, self.groups.group
        panel = w.scratch(columns * self.steps)
        for c in range(columns):
            with w.loop(self.steps // group) as number, w.unrolled(group // lanes) as word, w.vector(lanes) as lane:
                analyzer = sym.Analyzer()
                for variable, extent in ((word, group // lanes), (lane, lanes)):
                    if not isinstance(variable, int):
                        analyzer.bind(variable, ir.Range(0, extent))
                step = number * group + word * lanes + lane
                w.store(panel, c * self.steps + step, self._element(column + c, step, analyzer))
        return panel, [c * self.steps for c in range(columns)]

    def _element(self, column: Index, step: Index, analyzer: Any) -> Expr:
        """Return an element of the matrix; the word and the factor are the same for all lanes."""
        reading = self.product.reading

        def load(buffer: Buffer, at: list[Index]) -> Expr | None:
            if not reading.is_input(buffer):
                return None
            return self.buffers[buffer.name][analyzer.simplify(flat_index(buffer, at))]

        matrix = factors(self.product.stage)[1].source
        return analyzer.simplify(reading.value_at(matrix, [column, step], load))

    def _tile(self, row: Index, rows: int, column: Index, weights: Buffer, places: list[Index]) -> None:
        w, lanes = self.w, self.target.lanes
        cells = [(t, c) for t in range(rows) for c in range(len(places))]
        side = max(1, min(-(-_LATENCY // len(cells)), self.steps // lanes))
        sums = {(t, c, u): w.registers(lanes) for t, c in cells for u in range(side)}
        for part in sums.values():
            with w.vector(lanes) as lane:
                w.store(part, lane, float32(0))

        def product(t: int, c: int, step: Index) -> Expr:
            return self.x[(row + t) * self.steps + step] * weights[places[c] + step]

        def add(step: Index, u: int) -> None:
            for t, c in cells:
                part = sums[t, c, u]
                with w.vector(lanes) as lane:
                    w.store(part, lane, part[lane] + product(t, c, step + lane))

        turns, rest = divmod(self.steps // lanes, side)
        with w.loop(turns) as turn:
            for u in range(side):
                add((turn * side + u) * lanes, u)
        for u in range(rest):
            add((turns * side + u) * lanes, u)
        totals = w.registers(rows, len(places))
        for t, c in cells:
            first = sums[t, c, 0]
            for u in range(1, side):
                with w.vector(lanes) as lane:
                    w.store(first, lane, first[lane] + sums[t, c, u][lane])
            add_up(w, first, lanes)
            w.store(totals, (t, c), first[0])
        begin = self.steps // lanes * lanes
        with w.loop(self.steps - begin, begin) as step:
            for t, c in cells:
                w.store(totals, (t, c), totals[t, c] + product(t, c, step))
        for t in range(rows):
            with w.loop(len(places)) as c:
                place = Place(row + t, 0, 0, row + t, column + c)
                value = self.product.value(self.buffers, totals[t, c], place)
                w.store(self.output, (row + t) * self.columns + column + c, value)


def add_up(w: Writer, part: Buffer, lanes: int) -> None:
    """Add up the lanes of a vector into its first one, by halves."""
    while lanes > 1:
        lanes //= 2
        with w.vector(lanes) as lane:
            w.store(part, lane, part[lane] + part[lanes + lane])
