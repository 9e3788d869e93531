# SPDX-License-Identifier: Apache-2.0
"""Executors in sessions: the same lines, the same values, and how little travels. Clients of TVM on our servers."""

from __future__ import annotations

import subprocess
import sys
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
    many,
    many_json,
    mlp,
    mlp_json,
    mlp_params,
    two_devices,
    two_devices_json,
)
from portcall import errors, graph, rpc
from portcall.rpc.server._session import register_standard_names
from rpc.serving import Serving, serving

pytestmark = pytest.mark.peers
CLIENT = Path(__file__).parents[1] / "scripts" / "tvm_graph_client.py"
Load = Callable[[str], portcall.Module]


@pytest.fixture(scope="module")
def server() -> Iterator[Serving]:
    with serving("--key", "k") as running:
        yield running


@pytest.fixture(params=["server", "process", "here"])
def session(request: pytest.FixtureRequest, server: Serving) -> Iterator[rpc.Session]:
    """Sessions of each kind: with a server, with a child process, with this process."""
    if request.param == "server":
        made: rpc.Session = rpc.connect(server.address, key="k", call_timeout=60)
    else:
        made = rpc.PopenSession(call_timeout=60) if request.param == "process" else rpc.LocalSession()
    with made:
        yield made


@pytest.fixture
def remote(server: Serving) -> Iterator[rpc.Session]:
    with rpc.connect(server.address, key="k", call_timeout=60) as session:
        yield session


def load(session: rpc.Session, path: Path) -> portcall.Module:
    return session.load_module(session.upload(path))


def create_mlp(session: rpc.Session, libraries: dict[str, Path]) -> graph.GraphModule:
    made = graph.create(mlp_json(), load(session, libraries["layers"]), session.cpu())
    made.load_params(mlp_params())
    return made


def requests(session: rpc.Session) -> int:
    return int(session.stats()["requests"])


# ---- The same API --------------------------------------------------------------------------------------------------


def test_remote_graph_computes_what_the_local_one_does(session: rpc.Session, libraries: dict[str, Path]) -> None:
    m = create_mlp(session, libraries)
    for seed in range(3):
        x = array(4, 16, seed=seed)
        m.run(x=x)
        close(m.get_output("dense2"), mlp(x, mlp_params()))
    assert m.get_input_info() == ({"x": (4, 16)}, {"x": "float32"})
    assert set(m.get_param_info()[0]) == set(mlp_params())
    assert m.get_output_info() == ({"dense2": (4, 10)}, {"dense2": "float32"})
    assert "in a session" in repr(m)
    out = np.empty((4, 10), "float32")
    assert m.get_output(0, out) is out
    close(out, mlp(x, mlp_params()))
    close(m.get_input("x"), x)
    again = graph.GraphModule(m.module)  # the plan is asked for
    again.run({"x": 2 * x})
    close(m.get_output(0), mlp(2 * x, mlp_params()))


def test_remote_graph_handles_every_kind_of_node_and_head(session: rpc.Session, libraries: dict[str, Path]) -> None:
    m = graph.create(many_json(), load(session, libraries["layers"]), [session.cpu()])
    x, y = array(2, 6), array(2, 3)
    m.run(x=x, y=y)
    for index, expected in enumerate(many(x, y)):
        close(m.get_output(index), expected)
    for output, expected in zip(m.run_from_inputs(x=2 * x), many(2 * x, y), strict=True):
        assert isinstance(output, rpc.RemoteTensor)
        close(output, expected)


def test_remote_graph_on_two_devices(
    remote: rpc.Session, libraries: dict[str, Path], build_native: Callable[[str], Path]
) -> None:
    lib = load(remote, libraries["layers"])
    lib.import_module(load(remote, build_native("fake_device.cc")))
    m = graph.create(two_devices_json(), lib, [remote.cpu(), remote.device("ext_dev")])
    x, w = array(8, 4), array(8, 4, seed=2)
    m.load_params({"w": w})
    m.run(x=x)
    close(m.get_output(0), two_devices(x, w))
    m.set_input_zero_copy("w", remote.tensor(2 * w, remote.device("ext_dev")))
    m.run()
    close(m.get_output(0), two_devices(x, 2 * w))
    assert str(m.get_input("w").device) == "ext_dev:0"


