# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="arg-type"
"""Planned memory never holds two values that are both needed; a plan is bytes and back; wrong bytes are refused."""

from __future__ import annotations

import dataclasses
import itertools
import json
import struct
import warnings
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import portcall
from graph.interpreter import interpret, random_graphs, random_inputs
from portcall import errors
from portcall.graph import GraphBuilder, StorageWarning, memory_report
from portcall.graph._plan import Plan, decode, encode, plan
from portcall.graph._spec import Graph
from portcall.graph._storage import Buffers, best_packing, conflicts_of, in_a_row, packed, peak, storage_ids

STORAGE = ["given", "own", "none"]


# ---- an independent judge --------------------------------------------------------------------------------------------


class Overwritten(Exception):
    """A value that is still needed was written over."""


def run_on_labels(planned: Plan) -> None:
    """Run a plan on memory whose every byte says which entry was written there last; each is looked at when it is read.

    Knows nothing of lifetimes: a value is needed when a node reads it, or the caller does at the end.
    """
    graph = planned.graph
    arenas = [np.full(arena.nbytes, -1) for arena in planned.arenas]
    own = [np.full(slot.nbytes, -1) for slot in planned.slots]

    def memory(entry: int) -> Any:
        number = planned.slot_of[entry]
        slot = planned.slots[number]
        where = own[number] if slot.own else arenas[slot.device][slot.offset : slot.offset + slot.nbytes]
        nbytes = graph.values[entry].nbytes
        assert len(where) == slot.nbytes >= nbytes, "the slot is too small, or goes past the end of its arena"
        assert planned.arenas[slot.device].device_type == graph.values[entry].device_type, "the wrong device"
        return where[:nbytes]

    def write(entry: int, label: int) -> None:
        memory(entry)[:] = label

    def check(entry: int, label: int, reader: str) -> None:
        if (memory(entry) != label).any():
            raise Overwritten(f"entry {entry} was written over before {reader} read it")

    label = list(range(len(graph.values)))
    placeholders = [graph.nodes[number].outputs[0] for number in graph.inputs]
    for entry in placeholders:
        write(entry, entry)
    for node in graph.nodes:
        if node.function == "__nop":
            label[node.outputs[0]] = label[node.inputs[0]]
            check(node.outputs[0], label[node.inputs[0]], "the view")
            continue
        if node.function:
            for entry in node.outputs:
                write(entry, entry)
        for entry in (*node.inputs, *node.outputs):  # after it wrote: a kernel may read and write in any order
            check(entry, label[entry], node.name)
    for entry in (*graph.outputs, *placeholders):
        check(entry, label[entry], "the caller")


def is_sound(planned: Plan) -> bool:
    try:
        run_on_labels(planned)
    except Overwritten:
        return False
    return True


def test_judge_of_plans_sees_an_overwritten_value() -> None:
    b = GraphBuilder()
    x = b.input("x", (16,))
    y = b.call("relu", [x], (16,))
    z = b.call("relu", [y], (16,))
    b.output(b.call("add", [y, z], (16,)))
    planned = plan(b.graph(), "none")
    run_on_labels(planned)
    shared = (*planned.slot_of[:2], planned.slot_of[1], planned.slot_of[3])
    assert not is_sound(dataclasses.replace(planned, slot_of=shared))


