# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="arg-type, call-arg, dict-item, list-item, misc, no-any-return, var-annotated"
"""Classes of Python for types of objects that C++ defines."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import pytest

import portcall
from ir.expressions import ONE, Add, X, define
from portcall import toolchain


@pytest.fixture(scope="module")
def objects(build_native: Callable[[str], pathlib.Path]) -> portcall.Module:
    return portcall.load_module(build_native("objects.cc"))


@pytest.mark.usefixtures("registrations_undone")
def test_register_value_type_uses_a_type_of_cpp(objects: portcall.Module) -> None:
    portcall.ir.register_value_type(
        complex, "test.complex", encode=lambda z: [z.real, z.imag], decode=lambda v: complex(*v)
    )
    square = portcall.get_global_func("cpp_objects.square")
    assert square(2 + 3j) == (2 + 3j) ** 2
    with pytest.raises(TypeError, match="argument #0: expected complex, got int 3"):
        square(3)


def test_object_class_of_a_cpp_type(objects: portcall.Module) -> None:
    named = portcall.ir.get_object_class("cpp.NamedAdd")
    var, add = portcall.ir.get_object_class("cpp.Var"), portcall.ir.get_object_class("cpp.Add")
    assert [cls.__name__ for cls in named.__mro__[:4]] == ["NamedAdd", "Add", "Expr", "Object"]
    assert list(portcall.ir.fields(named(var("x"), var("y")))) == ["lhs", "rhs", "span", "name"]
    made = add(var("x"), rhs=var("y"))
    assert made.lhs.name == "x"  # type: ignore[attr-defined]
    assert isinstance(made, portcall.ir.get_object_class("cpp.Expr"))
    assert add.__doc__ == "The sum of two expressions."
    assert add.lhs.__doc__ == "what is added to"  # type: ignore[attr-defined]
    assert made.depth() == 1  # type: ignore[attr-defined]
    assert add(made, made).depth() == 2  # type: ignore[attr-defined]
    assert add.zero() == 0  # type: ignore[attr-defined]
    assert add.depth.__doc__ == "levels of sums below"  # type: ignore[attr-defined]
    assert repr(made) == "Add(lhs=Var(name='x'), rhs=Var(name='y'), span='')"
    with pytest.raises(TypeError, match=r"cpp.Add.lhs: expected cpp.Expr, got int"):
        add(3, made)
    with pytest.raises(TypeError, match=r"^cpp.Add .*'rhs'"):
        add(made)


def test_register_object_refuses_cpp_bases_with_members(objects: portcall.Module) -> None:
    with pytest.raises(TypeError, match=r"cannot derive from 'cpp.Counter', whose objects may have members"):
        define("test.classes.Orphan", {}, portcall.ir.get_object_class("cpp.Counter"))


def test_object_class_writable_and_hidden_cpp_fields(objects: portcall.Module) -> None:
    counter = portcall.ir.get_object_class("cpp.Counter")
    made: Any = counter(3, up=False)
    assert (made.count, made.step, made.up, made.seen, str(made.dtype)) == (3, 0.5, False, [], "float32")
    made.count += 2
    made.step = 2
    assert (made.count, made.step) == (5, 2.0)
    with pytest.raises(AttributeError, match=r"^Counter\."):
        made.up = True
    with pytest.raises(TypeError, match=r"cpp.Counter.count: expected int, got str"):
        made.count = "many"
    with pytest.raises(TypeError, match=r"cpp.Counter.count: .*does not fit in 64 bits"):
        made.count = 2**63
    with pytest.raises(TypeError, match=r"cpp.Counter.step: .*does not fit in 64 bits"):
        made.step = 10**400
    with pytest.raises(TypeError, match=r"Counter\(\) takes 4 positional arguments, got 5"):
        counter(1, 2.0, [], "int8", True)
    assert repr(made) == "Counter(count=5, step=2.0, up=False, seen=[])"
    assert made.replace(count=1).step == 2.0


def test_object_class_without_constructor_reads_fields(objects: portcall.Module) -> None:
    made = portcall.get_global_func("cpp_objects.sealed")(7)
    assert made.value == 7
    with pytest.raises(
        TypeError, match=r"'cpp.Sealed' cannot be made from fields: its C\+\+ type has no default constr"
    ):
        type(made)(7)


def test_object_copy_on_write_in_cpp(objects: portcall.Module) -> None:
    var, add = portcall.ir.get_object_class("cpp.Var"), portcall.ir.get_object_class("cpp.Add")
    made: Any = add(var("x"), var("y"))
    swapped = portcall.get_global_func("cpp_objects.swap")(made)
    assert (swapped.lhs.name, swapped.rhs.name) == ("y", "x")
    assert made.lhs.name == "x"
    assert portcall.get_global_func("cpp_objects.as_var")(var("z")) == "z"
    with pytest.raises(TypeError, match=r"expected cpp.Var, got cpp.Add"):
        portcall.get_global_func("cpp_objects.as_var")(made)


@pytest.mark.usefixtures("registrations_undone")
def test_register_object_takes_over_a_cpp_type(objects: portcall.Module) -> None:
    @portcall.register_object("cpp.Expr")
    class MyExpr(portcall.Object):
        def __add__(self, other: Any) -> Any:
            return portcall.get_global_func("cpp_objects.add")(self, other)

    @portcall.register_object("cpp.Var")
    class MyVar(MyExpr):
        def shout(self) -> str:
            return str(self.name.upper())  # type: ignore[attr-defined]

    @portcall.register_object("cpp.Add")
    class MyAdd(MyExpr):
        pass

    total = MyVar("x") + MyVar("y")
    assert isinstance(total, MyAdd)
    assert total.lhs.shout() == "X"  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"type 'cpp.Var' is defined elsewhere, and has no field nickname"):
        define("cpp.Var", {"nickname": str})


@pytest.mark.usefixtures("registrations_undone")
def test_register_object_takes_a_cpp_type_over_below_its_base_only(objects: portcall.Module) -> None:
    expr, counter = portcall.ir.get_object_class("cpp.Expr"), portcall.ir.get_object_class("cpp.Counter")
    for base in (
        portcall.Object,
        portcall.ir.get_object_class("cpp.Add"),
        counter,
        portcall.ir.IntEnum,
        portcall.Array,
    ):
        with pytest.raises(TypeError, match=r"type 'cpp\.Var' derives from 'cpp\.Expr'"):
            define("cpp.Var", {}, base)
    with pytest.raises(TypeError, match=r"type 'cpp\.Expr' derives from 'ffi\.Object'"):
        define("cpp.Expr", {}, counter)
    helper = type("Helper", (expr,), {"__slots__": ()})
    mine = define("cpp.Var", {}, helper)
    assert isinstance(mine("x"), expr)


def test_register_object_hides_no_cpp_field(objects: portcall.Module) -> None:
    with pytest.raises(TypeError, match=r"Made\.count "):
        define("cpp.Counter", {}, count=property(lambda self: 1))


def test_load_module_refuses_a_type_that_python_defined(
    build_native: Callable[[str], pathlib.Path], tmp_path: pathlib.Path
) -> None:
    made = define("test.classes.late.Late", {"target": object, "number": int})(ONE, 2)
    source = tmp_path / "late.cc"
    source.write_text(LATE)
    library = tmp_path / "late.so"
    toolchain.create_shared([source], library)
    with pytest.raises(
        OSError, match=r"'test\.classes\.late\.Late' was defined at run time; load the library that des"
    ):
        portcall.load_module(library)
    assert (made.target, made.number) == (ONE, 2)


@pytest.mark.parametrize("base", ["Object", "LateObj"])
def test_register_object_of_cpp_without_a_description_says_so(base: str, tmp_path: pathlib.Path) -> None:
    source = tmp_path / "plain.cc"
    source.write_text(f"""{LATE}
    struct PlainObj : {base} {{
      PORTCALL_OBJECT(PlainObj, {base}, "test.classes.plain.Plain")
    }};
    PORTCALL_REGISTER_OBJECT(PlainObj);
    """)
    with pytest.raises(portcall.errors.CompileError, match="a node that is registered has"):
        toolchain.create_shared([source], tmp_path / "plain.so")


LATE = """
#include <portcall/portcall.h>
using namespace portcall;
struct LateObj : Object {
  int64_t number = 5;
  ObjectRef target;
  PORTCALL_OBJECT(LateObj, Object, "test.classes.late.Late")
  static void Describe(Description<LateObj>* type) {
    type->field("number", &LateObj::number);
    type->field("target", &LateObj::target);
  }
};
PORTCALL_REGISTER_OBJECT(LateObj);
PORTCALL_EXPORT_TYPED(nothing, [] {})
"""


def test_object_of_a_python_type_is_made_and_read_in_cpp(objects: portcall.Module) -> None:
    create, get = portcall.get_global_func("cpp_objects.create"), portcall.get_global_func("cpp_objects.get")
    made = create("test.classes.Add", X, ONE, "from C++")
    assert isinstance(made, Add)
    assert (made.lhs, made.rhs, made.span) == (X, ONE, "from C++")
    assert get(made, "lhs") == X
    with pytest.raises(TypeError, match=r"test.classes.Add.lhs: expected test.classes.Expr, got str"):
        create("test.classes.Add", "x", ONE, "")
    with pytest.raises(KeyError, match=r"'test\.classes\.Nobody'"):
        create("test.classes.Nobody")
    with pytest.raises(AttributeError, match=r"an object of type 'test.classes.Add' has no field 'middle'"):
        get(made, "middle")


def test_object_class_of_an_unknown_key_is_an_error() -> None:
    with pytest.raises(KeyError, match=r"no type has the key 'cpp.Nothing'; is the library that defines it loaded"):
        portcall.ir.get_object_class("cpp.Nothing")


def test_an_unknown_key_is_an_error_with_near_ones(objects: portcall.Module) -> None:
    known = X
    for ask in (
        lambda key: portcall.ir.get_object_class(key),
        lambda key: portcall.ir.walk(known, key),
        lambda key: portcall.ir.visit(known, print, key),
        lambda key: portcall.ir.rewrite(known, print, key),
    ):
        with pytest.raises(KeyError, match=r"'test\.classes\.Vra'; did you mean 'test\.classes\.Var'"):
            ask("test.classes.Vra")
