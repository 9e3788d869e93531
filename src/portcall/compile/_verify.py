# SPDX-License-Identifier: Apache-2.0
"""Compare a compiled model with onnxruntime: by how much its results differ, and where that begins.

Nodes of the graph have no names of ONNX: several operators are one kernel, in another layout. So each is compared with
the values of the model that have as many elements: as they are, from NHWC, and, for what was moved otherwise, sorted.
The difference begins at the first node that is not one of them.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np
import onnx
from onnx import numpy_helper

from portcall.compile._model import as_input, bind_shapes, infer_shapes, inputs_of, load
from portcall.compile._quantized import is_quantized
from portcall.compile._rewriting import Graph, attribute_of
from portcall.compile._simplify import decompose, fold_constants
from portcall.compile._target import Target
from portcall.compile._weights import array_of, arrays_apart, copied
from portcall.errors import CompileError, DeviceError, ModelError, WrongResultsError
from portcall.extras import install_command, is_there
from portcall.graph import GraphModule, GraphModuleDebug

Array = Any
Made = TypeVar("Made", bound=Any)  # a CompiledModel or a CompiledExecutable
Computed = TypeVar("Computed")
# What rounding may do to a model of random inputs; in quantized models each layer enlarges what differs before it.
_CHECKED, _CHECKED_BYTES = 1e-3, 0.2
_OF_HALVES = 2e-2
_NOISE, _NOISE_OF_BYTES = 1e-6, 1e-3  # what roundings are, relative to values
_MORE = 4  # times what noise changes may be another result without being a wrong one
_OF_BYTES = 2e-2  # a sum that lies between two steps of quantization is rounded up or down
_SMALLEST = 1e-3  # what smaller results are compared with: of values near 1, a sigmoid's 1e-7 has two right digits
_TELEMETRY = "ORT_DISABLE_TELEMETRY"
_PROVIDERS = ["CPUExecutionProvider"]
_KNOWN_IR = 10  # onnxruntime refuses versions that are newer than itself, of which it needs nothing
_SOURCE = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : |/\S+\.\w+:\d+ .*?\) ")  # where in its own code
_REMEMBERED = 1024  # elements of a constant that a bundle keeps
_INTEGERS = 2  # below which inputs of integers are, where nothing says more: masks, and indices of most things
_PASSED_ON = ("Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand")
_NONE = 99  # no operand: the first one is of floats, and becomes uint8
# Products of bytes: where each has the zero point of its first operand, its second operand, and that one's zero point.
_PRODUCTS: dict[str, tuple[int, list[tuple[int, int]]]] = {
    "MatMulInteger": (2, [(1, 3)]), "QLinearConv": (2, [(3, 5)]), "QLinearMatMul": (2, [(3, 5)]),
    "QGemm": (2, [(3, 5)]), "MatMulIntegerToFloat": (4, [(1, 5)]), "QAttention": (6, [(1, 7)]),
    "DynamicQuantizeMatMul": (_NONE, [(1, 3)]), "DynamicQuantizeLSTM": (_NONE, [(1, 9), (2, 11)]),
}  # fmt: skip
_SIGN = 128  # by how much a byte without a sign is larger than the same byte with one


class ReferenceFailedError(ModelError):
    """onnxruntime cannot run a model, so that there is nothing to compare with."""


@dataclass(frozen=True)
class OutputError:
    """How a result differs.

    Attributes:
        error: the largest difference, relative to the largest value, or to 0.001 where that is smaller.
        ok: it is within the tolerance.
        shapes: its own and that of the reference, in words, where they are not the same.
    """

    name: str
    error: float
    ok: bool
    shapes: str = ""


@dataclass(frozen=True)
class Verification:
    """How a compiled model differs from its ONNX model.

    Attributes:
        outputs: each result.
        first: the first node whose values the model does not have; empty if there is none, or all results agree.
    """

    outputs: tuple[OutputError, ...]
    first: str = ""

    @property
    def ok(self) -> bool:
        return all(output.ok for output in self.outputs)

    @property
    def worst(self) -> float:
        return max((output.error for output in self.outputs), default=0.0)

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as dicts and lists."""
        return {"ok": self.ok, "worst": self.worst, "first": self.first, "outputs": [asdict(o) for o in self.outputs]}


@dataclass(frozen=True)
class Expected:
    """What onnxruntime computes for a model.

    Attributes:
        feeds: the inputs by name.
        results: by name and in order.
        tolerance: by how much others may differ.
    """

    feeds: Mapping[str, Array]
    results: Mapping[str, Array]
    tolerance: float


