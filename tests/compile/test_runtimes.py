# SPDX-License-Identifier: Apache-2.0
"""Models that a graph cannot hold are compiled for the Relax VM."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from click.testing import CliRunner, Result
from onnx import TensorProto, helper

import portcall
from compile.reference import make
from portcall import compile, errors
from portcall.cli import cli
from portcall.vm import VirtualMachine

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("vm_pools")]
WEIGHT = np.arange(12, dtype="float32").reshape(4, 3)
Extents = list[Any]


def model(op: str, shape: Extents, result: Extents, kind: int = TensorProto.FLOAT, weight: bool = False) -> Any:
    """A model of one operator."""
    weights = [onnx.numpy_helper.from_array(WEIGHT, "w")] if weight else []
    graph = helper.make_graph(
        [helper.make_node(op, ["x", *("w" for _ in weights)], ["y"])], op,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", kind, result)], weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def product(rows: int | str = "n") -> Any:
    return model("MatMul", [rows, 4], [rows, 3], weight=True)


def found() -> Any:
    return model("NonZero", [2, 4], [2, "k"], TensorProto.INT64)


@pytest.mark.parametrize("make", [product, found])
def test_onnx_uses_the_machine_for_what_graphs_lack(make: Any) -> None:
    with pytest.raises(errors.ModelError):
        compile.onnx(make(), runtime="graph")
    made = compile.onnx(make())
    assert isinstance(made, compile.CompiledExecutable)
    assert made.reason
    machine = made.load()
    for rows in (2,) if make is found else (1, 2, 5):
        x = np.arange(rows * 4, dtype="float32").reshape(rows, 4)
        expected = np.stack(x.nonzero()) if make is found else x @ WEIGHT
        np.testing.assert_allclose(machine(x).numpy(), expected, rtol=1e-6)


def test_onnx_branches() -> None:
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(op, ["x"], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4])],
        )
        for name, op in (("then", "Relu"), ("else", "Neg"))
    }
    given = model("Relu", [4], [4])
    given.graph.node[0].CopyFrom(helper.make_node("If", ["c"], ["y"], **branches))
    given.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    machine = compile.onnx(given, runtime="vm").load()
    x = np.array([-1, 2, -3, 4], "float32")
    for c, expected in ((True, np.maximum(x, 0)), (False, -x)):
        np.testing.assert_array_equal(machine(x, np.array(c)).numpy(), expected)


def test_onnx_prefers_a_graph() -> None:
    assert isinstance(compile.onnx(product(2), check=False), compile.CompiledModel)
    assert isinstance(compile.onnx(product(), shapes={"x": (2, 4)}, check=False), compile.CompiledModel)
    made = compile.onnx(product(2), runtime="vm")
    assert isinstance(made, compile.CompiledExecutable)
    assert (made.reason, dict(made.inputs)) == ("", {"x": "float32[2, 4]"})


def test_shapes_may_be_given_for_some_inputs() -> None:
    made = compile.onnx(product(), shapes={"x": (3, 4)}, check=False, runtime="vm")
    assert dict(made.inputs) == {"x": "float32[3, 4]"}
    with pytest.raises(RuntimeError):
        made.load()(np.zeros((2, 4), "float32"))
    for shapes in ({"x": (2, 5)}, {"y": (1, 4)}):
        with pytest.raises(errors.ModelError):
            compile.onnx(product(), shapes=shapes, runtime="vm")


def test_onnx_refusal_has_both_reasons(tmp_path: Path) -> None:
    unknown = model("Frob", ["n", 4], ["n", 3])
    with pytest.raises(errors.ModelError) as caught:
        compile.onnx(unknown)
    assert str(caught.value).count("Frob") == 1
    assert "'x'" in str(caught.value)
    (tmp_path / "m.onnx").write_bytes(b"damaged")
    with pytest.raises(errors.ModelError, match="not an ONNX model"):
        compile.onnx(tmp_path / "m.onnx")
    with pytest.raises(ValueError, match="runtime"):
        compile.onnx(product(), runtime="other")  # type: ignore[call-overload]
    for options in ({"threads": 0}, {"winograd": "f3"}):  # those of graphs too, whatever the runtime
        with pytest.raises(ValueError, match=next(iter(options))):
            compile.onnx(product(), runtime="vm", **options)


def test_onnx_checks_the_executable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VirtualMachine, "__call__", lambda self, x: portcall.tensor(np.asarray(x) @ WEIGHT + 1))
    with pytest.raises(errors.ModelError, match="onnxruntime"):
        compile.onnx(product(), runtime="vm")
    compile.onnx(product(), check=False, runtime="vm")


def branch() -> Any:
    """A module of Relax with an if."""
    import tvm
    from tvm.script import ir as ir_script
    from tvm.script import relax as relax_script

    source = """
