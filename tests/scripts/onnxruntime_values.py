# SPDX-License-Identifier: Apache-2.0
"""Compute a model with onnxruntime: ``python onnxruntime_values.py MODEL INPUTS.npz OUTPUTS.npz``.

In a process of its own, because the library has threads that open files and sockets whenever they like.
"""

from __future__ import annotations

import sys

import numpy as np
import onnxruntime


def main(model: str, inputs: str, outputs: str) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    with np.load(inputs) as arrays:
        values = session.run(names, dict(arrays))
    np.savez(outputs, **dict(zip(names, values, strict=True)))


if __name__ == "__main__":
    main(*sys.argv[1:])
