# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="arg-type, dict-item, var-annotated"
"""Executors in this process: inputs, parameters, outputs, devices, threads, and what is refused and how."""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
from portcall import errors, graph
from portcall.graph._module import get_device

pytestmark = pytest.mark.peers
CPU = portcall.cpu()
Register = Callable[..., portcall.PackedFunc]


def aligned(values: Any, offset: int = 0) -> Any:
    """The same array, ``offset`` bytes off a multiple of 64."""
    memory = np.empty(values.nbytes + 128, "uint8")
    start = -memory.ctypes.data % 64 + offset
    made = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    made[...] = values
    return made


@pytest.fixture
def many_module(lib: portcall.Module) -> graph.GraphModule:
    return graph.create(many_json(), lib, CPU)


# ---- Running -------------------------------------------------------------------------------------------------------


def test_run_computes_what_numpy_does(mlp_module: graph.GraphModule) -> None:
    for seed in range(3):
        x = array(4, 16, seed=seed)
        mlp_module.run(x=x)
        close(mlp_module.get_output(0), mlp(x, mlp_params()))


def test_run_handles_every_kind_of_node_and_head(many_module: graph.GraphModule) -> None:
    x, y = array(2, 6), array(2, 3)
    many_module.run(x=x, y=y)
    for index, expected in enumerate(many(x, y)):
        output = many_module.get_output(index)
        assert output.shape == expected.shape
        close(output, expected)


def test_create_takes_a_graph_as_text_bytes_file_or_object(lib: portcall.Module, tmp_path: Path) -> None:
    text = many_json()
    (tmp_path / "m.json").write_text(text)
    for source in (text, text.encode(), tmp_path / "m.json", str(tmp_path / "m.json"), graph.Graph.from_json(text)):
        assert graph.create(source, lib, [CPU]).get_num_outputs() == 6
    with pytest.raises(FileNotFoundError, match=r"'missing\.json'"):
        graph.create("missing.json", lib, CPU)


def test_load_params_takes_a_file_name(lib: portcall.Module, tmp_path: Path) -> None:
    name = str(tmp_path / "m.params")
    graph.save_params_to_file(mlp_params(), name)
    assert {key: array.tolist() for key, array in graph.load_params(name).items()} == {
        key: array.tolist() for key, array in mlp_params().items()
    }
    m = graph.create(mlp_json(), lib, CPU)
    m.load_params(name)
    m.run(x=array(4, 16))
    close(m.get_output(0), mlp(array(4, 16), mlp_params()))
    with pytest.raises(FileNotFoundError, match=r"'missing\.params'"):
        m.load_params("missing.params")


@pytest.mark.parametrize("storage", ["given", "own", "none"])
def test_create_storage_option_chooses_the_plan(lib: portcall.Module, storage: Any) -> None:
    m = graph.create(mlp_json(), lib, CPU, storage=storage)
    m.load_params(mlp_params())
    m.run(x=array(4, 16))
    close(m.get_output(0), mlp(array(4, 16), mlp_params()))


def test_run_calls_kernels_of_the_classic_abi(c_libraries: dict[str, Path]) -> None:
    draft = Model()
    x = draft.input("x", (5,))
    text = draft.json(draft.call("double_parallel", [draft.call("add_one", [x], f32(5))], f32(5)))
    m = graph.create(text, portcall.load_module(c_libraries["classic"]), CPU)
    m.run(x=np.arange(5, dtype="float32"))
    close(m.get_output(0), (np.arange(5) + 1) * 2)


def test_run_converts_booleans_for_classic_kernels(c_libraries: dict[str, Path]) -> None:
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


def test_run_copies_between_two_devices(lib: portcall.Module, fake_device: portcall.Module) -> None:
    lib.import_module(fake_device)
    m = graph.create(two_devices_json(), lib, [CPU, portcall.device("ext_dev")])
    x, w = array(8, 4), array(8, 4, seed=2)
    m.load_params({"w": w})
    for _ in range(2):
        m.run(x=x)
        close(m.get_output(0), two_devices(x, w))
    assert str(m.get_input("w").device) == "ext_dev:0"
    close(m.get_input("w"), w)
    there = portcall.empty((8, 4), device="ext_dev:0").copyfrom(2 * w)
    m.set_input_zero_copy("w", there)
    m.run()
    close(m.get_output(0), two_devices(x, 2 * w))
    with pytest.raises(errors.GraphError, match="lies on cpu:0, not on ext_dev:0"):
        m.set_input_zero_copy("w", portcall.tensor(w))


