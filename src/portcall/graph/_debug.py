# SPDX-License-Identifier: Apache-2.0
"""Look inside of a graph: the time and the outputs of every node, and dumps of both.

Values are read right after their node has run, before a later node can reuse their memory. So the memory plan is that
of any executor, its times are those of the model in use, and no value that is shown was ever overwritten.
"""

from __future__ import annotations

import difflib
import json
import operator
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import portcall
from portcall import DataType, Device, Module, errors
from portcall._timing import DEFAULTS, TimingOptions
from portcall.graph._module import GraphModule, GraphSource, create
from portcall.graph._params import bytes_of, save_params_to_file
from portcall.graph._plan import Plan, Storage
from portcall.graph._profile import Profile, debug_trace, profile_of
from portcall.graph._spec import Graph

if TYPE_CHECKING:
    from portcall.bench import BenchmarkResult

StrPath = str | os.PathLike[str]
_UNSET = 0  # in what get_input_states returns


def create_debug(
    graph_json: GraphSource,
    lib: Module,
    device: Device | Sequence[Device],
    dump_root: StrPath | None = None,
    *,
    storage: Storage = "given",
) -> GraphModuleDebug:
    """Return an executor whose nodes can be looked at; for the parameters and errors see ``create``.

    Parameters:
        dump_root: the folder in which ``run`` makes the folder of its dumps; a new temporary one by default.
    """
    made = create(graph_json, lib, device, storage=storage)
    return GraphModuleDebug(made.module, made.plan, dump_root=dump_root)


