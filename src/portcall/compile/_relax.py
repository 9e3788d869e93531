# SPDX-License-Identifier: Apache-2.0
"""Modules of TVM's Relax, from its own builders and frontends, to bundles: as ONNX models after their import."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

import portcall
from portcall.compile import _vm
from portcall.compile._compile import CompiledModel, Steps, compile_module
from portcall.compile._options import Options
from portcall.compile._program import is_constant
from portcall.compile._target import find_target
from portcall.compile._vm import CompiledExecutable
from portcall.errors import ModelError

Params = Mapping[str, Any] | Sequence[tuple[str, Any]] | None


def compile_graph(module: Any, target: str, function: str, params: Params, options: Options) -> CompiledModel:
    """Compile one function to a graph; parameters and errors are those of ``portcall.compile.relax``."""
    if target == "webgpu":
        raise ModelError("a graph's kernels are for processors: for WebGPU runtime='vm'")
    machine = find_target(target)
    steps = Steps(options.progress)
    with steps.step("read"):
        name = _function_of(module, function)
        prepared = tvm.IRModule({**dict(module.functions_items())})
        main = module[name].with_attr("global_symbol", "main")
        if name != "main":
            del prepared[name]
        prepared["main"] = main
        prepared = _bound(prepared, "main", params, options.shapes)
        _check_shapes(prepared["main"])
        digest = _digest(prepared)
        count = _results(prepared["main"])
    outputs = ["output"] if count is None else [f"output_{number}" for number in range(count)]
    metadata = {
        "model": name, "sha256": digest, "target": target, "cpu": machine.cpu, "threads": options.threads,
        "winograd": options.winograd, "portcall": portcall.__version__, "tvm": tvm.__version__,
    }  # fmt: skip
    return compile_module([prepared], machine, outputs, metadata, steps)


def compile_executable(module: Any, target: str, function: str, params: Params, options: Options) -> CompiledExecutable:
    """Compile a module for the Relax VM; parameters and errors are those of ``portcall.compile.relax``."""
    if function or params or options.shapes:
        module = _bound(module, _function_of(module, function), params, options.shapes)
    return _vm.compile_executable(_checked(module), target, options)


def _checked(module: Any) -> Any:
    if not isinstance(module, tvm.IRModule):
        raise TypeError(f"portcall.compile.relax takes a tvm.IRModule, not {type(module).__name__}")
    return module


def _function_of(module: Any, wanted: str) -> str:
    names = [str(v.name_hint) for v, f in _checked(module).functions_items() if isinstance(f, relax.Function)]
    public = [name for name in names if "global_symbol" in (module[name].attrs or {})]
    name = wanted or ("main" if "main" in names else public[0] if len(public) == 1 else "")
    if name not in names:
        raise ValueError(
            f"the module has no function '{name or 'main'}'; there is {', '.join(names) or 'none'}: function=…"
        )
    return name


def _bound(module: Any, function: str, params: Any, shapes: Mapping[str, Sequence[int | None]]) -> Any:
    """Return the module with parameters and extents of a function fixed."""
    inputs = {str(variable.name): variable for variable in module[function].params}
    values = {}
    for name, value in dict(params or {}).items():
        known = name if name in inputs else name.replace(".", "_")
        if known not in inputs:
            raise ValueError(f"the module has no parameter '{name}'; there is {', '.join(inputs) or 'none'}")
        values[known] = tvm.runtime.tensor(value if isinstance(value, np.ndarray) else value.numpy())
    symbols: dict[Any, int] = {}
    for name, shape in shapes.items():
        if name not in inputs:
            raise ValueError(f"the module has no input '{name}'; there is {', '.join(inputs) or 'none'}")
        extents = list(inputs[name].ty.shape or ())
        if len(extents) != len(shape):
            raise ModelError(
                f"the input '{name}' has {len(extents)} axes, and the shape {list(shape)} has {len(shape)}"
            )
        for extent, number in zip(extents, shape, strict=True):
            if number is None:
                continue
            if isinstance(extent, tirx.IntImm) and int(extent) != number:
                raise ModelError(f"the input '{name}' cannot have the shape {list(shape)}: the module says {extents}")
            if isinstance(extent, tirx.Var) and symbols.setdefault(extent, number) != number:
                raise ModelError(f"the extent {extent} cannot be {symbols[extent]} and {number}")
    if symbols:
        module = relax.transform.BindSymbolicVars(symbols, function)(module)
    if values:
        module = relax.transform.BindParams(function, values)(module)
    return module


def _check_shapes(function: Any) -> None:
    """Refuse a function with inputs whose shapes are not fixed."""
    open_inputs = [
        f"input '{variable.name}' has the shape {list(variable.ty.shape)}, which is not fixed: give shapes"
        for variable in function.params
        if any(not isinstance(extent, tirx.IntImm) for extent in getattr(variable.ty, "shape", None) or ())
    ]
    if open_inputs:
        raise ModelError("; ".join(open_inputs), problems=open_inputs)


def _digest(module: Any) -> str:
    """Return SHA-256 of a module's text and of its constants, which the text leaves out."""
    found = hashlib.sha256(module.script().encode())

    def visit(e: Any) -> None:
        if is_constant(e):
            found.update(e.value.numpy().tobytes())

    relax.analysis.post_order_visit(module["main"], visit)
    return found.hexdigest()


def _results(function: Any) -> int | None:
    """Return how many results a function has; None if it is one that is no tuple."""
    kind = function.ret_ty
    return len(kind.fields) if isinstance(kind, relax.TupleType) else None
