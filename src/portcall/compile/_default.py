# SPDX-License-Identifier: Apache-2.0
"""Functions that no rule is for: TVM's own code, with element-wise stages inlined and the last axis vectorized."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from tvm import s_tir, tirx

from portcall.compile._reading import walk
from portcall.compile._target import Target
from portcall.compile._writer import written

_LONG = 16  # an axis over which a sum may be rounded; those that are not known are taken for it
_FEW = 4  # expressions of a stage that stand in the place of several loads
_MANY = 64  # the same with what stands in it already: a chain would double at each step


def schedule(function: Any, target: Target, parallel: bool) -> Any:
    """Return the function with what of it can be made faster without knowing it."""
    known = written(function, parallel)
    if known is not None:
        return known

    def change(made: Any, block: Any) -> None:
        if _is_spatial(made, block):
            _vectorize(made, block, target.lanes, parallel)
        else:
            _sum_along(made, block)

    return _with_stages(function, change)


def schedule_open(function: Any) -> Any:
    """Return a function whose extents are not known, with its sums over the result's last axis.

    What is summed up is read in the order in which it lies, and LLVM makes vectors of the innermost loop. A
    kernel that is written already stays as it is.
    """
    known = written(function, parallel=False)
    if known is not None:
        return known
    return _with_stages(function, _sum_along)


def _with_stages(function: Any, change: Callable[[Any, Any], None]) -> Any:
    """Return a function of TVM's with its element-wise stages inlined, and the others changed."""
    try:
        made = s_tir.Schedule(function)
        blocks = made.get_child_blocks(made.get_sblock("root"))
    except Exception:  # it is not made of stages: it stays as it is
        return function
    if any(not made.get(block).reads and not made.get(block).writes for block in blocks):
        return function  # a stage that does not say what it reads: that must not be inlined
    parts = {block: list(walk(getattr(made.get(block).body, "value", None))) for block in blocks}
    loads = Counter(part.source for each in parts.values() for part in each if type(part).__name__ == "TensorLoad")
    buffers = list(function.params)
    sizes: dict[Any, int] = {}  # of what stands in the place of a buffer
    for block in blocks[:-1]:
        known = type(made.get(block).body).__name__ == "BufferStore"
        if known and any(made.get(block).body.buffer.same_as(buffer) for buffer in buffers):
            continue  # a result stays; TVM takes long to say so of many
        size = len(parts[block])
        whole = size + sum(sizes.get(part.source, 0) for part in parts[block] if type(part).__name__ == "TensorLoad")
        often = known and loads[made.get(block).body.buffer] > 1 and (size > _FEW or whole > _MANY)
        if _is_spatial(made, block) and not often:
            if known:
                sizes[made.get(block).body.buffer] = whole
            _try(made.compute_inline, block)
    for block in made.get_child_blocks(made.get_sblock("root")):
        change(made, block)
    return made.mod["main"].with_attr("tirx.noalias", True)


def _sum_along(made: Any, block: Any) -> None:
    """Sum up by rows where the last axis of the result lies along what is read.

    Elsewhere the result is set to its first value before all sums, since there may be nothing to sum up.
    """
    loops = list(made.get_loops(block))
    kinds = [int(axis.iter_type) for axis in made.get(block).iter_vars]
    if len(kinds) != len(loops) or not 0 <= (last := kinds.count(0)) < len(kinds) or 2 in kinds[:last]:
        return
    stage = made.get(block)
    along = last > 0 and _lies_along(stage.body, stage.iter_vars[last - 1].var)
    long = [(_extent(made, loop) or _LONG) >= _LONG for loop in loops[last:]]
    if _is_rounded_sum(stage.body) and long[0] and any(long[1:]):
        _try(lambda block: _sum_parts(made, block, loops[last], last, along), block)
    elif along:
        _try(lambda block: _sum_rows(made, block, loops, last), block)
    elif not all(_extent(made, loop) for loop in loops[last:]):
        _try(lambda block: made.decompose_reduction(block, loops[last]), block)


def _sum_rows(made: Any, block: Any, loops: list[Any], last: int) -> None:
    """Put the loop over the last axis of the result inside of those over what is summed up."""
    made.decompose_reduction(block, loops[last - 1])
    made.reorder(*loops[last:], loops[last - 1])


def _sum_parts(made: Any, block: Any, loop: Any, last: int, along: bool) -> None:
    """Sum up over the first axis what is summed up over the others: sums of fewer numbers are rounded less."""
    part = made.rfactor(loop, 0)
    if along:
        across, first = list(made.get_loops(part))[last - 1 : last + 1]
        made.reorder(first, across)
    _sum_along(made, part)
    loops = list(made.get_loops(block))
    if along:
        _sum_rows(made, block, loops, last)
    else:
        made.decompose_reduction(block, loops[last])


def _lies_along(store: Any, axis: Any) -> bool:
    """Tell whether a stage reads, beside its own result, a tensor whose last axis is this one."""
    if type(store).__name__ != "BufferStore":
        return False
    loads = (part for part in walk(store.value) if type(part).__name__ == "TensorLoad")
    return any(
        not load.source.same_as(store.buffer) and load.indices and load.indices[-1].same_as(axis) for load in loads
    )


def _is_rounded_sum(store: Any) -> bool:
    added = type(getattr(store, "value", None)).__name__ == "Add"
    return added and str(store.buffer.dtype).startswith("float")


def _is_spatial(made: Any, block: Any) -> bool:
    return all(int(axis.iter_type) == 0 for axis in made.get(block).iter_vars)


def _extent(made: Any, loop: Any) -> int:
    extent = made.get(loop).extent
    return int(extent.value) if isinstance(extent, tirx.IntImm) else 0


def _vectorize(made: Any, block: Any, lanes: int, parallel: bool) -> None:
    loops = list(made.get_loops(block))
    kinds = [int(axis.iter_type) for axis in made.get(block).iter_vars]
    if not loops or len(kinds) != len(loops):
        return
    spatial = [loop for loop, kind in zip(loops, kinds, strict=True) if kind == 0]
    if spatial and _is_spatial(made, block) and _extent(made, loops[-1]) >= lanes:
        if _extent(made, loops[-1]) % lanes == 0:
            _, inner = made.split(loops[-1], [None, lanes])
            _try(made.vectorize, inner)
        spatial = spatial[:-1]
    if parallel and spatial and _extent(made, spatial[0]) >= 2:
        _try(made.parallel, spatial[0])


def _try(primitive: Any, argument: Any) -> None:
    """Do it if TVM finds that the values stay the same."""
    try:
        primitive(argument)
    except Exception:  # TVM's class for it is not public
        return
