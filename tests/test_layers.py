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
    ["ir"],
    ["__init__"],
    ["_input"],
    ["_archive", "_signature", "_compare"],
    ["toolchain", "testing"],
    ["inspect"],
    ["bench"],
    ["rpc", "graph"],
    ["farm"],
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
    "_compare",
    "inspect",
    "bench",
    "rpc",
    "graph",
    "farm",
    "cli",
    "__main__",
}

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

# Headers of the C++ API, from the bottom up. Headers of one line do not include each other.
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

# Folders of the core, from the bottom up. Folders of one line do not know each other.
FOLDER_LAYERS = [["runtime"], ["classic"], ["loader"], ["rpc", "graph"]]
# Libraries of their own: they include public headers and their own files only.
LIBRARY_FOLDERS = ["ir"]
# Not part of a library: they may include everything.
FREE_FOLDERS = ["tests", "fuzz"]


def includes(path: Path) -> list[str]:
    """What a file includes of the project: ``portcall/value.h`` or ``rpc/codec.h``."""
    names = re.findall(r'^\s*#\s*include\s+["<]([\w./]+\.h)[">]', path.read_text(), re.MULTILINE)
    if path.parent.name == "portcall":  # public headers include their neighbours without the folder
        names = [f"portcall/{name}" if (path.parent / name).exists() else name for name in names]
    return [name for name in names if (CORE / name).exists() or (CORE / "include" / name).exists()]


def public_headers() -> list[Path]:
    return sorted((CORE / "include" / "portcall").glob("*.h"))


def core_files() -> list[Path]:
    """The sources of the libraries: .h and .cc, without public headers, tests and fuzz targets."""
    return sorted(
        path for path in CORE.glob("*/*") if path.suffix in (".h", ".cc") and path.parent.name not in FREE_FOLDERS
    )


def allowed_folders(folder: str) -> set[str]:
    """The folders whose files a file of this folder may include."""
    if folder in LIBRARY_FOLDERS:
        return {folder, "portcall"}
    below = FOLDER_LAYERS[: rank(FOLDER_LAYERS, folder)]
    return {folder, "portcall"} | {name for line in below for name in line}


def circle_of(edges: dict[str, set[str]]) -> list[str] | None:
    """The names along one circle of a graph, or None."""
    done: set[str] = set()

    def visit(name: str, way: list[str]) -> list[str] | None:
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return None
        found = (visit(other, [*way, name]) for other in sorted(edges.get(name, ())))
        circle = next((c for c in found if c), None)
        done.add(name)
        return circle

    return next((c for c in (visit(name, []) for name in sorted(edges)) if c), None)


def test_every_header_has_a_layer() -> None:
    assert {path.name for path in public_headers()} == {name for line in HEADER_LAYERS for name in line}


def test_every_folder_of_the_core_has_a_layer() -> None:
    folders = {path.name for path in CORE.iterdir() if path.is_dir() and any(path.rglob("*.*"))} - {"include"}
    assert folders == {name for line in FOLDER_LAYERS for name in line} | set(LIBRARY_FOLDERS) | set(FREE_FOLDERS)


@pytest.mark.parametrize("path", public_headers(), ids=lambda p: p.name)
def test_public_headers_include_public_headers_below_them(path: Path) -> None:
    for name in includes(path):
        folder, _, header = name.partition("/")
        assert folder == "portcall", f"{path.name} includes {name}, which is not public"
        assert rank(HEADER_LAYERS, header) < rank(HEADER_LAYERS, path.name), f"{path.name} includes {name}"


@pytest.mark.parametrize("path", core_files(), ids=lambda p: str(p.relative_to(CORE)))
def test_core_files_include_folders_below_them(path: Path) -> None:
    folder = path.parent.name
    allowed = allowed_folders(folder)
    for name in includes(path):
        assert name.partition("/")[0] in allowed, f"{folder}/{path.name} includes {name}, which is not below it"


def test_core_files_are_included_by_folder_and_name() -> None:
    names = {path.name for path in CORE.rglob("*.h")}
    for path in [p for folder in CORE.iterdir() if folder.name != "include" for p in folder.rglob("*.*")]:
        if path.suffix in (".h", ".cc") and "fixtures" not in path.parts:
            for name in re.findall(r'#include "([\w./]+)"', path.read_text()):
                assert "/" in name, f"{path.relative_to(CORE)} includes {name} without its folder"
                assert Path(name).name in names, f"{path.relative_to(CORE)} includes {name}, which does not exist"


def test_files_of_the_core_do_not_need_each_other_in_a_circle() -> None:
    """A .cc file and the header of its name are one unit: a.cc -> b.h and b.cc -> a.h is a circle too."""
    edges: dict[str, set[str]] = {}
    for path in core_files():
        unit = str(path.relative_to(CORE).with_suffix(""))
        used = {name.removesuffix(".h") for name in includes(path) if not name.startswith("portcall/")}
        edges.setdefault(unit, set()).update(used - {unit})
    circle = circle_of(edges)
    assert circle is None, f"a circle of includes: {' -> '.join(circle or [])}"


def test_the_public_c_headers_are_c() -> None:
    for name in ("dlpack.h", "c_api.h", "classic_api.h"):
        text = (CORE / "include" / "portcall" / name).read_text()
        assert not re.findall(r"#include <c\w+>", text), f"{name} includes headers of C++"
