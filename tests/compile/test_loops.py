# SPDX-License-Identifier: Apache-2.0
"""Loops that are written turn by turn, beside onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import portcall
from compile import node_tests
from compile.test_contrib import compare, model_of, plain
from compile.test_models import random
from portcall.errors import ModelError

pytestmark = pytest.mark.peers


def loop_body(condition: Any) -> Any:
    """A body that adds to a state, gives its square in each turn, and goes on as a node says."""
    nodes = [plain("Add", ["state", "step"], ["next"]), plain("Mul", ["next", "next"], ["square"]), *condition]
    return helper.make_graph(
        nodes, "body",
        [helper.make_tensor_value_info("turn", TensorProto.INT64, []),
         helper.make_tensor_value_info("before", TensorProto.BOOL, []),
         helper.make_tensor_value_info("state", TensorProto.FLOAT, [3])],
        [helper.make_tensor_value_info("after", TensorProto.BOOL, []),
         helper.make_tensor_value_info("next", TensorProto.FLOAT, [3]),
         helper.make_tensor_value_info("square", TensorProto.FLOAT, [3])],
        [numpy_helper.from_array(np.array(4), "limit")],
    )  # fmt: skip


SAME = [plain("Identity", ["before"], ["after"])]
COUNTED = [plain("Less", ["turn", "limit"], ["after"])]
OF_VALUES = [plain("ReduceMax", ["next"], ["most"], keepdims=0), plain("Less", ["most", "step0"], ["after"])]
RESULTS = ["last", "squares"]


def loop(condition: Any, trips: str) -> Any:
    return plain("Loop", [trips, "", "x"], RESULTS, body=loop_body(condition))


@pytest.mark.parametrize(("condition", "trips"), [(SAME, "trips"), (COUNTED, ""), (COUNTED, "trips")])
@pytest.mark.parametrize("opset", [11, 17])
def test_loops_whose_turns_are_known(condition: Any, trips: str, opset: int) -> None:
    constants = {"trips": np.array(7), "step": random(3)}
    compare([loop(condition, trips)], {"x": random(3)}, RESULTS, constants, opset=opset)


def test_loops_whose_turns_are_not_known_are_refused() -> None:
    constants = {"trips": np.array(600), "step": random(3), "step0": np.float32(1)}
    for node in (loop(OF_VALUES, "trips"), loop(SAME, "trips"), loop(SAME, "")):
        node.name = "the loop"
        with pytest.raises(ModelError, match=r"the loop.*Loop: constants and fixed shapes"):
            portcall.compile.onnx(model_of([node], {"x": random(3)}, RESULTS, constants, 17), runtime="graph")


@pytest.mark.parametrize("backwards", [0, 1])
def test_scans(backwards: int) -> None:
    body = helper.make_graph(
        [plain("Add", ["sum", "element"], ["next"]), plain("Identity", ["next"], ["copy"])], "body",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("sum", "element")],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("next", "copy")],
    )  # fmt: skip
    node = plain("Scan", ["start", "x"], ["sum", "sums"], body=body, num_scan_inputs=1, scan_input_axes=[1],
                 scan_output_axes=[1], scan_input_directions=[backwards], scan_output_directions=[1])  # fmt: skip
    compare([node], {"start": random(2), "x": random(2, 6)}, ["sum", "sums"])


@pytest.mark.parametrize("name", ["scan9_multi_state", "linear_attention_linear"])
def test_node_tests(name: str) -> None:
    assert node_tests.guarded(f"test_{name}") == "passed"
