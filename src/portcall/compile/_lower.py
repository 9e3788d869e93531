# SPDX-License-Identifier: Apache-2.0
"""From a module of Relax to functions of TVM's: decomposition, layout, legalization, fusion."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from portcall.compile._constants import FoldWithNumPy
from portcall.compile._target import Target

_LAYOUT = {"relax.nn.conv2d": ["NHWC", "HWIO"]}  # which makes the channels, the vector axis, lie in a row


def lower(module: Any, target: Target) -> Any:
    """Return the module with a function for each step of the model, chains of element-wise operators fused.

    Batch normalizations are folded into convolutions before they are decomposed. Constants are folded with NumPy; what
    is left of them TVM compiles, which takes a hundred times as long.
    """
    transform = relax.transform
    fold = [FoldWithNumPy(), transform.FoldConstant()]
    layout = [transform.ConvertLayout(_LAYOUT), transform.Normalize(), *fold] if _has_convolution(module) else []
    passes = [
        transform.CanonicalizeBindings(),
        transform.FoldBatchnormToConv2D(),
        transform.DecomposeOpsForInference(),
        transform.CanonicalizeBindings(),
        *fold,
        *layout,
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


def _has_convolution(module: Any) -> bool:
    """Tell whether there is anything to choose a layout for: without it the pass fails on some operators."""
    found: list[bool] = []

    def visit(e: Any) -> None:
        found.append(isinstance(e, relax.Call) and isinstance(e.op, tvm.ir.Op) and e.op.name == "relax.nn.conv2d")

    relax.analysis.post_order_visit(module["main"], visit)
    return any(found)
