# SPDX-License-Identifier: Apache-2.0
"""What is inside of a graph: values and times of nodes, dumps, traces, and two executors side by side."""

from __future__ import annotations

import csv
import functools
import io
import json
import stat
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from graph.models import (
    Model,
    array,
    close,
    f32,
    many,
    many_json,
    mlp,
    mlp_json,
    mlp_params,
    two_devices,
    two_devices_json,
)
from portcall import errors, graph, rpc
from rpc.serving import serving

pytestmark = pytest.mark.peers
X, Y = array(2, 6), array(2, 3)
QUICK = {"number": 2, "repeat": 3, "min_repeat_ms": 0}
Open = Callable[..., graph.GraphModuleDebug]


@pytest.fixture(params=["here", "session", "server"])
def place(request: pytest.FixtureRequest) -> Iterator[rpc.Session | None]:
    if request.param == "here":
        yield None
    elif request.param == "session":
        with rpc.LocalSession() as session:
            yield session
    else:
        with serving() as server, rpc.connect(server.address, call_timeout=60) as session:
            yield session


@pytest.fixture
def open_debug(place: rpc.Session | None, libraries: dict[str, Path], tmp_path: Path) -> Open:
    """Make executors in each place."""

    def make(json: str, **options: Any) -> graph.GraphModuleDebug:
        path = libraries["layers"]
        lib = place.load_module(place.upload(path)) if place else portcall.load_module(path)
        options.setdefault("dump_root", tmp_path / "dumps")
        return graph.create_debug(json, lib, place.cpu() if place else portcall.cpu(), **options)

    return make


def chain_json() -> str:
    """x -> relu -> 7 times itself doubled, in two pieces of memory by turns."""
    m = Model()
    values = [m.call("relu", [m.input("x", (4, 4))], f32(4, 4), name="n0")]
    for k in range(1, 8):
        on = values[k - 2] if k > 1 else None
        values.append(m.call("add", [values[-1], values[-1]], f32(4, 4), name=f"n{k}", on=on))
    return m.json(values[-1])


def expected_of_many() -> list[tuple[str, int, Any]]:
    """Each output of each node of ``many_json``: (name, output, value)."""
    doubled, floor, right, left, _, y = many(X, Y)
    total = left + y
    return [("x", 0, X), ("y", 0, Y), ("halves", 0, left), ("halves", 1, right), ("total", 0, total),
            ("reshape_nop", 0, total.reshape(3, 2)), ("doubled", 0, doubled), ("floor", 0, floor)]  # fmt: skip


# ---- Values --------------------------------------------------------------------------------------------------------


def test_debug_get_output_gives_what_numpy_computes(open_debug: Open) -> None:
    d = open_debug(many_json())
    d.set_input(x=X, y=Y)
    for name, output, value in [*expected_of_many(), *reversed(expected_of_many())]:
        close(d.debug_get_output(name, output=output), value)
        assert d.debug_get_output(name, output=output).shape == value.shape
    out = np.empty((2, 3), "float32")
    assert d.debug_get_output(2, out) is out
    close(out, X[:, :3])
    assert d.debug_get_output("halves", out, output=1) is out
    close(out, X[:, 3:])


@pytest.mark.parametrize("storage", ["given", "own", "none"])
def test_get_node_output_shows_values_whose_memory_is_reused(open_debug: Open, storage: Any) -> None:
    d = open_debug(chain_json(), storage=storage)
    x = array(4, 4)
    d.set_input(x=x)
    d["run"]()
    for k in (3, 0, 7, 6, 1):
        close(d.debug_get_output(f"n{k}"), np.maximum(x, 0) * 2**k)
    d.execute_node("n7")
    close(d.get_node_output(8), np.maximum(x, 0) * 2**7)
    close(d.get_output(0), np.maximum(x, 0) * 2**7)


def test_execute_node_runs_nodes_in_order(open_debug: Open) -> None:
    d = open_debug(chain_json())
    d.set_input(x=array(4, 4))
    for k, node in enumerate(range(1, 9)):
        d.execute_node(node)
        close(d.get_node_output(node), np.maximum(array(4, 4), 0) * 2**k)
    d.execute_node(8)
    d.set_input(x=2 * array(4, 4))
    with pytest.raises(ValueError, match="right after execute_node"):
        d.get_node_output(8)
    d.execute_node(8)
    out = np.empty((4, 4), "float32")
    assert d.get_node_output("n7", out=out) is out
    close(out, np.maximum(2 * array(4, 4), 0) * 2**7)
    d["run"]()
    with pytest.raises(ValueError, match="right after execute_node"):
        d.get_node_output(8)


