# SPDX-License-Identifier: Apache-2.0
"""What a model lacks to be a graph: shapes with which it runs, and values that decide its branches, all at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from portcall.compile._checks import check_operators
from portcall.compile._loops import inline_control
from portcall.compile._model import fix_inputs, inputs_of, likely_shapes, shape_words, with_shapes
from portcall.compile._rewriting import constant_words, deciding_inputs
from portcall.compile._simplify import decompose
from portcall.compile._weights import copied
from portcall.errors import ModelError

Model = Any
Runs = Callable[[Any], Callable[[Mapping[str, Sequence[int]]], bool]]
_PATIENCE = 10.0  # seconds of trying


def missing(model: Model, names: Sequence[str], runs: Runs) -> tuple[list[str], str]:
    """Return what else than shapes is missing, and what to do: options that work, where such are found.

    Parameters:
        names: the inputs whose shapes are not fixed.
        runs: return what tells whether a model can be run with inputs of some shapes.
    """
    deciding = deciding_inputs(model)
    likely = _with_constants(model, deciding)
    end, tried, works = time.monotonic() + _PATIENCE, [], False
    can_run = runs(likely)
    for shapes in likely_shapes(likely, names):
        tried.append(shapes)
        works = can_run(shapes)
        if works or time.monotonic() > end:
            break
    shapes = tried[-1] if works else tried[0]
    left, problems, hint = _left(model, shapes)
    values = {name: value for name, value in deciding.items() if left is None or name in left}
    problems += [f"input '{name}' decides an If, and is not constant" for name in values]
    constants = constant_words(values)
    if hint:
        return problems, hint
    if works:
        return problems, f"give it, such as: {' '.join([*shape_words(shapes), *constants])}"
    said = {value.name: value for value in inputs_of(model)}
    forms = [f"--shape {name}={_form(said[name])}" for name in names]
    return problems, (
        f"give it, with numbers for the letters: {' '.join([*forms, *constants])} (onnxruntime did not run it with "
        "what was tried)"
    )


def _form(value: Any) -> str:
    """Return a shape with letters for what is not known, such as 2xAx128."""
    letters = iter("ABCDEFGHIJKLMNOPQRSTUVWXYZ" * (1 + len(value.type.tensor_type.shape.dim) // 26))
    dims = value.type.tensor_type.shape.dim
    return "x".join(str(d.dim_value) if d.WhichOneof("value") == "dim_value" else next(letters) for d in dims) or "AxB"


def _with_constants(model: Model, values: Mapping[str, int | None]) -> Model:
    """Return a copy of the model with inputs that have values as constants."""
    made = copied(model)
    fix_inputs(made, {name: np.asarray(value) for name, value in values.items() if value is not None})
    return made


def _left(model: Model, shapes: Mapping[str, Sequence[int]]) -> tuple[set[str] | None, list[str], str]:
    """Return which inputs decide an If that remains where shapes are fixed, other problems, and what to do about these.

    The inputs are None if that cannot be told.
    """
    try:
        made = inline_control(decompose(inline_control(with_shapes(model, shapes))))
    except ModelError:
        return None, [], ""
    left = set(deciding_inputs(made))
    nodes = [node for node in made.graph.node if node.op_type != "If"]
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    try:
        check_operators(made)
    except ModelError as error:
        return left, list(error.problems), error.hint
    return left, [], ""
