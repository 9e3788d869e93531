# SPDX-License-Identifier: Apache-2.0
"""Imports point down. The tables here are the judge: a module may import what stands before it in its table, only."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "portcall"
CORE = ROOT / "core"

# From the bottom up. Modules of one line do not know each other. A folder stands for all that is in it.
PYTHON_LAYERS = [
    ["errors", "_html"],
    ["_core"],
    ["_dtype", "_container", "_function"],
    ["_device", "_arraylike"],
    ["_tensor", "_module"],
    ["_printing", "_ir"],
    ["_values", "_enum"],
    ["_object"],
    ["_passes"],
    ["__init__"],
    ["_input"],
    ["_archive", "_signature", "_blob", "_compare", "_elf"],
    ["toolchain", "testing", "_linkage"],
    ["_machine"],
    ["preflight"],
    ["bench"],
    ["rpc", "graph"],
    ["cli"],
    ["__main__"],
]

# The rooms of portcall.rpc, from the bottom up; a server may be a client of another one.
RPC_ROOMS = ["wire", "client", "server", "above the rooms"]

# The root itself is imported by what builds on the public names.
ABOVE_THE_ROOT = {
    "toolchain",
    "testing",
    "_archive",
    "_input",
    "_signature",
    "_blob",
    "_compare",
    "_elf",
    "_linkage",
    "_machine",
    "preflight",
    "bench",
    "rpc",
    "graph",
    "cli",
    "__main__",
}

# Headers of the C++ API, from the bottom up.
HEADER_LAYERS = [
    ["dlpack.h"],
    ["c_api.h"],
    ["classic_api.h"],
    ["runtime.h"],
    ["object.h"],
    ["error.h"],
    ["value.h"],
    ["container.h", "device.h", "signature.h"],
    ["function.h", "tensor.h"],
    ["module.h", "reflection.h"],
    ["ir.h"],
    ["portcall.h"],
]

# Optional dependencies, what only printing needs, and subpackages that load on first use: no other imports may stand
# inside a function.
LATE_IMPORTS = {
    "numpy",
    "ml_dtypes",
    "importlib",
    "rich.console",
    "rich.table",
    "rich.text",
    "rich.tree",
    "portcall.bench",
    "portcall.graph._factory",
    "portcall.toolchain",
}


# What the extra `peers` installs: tests that need it are marked so, and are collected without it.
PEERS = {"tvm", "tvm_ffi", "torch"}


def rank(table: list[list[str]], name: str) -> int:
    return next(k for k, line in enumerate(table) if name in line)


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def python_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imported(path: Path) -> list[tuple[str, bool]]:
    """(module, whether for types only or late) of each import of something in the package."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            child.parent = node
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively; write the name of the package"
            whole = node.module == "portcall"
            names = [f"portcall.{alias.name}" if whole else str(node.module) for alias in node.names]
        else:
            continue
        for name in names:
            if name.partition(".")[0] == "portcall":
                found.append((name, is_for_types(node) or (name in LATE_IMPORTS and is_in_a_function(node))))
    return found


def surroundings(node: ast.AST) -> list[ast.AST]:
    """What a statement stands in, from the inside out."""
    outer = []
    while (node := getattr(node, "parent", None)) is not None:
        outer.append(node)
    return outer


def is_for_types(node: ast.AST) -> bool:
    return any(isinstance(o, ast.If) and ast.unparse(o.test) == "TYPE_CHECKING" for o in surroundings(node))


def is_in_a_function(node: ast.AST) -> bool:
    return any(isinstance(o, (ast.FunctionDef, ast.AsyncFunctionDef)) for o in surroundings(node))


def target_layer(name: str) -> str:
    part = name.split(".")[1] if "." in name else "__init__"
    return part if any(part in line for line in PYTHON_LAYERS) else "__init__"  # a public name of the root


def test_every_module_has_a_layer() -> None:
    layers = {layer_of(path) for path in python_files()} | {"_core"}
    assert layers == {name for line in PYTHON_LAYERS for name in line}