def verify_graph(
    executor: GraphModule,
    model: Any,
    inputs: Mapping[str, Any] | None = None,
    *,
    tolerance: float,
    seed: int = 0,
    constants: Mapping[str, Any] | None = None,
) -> Verification:
    """Compare a graph with its ONNX model; see ``portcall.compile.verify``.

    Parameters:
        constants: the inputs that it was compiled with, of which those that the model has are used.
    """
    shapes, types = executor.get_input_info()
    proto = copied(load(model).model)
    theirs = {value.name for value in inputs_of(proto)}
    fixed = {name: array for name, array in (constants or {}).items() if name in theirs}
    given = given_inputs(proto, {**fixed, **(inputs or {})})
    check_same_inputs(proto, shapes, given, "the bundle")
    if executor.get_num_outputs() != len(proto.graph.output):
        raise ModelError("the bundle was compiled from another model: their numbers of results differ")
    for name, array in given.items():
        if name in shapes and tuple(array.shape) != tuple(shapes[name]):
            raise ModelError(f"the input '{name}' has the shape {list(shapes[name])}, the array {list(array.shape)}")
    bind_shapes(proto, shapes)
    feeds = {**random_inputs(shapes, types, seed, proto), **given}
    expected = Expected(feeds, reference(proto, feeds), allowed(proto, tolerance))
    return compare_graph(executor, expected, lambda: proto)


def expect(model: Any, shapes: Mapping[str, Sequence[int]]) -> Expected:
    """Return what a model that is being compiled should compute, for random inputs.

    Raises:
        ReferenceFailedError: onnxruntime cannot run it.
    """
    feeds = inputs_like(model, shapes)
    return Expected(feeds, reference(model, feeds), allowed(model, checked(model)))


def compare_graph(executor: GraphModule, expected: Expected, model: Callable[[], Any]) -> Verification:
    """Compare a graph with what is expected of it.

    Parameters:
        model: returns its ONNX model, which is wanted where they differ.
    """
    shapes, _ = executor.get_input_info()
    executor.run(**{name: array for name, array in expected.feeds.items() if name in shapes})
    values = [executor.get_output(number).numpy() for number in range(len(expected.results))]
    made = compare(values, expected.results, expected.tolerance)
    if made.ok:
        return made
    return Verification(made.outputs, _first_difference(executor, model(), expected.feeds, expected.tolerance))


def given_inputs(model: Any, inputs: Mapping[str, Any]) -> dict[str, Array]:
    """Return inputs as arrays; numbers in the types and shapes of the model.

    Raises:
        ModelError: the model has no input of a name, or a number does not fit it.
    """
    known = {value.name: value for value in inputs_of(model)}
    for name in inputs:
        if name not in known:
            raise ModelError(f"the model has no input '{name}'; its inputs are {', '.join(sorted(known))}")
    return {
        name: array if isinstance(array, np.ndarray) and array.ndim else as_input(known[name], array)
        for name, array in inputs.items()
    }


def check_same_inputs(model: Any, ours: Iterable[str], given: Iterable[str], what: str) -> None:
    """Refuse what was compiled from another model, as its inputs tell; those that are given may be constants of it.

    Parameters:
        what: what messages call it.
    """
    theirs = {value.name for value in inputs_of(model)}
    only_ours, only_theirs = sorted({*ours} - theirs), sorted(theirs - {*ours} - {*given})
    if only_ours:
        raise ModelError(f"{what} was compiled from another model: the input '{only_ours[0]}' is in {what} only")
    if only_theirs:  # it was made a constant
        name = only_theirs[0]
        hint = f"give the value that it was compiled with: --input {name}=VALUE, in Python inputs={{'{name}': VALUE}}"
        raise ModelError(f"{what} has no input '{name}', which the model has", hint=hint)


