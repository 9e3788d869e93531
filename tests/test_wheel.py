# SPDX-License-Identifier: Apache-2.0
"""The wheel: built as ``make wheel`` builds it, small, for any Linux, and all that an empty environment needs."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import portcall

ROOT = Path(__file__).parents[1]
WHEEL_LIMIT = 2_430_000  # with the sources of the server without Python, packed together; caches of language models
CORE_LIMIT = 600_000
GRAPH_LIMIT = 140_000
VM_LIMIT = 130_000
LM_LIMIT = 89_000  # the caches of language models, sampling, recurrent states (10 KB)
# With both halves of the handshake, a listener, a machine's state and sensors, what libraries lack, a sandbox.
SESSION_LIMIT = 333_000
OPENCL_LIMIT = CUDA_LIMIT = 105_000
BINARIES = Path(sys.executable).parent

pytestmark = pytest.mark.timeout(600)


def run(*words: str | Path, folder: Path, path: Path | None = None) -> str:
    """Run a program in a folder with nothing of this environment but its programs; return its output.

    Parameters:
        path: a folder of packages beside those of the program's own environment.
    """
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    environment |= {} if path is None else {"PYTHONPATH": str(path)}
    environment["PATH"] = f"{BINARIES}{os.pathsep}{environment.get('PATH', '')}"
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(cache_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel for this Python, of what `make build` compiled: only what has changed since is compiled again."""
    folder = tmp_path_factory.mktemp("wheel")
    cache_dir.mkdir(parents=True, exist_ok=True)
    words = ("-m", "build", "--wheel", "--no-isolation", "--outdir", folder / "built", ROOT)
    with (cache_dir / "wheel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(sys.executable, *words, folder=folder)
    (built,) = (folder / "built").iterdir()
    repair: list[str | Path] = ["auditwheel", "repair", "-z", "9", "--wheel-dir", folder / "repaired", built]
    run(sys.executable, "-m", *repair, folder=folder)
    (repaired,) = (folder / "repaired").iterdir()
    return repaired


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment in which the wheel is installed, with what it requires."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    interpreter = folder / "bin" / "python"
    run(interpreter, "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel, folder=folder)
    return interpreter


def test_wheel_is_for_any_linux(wheel: Path) -> None:
    name, version, *tags = wheel.stem.split("-")
    assert (name, version) == ("portcall", portcall.__version__)
    assert tags[0] == tags[1] == f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert all(platform.startswith("manylinux") for platform in tags[2].split("."))


def test_wheel_is_small(wheel: Path, tmp_path: Path) -> None:
    small, private = Path(shutil.copy(wheel, tmp_path)), tmp_path / "private.whl"
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(private, "w", zipfile.ZIP_DEFLATED) as target:
        for member in source.infolist():  # as where a checkout is nobody else's
            member.external_attr &= ~(0o077 << 16)
            target.writestr(member, source.read(member))
    run(sys.executable, ROOT / "scripts" / "shrink_wheel.py", small, private, folder=tmp_path)
    assert small.stat().st_size <= WHEEL_LIMIT
    assert small.read_bytes() == private.read_bytes()
    with zipfile.ZipFile(wheel) as before, zipfile.ZipFile(small) as after:
        assert after.testzip() is None
        assert {oct(member.external_attr >> 16) for member in after.infolist()} <= {"0o100644", "0o40755"}
        facts = ("filename", "date_time", "CRC")
        for old, new in zip(before.infolist(), after.infolist(), strict=True):
            assert [getattr(new, fact) for fact in facts] == [getattr(old, fact) for fact in facts]


@pytest.mark.parametrize(
    ("library", "limit"),
    [
        ("libportcall.so", CORE_LIMIT),
        ("libportcall_graph.so", GRAPH_LIMIT),
        ("libportcall_vm.so", VM_LIMIT),
        ("libportcall_lm.so", LM_LIMIT),
        ("libportcall_session.so", SESSION_LIMIT),
        ("libportcall_opencl.so", OPENCL_LIMIT),
        ("libportcall_cuda.so", CUDA_LIMIT),
    ],
)
def test_stripped_libraries_are_small(library: str, limit: int, wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        path = Path(archive.extract(f"portcall/lib/{library}", tmp_path))
    run("strip", path, folder=tmp_path)
    assert path.stat().st_size <= limit


def test_wheel_holds_the_package_its_headers_and_its_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        for name in names:
            archive.read(name)  # checks each against its sum
    for name in ("__init__.py", "py.typed", "_core.pyi", "lib/libportcall.so", "include/portcall/portcall.h"):
        assert f"portcall/{name}" in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert not [name for name in names if name.endswith((".pyx", ".cc.o", ".c", ".cpp"))]
    modules = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    assert modules <= names


def test_installed_package_runs_a_library(python: Path, c_libraries: dict[str, Path], tmp_path: Path) -> None:
    script = f"""
import numpy, sys
import portcall
assert portcall.__file__.startswith(sys.prefix), portcall.__file__
x, y = numpy.arange(5, dtype="float32"), numpy.zeros(5, "float32")
portcall.load_module({str(c_libraries["classic"])!r})["add_one"](x, y)
assert y.tolist() == [1, 2, 3, 4, 5]
assert portcall.load_module({str(c_libraries["modern"])!r})["answer"]() == 42
assert portcall.get_global_func("testing.apply")(lambda x: x + 1, 1) == 2
"""
    assert run(python, "-c", script, folder=tmp_path) == ""


def test_installed_package_compiles_with_its_own_headers(python: Path, tmp_path: Path) -> None:
    (tmp_path / "add.cc").write_text(
        "#include <portcall/portcall.h>\nPORTCALL_EXPORT_TYPED(add, [](int64_t a, int64_t b) { return a + b; })\n"
    )
    script = """
import portcall
from portcall import toolchain
assert portcall.load_module(toolchain.create_shared("add.cc", "add.so"))["add"](2, 3) == 5
"""
    assert run(python, "-c", script, folder=tmp_path) == ""


def test_installed_package_has_the_sources_of_the_board(python: Path, tmp_path: Path) -> None:
    script = """
from pathlib import Path
from portcall import board
core, ours = board.source_folder(), Path(SOURCES)
folders = set(board.FOLDERS + board.HEADERS) - {"include"}
paths = [path for folder in folders for path in (ours / folder).rglob("*.[ch]*")]
assert paths and all((core / path.relative_to(ours)).read_bytes() == path.read_bytes() for path in paths)
"""
    environment = f"import os; os.environ['XDG_CACHE_HOME'] = {str(tmp_path)!r}\n"
    script = environment + script.replace("SOURCES", repr(str(ROOT / "core")))
    assert run(python, "-c", script, folder=tmp_path) == ""


def test_installed_commands_work(python: Path, tmp_path: Path) -> None:
    command = python.with_name("portcall")
    assert run(command, "--version", folder=tmp_path) == f"{portcall.__version__}\n"
    assert run(python, "-m", "portcall", "--version", folder=tmp_path) == f"{portcall.__version__}\n"
    report = json.loads(run(command, "doctor", "--json", folder=tmp_path))
    assert report["portcall"] == portcall.__version__
    assert Path(report["core"]).is_relative_to(python.parents[1])
    assert report["packages"]["apache-tvm"] == report["packages"]["torch"] == ""


def test_installed_package_requires_only_what_it_says(python: Path, tmp_path: Path) -> None:
    listed = json.loads(run(python, "-m", "pip", "list", "--format", "json", folder=tmp_path))
    assert {"portcall", "numpy", "click", "rich"} <= {package["name"] for package in listed}
    assert run(python, "-m", "pip", "check", folder=tmp_path) == "No broken requirements found.\n"


@pytest.mark.slow
def test_xgrammar_of_pypi_runs_where_apache_tvm_ffi_is_not_installed(python: Path, tmp_path: Path) -> None:
    packages = ROOT / "build" / "peers" / "xgrammar-0.2.8"
    assert packages.is_dir(), f"there is no {packages}: `make test-rest` installs it"
    script = ROOT / "tests" / "scripts" / "use_xgrammar.py"
    assert run(python, "-m", "portcall.tvm_ffi", script, folder=tmp_path, path=packages) == "done\n"