class GraphModuleDebug(GraphModule):
    """An executor to look into, here or in a session. Nodes are meant by index, or by name if one node has it.

    Parameters:
        module, plan: as for ``GraphModule``: any executor will do, ``lib["debug_create"]("default", device)`` too.
        dump_root: as for ``create_debug``.

    Attributes:
        report: what the last ``run`` measured.
        dump_path: where the last ``run`` wrote its dumps. ``exit``, or the end of a ``with`` block, removes it.
    """

    def __init__(self, module: Module, plan: Plan | None = None, *, dump_root: StrPath | None = None) -> None:
        super().__init__(module, plan)
        self.report: Profile | None = None
        self.dump_path: Path | None = None
        self._dump_root = dump_root
        self._temporary = ""  # the root, if we made one
        self._devices = [Device(*pair) for pair in struct.iter_unpack("<qq", self["get_devices"]())]

    def __enter__(self) -> GraphModuleDebug:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.exit()

    # ---- All nodes ----

    def run(
        self,
        inputs: Mapping[str, Any] | None = None,
        /,
        number: int = DEFAULTS.number,
        repeat: int = DEFAULTS.repeat,
        min_repeat_ms: int = 1,
        limit_zero_time_iterations: int = DEFAULTS.limit_zero_time_iterations,
        cooldown_interval_ms: int = DEFAULTS.cooldown_interval_ms,
        repeats_to_cooldown: int = DEFAULTS.repeats_to_cooldown,
        **named: Any,
    ) -> None:
        """Time every node, write the dumps into ``dump_path``, and print the table that ``report`` is.

        The dumps are those of TVM's debug executor: ``_tvmdbg_graph_dump.json``, ``output_tensors.params`` with each
        output of each node, and ``_tvmdbg_execution_trace.json``, which is a recording: nodes began when it says.

        Parameters:
            inputs, named: are set before. An input that has the name of a parameter here goes into ``inputs``.
            number, repeat, …: as for ``run_individual``.

        Raises:
            GraphError: an input was never set; the message names it.
        """
        self.set_input(inputs, **named)
        options = TimingOptions(
            number, repeat, min_repeat_ms, limit_zero_time_iterations, cooldown_interval_ms, repeats_to_cooldown
        )
        measured = self.run_individual(*options)
        self.report = profile_of(self.plan, self._devices, self["profile_run"](), measured)
        self.dump_path = self._dump(self.report)
        print(self.report)
        print(f"\ndumps: {self.dump_path}")

    def profile(self, inputs: Mapping[str, Any] | None = None, /, *, warm_up: int = 3, **named: Any) -> Profile:
        """Record one run, after ``warm_up`` others: when each node began, and how long it took.

        Raises: as ``run``.
        """
        self.set_input(inputs, **named)
        for _ in range(warm_up):
            self["run"]()
        return profile_of(self.plan, self._devices, self["profile_run"]())

    def run_individual(
        self,
        number: int = DEFAULTS.number,
        repeat: int = DEFAULTS.repeat,
        min_repeat_ms: int = DEFAULTS.min_repeat_ms,
        limit_zero_time_iterations: int = DEFAULTS.limit_zero_time_iterations,
        cooldown_interval_ms: int = DEFAULTS.cooldown_interval_ms,
        repeats_to_cooldown: int = DEFAULTS.repeats_to_cooldown,
    ) -> list[list[float]]:
        """Time every node on its own, where it runs, and return for each ``repeat`` times, in seconds a call.

        Nodes that call nothing, such as inputs, have zeros. For the parameters see ``Module.time_evaluator``.
        """
        options = TimingOptions(
            number, repeat, min_repeat_ms, limit_zero_time_iterations, cooldown_interval_ms, repeats_to_cooldown
        )
        data = memoryview(self["run_individual"](*options))[8:]
        times = struct.unpack(f"<{len(data) // 8}d", data)
        return [list(times[start : start + repeat]) for start in range(0, len(times), repeat)]

    def run_individual_node(
        self,
        node: int | str,
        number: int = DEFAULTS.number,
        repeat: int = DEFAULTS.repeat,
        min_repeat_ms: int = DEFAULTS.min_repeat_ms,
        limit_zero_time_iterations: int = DEFAULTS.limit_zero_time_iterations,
        cooldown_interval_ms: int = DEFAULTS.cooldown_interval_ms,
        repeats_to_cooldown: int = DEFAULTS.repeats_to_cooldown,
    ) -> BenchmarkResult:
        """Time one node on its own, with the inputs that it has in a run; zeros if it calls nothing.

        Raises: as ``execute_node``.
        """
        from portcall.bench import BenchmarkResult

        options = TimingOptions(
            number, repeat, min_repeat_ms, limit_zero_time_iterations, cooldown_interval_ms, repeats_to_cooldown
        )
        return BenchmarkResult.from_bytes(self["run_individual_node"](self._node(node), *options))

    # ---- Values of nodes ----

    def execute_node(self, node: int | str) -> None:
        """Run up to a node: on from where the last call stopped, or from the beginning if it has passed the node.

        ``run`` and new inputs start again too, so that what is there is of one set of inputs always.

        Raises:
            GraphError: there is no such node, or several; or an input that is needed so far was never set.
        """
        self["execute_node"](self._node(node))

    def get_node_output(self, node: int | str, output: int = 0, out: Any = None) -> Any:
        """Return a copy of an output of the node that ``execute_node`` was called for last, or ``out`` with it.

        For an executor of a session it is a tensor of the session, on its host.

        Raises:
            GraphError: there is no such node or output.
            ValueError: ``execute_node`` was called for another node, or something has run since.
        """
        copy = self["get_node_output"](*self._place(node, output))
        return copy if out is None else copy.copyto(out)

    def debug_get_output(self, node: int | str, out: Any = None, *, output: int = 0) -> Any:
        """Run up to a node, with the inputs as they are, and return a copy of an output of it, or ``out`` with it.

        Raises: as ``execute_node`` and ``get_node_output``.
        """
        number, output = self._place(node, output)
        copy = self["debug_get_output"](number)
        if output:
            copy = self["get_node_output"](number, output)
        return copy if out is None else copy.copyto(out)

    def _node(self, key: int | str) -> int:
        nodes = self.plan.graph.nodes
        if not isinstance(key, str):
            index = operator.index(key)
            if not 0 <= index < len(nodes):
                raise errors.GraphError(f"the graph has no node {index}; it has {len(nodes)}, from 0")
            return index
        found = [number for number, node in enumerate(nodes) if node.name == key]
        if not found:
            near = difflib.get_close_matches(key, [node.name for node in nodes], n=3)
            hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise errors.GraphError(f"the graph has no node {key!r}{hint}", node=key)
        if len(found) > 1:
            text = f"{key!r} is the name of several nodes, {', '.join(map(str, found))}: say which by its index"
            raise errors.GraphError(text, node=key)
        return found[0]

    def _place(self, key: int | str, output: int) -> tuple[int, int]:
        number = self._node(key)
        node = self.plan.graph.nodes[number]
        if not 0 <= output < len(node.outputs):
            text = f"node {number}, {node.name!r}, has no output {output}; it has {len(node.outputs)}"
            raise errors.GraphError(text, node=node.name)
        return number, output

    # ---- Dumps ----

    def _dump(self, report: Profile) -> Path:
        folder = self.dump_path or self._make_folder()
        graph, trace = debug_graph(self.plan.graph), debug_trace(report)
        (folder / "_tvmdbg_graph_dump.json").write_text(json.dumps(graph, indent=4), encoding="utf-8")
        (folder / "_tvmdbg_execution_trace.json").write_text(json.dumps(trace), encoding="utf-8")
        save_params_to_file(_Outputs(self), folder / "output_tensors.params")
        return folder

    def _make_folder(self) -> Path:
        if self._dump_root is None:
            self._temporary = tempfile.mkdtemp(prefix="tvmdbg_")
        first = self._devices[0]
        root = Path(self._temporary or self._dump_root or "").absolute()
        folder = root / f"_tvmdbg_device_{first.kind.upper()}_{first.device_id}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # it may have been there
        return folder

    def exit(self) -> None:
        """Remove the dumps: the folder ``dump_path``, and the root around it if that is a temporary one."""
        if self.dump_path:
            shutil.rmtree(self._temporary or self.dump_path)
        self.dump_path, self._temporary = None, ""