def test_debug_executor_reads_zero_copy_inputs_again(lib: portcall.Module) -> None:
    d = graph.create_debug(many_json(), lib, portcall.cpu())
    x = portcall.tensor(X)
    d.set_input(y=Y)
    d.set_input_zero_copy("x", x)
    close(d.debug_get_output("halves", output=1), X[:, 3:])
    x.copyfrom(2 * X)
    close(d.debug_get_output("halves", output=1), 2 * X[:, 3:])


@pytest.mark.parametrize(
    ("call", "kind", "said"),
    [
        (lambda d: d.debug_get_output("halvs"), errors.GraphError, "no node 'halvs'; did you mean 'halves'"),
        (lambda d: d.debug_get_output(99), errors.GraphError, "no node 99; it has 7"),
        (lambda d: d.debug_get_output("halves", output=2), errors.GraphError, "has no output 2; it has 2"),
        (lambda d: d.get_node_output("halves", -1), errors.GraphError, "has no output -1"),
        (lambda d: d.execute_node(-1), errors.GraphError, "no node -1"),
        (lambda d: d.run_individual_node("nowhere"), errors.GraphError, "no node 'nowhere'"),
        (lambda d: d.run_individual(number=0), ValueError, "number"),
        (lambda d: d.run(X=X), errors.GraphError, "no input 'X'"),
    ],
)
def test_debug_executor_errors_list_the_nodes(
    open_debug: Open, call: Callable[[Any], Any], kind: type, said: str
) -> None:
    d = open_debug(many_json())
    d.set_input(x=X, y=Y)
    with pytest.raises(kind, match=said):
        call(d)


def test_debug_get_output_refuses_an_ambiguous_name(lib: portcall.Module) -> None:
    m = Model()
    x = m.call("relu", [m.call("relu", [m.input("x", (2, 2))], f32(2, 2))], f32(2, 2))
    d = graph.create_debug(m.json(x), lib, portcall.cpu())
    with pytest.raises(errors.GraphError, match="'relu' is the name of several nodes, 1, 2: say which by its index"):
        d.execute_node("relu")


def test_debug_get_output_names_an_unset_input(open_debug: Open) -> None:
    d = open_debug(many_json())
    for call in (d.run, d.profile, d.run_individual, lambda: d.debug_get_output("total")):
        with pytest.raises((errors.GraphError, errors.RemoteError), match=r"'x'.*was never set"):
            call()
    d.set_input(x=X)
    close(d.debug_get_output("halves"), X[:, :3])  # which does not need y


# ---- Times ---------------------------------------------------------------------------------------------------------


def test_run_individual_times_every_node(open_debug: Open) -> None:
    d = open_debug(many_json())
    d.set_input(x=X, y=Y)
    times = d.run_individual(number=2, repeat=3)
    assert [len(own) for own in times] == [3] * 7
    assert [any(own) for own in times] == [False, False, True, True, False, True, True]
    assert all(time > 0 for own in times for time in own if any(own))
    result = d.run_individual_node("floor", number=2, repeat=4)
    assert len(result.results) == 4
    assert result.min > 0
    assert d.run_individual_node("x", repeat=2).results == (0, 0)
    for index, value in enumerate(many(X, Y)):  # what is left behind is a run
        close(d.get_output(index), value)


def test_profile_records_every_call(open_debug: Open) -> None:
    d = open_debug(many_json())
    report = d.profile(x=X, y=Y)
    assert [node.function for node in report.nodes] == ["", "", "halves", "add_flat", "__nop", "add", "round_down"]
    halves = report.nodes[2]
    assert (halves.index, halves.name, halves.device) == (2, "halves", "cpu:0")
    assert (halves.inputs, halves.outputs) == (("float32[2,6]",), ("float32[2,3]", "float32[2,3]"))
    for before, after in pairwise(report.nodes):
        assert before.start + before.duration <= after.start + 1e-12
    assert [node.duration > 0 for node in report.nodes] == [False, False, True, True, False, True, True]
    assert report.total == pytest.approx(sum(node.duration for node in report.nodes))
    assert report.span == max(node.start + node.duration for node in report.nodes)
    assert sum(node.share for node in report.nodes) == pytest.approx(1)
    assert graph.Profile.from_json(report.to_json()) == report
    rows = list(csv.DictReader(io.StringIO(report.to_csv())))
    assert [(row["name"], float(row["duration"])) for row in rows] == [(n.name, n.duration) for n in report.nodes]
    for wrong in ("{}", "[]", '{"nodes": [{}]}', "nothing", "[" * 100_000):
        with pytest.raises(ValueError, match=r"."):
            graph.Profile.from_json(wrong)
    found = json.loads(report.to_json())
    assert found["nodes"][2]["outputs"] == ["float32[2,3]", "float32[2,3]"]
    assert found["total_s"] == report.total
    lines = str(report).splitlines()
    shown = [int(line.split()[0]) for line in lines[1:-1]]
    assert shown == sorted({2, 3, 5, 6}, key=lambda k: -report.nodes[k].time)
    assert lines[-1].split()[0] == "total"


