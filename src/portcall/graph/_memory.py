# SPDX-License-Identifier: Apache-2.0
"""Where the memory of a graph goes: a report on a plan, as facts, as text, and as a dict for JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from portcall import Device
from portcall.graph._plan import Plan
from portcall.graph._storage import Buffers, aligned, peak

_WIDEST = 60  # columns for the names of a slot's nodes


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory on one device, in bytes.

    Attributes:
        device: its kind, such as ``cuda``; "first device" for what the graph gives none.
        parameters: placeholders that are known as parameters.
        inputs: all other placeholders.
        arena: what the kernels write, as it was planned.
        unshared: what the arena would take if no two values shared memory.
        peak: the most that is live in the arena at one time; no plan takes less.
        peak_node: the node at whose time that is; empty if nothing is written.
    """

    device: str
    parameters: int
    inputs: int
    arena: int
    unshared: int
    peak: int
    peak_node: str


@dataclass(frozen=True, slots=True)
class SlotMemory:
    """One slot: where it lies and whose values it holds, in the order of execution.

    Attributes:
        device: as in DeviceMemory.
        kind: "parameter", "input" or "arena".
        offset: in the arena, in bytes; 0 for the other kinds.
        nbytes: its size.
        nodes: names.
    """

    device: str
    kind: str
    offset: int
    nbytes: int
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Where the memory of a graph goes. ``str`` gives a readable text, ``to_dict`` the same facts for JSON."""

    devices: tuple[DeviceMemory, ...]
    slots: tuple[SlotMemory, ...]

    @property
    def nbytes(self) -> int:
        """All of it, in bytes."""
        return sum(each.parameters + each.inputs + each.arena for each in self.devices)

    @property
    def saved(self) -> int:
        """What sharing saves, in bytes."""
        return sum(each.unshared - each.arena for each in self.devices)

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as dicts and lists."""
        return {"nbytes": self.nbytes, "saved": self.saved, **dataclasses.asdict(self)}

    def __str__(self) -> str:
        from portcall.bench import format_size as size

        lines = []
        for each in self.devices:
            where = f", at node {each.peak_node!r}" if each.peak_node else ""
            lines += [
                f"{each.device}: {size(each.parameters + each.inputs + each.arena)}",
                f"  parameters   {size(each.parameters)}",
                f"  inputs       {size(each.inputs)}",
                f"  activations  {size(each.arena)} in one arena; {size(each.unshared)} without sharing,",
                f"               {size(each.peak)} are live at one time{where}",
            ]
        lines.append(f"{len(self.slots)} slots:")
        for number, slot in enumerate(self.slots):
            names = ", ".join(slot.nodes)
            names = names if len(names) <= _WIDEST else names[: _WIDEST - 1] + "…"
            place = f"at {slot.offset:<10}" if slot.kind == "arena" else f"{slot.kind:<13}"
            lines.append(f"  {number:>5}  {slot.device}  {place}  {size(slot.nbytes):>10}  {names}")
        return "\n".join(lines)


def memory_report(plan: Plan, parameters: Collection[str] = ()) -> MemoryReport:
    """Return where the memory of a plan goes.

    Parameters:
        plan: the plan.
        parameters: the names of the placeholders that are parameters, which a graph itself does not tell.
    """
    graph, buffers = plan.graph, Buffers(plan.graph)
    names: list[list[str]] = [[] for _ in plan.slots]
    for node in graph.nodes:
        for entry in node.outputs:
            names[plan.slot_of[entry]].append(node.name)
    devices = [_device_name(arena.device_type) for arena in plan.arenas]
    slots = []
    for slot, nodes in zip(plan.slots, names, strict=True):
        kind = "arena" if not slot.own else "parameter" if nodes[0] in parameters else "input"
        slots.append(SlotMemory(devices[slot.device], kind, slot.offset, slot.nbytes, tuple(nodes)))
    reports = []
    for number, (device, arena) in enumerate(zip(devices, plan.arenas, strict=True)):
        written = [entry for entry in buffers.of_calls if plan.slots[plan.slot_of[entry]].device == number]
        placed = {"parameter": 0, "input": 0}
        for slot, report in zip(plan.slots, slots, strict=True):
            if slot.own and slot.device == number:
                placed[report.kind] += slot.nbytes
        unshared = sum(aligned(buffers.nbytes[entry]) for entry in written)
        most, when = peak(buffers, written)
        peak_node = graph.nodes[when].name if most else ""
        sizes = placed["parameter"], placed["input"], arena.nbytes, unshared, most
        reports.append(DeviceMemory(device, *sizes, peak_node))
    return MemoryReport(tuple(reports), tuple(slots))


def _device_name(device_type: int | None) -> str:
    return "first device" if device_type is None else Device(device_type).kind
