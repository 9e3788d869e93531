# SPDX-License-Identifier: Apache-2.0
"""Functions that TVM's clients and tuners look up on a server: what they do in a session, beside apache-tvm's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from portcall import errors, rpc
from portcall.rpc.client._connect import connect_without
from portcall.rpc.server._session import register_standard_names
from rpc.serving import Serving


@pytest.fixture(scope="module")
def remote(serving_functions: Serving) -> Iterator[rpc.Session]:
    """A session as a client of TVM has it: containers stay on the server."""
    with connect_without(["values"], serving_functions.address, key="k") as session:
        yield session


@pytest.fixture
def standard_names(register: Any) -> Iterator[set[str]]:
    """The names, registered in this process for one test, with a function of the user's in the place of one."""
    before = set(portcall.list_global_func_names())
    register("ffi.ListSize", lambda items: -1)
    register_standard_names()
    names = set(portcall.list_global_func_names()) - before
    yield names
    for name in names - {"ffi.ListSize"}:
        portcall.remove_global_func(name)


def test_standard_names_are_all_offered(remote: rpc.Session, standard_names: set[str]) -> None:
    for name in (*standard_names, "ffi.Array", "ffi.Map", "runtime.config_threadpool"):
        assert remote[name] is not None


def test_wire_page_lists_every_standard_name(standard_names: set[str]) -> None:
    page = (Path(__file__).parents[2] / "docs/wire.md").read_text()
    listed = set()
    for row in re.findall(r"^\| (`[\w.]+`[^|]*)\|", page, re.MULTILINE):
        prefix = ""
        for name in re.findall(r"`([\w.]+)`", row):
            prefix = prefix if name.startswith(".") else name.rpartition(".")[0]
            listed.add(prefix + name if name.startswith(".") else name)
    assert standard_names <= listed


def test_register_standard_names_keeps_functions_of_the_user(standard_names: set[str]) -> None:
    assert portcall.get_global_func("ffi.ListSize")(None) == -1
    assert standard_names > {"ffi.ListSize", "ffi.DictSize", "tvm.graph_executor.create"}


def test_standard_names_of_shapes(remote: rpc.Session) -> None:
    shape = remote["ffi.Shape"](2, 3)
    assert isinstance(shape, rpc.RemoteObject)
    assert remote["rpc.testing.GetShapeSize"](shape) == 2
    assert [remote["rpc.testing.GetShapeElem"](shape, k) for k in range(2)] == [2, 3]
    with pytest.raises(IndexError):
        remote["rpc.testing.GetShapeElem"](shape, 2)
    for wrong in ("x", 1.5):
        with pytest.raises(errors.RemoteError):
            remote["ffi.Shape"](1, wrong)
    assert remote["ffi.String"]("text") == "text"
    with pytest.raises(errors.RemoteError):
        remote["ffi.String"](5)


def test_standard_names_of_lists(remote: rpc.Session) -> None:
    f = {name: remote[f"ffi.List{name}"] for name in
         ("GetItem", "SetItem", "Size", "Contains", "Append", "Insert", "Pop", "Erase", "EraseRange", "ReplaceSlice",
          "Reverse", "Clear", "Reserve")}  # fmt: skip
    items = remote["ffi.List"](1, "two", 3.0)

    def now() -> list[Any]:
        return [f["GetItem"](items, k) for k in range(f["Size"](items))]

    assert now() == [1, "two", 3.0]
    f["SetItem"](items, 0, 10)
    f["Append"](items, 4)
    f["Insert"](items, 0, 5)
    f["Insert"](items, 5, 6)
    f["Reserve"](items, 100)
    assert now() == [5, 10, "two", 3.0, 4, 6]
    assert f["Contains"](items, 10) is True
    assert f["Pop"](items, 1) == 10
    f["Erase"](items, 1)
    f["EraseRange"](items, 2, 4)
    f["ReplaceSlice"](items, 0, 1, remote["ffi.List"](7, 8))
    f["Reverse"](items)
    assert now() == [3.0, 8, 7]
    wrong: list[tuple[str, Any]] = [("GetItem", (-1,)), ("GetItem", (3,)), ("Insert", (4, 0)), ("Pop", (3,)),
                                    ("EraseRange", (2, 1)), ("EraseRange", (0, 4))]  # fmt: skip
    for name, arguments in wrong:
        with pytest.raises(IndexError):
            f[name](items, *arguments)
    f["Clear"](items)
    assert now() == []


def test_standard_names_of_dicts_and_cursors(remote: rpc.Session) -> None:
    f = {name: remote[f"ffi.Dict{name}"] for name in ("GetItem", "SetItem", "Size", "Count", "Erase", "Clear")}
    mapping = remote["ffi.Dict"]("a", 1, "b", 2)
    f["SetItem"](mapping, "c", 3)
    f["Erase"](mapping, "a")
    f["Erase"](mapping, "missing")
    assert (f["Size"](mapping), f["Count"](mapping, "a"), f["GetItem"](mapping, "b")) == (2, 0, 2)
    with pytest.raises(KeyError):
        f["GetItem"](mapping, "a")
    cursor = remote["ffi.DictForwardIterFunctor"](mapping)
    assert [cursor(0), cursor(1), cursor(2), cursor(0), cursor(1), cursor(2)] == ["b", 2, True, "c", 3, False]
    with pytest.raises(IndexError):
        cursor(0)
    f["Clear"](mapping)
    with pytest.raises(ValueError, match="keys and values"):
        remote["ffi.Dict"]("a")
    cursor = remote["ffi.MapForwardIterFunctor"](remote["ffi.Map"]("k", "v"))
    assert [cursor(0), cursor(1), cursor(2), cursor(2)] == ["k", "v", False, False]