def test_profile_warms_up_before_its_run(
    logging_module: graph.GraphModule, register: Callable[..., portcall.PackedFunc]
) -> None:
    runs: list[int] = []
    register("portcall_test.log_value", lambda *_: runs.append(1))
    d = graph.GraphModuleDebug(logging_module.module)
    d.profile(x=array(3))
    assert len(runs) == 4
    d.profile(warm_up=1)
    assert len(runs) == 6


@pytest.mark.parametrize("how", ["run", "run_individual", "run_individual_node"])
def test_debug_measurements_check_their_options(lib: portcall.Module, how: str) -> None:
    d = graph.create_debug(many_json(), lib, portcall.cpu())
    d.set_input(x=X, y=Y)
    call = functools.partial(d.run_individual_node, "floor") if how == "run_individual_node" else getattr(d, how)
    names = ["number", "repeat", "min_repeat_ms", "limit_zero_time_iterations", "cooldown_interval_ms",
             "repeats_to_cooldown"]  # fmt: skip
    for name in names:
        with pytest.raises(ValueError, match=f"^{name} "):
            call(**{name: -1})
    if how != "run":  # whose first argument is the inputs
        for position, name in enumerate(names):
            with pytest.raises(ValueError, match=name):
                call(*[1] * position, -1)  # type: ignore[call-arg]


