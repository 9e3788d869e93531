# SPDX-License-Identifier: Apache-2.0
"""What is compiled is compared with onnxruntime: when it is made, and by ``portcall verify``."""

from __future__ import annotations

import copy
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper

import portcall
from compile import encoder
from compile.reference import check, make
from compile.test_models import branches, random
from portcall.cli import cli
from portcall.compile import _math, _verify
from portcall.errors import CompileError, ModelError, ModuleLoadError, WrongResultsError
from portcall.inspect import check_file

pytestmark = pytest.mark.peers


def spoiled(made: Any, number: int) -> Any:
    """Return a compiled model with other weights in one of its kernels, counted among those of the weights."""
    params = dict(made.params)
    name = [name for name, array in params.items() if array.size > 1000][number]
    params[name] = params[name] * np.float32(1.1)
    return dataclasses.replace(made, params=params)


def test_verify_names_the_node_where_a_difference_begins() -> None:
    model = encoder.build(16, 32, 2, 1)
    made = portcall.compile.onnx(model, runtime="graph")
    found = portcall.compile.verify(made.load(), model)
    assert found.ok
    assert found.worst < 1e-5
    assert found.first == ""
    wrong = spoiled(made, -1)
    found = portcall.compile.verify(wrong, model)
    assert not found.ok
    last = [node for node in made.graph.nodes if node.function and "matmul" in node.function][-1]
    assert found.first == last.name


def test_verify_command_names_the_first_difference(tmp_path: Path) -> None:
    model = branches()
    onnx.save(model, tmp_path / "m.onnx")
    made = portcall.compile.onnx(model, runtime="graph")
    made.save(tmp_path / "right.so")
    params = {name: array * np.float32(1.5) for name, array in made.params.items()}
    dataclasses.replace(made, params=params).save(tmp_path / "wrong.so")
    for name, code in (("right.so", 0), ("wrong.so", 1)):
        words = [
            sys.executable,
            "-m",
            "portcall",
            "verify",
            tmp_path / name,
            "--against",
            tmp_path / "m.onnx",
            "--json",
        ]
        done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
        assert done.returncode == code
        said = json.loads(done.stdout)
        assert [output["ok"] for output in said["outputs"]] == [code == 0, code == 0, True]
        assert bool(said["first"]) == (code == 1)


def test_verify_refuses_another_model() -> None:
    executor = portcall.compile.onnx(branches(), check=False, runtime="graph").load()
    for change in ("input", "output"):
        model = branches()
        del getattr(model.graph, change)[1]
        if change == "input":
            model.graph.node[0].input[1] = "a"
        with pytest.raises(ModelError, match="another model"):
            portcall.compile.verify(executor, model)


def test_verify_refuses_wrong_inputs() -> None:
    model = branches()
    executor = portcall.compile.onnx(model, check=False, runtime="graph").load()
    for name, shape in (("nix", (3, 12)), ("a", (3, 13))):
        with pytest.raises(ModelError, match=f"'{name}'"):
            portcall.compile.verify(executor, model, {name: random(*shape)})


def test_onnx_refuses_a_wrong_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    model = branches()
    portcall.compile.onnx(model, runtime="graph")
    right = _math.exp
    monkeypatch.setitem(_math._FLOAT32, "exp", lambda x: right(x) * _math._c(1.5) + _math._c(1.0))
    with pytest.raises(ModelError, match="shares"):
        portcall.compile.onnx(model, runtime="graph")
    portcall.compile.onnx(model, check=False, runtime="graph")


def test_onnx_goes_to_no_other_runtime_after_a_wrong_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = branches()
    right = _math.exp
    monkeypatch.setitem(_math._FLOAT32, "exp", lambda x: right(x) * _math._c(1.5) + _math._c(1.0))
    with pytest.raises(WrongResultsError) as caught:
        portcall.compile.onnx(model)
    assert isinstance(caught.value.made, portcall.compile.CompiledModel)
    onnx.save(model, tmp_path / "m.onnx")
    result = CliRunner().invoke(cli, ["compile", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "m.so")])
    assert result.exit_code == 1
    assert [path.name for path in tmp_path.glob("*.so")] == ["m.wrong.so"]
    assert "portcall verify" in result.stderr


