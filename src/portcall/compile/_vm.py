# SPDX-License-Identifier: Apache-2.0
"""Models that a graph cannot hold, for TVM's Relax VM: dynamic shapes, and shapes that depend on values.

Kernels are the rules' where extents in front are all that is not known, and else TVM's own, all of one thread.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
import tvm
from tvm import relax, tirx
from tvm.relax.backend import gpu_generic

import portcall
from portcall._compilers import check_output
from portcall.bench import format_size
from portcall.compile import _verify
from portcall.compile._attention import use_attention
from portcall.compile._checks import check_operators
from portcall.compile._chunks import use_rules
from portcall.compile._compile import Steps, StrPath, as_model_error, plain
from portcall.compile._dynamic import import_dynamic
from portcall.compile._labels import Labels
from portcall.compile._linked import Linked, Weights, has_assembly, link
from portcall.compile._lower import FuseTransposed, lower, lower_functions
from portcall.compile._model import (
    Loaded,
    bind_shapes,
    fix_inputs,
    inputs_of,
    likely_shapes,
    load,
    name_extents,
    type_text,
)
from portcall.compile._options import Options
from portcall.compile._rewriting import constant_words, deciding_inputs
from portcall.compile._simplify import without_recurrent
from portcall.compile._target import Target, find_target
from portcall.compile._weights import apart, forget_all_but, without_weights
from portcall.errors import ModelError
from portcall.graph._bundle import seal_library
from portcall.vm import VirtualMachine, create

_UNKNOWN = 2  # extent of a dimension that was not given, where a model is only checked


@dataclass(frozen=True)
class CompiledExecutable:
    """A model that is compiled for the Relax VM, and not in a file yet.

    Attributes:
        name: of the model.
        inputs: their types, such as ``float32[n, 4]``, by name.
        target: for which machine, as it was asked for.
        triple: that machine for the linker; empty for this one.
        library: what was compiled.
        steps: what was done, and the seconds that it took.
        reason: why it is not a graph; empty where the VM was asked for.
        unchecked: why it was not compared with onnxruntime; empty if it was.
        kernels: how many kernels each rule wrote; "default" are TVM's own. Empty if all are.
        notes: what is different from the model, such as a ZipMap that is left out.
        sizes: shapes of its inputs with which it was compared; empty if it was not.
        runs_here: this machine has the system and the processor that it is compiled for.
    """

    name: str
    inputs: Mapping[str, str]
    target: str
    triple: str
    library: Linked
    steps: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    unchecked: str = "it was not asked for"
    kernels: Mapping[str, int] = field(default_factory=dict)
    notes: Sequence[str] = ()
    sizes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    runs_here: bool = True

    def __repr__(self) -> str:
        return f"<CompiledExecutable {self.name}: {format_size(self.library.nbytes)}, {self.target}>"

    def save(self, path: StrPath) -> Path:
        """Write the model as one library and return its absolute path. A failure leaves no part of it.

        Raises:
            OSError: the file cannot be written.
        """
        output = check_output(path)
        seal_library(self.library.path, output)
        return output

    def load(self, device: portcall.Device | None = None) -> VirtualMachine:
        """Return a machine on this machine's devices that runs it."""
        return create(portcall.load_module(self.library.path), device)


def compile_executable(model: Any, target: str, options: Options) -> CompiledExecutable:
    """Compile a model for the Relax VM. Dimensions that are not fixed stay variables.

    Parameters:
        model: an ONNX model (a path, bytes or an ``onnx.ModelProto``), or a module of TVM's Relax, which may have
            control flow, and for which ``progress`` is the only option.
        target, options: see ``portcall.compile.onnx``, whose errors these are.
    """
    with apart():
        return _compile_executable(model, target, options)