def test_save_trace_has_the_start_of_each_call(open_debug: Open, tmp_path: Path) -> None:
    report = open_debug(many_json()).profile(x=X, y=Y)
    report.save_trace(tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert [event["args"]["name"] for event in events if event["ph"] == "M"] == ["cpu:0"]
    calls = [event for event in events if event["ph"] == "X"]
    assert [event["name"] for event in calls] == ["halves", "total", "doubled", "floor"]
    for event in calls:
        node = report.nodes[event["args"]["node"]]
        assert "measured_us" not in event["args"]
        assert (event["ts"], event["dur"]) == (pytest.approx(node.start * 1e6), pytest.approx(node.duration * 1e6))


def test_profile_escapes_names_in_html(lib: portcall.Module) -> None:
    m = Model()
    name = "[red]a[/] [/b]"
    text = m.json(m.call("relu", [m.input("x", (2, 2))], f32(2, 2), name=name))
    report = graph.create_debug(text, lib, portcall.cpu()).profile(x=array(2, 2))
    assert name in str(report)
    assert report.to_trace()["traceEvents"][1]["name"] == name


def test_save_trace_has_a_track_for_each_device(lib: portcall.Module, fake_device: portcall.Module) -> None:
    lib.import_module(fake_device)
    with graph.create_debug(two_devices_json(), lib, [portcall.cpu(), portcall.device("ext_dev")]) as d:
        x, w = array(8, 4), array(8, 4, seed=2)
        report = d.profile(x=x, w=w)
        assert {node.name: node.device for node in report.nodes} == {
            "x": "cpu:0", "relu": "cpu:0", "to": "ext_dev:0", "one": "ext_dev:0", "two": "ext_dev:0", "w": "ext_dev:0",
            "back": "ext_dev:0", "add": "cpu:0", "w_one": "ext_dev:0", "w_back": "ext_dev:0", "sum": "cpu:0",
        }  # fmt: skip
        tracks = {event["tid"] for event in report.to_trace()["traceEvents"]}
        assert len(tracks) == 2
        close(d.debug_get_output("two"), np.maximum(x, 0) + 2)
        d.run(**QUICK)
        assert d.dump_path
        dumped = graph.load_params((d.dump_path / "output_tensors.params").read_bytes())
        close(dumped["w_one____topo-index:7____output-num:0"], w + 1)
        close(dumped["sum____topo-index:10____output-num:0"], two_devices(x, w))


# ---- Dumps ---------------------------------------------------------------------------------------------------------


def test_debug_run_collects_dumps_and_prints(
    open_debug: Open, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_debug(many_json()) as d:
        d.run({"x": X, "y": Y}, **QUICK)
        folder, report = d.dump_path, d.report
        assert folder == tmp_path / "dumps" / "_tvmdbg_device_CPU_0"
        assert folder is not None
        assert report
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        printed = capsys.readouterr().out
        assert printed.startswith(str(report))
        assert str(folder) in printed
        assert [len(node.measured) for node in report.nodes] == [3] * 7
        assert report.nodes[2].time == pytest.approx(np.mean(report.nodes[2].measured))

        import tvm

        dumped = tvm.runtime.load_param_dict((folder / "output_tensors.params").read_bytes())
        names = ["x", "y", "halves", "halves", "total", "reshape_nop", "doubled", "floor"]
        numbers = [0, 1, 2, 2, 3, 4, 5, 6]
        outputs = [0, 0, 0, 1, 0, 0, 0, 0]
        keys = [f"{n}____topo-index:{i}____output-num:{k}" for n, i, k in zip(names, numbers, outputs, strict=True)]
        assert set(dumped) == set(keys)
        for key, (_, _, value) in zip(keys, expected_of_many(), strict=True):
            close(dumped[key], value)

        document = json.loads((folder / "_tvmdbg_graph_dump.json").read_text())
        assert set(document) == {"nodes", "arg_nodes", "heads", "attrs", "node_row_ptr"}
        assert [node["op"] for node in document["nodes"]] == [
            "param", "param", "halves", "add_flat", "__nop", "add", "round_down",
        ]  # fmt: skip
        total, floor = document["nodes"][3], document["nodes"][6]
        assert (total["inputs"], total["shape"], total["attrs"]["T"]) == (["halves", "y"], [2, 3], "type: float32")
        assert (total["attrs"]["func_name"], total["attrs"]["flatten_data"]) == ("add_flat", "1")
        assert (floor["shape"], floor["attrs"]["T"]) == ([2, 3], "type: int32")

        trace = json.loads((folder / "_tvmdbg_execution_trace.json").read_text())
        assert trace["displayTimeUnit"] == "ns"
        events = trace["traceEvents"]
        assert [event["ph"] for event in events] == ["B", "E"] * 7
        assert [event["name"] for event in events[::2]] == [node["name"] for node in document["nodes"]]
        assert {(event["pid"], event["tid"]) for event in events} == {(1, 1)}
        assert events[0]["ts"] == events[1]["ts"]
        assert [event["ts"] for event in events[::2]] == pytest.approx([node.start * 1e6 for node in report.nodes])
        calls = [event["args"] for event in report.to_trace()["traceEvents"] if event["ph"] == "X"]
        assert [each["measured_us"] for each in calls] == [report.nodes[each["node"]].time * 1e6 for each in calls]
        ends = [(node.start + node.duration) * 1e6 for node in report.nodes]
        assert [event["ts"] for event in events[1::2]] == pytest.approx(ends)
        d.run({"x": 2 * X}, **QUICK)  # into the same folder
        again = graph.load_params_from_file(folder / "output_tensors.params")
        close(again[keys[2]], 2 * X[:, :3])
    assert list((tmp_path / "dumps").iterdir()) == []


def test_debug_exit_deletes_a_temporary_dump_root(lib: portcall.Module, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    d = graph.create_debug(many_json(), lib, portcall.cpu())
    d.exit()  # nothing yet
    for _ in range(2):
        d.run(x=X, y=Y, **QUICK)
        (root,) = tmp_path.iterdir()
        assert root.name.startswith("tvmdbg_")
        assert stat.S_IMODE(root.stat().st_mode) == 0o700
        assert d.dump_path == root / "_tvmdbg_device_CPU_0"
        d.exit()
        assert list(tmp_path.iterdir()) == []
        assert d.dump_path is None


def test_debug_exit_keeps_other_files_of_the_dump_root(lib: portcall.Module, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "_tvmdbg_device_CPU_0").mkdir(mode=0o755)
    with graph.create_debug(many_json(), lib, portcall.cpu(), tmp_path) as d:
        d.run(x=X, y=Y, **QUICK)
        assert d.dump_path
        assert stat.S_IMODE(d.dump_path.stat().st_mode) == 0o700
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_debug_run_needs_no_unused_input(lib: portcall.Module, tmp_path: Path) -> None:
    m = Model()
    m.input("unused", (3,))
    with graph.create_debug(m.json(m.call("relu", [m.input("x", (2, 2))], f32(2, 2))), lib, portcall.cpu()) as d:
        d.run(x=array(2, 2), **QUICK)
        assert d.dump_path
        params = graph.load_params_from_file(d.dump_path / "output_tensors.params")
        assert list(params) == ["x____topo-index:1____output-num:0", "relu____topo-index:2____output-num:0"]


def test_debug_dump_of_vectors_has_one_more_axis(lib: portcall.Module, tmp_path: Path) -> None:
    m = Model()
    v = m.input("v", (2,), "float32x4")
    text = m.json(m.call("relu", [m.input("x", (2, 2))], f32(2, 2)), v)
    vectors = portcall.empty((2,), "float32x4")
    np.frombuffer(graph._params.bytes_of(vectors), "float32")[:] = range(8)
    with graph.create_debug(text, lib, portcall.cpu(), tmp_path) as d:
        d.run(x=array(2, 2), v=vectors, **QUICK)
        assert d.dump_path
        dumped = graph.load_params_from_file(d.dump_path / "output_tensors.params")
        close(dumped["v____topo-index:0____output-num:0"], np.arange(8.0).reshape(2, 4))


def test_factory_debug_create_makes_debug_executors(place: rpc.Session | None, libraries: Any, tmp_path: Path) -> None:
    bundle = graph.export_bundle(tmp_path / "mlp.so", mlp_json(), libraries["layers"], mlp_params())
    opened = place.load_module(place.upload(bundle)) if place else portcall.load_module(bundle)
    d = graph.GraphModuleDebug(
        opened["debug_create"]("default", place.cpu() if place else portcall.cpu()), dump_root=tmp_path
    )
    x = array(4, 16)
    with d:
        d.run(x=x, **QUICK)
        assert d.dump_path
        assert d.report
        assert d.report.nodes[3].function == "dense"
        p = mlp_params()
        dumped = graph.load_params_from_file(d.dump_path / "output_tensors.params")
        close(dumped["relu____topo-index:4____output-num:0"], np.maximum(x @ p["w1"].T + p["b1"], 0))
        close(d.get_output(0), mlp(x, p))


# ---- Two executors -------------------------------------------------------------------------------------------------


def test_compare_finds_no_difference_between_equal_executors(open_debug: Open, lib: portcall.Module) -> None:
    there, here = open_debug(many_json()), graph.create(many_json(), lib, portcall.cpu(), storage="own")
    found = graph.compare(there, here, x=X, y=Y)
    assert found.ok
    assert found.first is None
    assert [(node.name, node.output) for node in found.nodes] == [(name, k) for name, k, _ in expected_of_many()]
    assert str(found).endswith("all 8 outputs of nodes agree")


def test_compare_names_the_first_difference(open_debug: Open, lib: portcall.Module) -> None:
    here = graph.create(mlp_json(), lib, portcall.cpu())
    there = open_debug(mlp_json())
    here.load_params(mlp_params())
    changed = mlp_params()
    changed["b1"][7] += 0.5
    there.load_params(changed)
    found = graph.compare(there, here, inputs={"x": array(4, 16)})
    assert not found.ok
    assert found.first
    assert (found.first.index, found.first.name, found.first.output) == (2, "b1", 0)
    assert found.first.largest_error == pytest.approx(0.5)
    wrong, right = changed["b1"][7], mlp_params()["b1"][7]
    assert f"b1[7] is {float(wrong)}, expected {float(right)} " in found.first.message
    assert [node.ok for node in found.nodes] == [True, True, False, False, False, True, True, False]
    assert found.verdict.startswith("the first difference is in node 2, 'b1': b1[7] is")
    assert "4 of 8 outputs of nodes differ" in str(found)
    assert found.to_dict()["nodes"][3]["ok"] is False
    assert graph.compare(there, here, atol=20.0).ok


def test_compare_finds_the_first_wrong_kernel(lib: portcall.Module) -> None:
    def made(function: str) -> graph.GraphModule:
        m = Model()
        x = m.input("x", (4, 4))
        one = m.call("add", [x, x], f32(4, 4), name="twice")
        inputs = [one] if function == "relu" else [one, x]
        return graph.create(m.json(m.call(function, inputs, f32(4, 4), name="last")), lib, portcall.cpu())

    found = graph.compare(made("relu"), made("add"), x=array(4, 4))
    assert found.first
    assert (found.first.name, found.first.function) == ("last", "relu")


def test_compare_refuses_other_graphs(lib: portcall.Module) -> None:
    one, other = (graph.create(text, lib, portcall.cpu()) for text in (chain_json(), many_json()))
    with pytest.raises(errors.GraphError, match="one has 9 nodes with 9 outputs, the other 7 with 8"):
        graph.compare(one, other)
