# SPDX-License-Identifier: Apache-2.0
"""Operators alone, beside onnxruntime or NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from compile.computed import computed
from compile.reference import make
from compile.test_models import random
from portcall.compile._verify import reference

pytestmark = pytest.mark.peers


@pytest.mark.usefixtures("vm_pools")
@pytest.mark.parametrize("is_open", [False, True])
def test_what_is_no_number_stays_so(is_open: bool) -> None:
    x, z = random(6, 40), random(6, 40)
    x[0, 3], z[1, 5], x[2, 7], z[2, 7] = np.nan, np.nan, np.nan, np.nan
    x[3] = np.inf
    x[4] = -np.inf
    alone = ("Relu", "Sign", "HardSigmoid", "Elu", "Selu", "Celu", "ThresholdedRelu")
    nodes = [helper.make_node(op, ["x"], [op]) for op in alone]
    nodes += [
        helper.make_node("Clip", ["x", "zero", "six"], ["Clip"]), helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Relu", ["m"], ["product"]), helper.make_node("Max", ["x", "z"], ["most"]),
        helper.make_node("Min", ["z", "x", "half"], ["least"]), helper.make_node("Max", ["zero", "x"], ["above"]),
    ]  # fmt: skip
    names = [*alone, "Clip", "product", "most", "least", "above"]
    numbers = {"zero": np.float32(0), "half": np.float32(0.5), "six": np.float32(6), "w": random(40, 16)}
    model = make(nodes, {"x": [6, 40], "z": [6, 40]}, names, numbers, opset=18)
    expected = reference(model, {"x": x, "z": z}).values()
    for name, got, right in zip(names, computed(model, {"x": x, "z": z}, is_open), expected, strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5, err_msg=name)
