# SPDX-License-Identifier: Apache-2.0
"""What a program calls: ``onnx`` and ``relax`` compile, ``verify`` compares. The compiler loads when it is needed."""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import portcall
from portcall import vm
from portcall.compile._options import Options
from portcall.errors import ModelError, WrongResultsError
from portcall.extras import needed
from portcall.graph import Graph, GraphModule, read_bundle

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    from portcall.compile._compile import CompiledModel
    from portcall.compile._options import Progress, Winograd
    from portcall.compile._verify import Verification
    from portcall.compile._vm import CompiledExecutable

    class _Options(TypedDict, total=False):
        """What all calls of ``onnx`` and ``relax`` take."""

        shapes: Mapping[str, Sequence[int | None]] | None
        threads: int
        winograd: Winograd
        progress: Progress | None

    class _OnnxOptions(_Options, total=False):
        constants: Mapping[str, Any] | None
        check: bool

    class _RelaxOptions(_Options, total=False):
        function: str
        params: Mapping[str, Any] | Sequence[tuple[str, Any]] | None


Runtime = Literal["auto", "graph", "vm"]
TOLERANCE = 1e-4  # relative to the largest value


@overload
def onnx(
    model: Any, target: str = ..., *, cache: Literal[True], runtime: Runtime = ..., **options: Unpack[_OnnxOptions]
) -> Path: ...
@overload
def onnx(
    model: Any, target: str = ..., *, runtime: Literal["graph"], **options: Unpack[_OnnxOptions]
) -> CompiledModel: ...
@overload
def onnx(
    model: Any, target: str = ..., *, runtime: Literal["vm"], **options: Unpack[_OnnxOptions]
) -> CompiledExecutable: ...
@overload
def onnx(
    model: Any, target: str = ..., *, runtime: Runtime = ..., **options: Unpack[_OnnxOptions]
) -> CompiledModel | CompiledExecutable: ...
def onnx(
    model: Any,
    target: str = "native",
    *,
    runtime: Runtime = "auto",
    shapes: Mapping[str, Sequence[int | None]] | None = None,
    constants: Mapping[str, Any] | None = None,
    threads: int = 1,
    winograd: Winograd = "auto",
    check: bool = True,
    cache: bool = False,
    progress: Progress | None = None,
) -> CompiledModel | CompiledExecutable | Path:
    """Compile an ONNX model.

    Parameters:
        model: a path, the bytes of a file, or an ``onnx.ModelProto``.
        target: ``native``, or a triple such as ``aarch64-linux-gnu``, with or without ``:CPU`` after it.
        runtime: ``graph``: a graph, whose shapes are all fixed; ``vm``: an executable of the Relax VM, where dimensions
            that are not fixed stay variables; ``auto``: a graph if it can hold the model, else an executable, whose
            ``reason`` says why.
        shapes: for inputs whose dimensions are not fixed. A dimension that is None stays so.
        constants: values of inputs that are fixed, such as axes and the shape of a result, by name. They are then no
            inputs any more.
        threads: 1 for kernels of one thread; more for kernels that share their work among the runtime's threads,
            however many these are. Executables have kernels of one thread.
        winograd: for 3x3 convolutions of graphs: ``auto`` where it is estimated to be faster; it rounds more (1e-5),
            and weights take up to four times as much memory.
        check: run the model once on random inputs, here, and refuse it if onnxruntime computes something else; left out
            where that is not installed, or cannot run the model, and for other machines. Variable dimensions have usual
            sizes that onnxruntime can run, or else 2 elements; batches 2, if it can run that.
        cache: keep the file in ``~/.cache/portcall/models`` and return its path; it is compiled again when the model's
            files, an option, the machine or a version changes. ``model`` is a path.
        progress: is called with the name of each step, and -1, when it begins; and with the seconds when it is over.

    Raises:
        ModelError: the model is damaged, or has operators or shapes that cannot be compiled; ``problems`` lists them;
            or the check failed.
        ValueError: an unknown target, runtime or option.
        OSError: the file cannot be read; with ``cache``, PermissionError where others can write to the cache.
    """
    options = Options(shapes or {}, constants or {}, threads, winograd, check, progress)

    def compiled() -> CompiledModel | CompiledExecutable:
        return _for_runtime(
            runtime,
            lambda: _load("portcall.compile._compile").compile_graph(model, target, options),
            lambda: _load("portcall.compile._vm").compile_executable(model, target, options),
        )

    if not cache:
        return compiled()
    path: Path = _load("portcall.compile._cache").find_or_make(model, target, runtime, options, compiled)
    return path


