# SPDX-License-Identifier: Apache-2.0
"""Where each value of a graph lies in memory, and the plan: the bytes that the core runs, as docs/graph.md has them.

A *slot* is a piece of memory that buffers (see _storage) share over time. Slots lie in one arena for each device, at
multiples of 64 bytes; those of placeholders have memory of their own.
"""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from portcall import DataType, errors
from portcall.graph._spec import CALL, COPY, MOST_BYTES, NOP, PLACEHOLDER, Graph, Node, Value, shape_flaw, type_flaw
from portcall.graph._storage import ALIGNMENT, Buffers, aligned, best_packing, in_a_row

Storage = Literal["given", "own", "none"]
_T = TypeVar("_T")

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
        own: whether it is memory of its own, a placeholder's, and not a part of the arena.
        storage_id: what the graph calls it, or None.
        offset: where it begins in the arena, in bytes; 0 for memory of its own.
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
    """Give every buffer a slot of its own, at an offset where nothing else is live at the same time."""
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
    """Read a plan. The graph lacks what a plan does not store, such as attributes of nodes that no executor needs.

    Raises:
        GraphError: the bytes are not a plan, or break a rule of docs/graph.md; ``path`` says where.
    """
    if len(data) < _HEADER.size:
        raise errors.GraphError(f"not a plan: {len(data)} bytes, a header has {_HEADER.size}")
    magic, version, checksum, size = _HEADER.unpack_from(data)
    body = data[_HEADER.size :]
    if magic != MAGIC:
        raise errors.GraphError(f"not a plan: it begins with {bytes(data[:8])!r}")
    if version != VERSION:
        raise errors.GraphError(f"a plan of version {version}; this portcall reads version {VERSION}")
    if size != len(body):
        raise errors.GraphError(f"a plan of {size} bytes after its header, but there are {len(body)}")
    if checksum != zlib.crc32(body):
        raise errors.GraphError("the plan is damaged: its checksum is wrong")
    return _Decoder(body).plan()


