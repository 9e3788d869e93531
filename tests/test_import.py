# SPDX-License-Identifier: Apache-2.0
"""What ``import portcall`` loads, and what it does not."""

from __future__ import annotations

import functools
import importlib
import json
import pydoc
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import portcall
from portcall._module import GRAPH_KINDS
from portcall.extras import EXTRAS, install_command

LAZY = (
    "bench",
    "board",
    "compile",
    "deploy",
    "farm",
    "graph",
    "inspect",
    "ir",
    "rpc",
    "testing",
    "toolchain",
    "tvm_ffi",
    "vm",
)


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after ``code``, beyond those it starts with."""
    printed = run(f"import sys; before = set(sys.modules)\n{code}\nprint(*sorted(set(sys.modules) - before))")
    return set(printed.split())


def test_import_loads_neither_numpy_nor_a_subpackage() -> None:
    loaded = loaded_by("import portcall")
    assert "portcall._core" in loaded
    assert {name for name in loaded if name.partition(".")[0] in ("numpy", "ml_dtypes", "click", "rich")} == set()
    assert {f"portcall.{name}" for name in (*LAZY, "cli")} & loaded == set()


def test_import_loads_no_heavy_module_of_the_standard_library() -> None:
    heavy = {"asyncio", "subprocess", "unittest", "multiprocessing", "http", "email", "logging", "tempfile"}
    assert heavy & loaded_by("import portcall") == set()


def test_processes_of_sessions_load_neither_the_client_nor_what_few_sessions_use() -> None:
    heavy = {"asyncio", "random", "shutil", "ssl", "subprocess", "tarfile", "tempfile", "logging", "threading"}
    unused = {f"portcall.rpc.{name}" for name in ("client._session", "client._connect", "server._supervisor")}
    loaded = loaded_by("import portcall.rpc.server._zygote")
    assert "portcall.rpc.server._worker" in loaded
    assert (heavy | unused | {"portcall.ir", "portcall.toolchain"}) & loaded == set()


def test_server_without_tls_loads_neither_tls_nor_an_event_loop() -> None:
    loaded = loaded_by("import portcall.cli.serve, portcall.rpc.server._server")
    assert "portcall.rpc.server._supervisor" in loaded
    assert {"asyncio", "ssl"} & loaded == set()


def test_import_of_numpy_waits_for_arrays() -> None:
    code = """
import portcall
portcall.get_global_func("testing.echo")([1, "a", {"k": 2.5}, portcall.cpu(), portcall.dtype("float32"), object()])
portcall.register_func("f", lambda: 1)
portcall.empty(3)
"""
    assert "numpy" not in loaded_by(code)


def test_import_works_before_and_after_numpy() -> None:
    use = 'assert portcall.get_global_func("testing.echo")(np.arange(3)).numpy().tolist() == [0, 1, 2]'
    for imports in ("import numpy as np, portcall", "import portcall, numpy as np"):
        run(f"{imports}\n{use}")
    run(f'import portcall\nportcall.get_global_func("testing.echo")(object())\nimport numpy as np\n{use}')


def test_import_works_in_a_python_that_was_compiled_without_lzma() -> None:
    run("import sys; sys.modules['_lzma'] = None; from portcall import graph, inspect, rpc, toolchain")


# The state of a process: at its start, with the binding alone, and after `import portcall`.
STATES = """
import importlib.util, json, os, sys

def names():
    at = _core.get_global("ffi.FunctionListGlobalNamesFunctor")()
    return [at(i) for i in range(at(-1))]

