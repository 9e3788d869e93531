# SPDX-License-Identifier: Apache-2.0
"""``run``, ``bench`` and ``inspect`` with models: here and on a server, what files mean, and how each failure ends."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from graph import legacy
from graph.models import Model, array, f32, many, many_json, mlp, mlp_json, mlp_params
from portcall import graph, rpc, toolchain

pytestmark = pytest.mark.peers
Invoke = Callable[..., Result]
InvokeJson = Callable[..., dict[str, Any]]
Shell = Callable[..., subprocess.CompletedProcess[str]]
OnTerminal = Callable[..., tuple[int, bytes]]
EXPECTED = mlp(array(4, 16), mlp_params())


@dataclass(frozen=True)
class Files:
    """A folder with a model in each form."""

    folder: Path

    def __call__(self, name: str) -> str:
        return str(self.folder / name)

    def words(self, *words: str) -> list[str]:
        """Return the words of a command with each ``{name}`` as the path of a file."""
        return [word.format_map(_Paths(self.folder)) for word in words]


class _Paths(dict[str, str]):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __missing__(self, name: str) -> str:
        return str(self.folder / name.replace("_", "."))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, libraries: dict[str, Path]) -> Files:
    folder = tmp_path_factory.mktemp("model")
    (folder / "m.json").write_text(mlp_json())
    (folder / "graph.text").write_text("\n " + mlp_json())  # content counts, not its name
    (folder / "many.json").write_text(many_json())
    (folder / "bad.json").write_text(mlp_json().replace('"relu"', '"rellu"'))
    (folder / "cut.json").write_text(mlp_json()[:-20])
    (folder / "kernels.so").write_bytes(libraries["layers"].read_bytes())
    graph.save_params_to_file(mlp_params(), folder / "m.params")
    graph.save_params_to_file({**mlp_params(), "w9": np.zeros(3)}, folder / "more.params")
    graph.save_params_to_file({**mlp_params(), "w2": np.zeros((9, 32), "float32")}, folder / "wrong.params")
    (folder / "cut.params").write_bytes((folder / "m.params").read_bytes()[:-9])
    graph.export_bundle(folder / "bundle.so", mlp_json(), folder / "kernels.so", mlp_params(), name="mlp")
    payload = legacy.factory_payload(mlp_json(), mlp_params(), name="net")
    code = legacy.layers_object(libraries, folder)
    for name, bytes_ in (("tvm.so", payload), ("broken.so", payload[:100])):
        modules = [("GraphExecutorFactory", bytes_), ("_lib", b"")]
        legacy.link(folder / name, [code], legacy.MODERN, legacy.modern_blob(modules, [[1], []]))
    np.save(folder / "x.npy", array(4, 16))
    np.save(folder / "x64.npy", array(4, 16).astype("float64"))
    np.save(folder / "nan.npy", np.where(array(4, 16) > 0, array(4, 16), np.nan).astype("float32"))
    np.savez(folder / "data.npz", x=array(4, 16), other=np.zeros(3))
    np.savez(folder / "ref.npz", dense2=EXPECTED)
    return Files(folder)


@pytest.fixture(scope="module")
def server() -> Iterator[rpc.Server]:
    with rpc.Server(key="k", lost_client_grace=0.5) as running:
        yield running


@pytest.fixture(params=["here", "there"])
def place(request: pytest.FixtureRequest, server: rpc.Server) -> list[str]:
    """Options of a command: none, or those of a server."""
    return ["--rpc", server.address, "--key", "k"] if request.param == "there" else []


# ---- What is run -----------------------------------------------------------------------------------------------------

FORMS = [
    ("{m_json}", "{kernels_so}", "--params", "{m_params}"),
    ("{graph_text}", "{kernels_so}", "--params", "{m_params}"),
    ("{m_json}", "{bundle_so}", "--params", "{m_params}"),
    ("{bundle_so}",),
    ("{bundle_so}", "--params", "{m_params}"),
    ("{tvm_so}",),
]


@pytest.mark.parametrize("form", FORMS, ids=" ".join)
@pytest.mark.parametrize("spec", ["{x_npy}", "@{x_npy}", "{data_npz}:x"])
def test_run_model_computes_what_numpy_does(
    invoke: Invoke, files: Files, place: list[str], tmp_path: Path, form: tuple[str, ...], spec: str
) -> None:
    output = tmp_path / "y.npz"
    result = invoke("run", *files.words(*form, "--input", f"x={spec}"), "--output", output, *place)
    assert result.exit_code == 0, result.output
    first, head, row, saved, *_ = result.stdout.splitlines()
    assert " ran on cpu:0" in first
    assert head.split()[:2] == ["output", "type"]
    assert row.split()[:2] == ["dense2", "float32[4,10]"]
    assert saved == f"saved dense2 to {output}"
    with np.load(output) as content:
        np.testing.assert_allclose(content["dense2"], EXPECTED, rtol=1e-4, atol=1e-5)
    assert invoke("run", *files.words("{bundle_so}", "--input", f"x={spec}"), "--check", output, *place).exit_code == 0


def test_run_model_json_has_the_facts(invoke_json: InvokeJson, files: Files, place: list[str]) -> None:
    answer = invoke_json("run", *files.words("{bundle_so}", "--input", "x={x_npy}", "--check", "{ref_npz}"), *place)
    assert answer["bundle"] == files("bundle.so")
    assert answer["params"] is None
    assert answer["inputs"] == {"x": files("x.npy")}
    assert answer["outputs"]["dense2"]["shape"] == [4, 10]
    assert answer["checks"][0]["ok"] is True
    assert answer["duration_s"] > 0
    assert ("rpc" in answer) == bool(place)


def test_run_model_names_every_output(invoke: Invoke, files: Files, place: list[str], tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=array(2, 6), y=array(2, 3))
    inputs = (f"--input=x={tmp_path}/in.npz:x", f"--input=y=@{tmp_path}/in.npz:y")
    words = files.words("{many_json}", "{kernels_so}", *inputs)
    result = invoke("run", *words, "--output", tmp_path / "out.npz", *place)
    assert result.exit_code == 0, result.output
    with np.load(tmp_path / "out.npz") as content:
        assert list(content) == ["doubled:0", "floor", "halves:2", "halves:3", "doubled:4", "y"]
        for name, expected in zip(content, many(array(2, 6), array(2, 3)), strict=True):
            np.testing.assert_allclose(content[name], expected, rtol=1e-5)


def test_run_calls_a_function_of_a_bundle(invoke: Invoke, files: Files) -> None:
    result = invoke("run", *files.words("{bundle_so}", "mlp", "--arg", "1", "--arg", "0"))
    assert result.exit_code == 0
    assert "returned <portcall.Module of type 'GraphExecutor'" in result.output


def test_run_calls_a_function_named_default(invoke: Invoke, tmp_path: Path) -> None:
    export = "PORTCALL_EXPORT_TYPED(default, [](int64_t a) { return a + 1; })"
    (tmp_path / "k.cc").write_text(f"#include <portcall/portcall.h>\n{export}\n")
    library = toolchain.create_shared(tmp_path / "k.cc", tmp_path / "k.so")
    assert "returned 8 in" in invoke("run", library, "default", "--arg", "7").output


@pytest.mark.parametrize("kind", ["random", "zeros", "ones", "range"])
def test_run_model_fills_missing_inputs(invoke_json: InvokeJson, files: Files, place: list[str], kind: str) -> None:
    words = files.words("{m_json}", "{kernels_so}", "--fill", kind, "--input", "x=ones")
    answer = invoke_json("run", *words, *place)
    assert answer["inputs"] == {"x": "ones", **dict.fromkeys(mlp_params(), kind)}
    if kind == "ones":
        assert answer["outputs"]["dense2"]["max"] == (16 + 1) * 32 + 1
    assert answer["outputs"] == invoke_json("run", *words, *place)["outputs"]  # the seed is the same


@pytest.mark.parametrize(
    ("spec", "value"), [("3", 3), ("float32:2.5", 2.5), ("-1e1", -10), ("ones", 1), ("range:float32[1]", 0)]
)
def test_run_model_takes_a_number_for_an_input_of_one_element(
    invoke_json: InvokeJson, kernels: str, tmp_path: Path, spec: str, value: float
) -> None:
    builder = graph.GraphBuilder()
    builder.output(builder.call("add_one", [builder.input("x", (1,))], (1,)))
    (tmp_path / "m.json").write_text(builder.to_json())
    answer = invoke_json("run", tmp_path / "m.json", kernels, "--input", f"x={spec}")
    assert next(iter(answer["outputs"].values()))["max"] == value + 1


def test_run_model_accepts_odd_input_and_output_names(invoke: Invoke, files: Files, tmp_path: Path) -> None:
    m = Model()
    a = m.input("a=b", (2, 2))
    one = m.call("relu", [a], f32(2, 2), name="file")
    text = m.json(one, m.call("relu", [one], f32(2, 2), name="scope/arr_0:x"))
    (tmp_path / "odd.json").write_text(text)
    out = tmp_path / "o.npz"
    result = invoke("run", tmp_path / "odd.json", files("kernels.so"), "--input", "a=b=ones", "--save", out)
    assert result.exit_code == 0, result.output
    with np.load(out) as content:
        assert list(content) == ["file", "scope/arr_0:x"]
    assert (
        invoke("run", tmp_path / "odd.json", files("kernels.so"), "--input", "a=b=ones", "--check", out).exit_code == 0
    )


def test_run_model_refuses_nan_inputs_and_reports_nan_outputs(invoke: Invoke, files: Files, tmp_path: Path) -> None:
    words = files.words("{many_json}", "{kernels_so}", "--input", "y=zeros", "--input", f"x={tmp_path}/x.npy")
    values = array(2, 6)
    values[0, 0] = np.nan
    np.save(tmp_path / "x.npy", values)
    refused = invoke("run", *words)
    assert refused.exit_code == 1
    assert "the input 'x'" in refused.stderr
    assert "has 1 NaN among its 12 elements" in refused.stderr
    assert "next: --allow-nan" in refused.stderr
    taken = invoke("run", *words, "--allow-nan")
    assert taken.exit_code == 0
    assert "the output 'halves:3' has 1 NaN among its 6 elements" in taken.stderr
    assert "'y'" not in taken.stderr


# ---- bench ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS[2:4], ids=" ".join)
def test_bench_model_times_it_and_its_nodes(
    invoke: Invoke, files: Files, place: list[str], tmp_path: Path, form: tuple[str, ...]
) -> None:
    words = files.words(*form, "--input", "x=random", "--number", "2", "--repeat", "3")
    result = invoke("bench", *words, "--profile", "--trace", tmp_path / "t.json", *place)
    assert result.exit_code == 0, result.output
    assert "median" in result.stdout
    assert "reading of the clock" in result.stdout
    kernels = result.stdout.partition("one run, call by call: ")[2].splitlines()
    assert kernels[1].split() == ["time", "share", "calls", "kernel"]
    assert {tuple(row.split()[3:]) for row in kernels[2:4]} == {("2", "dense"), ("1", "relu")}
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert [span["name"] for span in spans if span["pid"] == 1] == ["dense1", "relu", "dense2"]
    assert any(span["pid"] != 1 for span in spans) == bool(place)  # those of a session's calls


def test_bench_profile_fits_80_columns(on_terminal: OnTerminal, tmp_path: Path) -> None:
    names = [f"tvmgen_default_fused_nn_contrib_conv2d_NCHWc_add_nn_relu_{number}" for number in range(23)]
    body = "[](portcall::TensorView, portcall::TensorView) {}"
    exports = "".join(f"PORTCALL_EXPORT_TYPED({name}, {body})\n" for name in names)
    (tmp_path / "k.cc").write_text(f"#include <portcall/portcall.h>\n{exports}")
    library = toolchain.create_shared(tmp_path / "k.cc", tmp_path / "k.so")
    builder = graph.GraphBuilder()
    x = builder.input("x", (8,))
    for name in names:
        x = builder.call(name, [x], (8,))
    builder.output(x)
    (tmp_path / "m.json").write_text(builder.to_json())
    words = ("--input", "x=random", "--number", "1", "--repeat", "1", "--profile")
    code, shown = on_terminal("bench", tmp_path / "m.json", library, *words)
    assert code == 0, shown
    text = re.sub(r"\x1b\[[0-9;]*[a-zA-Z]", "", shown.decode()).partition("one run, call by call: ")[2]
    table, more, _ = text.partition("… and 3 more kernels")
    assert (table.count("tvmgen_"), bool(more)) == (20, True)
    assert max(map(len, table.splitlines())) <= 80


def test_bench_end_to_end_includes_inputs(invoke_json: InvokeJson, files: Files, place: list[str]) -> None:
    words = files.words("{bundle_so}", "--input", "x={x_npy}", "--number", "2", "--repeat", "3")
    for options, end_to_end in (((), False), (("--end-to-end", "--profile"), True)):
        answer = invoke_json("bench", *words, *options, *place)
        assert answer["end_to_end"] is end_to_end
        assert len(answer["results_s"]) == 3
        assert answer["min_s"] > 0
        assert ("profile" in answer) == end_to_end
    assert [node["name"] for node in answer["profile"]["nodes"]] == [
        "x", "w1", "b1", "dense1", "relu", "w2", "b2", "dense2",
    ]  # fmt: skip


def test_bench_against_refuses_a_model_of_other_inputs(invoke: Invoke, files: Files, tmp_path: Path) -> None:
    graph.export_bundle(tmp_path / "eight.so", mlp_json(8), files("kernels.so"), mlp_params())
    shown = invoke("bench", files("bundle.so"), "--fill", "random", "--against", str(tmp_path / "eight.so"))
    assert shown.exit_code == 2, shown.output
    assert "float32[8, 16]" in shown.stderr


# ---- inspect -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "parameters", "library"),
    [
        (("{m_json}",), [], False),
        (("{m_json}", "--params", "{m_params}"), ["w1", "b1", "w2", "b2"], False),
        (("{m_json}", "{kernels_so}", "--params", "{m_params}"), ["w1", "b1", "w2", "b2"], True),
        (("{bundle_so}",), ["w1", "b1", "w2", "b2"], True),
        (("{tvm_so}",), ["w1", "b1", "w2", "b2"], True),
        (("{tvm_so}", "--params", "{m_params}"), ["w1", "b1", "w2", "b2"], True),
    ],
)
def test_inspect_model_separates_parameters_from_inputs(
    invoke_json: InvokeJson, invoke: Invoke, files: Files, words: tuple[str, ...], parameters: list[str], library: bool
) -> None:
    answer = invoke_json("inspect", *files.words(*words))
    assert [each["name"] for each in answer["parameters"]] == parameters
    assert answer["parameters_known"] == bool(parameters)
    assert [each["name"] for each in answer["inputs"]] == [
        name for name in ("x", "w1", "b1", "w2", "b2") if name not in parameters
    ]
    assert answer["kernels"] == {"dense": 2, "relu": 1}
    assert answer["nodes"][3]["outputs"] == [{"shape": [4, 32], "dtype": "float32", "nbytes": 512, "entry": 3}]
    assert answer["outputs"] == [{"name": "dense2", "shape": [4, 10], "dtype": "float32", "nbytes": 160}]
    memory = answer["memory"]["devices"][0]
    assert memory["parameters"] == (4 * (32 * 16 + 32 + 10 * 32 + 10) if parameters else 0)
    assert bool(answer["library"]) == library
    assert answer["problems"] == []
    shown = invoke("inspect", *files.words(*words)).stdout
    assert "8 nodes: 5 inputs and parameters, 3 calls of 2 kernels" in shown
    assert ("(parameter)" in shown) == bool(parameters)
    assert ("unknown, counted as inputs" in shown) != bool(parameters)
    assert "dense  x 2" in shown
    assert "activations" in shown
    assert ("TVM 0.22 or later" in shown) == library


def test_inspect_graph_writes_svg(invoke: Invoke, files: Files, tmp_path: Path) -> None:
    for words in (("{m_json}", "--params", "{m_params}"), ("{bundle_so}",), ("{tvm_so}",)):
        result = invoke("inspect", *files.words(*words), "--svg", tmp_path / "g.svg")
        assert result.exit_code == 0, result.output
        assert f"picture: {tmp_path}/g.svg" in result.stdout
        text = "".join(ET.parse(tmp_path / "g.svg").getroot().itertext())
        assert "4 parameter" in text
        assert "dense2" in text


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        (("{m_json}",), "graph", "m.json ("),
        (("{bundle_so}",), "bundle", "a bundle"),
        (("{tvm_so}",), "library", "a library with a graph of TVM inside"),
    ],
)
def test_inspect_reports_the_kind_of_file_first(
    invoke: Invoke, invoke_json: InvokeJson, files: Files, words: tuple[str, ...], kind: str, said: str
) -> None:
    assert invoke_json("inspect", *files.words(*words, "--strict"))["kind"] == kind
    assert said in invoke("inspect", *files.words(*words)).stdout.splitlines()[0]


def test_inspect_shows_a_graph_in_a_classic_library(invoke: Invoke, invoke_json: InvokeJson, tmp_path: Path) -> None:
    m = Model()
    text = m.json(m.call("add_one", [m.input("p", (4,))], f32(4)))
    payload = legacy.factory_payload(text, {"p": np.arange(4, dtype="float32")})
    modules = [("GraphRuntimeFactory", payload), ("_lib", b""), ("vulkan", b"")]  # lengths are unknown
    kernels = Path(__file__).parents[1] / "kernels" / "classic_kernels.c"
    blob = legacy.classic_blob(modules, [[1], [2], []])
    path = legacy.link(tmp_path / "classic.so", [kernels], legacy.CLASSIC, blob)
    answer = invoke_json("inspect", path, "--strict")
    assert (answer["kind"], answer["kernels"], answer["problems"]) == ("library", {"add_one": 1}, [])
    assert [each["name"] for each in answer["parameters"]] == ["p"]
    result = invoke("run", path)
    assert result.exit_code == 0, result.output
    assert "1 2 3 4" in result.stdout


def test_inspect_reports_missing_inputs_and_kernels_as_problems(
    invoke: Invoke, invoke_json: InvokeJson, files: Files
) -> None:
    words = files.words("{bad_json}", "{kernels_so}", "--params", "{wrong_params}")
    problems = invoke_json("inspect", *words)["problems"]
    assert len(problems) == 2
    assert "has no kernel 'rellu'" in problems[0]
    assert "the parameter 'w2' is float32[9,32], the graph has float32[10,32]" in problems[1]
    assert "problem: the parameter 'w2' is" in invoke("inspect", *words).stdout
    assert invoke("inspect", *words).exit_code == 0
    assert "no problem" not in invoke("inspect", *words).stdout
    assert invoke("inspect", *words, "--strict").exit_code == 6
    more = invoke_json("inspect", *files.words("{m_json}", "--params", "{more_params}"))
    assert more["problems"] == ["the graph has no input for the parameter 'w9'"]


def test_inspect_model_lists_the_first_nodes(invoke: Invoke, tmp_path: Path) -> None:
    m = Model()
    value = m.input("x", (2, 2))
    for k in range(60):
        value = m.call("relu", [value], f32(2, 2), name=f"node{k}")
    (tmp_path / "long.json").write_text(m.json(value))
    short, whole = (invoke("inspect", tmp_path / "long.json", *words).stdout for words in ((), ("--all",)))
    assert "… and 21 more nodes (--all lists them)" in short
    assert "node59" not in short.replace("output", "").splitlines()[-2]
    assert whole.splitlines()[-1].split()[1] == "node59"


def test_inspect_reports_wrong_storage_ids(
    invoke: Invoke, invoke_json: InvokeJson, files: Files, tmp_path: Path
) -> None:
    text = json.loads(mlp_json())
    text["attrs"]["storage_id"][1] = [0] * 8
    (tmp_path / "m.json").write_text(json.dumps(text))
    assert "overwrites" in invoke_json("inspect", tmp_path / "m.json")["problems"][0]
    result = invoke("run", tmp_path / "m.json", files("kernels.so"), "--fill", "ones")
    assert result.exit_code == 0
    assert "warning: the storage ids of the graph are wrong" in result.stderr


# ---- Errors --------------------------------------------------------------------------------------------------------

USAGE = [
    (("run", "{m_json}"), "is a graph; name the library of its kernels, too"),
    (("run", "{kernels_so}"), "is a library without a graph"),
    (("bench", "{kernels_so}"), "Missing argument 'FUNCTION'"),
    (("run", "{bundle_so}", "--arg", "3"), "--arg is for functions; a model takes --input NAME=SPEC"),
    (("run", "{bundle_so}", "--out", "float32[3]"), "--out is for functions"),
    (("run", "{kernels_so}", "relu", "--input", "x=random"), "--input is for models; a function takes --arg"),
    (("run", "{kernels_so}", "relu", "--params", "{m_params}"), "--params is for models"),
    (("run", "{kernels_so}", "relu", "--fill", "ones"), "--fill is for models"),
    (("run", "{bundle_so}", "--fill", "sevens"), "'sevens' is not one of"),
    (("bench", "{kernels_so}", "relu", "--profile"), "--profile is for models"),
    (("bench", "{kernels_so}", "relu", "--end-to-end"), "--end-to-end is for models"),
    (("inspect", "{kernels_so}", "--svg", "g.svg"), "--svg is for graphs and bundles"),
    (("inspect", "{kernels_so}", "--params", "{m_params}"), "--params is for graphs and bundles"),
    (("inspect", "{bundle_so}", "{kernels_so}"), "is a bundle, and contains its kernels"),
    (("inspect", "{tvm_so}", "{kernels_so}"), "with a graph of TVM inside, and contains its kernels"),
]


@pytest.mark.parametrize(
    ("words", "said"), USAGE, ids=lambda value: " ".join(value) if isinstance(value, tuple) else ""
)
def test_run_model_unknown_arguments_are_usage_errors(
    invoke: Invoke, files: Files, words: tuple[str, ...], said: str
) -> None:
    result = invoke(*files.words(*words))
    assert result.exit_code == 2, result.output
    assert said in result.stderr


MLP = ("{m_json}", "{kernels_so}", "--params", "{m_params}")


@pytest.mark.parametrize("form", [MLP, ("{bundle_so}",), ("{tvm_so}",)], ids=" ".join)
def test_run_model_proposes_no_parameter_as_an_input(
    invoke_json: InvokeJson, files: Files, form: tuple[str, ...]
) -> None:
    error = invoke_json("run", *files.words(*form, "--input", "zzz=ones"), code=1)["error"]
    assert error["cause"] == "there is x"


# What is given, the class of the error, what it says, and what it says is next.
FAILURES: list[tuple[tuple[str, ...], str, str, str]] = [
    ((*MLP,), "GraphError", "nothing is given for 'x' float32[4,16]", "--input x=@x.npy"),
    (("{m_json}", "{kernels_so}"), "GraphError", "'w2' float32[10,32] and 1 more", "--fill random"),
    ((*MLP, "--input", "xx=random"), "GraphError", "has no input 'xx'", "portcall inspect"),
    ((*MLP, "--input", "random"), "ValueError", "'random' does not name its input", "--input NAME=random"),
    ((*MLP, "--input", "x=ones", "--input", "x=ones"), "ValueError", "'x' is given twice", ""),
    ((*MLP, "--input", "x=ones:float99[3]"), "ValueError", "the input 'x': unknown element type 'float99'", ""),
    ((*MLP, "--input", "x={m_params}.npy"), "FileNotFoundError", "m.params.npy", ""),
    ((*MLP, "--input", "x=@{m_params}"), "ValueError", "the input 'x': ", ""),
    ((*MLP, "--input", "x=nonsense"), "ValueError", "the input 'x': cannot read 'nonsense': give @x.npy", ""),
    ((*MLP, "--input", "x=str:3"), "ValueError", "the input 'x': cannot read 'str:3': give @x.npy", ""),
    ((*MLP, "--input", "x=3"), "GraphError", "'x' has shape [4, 16], got []", "x=random"),
    ((*MLP, "--input", "x=int64:3"), "ArgumentError", "'x' is of float32, got int64", "x=random"),
    ((*MLP, "--input", "x=int8:300"), "ValueError", "the input 'x': 300 is no int8", ""),
    ((*MLP, "--input", "x=random:float32[4,17]"), "GraphError", "'x' has shape [4, 16], got [4, 17]", "x=random"),
    ((*MLP, "--input", "x=random:int8[4,16]"), "ArgumentError", "'x' is of float32, got int8", "--input x=random"),
    ((*MLP, "--input", "x={x64_npy}"), "ArgumentError", "'x' is of float32, got float64", ".astype('float32')"),
    ((*MLP, "--input", "x={nan_npy}"), "ValueError", "the input 'x'", "--allow-nan"),
    ((*MLP, "--input", "x={no_npy}"), "FileNotFoundError", "no.npy", ""),
    ((*MLP, "--input", "x={data_npz}:z"), "ValueError", "the input 'x': '", ""),
    (("{m_json}", "{kernels_so}", "--params", "{cut_params}"), "GraphError", "damaged at byte", ""),
    (("{m_json}", "{kernels_so}", "--params", "{x_npy}"), "GraphError", "x.npy': these bytes", ""),
    (("{m_json}", "{kernels_so}", "--params", "{wrong_params}", "--input", "x=ones"), "GraphError",
     "'w2' has shape (10, 32), got (9, 32)", "portcall inspect"),
    (("{m_json}", "{kernels_so}", "--params", "{no_params}"), "FileNotFoundError", "no.params", ""),
    (("{cut_json}", "{kernels_so}"), "GraphError", "not JSON", ""),
    (("{bad_json}", "{kernels_so}"), "GraphError", "calls the function 'rellu'", "portcall inspect"),
    (("{tvm_so}", "--input", "xx=ones"), "GraphError", "has no input 'xx'", "portcall inspect"),
    (("{broken_so}",), "GraphError", "the embedded graph is damaged at byte", ""),
    (("{m_params}",), "ModuleLoadError", "m.params': this is something else, not an ELF file", ""),
    (("{no_json}", "{kernels_so}"), "ModuleLoadError", "no such file", "ls"),
    (("{m_json}", "{no_so}", "--input", "x=ones"), "ModuleLoadError", "no such file", "ls"),
    ((*MLP, "--input", "x=ones", "--device", "nonsense"), "ValueError", "nonsense", "portcall doctor"),
]  # fmt: skip


@pytest.mark.parametrize("name", ["run", "bench"])
@pytest.mark.parametrize(("words", "kind", "said", "following"), FAILURES)
def test_run_model_failure_has_exit_code_and_next_step(
    invoke_json: InvokeJson, files: Files, name: str, words: tuple[str, ...], kind: str, said: str, following: str
) -> None:
    answer = invoke_json(name, *files.words(*words), code=1)
    assert answer["error"]["kind"] == kind
    assert said in answer["error"]["message"]
    # Where a file is damaged, inspect would only say the same.
    assert following in answer["error"]["next"] if following else "inspect" not in answer["error"]["next"]


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        (("{bad_json}", "{kernels_so}", "--fill", "ones"), "GraphError", "calls the function 'rellu'"),
        ((*MLP, "--input", "x=random:float32[3]"), "GraphError", "'x' has shape [4, 16], got [3]"),
    ],
)
def test_run_model_remote_failure_has_exit_code(
    invoke_json: InvokeJson, files: Files, server: rpc.Server, words: tuple[str, ...], kind: str, said: str
) -> None:
    answer = invoke_json("run", *files.words(*words), "--rpc", server.address, "--key", "k", code=1)
    assert answer["error"]["kind"] == kind
    assert said in answer["error"]["message"]


def test_run_model_checks_arguments_before_connecting(invoke_json: InvokeJson, files: Files) -> None:
    for model in (MLP, ("{bundle_so}",), ("{tvm_so}",)):
        words = files.words(*model, "--input", "x=random:float32[3]")
        assert invoke_json("run", *words, "--rpc", "127.0.0.1:1", code=1)["error"]["kind"] == "GraphError"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("{cut_json}",), "cut.json: not a graph"),
        (("{broken_so}",), "broken.so: the embedded graph is damaged"),
        (("{m_json}", "--params", "{x_npy}"), "x.npy': "),
        (("{kernels_so}", "--params", "{cut_params}"), "cut.params': "),
    ],
)
def test_run_model_names_the_damaged_file(
    invoke_json: InvokeJson, files: Files, words: tuple[str, ...], said: str
) -> None:
    error = invoke_json("inspect", *files.words(*words), code=1)["error"]
    assert error["kind"] == "GraphError"
    assert said in error["message"]
    assert "m.json" not in error["message"]


# ---- One file ------------------------------------------------------------------------------------------------------


def test_bundle_writes_a_bundle_that_runs(
    invoke: Invoke, invoke_json: InvokeJson, files: Files, tmp_path: Path
) -> None:
    output = str(tmp_path / "of mine.so")
    words = files.words("{m_json}", "{kernels_so}", "--params", "{m_params}")
    assert invoke_json("bundle", *words, "-o", output, "--name", "net") == {
        "bundle": output, "nbytes": Path(output).stat().st_size, "function": "net",
        "library_nbytes": Path(files("kernels.so")).stat().st_size, "parameters": 4, "inputs": ["x"],
        "kernels_checked": True,
    }  # fmt: skip
    done = invoke("bundle", *words, "--output", output)
    assert done.exit_code == 0, done.output
    assert "4 parameters in it; inputs: x" in done.stdout
    following = shlex.split(done.stdout.partition("next: portcall ")[2])
    assert following == ["run", output, "--input=x=random"]
    assert invoke(*following, "--input", f"x={files('x.npy')}").exit_code == 1  # given twice
    assert invoke("run", output, "--input", f"x={files('x.npy')}", "--check", files("ref.npz")).exit_code == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("{m_json}", "{kernels_so}"), 2, "Missing option '--output'"),
        (("{m_json}", "-o", "b.so"), 2, "Missing argument 'KERNELS...'"),
        (("{kernels_so}", "{m_json}", "-o", "b.so"), 2, "kernels.so' is not a graph (JSON)"),
        (("{m_json}", "{no_so}", "-o", "b.so"), 1, "no such file"),
        (("{no_json}", "{kernels_so}", "-o", "b.so"), 1, "no such file"),
        (("{m_json}", "{m_params}", "-o", "b.so"), 1, "m.params"),
        (("{cut_json}", "{kernels_so}", "-o", "b.so"), 1, "cut.json: not a graph"),
        (("{m_json}", "{kernels_so}", "--params", "{cut_params}", "-o", "b.so"), 1, "cut.params': the parameter blob"),
        (("{m_json}", "{kernels_so}", "--params", "{wrong_params}", "-o", "b.so"), 1, "m.json: the parameter 'w2'"),
        (("{m_json}", "{kernels_so}", "-o", "nowhere/b.so"), 1, "nowhere"),
        (("{bad_json}", "{kernels_so}", "-o", "b.so"), 1, "has no kernel 'rellu'"),
        (("{bad_json}", "{bundle_so}", "-o", "b.so"), 1, "did you mean 'relu'?"),
    ],
)
def test_bundle_refuses_unusable_files(
    invoke: Invoke, files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int,
    said: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    result = invoke("bundle", *files.words(*words))
    assert result.exit_code == code, result.output
    assert said in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_bundle_says_where_a_file_does_not_tell_its_kernels(
    invoke: Invoke, invoke_json: InvokeJson, files: Files, tmp_path: Path
) -> None:
    """A library of kernels that is only linked against another: calls find what that one has."""
    (tmp_path / "empty.c").write_text("int portcall_test_empty;\n")
    needs = [f"-L{Path(files('kernels.so')).parent}", "-Wl,--no-as-needed", "-l:kernels.so"]
    library = toolchain.create_shared(tmp_path / "empty.c", tmp_path / "empty.so", options=needs)
    words = ("bundle", files("m.json"), library, "-o", tmp_path / "b.so")
    assert invoke_json(*words)["kernels_checked"] is False
    assert "warning: " in invoke(*words).stderr


def test_bundle_leaves_out_and_reports_unknown_parameters(invoke: Invoke, files: Files, tmp_path: Path) -> None:
    words = files.words("{m_json}", "{kernels_so}", "--params", "{more_params}")
    result = invoke("bundle", *words, "-o", tmp_path / "b.so")
    assert result.exit_code == 0, result.output
    assert re.search("warning: .* left out: 'w9'", result.stderr)


def test_run_model_reports_unknown_parameters(invoke: Invoke, files: Files) -> None:
    words = files.words("{m_json}", "{kernels_so}", "--params", "{more_params}", "--input", "x={x_npy}")
    result = invoke("run", *words, "--check", files("ref.npz"))
    assert result.exit_code == 0, result.output
    assert re.search("warning: .*: 'w9'", result.stderr)


def test_inspect_reports_damaged_files(invoke_json: InvokeJson, files: Files, tmp_path: Path) -> None:
    assert "not JSON" in invoke_json("inspect", files("cut.json"), code=1)["error"]["message"]
    data = bytearray(Path(files("bundle.so")).read_bytes())
    data[-30] ^= 0xFF  # where the index begins
    (tmp_path / "b.so").write_bytes(data)
    assert invoke_json("inspect", tmp_path / "b.so", code=1)["error"]["kind"] == "GraphError"
    assert invoke_json("run", tmp_path / "b.so", "--fill", "ones", code=1)["error"]["kind"] == "GraphError"


def test_run_model_proposes_to_move_the_axes_of_an_input(invoke_json: InvokeJson, files: Files, tmp_path: Path) -> None:
    np.save(tmp_path / "moved.npy", array(4, 16).T)
    np.save(tmp_path / "other.npy", array(4, 15))
    for file, proposed in (("moved.npy", True), ("other.npy", False)):
        error = invoke_json("run", files("bundle.so"), "--input", f"x=@{tmp_path / file}", code=1)["error"]
        assert ("x.transpose(1, 0)" in error["next"]) == proposed


def test_run_refuses_a_bundle_that_was_cut_or_has_other_parameters(
    invoke: Invoke, invoke_json: InvokeJson, files: Files, tmp_path: Path
) -> None:
    data = bytearray(Path(files("bundle.so")).read_bytes())
    (tmp_path / "cut.so").write_bytes(data[:-40])
    data[graph.read_bundle(files("bundle.so")).params["w1"].offset] ^= 1
    (tmp_path / "changed.so").write_bytes(data)
    for file in (tmp_path / "cut.so", tmp_path / "changed.so"):
        for words in (("run",), ("bench",)):
            error = invoke_json(*words, file, "--fill", "ones", code=1)["error"]
            assert (error["kind"], "again" in error["next"]) == ("ModuleLoadError", True)
        assert invoke("inspect", file, "--strict").exit_code == 6


def test_run_model_reports_a_kernel_crash(shell: Shell, kernels: str, tmp_path: Path) -> None:
    m = Model()
    m.call("crash", [])
    (tmp_path / "crash.json").write_text(m.json())
    done = shell("run", tmp_path / "crash.json", kernels)
    assert (done.returncode, done.stdout) == (5, "")
    assert "crash.json crashed: Segmentation fault" in done.stderr
    m = Model()
    m.call("refuse", [])
    (tmp_path / "refuse.json").write_text(m.json())
    done = shell("run", tmp_path / "refuse.json", kernels)
    assert done.returncode == 1
    assert "refused by the kernel" in done.stderr
    assert "portcall inspect" in done.stderr