def test_dict_cursor_iterates_over_a_snapshot(standard_names: set[str]) -> None:
    mapping = portcall.Dict({1: 2})
    cursor = portcall.get_global_func("ffi.DictForwardIterFunctor")(mapping)
    mapping[3] = 4
    with pytest.raises(ValueError, match="invalid command 3"):
        cursor(3)
    assert [cursor(0), cursor(2)] == [1, False]


def test_standard_names_refuse_wrong_arguments(remote: rpc.Session, standard_names: set[str]) -> None:
    checked = {name for name in standard_names if name.startswith(("ffi.List", "ffi.Dict", "runtime."))}
    for name in checked - {"ffi.List"}:
        with pytest.raises(errors.RemoteError):
            remote[name](*[remote["ffi.Shape"](1)] * (3 if name == "ffi.Dict" else 1))
    assert remote["testing.echo"](1) == 1


def test_standard_name_list_contains_compares_as_tvm_ffi_does(remote: rpc.Session) -> None:
    items = remote["ffi.List"](1, "text", b"bytes that are long enough to be an object", None)
    contains = remote["ffi.ListContains"]
    assert contains(items, 1)
    assert contains(items, "text")
    assert contains(items, b"bytes that are long enough to be an object")
    assert contains(items, None)
    assert not any(contains(items, other) for other in (2, 1.0, True, "other", b"text"))


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float64", "float16", "int8", "uint8", "int32", "bool", "bfloat16", "float8_e4m3fn", "float8_e5m2"],
)
@pytest.mark.parametrize("name", ["random_fill", "random_fill_for_measure"])
def test_standard_name_random_fill_gives_1_to_10(remote: rpc.Session, dtype: str, name: str) -> None:
    tensor = remote.empty((300, 1000), dtype)
    assert remote[f"tvm.contrib.random.{name}"](tensor) is None
    array = tensor.numpy().astype("float64")
    assert array.min() >= 1
    assert array.max() <= 10
    assert dtype == "bool" or len(np.unique(array)) > 5


def test_standard_names_of_tensors(remote: rpc.Session) -> None:
    make, view, copy = (remote[f"runtime.TVMTensor{name}"] for name in ("AllocWithScope", "CreateView", "CopyFromTo"))
    shape = remote["ffi.Shape"](2, 3)
    tensor = make(shape, portcall.dtype("float32"), remote.cpu(), None)
    assert (tensor.shape, str(tensor.dtype)) == ((2, 3), "float32")
    tensor.copyfrom(np.arange(6, dtype="float32").reshape(2, 3))
    row = view(tensor, remote["ffi.Shape"](3), portcall.dtype("float32"), 12)
    assert row.numpy().tolist() == [3, 4, 5]
    assert view(tensor, remote["ffi.Shape"](3), portcall.dtype("float32")).numpy().tolist() == [0, 1, 2]
    with pytest.raises(TypeError):
        view(tensor, remote["ffi.Shape"](3), portcall.dtype("float32"), 0, 0)
    other = make(shape, portcall.dtype("float32"), remote.cpu(), "global")
    copy(tensor, other)
    assert (other.numpy() == tensor.numpy()).all()
    for offset in (16, -4):
        with pytest.raises(ValueError, match=r"past the end|negative"):
            view(tensor, remote["ffi.Shape"](3), portcall.dtype("float32"), offset)
    with pytest.raises(ValueError, match="memory scope 'texture'"):
        make(shape, portcall.dtype("float32"), remote.cpu(), "texture")


def test_standard_names_of_devices_and_modules(remote: rpc.Session) -> None:
    assert remote["runtime.RuntimeEnabled"]("cpu") is True
    assert remote["runtime.RuntimeEnabled"]("llvm") is False
    assert remote["runtime.RuntimeEnabled"]("cuda") is False
    with pytest.raises(ValueError, match="unknown runtime 'nonsense'"):
        remote["runtime.RuntimeEnabled"]("nonsense")
    remote["runtime.Device_StreamSync"](remote.cpu(), 0)
    remote["runtime.Device_StreamSync"](remote.cpu())
    with pytest.raises(ValueError, match="DevStreamSync"):
        remote["runtime.Device_StreamSync"](remote.cpu(), 5)
    library = remote["runtime.SystemLib"]()
    assert remote["ffi.ModuleGetTypeKind"](library) == remote["ffi.ModuleGetKind"](library)


@pytest.mark.peers
def test_standard_names_serve_a_tvm_client(serving_functions: Serving) -> None:
    import tvm
    from tvm import rpc as tvm_rpc

    remote = tvm_rpc.connect("127.0.0.1", serving_functions.port, key="k")
    shape = remote.get_function("ffi.Shape")(2, 3)
    assert remote.get_function("rpc.testing.GetShapeElem")(shape, 1) == 3
    tensor = tvm.runtime.empty((1000,), "float32", remote.cpu())
    remote.get_function("tvm.contrib.random.random_fill")(tensor)
    array = tensor.numpy()
    assert 1 <= array.min() < array.max() <= 10
    items = remote.get_function("ffi.List")(1, 2)
    assert remote.get_function("ffi.ListSize")(items) == 2
    assert remote.system_lib() is not None
