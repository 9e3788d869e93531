# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="arg-type, call-arg, dict-item, list-item, misc, no-any-return, var-annotated"
"""Types of objects: defined by Python classes, or in C++ and seen here."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pathlib
from collections.abc import Callable
from typing import Any, ClassVar, Final, Generic, TypeVar

import numpy as np
import pytest

import portcall
from ir.expressions import ONE, Add, Block, Const, Expr, Numbered, Var, X, define
from portcall import testing

# ---- Made here -------------------------------------------------------------------------------------------------------


def test_register_object_constructor_takes_positions_and_names() -> None:
    both = [Add(X, ONE, "here"), Add(X, span="here", rhs=ONE), Add(lhs=X, rhs=ONE, span="here")]
    for made in both:
        assert (made.lhs, made.rhs, made.span) == (X, ONE, "here")
    assert Add(X, ONE).span == ""
    assert Add.operator == X.__class__.__mro__[1].__name__.replace("Expr", "+")


def test_object_attribute_is_the_same_object_each_time() -> None:
    made = Add(X, ONE)
    assert made.lhs.same_as(X)
    assert made.lhs == X
    assert made != Add(X, ONE)
    assert isinstance(made.lhs, Var)
    assert {made: 1}[made] == 1


def test_register_object_keeps_docstring_signature_and_methods() -> None:
    made = Add(X, ONE, "s").flipped()
    assert (made.lhs, made.rhs, made.span) == (ONE, X, "s")
    assert made.own_class() is Add
    assert Add.__doc__ == "The sum of two expressions."
    assert str(inspect.signature(Add)) == ("(lhs: 'test.classes.Expr', rhs: 'test.classes.Expr', span: 'str' = '')")
    assert str(inspect.signature(Block)).startswith(
        "(body: 'list[test.classes.Expr]', names: 'dict[str, int]' = Ellipsis"
    )
    assert Add.span.__doc__ == "where it stands"
    match made:
        case Add(Const(value), _, span):
            assert (value, span) == (1, "s")
        case _:
            pytest.fail("no match")
    assert "mode" not in Block.__match_args__  # by name only, as in the constructor


def test_object_fields_are_read_only() -> None:
    made = Add(X, ONE)
    with pytest.raises(AttributeError, match=r"^Add\.lhs is read-only: replace\(lhs=\.\.\.\) makes another object$"):
        made.lhs = ONE
    with pytest.raises(AttributeError):
        made.colour = "red"  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="is a field and stays"):
        del made.lhs


def test_replace_returns_a_changed_copy() -> None:
    made = Add(X, ONE, "s")
    other = made.replace(rhs=X)
    assert (other.lhs, other.rhs, other.span) == (X, X, "s")
    assert made.rhs == ONE
    with pytest.raises(TypeError, match="Add\\(\\) has no field 'rsh'; did you mean 'rhs'\\?"):
        made.replace(rsh=X)
    assert made.__replace__(span="t").span == "t"  # type: ignore[attr-defined]
    named = define("test.classes.Self", {"self": int})
    assert named(self=1).replace(self=2).self == 2
    shallow = copy.copy(made)
    assert shallow != made
    assert shallow.lhs == X


def test_writable_field_assignment_is_checked() -> None:
    @portcall.register_object("test.classes.Mutable", frozen=False)
    class Mutable(portcall.Object):
        count: int = 0
        expr: Expr | None = None

    made = Mutable()
    made.count = 3
    made.expr = X
    assert (made.count, made.expr) == (3, X)
    with pytest.raises(TypeError, match=r"test\.classes\.Mutable\.count: expected int, got str 'three'"):
        made.count = "three"  # type: ignore[assignment]
    assert made.count == 3


def test_writable_field_checks_as_the_constructor_does() -> None:
    @portcall.register_object("test.classes.Written", frozen=False)
    class Written(portcall.Object):
        items: list[Expr]
        either: int | str = 0
        anything: object = None

    made = Written([X])
    made.items = [ONE]
    made.either = "text"
    with pytest.raises(TypeError, match=r"Written.items: expected list\[test.classes.Expr\], got int 3 at \[1\]"):
        made.items = [X, 3]
    with pytest.raises(TypeError, match=r"Written.either: expected int \| str, got float 1.5"):
        made.either = 1.5  # type: ignore[assignment]
    with pytest.raises(TypeError, match=r"Written.anything: "):
        made.anything = np.array(["x"], object)
    assert (list(made.items), made.either, made.anything) == ([ONE], "text", None)


def test_register_object_kw_only() -> None:
    @portcall.register_object("test.classes.Named2", kw_only=True)
    class Named(portcall.Object):
        name: str
        place: int = portcall.field(kw_only=False)

    assert (Named(3, name="n").place, Named(name="n", place=4).place) == (3, 4)
    assert Named.__match_args__ == ("place",)
    with pytest.raises(TypeError, match=r"Named\(\) takes 1 positional arguments, got 2"):
        Named("n", 3)


@portcall.register_object("test.classes.Holder")
class Holder(portcall.Object):
    items: portcall.List = portcall.field(default_factory=portcall.List)
    table: portcall.Dict = portcall.field(default_factory=portcall.Dict)
    fixed: dict = portcall.Map({"a": 1})  # type: ignore[type-arg,assignment]


def test_register_object_list_and_dict_fields() -> None:
    made = Holder()
    assert made.fixed == {"a": 1}
    made.items.append(X)
    made.table["x"] = X
    assert (list(made.items), dict(made.table), len(Holder().items)) == ([X], {"x": X}, 0)
    with pytest.raises(TypeError, match=r"Holder.items: expected List, got Array"):
        Holder([X])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Add(1, 2), "test.classes.Add.lhs: expected test.classes.Expr, got int 1"),
        (lambda: Add(X), "test.classes.Add needs a value for 'rhs'"),
        (lambda: Add(X, X, "", 4), r"Add\(\) takes 3 positional arguments, got 4"),
        (lambda: Add(X, X, lhs=X), r"Add\(\) got 'lhs' twice: by position and by name"),
        (lambda: Add(X, X, spam=1), r"Add\(\) has no field 'spam'; did you mean 'span'\?"),
        (lambda: Add(X, None), "test.classes.Add.rhs: expected test.classes.Expr, got None"),
        (lambda: Var(3), "test.classes.Var.name: expected str, got int 3"),
        (lambda: Const(1.5), "test.classes.Const.value: expected int, got float"),
        (lambda: Block([1]), r"test.classes.Block.body: expected list\[test.classes.Expr\], got int 1 at \[0\]"),
        (lambda: Block([[X]]), r"test.classes.Block.body: expected list\[test.classes.Expr\], got list at \[0\]"),
        (lambda: Block(3), "test.classes.Block.body: expected list.*, got int"),
        (lambda: Block([], {"a": "b"}), r"test.classes.Block.names: expected dict\[str, int\], got str 'b' at \['a'\]"),
        (lambda: Block([], {1: 2}), r"test.classes.Block.names: expected dict\[str, int\], got int 1 at key 1"),
        (lambda: Block([], tag=3), "test.classes.Block.tag: expected str or None, got int 3"),
        (lambda: Block([], outer=X), "test.classes.Block.outer: expected test.classes.Block or None"),
        (lambda: Block([], mode="slow"), "test.classes.Block.mode: expected Literal.*, got str 'slow'"),
        (lambda: Numbered(True), r"test.classes.Numbered.which: expected Literal\[0, 1\], got bool True"),
        (lambda: Numbered(1, ("x",)), r"Numbered.many: expected tuple\[int, ...\], got str 'x' at \[0\]"),
        (lambda: Numbered(1, nothing=0), r"Numbered.nothing: expected None, got int 0"),
        (lambda: Block([], either=1.5), r"test.classes.Block.either: expected int \| str, got float 1.5"),
        (
            lambda: Block([], pair=(1, 2)),
            r"Block.pair: expected tuple\[int, test.classes.Expr\] \| None, got int 2 at \[1\]",
        ),
        (lambda: Block([], pair=(1,)), "test.classes.Block.pair: expected tuple.*, got 1 items"),
        (
            lambda: Block([], anything=np.array(["x"], object)),
            "test.classes.Block.anything: expected an array",
        ),
        (
            lambda: Pair(1, [0, 0, 0, np.array(["x"], object)]),
            "test.classes.Pair.second: item 3: expected an array",
        ),
        (
            lambda: Add(Add.__new__(Add), X),
            "test.classes.Add.lhs: expected an object, got a Add that is not initialised",
        ),
        (lambda: Block([], weight="x"), "test.classes.Block.weight: expected float, got str"),
    ],
)
def test_register_object_constructor_names_the_field_of_a_wrong_value(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()


def test_register_object_fields_of_every_kind() -> None:
    numbered = Numbered(1, (1, np.int64(2), 3), None, [1, 2.5, np.float32(0.5)])
    assert (list(numbered.many), list(numbered.floats)) == ([1, 2, 3], [1, 2.5, 0.5])
    inner = Block([])
    made = Block([X, ONE], {"a": 1}, "t", inner, {"b": [1.5, None]}, 2, "text", (7, X), mode="small")
    assert list(made.body) == [X, ONE]
    assert made.names == {"a": 1}
    assert (made.tag, made.outer, made.mode) == ("t", inner, "small")
    assert made.anything == {"b": [1.5, None]}
    assert made.weight == 2.0
    assert isinstance(made.weight, float)
    assert made.either == "text"
    assert made.pair is not None
    assert list(made.pair) == [7, X]
    assert inner.names == {}
    assert inner.names.same_as(Block([]).names) is False  # type: ignore[attr-defined]


def test_register_object_custom_constructor() -> None:
    @portcall.register_object("test.classes.Range")
    class Range(portcall.Object):
        low: int
        high: int

        def __post_init__(self) -> None:
            if self.low > self.high:
                raise ValueError(f"an empty range, {self.low} to {self.high}")

    @portcall.register_object("test.classes.Upto")
    class Upto(Range):
        def __init__(self, high: int) -> None:
            super().__init__(0, high)

    assert Range(1, 2).high == 2
    with pytest.raises(ValueError, match="an empty range, 2 to 1"):
        Range(2, 1)
    assert (Upto(5).low, Upto(5).high) == (0, 5)
    assert isinstance(Upto(5).replace(high=6), Upto)


class Text(str):
    """A text of a kind of its own; as a value it is one like any other."""


def test_replace_keeps_converted_values() -> None:
    @portcall.register_object("test.classes.Named")
    class Named(portcall.Object):
        name: Text
        number: int = 0

    made = Named(Text("n"))
    assert (made.replace(number=2).name, copy.copy(made).name) == ("n", "n")
    with pytest.raises(TypeError, match=r"test.classes.Named.name: expected Text, got str 'm'"):
        made.replace(name="m")


def test_register_object_works_in_a_function() -> None:
    class Before:
        pass

    @portcall.register_object("test.classes.Local")
    class Local(portcall.Object):
        before: Before  # both are names of this function only
        others: list[Local]
        fixed: Final[int] = 0

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Local) and len(self.others) == len(other.others)

        def __hash__(self) -> int:
            return len(self.others)

        @property
        def size(self) -> int:
            return len(self.others)

        @size.setter
        def size(self, value: int) -> None:
            assert __class__ is Local  # type: ignore[name-defined]

    leaf = Local(Before(), [])
    made = Local(Before(), [leaf])
    assert made == Local(Before(), [made])
    assert made != leaf
    assert made.fixed == 0
    made.size = 3
    with pytest.raises(TypeError, match=r"Local.others: expected list\[test.classes.Local\], got Var at \[0\]"):
        Local(Before(), [X])
    with pytest.raises(TypeError, match=r"Local.before: expected Before, got int 5"):
        Local(5, [])


def test_register_object_with_other_bases() -> None:
    class Greets:
        def greet(self) -> str:
            return f"hello from {self!r}"

    Item = TypeVar("Item")

    @portcall.register_object("test.classes.Boxed")
    class Boxed(portcall.Object, Greets, Generic[Item]):
        item: Item

    assert Boxed(1).greet() == "hello from Boxed(item=1)"
    assert Boxed[int](1).replace(item=2).item == 2


def test_register_object_resolves_annotations_in_the_base_module() -> None:
    @portcall.register_object("test.classes.Calls")
    class Calls(portcall.Object):
        args: list[Expr]

    # Of the same name as what the base class holds.
    other = portcall.register_object("test.classes.OtherExpr")(
        type("Expr", (Calls,), {"__annotations__": {"more": "list[Expr]"}})
    )
    made: Any = other([X], [other([ONE], [])])
    assert list(made.args) == [X]
    with pytest.raises(TypeError, match=r"OtherExpr.args: expected list\[test.classes.Expr\], got int 5 at \[0\]"):
        other([5], [])
    with pytest.raises(TypeError, match=r"OtherExpr.more: expected list\[test.classes.OtherExpr\], got Var"):
        other([X], [X])


def test_register_object_many_fields() -> None:
    body = {"__annotations__": {f"f{i}": int for i in range(40)}}
    wide = portcall.register_object("test.classes.Wide")(type("Wide", (portcall.Object,), body))
    made = wide(*range(20), **{f"f{i}": i for i in range(20, 40)})
    assert [getattr(made, f"f{i}") for i in range(40)] == list(range(40))


def test_register_object_array_and_function_fields() -> None:
    @portcall.register_object("test.classes.Kernel")
    class Kernel(portcall.Object):
        weights: portcall.Tensor
        run: portcall.PackedFunc
        shape: portcall.Shape

    data = np.arange(6, dtype="float32").reshape(2, 3)
    made = Kernel(data, lambda x: x + 1, portcall.Shape((2, 3)))
    assert made.weights.numpy().tolist() == data.tolist()
    assert made.run(1) == 2
    assert made.shape == (2, 3)
    with pytest.raises(TypeError, match=r"Kernel.weights: expected Tensor, got int 3"):
        Kernel(3, len, portcall.Shape(()))


# ---- What may be registered ------------------------------------------------------------------------------------------


def test_register_object_annotations_may_be_strings() -> None:
    made = define("test.classes.Types", {"a": int, "b": ClassVar[int], "c": ClassVar, "d": "ClassVar[int]"}, b=3, d=4)
    assert (list(portcall.ir.fields(made)), made.b, made(1).d) == (["a"], 3, 4)


def test_register_object_key_with_other_fields_is_refused() -> None:
    first = define("test.classes.Twice", {"a": int})
    again = define("test.classes.Twice", {"a": int})
    assert isinstance(portcall.get_global_func("testing.echo")(first(1)), again)
    with pytest.raises(ValueError, match=r"type 'test.classes.Twice' exists already, with other fields"):
        define("test.classes.Twice", {"a": str})


@pytest.mark.parametrize("name", ["same_as", "handle_value", "type_key", "__class__", "__hash__"])
def test_register_object_refuses_fields_that_hide_what_objects_have(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        define("test.classes.Hiding", {name: int})


def test_register_object_again_accepts_earlier_objects() -> None:
    def first() -> Any:
        return define("test.classes.Again", {"value": int})

    def holder(of: Any) -> Any:
        return define("test.classes.Holds", {"items": list[of]})

    leaf = first()
    old = leaf(1)
    hold = holder(leaf)
    leaf = first()
    assert [item.value for item in hold([old, leaf(2)]).items] == [1, 2]
    assert [item.value for item in holder(leaf)([old, leaf(2)]).items] == [1, 2]


@pytest.mark.parametrize(
    ("annotations", "more", "message"),
    [
        ({"a": int}, {"a": "x"}, "test.classes.Refused.a: expected a default of type int, got str 'x'"),
        ({"a": "int | str"}, {"a": 1.5}, r"Refused.a: expected a default of type int \| str, got float 1.5"),
        (
            {"a": "list[int]"},
            {"a": (1, "x")},
            r"Refused.a: expected a default of type list\[int\], got str 'x' at \[1\]",
        ),
        ({"a": list}, {"a": dataclasses.field(default_factory=list)}, "Made.a: use portcall.field, not that of datacl"),
        ({"lhs": int}, {}, "'test.classes.Refused' has the field 'lhs' already; give this one another name"),
        ({}, {"span": "other"}, "Made.span hides a field of that name; rename it"),
        ({}, {"span": property(lambda self: 1)}, "Made.span hides a field of that name; rename it"),
    ],
)
def test_register_object_refuses_invalid_fields(
    annotations: dict[str, Any], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        define("test.classes.Refused", annotations, Add, **more)
    with pytest.raises(KeyError):  # the key is free still
        portcall.ir.get_object_class("test.classes.Refused")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"default": 1, "default_factory": int}, ValueError, "not both"),
        ({"default_factory": []}, TypeError, r"default_factory is a function, got \[\]"),
        ({"compare": "ident"}, ValueError, "compare is True, False or 'identity', got 'ident'"),
        ({"default": []}, ValueError, r"a mutable default, \[\], would be shared: use default_factory=list$"),
        ({"default": portcall.List()}, ValueError, "would be shared: use default_factory$"),
        ({"default": np.zeros(1)}, ValueError, "would be shared: use default_factory$"),
    ],
)
def test_field_refuses_invalid_options(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        portcall.field(**arguments)


def test_register_object_refuses_invalid_classes() -> None:
    with pytest.raises(TypeError, match=r"takes a subclass of portcall.Object, got <class 'int'>"):
        portcall.register_object("test.classes.Int")(int)
    unregistered = type("Base", (portcall.Object,), {})
    with pytest.raises(TypeError, match="register Base, which Made derives from, first"):
        define("test.classes.Orphan", {}, unregistered)
    with pytest.raises(TypeError, match=r"Made.a: register Base first"):
        define("test.classes.Orphan", {"a": unregistered})
    with pytest.raises(TypeError, match=r"names something unknown: name 'Nothing' is not defined"):
        define("test.classes.Unknown", {"a": "Nothing"})(1)
    with pytest.raises(ValueError, match=r"a mutable default, .*: use default_factory=list"):
        define("test.classes.Orphan", {"a": list}, a=[])
    with pytest.raises(TypeError, match=r'takes the key of a type, as in @register_object\("demo.Add"\); got <class'):
        portcall.register_object(int)
    for key in ("ffi.Array", "ffi.Object", "int"):
        with pytest.raises(ValueError, match=f"'{key}' is a built-in type; choose another key"):
            define(key, {})
    with pytest.raises(TypeError, match=r"Made cannot derive from List; hold one in a field"):
        define("test.classes.Orphan", {}, portcall.List)
    with pytest.raises(ValueError, match="compare is one of structure, identity, variable, shared; got 'size'"):
        portcall.register_object("test.classes.Bad", compare="size")(type("Bad", (portcall.Object,), {}))
    with pytest.raises(TypeError, match=r"; a class of your own is registered: @port"):
        unregistered()


@pytest.mark.parametrize(
    ("annotations", "more"),
    [
        ({}, {"b": portcall.field(default=3)}),
        ({"a": int}, {"b": portcall.field(default=3)}),
        ({"b": ClassVar[int]}, {"b": portcall.field(default=3)}),
        ({}, {"b": dataclasses.field(default=3)}),
        ({"a": int}, {"__slots__": ("cache",)}),
        ({"a": int}, {"__slots__": "cache"}),
    ],
)
def test_register_object_refuses_what_would_be_no_field(annotations: dict[str, Any], more: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"Made\.(b is a field without a type|__slots__)"):
        define("test.classes.NoField", annotations, **more)


@pytest.mark.parametrize("hint", [int, str, bool | None, list[int], dict[str, float], portcall.Tensor, set])
def test_field_defines_variables_only(hint: Any) -> None:
    with pytest.raises(TypeError, match="defines=True is for variables"):
        define("test.classes.Defines", {"a": hint}, a=portcall.field(defines=True))


@pytest.mark.parametrize("hint", [Expr, list, list[Var], dict[str, Var], Any, Var | None, portcall.Map, object])
def test_field_defines_variables_in_containers(hint: Any) -> None:
    key = f"test.classes.Defines.{portcall.ir._annotations.annotation_text(hint)}"
    define(key, {"a": hint}, a=portcall.field(defines=True))


def test_register_object_of_types_that_hold_each_other_names_a_base_class() -> None:
    earlier = define("test.classes.Earlier", {"other": Expr | None}, Expr)
    later = define("test.classes.Later", {"other": earlier}, Expr)
    assert earlier(later(earlier(None))).other.other.other is None


def test_object_field_descriptor_refuses_another_type() -> None:
    with pytest.raises(TypeError, match=r"'lhs' is a field of test.classes.Add, not of test.classes.Var"):
        Add.lhs.__get__(X, Var)  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"'lhs' is a field of test.classes.Add, not of str"):
        Add.lhs.__get__("text", str)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="not initialised"):
        _ = Add.__new__(Add).lhs
    assert list(portcall.ir.fields(Add)) == ["lhs", "rhs", "span"]
    with pytest.raises(TypeError, match="str is not a class of a described type"):
        portcall.ir.fields("text")


def test_object_leaves_nothing_behind() -> None:
    with testing.no_leaks():
        for _ in range(10):
            made: Any = Block([X, Add(ONE, X)], {"a": 1}, outer=Block([]))
            assert made.outer.body == []
            with pytest.raises(TypeError):
                Add(made, 3)
            del made


def test_object_chain_is_printed_short_and_freed() -> None:
    with testing.no_leaks():
        chain: Any = ONE
        for _ in range(200_000):
            chain = Add(chain, ONE)
        assert len(repr(chain)) < 1000
        assert "Add(…)" in repr(chain)
        del chain


@portcall.register_object("test.classes.Quiet")
class Quiet(portcall.Object):
    secret: str = portcall.field(repr=False)
    shown: int


def test_object_repr_shows_fields(capsys: pytest.CaptureFixture[str]) -> None:
    made = Add(X, Const(2), "s")
    assert repr(made) == "Add(lhs=Var(name='x'), rhs=Const(value=2), span='s')"
    assert repr(portcall.Array([made, 1])) == f"[{made!r}, 1]"
    portcall.ir.show(Block([made, made], tag="t"))
    shown = capsys.readouterr().out
    assert "Block (test.classes.Block)" in shown
    assert "rhs: Const (test.classes.Const)" in shown
    assert shown.count("name: 'x'") == 1
    assert "(the same as above)" in shown
    quiet = Quiet("much", 5)
    assert (repr(quiet), quiet.secret) == ("Quiet(shown=5)", "much")
    portcall.ir.show(quiet)
    assert "secret" not in capsys.readouterr().out
    assert "secret" not in quiet._repr_html_()  # type: ignore[attr-defined]
    page = Add(Var("<b>"), ONE)._repr_html_()  # type: ignore[attr-defined]
    assert "&lt;b&gt;" in page
    assert "<b>" not in page


def test_object_repr_leaves_out_long_and_deep_parts(capsys: pytest.CaptureFixture[str]) -> None:
    wide, deep = Block([Const(i) for i in range(100)], tag="t" * 100), Add(X, ONE)
    for _ in range(9):
        deep = Add(X, deep)
    assert repr(wide).startswith("Block(body=[Const(value=0), Const(value=1), ")
    assert repr(wide).count("Const(") == 29  # 60 values: the block, its list, 29 objects with a number each, ...
    assert repr(deep).count("Add(") == 7
    assert repr(wide).endswith("…)")
    assert repr(deep).count("(…)") == 1  # a leaf is as short as the mark
    assert "…" not in repr(deep.rhs.rhs.rhs.rhs)  # type: ignore[attr-defined]
    portcall.ir.show(wide)
    shown = capsys.readouterr().out
    assert f"tag: '{'t' * 58}…" in shown
    assert "[99]: Const" in shown
    portcall.ir.show(wide, max_nodes=20)
    shown = capsys.readouterr().out
    assert "… 100 more inside" in shown
    assert "[0]" not in shown
    portcall.ir.show(deep, max_depth=3)
    shown = capsys.readouterr().out
    assert shown.count("rhs: Add") == 3
    assert "… 3 more inside" in shown
    assert "value: 1" not in shown
    assert deep._repr_html_().count("Add (test.classes.Add)") == 7  # type: ignore[attr-defined]
    assert wide._repr_html_().count("value: ") < 100  # type: ignore[attr-defined]


def test_object_repr_of_the_class_is_kept() -> None:
    @portcall.register_object("test.classes.Own")
    class Own(portcall.Object):
        value: int

        def __repr__(self) -> str:
            return f"<{self.value}>"

    assert repr(Own(1)) == "<1>"
    assert repr(Pair(Own(1), Own(2))) == "Pair(first=<1>, second=<2>)"


@portcall.register_object("test.classes.Pair")
class Pair(portcall.Object):
    first: object
    second: object


# ---- Other types as values -------------------------------------------------------------------------------------------


class Place(pathlib.PurePosixPath):
    """An existing type."""


@pytest.mark.usefixtures("registrations_undone")
def test_register_value_type_passes_existing_types() -> None:
    portcall.ir.register_value_type(Place, "test.classes.Place", encode=str, decode=Place)
    echo = portcall.get_global_func("testing.echo")
    assert echo(Place("/a/b")) == Place("/a/b")
    made = Block([], anything=[Place("c"), 1])
    assert made.anything == [Place("c"), 1]


def test_register_value_type_refuses_supported_types() -> None:
    class Size(int):
        pass

    with pytest.raises(TypeError, match="a Size is a int, and travels as one"):
        portcall.ir.register_value_type(Size, "test.classes.Size", encode=int, decode=Size)
    with pytest.raises(TypeError, match="a Var is a Object, and travels as one"):
        portcall.ir.register_value_type(Var, "test.classes.Size", encode=str, decode=Var)