@pytest.mark.parametrize(
    ("raised", "told"),
    [(ModelError, WrongResultsError), (AssertionError, WrongResultsError), (CompileError, CompileError)],
)
def test_onnx_goes_to_no_other_runtime_after_an_error_in_the_check(
    monkeypatch: pytest.MonkeyPatch, raised: type[Exception], told: type[Exception]
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise raised("on purpose")

    monkeypatch.setattr(_verify, "compare_graph", fail)
    with pytest.raises(told, match="on purpose"):
        portcall.compile.onnx(branches())


def test_a_model_says_whether_it_was_compared() -> None:
    model = branches()
    assert portcall.compile.onnx(model, runtime="graph").unchecked == ""
    assert portcall.compile.onnx(model, check=False, runtime="graph").unchecked != ""
    assert portcall.compile.onnx(model, "riscv64-linux-gnu", runtime="graph").unchecked != ""
    assert portcall.compile.onnx(model, "x86_64-linux-gnu:x86-64", runtime="graph").unchecked == ""


def test_inputs_of_integers_have_the_range_of_what_reads_them() -> None:
    nodes = [
        helper.make_node("Unsqueeze", ["ids", "axis"], ["more"]),
        helper.make_node("Gather", ["table", "more"], ["rows"]),
        helper.make_node("OneHot", ["kinds", "depth", "values"], ["hot"]),
        helper.make_node("Cast", ["bytes"], ["floats"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Clip", ["floats", "", "most"], ["clipped"]),
        helper.make_node("Cast", ["mask"], ["kept"], to=onnx.TensorProto.FLOAT),
    ]
    constants = {"axis": np.array([0]), "table": random(50, 4), "depth": np.array(257), "values": random(2),
                 "most": np.float32(7)}  # fmt: skip
    names = ("ids", "kinds", "bytes", "mask")
    model = make(nodes, dict.fromkeys(names, (64,)), ["rows", "hot", "clipped", "kept"], constants, dtype="int64")
    assert _verify.integer_limits(model) == {"ids": 50, "kinds": 257, "bytes": 8}
    found = _verify.random_inputs(dict.fromkeys(names, (64,)), dict.fromkeys(names, "int64"), 0, model)
    assert 2 < found["ids"].max() < 50
    assert found["mask"].max() == 1


def test_results_near_zero_are_compared_with_what_rounding_leaves() -> None:
    small, other = np.array([5.7e-7], "float32"), np.array([6.2e-7], "float32")
    assert _verify.compare([small], {"y": other}, 1e-4).ok
    assert not _verify.compare([small * 1000], {"y": other * 1000}, 1e-4).ok


def test_onnx_transformer_encoder() -> None:
    model = encoder.build()
    made = check(model, {"x": random(1, 32, 64)})
    assert made.kernels.get("default", 0) == 0
    check(model, {"x": random(1, 32, 64)}, threads=2)


def test_verify_takes_products_of_bytes_from_kernels_that_do_not_saturate() -> None:
    """Signed weights become unsigned ones: the same numbers, and right on processors without VNNI."""
    weights = np.array([[-128, 127], [3, -5]], "int8")
    scales = {"zx": np.uint8(7), "w": weights, "zw": np.int8(-3)}
    nodes = [
        onnx.helper.make_node("MatMulInteger", ["q", "w", "zx", "zw"], ["first"]),
        onnx.helper.make_node("MatMulInteger", ["q", "w"], ["second"]),
    ]
    model = make(nodes, {"q": [2, 2]}, ["first", "second"], scales, dtype="uint8")
    for value in model.graph.output:
        value.type.tensor_type.elem_type = onnx.TensorProto.INT32
    given = np.array([[255, 254], [1, 0]], "uint8")
    found = _verify.reference(model, {"q": given})
    wide = given.astype("int32")
    np.testing.assert_array_equal(found["first"], (wide - 7) @ (weights.astype("int32") + 3))
    np.testing.assert_array_equal(found["second"], wide @ weights.astype("int32"))
    changed = copy.deepcopy(model.graph)
    _verify._without_saturation(changed)
    kinds = {tensor.name: tensor.data_type for tensor in changed.initializer}
    for node in changed.node:
        assert [kinds[node.input[place]] for place in (1, 3)] == [onnx.TensorProto.UINT8] * 2


def test_verify_takes_both_products_of_a_quantized_lstm_from_such_kernels() -> None:
    names = ["x", "w", "r", "b", "", "h", "c", "", "ws", "wz", "rs", "rz"]
    node = onnx.helper.make_node("DynamicQuantizeLSTM", names, ["y"], domain="com.microsoft", hidden_size=2)
    constants = {name: np.zeros((1, 2, 8), "int8") for name in "wr"} | {
        name: np.zeros(1, "int8") for name in ("wz", "rz")
    }
    values = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = onnx.helper.make_graph([node], "g", [], [], values)
    _verify._without_saturation(graph)
    kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
    assert [kinds[graph.node[0].input[place]] for place in (1, 2, 9, 11)] == [onnx.TensorProto.UINT8] * 4


@pytest.mark.campaign
def test_verify_is_right_on_x86_64_without_vnni() -> None:
    """A processor of 2013, which qemu plays: no VNNI, so that onnxruntime's own products of uint8 and int8 saturate."""
    script = Path(__file__).parents[1] / "scripts" / "products_of_bytes.py"
    words = ["qemu-x86_64-static", "-cpu", "Haswell", sys.executable, str(script)]
    subprocess.run(words, check=True, timeout=600)


@pytest.mark.parametrize("runtime", ["graph", "vm"])
def test_verify_takes_what_was_compiled_and_its_file(runtime: Any, tmp_path: Path, vm_pools: None) -> None:
    made = portcall.compile.onnx(branches(), runtime=runtime, check=False)
    for compiled in (made, made.save(tmp_path / "m.so"), made.load()):
        assert portcall.compile.verify(compiled, branches()).ok
    with pytest.raises(TypeError, match="int"):
        portcall.compile.verify(7, branches())


def scaled() -> Any:
    """A model of an array and of a number."""
    return make([helper.make_node("Mul", ["x", "k"], ["y"])], {"x": (2, 3), "k": ()}, ["y"])


def test_verify_uses_the_constants_that_a_bundle_was_compiled_with(tmp_path: Path) -> None:
    model = scaled()
    made = portcall.compile.onnx(model, constants={"k": 3.0}, runtime="graph")
    onnx.save(model, tmp_path / "m.onnx")
    assert portcall.compile.verify(made, model).ok
    assert portcall.compile.verify(made.save(tmp_path / "m.so"), model).ok
    words = ["verify", str(tmp_path / "m.so"), "--against", str(tmp_path / "m.onnx")]
    assert CliRunner().invoke(cli, words).exit_code == 0
    assert CliRunner().invoke(cli, [*words, "--input", "k=4"]).exit_code == 1  # it is 3
    for k in (3, np.int64(3), np.array(3.0)):  # an executor does not have them
        assert portcall.compile.verify(made.load(), model, {"k": k}).ok
    with pytest.raises(ModelError, match="'k'") as caught:
        portcall.compile.verify(made.load(), model)
    assert "inputs=" in caught.value.hint


@pytest.mark.parametrize("runtime", ["graph", "vm"])
def test_verify_says_that_a_file_is_of_another_model(runtime: Any, tmp_path: Path, vm_pools: None) -> None:
    made = portcall.compile.onnx(branches(), runtime=runtime, check=False).save(tmp_path / "m.so")
    with pytest.raises(ModelError, match="another model: the input 'a' is in"):
        portcall.compile.verify(made, scaled())


def test_verify_says_that_a_library_is_for_another_machine(tmp_path: Path) -> None:
    onnx.save(branches(), tmp_path / "m.onnx")
    portcall.compile.onnx(branches(), "aarch64-linux-gnu", runtime="graph").save(tmp_path / "m.so")
    words = [str(tmp_path / "m.so"), "--against", str(tmp_path / "m.onnx"), "--json"]
    error = json.loads(CliRunner().invoke(cli, ["verify", *words]).stdout)["error"]
    ran = json.loads(CliRunner().invoke(cli, ["run", words[0], "--fill", "ones", "--json"]).stdout)["error"]
    assert error == ran
    assert error["kind"] == "ModuleLoadError"


def test_onnx_refuses_shapes_that_do_not_fit_the_model() -> None:
    """A model that is then compiled for the Relax VM fails when it is called."""
    node = helper.make_node("Add", ["x", "w"], ["y"])
    model = make([node], {"x": ("h", "w")}, ["y"], {"w": np.ones((3, 4), "float32")})
    with pytest.raises(ModelError, match=r"Add.*'x' float32\[5, 4\]"):
        portcall.compile.onnx(model, shapes={"x": (5, 4)}, check=False)


def test_a_library_for_the_relax_vm_has_a_seal(tmp_path: Path, vm_pools: None) -> None:
    made = portcall.compile.onnx(scaled(), runtime="vm", check=False).save(tmp_path / "m.so")
    check_file(made)
    data = bytearray(made.read_bytes())
    data[len(data) // 2] ^= 1
    made.write_bytes(data)
    with pytest.raises(ModuleLoadError):
        check_file(made)


@pytest.mark.usefixtures("vm_pools")
@pytest.mark.parametrize("runtime", ["graph", "vm"])
def test_results_that_roundings_decide_accuse_nobody(runtime: Any) -> None:
    """The logistic map doubles a difference at each step; multiplying and adding at once rounds otherwise."""
    nodes = []
    for k in range(80):
        nodes += [
            helper.make_node("Mul", [f"x{k}", f"x{k}"], [f"square{k}"]),
            helper.make_node("Sub", [f"x{k}", f"square{k}"], [f"parabola{k}"]),
            helper.make_node("Mul", [f"parabola{k}", "growth"], [f"x{k + 1}"]),
        ]
    growth = {"growth": np.array(3.9, "float32")}
    begin = [helper.make_node("Sigmoid", ["x"], ["x0"])]
    made = portcall.compile.onnx(make([*begin, *nodes], {"x": [4]}, ["x80"], growth), runtime=runtime)
    assert "rounding" in made.unchecked
