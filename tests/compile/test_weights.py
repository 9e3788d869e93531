# SPDX-License-Identifier: Apache-2.0
"""Weights that are beside a model while it is compiled."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import portcall
from portcall.compile import _dynamic, _verify, _vm
from portcall.compile._checks import InvalidModelError
from portcall.compile._importer import import_model
from portcall.compile._model import load
from portcall.compile._onnx_file import read_model
from portcall.compile._program import is_constant
from portcall.compile._rewriting import Graph, shapes_inferred
from portcall.compile._target import Target, find_target
from portcall.compile._weights import apart, array_of, arrays_apart, forget_all_but, is_apart, without_weights

SHAPE = (256, 128)
WEIGHTS = np.random.default_rng(0).standard_normal(SHAPE).astype("float32")
FEW = np.arange(SHAPE[1], dtype="float32")


def a_model(rows: int | str = 2) -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Add", ["m", "b"], ["y"])]
    values = [helper.make_tensor_value_info(name, 1, [rows, n]) for name, n in zip("xy", SHAPE, strict=True)]
    weights = [numpy_helper.from_array(WEIGHTS, "w"), numpy_helper.from_array(FEW, "b")]
    graph = helper.make_graph(nodes, "two", values[:1], values[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_large_weights_are_beside_a_model_and_small_ones_in_it() -> None:
    model = a_model()
    with apart():
        light = without_weights(model)
        assert [is_apart(tensor) for tensor in light.graph.initializer] == [True, False]
        assert light.ByteSize() < FEW.nbytes + 500
        assert [*arrays_apart(light)] == ["w"]
        np.testing.assert_array_equal(array_of(light.graph.initializer[0]), WEIGHTS)
    assert model == a_model()
    assert without_weights(model) == model  # outside of it, a copy


def test_what_rewrites_a_model_shares_its_weights() -> None:
    with apart():
        light = without_weights(a_model())
        first = Graph(light)
        second = Graph(shapes_inferred(first.model()))
        assert second.constants["w"] is first.constants["w"]
        assert second.shape("y") == (2, SHAPE[1])


def test_weights_that_no_model_has_are_forgotten() -> None:
    with apart():
        light = without_weights(a_model())
        forget_all_but(light)
        assert is_apart(light.graph.initializer[0])
        forget_all_but()
        assert not is_apart(light.graph.initializer[0])


def test_onnxruntime_gets_the_weights() -> None:
    x = np.ones((2, SHAPE[0]), "float32")
    with apart():
        got = _verify.reference(without_weights(a_model()), {"x": x})["y"]
    np.testing.assert_allclose(got, x @ WEIGHTS + FEW, rtol=1e-4, atol=1e-4)


def test_a_model_cannot_say_that_its_weights_are_there() -> None:
    model = a_model()
    with apart():
        said = without_weights(model).graph.initializer[0]
    with apart():
        assert not is_apart(said)


@pytest.mark.peers
@pytest.mark.usefixtures("vm_pools")
def test_a_model_for_the_relax_vm_is_compiled_and_compared_with_its_weights_beside_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    light: list[bool] = []

    def import_dynamic(model: onnx.ModelProto, target: Target, **words: Any) -> object:
        light.extend(is_apart(tensor) for tensor in model.graph.initializer if tensor.name == "w")
        return _dynamic.import_dynamic(model, target, **words)

    monkeypatch.setattr(_vm, "import_dynamic", import_dynamic)
    made = portcall.compile.onnx(a_model("rows"), runtime="vm")
    assert light
    assert all(light)
    assert made.unchecked == ""


@pytest.mark.peers
def test_weights_are_borrowed_while_a_graph_is_compiled_and_checked() -> None:
    from tvm import relax

    shapes = {"x": (2, SHAPE[0])}
    with apart():
        light = without_weights(a_model())
        found: list[Any] = []
        relax.analysis.post_order_visit(import_model(light, shapes, find_target("native"))["main"], found.append)
        constants = [np.from_dlpack(each.value) for each in found if is_constant(each)]
        weights = array_of(light.graph.initializer[0])
        assert [np.shares_memory(each, weights) for each in constants if each.shape == SHAPE] == [True]
    made = portcall.compile.onnx(a_model(), runtime="graph")
    executor = made._borrowing()
    assert made.params
    assert all(np.shares_memory(executor.get_input(name).numpy(), array) for name, array in made.params.items())
    assert made.unchecked == ""


def test_file_is_read_with_its_large_weights_beside_the_model(tmp_path: Path) -> None:
    model = a_model()
    model.graph.initializer[0].doc_string = "of no use"
    model.graph.initializer.add().CopyFrom(helper.make_tensor("typed", 1, SHAPE, WEIGHTS.ravel()))  # not as bytes
    file = tmp_path / "model.onnx"
    file.write_bytes(model.SerializeToString())
    assert read_model(str(file)) == model  # outside of apart
    with apart():
        light = read_model(str(file))
        assert [is_apart(tensor) for tensor in light.graph.initializer] == [True, False, False]
        np.testing.assert_array_equal(array_of(light.graph.initializer[0]), WEIGHTS)
        light.graph.initializer[0].CopyFrom(model.graph.initializer[0])
        assert light == model


def test_weights_of_other_files_are_beside_the_model_that_is_read(tmp_path: Path) -> None:
    onnx.save(a_model(), tmp_path / "model.onnx", save_as_external_data=True, location="w.bin", size_threshold=100)
    with apart():
        light = load(tmp_path / "model.onnx").model
        assert [is_apart(tensor) for tensor in light.graph.initializer] == [True, False]
        np.testing.assert_array_equal(array_of(light.graph.initializer[0]), WEIGHTS)
        np.testing.assert_array_equal(array_of(light.graph.initializer[1]), FEW)
        assert onnx.shape_inference.infer_shapes(light).graph.output[0].name == "y"
    outside = load(tmp_path / "model.onnx").model
    np.testing.assert_array_equal(numpy_helper.to_array(outside.graph.initializer[0]), WEIGHTS)


def test_file_that_is_cut_off_or_no_message_is_no_model(tmp_path: Path) -> None:
    file, whole = tmp_path / "model.onnx", a_model().SerializeToString()
    (begin,) = [place for place in range(len(whole)) if whole.startswith(WEIGHTS.tobytes()[:16], place)]
    with apart():
        for end in (*range(1, 60), begin - 5, begin - 1, begin, begin + 7, len(whole) - 1):
            file.write_bytes(whole[:end])
            with pytest.raises(InvalidModelError):
                load(file)
        for damaged in (b"\xff" * 30, b"\x3a" + b"\xff" * 9 + b"\x01", b"\x0b\x0c", b"\x39\x00"):
            file.write_bytes(damaged)
            with pytest.raises(InvalidModelError, match="not an ONNX model"):
                load(file)


def test_name_of_a_large_weight_that_is_no_text_is_named(tmp_path: Path) -> None:
    model, file = a_model(), tmp_path / "model.onnx"
    model.graph.initializer[0].name = model.graph.node[0].input[1] = "weight"
    file.write_bytes(model.SerializeToString().replace(b"weight", b"weigh\xff"))
    with apart(), pytest.raises(InvalidModelError, match="not UTF-8"):
        load(file)


def test_model_comes_through_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=[a_model().SerializeToString()])
    writer.start()
    assert read_model(str(tmp_path / "pipe")) == a_model()
    writer.join()


@pytest.mark.parametrize("runtime", ["graph", "vm"])
def test_compiling_takes_less_than_twice_the_memory_of_the_model(tmp_path: Path, runtime: str) -> None:
    rows, size, number = (2 if runtime == "graph" else "n"), 1024, 24
    weights = [numpy_helper.from_array(np.full((size, size), k / size, "float32"), f"w{k}") for k in range(number)]
    nodes = [helper.make_node("MatMul", [f"x{k}", f"w{k}"], [f"x{k + 1}"]) for k in range(number)]
    ends = [helper.make_tensor_value_info(name, 1, [rows, size]) for name in ("x0", f"x{number}")]
    graph = helper.make_graph(nodes, "products", ends[:1], ends[1:], weights)
    file, light = tmp_path / "model.onnx", tmp_path / "light.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), file)
    onnx.save(a_model(rows), light)
    program = f"""
import sys
sys.path[:0] = {sys.path!r}
import portcall.compile

def peak():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10

portcall.compile.onnx({str(light)!r}, runtime={runtime!r})
open("/proc/self/clear_refs", "w").write("5")  # it begins anew
before = peak()
portcall.compile.onnx({str(file)!r}, runtime={runtime!r})
print(peak() - before)
"""
    taken = int(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout)
    assert taken < 2 * file.stat().st_size
