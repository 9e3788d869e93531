# SPDX-License-Identifier: Apache-2.0
# mypy: ignore-errors
# ruff: noqa: RUF005
"""register_object takes what dataclasses take, and its classes are dataclasses to the standard library."""

from __future__ import annotations

import copy
import ctypes
import dataclasses
import inspect
from dataclasses import KW_ONLY
from typing import Any, ClassVar

import pytest

import portcall
from portcall import field, ir


@portcall.register_object("test.dataclass.Point", frozen=False)
class Point(portcall.Object):
    x: int
    y: int = 2
    _: KW_ONLY
    tags: list[str] = field(default_factory=list)
    cache: int = field(default=0, init=False, repr=False, compare=False)


def test_register_object_makes_a_dataclass_to_the_standard_library() -> None:
    point = Point(1, tags=["a"])
    assert dataclasses.is_dataclass(Point)
    assert dataclasses.is_dataclass(point)
    assert [each.name for each in dataclasses.fields(point)] == ["x", "y", "tags", "cache"]
    x, y, tags, cache = dataclasses.fields(Point)
    assert (x.default, y.default, tags.default_factory) == (dataclasses.MISSING, 2, list)
    assert (x.type, x.kw_only, tags.kw_only, cache.init, cache.repr, cache.compare) == (
        int,
        False,
        True,
        False,
        False,
        False,
    )
    assert dataclasses.asdict(point) == {"x": 1, "y": 2, "tags": ["a"], "cache": 0}
    assert dataclasses.astuple(point) == (1, 2, ["a"], 0)
    assert dataclasses.replace(point, x=5).x == 5


def test_register_object_constructor_has_a_signature() -> None:
    assert list(inspect.signature(Point.__init__).parameters) == ["self", "x", "y", "tags"]
    assert inspect.signature(Point.__init__).parameters["y"].default == 2
    assert list(inspect.signature(Point).parameters) == ["x", "y", "tags"]
    with pytest.raises(TypeError):
        Point(1, 2, [])
    with pytest.raises(TypeError, match="cache"):
        Point(1, cache=3)


def test_field_without_init_is_none_until_it_is_set() -> None:
    @portcall.register_object("test.dataclass.Lazy", frozen=False)
    class Lazy(portcall.Object):
        a: int
        total: int = field(init=False)

        def __post_init__(self) -> None:
            assert self.total is None
            self.total = self.a + 1

    assert Lazy(1).total == 2


def test_register_object_with_a_constructor_that_sets_fields() -> None:
    @portcall.register_object("test.dataclass.Own", frozen=False)
    class Own(portcall.Object):
        a: int
        b: str = "b"

        def __init__(self, double: int) -> None:
            self.a = 2 * double

    made = Own(4)
    assert (made.a, made.b, copy.copy(made).a) == (8, "b", 8)
    with pytest.raises(TypeError):
        made.a = "text"

    @portcall.register_object("test.dataclass.None", init=False)
    class NoConstructor(portcall.Object):
        a: int

    with pytest.raises(TypeError, match="init=False"):
        NoConstructor(1)


def test_field_converter_frozen_and_hash() -> None:
    @portcall.register_object("test.dataclass.Converted", frozen=False, eq=True, unsafe_hash=True)
    class Converted(portcall.Object):
        name: str = field(converter=lambda value: str(value) * 2)
        fixed: int = field(default=1, frozen=True)
        left_out: int = field(default=0, hash=False)

    made = Converted(1234567890)
    assert made.name == "1234567890" * 2
    made.name = 7
    assert made.name == "77"
    with pytest.raises(AttributeError):
        made.fixed = 2
    assert made.replace(name=1).name == "11"
    assert hash(Converted(1)) == hash(Converted(1, left_out=5))
    assert Converted(1) != Converted(1, left_out=5)
    with pytest.raises(TypeError, match="converter is a function"):
        field(converter=3)


def test_register_object_without_repr_and_match_args() -> None:
    @portcall.register_object("test.dataclass.Plain", repr=False, match_args=False)
    class Plain(portcall.Object):
        a: int

    assert "a=1" not in repr(Plain(1))
    assert Plain.__match_args__ == ()


def test_register_object_of_classes_that_name_each_other() -> None:
    @portcall.register_object("test.dataclass.Node")
    class Node(portcall.Object):
        edges: list[Edge]
        parent: Node | None = None

    assert Node.__dataclass_fields__["edges"].type == "list[Edge]"
    with pytest.raises(TypeError, match="Edge"):
        Node([])

    @portcall.register_object("test.dataclass.Edge")
    class Edge(portcall.Object):
        to: Node

    node = Node([Edge(Node([]))])
    assert node.edges[0].to.edges == []
    with pytest.raises(TypeError, match="expected"):
        Node([node])


def test_register_object_of_a_bare_class_and_of_mixins() -> None:
    class Named:
        name: str = "n"

    @portcall.register_object("test.dataclass.Mixed")
    class Mixed(Named):
        size: int = 0

    made = Mixed("m", 3)
    assert isinstance(made, portcall.Object)
    assert (made.name, made.size, Mixed().name) == ("m", 3, "n")

    @portcall.register_object
    class Bare(portcall.Object):
        a: int

    assert Bare(1).type_key.endswith("Bare")