def test_remote_graph_uses_remote_tensors_as_inputs_and_outputs(
    session: rpc.Session, libraries: dict[str, Path]
) -> None:
    m = create_mlp(session, libraries)
    x, y = session.tensor(array(4, 16)), session.empty((4, 10))
    m.run(x=x)
    m.get_output(0, out=y)
    close(y, mlp(array(4, 16), mlp_params()))
    m.set_input_zero_copy("x", x)
    m.set_output_zero_copy(0, y)
    x.copyfrom(2 * array(4, 16))
    m.run()
    close(y, mlp(2 * array(4, 16), mlp_params()))
    for use in (m.set_input_zero_copy, m.set_output_zero_copy):
        value = array(4, 16) if use == m.set_input_zero_copy else array(4, 10)
        with pytest.raises(ValueError, match=r"session\.tensor"):
            use(0, value)


def test_remote_clone_shares_parameters(session: rpc.Session, libraries: dict[str, Path]) -> None:
    m = create_mlp(session, libraries)
    clone = m.clone()
    other = graph.create(mlp_json(), load(session, libraries["layers"]), session.cpu())
    other.share_params(m, graph.save_params(mlp_params()))
    x = array(4, 16)
    clone.run(x=x)
    other.run(x=x)
    m.run(x=2 * x)
    for executor in (clone, other):
        close(executor.get_output(0), mlp(x, mlp_params()))
    close(m.get_output(0), mlp(2 * x, mlp_params()))


def test_remote_bundle_is_opened_on_the_server(
    session: rpc.Session, libraries: dict[str, Path], tmp_path: Path
) -> None:
    graph.export_bundle(tmp_path / "mlp.so", mlp_json(), libraries["layers"], mlp_params())
    lib = load(session, tmp_path / "mlp.so")
    m = graph.GraphModule(lib["default"](session.cpu()))
    m.run(x=array(4, 16))
    close(m.get_output(0), mlp(array(4, 16), mlp_params()))
    assert list(m.get_input_info()[0]) == ["x"]
    clone = m.clone()
    clone.run(x=2 * array(4, 16))
    close(clone.get_output("dense2"), mlp(2 * array(4, 16), mlp_params()))


def test_remote_graph_checks_before_sending(remote: rpc.Session, libraries: dict[str, Path]) -> None:
    m = create_mlp(remote, libraries)
    before = requests(remote)
    for wrong, error in [
        ({"y": array(4, 16)}, errors.GraphError),
        ({"x": array(4, 15)}, errors.GraphError),
        ({"x": np.zeros((4, 16))}, errors.ArgumentError),
    ]:
        for call in (m.set_input, m.run, m.run_from_inputs):
            with pytest.raises(error):
                call(**wrong)
    for what in (lambda: m.get_input(7), lambda: m.get_output("no"), lambda: m.load_params({"w1": array(3)})):
        with pytest.raises(errors.GraphError):
            what()
    assert requests(remote) == before


def test_remote_graph_errors_keep_class_and_message(session: rpc.Session, libraries: dict[str, Path]) -> None:
    m = graph.create(mlp_json(), load(session, libraries["layers"]), session.cpu())
    m.set_input(x=array(4, 16))
    with pytest.raises(Exception, match=r"'w1', float32 \(32, 16\).* never set"):
        m.run()
    with pytest.raises(ValueError, match="executor"):
        graph.GraphModule(load(session, libraries["elementwise"]))


def test_remote_create_names_a_missing_kernel(remote: rpc.Session, libraries: dict[str, Path]) -> None:
    with pytest.raises(errors.RemoteError, match="dense") as caught:
        graph.create(mlp_json(), load(remote, libraries["elementwise"]), remote.cpu())
    assert caught.value.kind == "GraphError"


def test_remote_create_on_a_server_without_graphs_is_an_error(tvm_port: int, libraries: dict[str, Path]) -> None:
    with rpc.connect("127.0.0.1", tvm_port, key="k") as session:
        lib = load(session, libraries["layers"])
        with pytest.raises(errors.FunctionNotFoundError, match="runs no graphs; a portcall server"):
            graph.create(mlp_json(), lib, session.cpu())
        del lib


# ---- How little travels --------------------------------------------------------------------------------------------


def test_remote_run_is_one_round_trip(remote: rpc.Session, libraries: dict[str, Path]) -> None:
    m = create_mlp(remote, libraries)
    m.set_input(x=array(4, 16))
    before = remote.stats()
    m.run()
    after = remote.stats()
    assert after["requests"] - before["requests"] == 1
    assert after["bytes_sent"] - before["bytes_sent"] < 100
    assert after["bytes_received"] - before["bytes_received"] < 100


def test_remote_graph_looks_functions_up_once(remote: rpc.Session, libraries: dict[str, Path]) -> None:
    m = create_mlp(remote, libraries)
    m.get_input("w1")
    before = requests(remote)
    kept = m.get_input("w1")
    assert requests(remote) - before == 1
    close(kept, mlp_params()["w1"])


