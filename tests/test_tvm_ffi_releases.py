# SPDX-License-Identifier: Apache-2.0
"""Libraries on the headers of other releases of apache-tvm-ffi, and those that need a runtime of its name."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata, util
from pathlib import Path

import pytest

import portcall
from portcall import _module

ROOT = Path(__file__).parents[1]
PEERS = ROOT / "build" / "peers"  # what `make test-rest` installs, a folder for each release
RELEASES = ("0.1.9", "0.1.10", "0.1.11", "0.1.12", "0.1.13.post3", "0.1.14.post1")

pytestmark = pytest.mark.peers
OTHERS = [pytest.param(release, marks=pytest.mark.slow) for release in RELEASES]


def run(script: str, *words: str | Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, timeout=600, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


@pytest.fixture(scope="module")
def compiled(cache_dir: Path) -> Callable[..., Path]:
    """Compile a library on the headers of a release ("" for the installed one), linked with what the flags say."""

    def build(source: str, release: str, *flags: str) -> Path:
        spec = util.find_spec("tvm_ffi")
        installed = Path((spec.origin if spec else None) or ".").parent
        package = PEERS / f"apache-tvm-ffi-{release}" / "tvm_ffi" if release else installed
        assert (package / "include").is_dir(), f"no headers in {package}: `make test-rest` installs them"
        version = release or metadata.version("apache-tvm-ffi")
        text = (ROOT / "tests" / "kernels" / source).read_bytes()
        digest = hashlib.sha256(repr((version, flags)).encode() + text).hexdigest()[:16]
        library = cache_dir / f"{source}-{digest}.so"
        if not library.exists():
            compiler = shutil.which("c++") or "c++"
            unfinished = library.with_suffix(f".{id(build)}.so")
            words = ("-std=c++17", "-O0", "-shared", "-fPIC", "-fvisibility=hidden", "-I", package / "include")
            inputs: tuple[str | Path, ...] = (ROOT / "tests" / "kernels" / source, "-L", package / "lib", *flags)
            subprocess.run([compiler, *words, *inputs, "-o", unfinished], check=True)
            unfinished.rename(library)
        return library

    return build


@pytest.mark.parametrize("release", ["", *OTHERS])
def test_types_of_any_release_of_tvm_ffi_are_made_and_copied(compiled: Callable[..., Path], release: str) -> None:
    extra = [] if release else ["overloads"]
    library = compiled("tvm_ffi_described.cc", release)
    run((ROOT / "tests" / "scripts" / "described_types.py").read_text(), library, *extra)


@pytest.mark.parametrize(("release", "flag"), [("", "-DEMBEDDED"), ("", "-ltvm_ffi"), (RELEASES[0], "-O0")])
def test_modules_of_a_librarys_own_class_are_driven(compiled: Callable[..., Path], release: str, flag: str) -> None:
    library = compiled("tvm_ffi_modules.cc", release, flag)
    run((ROOT / "tests" / "scripts" / "foreign_modules.py").read_text(), library, flag)


RAISES = """
import ctypes, sys, portcall
ctypes.CDLL(sys.argv[2])
lib = portcall.load_module(sys.argv[1])
for function, error in ((lib["raise_value_error"], ValueError), (lambda x: 1 / x, ZeroDivisionError)):
    try:
        portcall.get_global_func("testing.apply")(function, 0)
    except error:
        continue
    raise AssertionError(error)
print("done")
"""


def test_a_core_under_the_name_of_libtvm_ffi_raises_errors_once(libraries: dict[str, Path], tmp_path: Path) -> None:
    core = _module.IR_LIBRARY.with_name("libportcall.so")
    copied, alias = (tmp_path / folder / "libtvm_ffi.so" for folder in ("copied", "alias"))
    for path in copied, alias:
        path.parent.mkdir()
    shutil.copy(core, copied)
    alias.symlink_to(core)
    for mapped in _module._FORWARDER, copied, alias:
        run(RAISES, libraries["tvm_ffi_kernels_unlinked"], mapped)
    run(RAISES, libraries["tvm_ffi_kernels_linked"], _module._FORWARDER)


ADOPTS = """
import sys
sys.modules["tvm_ffi"] = None  # as where apache-tvm-ffi is not installed
import portcall
lib = portcall.load_module(sys.argv[1], foreign="adopt")
assert lib["add_int"](1, 2) == 3
try:
    lib["raise_value_error"](3)
except ValueError as error:
    assert str(error) == "x is 3, which is wrong"
portcall.register_func("adopting.add", lambda x: x + 1)
assert lib["call_global"]("adopting.add", 4) == 5
objects = portcall.load_module(sys.argv[2], foreign="adopt")
shape = portcall.ir.get_object_class("portcall_test.Shape")(4)
assert objects["read_fields"](shape)[:3] == ["portcall_test.Shape", "sides", 4]
mapped = {line.split()[-1] for line in open("/proc/self/maps") if "libtvm_ffi" in line}
assert mapped <= {sys.argv[3]}, mapped
print("done")
"""


def test_load_module_adopts_libraries_linked_with_libtvm_ffi(libraries: dict[str, Path]) -> None:
    names = ("tvm_ffi_kernels_linked", "tvm_ffi_objects_linked")
    run(ADOPTS, *(libraries[name] for name in names), _module._FORWARDER)


THEN_IMPORTS = """
import sys, portcall
ours = portcall.load_module(sys.argv[1], foreign="adopt")
import tvm_ffi
assert tvm_ffi.get_global_func("testing.echo")("text") == "text"
tvm_ffi.register_global_func("adopting.theirs", lambda x: x + 1)
assert "adopting.theirs" not in portcall.list_global_func_names()
theirs = tvm_ffi.load_module(sys.argv[2])
for lib in ours, theirs, portcall.load_module(sys.argv[2]):
    try:
        lib["raise_value_error"](0)
    except ValueError:
        continue
    raise AssertionError(lib)
print("done")
"""


def test_tvm_ffi_imports_after_a_library_was_adopted(libraries: dict[str, Path]) -> None:
    run(THEN_IMPORTS, libraries["tvm_ffi_kernels_linked"], libraries["tvm_ffi_kernels_unlinked"])


def test_load_module_refuses_to_adopt_where_tvm_ffi_is_in_the_process(libraries: dict[str, Path]) -> None:
    script = """
import sys, tvm_ffi, portcall
try:
    portcall.load_module(sys.argv[1], foreign="adopt")
except portcall.errors.ModuleLoadError as error:
    assert error.path == sys.argv[1]
    assert portcall.load_module(sys.argv[1])["add_int"](1, 2) == 3
    print("done")
"""
    run(script, libraries["tvm_ffi_kernels_linked"])


def test_load_module_refuses_other_words_for_foreign() -> None:
    with pytest.raises(ValueError, match="'adapt'"):
        portcall.load_module("any.so", foreign="adapt")  # type: ignore[arg-type]
