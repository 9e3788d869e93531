# SPDX-License-Identifier: Apache-2.0
"""A graph at work: ``create`` one, set its inputs, run it, take its outputs, here or on a server.

Rules:

* A GraphModule decides nothing about execution: it is a Module of the core, whose functions it calls by the names that
  the field knows. What it adds are checks, before anything is copied or sent, and words.
* It does not know ``portcall.rpc``: a module of a session is one of type ``rpc``, and what else concerns sessions are
  functions of the core.
* Over a session no containers travel: names, shapes and types come from the plan, which is here.
"""

from __future__ import annotations

import difflib
import math
import operator
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import portcall
from portcall import DataType, Device, Module, PackedFunc, errors, get_global_func
from portcall._tensor import array_like, tensor_over_array
from portcall._timing import DEFAULTS
from portcall.graph._host_memory import HOST, REMOTE, is_remote, memory_of
from portcall.graph._params import (
    MemorySource,
    ParamFile,
    ParamInfo,
    StrPath,
    make_tensor,
    read_index,
    save_params,
)
from portcall.graph._plan import Plan, Storage, decode, encode, plan
from portcall.graph._spec import Graph, Value

if TYPE_CHECKING:
    from portcall.bench import BenchmarkResult

GraphSource = str | bytes | os.PathLike[str] | Graph
Blob = bytes | bytearray | memoryview
_WHOLE = (0, 1, 6)  # DLPack's codes of int, uint and bool
_PARAMETER = 2  # in what get_input_states returns
_FEW = 8  # names that are listed in full


class UnexpectedParamsWarning(UserWarning):
    """Parameters were given that the graph has no inputs for."""


def create(
    graph_json: GraphSource, lib: Module, device: Device | Sequence[Device], *, storage: Storage = "given"
) -> GraphModule:
    """Return an executor of a graph.

    Parameters:
        graph_json: the graph's JSON; a file with it, as a name or a path; or a Graph.
        lib: the kernels, or a module that imports them; one of a session runs them there.
        device: where to run; of several the first is for all that the graph gives no other kind of device.
        storage: how memory is planned, see ``plan``.

    Raises:
        GraphError: it is not a graph, or one that cannot be run; or the library lacks a kernel.
        ValueError: the devices are not those of the library, see ``get_device``.
        DeviceError, MemoryError: a device does not exist, or has not that much memory.
    """
    devices, remote, flat = get_device(lib, device)
    planned = plan(read_graph(graph_json), storage)
    make = _remote_create(devices[0]) if remote else get_global_func("portcall.graph.create")
    try:
        return GraphModule(make(encode(planned), lib, *flat), planned)
    except errors.GraphError as error:
        hint = "" if remote else _similar_kernel(str(error), planned.graph, lib)
        if not hint:
            raise
        raise errors.GraphError(f"{error}{hint}", path=error.path, node=error.node) from None


def _similar_kernel(message: str, graph: Graph, lib: Module) -> str:
    """Return a hint for the message about a missing kernel: a similar name in the library. Empty if there is none."""
    names = {name for module in lib._walk() for name in module.list_function_names()}
    missing = [node.function for node in graph.nodes if node.function and node.function not in names]
    named = next((name for name in missing if f"'{name}'" in message), "")
    near = difflib.get_close_matches(named, names, n=1)
    return f"; did you mean '{near[0]}'?" if near else ""


def read_graph(source: GraphSource) -> Graph:
    """Return the graph of a JSON text, or of a file that has one.

    Raises:
        GraphError: the text is not a graph.
        OSError: the file cannot be read.
        ArgumentError: ``source`` is not one of these.
    """
    if isinstance(source, Graph):
        return source
    if isinstance(source, str) and "{" not in source and (source.endswith(".json") or os.path.isfile(source)):
        source = Path(source)
    try:
        text = source if isinstance(source, (str, bytes)) else Path(source).read_bytes()
    except TypeError:
        got = type(source).__name__
        text = f"a graph is given as JSON, a path or a Graph, got {got}"
        raise errors.ArgumentError(text, expected="a graph", got=got) from None
    return Graph.from_json(text)


