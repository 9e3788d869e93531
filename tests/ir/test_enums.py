# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="arg-type, attr-defined, comparison-overlap, no-untyped-call, unreachable"
"""Enums of Python and of C++, seen from both."""

from __future__ import annotations

import copy
import enum
import pickle
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import portcall


@portcall.register_object("test.enums.Color")
class Color(portcall.ir.Enum):
    """A color."""

    red = 0
    green = enum.auto()

    def dark(self) -> str:
        return f"dark {self.name}"


@portcall.register_object("test.enums.Level")
class Level(portcall.ir.IntEnum):
    low = 10
    high = 20


@portcall.register_object("test.enums.Mode")
class Mode(portcall.ir.StrEnum):
    fast = "fast"
    safe = "safe"


@portcall.register_object("test.enums.Car")
class Car(portcall.Object):
    color: Color


def _defined() -> Any:
    @portcall.register_object("test.enums.Again")
    class Again(portcall.ir.Enum):
        one = 1

    return Again


BEFORE = _defined().one
Again = _defined()


@pytest.fixture(scope="module")
def library(libraries: dict[str, Path]) -> portcall.Module:
    return portcall.load_module(libraries["tvm_ffi_hooks_unlinked"])


def _check(color: Any, level: Any) -> None:
    assert [(e.name, e.number) for e in color] == [("red", 0), ("green", 1)]
    assert color.red is color("red") is color(0) is next(iter(color))
    assert color.red == color("red") != color.green
    assert (repr(color.green), len(color)) == (f"{color.__name__}.green", 2)
    assert [level.low.value, int(level.high), level(20).name] == [10, 20, "high"]
    assert level.low == 10 != level.high
    assert [level.low != number for number in (10, level.low, 20, level.high)] == [False, False, True, True]
    for wrong in ("blue", 7, True, None):
        with pytest.raises(ValueError, match="has no entry"):
            color(wrong)
    with pytest.raises(AttributeError):
        color.blue  # noqa: B018
    for again in (copy.copy, copy.deepcopy, lambda e: pickle.loads(pickle.dumps(e))):
        assert again(color.red) is color.red
    assert portcall.ir.load_json(portcall.ir.save_json([color.red, level.high]))[1] is level.high


def test_enum_of_python() -> None:
    _check(Color, Level)
    assert Color.red.dark() == "dark red"
    assert (Mode.fast.value, Mode("safe").name) == ("fast", "safe")
    assert Mode.fast == "fast"
    assert {Level.low: 1}[10] == 1


def test_enum_of_cpp(library: portcall.Module) -> None:
    color: Any = portcall.ir.get_object_class("hooks.Color")
    _check(color, portcall.ir.get_object_class("hooks.Level"))
    assert library["color_of"]("red") is color.red
    assert isinstance(color.red, portcall.ir.Enum)


def test_enum_entries_are_values_and_fields(library: portcall.Module) -> None:
    assert list(library["read_enum"](Color.green)) == [1, "green"]
    car = Car(Color.red)
    assert car.color is Color.red
    with pytest.raises(TypeError):
        Car(Level.low)
    assert portcall.ir.structural_equal(car, copy.deepcopy(car))
    assert not portcall.ir.structural_equal(car, Car(Color.green))


def test_enum_refuses_invalid_definitions() -> None:
    with pytest.raises(TypeError, match="a number"):

        @portcall.register_object("test.enums.Wrong")
        class Wrong(portcall.ir.Enum):
            red = "red"

    with pytest.raises(TypeError, match="a text"):

        @portcall.register_object("test.enums.Number")
        class Number(portcall.ir.StrEnum):
            red = 1

    with pytest.raises(ValueError, match="another entry has the number 1"):

        @portcall.register_object("test.enums.Twice")
        class Twice(portcall.ir.Enum):
            red = 1
            green = 1

    with pytest.raises(TypeError, match="no entries"):

        @portcall.register_object("test.enums.Empty")
        class Empty(portcall.ir.Enum):
            pass

    with pytest.raises(ValueError, match="already exists"):

        @portcall.register_object("test.enums.Color")
        class Other(portcall.ir.Enum):
            red = 0
            blue = 1


def test_enum_takes_over_no_other_type() -> None:
    for key, base in (
        ("test.enums.Color", portcall.Object),
        ("test.enums.Color", portcall.ir.IntEnum),
        ("test.enums.Level", portcall.ir.Enum),
    ):
        with pytest.raises(TypeError, match="derives from 'ffi"):
            portcall.register_object(key)(types.new_class("Other", (base,)))


def test_enum_that_is_not_registered_says_so() -> None:
    class Loose(portcall.ir.Enum):
        red = 0

    for ask in (list, len, lambda loose: loose("red")):
        with pytest.raises(TypeError, match="enum Loose is not registered"):
            ask(Loose)
    assert not hasattr(Loose, "green")
    with pytest.raises(ValueError, match="it has none"):
        portcall.ir.Enum("red")


def test_enum_defined_again_is_the_same() -> None:
    assert Again.one == BEFORE
    assert type(Again.one) is Again is not type(BEFORE)


# In a process of its own, in which the library that describes enums is not loaded yet.
ATTRIBUTES = """
import contextlib, copy, pickle, pydoc
import portcall

def look_at(thing):
    for name in {*(dir(thing) if isinstance(thing, type) else ()), *dir(type(thing)), "foo", "_int_index"}:
        with contextlib.suppress(Exception):
            repr(getattr(thing, name))
    for ask in (len, list, repr, str, hash, bool, int, copy.copy, copy.deepcopy, pickle.dumps, pydoc.render_doc,
                lambda thing: thing("x"), lambda thing: thing(0), lambda thing: thing(), lambda thing: "x" in thing,
                lambda thing: thing == thing, lambda thing: thing < thing, lambda thing: thing[0]):
        with contextlib.suppress(Exception):
            ask(thing)

for module in (portcall.ir, portcall):
    for name, cls in sorted(vars(module).items()):
        if isinstance(cls, type) and not name.startswith("_"):
            look_at(cls)
            if issubclass(cls, portcall.Object):
                look_at(cls.__new__(cls))
print([len(cls) for cls in (portcall.ir.Enum, portcall.ir.IntEnum, portcall.ir.StrEnum)])
"""


def test_classes_without_a_type_are_looked_at_without_harm() -> None:
    done = subprocess.run([sys.executable, "-c", ATTRIBUTES], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "[0, 0, 0]\n"), done.stderr