def test_run_passes_a_kernels_error_on(logging_module: graph.GraphModule, register: Register) -> None:
    def fail(*_: Any) -> None:
        raise KeyError("of the call-back")

    register("portcall_test.log_value", fail)
    with pytest.raises(KeyError, match="of the call-back"):
        logging_module.run(x=array(3))


# ---- Inputs --------------------------------------------------------------------------------------------------------


def test_set_input_takes_name_index_keyword_or_dict(lib: portcall.Module) -> None:
    draft = Model()
    names = ["x:0", "key", "value", "self"]
    inputs = [draft.input(name, (1, 1)) for name in names]
    total = inputs[0]
    for entry in inputs[1:]:
        total = draft.call("add", [total, entry], f32(1, 1))
    m = graph.create(draft.json(total), lib, CPU)
    one, two, three, four = ([[n]] for n in (1.0, 20.0, 300.0, 4000.0))
    m.set_input("x:0", one)
    m.set_input(1, two)
    m.set_input(value=three, self=four)
    m.run()
    assert m.get_output(0).numpy() == 4321
    m.run({"x:0": two}, key=one)
    assert m.get_output(0).numpy() == 4321
    m.set_input("x:0", one, key=two)
    m.set_input({})
    m.set_input()
    m.run()
    assert m.get_output(0).numpy() == 4321


def test_set_input_takes_key_and_value_by_name(mlp_module: graph.GraphModule) -> None:
    x = array(4, 16)
    mlp_module.set_input(key="x", value=x)
    assert (mlp_module.get_input("x").numpy() == x).all()
    with pytest.raises(errors.GraphError, match="key"):
        mlp_module.set_input(key="x")


@pytest.mark.parametrize("offset", [0, 4, 16, 60])
@pytest.mark.parametrize("order", ["C", "F"])
def test_set_input_copies_any_alignment_and_layout(mlp_module: graph.GraphModule, offset: int, order: Any) -> None:
    x = np.asarray(aligned(array(4, 16), offset), order=order)
    x.flags.writeable = False
    mlp_module.run(x=x)
    close(mlp_module.get_output(0), mlp(x, mlp_params()))
    close(mlp_module.get_input("x"), x)


def test_set_input_takes_tensors(mlp_module: graph.GraphModule) -> None:
    mlp_module.run(x=portcall.tensor(array(4, 16)))
    close(mlp_module.get_output(0), mlp(array(4, 16), mlp_params()))


def test_set_input_unknown_name_proposes_similar_ones(mlp_module: graph.GraphModule) -> None:
    with pytest.raises(errors.GraphError, match=r"no input 'w11'; did you mean 'w1'") as caught:
        mlp_module.set_input("w11", array(32, 16))
    assert caught.value.node == "w11"
    with pytest.raises(errors.GraphError, match=r"no input 'data'; there are 'x', 'w1', 'b1', 'w2', 'b2'"):
        mlp_module.run(data=array(4, 16))
    with pytest.raises(errors.GraphError, match=r"no output 'dense1'; did you mean 'dense2'"):
        mlp_module.get_output("dense1")
    for call in (mlp_module.get_input, mlp_module.get_output):
        for index in (-1, 5):
            with pytest.raises(errors.GraphError, match=rf"no (in|out)put {index}; it has \d, from 0"):
                call(index)
    with pytest.raises(TypeError):
        mlp_module.get_input(1.5)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda m: m.set_input("x"), r"'x' takes an array of float32\[4,16\]: got None"),
        (lambda m: m.run("x"), "'x' takes an array"),
        (lambda m: m.load_params({"w1": None}), "'w1' takes an array"),
        (lambda m: m.set_input(x="text"), "'x' takes an array .* could not convert string"),
        (lambda m: m.set_input(x=[[1, 2], [3]]), "'x' takes an array .* inhomogeneous"),
        (lambda m: m.run(array(4, 16)), r"meant by its name or index, as in set_input\('data', x\).*; got ndarray"),
        (lambda m: m.set_input({"x": array(4, 16)}, array(4, 16)), "name or index.*; got dict"),
        (lambda m: m.set_input(None, array(4, 16)), "name or index.*; got NoneType"),
        (lambda m: m.set_input(b"x", array(4, 16)), "name or index.*; got bytes"),
        (lambda m: m.get_output(1.5), "an output is meant by its name or index; got float"),
        (lambda m: m.set_input_zero_copy("x", [[1] * 16] * 4), "'x' takes an array .*: list has no memory"),
        (lambda m: m.set_output_zero_copy(0, [[1] * 10] * 4), "'dense2' takes an array .*: list has no memory"),
        (lambda m: m.load_params(3), "the bytes of parameters, or a file, are expected, got 3"),
        (lambda m: m.share_params(m.clone(), 3), "the bytes of parameters, or a file, are expected, got 3"),
    ],
)
def test_set_input_refuses_other_values_and_names(
    mlp_module: graph.GraphModule, call: Callable[[Any], Any], said: str
) -> None:
    with pytest.raises(errors.ArgumentError, match=said):
        call(mlp_module)
    mlp_module.load_params({})
    mlp_module.set_input({0: array(4, 16)})
    mlp_module.set_input(np.int64(0), array(4, 16))
    mlp_module.run({})
    close(mlp_module.get_output(np.int32(0)), mlp(array(4, 16), mlp_params()))


