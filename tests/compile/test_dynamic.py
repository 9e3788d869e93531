# SPDX-License-Identifier: Apache-2.0
"""Models whose shapes are not fixed, as exporters write them: what computes shapes is evaluated at import."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from compile.reference import largest_error, make, outputs
from portcall import compile, errors
from portcall.compile._verify import reference

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("vm_pools")]
TOLERANCE = 1e-5
Node = helper.make_node
Pattern = tuple[list[Any], dict[str, Any], list[str], dict[str, Any]]


def random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def integers(*values: int) -> Any:
    return np.array(values, "int64")


def extent(x: str, axis: int, name: str) -> list[Any]:
    """Shape -> Gather -> Unsqueeze, as torch writes one extent."""
    return [
        Node("Shape", [x], [f"{name}_shape"]),
        Node("Gather", [f"{name}_shape", f"axis{axis}"], [f"{name}_number"], axis=0),
        Node("Unsqueeze", [f"{name}_number", "first"], [name]),
    ]


COMMON = {"first": integers(0), **{f"axis{k}": np.array(k, "int64") for k in range(4)}}


def heads() -> Pattern:
    """Attention as torch exports it: [batch, sequence, 16] to heads, their products, and back."""
    nodes = [*extent("x", 0, "b"), *extent("x", 1, "s"), Node("Concat", ["b", "s", "two", "eight"], ["split"], axis=0)]
    for name in "qkv":
        nodes += [
            Node("MatMul", ["x", f"w{name}"], [f"{name}0"]),
            Node("Reshape", [f"{name}0", "split"], [f"{name}1"]),
            Node("Transpose", [f"{name}1"], [name], perm=[0, 2, 3, 1] if name == "k" else [0, 2, 1, 3]),
        ]
    nodes += [
        Node("MatMul", ["q", "k"], ["scores"]), Node("Softmax", ["scores"], ["shares"], axis=-1),
        Node("MatMul", ["shares", "v"], ["mixed"]), Node("Transpose", ["mixed"], ["rows"], perm=[0, 2, 1, 3]),
        Node("Concat", ["b", "s", "minus"], ["merge"], axis=0), Node("Reshape", ["rows", "merge"], ["whole"]),
        Node("Add", ["whole", "x"], ["y"]),
    ]  # fmt: skip
    weights = {f"w{name}": random(16, 16, seed=k) for k, name in enumerate("qkv")}
    numbers = {"two": integers(2), "eight": integers(8), "minus": integers(-1)}
    return nodes, {"x": ["batch", "sequence", 16]}, ["y"], {**COMMON, **weights, **numbers}


def positions() -> Pattern:
    """A table of positions, sliced to the sequence; and another one, gathered by Range."""
    nodes = [
        *extent("x", 1, "s"), Node("Slice", ["table", "first", "s", "one"], ["part"]),
        Node("Add", ["x", "part"], ["a"]),
        Node("Squeeze", ["s", "first"], ["end"]), Node("Range", ["axis0", "end", "axis1"], ["places"]),
        Node("Gather", ["rows", "places"], ["found"]), Node("Add", ["a", "found"], ["y"]),
    ]  # fmt: skip
    weights = {"table": random(1, 32, 6), "rows": random(32, 6, seed=1), "one": integers(1)}
    return nodes, {"x": ["batch", "sequence", 6]}, ["y"], {**COMMON, **weights}


def expanded() -> Pattern:
    """Expand as torch writes it: to a shape in which -1 stands for what is there, chosen by Where."""
    nodes = [
        *extent("x", 0, "b"), Node("Concat", ["b", "minus", "three"], ["wanted"], axis=0),
        Node("ConstantOfShape", ["rank"], ["ones"], value=helper.make_tensor("v", 7, [1], [1])),
        Node("Mul", ["ones", "minus"], ["left"]), Node("Equal", ["wanted", "left"], ["same"]),
        Node("Where", ["same", "ones", "wanted"], ["shape"]), Node("Expand", ["token", "shape"], ["tokens"]),
        Node("Concat", ["tokens", "x"], ["y"], axis=1),
    ]  # fmt: skip
    weights = {"token": random(1, 1, 3), "minus": integers(-1), "three": integers(3), "rank": integers(3)}
    return nodes, {"x": ["batch", "n", 3]}, ["y"], {**COMMON, **weights}


def resized() -> Pattern:
    """A picture that is made twice as large, by a size that is computed, and put beside another one, as in a U-Net."""
    nodes = [
        Node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), Node("Relu", ["c"], ["r"]),
        Node("MaxPool", ["r"], ["small"], kernel_shape=[2, 2], strides=[2, 2]),
        Node("Shape", ["r"], ["shape"]), Node("Slice", ["shape", "two", "four"], ["size"]),
        Node("Shape", ["small"], ["shape1"]), Node("Slice", ["shape1", "first", "two"], ["front"]),
        Node("Concat", ["front", "size"], ["sizes"], axis=0),
        Node("Resize", ["small", "", "", "sizes"], ["large"], mode="nearest", nearest_mode="floor",
             coordinate_transformation_mode="asymmetric"),
        Node("Concat", ["large", "r"], ["y"], axis=1),
    ]  # fmt: skip
    weights = {"w": random(4, 3, 3, 3), "two": integers(2), "four": integers(4)}
    return nodes, {"x": ["batch", 3, "height", "width"]}, ["y"], {**COMMON, **weights}


def whole() -> Pattern:
    """Slices to an end that is none, as exporters write it: all of an axis, whatever its extent."""
    nodes = [
        Node("Slice", ["x", "starts", "ends"], ["a"]), Node("Transpose", ["a"], ["b"], perm=[0, 2, 1]),
        Node("Slice", ["b", "first", "large"], ["c"]), Node("MatMul", ["c", "a"], ["y"]),
    ]  # fmt: skip
    numbers = {"starts": integers(0, 1), "ends": integers(10**9, 3), "large": integers(2**63 - 1)}
    return nodes, {"x": ["batch", "n", 600]}, ["y"], {**COMMON, **numbers}


def by_floats() -> Pattern:
    """Sizes by way of floats, as older exporters compute them: Cast, Mul, Floor, Cast."""
    nodes = [
        Node("Shape", ["x"], ["shape"]), Node("Cast", ["shape"], ["floats"], to=1),
        Node("Mul", ["floats", "factors"], ["scaled"]), Node("Floor", ["scaled"], ["whole"]),
        Node("Cast", ["whole"], ["sizes"], to=7),
        Node("Resize", ["x", "", "", "sizes"], ["y"], mode="linear", coordinate_transformation_mode="half_pixel"),
    ]  # fmt: skip
    return nodes, {"x": ["batch", 2, "height", "width"]}, ["y"], {"factors": np.array([1, 1, 1.5, 2], "float32")}


def padded() -> Pattern:
    """Padding as torch computes it, and windows that are counted by division."""
    nodes = [
        Node("ConstantOfShape", ["four"], ["zeros"], value=helper.make_tensor("v", 7, [1], [0])),
        Node("Concat", ["pads", "zeros"], ["all"], axis=0), Node("Reshape", ["all", "rows"], ["pairs"]),
        Node("Slice", ["pairs", "last", "before", "first", "last"], ["reversed"]),
        Node("Transpose", ["reversed"], ["columns"], perm=[1, 0]), Node("Reshape", ["columns", "last"], ["given"]),
        Node("Pad", ["x", "given"], ["p"]), *extent("p", 0, "b"), *extent("p", 2, "w"),
        Node("Div", ["w", "two"], ["half"]), Node("Concat", ["b", "half", "last"], ["shape"], axis=0),
        Node("Reshape", ["p", "shape"], ["y"]),
    ]  # fmt: skip
    numbers = {"pads": integers(1, 1), "rows": integers(-1, 2), "last": integers(-1), "two": integers(2),
               "before": integers(-(2**63)), "four": integers(4)}  # fmt: skip
    return nodes, {"x": ["batch", 3, "width"]}, ["y"], {**COMMON, **numbers}


def pointwise() -> Pattern:
    """A block of a mobile network, for pictures of any size."""
    nodes = [
        Node("Conv", ["x", "w1", "b1"], ["wide"]), Node("HardSwish", ["wide"], ["a"]),
        Node("Conv", ["a", "w2"], ["d"], group=16, pads=[1, 1, 1, 1]), Node("Relu", ["d"], ["r"]),
        Node("GlobalAveragePool", ["r"], ["g"]), Node("Conv", ["g", "w3"], ["h"]), Node("Sigmoid", ["h"], ["gate"]),
        Node("Mul", ["r", "gate"], ["m"]), Node("Conv", ["m", "w4"], ["n"]), Node("Add", ["n", "x"], ["y"]),
    ]  # fmt: skip
    weights = {"w1": random(16, 8, 1, 1), "b1": random(16), "w2": random(16, 1, 3, 3), "w3": random(16, 16, 1, 1),
               "w4": random(8, 16, 1, 1)}  # fmt: skip
    return nodes, {"x": ["batch", 8, "height", "width"]}, ["y"], weights


def normalized() -> Pattern:
    """Rows of any number: a product, GELU with its Erf, LayerNormalization of what it gives, Softmax."""
    nodes = [
        Node("MatMul", ["x", "w"], ["p"]), Node("Add", ["p", "bias"], ["q"]), Node("Div", ["q", "root"], ["e"]),
        Node("Erf", ["e"], ["f"]), Node("Add", ["f", "one"], ["g"]), Node("Mul", ["q", "g"], ["h"]),
        Node("Mul", ["h", "half"], ["i"]), Node("LayerNormalization", ["i", "scale", "shift"], ["n"]),
        Node("Softmax", ["n"], ["y"], axis=-1),
    ]  # fmt: skip
    weights = {"w": random(24, 40), "bias": random(40), "scale": random(40), "shift": random(40),
               "root": np.array([1.4142135], "float32"), "one": np.ones(1, "float32"),
               "half": np.full(1, 0.5, "float32")}  # fmt: skip
    return nodes, {"x": ["batch", "sequence", 24]}, ["y"], weights


def spectrum() -> Pattern:
    """Two convolutions of one sound, squared and added: values whose extents are computed live side by side."""
    nodes = [
        Node("Conv", ["x", "real"], ["a"], strides=[4]), Node("Conv", ["x", "imaginary"], ["b"], strides=[4]),
        Node("Mul", ["a", "a"], ["a2"]), Node("Mul", ["b", "b"], ["b2"]), Node("Add", ["a2", "b2"], ["y"]),
    ]  # fmt: skip
    weights = {"real": random(9, 1, 16), "imaginary": random(9, 1, 16, seed=1)}
    return nodes, {"x": ["batch", 1, "length"]}, ["y"], weights


def flattened() -> Pattern:
    """Windows and a classifier, of any number of pictures."""
    nodes = [
        Node("Conv", ["x", "w", "bias"], ["c"], strides=[2, 2]), Node("Relu", ["c"], ["r"]),
        Node("GlobalAveragePool", ["r"], ["g"]), *extent("g", 0, "b"),
        Node("Concat", ["b", "minus"], ["shape"], axis=0), Node("Reshape", ["g", "shape"], ["rows"]),
        Node("Gemm", ["rows", "m", "n"], ["y"], transB=1),
    ]  # fmt: skip
    weights = {"w": random(8, 3, 3, 3), "bias": random(8), "m": random(5, 8), "n": random(5), "minus": integers(-1)}
    return nodes, {"x": ["batch", 3, 15, 15]}, ["y"], {**COMMON, **weights}


PATTERNS: Mapping[Callable[[], Pattern], Sequence[tuple[int, ...]]] = {
    heads: [(1, 5, 16), (3, 19, 16)], positions: [(1, 3, 6), (2, 32, 6)], expanded: [(1, 2, 3), (5, 4, 3)],
    resized: [(1, 3, 6, 4), (2, 3, 10, 18)], by_floats: [(1, 2, 4, 6), (2, 2, 6, 5)],
    spectrum: [(1, 1, 40), (2, 1, 205)], pointwise: [(1, 8, 3, 5), (2, 8, 9, 7)], normalized: [(1, 5, 24), (3, 51, 24)],
    whole: [(1, 2, 600), (4, 5, 600)], padded: [(1, 3, 6), (2, 3, 20)], flattened: [(1, 3, 15, 15), (7, 3, 15, 15)],
}  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_shapes_are_computed_for_all_sizes(pattern: Callable[[], Pattern]) -> None:
    nodes, inputs, results, weights = pattern()
    model = make(nodes, inputs, results, weights)
    machine = compile.onnx(model, runtime="vm").load()
    for shape in PATTERNS[pattern]:
        x = random(*shape)
        (expected,) = reference(model, {"x": x}).values()
        assert largest_error(machine(x).numpy(), expected) <= TOLERANCE


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_computes_shapes_leaves_a_graph(pattern: Callable[[], Pattern]) -> None:
    nodes, inputs, results, weights = pattern()
    model, shape = make(nodes, inputs, results, weights), PATTERNS[pattern][0]
    x = random(*shape)
    executor = compile.onnx(model, shapes={"x": shape}, runtime="graph").load()
    executor.run(x=x)
    (expected,) = reference(model, {"x": x}).values()
    assert largest_error(executor.get_output(0).numpy(), expected) <= TOLERANCE


def test_more_positions_than_the_table_has_are_an_error() -> None:
    nodes, inputs, results, weights = positions()
    machine = compile.onnx(make(nodes, inputs, results, weights), check=False, runtime="vm").load()
    with pytest.raises((RuntimeError, ValueError, errors.PortcallError)):
        machine(random(1, 33, 6))


@pytest.mark.parametrize("pattern", [flattened, normalized])
def test_rules_write_the_kernels_of_any_number_of_rows(pattern: Callable[[], Pattern]) -> None:
    nodes, inputs, results, weights = pattern()
    made = compile.onnx(make(nodes, inputs, results, weights), check=False, runtime="vm")
    assert made.kernels.get("matrix product") == 1
    assert "default" not in made.kernels


def test_no_function_of_a_library_expects_that_its_tensors_share_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    import tvm
    from tvm import tirx

    said = {}

    def compiled(module: Any, target: Any, relax_pipeline: Any) -> Any:
        with target:
            lowered = relax_pipeline(module).functions_items()
        said.update({name.name_hint: f.attrs for name, f in lowered if isinstance(f, tirx.PrimFunc)})
        return build(module, target=target, relax_pipeline=relax_pipeline)

    build = tvm.compile
    monkeypatch.setattr(tvm, "compile", compiled)
    nodes, inputs, results, weights = heads()
    compile.onnx(make(nodes, inputs, results, weights), check=False, runtime="vm")
    assert "shape_func" in said
    assert [name for name, attrs in said.items() if not attrs.get("tirx.noalias")] == []


@pytest.mark.parametrize(
    ("names", "shape"),
    [(["?", "?"], (3, 4)), (["", "None"], (3, 4)), (["None", "None"], (3, 4)), (["batch-size", "n"], (3, 4)),
     (["c/d", "d"], (3, 4)),     (["3n", "size(x)"], (3, 4)), (["a.b", "a_b"], (3, 4)), (["extent", "?"], (3, 4)),
     (["n", "n + 1"], (3, 4)), (["2*n", "n"], (6, 3)), (["n", "n"], (3, 3))],
    ids=str,
)  # fmt: skip
def test_names_of_extents_are_no_more_than_names(names: list[str], shape: tuple[int, ...]) -> None:
    model = make([Node("ReduceSum", ["x"], ["sum"]), Node("Sub", ["x", "sum"], ["y"])], {"x": names}, ["y"])
    x = random(*shape)
    (expected,) = reference(model, {"x": x}).values()
    assert largest_error(compile.onnx(model, runtime="vm").load()(x).numpy(), expected) <= TOLERANCE


def test_extents_that_are_computed_of_others_follow_from_them() -> None:
    model = make([Node("Concat", ["past", "x"], ["all"], axis=1), Node("Add", ["all", "mask"], ["y"])],
                 {"past": [1, "past"], "x": [1, "new"], "mask": [1, "past + new"]}, ["y"])  # fmt: skip
    executor = compile.onnx(model, shapes={"past": (1, 5), "x": (1, 2)}, runtime="graph").load()
    assert executor.get_input("mask").shape == (1, 7)


@pytest.mark.parametrize("axes", [[2, 3], [1, 2, 3], [1, 3]], ids=str)
def test_sums_over_unknown_extents_are_rounded_no_more_than_onnxruntime_rounds_them(axes: list[int]) -> None:
    model = make([Node("ReduceMean", ["x"], ["y"], axes=axes)], {"x": ["n", 24, "h", "w"]}, ["y"])
    x = random(2, 24, 150, 170) * np.float32(0.3) + np.float32(1)
    y = compile.onnx(model, check=False, runtime="vm").load()(x).numpy()
    assert largest_error(y.astype("float64"), x.astype("float64").mean(tuple(axes), keepdims=True)) <= 1e-6


def test_extents_that_are_known_decide_though_others_are_not() -> None:
    """As torch asks how many axes a value has, and how long one is, before it squeezes it; and a slice backwards."""
    branches = {
        name: helper.make_graph(
            [Node(op, words, [f"{op}_y"])], name, [], [helper.make_tensor_value_info(f"{op}_y", 1, None)]
        )
        for name, op, words in (("then_branch", "Squeeze", ["long", "one"]), ("else_branch", "Identity", ["long"]))
    }
    nodes = [
        Node("Unsqueeze", ["x", "one"], ["long"]), Node("Shape", ["long"], ["shape"]),
        Node("Gather", ["shape", "one"], ["extent"]), Node("Equal", ["extent", "one"], ["is_one"]),
        Node("If", ["is_one"], ["short"], **branches),
        Node("Slice", ["short", "last", "first", "one", "back"], ["y"]),
    ]  # fmt: skip
    numbers = {"one": integers(1), "last": integers(-1), "first": integers(-(2**63) + 1), "back": integers(-1)}
    model = make(nodes, {"x": ["batch", "n"]}, ["y"], numbers)
    machine = compile.onnx(model, runtime="vm").load()
    for shape in ((1, 1), (2, 7)):
        x = random(*shape)
        assert np.array_equal(machine(x).numpy(), x[:, ::-1])


def test_parts_of_known_lengths_are_of_an_axis_as_long_as_they_are() -> None:
    nodes = [Node("Split", ["x", "sizes"], ["a", "b"], axis=0), Node("Min", ["a", "b"], ["y"])]
    model = make(nodes, {"x": ["n", "m"]}, ["y"], {"sizes": integers(1, 3)})
    machine = compile.onnx(model, check=False, runtime="vm").load()
    x = random(4, 5)
    assert np.array_equal(machine(x).numpy(), np.minimum(x[:1], x[1:]))
    with pytest.raises(RuntimeError, match="4"):
        machine(random(5, 5))


def test_large_weights_come_into_the_library_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tvm

    folder = tmp_path / 'a "folder" of \\Zoë'
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    nodes = [
        Node("Gather", ["table", "i"], ["rows"]), Node("Cast", ["rows"], ["x"], to=1),
        Node("MatMul", ["x", "wide"], ["y"]), Node("MatMul", ["y", "tall"], ["z"]), Node("Gather", ["far", "i"], ["f"]),
    ]  # fmt: skip
    weights = {
        "table": random(400, 96).astype("float16"), "wide": random(96, 200, seed=1), "tall": random(200, 90, seed=2),
        "far": np.arange(9000) << 40,
    }  # fmt: skip
    model = make(nodes, {"i": ["n"]}, ["z", "f"], weights, dtype="int64")
    made = compile.onnx(model, runtime="vm")
    indices = np.array([0, 399, 7], "int64")
    expected = [*reference(model, {"i": indices}).values()]
    theirs = tvm.relax.VirtualMachine(tvm.runtime.load_module(str(made.save(tmp_path / "m.so"))), tvm.cpu())
    for results in (made.load()(indices), theirs["main"](tvm.runtime.tensor(indices))):
        assert largest_error(results[0].numpy(), expected[0]) <= TOLERANCE
        assert np.array_equal(results[1].numpy(), expected[1])
    assert [*folder.glob("portcall-work-*/model.so")] == [made.library.path]
    del made
    assert not [*folder.glob("portcall-work-*")]


def test_hints_are_shapes_with_which_the_model_runs() -> None:
    rows = make([Node("Reshape", ["x", "shape"], ["y"])], {"x": ["n", 3, "h", "w"]}, ["y"],
                {"shape": integers(-1, 3 * 48 * 320)})  # fmt: skip
    with pytest.raises(errors.ModelError) as caught:
        compile.onnx(rows, runtime="graph")
    assert caught.value.hint.endswith("--shape x=1x3x48x320")
    indices = make([Node("Reshape", ["x", "shape"], ["r"]), Node("Gather", ["table", "axis"], ["g"]),
                    Node("Add", ["r", "g"], ["y"])], {"x": ["n", "length"]}, ["y"],
                   {"shape": integers(-1, 512), "table": random(4, 512), "axis": np.array(0, "int64")})  # fmt: skip
    with pytest.raises(errors.ModelError) as caught:
        compile.onnx(indices, runtime="graph")
    assert caught.value.hint.endswith("--shape x=1x512")


def test_extents_that_are_left_open_stay_variables() -> None:
    model = make([Node("Relu", ["x"], ["y"])], {"x": ["n", 3, "h", "w"]}, ["y"])
    made = compile.onnx(model, shapes={"x": (None, 3, 48, None)}, runtime="vm")
    assert made.inputs == {"x": "float32[n, 3, 48, w]"}
    with pytest.raises(errors.ModelError, match=r"cannot have the shape \[\?, 4, \?, \?\]"):
        compile.onnx(model, shapes={"x": (None, 4, None, None)})
    with pytest.raises(errors.ModelError) as caught:
        compile.onnx(model, shapes={"x": (None, 3, 48, None)}, runtime="graph")
    assert caught.value.hint.endswith("--shape x=1x3x48x224")


def test_extents_of_one_name_are_given_once() -> None:
    nodes = [Node("Add", ["x", "z"], ["y"])]
    model = make(nodes, {"x": ["n", "m"], "z": ["n", "m"]}, ["y"])
    made = compile.onnx(model, shapes={"x": (3, 5)}, runtime="graph")
    assert [made.graph.values[entry].shape for entry in made.graph.inputs] == [(3, 5), (3, 5)]
    with pytest.raises(errors.ModelError):
        compile.onnx(model, shapes={"x": (3, 5), "z": (4, 5)})


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_reshape_refuses_other_numbers_of_elements(rows: int) -> None:
    model = make([Node("Reshape", ["x", "shape"], ["r"]), Node("Relu", ["r"], ["y"])], {"x": ["n", 4]}, ["y"],
                 {"shape": integers(2, 4)})  # fmt: skip
    machine = compile.onnx(model, check=False, runtime="vm").load()
    assert machine(np.ones((2, 4), "float32")).shape == (2, 4)
    with pytest.raises(ValueError, match=f"{4 * rows} elements"):
        machine(np.ones((rows, 4), "float32"))


@pytest.mark.parametrize("kind", ["AveragePool", "MaxPool"])
def test_windows_over_fewer_rows_raise(kind: str) -> None:
    pooling = Node(kind, ["x"], ["p"], kernel_shape=[2, 2], strides=[2, 2])
    model = make([pooling, Node("GlobalAveragePool", ["p"], ["y"])], {"x": ["n", 2, "h", "w"]}, ["y"])
    machine = compile.onnx(model, check=False, runtime="vm").load()
    np.testing.assert_array_equal(machine(np.ones((1, 2, 5, 4), "float32")).numpy(), np.ones((1, 2, 1, 1)))
    with pytest.raises(AssertionError, match=kind):
        machine(np.ones((1, 2, 1, 4), "float32"))


def test_check_uses_sizes_that_the_model_is_for() -> None:
    """onnxruntime makes one row of two where the window has three; the rows of the ONNX specification are none."""
    pooling = Node("AveragePool", ["x"], ["p"], kernel_shape=[3, 3], strides=[3, 3])
    model = make([pooling, Node("ReduceSum", ["p"], ["y"])], {"x": ["n", 2, "h", "w"]}, ["y"])
    made = compile.onnx(model, runtime="vm")
    assert not made.unchecked
    assert made.sizes == {"x": [2, 2, 224, 224]}


@pytest.mark.parametrize("kind", ["ReduceSum", "ReduceProd", "ReduceLogSumExp"])
def test_sums_of_nothing_are_what_a_sum_begins_with(kind: str) -> None:
    model = make([Node(kind, ["x"], ["y"], keepdims=0)], {"x": ["n", 4]}, ["y"])
    machine = compile.onnx(model, check=False, runtime="vm").load()
    for rows in (3, 0):
        x = np.abs(random(rows, 4))
        (expected,) = reference(model, {"x": x}).values()
        np.testing.assert_allclose(machine(x).numpy(), expected, rtol=1e-5)


def test_slices_that_end_before_they_begin_are_empty() -> None:
    ends = {"starts": integers(2), "ends": integers(-2), "axes": integers(0)}
    model = make([Node("Slice", ["x", *ends], ["y"])], {"x": ["n", 3]}, ["y"], ends)
    machine = compile.onnx(model, check=False, runtime="vm").load()
    for rows in (1, 3, 9):
        (expected,) = reference(model, {"x": random(rows, 3)}).values()
        np.testing.assert_array_equal(machine(random(rows, 3)).numpy(), expected)


@pytest.mark.parametrize(("name", "value"), [("value_float", 2.5), ("value_floats", [1.5, 2.0, 4.0]), ("value_int", 3),
                                             ("value_ints", [7, 8, 9])])  # fmt: skip
def test_constants_that_are_no_tensors(name: str, value: Any) -> None:
    nodes = [
        Node("Constant", [], ["c"], **{name: value}),
        Node("Cast", ["c"], ["d"], to=1),
        Node("Add", ["x", "d"], ["y"]),
    ]
    x = random(2, 3)
    machine = compile.onnx(make(nodes, {"x": ["n", 3]}, ["y"]), check=False, runtime="vm").load()
    np.testing.assert_array_equal(machine(x).numpy(), x + np.float32(value))


def test_boxes_that_overlap_are_left_out() -> None:
    limits = {"most": integers(2), "overlap": np.array([0.5], "float32"), "least": np.array([0.4], "float32")}
    model = make([Node("NonMaxSuppression", ["boxes", "scores", *limits], ["y"])],
                 {"boxes": [1, "n", 4], "scores": [1, 1, "n"]}, ["y"], limits)  # fmt: skip
    boxes = np.array([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 10, 1, 11], [0, 10.1, 1, 11.1]]], "float32")
    feeds = {"boxes": boxes, "scores": np.array([[[0.9, 0.75, 0.6, 0.95]]], "float32")}
    (expected,) = reference(model, feeds).values()
    np.testing.assert_array_equal(compile.onnx(model, runtime="vm").load()(*feeds.values()).numpy(), expected)


def test_profiles_call_functions_by_nodes_of_the_model() -> None:
    """Nodes of extents alone come before the products; equal functions have the name of the first one."""
    nodes, inputs, outputs, constants = heads()
    for node in nodes:
        node.name = f"/attention/{node.output[0]}"
    machine = compile.onnx(make(nodes, inputs, outputs, constants), runtime="vm").load()
    rows = {row.name: row.calls for row in machine.profile(random(2, 3, 16)).rows}
    expected = {"MatMul_attention_scores", "MatMul_attention_mixed", "Softmax_attention_shares", "Add_attention_y"}
    assert rows["MatMul_attention_q0"] == 3
    assert expected <= {*rows}


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(("op", "size", "more"), [
    ("Conv", (3, 2), {"strides": [2, 3]}), ("Conv", (1, 1), {"strides": [3, 2]}), ("Conv", (4,), {"strides": [2]}),
    ("MaxPool", (3, 2), {"strides": [2, 2]}), ("AveragePool", (2, 3), {"strides": [2, 2]}),
    ("AveragePool", (3, 3), {"strides": [2, 2], "count_include_pad": 1}), ("LpPool", (3, 3), {"strides": [2, 1]}),
])  # fmt: skip
def test_padding_by_the_size_of_the_picture(
    op: str, size: tuple[int, ...], more: dict[str, Any], auto_pad: str
) -> None:
    """Two of them, as frameworks write them that pad by the stride; also where the batch alone is not known."""
    weights = {f"w{k}": random(4, 4, *size, seed=k) for k in range(2)} if op == "Conv" else {}
    words = {"kernel_shape": size, "auto_pad": auto_pad, **more}
    nodes = [
        Node(op, [a, *([f"w{k}"] if weights else [])], [b], **words)
        for k, (a, b) in enumerate([("x", "m"), ("m", "y")])
    ]
    for known in ((), (19, 24)[: len(size)]):
        model = make(nodes, {"x": ["n", 4, *(known or "hw"[: len(size)])]}, ["y"], weights)
        machine = compile.onnx(model, check=False, runtime="vm").load()
        for extents in [known] if known else [(17, 20), (18, 21), (19, 22), (20, 23)]:
            x = random(2, 4, *extents[: len(size)])
            (expected,) = reference(model, {"x": x}).values()
            assert largest_error(machine(x).numpy(), expected) <= TOLERANCE


def test_constants_of_a_shape_that_are_not_finite() -> None:
    minus = helper.make_tensor("value", 1, [1], [-np.inf])
    nodes = [Node("Shape", ["x"], ["s"]), Node("ConstantOfShape", ["s"], ["c"], value=minus),
             Node("Trilu", ["c"], ["mask"], upper=1), Node("Add", ["x", "mask"], ["y"])]  # fmt: skip
    machine = compile.onnx(make(nodes, {"x": ["n", "m"]}, ["y"]), check=False, runtime="vm").load()
    np.testing.assert_array_equal(machine(np.ones((2, 2), "float32")).numpy(), [[-np.inf, -np.inf], [1, -np.inf]])


def test_what_a_converter_says_of_a_node_is_no_word_of_tvm() -> None:
    nodes = [Node("CumProd", ["x", "axis"], ["y"], "products")]
    model = make(nodes, {"x": [2, 3], "axis": []}, ["y"])
    model.graph.input[1].type.tensor_type.elem_type = 7
    model.opset_import[0].version = 26
    with pytest.raises(errors.ModelError, match="node 'products': CumProd: its axis must be constant"):
        compile.onnx(model, runtime="graph")


@pytest.mark.parametrize("extents", [["n", 4, 9], [1, 4, "length"]])
def test_transposed_convolutions_over_one_axis(extents: list[Any]) -> None:
    nodes = [Node("Conv", ["x", "w"], ["c"], pads=[1, 1]),
             Node("ConvTranspose", ["c", "v"], ["t"], strides=[3], pads=[1, 0], output_padding=[1])]  # fmt: skip
    model = make(nodes, {"x": extents}, ["t"], {"w": random(6, 4, 3), "v": random(6, 5, 4)})
    machine = compile.onnx(model, check=False, runtime="vm").load()
    for length in (9, 9 if extents[2] == 9 else 4):
        x = random(1, 4, length)
        (expected,) = reference(model, {"x": x}).values()
        assert largest_error(machine(x).numpy(), expected) <= TOLERANCE


def test_reshapes_see_the_factors_of_an_extent() -> None:
    """A mask for all heads, put together and taken apart as torch does, keeps its axis of one element."""
    nodes = [
        *extent("x", 0, "b"), *extent("x", 1, "s"), Node("Mul", ["b", "six"], ["both"]),
        Node("Concat", ["b", "one", "one", "s"], ["a0"], axis=0), Node("Reshape", ["x", "a0"], ["a"]),
        Node("Expand", ["a", "heads"], ["e"]),
        Node("Concat", ["both", "one", "s"], ["f0"], axis=0), Node("Reshape", ["e", "f0"], ["f"]),
        Node("Concat", ["b", "six", "minus", "s"], ["g0"], axis=0), Node("Reshape", ["f", "g0"], ["g"]),
        Node("Add", ["z", "g"], ["y"]),
    ]  # fmt: skip
    weights = {**COMMON, "six": integers(6), "one": integers(1), "minus": integers(-1), "heads": integers(1, 6, 1, 1)}
    model = make(nodes, {"x": ["batch", "sequence"], "z": ["batch", 6, "sequence", "sequence"]}, ["y"], weights)
    machine = compile.onnx(model, check=False, runtime="vm").load()
    for batch, length in ((2, 5), (1, 3)):
        feeds = {"x": random(batch, length), "z": random(batch, 6, length, length)}
        (expected,) = reference(model, feeds).values()
        np.testing.assert_array_equal(machine(*feeds.values()).numpy(), expected)


@pytest.mark.parametrize("op", ["LayerNormalization", "Softmax", "LpNormalization"])
def test_sums_over_extents_that_are_not_known_are_of_all_elements(op: str) -> None:
    """What is summed up over the axis in front is not summed up chunk by chunk."""
    weights = {"w": random(5, 4)} if op == "LayerNormalization" else {}
    model = make([Node(op, ["x", *weights], ["y"], axis=0)], {"x": ["n", 4]}, ["y"], weights)
    x = random(5, 4)
    (expected,) = reference(model, {"x": x}).values()
    made = compile.onnx(model, check=False, runtime="vm").load()(x).numpy()
    assert largest_error(made, expected) <= TOLERANCE


@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min"])
def test_operators_of_several_operands_whose_extents_are_open(op: str) -> None:
    model = make([Node(op, ["x", "z", "w"], ["y"])], {"x": ["n", 4], "z": ["m", 1]}, ["y"], {"w": random(3, 4)})
    x, z = random(3, 4), random(3, 1)
    (expected,) = reference(model, {"x": x, "z": z}).values()
    made = compile.onnx(model, check=False, runtime="vm").load()(x, z).numpy()
    assert largest_error(made, expected) <= TOLERANCE


def test_what_tvm_has_no_code_for_is_named() -> None:
    nodes = [Node("Transpose", ["x"], ["t"], perm=[0, 2, 1]), Node("InstanceNormalization", ["t", "w", "w"], ["y"])]
    model = make(nodes, {"x": ["n", 4, "s"]}, ["y"], {"w": random(4)})
    with pytest.raises(errors.ModelError, match=r"no code for .* with shapes that are not fixed") as caught:
        compile.onnx(model, check=False, runtime="vm")
    assert "--shape" in caught.value.hint


@pytest.mark.parametrize(("start", "end"), [(0, 1), (2, 3), (-1, 1 << 62), (-2, -1)])
def test_slices_of_one_element_are_broadcast(start: int, end: int) -> None:
    nodes = [Node("Slice", ["x", "start", "end", "axis"], ["one"]), Node("Mul", ["x", "one"], ["y"])]
    ends = {"start": integers(start), "end": integers(end), "axis": integers(1)}
    model = make(nodes, {"x": ["n", "s", 4]}, ["y"], ends)
    machine = compile.onnx(model, check=False, runtime="vm").load()
    x = random(2, 5, 4)
    np.testing.assert_array_equal(machine(x).numpy(), x * x[:, start : end if end else None][:, :1])
    if start in (2, -2):
        with pytest.raises(AssertionError, match=f"no element {start}"):
            machine(random(2, 1, 4))


@pytest.mark.parametrize("runtime", ["graph", "vm"])
@pytest.mark.parametrize("step", [2**63 - 1, -(2**63) + 1])
def test_steps_of_slices_may_be_longer_than_all_extents(step: int, runtime: Any) -> None:
    places = {"starts": integers(1), "ends": integers(2**63 - 1 if step > 0 else -(2**63)), "axes": integers(0)}
    model = make(
        [Node("Slice", ["x", *places, "steps"], ["y"])], {"x": ["n", 3]}, ["y"], {**places, "steps": integers(step)}
    )
    made: Any = compile.onnx(model, check=False, runtime=runtime, shapes={"x": (4, 3)} if runtime == "graph" else {})
    x = random(4, 3)
    found = outputs(made, {"x": x})[0] if runtime == "graph" else made.load()(x).numpy()
    np.testing.assert_array_equal(found, x[1:2])


@pytest.mark.parametrize("kind", ["ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSum", "ReduceSumSquare"])
def test_reductions_over_no_axes_change_each_element(kind: str) -> None:
    model = make([Node(kind, ["x"], ["y"], noop_with_empty_axes=1)], {"x": ["n", 3]}, ["y"])
    model.opset_import[0].version = 18
    x = random(2, 3) if kind != "ReduceLogSum" else np.abs(random(2, 3))
    (expected,) = reference(model, {"x": x}).values()
    np.testing.assert_allclose(compile.onnx(model, check=False, runtime="vm").load()(x).numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize("axis", [0, -1])
def test_the_best_none_of_an_open_batch_are_none(axis: int) -> None:
    model = make([Node("TopK", ["x", "k"], ["y", "places"], axis=axis)], {"x": ["n", 5]}, ["y", "places"],
                 {"k": integers(0)})  # fmt: skip
    model.graph.output[1].type.tensor_type.elem_type = 7
    machine = compile.onnx(model, check=False, runtime="vm").load()
    for mine, theirs in zip(machine(random(3, 5)), reference(model, {"x": random(3, 5)}).values(), strict=True):
        assert (mine.shape, str(mine.dtype)) == (theirs.shape, str(theirs.dtype))


@pytest.mark.parametrize("runtime", ["graph", "vm"])
def test_padding_that_wraps_and_cuts_off_is_refused(runtime: Any) -> None:
    """Of cuts alone TVM makes what onnxruntime makes."""
    for pads, fits in ((integers(0, -3, 0, 3), False), (integers(-1, 2, 0, 1), True)):
        model = make([Node("Pad", ["x", "pads"], ["y"], mode="wrap")], {"x": [4, 9]}, ["y"], {"pads": pads}, opset=19)
        if fits:
            assert compile.onnx(model, runtime=runtime).unchecked == ""
        else:
            with pytest.raises(errors.ModelError, match="Pad: to wrap"):
                compile.onnx(model, runtime=runtime)


@pytest.mark.parametrize("constant", [False, True])
def test_batch_normalization_of_open_channels(constant: bool) -> None:
    names = ["s", "b", "m", "v"]
    values = {name: np.abs(random(3, seed=k)) for k, name in enumerate(names)}
    inputs: dict[str, Sequence[Any]] = {"x": ["n", "c", 2, "w"]}
    inputs |= {} if constant else {name: ["c"] for name in names}
    model = make([Node("BatchNormalization", ["x", *names], ["y"])], inputs, ["y"], values if constant else {})
    machine = compile.onnx(model, check=False, runtime="vm").load()
    for shape in ((1, 3, 2, 4), (2, 3, 2, 1)):
        given = {"x": random(*shape), **({} if constant else values)}
        (expected,) = reference(model, given).values()
        assert largest_error(machine(*given.values()).numpy(), expected) <= TOLERANCE


def test_resize_without_aliases_is_for_fixed_shapes() -> None:
    resize = Node("Resize", ["x", "", "", "sizes"], ["y"], "small", mode="linear", antialias=1)
    model = make([resize], {"x": [1, 2, "h", 6]}, ["y"], {"sizes": integers(1, 2, 3, 4)}, opset=19)
    with pytest.raises(errors.ModelError, match="'small': Resize: antialias") as caught:
        compile.onnx(model, runtime="vm")
    assert "--runtime graph" in caught.value.hint
    assert compile.onnx(model, shapes={"x": (1, 2, 5, 6)}, runtime="graph").unchecked == ""


@pytest.mark.parametrize("operator", ["Relu", "MatMul"])
def test_number_of_rows_may_be_a_number_that_is_added(operator: str) -> None:
    """What a kernel does in chunks does not take a chunk for all of them."""
    nodes = [
        Node("Shape", ["x"], ["s"]), Node("Cast", ["s"], ["f"], to=1), Node("ReduceSum", ["f"], ["t"], keepdims=0),
        Node(operator, ["x", "w"] if operator == "MatMul" else ["x"], ["p"]), Node("Add", ["p", "t"], ["y"]),
    ]  # fmt: skip
    model = make(nodes, {"x": ["n", 8]}, ["y"], {"w": random(8, 8)} if operator == "MatMul" else None)
    machine = compile.onnx(model, runtime="vm", check=False).load()
    for rows in (1, 3, 70):
        x = random(rows, 8)
        assert largest_error(machine(x).numpy(), reference(model, {"x": x})["y"]) < TOLERANCE


def test_size_of_a_shape_is_the_rank() -> None:
    nodes = [
        Node("Shape", ["x"], ["s"]), Node("Size", ["s"], ["r"]), Node("Cast", ["r"], ["f"], to=1),
        Node("Add", ["x", "f"], ["y"]),
    ]  # fmt: skip
    machine = compile.onnx(make(nodes, {"x": ["n", 8]}, ["y"]), runtime="vm").load()
    np.testing.assert_array_equal(machine(np.zeros((3, 8), "float32")).numpy(), np.full((3, 8), 2.0))


def test_check_has_a_batch_of_two() -> None:
    nodes = [Node("MatMul", ["x", "w"], ["y"])]
    made = compile.onnx(make(nodes, {"x": ["n", 8]}, ["y"], {"w": random(8, 8)}), runtime="vm")
    assert made.sizes == {"x": [2, 8]}
    one = [*nodes, Node("Reshape", ["y", "s"], ["z"])]  # which nothing but a batch of one can have
    made = compile.onnx(make(one, {"x": ["n", 8]}, ["z"], {"w": random(8, 8), "s": integers(1, 8)}), runtime="vm")
    assert made.sizes == {"x": [1, 8]}


def test_weight_that_layers_share_is_in_a_library_once() -> None:
    weight = random(200, 200) / 20
    nodes = [Node("MatMul", [f"x{k}", "w"], [f"x{k + 1}"]) for k in range(6)]
    nodes += [Node("Gather", ["w", "i"], ["rows"]), Node("Add", ["x6", "rows"], ["y"])]
    model = make(nodes, {"x0": ["n", 200]}, ["y"], {"w": weight, "i": integers(3)})
    made = compile.onnx(model, runtime="vm")
    assert made.library.nbytes < 3 * weight.nbytes  # as it is, and packed
    x = random(5, 200)
    assert largest_error(made.load()(x).numpy(), reference(model, {"x0": x})["y"]) < TOLERANCE
