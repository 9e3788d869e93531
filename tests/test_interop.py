# SPDX-License-Identifier: Apache-2.0
"""apache-tvm, apache-tvm-ffi and portcall share a process, whichever is imported first, and it ends in peace.

Each test is a process of its own that runs scenarios of scripts/interop.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "scripts"
# apache-tvm imports apache-tvm-ffi before all else, so these are all orders that differ.
EVERY_ORDER = pytest.mark.parametrize("order", ["portcall,tvm_ffi,tvm", "tvm_ffi,portcall,tvm", "tvm_ffi,tvm,portcall"])
FIRST_AND_LAST = pytest.mark.parametrize("order", ["portcall,tvm_ffi,tvm", "tvm_ffi,tvm,portcall"])


# A pool of one thread, as the peer makes it on a machine of one or two cores, does not report that its task failed.
ENVIRONMENT = {**os.environ, "TVM_NUM_THREADS": "2"}


def run(*words: str | Path) -> None:
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=600, check=False, env=ENVIRONMENT
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def scenarios(order: str, libraries: dict[str, Path], folder: Path, *names: str) -> None:
    paths = {name: str(path) for name, path in libraries.items()} | {"folder": str(folder)}
    run(SCRIPTS / "interop.py", order, ",".join(names), json.dumps(paths))


@EVERY_ORDER
def test_interop_same_files_run_when_portcall_loads_them_first(
    order: str, libraries: dict[str, Path], tmp_path: Path
) -> None:
    scenarios(order, libraries, tmp_path, "same_files_ours_first")


@EVERY_ORDER
def test_interop_same_files_run_when_tvm_ffi_loads_them_first(
    order: str, libraries: dict[str, Path], tmp_path: Path
) -> None:
    scenarios(order, libraries, tmp_path, "same_files_theirs_first")


@EVERY_ORDER
def test_interop_different_files_run_and_compiling_works(
    order: str, libraries: dict[str, Path], tmp_path: Path
) -> None:
    scenarios(order, libraries, tmp_path, "different_files", "compiling_works_afterwards")


@FIRST_AND_LAST
def test_interop_same_files_run_when_loaded_before_use(order: str, libraries: dict[str, Path], tmp_path: Path) -> None:
    scenarios(order, libraries, tmp_path, "same_files_loaded_before_either_is_used")


@FIRST_AND_LAST
def test_interop_same_files_run_when_modules_come_and_go(
    order: str, libraries: dict[str, Path], tmp_path: Path
) -> None:
    scenarios(order, libraries, tmp_path, "same_files_after_ours_are_gone")


@FIRST_AND_LAST
def test_interop_kernels_run_from_many_threads(order: str, libraries: dict[str, Path], tmp_path: Path) -> None:
    scenarios(order, libraries, tmp_path, "from_many_threads")


@FIRST_AND_LAST
def test_interop_registries_and_system_libraries_are_separate(
    order: str, libraries: dict[str, Path], tmp_path: Path
) -> None:
    scenarios(order, libraries, tmp_path, "registries_are_apart", "system_libraries_are_apart")


@FIRST_AND_LAST
def test_interop_tensors_go_both_ways_and_outlive_their_makers(
    order: str, libraries: dict[str, Path], tmp_path: Path
) -> None:
    scenarios(order, libraries, tmp_path, "tensors_go_both_ways", "tensors_outlive_their_makers")


@FIRST_AND_LAST
def test_interop_functions_and_exceptions_go_both_ways(order: str, libraries: dict[str, Path], tmp_path: Path) -> None:
    scenarios(order, libraries, tmp_path, "functions_go_both_ways", "exceptions_go_both_ways")


@FIRST_AND_LAST
def test_interop_libraries_on_tvm_ffi_headers_work_in_both(
    order: str, libraries: dict[str, Path], tmp_path: Path
) -> None:
    scenarios(order, libraries, tmp_path, "libraries_on_headers_meet_both", "handled_errors_are_not_reported_again")


def test_load_module_of_a_library_linked_with_tvm_ffi_loads_it(libraries: dict[str, Path]) -> None:
    script = f"""
import sys, portcall
lib = portcall.load_module({str(libraries["tvm_ffi_kernels_linked"])!r})
assert lib["add_int"](1, 2) == 3
assert "tvm_ffi" not in sys.modules
try:
    lib["raise_value_error"](3)
except ValueError as error:
    assert str(error) == "x is 3, which is wrong"
    print("done")
"""
    run("-c", script)


def test_load_module_names_the_package_of_an_absent_runtime(libraries: dict[str, Path]) -> None:
    path = str(libraries["tvm_ffi_kernels_linked"])
    message = (
        f"cannot load '{path}': libtvm_ffi.so: cannot open shared object file: No such file or directory; it was "
        "linked with libtvm_ffi.so: install apache-tvm-ffi, or link it without; foreign='adopt' gives it portcall's "
        "runtime"
    )
    script = f"""
import sys, portcall
sys.modules["tvm_ffi"] = None
try:
    portcall.load_module({path!r})
except portcall.errors.ModuleLoadError as error:
    assert str(error) == {message!r}, str(error)
    assert error.path == {path!r}
