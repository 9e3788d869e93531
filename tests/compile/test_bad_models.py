# SPDX-License-Identifier: Apache-2.0
"""Models that cannot be compiled are refused with what is wrong, and nothing of them is left."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import portcall
from compile.reference import make, outputs
from compile.test_models import branches
from portcall.compile import _verify
from portcall.errors import ModelError

pytestmark = [pytest.mark.peers, pytest.mark.usefixtures("vm_pools")]


def refused(model: Any, **options: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        portcall.compile.onnx(model, **options, runtime="graph")
    return caught.value


def test_onnx_lists_unsupported_operators_with_their_nodes() -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["n"], name="first"),
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("Unknown", ["y"], ["z"], name="second", domain="org.example"),
    ]
    model = make([nodes[0], nodes[1]], {"x": [2, 3]}, ["y"])
    model.graph.node.append(nodes[2])
    problems = refused(model).problems
    assert [("first" in text, "NonZero" in text) for text in problems[:1]] == [(True, True)]
    assert ["second" in text and "org.example" in text for text in problems[1:]] == [True]


@pytest.mark.parametrize("length", [0, 10, 500])
def test_onnx_refuses_a_truncated_file(length: int, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(branches().SerializeToString()[:length])
    error = refused(path)
    assert (f"'{path}'" in str(error), bool(error.hint)) == (True, True)


def node_without_producer(model: Any) -> None:
    model.graph.node.append(helper.make_node("Add", ["a", "nix"], ["z"], name="bad"))


def nodes_in_a_circle(model: Any) -> None:
    model.graph.node.append(helper.make_node("Relu", ["later"], ["z"], name="bad"))
    model.graph.node.append(helper.make_node("Relu", ["z"], ["later"]))


def node_without_inputs(model: Any) -> None:
    model.graph.node.append(helper.make_node("Conv", ["a"], ["z"], name="bad"))


def node_without_attribute(model: Any) -> None:
    model.graph.node.append(helper.make_node("Concat", ["a", "b"], ["z"], name="bad"))


def result_without_node(model: Any) -> None:
    model.graph.output[0].name = "bad"


def weights_that_are_too_short(model: Any) -> None:
    model.graph.initializer[0].name = model.graph.node[1].input[1] = "bad"
    model.graph.initializer[0].raw_data = b"abc"


def weights_of_an_unknown_type(model: Any) -> None:
    model.graph.initializer[0].name = model.graph.node[1].input[1] = "bad"
    model.graph.initializer[0].data_type = 77


def weights_twice(model: Any) -> None:
    model.graph.node.append(helper.make_node("Relu", ["a"], ["w"], name="bad"))


def value_of_two_nodes(model: Any) -> None:
    model.graph.node.append(helper.make_node("Relu", ["a"], [model.graph.node[0].output[0]], name="bad"))


def two_inputs_of_one_name(model: Any) -> None:
    model.graph.input.append(helper.make_tensor_value_info("bad", 1, [2]))
    model.graph.input.append(helper.make_tensor_value_info("bad", 1, [3]))


def attribute_of_another_type(model: Any) -> None:
    model.graph.node.append(helper.make_node("LeakyRelu", ["a"], ["z"], name="bad", alpha=1))


def attribute_of_a_function(model: Any) -> None:
    attribute_twice(model)
    del model.graph.node[-1].attribute[1]
    model.graph.node[-1].attribute[0].ref_attr_name = "beta"


def attribute_twice(model: Any) -> None:
    model.graph.node.append(helper.make_node("LeakyRelu", ["a"], ["z"], name="bad", alpha=0.1))
    model.graph.node[-1].attribute.append(helper.make_attribute("alpha", 0.2))


def node_without_results(model: Any) -> None:
    model.graph.node.append(helper.make_node("Relu", ["a"], [], name="bad"))


def node_with_a_result_too_many(model: Any) -> None:
    model.graph.node.append(helper.make_node("Relu", ["a"], ["z", "more"], name="bad"))


def input_that_is_left_out(model: Any) -> None:
    model.graph.node.append(helper.make_node("Concat", ["", "a"], ["z"], name="bad", axis=0))


def branches_of_different_lengths(model: Any) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
    graphs = [
        helper.make_graph([helper.make_node("Relu", ["a"], ["r"])], "g", [], [onnx.ValueInfoProto(name="r")] * count)
        for count in (1, 2)
    ]
    model.graph.node.append(
        helper.make_node("If", ["yes"], ["z"], name="bad", then_branch=graphs[0], else_branch=graphs[1])
    )


def loop_without_its_inputs(model: Any) -> None:
    model.graph.initializer.append(numpy_helper.from_array(np.array(3), "turns"))
    body = helper.make_graph([], "g", [], [])
    model.graph.node.append(helper.make_node("Loop", ["turns", "", "a"], ["z"], name="bad", body=body))


def sparse_weights(model: Any) -> None:
    values, places = helper.make_tensor("bad", 1, [1], [1.0]), helper.make_tensor("i", 7, [1], [1])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [3]))
    model.graph.node.append(helper.make_node("Add", ["a", "bad"], ["z"]))


@pytest.mark.parametrize("runtime", ["graph", "auto"])
@pytest.mark.parametrize("damage", [
    node_without_producer, nodes_in_a_circle, node_with_a_result_too_many, node_without_inputs, node_without_attribute,
    result_without_node,
    weights_that_are_too_short, weights_of_an_unknown_type, weights_twice, value_of_two_nodes, two_inputs_of_one_name,
    attribute_of_another_type, attribute_of_a_function, attribute_twice, node_without_results, input_that_is_left_out,
    branches_of_different_lengths, loop_without_its_inputs, sparse_weights,
])  # fmt: skip
def test_onnx_names_what_is_malformed(damage: Any, runtime: Any) -> None:
    model = branches()
    damage(model)
    with pytest.raises(ModelError) as caught:
        portcall.compile.onnx(model, runtime=runtime)
    (problem,) = caught.value.problems
    assert "'bad'" in problem
    assert caught.value.hint


@pytest.mark.parametrize("text", [b"NAME", b"Relu"])
def test_onnx_refuses_names_that_are_not_utf8(text: bytes) -> None:
    model = make([helper.make_node("Relu", ["NAME"], ["y"])], {"NAME": [3]}, ["y"]).SerializeToString()
    assert "UTF-8" in str(refused(model.replace(text, b"\xff\xfe\xfd\xfc")))


TERABYTES = [1 << 20, 1 << 22]
IMPOSSIBLE: dict[str, tuple[Any, ...]] = {  # operator, inputs, constants, attributes
    "Expand": (["x", "k"], {"k": np.array(TERABYTES)}),
    "Tile": (["x", "k"], {"k": np.array(TERABYTES)}),
    "Pad": (["x", "k"], {"k": np.array([0, 0, 0, 1 << 42])}),
    "ConstantOfShape": (["k"], {"k": np.array(TERABYTES)}),
    "ConstantOfShape ": (["k"], {"k": np.array([1 << 32])}),
    "ConstantOfShape of none": (["k"], {"k": np.array([1 << 33, 1 << 33])}),
    "Range": (["a", "b", "c"], {"a": np.array(0), "b": np.array(1 << 40), "c": np.array(1)}),
    "Range of no step": (["a", "b", "c"], {"a": np.array(0), "b": np.array(5), "c": np.array(0)}),
    "Expand to less": (["x", "k"], {"k": np.array([-1, 2])}),
    "Pad to less": (["x", "k"], {"k": np.array([0, -2, 0, -2])}),
    "Pad by more": (["x", "k"], {"k": np.array([0, 5, 0, 5])}, {"mode": "reflect"}),
    "Gather from outside": (["x", "k"], {"k": np.array([9])}),
    "Split into less": (["x", "k"], {"k": np.array([-1, 2])}),
    "Slice by the least": (
        ["x", "a", "b", "c", "k"],
        {"a": np.array([3]), "b": np.array([0]), "c": np.array([1]), "k": np.array([-(1 << 63)])},
    ),
    "Unsqueeze to many": (["x", "k"], {"k": np.arange(70)}),
}


@pytest.mark.parametrize("runtime", ["graph", "vm"])
@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_onnx_names_the_node_whose_result_cannot_be(case: str, runtime: Any) -> None:
    inputs, constants, attributes = (*IMPOSSIBLE[case], {})[:3]
    results = ["y", "z"] if case.startswith("Split") else ["y"]
    node = helper.make_node(case.split()[0], inputs, results, name="bad", **attributes)
    model = make([node], {"x": [1, 3 if case.startswith("Pad") else 1]}, results, constants)
    with pytest.raises(ModelError) as caught:
        portcall.compile.onnx(model, runtime=runtime, check=False)
    (problem,) = caught.value.problems
    assert "'bad'" in problem


@pytest.mark.parametrize("runtime", ["graph", "vm"])
@pytest.mark.parametrize("extent", [1 << 40, (1 << 63) - 1])
def test_onnx_refuses_inputs_that_no_machine_holds(extent: int, runtime: Any) -> None:
    model = make([helper.make_node("Relu", ["x"], ["y"])], {"x": [extent, 3]}, ["y"])
    with pytest.raises(ModelError, match="'x'"):
        portcall.compile.onnx(model, runtime=runtime)


@pytest.mark.parametrize("runtime", ["graph", "vm"])
@pytest.mark.parametrize("kind", ["UNDEFINED", "STRING", "COMPLEX64", "INT4", "FLOAT8E4M3FN"])
def test_onnx_refuses_inputs_of_types_that_tensors_cannot_hold(kind: str, runtime: Any) -> None:
    model = make([helper.make_node("Identity", ["x"], ["y"])], {"x": [3]}, ["y"])
    model.graph.input[0].type.tensor_type.elem_type = getattr(onnx.TensorProto, kind)
    with pytest.raises(ModelError, match=f"'x'.*{kind}"):
        portcall.compile.onnx(model, runtime=runtime)


def test_onnx_refuses_casts_to_types_to_which_tvm_does_not_round() -> None:
    node = helper.make_node("Cast", ["x"], ["y"], name="bad", to=onnx.TensorProto.FLOAT8E4M3FN)
    assert "'bad'" in str(refused(make([node, helper.make_node("Cast", ["y"], ["z"], to=1)], {"x": [3]}, ["z"])))


@pytest.mark.parametrize("depth", [0, 26])
def test_onnx_refuses_functions_that_never_end_or_grow(depth: int) -> None:
    domain = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    functions = []
    for level in range(depth + 1):
        called = f"f{level + 1 if level < depth else 0 if not depth else level}"
        nodes = [
            helper.make_node(called, ["a"], ["t"], domain="own"),
            helper.make_node(called, ["t"], ["b"], domain="own"),
        ]
        if depth and level == depth:
            nodes = [helper.make_node("Relu", ["a"], ["b"])]
        functions.append(helper.make_function("own", f"f{level}", ["a"], ["b"], nodes, domain))
    x, y = (helper.make_tensor_value_info(name, 1, [3]) for name in "xy")
    graph = helper.make_graph([helper.make_node("f0", ["x"], ["y"], domain="own")], "g", [x], [y])
    refused(helper.make_model(graph, functions=functions, opset_imports=domain, ir_version=9))


@pytest.mark.usefixtures("vm_pools")
def test_auto_makes_an_executable_where_a_result_is_an_input() -> None:
    model = make([helper.make_node("Relu", ["x"], ["y"])], {"x": [3]}, ["y", "x"])
    assert "'x'" in str(refused(model))
    made: Any = portcall.compile.onnx(model)
    assert made.reason


@pytest.mark.usefixtures("vm_pools")
def test_integers_divided_by_zero_do_not_stop_the_process() -> None:
    nodes = [helper.make_node("Div", ["x", "z"], ["q"]), helper.make_node("Mod", ["x", "z"], ["r"])]
    model = make(nodes, {"x": [4], "z": [4]}, ["q", "r"], dtype="int64")
    least = -(1 << 63)
    x, z = np.array([7, -7, least, 9]), np.array([0, -1, -1, 2])
    got = outputs(portcall.compile.onnx(model, runtime="graph"), {"x": x, "z": z})
    machine = portcall.compile.onnx(model, runtime="vm").load()
    for q, r in (got, [each.numpy() for each in machine(x, z)]):
        np.testing.assert_array_equal([q[1:], r[1:]], [[7, least, 4], [0, 0, 1]])


def test_constants_that_onnxruntime_cannot_divide_do_not_stop_the_process() -> None:
    constants = {"a": np.array([-(1 << 63), 4]), "b": np.array([-1, 2])}
    nodes = [helper.make_node("Div", ["a", "b"], ["q"]), helper.make_node("Add", ["q", "x"], ["y"])]
    made = portcall.compile.onnx(make(nodes, {"x": [2]}, ["y"], constants, dtype="int64"), runtime="graph")
    assert made.unchecked
    np.testing.assert_array_equal(outputs(made, {"x": np.array([0, 1])}), [[-(1 << 63), 3]])


@pytest.mark.usefixtures("vm_pools")
def test_range_without_a_step_is_an_error_when_it_runs() -> None:
    model = make([helper.make_node("Range", ["a", "b", "c"], ["y"])], dict.fromkeys("abc", ()), ["y"], dtype="int64")
    machine = portcall.compile.onnx(model, runtime="vm").load()
    np.testing.assert_array_equal(machine(np.array(1), np.array(6), np.array(2)).numpy(), [1, 3, 5])
    with pytest.raises(AssertionError, match="Range"):
        machine(np.array(1), np.array(6), np.array(0))


@pytest.mark.parametrize("weights", ["missing", "short"])
def test_onnx_names_weights_that_are_not_beside_the_model(weights: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(branches(), path, save_as_external_data=True, location="weights", size_threshold=0)
    portcall.compile.onnx(path, check=False, runtime="graph")
    if weights == "missing":
        (tmp_path / "weights").unlink()
    else:
        os.truncate(tmp_path / "weights", 7)
    for error in (refused(path), refused(path, check=False)):
        assert str(tmp_path / "weights") in str(error)
    assert "'w'" in str(refused(path.read_bytes()))


@pytest.mark.parametrize("location", ["../outside", "/etc/hostname", "link", ""])
def test_onnx_reads_no_weights_outside_of_the_folder(location: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "outside").write_bytes(bytes(960))
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "outside")
    path = tmp_path / "folder" / "m.onnx"
    onnx.save(branches(), path, save_as_external_data=True, location="weights", size_threshold=0)
    model = onnx.load(path, load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = location
        elif entry.key == "length":
            entry.value = "1"
    path.write_bytes(model.SerializeToString())
    refused(path)


@pytest.mark.parametrize("version", [0, 999])
def test_onnx_refuses_an_unknown_opset(version: int) -> None:
    model = branches()
    model.opset_import[0].version = version
    assert f"opset {version}" in str(refused(model))
    del model.opset_import[:]
    assert "opset" in str(refused(model))
    model = branches()
    model.ir_version = 999
    assert "999" in str(refused(model))


def test_onnx_says_what_is_wrong_for_both_runtimes_once() -> None:
    model = branches()
    model.graph.node.append(helper.make_node("Frob", ["a"], ["y"], name="f", domain="org.example"))
    with pytest.raises(ModelError) as caught:
        portcall.compile.onnx(model)
    assert str(caught.value).count("'f'") == 1


@pytest.mark.parametrize(
    "shapes", [{"q": (1,)}, {"a": (3, 13)}, {"a": (3, 12, 1)}, {"a": (-1, 12)}], ids=["name", "extent", "rank", "sign"]
)
def test_onnx_refuses_wrong_shapes(shapes: dict[str, tuple[int, ...]]) -> None:
    refused(branches(), shapes=shapes)


def test_onnx_names_the_node_whose_shapes_do_not_fit() -> None:
    model = make([helper.make_node("Add", ["a", "b"], ["c"], name="sum")], {"a": [3], "b": [3]}, ["c"])
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 4
    (problem,) = refused(model).problems
    assert all(text in problem for text in ("'sum'", "Add", "[3]", "[4]"))


def test_shape_that_is_declared_and_not_so_is_left_out() -> None:
    made = make([helper.make_node("Relu", ["x"], ["y"])], {"x": [2, 3]}, ["y"], {})
    made.graph.output[0].type.tensor_type.CopyFrom(helper.make_tensor_type_proto(1, [7]).tensor_type)
    x = np.array([[-1, 2, -3], [4, -5, 6]], "float32")
    (got,) = outputs(portcall.compile.onnx(made, runtime="graph"), {"x": x})
    np.testing.assert_array_equal(got, x.clip(0))


@pytest.mark.parametrize("target", ["sparc-linux-gnu", "native:nonesuch", ""])
def test_onnx_refuses_unknown_targets(target: str) -> None:
    with pytest.raises(ValueError, match="target"):
        portcall.compile.onnx(branches(), target, runtime="graph")


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for results, and the folder of temporary files and of the cache of this process beside it."""
    for name in ("out", "temporary", "cache"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield tmp_path
    if vm_is_used := portcall.get_global_func("vm.builtin.memory_manager.clear", allow_missing=True):
        gc.collect()
        vm_is_used()


def left(places: Path) -> list[str]:
    return sorted(
        str(path.relative_to(places)) for path in places.rglob("*") if not path.is_dir() or path.name[0] == "."
    )


def test_bundle_save_full_disk_leaves_no_file(places: Path) -> None:
    made = portcall.compile.onnx(make(
        [helper.make_node("Add", ["x", "w"], ["y"])], {"x": [1 << 20]}, ["y"], {"w": np.ones(1 << 20, "float32")}
    ), runtime="graph")  # fmt: skip
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(OSError, match="too large") as caught:
            made.save(places / "out" / "m.so")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert caught.value.filename == str(places / "out" / "m.so")
    assert left(places) == []


def dies(work: Any) -> None:
    """Run something in a child process that is expected to kill itself."""
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            work()
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


@pytest.mark.parametrize("runtime", ["graph", "vm"])
@pytest.mark.parametrize("point", ["link", "after the link", "rename", "check"])
def test_compile_killed_leaves_nothing_for_ever(point: str, runtime: Any, places: Path, monkeypatch: Any) -> None:
    """What a killed process leaves is no result, and goes with the next one that is compiled."""
    onnx.save(branches(), places / "m.onnx")
    run = subprocess.run

    def kill(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def run_and_kill(*words: Any, **options: Any) -> None:
        run(*words, **options)
        kill()

    victims: dict[str, tuple[Any, str, Any]] = {
        "link": (subprocess, "run", kill),
        "after the link": (subprocess, "run", run_and_kill),
        "rename": (os, "replace", kill),
        "check": (_verify, "check", kill),
    }

    def compiled() -> None:
        made = portcall.compile.onnx(places / "m.onnx", runtime=runtime, check=point == "check")
        made.save(places / "out" / "m.so")

    def in_the_cache() -> Path:
        return portcall.compile.onnx(places / "m.onnx", runtime=runtime, cache=True)

    compiled()  # for later, and so that a file is replaced
    content = (places / "out" / "m.so").read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(*victims[point])
        dies(compiled)
        dies(in_the_cache)
    assert (places / "out" / "m.so").read_bytes() == content
    kept = [path for path in left(places) if path.startswith("cache")]
    assert all(Path(path).parent.name[0] == "." for path in kept if path.endswith(".so"))
    compiled()
    changed = branches()
    changed.producer_name = "another"  # the cache has another place for it
    onnx.save(changed, places / "m.onnx")
    place = in_the_cache()
    portcall.load_module(place)
    assert left(places) == sorted([str(place.relative_to(places)), "m.onnx", "out/m.so"])


def test_places_of_maxima_are_refused() -> None:
    node = helper.make_node("MaxPool", ["x"], ["y", "places"], "pool", kernel_shape=[2, 2])
    assert "node 'pool': MaxPool: its second result" in str(refused(make([node], {"x": [1, 2, 4, 4]}, ["y", "places"])))


SAYING = {"Reshape": ("shape", [2]), "Pad": ("pads", [4]), "TopK": ("k", [1]), "ReduceSum": ("axes", [1]),
          "Split": ("split", [2]), "CumSum": ("axis", [])}  # fmt: skip


@pytest.mark.parametrize("rows", [2, "n"])
@pytest.mark.parametrize("op", SAYING)
def test_inputs_that_say_what_a_node_does_must_be_constant(op: str, rows: int | str) -> None:
    word, shape = SAYING[op]
    results = ["y", "z"] if op in ("TopK", "Split") else ["y"]
    model = make([helper.make_node(op, ["x", "given"], results, "node")], {"x": [rows, 12], "given": shape}, results)
    model.graph.input[1].type.tensor_type.elem_type = onnx.TensorProto.INT64
    with pytest.raises(ModelError, match=f"'node': {op}: its {word} must be constant") as caught:
        portcall.compile.onnx(model)
    assert caught.value.hint.endswith("--constant given=VALUE")


def test_resize_by_a_size_that_is_computed_names_what_decides() -> None:
    nodes = [helper.make_node("Mul", ["factors", "factors"], ["scales"]),
             helper.make_node("Resize", ["x", "", "scales"], ["y"], "larger")]  # fmt: skip
    model = make(nodes, {"x": [1, 1, 4, 4], "factors": [4]}, ["y"])
    for runtime in ("graph", "auto"):
        with pytest.raises(ModelError, match=r"'larger': Resize: its scales .* values of factors") as caught:
            portcall.compile.onnx(model, runtime=runtime)
        assert caught.value.hint.endswith("--constant factors=VALUE")
    compiled = portcall.compile.onnx(model, constants={"factors": np.sqrt(np.array([1, 1, 2, 2], "float32"))})
    assert compiled.unchecked == ""


@pytest.mark.parametrize("rows", [2, "n"])
def test_operands_of_different_types_are_named(rows: int | str) -> None:
    model = make([helper.make_node("MatMul", ["a", "b"], ["y"], "product")], {"a": [rows, 3], "b": [3, 4]}, ["y"])
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.INT32
    with pytest.raises(ModelError, match=rf"types.* 'a' int32\[{rows}, 3\], 'b' float32\[3, 4\]"):
        portcall.compile.onnx(model)


@pytest.mark.parametrize("runtime", ["auto", "graph", "vm"])
def test_inputs_without_any_shape_are_named(runtime: Any) -> None:
    model = make([helper.make_node("Relu", ["x"], ["y"])], {"x": [3]}, ["y"])
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(ModelError, match="how many axes the input 'x' has") as caught:
        portcall.compile.onnx(model, runtime=runtime)
    assert "--shape x=" in caught.value.hint
    assert portcall.compile.onnx(model, runtime=runtime, shapes={"x": (3, 2)}).unchecked == ""


def test_numbers_beside_an_open_batch_are_checked_as_numbers() -> None:
    model = make([helper.make_node("Clip", ["x", "least"], ["y"])], {"x": ["n", 3], "least": []}, ["y"])
    assert portcall.compile.onnx(model, runtime="vm").unchecked == ""
