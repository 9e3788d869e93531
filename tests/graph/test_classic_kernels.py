# SPDX-License-Identifier: Apache-2.0
"""Graphs whose kernels are of the classic ABI, as the compilers of their time made both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import portcall
from graph.models import Model
from portcall import graph


@pytest.mark.parametrize("name", ["classic", "classic06"])
def test_a_graph_of_classic_kernels(c_libraries: dict[str, Path], name: str) -> None:
    m = Model()
    x = m.input("x", (100,))
    y = m.call("add_one", [m.call("add_one", [x], ((100,), "float32"), name="one")], ((100,), "float32"), name="two")
    made = graph.create(m.json(y), portcall.load_module(c_libraries[name]), portcall.cpu())
    data = np.arange(100, dtype="float32")
    made.run(x=data)
    np.testing.assert_array_equal(made.get_output("two").numpy(), data + 2)


def test_booleans_in_a_graph_of_classic_kernels(c_libraries: dict[str, Path]) -> None:
    m = Model()
    x, w = m.input("x", (100,), "bool"), m.input("w", (100,), "bool")
    outputs = [m.call("invert", [each], ((100,), "bool"), name=name) for each, name in ((x, "not_x"), (w, "not_w"))]
    made = graph.create(m.json(*outputs), portcall.load_module(c_libraries["classic"]), portcall.cpu())
    data = np.arange(100) % 3 == 0
    blob = graph.save_params({"w": data[::-1].copy()})
    made.load_params(blob.replace(b"\x06\x08\x01\x00", b"\x01\x01\x01\x00"))  # as compilers of that time wrote it
    made.run(x=data)
    np.testing.assert_array_equal(made.get_output("not_x").numpy(), ~data)
    np.testing.assert_array_equal(made.get_output("not_w").numpy(), ~data[::-1])
    assert made.get_output_info()[1] == {"not_x": "bool", "not_w": "bool"}
