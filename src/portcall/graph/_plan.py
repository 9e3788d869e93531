# SPDX-License-Identifier: Apache-2.0
"""Where each value of a graph lies in memory, and the plan: the bytes that the core runs, as docs/graph.md has them.

A *slot* is a piece of memory that buffers (see _storage) share over time. Slots lie in one arena for each device, at
multiples of 64 bytes; those of placeholders have separate memory.
"""

from __future__ import annotations

import struct
import warnings
import zlib
from dataclasses import dataclass
from typing import Any, Literal

from portcall import DataType, errors, get_global_func
from portcall.graph._spec import CALL, COPY, MOST_BYTES, NOP, PLACEHOLDER, Graph, Node, Value
from portcall.graph._storage import Buffers, aligned, best_packing, in_a_row

Storage = Literal["given", "own", "none"]

MAGIC = 0x004E414C50474350
VERSION = 1

_HEADER = struct.Struct("<QIIQ")
_DEVICE = struct.Struct("<iQ")
_SLOT = struct.Struct("<IIqQQ")
_VALUE = struct.Struct("<IBBHI")
_PAIR = struct.Struct("<II")
_WORD = struct.Struct("<I")

_OPS = {NOP: 2, COPY: 3}


class StorageWarning(UserWarning):
    """The storage ids of a graph would overwrite values that are still needed; memory was planned again."""


@dataclass(frozen=True, slots=True)
class Arena:
    """The one allocation on a device. ``device_type`` None is the first device given to the executor."""

    device_type: int | None
    nbytes: int