@st.composite
def any_graphs(draw: st.DrawFn, most_nodes: int = 25, smallest: int = 0) -> GraphBuilder:
    """Graphs of values of very different sizes on two devices; what the calls would compute does not matter."""
    b = GraphBuilder("cpu")
    places = st.sampled_from(["cpu", "ext_dev"])
    sizes = st.tuples(st.sampled_from([smallest, 1, 15, 16, 17, 40, 200]))
    values = [b.input("x", (16,)), b.input("w", (40,), device="ext_dev")]
    for number in range(draw(st.integers(1, most_nodes))):
        device = portcall.device(draw(places))
        there = [value for value in values if value.device_type == device.device_type]
        x = draw(st.sampled_from(values))
        what = draw(st.sampled_from(["call", "call", "call", "copy", "view", "input"]))
        if what == "call":
            sources = draw(st.lists(st.sampled_from(there), max_size=3))
            values.extend(b.call("f", sources, draw(st.lists(sizes, min_size=1, max_size=3)), device=device))
        elif what == "input":
            values.append(b.input(f"x{number}", draw(sizes), device=device))
        else:
            values.append(b.reshape(x, (-1, 1) if x.shape[0] else (0, 1)) if what == "view" else b.copy(x, device))
    b.output(*draw(st.lists(st.sampled_from(values), min_size=1, max_size=4)))
    return b


# ---- planning --------------------------------------------------------------------------------------------------------


@given(any_graphs(), st.sampled_from(STORAGE))
def test_plan_never_overwrites_a_needed_value(builder: GraphBuilder, storage: Any) -> None:
    planned = plan(builder.graph(), storage)
    run_on_labels(planned)
    assert planned.arenas[0].nbytes == 0  # nothing is left to "the first device"


@given(any_graphs())
def test_plan_honours_storage_ids_of_the_builder(builder: GraphBuilder) -> None:
    graph = Graph.from_json(builder.to_json())
    planned = plan(graph)  # any warning is an error
    run_on_labels(planned)
    assert [planned.slots[slot].storage_id for slot in planned.slot_of] == [v.storage_id for v in graph.values]
    pieces = sorted((s.device, s.offset, s.offset + s.nbytes) for s in planned.slots if not s.own and s.nbytes)
    for (device, _, stop), (following, start, _) in pairwise(pieces):
        assert device != following or stop <= start  # slots that were given do not overlap
    assert all(slot.offset % 64 == 0 for slot in planned.slots)


@given(any_graphs(smallest=1), st.data())
def test_plan_honours_storage_ids_exactly_if_sound(builder: GraphBuilder, data: Any) -> None:
    graph = with_ids(builder.graph(), data.draw)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        planned = plan(graph)
    run_on_labels(planned)
    sound = one_device_each(graph) and is_sound(slots_as_given(graph))
    assert [warning.category for warning in caught] == ([] if sound else [StorageWarning])


def with_ids(graph: Graph, draw: Callable[..., Any]) -> Graph:
    """Return the graph with sound storage ids, one or a few of which are changed at random."""
    ids = list(storage_ids(graph))
    for _ in range(draw(st.integers(0, 3))):
        ids[draw(st.integers(0, len(ids) - 1))] = draw(st.sampled_from(ids))
    values = [dataclasses.replace(v, storage_id=k) for v, k in zip(graph.values, ids, strict=True)]
    return dataclasses.replace(graph, values=tuple(values), columns=(*graph.columns, "storage_id"))


def one_device_each(graph: Graph) -> bool:
    return len({v.storage_id for v in graph.values}) == len({(v.storage_id, v.device_type) for v in graph.values})


def slots_as_given(graph: Graph) -> Plan:
    """Return the plan that the graph's storage ids ask for, whether it is sound or not; each is memory of its own."""
    ids = sorted({v.storage_id for v in graph.values if v.storage_id is not None})
    base = plan(graph, "none")
    slots = []
    for storage_id in ids:
        members = [e for e, v in enumerate(graph.values) if v.storage_id == storage_id]
        first = base.slots[base.slot_of[members[0]]]
        nbytes = max(graph.values[e].nbytes for e in members)
        slots.append(dataclasses.replace(first, own=True, offset=0, nbytes=nbytes))
    return dataclasses.replace(base, slots=tuple(slots), slot_of=tuple(ids.index(v.storage_id) for v in graph.values))


