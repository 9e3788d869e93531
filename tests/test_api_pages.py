# SPDX-License-Identifier: Apache-2.0
"""The reference in docs/api names everything that is public, and nothing else."""

from __future__ import annotations

import ast
import importlib
import re
import runpy
import subprocess
import sys
import types
from pathlib import Path

import pytest

import portcall
import portcall.graph.ir

PAGES = Path(__file__).parents[1] / "docs" / "api"
# At import, not in a test: names that load on first use bring a library with them, which stays.
MEMBERS = {name: getattr(portcall, name) for name in dir(portcall) if not name.startswith("_")}


PACKAGES = {path.stem for path in PAGES.glob("*.md")} - {"index", "portcall"}
RENAMED = {"tvm_ffi"}  # what other pages have, under other names
MODULES = [importlib.import_module(f"portcall.{name}") for name in sorted(PACKAGES - RENAMED)]
MODULES += [portcall, portcall.graph.ir]


def public_names(module: types.ModuleType) -> list[str]:
    """The classes and functions of a package, those of its submodules left out."""
    names = getattr(module, "__all__", None) or [name for name in dir(module) if not name.startswith("_")]
    found = {name: getattr(module, name) for name in names}
    kinds = (type, types.FunctionType, types.BuiltinFunctionType)
    return sorted(n for n, thing in found.items() if isinstance(thing, kinds) and "portcall" in thing.__module__)


def listed_names(page: str, module: types.ModuleType) -> list[str]:
    """What a page lists of a module: autodoc leaves out what has no docstring, and what others define if not asked."""
    prefix = re.escape(module.__name__)
    listed = re.findall(rf"^\.\. auto(?:function|class):: (?:{prefix}\.)?(\w+)$", page, re.MULTILINE)
    block = re.search(rf"^\.\. automodule:: {prefix}\n((?:   .*\n)+)", page, re.MULTILINE)
    if block and (members := re.search(r":members: (.+)", block[1])):
        listed += members[1].split(", ")
    elif block:
        theirs = ":imported-members:" in block[1] or hasattr(module, "__all__")
        things = {name: getattr(module, name) for name in public_names(module)}
        listed += [
            n for n, thing in things.items() if thing.__doc__ and (theirs or thing.__module__ == module.__name__)
        ]
    return sorted(listed)


@pytest.mark.parametrize(
    "module",
    [pytest.param(m, marks=[pytest.mark.peers] * (m is portcall.compile), id=m.__name__) for m in MODULES],
)
def test_api_page_lists_each_public_name_once(module: types.ModuleType) -> None:
    page = (PAGES / f"{module.__name__.removeprefix('portcall.').partition('.')[0]}.md").read_text()
    assert listed_names(page, module) == public_names(module)


def test_api_page_exists_for_each_subpackage() -> None:
    packages = {name for name, thing in MEMBERS.items() if isinstance(thing, types.ModuleType)}
    assert {name for name in packages if MEMBERS[name].__name__ == f"portcall.{name}"} - {"cli"} == PACKAGES


@pytest.mark.peers
def test_package_shows_its_names_before_they_are_used() -> None:
    code = "import sys, portcall, importlib; print([n for p in sys.argv[1:] for n in dir(importlib.import_module(p))])"
    command = [sys.executable, "-c", code, *(module.__name__ for module in MODULES)]
    shown = ast.literal_eval(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert {name for module in MODULES for name in public_names(module)} <= set(shown)


def test_site_has_each_page() -> None:
    docs = PAGES.parent
    listed = set(re.findall(r"^([a-z][\w/-]*)$", (docs / "index.md").read_text(), re.MULTILINE))
    assert {path.stem for path in docs.glob("*.md")} - {"index"} <= listed


def test_security_page_names_existing_tests() -> None:
    root = PAGES.parents[1]
    files = [*(root / "tests").rglob("test_*.py"), *(root / "core" / "tests").rglob("test_*.cc")]
    existing = {path.name for path in files}
    for path in files:
        existing.update(re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE))
    named = re.findall(r"\b(test_\w+(?:\.\w+)?)`", (PAGES.parent / "security.md").read_text())
    assert [name for name in named if name not in existing] == []
    assert len(named) > 30


def test_architecture_page_names_existing_files() -> None:
    root = PAGES.parents[1]
    page = (PAGES.parent / "architecture.md").read_text()
    named = set(re.findall(r"`((?:core|src|js|scripts|tests)/[\w./]+)`", page))
    assert [name for name in sorted(named) if not (root / name).exists()] == []
    assert len(named) > 40


def test_each_source_file_begins_with_what_it_is() -> None:
    listed = runpy.run_path(str(PAGES.parents[1] / "scripts" / "list_files.py"))
    said = listed["files"]()
    assert [str(path) for path, sentence in said.items() if not sentence] == []
    assert said[Path("src/portcall/errors")] == "Every exception that portcall raises on its own account"
    assert said[Path("core/bytes/cursor")]
