# SPDX-License-Identifier: Apache-2.0
"""Where the time of a graph goes: facts for each node, as a table, as a dict for JSON, and as a trace for Perfetto.

Two clocks meet here. *Recorded* is one run in order: when each node began and how long it took, its device waited for.
*Measured* is each node timed on its own, many calls in a row, which is less noisy and blind to what nodes do to each
other's caches.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import struct
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from portcall import Device
from portcall._html import facts_as_html
from portcall.bench import format_duration
from portcall.graph._plan import Plan
from portcall.graph._spec import PLACEHOLDER, Node

if TYPE_CHECKING:
    from rich.table import Table

_WIDTH = 140  # columns of a report as text
_MICRO = 1e6
_COLUMNS = ("#", "node", "function", "time us", "share", "began us", "device", "outputs", "measured us")


@dataclass(frozen=True, slots=True)
class NodeProfile:
    """What one node took, in seconds.

    Attributes:
        index: its number in the graph.
        name: its name.
        function: the kernel, ``__nop`` or ``__copy``; empty for a placeholder.
        device: where it ran, such as ``cuda:0``; for an executor of a session a device of the server.
        inputs, outputs: types and shapes, such as ``float32[4,16]``.
        start: when it began, after the beginning of the recorded run.
        duration: how long it took in that run; 0 for a node that calls nothing.
        measured: seconds a call, each the mean of many; empty if nodes were not timed on their own.
        time: the mean of ``measured``, or ``duration`` where there is none.
        share: its part of the time of all nodes, from 0 to 1.
    """

    index: int
    name: str
    function: str
    device: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    start: float
    duration: float
    measured: tuple[float, ...]
    time: float
    share: float


@dataclass(frozen=True, slots=True)
class KernelProfile:
    """What all calls of one kernel took, in seconds.

    Attributes:
        function: the kernel, ``__nop`` or ``__copy``.
        nodes: those that call it, the slowest first.
        time: of all of them.
        share: their part of the time of all nodes, from 0 to 1.
    """

    function: str
    nodes: tuple[NodeProfile, ...]
    time: float
    share: float


@dataclass(frozen=True)
class Profile:
    """Where the time of a graph went. ``str`` gives a table, the slowest node first.

    Attributes:
        nodes: all nodes, in the order of execution.
    """

    nodes: tuple[NodeProfile, ...]

    @property
    def total(self) -> float:
        """The time of all nodes, in seconds."""
        return math.fsum(node.time for node in self.nodes)

    @property
    def span(self) -> float:
        """How long the recorded run took, from its first node to the end of its last, in seconds."""
        return max((node.start + node.duration for node in self.nodes), default=0.0)

    def by_kernel(self) -> list[KernelProfile]:
        """Return what each kernel took, the slowest first."""
        groups: dict[str, list[NodeProfile]] = {}
        for node in sorted(self.nodes, key=lambda node: -node.time):
            if node.function:
                groups.setdefault(node.function, []).append(node)
        made = (
            KernelProfile(name, tuple(nodes), math.fsum(n.time for n in nodes), math.fsum(n.share for n in nodes))
            for name, nodes in groups.items()
        )
        return sorted(made, key=lambda kernel: -kernel.time)

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as dicts and lists, times in seconds."""
        return {"total_s": self.total, "span_s": self.span, "nodes": [asdict(node) for node in self.nodes]}

    def to_json(self) -> str:
        """Return the facts as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Profile:
        """Read what ``to_json`` wrote.

        Raises:
            ValueError: it is something else.
        """
        try:
            nodes: list[dict[str, Any]] = [
                {name: tuple(value) if isinstance(value, list) else value for name, value in node.items()}
                for node in json.loads(text)["nodes"]
            ]
            return cls(tuple(NodeProfile(**node) for node in nodes))
        except (KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"this is not the JSON of a graph's profile: {error}") from None

    def to_csv(self) -> str:
        """Return a line for each node, in the order of execution, below one with the names; times in seconds."""
        return csv_of([asdict(node) for node in self.nodes], NodeProfile.__slots__)

    def to_trace(self) -> dict[str, Any]:
        """Return the recorded run as ui.perfetto.dev and chrome://tracing show it, a track for each device."""
        tracks = {device: number for number, device in enumerate(dict.fromkeys(n.device for n in self.nodes), start=1)}
        names = [
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": device}}
            for device, tid in tracks.items()
        ]
        calls = [
            {
                "ph": "X",
                "name": node.name,
                "cat": node.function,
                "pid": 1,
                "tid": tracks[node.device],
                "ts": node.start * _MICRO,
                "dur": node.duration * _MICRO,
                "args": {
                    "node": node.index,
                    "function": node.function,
                    "inputs": ", ".join(node.inputs),
                    "outputs": ", ".join(node.outputs),
                    **({"measured_us": node.time * _MICRO} if node.measured else {}),
                },
            }
            for node in self.nodes
            if node.duration
        ]
        return {"displayTimeUnit": "ns", "traceEvents": names + calls}

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Write ``to_trace`` into a file."""
        Path(path).write_text(json.dumps(self.to_trace()), encoding="utf-8")

    def __rich__(self) -> Table:
        several = len({node.device for node in self.nodes}) > 1
        calls = sorted((node for node in self.nodes if node.time), key=lambda node: -node.time)
        rows = [
            (
                str(node.index), node.name, node.function, _micro(node.time), f"{node.share:.1%}", _micro(node.start),
                node.device if several else "", ", ".join(node.outputs),
                " ".join(_micro(each) for each in node.measured) if len(node.measured) > 1 else "",
            )
            for node in calls
        ]  # fmt: skip
        rows.append(("", "total", "", _micro(self.total), "", "", "", "", ""))
        return text_table(_COLUMNS, rows, right=("#", "time us", "share", "began us"))

    def __str__(self) -> str:
        return as_text(self)

    def _repr_html_(self) -> str:
        facts = [("kernels", len(self.by_kernel())), ("nodes", len(self.nodes)), ("time", format_duration(self.total))]
        return facts_as_html("portcall.graph.Profile", facts, str(self))


def profile_of(
    plan: Plan, devices: Sequence[Device], recorded: bytes, measured: Sequence[Sequence[float]] | None = None
) -> Profile:
    """Return the report on a run.

    Parameters:
        devices: those of the plan.
        recorded: what ``profile_run`` returned.
        measured: what ``run_individual`` returned, by node.
    """
    pairs = list(struct.iter_unpack("<dd", memoryview(recorded)[8:]))
    samples = measured or [()] * len(pairs)
    times = [math.fsum(own) / len(own) if own else pair[1] for own, pair in zip(samples, pairs, strict=True)]
    total = math.fsum(times)
    nodes = [
        NodeProfile(
            index, node.name, node.function, str(devices[_work_device(plan, devices, node)]),
            _texts(plan, node.inputs), _texts(plan, node.outputs), start, duration, tuple(own), time,
            time / total if total else 0.0,
        )
        for index, (node, (start, duration), own, time) in enumerate(
            zip(plan.graph.nodes, pairs, samples, times, strict=True)
        )
    ]  # fmt: skip
    return Profile(tuple(nodes))


def debug_trace(profile: Profile) -> dict[str, Any]:
    """Return the recorded run in the form of TVM's debug executor: a B and an E event for each node."""
    events = []
    for node in profile.nodes:
        for phase, time in (("B", node.start), ("E", node.start + node.duration)):
            events.append({"ts": time * _MICRO, "ph": phase, "name": node.name, "pid": 1, "tid": 1,
                           "args": {"node": node.index, "function": node.function}})  # fmt: skip
    return {"displayTimeUnit": "ns", "traceEvents": events}


