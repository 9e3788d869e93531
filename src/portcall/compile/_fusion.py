# SPDX-License-Identifier: Apache-2.0
"""Passes over a program that make movements of data part of the kernels around them.

* ``fold_copies``: functions that copy their input, such as transposes of axes of one element, become views.
* ``fold_layout_changes``: convolutions over few channels read the model's NCHW input as it is.
* ``fold_shuffles``: a shuffle of channels between grouped convolutions becomes an order of constants and indices.
* ``join_local_sums``: sums over a few neighbours become part of the element-wise function that reads them.
* ``join_concatenations``: convolutions write their slice of a concatenation; one call does all of them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence

from portcall.compile._chain import is_local_sum
from portcall.compile._products import Product
from portcall.compile._program import Call, Program, Value
from portcall.compile._reading import NotThisKindError, Reading, flat_index, moves, shape_of
from portcall.compile._tiles import few_channels

ReadingOf = Callable[[str], "Reading | None"]
ProductOf = Callable[[Call], "Product | None"]


def fold_copies(program: Program, reading_of: ReadingOf) -> None:
    for call in program.calls:
        reading = reading_of(call.function)
        if reading is not None and moves(reading, functools.partial(flat_index, reading.result)):
            call.function = ""


def fold_layout_changes(program: Program, reading_of: ReadingOf, product_of: ProductOf) -> None:
    users = program.users()
    for call in program.calls:
        reading = reading_of(call.function)
        if reading is None or call.outputs[0] in program.outputs or not _is_from_nchw(reading):
            continue
        readers = users[call.outputs[0]]
        products = [product_of(user) for user in readers]
        if readers and all(
            product is not None
            and product.stage.kinds == "SSSSRRR"  # the rows of a matrix are no picture
            and few_channels(product.window.group_channels)
            and product.window.groups == 1
            and [k for k, value in enumerate(user.inputs) if value is call.outputs[0]] == [product.data]
            for user, product in zip(readers, products, strict=True)
        ):
            for user, product in zip(readers, products, strict=True):
                assert product is not None
                user.inputs[product.data] = call.inputs[0]
                user.nchw = True
    program.drop_unused()


def _is_from_nchw(reading: Reading) -> bool:
    """Tell whether a function makes a picture NHWC of one NCHW."""
    shape = shape_of(reading.result)
    if len(shape) != 4:
        return False
    _, h, w, c = shape
    return moves(reading, lambda at: ((at[0] * c + at[3]) * h + at[1]) * w + at[2])


def fold_shuffles(program: Program, reading_of: ReadingOf, product_of: ProductOf) -> None:
    """Fold shuffle, depthwise convolution, grouped 1x1 convolution.

    The depthwise one works on unshuffled channels, with its constants in their order; the 1x1 convolution, which loads
    its input number by number, picks the channels where they are.
    """
    users = program.users()
    orders: dict[str, tuple[int, ...] | None] = {}
    for call in program.calls:
        reading = reading_of(call.function)
        readers = users[call.outputs[0]]
        if reading is None or len(readers) != 1 or call.outputs[0] in program.outputs:
            continue
        if call.function not in orders:
            orders[call.function] = _channel_order(reading)
        order = orders[call.function]
        groups = _shuffle_groups(order)
        if order is None or not groups:
            continue
        depthwise = readers[0]
        middle = depthwise.outputs[0]
        if not _is_depthwise_of(depthwise, product_of, call.outputs[0]) or len(users[middle]) != 1:
            continue
        pointwise = users[middle][0]
        product = product_of(pointwise)
        if (
            product is None
            or middle in program.outputs
            or product.window.group_channels == 1
            or [k for k, value in enumerate(pointwise.inputs) if value is middle] != [product.data]
        ):
            continue
        inverse = [0] * len(order)
        for here, there in enumerate(order):
            inverse[there] = here
        depthwise.inputs = [call.inputs[0] if value is call.outputs[0] else value for value in depthwise.inputs]
        depthwise.order, pointwise.shuffled = tuple(inverse), groups
    program.drop_unused()


def _is_depthwise_of(call: Call, product_of: ProductOf, data: Value) -> bool:
    """Tell whether a call is a depthwise convolution of a value, all else that it reads being constants by channel."""
    product = product_of(call)
    if product is None or product.window.group_channels != 1 or product.window.groups != product.window.o:
        return False
    others = [value for value in call.inputs if value is not data]
    fit = all(value.data is not None and value.shape[-1:] == (product.window.o,) for value in others)
    return fit and len(others) == len(call.inputs) - 1


def _channel_order(reading: Reading) -> tuple[int, ...] | None:
    """Return where each channel comes from, of a function that only moves the channels of a picture NHWC."""
    if reading.reductions or len(reading.inputs) != 1:
        return None
    shape = shape_of(reading.result)
    if len(shape) != 4 or shape_of(reading.inputs[0]) != shape or shape[0] != 1 or shape[3] < 2:
        return None
    _, height, width, channels = shape
    try:
        first = [_source(reading, [0, 0, 0, c]) for c in range(channels)]
        corners = ((0, width - 1), (height - 1, 0), (height // 2, width // 2))
        for h, w in corners:
            for c in {0, 1, channels // 2, channels - 1}:
                if _source(reading, [0, h, w, c]) != [0, h, w, first[c][3]]:
                    return None
    except NotThisKindError:
        return None
    if any(place[:3] != [0, 0, 0] for place in first):
        return None
    return tuple(place[3] for place in first)


def _source(reading: Reading, place: Sequence[int]) -> list[int]:
    """Return the place of the input that an element of the result is a copy of."""
    buffer, at = reading.result, list(place)
    while not reading.is_input(buffer):
        stage = reading.inlined[buffer.name]
        load = stage.value
        if type(load).__name__ != "TensorLoad":
            raise NotThisKindError("no movement of data")
        names = {str(index): k for index, k in zip(stage.indices, at, strict=True)}
        buffer, at = load.source, [reading.one_place(index, names) for index in load.indices]
    return at


def _shuffle_groups(order: Sequence[int] | None) -> int:
    """Return the groups of a shuffle: channel c comes from c % g * (C / g) + c / g; 0 if it is not a shuffle."""
    count = len(order or ())
    for groups in range(2, count):
        width = count // groups
        if count % groups == 0 and all(here == c % groups * width + c // groups for c, here in enumerate(order or ())):
            return groups
    return 0


def join_local_sums(program: Program, reading_of: ReadingOf) -> None:
    """Compute a sum over neighbours, and the element-wise function that it reads, where it is read."""
    users, makers = program.users(), program.makers()

    def inner(value: Value, reader: Call) -> Call | None:
        """Return the call that makes a value that no other call reads."""
        alone = users[value] == [reader] and reader.inputs.count(value) == 1 and value not in program.outputs
        return makers.get(value) if alone else None

    def element_wise(call: Call) -> bool:
        reading = reading_of(call.function)
        return reading is not None and not reading.reductions and reading.is_readable

    gone: set[int] = set()
    for call in filter(element_wise, program.calls):
        for value in call.inputs:
            total = inner(value, call)
            reading = None if total is None else reading_of(total.function)
            if total is None or reading is None or not is_local_sum(reading):
                continue
            first = inner(total.inputs[0], total)
            parts = [total, call] if first is None or not element_wise(first) else [first, total, call]
            places = [b.inputs.index(a.outputs[0]) for a, b in itertools.pairwise(parts)]
            others = [
                [v for place, v in enumerate(b.inputs) if place != at] for b, at in zip(parts[1:], places, strict=True)
            ]
            call.behind = list(zip(parts[:-1], places, strict=True))
            call.inputs = [*parts[0].inputs, *itertools.chain(*others)]
            gone.update(id(part) for part in parts[:-1])
            break
    program.calls = [call for call in program.calls if id(call) not in gone]


def join_concatenations(program: Program, reading_of: ReadingOf, product_of: ProductOf) -> None:
    users, makers = program.users(), program.makers()
    gone: set[int] = set()
    for call in program.calls:
        reading = reading_of(call.function)
        if reading is None or not _joins_channels(reading) or len(set(call.inputs)) != len(call.inputs):
            continue
        parts = [makers.get(value) for value in call.inputs]
        if not all(
            part is not None
            and not part.joined
            and product_of(part) is not None
            and len(users[part.outputs[0]]) == 1
            and part.outputs[0] not in program.outputs
            for part in parts
        ):
            continue
        call.joined = [part for part in parts if part is not None]
        call.inputs = [value for part in call.joined for value in part.inputs]
        gone.update(id(part) for part in call.joined)
    program.calls = [call for call in program.calls if id(call) not in gone]


def _joins_channels(reading: Reading) -> bool:
    """Tell whether a function puts pictures together along the channels, and does nothing else."""
    if len(reading.stages) != 1 or reading.reductions or "concat" not in reading.stages[0].name.lower():
        return False
    result = shape_of(reading.result)
    shapes = [shape_of(buffer) for buffer in reading.inputs]
    same = all(len(shape) == 4 and shape[:3] == result[:3] for shape in shapes) and len(result) == 4
    return same and sum(shape[3] for shape in shapes) == result[3] and len(shapes) > 1