@I.ir_module
class Branch:
    @R.function
    def main(c: R.Tensor((), "bool"), x: R.Tensor((4,), "float32")) -> R.Tensor((4,), "float32"):
        if c:
            y = R.add(x, x)
        else:
            y = R.multiply(x, x)
        return y
"""
    return tvm.script.from_source(source, {"I": ir_script, "R": relax_script})


def chosen(machine: portcall.vm.VirtualMachine) -> list[float]:
    x = np.full(4, 3, "float32")
    return [float(machine(c, x).numpy()[0]) for c in (True, False)]


def test_relax_compiles_a_module_with_control_flow(tmp_path: Path) -> None:
    made = compile.relax(branch())
    assert isinstance(made, compile.CompiledExecutable)
    assert made.reason
    path = made.save(tmp_path / "branch.so")
    assert chosen(portcall.vm.create(portcall.load_module(path))) == [6, 9]


def test_relax_makes_system_libraries(tmp_path: Path) -> None:
    made = compile.relax(branch().with_attr("system_lib_prefix", "branch_"), runtime="vm")
    path = made.save(tmp_path / "branch.so")
    program = (  # a process of its own: system libraries stay
        "import sys, numpy as np, portcall\n"
        "portcall.load_module(sys.argv[1])  # whose code registers itself\n"
        "machine = portcall.vm.create(portcall.system_lib('branch_'))\n"
        "print([float(machine(c, np.full(4, 3, 'float32')).numpy()[0]) for c in (True, False)])\n"
    )
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
    assert done.stdout == "[6.0, 9.0]\n"


def command(*words: object) -> dict[str, Any]:
    result = CliRunner().invoke(cli, [*map(str, words), "--json"])
    assert result.exit_code == 0, result.output
    facts: dict[str, Any] = json.loads(result.stdout)
    return facts


def test_compile_command_compiles_verifies_and_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    onnx.save(product(), tmp_path / "m.onnx")
    facts = command("compile", tmp_path / "m.onnx", "-o", tmp_path / "m.so")
    assert (facts["runtime"], facts["inputs"]) == ("vm", {"x": "float32[n, 4]"})
    assert command("verify", tmp_path / "m.so", "--against", tmp_path / "m.onnx")["ok"]
    x = np.ones((5, 4), "float32")
    np.save(tmp_path / "x.npy", x)
    for file in ("m.so", "m.onnx"):  # the latter by way of the cache
        command("run", tmp_path / file, "--arg", f"@{tmp_path}/x.npy", "--output", tmp_path / "y.npz")
        with np.load(tmp_path / "y.npz") as saved:
            np.testing.assert_allclose(saved["result"], x @ WEIGHT, rtol=1e-6)
    facts = command("compile", tmp_path / "m.onnx", "-o", tmp_path / "m.so", "--shape", "x=2x4")
    assert facts["inputs"] == ["x"]
    assert CliRunner().invoke(cli, ["compile", str(tmp_path / "m.onnx"), "--runtime", "graph"]).exit_code != 0


@pytest.mark.parametrize("runtime", ["graph", "vm"])
def test_verify_takes_inputs_as_run_and_bench_do(tmp_path: Path, runtime: Literal["graph", "vm"]) -> None:
    model = make([helper.make_node("Add", ["x", "y"], ["z"])], {"x": (2, 3), "y": (1,)}, ["z"])
    onnx.save(model, tmp_path / "m.onnx")
    np.save(tmp_path / "x.npy", np.ones((2, 3), "float32"))
    portcall.compile.onnx(model, runtime=runtime).save(tmp_path / "m.so")
    ends = {"verify": ("--against", tmp_path / "m.onnx"), "run": (), "bench": ("--number", 1, "--repeat", 1)}

    def command(name: str, x: str, y: str) -> Result:
        words = (name, tmp_path / "m.so", "--input", f"x={x}", "--input", f"y={y}", *ends[name])
        return CliRunner().invoke(cli, [str(word) for word in words])

    for name in ends:
        for x, y in ((f"@{tmp_path}/x.npy", "3"), ("random", "float32:3"), ("ones:float32[2,3]", "random")):
            assert command(name, x, y).exit_code == 0
        for x in ("nonsense", "str:3"):
            refused = command(name, x, "3")
            assert refused.exit_code == 1
            assert "'x'" in refused.stderr
            assert "int64:3" in refused.stderr


def test_compile_advises_inputs_that_run(tmp_path: Path) -> None:
    model = make([helper.make_node("Add", ["x", "y"], ["z"])], {"x": ("n", 3), "y": (1,)}, ["z"])
    onnx.save(model, tmp_path / "m.onnx")
    for words in ((), ("--shape", "x=2x3")):
        made = CliRunner().invoke(cli, ["compile", f"{tmp_path}/m.onnx", "-o", f"{tmp_path}/m.so", *words])
        advice = shlex.split(made.stdout.splitlines()[-1].removeprefix("next: portcall "))
        assert CliRunner().invoke(cli, advice).exit_code == 0