def test_remote_set_input_reuses_its_memory(remote: rpc.Session, libraries: dict[str, Path]) -> None:
    m = create_mlp(remote, libraries)
    m.set_input(x=array(4, 16))
    before = remote.stats()
    m.set_input(x=array(4, 16, seed=2))
    after = remote.stats()
    assert after["requests"] - before["requests"] == 2  # the elements, and the call
    assert after["bytes_received"] - before["bytes_received"] < 200  # nothing comes back


def test_remote_load_params_sends_once(remote: rpc.Session, libraries: dict[str, Path]) -> None:
    params = mlp_params()
    size = sum(value.nbytes for value in params.values())
    m = graph.create(mlp_json(), load(remote, libraries["layers"]), remote.cpu())
    before = remote.stats()
    m.load_params(graph.save_params(params))
    after = remote.stats()
    assert size < after["bytes_sent"] - before["bytes_sent"] < size + 3000
    assert after["bytes_received"] - before["bytes_received"] < 1000  # nothing comes back
    before = remote.stats()["bytes_sent"]
    m.clone().run(x=array(4, 16))
    other = graph.create(mlp_json(), load(remote, libraries["layers"]), remote.cpu())
    plan = remote.stats()["bytes_sent"]
    other.share_params(m, graph.save_params(params))
    assert remote.stats()["bytes_sent"] - plan < 1000
    assert before < plan


def test_remote_load_params_memory_belongs_to_the_executor(remote: rpc.Session, libraries: dict[str, Path]) -> None:
    m = create_mlp(remote, libraries)
    before = requests(remote)
    m.load_params(mlp_params(1))
    assert requests(remote) - before <= 4  # allocated, filled, handed over; the old one freed
    m.run(x=array(4, 16))
    close(m.get_output(0), mlp(array(4, 16), mlp_params(1)))


def weights() -> dict[str, Any]:
    """Many small parameters, of sizes that leave gaps, one of them empty."""
    random = np.random.default_rng(3)
    types = ["float32", "int8", "bool", "float64", "uint16"]
    return {f"w{k}": (random.random((k, 3)) * 100).astype(types[k % 5]) for k in range(40)}


def weighty(values: dict[str, Any], names: list[str] | None = None) -> str:
    m = Model()
    return m.json(*[m.input(name, values[name].shape, str(values[name].dtype)) for name in names or values])


@pytest.mark.parametrize("most", [1, 500, 16 << 20])
def test_remote_load_params_sends_many_together(
    remote: rpc.Session, libraries: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, most: int
) -> None:
    monkeypatch.setattr("portcall.graph._host_memory.SessionMemory.batch", most)
    values = weights()
    graph.save_params_to_file(values, tmp_path / "w.params")
    m = graph.create(weighty(values), load(remote, libraries["layers"]), remote.cpu())
    total = sum(value.nbytes for value in values.values())
    given: dict[str, Any] = {**values, "w7": remote.tensor(values["w7"]), "w8": np.asfortranarray(values["w8"])}
    for params in (given, tmp_path / "w.params"):
        steps: list[tuple[int, int]] = []
        before = requests(remote)
        m.load_params(params, progress=lambda done, of, steps=steps: steps.append((done, of)))  # type: ignore[misc]
        assert requests(remote) - before <= (6 if most > total else 5 * len(steps))
        assert steps[-1] == (total, total)
        assert len(steps) <= 2 * total / most + 1  # no two of them would have gone as one
        taken = [other - one for (one, _), (other, _) in pairwise([(0, total), *steps])]
        assert all(nbytes <= most or nbytes in [value.nbytes for value in values.values()] for nbytes in taken)
        assert set(m.get_param_info()[0]) == set(values)
        for name, value in values.items():
            np.testing.assert_array_equal(m.get_input(name).numpy(), value)


def test_remote_load_params_uses_sent_memory_in_place(session: rpc.Session, libraries: dict[str, Path]) -> None:
    values = weights()
    m = graph.create(weighty(values), load(session, libraries["layers"]), session.cpu())
    sizes = [value.nbytes for value in values.values()]
    sent = m._memory.keep(map(portcall.tensor, values.values()), sizes, True)
    for name, there in zip(values, sent, strict=True):
        m.set_input_zero_copy(name, there)  # which refuses what is not aligned
        np.testing.assert_array_equal(m.get_input(name).numpy(), values[name])


def test_remote_set_input_never_writes_a_remote_tensor(remote: rpc.Session, libraries: dict[str, Path]) -> None:
    m = create_mlp(remote, libraries)
    mine = remote.tensor(array(4, 16))
    m.run(x=mine)
    m.run(x=2 * array(4, 16))
    close(mine, array(4, 16))
    close(m.get_output(0), mlp(2 * array(4, 16), mlp_params()))


