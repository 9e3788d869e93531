# SPDX-License-Identifier: Apache-2.0
"""What a server tells of its machine, and verdicts on what is timed there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from machines import TREES, check_tree, plant
from portcall import rpc
from portcall.bench import measure
from rpc.serving import Serving, serving


@pytest.mark.parametrize("name", TREES)
def test_server_tells_the_state_of_its_machine(name: str, tmp_path: Path) -> None:
    files, expected = TREES[name]
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {0})  # the server's, too: the processor that the trees have
    try:
        with (
            serving(PORTCALL_MACHINE_ROOT=str(plant(tmp_path, files))) as server,
            rpc.connect(server.address) as remote,
        ):
            check_tree(remote["portcall.rpc.conditions"](True), expected)
    finally:
        os.sched_setaffinity(0, before)


def test_measure_judges_by_the_machine_that_ran(server: Serving, kernel_library: Path) -> None:
    with rpc.connect(server.address) as remote:
        remote.upload(kernel_library)
        kernels = remote.load_module(kernel_library.name)
        x, y = remote.empty((1024,), "float32"), remote.empty((1024,), "float32")
        measured = measure(
            lambda number, repeat: kernels.time_evaluator("add_one", remote.cpu(), number, repeat)(x, y),
            100, 12, session=remote,
        )  # fmt: skip
    assert measured.verdict.known
    assert len(measured.result.results) == 12
    assert len(measured.conditions) >= 2
    times = [reading.time_ns for reading in measured.conditions]
    assert times == sorted(times)  # type: ignore[type-var]


def test_measure_of_a_tvm_server_says_that_it_tells_nothing(tvm_port: int) -> None:
    with rpc.connect("127.0.0.1", tvm_port, key="k") as remote:
        measured = measure(
            lambda number, repeat: remote.module.time_evaluator(
                "runtime.NumThreads", remote.cpu(), number, repeat
            )(),
            10, 12, session=remote,
        )  # fmt: skip
    assert not measured.verdict.known
    assert measured.conditions == ()
    assert "unknown" in [finding.code for finding in measured.verdict.findings]