@given(any_graphs(most_nodes=40))
def test_plan_arena_size_is_between_live_size_and_shared_slots(builder: GraphBuilder) -> None:
    graph = builder.graph()
    buffers = Buffers(graph)
    slots, unshared = plan(Graph.from_json(builder.to_json())), plan(graph, "none")
    for number, arena in enumerate(plan(graph, "own").arenas):
        there = [entry for entry in buffers.of_calls if buffers.device[entry] == number]
        assert peak(buffers, there)[0] <= arena.nbytes <= slots.arenas[number].nbytes <= unshared.arenas[number].nbytes


@given(random_graphs())
def test_plan_does_not_change_values(builder: GraphBuilder) -> None:
    graph = builder.graph()
    inputs = random_inputs(graph, 0)
    for again in (Graph.from_json(builder.to_json()), decode(encode(plan(graph, "own"))).graph):
        for one, other in zip(interpret(graph, inputs), interpret(again, inputs), strict=True):
            np.testing.assert_array_equal(one, other)


@given(any_graphs(), st.randoms(use_true_random=False))
def test_best_packing_keeps_live_buffers_apart(builder: GraphBuilder, random: Any) -> None:
    buffers = Buffers(builder.graph())
    conflicts = conflicts_of(buffers, buffers.of_calls)
    assert conflicts is not None
    order = list(conflicts)
    random.shuffle(order)
    offsets, end = packed(buffers, conflicts, order)
    assert offsets.keys() == {entry for entry in buffers.of_calls if buffers.nbytes[entry]}
    for one, first in offsets.items():
        assert first % 64 == 0
        assert first + buffers.nbytes[one] <= end
        for other in conflicts[one]:
            apart = first + buffers.nbytes[one] <= offsets[other] or offsets[other] + buffers.nbytes[other] <= first
            assert apart


def chain(length: int, shape: tuple[int, ...] = (3, 5)) -> GraphBuilder:
    b = GraphBuilder()
    x = b.input("x", shape)
    for _ in range(length):
        x = b.call("relu", [x], shape)
    b.output(x)
    return b


def test_plan_of_a_chain_needs_two_buffers() -> None:
    assert plan(chain(9).graph()).arenas[0].nbytes == 2 * 64
    assert len(set(storage_ids(chain(9).graph()))) == 3  # and the input's


