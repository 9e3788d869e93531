# SPDX-License-Identifier: Apache-2.0
"""A few of onnx's node tests; ``make test-onnx`` runs all of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import portcall
from compile import node_tests, sweep
from compile.reference import make, outputs
from portcall.compile import CompiledModel
from portcall.compile._verify import reference

pytestmark = pytest.mark.peers
EVERY = 40


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # onnx divides by zero when it makes its tests
def test_onnx_node_tests_still_pass() -> None:
    names = node_tests.PASSES.read_text().split()[::EVERY]
    verdicts = {name: node_tests.guarded(name) for name in names}
    assert {name: verdict for name, verdict in verdicts.items() if verdict != "passed"} == {}


@pytest.mark.parametrize("length", [3, 32])  # by TVM's own code, and by the rule for rows
def test_rows_in_which_a_mask_leaves_nothing(length: int) -> None:
    nodes = [helper.make_node("ReduceMax", ["x"], ["largest"], axes=[-1], keepdims=0),
             helper.make_node("Softmax", ["x"], ["shares"], axis=-1)]  # fmt: skip
    model = make(nodes, {"x": [2, length]}, ["largest", "shares"])
    x = np.zeros((2, length), "float32")
    x[0] = -np.inf
    largest, shares = outputs(portcall.compile.onnx(model, runtime="graph"), {"x": x})
    np.testing.assert_array_equal(largest, [-np.inf, 0])
    np.testing.assert_allclose(shares, [[np.nan] * length, [1 / length] * length], rtol=1e-6)


def test_the_least_of_an_axis_behind_one_that_is_squeezed_away() -> None:
    nodes = [helper.make_node("Squeeze", ["x", "last"], ["v"]),
             helper.make_node("ReduceMin", ["v", "axes"], ["y"], keepdims=0)]  # fmt: skip
    model = make(nodes, {"x": [4, 2, 1, 1]}, ["y"], {"last": np.array([3]), "axes": np.array([2])}, opset=20)
    x = np.arange(8, dtype="float32").reshape(4, 2, 1, 1)
    np.testing.assert_array_equal(outputs(portcall.compile.onnx(model, runtime="graph"), {"x": x})[0], x[:, :, 0, 0])


ALONE = [  # TVM gives the buffers of such functions the same name, or pads element by element
    ("Gelu", {}, [[2, 3, 40]], "element-wise"),
    ("LogSoftmax", {"axis": -1}, [[3, 40]], "rows"),
    ("GlobalAveragePool", {}, [[2, 3, 5, 7]], "rows"),
    ("LayerNormalization", {"axis": -2}, [[2, 3, 5, 7], [5, 7]], "rows"),
    (
        "MaxPool",
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
        [[2, 3, 21, 35]],
        "pooling of planes",
    ),
    ("AveragePool", {"kernel_shape": [5, 4], "pads": [2, 2, 1, 2]}, [[2, 3, 9, 20]], "pooling of planes"),
    ("MaxPool", {"kernel_shape": [3, 2, 3], "strides": [2, 1, 2]}, [[1, 2, 6, 7, 8]], "pooling of planes"),
]


@pytest.mark.parametrize(("op", "attributes", "shapes", "rule"), ALONE, ids=lambda value: str(value)[:20])
def test_operators_alone_have_a_rule(op: str, attributes: dict[str, Any], shapes: list[list[int]], rule: str) -> None:
    inputs = {f"x{k}": shape for k, shape in enumerate(shapes)}
    model = make([helper.make_node(op, list(inputs), ["y"], **attributes)], inputs, ["y"], opset=20)
    made = portcall.compile.onnx(model)
    assert rule in made.kernels
    assert "default" not in made.kernels


@pytest.mark.usefixtures("vm_pools")
@pytest.mark.parametrize(("opset", "scales"), [(18, 3), (21, 6)])  # onnx infers no type of its results
@pytest.mark.parametrize("extent", [5, "n"])
def test_groups_of_channels_are_normalized(opset: int, scales: int, extent: int | str) -> None:
    nodes = [
        helper.make_node("GroupNormalization", ["x", "s", "b"], ["v"], num_groups=3),
        helper.make_node("Relu", ["v"], ["r"]),
        helper.make_node("GroupNormalization", ["r", "s", "b"], ["y"], num_groups=3, epsilon=0.1),
    ]
    weights = {"s": np.linspace(-1, 2, scales, dtype="float32"), "b": np.linspace(1, 3, scales, dtype="float32")}
    model = make(nodes, {"x": [2, 6, extent, 4]}, ["y"], weights, opset=opset)
    x = np.random.default_rng(0).standard_normal((2, 6, 5, 4)).astype("float32")
    (expected,) = reference(model, {"x": x}).values()
    made = portcall.compile.onnx(model)
    got = outputs(made, {"x": x})[0] if isinstance(made, CompiledModel) else made.load()(x).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_value_that_is_put_beside_itself_has_a_rule() -> None:
    model = make([helper.make_node("Concat", ["x", "x"], ["y"], axis=-1)], {"x": [2, 5]}, ["y"])
    assert portcall.compile.onnx(model).kernels == {"element-wise": 1}


def test_quotients_beside_others_by_nothing_and_numbers_that_are_no_int32() -> None:
    nodes = [
        helper.make_node("Sub", ["a", "b"], ["s"]), helper.make_node("Div", ["x", "s"], ["d"]),
        helper.make_node("Concat", ["x", "d"], ["y"], axis=1), helper.make_node("Div", ["x", "zero"], ["q"]),
        helper.make_node("Cast", ["b"], ["i"], to=TensorProto.INT32),
    ]  # fmt: skip
    shapes = {"x": [1, 5], "a": [1, 5], "b": [1, 5]}
    model = make(nodes, shapes, ["y", "q", "i"], {"zero": np.array(0, "float32")})
    x, a, b = (np.array([row], "float32") for row in (
        [1, -2, 0, 4, 5], [3, 1, 2, 9, 4], [-1.9, 2.9, np.nan, 3e9, -np.inf]))  # fmt: skip
    made = portcall.compile.onnx(model, check=False)
    y, q, i = outputs(made, {"x": x, "a": a, "b": b})
    with np.errstate(all="ignore"):
        np.testing.assert_allclose(y, np.concatenate([x, x / (a - b)], 1), rtol=1e-6)
        np.testing.assert_array_equal(q, x / np.float32(0))
    assert i.tolist() == [[-1, 2, *[-(2**31)] * 3]]  # as onnxruntime on x86


# What the importer, LLVM's vectorizer or the machine's shifts had wrong, or what the importer has not; values
# without elements; pictures of one channel.
WRONG_ONCE = [
    "reduce_max_empty_set",
    "reduce_min_empty_set",
    "reduce_log_sum_exp_empty_set",
    "reduce_sum_empty_set_non_reduced_axis_zero",
    "slice_start_out_of_bounds",
    "tril_zero",
    "tril_one_row_neg",
    "causal_conv_with_state_kernel_size_one",
    "causal_conv_with_state_kernel_size_one_expanded",
    "attention_bidirectional_window",
    "attention_bidirectional_window_expanded",
    "mod_float_edge_cases_fmod_0_float16",
    "mod_float_edge_cases_fmod_0_float32",
    "mod_float_edge_cases_fmod_0_float64",
    "resize_downsample_scales_cubic_A_n0p5_exclude_outside",
    "resize_downsample_sizes_linear_antialias",
    "resize_tf_crop_and_resize",
    "resize_upsample_sizes_nearest_not_larger",
    "bitshift_left_int32_shift_ge_width",
    "bitshift_right_int8_negative_shift",
    "rotary_embedding_3d_input",
    "top_k_uint64",
    "top_k_same_values_2d",
    "sce_mean_log_prob",
    "attention_4d_causal_with_past_and_present",
    "linear_attention_gated",
    "cumprod_1d_reverse_exclusive",
    "dft_inverse",
    "stft_with_window",
    "col2im_pads",
    "melweightmatrix",
    "tensorscatter_circular",
    "reversesequence_time",
    "isinf_positive",
    "l2normalization_axis_1",
    "spacetodepth_crd_mode_example",
    "swiglu",
]
# By other types than onnx's own test, and without elements (tests/compile/sweep.py).
SWEPT = [
    "gather_0:5=0",
    "roialign_aligned_true:10=0",
    "matmulinteger:3=0",
    "scatternd:2=0",
    "scatter_elements_with_axis:2=0",
    "gridsample:4=0",
    "gridsample:T1=int8",
    "gridsample:T1=float16",
    "gridsample_zeros_padding:T2=float64",
    "roialign_aligned_true:T1=float16",
    "reduce_mean_do_not_keepdims_example:T=int32",
    "equal:T=bool",
    "acosh:T=float16",
]


@pytest.mark.parametrize("name", SWEPT)
def test_operators_of_all_types_and_without_elements(name: str) -> None:
    verdict = sweep.judge(f"test_{name}").partition(":")[0]
    assert verdict in ("right", "refused", "unknown")
    assert verdict == "right" or name.endswith(("=0", "=int8"))


BEST = [((3, 50), -1, 7, 1), ((4, 33, 5), 1, 33, 0), ((2, 300), 1, 300, 1), ((7, 4), 0, 3, 1), ((6,), 0, 1, 1)]


@pytest.mark.parametrize(("shape", "axis", "k", "largest"), BEST)
def test_best_elements_and_the_first_of_equal_ones(shape: list[int], axis: int, k: int, largest: int) -> None:
    x = np.round(5 * np.random.default_rng(0).standard_normal(shape)).astype("float32")
    node = helper.make_node("TopK", ["x", "k"], ["values", "places"], axis=axis, largest=largest)
    model = make([node], {"x": list(shape)}, ["values", "places"], {"k": np.array([k])})
    values, places = outputs(portcall.compile.onnx(model, runtime="graph"), {"x": x})
    order = np.argsort(-x if largest else x, axis=axis, kind="stable").take(range(k), axis)
    np.testing.assert_array_equal(places, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, axis))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", WRONG_ONCE)
def test_node_tests_that_were_wrong_once_pass(name: str) -> None:
    assert node_tests.guarded(f"test_{name}") == "passed"


@pytest.mark.usefixtures("vm_pools")
@pytest.mark.parametrize("runtime", ["graph", "vm"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_softplus_of_small_values_has_all_its_digits(dtype: str, runtime: Any) -> None:
    model = make([helper.make_node("Softplus", ["x"], ["y"])], {"x": [400]}, ["y"], dtype=dtype, opset=18)
    x = np.linspace(-80, 80, 400).astype(dtype)
    loaded: Any = portcall.compile.onnx(model, runtime=runtime).load()
    if runtime == "graph":
        loaded.run(x=x)
    got = loaded.get_output(0).numpy() if runtime == "graph" else loaded(x).numpy()
    wide = x.astype("float64")
    np.testing.assert_allclose(
        got, np.maximum(wide, 0) + np.log1p(np.exp(-np.abs(wide))), 4 * float(np.finfo(dtype).eps)
    )


def test_celu_of_a_scalar_is_a_scalar() -> None:
    model = make([helper.make_node("Celu", ["x"], ["y"], alpha=2.0)], {"x": []}, ["y"])
    (got,) = outputs(portcall.compile.onnx(model, runtime="graph"), {"x": np.array(-1.0, "float32")})
    assert (got.shape, round(float(got), 5)) == ((), round(float(2 * np.expm1(-0.5)), 5))