def _remote_create(device: Any) -> PackedFunc:
    try:
        make: PackedFunc = device.session.get_function("portcall.graph.create")
    except errors.FunctionNotFoundError as error:
        raise errors.FunctionNotFoundError(
            f"{device.session.name} runs no graphs; a portcall server of this version does", name=error.name
        ) from None
    return make


def get_device(libmod: Module, device: Device | Sequence[Device]) -> tuple[list[Device], int, list[int]]:
    """Return the devices as a list, how many of them are remote, and their types and ids in a row.

    Raises:
        ArgumentError: ``libmod`` is not a module.
        ValueError: ``device`` is neither a device nor a list of them; only some are remote; or they belong to another
            session than the library.
    """
    if not isinstance(libmod, Module):
        raise errors.ArgumentError(
            f"a library is expected, such as portcall.load_module('kernels.so'), got {libmod!r}",
            expected="a library", got=repr(libmod),
        )  # fmt: skip
    devices = [device] if isinstance(device, Device) else device
    if not isinstance(devices, (list, tuple)) or not devices or not all(isinstance(d, Device) for d in devices):
        raise ValueError(f"expected a device or a list of devices, such as portcall.cpu(0), got {device!r}")
    remote = [d for d in devices if hasattr(d, "session")]
    if 0 < len(remote) < len(devices):
        raise ValueError("Either all or none of the devices should be rpc.")
    elsewhere = libmod.type_key == REMOTE
    if elsewhere and not remote:
        raise ValueError(f"the library belongs to a session, {devices[0]} to this process: give session.device(…)")
    if remote and not elsewhere:
        raise ValueError(
            f"{remote[0]!r} is given with a library of this process: upload it, and session.load_module(…)"
        )
    for other in remote:
        if _session_of(other.session.module) != _session_of(libmod):
            raise ValueError(f"{other!r} belongs to another session than the library")
    return list(devices), len(remote), [number for d in devices for number in (d.device_type, d.device_id)]


def _session_of(module: Module) -> int:
    number: int = get_global_func("portcall.rpc.SessionId")(module)
    return number