def debug_graph(graph: Graph) -> dict[str, Any]:
    """Return a graph as TVM's debug executor writes it: each node with its kernel as ``op``, the names of those that it
    reads, and the type and shape of its first output.
    """
    document: dict[str, Any] = json.loads(graph.to_json())
    for node, written in zip(graph.nodes, document["nodes"], strict=True):
        written["op"] = node.function or "param"
        written["inputs"] = [graph.nodes[source].name for source, *_ in written["inputs"]]
        first = graph.values[node.outputs.start] if node.outputs else None
        written["attrs"] = {**node.attrs, "T": f"type: {first.dtype if first else ''}"}
        written["shape"] = list(first.shape) if first else []
    return document


class _Outputs(Mapping[str, Any]):
    """Each output of each node by the name that dumps give it. Read in order, each node runs once, and one is held."""

    def __init__(self, executor: GraphModule) -> None:
        self._executor = executor
        self._places = {
            f"{executor.plan.graph.nodes[node].name}____topo-index:{node}____output-num:{output}": (node, output)
            for node, output in known_values(executor)
        }

    def __getitem__(self, name: str) -> portcall.Tensor:
        return without_lanes(value_of(self._executor, *self._places[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def without_lanes(tensor: portcall.Tensor) -> portcall.Tensor:
    """Return elements that are vectors as a last axis, for formats that have none; any other tensor as it is."""
    dtype = tensor.dtype
    if dtype.lanes == 1:
        return tensor
    made = portcall.empty((*tensor.shape, dtype.lanes), DataType(code=dtype.code, bits=dtype.bits))
    bytes_of(made)[:] = bytes_of(tensor)
    return made


def known_values(executor: GraphModule) -> Iterator[tuple[int, int]]:
    """Yield node and output of each value that there is: all but unused inputs, which were never set."""
    graph = executor.plan.graph
    states = executor["get_input_states"]()
    unset = {node for node, state in zip(graph.inputs, states, strict=True) if state == _UNSET}
    for number, node in enumerate(graph.nodes):
        for output in range(len(node.outputs)):
            if number not in unset:
                yield number, output


def value_of(executor: GraphModule, node: int, output: int) -> portcall.Tensor:
    """Return a copy, here, of an output of a node. Its outputs are asked for in order: the first one runs the node."""
    if output == 0:
        executor["execute_node"](node)
    copy = executor["get_node_output"](node, output)
    if isinstance(copy, portcall.Tensor):
        return copy
    fetched: portcall.Tensor = copy.copyto(portcall.empty(copy.shape, copy.dtype))
    return fetched