class _Decoder:
    """Reads the body of a plan."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.place = 0

    def plan(self) -> Plan:
        arenas = self.items("devices", self.arena)
        if not arenas or arenas[0].device_type is not None:
            raise _wrong("devices", "the first device, of type -1, is missing")
        self.arenas = arenas
        self.slots = self.items("slots", self.slot)
        self.slot_of: list[int] = []
        self.values = self.items("entries", self.value)
        self.placed: set[int] = set()  # slots of placeholders
        self.writers: list[int] = []  # the node of each entry so far
        self.nodes: list[Node] = []
        for here in range(self.count("nodes")):
            self.nodes.append(self.node(f"nodes[{here}]", here))
        if len(self.writers) != len(self.values):
            raise _wrong("nodes", f"they own {len(self.writers)} entries, but there are {len(self.values)}")
        inputs, outputs = self.numbers("inputs", len(self.nodes)), self.numbers("heads", len(self.values))
        self.check_inputs(inputs)
        if self.place != len(self.body):
            raise _wrong("", f"{len(self.body) - self.place} bytes after its end")
        columns = ["dltype", "storage_id", "device_index", "shape"]
        if any(value.storage_id is None for value in self.values):
            columns.remove("storage_id")
        if any(value.device_type is None for value in self.values):
            columns.remove("device_index")
        graph = Graph(tuple(self.nodes), tuple(self.values), inputs, outputs, tuple(columns))
        return Plan(graph, tuple(arenas), tuple(self.slots), tuple(self.slot_of))

    # Each of these reads one thing; ``at`` is where it stands.

    def read(self, form: struct.Struct, at: str) -> tuple[Any, ...]:
        if form.size > len(self.body) - self.place:
            raise _wrong(at, f"the plan ends at byte {_HEADER.size + len(self.body)}, in the middle of it")
        self.place += form.size
        return form.unpack_from(self.body, self.place - form.size)

    def count(self, at: str) -> int:
        """Read how many things come. Each takes a byte or more, so that there cannot be more of them than bytes."""
        (count,) = self.read(_WORD, at)
        if count > len(self.body) - self.place:
            raise _wrong(at, f"{count} of them, but there are only {len(self.body) - self.place} more bytes")
        return int(count)

    def items(self, at: str, one: Callable[[str], _T]) -> list[_T]:
        return [one(f"{at}[{k}]") for k in range(self.count(at))]

    def numbers(self, at: str, stop: int) -> tuple[int, ...]:
        found = self.read(struct.Struct(f"<{self.count(at)}I"), at)
        for k, number in enumerate(found):
            if number >= stop:
                raise _wrong(f"{at}[{k}]", f"{number}; there are {stop}")
        return found

    def string(self, at: str) -> str:
        data = self.read(struct.Struct(f"{self.count(at)}s"), at)[0]
        try:
            return str(data, "utf-8")
        except UnicodeDecodeError as error:
            raise _wrong(at, f"not UTF-8: {error}") from None

    def arena(self, at: str) -> Arena:
        kind, nbytes = self.read(_DEVICE, at)
        if kind < 1 and (kind != -1 or at != "devices[0]"):
            raise _wrong(at, f"{kind} is not a DLPack device type")
        if nbytes > MOST_BYTES:
            raise _wrong(at, f"an arena of {nbytes} bytes")
        return Arena(None if kind == -1 else kind, nbytes)

    def slot(self, at: str) -> Slot:
        device, kind, storage_id, offset, nbytes = self.read(_SLOT, at)
        if device >= len(self.arenas):
            raise _wrong(at, f"device {device}; there are {len(self.arenas)}")
        if kind > 1 or storage_id < -1:
            raise _wrong(at, f"kind {kind} and storage id {storage_id}; kinds are 0 and 1, ids go from -1")
        if offset % ALIGNMENT or (kind == 1 and offset):
            raise _wrong(at, f"offset {offset}: a multiple of {ALIGNMENT} expected, and 0 for memory of its own")
        if nbytes > MOST_BYTES or offset > MOST_BYTES:
            raise _wrong(at, f"{nbytes} bytes at {offset}")
        if kind == 0 and offset + nbytes > self.arenas[device].nbytes:
            raise _wrong(at, f"it ends at {offset + nbytes}, its arena at {self.arenas[device].nbytes}")
        return Slot(device, kind == 1, None if storage_id == -1 else storage_id, offset, nbytes)

    def value(self, at: str) -> Value:
        number, code, bits, lanes, ndim = self.read(_VALUE, at)
        if number >= len(self.slots):
            raise _wrong(at, f"slot {number}; there are {len(self.slots)}")
        shape = self.read(struct.Struct(f"<{ndim}q"), at)
        try:
            dtype = DataType(code=code, bits=bits, lanes=lanes)
        except ValueError as error:
            raise _wrong(at, str(error)) from None
        flaw = type_flaw(dtype) or shape_flaw(shape, dtype)
        if flaw or any(extent < 0 for extent in shape):
            raise _wrong(at, flaw or f"shape {list(shape)}: a negative extent")
        slot = self.slots[number]
        value = Value(shape, dtype, slot.storage_id, self.arenas[slot.device].device_type)
        if value.nbytes > slot.nbytes:
            raise _wrong(at, f"{value.nbytes} bytes, in slot {number} of {slot.nbytes}")
        self.slot_of.append(number)
        return value

    def node(self, at: str, here: int) -> Node:
        op, flags = self.read(_PAIR, at)
        name = self.string(f"{at}.name")
        outputs = self.read(_WORD, at)[0]
        inputs = self.numbers(f"{at}.inputs", len(self.writers))
        function = self.string(f"{at}.function")
        first = len(self.writers)
        if op > 3 or flags > 1 or (op == 1) != bool(function):
            raise _wrong(at, f"op {op}, flags {flags}, function {function!r}")
        if first + outputs > len(self.values):
            raise _wrong(at, f"{outputs} outputs from entry {first}; there are {len(self.values)} entries")
        self.writers += [here] * outputs
        self.check_memory(at, op, inputs, range(first, first + outputs))
        if op == 0:
            return Node(PLACEHOLDER, name, inputs, range(first, first + outputs))
        attrs = {
            "num_outputs": str(outputs),
            "num_inputs": str(len(inputs)),
            "flatten_data": str(flags),
            "func_name": {1: function, 2: NOP, 3: COPY}[op],
        }
        return Node(CALL, name, inputs, range(first, first + outputs), attrs)

    def check_memory(self, at: str, op: int, inputs: Sequence[int], outputs: range) -> None:
        slots = [self.slot_of[entry] for entry in outputs]
        own = [self.slots[slot].own for slot in slots]
        if op == 0 and (inputs or own != [True] or slots[0] in self.placed):
            raise _wrong(at, "a placeholder has no inputs and one output, in a slot of its own")
        if op == 0:
            self.placed.add(slots[0])
        if op in (1, 3) and any(own):
            raise _wrong(at, "a call writes into the memory of a placeholder")
        if op in (2, 3):
            if len(inputs) != 1 or len(outputs) != 1:
                raise _wrong(at, f"{NOP} and {COPY} have one input and one output")
            source, target = inputs[0], outputs[0]
            if self.values[source].nbytes != self.values[target].nbytes:
                raise _wrong(at, f"{self.values[source].nbytes} bytes to {self.values[target].nbytes}")
            if op == 2 and self.slot_of[source] != self.slot_of[target]:
                raise _wrong(at, f"{NOP} from slot {self.slot_of[source]} to slot {self.slot_of[target]}")

    def check_inputs(self, inputs: Sequence[int]) -> None:
        placeholders = [number for number, node in enumerate(self.nodes) if node.op == PLACEHOLDER]
        if sorted(inputs) != placeholders:
            raise _wrong("inputs", f"nodes {list(inputs)}, but the placeholders are {placeholders}")
        names = [self.nodes[number].name for number in inputs]
        if len(set(names)) != len(names):
            raise _wrong("inputs", f"two of one name among {names}")


def _wrong(at: str, reason: str) -> errors.GraphError:
    return errors.GraphError(f"wrong plan: {at}{': ' if at else ''}{reason}", path=at)