@overload
def relax(
    module: Any, target: str = ..., *, runtime: Literal["graph"], **options: Unpack[_RelaxOptions]
) -> CompiledModel: ...
@overload
def relax(
    module: Any, target: str = ..., *, runtime: Literal["vm"], **options: Unpack[_RelaxOptions]
) -> CompiledExecutable: ...
@overload
def relax(
    module: Any, target: str = ..., *, runtime: Runtime = ..., **options: Unpack[_RelaxOptions]
) -> CompiledModel | CompiledExecutable: ...
def relax(
    module: Any,
    target: str = "native",
    *,
    runtime: Runtime = "auto",
    function: str = "",
    params: Mapping[str, Any] | Sequence[tuple[str, Any]] | None = None,
    shapes: Mapping[str, Sequence[int | None]] | None = None,
    threads: int = 1,
    winograd: Winograd = "auto",
    progress: Progress | None = None,
) -> CompiledModel | CompiledExecutable:
    """Compile a module of TVM's Relax, such as ``relax.frontend.nn`` exports and ``relax.BlockBuilder`` makes.

    Parameters:
        module: an ``IRModule`` of apache-tvm; it stays as it is.
        target, threads, winograd, progress: as for ``onnx``.
        runtime: as for ``onnx``: a graph holds one function without control flow, an executable the whole module.
        function: which of the module's functions, for a graph; by default ``main``, or the only one. ``params`` and
            ``shapes`` are those of its inputs.
        params: values of parameters by name, as arrays or tensors of TVM; they are constants then, and no inputs. Pairs
            are taken, too, as ``export_tvm`` returns them; a name may have a dot where the module has an underscore.
        shapes: of inputs whose extents are symbols. An extent that is None stays one.

    The results of a graph are called ``output``, or ``output_0``, ``output_1`` and so on. Nothing is compared: there is
    no other implementation of the module.

    Raises:
        ModelError: the module has what the runtime cannot hold: for a graph, open extents and control flow.
        ValueError: no such function, parameter or input; an unknown target, runtime or option.
        TypeError: it is no module.
    """
    options = Options(shapes or {}, threads=threads, winograd=winograd, progress=progress)
    return _for_runtime(
        runtime,
        lambda: _load("portcall.compile._relax").compile_graph(module, target, function, params, options),
        lambda: _load("portcall.compile._relax").compile_executable(module, target, function, params, options),
    )


def verify(
    compiled: Any,
    model: Any,
    inputs: Mapping[str, Any] | None = None,
    *,
    tolerance: float = TOLERANCE,
    seed: int = 0,
) -> Verification:
    """Run a compiled model and its ONNX model on the same inputs, and compare the results.

    Parameters:
        compiled: what ``onnx`` returned, the path of its file, a ``graph.GraphModule`` or a ``vm.VirtualMachine``; the
            last two may be of a session.
        model: a path, the bytes of a file, or an ``onnx.ModelProto``.
        inputs: arrays and numbers by name; random numbers for all others, and for inputs that were made ``constants``
            their values, if the file has them: it is a graph's. Their variable dimensions have usual sizes that
            onnxruntime can run, or else 2 elements.
        tolerance: how far values may be from each other, relative to the largest one; for float16 and quantized models
            at least 0.02.

    Raises:
        ModelError: the model is damaged, or has other inputs or results; or onnxruntime cannot run it.
        ModuleNotFoundError: onnxruntime is not installed.
        TypeError: ``compiled`` is something else.
    """
    graph = getattr(compiled, "graph", None)
    if isinstance(compiled, (str, os.PathLike)):
        runs, graph = _open(os.fspath(compiled))
    else:
        runs = compiled.load() if hasattr(compiled, "load") and hasattr(compiled, "save") else compiled
    if isinstance(runs, vm.VirtualMachine):
        compare = _load("portcall.compile._vm").verify_executable
    elif isinstance(runs, GraphModule):
        metadata = graph.metadata if isinstance(graph, Graph) and isinstance(graph.metadata, dict) else {}
        constants = metadata.get("constants")
        compare = functools.partial(
            _load("portcall.compile._verify").verify_graph, constants=constants if isinstance(constants, dict) else {}
        )
    else:
        raise TypeError(f"a compiled model, its file, an executor or a machine is verified, not {type(runs).__name__}")
    found: Verification = compare(runs, model, inputs, tolerance=tolerance, seed=seed)
    return found


def _for_runtime(
    runtime: str, graph: Callable[[], CompiledModel], executable: Callable[[], CompiledExecutable]
) -> CompiledModel | CompiledExecutable:
    """Compile to what the runtime runs; ``auto`` is a graph, or else an executable that says why.

    Raises:
        ModelError: neither can be made; the message has both reasons, unless they are one.
    """
    if runtime not in ("auto", "graph", "vm"):
        raise ValueError(f"runtime is 'auto', 'graph' or 'vm', not {runtime!r}")
    if runtime == "vm":
        return executable()
    try:
        return graph()
    except ModelError as error:
        if runtime == "graph" or isinstance(
            error, (_load("portcall.compile._checks").InvalidModelError, WrongResultsError)
        ):
            raise
        why = error
    plain = str(why).removesuffix(f"; {why.hint}")
    try:
        return replace(executable(), reason=str(why) if "--shape" in why.hint else plain)
    except ModelError as error:
        if isinstance(error, _load("portcall.compile._checks").ContradictionError):  # with shapes, too
            raise
        places = {_place(text) for text in error.problems}
        if str(error) == str(why) or (places and places <= {_place(text) for text in why.problems}):
            raise why from None
        other = str(error).removesuffix(f"; {error.hint}")
        text = f"as a graph: {plain}\nfor the Relax VM: {other}"
        hint = error.hint if "--constant" in error.hint else why.hint  # which it can do without the shapes
        raise ModelError(text, problems=why.problems, hint=hint) from error


def _place(problem: str) -> str:
    """Return the node or input that a problem begins with."""
    return problem.partition(":")[0]


def _open(path: str) -> tuple[GraphModule | vm.VirtualMachine, Graph | None]:
    library = portcall.load_module(path)
    if vm.read_embedded(path) is not None:
        return vm.create(library), None
    bundle = read_bundle(path)
    return GraphModule(library[bundle.name](portcall.cpu())), bundle.graph


def _load(name: str) -> Any:
    """Return a module of this package. Most of them load TVM, which takes seconds."""
    with needed("compile", "compiling models"):
        return importlib.import_module(name)