def test_remote_benchmark_measures_on_the_server(session: rpc.Session, libraries: dict[str, Path]) -> None:
    m = create_mlp(session, libraries)
    x = array(4, 16)
    assert len(m.benchmark(session.cpu(), repeat=3, number=2, x=x).results) == 3
    close(m.get_output(0), mlp(x, mlp_params()))
    before = requests(session)
    result = m.benchmark(session.cpu(), repeat=4, number=50, end_to_end=True, x=2 * x)
    assert len(result.results) == 4
    assert requests(session) - before < 20
    close(m.get_output(0), mlp(2 * x, mlp_params()))


def test_remote_graph_leaves_nothing_on_the_server(server: Serving, libraries: dict[str, Path], tmp_path: Path) -> None:
    source = (
        "import portcall\nportcall.register_func('demo.live', lambda: sum(portcall.testing.live_nodes().values()))\n"
    )
    (tmp_path / "live.py").write_text(source)
    with serving("--import", tmp_path / "live.py") as counting, rpc.connect(counting.address) as session:
        lib, count = load(session, libraries["layers"]), session["demo.live"]
        lib["relu"]

        def use() -> None:
            m = graph.create(mlp_json(), lib, session.cpu())
            m.load_params(mlp_params())
            m.run(x=array(4, 16))
            close(m.clone().get_input("w1"), mlp_params()["w1"])
            m.get_output(0).numpy()

        use()
        before = count()
        for _ in range(3):
            use()
        assert count() == before


# ---- Servers -------------------------------------------------------------------------------------------------------


def test_remote_create_wrong_plan_is_an_error(remote: rpc.Session, libraries: dict[str, Path]) -> None:
    lib = load(remote, libraries["layers"])
    make = remote["portcall.graph.create"]
    for plan in (b"", b"PCGPLAN\0" + bytes(100), bytes(1000)):
        with pytest.raises(errors.RemoteError) as caught:
            make(plan, lib, 1, 0)
        assert caught.value.kind == "GraphError"
    for wrong in ("{}", "[", "[" * 100_000, "\0"):
        with pytest.raises(errors.RemoteError) as caught:
            remote["tvm.graph_executor.create"](wrong, lib, 1, 0)
        assert caught.value.kind == "GraphError"
    for arguments in ((lib,), (lib, 1), (lib, 1, 0, 2), (None, 1, 0), (lib, "cpu", 0), ()):
        with pytest.raises(errors.RemoteError):
            remote["tvm.graph_executor.create"](mlp_json(), *arguments)
    assert remote["testing.echo"](1) == 1


def test_serve_offers_graph_functions_by_default(remote: rpc.Session, libraries: dict[str, Path]) -> None:
    lib = load(remote, libraries["layers"])
    for name in ("graph_executor", "graph_executor_debug", "graph_runtime", "graph_runtime_debug"):
        m = graph.GraphModule(remote[f"tvm.{name}.create"](mlp_json(), lib, 1, 0))
        m.load_params(mlp_params())
        m.run(x=array(4, 16))
        close(m.get_output(0), mlp(array(4, 16), mlp_params()))


def test_server_started_from_python_offers_graph_functions(libraries: dict[str, Path]) -> None:
    with (
        rpc.Server(no_fork=True) as server,
        rpc.connect(server.address) as session,
    ):
        lib = load(session, libraries["layers"])
        assert graph.GraphModule(session["tvm.graph_executor.create"](mlp_json(), lib, 1, 0)).get_num_inputs() == 5
        assert graph.create(mlp_json(), lib, session.cpu()).get_num_inputs() == 5


def test_register_standard_names_offers_graph_functions(libraries: dict[str, Path], client_functions: None) -> None:
    register_standard_names()  # twice is once
    with rpc.LocalSession() as session:
        lib = load(session, libraries["layers"])
        m = graph.GraphModule(session["tvm.graph_runtime.create"](many_json(), lib, 1, 0))
        assert m.get_num_outputs() == 6
        del m, lib


@pytest.mark.parametrize("name", ["portcall.graph:no_such_function", "no_such_package.module:function"])
def test_server_import_of_a_missing_function_is_an_error(name: str) -> None:
    with pytest.raises(errors.ConnectError, match="no_such"):
        rpc.Server(imports=[name])


def test_server_runs_graphs_for_tvm_clients(server: Serving, libraries: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(mlp_json())
    np.savez(tmp_path / "m.npz", x=array(4, 16), y=mlp(array(4, 16), mlp_params()), **mlp_params())
    command: list[Any] = [sys.executable, CLIENT, server.port, tmp_path, libraries["layers"]]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