def test_set_input_refuses_fractions_for_integers(lib: portcall.Module) -> None:
    draft = Model()
    m = graph.create(draft.json(draft.input("n", (2,), "int32"), draft.input("b", (2,), "bool")), lib, CPU)
    for name, kind in (("n", "int32"), ("b", "bool")):
        with pytest.raises(errors.ArgumentError, match=f"{name!r} is of {kind}, got float64"):
            m.set_input(name, [1.5, 2.0])
    with pytest.raises(errors.ArgumentError, match="'n' "):
        m.set_input("n", [2**40, 0])
    m.run(n=[1, -2], b=[True, 0])
    assert m.get_output(0).numpy().tolist() == [1, -2]
    assert m.get_output(1).numpy().tolist() == [True, False]


def test_set_input_never_converts_types(mlp_module: graph.GraphModule) -> None:
    with pytest.raises(errors.ArgumentError, match=r"'x' is of float32, got float64: .*astype\('float32'\)") as caught:
        mlp_module.set_input(x=array(4, 16).astype("float64"))
    assert (caught.value.expected, caught.value.got) == ("float32", "float64")
    with pytest.raises(errors.ArgumentError, match="got int32"):
        mlp_module.run(x=np.zeros((4, 16), "int32"))
    mlp_module.run(x=[[1] * 16] * 4)  # numbers have no type yet
    close(mlp_module.get_output(0), mlp(np.ones((4, 16)), mlp_params()))


def test_set_input_checks_shapes(mlp_module: graph.GraphModule) -> None:
    with pytest.raises(errors.GraphError, match=r"'x' has shape \(4, 16\), got \(64,\): array.reshape\(\(4, 16\)\)"):
        mlp_module.set_input(x=array(64))
    with pytest.raises(errors.GraphError, match=r"got \(4, 15\)$"):
        mlp_module.set_input(x=array(4, 15))


def test_set_input_sets_nothing_if_one_is_wrong(many_module: graph.GraphModule) -> None:
    x, y = array(2, 6), array(2, 3)
    many_module.set_input(x=x, y=y)
    for wrong in (array(3), y.astype("int32")):
        with pytest.raises((errors.GraphError, errors.ArgumentError)):
            many_module.set_input(x=2 * x, y=wrong)
    with pytest.raises(errors.GraphError):
        many_module.set_input(x=2 * x, z=y)
    close(many_module.get_input("x"), x)


def test_run_names_unset_inputs(lib: portcall.Module) -> None:
    m = graph.create(mlp_json(), lib, CPU)
    m.load_params({name: value for name, value in mlp_params().items() if name != "b2"})
    m.set_input(x=array(4, 16))
    with pytest.raises(errors.GraphError, match=r"'b2', float32 \(10,?\), was never set"):
        m.run()


