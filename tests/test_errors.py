# SPDX-License-Identifier: Apache-2.0
"""The exception tree: what each error is, what facts it carries, and that both survive copying and pickling."""

from __future__ import annotations

import collections
import copy
import pickle
import re
from pathlib import Path

import pytest

from portcall import errors

# One line per class: an instance with every fact set, the built-ins it must also be, and its facts.
TREE: list[tuple[errors.PortcallError, tuple[type[Exception], ...], dict[str, object]]] = [
    (errors.PortcallError("boom"), (Exception,), {}),
    (
        errors.FunctionNotFoundError("no", name="demo.scal", near=["demo.scale"]),
        (LookupError, ValueError),
        {"name": "demo.scal", "near": ("demo.scale",)},
    ),
    (errors.AlreadyRegisteredError("taken", name="demo.scale"), (ValueError,), {"name": "demo.scale"}),
    (
        errors.ArgumentError("bad", function="f", position=2, expected="int", got="str"),
        (TypeError,),
        {"function": "f", "position": 2, "expected": "int", "got": "str"},
    ),
    (errors.ModuleLoadError("bad file", path=Path("a/b.so")), (OSError,), {"path": "a/b.so"}),
    (errors.DeviceError("gone", device="cuda:0"), (RuntimeError,), {"device": "cuda:0"}),
    (
        errors.CompileError("failed", command=["c++", "a.cc"], output="a.cc:1: error"),
        (RuntimeError,),
        {"command": ("c++", "a.cc"), "output": "a.cc:1: error"},
    ),
    (
        errors.GraphError("nodes[3]: no op", path="nodes[3]", node="conv"),
        (ValueError,),
        {"path": "nodes[3]", "node": "conv"},
    ),
    (errors.InternalError("bug"), (RuntimeError,), {}),
]


def case_name(case: object) -> str:
    return type(case).__name__ if isinstance(case, Exception) else ""


@pytest.mark.parametrize(("error", "bases", "facts"), TREE, ids=case_name)
def test_error_is_a_portcall_error_and_the_builtin_people_expect(
    error: errors.PortcallError, bases: tuple[type[Exception], ...], facts: dict[str, object]
) -> None:
    assert isinstance(error, errors.PortcallError)
    for base in bases:
        assert isinstance(error, base)
    assert str(error) == error.args[0]
    assert {fact: getattr(error, fact) for fact in facts} == facts


@pytest.mark.parametrize(("error", "bases", "facts"), TREE, ids=case_name)
@pytest.mark.parametrize(
    "duplicate",
    [copy.copy, copy.deepcopy, *(lambda e, p=p: pickle.loads(pickle.dumps(e, p)) for p in range(2, 6))],
    ids=["copy", "deepcopy", "pickle2", "pickle3", "pickle4", "pickle5"],
)
def test_error_keeps_its_class_text_and_facts_when_duplicated(
    error: errors.PortcallError,
    bases: tuple[type[Exception], ...],
    facts: dict[str, object],
    duplicate: object,
) -> None:
    assert callable(duplicate)
    twin = duplicate(error)
    assert type(twin) is type(error)
    assert str(twin) == str(error)
    assert vars(twin) == vars(error)


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_takes_a_message_alone(name: str) -> None:
    error = getattr(errors, name)("only text")
    assert str(error) == "only text"


def test_errors_docstring_names_every_error_and_its_facts() -> None:
    assert errors.__doc__ is not None
    drawn = {
        line.split()[-1] if "──" not in line else line.split("── ")[1].split()[0]: line
        for line in errors.__doc__.splitlines()
        if "Error" in line and line.startswith("    ")
    }
    assert sorted(drawn) == errors.__all__
    for error, bases, facts in TREE:
        line = drawn[type(error).__name__]
        assert all(f".{fact}" in line for fact in facts)
        assert all(base.__name__ in line for base in bases if base is not Exception)


def test_error_texts_are_matched_in_one_test_each() -> None:
    """Other tests check the class, facts, and a name or value at most (CONTRIBUTING.md)."""
    patterns = [
        pattern
        for file in Path(__file__).parent.rglob("*.py")
        for pattern in re.findall(r'match=[rf]*"([^"]+)"', file.read_text())
        if len(re.findall("[A-Za-z]+", pattern)) > 4
    ]
    assert [pattern for pattern, count in collections.Counter(patterns).items() if count > 1] == []
    assert len(patterns) > 100
