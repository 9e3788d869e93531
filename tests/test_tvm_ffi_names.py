# SPDX-License-Identifier: Apache-2.0
"""portcall.tvm_ffi: the names of tvm_ffi, imported under that name on request only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import portcall
import portcall.tvm_ffi
from portcall import errors
from portcall.tvm_ffi import libinfo


def run(*words: str | Path) -> str:
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_tvm_ffi_names_are_those_of_portcall() -> None:
    ffi = portcall.tvm_ffi
    assert ffi.Function is portcall.PackedFunc
    assert ffi.register_global_func is portcall.register_func
    for name in ("Object", "Module", "Tensor", "Shape", "Array", "Map", "get_global_func", "register_error"):
        assert getattr(ffi, name) is getattr(portcall, name)
    assert ffi.register_object is portcall.register_object
    assert (ffi.DLDeviceType.kDLCUDA, ffi.DLDeviceType(1)) == (portcall.device("cuda").device_type, 1)
    assert [int(part) for part in ffi.__version__.split(".")][:2] == [0, 1]
    assert (ffi.float32, ffi.bool, type(ffi.int8)) == ("float32", "bool", ffi.dtype)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = ffi.no_such_name


def test_init_ffi_api_fills_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("testing_api")
    monkeypatch.setitem(sys.modules, "testing_api", module)
    portcall.tvm_ffi.init_ffi_api("testing", "testing_api")
    assert module.echo(3) == 3
    assert "Error" not in vars(module)
    with pytest.raises(KeyError):
        portcall.tvm_ffi.init_ffi_api("testing", "no_such_module")


def test_load_lib_module_names_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(errors.ModuleLoadError, match="libabsent"):
        libinfo.load_lib_module("no-such-package", "absent", extra_lib_paths=[tmp_path])


def test_tvm_ffi_runs_a_script_with_the_names(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, helper, tvm_ffi\nfrom tvm_ffi.libinfo import load_lib_module\n"
        "print(tvm_ffi.__name__, sys.argv[1:], __name__, tvm_ffi is helper.tvm_ffi)\n"
    )
    (tmp_path / "helper.py").write_text("import tvm_ffi\n")
    assert run("-m", "portcall.tvm_ffi", script, "a", "-b") == "portcall.tvm_ffi ['a', '-b'] __main__ True\n"
    done = subprocess.run([sys.executable, "-m", "portcall.tvm_ffi"], capture_output=True, check=False)
    assert done.returncode != 0


def test_install_is_needed_and_refused_after_another_tvm_ffi() -> None:
    script = """
import sys
from types import ModuleType
import portcall.tvm_ffi
assert "tvm_ffi" not in sys.modules
sys.modules["tvm_ffi"] = other = ModuleType("tvm_ffi")
try:
    portcall.tvm_ffi.install()
except ImportError:
    assert sys.modules["tvm_ffi"] is other
del sys.modules["tvm_ffi"]
portcall.tvm_ffi.install()
portcall.tvm_ffi.install()
import tvm_ffi.libinfo, tvm_ffi.dataclasses, tvm_ffi.utils.kwargs_wrapper
from tvm_ffi.container import Array
print(tvm_ffi is portcall.tvm_ffi)
"""
    assert run("-c", script) == "True\n"