def test_get_input_info_and_get_output_info(mlp_module: graph.GraphModule, many_module: graph.GraphModule) -> None:
    assert mlp_module.get_input_info() == ({"x": (4, 16)}, {"x": "float32"})
    shapes, types = mlp_module.get_param_info()
    assert shapes == {name: value.shape for name, value in mlp_params().items()}
    assert set(types.values()) == {"float32"}
    assert mlp_module.get_output_info() == ({"dense2": (4, 10)}, {"dense2": "float32"})
    assert (mlp_module.get_num_inputs(), mlp_module.get_num_outputs()) == (5, 1)
    assert [mlp_module.get_input_index(name) for name in ("x", "b2", "no")] == [0, 4, -1]
    assert list(many_module.get_input_info()[0]) == ["x", "y"]
    names = ["doubled:0", "floor", "halves:2", "halves:3", "doubled:4", "y"]
    assert list(many_module.get_output_info()[0]) == names
    assert many_module.get_output_info()[1]["floor"] == "int32"
    assert [many_module.get_output_index(name) for name in names] == list(range(6))
    assert [many_module.get_output_index(name) for name in ("doubled", "floor:1", "y:5", "y:4")] == [-1, 1, 5, -1]
    assert many_module.get_input_index("y:1") == -1


def test_get_input_info_agrees_with_the_core(mlp_module: graph.GraphModule, many_module: graph.GraphModule) -> None:
    for m in (mlp_module, many_module):
        for info, told in ((m["get_input_info"](), m.get_input_info()), (m["get_output_info"](), m.get_output_info())):
            assert {name: tuple(shape) for name, shape in dict(info["shape"]).items()} == told[0]
            assert dict(info["dtype"]) == told[1]
        for name in (*m.get_output_info()[0], "floor:1", "dense2:0", "doubled", "x"):
            assert m["get_output_index"](name) == m.get_output_index(name)


# ---- Outputs -------------------------------------------------------------------------------------------------------


def test_get_output_is_a_view_or_a_copy(many_module: graph.GraphModule) -> None:
    x, y = array(2, 6), array(2, 3)
    many_module.run(x=x, y=y)
    view = many_module.get_output(0)
    kept, tensor = np.empty((3, 2), "float32"), portcall.empty((3, 2))
    assert many_module.get_output("doubled:0", out=kept) is kept
    assert many_module.get_output(4, tensor) is tensor
    many_module.run(x=2 * x)
    close(kept, many(x, y)[0])
    close(tensor, many(x, y)[0])
    close(view, many(2 * x, y)[0])
    assert many_module.get_input("y", out=np.empty((2, 3), "float32")).tolist() == y.tolist()
    with pytest.raises(ValueError, match="shape"):
        many_module.get_output(0, out=np.empty((2, 3), "float32"))
    with pytest.raises(TypeError, match="types"):
        many_module.get_output(1, out=np.empty((2, 3), "float32"))


def test_run_from_inputs_returns_all_outputs(many_module: graph.GraphModule) -> None:
    x, y = array(2, 6), array(2, 3)
    outputs = many_module.run_from_inputs({"x": x}, y=y)
    many_module.run(x=0 * x)
    for output, expected in zip(outputs, many(x, y), strict=True):
        close(output, expected)


def test_debug_get_output_needs_the_debug_executor(mlp_module: graph.GraphModule) -> None:
    with pytest.raises(NotImplementedError, match="create_debug"):
        mlp_module.debug_get_output(0)


# ---- Zero copy -----------------------------------------------------------------------------------------------------


def test_set_input_zero_copy_uses_the_callers_memory(mlp_module: graph.GraphModule) -> None:
    x, y = aligned(array(4, 16)), portcall.empty((4, 10))
    mlp_module.set_input_zero_copy("x", x)
    mlp_module.set_output_zero_copy(0, y)
    for factor in (1, 2):
        x *= factor
        mlp_module.run()
        close(y, mlp(x, mlp_params()))
    assert mlp_module.get_output(0).data_ptr == y.data_ptr
    assert mlp_module.get_input("x").data_ptr == x.ctypes.data


def test_set_input_does_not_write_zero_copy_memory(mlp_module: graph.GraphModule) -> None:
    x = aligned(array(4, 16))
    mlp_module.set_input_zero_copy("x", x)
    mlp_module.run(x=2 * x)
    close(x, array(4, 16))
    close(mlp_module.get_output(0), mlp(2 * x, mlp_params()))


