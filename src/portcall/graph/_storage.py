# SPDX-License-Identifier: Apache-2.0
"""Which memory the values of a graph can share: liveness, and the packing that follows from it.

Words: an entry is one value of the graph. A *buffer* is memory that one node writes: an entry with all entries that are
reshaped views of it (``__nop``), called by the first of them. It is *live* from the node that writes it to the last one
that reads it, both included, so that no kernel writes where it still reads; results stay live to the end, and
placeholders always are.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Sequence
from typing import Any

from portcall.graph._spec import NOP, PLACEHOLDER, Graph

ALIGNMENT = 64
_MOST_WASTE = 16  # a slot is not shared by sizes that differ more than that
_MOST_CONFLICTS = 1_000_000  # pairs of buffers that are live together; with more of them packing by offsets is too slow


class Buffers:
    """The buffers of a graph; lists have an element for each entry, of which only those of buffers count.

    Attributes:
        root: the buffer of each entry.
        born, last: the first and the last node in whose time it is live. After the last node comes the caller.
        nbytes: sizes.
        devices: the device types in use; the first, None, is the first device.
        device: numbers in ``devices``.
        placeholders, of_calls: the buffers, in the order of their nodes.
    """

    def __init__(self, graph: Graph) -> None:
        count, end = len(graph.values), len(graph.nodes)
        self.graph = graph
        self.root = root = list(range(count))
        self.born = born = [-1] * count
        self.last = last = [end] * count
        self.nbytes = [value.nbytes for value in graph.values]
        self.devices: list[int | None] = list(dict.fromkeys([None, *[value.device_type for value in graph.values]]))
        numbers = {kind: number for number, kind in enumerate(self.devices)}
        self.device = [numbers[value.device_type] for value in graph.values]
        self.placeholders: list[int] = []
        self.of_calls: list[int] = []
        for here, node in enumerate(graph.nodes):
            for entry in node.inputs:
                if last[root[entry]] < here:
                    last[root[entry]] = here
            if node.op == PLACEHOLDER:
                self.placeholders.append(node.outputs.start)
            elif node.function == NOP:
                root[node.outputs.start] = root[node.inputs[0]]
            else:
                for entry in node.outputs:
                    born[entry] = last[entry] = here
                    self.of_calls.append(entry)
        for entry in graph.outputs:
            last[root[entry]] = end

    def faults(self) -> list[str]:
        """Say where the graph's storage ids break a rule: nothing live is overwritten, and a view lies on its value."""
        values, nodes, owners = self.graph.values, self.graph.nodes, self.graph.owners()

        def name(entry: int) -> str:
            return f"node {owners[entry]} {nodes[owners[entry]].name!r}"

        found = []
        for entry, root in enumerate(self.root):
            if values[entry].storage_id != values[root].storage_id:
                ids = f"{values[entry].storage_id} instead of {values[root].storage_id}"
                found.append(f"{name(entry)}, a reshaped view of {name(root)}, has storage id {ids}")
        holders: dict[int | None, int] = {}
        for entry in (*self.placeholders, *self.of_calls):
            storage_id = values[entry].storage_id
            holder = holders.get(storage_id, entry)
            holders[storage_id] = entry
            if self.device[holder] != self.device[entry]:
                found.append(f"{name(holder)} and {name(entry)} share storage id {storage_id} across devices")
            elif holder != entry and self.last[holder] >= self.born[entry]:
                found.append(
                    f"{name(entry)} overwrites {name(holder)} (storage id {storage_id}), {self._needed(holder)}"
                )
        return found

    def _needed(self, entry: int) -> str:
        last, nodes = self.last[entry], self.graph.nodes
        if self.born[entry] < 0:
            return "an input or parameter"
        if last == len(nodes):
            return "a result of the graph"
        if last == self.born[entry]:
            return "an output of the same node"
        return f"which node {last} {nodes[last].name!r} reads"


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def in_a_row(buffers: Buffers, entries: Sequence[int]) -> tuple[dict[int, int], int]:
    offsets, end = {}, 0
    for entry in entries:
        offsets[entry] = end
        end += aligned(buffers.nbytes[entry])
    return offsets, end


def peak(buffers: Buffers, entries: Sequence[int]) -> tuple[int, int]:
    """Return the most bytes that are live at one time, fewer than which no packing takes, and the node of that time."""
    changes = [0] * (len(buffers.graph.nodes) + 2)
    for entry in entries:
        size = aligned(buffers.nbytes[entry])
        changes[buffers.born[entry]] += size
        changes[buffers.last[entry] + 1] -= size
    most = live = when = 0
    for here, change in enumerate(changes):
        live += change
        if live > most:
            most, when = live, here
    return most, when