def remembered(constants: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs that were made constants as JSON has them, for ``given_inputs``; large ones are left out."""
    arrays = {name: np.asarray(array) for name, array in constants.items()}
    return {
        name: array.tolist()
        for name, array in arrays.items()
        if array.size <= _REMEMBERED and array.dtype.kind in "biuf" and np.isfinite(array).all()
    }


def allowed(model: Any, tolerance: float) -> float:
    return max(tolerance, _OF_BYTES) if is_quantized(model) else tolerance


def checked(model: Any) -> float:
    """Return the tolerance for a model that was just compiled."""
    return _CHECKED_BYTES if is_quantized(model) else _CHECKED


def why_unchecked(target: Target) -> str:
    """Return why a model for a target cannot be compared with onnxruntime here; empty if it can."""
    if not is_there("onnxruntime"):
        return f"onnxruntime is not installed: {install_command('onnxruntime')}"
    return "" if target.runs_here else f"this machine does not run {target.name}"


def check(made: Made, run: Callable[[Made], Verification], model: Callable[[], Any], expected: Expected) -> Made:
    """Return a model that was just compiled; refuse it if onnxruntime, where it can run it, says something else.

    What could not be compared says why, in ``unchecked``; so does a model whose results rounding alone changes as much.

    Parameters:
        model: returns the ONNX model.

    Raises:
        WrongResultsError: they differ, or the compiled model raises.
    """
    hint = "it is a bug of the compiler, which check=False and --no-check leave unnoticed"
    try:
        found, unchecked = unless_it_cannot(lambda: run(made))
    except (CompileError, DeviceError):
        raise
    except (AssertionError, RuntimeError, ValueError) as error:
        text = f"the compiled model raises where onnxruntime does not: {type(error).__name__}: {error}"
        raise WrongResultsError(text, made, hint=hint) from error
    if found is not None and not found.ok:
        noise, change = _change_by_noise(model(), expected)
        if found.worst <= _MORE * change:
            unchecked = f"other roundings give other results: onnxruntime's change by {change:.2g} of the largest where"
            return replace(made, unchecked=f"{unchecked} inputs change by {noise:g} of their values")
        where = f", beginning in the node '{found.first}'" if found.first else ""
        text = f"the compiled model gives other values than onnxruntime (by {found.worst:.2g} of the largest{where})"
        raise WrongResultsError(text, made, hint=hint)
    return replace(made, unchecked=unchecked)


def _change_by_noise(model: Any, expected: Expected) -> tuple[float, float]:
    """Return how much inputs were changed, and by how much onnxruntime's results change with them; 0 where it fails."""
    noise = _NOISE_OF_BYTES if is_quantized(model) else _NOISE
    generator = np.random.default_rng(1)
    feeds = {
        name: (array * (1 + noise * generator.standard_normal(array.shape))).astype(array.dtype)
        if array.dtype.kind == "f"
        else array
        for name, array in expected.feeds.items()
    }
    try:
        results = reference(model, feeds)
    except ReferenceFailedError:
        return noise, 0.0
    changes = [relative_error(results[name], theirs) for name, theirs in expected.results.items()]
    return noise, max((change for change in changes if np.isfinite(change)), default=0.0)


def unless_it_cannot(compute: Callable[[], Computed]) -> tuple[Computed | None, str]:
    """Return what is computed with onnxruntime; None, and why, where that cannot be."""
    try:
        return compute(), ""
    except ReferenceFailedError as error:
        return None, str(error)
    except MemoryError:
        return None, "its values are too large for the memory of this machine"


def compare(values: Sequence[Array], expected: Mapping[str, Array], tolerance: float) -> Verification:
    """Return how far results are from those of the reference, which are in the same order."""
    found = []
    for value, (name, theirs) in zip(values, expected.items(), strict=True):
        error = relative_error(value, theirs)
        shapes = f"{list(value.shape)}, not {list(theirs.shape)}" if value.shape != theirs.shape else ""
        found.append(OutputError(name, error, error <= _allowed(theirs, tolerance), shapes))
    return Verification(tuple(found))


def random_inputs(
    shapes: Mapping[str, Sequence[int]], types: Mapping[str, Any], seed: int, model: Any = None
) -> dict[str, Array]:
    """Return normally distributed numbers, and integers from 0 to below what the model says, or 2."""
    generator = np.random.default_rng(seed)
    limits = {} if model is None else integer_limits(model)
    found = {}
    for name, shape in shapes.items():
        dtype = np.dtype(str(types[name]))
        if dtype.kind in "biu":
            most = min(limits.get(name, _INTEGERS), int(np.iinfo(dtype).max)) if dtype.kind != "b" else _INTEGERS
            found[name] = generator.integers(0, most, shape).astype(dtype)
        else:
            found[name] = generator.standard_normal(shape).astype(dtype)
    return found


def relative_error(got: Array, expected: Array) -> float:
    """Return the largest difference, relative to the largest value or 0.001; infinite where shapes or NaN differ."""
    if got.shape != expected.shape:
        return float("inf")
    got, expected = got.astype("float64"), expected.astype("float64")
    if not np.array_equal(np.isnan(got), np.isnan(expected)):
        return float("inf")
    same = got == expected  # infinite ones too
    rest = ~(same | np.isnan(got))
    if not rest.any():
        return 0.0
    size = np.abs(expected[np.isfinite(expected)]).max(initial=_SMALLEST)
    return float(np.abs(got[rest] - expected[rest]).max() / size)


def integer_limits(model: Any) -> dict[str, int]:
    """Return below what the integers of inputs are, where what they reach says so: a table, Clip, OneHot, or Equal.

    Equal stands for a OneHot that is written out: what is compared with is the range of the values.
    """
    origin = {value.name: value.name for value in inputs_of(model) if _has_integers(value)}
    if not origin:
        return {}
    graph = Graph(infer_shapes(model))
    fold_constants(graph)
    constants = graph.constants
    found: dict[str, int] = {}

    def limit(node: Any, name: str) -> float | None:
        others = [constants[other] for other in node.input if other != name and other in constants]
        if node.op_type == "Gather" and name == node.input[1] and others:
            return int(others[0].shape[attribute_of(node, "axis", 0)])
        if node.op_type == "Equal" and others and others[0].size:
            return float(others[0].max()) + 1
        bound = {"OneHot": 1, "Clip": 2}.get(node.op_type, 0)
        if bound and name == node.input[0] and [*node.input, "", ""][bound] in constants:
            return float(constants[node.input[bound]].reshape(-1)[0]) + float(node.op_type == "Clip")
        return None

    for node in graph.nodes:
        for name in {name for name in node.input if name in origin}:
            known = limit(node, name)
            if known is not None and np.isfinite(known):
                found[origin[name]] = max(1, min(int(known), found.get(origin[name], int(known))))
            if node.op_type in _PASSED_ON and name == node.input[0]:
                origin[node.output[0]] = origin[name]
    return found


def _has_integers(value: Any) -> bool:
    return onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).kind in "iu"


