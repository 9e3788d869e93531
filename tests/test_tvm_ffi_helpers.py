# SPDX-License-Identifier: Apache-2.0
"""portcall.tvm_ffi: dataclasses, walks, streams and keyword arguments under tvm-ffi's names."""

from __future__ import annotations

import ctypes
import dataclasses
import inspect
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import portcall
from portcall import tvm_ffi
from portcall.tvm_ffi.dataclasses import asdict, astuple, field, fields, is_dataclass, py_class, replace
from portcall.tvm_ffi.utils.kwargs_wrapper import make_kwargs_wrapper, make_kwargs_wrapper_from_signature


@py_class("test.helpers.Leaf")
class Leaf(portcall.Object):
    number: int
    note: str = field(default="", structural_eq="ignore")


@py_class(type_key="test.helpers.Tree", frozen=True)
class Tree(portcall.Object):
    leaves: list[Any]
    table: dict[str, Any] = field(default_factory=dict)


@py_class(structural_eq="var")
class Variable(portcall.Object):
    name: str = field(structural_eq="ignore")


@py_class
class Function(portcall.Object):
    params: list[Any] = field(structural_eq="def")
    body: object


def test_py_class_registers_a_class_with_tvm_ffis_options() -> None:
    leaf = Leaf(1, "a")
    leaf.number = 2
    assert (leaf.type_key, leaf.number) == ("test.helpers.Leaf", 2)
    with pytest.raises(AttributeError):
        Tree([]).leaves = []
    assert tvm_ffi.structural_equal(Leaf(1, "a"), Leaf(1, "b"))
    assert tvm_ffi.structural_equal(Function([a := Variable("a")], a), Function([b := Variable("b")], b))
    register: Any = py_class
    for wrong in (register, field):
        with pytest.raises(ValueError, match="structural_eq"):
            wrong(structural_eq="no")


def test_dataclass_functions_give_containers_of_python() -> None:
    tree = Tree([Leaf(1), Leaf(2, "b")], {"k": Leaf(3)})
    assert asdict(tree) == {
        "leaves": [{"number": 1, "note": ""}, {"number": 2, "note": "b"}],
        "table": {"k": {"number": 3, "note": ""}},
    }
    assert type(asdict(tree)["leaves"]) is list
    assert astuple(tree) == ([(1, ""), (2, "b")], {"k": (3, "")})
    assert [each.name for each in fields(Tree)] == ["leaves", "table"]
    assert (is_dataclass(tree), is_dataclass(portcall.Array), is_dataclass(3)) == (True, False, False)
    assert replace(tree, table={}).table == {}
    for wrong in (asdict, astuple):
        with pytest.raises(TypeError):
            wrong(Tree)


def test_structural_walk_hands_over_values_to_the_first_function_of_their_type() -> None:
    seen: list[Any] = []
    walk = tvm_ffi.structural_walk
    graph = portcall.Array([1, portcall.Map({"k": True}), Leaf(2.0 and 2, "hidden")])
    table = [((int, bool), seen.append), (str, lambda text: seen.append(text.upper())), (Leaf, lambda _: None)]
    assert walk(graph, table) is None
    assert seen == [1, "K", True, 2]
    seen.clear()
    assert walk(graph, (portcall.Array, lambda _: tvm_ffi.WalkResult.SKIP)) is None
    stopped = walk(graph, lambda value: tvm_ffi.VisitInterrupt([value]) if value == "k" else seen.append(value))
    assert stopped is not None
    assert stopped.value == ["k"]
    seen.clear()
    walk(graph, [(int, seen.append), (portcall.Array, lambda _: seen.append("array"))], order="post")
    assert seen == [1, 2, "array"]


def test_structural_walk_says_where_variables_are_defined() -> None:
    a, b, uses = Variable("a"), Variable("b"), []

    def note(value: Any, kind: int) -> None:
        uses.append((value.name, kind is tvm_ffi.DefRegionKind.NONE))

    tvm_ffi.structural_walk(Function([a], [a, b]), with_def_region_kind=(Variable, note))
    assert uses == [("a", False), ("a", True), ("b", True)]
    with pytest.raises(ValueError, match="sideways"):
        tvm_ffi.structural_walk(a, note, order="sideways")
    with pytest.raises(TypeError, match="5"):
        tvm_ffi.structural_walk(a, [5])


