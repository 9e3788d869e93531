# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="attr-defined, index"
"""Objects and containers are pickled and copied by their binary form."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from portcall import Array, Dict, List, Map


@portcall.register_object("test.pickle.Node")
class Node(portcall.Object):
    left: object
    right: object = None


@portcall.register_object("test.pickle.Box", frozen=False)
class Box(portcall.Object):
    value: object


def again(value: Any, protocol: int = pickle.HIGHEST_PROTOCOL) -> Any:
    return pickle.loads(pickle.dumps(value, protocol))


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_keeps_sharing(protocol: int) -> None:
    shared = Node([1, "a", 2.5, b"bytes", None, True], {"k": np.arange(3)})
    back = again(Node(shared, [shared]), protocol)
    assert type(back) is Node
    assert back.left == back.right[0]
    assert portcall.ir.structural_equal(back.left, shared)
    assert back.left.right["k"].numpy().tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "value", [Array([1, [2]]), Map({"a": 1, 2: "b"}), List([1, 2]), Dict({"a": [1]}), Array(), Map()], ids=repr
)
def test_pickle_and_copy_keep_container_types(value: Any) -> None:
    for made in (again(value), copy.deepcopy(value), copy.copy(value)):
        assert type(made) is type(value)
        assert made == value
    assert portcall.ir.structural_equal(again(value), value)


def test_copy_shares_and_deepcopy_does_not() -> None:
    inner = Box(1)
    for holder in (List([inner]), Dict({0: inner})):
        shallow, deep = copy.copy(holder), copy.deepcopy(holder)
        assert shallow != holder.__class__()
        assert shallow[0] == inner
        assert deep[0] != inner
        shallow[0] = 5
        assert holder[0] == inner
    box = copy.deepcopy(Node(inner, inner))
    assert box.left == box.right != inner
    box.left.value = 2
    assert inner.value == 1
    frozen = Array([inner])
    assert copy.copy(frozen) is frozen


def test_pickle_python_values_that_hold_objects() -> None:
    node = Node(1)
    back = again({"nodes": [node, node], "n": 1})
    assert back["nodes"][0] == back["nodes"][1]
    assert portcall.ir.structural_equal(back["nodes"][0], node)


def test_pickle_error_names_the_path() -> None:
    with pytest.raises(TypeError, match=r"^<root>\.left\[1\]: .*'Function'"):
        pickle.dumps(Node([1, len]))
    with pytest.raises(TypeError, match=r"^<root>\[0\]: .*'Function'"):
        pickle.dumps(Array([len]))
    box = Box(None)
    box.value = box
    with pytest.raises(ValueError, match=r"^<root>\.value: is <root> again"):
        pickle.dumps(box)
    box.value = None


def test_pickle_refuses_functions_and_tensors() -> None:
    for value in (portcall.convert(len), portcall.empty(2)):
        with pytest.raises(TypeError, match="lives in this process and cannot be pickled"):
            pickle.dumps(value)


MODULE = """
import portcall
@portcall.register_object("test.pickle.module.Leaf")
class Leaf(portcall.Object):
    value: object
"""


def test_pickle_imports_the_defining_modules(tmp_path: Path) -> None:
    (tmp_path / "types_of_test_pickle.py").write_text(MODULE)
    make = "import pickle, sys, portcall, types_of_test_pickle as t; "
    make += "sys.stdout.buffer.write(pickle.dumps(portcall.Array([t.Leaf(5)])))"
    use = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()))"
    data = subprocess.run([sys.executable, "-c", make], cwd=tmp_path, check=True, capture_output=True).stdout
    done = subprocess.run([sys.executable, "-c", use], cwd=tmp_path, check=True, capture_output=True, input=data)
    assert done.stdout == b"[Leaf(value=5)]\n"


def test_pickle_long_chain() -> None:
    chain = None
    for i in range(100_000):
        chain = Node(i, chain)
    assert portcall.ir.structural_equal(again(chain), chain)
