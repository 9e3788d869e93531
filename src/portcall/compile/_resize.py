# SPDX-License-Identifier: Apache-2.0
"""Resize as sums of what ONNX's Gather picks: the importer knows only some of its many modes.

An axis is resized by itself. Each of its results is a weighted sum of a few places of the axis, which follow from the
scales alone (operator Resize of ONNX, opset 19, with the formulas of its attributes). Where all weights are 1, as in
the nearest neighbour, a Gather is all; a few places are gathered one by one; many are a product with a matrix.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor
from typing import Any

import numpy as np
from onnx import helper

from portcall.compile._rewriting import ONNX_DOMAINS, ComputedError, Graph, attribute_of, refusal

Array = Any
_GATHERED = 4  # places that are gathered one by one; a cubic has so many


@dataclass(frozen=True)
class _Axis:
    """How an axis is resized.

    Attributes:
        size, result: how many elements it has before and after.
        scale: as the model gives it, which need not be result / size.
        start, end: the region of interest, from 0 to 1.
    """

    axis: int
    size: int
    result: int
    scale: float
    start: float = 0.0
    end: float = 1.0


@dataclass(frozen=True)
class _Mode:
    interpolation: str
    coordinates: str
    nearest: str
    cubic: float
    exclude_outside: bool
    antialias: bool
    extrapolation: float


def replace_resizes(graph: Graph) -> None:
    """Replace every Resize and Upsample whose scales are constant.

    Raises:
        ModelError: a mode that is not known, or interpolated integers.
    """
    nodes: list[Any] = []
    for number, node in enumerate(graph.nodes):
        if node.op_type not in ("Resize", "Upsample") or node.domain not in ONNX_DOMAINS:
            nodes.append(node)
            continue
        try:
            nodes += _replaced(graph, node)
        except ValueError as error:
            raise refusal(node, number, error) from None
    graph.nodes = nodes


def _is_imported_right(node: Any, axes: list[_Axis], mode: _Mode, rank: int) -> bool:
    """Tell whether the importer does it right: for pictures, in the layout of the convolutions around."""
    if node.op_type != "Resize" or rank != 4 or {axis.axis for axis in axes} - {2, 3} or mode.antialias:
        return False
    if any(attribute.name in ("axes", "keep_aspect_ratio_policy") for attribute in node.attribute):
        return False
    if mode.interpolation == "nearest":
        known = (mode.coordinates, mode.nearest) in (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"))
        return known and all(axis.scale == int(axis.scale) for axis in axes)
    fits = all(abs(axis.scale * axis.size - axis.result) < 1e-6 and axis.result > 1 for axis in axes)
    return mode.interpolation == "linear" and mode.coordinates in ("half_pixel", "asymmetric") and fits


def _replaced(graph: Graph, node: Any) -> list[Any]:
    shape = graph.shape(node.input[0])
    if shape is None:
        raise ValueError("the shape of its input is not known")
    mode = _mode(graph, node)
    axes = [axis for axis in _axes(graph, node, shape) if not _is_identity(axis, mode)]
    if mode.interpolation != "nearest" and graph.dtype(node.input[0]) not in ("float32", "float16", "float64"):
        raise ValueError("interpolation of integers is not supported")
    if _is_imported_right(node, axes, mode, len(shape)):
        return [node]
    nodes: list[Any] = []
    name = node.input[0]
    dtype = graph.dtype(node.input[0])
    for axis in axes:
        weights, outside = _weights(axis, mode)
        name = _resize_axis(graph, nodes, name, axis.axis, weights.astype(dtype), len(shape))
        if outside.any():
            extents = [-1 if k == axis.axis else 1 for k in range(len(shape))]
            mask = graph.constant("outside", outside.reshape(extents))
            value = graph.constant("extrapolation", np.array(mode.extrapolation, dtype))
            nodes.append(helper.make_node("Where", [mask, value, name], [graph.name("inside")]))
            name = nodes[-1].output[0]
    if nodes:
        nodes[-1].output[0] = node.output[0]
        return nodes
    return [helper.make_node("Identity", [node.input[0]], [node.output[0]])]


def _mode(graph: Graph, node: Any) -> _Mode:
    def text(name: str, default: str) -> str:
        found = attribute_of(node, name, default)
        return found.decode() if isinstance(found, bytes) else str(found)

    old = node.op_type == "Upsample" or graph.opset["ai.onnx"] < 11
    interpolation = text("mode", "nearest").replace("bilinear", "linear")
    coordinates = "asymmetric" if old else text("coordinate_transformation_mode", "half_pixel")
    nearest = "floor" if old else text("nearest_mode", "round_prefer_floor")
    if interpolation not in ("nearest", "linear", "cubic") or nearest not in _ROUNDINGS:
        raise ValueError(f"the mode {interpolation} with {nearest} is not known")
    return _Mode(
        interpolation, coordinates, nearest, attribute_of(node, "cubic_coeff_a", -0.75),
        bool(attribute_of(node, "exclude_outside", 0)), bool(attribute_of(node, "antialias", 0)),
        attribute_of(node, "extrapolation_value", 0.0),
    )  # fmt: skip


def _constant(graph: Graph, node: Any, place: int, what: str) -> Array | None:
    name = node.input[place] if len(node.input) > place else ""
    if not name:
        return None
    if name not in graph.constants:
        raise ComputedError(graph.source, name, what)
    return graph.constants[name] if graph.constants[name].size else None


def _axes(graph: Graph, node: Any, shape: tuple[int, ...]) -> list[_Axis]:
    """Return how each axis is resized."""
    if node.op_type == "Upsample" or graph.opset["ai.onnx"] < 11:
        scales = _constant(graph, node, 1, "scales")
        if scales is None:
            scales = np.array(attribute_of(node, "scales", ()), "float32")
        sizes = roi = None
    else:
        roi, scales, sizes = (_constant(graph, node, k, ("roi", "scales", "sizes")[k - 1]) for k in (1, 2, 3))
    axes = [axis % len(shape) for axis in attribute_of(node, "axes", range(len(shape)))]
    given = scales if sizes is None else sizes
    if given is None or len(given) != len(axes):
        raise ValueError(f"it has {0 if given is None else len(given)} scales or sizes for {len(axes)} axes")
    if roi is None or len(roi) != 2 * len(axes):
        roi = np.array([0.0] * len(axes) + [1.0] * len(axes))
    found = []
    if sizes is not None:
        policy = attribute_of(node, "keep_aspect_ratio_policy", b"stretch")
        ratios = [int(size) / shape[axis] for size, axis in zip(sizes, axes, strict=True)]
        if policy != b"stretch":
            ratio = min(ratios) if policy == b"not_larger" else max(ratios)
            results = [floor(ratio * shape[axis] + 0.5) for axis in axes]
            ratios = [ratio] * len(axes)
        else:
            results = [int(size) for size in sizes]
    else:
        ratios = [float(scale) for scale in given]
        results = [floor(float(scale) * shape[axis]) for scale, axis in zip(given, axes, strict=True)]
    for k, axis in enumerate(axes):
        found.append(_Axis(axis, shape[axis], results[k], ratios[k], float(roi[k]), float(roi[k + len(axes)])))
    return found


def _is_identity(axis: _Axis, mode: _Mode) -> bool:
    crops = mode.coordinates == "tf_crop_and_resize" and (axis.start, axis.end) != (0.0, 1.0)
    return axis.result == axis.size and axis.scale == 1 and not crops


# ---- Weights ---------------------------------------------------------------------------------------------------------


def _weights(axis: _Axis, mode: _Mode) -> tuple[Array, Array]:
    """Return a matrix [result, size], and for which results the place lies outside of the axis."""
    matrix = np.zeros((axis.result, axis.size))
    outside = np.zeros(axis.result, bool)
    for k in range(axis.result):
        place = float(_place(axis, mode.coordinates, np.float32(k)))
        if mode.coordinates == "tf_crop_and_resize" and not 0 <= place <= axis.size - 1:
            outside[k] = True
            continue
        if mode.interpolation == "nearest":
            matrix[k, min(max(_ROUNDINGS[mode.nearest](place), 0), axis.size - 1)] = 1
            continue
        for at, weight in _taps(place, axis.scale, mode):
            if mode.exclude_outside and not 0 <= at < axis.size:
                continue
            matrix[k, min(max(at, 0), axis.size - 1)] += weight
        if mode.exclude_outside:
            matrix[k] /= matrix[k].sum()
    return matrix, outside


_ROUNDINGS = {
    "round_prefer_floor": lambda x: ceil(x - 0.5),
    "round_prefer_ceil": lambda x: floor(x + 0.5),
    "floor": floor,
    "ceil": ceil,
}


def _place(axis: _Axis, coordinates: str, k: Any) -> Any:
    """Return where a result lies on the axis before: the attribute coordinate_transformation_mode.

    It is rounded as onnxruntime's floats are, which decides the nearest of two that are equally far.
    """
    size, result, scale = axis.size, axis.result, np.float32(axis.scale)
    if coordinates == "half_pixel":
        return (k + 0.5) / scale - 0.5
    if coordinates == "half_pixel_symmetric":
        adjustment = result / (scale * size)
        return size / 2 * (1 - adjustment) + (k + 0.5) / scale - 0.5
    if coordinates == "pytorch_half_pixel":
        return (k + 0.5) / scale - 0.5 if result > 1 else 0.0
    if coordinates == "align_corners":
        return k * (size - 1) / (scale * size - 1) if scale * size != 1 else 0.0
    if coordinates == "asymmetric":
        return k / scale
    if coordinates == "tf_half_pixel_for_nn":
        return (k + 0.5) / scale
    if coordinates == "tf_crop_and_resize":
        if result > 1:
            return axis.start * (size - 1) + k * (axis.end - axis.start) * (size - 1) / (result - 1)
        return 0.5 * (axis.start + axis.end) * (size - 1)
    raise ValueError(f"the coordinate_transformation_mode {coordinates} is not known")


def _taps(place: float, scale: float, mode: _Mode) -> list[tuple[int, float]]:
    """Return places and weights of a linear or cubic interpolation; antialiased ones are wider when they shrink."""
    kernel = _triangle if mode.interpolation == "linear" else lambda x: _cubic(x, mode.cubic)
    reach = 1 if mode.interpolation == "linear" else 2
    squeeze = min(scale, 1.0) if mode.antialias else 1.0
    base = floor(place)
    ratio = place - base
    if squeeze == 1.0:
        return [(base + k, kernel(k - ratio)) for k in range(1 - reach, reach + 1)]
    first, last = ceil(place - reach / squeeze), floor(place + reach / squeeze)
    weights = [(at, kernel((at - place) * squeeze)) for at in range(first, last + 1)]
    total = sum(weight for _, weight in weights)
    return [(at, weight / total) for at, weight in weights]


def _triangle(x: float) -> float:
    return max(0.0, 1 - abs(x))


def _cubic(x: float, a: float) -> float:
    """Keys, Cubic convolution interpolation for digital image processing, 1981, equation (15)."""
    x = abs(x)
    if x <= 1:
        return ((a + 2) * x - (a + 3)) * x * x + 1
    return ((x - 5) * x + 8) * x * a - 4 * a if x < 2 else 0.0


# ---- Nodes -----------------------------------------------------------------------------------------------------------


def _resize_axis(graph: Graph, nodes: list[Any], name: str, axis: int, weights: Array, rank: int) -> str:
    """Add the nodes that multiply an axis with a matrix, and return the name of their result."""
    used = (weights != 0).sum(axis=1).max(initial=0)
    if used > _GATHERED:
        order = [k for k in range(rank) if k != axis]
        last = [*order, axis]
        back = [last.index(k) for k in range(rank)]
        matrix = graph.constant("resize", np.ascontiguousarray(weights.T))
        for op, inputs, words in (
            ("Transpose", [name], {"perm": last}),
            ("MatMul", [None, matrix], {}),
            ("Transpose", [None], {"perm": back}),
        ):
            name = _add(graph, nodes, op, [each or name for each in inputs], **words)
        return name
    # The places of a row that count, each row's first one, second one, and so on.
    picked = np.argsort(weights == 0, axis=1, kind="stable")[:, : max(1, used)]
    extents = [-1 if k == axis else 1 for k in range(rank)]
    total = ""
    for column in picked.T:
        part = _add(graph, nodes, "Gather", [name, graph.constant("places", column.astype("int64"))], axis=axis)
        factors = np.take_along_axis(weights, column[:, None], 1)
        if (factors != 1).any():
            part = _add(graph, nodes, "Mul", [part, graph.constant("weights", factors.reshape(extents))])
        total = _add(graph, nodes, "Add", [total, part]) if total else part
    return total


def _add(graph: Graph, nodes: list[Any], op: str, inputs: list[str], **attributes: Any) -> str:
    name = graph.name("resized")
    nodes.append(helper.make_node(op, inputs, [name], **attributes))
    return name
