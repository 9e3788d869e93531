# SPDX-License-Identifier: Apache-2.0
"""Graphs as the compilers of each era wrote them, by hand, run with kernels of their ABI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from graph.models import array, close
from portcall import graph

CPU = portcall.cpu()

# nnvm, and TVM to 0.5: "attr", inputs of two numbers, types without bits, dtype as numbers, flat calls, no device.
NNVM = """{
  "nodes": [
    {"op": "null", "name": "x", "inputs": []},
    {"op": "tvm_op", "name": "plus0", "inputs": [[0, 0]], "control_deps": [0],
     "attr": {"flatten_data": "1", "func_name": "add_one", "num_inputs": "1", "num_outputs": "1"}},
    {"op": "tvm_op", "name": "plus1", "inputs": [[1, 0]],
     "attr": {"flatten_data": "1", "func_name": "add_one", "num_inputs": "1", "num_outputs": "1"}}
  ],
  "arg_nodes": [0],
  "node_row_ptr": [0, 1, 2, 3],
  "heads": [[2, 0]],
  "attrs": {
    "storage_id": ["list_int", [0, 1, 2]],
    "dtype": ["list_int", [0, 0, 0]],
    "dltype": ["list_str", ["float", "float", "float32"]],
    "shape": ["list_shape", [[1, 3, 20], [1, 3, 20], [1, 3, 20]]],
    "op_count": ["size_t", 2]
  }
}"""

# Relay of 0.6 and 0.7: inputs of three numbers, a chain over two storage ids, several names for one function.
RELAY = """{
  "nodes": [
    {"op": "null", "name": "data", "inputs": []},
    {"op": "tvm_op", "name": "fused_add", "inputs": [[0, 0, 0]],
     "attrs": {"func_name": "add_one", "flatten_data": "0", "num_inputs": "1", "num_outputs": "1"}},
    {"op": "tvm_op", "name": "fused_add1", "inputs": [[1, 0, 0]],
     "attrs": {"func_name": "double_parallel", "flatten_data": "0", "num_inputs": "1", "num_outputs": "1"}},
    {"op": "tvm_op", "name": "fused_add2", "inputs": [[2, 0, 0]],
     "attrs": {"func_name": "add_one", "flatten_data": "0", "num_inputs": "1", "num_outputs": "1"}},
    {"op": "tvm_op", "name": "fused_add3", "inputs": [[3, 0, 0]],
     "attrs": {"func_name": "double_parallel", "flatten_data": "0", "num_inputs": "1", "num_outputs": "1"}}
  ],
  "arg_nodes": [0],
  "heads": [[4, 0, 0]],
  "attrs": {
    "dltype": ["list_str", ["float32", "float32", "float32", "float32", "float32"]],
    "shape": ["list_shape", [[60], [60], [60], [60], [60]]],
    "storage_id": ["list_int", [0, 1, 2, 1, 3]]
  },
  "node_row_ptr": [0, 1, 2, 3, 4, 5]
}"""

# 0.8 and later: device types, hashes, a reshape that is a view in the same storage, several outputs; then scopes of
# memory, and metadata behind it all.
LATER = """{
  "nodes": [
    {"op": "null", "name": "x", "inputs": []},
    {"op": "null", "name": "p0", "inputs": []},
    {"op": "tvm_op", "name": "tvmgen_default_fused_split", "inputs": [[0, 0, 0]],
     "attrs": {"num_outputs": "2", "num_inputs": "1", "flatten_data": "0", "func_name": "halves",
               "out_layout": "", "hash": "b42046847df8cb7b"}},
    {"op": "tvm_op", "name": "tvmgen_default_fused_add", "inputs": [[2, 0, 0], [1, 0, 0]],
     "attrs": {"num_outputs": "1", "num_inputs": "2", "flatten_data": "0", "func_name": "add"}},
    {"op": "tvm_op", "name": "reshape_nop", "inputs": [[3, 0, 0]],
     "attrs": {"num_outputs": "1", "num_inputs": "1", "flatten_data": "0", "func_name": "__nop"}},
    {"op": "tvm_op", "name": "tvmgen_default_fused_relu", "inputs": [[4, 0, 0]],
     "attrs": {"num_outputs": "1", "num_inputs": "1", "flatten_data": "0", "func_name": "relu"}}
  ],
  "arg_nodes": [0, 1],
  "heads": [[5, 0, 0], [2, 1, 0], [0, 0, 0]],
  "attrs": {
    "dltype": ["list_str", ["float32", "float32", "float32", "float32", "float32", "float32", "float32"]],
    "device_index": ["list_int", [1, 1, 1, 1, 1, 1, 1]],
    "storage_id": ["list_int", [0, 1, 2, 3, 4, 4, 5]],
    "storage_scope": ["list_str", ["", "", "", "", "", "", ""]],
    "shape": ["list_shape", [[4, 6], [4, 3], [4, 3], [4, 3], [4, 3], [6, 2], [6, 2]]]
  },
  "node_row_ptr": [0, 1, 2, 4, 5, 6, 7],
  "metadata": {"signature": [1, 2.5, null]}
}"""


@pytest.mark.parametrize("name", ["classic06", "classic"])
def test_create_runs_a_graph_of_nnvm(c_libraries: dict[str, Path], name: str) -> None:
    m = graph.create(NNVM, portcall.load_module(c_libraries[name]), CPU)
    x = array(1, 3, 20)
    m.run(x=x)
    close(m.get_output("plus1"), x + 2)
    assert m.get_output_info() == ({"plus1": (1, 3, 20)}, {"plus1": "float32"})


def test_create_runs_a_graph_of_the_first_relay(c_libraries: dict[str, Path]) -> None:
    m = graph.create(RELAY, portcall.load_module(c_libraries["classic"]), CPU)
    x = np.abs(array(60))
    for each in (x, 2 * x):  # storage ids are used again by later nodes, and by the next run
        m.run(data=each)
        close(m.get_output(0), ((each + 1) * 2 + 1) * 2)
    assert [m.plan.slots[slot].storage_id for slot in m.plan.slot_of] == [0, 1, 2, 1, 3]


def test_create_runs_a_graph_of_a_later_relay(libraries: dict[str, Path]) -> None:
    m = graph.create(LATER, portcall.load_module(libraries["layers"]), CPU)
    x, p0 = array(4, 6), array(4, 3, seed=2)
    m.load_params(graph.save_params({"p0": p0}))
    m.run(x=x)
    expected: list[Any] = [np.maximum(x[:, :3] + p0, 0).ravel().reshape(6, 2), x[:, 3:], x]
    for index, values in enumerate(expected):
        close(m.get_output(index), values)
    assert m.plan.slot_of[4] == m.plan.slot_of[5]