portcall.load_module({str(libraries["tvm_ffi_kernels_unlinked"])!r})["add_int"](1, 2)
print("done")
"""
    run("-c", script)


def test_tvm_ffi_imports_after_a_library_loaded_its_runtime(libraries: dict[str, Path]) -> None:
    script = f"""
import portcall
lib = portcall.load_module({str(libraries["tvm_ffi_kernels_linked"])!r})
import tvm_ffi
assert tvm_ffi.get_global_func("testing.echo")("text") == "text"
tvm_ffi.register_global_func("portcall_test.theirs", lambda x: x + 1)
assert lib["call_global"]("portcall_test.theirs", 4) == 5
print("done")
"""
    run("-c", script)


def test_load_module_loads_no_other_runtime_without_need(libraries: dict[str, Path]) -> None:
    script = f"""
import sys, portcall
for path in {[str(libraries[name]) for name in ("elementwise", "packed", "tvm_ffi_kernels_unlinked", "classic")]!r}:
    portcall.load_module(path)
assert not [name for name in sys.modules if name.startswith("tvm")]
assert "libtvm" not in open("/proc/self/maps").read()
print("done")
"""
    run("-c", script)


def test_objects_of_a_library_on_the_other_runtime_keep_it(libraries: dict[str, Path]) -> None:
    script = f"""
import portcall
for i in range(30):
    hints = {{"__annotations__": {{"a": int, "b": str}}}}
    kind = portcall.register_object(f"portcall_test.X{{i}}")(type(f"X{{i}}", (portcall.Object,), hints))
theirs = portcall.load_module({str(libraries["tvm_ffi_objects_linked"])!r})
kernels = portcall.load_module({str(libraries["tvm_ffi_kernels_linked"])!r})
ours = portcall.load_module({str(libraries["tvm_ffi_objects_unlinked"])!r})
point = theirs.make_point(3, 4)
assert type(point) is portcall.Object and not hasattr(point, "a")
assert point.type_key == "portcall_test.Point (of libtvm_ffi.so)" and point.type_key in repr(point)
assert ours.make_point(3, 4).type_key == "portcall_test.Point"
assert theirs.point_sum(point) == 7
assert kernels.echo([point])[0].same_as(point)
assert portcall.Array([point])[0].same_as(point) and "libtvm_ffi.so" in repr(portcall.Array([point]))
assert ours.live_points() == 0

def refuse(kind, call, *arguments):
    try:
        call(*arguments)
    except kind as error:
        return error
    raise AssertionError(f"{{call}} took {{arguments}}")

own = kind(7, "hello")
itself = portcall.List([1])
itself.append(itself)
assert kernels.echo(itself).same_as(itself)
for wrong in own, [own], {{1: [own]}}, portcall.List([own]), portcall.system_lib():
    error = refuse(portcall.errors.ArgumentError, kernels.echo, wrong)
    assert (error.function, error.position) == ("echo", 0)
    refuse(portcall.errors.ArgumentError, kernels.make_adder(5), wrong)
refuse(portcall.errors.ArgumentError, theirs.point_sum, own)
refuse(TypeError, ours.point_sum, point)
refuse(TypeError, portcall.ir.save_json, point)
refuse(TypeError, portcall.ir.save_json, [own, point])
assert portcall.ir.structural_equal(point, point) and not portcall.ir.structural_equal(point, own)
assert ours.read_fields(own)[0] == "portcall_test.X29"
print("done")
"""
    run("-c", script)


@pytest.mark.parametrize("imports", ["portcall", "portcall, tvm_ffi", "tvm_ffi, portcall"])
@pytest.mark.parametrize("flavour", ["unlinked", "linked"])
def test_a_signal_interrupts_a_library_that_asks_for_signals(
    libraries: dict[str, Path], flavour: str, imports: str
) -> None:
    script = f"""
import {imports}
interrupted = portcall.load_module({str(libraries[f"tvm_ffi_kernels_{flavour}"])!r})["interrupted"]
for _ in range(2):
    try:
        interrupted()
        raise AssertionError("it went on")
    except KeyboardInterrupt as error:
        assert type(error) is KeyboardInterrupt and str(error) == ""
assert portcall.get_global_func("testing.echo")(1) == 1
print("done")
"""
    run("-c", script)


def test_what_a_library_registers_with_the_other_runtime_is_said(libraries: dict[str, Path]) -> None:
    path = str(libraries["tvm_ffi_objects_linked"])
    script = f"""
import subprocess, sys, portcall
name = {Path(path).name!r}
for load in (lambda: None, lambda: portcall.load_module({path!r})):
    module = load()
    for look_up in portcall.get_global_func, portcall.ir.get_object_class:
        try:
            look_up("portcall_test.Shape")
        except (KeyError, portcall.errors.FunctionNotFoundError) as error:
            assert (name in str(error) and "-ltvm_ffi" in str(error)) == (module is not None), error
        else:
            raise AssertionError(look_up)
shown = subprocess.run([sys.executable, "-m", "portcall", "inspect", {path!r}], stdout=subprocess.PIPE, text=True)
assert "-ltvm_ffi" in shown.stdout
print("done")
"""
    run("-c", script)
