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
from portcall.compile._compile import CompiledModel, Progress, Steps, Winograd, check_options, compile_module
from portcall.compile._program import is_constant
from portcall.compile._target import find_target
from portcall.errors import ModelError


def from_relax(
    module: Any,
    target: str = "native",
    *,
    function: str = "",
    params: Mapping[str, Any] | Sequence[tuple[str, Any]] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    threads: int = 1,
    winograd: Winograd = "auto",
    progress: Progress | None = None,
) -> CompiledModel:
    """Compile a module of TVM's Relax, such as ``relax.frontend.nn`` exports and ``relax.BlockBuilder`` makes.

    Parameters:
        module: an ``IRModule`` of apache-tvm; it stays as it is.
        target, threads, winograd, progress: as for ``from_onnx``.
        function: which of the module's; by default ``main``, or the only one.
        params: values of parameters by name, as arrays or tensors of TVM; they are constants then, and no inputs. Pairs
            are taken, too, as ``export_tvm`` returns them; a name may have a dot where the module has an underscore.
        shapes: of inputs whose extents are symbols.

    Its results are called ``output``, or ``output_0``, ``output_1`` and so on. Nothing is compared: there is no other
    implementation of the module.

    Raises:
        ModelError: the module has what a graph cannot hold, such as extents that are not given and control flow.
        ValueError: no such function, parameter or input; an unknown target or option.
        TypeError: it is no module.
    """
    check_options(winograd, threads)
    machine = find_target(target)
    if not isinstance(module, tvm.IRModule):
        raise TypeError(f"from_relax takes a tvm.IRModule, not {type(module).__name__}")
    steps = Steps(progress)
    with steps.step("read"):
        name = _function_of(module, function)
        prepared = tvm.IRModule({**dict(module.functions_items())})
        main = module[name].with_attr("global_symbol", "main")
        if name != "main":
            del prepared[name]
        prepared["main"] = main
        prepared = _bound(prepared, params, shapes or {})
        digest = _digest(prepared)
        count = _results(prepared["main"])
    outputs = ["output"] if count is None else [f"output_{number}" for number in range(count)]
    metadata = {
        "model": name, "sha256": digest, "target": target, "cpu": machine.cpu, "threads": threads,
        "winograd": winograd, "portcall": portcall.__version__, "tvm": tvm.__version__,
    }  # fmt: skip
    return compile_module(prepared, machine, outputs, metadata, steps)


def _function_of(module: Any, wanted: str) -> str:
    names = [str(v.name_hint) for v, f in module.functions_items() if isinstance(f, relax.Function)]
    public = [name for name in names if "global_symbol" in (module[name].attrs or {})]
    name = wanted or ("main" if "main" in names else public[0] if len(public) == 1 else "")
    if name not in names:
        raise ValueError(
            f"the module has no function '{name or 'main'}'; there is {', '.join(names) or 'none'}: function=…"
        )
    return name


def _bound(module: Any, params: Any, shapes: Mapping[str, Sequence[int]]) -> Any:
    """Return the module with parameters and extents fixed."""
    inputs = {str(variable.name): variable for variable in module["main"].params}
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
            if isinstance(extent, tirx.IntImm) and int(extent) != number:
                raise ModelError(f"the input '{name}' cannot have the shape {list(shape)}: the module says {extents}")
            if isinstance(extent, tirx.Var) and symbols.setdefault(extent, number) != number:
                raise ModelError(f"the extent {extent} cannot be {symbols[extent]} and {number}")
    if symbols:
        module = relax.transform.BindSymbolicVars(symbols, "main")(module)
    if values:
        module = relax.transform.BindParams("main", values)(module)
    open_inputs = [
        f"input '{variable.name}' has the shape {list(variable.ty.shape)}, which is not fixed: give shapes"
        for variable in module["main"].params
        if any(not isinstance(extent, tirx.IntImm) for extent in getattr(variable.ty, "shape", None) or ())
    ]
    if open_inputs:
        raise ModelError("; ".join(open_inputs), problems=open_inputs)
    return module


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
