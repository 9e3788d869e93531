# SPDX-License-Identifier: Apache-2.0
"""Choose a kernel for each call of a program: the rules, in the order in which they are asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from portcall.compile import _winograd
from portcall.compile._bytes import are_bytes
from portcall.compile._chain import Chain
from portcall.compile._columns import write_columns
from portcall.compile._convolution import Variant, choose_tile, weights_of, write_convolution
from portcall.compile._default import schedule
from portcall.compile._elementwise import write_elementwise
from portcall.compile._integers import plan_integers, read_integers, write_integers
from portcall.compile._matmul import read_batched, write_batched
from portcall.compile._parameters import PARAMETERS, write_parameters
from portcall.compile._planes import write_planes
from portcall.compile._products import Product, factors, read_convolution, read_product
from portcall.compile._program import Call, Program
from portcall.compile._reading import NotThisKindError, Reading, Stage, shape_of, vectorizable, with_infinite_starts
from portcall.compile._registers import Result
from portcall.compile._rows import write_rows
from portcall.compile._target import Target
from portcall.compile._transposed import Transposed, read_transposed, write_transposed
from portcall.compile._transposes import write_transpose
from portcall.compile._window import ByChannel, depthwise, permuted, read_pooling, write_by_channel
from portcall.compile._writer import Buffer, Writer, flat_buffer
from portcall.errors import ModelError

Array = Any
Pack = Callable[[Array], Array]
_EXTERNAL = "tvm.contrib."
_MOST_ELEMENTS = 1 << 31  # of a buffer whose places are counted in 32 bits


@dataclass(frozen=True)
class Kernel:
    """A function to compile.

    Attributes:
        name: by which the graph calls it.
        rule: which rule wrote it.
        function: of TVM.
        packs: how constants are laid out for it, by the number of the input.
        flat: whether it sees every tensor as one row.
    """

    name: str
    rule: str
    function: Any
    packs: Mapping[int, Pack] = field(default_factory=dict)
    flat: bool = True


class Rules:
    """Finds kernels for calls; the same call gets the same kernel.

    Parameters:
        winograd: ``auto``, ``off``, ``f2`` or ``f4``.
        parallel: kernels run on several threads.
    """

    def __init__(self, program: Program, target: Target, winograd: str, parallel: bool) -> None:
        self.program, self.target, self.winograd, self.parallel = program, target, winograd, parallel
        self.kernels: dict[str, Kernel] = {}
        self._readings: dict[str, Reading | None] = {}
        self._products: dict[str, Product | None] = {}
        self._made: dict[object, str] = {}

    def counts(self) -> Counter[str]:
        """Count the kernels of each rule."""
        return Counter(kernel.rule for kernel in self.kernels.values())

    def reading_of(self, function: str) -> Reading | None:
        """Return the reading of a function; None if it cannot be read."""
        if function not in self._readings:
            self._readings[function] = self._read(function) if function else None
        return self._readings[function]

    def _function(self, name: str) -> Any:
        return with_infinite_starts(self.program.functions[name])

    def _read(self, function: str) -> Reading | None:
        try:
            reading = Reading(self._function(function))
            small = all(prod(shape_of(buffer)) < _MOST_ELEMENTS for buffer in reading.params)
            return reading if small else None
        except NotThisKindError:
            return None

    def product_of(self, call: Call) -> Product | None:
        """Return a call's convolution or product with a constant matrix; None for other calls."""
        if call.function not in self._products:
            self._products[call.function] = self._product(call.function)
        product = self._products[call.function]
        return product if product is not None and call.inputs[product.weights].data is not None else None

    def _product(self, function: str) -> Product | None:
        reading = self.reading_of(function)
        if reading is None:
            return None
        for read in (read_convolution, read_product):
            try:
                product = read(reading)
                check_floats(reading, product.stage)
                return product
            except NotThisKindError:
                continue
        return None

    def choose(self, call: Call) -> Kernel:
        """Return the kernel for a call."""
        key = self._key(call)
        if key not in self._made:
            name = self._free_name(call)
            self._made[key] = name
            self.kernels[name] = self._write(call, name)
        return self.kernels[self._made[key]]

    def _key(self, call: Call) -> object:
        product = self.product_of(call)
        parts = tuple(self._key(part) for part in call.joined)
        behind = tuple((part.function, place) for part, place in call.behind)
        narrow = product is not None and _has_bytes(call, product)
        return (call.function, call.nchw, call.shuffled, call.order, product is None, narrow, parts, behind)

    def _free_name(self, call: Call) -> str:
        parts = [part.function for part in call.joined]
        stem = "__".join(parts) if 0 < len(parts) <= 2 else call.function
        name, number = stem, 1
        while name in self.kernels:
            number += 1
            name = f"{stem}_v{number}"
        return name

    def _write(self, call: Call, name: str) -> Kernel:
        if call.joined:
            return self._write_joined(call, name)
        if call.behind:
            return self._write_chain(call, name)
        reading, product = self.reading_of(call.function), self.product_of(call)
        function = self._function(call.function)
        if reading is not None and product is not None:
            return self._write_products([call], [product], name, shape_of(reading.result)[-1])
        transposed = self._transposed_of(reading, call)
        if transposed is not None:
            return self._write_transposed(transposed, name)
        integers = self._integers_of(reading, call)
        if integers is not None:
            return self._write_integers(integers, name)
        if reading is not None:
            for rule, write in _RULES.items():
                try:
                    return Kernel(name, rule, vectorizable(write(reading, self.target, self.parallel)))
                except NotThisKindError:
                    continue
        if _EXTERNAL in function.script():
            raise ModelError(f"{call.function} needs a function of TVM's own library, which bundles do not have")
        return Kernel(name, "default", schedule(function, self.target, self.parallel), flat=False)

    def _transposed_of(self, reading: Reading | None, call: Call) -> Transposed | None:
        """Return a call's transposed convolution with constant weights; None if it is none."""
        try:
            found = read_transposed(reading) if reading is not None else None
            check_floats(found.product.reading, found.product.stage) if found is not None else None
        except NotThisKindError:
            return None
        return found if found is not None and call.inputs[found.product.weights].data is not None else None

    def _write_transposed(self, what: Transposed, name: str) -> Kernel:
        w, product = Writer(self.parallel), what.product
        weights = product.reading.names[product.weights]
        buffers = product.reading.buffers(sizes={weights: sum(what.sizes(self.target))})
        *inputs, output = buffers.values()
        write_transposed(w, what, self.target, buffers, Result(output, product.window.o))
        packs = {product.weights: lambda array: what.pack(array, self.target)}
        return Kernel(name, "transposed convolution", w.function(inputs, [output]), packs)

    def _integers_of(self, reading: Reading | None, call: Call) -> Product | None:
        """Return a call's product of bytes with constants; None if it is none."""
        try:
            product = read_integers(reading) if reading is not None else None
        except NotThisKindError:
            return None
        return product if product is not None and call.inputs[product.weights].data is not None else None

    def _write_integers(self, product: Product, name: str) -> Kernel:
        try:
            function = _write_window(product.reading, depthwise(product), self.target, self.parallel)
            return Kernel(name, "depthwise of bytes", function)
        except NotThisKindError:
            pass
        plan = plan_integers(product, self.target)
        rule = "convolution of bytes" if product.stage.kinds == "SSSSRRR" else "matrix product of bytes"
        function = write_integers(product, plan, self.parallel)
        return Kernel(name, rule, function, {product.weights: plan.pack})

    def _write_chain(self, call: Call, name: str) -> Kernel:
        readings = [self.reading_of(part.function) for part in (*(part for part, _ in call.behind), call)]
        chain = Chain([reading for reading in readings if reading is not None], [place for _, place in call.behind])
        return Kernel(name, "local sums", write_elementwise(chain, self.target, self.parallel))

    def _write_joined(self, call: Call, name: str) -> Kernel:
        products = [self.product_of(part) for part in call.joined]
        return self._write_products(
            call.joined, [p for p in products if p is not None], name, call.outputs[0].shape[-1]
        )

    def _write_products(self, calls: list[Call], products: list[Product], name: str, channels: int) -> Kernel:
        """Write convolutions, one after the other, into slices of one result."""
        w = Writer(self.parallel)
        pixels = prod(calls[0].outputs[0].shape) // products[0].window.o
        output = flat_buffer("output", (pixels, channels), "float32")
        inputs: list[Buffer] = []
        packs: dict[int, Pack] = {}
        rules: list[str] = []
        offset = 0
        for number, (call, product) in enumerate(zip(calls, products, strict=True)):
            part = self._part(call, product)
            buffers = product.reading.buffers(f"p{number}_", part.sizes)
            if part.narrow:
                buffers.update({k: flat_buffer(buffers[k].name, (size,), "int8") for k, size in part.sizes.items()})
            part.write(w, buffers, Result(output, channels, offset))
            packs.update({len(inputs) + place: pack for place, pack in part.packs.items()})
            inputs += list(buffers.values())[:-1]
            rules.append(part.rule)
            offset += product.window.o
        rule = rules[0] if len(rules) == 1 else f"concatenation of {' and '.join(sorted(set(rules)))}"
        return Kernel(name, rule, w.function(inputs, [output]), packs)

    def _part(self, call: Call, product: Product) -> _Part:
        """Decide how one convolution is computed."""
        window, target = product.window, self.target
        data = call.inputs[product.weights].data
        assert data is not None, "the weights of a product are constant"
        try:
            by_channel = depthwise(product)
        except NotThisKindError:
            pass
        else:
            order = call.order
            places = [k for k, value in enumerate(call.inputs) if value.data is not None] if order else []
            packs: dict[int, Pack] = {k: (lambda array: permuted(array, order)) for k in places}
            return _Part("depthwise", {}, packs, lambda w, buffers, result: write_by_channel(
                w, by_channel, target, buffers, result))  # fmt: skip
        name, variant = product.reading.names[product.weights], Variant(call.nchw, call.shuffled)
        m = 0 if variant != Variant() else _winograd.choose(window, target, self.winograd)
        if m:
            plan = _winograd.plan(window, target, m, self.parallel)
            return _Part(f"winograd f{m}", {name: plan.weights_size}, {product.weights: plan.pack},
                         lambda w, buffers, result: _winograd.write(w, product, plan, buffers, result))  # fmt: skip
        tile = choose_tile(window, target, variant)
        weights = weights_of(window, tile, target)
        size = weights.size(window.kh * window.kw * window.group_channels)
        rule = "matrix product" if product.stage.kinds != "SSSSRRR" else "convolution"
        narrow = _has_bytes(call, product)
        pack: Pack = (lambda array: weights.pack(array.astype("int8"))) if narrow else weights.pack
        return _Part(rule, {name: size}, {product.weights: pack}, lambda w, buffers, result: write_convolution(
            w, product, target, tile, variant, buffers, result), narrow)  # fmt: skip


