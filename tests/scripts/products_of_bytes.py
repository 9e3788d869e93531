# SPDX-License-Identifier: Apache-2.0
"""Compare what `portcall verify` holds for right with exact sums, for products of the largest bytes of each kind.

Exits with 1 where they differ. `tests/compile/test_verify.py` runs it on a processor without VNNI, which qemu plays.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from portcall.compile import _verify

STEPS = 64


def scale(value: float) -> Any:
    return np.array(value, "float32")


def model_of(op: str, first: Any, second: Any) -> tuple[Any, float]:
    """Return a model whose results all have one value, and that value."""
    exact = int(first.flat[0]) * int(second.flat[0]) * STEPS
    domain = "com.microsoft" if op == "QGemm" else ""
    zero, other_zero = np.zeros((), first.dtype), np.zeros((), second.dtype)
    if op == "MatMulInteger":
        constants, inputs, expected = {"w": second}, ["x", "w"], float(exact)
    else:
        constants = {"sx": scale(1), "zx": zero, "w": second, "sw": scale(1), "zw": other_zero,
                     "sy": scale(abs(exact) / 100), "zy": zero}  # fmt: skip
        inputs = ["x", "sx", "zx", "w", "sw", "zw", *([""] if op == "QGemm" else []), "sy", "zy"]
        expected = 100.0
    kind = helper.np_dtype_to_tensor_dtype(first.dtype)
    graph = helper.make_graph(
        [helper.make_node(op, inputs, ["y"], domain=domain)], "bytes",
        [helper.make_tensor_value_info("x", kind, first.shape)],
        [helper.make_tensor_value_info("y", TensorProto.INT32 if op == "MatMulInteger" else kind, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), expected


def main() -> int:
    wrong = 0
    for kinds in (("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")):
        for op in ("MatMulInteger", "QLinearConv", "QLinearMatMul", "QGemm"):
            shapes = ((1, STEPS, 3, 3), (8, STEPS, 1, 1)) if op == "QLinearConv" else ((4, STEPS), (STEPS, 8))
            first, second = (np.full(s, np.iinfo(k).max, k) for s, k in zip(shapes, kinds, strict=True))
            model, expected = model_of(op, first, second)
            (got,) = _verify.reference(model, {"x": first}).values()
            if not (got == expected).all():
                print(f"{op} of {' and '.join(kinds)}: {got.flat[0]} instead of {expected:g}")
                wrong = 1
    return wrong


if __name__ == "__main__":
    sys.exit(main())