@dataclass(frozen=True, slots=True)
class Slot:
    """A piece of memory.

    Attributes:
        device: the arena's number.
        own: whether it is separate memory, a placeholder's, and not a part of the arena.
        storage_id: what the graph calls it, or None.
        offset: where it begins in the arena, in bytes; 0 for separate memory.
        nbytes: its size.
    """

    device: int
    own: bool
    storage_id: int | None
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A graph and its memory. ``slot_of`` has a slot for each entry."""

    graph: Graph
    arenas: tuple[Arena, ...]
    slots: tuple[Slot, ...]
    slot_of: tuple[int, ...]


def plan(graph: Graph, storage: Storage = "given") -> Plan:
    """Plan the memory of a graph.

    Parameters:
        graph: the graph.
        storage: "given" uses the graph's storage ids, if it has them and they are sound; "own" plans again, which packs
            tighter; "none" shares no memory, so that every value can be looked at after a run.

    Warns:
        StorageWarning: the storage ids are not sound; the text names the nodes. Memory is planned again.

    Raises:
        ValueError: ``storage`` is not one of the three.
        GraphError: the values take more memory than can be counted.
    """
    if storage not in ("given", "own", "none"):
        raise ValueError(f"storage {storage!r}: 'given', 'own' or 'none' expected")
    buffers = Buffers(graph)
    if storage == "given" and all(value.storage_id is not None for value in graph.values):
        faults = buffers.faults()
        if not faults:
            return _given(graph, buffers)
        more = f" (and {len(faults) - 3} more such)" if len(faults) > 3 else ""
        warnings.warn(
            f"the storage ids of the graph are wrong: {'; '.join(faults[:3])}{more}. Memory was planned again, "
            "as storage='own' does without this warning",
            StorageWarning,
            stacklevel=3,
        )
    return _arranged(graph, buffers, share=storage != "none")


def _given(graph: Graph, buffers: Buffers) -> Plan:
    """Lay out the slots that the graph names, one after the other."""
    sizes: dict[int, int] = {}
    first: dict[int, int] = {}
    ids = [value.storage_id or 0 for value in graph.values]
    for entry, storage_id in enumerate(ids):
        first.setdefault(storage_id, buffers.root[entry])
        if sizes.setdefault(storage_id, 0) < buffers.nbytes[entry]:
            sizes[storage_id] = buffers.nbytes[entry]
    ends = [0] * len(buffers.devices)
    slots: list[Slot] = []
    for storage_id, nbytes in sizes.items():
        device, own = buffers.device[first[storage_id]], buffers.born[first[storage_id]] < 0
        slots.append(Slot(device, own, storage_id, 0 if own else ends[device], nbytes))
        if not own:
            ends[device] += aligned(nbytes)
    numbers = {storage_id: number for number, storage_id in enumerate(sizes)}
    return _plan_of(graph, buffers, ends, slots, [numbers[storage_id] for storage_id in ids])


def _arranged(graph: Graph, buffers: Buffers, share: bool) -> Plan:
    """Give every buffer its own slot, at an offset where nothing else is live at the same time."""
    offsets = dict.fromkeys(buffers.placeholders, 0)
    ends = []
    for device in range(len(buffers.devices)):
        there = [entry for entry in buffers.of_calls if buffers.device[entry] == device]
        placed, end = best_packing(buffers, there) if share else in_a_row(buffers, there)
        offsets.update(placed)
        ends.append(end)
    numbers: dict[int, int] = {}
    slots: list[Slot] = []
    for root in buffers.root:
        if root not in numbers:
            numbers[root] = len(slots)
            own = buffers.born[root] < 0
            storage_id = graph.values[root].storage_id if own else None  # linked weights are looked up by it
            slots.append(Slot(buffers.device[root], own, storage_id, offsets[root], buffers.nbytes[root]))
    return _plan_of(graph, buffers, ends, slots, [numbers[root] for root in buffers.root])


def _plan_of(graph: Graph, buffers: Buffers, ends: list[int], slots: list[Slot], slot_of: list[int]) -> Plan:
    if max(ends) > MOST_BYTES:
        raise errors.GraphError(f"the values of the graph take {max(ends)} bytes in all, more than 2**56")
    arenas = tuple([Arena(kind, end) for kind, end in zip(buffers.devices, ends, strict=True)])
    return Plan(graph, arenas, tuple(slots), tuple(slot_of))


# ---- bytes -----------------------------------------------------------------------------------------------------------


def encode(plan: Plan) -> bytes:
    """Return the plan as the core reads it."""
    graph = plan.graph
    body = bytearray(_WORD.pack(len(plan.arenas)))
    for arena in plan.arenas:
        body += _DEVICE.pack(-1 if arena.device_type is None else arena.device_type, arena.nbytes)
    body += _WORD.pack(len(plan.slots))
    for slot in plan.slots:
        storage_id = -1 if slot.storage_id is None else slot.storage_id
        body += _SLOT.pack(slot.device, slot.own, storage_id, slot.offset, slot.nbytes)
    body += _WORD.pack(len(graph.values))
    for slot_number, value in zip(plan.slot_of, graph.values, strict=True):
        dtype, shape = value.dtype, value.shape
        body += _VALUE.pack(slot_number, dtype.code, dtype.bits, dtype.lanes, len(shape))
        body += struct.pack(f"<{len(shape)}q", *shape)
    body += _WORD.pack(len(graph.nodes))
    for node in graph.nodes:
        function = node.function
        op = 0 if node.op == PLACEHOLDER else _OPS.get(function, 1)
        body += _PAIR.pack(op, node.flatten_data)
        body += _string(node.name)
        body += _PAIR.pack(len(node.outputs), len(node.inputs))
        body += struct.pack(f"<{len(node.inputs)}I", *node.inputs)
        body += _string(function if op == 1 else "")
    for numbers in (graph.inputs, graph.outputs):
        body += struct.pack(f"<{len(numbers) + 1}I", len(numbers), *numbers)
    return _HEADER.pack(MAGIC, VERSION, zlib.crc32(body), len(body)) + body


def _string(text: str) -> bytes:
    data = text.encode()
    return _WORD.pack(len(data)) + data


def decode(data: bytes) -> Plan:
    """Read a plan, which the core checks.

    The graph lacks what a plan does not store, such as attributes of nodes that no executor needs.

    Raises:
        GraphError: the bytes are not a plan, or break a rule of docs/graph.md; the message says where.
    """
    get_global_func("portcall.graph.check_plan")(data)
    return _Decoder(data).plan()


class _Decoder:
    """Reads the bytes of a plan that obeys all rules."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.place = _HEADER.size

    def plan(self) -> Plan:
        arenas = [Arena(None if kind == -1 else kind, nbytes) for kind, nbytes in self.items(_DEVICE)]
        slots = [
            Slot(device, kind == 1, None if storage_id == -1 else storage_id, offset, nbytes)
            for device, kind, storage_id, offset, nbytes in self.items(_SLOT)
        ]
        slot_of: list[int] = []
        values: list[Value] = []
        for _ in range(self.count()):
            number, code, bits, lanes, ndim = self.read(_VALUE)
            shape = self.read(struct.Struct(f"<{ndim}q"))
            slot = slots[number]
            dtype = DataType(code=code, bits=bits, lanes=lanes)
            slot_of.append(number)
            values.append(Value(shape, dtype, slot.storage_id, arenas[slot.device].device_type))
        nodes: list[Node] = []
        first = 0
        for _ in range(self.count()):
            nodes.append(self.node(first))
            first = nodes[-1].outputs.stop
        columns = ["dltype", "storage_id", "device_index", "shape"]
        if any(value.storage_id is None for value in values):
            columns.remove("storage_id")
        if any(value.device_type is None for value in values):
            columns.remove("device_index")
        graph = Graph(tuple(nodes), tuple(values), self.numbers(), self.numbers(), tuple(columns))
        return Plan(graph, tuple(arenas), tuple(slots), tuple(slot_of))

    def node(self, first: int) -> Node:
        """Read a node whose outputs begin with the entry ``first``."""
        op, flags = self.read(_PAIR)
        name = self.string()
        (outputs,) = self.read(_WORD)
        inputs, function, entries = self.numbers(), self.string(), range(first, first + outputs)
        if op == 0:
            return Node(PLACEHOLDER, name, inputs, entries)
        attrs = {
            "num_outputs": str(outputs),
            "num_inputs": str(len(inputs)),
            "flatten_data": str(flags),
            "func_name": {1: function, 2: NOP, 3: COPY}[op],
        }
        return Node(CALL, name, inputs, entries, attrs)

    def read(self, form: struct.Struct) -> tuple[Any, ...]:
        self.place += form.size
        return form.unpack_from(self.data, self.place - form.size)

    def count(self) -> int:
        return int(self.read(_WORD)[0])

    def items(self, form: struct.Struct) -> list[tuple[Any, ...]]:
        return [self.read(form) for _ in range(self.count())]

    def numbers(self) -> tuple[int, ...]:
        return self.read(struct.Struct(f"<{self.count()}I"))

    def string(self) -> str:
        return str(self.read(struct.Struct(f"{self.count()}s"))[0], "utf-8")
