# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="arg-type, call-arg, list-item"
"""Passes of Python and C++ in one pipeline: which run, what is measured, and how their errors arrive."""

from __future__ import annotations

import io
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import portcall
from portcall.ir import Pass, PassContext, Sequential


@portcall.register_object("test.passes.Word")
class Word(portcall.Object):
    text: str


@portcall.register_object("test.passes.Pair")
class Pair(portcall.Object):
    left: object
    right: object


def says(name: str, **settings: Any) -> Pass:
    """A pass that adds its name to a list."""
    return Pass(name, lambda items: [*items, name], **settings)


@pytest.fixture(scope="module", autouse=True)
def library(build_native: Callable[[str], Path]) -> portcall.Module:
    return portcall.load_module(build_native("objects.cc"))


# ---- What runs -------------------------------------------------------------------------------------------------------


def test_sequential_takes_any_callable(register: Callable[..., Any]) -> None:
    register("test.passes.named", lambda items: [*items, "named"])
    packed = portcall.convert(lambda items: [*items, "packed"])
    inner = Sequential([says("inner")], "nested")
    run = Sequential([says("a"), lambda items: [*items, "lambda"], packed, "test.passes.named", inner], name="all")
    assert run([]) == ["a", "lambda", "packed", "named", "inner"]
    assert [p if isinstance(p, str) else p.name for p in run.passes][2:] == ["<lambda>", "test.passes.named", "nested"]
    assert Sequential([])([1]) == [1]


def test_sequential_refuses_other_values() -> None:
    with pytest.raises(TypeError, match="a pass is a Pass, a function, or the name of one; got int"):
        Sequential([5])
    with pytest.raises(KeyError, match=r"no pass or global function is named 'test\.passes\.missing'"):
        Sequential(["test.passes.missing"])([])
    with pytest.raises(TypeError, match=r"passes takes a list, got 'test.passes': put it in brackets"):
        Sequential("test.passes")
    with pytest.raises(TypeError, match="required takes a list, got 'a': put it in brackets"):
        Sequential([], required="a")
    with pytest.raises(TypeError, match=r"^required "):
        portcall.ir.register_pass("test.passes.never", required="a")
    with pytest.raises(TypeError, match=r"takes a name, as in @register_pass\(\"demo.fold\"\); got <function"):
        portcall.ir.register_pass(lambda items: items)
    with pytest.raises(TypeError, match="pass 'forgets' returned None"):
        Pass("forgets", lambda items: None)([])


def test_register_pass_makes_a_global_function() -> None:
    @portcall.ir.register_pass("test.passes.base", level=9)
    def base(items: list[str]) -> list[str]:
        return [*items, "base"]

    @portcall.ir.register_pass("test.passes.above", level=1, required=["test.passes.base"])
    def above(items: list[str]) -> list[str]:
        return [*items, "above"]

    try:
        assert (above.level, list(above.required)) == (1, ["test.passes.base"])
        assert portcall.get_global_func("test.passes.above")(["x"]) == ["x", "above"]
        assert above([]) == ["above"]
        assert Sequential(["test.passes.above", base])([]) == ["base", "above"]
        with PassContext(level=0):
            assert Sequential(["test.passes.above"])([1]) == [1]
        with (
            PassContext(disabled=["test.passes.base"]),
            pytest.raises(ValueError, match=r"'test.passes.above' requires 'test.passes.base', which is disabled"),
        ):
            Sequential([above])([])
        with pytest.raises(portcall.errors.AlreadyRegisteredError, match=r"test.passes.base"):
            portcall.ir.register_pass("test.passes.base")(base.run)
    finally:
        portcall.remove_global_func("test.passes.base")
        portcall.remove_global_func("test.passes.above")


def test_pass_context_chooses_passes_and_holds_settings() -> None:
    seen = []

    def reads(items: Any) -> Any:
        seen.append(PassContext.current().config.get("unroll"))
        return items

    run = Sequential([says("always"), Sequential([says("deep")], level=3), says("off"), reads])
    assert run([]) == ["always", "off"]
    with PassContext(level=3, disabled=["off"], config={"unroll": 4}) as ctx:
        assert PassContext.current() == ctx
        assert run([]) == ["always", "deep"]
        with PassContext(level=0, required=["sequential"]):
            assert run([]) == ["always", "deep", "off"]
        assert PassContext.current() == ctx
    assert seen == [None, 4, None]
    assert PassContext.current().level == 2


def test_pass_context_is_left_by_errors_and_in_order() -> None:
    outer = PassContext()
    with pytest.raises(ZeroDivisionError), outer:
        _ = 1 / 0
    with pytest.raises(RuntimeError, match="this thread entered another one after it"):
        outer.__exit__(None, None, None)


