# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="arg-type"
"""Bundles: one file with graph, parameters and kernels."""

from __future__ import annotations

import gc
import os
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from graph.models import Model, array, close, f32, mlp, mlp_json, mlp_params
from portcall import errors, graph, rpc, toolchain
from portcall.inspect import check_file, inspect_library
from rpc.serving import serving

KERNELS, NATIVE = (Path(__file__).parents[1] / name for name in ("kernels", "native"))
PARAMS = mlp_params()
FOOTER = struct.Struct("<QQQ8s")


@pytest.fixture
def bundle(libraries: dict[str, Path], tmp_path: Path) -> Path:
    return graph.export_bundle(tmp_path / "mlp.so", mlp_json(), libraries["layers"], PARAMS)


def result(module: portcall.Module, x: Any) -> Any:
    made = graph.GraphModule(module["default"](portcall.cpu()))
    made.run(x=x)
    return made.get_output(0)


def check(path: Path) -> None:
    x = array(4, 16)
    close(result(portcall.load_module(path), x), mlp(x, PARAMS))


def mappings(path: Path) -> list[tuple[int, int]]:
    """Where a file is mapped whole, for reading."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        words = line.split(maxsplit=5)
        if words[-1] == str(path) and words[1] == "r--p" and int(words[2], 16) == 0:
            start, end = (int(word, 16) for word in words[0].split("-"))
            if end - start >= path.stat().st_size:
                found.append((start, end))
    return found


# ---- What a bundle does ----------------------------------------------------------------------------------------------


def test_export_bundle_makes_a_library_that_runs(bundle: Path) -> None:
    check(bundle)
    opened = portcall.load_module(bundle)
    assert graph.Graph.from_json(opened["get_graph_json"]()) == graph.Graph.from_json(mlp_json())
    assert opened["get_graph_params_blob"]() == graph.save_params(PARAMS)
    assert opened.type_key == "GraphExecutorFactory"
    assert portcall.load_module(bundle).same_as(opened)
    x, y = array(2, 2), portcall.empty((2, 2))
    opened.get_function("relu", query_imports=True)(portcall.tensor(x), y)
    close(y, np.maximum(x, 0))


def test_bundle_parameters_are_mapped_not_copied(bundle: Path) -> None:
    opened = portcall.load_module(bundle)
    executor = opened["default"](portcall.cpu())
    ((start, end),) = mappings(bundle)
    for name, tensor in opened["get_graph_params"]().items():
        assert tensor.data_ptr % 64 == 0
        assert start <= tensor.data_ptr < end
        assert tensor.readonly
        assert executor["get_input"](name).data_ptr == tensor.data_ptr
        np.testing.assert_array_equal(tensor.numpy(), PARAMS[name])


def test_bundle_file_is_unmapped_after_its_last_use(bundle: Path) -> None:
    executor = portcall.load_module(bundle)["default"](portcall.cpu())
    held = executor["get_input"]("w1")
    del executor
    gc.collect()
    assert len(mappings(bundle)) == 1
    close(held, PARAMS["w1"])
    del held
    gc.collect()
    assert mappings(bundle) == []


def test_bundle_load_params_does_not_change_the_file(bundle: Path) -> None:
    before = bundle.read_bytes()
    opened = portcall.load_module(bundle)
    made = graph.GraphModule(opened["default"](portcall.cpu()))
    zeros = np.zeros_like(PARAMS["w1"])
    made.set_input("w1", zeros)
    made.load_params({"b1": np.ones_like(PARAMS["b1"])})
    x = array(4, 16)
    made.run(x=x)
    close(made.get_output(0), mlp(x, {**PARAMS, "w1": zeros, "b1": np.ones_like(PARAMS["b1"])}))
    close(result(opened, x), mlp(x, PARAMS))
    assert bundle.read_bytes() == before


def test_bundle_runs_after_its_file_was_deleted(bundle: Path) -> None:
    opened = portcall.load_module(bundle)
    bundle.unlink()
    x = array(4, 16)
    close(result(opened, x), mlp(x, PARAMS))


def test_bundle_that_was_replaced_is_opened_again(bundle: Path, libraries: dict[str, Path]) -> None:
    x, other = array(4, 16), mlp_params(seed=7)
    old = portcall.load_module(bundle)
    graph.export_bundle(bundle, mlp_json(), libraries["layers"], other)
    close(result(portcall.load_module(bundle), x), mlp(x, other))
    close(result(old, x), mlp(x, PARAMS))


# Opens a bundle where no file larger than 1 MB can be written, and prints by how much resident memory grew.
OPENING = """
import pathlib, resource, sys
import portcall
from portcall import graph