def test_structural_walk_goes_as_deep_as_it_must() -> None:
    chain: Any = None
    for _ in range(3_000):
        chain = portcall.Array([chain])
    count = []
    tvm_ffi.structural_walk(chain, (portcall.Array, lambda _: count.append(1)))
    assert len(count) == 3_000


def test_structural_key_is_found_by_structure() -> None:
    table = {tvm_ffi.StructuralKey({"a": [1, 2]}): "found"}
    assert table[tvm_ffi.StructuralKey({"a": [1, 2]})] == "found"
    assert tvm_ffi.StructuralKey([1]) not in table
    assert tvm_ffi.structural_hash([1]) >= 0


def test_kwargs_wrapper_passes_by_position() -> None:
    def target(*args: Any) -> tuple[Any, ...]:
        return args

    items: list[int] = []
    made = make_kwargs_wrapper(target, ["a", "b"], (items,), ["c", "d"], {"d": None})
    assert made(1, c=2) == (1, items, 2, None)
    assert made(b=0, a=1, d=3, c=2) == (1, 0, 2, 3)
    assert str(inspect.signature(made)) == "(a, b=[], *, c, d=None)"
    echo = make_kwargs_wrapper(portcall.get_global_func("testing.echo"), ["target"])
    assert echo(target=5) == 5
    with pytest.raises(TypeError):
        made(1)


