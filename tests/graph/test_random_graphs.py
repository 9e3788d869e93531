# SPDX-License-Identifier: Apache-2.0
"""Random graphs give the same values from compiled kernels in planned memory as from NumPy, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import portcall
from graph.interpreter import interpret, random_graphs, random_inputs
from portcall import graph
from portcall.graph import Graph, GraphBuilder


def check(module: graph.GraphModule, planned: Graph, seed: int) -> None:
    inputs = random_inputs(planned, seed)
    module.run(**inputs)
    for index, expected in enumerate(interpret(planned, inputs)):
        got = module.get_output(index).numpy()
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


@settings(max_examples=60)
@given(random_graphs(), st.sampled_from(["given", "own", "none"]), st.integers(0, 1000))
def test_run_of_random_graphs_computes_what_numpy_does(
    libraries: dict[str, Path], builder: GraphBuilder, storage: Any, seed: int
) -> None:
    text = builder.to_json()
    module = graph.create(text, portcall.load_module(libraries["layers"]), portcall.cpu(), storage=storage)
    for each in range(seed, seed + 3):  # what one run leaves behind must not reach the next one
        check(module, Graph.from_json(text), each)


@settings(max_examples=30)
@given(random_graphs(), st.integers(0, 1000))
def test_create_runs_a_graph_object_without_json(libraries: dict[str, Path], builder: GraphBuilder, seed: int) -> None:
    module = graph.create(builder.graph(), portcall.load_module(libraries["layers"]), portcall.cpu())
    check(module, builder.graph(), seed)
