# SPDX-License-Identifier: Apache-2.0
"""Quantize an ONNX model with onnxruntime: python quantize.py MODEL RESULT qdq|operators|dynamic int8|uint8.

Weights of operators have 7 bits: with 8 the results of onnxruntime depend on the processor.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import numpy as np
import onnx
from onnxruntime import quantization


class Inputs(quantization.CalibrationDataReader):  # type: ignore[misc]
    """A few random inputs, from which the quantizer takes the ranges of values."""

    def __init__(self, model: Any) -> None:
        generator = np.random.default_rng(1)
        shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input}
        self.left = [{n: generator.standard_normal(s).astype("float32") for n, s in shapes.items()} for _ in range(3)]

    def get_next(self) -> Any:
        return self.left.pop() if self.left else None


def main() -> None:
    path, result, form, weights = sys.argv[1:]
    logging.disable(logging.WARNING)
    kinds = {"int8": quantization.QuantType.QInt8, "uint8": quantization.QuantType.QUInt8}
    if form == "dynamic":
        quantization.quantize_dynamic(path, result, weight_type=kinds[weights], reduce_range=True)
        return
    kind = quantization.QuantFormat.QDQ if form == "qdq" else quantization.QuantFormat.QOperator
    activations = kinds["int8" if form == "qdq" and weights == "int8" else "uint8"]
    quantization.quantize_static(
        path, result, Inputs(onnx.load(path)), quant_format=kind, activation_type=activations,
        weight_type=kinds[weights], per_channel=form == "qdq",
        reduce_range=form != "qdq",
    )  # fmt: skip


if __name__ == "__main__":
    main()