def test_kwargs_wrapper_takes_a_signature() -> None:
    def model(x: int, y: int = 2, *, z: int = 3) -> int:
        """What it does."""
        raise NotImplementedError

    made = make_kwargs_wrapper_from_signature(lambda *args: args, inspect.signature(model), model)
    assert (made(1, z=5), made.__name__, made.__doc__) == ((1, 2, 5), "model", "What it does.")
    fewer = make_kwargs_wrapper_from_signature(lambda *args: args, inspect.signature(model), None, ["y"])
    assert fewer(1) == (1, 3)
    for wrong in (lambda *rest: None, lambda **rest: None):
        with pytest.raises(ValueError, match="not supported"):
            make_kwargs_wrapper_from_signature(len, inspect.signature(wrong))


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ({"arg_names": ["a", "a"]}, ValueError),
        ({"arg_names": ["if"]}, ValueError),
        ({"arg_names": ["a b"]}, ValueError),
        ({"arg_names": [3]}, TypeError),
        ({"arg_names": ["a"], "arg_defaults": (1, 2)}, ValueError),
        ({"arg_names": ["a"], "arg_defaults": [1]}, TypeError),
        ({"arg_names": ["a"], "kwonly_names": ["a"]}, ValueError),
        ({"arg_names": [], "kwonly_names": ["a"], "kwonly_defaults": {"b": 1}}, ValueError),
    ],
)
def test_kwargs_wrapper_refuses_names_that_parameters_cannot_have(words: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        make_kwargs_wrapper(len, **words)


def test_use_raw_stream_makes_a_handle_current() -> None:
    before = tvm_ffi.get_raw_stream("cpu")
    with tvm_ffi.use_raw_stream("cpu", ctypes.c_void_p(0)) as context:
        assert (context.stream, tvm_ffi.get_raw_stream("cpu")) == (0, 0)
    assert tvm_ffi.get_raw_stream("cpu") == before


@py_class("test.helpers.Ordered")
class Ordered(portcall.Object):
    note: str = "note"
    number: int


@py_class("test.helpers.Custom")
class Custom(portcall.Object):
    x: int
    y: str

    def __init__(self, x: int) -> None:
        super().__init__()
        self.x = x
        super().__init__()
        self.y = str(x)


@py_class("test.helpers.Made", init=False)
class Made(Leaf):
    def __init__(self, number: int) -> None:
        self.__init_handle_by_constructor__(Leaf, number)


def test_constructors_take_fields_without_a_default_first() -> None:
    made: Any = Ordered
    assert (made(1).number, made(1, "b").note) == (1, "b")
    assert str(inspect.signature(made)).startswith("(number")
    assert made.__match_args__ == ("note", "number")


def test_super_init_lets_a_constructor_set_the_fields() -> None:
    custom = Custom(3)
    assert (custom.x, custom.y) == (3, "3")


def test_init_handle_by_constructor_refuses_an_object_of_another_type() -> None:
    with pytest.raises(TypeError, match="Made"):
        Made(1)
    leaf = Leaf.__new__(Leaf)
    leaf.__init_handle_by_constructor__(Leaf, 5, "n")
    assert (leaf.number, leaf.note, leaf.__chandle__()) == (5, "n", leaf.handle_value)
    leaf.__ffi_init__(6)
    assert leaf.number == 6


def test_set_writes_a_read_only_field() -> None:
    tree: Any = Tree([])
    type(tree).table.set(tree, {"a": 1})
    assert tree.table == {"a": 1}
    with pytest.raises(TypeError):
        type(tree).table.set(Leaf(1), {})


def test_convert_gives_what_every_language_gets() -> None:
    converted = portcall.convert({"a": [1, "b", np.zeros(2)], "f": len})
    assert type(converted) is portcall.Map
    assert type(converted["a"]) is portcall.Array
    assert type(converted["a"][2]) is portcall.Tensor
    assert converted["f"]([1]) == 1
    assert (portcall.convert("len"), portcall.convert(5), portcall.convert(None)) == ("len", 5, None)
    assert portcall.convert(converted) is converted


def test_data_types_are_made_of_what_names_them() -> None:
    assert portcall.DataType(np.float32) == "float32"
    assert portcall.DataType("i8") == "int8"
    assert portcall.DataType.from_dlpack_data_type((2, 32, 4)) == "float32x4"
    device = portcall.Device("cuda", 1)
    assert (device, portcall.Device("cuda:1")) == (portcall.cuda(1), device)
    assert dataclasses.is_dataclass(Leaf)


def test_class_without_a_constructor_gets_one_for_all_fields(registrations_undone: None) -> None:
    @py_class("test.helpers.Own")
    class Made(portcall.Object):
        a: int

        def __init__(self, a: int) -> None:
            self.a = a + 1

    @py_class("test.helpers.OwnMore")
    class MadeMore(Made):
        b: int

    assert Made(1).a == 2
    more: Any = MadeMore
    made = more(1, 2)
    assert (made.a, made.b) == (1, 2)


def test_fields_of_data_types_and_devices_take_their_names(registrations_undone: None) -> None:
    @py_class("test.helpers.Place")
    class Place(portcall.Object):
        type: portcall.DataType
        at: portcall.Device

    place: Any = Place
    made = place("float32", "cuda:1")
    made.type = "int8"
    assert (made.type, made.at) == (portcall.DataType("int8"), portcall.cuda(1))
    with pytest.raises(ValueError, match="floatx"):
        place("floatx", "cpu")
    with pytest.raises(TypeError, match=r"Place\.at"):
        place("int8", 1.5)


CLASSES_OF_CXX = """
import importlib.util, pathlib
folder = pathlib.Path(importlib.util.find_spec("tvm_ffi").origin).parent
from portcall import tvm_ffi
from portcall.tvm_ffi.dataclasses import IntEnum, StrEnum, c_class, entry
tvm_ffi.load_module(folder / "lib" / "libtvm_ffi_testing.so")

class Level(IntEnum, type_key="testing.TestCxxIntEnum"):
    low = entry(value=10)
    high = entry(value=20)

@c_class("testing.TestIntPair")
class Pair(tvm_ffi.Object):
    a: int
    b: int
    neither: str

class Code(StrEnum, type_key="testing.TestCxxStrEnum"):
    add = "+"
    mul = "*"

@c_class("testing.TestCxxEnumHolder")
class Holder(tvm_ffi.Object):
    priority: Level
    opcode: Code

holder = Holder(20, "*")
assert (holder.priority, holder.opcode) == (Level.high, Code.mul)
assert type(holder.priority) is Level
holder.priority = 10
for odd in 11, True, "low", None:
    try:
        holder.priority = odd
    except TypeError as error:
        assert "(10, 20)" in str(error)
    else:
        raise AssertionError(odd)
assert holder.priority is Level.low

assert [Level.low == 10, Level(20) is Level.high, len(list(Level))] == [True, True, 2]
assert tvm_ffi.dataclasses.asdict(Pair(1, 2)) == {"a": 1, "b": 2}
"""


@pytest.mark.peers
def test_classes_of_cxx_get_entries_from_python_and_may_annotate_more() -> None:
    subprocess.run([sys.executable, "-c", CLASSES_OF_CXX], check=True, timeout=120)