def resident():
    return 1024 * int(pathlib.Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])

resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
before = resident()
executor = portcall.load_module(sys.argv[1])["default"](portcall.cpu())
assert executor["get_input_states"]() == bytes([2])
print(resident() - before)
"""


def test_bundle_opening_copies_no_parameters(libraries: dict[str, Path], tmp_path: Path) -> None:
    model = Model()
    json = model.json(model.input("w", (1 << 24,)))
    path = graph.export_bundle(tmp_path / "large.so", json, libraries["layers"], {"w": np.zeros(1 << 24, "float32")})
    assert path.stat().st_size > 1 << 26
    done = subprocess.run(
        [sys.executable, "-c", OPENING, path], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 8 << 20


def test_bundle_runs_on_a_server(bundle: Path) -> None:
    x = array(4, 16)
    with serving() as server, rpc.connect(server.address, call_timeout=60) as session:
        factory = session.load_module(session.upload(bundle))
        made = graph.GraphModule(factory["default"](session.cpu()))
        made.run(x=x)
        close(made.get_output(0), mlp(x, PARAMS))
        assert graph.load_params(factory["get_graph_params_blob"]()).keys() == PARAMS.keys()
        with pytest.raises(errors.RemoteError, match="not offered to sessions"):  # it would read any file of the server
            session.get_function("portcall.OpenBundle")


# ---- What a bundle is made of ----------------------------------------------------------------------------------------

Make = Callable[[dict[str, Path], Path], Any]


def make_object(libraries: dict[str, Path], folder: Path) -> Path:
    with tarfile.open(libraries["layers"].with_suffix(".tar")) as archive:
        archive.extract("lib0.o", folder, filter="data")
    return folder / "lib0.o"


def make_source(_: dict[str, Path], folder: Path) -> Path:
    (folder / "empty.c").write_text("int portcall_test_empty;\n")
    return folder / "empty.c"


FORMS: dict[str, Make] = {
    "a library": lambda libraries, folder: str(libraries["layers"]),
    "a module": lambda libraries, folder: portcall.load_module(libraries["layers"]),
    "an object": make_object,
    "an archive": lambda libraries, folder: libraries["layers"].with_suffix(".tar"),
    "objects and sources": lambda libraries, folder: [make_object(libraries, folder), make_source(libraries, folder)],
    "another bundle": lambda libraries, folder: graph.export_bundle(
        folder / "other.so", mlp_json(), libraries["layers"], mlp_params(seed=9)
    ),
    "a module of another bundle": lambda libraries, folder: portcall.load_module(
        graph.export_bundle(folder / "other.so", mlp_json(), libraries["layers"], mlp_params(seed=9))
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_export_bundle_takes_kernels_in_every_form(form: str, libraries: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    kernels = FORMS[form](libraries, tmp_path / "from")
    made = graph.export_bundle(tmp_path / "one.so", mlp_json(), kernels, PARAMS)
    again = graph.export_bundle(tmp_path / "two.so", mlp_json(), kernels, PARAMS)
    check(made)
    assert made.read_bytes() == again.read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["from", "one.so", "two.so"]


def test_export_bundle_takes_parameters_in_every_form(libraries: dict[str, Path], tmp_path: Path) -> None:
    blob = graph.save_params(PARAMS)
    (tmp_path / "m.params").write_bytes(blob)
    forms = [PARAMS, blob, graph.load_params_from_file(tmp_path / "m.params"),
             {name: portcall.tensor(value) for name, value in PARAMS.items()}]  # fmt: skip
    files = [
        graph.export_bundle(tmp_path / "m.so", mlp_json(), libraries["layers"], form).read_bytes() for form in forms
    ]
    assert len(set(files)) == 1
    bare = portcall.load_module(graph.export_bundle(tmp_path / "bare.so", mlp_json(), libraries["layers"]))
    assert dict(bare["get_graph_params"]()) == {}
    made = graph.GraphModule(bare["default"](portcall.cpu()))
    made.load_params(blob)
    x = array(4, 16)
    made.run(x=x)
    close(made.get_output(0), mlp(x, PARAMS))


def test_export_bundle_takes_kernels_for_another_machine(tmp_path: Path) -> None:
    model = Model()
    json = model.json(model.call("add_one", [model.input("x", (4,))], f32(4)))
    path = graph.export_bundle(tmp_path / "arm.so", json, KERNELS / "classic_kernels.c", target="aarch64-linux-gnu")
    data = path.read_bytes()
    assert data.startswith(b"\x7fELF")
    assert struct.unpack_from("<H", data, 18) == (183,)  # AArch64
    assert data.endswith(b"PCBUNDLE")
    here = graph.export_bundle(tmp_path / "here.so", json, KERNELS / "classic_kernels.c")
    executor = portcall.load_module(here)["default"](portcall.cpu())
    executor["run_from_inputs"](1, 0, "x", np.arange(4, dtype="float32"))
    close(executor["get_output"](0), [1, 2, 3, 4])


def test_export_bundle_name_is_that_of_the_factory_function(libraries: dict[str, Path], tmp_path: Path) -> None:
    path = graph.export_bundle(tmp_path / "mlp.so", mlp_json(), libraries["layers"], PARAMS, name="mlp")
    opened = portcall.load_module(path)
    assert opened.entry_name == "mlp"
    opened["mlp"](portcall.cpu())
    with pytest.raises(errors.FunctionNotFoundError, match="default"):
        opened["default"]


def test_export_bundle_refuses_unusable_kernels_and_parameters(libraries: dict[str, Path], tmp_path: Path) -> None:
    def export(lib: Any, params: Any = None, name: str = "out.so") -> None:
        graph.export_bundle(tmp_path / name, mlp_json(), lib, params)

    with pytest.raises(
        errors.GraphError, match=r"the parameter 'w1' is float32 \(32, 16\) in the graph, got int8 \(3,\)"
    ):
        export(libraries["layers"], {"w1": np.zeros(3, "int8")})
    with pytest.raises(ValueError, match="a module of type 'GraphExecutor' comes from no file"):
        export(graph.create(mlp_json(), portcall.load_module(libraries["layers"]), portcall.cpu()).module)
    (tmp_path / "text.so").write_text("text")
    with pytest.raises(ValueError, match=r"text\.so'"):
        export(tmp_path / "text.so")
    (tmp_path / "text.tar").write_text("text")
    with pytest.raises(ValueError, match=r"text\.tar'"):
        export(tmp_path / "text.tar")
    with tarfile.open(tmp_path / "none.tar", "w") as archive:
        archive.add(tmp_path / "text.so", "text.so")
    with pytest.raises(ValueError, match=r"none\.tar'"):
        export(tmp_path / "none.tar")
    with pytest.raises(ValueError, match=r"its suffix '\.py'"):
        export(__file__)
    with pytest.raises(FileNotFoundError):
        export(tmp_path / "missing.so")
    with pytest.raises(FileNotFoundError, match=r"the folder .* does not exist"):
        export(libraries["layers"], name="missing/out.so")
    with pytest.warns(graph.UnexpectedParamsWarning, match="'batch_norm'"):
        export(libraries["layers"], {**PARAMS, "batch_norm": np.zeros(1)}, "warned.so")
    check(tmp_path / "warned.so")
    assert sorted(os.listdir(tmp_path)) == ["none.tar", "text.so", "text.tar", "warned.so"]


def test_export_bundle_of_a_bundle_takes_its_library_only(libraries: dict[str, Path], tmp_path: Path) -> None:
    one = graph.export_bundle(tmp_path / "one.so", mlp_json(), libraries["layers"], PARAMS)
    again = graph.export_bundle(tmp_path / "again.so", mlp_json(), one, PARAMS)
    assert again.read_bytes() == one.read_bytes()


def test_bundle_run_allocates_nothing(libraries: dict[str, Path], tmp_path: Path) -> None:
    """In a program that counts; of a graph with views, flat arguments and copies too."""
    m = Model()
    x = m.input("x", (2, 2))
    view = m.call("__nop", [m.call("relu", [x], f32(2, 2))], f32(4), name="view", on=(1, 0))
    copy = m.call("__copy", [view], f32(2, 2), name="copy")
    text = m.json(m.call("add_flat", [copy, x], f32(2, 2), flat=True))
    program = toolchain.create_executable(NATIVE / "count_allocations.cc", tmp_path / "count")
    for name, json, params in (("mlp", mlp_json(), PARAMS), ("many", text, None)):
        made = graph.export_bundle(tmp_path / f"{name}.so", json, libraries["layers"], params)
        done = subprocess.run([program, made], capture_output=True, text=True, check=True)
        assert done.stdout == "some, 0 in runs\n"


# ---- Damage ----------------------------------------------------------------------------------------------------------


def put(at: Callable[[int, int], int], form: str, value: int) -> Callable[[bytes], bytes]:
    """Overwrite a number at a place that depends on where the index and the footer begin."""

    def damage(data: bytes) -> bytes:
        footer = len(data) - FOOTER.size
        offset = at(FOOTER.unpack(data[footer:])[1], footer)
        return data[:offset] + struct.pack(form, value) + data[offset + struct.calcsize(form) :]

    return damage


LAST = r"it is a bundle, and its last bytes are damaged"
DAMAGES = {
    "a library beyond the index": (put(lambda i, f: f, "<Q", 1 << 40), LAST),
    "an index beyond the footer": (put(lambda i, f: f + 8, "<Q", 1 << 40), LAST),
    "an index of no bytes": (put(lambda i, f: f + 16, "<Q", 0), LAST),
    "a longer index": (put(lambda i, f: f + 16, "<Q", 1 << 62), LAST),
    "bytes that are missing": (lambda data: data[: -FOOTER.size - 9] + data[-FOOTER.size :], LAST),
    "another version": (
        put(lambda i, f: i, "<I", 2),
        "the bundle has version 2, this runtime knows 1; update portcall",
    ),
    "a name without end": (put(lambda i, f: i + 4, "<Q", 1 << 62), "the index of the bundle is damaged at byte 12"),
    "a graph without end": (put(lambda i, f: i + 19, "<Q", 1 << 62), "the graph takes 4611686018427387904 bytes"),
    "a parameter elsewhere": (put(lambda i, f: f - 8, "<Q", 1 << 40), "a parameter lies outside of the file"),
    "a parameter at an odd place": (put(lambda i, f: f - 8, "<Q", 4), "a parameter is not aligned"),
    "a parameter of endless extent": (put(lambda i, f: f - 16, "<q", 2**62), "extent 4611686018427387904 of axis 0"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_bundle_that_is_damaged_is_refused(kind: str, bundle: Path) -> None:
    damage, message = DAMAGES[kind]
    bundle.write_bytes(damage(bundle.read_bytes()))
    with pytest.raises(errors.ModuleLoadError) as caught:
        portcall.load_module(bundle)
    assert message in str(caught.value)
    assert caught.value.path == str(bundle)


@pytest.mark.parametrize("left", [0.7, 0.9, 0.999])
def test_bundle_that_was_not_copied_whole_is_refused(left: float, bundle: Path) -> None:
    data, library = bundle.read_bytes(), FOOTER.unpack(bundle.read_bytes()[-FOOTER.size :])[0]
    bundle.write_bytes(data[: library + 24 + int(left * (len(data) - library - 24))])
    with pytest.raises(errors.ModuleLoadError, match="copy it again"):
        portcall.load_module(bundle)
    assert any("copy it again" in problem for problem in inspect_library(bundle).problems)


def test_bundle_with_damaged_parameters_is_refused_where_they_are_checked(bundle: Path) -> None:
    check_file(bundle)
    data = bytearray(bundle.read_bytes())
    data[graph.read_bundle(bundle).params["w1"].offset + 5] ^= 1
    bundle.write_bytes(data)
    portcall.load_module(bundle)  # which does not read them
    with pytest.raises(errors.ModuleLoadError) as caught:
        check_file(bundle)
    assert caught.value.path == str(bundle)
    assert len(inspect_library(bundle).problems) == 1
    with serving() as server, rpc.connect(server.address) as session, pytest.raises(errors.ModuleLoadError):
        session.upload(bundle)


def test_bundle_without_a_seal_is_taken_as_it_is(bundle: Path) -> None:
    data = bytearray(bundle.read_bytes())
    library = graph.read_bundle(bundle).library_nbytes
    data[library : library + 8] = bytes(8)
    bundle.write_bytes(data)
    check_file(bundle)
    assert inspect_library(bundle).problems == ()
    check(bundle)


def test_bundle_with_a_damaged_plan_is_refused(bundle: Path) -> None:
    data = bundle.read_bytes()
    at = data.index(b"PCGPLAN\0") + 24
    bundle.write_bytes(data[:at] + b"\xff" + data[at + 1 :])
    with pytest.raises(errors.ModuleLoadError, match=r"plan: .*checksum"):
        portcall.load_module(bundle)