@dataclass(frozen=True)
class _Part:
    """One convolution of a kernel: the sizes of parameters that are packed, how, and what writes it."""

    rule: str
    sizes: Mapping[str, int]
    packs: Mapping[int, Pack]
    write: Callable[[Writer, Mapping[str, Buffer], Result], None]
    narrow: bool = False  # parameters that are packed are bytes


def _has_bytes(call: Call, product: Product) -> bool:
    """Tell whether the weights of a product with a matrix are integers of 8 bits, which its kernel reads as bytes."""
    return product.stage.kinds != "SSSSRRR" and are_bytes(call.inputs[product.weights].data)


def check_floats(reading: Reading, stage: Stage) -> None:
    """Raise NotThisKindError where a product or its result are of another type; what follows may read masks."""
    parts = [stage.buffer, reading.result, *(factor.source for factor in factors(stage))]
    if any(str(buffer.dtype) != "float32" for buffer in parts):
        raise NotThisKindError("other types than float32")


def _write_window(reading: Reading, what: ByChannel, target: Target, parallel: bool) -> Any:
    w, buffers = Writer(parallel), reading.buffers()
    *inputs, output = buffers.values()
    write_by_channel(w, what, target, buffers, Result(output, what.window.o))
    return w.function(inputs, [output])


def _write_pooling(reading: Reading, target: Target, parallel: bool) -> Any:
    what = read_pooling(reading)
    return _write_window(reading, replace(what, window=what.window.lying()), target, parallel)


def _write_batched(reading: Reading, target: Target, parallel: bool) -> Any:
    what = read_batched(reading)
    check_floats(reading, what.stage)
    w, buffers = Writer(parallel), reading.buffers()
    *inputs, output = buffers.values()
    write_batched(w, what, target, buffers, output)
    return w.function(inputs, [output])


# Asked in this order; the first that does not raise NotThisKindError has the kernel.
_RULES: Mapping[str, Callable[[Reading, Target, bool], Any]] = {
    "pooling": _write_pooling,
    PARAMETERS: write_parameters,
    "batched matrix product": _write_batched,
    "transpose": write_transpose,
    "element-wise": write_elementwise,
    "columns": write_columns,
    "rows": write_rows,
    "pooling of planes": write_planes,
}


def no_kernel() -> Any:
    """Return a function for the library of a model that computes nothing."""
    w = Writer()
    buffer = flat_buffer("x", (1,), "float32")
    w.store(buffer, 0, buffer[0])
    return w.function([], [buffer])