def _compile_executable(model: Any, target: str, options: Options) -> CompiledExecutable:
    machine = find_target(target, gpu=isinstance(model, tvm.IRModule))
    steps = Steps(options.progress)
    kernels: Mapping[str, int] = {}
    weights = Weights()
    notes: Sequence[str] = ()
    expected, unchecked = None, "it was not asked for"
    if isinstance(model, tvm.IRModule):
        name, inputs = "model", {}
        with steps.step("kernels"):
            module, kernels = _of_relax(model, machine)
    else:
        with steps.step("read"):
            loaded, given, proto = _prepared(model, options)
            notes, name = loaded.notes, loaded.name
            inputs = {value.name: type_text(value) for value in inputs_of(given)}
        labels = Labels(given)
        with steps.step("import"), as_model_error("import"):
            try:
                modules = [import_dynamic(proto, machine, labels=labels)]
            except ModelError as error:
                if error.hint or not (deciding := deciding_inputs(proto)):
                    raise
                hint = f"inputs decide which nodes run; make constants of them: {' '.join(constant_words(deciding))}"
                raise ModelError(str(error).rstrip("."), problems=error.problems, hint=hint) from error
        unchecked = _verify.why_unchecked(machine) if options.check else unchecked
        if not unchecked:  # now: its weights are not needed any more afterwards
            with steps.step("reference"):
                expected, unchecked = _verify.unless_it_cannot(lambda: _expect(given, {}, _verify.checked(given)))
        del given, proto
        forget_all_but()
        with steps.step("kernels"):
            again = lambda: import_dynamic(_prepared(model, options)[2], machine, named=False, labels=labels)  # noqa: E731
            module, kernels = _with_kernels(modules, labels, machine, weights, again)
    with steps.step("compile"), as_model_error("compile"):
        executable = _executable(module, machine, weights, ours=not isinstance(model, tvm.IRModule))
        del module  # with its weights
    with steps.step("link"):
        library = link(executable.mod, machine, weights)
        del executable, weights
    made = CompiledExecutable(
        name, inputs, target, machine.triple, library, steps.seconds,
        kernels=kernels, notes=notes, runs_here=machine.runs_here, unchecked=unchecked,
    )  # fmt: skip
    if expected is None:
        return made
    with steps.step("check"):
        run = lambda made: _compare(made.load(), expected)  # noqa: E731
        made = _verify.check(made, run, lambda: _read(model, options)[1], expected)
    return replace(made, sizes={name: list(array.shape) for name, array in expected.feeds.items()})


def _read(model: Any, options: Options) -> tuple[Loaded, Any]:
    """Return an ONNX model, the same with its weights beside it and what the options say of it."""
    loaded = load(model)
    given = without_weights(loaded.model)
    fix_inputs(given, options.constants)
    bind_shapes(given, options.shapes, fixed=False)
    return replace(loaded, model=None), given  # a large one is not needed any more


def _prepared(model: Any, options: Options) -> tuple[Loaded, Any, Any]:
    """Return a model that was read, and the same with what the importer does not know written as other operators."""
    loaded, given = _read(model, options)
    proto = plain(given)
    name_extents(proto)
    check_operators(proto, graph=False)
    return loaded, given, without_recurrent(proto)


def _executable(module: Any, machine: Target, weights: Weights, *, ours: bool) -> relax.VMExecutable:
    """Return what TVM makes of a module; where its functions are ``ours``, its large weights are in ``weights``."""
    webgpu = machine.name == "webgpu"
    pipeline = gpu_generic.get_default_pipeline(machine.tvm) if webgpu else relax.get_pipeline("default")
    last = [_without_aliases, weights.take_out] if ours and has_assembly(machine) else [_without_aliases]
    passes = [tvm.transform.module_pass(each, opt_level=0) for each in last]
    with machine.passes(ours=ours):
        return tvm.compile(module, target=machine.tvm, relax_pipeline=tvm.transform.Sequential([pipeline, *passes]))


def _without_aliases(module: Any, _: Any) -> Any:
    """Say of TVM's function for shapes, which has one tensor, that no other has its memory.

    Otherwise all functions of a library would have to expect the opposite, as TVM writes them as the last one is.
    """
    for name, function in module.functions_items():
        if isinstance(function, tirx.PrimFunc) and len(function.params) == 1:
            module[name] = function.with_attr("tirx.noalias", True)
    return module


def _with_kernels(
    modules: list[Any], labels: Labels, machine: Target, weights: Weights, again: Callable[[], Any]
) -> tuple[Any, Mapping[str, int]]:
    """Return an imported module with kernels of the rules; as it is where it cannot be lowered.

    Parameters:
        modules: the module alone, as ``lower`` takes it.
        again: imports it once more, without names: some passes of TVM's fail where variables stand for extents, and
            others elsewhere.
    """
    later = weights if has_assembly(machine) else None
    for named in (True, False):
        if not named:
            labels.forget()
            modules = [again()]
        try:
            return use_rules(lower(modules, machine, labels), machine, "auto", labels.names(), later)
        except MemoryError:
            raise
        except Exception:  # TVM has many classes of errors
            continue
    return relax.transform.DeadCodeElimination()(again()), {}


