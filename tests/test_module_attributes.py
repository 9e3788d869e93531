# SPDX-License-Identifier: Apache-2.0
"""Functions of a module as attributes: ``lib.add_one(x, y)``, here and in a session."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import portcall
from portcall import rpc


@pytest.fixture
def module() -> portcall.Module:
    names = ("double", "doubled", "kind", "get_source", "_hidden", "not a name", "demo.dotted")
    return portcall.Module.from_functions({name: lambda *_, name=name: name for name in names})


@pytest.fixture
def remote(c_libraries: dict[str, Path]) -> Iterator[rpc.Session]:
    with rpc.LocalSession() as session:
        session.upload(c_libraries["modern"], "modern.so")
        yield session


def test_module_attribute_is_the_function(module: portcall.Module) -> None:
    assert module.double() == "double"
    assert isinstance(module.double, portcall.PackedFunc)
    assert module.double is module.double
    assert hasattr(module, "doubled")
    assert "double" in module
    assert "halve" not in module
    assert 3 not in module
    with pytest.raises(TypeError):
        iter(module)  # type: ignore[call-overload, unused-ignore]
    with pytest.raises(AttributeError, match="do not change"):
        module.double = None


def test_module_attributes_of_its_own_come_first(module: portcall.Module) -> None:
    assert (module.kind, module["kind"]()) == ("functions", "kind")
    assert module.type_key == module.kind
    assert module["get_source"]() == "get_source"
    with pytest.raises(ValueError, match="no source"):
        module.get_source()
    assert module["_hidden"]() == "_hidden"


def test_module_absent_attribute_proposes_similar_names(module: portcall.Module) -> None:
    with pytest.raises(AttributeError, match="did you mean 'double'") as caught:
        _ = module.doubel
    assert (caught.value.name, caught.value.obj) == ("doubel", module)
    assert getattr(module, "doubel", None) is None


def test_module_lists_its_functions_to_completion(module: portcall.Module) -> None:
    names = dir(module)
    assert {"double", "doubled", "get_function"} <= set(names)
    assert not {"_hidden", "not a name", "demo.dotted"} & set(names)
    assert {"_hidden", "not a name", "demo.dotted"} <= set(module._ipython_key_completions_())


@pytest.mark.parametrize("name", ["__array__", "__dlpack__", "__len__", "_repr_png_", "_ipython_display_", "_hidden"])
def test_module_has_no_attributes_with_an_underscore(module: portcall.Module, name: str) -> None:
    assert not hasattr(module, name)


def test_module_made_without_its_constructor_has_no_functions() -> None:
    with pytest.raises(portcall.errors.ArgumentError):
        _ = portcall.Module.__new__(portcall.Module).double


def test_module_is_not_pickled_or_copied(module: portcall.Module) -> None:
    with pytest.raises(TypeError):
        pickle.dumps(module)
    with pytest.raises(TypeError):
        copy.copy(module)
    assert copy.deepcopy(module).same_as(module)
    with pytest.raises((TypeError, ValueError)):
        np.asarray(module, dtype="float32")


def test_remote_module_attribute_is_the_function(remote: rpc.Session) -> None:
    lib = remote.load_module("modern.so")
    assert lib.answer() == lib["answer"]() == 42
    assert lib.kind == "rpc"
    assert {"answer", "greeting"} <= set(dir(lib))
    assert lib._ipython_key_completions_() == lib.list_function_names()
    with pytest.raises(AttributeError, match="did you mean 'answer'"):
        _ = lib.anwser


def test_remote_module_does_not_ask_the_server_for_names_with_an_underscore(remote: rpc.Session) -> None:
    lib = remote.load_module("modern.so")
    remote.close()
    for name in ("__array__", "__dlpack__", "_repr_html_x", "__getstate_x__"):
        assert not hasattr(lib, name)  # else an error of the session
    assert "get_function" in dir(lib)
