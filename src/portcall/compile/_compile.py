# SPDX-License-Identifier: Apache-2.0
"""From a model to a bundle, step by step."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
import tvm

import portcall
from portcall import toolchain
from portcall._folders import working_folder
from portcall.bench import format_size
from portcall.compile import _verify
from portcall.compile._checks import ContradictionError, InvalidModelError, check_operators
from portcall.compile._emit import emit
from portcall.compile._fusion import (
    fold_copies,
    fold_layout_changes,
    fold_shuffles,
    join_concatenations,
    join_local_sums,
)
from portcall.compile._halves import widened
from portcall.compile._hints import missing
from portcall.compile._importer import import_model
from portcall.compile._kernels import Rules, no_kernel
from portcall.compile._labels import Labels
from portcall.compile._loops import inline_control
from portcall.compile._lower import lower
from portcall.compile._model import Loaded, bind_shapes, fix_inputs, load
from portcall.compile._options import Options, Progress
from portcall.compile._program import read_program
from portcall.compile._simplify import decompose, simplify
from portcall.compile._target import Target, find_target
from portcall.compile._weights import apart, copied, forget_all_but, give_back, without_weights
from portcall.errors import ModelError
from portcall.graph import Graph, GraphModule, create, export_bundle

StrPath = Any
_NO_CODE = re.compile(r"cannot emit this Relax operator.*?^R\.([\w.]+)\(", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class CompiledModel:
    """A model that is compiled, and not in a file yet.

    Attributes:
        graph: its graph.
        params: its parameters by name, weights as the kernels want them.
        target: for which machine, as it was asked for.
        triple: that machine for the linker; empty for this one.
        objects: the machine code, as the bytes of an object file.
        steps: what was done, and the seconds that it took.
        kernels: how many kernels each rule wrote.
        unchecked: why it was not compared with onnxruntime; empty if it was.
        notes: what is different from the model, such as a ZipMap that is left out.
        runs_here: this machine has the system and the processor that it is compiled for.
    """

    graph: Graph
    params: Mapping[str, Any]
    target: str
    triple: str
    objects: bytes
    steps: Mapping[str, float] = field(default_factory=dict)
    kernels: Mapping[str, int] = field(default_factory=dict)
    unchecked: str = "it was not asked for"
    notes: Sequence[str] = ()
    runs_here: bool = True

    def __repr__(self) -> str:
        nbytes = len(self.objects) + sum(each.nbytes for each in self.params.values())
        kernels = sum(self.kernels.values())
        text = f"{kernels} kernel{'s' * (kernels != 1)}, {format_size(nbytes)}, {self.target}"
        return f"<CompiledModel {self.graph.metadata['model']}: {text}>"

    def save(self, path: StrPath) -> Path:
        """Write the model as one file, a bundle, and return its absolute path. A failure leaves no part of it.

        Raises:
            CompileError: the linker said no, or there is none for the target.
            OSError: the file cannot be written.
        """
        with working_folder() as folder:
            return export_bundle(path, self.graph, self._link(folder), self.params)

    def load(self, device: portcall.Device | None = None) -> GraphModule:
        """Return an executor on this machine with the parameters set."""
        executor = self._create(device)
        executor.load_params(self.params)
        return executor

    def _borrowing(self) -> GraphModule:
        """Return an executor that uses the parameters where they are."""
        executor = self._create()
        for name, tensor in self.params.items():
            executor.set_input_zero_copy(name, tensor)
        return executor

    def _create(self, device: portcall.Device | None = None) -> GraphModule:
        """Return an executor that lacks the parameters."""
        with working_folder() as folder:
            library = portcall.load_module(self._link(folder))
            return create(self.graph, library, device or portcall.cpu())

    def _link(self, folder: Path) -> Path:
        """Return the kernels as a library in a folder. They need no C++ library, which would take a minute to build."""
        made = folder / "kernels.o"
        made.write_bytes(self.objects)
        return toolchain.create_shared(made, folder / "kernels.so", self.triple or None, language="c")


@dataclass
class Steps:
    """Tells what is done, and keeps how long it took."""

    progress: Progress | None
    seconds: dict[str, float] = field(default_factory=dict)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        if self.progress is not None:
            self.progress(name, -1.0)
        start = time.perf_counter()
        yield
        give_back()
        self.seconds[name] = time.perf_counter() - start
        if self.progress is not None:
            self.progress(name, self.seconds[name])


def compile_graph(model: Any, target: str, options: Options) -> CompiledModel:
    """Compile an ONNX model to a graph; parameters and errors are those of ``portcall.compile.onnx``."""
    with apart():
        return _compile_graph(model, target, options)


def _compile_graph(model: Any, target: str, options: Options) -> CompiledModel:
    machine = find_target(target)
    steps = Steps(options.progress)
    with steps.step("read"):
        loaded, given, fixed = _read(model, options)
        proto = plain(given)
        check_operators(proto)
    with steps.step("simplify"):
        try:
            proto = simplify(proto)
        except ContradictionError as error:
            if _verify.runs(given)(fixed):
                raise
            text = str(error).removesuffix(f"; {error.hint}")
            raise InvalidModelError(text, problems=error.problems, hint=error.hint) from error
    with steps.step("import"), as_model_error("import"):
        labels = Labels(given)
        modules = [import_model(proto, fixed, machine, labels=labels, threads=options.threads)]
    names = [value.name for value in proto.graph.output]
    expected, unchecked = None, _verify.why_unchecked(machine) if options.check else "it was not asked for"
    if not unchecked:  # now: its weights are not needed any more afterwards
        forget_all_but(given)
        with steps.step("reference"):
            expected, unchecked = _verify.unless_it_cannot(lambda: _verify.expect(given, fixed))
    forget_all_but()
    metadata = {
        "model": loaded.name, "sha256": loaded.digest, "target": target, "cpu": machine.cpu, "threads": options.threads,
        "winograd": options.winograd, "portcall": portcall.__version__, "tvm": tvm.__version__,
        "onnx": onnx.__version__,
    }  # fmt: skip
    if options.constants:
        metadata["constants"] = _verify.remembered(options.constants)
    compiled = compile_module(modules, machine, names, metadata, steps, labels)
    compiled = replace(compiled, notes=loaded.notes, unchecked=unchecked)
    if expected is None:
        return compiled
    with steps.step("check"):
        again = lambda: _read(model, options)[1]  # noqa: E731
        run = lambda made: _verify.compare_graph(made._borrowing(), expected, again)  # noqa: E731
        return _verify.check(compiled, run, again, expected)


def _read(model: Any, options: Options) -> tuple[Loaded, Any, dict[str, tuple[int, ...]]]:
    """Return a model, the same for what compiles it, with its weights beside it, and the shapes of its inputs."""
    loaded = load(model)
    proto = without_weights(loaded.model)
    loaded = replace(loaded, model=None)  # a large one is not needed any more
    fix_inputs(proto, options.constants)
    return loaded, proto, bind_shapes(proto, options.shapes, missing=functools.partial(missing, runs=_verify.runs))


def plain(given: Any) -> Any:
    """Return a copy of a model, as onnxruntime gets it as it is, with what is known of control flow inlined, and with
    operators and numbers that the importer has in the place of others.
    """
    return widened(inline_control(decompose(inline_control(copied(given)))))


def compile_module(
    modules: list[Any],
    machine: Target,
    outputs: Sequence[str],
    metadata: Mapping[str, Any],
    steps: Steps,
    labels: Labels | None = None,
) -> CompiledModel:
    """Compile the function ``main`` of a module of Relax.

    Parameters:
        modules: the module alone; it is taken out, so that its weights go when they are not needed any more.
        outputs: the names of its results.
        metadata: kept in the graph; ``target``, ``threads`` and ``winograd`` among it are the options.
        labels: those of an imported model, for the nodes of the graph.
    """
    with steps.step("lower"), as_model_error("lower"):
        program = read_program(lower(modules, machine, labels))
        if labels:
            labels.give(program)
    with steps.step("kernels"):
        rules = Rules(program, machine, metadata["winograd"], metadata["threads"] > 1)
        fold_copies(program, rules.reading_of)
        fold_layout_changes(program, rules.reading_of, rules.product_of)
        fold_shuffles(program, rules.reading_of, rules.product_of)
        join_local_sums(program, rules.reading_of)
        join_concatenations(program, rules.reading_of, rules.product_of)
        made, params = emit(program, rules, outputs, metadata)
    with steps.step("machine code"), as_model_error("compile"):
        objects = _machine_code(rules, machine, ours=labels is not None)
    kernels = dict(rules.counts().most_common())
    return CompiledModel(
        made, params, metadata["target"], machine.triple, objects, steps.seconds, kernels, runs_here=machine.runs_here
    )


@contextlib.contextmanager
def as_model_error(done: str) -> Iterator[None]:
    """Say of errors of TVM, which has many classes of them, what could not be done with the model."""
    try:
        yield
    except (ModelError, MemoryError):
        raise
    except Exception as error:
        missing = _NO_CODE.search(str(error))
        if missing:  # it is left as it is where TVM does not know what it needs of its shapes
            text = f"TVM has no code for {missing[1]} with shapes that are not fixed"
            raise ModelError(text, problems=[text], hint="give more of them: --shape, shapes=") from error
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
        said = next((line for line in lines if "Check failed" in line), lines[0])  # what follows may be a whole program
        text = f"{type(error).__name__}: {said:.400}"
        raise ModelError(f"TVM cannot {done} the model: {text}") from error


def _machine_code(rules: Rules, target: Target, *, ours: bool) -> bytes:
    functions = {
        name: kernel.function.with_attr("global_symbol", name) for name, kernel in sorted(rules.kernels.items())
    }
    if not functions:  # a library needs one
        functions["no_kernel"] = no_kernel().with_attr("global_symbol", "no_kernel")
    with target.passes(ours=ours):
        made = tvm.compile(tvm.IRModule(functions), target=target.tvm).mod
    with open(os.memfd_create("kernels.o"), "rb") as file:  # on a full disk LLVM would end the process
        made.write_to_file(f"/proc/self/fd/{file.fileno()}", "o")
        return file.read()
