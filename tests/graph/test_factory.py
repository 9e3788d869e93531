# SPDX-License-Identifier: Apache-2.0
"""Factories: modules that carry a graph with its parameters, made here or embedded by TVM's older compilers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from graph import legacy
from graph.models import Model, array, close, f32, mlp, mlp_json, mlp_params
from portcall import errors, graph
from portcall.graph._factory import create_factory, from_bytes

KERNELS = Path(__file__).parents[1] / "kernels"
PARAMS = mlp_params()


@pytest.fixture
def factory(lib: portcall.Module) -> portcall.Module:
    return create_factory(mlp_json(), lib, PARAMS)


def result(module: portcall.Module, x: Any) -> Any:
    made = graph.GraphModule(module)
    made.run(x=x)
    return made.get_output(0)


# ---- Functions -------------------------------------------------------------------------------------------------------


def test_factory_makes_executors_with_parameters(factory: portcall.Module) -> None:
    x = array(4, 16)
    close(result(factory["default"](portcall.cpu()), x), mlp(x, PARAMS))
    close(result(factory(portcall.cpu()), x), mlp(x, PARAMS))
    close(result(factory["debug_create"]("default", portcall.cpu()), x), mlp(x, PARAMS))
    assert factory.type_key == "GraphExecutorFactory"


def test_factory_lists_graph_and_parameters(factory: portcall.Module) -> None:
    assert graph.Graph.from_json(factory["get_graph_json"]()) == graph.Graph.from_json(mlp_json())
    params = factory["get_graph_params"]()
    assert list(params) == list(PARAMS)
    for name, tensor in params.items():
        np.testing.assert_array_equal(tensor.numpy(), PARAMS[name])
    assert factory["get_graph_params_blob"]() == graph.save_params(PARAMS)
    assert "default" in factory.list_function_names()


def test_factory_executors_share_parameter_memory(factory: portcall.Module) -> None:
    first, second = factory["default"](portcall.cpu()), factory["default"](portcall.cpu())
    held = factory["get_graph_params"]()["w1"]
    assert held.data_ptr % 64 == 0
    assert first["get_input"]("w1").data_ptr == second["get_input"]("w1").data_ptr == held.data_ptr


def test_factory_executor_keeps_its_own_new_parameter(factory: portcall.Module) -> None:
    first, second = factory["default"](portcall.cpu()), factory["default"](portcall.cpu())
    zeros = {name: np.zeros_like(value) for name, value in PARAMS.items()}
    for name, value in zeros.items():
        first["set_input"](name, value)
    x = array(4, 16)
    close(result(first, x), mlp(x, zeros))
    close(result(second, x), mlp(x, PARAMS))
    close(result(factory["default"](portcall.cpu()), x), mlp(x, PARAMS))


@pytest.mark.usefixtures("fake_device")
def test_factory_executors_share_one_copy_on_a_device(lib: portcall.Module) -> None:
    model = Model()
    w = model.input("w", (8, 4), device=12)
    text = model.json(model.call("__copy", [w], f32(8, 4)))
    value = array(8, 4)
    made = create_factory(text, lib, {"w": value})
    devices = [portcall.cpu(), portcall.device("ext_dev:0")]
    first, second = made["default"](*devices), made["default"](*devices)
    place = first["get_input"]("w").data_ptr
    assert second["get_input"]("w").data_ptr == place
    del first
    third = made["default"](*devices)
    assert third["get_input"]("w").data_ptr == place
    third["run"]()
    close(third["get_output"](0), value)
    other = made["default"](portcall.cpu(), portcall.device("ext_dev:1"))
    assert other["get_input"]("w").device == portcall.device("ext_dev:1")


def test_factory_copies_unaligned_parameters_once(lib: portcall.Module) -> None:
    odd = {name: np.zeros(value.size + 17, "float32")[1 : 1 + value.size] for name, value in PARAMS.items()}
    for name, value in odd.items():
        value[:] = PARAMS[name].ravel()
    made = create_factory(mlp_json(), lib, {name: odd[name].reshape(PARAMS[name].shape) for name in odd})
    x = array(4, 16)
    close(result(made["default"](portcall.cpu()), x), mlp(x, PARAMS))
    assert all(tensor.data_ptr % 64 == 0 for tensor in made["get_graph_params"]().values())


def test_factory_without_parameters_takes_load_params(factory: portcall.Module) -> None:
    bare = factory["remove_params"]()
    assert dict(bare["get_graph_params"]()) == {}
    assert bare["get_graph_json"]() == factory["get_graph_json"]()
    made = graph.GraphModule(bare["default"](portcall.cpu()))
    with pytest.raises(errors.GraphError, match="w1"):
        made.run(x=array(4, 16))
    made.load_params(factory["get_graph_params_blob"]())
    x = array(4, 16)
    made.run(x=x)
    close(made.get_output(0), mlp(x, PARAMS))
    assert len(factory["get_graph_params"]()) == 4


def test_factory_create_takes_parameters_as_a_blob(lib: portcall.Module) -> None:
    planned = graph.create(mlp_json(), lib, portcall.cpu()).module["get_plan"]()
    make = portcall.get_global_func("portcall.graph.create_factory")
    made = make(planned, lib, mlp_json(), graph.save_params(PARAMS), "mlp")
    x = array(4, 16)
    close(result(made["mlp"](portcall.cpu()), x), mlp(x, PARAMS))
    with pytest.raises(errors.GraphError, match="parameters"):
        make(planned, lib, mlp_json(), bytes(100), "mlp")
    with pytest.raises(errors.GraphError, match="plan"):
        make(planned[:-1], lib, mlp_json(), {}, "mlp")


def test_create_factory_ignores_unknown_parameters(lib: portcall.Module) -> None:
    made = create_factory(mlp_json(), lib, {**PARAMS, "batch_norm": np.zeros(1)})
    x = array(4, 16)
    close(result(made["default"](portcall.cpu()), x), mlp(x, PARAMS))


def test_create_factory_refuses_invalid_arguments(factory: portcall.Module, lib: portcall.Module) -> None:
    with pytest.raises(ValueError, match="has one graph, 'default', not 'other'"):
        factory["debug_create"]("other", portcall.cpu())
    with pytest.raises(ValueError, match="default takes the device to run on"):
        factory["default"]()
    with pytest.raises(ValueError, match="has no kernels: let its factory import their library"):
        create_factory(mlp_json(), None)["default"](portcall.cpu())
    wrong = create_factory(mlp_json(), lib, {"w1": np.zeros(3, "float32")})
    with pytest.raises(errors.GraphError, match="w1"):
        wrong["default"](portcall.cpu())


# ---- Embedded by older compilers -------------------------------------------------------------------------------------


def add_one_json() -> str:
    model = Model()
    return model.json(model.call("add_one", [model.input("p", (4,))], f32(4)))


@pytest.mark.parametrize("kind", ["GraphExecutorFactory", "GraphRuntimeFactory"])
@pytest.mark.parametrize("symbol", [legacy.CLASSIC, legacy.MODERN])
def test_load_module_opens_a_factory_of_apache_tvm(
    kind: str, symbol: str, libraries: dict[str, Path], tmp_path: Path
) -> None:
    code = legacy.layers_object(libraries, tmp_path)
    modules = [(kind, legacy.factory_payload(mlp_json(), PARAMS)), ("_lib", b"")]
    lay_out = legacy.classic_blob if symbol == legacy.CLASSIC else legacy.modern_blob
    path = legacy.link(tmp_path / "legacy.so", [code], symbol, lay_out(modules, [[1], []]))
    opened = portcall.load_module(path)
    x = array(4, 16)
    close(result(opened["default"](portcall.cpu()), x), mlp(x, PARAMS))
    assert opened["get_graph_json"]() == mlp_json()
    assert [m.type_key for m in opened.imported_modules] == ["library"]


def classic_library(tmp_path: Path, modules: list[tuple[str, bytes]], tree: legacy.Tree | None) -> portcall.Module:
    blob = legacy.classic_blob(modules, tree)
    return portcall.load_module(
        legacy.link(tmp_path / "classic.so", [KERNELS / "classic_kernels.c"], legacy.CLASSIC, blob)
    )


P = {"p": np.arange(4, dtype="float32")}


def added(module: portcall.Module) -> list[float]:
    executor = module["default"](portcall.cpu())
    executor["run"]()
    values: list[float] = executor["get_output"](0).numpy().tolist()
    return values


def test_load_module_opens_a_factory_of_the_classic_abi(tmp_path: Path) -> None:
    payload = legacy.factory_payload(add_one_json(), P)
    opened = classic_library(tmp_path, [("GraphExecutorFactory", payload), ("_lib", b"")], [[1], []])
    assert added(opened) == [1, 2, 3, 4]


def test_factory_reaches_imported_modules(tmp_path: Path) -> None:
    payload = legacy.factory_payload(add_one_json(), P)
    device = ("portcall_unknown_kind", b"without a length")
    opened = classic_library(tmp_path, [("GraphRuntimeFactory", payload), ("_lib", b""), device], [[1], [2], []])
    assert added(opened) == [1, 2, 3, 4]
    assert [m.type_key for m in opened.imported_modules] == ["library"]
    assert [m.type_key for m in opened.imported_modules[0].imported_modules] == ["portcall_unknown_kind"]


def test_load_module_opens_a_factory_without_import_tree(tmp_path: Path) -> None:
    payload = legacy.factory_payload(add_one_json(), P)
    assert added(classic_library(tmp_path, [("GraphRuntimeFactory", payload)], None)) == [1, 2, 3, 4]


def test_load_module_opens_a_factory_without_importing_graph(tmp_path: Path) -> None:
    payload = legacy.factory_payload(add_one_json(), P)
    modules = [("GraphExecutorFactory", payload), ("_lib", b"")]
    blob = legacy.classic_blob(modules, [[1], []])
    path = legacy.link(tmp_path / "l.so", [KERNELS / "classic_kernels.c"], legacy.CLASSIC, blob)
    code = (
        "import sys, portcall; assert 'portcall.graph' not in sys.modules\n"
        "made = portcall.load_module(sys.argv[1])['default'](portcall.cpu())\n"
        "made['run'](); print(made['get_output'](0).numpy())"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=600, check=False)
    assert (done.stdout, done.stderr) == ("[1. 2. 3. 4.]\n", "")


@pytest.mark.parametrize("symbol", [legacy.CLASSIC, legacy.MODERN])
def test_read_embedded_does_not_load_the_library(symbol: str, tmp_path: Path) -> None:
    payload = legacy.factory_payload(add_one_json(), P, name="net")
    modules = [("GraphRuntimeFactory", payload), ("_lib", b""), ("unknown", b"of any length")]
    lay_out = legacy.classic_blob if symbol == legacy.CLASSIC else legacy.modern_blob
    path = legacy.link(tmp_path / "l.so", [KERNELS / "classic_kernels.c"], symbol, lay_out(modules, [[1], [2], []]))
    found = graph.read_embedded(path)
    assert found
    assert (found.name, found.json, found.graph) == ("net", add_one_json(), graph.Graph.from_json(add_one_json()))
    assert [(name, str(info.dtype), info.shape) for name, info in found.params.items()] == [("p", "float32", (4,))]
    assert str(path) not in Path("/proc/self/maps").read_text()


def test_read_embedded_finds_no_graph_in_other_libraries(libraries: dict[str, Path], tmp_path: Path) -> None:
    assert graph.read_embedded(libraries["layers"]) is None
    (tmp_path / "text.so").write_text("text")
    for path in (tmp_path / "text.so", tmp_path / "none.so"):
        with pytest.raises(errors.ModuleLoadError, match=r"cannot read library .*\.so'"):
            graph.read_embedded(path)


PAYLOAD = legacy.factory_payload(add_one_json(), P)


@pytest.mark.parametrize("size", [0, 7, 20, len(PAYLOAD) // 2, len(PAYLOAD) - 20, len(PAYLOAD) - 1])
def test_factory_from_bytes_refuses_truncated_bytes(size: int, tmp_path: Path) -> None:
    with pytest.raises(errors.GraphError, match="the embedded graph is damaged at byte"):
        from_bytes(PAYLOAD[:size])
    with pytest.raises(errors.ModuleLoadError, match="embedded"):
        classic_library(tmp_path, [("GraphExecutorFactory", PAYLOAD[:size])], None)


def test_factory_from_bytes_refuses_invalid_graphs(tmp_path: Path) -> None:
    with pytest.raises(errors.GraphError, match="1 bytes follow the end"):
        from_bytes(PAYLOAD + b"x")
    payload = legacy.factory_payload("{}", P)
    with pytest.raises(errors.GraphError, match="nodes"):
        classic_library(tmp_path, [("GraphExecutorFactory", payload), ("_lib", b"")], [[1], []])
    count = legacy.text(add_one_json()) + legacy.number(2) + PAYLOAD[len(legacy.text(add_one_json())) + 8 :]
    with pytest.raises(errors.GraphError, match="2 parameters and 1 names"):
        from_bytes(count)
