# SPDX-License-Identifier: Apache-2.0
"""The reference in docs/api names everything that is public, and nothing else."""

from __future__ import annotations

import re
import runpy
import types
from pathlib import Path

import pytest

import portcall

PAGES = Path(__file__).parents[1] / "docs" / "api"
# At import, not in a test: names that load on first use bring a library with them, which stays.
MEMBERS = {name: getattr(portcall, name) for name in dir(portcall) if not name.startswith("_")}


def public_names(module: types.ModuleType) -> list[str]:
    """The classes and functions of a package, those of its submodules left out."""
    names = [name for name in dir(module) if not name.startswith("_")]
    return sorted(n for n in names if str(getattr(getattr(module, n), "__module__", "")).startswith("portcall"))


@pytest.mark.parametrize("module", [portcall, portcall.ir], ids=lambda module: module.__name__)
def test_api_page_lists_each_public_name_once(module: types.ModuleType) -> None:
    text = (PAGES / f"{module.__name__.rpartition('.')[2]}.md").read_text()
    listed = re.findall(r"^\.\. auto(?:function|class):: (\w+)$", text, re.MULTILINE)
    assert sorted(listed) == public_names(module)


def test_api_page_exists_for_each_subpackage() -> None:
    packages = {name for name, thing in MEMBERS.items() if isinstance(thing, types.ModuleType)}
    own = {name for name in packages if MEMBERS[name].__name__ == f"portcall.{name}"} - {"cli"}
    assert own <= {path.stem for path in PAGES.glob("*.md")}


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