class GraphModule:
    """An executor of a graph. Inputs and outputs are meant by name or by index.

    One thread at a time may use it; ``clone`` makes another one with the same parameters for another thread.

    Parameters:
        module: what ``lib["default"](device)``, or another creator of executors, returned; here or in a session.
        plan: its plan, where that is at hand; the module is asked for it otherwise.

    Attributes:
        module: the executor as a Module, whose functions are also ``m["name"]``.

    Raises:
        ValueError: the module is not an executor of a graph.
    """

    def __init__(self, module: Module, plan: Plan | None = None) -> None:
        self.module = module
        self.plan = plan or _plan_of(module)
        graph = self.plan.graph
        self._inputs = _Ports("input", input_names(graph), [graph.nodes[n].outputs[0] for n in graph.inputs], graph)
        self._outputs = _Ports("output", output_names(graph), graph.outputs, graph)
        self._functions: dict[str, PackedFunc] = {}  # looked up once
        self._run = self["run"]
        self._set_input = self["set_input"]
        self._get_output = self["get_output"]
        self._memory = memory_of(module)

    def clone(self) -> GraphModule:
        """Return an executor that shares the parameters and the kernels, and has its own memory for all else."""
        return GraphModule(self["clone"](), self.plan)

    def __getitem__(self, name: str) -> PackedFunc:
        if name not in self._functions:
            self._functions[name] = self.module.get_function(name)
        return self._functions[name]

    def __repr__(self) -> str:
        sizes = f"{len(self.plan.graph.nodes)} nodes, {len(self._inputs)} inputs, {len(self._outputs)} outputs"
        return f"<portcall.graph.GraphModule of {sizes}{self._memory.label}>"

    # ---- Inputs ----

    def set_input(self, key: str | int | Mapping[str, Any] | None = None, value: Any = None, /, **inputs: Any) -> None:
        """Copy an array or tensor into an input: ``set_input("data", x)``, ``set_input(0, x)``, ``set_input(data=x)``.

        Several at once are given by keyword or, where names are not identifiers, as a dict: ``set_input({"x:0": x})``.
        ``set_input(key="data", value=x)`` is the first form, unless the graph has inputs of these names.

        Raises:
            GraphError: no input has that name or index, or the shape is not the graph's. Nothing was set then.
            ArgumentError: the elements are not of the graph's type; nothing is converted silently.
        """
        if set(inputs) == {"key", "value"} and not self._has("key") and not self._has("value"):
            key, value, inputs = inputs["key"], inputs["value"], {}
        given: dict[Any, Any] = inputs
        if isinstance(key, Mapping) and value is None:
            given = {**key, **inputs}
        elif key is not None or value is not None:
            given = {self._inputs.index(key): value, **inputs}
        for index, tensor in [self._inputs.check(name, each) for name, each in given.items()]:
            self._set_input(index, self._memory.staged(index, tensor))

    def set_input_zero_copy(self, key: str | int, value: Any) -> None:
        """Use a tensor's memory as an input from now on: what it holds when the graph runs counts.

        The memory must be on the input's device, compact, and aligned to 64 bytes: that of portcall's tensors is, that
        of NumPy's arrays mostly is not. For an executor of a session it is a tensor of the session.

        Raises:
            GraphError: as ``set_input``; or the memory cannot be used in place, and the message says why, by how much.
            ArgumentError: as ``set_input``.
        """
        index, tensor = self._inputs.check(key, value, in_place=True)
        self["set_input_zero_copy"](index, self._in_place(tensor))

    def get_input(self, key: str | int, out: Any = None) -> Any:
        """Return an input or parameter: a view of its memory, or ``out`` with a copy."""
        index = self._inputs.index(key)
        view = self["get_input"](index)
        return view if out is None else view.copyto(out)

    def get_input_index(self, name: str) -> int:
        """Return the index of an input or parameter; -1 when there is none of that name."""
        return self._inputs.find(name)

    def get_input_info(self) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        """Return the shapes and the types of the inputs by name, without those that were set as parameters."""
        return self._inputs.info([state != _PARAMETER for state in self["get_input_states"]()])

    def get_param_info(self) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        """Return the shapes and the types of the inputs that were set as parameters, by name."""
        return self._inputs.info([state == _PARAMETER for state in self["get_input_states"]()])

    def get_num_inputs(self) -> int:
        """Return how many inputs there are, parameters included."""
        return len(self._inputs)

    # ---- Parameters ----

    def load_params(
        self, params: Blob | StrPath | Mapping[str, Any], progress: Callable[[int, int], None] | None = None
    ) -> None:
        """Set parameters: from a blob, a file with one (its name or path), or a dict of arrays. They are copied once.

        Clones share them; over a session they are sent once for all clones, many at a time, so that small ones take
        few round trips.

        Parameters:
            progress: called with the bytes that are set and the bytes in all.

        Raises:
            GraphError: the blob is damaged, or a shape is not the graph's.
            OSError: the file cannot be read.
            ArgumentError: the elements are not of the graph's type.

        Warns:
            UnexpectedParamsWarning: the graph has no inputs of some names; the text lists them.
        """
        described, read, ours = _source_of(params)
        # All are checked before the first is set.
        sizes = {name: self._inputs.check(name, described[name])[1].nbytes for name in self._known(described)}
        total, done = sum(sizes.values()), 0
        for names in _batches(sizes, self._memory.batch):
            tensors = (self._inputs.check(name, read(name))[1] for name in names)  # one at a time is held
            set_now = self._memory.keep(tensors, [sizes[name] for name in names], ours)
            indices = [self._inputs.index(name) for name in names]
            self["set_param"](*[part for pair in zip(indices, set_now, strict=True) for part in pair])
            done += sum(sizes[name] for name in names)
            if progress:
                progress(done, total)

    def share_params(self, other: GraphModule | Module, params: Blob | None = None) -> None:
        """Use the parameters of another executor, in its memory, instead of separate ones.

        Parameters:
            other: an executor of the same process or session.
            params: a blob whose names say which ones; all that ``other`` has, and this graph knows, by default.

        Raises:
            GraphError: ``other`` has no such parameter, or one of another shape or type.
        """
        lender = other.module if isinstance(other, GraphModule) else other
        if params is None:
            self["share_params"](lender)
        else:  # the names alone travel
            names = self._known(read_index(MemorySource(params)))
            self["share_params"](lender, save_params(dict.fromkeys(names, portcall.empty(0, "uint8"))))

    def _has(self, name: str) -> bool:
        return self._inputs.find(name) >= 0

    def _known(self, names: Iterable[str]) -> list[str]:
        """Return the names that are those of inputs, and warn of the others."""
        known = [name for name in names if self._inputs.find(name) >= 0]
        unknown = [name for name in names if self._inputs.find(name) < 0]
        if unknown:
            text = f"the graph has no inputs for {len(unknown)} parameters: {', '.join(map(repr, unknown[:_FEW]))}"
            warnings.warn(text + (", …" if len(unknown) > _FEW else ""), UnexpectedParamsWarning, stacklevel=3)
        return known

    # ---- Running ----

    def run(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Run the graph, with the inputs that are given set first, as by ``set_input``. In a session one round trip.

        Raises:
            GraphError: an input was never set; the message names it.
            RuntimeError: another thread is in the executor; each needs its own, which ``clone`` makes.
        """
        if inputs is not None or named:
            self.set_input(inputs, **named)
        self._run()

    def run_from_inputs(self, inputs: Mapping[str, Any] | None = None, /, **named: Any) -> list[Any]:
        """Run as ``run`` does, and return copies of all outputs on the host, in a session on its host."""
        self.run(inputs, **named)
        copies = [self._empty(value) for value in self._outputs.values]
        for index, copy in enumerate(copies):
            self._get_output(index, copy)
        return copies

    def _empty(self, like: Value) -> Any:
        return self._memory.empty(like)

    def _arguments(self, inputs: Mapping[str, Any]) -> list[Any]:
        """Return indices and tensors in turn, checked, and in the memory of the session where there is one."""
        checked = [self._inputs.check(name, value) for name, value in inputs.items()]
        return [part for index, t in checked for part in (index, self._memory.sent(t))]

    def benchmark(
        self,
        dev: Device | None = None,
        func_name: str = "run",
        repeat: int = 5,
        number: int = 5,
        min_repeat_ms: int | None = None,
        limit_zero_time_iterations: int = DEFAULTS.limit_zero_time_iterations,
        end_to_end: bool = False,
        cooldown_interval_ms: int = DEFAULTS.cooldown_interval_ms,
        repeats_to_cooldown: int = DEFAULTS.repeats_to_cooldown,
        **inputs: Any,
    ) -> BenchmarkResult:
        """Time the graph where it runs, with the inputs that are given set before.

        Parameters:
            dev: the device that is waited for; it must be given. ``device=`` will do, unless an input has that name.
            func_name: what is called, without arguments.
            repeat, number, min_repeat_ms, limit_zero_time_iterations, cooldown_interval_ms, repeats_to_cooldown: see
                ``Module.time_evaluator``.
            end_to_end: time the copies of the inputs that are given, from the host's memory, and of all outputs back
                to it as well.

        Raises:
            TypeError: there is no ``dev``.
            GraphError, RuntimeError: as ``run``.
        """
        if dev is None and "device" in inputs and not self._has("device"):
            dev = inputs.pop("device")
        if dev is None:
            raise TypeError("benchmark() needs the device that is waited for: benchmark(dev, …), or by name dev=")
        timed = self.module.time_evaluator(
            "run_from_inputs" if end_to_end else func_name, dev, number=number, repeat=repeat,
            min_repeat_ms=min_repeat_ms or 0, limit_zero_time_iterations=limit_zero_time_iterations,
            cooldown_interval_ms=cooldown_interval_ms, repeats_to_cooldown=repeats_to_cooldown,
        )  # fmt: skip
        if end_to_end:
            return timed(*HOST, *self._arguments(inputs))
        self.set_input(inputs)
        return timed()

    # ---- Outputs ----

    def get_output(self, key: int | str, out: Any = None) -> Any:
        """Return an output: a view, which the next run overwrites, or ``out`` with a copy."""
        view = self._get_output(self._outputs.index(key))
        return view if out is None else view.copyto(out)

    def set_output_zero_copy(self, key: int | str, value: Any) -> None:
        """Write an output into a tensor's memory from now on; for the conditions see ``set_input_zero_copy``."""
        index, tensor = self._outputs.check(key, value, in_place=True)
        self["set_output_zero_copy"](index, self._in_place(tensor))

    def get_output_index(self, name: str) -> int:
        """Return the index of an output; -1 when there is none of that name."""
        return self._outputs.find(name)

    def get_output_info(self) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        """Return the shapes and the types of the outputs, by name."""
        return self._outputs.info()

    def get_num_outputs(self) -> int:
        """Return how many outputs there are."""
        return len(self._outputs)

    def debug_get_output(self, node: int | str, out: Any = None) -> Any:
        """Refuse: values inside of the graph are those of ``create_debug``.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("debug_get_output: create the executor with portcall.graph.create_debug(…)")

    def _in_place(self, tensor: Any) -> Any:
        return self._memory.in_place(tensor)


def input_names(graph: Graph) -> list[str]:
    """Return the names of the inputs, in the order of their index."""
    return [graph.nodes[number].name for number in graph.inputs]


def output_names(graph: Graph) -> list[str]:
    """Return the names of the outputs: that of the node, followed by ``:index`` where several have the same."""
    owners = graph.owners()
    names = [graph.nodes[owners[entry]].name for entry in graph.outputs]
    times = Counter(names)
    return [name if times[name] == 1 else f"{name}:{index}" for index, name in enumerate(names)]


def _source_of(
    params: Blob | StrPath | Mapping[str, Any],
) -> tuple[Mapping[str, Any], Callable[[str], Any], bool]:
    """Return what has the types and shapes of parameters; what reads one; whether into memory that is not shared."""
    if isinstance(params, (str, os.PathLike)):
        params = ParamFile(params)
    if isinstance(params, ParamFile):
        return params.infos, params.tensor, True
    if isinstance(params, Mapping):
        return params, params.__getitem__, False
    source = MemorySource(params)
    infos = read_index(source)
    return infos, lambda name: make_tensor(source, infos[name]), True


def _batches(sizes: Mapping[str, int], most: int) -> Iterator[list[str]]:
    """Yield the names in lists of at most so many bytes, or of one name."""
    batch: list[str] = []
    nbytes = 0
    for name, size in sizes.items():
        if batch and nbytes + size > most:
            yield batch
            batch, nbytes = [], 0
        batch.append(name)
        nbytes += size
    if batch:
        yield batch


class _Ports:
    """The inputs, or the outputs, of a graph."""

    def __init__(self, what: str, names: Sequence[str], entries: Sequence[int], graph: Graph) -> None:
        self._what = what
        self._names = list(names)
        self.values = [graph.values[entry] for entry in entries]
        self._indices = {name: index for index, name in enumerate(names)}
        if what == "output":  # each has a name with its index, too
            for index, name in enumerate(names):
                self._indices.setdefault(name if name.endswith(f":{index}") else f"{name}:{index}", index)

    def __len__(self) -> int:
        return len(self._names)

    def find(self, name: str) -> int:
        return self._indices.get(name, -1)

    def index(self, key: Any) -> int:
        if isinstance(key, str):
            found = self._indices.get(key)
            if found is None:
                raise self._missing(key)
            return found
        try:
            index = operator.index(key)
        except TypeError:
            got = type(key).__name__
            example = ", as in set_input('data', x) or run(data=x)" if self._what == "input" else ""
            text = f"an {self._what} is meant by its name or index{example}; got {got}"
            raise errors.ArgumentError(text, expected="a name or index", got=got) from None
        if not 0 <= index < len(self._names):
            raise errors.GraphError(f"the graph has no {self._what} {index}; it has {len(self._names)}, from 0")
        return index

    def _missing(self, name: str) -> errors.GraphError:
        near = difflib.get_close_matches(name, self._names, n=3)
        if near:
            hint = f"did you mean {' or '.join(map(repr, near))}?"
        elif len(self._names) <= _FEW:
            hint = f"there {'is' if len(self._names) == 1 else 'are'} {', '.join(map(repr, self._names)) or 'none'}"
        else:
            hint = f"get_{self._what}_info() lists all {len(self._names)}"
        return errors.GraphError(f"the graph has no {self._what} {name!r}; {hint}", node=name)

    def check(self, key: str | int, value: Any, in_place: bool = False) -> tuple[int, Any]:
        """Return the index, and an array as a tensor over its memory; tensors and descriptions are what they are.

        Raises:
            GraphError, ArgumentError: see ``GraphModule.set_input``.
        """
        index = self.index(key)
        name, expected = self._names[index], self.values[index]
        described = isinstance(value, (portcall.Tensor, ParamInfo)) or is_remote(value)
        try:
            tensor = value if described else tensor_over_array(_array_of(value, expected.dtype, in_place))
        except (TypeError, ValueError, OverflowError) as error:
            text = f"the {self._what} {name!r} takes an array of {expected}: {error}"
            raise errors.ArgumentError(text, expected=str(expected), got=type(value).__name__) from error
        if tensor.dtype != expected.dtype:
            raise errors.ArgumentError(
                f"the {self._what} {name!r} is of {expected.dtype}, got {tensor.dtype}: convert it, "
                f"array.astype('{expected.dtype}')", expected=str(expected.dtype), got=str(tensor.dtype),
            )  # fmt: skip
        if tensor.shape != expected.shape:
            same = math.prod(tensor.shape) == math.prod(expected.shape)
            hint = f": array.reshape({expected.shape})" if same else ""
            text = f"the {self._what} {name!r} has shape {expected.shape}, got {tensor.shape}{hint}"
            raise errors.GraphError(text, node=name)
        return index, tensor

    def info(self, keep: Sequence[bool] | None = None) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
        kept = [k for k in range(len(self)) if keep is None or keep[k]]
        shapes = {self._names[k]: self.values[k].shape for k in kept}
        return shapes, {self._names[k]: str(self.values[k].dtype) for k in kept}


def _array_of(value: Any, dtype: DataType, in_place: bool) -> Any:
    """Return an array. Numbers have no type yet, and get the graph's, unless they would lose their fractions."""
    array = array_like(value)
    if array is value:
        return array
    if value is None or in_place:
        raise TypeError(f"{type(value).__name__} has no memory" if in_place else "got None")
    whole = dtype.code in _WHOLE and array.dtype.kind in "fc"
    return array if whole else array_like(value, dtype)


def _plan_of(module: Any) -> Plan:
    try:
        get_plan = module["get_plan"] if isinstance(module, Module) else None
    except errors.FunctionNotFoundError:
        get_plan = None
    if get_plan is None:
        raise ValueError(f"{module!r} is not an executor of a graph; graph.create or lib['default'](device) makes one")
    return decode(get_plan())
