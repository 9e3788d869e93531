# SPDX-License-Identifier: Apache-2.0
"""From ONNX to functions of TVM's: import, decomposition, layout, legalization, fusion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from portcall.compile._constants import FoldWithNumPy
from portcall.compile._target import Target

_LAYOUT = {"relax.nn.conv2d": ["NHWC", "HWIO"]}  # which makes the channels, the vector axis, lie in a row


def import_model(model: Any, shapes: Mapping[str, Sequence[int]]) -> Any:
    """Return an ONNX model as a module of Relax, with its weights as constants."""
    shape_dict = {name: list(shape) for name, shape in shapes.items()}
    return from_onnx(model, shape_dict=shape_dict, keep_params_in_input=False, sanitize_input_names=False)


def lower(module: Any, target: Target) -> Any:
    """Return the module with a function for each step of the model, chains of element-wise operators fused.

    Batch normalizations are folded into convolutions before they are decomposed. Constants are folded with NumPy; what
    is left of them TVM compiles, which takes a hundred times as long.
    """
    transform = relax.transform
    fold = [FoldWithNumPy(), transform.FoldConstant()]
    passes = [
        transform.CanonicalizeBindings(),
        transform.FoldBatchnormToConv2D(),
        transform.DecomposeOpsForInference(),
        transform.CanonicalizeBindings(),
        *fold,
        transform.ConvertLayout(_LAYOUT),
        transform.Normalize(),
        *fold,
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(),
        transform.FoldConstant(),
        transform.FuseOps(),
        transform.FuseTIR(),
        transform.RewriteDataflowReshape(),
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.DeadCodeElimination(),
        transform.CanonicalizeBindings(),
        transform.ExpandTupleArguments(),
    ]
    with target.tvm:
        return tvm.transform.Sequential(passes)(module)