def state(names):
    files = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in "0123456789" if os.path.exists(f"/proc/self/fd/{fd}")}
    mapped = {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
    libraries = sorted(os.path.basename(path) for path in mapped if "/lib-dynload/" not in path)  # Python's own
    return {"names": names, "files": files, "threads": len(os.listdir("/proc/self/task")), "libraries": libraries}

start = state([])
sys.modules["portcall"] = importlib.util.module_from_spec(importlib.util.find_spec("portcall"))  # without its __init__
from portcall import _core
binding = state(names())
del sys.modules["portcall"]
import portcall
print(json.dumps([start, binding, state(names())]))
"""


def test_import_starts_nothing_and_registers_what_the_core_calls() -> None:
    start, binding, after = json.loads(run(STATES))
    assert (after["threads"], after["files"]) == (start["threads"], start["files"])
    assert after["libraries"] == binding["libraries"]
    assert [name for name in after["libraries"] if "portcall" in name] == ["libportcall.so"]
    called = {"portcall.FindPlugin", "portcall.FindNvidiaFolders"} | {
        f"ffi.Module.load_from_bytes.{kind}" for kind in GRAPH_KINDS
    }
    assert set(after["names"]) == set(binding["names"]) | called
    assert not called & set(binding["names"])


@pytest.mark.parametrize("name", LAZY)
def test_import_of_a_subpackage_on_first_use(name: str) -> None:
    loaded = loaded_by(f"import portcall; portcall.{name}")
    assert f"portcall.{name}" in loaded
    assert getattr(portcall, name) is importlib.import_module(f"portcall.{name}")


def test_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'portcall' has no attribute 'no_such_thing'"):
        portcall.no_such_thing  # noqa: B018
    assert not hasattr(portcall, "_private")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("In", "ReadOnly"),
        ("rpc.StartError", "errors.StartError"),
        ("rpc.ready_facts", "to_dict"),
        ("graph.get_device", "graph.create"),
        ("vm.ENTRY", "entry"),
        ("vm.KIND", "read_embedded"),
        ("ir.object_class", "get_object_class"),
        ("compile.from_onnx", "compile.onnx"),
        ("compile.compile_onnx", "compile.onnx"),
        ("compile.from_relax", "compile.relax"),
        ("compile.for_vm", "runtime='vm'"),
        ("compile.verify_executable", "compile.verify"),
        ("compile.cached", "cache=True"),
    ],
)
def test_name_that_a_package_had_says_what_to_write(old: str, new: str) -> None:
    package, _, name = f"portcall.{old}".rpartition(".")
    with pytest.raises(AttributeError, match=f"{name}.*{new}"):
        getattr(importlib.import_module(package), name)


def test_errors_are_in_one_tree() -> None:
    found = [
        thing for thing in vars(portcall.errors).values() if isinstance(thing, type) and issubclass(thing, Exception)
    ]
    assert portcall.errors.StartError in found
    assert all(issubclass(error, portcall.errors.PortcallError) for error in found)
    assert sorted(error.__name__ for error in found) == portcall.errors.__all__


def test_help_of_connect_fits_a_screen() -> None:
    assert len(pydoc.render_doc(portcall.rpc.connect).splitlines()) <= 40


@pytest.fixture(scope="module")
def second_library() -> None:
    """Load ``libportcall_ir`` before a test that uses a name of it: what it registers stays."""
    portcall.ir.structural_equal(None, None)


@pytest.mark.usefixtures("second_library")
def test_dir_lists_public_names() -> None:
    names = dir(portcall)
    assert names == sorted(names)
    for name in names:
        getattr(portcall, name)
    assert {name for name in names if not name.startswith("__")} == {*portcall.__all__, *LAZY} - {"__version__"}
    assert not {"Any", "TYPE_CHECKING", "annotations", "importlib"} & set(names)


def test_all_agrees_with_a_star_import() -> None:
    names: dict[str, object] = {}
    exec("from portcall import *", names)
    assert set(names) - {"__builtins__"} == set(portcall.__all__)
    assert len(portcall.__all__) <= 40


def test_version_is_that_of_the_package() -> None:
    assert portcall.__version__.count(".") == 2


def test_import_ends_silently() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-c",
            "import portcall; keep = portcall.get_global_func('testing.echo')([len])",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_registered_python_functions_do_not_disturb_exit() -> None:
    code = """
import portcall
class Callee:
    def __call__(self): ...
    def __del__(self): print("deleted")
portcall.register_func("f", Callee())
"""
    run(code)


def test_import_in_a_subinterpreter_or_again_never_crashes() -> None:
    code = """
import importlib, portcall
importlib.reload(portcall)
assert portcall.get_global_func("testing.echo")(3) == 3
"""
    run(code)


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("show", "portcall.ir.show"),
        ("structural_equal", "portcall.ir.structural_equal"),
        ("rpc.connect_tracker", "portcall.farm.connect"),
        ("rpc.connect_farm", "portcall.farm.connect"),
        ("rpc.Lease", "portcall.farm.Lease"),
        ("graph_executor", "portcall.graph.create"),
        ("nd", "portcall.tensor"),
        ("contrib", "portcall.toolchain.create_shared"),
        ("runtime", "portcall.load_module"),
        ("relay", "portcall.load_module"),
    ],
)
def test_getattr_of_a_tvm_name_proposes_ours(name: str, ours: str) -> None:
    package, _, last = name.rpartition(".")
    with pytest.raises(AttributeError, match=rf"no attribute '{last}'; .*{ours}") as caught:
        getattr(importlib.import_module(f"portcall.{package}".rstrip(".")), last)
    assert caught.value.name == last
    for named in re.findall(r"portcall((?:\.[a-z_]\w*)+)", str(caught.value), re.IGNORECASE):
        functools.reduce(getattr, named[1:].split("."), portcall)  # what it names is there


# ---- Installations that lack something -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("core", "what"),
    [("", "missing"), ("_core.cpython-39-other.so", "_core.cpython-39-other.so"), ("_core.abi3.so", "loaded: ")],
    ids=["none", "of another Python", "damaged"],
)
def test_import_without_its_core_says_what_is_broken(tmp_path: Path, core: str, what: str) -> None:
    package = Path(portcall.__file__).parent
    shutil.copytree(package, tmp_path / "portcall", ignore=shutil.ignore_patterns("_core*.so", "__pycache__", "lib"))
    if core:
        (tmp_path / "portcall" / core).write_bytes(b"")
    code = "import sys\nsys.path.insert(0, sys.argv[1])\nimport portcall"
    done = subprocess.run([sys.executable, "-S", "-c", code, tmp_path], capture_output=True, text=True, check=False)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith("ImportError: the compiled core of portcall")
    assert what in last
    assert "pip install --force-reinstall portcall" in last


# What of the requirements in pyproject.toml is for those who work on portcall.
DEVELOPMENT = {"test", "peers", "bench", "js", "docs", "coverage", "lint"}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib is of Python 3.11")
def test_extras_are_those_of_pyproject() -> None:
    tomllib = importlib.import_module("tomllib")
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    listed = project["optional-dependencies"]
    assert set(EXTRAS) == set(listed) - DEVELOPMENT
    for name, extra in EXTRAS.items():
        wanted = [Requirement(line) for line in listed[name]]
        there = {line.name for line in wanted if line.marker is None or line.marker.evaluate()}
        assert (extra.name, set(extra.packages.values())) == (name, there)


def test_missing_package_is_installed_by_its_extra() -> None:
    assert install_command("aiohttp.web") == "pip install 'portcall[farm]'"
    assert install_command("tvm.relax") == "pip install 'portcall[compile]'"
    assert install_command("onnxruntime") == install_command("tvm")  # which checks what that compiled
    assert install_command("torch") == "pip install torch"


@pytest.mark.parametrize(
    ("module", "name", "extra"),
    [("portcall.farm", "serve", "farm"), ("portcall.compile", "CompiledModel", "compile")],
)
def test_module_of_an_extra_names_it(module: str, name: str, extra: str) -> None:
    code = f"""
import importlib, sys
sys.modules.update(dict.fromkeys({list(EXTRAS[extra].packages)}))
try:
    importlib.import_module("{module}").{name}
except ModuleNotFoundError as error:
    print(error.name, error)
"""
    missing, _, text = run(code).partition(" ")
    assert missing in EXTRAS[extra].packages
    assert f"pip install 'portcall[{extra}]'" in text
