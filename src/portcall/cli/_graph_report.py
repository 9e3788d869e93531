# SPDX-License-Identifier: Apache-2.0
"""What ``portcall inspect`` shows of a model: inputs, outputs, nodes, kernels and memory."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from portcall.bench import format_size
from portcall.cli._errors import CommandError
from portcall.cli._output import LISTED, console, listed, print_facts, print_line, table
from portcall.errors import GraphError

if TYPE_CHECKING:
    from portcall.graph import Graph, MemoryReport, Node, ParamInfo, Plan
    from portcall.inspect import LibraryReport

BUILT_IN = ("__nop", "__copy")
NO_PARAMS = "it is damaged, or another file than that of the parameters"
COLUMNS = ("#", "node", "kernel", "reads", "gives", "memory")


KINDS = {"graph": "a graph", "bundle": "a bundle", "library": "a library with a graph of TVM inside"}


@dataclass
class ModelFile:
    """A graph, or a file that contains one with its kernels.

    Attributes:
        kind: one of KINDS.
        params: what is known of parameters, by name; None if nothing is.
        problems: what is wrong with it, each a sentence.
        origins: what nodes compute of the model that was compiled, by name.
    """

    path: str
    kind: Literal["graph", "bundle", "library"]
    plan: Plan
    params: Mapping[str, ParamInfo] | None
    problems: list[str] = field(default_factory=list)
    origins: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def graph(self) -> Graph:
        return self.plan.graph

    def check(self, library: LibraryReport | None) -> None:
        """Note the kernels that a library lacks, and the parameters that do not fit."""
        from portcall.graph import Value, missing_kernels

        if library is not None:
            missing = sorted(missing_kernels(self.graph, library) or ())
            self.problems += [f"'{library.path}' has no kernel '{name}'" for name in missing]
        known = dict(self.inputs())
        for name, info in (self.params or {}).items():
            value = known.get(name)
            if value is None:
                self.problems.append(f"the graph has no input for the parameter '{name}'")
            elif (value.shape, value.dtype) != (info.shape, info.dtype):
                given = Value(info.shape, info.dtype)
                self.problems.append(f"the parameter '{name}' is {given}, the graph has {value}")

    def calls(self) -> list[Node]:
        return [node for node in self.graph.nodes if node.function and node.function not in BUILT_IN]

    def kernels(self) -> Counter[str]:
        """Return how often each kernel is called."""
        return Counter(node.function for node in self.calls())

    def words(self) -> Counter[str]:
        """Return how often each kernel is called, by the operators of the model that was compiled."""
        return Counter(words_of(node.function, self.origin_of(node)) for node in self.calls())

    def origin_of(self, node: Node) -> Sequence[str]:
        return self.origins.get(node.name, ())

    def inputs(self) -> Iterator[tuple[str, Any]]:
        for number in self.graph.inputs:
            node = self.graph.nodes[number]
            yield node.name, self.graph.values[node.outputs[0]]

    def outputs(self) -> Iterator[tuple[str, Any]]:
        owners = self.graph.owners()
        for entry in self.graph.outputs:
            yield self.graph.nodes[owners[entry]].name, self.graph.values[entry]

    def memory(self) -> MemoryReport:
        from portcall.graph import memory_report

        return memory_report(self.plan, set(self.params or ()))

    def draw(self, path: str) -> None:
        """Write a picture."""
        from portcall.graph import draw

        Path(path).write_text(draw(self.graph, set(self.params or ())), encoding="utf-8")

    # ---- In words ----

    def show(self, everything: bool, svg: str | None) -> None:
        print_facts(self.facts(everything))
        print_line("")
        rows = list(self.rows())
        if not everything:  # there may be more parameters than lines
            rows.sort(key=lambda row: row[2].startswith("("))
        console().print(table(COLUMNS, rows if everything else rows[:LISTED], right=("#",)))
        if not everything and len(rows) > LISTED:
            print_line(f"… and {len(rows) - LISTED} more nodes (--all lists them)")
        if svg:
            print_line(f"picture: {svg}")
        for problem in self.problems:
            print_line(problem, "problem", "yellow")

    def facts(self, everything: bool) -> Iterator[tuple[str, str]]:
        kernels, graph = self.kernels(), self.graph
        views, copies = (sum(node.function == name for node in graph.nodes) for name in BUILT_IN)
        calls = f"{number_of(sum(kernels.values()), 'call')} of {number_of(len(kernels), 'kernel')}"
        counts = [
            number_of(len(graph.inputs), "input or parameter", "inputs and parameters"),
            calls if kernels else "",
            number_of(views, "view") if views else "",
            number_of(copies, "copy between devices", "copies between devices") if copies else "",
        ]
        nodes = f"{number_of(len(graph.nodes), 'node')}: {', '.join(filter(None, counts))}"
        yield (
            "model",
            f"{self.path} ({format_size(os.path.getsize(self.path))}), {KINDS[self.kind]}",
        )
        yield "nodes", nodes
        params = self.params or {}
        inputs = [f"{name}  {value}" for name, value in self.inputs() if name not in params]
        yield "inputs", listed(inputs, everything) or "none"
        yield "outputs", listed([f"{name}  {value}" for name, value in self.outputs()], everything) or "none"
        nbytes = sum(info.nbytes for info in params.values())
        told = "unknown, counted as inputs: pass --params FILE"
        yield (
            "parameters",
            told if self.params is None else f"{len(params)}, {format_size(nbytes)}" if params else "none",
        )
        yield (
            "kernels",
            listed([f"{name}  x {count}" for name, count in self.words().most_common()], everything) or "none",
        )
        report = self.memory()
        for number, device in enumerate(report.devices):
            total = device.parameters + device.inputs + device.arena
            parts = (("parameters", device.parameters), ("inputs", device.inputs), ("activations", device.arena))
            text = f"{device.device}: {format_size(total)} = "
            text += " + ".join(f"{name} {format_size(nbytes)}" for name, nbytes in parts if nbytes or not total)
            text += f"\n  activations: {format_size(device.unshared)} if none shared memory"
            where = f", at '{device.peak_node}'" if device.peak_node else ""
            yield "memory" if number == 0 else "", f"{text}, {format_size(device.peak)} live at one time{where}"

    def rows(self) -> Iterator[tuple[str, ...]]:
        graph, params = self.graph, self.params or {}
        owners, several = graph.owners(), len(self.plan.arenas) > 1
        devices = [device.device for device in self.memory().devices]
        for number, node in enumerate(graph.nodes):
            kind = node.function or ("parameter" if node.name in params else "input")
            reads = " ".join(str(owners[entry]) for entry in node.inputs)
            gives = ", ".join(str(graph.values[entry]) for entry in node.outputs)
            slots = [self.plan.slots[self.plan.slot_of[entry]] for entry in node.outputs]
            places = ("own" if slot.own else f"at {slot.offset}" for slot in slots)
            where = f" on {devices[slots[0].device]}" if several and slots else ""
            yield (
                str(number),
                node.name,
                words_of(kind, self.origin_of(node)) if node.function else f"({kind})",
                reads,
                gives,
                ", ".join(places) + where,
            )

    def to_dict(self) -> dict[str, object]:
        graph, params = self.graph, self.params or {}
        return {
            "path": self.path,
            "kind": self.kind,
            "nbytes": os.path.getsize(self.path),
            "inputs": [value_facts(name, value) for name, value in self.inputs() if name not in params],
            "parameters": [value_facts(name, value) for name, value in self.inputs() if name in params],
            "parameters_known": self.params is not None,
            "outputs": [value_facts(name, value) for name, value in self.outputs()],
            "kernels": dict(self.kernels().most_common()),
            "nodes": [
                {
                    "name": node.name,
                    "function": node.function,
                    "origin": list(self.origin_of(node)),
                    "inputs": list(node.inputs),
                    "outputs": [value_facts("", graph.values[entry]) | {"entry": entry} for entry in node.outputs],
                }
                for node in graph.nodes
            ],
            "memory": self.memory().to_dict(),
            "problems": self.problems,
        }


def origins_of(graph: Graph) -> dict[str, Sequence[str]]:
    """Return what nodes compute of the model that was compiled, by name; plans do not say it."""
    return {node.name: node.origin for node in graph.nodes if node.origin}


def words_of(function: str, origin: Sequence[str]) -> str:
    """Return a kernel in words: the operators that it computes, such as ``Conv + Relu``, or else its name."""
    operators = Counter(each.partition(" ")[0] for each in origin)
    return " + ".join(f"{name} x {count}" if count > 1 else name for name, count in operators.items()) or function


def number_of(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def open_model_file(path: str, params: str | None) -> ModelFile | None:
    """Read a graph, or a file that holds one; None for a library without a graph, or for other files.

    Raises:
        CommandError: the graph, or the file of the parameters, is damaged.
        OSError: a file cannot be read.
    """
    from portcall import graph

    if not os.path.isfile(path):
        return None
    with explained_graph_errors(cause=NO_PARAMS):
        given = graph.load_params_from_file(params).infos if params else {}
    with explained_graph_errors(f"{path}: "), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", graph.StorageWarning)
        kind = graph.file_kind(path)
        if kind == "bundle":
            bundle = graph.read_bundle(path)
            written, planned, known = bundle.graph, bundle.plan, {**bundle.params, **given}
        elif kind == "library":
            embedded = graph.read_embedded(path)
            if embedded is None:
                return None
            written, known = embedded.graph, {**embedded.params, **given}
            planned = graph.plan(written)
        else:
            written, known = graph.Graph.from_json(Path(path).read_bytes()), dict(given)
            planned = graph.plan(written)
    told = known if params or kind != "graph" else None
    return ModelFile(path, kind, planned, told, [str(warning.message) for warning in caught], origins_of(written))


@contextlib.contextmanager
def explained_graph_errors(
    name: str = "", cause: str = "the file is damaged, or made by a newer compiler"
) -> Iterator[None]:
    """Say of a graph, or of parameters, that are damaged what to think of them."""
    try:
        yield
    except GraphError as error:
        text = f"{name}{error}"
        raise CommandError(text, cause, "", kind="GraphError") from error


def value_facts(name: str, value: Any) -> dict[str, object]:
    facts = {"shape": list(value.shape), "dtype": str(value.dtype), "nbytes": value.nbytes}
    return {"name": name, **facts} if name else facts
