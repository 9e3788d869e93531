# SPDX-License-Identifier: Apache-2.0
"""What onnxruntime computes, in a process of its own: it starts threads and opens files as it pleases.

    python onnx_reference.py MODEL INPUTS OUTPUTS

INPUTS and OUTPUTS are .npz files: arrays by the names that the model has for them.
"""

from __future__ import annotations

import os
import sys

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before it is imported

import numpy as np
import onnxruntime

model, inputs, outputs = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
# Optimized products of bytes depend on the processor: where it has no VNNI they saturate in 16 bits.
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
names = [output.name for output in session.get_outputs()]
with np.load(inputs) as given:
    found = session.run(names, dict(given))
np.savez(outputs, **dict(zip(names, found, strict=True)))
