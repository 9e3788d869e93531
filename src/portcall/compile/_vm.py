# SPDX-License-Identifier: Apache-2.0
"""Models that a graph cannot hold, for TVM's Relax VM: dynamic shapes, and shapes that depend on values.

Kernels are TVM's own, of one thread and without schedules: a graph is faster where there is one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx as import_onnx

import portcall
from portcall import toolchain
from portcall.bench import format_size
from portcall.compile._compile import CompiledModel, Progress, Steps, StrPath, Winograd, _as_model_error, from_onnx
from portcall.compile._model import _bound, _set_shape, fix_inputs, inputs_of, load
from portcall.compile._simplify import decompose
from portcall.compile._target import find_target
from portcall.compile._verify import (
    TOLERANCE,
    ReferenceFailedError,
    Verification,
    _reference,
    compare,
    random_inputs,
)
from portcall.errors import ModelError
from portcall.vm import VirtualMachine, create

Runtime = Literal["auto", "graph", "vm"]
ENTRY = "main"
_CHECKED = 1e-3  # what rounding may do to a model of random inputs
_UNKNOWN = 2  # extent of a dimension that nobody gave, where a model is only checked


@dataclass(frozen=True)
class CompiledExecutable:
    """A model that is compiled for the Relax VM, and not in a file yet.

    Attributes:
        name: of the model.
        inputs: their types, such as ``float32[n, 4]``, by name.
        target: for which machine, as it was asked for.
        triple: that machine for the linker; empty for this one.
        parts: machine code and executable: object files and C sources, by name.
        steps: what was done, and the seconds that it took.
        reason: why it is not a graph; empty where the VM was asked for.
    """

    name: str
    inputs: Mapping[str, str]
    target: str
    triple: str
    parts: Mapping[str, bytes]
    steps: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""

    def __repr__(self) -> str:
        return f"<CompiledExecutable {self.name}: {format_size(sum(map(len, self.parts.values())))}, {self.target}>"

    def save(self, path: StrPath) -> Path:
        """Write the model as one library and return its absolute path. A failure leaves no part of it.

        Raises:
            CompileError: the linker failed, or there is none for the target.
            OSError: the file cannot be written.
        """
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder, name) for name in self.parts]
            for file in files:
                file.write_bytes(self.parts[file.name])
            return toolchain.create_shared(files, path, self.triple or None, language="c")

    def load(self, device: portcall.Device | None = None) -> VirtualMachine:
        """Return a machine on this machine's devices that runs it."""
        with tempfile.TemporaryDirectory() as folder:
            return create(portcall.load_module(self.save(Path(folder, "model.so"))), device)


def compile_onnx(
    model: Any,
    target: str = "native",
    *,
    runtime: Runtime = "auto",
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, Any] | None = None,
    threads: int = 1,
    winograd: Winograd = "auto",
    check: bool = True,
    progress: Progress | None = None,
) -> CompiledModel | CompiledExecutable:
    """Compile an ONNX model to a graph, or for the Relax VM.

    Parameters:
        runtime: ``graph``: as ``from_onnx``; ``vm``: as ``for_vm``, which ignores ``threads`` and ``winograd``;
            ``auto``: a graph, or for the VM what a graph cannot hold. ``reason`` of the result says what that was.
        model, target, shapes, constants, threads, winograd, check, progress: see ``from_onnx``.

    Raises:
        ModelError: the model is damaged, or has operators that neither can run.
        ValueError: an unknown target, runtime or option.
        OSError: the file cannot be read.
    """
    if runtime not in ("auto", "graph", "vm"):
        raise ValueError(f"runtime is 'auto', 'graph' or 'vm', not {runtime!r}")
    common: dict[str, Any] = {"shapes": shapes, "constants": constants, "check": check, "progress": progress}
    if runtime == "vm":
        return for_vm(model, target, **common)
    try:
        return from_onnx(model, target, threads=threads, winograd=winograd, **common)
    except ModelError as error:
        if runtime == "graph":
            raise
        load(model)  # where it is damaged, this says so again
        why = error
    try:
        return replace(for_vm(model, target, **common), reason=str(why))
    except ModelError as error:
        raise ModelError(f"as a graph: {why}\nfor the Relax VM: {error}", problems=why.problems) from error