def _of_relax(model: Any, machine: Target) -> tuple[Any, Mapping[str, int]]:
    """Return a module of Relax with kernels of the rules.

    TVM's are left where it cannot be lowered, for WebGPU, and in system libraries, whose functions TVM gives other
    names by a pass that cannot read kernels of ours.
    """
    if machine.name != "webgpu" and "system_lib_prefix" not in (model.attrs or {}):
        try:
            module, written = use_attention(lower_functions(model, machine), machine)
            module, kernels = use_rules(module, machine, "auto")
            return module, {**kernels, **written}
        except MemoryError:
            raise
        except Exception as error:  # TVM has many classes of errors
            warnings.warn(f"portcall has no kernels for the module, and TVM's are used: {error}", stacklevel=2)
    # Before TVM's own passes, which transpose weights that are parameters at each call. It leaves functions behind.
    return relax.transform.DeadCodeElimination()(FuseTransposed()(model)), {}


def verify_executable(
    machine: VirtualMachine,
    model: Any,
    inputs: Mapping[str, Any] | None = None,
    *,
    tolerance: float,
    seed: int = 0,
) -> _verify.Verification:
    """Compare a model for the Relax VM with its ONNX model; see ``portcall.compile.verify``."""
    proto = load(model).model
    inputs = _verify.given_inputs(proto, inputs or {})
    _verify.check_same_inputs(proto, _names(machine), inputs, "the library")
    return _compare(machine, _expect(proto, inputs, tolerance, seed))


def _expect(proto: Any, inputs: Mapping[str, Any], tolerance: float, seed: int = 0) -> _verify.Expected:
    """Return what a model should compute for these inputs, and random ones of a likely shape where none is given.

    Raises:
        ReferenceFailedError: onnxruntime cannot run it.
    """
    known = inputs_of(proto)
    said = {value.name: [_extent(dim) for dim in value.type.tensor_type.shape.dim] for value in known}
    types = {v.name: onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type) for v in known}
    failed: ModelError | None = None
    found: tuple[Any, Any] | None = None

    def run(shapes: Mapping[str, Any]) -> bool:
        """Run the model, unless it cannot, and return whether the results have elements."""
        nonlocal found, failed
        feeds = {**_verify.random_inputs({**said, **shapes}, types, seed, proto), **inputs}
        try:
            found = feeds, _verify.reference(proto, feeds)
        except _verify.ReferenceFailedError as error:
            failed = failed or error
            return False
        return all(value.size for value in found[1].values())  # a picture may be too small for the network

    for shapes in itertools.chain(likely_shapes(proto, [*said]) if _is_open(known) else [], [{}]):
        if run(shapes):
            one = found
            if shapes and not inputs and not any(run(each) for each in _with_batches(proto, shapes)):
                found = one
            break
    if found is None:
        raise failed or ModelError("onnxruntime cannot run the model")
    return _verify.Expected(*found, _verify.allowed(proto, tolerance))


def _with_batches(proto: Any, shapes: Mapping[str, Sequence[int]]) -> Iterator[Mapping[str, Sequence[int]]]:
    """Yield the same shapes with a batch of two, unless the model has none: one hides what is taken for a constant."""
    for each in likely_shapes(proto, [*shapes], _UNKNOWN):
        pairs = [pair for name in shapes for pair in zip(shapes[name], each[name], strict=True)]
        if any(a != b for a, b in pairs) and all(a == b or (a, b) == (1, _UNKNOWN) for a, b in pairs):
            yield each


def _compare(machine: VirtualMachine, expected: _verify.Expected) -> _verify.Verification:
    returned = machine(*(expected.feeds[name] for name in _names(machine)))
    values = returned if isinstance(returned, tuple) else (returned,)
    if len(values) != len(expected.results):
        raise ModelError("the library was compiled from another model: their numbers of results differ")
    return _verify.compare([value.numpy() for value in values], expected.results, expected.tolerance)


def _names(machine: VirtualMachine) -> list[str]:
    return [parameter.name for parameter in machine.signature().parameters]


def _is_open(values: Sequence[Any]) -> bool:
    """Tell whether a shape is not fixed."""
    return any(dim.WhichOneof("value") != "dim_value" for v in values for dim in v.type.tensor_type.shape.dim)


def _extent(dim: Any) -> int:
    return int(dim.dim_value) if dim.WhichOneof("value") == "dim_value" else _UNKNOWN
