# SPDX-License-Identifier: Apache-2.0
"""Functions that no rule is for: TVM's own code, with element-wise stages inlined and the last axis vectorized."""

from __future__ import annotations

from typing import Any

from tvm import s_tir, tirx

from portcall.compile._target import Target


def schedule(function: Any, target: Target, parallel: bool) -> Any:
    """Return the function with what of it can be made faster without knowing it."""
    try:
        made = s_tir.Schedule(function)
        blocks = made.get_child_blocks(made.get_sblock("root"))
    except Exception:  # it is not made of stages: it stays as it is
        return function
    for block in blocks[:-1]:
        if _is_spatial(made, block):
            _try(made.compute_inline, block)
    for block in made.get_child_blocks(made.get_sblock("root")):
        _vectorize(made, block, target.lanes, parallel)
    return made.mod["main"].with_attr("tirx.noalias", True)


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