class Operator(ir.Enum, type_key="test.dataclass.Operator"):
    arity: int = 0
    add: ClassVar[Operator] = ir.entry(arity=2)
    noop = ir.entry()


COST = Operator.def_attr("cost", default=-1)
COST[Operator.add] = 7


class Level(ir.IntEnum, type_key="test.dataclass.Level"):
    low = ir.entry(value=-10)
    high = 20


class Sign(ir.StrEnum, type_key="test.dataclass.Sign"):
    PLUS = "+"
    ADD = "+"
    MINUS = "-"


def test_enum_with_fields_and_attributes() -> None:
    assert [(each.name, each.number, each.arity) for each in Operator] == [("add", 0, 2), ("noop", 1, 0)]
    assert Operator.get("add") is Operator(0) is Operator(Operator.add)
    with pytest.raises(KeyError):
        Operator.get("sub")
    assert (COST[Operator.add], COST[Operator.noop], Operator.noop in COST) == (7, -1, False)
    assert COST.get(Operator.noop, 3) == 3
    with pytest.raises(TypeError):
        COST["add"] = 1


def test_enum_values_are_accepted_by_fields() -> None:
    assert Sign.PLUS is Sign.ADD is Sign("+")
    assert (Sign.MINUS.value, str(Level.low), Level.high == 20) == ("-", "-10", True)

    @portcall.register_object("test.dataclass.Instruction", frozen=False)
    class Instruction(portcall.Object):
        level: Level
        sign: Sign

    made = Instruction(20, "-")
    assert (made.level, made.sign) == (Level.high, Sign.MINUS)
    made.level = -10
    assert made.level is Level.low
    with pytest.raises(TypeError):
        made.level = 99


@portcall.register_object("test.dataclass.WithMethod")
class WithMethod(portcall.Object):
    x: int

    @ir.method
    def add(self, other: int) -> int:
        """Add."""
        return self.x + other

    @ir.method
    @staticmethod
    def answer() -> int:
        return 42

    def helper(self) -> None: ...


def test_method_of_python_is_one_of_the_type() -> None:
    index = portcall._core.type_index_of("test.dataclass.WithMethod")
    methods = {name: (doc, schema, call) for name, doc, schema, _, call in portcall._core.describe_type(index)[6]}
    assert sorted(methods) == ["add", "answer"]
    assert (methods["add"][0], methods["add"][2](WithMethod(1), 2), methods["answer"][2]()) == ("Add.", 3, 42)
    assert str(portcall._signature.signature_of_method(methods["add"][1], own=True)).endswith(
        "arg0: 'int', /) -> 'int'"
    )
    assert WithMethod(5).add(1) == 6
    with pytest.raises(TypeError, match="static"):
        ir.method(classmethod(len))


def test_array_adds_like_a_list() -> None:
    made = portcall.Array([1]) + [2]
    assert isinstance(made, portcall.Array)
    assert made == [1, 2]
    assert (0,) + made == [0, 1, 2]
    assert isinstance(portcall.List([1]) + made, portcall.List)
    with pytest.raises(TypeError):
        made + 3


def test_dtype_and_device_say_what_they_are() -> None:
    float32 = portcall.dtype("float32")
    assert (float32.is_float, float32.is_integer, float32.is_bool, portcall.dtype("bfloat16").is_float) == (
        True,
        False,
        False,
        True,
    )
    assert (portcall.dtype("uint8").is_integer, portcall.dtype("bool").is_bool) == (True, True)
    assert [str(float32.with_lanes(4)), str(portcall.dtype("int8x4").with_lanes(1))] == ["float32x4", "int8"]
    device = portcall.device("cuda:3")
    assert (device.type, device.index, device.dlpack_device_type()) == ("cuda", 3, 2)


@pytest.mark.parametrize(
    ("name", "given", "arrives"),
    [
        ("__tvm_ffi_value__", [1, 2], [1, 2]),
        ("__tvm_ffi_value__", "a text that is longer than seven", "a text that is longer than seven"),
        ("__tvm_ffi_object__", portcall.Array([3]), [3]),
        ("__tvm_ffi_int__", 10, 10),
        ("__tvm_ffi_float__", 10, 10.0),
        ("__dlpack_data_type__", (2, 32, 1), portcall.dtype("float32")),
        ("__dlpack_device__", (2, 1), portcall.device("cuda:1")),
    ],
)
def test_call_takes_values_of_protocols(name: str, given: Any, arrives: Any) -> None:
    kind = type("Kind", (), {name: lambda self: copy.copy(given)})
    echo = portcall.get_global_func("testing.echo")
    assert echo(kind()) == arrives
    assert list(portcall.Array([kind(), kind()])) == [arrives, arrives]


def test_call_takes_handles_of_protocols() -> None:
    echo = portcall.get_global_func("testing.echo")
    for name, given in ("__tvm_ffi_opaque_ptr__", 10), ("__cuda_stream__", (0, 10)):
        found = echo(type("Kind", (), {name: lambda self, given=given: given})())
        assert isinstance(found, ctypes.c_void_p)
        assert found.value == 10
