# SPDX-License-Identifier: Apache-2.0
"""Ensembles of trees: their nodes as tables, and a kernel that walks them.

Every comparison becomes ``x <= split``: the others are written with it, with their sides exchanged or the next smaller
split. Eight trees, or eight rows, are walked at once, so that the processor need not wait for one.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import tirx

from portcall.compile._rewriting import Nodes
from portcall.compile._weights import array_of
from portcall.compile._writer import Writer, as_written

Array = Any
_Weights = list[tuple[int, float]]  # what a leaf adds to which target
ML = "ai.onnx.ml"  # the domain of all classical models
TREES = ("TreeEnsembleClassifier", "TreeEnsembleRegressor", "TreeEnsemble")
TREE_SUMS = "PortcallTreeSums"  # the operator that the importer gives the kernel
_MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")  # in the order of TreeEnsemble's numbers
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_AT_ONCE = 8
_ROWS = 64  # their features stay in the nearest cache while the trees pass by
_LIMIT = {"MIN": float(np.finfo("float32").max), "MAX": float(np.finfo("float32").min)}  # what nothing is beyond
_TOGETHER = {"MIN": tirx.min, "MAX": tirx.max}


@dataclass(frozen=True)
class _Split:
    """A node that compares; its sides are splits by number, and leaves by ~number."""

    feature: int
    mode: str
    values: Array  # one; those of a set for MEMBER
    yes: int
    no: int
    missing_is_yes: bool


@dataclass(frozen=True)
class Forest:
    """Trees as tables.

    Attributes:
        nodes: for each split the feature, the next node, that if ``x <= split``, and 1 if NaN is taken for such.
            The next node is a split or, from the number of splits on, a leaf.
        splits: the values to compare with.
        roots: where each tree begins, for a multiple of eight trees; those after the last one begin in an empty leaf.
        leaf_targets, leaf_weights: what each leaf adds to which target; the same number of pairs for each.
        targets: how many there are.
        positive: no weight is negative.
        trees: how many there are.
        single: all weights are for one target.
    """

    nodes: Array
    splits: Array
    roots: Array
    leaf_targets: Array
    leaf_weights: Array
    targets: int
    positive: bool
    trees: int
    single: bool


def write_trees(n: Nodes, x: str) -> tuple[str, Forest]:
    """Write the sums of an ensemble for each row: [rows, targets]; return their name, and the forest."""
    aggregate = n.attribute("aggregate_function", b"SUM" if n.node.op_type != "TreeEnsemble" else 1)
    aggregate = AGGREGATES[aggregate] if isinstance(aggregate, int) else aggregate.decode()
    if aggregate not in AGGREGATES:
        raise ValueError(f"the aggregate_function {aggregate} is not known")
    doubles = n.graph.dtype(n.input(0)) == "float64"
    dtype = "float64" if doubles else "float32"
    rows = n.extent(n.input(0), 0)
    forest = (_read_sets if n.node.op_type == "TreeEnsemble" else _read_attributes)(n, dtype, aggregate)
    most, features = int(forest.nodes[:, 0].max(initial=0)), n.extent(n.input(0), -1)
    if most >= features or forest.nodes[:, 0].min(initial=0) < 0:
        raise ValueError(f"its trees read the feature {most}, and there are {features}")
    tables = [forest.nodes, forest.splits, forest.roots, forest.leaf_targets, forest.leaf_weights]
    names = [n.stored(table, str(table.dtype)) for table in tables]
    sums = n.add(TREE_SUMS, x, *names, aggregate=AGGREGATES.index(aggregate), targets=forest.targets)
    sums = n.add("Reshape", sums, n.stored([rows, forest.targets], "int64"))  # this tells onnx the shape
    if aggregate == "AVERAGE":
        sums = n.add("Div", sums, n.stored(forest.trees, dtype))
    base = _array(n, "base_values", dtype)
    if base.size == 2 and forest.targets == 1:
        base = base[1:]
    return (n.add("Add", sums, n.stored(base[: forest.targets], dtype)) if base.any() else sums), forest


# ---- Tables ----------------------------------------------------------------------------------------------------------


def _array(n: Nodes, name: str, dtype: str) -> Array:
    """Return an attribute that is a list of floats, or a tensor of that name."""
    tensor = n.attribute(f"{name}_as_tensor")
    found = array_of(tensor) if tensor is not None else n.attribute(name, [])
    return np.asarray(found, dtype).reshape(-1)


def _read_attributes(n: Nodes, dtype: str, aggregate: str) -> Forest:
    """Read the form in which nodes are known by tree and number, and leaves are among them."""
    classifies = n.node.op_type == "TreeEnsembleClassifier"
    word, ids = ("class", "class_ids") if classifies else ("target", "target_ids")
    trees, numbers, features, yes, no = (
        n.attribute(f"nodes_{each}", []) for each in ("treeids", "nodeids", "featureids", "truenodeids", "falsenodeids")
    )
    modes = [mode.decode().removeprefix("BRANCH_") for mode in n.attribute("nodes_modes", [])]
    values = _array(n, "nodes_values", dtype)
    missing = n.attribute("nodes_missing_value_tracks_true", []) or [0] * len(modes)
    if len({len(part) for part in (trees, numbers, features, yes, no, modes, values, missing)}) != 1:
        raise ValueError("its attributes nodes_... have not the same length")
    keys = list(zip(trees, numbers, strict=True))
    place = {key: number for number, key in enumerate(keys)}
    leaves = {number: leaf for leaf, number in enumerate(k for k, mode in enumerate(modes) if mode == "LEAF")}
    splits_of = {number: k for k, number in enumerate(k for k, mode in enumerate(modes) if mode != "LEAF")}

    def side(tree: int, number: int) -> int:
        found = place.get((tree, number))
        if found is None:
            raise ValueError(f"its tree {tree} has no node {number}")
        return ~leaves[found] if found in leaves else splits_of[found]

    splits = []
    for k in splits_of:
        sides = side(trees[k], yes[k]), side(trees[k], no[k])
        splits.append(_Split(features[k], modes[k], values[k : k + 1], *sides, bool(missing[k])))
    weights = _array(n, f"{word}_weights", dtype)
    leaf_ids = zip(n.attribute(f"{word}_treeids", []), n.attribute(f"{word}_nodeids", []), strict=True)
    gives: list[_Weights] = [[] for _ in leaves]
    targets = n.attribute(ids, [])
    for key, target, weight in zip(leaf_ids, targets, weights, strict=True):
        if place.get(key) not in leaves:
            raise ValueError(f"the node {key[1]} of its tree {key[0]} is no leaf, but has weights")
        gives[leaves[place[key]]].append((target, float(weight)))
    count = n.attribute("n_targets", 0) or max(targets, default=0) + 1
    if classifies:
        count = max(len(n.attribute("classlabels_int64s", [])), count)
        if count <= 2 and set(targets) == {0}:  # onnxruntime takes it for the score of the second class of two
            count = 1
    inner = {(tree, number) for k, tree in enumerate(trees) if k in splits_of for number in (yes[k], no[k])}
    roots = [side(*key) for key in keys if key not in inner]
    return _forest(splits, roots, gives, count, dtype, aggregate)


def _read_sets(n: Nodes, dtype: str, aggregate: str) -> Forest:
    """Read the form of TreeEnsemble, in which splits and leaves are numbered separately."""

    def tensor(name: str) -> Array:
        found = n.attribute(name)
        return np.zeros(0, dtype) if found is None else array_of(found).reshape(-1)

    values, modes = tensor("nodes_splits").astype(dtype), tensor("nodes_modes")
    features, yes, no, yes_is_leaf, no_is_leaf = (
        n.attribute(f"nodes_{each}", [])
        for each in ("featureids", "truenodeids", "falsenodeids", "trueleafs", "falseleafs")
    )
    missing = n.attribute("nodes_missing_value_tracks_true", []) or [0] * len(modes)
    sets = itertools.groupby(tensor("membership_values"), np.isnan)  # NaN is between them
    members = iter([list(part) for is_nan, part in sets if not is_nan])
    splits = []
    for k, (mode, value) in enumerate(zip(modes, values, strict=True)):
        word = _MODES[mode]
        given = np.asarray(next(members, []), dtype) if word == "MEMBER" else np.asarray([value], dtype)
        above, below = (~part[k] if leaf[k] else part[k] for part, leaf in ((yes, yes_is_leaf), (no, no_is_leaf)))
        splits.append(_Split(features[k], word, given, above, below, bool(missing[k])))
    weights, targets = tensor("leaf_weights"), n.attribute("leaf_targetids", [])
    gives = [[(target, float(weight))] for target, weight in zip(targets, weights, strict=True)]
    return _forest(splits, n.attribute("tree_roots"), gives, n.attribute("n_targets", 1), dtype, aggregate)


def _forest(
    splits: list[_Split], roots: list[int], gives: list[_Weights], targets: int, dtype: str, aggregate: str
) -> Forest:
    if not roots or any(not 0 <= target < targets for given in gives for target, _ in given):
        raise ValueError("it has no trees, or a leaf has a target that there is not")
    rows: list[tuple[int, float, int, int, int]] = []  # feature, split, yes, no, NaN is yes
    order = _in_order(splits, roots, len(gives))
    first = dict(zip(order, itertools.accumulate((_length(splits[k]) for k in order), initial=0), strict=False))
    end = sum(_length(splits[k]) for k in order)

    def place(side: int) -> int:
        return end + ~side if side < 0 else first[side]

    for k in order:
        rows += _compared(splits[k], len(rows), place(splits[k].yes), place(splits[k].no))
    given = [*gives, []]  # the last leaf is that of the trees that only fill the last eight
    count = max(1, *map(len, given))
    nothing = _LIMIT.get(aggregate, 0.0)
    padded = [[*each, *[(0, nothing)] * (count - len(each))] for each in given]
    weights = np.array([[weight for _, weight in each] for each in padded], dtype)
    begin = [*(place(root) for root in roots), *[end + len(gives)] * (-len(roots) % _AT_ONCE)]
    table = np.array([(feature, no, yes, nan) for feature, _, yes, no, nan in rows], "int32").reshape(-1, 4)
    return Forest(
        table, np.array([row[1] for row in rows], dtype), np.array(begin, "int32"),
        np.array([[target for target, _ in each] for each in padded], "int32"), weights, targets,
        bool(all(weight >= 0 for each in gives for _, weight in each)), len(roots),
        len({target for each in gives for target, _ in each}) == 1,
    )  # fmt: skip


def _in_order(splits: list[_Split], roots: list[int], leaves: int) -> list[int]:
    """Return the splits as they are reached, each before those below it.

    Raises:
        ValueError: a split is below itself, or is in two places.
    """
    found: dict[int, None] = {}
    left = roots[::-1]
    while left:
        side = left.pop()
        if side < 0:
            if ~side >= leaves:
                raise ValueError(f"there is no leaf {~side}")
            continue
        if side in found or side >= len(splits):
            raise ValueError(f"its node {side} is not there, or is reached on two ways")
        found[side] = None
        left += [splits[side].no, splits[side].yes]
    return list(found)


def _length(split: _Split) -> int:
    return 2 * len(split.values) if split.mode in ("EQ", "NEQ", "MEMBER") else 1


def _compared(split: _Split, at: int, yes: int, no: int) -> list[tuple[int, float, int, int, int]]:
    """Return rows that compare by ``x <= split`` alone; the first has a number."""
    feature, nan = split.feature, split.missing_is_yes

    def before(value: Any) -> Any:
        """Return the largest number below one, which nothing is if that is the smallest."""
        return np.nan if value == -np.inf else np.nextafter(value, value.dtype.type(-np.inf))

    if split.mode in ("LEQ", "GT", "LT", "GTE"):
        (value,) = split.values
        value = before(value) if split.mode in ("LT", "GTE") else value
        if split.mode in ("GT", "GTE"):
            yes, no, nan = no, yes, not nan
        return [(feature, value, yes, no, int(nan))]
    if split.mode not in ("EQ", "NEQ", "MEMBER"):
        raise ValueError(f"the mode {split.mode} is not known")
    if split.mode == "NEQ":
        yes, no, nan = no, yes, False  # NaN is not equal to anything
    made: list[tuple[int, float, int, int, int]] = []
    for number, value in enumerate(split.values):  # two rows for each: not above it, and not below
        here = at + len(made)
        otherwise = no if number == len(split.values) - 1 else here + 2
        made.append((feature, value, here + 1, otherwise, int(nan)))
        made.append((feature, before(value), otherwise, yes, 0))
    return made


# ---- Kernel ----------------------------------------------------------------------------------------------------------


def tree_kernel(rows: int, features: int, tables: Mapping[str, Array], targets: int, aggregate: str) -> Any:
    """Return a function of x [rows, features] and the tables of a forest that gives the sums [rows, targets].

    Parameters:
        tables: nodes, splits, roots, leaf_targets and leaf_weights, as they are in a ``Forest``.
    """
    dtype, inner = str(tables["splits"].dtype), len(tables["nodes"])
    tested = bool(tables["nodes"][:, 3].any())
    count = tables["leaf_targets"].shape[1]
    x = tirx.decl_buffer((rows, features), dtype, name="x")
    buffers = {name: tirx.decl_buffer(array.shape, str(array.dtype), name=name) for name, array in tables.items()}
    nodes, splits, roots = buffers["nodes"], buffers["splits"], buffers["roots"]
    sums = tirx.decl_buffer((rows, targets), dtype, name="sums")
    limit = tirx.const(_LIMIT.get(aggregate, 0.0), dtype)
    w = Writer(parallel=True)
    blocks = -(-rows // _ROWS)
    together: Callable[[Any, Any], Any] = _TOGETHER.get(aggregate, operator.add)
    by_rows = rows >= _AT_ONCE  # then the lanes are rows of one tree, which stays in the nearest cache; else trees
    trees = len(tables["roots"]) // (1 if by_rows else _AT_ONCE)
    with w.outer(blocks) as block:
        at = w.registers(_AT_ONCE, dtype="int32")
        first = block * _ROWS
        size = min(rows, _ROWS) if rows % _ROWS == 0 or blocks == 1 else tirx.min(_ROWS, rows - first)
        turns = (size + _AT_ONCE - 1) // _AT_ONCE if by_rows else size
        with w.loop(size) as k, w.loop(targets) as target:
            w.store(sums, (first + k, target), limit)
        with w.loop(trees) as tree, w.loop(turns) as turn:
            if by_rows:
                every = [first + turn * _AT_ONCE + lane for lane in range(_AT_ONCE)]
                row_of = [tirx.min(row, rows - 1) if rows % _AT_ONCE else row for row in every]
            else:
                every = row_of = [first + turn] * _AT_ONCE
            for lane in range(_AT_ONCE):
                w.store(at, lane, roots[tree if by_rows else tree * _AT_ONCE + lane])
            if inner:
                with w.repeat(_any_below(at, inner)):
                    for lane, row in enumerate(row_of):
                        here = tirx.min(at[lane], inner - 1)
                        value = x[row, nodes[here, 0]]
                        yes = value <= splits[here]
                        if tested:
                            yes = tirx.any(yes, tirx.all(tirx.isnan(value), nodes[here, 3] != 0))
                        step = nodes[here, 1 + tirx.Cast("int32", yes)]  # a choice would become a jump
                        w.store(at, lane, tirx.Select(at[lane] < inner, step, at[lane]))
            for lane, row in enumerate(every):
                leaf = at[lane] - inner
                rest = by_rows and rows % _AT_ONCE
                with w.when(row < rows) if rest else contextlib.nullcontext(), w.loop(count) as number:
                    place = (row, buffers["leaf_targets"][leaf, number] if targets > 1 else 0)
                    w.store(sums, place, together(sums[place], buffers["leaf_weights"][leaf, number]))
        if aggregate in _LIMIT:  # no leaf has said anything of the target
            with w.loop(size) as k, w.loop(targets) as target:
                known = sums[first + k, target]
                w.store(sums, (first + k, target), tirx.Select(known == limit, tirx.const(0.0, dtype), known))
    return as_written(w.function([x, *buffers.values()], [sums]))


def _any_below(at: Any, inner: int) -> Any:
    lowest = at[0]
    for lane in range(1, _AT_ONCE):
        lowest = tirx.min(lowest, at[lane])
    return lowest < inner