def fires() -> GraphBuilder:
    """Modules of squeezenet: a small value, two larger ones from it, which are joined."""
    b = GraphBuilder()
    x = b.input("x", (64, 56, 56))
    for squeeze, expand in [(16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (64, 256)]:
        s = b.call("conv", [x], (squeeze, 56, 56))
        left, right = b.call("conv", [s], (expand, 56, 56)), b.call("conv", [s], (expand, 56, 56))
        x = b.call("concat", [left, right], (2 * expand, 56, 56))
    b.output(b.call("pool", [x], (1000,)))
    return b


def residuals() -> GraphBuilder:
    """Blocks of resnet: narrow, wide, and the sum with what came in."""
    b = GraphBuilder()
    x = b.input("x", (64, 56, 56))
    for width, side in [(64, 56), (128, 28), (256, 14), (512, 7)]:
        for _ in range(3):
            y = b.call("conv", [b.call("conv", [x], (width, side, side))], (width, side, side))
            y = b.call("conv", [y], (4 * width, side, side))
            x = b.call("add", [y, b.call("conv", [x], (4 * width, side, side))], (4 * width, side, side))
    b.output(b.reshape(b.call("pool", [x], (2048, 1, 1)), (1, 2048)))
    return b


def u_net() -> GraphBuilder:
    """A value of each depth waits for the way back."""
    b = GraphBuilder()
    x = b.input("x", (16, 128, 128))
    waiting = []
    for depth in range(4):
        waiting.append(b.call("conv", [x], (16 << depth, 128 >> depth, 128 >> depth)))
        x = b.call("pool", [waiting[-1]], (16 << depth, 64 >> depth, 64 >> depth))
    for y in reversed(waiting):
        x = b.call("conv", [b.call("up", [x], y.shape), y], y.shape)
    b.output(x)
    return b


@pytest.mark.parametrize("build", [fires, residuals, u_net])
def test_plan_of_networks_is_as_large_as_what_is_live(build: Callable[[], GraphBuilder]) -> None:
    graph = build().graph()
    buffers = Buffers(graph)
    offsets, end = best_packing(buffers, buffers.of_calls)
    assert end == peak(buffers, buffers.of_calls)[0]
    assert end < in_a_row(buffers, buffers.of_calls)[1] / 2
    assert offsets.keys() == set(buffers.of_calls)


def test_plan_shares_slots_if_too_many_values_are_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("portcall.graph._storage._MOST_CONFLICTS", 3)
    planned = plan(fires().graph())
    run_on_labels(planned)
    assert planned.arenas[0].nbytes == plan(Graph.from_json(fires().to_json())).arenas[0].nbytes


def test_plan_placeholder_memory_is_its_own_with_views() -> None:
    b = GraphBuilder()
    x = b.input("x", (4, 4))
    view = b.reshape(x, (16,))
    b.output(view, b.call("relu", [view], (16,)), x)
    for storage in STORAGE:
        planned = plan(b.graph(), storage)
        assert planned.slot_of[0] == planned.slot_of[1]
        assert planned.slots[planned.slot_of[0]].own
        assert not planned.slots[planned.slot_of[2]].own
        run_on_labels(planned)


def test_plan_without_sharing_keeps_every_value() -> None:
    planned = plan(chain(5).graph(), "none")
    assert len({slot.offset for slot in planned.slots if not slot.own}) == 5


def test_plan_empty_values_take_no_memory() -> None:
    b = GraphBuilder()
    x = b.input("x", (0, 4))
    b.output(b.call("relu", [x], (0, 4)), b.call("relu", [x], (0, 4)))
    for storage in STORAGE:
        planned = plan(b.graph(), storage)
        assert planned.arenas[0].nbytes == 0
        assert decode(encode(planned)).slot_of == planned.slot_of


def test_plan_empty_value_in_a_placeholder_gets_its_own_storage() -> None:
    b = GraphBuilder()
    b.output(b.call("f", [b.input("x", (4,))], (0,)))
    document = json.loads(b.to_json())
    document["attrs"]["storage_id"] = ["list_int", [0, 0]]
    with pytest.warns(StorageWarning):
        decode(encode(plan(Graph.from_json(json.dumps(document)))))


def test_plan_refuses_other_storage_options() -> None:
    with pytest.raises(ValueError, match="'given', 'own' or 'none' expected"):
        plan(chain(1).graph(), "shared")


def test_plan_refuses_sizes_beyond_64_bits() -> None:
    b = GraphBuilder()
    x = b.input("x", (2**53,))
    b.output(*[b.call("relu", [x], (2**53,)) for _ in range(3)])
    with pytest.raises(errors.GraphError, match=r"more than 2\*\*56"):
        plan(b.graph())


# ---- storage ids with bugs -------------------------------------------------------------------------------------------


def given_ids(*ids: int) -> Graph:
    """x -> a -> b (reads x too) -> view of b -> c (reads a); results: c."""
    b = GraphBuilder()
    x = b.input("x", (2, 8))
    a = b.call("relu", [x], (2, 8), name="a")
    sum_ = b.call("add", [a, x], (2, 8), name="b")
    view = b.reshape(sum_, (16,), name="view")
    b.output(b.call("add_flat", [a, view], (16,), name="c", flatten_data=True))
    document = json.loads(b.to_json())
    document["attrs"]["storage_id"] = ["list_int", list(ids)]
    return Graph.from_json(json.dumps(document))


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ((0, 0, 2, 2, 3), "node 1 'a' overwrites node 0 'x' (storage id 0), an input or parameter"),
        ((0, 1, 1, 1, 3), "node 2 'b' overwrites node 1 'a' (storage id 1), which node 4 'c' reads"),
        ((0, 1, 2, 2, 1), "node 4 'c' overwrites node 1 'a' (storage id 1), which node 4 'c' reads"),
        ((0, 1, 2, 2, 2), "node 4 'c' overwrites node 2 'b' (storage id 2), which node 4 'c' reads"),
        ((0, 1, 2, 3, 4), "node 3 'view', a reshaped view of node 2 'b', has storage id 3 instead of 2"),
        ((0, 1, 0, 0, 3), "node 2 'b' overwrites node 0 'x' (storage id 0), an input or parameter"),
        ((0, 0, 0, 0, 0), "(and 1 more such)"),
    ],
)
def test_plan_unsound_storage_ids_warn_with_the_nodes(ids: tuple[int, ...], words: str) -> None:
    with pytest.warns(StorageWarning) as caught:
        planned = plan(given_ids(*ids))
    assert words in str(caught[0].message) or len(set(ids)) == 1
    assert "Memory was planned again" in str(caught[0].message)
    run_on_labels(planned)
    assert [slot.storage_id for slot in planned.slots] == [0, None, None, None]  # linked weights are found by theirs
    plan(decode(encode(planned)).graph)  # no more warnings: it has no storage ids of calls