def for_vm(
    model: Any,
    target: str = "native",
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    constants: Mapping[str, Any] | None = None,
    check: bool = True,
    progress: Progress | None = None,
) -> CompiledExecutable:
    """Compile a model for the Relax VM. Dimensions that are not fixed stay variables.

    Parameters:
        model: an ONNX model (a path, bytes or an ``onnx.ModelProto``), or a module of TVM's Relax, which may have
            control flow; ``shapes``, ``constants`` and ``check`` are for ONNX models.
        check: run the model once, with random inputs whose variable dimensions have 2 elements, and compare with
            onnxruntime, where that can run it.
        target, shapes, constants, progress: see ``from_onnx``.

    Raises:
        ModelError: the model is damaged, or has operators that TVM cannot import or compile; or the check failed.
        ValueError: an unknown target.
        OSError: the file cannot be read.
    """
    machine = find_target(target)
    steps = Steps(progress)
    given = None
    if isinstance(model, tvm.IRModule):
        name, module, inputs = "model", model, {}
    else:
        with steps.step("read"):
            loaded = load(model)
            given = onnx.ModelProto()
            given.CopyFrom(loaded.model)
            fix_inputs(given, constants or {})
            _bind(given, shapes or {})
            name, inputs = loaded.name, {value.name: _type_text(value) for value in inputs_of(given)}
        # The importer prints the operator that it fails on; its error says so too.
        with steps.step("import"), _as_model_error("imported"), contextlib.redirect_stdout(io.StringIO()):
            module = import_onnx(decompose(given), keep_params_in_input=False, sanitize_input_names=False)
    with steps.step("compile"), _as_model_error("compiled"):
        parts = _parts(tvm.compile(module, target=machine.tvm))
    made = CompiledExecutable(name, inputs, target, machine.triple, parts, steps.seconds)
    if check and given is not None and target == "native" and importlib.util.find_spec("onnxruntime") is not None:
        with steps.step("check"):
            _check(made, given)
    return made


def verify_executable(
    machine: VirtualMachine,
    model: Any,
    inputs: Mapping[str, Any] | None = None,
    *,
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> Verification:
    """Run a model that was compiled for the Relax VM, and its ONNX model, on the same inputs.

    Parameters:
        machine: of the library, here or in a session.
        model: a path, the bytes of a file, or an ``onnx.ModelProto``.
        inputs: arrays by name; random numbers for all others, whose variable dimensions have 2 elements.
        tolerance: see ``verify``.

    Raises:
        ModelError: the model is damaged; or onnxruntime cannot run it with these inputs.
        ModuleNotFoundError: onnxruntime is not installed.
    """
    proto = load(model).model
    known = inputs_of(proto)
    sizes = {value.name: [_extent(dim) for dim in value.type.tensor_type.shape.dim] for value in known}
    types = {v.name: onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type) for v in known}
    feeds = {**random_inputs(sizes, types, seed), **(inputs or {})}
    expected = _reference(proto, feeds)
    returned = machine(*(feeds[value.name] for value in known))
    values = returned if isinstance(returned, tuple) else (returned,)
    if len(values) != len(expected):
        raise ModelError(f"the executable returns {len(values)} values, the model {len(expected)}")
    return compare([value.numpy() for value in values], expected, tolerance)


def _check(made: CompiledExecutable, model: Any) -> None:
    try:
        found = verify_executable(made.load(), model, tolerance=_CHECKED)
    except ReferenceFailedError:
        return
    if not found.ok:
        raise ModelError(
            f"the executable gives other values than onnxruntime (by {found.worst:.2g} of the largest); "
            "check=False and --no-check accept that"
        )


def _bind(model: Any, shapes: Mapping[str, Sequence[int]]) -> None:
    """Give inputs the shapes that are given, in place.

    Raises:
        ModelError: there is no such input, it is not a tensor, or the shape does not fit it.
    """
    inputs = {value.name: value for value in inputs_of(model)}
    for name in shapes:
        if name not in inputs:
            raise ModelError(f"the model has no input '{name}'; there is {', '.join(inputs) or 'none'}")
    for name, value in inputs.items():
        if not value.type.HasField("tensor_type"):
            raise ModelError(f"input '{name}' is not a tensor: {value.type.WhichOneof('value')} is not supported")
        if name in shapes:
            extents, flaw = _bound(value, shapes[name])
            if flaw:
                raise ModelError(flaw)
            _set_shape(value, extents)


def _extent(dim: Any) -> int:
    return int(dim.dim_value) if dim.WhichOneof("value") == "dim_value" else _UNKNOWN


def _type_text(value: Any) -> str:
    """Return a type such as ``float32[n, 4]``; a dimension without a name is ``?``."""
    tensor = value.type.tensor_type
    dims = (
        str(dim.dim_value) if dim.WhichOneof("value") == "dim_value" else dim.dim_param or "?"
        for dim in tensor.shape.dim
    )
    return f"{onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)}[{', '.join(dims)}]"


def _parts(executable: relax.VMExecutable) -> dict[str, bytes]:
    """Return the files that are to be linked. TVM writes them and calls a linker; this one keeps them."""
    found: dict[str, bytes] = {}

    def keep(_output: str, files: Sequence[str], **_options: Any) -> None:
        found.update({Path(file).name: Path(file).read_bytes() for file in files})

    executable.export_library("model.so", fcompile=keep)
    return found
