# SPDX-License-Identifier: Apache-2.0
"""Graphs for tests, written as the JSON of the format itself, and what they compute."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np

CPU, EXT_DEV = 1, 12
Entry = tuple[int, int]  # node, output


@dataclass
class Model:
    """A graph that grows node by node; values share no memory, unless ``on`` says so."""

    nodes: list[dict[str, Any]] = field(default_factory=list)
    row_ptr: list[int] = field(default_factory=lambda: [0])
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=list)
    storage: list[int] = field(default_factory=list)
    devices: list[int] = field(default_factory=list)

    def input(self, name: str, shape: tuple[int, ...], dtype: str = "float32", device: int = CPU) -> Entry:
        return self._add({"op": "null", "name": name, "inputs": []}, [(shape, dtype)], device)

    def call(
        self, function: str, inputs: list[Entry], *outputs: tuple[tuple[int, ...], str], name: str = "",
        flat: bool = False, device: int = CPU, on: Entry | None = None,
    ) -> Entry:  # fmt: skip
        attrs = {"func_name": function, "num_inputs": str(len(inputs)), "num_outputs": str(len(outputs)),
                 "flatten_data": str(int(flat))}  # fmt: skip
        sources = [[*entry, 0] for entry in inputs]
        node = {"op": "tvm_op", "name": name or function, "inputs": sources, "attrs": attrs}
        return self._add(node, list(outputs), device, on)

    def _add(
        self, node: dict[str, Any], outputs: list[tuple[tuple[int, ...], str]], device: int, on: Entry | None = None
    ) -> Entry:
        for shape, dtype in outputs:
            self.storage.append(len(self.storage) if on is None else self.storage[self.row_ptr[on[0]] + on[1]])
            self.shapes.append(shape)
            self.dtypes.append(dtype)
            self.devices.append(device)
        self.nodes.append(node)
        self.row_ptr.append(len(self.shapes))
        return len(self.nodes) - 1, 0

    def json(self, *heads: Entry) -> str:
        attrs = {"shape": ["list_shape", self.shapes], "dltype": ["list_str", self.dtypes],
                 "storage_id": ["list_int", self.storage]}  # fmt: skip
        if set(self.devices) != {CPU}:
            attrs["device_index"] = ["list_int", self.devices]
        arguments = [k for k, node in enumerate(self.nodes) if node["op"] == "null"]
        document = {"nodes": self.nodes, "arg_nodes": arguments, "node_row_ptr": self.row_ptr,
                    "heads": [[*head, 0] for head in heads], "attrs": attrs}  # fmt: skip
        return json.dumps(document)


def f32(*shape: int) -> tuple[tuple[int, ...], str]:
    return shape, "float32"


def mlp_json(rows: int = 4) -> str:
    """x (rows, 16) -> dense, relu, dense -> (rows, 10)."""
    m = Model()
    x, w1, b1 = m.input("x", (rows, 16)), m.input("w1", (32, 16)), m.input("b1", (32,))
    hidden = m.call("relu", [m.call("dense", [x, w1, b1], f32(rows, 32), name="dense1")], f32(rows, 32))
    w2, b2 = m.input("w2", (10, 32)), m.input("b2", (10,))
    return m.json(m.call("dense", [hidden, w2, b2], f32(rows, 10), name="dense2"))


def mlp_params(seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    shapes = {"w1": (32, 16), "b1": (32,), "w2": (10, 32), "b2": (10,)}
    return {name: random.standard_normal(shape).astype("float32") for name, shape in shapes.items()}


def mlp(x: Any, p: dict[str, Any]) -> Any:
    return np.maximum(x @ p["w1"].T + p["b1"], 0) @ p["w2"].T + p["b2"]


def array(*shape: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def close(tensor: Any, expected: Any) -> None:
    np.testing.assert_allclose(tensor.numpy() if hasattr(tensor, "numpy") else tensor, expected, rtol=1e-4, atol=1e-5)


def many_json() -> str:
    """Every kind of node: several outputs, a view, a flat call, a cast; a head twice, and one that is an input."""
    m = Model()
    x, y = m.input("x", (2, 6)), m.input("y", (2, 3))
    halves = m.call("halves", [x], f32(2, 3), f32(2, 3))
    left, right = halves, (halves[0], 1)
    total = m.call("add_flat", [left, y], f32(2, 3), name="total", flat=True)
    view = m.call("__nop", [total], f32(3, 2), name="reshape_nop", on=total)
    doubled = m.call("add", [view, view], f32(3, 2), name="doubled")
    floor = m.call("round_down", [right], ((2, 3), "int32"), name="floor")
    return m.json(doubled, floor, right, left, doubled, y)


def many(x: Any, y: Any) -> list[Any]:
    left, right = x[:, :3], x[:, 3:]
    doubled = 2 * (left + y).reshape(3, 2)
    return [doubled, np.floor(right).astype("int32"), right, left, doubled, y]


def two_devices_json() -> str:
    """x -> relu here -> add_one twice on the accelerator -> add x here."""
    m = Model()
    x = m.input("x", (8, 4))
    there = m.call("__copy", [m.call("relu", [x], f32(8, 4))], f32(8, 4), name="to", device=EXT_DEV)
    one = m.call("add_one", [there], f32(8, 4), name="one", device=EXT_DEV)
    two = m.call("add_one", [one], f32(8, 4), name="two", device=EXT_DEV)
    w = m.input("w", (8, 4), device=EXT_DEV)
    back = m.call("__copy", [two], f32(8, 4), name="back")
    weights = m.call(
        "__copy", [m.call("add_one", [w], f32(8, 4), name="w_one", device=EXT_DEV)], f32(8, 4), name="w_back"
    )
    return m.json(m.call("add", [m.call("add", [x, back], f32(8, 4)), weights], f32(8, 4), name="sum"))


def two_devices(x: Any, w: Any) -> Any:
    return x + np.maximum(x, 0) + 2 + w + 1