def test_set_input_zero_copy_keeps_the_memory(mlp_module: graph.GraphModule) -> None:
    mlp_module.set_input_zero_copy("x", aligned(array(4, 16)))
    gc.collect()
    mlp_module.run()
    close(mlp_module.get_output(0), mlp(array(4, 16), mlp_params()))


def test_set_output_zero_copy_through_views_and_twice(many_module: graph.GraphModule) -> None:
    x, y = array(2, 6), aligned(array(2, 3))
    out = portcall.empty((3, 2))
    many_module.set_input_zero_copy("y", y)
    many_module.set_output_zero_copy(0, out)
    many_module.run(x=x)
    for index, expected in enumerate(many(x, y)):
        close(many_module.get_output(index), expected)
    close(out, many(x, y)[0])


def test_set_input_zero_copy_names_the_failed_condition(
    mlp_module: graph.GraphModule, many_module: graph.GraphModule
) -> None:
    x = aligned(array(4, 16))
    for value, text in [
        (aligned(x, 4), "4 bytes off a multiple of 64"),
        (aligned(x, 48), "48 bytes off a multiple of 64"),
        (np.asarray(x, order="F"), "not compact"),
        (aligned(array(4, 32))[:, ::2], "not compact"),
        (aligned(array(16, 4)), r"has shape \(4, 16\), got \(16, 4\)"),
    ]:
        with pytest.raises(errors.GraphError, match=text):
            mlp_module.set_input_zero_copy("x", value)
    with pytest.raises(errors.ArgumentError, match="float32, got int32"):
        mlp_module.set_input_zero_copy(0, x.view("int32"))
    y = aligned(array(4, 10))
    y.flags.writeable = False
    with pytest.raises(errors.GraphError, match="read-only"):
        mlp_module.set_output_zero_copy(0, y)
    with pytest.raises(errors.GraphError, match="input 'y' itself"):
        many_module.set_output_zero_copy("y", portcall.empty((2, 3)))
    with pytest.raises(errors.GraphError, match="no output 'relu'"):
        mlp_module.set_output_zero_copy("relu", y)


# ---- Parameters ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["blob", "bytearray", "memoryview", "dict", "path", "file", "the core"])
def test_load_params_takes_blobs_dicts_and_files(lib: portcall.Module, tmp_path: Path, how: str) -> None:
    m = graph.create(mlp_json(), lib, CPU)
    params = mlp_params()
    blob = graph.save_params(params)
    (tmp_path / "m.params").write_bytes(blob)
    if how == "the core":
        m["load_params"](blob)
    else:
        given: Any = {
            "blob": blob, "bytearray": bytearray(blob), "memoryview": memoryview(blob), "dict": params,
            "path": tmp_path / "m.params",
            "file": graph.load_params_from_file(tmp_path / "m.params"),
        }[how]  # fmt: skip
        m.load_params(given)
    m.run(x=array(4, 16))
    close(m.get_output(0), mlp(array(4, 16), mlp_params()))
    assert set(m.get_param_info()[0]) == set(params)


def test_load_params_copies_the_callers_arrays(lib: portcall.Module) -> None:
    m = graph.create(mlp_json(), lib, CPU)
    params = {name: aligned(value) for name, value in mlp_params().items()}
    m.load_params(params)
    params["w1"] *= 0
    m.run(x=array(4, 16))
    close(m.get_output(0), mlp(array(4, 16), mlp_params()))


def test_load_params_reports_unknown_parameters(mlp_module: graph.GraphModule) -> None:
    more = {f"more{n}": array(1) for n in range(10)}
    with pytest.warns(graph.UnexpectedParamsWarning, match=r"10 parameters: 'more0', .*'more7', …") as caught:
        mlp_module.load_params({**more, **mlp_params(1)})
    assert caught[0].filename == __file__
    mlp_module.run(x=array(4, 16))
    close(mlp_module.get_output(0), mlp(array(4, 16), mlp_params(1)))


@pytest.mark.parametrize("how", ["blob", "dict", "file"])
def test_load_params_loads_nothing_if_one_is_wrong(mlp_module: graph.GraphModule, tmp_path: Path, how: str) -> None:
    for wrong, error in [(array(1, 10), errors.GraphError), (array(10).astype("float64"), errors.ArgumentError)]:
        params = {**mlp_params(1), "b2": wrong}
        graph.save_params_to_file(params, tmp_path / "m.params")
        given = {"blob": graph.save_params(params), "dict": params,
                 "file": graph.load_params_from_file(tmp_path / "m.params")}[how]  # fmt: skip
        with pytest.raises(error, match="'b2'"):
            mlp_module.load_params(given)
    mlp_module.run(x=array(4, 16))
    close(mlp_module.get_output(0), mlp(array(4, 16), mlp_params()))