def test_pass_context_is_per_thread() -> None:
    run = Sequential([says("one", level=1), says("two", level=2), says("three", level=3)])
    found: dict[int, Any] = {}
    together = threading.Barrier(4)

    def work(level: int) -> None:
        before = PassContext.current().level
        with PassContext(level=level) as ctx:
            together.wait()
            found[level] = (before, {len(run([])) for _ in range(50)}, len(ctx.timings))

    with PassContext(level=7):
        threads = [threading.Thread(target=work, args=(level,)) for level in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {level: (2, {level}, 50 * (level + 1)) for level in range(4)}


# ---- What is seen of it ----------------------------------------------------------------------------------------------


def test_pass_context_times_passes_and_calls_hooks() -> None:
    seen: list[tuple[str, str, Any]] = []
    ctx = PassContext(
        before=lambda p, obj: seen.append(("before", p.name, list(obj))),
        after=lambda p, obj: seen.append(("after", p.name, list(obj))),
    )
    with ctx:
        Sequential([says("a"), Sequential([says("b")], "inner")], "all")([])
    assert seen == [
        ("before", "all", []), ("before", "a", []), ("after", "a", ["a"]), ("before", "inner", ["a"]),
        ("before", "b", ["a"]), ("after", "b", ["a", "b"]), ("after", "inner", ["a", "b"]),
        ("after", "all", ["a", "b"]),
    ]  # fmt: skip
    assert [(t.name, t.depth) for t in ctx.timings] == [("a", 1), ("b", 2), ("inner", 1), ("all", 0)]
    assert all(t.seconds >= 0 for t in ctx.timings)


def test_show_timings_is_in_order_of_start() -> None:
    with PassContext() as ctx:
        Sequential([says("a"), Sequential([says("b")], "inner")], "all")([])
        says("last")([])
        with pytest.raises(TypeError):
            Pass("bad", lambda items: None)([])
    out = io.StringIO()
    ctx.show_timings(file=out)
    lines = out.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["pass", "all", "a", "inner", "b", "last", "bad"]
    assert [len(line) - len(line.lstrip()) for line in lines] == [0, 0, 2, 2, 4, 0, 0]
    assert "bad (failed)" in lines[-1]
    shares = [float(line.split()[-1].removesuffix("%")) for line in lines[1:] if not line.startswith(" ")]
    assert abs(sum(shares) - 100) < 1  # those that the user called; the others are parts of them


def test_pass_context_times_a_failed_pass() -> None:
    with PassContext() as ctx, pytest.raises(TypeError):
        Sequential([says("a"), Pass("bad", lambda items: None)], "all")([])
    assert [(t.name, t.failed) for t in ctx.timings] == [("a", False), ("bad", True), ("all", True)]


def test_pass_context_hook_error_fails_the_pass() -> None:
    def hook(p: Any, obj: Any) -> None:
        raise LookupError("hook")

    with PassContext(before=hook), pytest.raises(LookupError, match="hook"):
        says("a")([])
    assert says("a")([]) == ["a"]


# ---- Errors ----------------------------------------------------------------------------------------------------------


class OddError(Exception):
    """One that only Python knows."""


def test_sequential_error_keeps_its_class_and_names_the_pass() -> None:
    mine = OddError("mine", 5)

    def refuse(word: Word) -> None:
        raise mine

    def bad(items: Any) -> Any:
        return portcall.ir.rewrite(items, refuse, Word)

    inner = Sequential([says("x"), Pass("bad", bad)], "inner")
    with pytest.raises(OddError) as caught:
        Sequential([lambda items: [*items, Pair(1, Word("w"))], inner, says("y")], "all")([])
    assert caught.value is mine
    assert caught.value.args == ("mine", 5)
    assert mine.__notes__ == [
        "at <root>[0].right, of type test.passes.Word",
        "in pass 'bad', number 2 of 2 in 'inner'",
        "in pass 'inner', number 2 of 3 in 'all'",
        "in pass 'all'",
    ]
    names = [frame.name for frame in traceback.extract_tb(mine.__traceback__)]
    assert names[-1] == "refuse"
    assert "bad" in names
    mine.__traceback__ = None  # it holds the frames, and so the passes, which hold the functions that hold it


def test_sequential_error_of_cpp_has_each_note_once() -> None:
    seen = []

    def outer(items: Any) -> Any:
        try:
            return Sequential(["cpp_objects.fail"], "inner")(items)
        except ValueError as error:
            seen.append(list(error.__notes__))
            raise

    with pytest.raises(ValueError, match="no such variable") as caught:
        Pass("outer", outer)([])
    assert caught.value.__notes__ == [
        "in pass 'cpp_objects.fail', number 1 of 1 in 'inner'", "in pass 'inner'", "in pass 'outer'",
    ]  # fmt: skip
    assert seen == [caught.value.__notes__[:2]]


# ---- Both languages --------------------------------------------------------------------------------------------------


def names_of(expr: Any) -> str:
    """The variables of a sum, in the order in which they are read."""
    return " ".join(var.name for var in portcall.ir.walk(expr, "cpp.Var"))


def test_sequential_mixes_python_and_cpp_passes() -> None:
    var, add = portcall.ir.get_object_class("cpp.Var"), portcall.ir.get_object_class("cpp.Add")

    def marked(sign: str) -> Callable[[Any], Any]:
        return lambda expr: portcall.ir.rewrite(expr, lambda v: v.replace(name=v.name + sign), var)

    swap = "cpp_objects.swap_all"  # lhs and rhs of each sum, in C++
    made_here = add(var("a"), add(var("b"), var("c")))
    assert names_of(Sequential([marked("1"), swap, marked("2")])(made_here)) == "c12 b12 a12"
    assert names_of(Sequential([swap, marked("1"), swap])(made_here)) == "a1 b1 c1"
    made_there = portcall.get_global_func("cpp_objects.chain")(3)
    assert names_of(Sequential([swap, marked("!"), swap])(made_there)) == names_of(marked("!")(made_there))


def test_sequential_is_called_by_cpp(register: Callable[..., Any]) -> None:
    mine = OddError("whole")

    def rename(expr: Any) -> Any:
        def change(v: Any) -> Any:
            if v.name == "x2":
                raise mine
            return v.replace(name=v.name.upper())

        return portcall.ir.rewrite(expr, change, "cpp.Var")

    register("test.passes.rename", rename)
    pipeline = Sequential(["cpp_objects.swap_all", "test.passes.rename", "cpp_objects.swap_all"], "pipeline")
    run = portcall.get_global_func("cpp_objects.run_pipeline")
    assert names_of(run(pipeline, 2)) == "X1 X0"
    with pytest.raises(OddError) as caught:
        run(pipeline, 4)
    assert caught.value is mine
    assert mine.__notes__ == [
        "at <root>.rhs.rhs.lhs, of type cpp.Var",
        "in pass 'test.passes.rename', number 2 of 3 in 'pipeline'",
        "in pass 'pipeline'",
    ]
    assert traceback.extract_tb(mine.__traceback__)[-1].name == "change"
    mine.__traceback__ = None


def test_pass_constructors_check_their_arguments() -> None:
    with pytest.raises(TypeError, match="disable"):
        PassContext(disable=["x"])
    with pytest.raises(TypeError, match="'no function' needs a function, got int"):
        Pass("no function", 5)
    assert repr(Sequential(["x", says("y")], "name")) == "Sequential(['x', 'y'], 'name', level=0, required=[])"


# ---- What a pass requires --------------------------------------------------------------------------------------------


@pytest.fixture
def register_pass() -> Iterator[Callable[..., Pass]]:
    names = []

    def add(name: str, **settings: Any) -> Pass:
        names.append(name)
        return portcall.ir.register_pass(name, **settings)(lambda items: [*items, name])

    yield add
    for name in names:
        portcall.remove_global_func(name)


def test_sequential_runs_required_passes_once(register_pass: Callable[..., Pass]) -> None:
    register_pass("test.passes.base", level=5)
    register_pass("test.passes.middle", required=["test.passes.base"])
    run = Sequential([says("x", required=["test.passes.middle"]), says("y", required=["test.passes.base"])])
    assert run([]) == ["test.passes.base", "test.passes.middle", "x", "y"]


def test_sequential_refuses_circular_requirements(register_pass: Callable[..., Pass]) -> None:
    register_pass("test.passes.a", required=["test.passes.b"])
    register_pass("test.passes.b", required=["test.passes.a"])
    with pytest.raises(ValueError, match=r"'test.passes.b' requires itself, through 'test.passes.a'"):
        Sequential(["test.passes.a"])([])


def test_register_pass_again_replaces_the_function(register_pass: Callable[..., Pass]) -> None:
    register_pass("test.passes.level", level=9)
    assert Sequential(["test.passes.level"])([1]) == [1]
    portcall.register_func("test.passes.level", lambda items: [*items, "new"], override=True)
    assert Sequential(["test.passes.level"])([1]) == [1, "new"]


def test_pass_context_settings_are_read_by_cpp() -> None:
    setting = portcall.get_global_func("cpp_objects.setting")
    with PassContext(config={"size": "big"}):
        assert (setting("size"), setting("depth")) == ("big", None)
    assert setting("size") is None
