# SPDX-License-Identifier: Apache-2.0
"""Types that a library on apache-tvm-ffi's headers describes are seen by our reflection, and ours by theirs."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import portcall


@pytest.fixture(scope="module", autouse=True)
def library(libraries: dict[str, Path]) -> portcall.Module:
    return portcall.load_module(libraries["tvm_ffi_objects_unlinked"])


def test_object_class_of_tvm_ffi_types() -> None:
    shape: Any = portcall.ir.get_object_class("portcall_test.Shape")
    assert list(portcall.ir.fields(shape)) == ["sides", "area", "closed", "label", "extents", "inner", "extra"]
    assert shape.sides.__doc__ == "how many"
    made = shape(4, label="a label that is long enough", extents=[1, 2], extra={"a": 1})
    assert (made.sides, made.area, made.closed, made.inner) == (4, 0.5, True, None)
    assert (made.label, made.extents, made.extra) == ("a label that is long enough", [1, 2], {"a": 1})
    assert made.twice(1) == 9
    made.sides = 7
    assert made.twice(0) == 14
    with pytest.raises(AttributeError, match=r"^Shape\."):
        made.area = 1.0
    with pytest.raises(TypeError, match=r"^portcall_test\.Shape .*'sides'"):
        shape()
    with pytest.raises(TypeError, match=r"portcall_test.Shape.sides: "):
        shape("four")


def test_inspect_signature_reads_the_metadata_of_tvm_ffi(library: portcall.Module) -> None:
    shape: Any = portcall.ir.get_object_class("portcall_test.Shape")
    texts = [str(inspect.signature(each)).replace("'", "") for each in (library["make_point"], shape.twice, shape)]
    assert texts[0].startswith("(arg0: ")
    assert texts[1] == "(self: portcall_test.Shape, arg0: int, /) -> int"
    assert texts[2].startswith(
        "(sides: int, area: float = 0.5, closed: bool = True, label: String = plain, extents: Array<int>"
    )
    assert str(inspect.signature(shape(3).twice)).replace("'", "") == "(arg0: int, /) -> int"


def test_object_class_of_tvm_ffi_types_have_bases() -> None:
    shape: Any = portcall.ir.get_object_class("portcall_test.Shape")
    square: Any = portcall.ir.get_object_class("portcall_test.Square")
    made = square(4, inner=shape(3), edge=2)
    assert isinstance(made, shape)
    assert (made.edge, made.inner.sides) == (2.0, 3)
    assert repr(square(4)) == (
        "Square(sides=4, area=0.5, closed=True, label='plain', extents=[], inner=None, extra=None, edge=1.0)"
    )


@portcall.register_object("test.tvm_ffi.Base")
class Base(portcall.Object):
    name: str


@portcall.register_object("test.tvm_ffi.Derived")
class Derived(Base):
    inner: Base | None = None
    weight: float = 1.5


def test_tvm_ffi_reads_objects_of_python_types(library: portcall.Module) -> None:
    leaf = Base("a name that is long enough")
    assert list(library["read_fields"](leaf)) == ["test.tvm_ffi.Base", "name", "a name that is long enough"]
    assert list(library["read_fields"](Derived("short", leaf))) == [
        "test.tvm_ffi.Derived", "name", "short", "inner", leaf, "weight", 1.5,
    ]  # fmt: skip


def test_object_class_of_an_undescribed_tvm_ffi_type(library: portcall.Module) -> None:
    point = library["make_point"](1, 2)
    assert type(point) is portcall.Object
    assert point.type_key == "portcall_test.Point"
