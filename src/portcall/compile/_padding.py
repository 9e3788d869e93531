# SPDX-License-Identifier: Apache-2.0
"""Pictures with their padding in working memory, for windows that are too wide for special code at the borders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tvm import tirx

from portcall.compile._products import Window
from portcall.compile._writer import Buffer, Expr, Index, Writer


def padded(
    w: Writer, window: Window, data: Buffer, lanes: int, fill: float = 0.0, *, nchw: bool = False
) -> tuple[Window, Buffer]:
    """Write a copy of a picture with padding at the left and the right, and return it with its window.

    A picture whose columns are all inside is returned as it is.
    """
    if not window.left and window.span <= window.w:
        return window, data
    rows, pixel = (window.n * window.c * window.h, 1) if nchw else (window.n * window.h, window.c)
    made = w.scratch(rows * window.span * pixel, dtype=str(data.dtype))
    inside = max(0, min(window.w, window.span - window.left)) * pixel
    left = min(window.left, window.span) * pixel
    nothing = tirx.const(fill, data.dtype)
    with w.outer(rows) as row:
        begin = row * (window.span * pixel)
        _fill(w, made, begin, left, lanes, lambda k: nothing)
        _fill(w, made, begin + left, inside, lanes, lambda k: data[row * (window.w * pixel) + k])
        _fill(w, made, begin + left + inside, window.span * pixel - left - inside, lanes, lambda k: nothing)
    return replace(window, w=window.span, left=0), made


def _fill(w: Writer, buffer: Buffer, begin: Index, count: int, lanes: int, value: Callable[[Index], Expr]) -> None:
    """Write so many elements, in vectors."""
    full, rest = divmod(count, lanes)
    for first, turns, width in ((0, full, lanes), (full * lanes, 1, rest)):
        if not turns or not width:
            continue
        with w.loop(turns) as number, w.vector(width) as lane:
            place = first + number * lanes + lane
            w.store(buffer, begin + place, value(place))
