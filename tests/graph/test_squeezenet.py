# SPDX-License-Identifier: Apache-2.0
"""A real network from end to end: its values are onnxruntime's, wherever and however it runs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from graph import squeezenet
from portcall import graph, rpc
from rpc.serving import serving

pytestmark = pytest.mark.peers
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def made() -> squeezenet.Squeezenet:
    built = squeezenet.build()
    built.builder.output(built.entries[built.output])
    return built


@pytest.fixture(scope="module")
def kernels(libraries: dict[str, Path]) -> Path:
    return libraries["squeezenet"]


@pytest.fixture(scope="module")
def pictures() -> list[Any]:
    """The picture, mirrored, and upside down."""
    x = squeezenet.picture()
    return [x, x[:, :, :, ::-1].copy(), x[:, :, ::-1].copy()]


@pytest.fixture(scope="module")
def expected(made: squeezenet.Squeezenet, pictures: list[Any]) -> list[Any]:
    """What onnxruntime says of each picture."""
    return [squeezenet.by_onnxruntime(made, x, [made.output])[0] for x in pictures]


def same(value: Any, expected: Any) -> None:
    """Within 1e-4 of the largest value, which for probabilities is below 1."""
    got = value.numpy() if hasattr(value, "numpy") else value
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() <= TOLERANCE * np.abs(expected).max()


def test_squeezenet_reference_has_different_classes(expected: list[Any]) -> None:
    """Else any output would be within the tolerance, or that of any picture."""
    for scores in expected:
        assert scores.shape == (1, 1000, 1, 1)
        assert scores.max() > 0.1
        assert abs(scores.sum() - 1) < 1e-3
    for other in expected[1:]:
        assert np.abs(expected[0] - other).max() > 50 * TOLERANCE


def test_squeezenet_runs_locally(
    made: squeezenet.Squeezenet, kernels: Path, pictures: list[Any], expected: list[Any]
) -> None:
    m = graph.create(made.builder.graph(), portcall.load_module(kernels), portcall.cpu())
    m.load_params(made.builder.params)
    for x, scores in zip(pictures, expected, strict=True):
        m.run(data_0=x)
        same(m.get_output(made.output), scores)
    assert m.get_input_info()[0] == {"data_0": (1, 3, 224, 224)}
    assert len(m.get_param_info()[0]) == 52
    (memory,) = graph.memory_report(m.plan).devices
    assert memory.peak <= memory.arena < memory.unshared / 3


def test_squeezenet_every_layer_agrees(kernels: Path, pictures: list[Any]) -> None:
    """All values as outputs, which then share no memory."""
    built = squeezenet.build()
    layers = [name for name in built.entries if any(name in node.output for node in built.model.graph.node)]
    layers = [name for name in layers if name not in built.weights]
    built.builder.output(*[built.entries[name] for name in layers])
    assert len(layers) == 65  # Dropout is nothing
    m = graph.create(built.builder.graph(), portcall.load_module(kernels), portcall.cpu())
    m.load_params(built.builder.params)
    m.run(data_0=pictures[0])
    for name, value in zip(layers, squeezenet.by_onnxruntime(built, pictures[0], layers), strict=True):
        got = m.get_output(name).numpy()
        same(got.transpose(0, 3, 1, 2) if name != built.output else got, value)


def test_squeezenet_runs_from_json_and_params_file(
    made: squeezenet.Squeezenet, kernels: Path, pictures: list[Any], expected: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "squeezenet.json").write_text(made.builder.to_json())
    graph.save_params_to_file(made.builder.params, tmp_path / "squeezenet.params")
    m = graph.create(tmp_path / "squeezenet.json", portcall.load_module(kernels), portcall.cpu())
    m.load_params(tmp_path / "squeezenet.params")
    m.run(data_0=pictures[1])
    same(m.get_output(0), expected[1])


def test_squeezenet_runs_remotely_as_library_and_bundle(
    made: squeezenet.Squeezenet, kernels: Path, pictures: list[Any], expected: list[Any], tmp_path: Path
) -> None:
    bundle = graph.export_bundle(tmp_path / "squeezenet.so", made.builder.graph(), kernels, made.builder.params)
    opened = graph.GraphModule(portcall.load_module(bundle)["default"](portcall.cpu()))
    opened.run(data_0=pictures[0])
    same(opened.get_output(0), expected[0])
    with serving() as server, rpc.connect(server.address, call_timeout=120) as session:
        lib = session.load_module(session.upload(kernels))
        over_there = graph.create(made.builder.graph(), lib, session.cpu())
        over_there.load_params(made.builder.params)
        factory = session.load_module(session.upload(bundle))
        whole = graph.GraphModule(factory["default"](session.cpu()))
        for m in (over_there, over_there.clone(), whole):
            for x, scores in zip(pictures, expected, strict=True):
                m.set_input("data_0", x)
                before = int(session.stats()["requests"])
                m.run()
                assert int(session.stats()["requests"]) == before + 1
                same(m.get_output(0), scores)


def test_squeezenet_runs_in_clones_by_threads(
    made: squeezenet.Squeezenet, kernels: Path, pictures: list[Any], expected: list[Any]
) -> None:
    m = graph.create(made.builder.graph(), portcall.load_module(kernels), portcall.cpu())
    m.load_params(made.builder.params)
    clones = [m, *(m.clone() for _ in pictures[1:])]
    results: dict[int, list[Any]] = {}
    together = threading.Barrier(len(clones))

    def work(number: int) -> None:
        together.wait(60)
        found = []
        for _ in range(4):
            clones[number].run(data_0=pictures[number])
            found.append(clones[number].get_output(0).numpy().copy())
        results[number] = found

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(clones))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, scores in enumerate(expected):
        for found in results[number]:
            same(found, scores)
    weights = {clone.get_input("conv1_w_0").data_ptr for clone in clones}
    assert len(weights) == 1


def test_squeezenet_is_timed_and_profiled(
    made: squeezenet.Squeezenet, kernels: Path, pictures: list[Any], expected: list[Any]
) -> None:
    m = graph.create(made.builder.graph(), portcall.load_module(kernels), portcall.cpu())
    m.load_params(made.builder.params)
    timed = m.benchmark(portcall.cpu(), repeat=2, number=1, data_0=pictures[0])
    assert len(timed.results) == 2
    assert min(timed.results) > 0
    end_to_end = m.benchmark(portcall.cpu(), repeat=1, number=1, end_to_end=True, data_0=pictures[1])
    assert min(end_to_end.results) > 0
    profile = np.frombuffer(m["profile_run"](), "float64", offset=8).reshape(-1, 2)
    calls = [node.op == "tvm_op" and node.attrs["func_name"] != "__nop" for node in m.plan.graph.nodes]
    assert len(calls) == len(profile)
    assert all((profile[:, 1] > 0) == calls)
    assert all(np.diff(profile[:, 0]) >= 0)
    same(m.get_output(0), expected[1])