def test_clone_shares_parameters_only(mlp_module: graph.GraphModule) -> None:
    clone = mlp_module.clone()
    for name in mlp_params():
        assert clone.get_input(name).data_ptr == mlp_module.get_input(name).data_ptr
    with pytest.raises(errors.GraphError, match=r"'x'.* never set"):
        clone.run()
    clone.run(x=array(4, 16))
    mlp_module.run(x=array(4, 16, seed=9))
    close(clone.get_output(0), mlp(array(4, 16), mlp_params()))
    clone.set_input(b2=array(10, seed=5))  # its own from now on
    mlp_module.run()
    close(mlp_module.get_output(0), mlp(array(4, 16, seed=9), mlp_params()))


def test_share_params_with_another_executor(lib: portcall.Module, mlp_module: graph.GraphModule) -> None:
    other = graph.create(mlp_json(), lib, CPU)
    other.share_params(mlp_module)
    some = graph.create(mlp_json(), lib, CPU)
    some.share_params(mlp_module.module, graph.save_params({"w1": array(32, 16), "b1": array(32)}))
    assert set(some.get_param_info()[0]) == {"w1", "b1"}
    assert other.get_input("w1").data_ptr == some.get_input("w1").data_ptr == mlp_module.get_input("w1").data_ptr
    with pytest.warns(graph.UnexpectedParamsWarning, match="'w3'"):
        some.share_params(mlp_module, graph.save_params({"w3": array(1), "w2": array(10, 32), "b2": array(10)}))
    with pytest.raises(errors.GraphError, match="input 'w1' is not a parameter of the other executor: load it there"):
        some.share_params(graph.create(mlp_json(), lib, CPU), graph.save_params({"w1": array(32, 16)}))
    del mlp_module
    gc.collect()
    for m in (other, some):
        m.run(x=array(4, 16))
        close(m.get_output(0), mlp(array(4, 16), mlp_params()))


def test_graph_executor_create_takes_a_lookup_function(lib: portcall.Module, client_functions: None) -> None:
    storage = ["x", "w1", "b1", "", "", "w2", "b2"]
    params = {name: aligned(value) for name, value in mlp_params().items()}
    lookup = portcall.convert(
        lambda sid: ctypes.c_void_p(params[storage[sid]].ctypes.data) if storage[sid] in params else None
    )
    m = graph.GraphModule(portcall.get_global_func("tvm.graph_executor.create")(mlp_json(), lib, lookup, 1, 0))
    assert set(m.get_param_info()[0]) == set(params)
    m.run(x=array(4, 16))
    close(m.get_output(0), mlp(array(4, 16), mlp_params()))


# ---- Threads -------------------------------------------------------------------------------------------------------


def test_clone_runs_in_another_thread(mlp_module: graph.GraphModule) -> None:
    def work(number: int) -> None:
        clone = mlp_module.clone()
        x = array(4, 16, seed=number)
        for _ in range(50):
            clone.run(x=x)
            close(clone.get_output(0), mlp(x, mlp_params()))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


def test_run_in_a_second_thread_is_refused(logging_module: graph.GraphModule, register: Register) -> None:
    entered, leave = threading.Event(), threading.Event()

    def wait(*_: Any) -> None:
        entered.set()
        assert leave.wait(60)

    register("portcall_test.log_value", wait)
    m = logging_module
    m.set_input(x=array(3))
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(m.run)
        assert entered.wait(60)
        try:
            for refused in (m.run, lambda: m.set_input(x=array(3)), lambda: m.get_output(0), m.clone):
                with pytest.raises(RuntimeError, match=r"clone\(\)"):
                    refused()
            assert m.get_num_inputs() == 1
        finally:
            leave.set()
        running.result()
    m.run()


# ---- The module itself ---------------------------------------------------------------------------------------------