def test_plan_replaces_storage_ids_of_two_devices() -> None:
    b = GraphBuilder("cpu")
    x = b.input("x", (16,))
    there = b.copy(b.call("relu", [b.call("relu", [x], (16,))], (16,)), "cuda", name="there")
    b.output(b.call("relu", [there], (16,)))
    document = json.loads(b.to_json())
    document["attrs"]["storage_id"][1] = [0, 1, 2, 1, 3]
    words = "node 1 'relu' and node 3 'there' share storage id 1 across devices"
    with pytest.warns(StorageWarning, match=words):
        run_on_labels(plan(Graph.from_json(json.dumps(document))))


def test_plan_ignores_unsound_storage_ids_when_planning_itself() -> None:
    run_on_labels(plan(given_ids(0, 0, 0, 0, 0), "own"))


# ---- the report ------------------------------------------------------------------------------------------------------


def test_memory_report_says_where_memory_goes() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (4, 16)), b.param("w", np.zeros((32, 16), "float32"))
    y = b.call("dense", [x, w], (4, 32), name="dense")
    z = b.call("relu", [y], (4, 32), name="relu")
    b.output(b.reshape(b.call("relu", [z], (4, 32), name="last"), (128,), name="flat"))
    report = memory_report(plan(b.graph()), b.params)
    (device,) = report.devices
    assert (device.parameters, device.inputs, device.arena) == (2048, 256, 1024)
    assert (device.unshared, device.peak, device.peak_node) == (1536, 1024, "relu")
    assert (report.nbytes, report.saved) == (2048 + 256 + 1024, 512)
    assert [(slot.kind, slot.nodes) for slot in report.slots] == [
        ("input", ("x",)), ("parameter", ("w",)),
        ("arena", ("dense",)), ("arena", ("relu",)), ("arena", ("last", "flat")),
    ]  # fmt: skip
    assert json.loads(json.dumps(report.to_dict()))["devices"][0]["peak"] == 1024
    text = str(report)
    assert "parameters   2.0 KiB" in text
    assert "1.0 KiB in one arena; 1.5 KiB without sharing" in text
    assert "last, flat" in text


def test_memory_report_counts_each_device() -> None:
    b = GraphBuilder("cpu")
    there = b.copy(b.call("relu", [b.input("x", (16,))], (16,)), "cuda")
    b.output(b.call("relu", [there], (16,)))
    report = memory_report(plan(b.graph()))
    assert {each.device: (each.inputs, each.arena) for each in report.devices} == {
        "first device": (0, 0), "cpu": (64, 64), "cuda": (0, 128),
    }  # fmt: skip