@pytest.mark.parametrize("path", python_files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_python_imports_point_down(path: Path) -> None:
    here = layer_of(path)
    for name, exempt in imported(path):
        there = target_layer(name)
        if exempt or there == here:
            continue
        if here == "__init__":
            assert there not in ABOVE_THE_ROOT, f"the root imports {name}, which is to load on first use"
        assert rank(PYTHON_LAYERS, there) < rank(PYTHON_LAYERS, here), (
            f"{path.name} imports {name}, which is not below it"
        )


def rpc_room(name: str) -> int:
    """The place in RPC_ROOMS of a module of portcall.rpc, such as ``portcall.rpc.wire._tls``."""
    part = name.split(".")[2] if name.count(".") > 1 else ""
    return RPC_ROOMS.index(part) if part in RPC_ROOMS else len(RPC_ROOMS) - 1


@pytest.mark.parametrize("path", sorted((PACKAGE / "rpc").rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_rooms_of_rpc_import_what_is_below_them(path: Path) -> None:
    here = rpc_room(".".join(("portcall", *path.relative_to(PACKAGE).with_suffix("").parts)))
    for name, _ in imported(path):
        if name.split(".")[1:2] == ["rpc"]:
            assert rpc_room(name) <= here, f"{path.name} imports {name}, which is not below it"


@pytest.mark.parametrize("path", sorted((PACKAGE / "cli").rglob("*.py")), ids=lambda p: p.name)
def test_the_command_line_uses_public_names_only(path: Path) -> None:
    for name, exempt in imported(path):
        inside = name.split(".")[1:2] == ["cli"]
        assert exempt or inside or not any(part.startswith("_") for part in name.split(".")), f"{path.name}: {name}"


@pytest.mark.parametrize("path", python_files(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_only_optional_dependencies_are_imported_inside_functions(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        for statement in ast.walk(node):
            if isinstance(statement, ast.Import):
                names = [alias.name for alias in statement.names]
            elif isinstance(statement, ast.ImportFrom):
                names = [str(statement.module)]
            else:
                continue
            late = layer_of(path) == "cli"  # `portcall --help` answers before any command is loaded
            assert late or set(names) <= LATE_IMPORTS, f"{path.name}: {names} inside {node.name}()"


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("test_*.py")), ids=lambda p: p.name)
def test_tests_are_collected_where_no_peer_is_installed(path: Path) -> None:
    for statement in ast.parse(path.read_text()).body:
        names = [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []
        names += [str(statement.module)] if isinstance(statement, ast.ImportFrom) else []
        assert not {name.partition(".")[0] for name in names} & PEERS, f"{path.name}: import it inside of the test"


def test_the_binding_imports_errors_only() -> None:
    source = (PACKAGE / "_core.pyx").read_text()
    assert set(re.findall(r"^(?:from|import) (portcall[\w.]*)", source, re.MULTILINE)) == {"portcall"}
    assert re.findall(r"^from portcall import (.+)$", source, re.MULTILINE) == ["errors"]


# ---- C++ -------------------------------------------------------------------------------------------------------------


def included(path: Path, public: bool) -> list[str]:
    pattern = r'#include ["<](?:portcall/)?(\w+\.h)[">]' if public else r'#include "(\w+\.h)"'
    return re.findall(pattern, path.read_text())


def headers() -> list[Path]:
    return sorted((CORE / "include" / "portcall").glob("*.h"))


def test_every_header_has_a_layer() -> None:
    assert {path.name for path in headers()} == {name for line in HEADER_LAYERS for name in line}


@pytest.mark.parametrize("path", headers(), ids=lambda p: p.name)
def test_headers_include_what_is_below_them(path: Path) -> None:
    known = {name for line in HEADER_LAYERS for name in line}
    for name in included(path, public=True):
        if name in known:
            assert rank(HEADER_LAYERS, name) < rank(HEADER_LAYERS, path.name), f"{path.name} includes {name}"


@pytest.mark.parametrize("path", headers(), ids=lambda p: p.name)
def test_headers_do_not_reach_into_the_sources(path: Path) -> None:
    private = {p.name for p in (CORE / "src").glob("*.h")}
    assert not private & set(included(path, public=True))


@pytest.mark.parametrize("path", sorted((CORE / "src").glob("*.h")), ids=lambda p: p.name)
def test_private_headers_do_not_include_each_other_in_a_circle(path: Path) -> None:
    def below(header: Path, seen: tuple[str, ...]) -> None:
        for name in included(header, public=False):
            inner = CORE / "src" / name
            assert name not in seen, f"a circle of includes: {' -> '.join((*seen, name))}"
            if inner.exists():
                below(inner, (*seen, name))

    below(path, (path.name,))


def test_rpc_and_graph_do_not_know_each_other() -> None:
    for here, there in (("rpc", "graph"), ("graph", "rpc")):
        for path in (CORE / here).rglob("*") if (CORE / here).exists() else ():
            if path.suffix in (".h", ".cc"):
                assert f"{there}/" not in "".join(re.findall(r"#include .*", path.read_text())), path.name


def test_the_public_c_headers_are_c() -> None:
    for name in ("dlpack.h", "c_api.h", "classic_api.h"):
        text = (CORE / "include" / "portcall" / name).read_text()
        assert not re.findall(r"#include <c\w+>", text), f"{name} includes headers of C++"