def test_graph_module_wraps_a_module(mlp_module: graph.GraphModule) -> None:
    assert mlp_module.module.type_key == "GraphExecutor"
    mlp_module["set_input"]("x", array(4, 16))
    mlp_module["run"]()
    again = graph.GraphModule(mlp_module.module)
    close(again.get_output("dense2"), mlp(array(4, 16), mlp_params()))
    assert again.get_input_info() == mlp_module.get_input_info()
    assert repr(again) == "<portcall.graph.GraphModule of 8 nodes, 5 inputs, 1 outputs>"
    with pytest.raises(errors.FunctionNotFoundError, match=r"'set_inputs'.*did you mean 'set_input'"):
        mlp_module["set_inputs"]


def test_run_looks_nothing_up(mlp_module: graph.GraphModule) -> None:
    mlp_module.set_input(x=array(4, 16))
    mlp_module.module = None  # type: ignore[assignment]
    with portcall.testing.no_leaks():
        for _ in range(3):
            mlp_module.run()
    close(mlp_module.get_output(0), mlp(array(4, 16), mlp_params()))


def test_graph_module_refuses_other_modules(lib: portcall.Module, mlp_module: graph.GraphModule) -> None:
    for wrong in (lib, mlp_module, None):
        with pytest.raises(ValueError, match=r"an executor of a graph.*graph\.create"):
            graph.GraphModule(wrong)


def test_create_refuses_other_values(lib: portcall.Module) -> None:
    for source in ({"nodes": []}, None, graph.GraphBuilder()):
        with pytest.raises(errors.ArgumentError, match=f"a path or a Graph, got {type(source).__name__}"):
            graph.create(source, lib, CPU)
    for library in (None, "kernels.so"):
        with pytest.raises(errors.ArgumentError, match=r"such as portcall\.load_module\('kernels\.so'\), got"):
            graph.create(mlp_json(), library, CPU)


def test_create_proposes_a_kernel_with_a_similar_name(lib: portcall.Module) -> None:
    with pytest.raises(errors.GraphError, match=r"'rellu'.*; did you mean 'relu'\?$"):
        graph.create(mlp_json().replace('"relu"', '"rellu"'), lib, portcall.cpu())
    with pytest.raises(errors.GraphError) as caught:
        graph.create(mlp_json().replace('"relu"', '"entirely_different"'), lib, portcall.cpu())
    assert "did you mean" not in str(caught.value)


def test_create_names_a_missing_kernel(lib: portcall.Module) -> None:
    draft = Model()
    text = draft.json(draft.call("rely", [draft.input("x", (1, 1))], f32(1, 1)))
    with pytest.raises(errors.GraphError, match=r"rely"):
        graph.create(text, lib, CPU)


def test_create_refuses_a_missing_device(lib: portcall.Module) -> None:
    with pytest.raises(errors.DeviceError):
        graph.create(mlp_json(), lib, portcall.device("vulkan"))


# ---- Devices -------------------------------------------------------------------------------------------------------


def test_get_device_lists_devices_flat(lib: portcall.Module) -> None:
    cuda = portcall.cuda(1)
    assert get_device(lib, CPU) == ([CPU], 0, [1, 0])
    assert get_device(lib, [CPU, cuda]) == ([CPU, cuda], 0, [1, 0, 2, 1])
    for wrong in ("cpu", 1, None, [], ["cpu"], [CPU, 1], {CPU}):
        with pytest.raises(ValueError, match="a device or a list of devices"):
            get_device(lib, wrong)


def test_create_refuses_devices_of_another_session(lib: portcall.Module, libraries: dict[str, Path]) -> None:
    with portcall.rpc.LocalSession() as one, portcall.rpc.LocalSession() as other:
        theirs = one.load_module(one.upload(libraries["layers"]))
        devices, remote, flat = get_device(theirs, [one.cpu(), one.device("ext_dev", 1)])
        assert (remote, flat) == (2, [1, 0, 12, 1])
        assert devices == [one.cpu(), one.device("ext_dev", 1)]
        for library, given, text in [
            (lib, [CPU, one.cpu()], "Either all or none of the devices should be rpc."),
            (theirs, [one.cpu(), CPU], "Either all or none of the devices should be rpc."),
            (theirs, CPU, "belongs to a session"),
            (lib, one.cpu(), "library of this process"),
            (theirs, other.cpu(), "another session"),
            (theirs, [one.cpu(), other.cpu()], "another session"),
        ]:
            with pytest.raises(ValueError, match=text):
                get_device(library, given)
        del theirs