# ---- bytes -----------------------------------------------------------------------------------------------------------


def split_model() -> GraphBuilder:
    b = GraphBuilder()
    x = b.input("x", (2, 4))
    left, right = b.call("halves", [x], [(2, 2), (2, 2)])
    flat = b.reshape(left, (4,))
    b.output(b.call("add_flat", [flat, right], (4,), name="sum", flatten_data=True))
    return b


# What split_model's plan says, by the words of docs/graph.md. Each item is one line of its table.
DEVICES = [(-1, 192)]
SLOTS = [(0, 1, -1, 0, 32), (0, 0, -1, 0, 16), (0, 0, -1, 64, 16), (0, 0, -1, 128, 16)]
FLOAT32 = (2, 32, 1)
ENTRIES = [(0, FLOAT32, (2, 4)), (1, FLOAT32, (2, 2)), (2, FLOAT32, (2, 2)), (1, FLOAT32, (4,)), (3, FLOAT32, (4,))]
NODES = [
    (0, 0, b"x", 1, [], b""),
    (1, 0, b"halves", 2, [0], b"halves"),
    (2, 0, b"reshape", 1, [1], b""),
    (1, 1, b"sum", 1, [3, 2], b"add_flat"),
]


def body(
    devices: Any = DEVICES, slots: Any = SLOTS, entries: Any = ENTRIES, nodes: Any = NODES, inputs: Any = (0,),
    heads: Any = (4,),
) -> bytes:  # fmt: skip
    """Write the body of a plan without regard to what makes sense."""

    def numbers(items: Any, kind: str = "I") -> bytes:
        return struct.pack(f"<I{len(items)}{kind}", len(items), *items)

    out = struct.pack("<I", len(devices)) + b"".join(struct.pack("<iQ", *device) for device in devices)
    out += struct.pack("<I", len(slots)) + b"".join(struct.pack("<IIqQQ", *slot) for slot in slots)
    out += struct.pack("<I", len(entries))
    for slot, dtype, shape in entries:
        out += struct.pack("<IBBH", slot, *dtype) + numbers(shape, "q")
    out += struct.pack("<I", len(nodes))
    for op, flags, name, outputs, sources, function in nodes:
        out += struct.pack("<III", op, flags, len(name)) + name + struct.pack("<I", outputs)
        out += numbers(sources) + struct.pack("<I", len(function)) + function
    return out + numbers(inputs) + numbers(heads)


def sealed(data: bytes, magic: bytes = b"PCGPLAN\0", version: int = 1, crc: int | None = None) -> bytes:
    return magic + struct.pack("<IIQ", version, zlib.crc32(data) if crc is None else crc, len(data)) + data


def test_plan_encoding_is_the_documented_one() -> None:
    planned = plan(split_model().graph(), "none")
    assert encode(planned) == sealed(body())
    assert decode(sealed(body())).slots == planned.slots


@given(any_graphs(), st.sampled_from(STORAGE))
def test_plan_round_trip_through_bytes(builder: GraphBuilder, storage: Any) -> None:
    planned = plan(Graph.from_json(builder.to_json()), storage)
    data = encode(planned)
    again = decode(data)
    assert encode(again) == data
    assert (again.arenas, again.slots, again.slot_of) == (planned.arenas, planned.slots, planned.slot_of)
    assert again.graph.nodes == planned.graph.nodes
    if storage == "given":
        assert again.graph.values == planned.graph.values
        assert json.loads(again.graph.to_json()) == json.loads(builder.to_json())


def test_plan_decoded_gives_its_graph_as_json() -> None:
    assert json.loads(decode(encode(plan(split_model().graph()))).graph.to_json()) == json.loads(
        split_model().graph().to_json()
    )


def node(number: int, **changes: Any) -> list[Any]:
    names = ("op", "flags", "name", "outputs", "inputs", "function")
    changed = [changes.get(name, old) for name, old in zip(names, NODES[number], strict=True)]
    return [*NODES[:number], changed, *NODES[number + 1 :]]


