# SPDX-License-Identifier: Apache-2.0
"""Imports point down. The tables here are the judge: a module imports only what stands before it in its table."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "portcall"
CORE = ROOT / "core"

# Every module of the package, from the bottom up: (folder, its lines from the bottom up). Modules of one line do not
# import each other. `portcall` itself is the last line but one: it only names what others define.
HOUSE = [
    ("", "_folders errors _html _input _renamed _signature _timing extras", "_archive _plugins", "_compilers"),
    ("bench", "_report_style _units", "_chart _stored", "_statistics _comparison", "_result"),
    (
        "",
        "_core",
        "_installation _dtype _container",
        "_function",
        "_future _device _arraylike",
        "_stream _tensor _module",
        "_build_cache",
        "_inline",
        "toolchain",
    ),
    (
        "bench",
        "_baseline _report",
        "_compare _counts _conditions",
        "_verdict",
        "_measure",
        "_cooling _latency _sustained",
        "__init__",
    ),
    (
        "ir",
        "_operations _printing _passes",
        "_values _annotations",
        "_enum _dataclass",
        "_classes",
        "__init__",
    ),
    ("inspect", "_elf _cursor", "_kernels", "_embedded", "_mapped _wasm", "_machine _seal", "_library", "__init__"),
    ("tvm_ffi/utils", "kwargs_wrapper", "__init__"),
    (
        "tvm_ffi",
        "_load container core dataclasses error registry serialization stream structural",
        "cpp libinfo module",
        "__init__",
        "__main__",
    ),
    ("", "_compare board"),
    (
        "graph",
        "_spec _params",
        "_storage",
        "_plan _host_memory",
        "_module _memory _profile",
        "_builder _bundle _debug _draw _factory ir",
        "_difference",
        "__init__",
    ),
    ("vm", "_types _profile _weights", "_executable _values", "_misfits", "_cache _machine", "_language", "__init__"),
    (
        "compile",
        "_options _target _math _writer _program _weights",
        "_rewriting _shapes",
        "_halves _bytes _quantized _serial _trees _topk _steps",
        "_recurrent",
        "_ml",
        "_checks",
        "_onnx_file",
        "_model",
        "_labels _legal _limits _linked",
        "_signals",
        "_reading _tiles _constants _resize _operators _contrib _heights _borders _depths _subpixels _importer",
        "_simplify _dynamic",
        "_products _branches",
        "_loops",
        "_hints",
        "_registers _padding _rows _elementwise _chain _default _planes _transposes",
        "_columns _convolution _window _winograd _matmul _integers _fusion _parameters",
        "_transposed _attention",
        "_lower",
        "_kernels _verify",
        "_emit _pictures",
        "_chunks",
        "_compile",
        "_vm",
        "_relax _cache",
        "_api",
        "__init__",
    ),
    (
        "rpc/wire",
        "_facts",
        "_address _digests _tcp _texts _tls _zstd",
        "_endings _handshake _layouts _values",
        "_farm",
        "__init__",
    ),
    (
        "rpc/client",
        "_activity _capsule _contents _deadline _errors _library_check _pipeline _socket",
        "_record",
        "_ssh _end_reason _output _reconnect _remote",
        "_session",
        "_parallel _trace",
        "_connect _farm_channel _upload_all",
        "_farm",
        "_farm_async",
        "__init__",
    ),
    (
        "rpc/server",
        "_between",
        "_audit _capsules _directories _ended_sessions _log_writer _loop _messages _options _sandbox _session",
        "_linking _objects _traced",
        "_files _link _listen _log _program",
        "_connections _directory_process _worker _zygote_process",
        "_gate _hooks _pump",
        "_admission _cleanup _zygote",
        "_silence",
        "_supervisor",
        "_server",
        "_agent",
        "__init__",
    ),
    ("rpc", "_conformance _local _popen _replay _transport", "_capsule_run", "__init__"),
    ("", "_deploy_scripts testing", "deploy"),
    (
        "farm",
        "_constraints _device_page _executor _guests _log _news _page_style _ranking _shown _splice",
        "_model _tracker_wire",
        "_day _deadlines _queue _reading",
        "_day_page _records _store",
        "_redis _state",
        "_figures _image _kept _page",
        "_access _hub",
        "_command _dashboard _views _webhooks",
        "_agents _tokens",
        "_places",
        "_leases",
        "_api _tracker _port _relay",
        "_connection _websocket",
        "_http",
        "_server",
        "_member",
        "_run",
        "__init__",
    ),
    (
        "cli",
        "_arguments _errors _server_options",
        "_announce _inputs _output _ready _store",
        "_command _progress",
        "_devices _isolate _remote _graph_report _onnx _onnx_report _vm_arguments _vm_report",
        "_call _farm_check _farm_start _params_report _stubs",
        "_bench_cool _bench_export _bench_language _bench_report _bench_trace _bench_ways",
        "_bench_against _bench_keep _bench_stored",
        "_model",
        "_bench_subject",
        "bench board bundle capsule compile config demo doctor farm help inspect mcp remote run serve stubs verify",
        "version",
        "deploy",
        "__init__",
    ),
    ("", "__init__", "__main__"),
]

# Two ways to use the same modules: neither knows the other.
STRANGERS = [("graph", "rpc"), ("vm", "rpc"), ("vm", "graph")]

# Imports inside of functions: optional dependencies, what only printing needs, and portcall's own (judged as all are).
LATE_IMPORTS = {
    "torch",  # of tvm_ffi.use_torch_stream, which is given torch's streams
    "threading",  # its handlers would run at each fork of a server, which has no threads
    "queue",  # imports it
    "numpy",
    "ml_dtypes",
    "onnxruntime",
    "opentelemetry",
    "opentelemetry.trace.propagation.tracecontext",
    "importlib",
    "mcp.server",
    "mcp.server.mcpserver.exceptions",
    "mcp.types",
    "rich.console",
    "rich.table",
    "rich.text",
    "rich.tree",
    "shutil",
}

# What the extra `peers` installs: tests that need it are marked so, and are collected without it.
PEERS = {"tvm", "tvm_ffi", "torch"}


def rank(table: list[list[str]], name: str) -> int:
    return next(k for k, line in enumerate(table) if name in line)


def python_files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def binding_files() -> list[Path]:
    return [PACKAGE / "_core.pyx", *sorted((PACKAGE / "_core").glob("*.pxi"))]


def name_of(path: Path) -> str:
    """The module of a file, such as ``portcall.graph._plan``; the binding's files are all ``portcall._core``."""
    if path.suffix != ".py":
        return "portcall._core"
    return ".".join(("portcall", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")


def house() -> list[list[str]]:
    """The lines of HOUSE, modules with their whole names."""
    lines = []
    for folder, *rows in HOUSE:
        prefix = ".".join(("portcall", *filter(None, folder.split("/"))))
        lines += [[f"{prefix}.{name}".removesuffix(".__init__") for name in row.split()] for row in rows]
    return lines


RANKS = {name: k for k, line in enumerate(house()) for name in line}
MODULES = {name_of(path) for path in python_files()} | {"portcall._core"}


def exports(package: str) -> dict[str, str]:
    """The names that the file of a package takes from other files: name -> module that defines it."""
    path = PACKAGE.joinpath(*package.split(".")[1:], "__init__.py")
    found = {}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("portcall"):
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                found[alias.asname or alias.name] = whole if whole in MODULES else str(node.module)
    return found


ROOT_NAMES = exports("portcall")


def resolved(name: str) -> str:
    """The module that an imported name stands for. A name of the root stands for the module that defines it."""
    found = name
    while found not in MODULES:
        found = found.rpartition(".")[0]
    return ROOT_NAMES.get(name.split(".")[1], found) if found == "portcall" and found != name else found


def names_in_source(source: str, where: str) -> Iterator[str]:
    """Yield what a Python source refers to in the package, however and at any depth: by import statements, by
    attributes of ``portcall``, and by texts that name a module, which something imports later."""
    tree = ast.parse(source)
    compared = {part for node in ast.walk(tree) if isinstance(node, ast.Compare) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name != "portcall")
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{where} imports relatively; write the name of the package"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            chain = ast.unparse(node)
            if re.fullmatch(r"portcall(\.\w+)+", chain):
                yield chain
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node not in compared and node.value in MODULES - {"portcall"}:
                yield node.value
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            assert not isinstance(node.args[0], ast.JoinedStr), f"{where}: write the names of modules in full"


def names_in_binding(source: str) -> Iterator[str]:
    """The same of a Cython source: ``import``, ``from``, ``cimport`` at any depth, and texts that name a module."""
    for module, names in re.findall(r"^\s*from\s+(portcall[\w.]*)\s+c?import\s+\(?([\w, ]+)", source, re.MULTILINE):
        yield from (f"{module}.{name.split()[0]}" for name in names.split(","))
    yield from re.findall(r"^\s*c?import\s+(portcall[\w.]+)", source, re.MULTILINE)
    yield from (name for name in re.findall(r"""["'](portcall[\w.]+)["']""", source) if name in MODULES)


def used_modules(path: Path) -> set[str]:
    """The modules of the package that a file refers to."""
    source = path.read_text()
    names = names_in_source(source, name_of(path)) if path.suffix == ".py" else names_in_binding(source)
    used = {resolved(name) for name in names if name.partition(".")[0] == "portcall"}
    return used - {name_of(path), "portcall"}


@pytest.mark.parametrize(
    "source",
    [
        "from portcall.graph import _plan",
        "from portcall.graph._plan import plan",
        "import portcall.graph._plan as p",
        "def f():\n    from portcall.graph._plan import plan",
        "if TYPE_CHECKING:\n    from portcall.graph._plan import plan",
        "import portcall\nx = lambda: portcall.graph._plan.plan()",
        "importlib.import_module('portcall.graph._plan')",
        "LATER = {'plan': ('portcall.graph._plan', 'plan')}",
    ],
)
def test_every_kind_of_python_import_is_seen(source: str) -> None:
    assert "portcall.graph._plan" in {resolved(name) for name in names_in_source(source, "here")}


@pytest.mark.parametrize(
    "source",
    [
        "from portcall.graph._plan cimport plan",
        "cimport portcall.graph._plan",
        "cdef f():\n    from portcall.graph._plan import a, b",
        "import portcall.graph._plan",
        'cdef g():\n    return import_module("portcall.graph._plan")',
    ],
)
def test_every_kind_of_import_in_the_binding_is_seen(source: str) -> None:
    assert "portcall.graph._plan" in {resolved(name) for name in names_in_binding(source)}


def test_imported_root_names_count_as_their_module() -> None:
    assert resolved("portcall.load_module") == "portcall._module"
    assert resolved("portcall.register_object") == "portcall.ir._classes"
    assert resolved("portcall.graph.create") == "portcall.graph"


def test_every_module_has_a_layer() -> None:
    assert MODULES - set(RANKS) == set(), "write these into HOUSE, above what they import"
    assert set(RANKS) - MODULES == set(), "these are in HOUSE, but there are no such files"
    assert len(RANKS) == sum(len(line) for line in house()), "a module stands in HOUSE twice"


def test_python_imports_point_down() -> None:
    for path in [*python_files(), *binding_files()]:
        here = name_of(path)
        above = [name for name in sorted(used_modules(path)) if RANKS[name] >= RANKS[here]]
        assert not above, f"{here} imports {', '.join(above)}: not below it in HOUSE"


def test_the_root_is_imported_for_its_names_only() -> None:
    """``import portcall`` counts as an import of the modules whose names are used; so all of it must be visible."""
    for path in [*python_files(), *binding_files()]:
        if path.suffix == ".py":
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    assert "portcall" not in [alias.name for alias in node.names if alias.asname], (
                        f"{path}: portcall as …"
                    )


def test_unrelated_packages_do_not_import_each_other() -> None:
    for pair in STRANGERS:
        for here, there in (pair, pair[::-1]):
            for path in (PACKAGE / here).rglob("*.py"):
                assert not [name for name in used_modules(path) if name.split(".")[1] == there], path


@pytest.mark.parametrize("path", sorted((PACKAGE / "cli").rglob("*.py")), ids=lambda p: p.name)
def test_the_command_line_uses_public_names_only(path: Path) -> None:
    for name in names_in_source(path.read_text(), path.name):
        inside = name.startswith("portcall.cli.")
        private = any(part.startswith("_") and not part.startswith("__") for part in name.split("."))
        assert inside or not (name.startswith("portcall.") and private), f"{path.name}: {name}"


def test_only_optional_dependencies_are_imported_inside_functions() -> None:
    for path in python_files():
        if path.is_relative_to(PACKAGE / "cli"):
            continue  # `portcall --help` answers before any command is loaded
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
                outside = {name for name in names if name.partition(".")[0] != "portcall"}
                assert outside <= LATE_IMPORTS, f"{path.name}: {names} inside {node.name}()"


def test_the_binding_declares_functions_of_public_headers_only() -> None:
    headers = {f"portcall/{path.name}" for path in (CORE / "include" / "portcall").glob("*.h")}
    for path in binding_files():
        named = set(re.findall(r'cdef extern from "([^"]+)"', path.read_text()))
        inside = {name for name in named if any((folder / name).exists() for folder in (CORE, CORE / "include"))}
        assert inside <= headers, path.name


def test_tests_are_collected_where_no_peer_is_installed() -> None:
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for statement in ast.parse(path.read_text()).body:
            names = [alias.name for alias in statement.names] if isinstance(statement, ast.Import) else []
            names += [str(statement.module)] if isinstance(statement, ast.ImportFrom) else []
            assert not {name.partition(".")[0] for name in names} & PEERS, f"{path.name}: import it inside of the test"


# ---- C++ -------------------------------------------------------------------------------------------------------------

# Headers of the C++ API, from the bottom up. Headers of one line do not include each other.
HEADER_LAYERS = [
    ["dlpack.h", "sha256.h", "visible.h"],
    ["c_api.h"],
    ["classic_api.h"],
    ["runtime.h"],
    ["object.h"],
    ["error.h"],
    ["value.h"],
    ["container.h", "device.h", "signature.h"],
    ["function.h", "tensor.h"],
    ["module.h", "payload.h", "reflection.h"],
    ["ir.h", "rpc.h"],
    ["portcall.h"],
]

# Folders of the core, from the bottom up. Folders of one line do not know each other.
FOLDER_LAYERS = [["facts"], ["bytes"], ["runtime"], ["classic"], ["loader"], ["rpc", "graph"], ["web"]]
# Libraries and a program of their own: they include public headers, headers of bytes and facts, and their own files;
# the program has files of ir and session in it, too; session has one of ir, and the loader's reader of ELF files.
LIBRARY_FOLDERS = ["board", "devices", "ir", "lm", "session", "tvm_ffi", "vm"]
LINKED_FOLDERS = {"board": {"ir", "session"}, "lm": {"vm"}, "session": {"ir", "loader"}, "web": {"ir"}}
# Not part of a library: they may include everything.
FREE_FOLDERS = ["tests", "fuzz", "tvm_compat"]


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
        path
        for path in CORE.rglob("*.*")
        if path.suffix in (".h", ".cc") and folder_of(path) not in {"include", *FREE_FOLDERS}
    )


def folder_of(path: Path) -> str:
    return path.relative_to(CORE).parts[0]


def allowed_folders(folder: str) -> set[str]:
    """The folders whose files a file of this folder may include."""
    linked = LINKED_FOLDERS.get(folder, set())
    if folder in LIBRARY_FOLDERS:
        return {folder, "portcall", "bytes", "facts"} | linked
    below = FOLDER_LAYERS[: rank(FOLDER_LAYERS, folder)]
    return {folder, "portcall"} | {name for line in below for name in line} | linked


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


def test_core_files_include_folders_below_them() -> None:
    for path in core_files():
        folder = folder_of(path)
        allowed = allowed_folders(folder)
        for name in includes(path):
            assert name.partition("/")[0] in allowed, f"{folder}/{path.name} includes {name}, which is not below it"


def test_the_farm_of_a_board_knows_its_supervisor_in_one_file() -> None:
    above = [p.name for p in core_files() if p.parent.name == "farm" and "board/supervisor.h" in includes(p)]
    assert above == ["place.cc"], "the rest is what the supervisor is made of"


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


# Files of the addon for Node, from the bottom up, with a header for each. Those of one line do not know each other.
ADDON_LAYERS = [
    ["environment"],
    ["text", "handles"],
    ["errors"],
    ["tensors"],
    ["put", "get"],
    ["functions"],
    ["async"],
    ["module"],
]


def test_files_of_the_addon_include_headers_below_them() -> None:
    folder = ROOT / "js" / "addon"
    files = sorted(path for path in folder.iterdir() if path.suffix in (".c", ".h"))
    assert {path.stem for path in files} == {name for line in ADDON_LAYERS for name in line}
    for path in files:
        for name in re.findall(r'#include "(\w+)\.h"', path.read_text()):
            below = rank(ADDON_LAYERS, name) < rank(ADDON_LAYERS, path.stem)
            assert below or (name == path.stem and path.suffix == ".c"), f"{path.name} includes {name}.h"


def test_the_public_c_headers_are_c() -> None:
    for name in ("dlpack.h", "c_api.h", "classic_api.h"):
        text = (CORE / "include" / "portcall" / name).read_text()
        assert not re.findall(r"#include <c\w+>", text), f"{name} includes headers of C++"