def best_packing(buffers: Buffers, entries: list[int]) -> tuple[dict[int, int], int]:
    """Return offsets, and where the arena ends: the best of a few ways, tried until one needs no more than the peak.

    Largest first is the usual winner; in the order of time wins on chains; shared slots are quick on any graph.
    """
    nbytes, born, last = buffers.nbytes, buffers.born, buffers.last
    least, _ = peak(buffers, entries)
    best = _by_shared_slots(buffers, entries)
    orders: tuple[Callable[[int], Any], ...] = (
        lambda entry: (-nbytes[entry], born[entry]),
        lambda entry: (born[entry], -nbytes[entry]),
        lambda entry: (born[entry] - last[entry], -nbytes[entry]),
    )
    conflicts = conflicts_of(buffers, entries) if best[1] > least else None
    for order in orders:
        if best[1] == least or conflicts is None:
            break
        best = min(best, packed(buffers, conflicts, sorted(conflicts, key=order)), key=lambda found: found[1])
    return {**dict.fromkeys(entries, 0), **best[0]}, best[1]


def conflicts_of(buffers: Buffers, entries: Sequence[int]) -> dict[int, list[int]] | None:
    """Return, for each buffer that has bytes, those that are live at the same time; None if there are too many."""
    found: dict[int, list[int]] = {}
    live: list[int] = []
    count = 0
    for entry in entries:  # in the order of their birth
        if not buffers.nbytes[entry]:
            continue
        live = [other for other in live if buffers.last[other] >= buffers.born[entry]]
        count += len(live)
        if count > _MOST_CONFLICTS:
            return None
        found[entry] = live.copy()
        for other in live:
            found[other].append(entry)
        live.append(entry)
    return found


def packed(buffers: Buffers, conflicts: dict[int, list[int]], order: Sequence[int]) -> tuple[dict[int, int], int]:
    """Put one buffer after the other into the smallest gap that holds it among those that conflict with it."""
    offsets: dict[int, int] = {}
    stops: dict[int, int] = {}
    for entry in order:
        size = aligned(buffers.nbytes[entry])
        place, smallest, end = -1, 0, 0
        for start, stop in sorted([(offsets[other], stops[other]) for other in conflicts[entry] if other in offsets]):
            gap = start - end
            if gap >= size and (place < 0 or gap < smallest):
                place, smallest = end, gap
            end = max(end, stop)
        offsets[entry] = end if place < 0 else place
        stops[entry] = offsets[entry] + size
    return offsets, max(stops.values(), default=0)


def _by_shared_slots(buffers: Buffers, entries: Sequence[int]) -> tuple[dict[int, int], int]:
    ids = _shared_slots(buffers, entries)
    sizes: dict[int, int] = {}
    for entry, storage_id in ids.items():
        sizes[storage_id] = max(sizes.get(storage_id, 0), aligned(buffers.nbytes[entry]))
    starts, end = {}, 0
    for storage_id, size in sizes.items():
        starts[storage_id] = end
        end += size
    return {entry: starts[storage_id] for entry, storage_id in ids.items()}, end


def _shared_slots(buffers: Buffers, entries: Sequence[int]) -> dict[int, int]:
    """Return a slot's number for each buffer; they come in the order of their birth."""
    sizes: list[int] = []
    free: list[list[tuple[int, int]]] = [[] for _ in buffers.devices]  # (size, slot), the smallest first
    busy: list[tuple[int, int, int]] = []  # (last, slot, device), the first to end first
    slots: dict[int, int] = {}
    for entry in entries:
        device, size = buffers.device[entry], aligned(buffers.nbytes[entry])
        while busy and busy[0][0] < buffers.born[entry]:
            _, slot, there = heapq.heappop(busy)
            bisect.insort(free[there], (sizes[slot], slot))
        mine = free[device]
        fits = bisect.bisect_left(mine, (size,))
        if fits < len(mine) and mine[fits][0] <= _MOST_WASTE * size:
            _, slot = mine.pop(fits)
        elif fits and mine[fits - 1][0] * _MOST_WASTE >= size:
            _, slot = mine.pop(fits - 1)
            sizes[slot] = size
        else:
            slot = len(sizes)
            sizes.append(size)
        heapq.heappush(busy, (buffers.last[entry], slot, device))
        slots[entry] = slot
    return slots


def storage_ids(graph: Graph) -> tuple[int, ...]:
    """Return a storage id for each entry, for executors that know no arenas: each id is one allocation.

    Best fit: a buffer takes the smallest free slot that holds it, or else enlarges the largest free one; slots of quite
    another size are left to others.
    """
    buffers = Buffers(graph)
    ids = _shared_slots(buffers, [*buffers.placeholders, *buffers.of_calls])
    return tuple([ids[root] for root in buffers.root])