def with_entry(number: int, *entry: Any) -> list[Any]:
    return [*ENTRIES[:number], entry, *ENTRIES[number + 1 :]]


def with_slot(number: int, *slot: int) -> list[Any]:
    return [*SLOTS[:number], slot, *SLOTS[number + 1 :]]


TWO_INPUTS = {
    "slots": [(0, 1, -1, 0, 16), (0, 1, -1, 0, 16)],
    "entries": [(0, FLOAT32, (4,)), (1, FLOAT32, (4,))],
    "nodes": [(0, 0, b"x", 1, [], b""), (0, 0, b"y", 1, [], b"")],
    "inputs": (0, 1),
    "heads": (),
}

MALFORMED: dict[str, bytes] = {
    "nothing": b"",
    "half a header": sealed(body())[:20],
    "another magic": sealed(body(), magic=b"PCGPLAN\1"),
    "another version": sealed(body(), version=2),
    "a wrong checksum": sealed(body(), crc=1),
    "a byte too few": sealed(body())[:-1],
    "a byte too many": sealed(body()) + b"\0",
    "a byte after its end": sealed(body() + b"\0"),
    "an end in the middle": sealed(body()[:-3]),
    "an empty body": sealed(b""),
    "a count without things": sealed(struct.pack("<I", 2**32 - 1)),
    "no device": sealed(body(devices=[], slots=[])),
    "a first device with a type": sealed(body(devices=[(1, 192)])),
    "a second first device": sealed(body(devices=[(-1, 192), (-1, 0)])),
    "a device of type 0": sealed(body(devices=[(-1, 192), (0, 0)])),
    "a slot on no device": sealed(body(slots=with_slot(1, 1, 0, -1, 0, 16))),
    "a slot of kind 2": sealed(body(slots=with_slot(1, 0, 2, -1, 0, 16))),
    "a storage id of -2": sealed(body(slots=with_slot(1, 0, 0, -2, 0, 16))),
    "an offset that is not aligned": sealed(body(slots=with_slot(1, 0, 0, -1, 16, 16))),
    "an offset of memory of its own": sealed(body(slots=with_slot(0, 0, 1, -1, 64, 32))),
    "a slot past the end of the arena": sealed(body(slots=with_slot(3, 0, 0, -1, 192, 16))),
    "a slot that wraps around": sealed(body(slots=with_slot(3, 0, 0, -1, 2**64 - 64, 128))),
    "an entry in no slot": sealed(body(entries=with_entry(4, 4, FLOAT32, (4,)))),
    "an entry too large for its slot": sealed(body(entries=with_entry(4, 3, FLOAT32, (5,)))),
    "a negative extent": sealed(body(entries=with_entry(4, 3, FLOAT32, (-4,)))),
    "a size that overflows": sealed(body(entries=with_entry(4, 3, FLOAT32, (2**62, 4, 2**62)))),
    "elements of no bits": sealed(body(entries=with_entry(4, 3, (2, 0, 1), (4,)))),
    "elements of no lanes": sealed(body(entries=with_entry(4, 3, (2, 32, 0), (4,)))),
    "too many dimensions": sealed(body(entries=with_entry(4, 3, FLOAT32, (1,) * 65))),
    "an unknown op": sealed(body(nodes=node(1, op=4))),
    "an unknown flag": sealed(body(nodes=node(1, flags=2))),
    "a name that is not UTF-8": sealed(body(nodes=node(1, name=b"\xff"))),
    "a function that is not UTF-8": sealed(body(nodes=node(1, function=b"\xed\xa0\x80"))),
    "an input of a later node": sealed(body(nodes=node(1, inputs=[1]))),
    "more outputs than entries": sealed(body(nodes=node(3, outputs=2))),
    "fewer outputs than entries": sealed(body(nodes=NODES[:3], heads=(0,))),
    "a call without a function": sealed(body(nodes=node(1, function=b""))),
    "a placeholder with a function": sealed(body(nodes=node(0, function=b"f"))),
    "a placeholder with two outputs": sealed(body(nodes=[(0, 0, b"x", 2, [], b"")], entries=ENTRIES[:2], heads=())),
    "a placeholder with an input": sealed(
        body(**{**TWO_INPUTS, "nodes": [(0, 0, b"x", 1, [], b""), (0, 0, b"y", 1, [0], b"")]})
    ),
    "a placeholder in the arena": sealed(body(slots=with_slot(0, 0, 0, -1, 0, 32))),
    "two placeholders in one slot": sealed(
        body(**{**TWO_INPUTS, "entries": [(0, FLOAT32, (4,)), (0, FLOAT32, (4,))]})
    ),
    "two placeholders of one name": sealed(
        body(**{**TWO_INPUTS, "nodes": [(0, 0, b"x", 1, [], b""), (0, 0, b"x", 1, [], b"")]})
    ),
    "a call into a placeholder's slot": sealed(body(entries=with_entry(4, 0, FLOAT32, (4,)))),
    "a view in another slot": sealed(body(entries=with_entry(3, 2, FLOAT32, (4,)))),
    "a view of another size": sealed(body(entries=with_entry(3, 1, FLOAT32, (3,)))),
    "a view of two values": sealed(body(nodes=node(2, inputs=[1, 2]))),
    "a copy of another size": sealed(
        body(nodes=node(2, op=3), entries=with_entry(3, 1, FLOAT32, (3,)))
    ),
    "an input that is not a node": sealed(body(inputs=(4,))),
    "an input that is a call": sealed(body(inputs=(1,))),
    "an input twice": sealed(body(inputs=(0, 0))),
    "an input that is missing": sealed(body(inputs=())),
    "a result that is not an entry": sealed(body(heads=(5,))),
}  # fmt: skip


