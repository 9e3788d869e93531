# SPDX-License-Identifier: Apache-2.0
"""``portcall compile``, and models in the place of bundles in other commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper, numpy_helper

from compile.reference import make
from compile.test_models import branches, random
from portcall import compile, errors
from portcall.cli import cli

pytestmark = pytest.mark.peers


def portcall(*words: object, code: int = 0) -> Any:
    """Run the command with ``--json`` in this process, and return the object."""
    done = CliRunner().invoke(cli, [*map(str, words), "--json"])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout)


def started(*words: object) -> Any:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "portcall", *map(str, words), "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    onnx.save(branches(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_compile_then_run(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported, which takes seconds')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    said = started("compile", model, "-o", tmp_path / "m.so")
    assert said["inputs"] == ["a", "b"]
    assert (tmp_path / "m.so").stat().st_size == said["nbytes"]
    np.save(tmp_path / "a.npy", random(3, 12))
    done = portcall("run", tmp_path / "m.so", "--input", f"a=@{tmp_path / 'a.npy'}", "--input", "b=zeros")
    assert list(done["outputs"]) == ["positive", "shares", "same"]


def test_run_compiles_a_model_once_and_again_when_it_changes(model: Path, tmp_path: Path) -> None:
    kept = tmp_path / "cache" / "portcall" / "models"
    for command in (
        ("run", "--fill", "random"),
        ("run", "--fill", "random"),
        ("bench", "--fill", "ones"),
        ("inspect", "--svg", tmp_path / "m.svg"),
    ):
        done = portcall(command[0], model, *command[1:])
        assert command[0] == "inspect" or done["model"] == str(model)
        assert len(list(kept.iterdir())) == 1
    changed = branches()
    changed.producer_name = "another"
    onnx.save(changed, model)
    portcall("run", model, "--fill", "random")
    assert len(list(kept.iterdir())) == 2


def test_run_fixes_shapes_by_the_arrays_where_a_model_needs_them(tmp_path: Path, model: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["bytes"], to=2),
        helper.make_node("ConvInteger", ["bytes", "w"], ["sums"]),
        helper.make_node("Cast", ["sums"], ["y"], to=1),
    ]
    onnx.save(make(nodes, {"x": ["n", 1, 3]}, ["y"], {"w": np.ones((2, 1, 2), "int8")}), model)
    np.save(tmp_path / "x.npy", np.ones((5, 1, 3), "float32"))
    done = portcall("run", model, "--input", f"x=@{tmp_path / 'x.npy'}")
    assert done["outputs"]["y"]["shape"] == [5, 2, 2]
    assert "--shape" in portcall("run", model, "--input", "x=random", code=1)["error"]["next"]
    assert (
        "--runtime graph"
        in portcall("compile", model, "--runtime", "vm", "-o", tmp_path / "m.so", code=1)["error"]["next"]
    )


def test_run_compiles_a_model_that_is_wrong_no_second_time(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def onnx(*_: Any, **options: Any) -> Any:
        asked.append(options["shapes"])
        raise errors.WrongResultsError("on purpose")

    monkeypatch.setattr(compile, "onnx", onnx)
    np.save(tmp_path / "x.npy", random(5, 1, 3))
    told = portcall("run", model, "--input", f"x=@{tmp_path / 'x.npy'}", code=1)
    assert "on purpose" in told["error"]["message"]
    assert asked == [{}]


def test_run_compiles_a_model_for_the_machine_of_a_server(model: Path, tmp_path: Path) -> None:
    portcall("run", model, "--target", "wasm32", "--fill", "random", code=1)  # not this machine's
    (made,) = (tmp_path / "cache" / "portcall" / "models").iterdir()
    assert (made.suffix, made.read_bytes()[:4]) == (".wasm", b"\0asm")


def test_inspect_shows_an_onnx_model_without_the_compiler(tmp_path: Path) -> None:
    """It may be one that cannot be compiled: a shape that is not fixed, an operator that is not known, a branch."""
    weight = numpy_helper.from_array(random(4, 2), "w")
    condition = helper.make_tensor("c", onnx.TensorProto.BOOL, [], [True])
    branch = helper.make_graph([helper.make_node("Relu", ["y"], ["z"])], "b", [], [
        helper.make_tensor_value_info("z", 1, None)])  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        helper.make_node("Constant", [], ["c"], value=condition),
        helper.make_node("If", ["c"], ["v"], then_branch=branch, else_branch=branch),
        helper.make_node("Unheard", ["v"], ["out"], domain="of.mine"),
    ]
    made = helper.make_graph(
        nodes, "m", [helper.make_tensor_value_info("x", 1, ["n", None, 4])],
        [helper.make_tensor_value_info("out", 1, None)], [weight],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("of.mine", 1)]
    onnx.save(helper.make_model(made, opset_imports=opsets), tmp_path / "m.onnx")
    said = portcall("inspect", tmp_path / "m.onnx")
    assert said["inputs"] == [{"name": "x", "type": "float32", "shape": ["n", "?", 4]}]
    assert said["outputs"] == [{"name": "out", "type": "float32", "shape": None}]
    assert said["opsets"] == {"": 17, "of.mine": 1}
    assert said["operators"] == {"Relu": 2, "MatMul": 1, "Constant": 1, "If": 1, "of.mine.Unheard": 1}
    assert (said["weights"], said["weights_nbytes"]) == (2, 4 * 8 + 1)
    shown = CliRunner().invoke(cli, ["inspect", str(tmp_path / "m.onnx")])
    assert (shown.exit_code, "x  float32[n, ?, 4]" in shown.stdout, "x=?x?x4" in shown.stdout) == (0, True, True)
    loaded = "import sys; from portcall.cli import cli; cli(['inspect', sys.argv[1]], standalone_mode=False); "
    program = f"{loaded}assert not {{'tvm', 'portcall.compile'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program, tmp_path / "m.onnx"], check=True, capture_output=True)


def test_compile_says_what_was_not_compared_and_proposes_names(model: Path, tmp_path: Path) -> None:
    words = ("compile", model, "-o", tmp_path / "m.so")
    made = portcall(*words, "--target", "aarch64-linux-gnu")
    assert made["unchecked"]
    assert "check" not in made["steps_s"]
    error = portcall(*words, "--target", "aarch64-linux-gnu:cortex-a5", code=1)["error"]
    assert "did you mean cortex-a" in error["message"]
    onnx.save(open_model("state"), model)
    assert "state" in portcall(*words, "--shape", "stat=2x3", code=1)["error"]["next"]
    assert portcall(*words, "--shape", "nix=2x3", code=1)["error"]["next"] == ""
    started(*words)  # one of the Relax VM's libraries stays loaded
    assert portcall("run", tmp_path / "m.so", "--input", "stat=ones", code=1)["error"]["next"]


def open_model(name: str) -> Any:
    """A model whose input has open dimensions."""
    node = helper.make_node("Relu", [name], ["y"])
    shape = ["n", "m"]
    inputs, outputs = ([helper.make_tensor_value_info(each, onnx.TensorProto.FLOAT, shape)] for each in (name, "y"))
    graph = helper.make_graph([node], "open", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_compile_damaged_model_is_a_user_error(model: Path) -> None:
    model.write_bytes(b"\x08\x07")
    for command in ("compile", "run", "inspect"):
        error = portcall(command, model, code=1)["error"]
        assert error["kind"] == "ModelError"
        assert str(error).count(str(model)) == 1


def test_compile_command_compiles_sources(tmp_path: Path) -> None:
    (tmp_path / "f.c").write_text("int f(void) { return 1; }")
    portcall("compile", tmp_path / "f.c", "-o", tmp_path / "f.so")
    assert (tmp_path / "f.so").is_file()
    (tmp_path / "f.c").write_text("int f(")
    assert portcall("compile", tmp_path / "f.c", "-o", tmp_path / "g.so", code=1)["error"]["kind"] == "CompileError"
    assert not (tmp_path / "g.so").exists()


def test_compile_command_says_what_to_do(model: Path, tmp_path: Path) -> None:
    output = tmp_path / "m.so"
    error = portcall("compile", model, "-o", output, "--shape", "nix=1", code=1)["error"]
    assert (error["kind"], "'nix'" in error["message"]) == ("ModelError", True)
    onnx.save(branches(), model, save_as_external_data=True, location="weights", size_threshold=0)
    (tmp_path / "weights").unlink()
    error = portcall("compile", model, "-o", output, code=1)["error"]
    assert str(tmp_path / "weights") in error["message"]
    assert error["next"]
    assert not output.exists()


def test_compile_help_loads_no_compiler() -> None:
    script = "import sys\nfrom portcall.cli import cli\ntry: cli(['compile', '--help'])\nfinally: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.rpartition("\n\n")[2].split()}
    assert not loaded & {"tvm", "onnx", "numpy"}


# ---- Names of the model ----------------------------------------------------------------------------------------------


def named_model() -> Any:
    """Two branches with one kernel, and a chain whose kernel has a long name; nodes of the chain have none."""
    arrays = {"w0": random(8, 8, seed=0), "w1": random(8, 8, seed=1), "b": random(8)}
    weights = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    nodes = []
    for k in range(2):
        nodes.append(helper.make_node("MatMul", ["x", f"w{k}"], [f"m{k}"], f"/side{k}/MatMul"))
        nodes.append(helper.make_node("Relu", [f"m{k}"], [f"r{k}"], f"/side{k}/Relu"))
        nodes.append(helper.make_node("Softmax", [f"r{k}"], [f"s{k}"], f"/side{k}/Softmax"))
    nodes.append(helper.make_node("Concat", ["s0", "s1"], ["a0"], "/joined", axis=0))
    nodes += [helper.make_node("Mul" if k % 2 else "Add", [f"a{k}", "b"], [f"a{k + 1}"]) for k in range(24)]
    nodes.append(helper.make_node("Softmax", ["a24"], ["y"], "/head/Softmax"))
    x, y = (helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", [8, 8]), ("y", [16, 8])))
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_nodes_of_a_compiled_model_are_called_as_those_of_onnx() -> None:
    made = compile.onnx(named_model(), runtime="graph")
    nodes = [node for node in made.graph.nodes if node.function not in ("", "__nop")]
    told = [label for node in nodes for label in node.origin]
    assert sorted(told) == sorted(f"{node.op_type} {node.name or node.output[0]}" for node in named_model().graph.node)
    for node in nodes:
        assert node.origin
        assert node.name in ("y", node.origin[0].partition(" ")[2])
    makers = {entry: node.name for node in made.graph.nodes for entry in node.outputs}
    for k in range(2):  # each side has its own weights, although both have one kernel
        (side,) = (node for node in nodes if f"MatMul /side{k}/MatMul" in node.origin)
        assert f"Relu /side{k}/Relu" in side.origin
        given = [made.params[name] for entry in side.inputs if (name := makers[entry]) in made.params]
        np.testing.assert_array_equal(np.unique(given[0][given[0] != 0]), np.unique(random(8, 8, seed=k)))


def test_inspect_and_profile_name_nodes_and_operators_of_onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    onnx.save(named_model(), tmp_path / "m.onnx")
    words = ["inspect", str(tmp_path / "m.onnx"), "--svg", str(tmp_path / "m.svg")]
    shown = CliRunner().invoke(cli, words).stdout
    table = shown.partition("kernel ")[2].partition("functions ")[0]
    assert "/side1/MatMul" in table
    assert "MatMul + Relu" in table
    assert "Add x 12 + Mul x 12" in table
    assert "fused" not in table
    assert "0 views" not in shown
    assert "0 copies" not in shown
    assert max(len(line) for line in shown.splitlines() if str(tmp_path) not in line) <= 120
    nodes = portcall(*words)["nodes"]
    assert any(node["origin"][:1] == ["MatMul /side0/MatMul"] and node["function"] for node in nodes)
    words = ["bench", str(tmp_path / "m.onnx"), "--fill", "random", "--profile", "--number", "1", "--repeat", "1"]
    profile = CliRunner().invoke(cli, words).stdout.partition("call by call")[2]
    (row,) = (line for line in profile.splitlines() if "MatMul + Relu: " in line)
    assert sorted(row.rpartition(": ")[2].rstrip().split(", ")) == ["/side0/MatMul", "/side1/MatMul"]