def _allowed(expected: Array, tolerance: float) -> float:
    return max(tolerance, _OF_HALVES) if expected.dtype == np.float16 else tolerance


def reference(model: Any, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return what onnxruntime computes for the results of a model, by name and in order.

    It does so without optimizations, and with ``_without_saturation``: what it says is the same on every processor.
    """
    return _session(model)(feeds)


def _session(model: Any) -> Callable[[Mapping[str, Array]], dict[str, Array]]:
    """Return what runs a model in onnxruntime."""
    onnxruntime = _import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # its errors are raised, too
    options.enable_cpu_mem_arena = False
    options.add_session_config_entry("session.disable_prepacking", "1")  # or it would have a copy of all weights
    names = [value.name for value in model.graph.output]
    known = copied(model)
    known.ir_version = min(model.ir_version, _KNOWN_IR)
    _without_saturation(known.graph)
    if _stops(known.graph):
        raise ReferenceFailedError("onnxruntime would end this process: it divides the smallest integer by -1")
    beside = arrays_apart(known)
    try:  # weights that are inputs are not copied
        with _explained():
            session = onnxruntime.InferenceSession(_with_inputs(known, beside), options, providers=_PROVIDERS)
        more = beside
    except ReferenceFailedError:  # some operators want constants
        borrowed = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in beside.values()]
        options.add_external_initializers([*beside], borrowed)
        with _explained():
            session = onnxruntime.InferenceSession(known.SerializeToString(), options, providers=_PROVIDERS)
        more = {}

    def run(feeds: Mapping[str, Array]) -> dict[str, Array]:
        with _explained():
            return dict(zip(names, session.run(names, {**feeds, **more}), strict=True))

    return run


def _with_inputs(model: Any, names: Iterable[str]) -> bytes:
    """Return a model, in bytes, with some of its weights as inputs."""
    made = copied(model)
    weights = {tensor.name: tensor for tensor in made.graph.initializer}
    taken = {value.name for value in made.graph.input}
    made.graph.input.extend(
        onnx.helper.make_tensor_value_info(name, weights[name].data_type, weights[name].dims)
        for name in names if name not in taken
    )  # fmt: skip
    kept = [tensor for name, tensor in weights.items() if name not in {*names}]
    del made.graph.initializer[:]
    made.graph.initializer.extend(kept)
    return bytes(made.SerializeToString())


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # its classes are made by pybind11 and share no base
        raise ReferenceFailedError(f"onnxruntime cannot run the model: {_SOURCE.sub('', str(error))}") from error


def _stops(graph: Any) -> bool:
    """Tell whether constants are divided for which the processor has no result."""
    constants = {tensor.name: tensor for tensor in graph.initializer}
    constants |= {node.output[0]: a.t for node in graph.node if node.op_type == "Constant" for a in node.attribute}
    for node in graph.node:
        if node.op_type == "Div" and all(name in constants for name in node.input):
            x, divisor = (array_of(constants[name]) for name in node.input)
            if x.dtype.kind == "i" and (x == np.iinfo(x.dtype).min).any() and (divisor == -1).any():
                return True
    return False


def _without_saturation(graph: Any) -> None:
    """Write weights of int8 that meet uint8 as uint8: they and their zero points are 128 larger, which is the same.

    Where a processor has no VNNI, onnxruntime adds two products of uint8 and int8 in 16 bits, and they saturate.
    """
    constants = {tensor.name: tensor for tensor in graph.initializer}
    constants |= {
        node.output[0]: a.t for node in graph.node if node.op_type == "Constant" for a in node.attribute if a.t
    }
    signed = {name for name, tensor in constants.items() if tensor.data_type == onnx.TensorProto.INT8}
    for number, node in enumerate(graph.node):
        first_zero, pairs = _PRODUCTS.get(node.op_type, (_NONE, []))
        if signed.intersection(node.input[first_zero:][:1]):
            continue
        node.input.extend([""] * (max((zero + 1 for _, zero in pairs), default=0) - len(node.input)))
        if any(node.input[weights] not in signed or node.input[zero] not in {"", *signed} for weights, zero in pairs):
            continue  # one of them is computed, or has no sign
        for place in itertools.chain(*pairs):
            given = constants.get(node.input[place])
            values = np.zeros((), "int8") if given is None else array_of(given)
            name = f"{node.input[place]}/uint8 of node {number}"
            graph.initializer.append(numpy_helper.from_array((values.astype("int16") + _SIGN).astype("uint8"), name))
            node.input[place] = name


def runs(model: Any) -> Callable[[Mapping[str, Sequence[int]]], bool]:
    """Return what tells whether onnxruntime, if it is installed, can run a model whose open inputs have these shapes.

    A result without elements does not count: the picture is too small, or the sound too short.
    """
    if not is_there("onnxruntime"):
        return lambda shapes: True
    try:
        ask = _session(model)
    except ReferenceFailedError:
        return lambda shapes: False

    def run(shapes: Mapping[str, Sequence[int]]) -> bool:
        try:
            return all(value.size for value in ask(inputs_like(model, shapes)).values())
        except ReferenceFailedError:
            return False

    return run


def inputs_like(model: Any, shapes: Mapping[str, Sequence[int]]) -> dict[str, Array]:
    """Return random inputs of a model; those that are not among the shapes have those of the model."""
    known = inputs_of(model)
    types = {v.name: onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type) for v in known}
    sizes = {v.name: shapes.get(v.name) or [d.dim_value for d in v.type.tensor_type.shape.dim] for v in known}
    return random_inputs(sizes, types, 0, model)


def _import_onnxruntime() -> Any:
    """Import onnxruntime without its telemetry, a database that stays open, which was not asked for."""
    before = os.environ.get(_TELEMETRY)
    os.environ[_TELEMETRY] = "1"
    try:
        return importlib.import_module("onnxruntime")
    except ModuleNotFoundError as error:
        text = f"comparing with an ONNX model needs onnxruntime: {install_command('onnxruntime')}"
        raise ModuleNotFoundError(text, name=error.name) from error
    finally:
        if before is None:
            del os.environ[_TELEMETRY]
        else:
            os.environ[_TELEMETRY] = before


def _first_difference(executor: GraphModule, model: Any, feeds: Mapping[str, Array], tolerance: float) -> str:
    """Return the first node whose values the model does not have."""
    every = copied(decompose(model))
    del every.graph.output[:]
    names = dict.fromkeys(name for node in every.graph.node for name in node.output if name)
    every.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    by_size: dict[int, list[Array]] = defaultdict(list)
    for value in reference(every, feeds).values():
        by_size[value.size].append(value)
    debug = GraphModuleDebug(executor.module, executor.plan)
    debug.set_input(dict(feeds))
    for number, node in enumerate(executor.plan.graph.nodes):
        if not node.function or node.function.startswith("__"):
            continue
        value = debug.debug_get_output(number).numpy()
        if not any(_is_same(value, other, tolerance) for other in by_size[value.size]):
            return node.name
    return ""


def _is_same(value: Array, other: Array, tolerance: float) -> bool:
    allowed = _allowed(other, tolerance)
    return any(relative_error(one, two) <= allowed for one, two in _arrangements(value, other))


def _arrangements(value: Array, other: Array) -> Iterator[tuple[Array, Array]]:
    """Yield two arrays of one size as they may have been before one of them was moved."""
    if value.shape == other.shape:
        yield value, other
    if value.ndim == 4:
        yield value.transpose(0, 3, 1, 2), other
    yield np.sort(value, axis=None), np.sort(other, axis=None)