@pytest.fixture(scope="session")
def any_library(c_libraries: dict[str, Path]) -> portcall.Module:
    return portcall.load_module(c_libraries["modern"])


@pytest.mark.parametrize("name", MALFORMED)
def test_plan_malformed_is_refused_by_the_core_wherever_it_is_read(name: str, any_library: portcall.Module) -> None:
    with pytest.raises(errors.GraphError, match="plan: ") as caught:
        decode(MALFORMED[name])
    create = portcall.get_global_func("portcall.graph.create")
    with pytest.raises(errors.GraphError) as created:
        create(MALFORMED[name], any_library, 1, 0)
    assert str(created.value) == str(caught.value)


@given(st.data())
def test_plan_decode_of_changed_bytes_is_a_plan_or_an_error(data: Any) -> None:
    changed = bytearray(body())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(changed) - 4))
        number = data.draw(st.sampled_from([0, 1, 2, 3, 4, 8, 64, 1 << 16, 1 << 31, (1 << 32) - 1]) | st.none())
        new = bytes([data.draw(st.integers(0, 255))]) if number is None else struct.pack("<I", number)
        changed[place : place + len(new)] = new
    try:
        planned = decode(sealed(bytes(changed)))
    except errors.GraphError:
        return
    assert decode(encode(planned)).slots == planned.slots


@pytest.mark.parametrize("lanes", [0, 1, 4, (1 << 15) - 1, 1 << 15, (1 << 16) - 1])
def test_plan_decode_reads_every_data_type_that_the_core_takes(lanes: int) -> None:
    for code, bits in itertools.product((0, 1, 2, 3, 6, 7, 17, 200, 255), range(256)):
        entry = with_entry(4, 3, (code, bits, lanes), (0,))
        try:
            planned = decode(sealed(body(entries=entry)))
        except errors.GraphError:
            continue
        dtype = planned.graph.values[4].dtype
        assert (dtype.code, dtype.bits, dtype.lanes) == (code, bits, lanes)