def _work_device(plan: Plan, devices: Sequence[Device], node: Node) -> int:
    """Return where a node works, as the core has it: on the first of its values' devices that is not the host."""
    if node.op == PLACEHOLDER:
        return plan.slots[plan.slot_of[node.outputs[0]]].device
    numbers = [plan.slots[plan.slot_of[entry]].device for entry in (*node.outputs, *node.inputs)]
    return next((n for n in numbers if devices[n].kind != "cpu"), numbers[0] if numbers else 0)


def _texts(plan: Plan, entries: Iterable[int]) -> tuple[str, ...]:
    return tuple([str(plan.graph.values[entry]) for entry in entries])


def _micro(seconds: float) -> str:
    return f"{seconds * _MICRO:.3f}"


def csv_of(rows: Iterable[dict[str, Any]], columns: Sequence[str]) -> str:
    """Return rows as CSV; several values in one cell have spaces between them."""
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: " ".join(map(str, v)) if isinstance(v, tuple) else v for k, v in row.items()} for row in rows)
    return out.getvalue()


# ---- Tables ----------------------------------------------------------------------------------------------------------


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> Table:
    """Return a table of rich, without columns that are empty."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    kept = [k for k in range(len(columns)) if any(row[k] for row in rows)]
    for k in kept:
        made.add_column(columns[k], justify="right" if columns[k] in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(Text(row[k]) for k in kept))
    return made


def as_text(report: Any) -> str:
    """Return what rich prints for a report, as plain text."""
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=_WIDTH, color_system=None).print(report)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
