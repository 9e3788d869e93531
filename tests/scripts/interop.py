# SPDX-License-Identifier: Apache-2.0
"""apache-tvm, apache-tvm-ffi and portcall in one process: some scenarios, with the packages imported in a given order.

    python interop.py ORDER SCENARIOS LIBRARIES

ORDER is package names, SCENARIOS the names of functions below, both with commas between them; LIBRARIES is a JSON
object of paths by name. It ends with "done" on stdout and status 0, or with a traceback. What the scenarios made stays
alive until the process ends, on purpose. Exceptions are of classes that both runtimes know by name.
"""

from __future__ import annotations

import gc
import importlib
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

ORDER, WANTED, LIBRARIES = sys.argv[1].split(","), sys.argv[2].split(","), json.loads(sys.argv[3])
for package in ORDER:
    importlib.import_module(package)

import numpy as np  # noqa: E402
import tvm  # noqa: E402
import tvm_ffi  # noqa: E402

import portcall  # noqa: E402

kept: list[Any] = []
called: list[str] = []


def fails(kind: type[Exception], text: str, function: Callable[..., Any], *arguments: Any) -> Exception:
    """Check that a call raises an exception of a kind whose message contains a text; return it."""
    try:
        function(*arguments)
    except kind as error:
        if text in str(error):
            return error
        raise
    raise AssertionError(f"nothing was raised, {kind.__name__} was expected")


class Ours:
    """This package, with the few words in which the runtimes differ."""

    name = "portcall"

    def load(self, name: str) -> Any:
        kept.append(portcall.load_module(LIBRARIES[name]))
        return kept[-1]

    def tensor(self, array: Any) -> Any:
        return portcall.tensor(array)

    def register(self, name: str, function: Callable[..., Any]) -> None:
        portcall.register_func(name, function, override=True)

    missing = "which no imported module has and which is not registered"
    task_error = ValueError


class Theirs:
    """The same of apache-tvm."""

    name = "tvm"

    def load(self, name: str) -> Any:
        kept.append(tvm.runtime.load_module(str(LIBRARIES[name])))
        return kept[-1]

    def tensor(self, array: Any) -> Any:
        return tvm.runtime.tensor(array)

    def register(self, name: str, function: Callable[..., Any]) -> None:
        tvm_ffi.register_global_func(name, function, override=True)

    missing = "Cannot find function"
    task_error = RuntimeError


def elementwise(side: Ours | Theirs, library: str = "elementwise") -> None:
    """A check that fails and a kernel that works, twice, so that each meets what the other left."""
    lib = side.load(library)
    x, y = side.tensor(np.arange(5, dtype="float32")), side.tensor(np.zeros(5, "float32"))
    for _ in range(2):
        fails(
            ValueError, "Mismatched B.shape[0] on argument #1", lib["add_one"], x, side.tensor(np.zeros(4, "float32"))
        )
        fails(TypeError, "Expected 2 arguments", lib["add_one"], x)
        lib["add_one"](x, y)
        np.testing.assert_array_equal(y.numpy(), np.arange(5) + 1)


def parallel(side: Ours | Theirs) -> None:
    lib = side.load("matmul")
    a, b = np.random.default_rng(0).random((2, 20, 20), "float32")
    c = side.tensor(np.zeros((20, 20), "float32"))
    lib["matmul"](side.tensor(a), side.tensor(b), c)
    np.testing.assert_allclose(c.numpy(), a @ b, rtol=1e-4)
    x, y = side.tensor(np.full(64, -1, "int32")), side.tensor(np.zeros(64, "int32"))
    fails(side.task_error, "negative element", lib["double_non_negative"], x, y)


def callbacks(side: Ours | Theirs) -> None:
    """Code of one file calls the functions of its loader."""
    side.register("portcall_test.twice", lambda x: called.append(side.name) or 2 * x)
    lib = side.load("packed")
    for _ in range(2):
        called.clear()
        assert lib["twice"](4) == 8
        assert called == [side.name], called
        fails(RuntimeError, side.missing, lib["call_missing"])

    def fail(*values: Any) -> None:
        raise ValueError(f"from {side.name}")

    side.register("portcall_test.log_value", fail)
    fails(ValueError, f"from {side.name}", lib["log_scalars"], 1, 2.0)


def everything(side: Ours | Theirs) -> None:
    elementwise(side)
    parallel(side)
    callbacks(side)


# ---- Scenarios -------------------------------------------------------------------------------------------------------


def same_files_ours_first() -> None:
    for side in (Ours(), Theirs(), Ours(), Theirs()):
        everything(side)


def same_files_theirs_first() -> None:
    for side in (Theirs(), Ours(), Theirs(), Ours()):
        everything(side)


def same_files_loaded_before_either_is_used() -> None:
    for name in ("elementwise", "matmul", "packed"):
        Ours().load(name)
        Theirs().load(name)
    for side in (Ours(), Theirs(), Ours(), Theirs()):
        everything(side)


def same_files_after_ours_are_gone() -> None:
    for side in (Ours(), Theirs(), Ours()):
        everything(side)
        kept.clear()
        gc.collect()


def different_files() -> None:
    for _ in range(2):
        elementwise(Ours(), "elementwise")
        elementwise(Theirs(), "ctarget")
        elementwise(Ours(), "elementwise_now")


def from_many_threads() -> None:
    wrong: list[str] = []

    def work(side: Ours | Theirs) -> None:
        try:
            for _ in range(5):
                elementwise(side)
                parallel(side)
        except BaseException as error:
            wrong.append(f"{side.name}: {error}")

    threads = [threading.Thread(target=work, args=(side,)) for side in (Ours(), Theirs()) * 3]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong


def registries_are_apart() -> None:
    portcall.register_func("portcall_test.name", lambda: "ours")
    tvm_ffi.register_global_func("portcall_test.name", lambda: "theirs")
    assert portcall.get_global_func("portcall_test.name")() == "ours"
    assert tvm_ffi.get_global_func("portcall_test.name")() == "theirs"
    portcall.remove_global_func("portcall_test.name")
    assert tvm_ffi.get_global_func("portcall_test.name")() == "theirs"
    assert portcall.get_global_func("portcall_test.name", allow_missing=True) is None


def tensors_go_both_ways() -> None:
    lib, their_lib = Ours().load("elementwise"), Theirs().load("elementwise")
    theirs, ours = tvm.runtime.tensor(np.arange(5, dtype="float32")), portcall.empty((5,), "float32")
    lib["add_one"](theirs, ours)
    np.testing.assert_array_equal(ours.numpy(), np.arange(5) + 1)
    lib["add_one"](ours, theirs)
    np.testing.assert_array_equal(theirs.numpy(), np.arange(5) + 2)
    their_lib["add_one"](theirs, tvm_ffi.from_dlpack(ours))
    np.testing.assert_array_equal(ours.numpy(), np.arange(5) + 3)
    their_lib["add_one"](ours, theirs)
    np.testing.assert_array_equal(theirs.numpy(), np.arange(5) + 4)


def tensors_outlive_their_makers() -> None:
    ours = portcall.from_dlpack(tvm.runtime.tensor(np.arange(5, dtype="float32")))
    theirs = tvm_ffi.from_dlpack(portcall.tensor(np.arange(6, dtype="float32")))
    gc.collect()
    np.testing.assert_array_equal(ours.numpy(), np.arange(5))
    np.testing.assert_array_equal(np.from_dlpack(theirs), np.arange(6))
    again = tvm_ffi.from_dlpack(portcall.from_dlpack(theirs))
    del theirs
    gc.collect()
    np.testing.assert_array_equal(np.from_dlpack(again), np.arange(6))


def functions_go_both_ways() -> None:
    our_apply, their_apply = portcall.get_global_func("testing.apply"), tvm_ffi.get_global_func("testing.apply")
    ours, theirs = portcall.convert(lambda x: x + 1), tvm_ffi.convert(lambda x: x + 2)
    assert our_apply(theirs, 1) == 3
    assert their_apply(ours, 1) == 2
    assert our_apply(lambda x: their_apply(ours, x), 1) == 2


def exceptions_go_both_ways() -> None:
    our_apply, their_apply = portcall.get_global_func("testing.apply"), tvm_ffi.get_global_func("testing.apply")
    error = ValueError("from Python")

    def fail() -> None:
        raise error

    for _ in range(2):
        assert fails(ValueError, "from Python", our_apply, lambda: our_apply(fail)) is error
        fails(ValueError, "from Python", our_apply, lambda: their_apply(fail))
        fails(ValueError, "from Python", their_apply, lambda: our_apply(fail))


def libraries_on_headers_meet_both() -> None:
    def fail(value: Any = None) -> None:
        raise ValueError("from Python")

    for name in ("tvm_ffi_kernels_unlinked", "tvm_ffi_kernels_linked"):
        lib = Ours().load(name)
        assert lib["apply"](lambda x: x + 1, 4) == 5
        fails(ValueError, "from Python", lib["apply"], fail, 1)
        assert lib["catch_kind"](fail) == "ValueError"
        fails(ValueError, "x is 3", lib["raise_value_error"], 3)
    lib = Theirs().load("tvm_ffi_kernels_linked")
    assert lib["apply"](lambda x: x + 1, 4) == 5
    fails(ValueError, "from Python", lib["apply"], fail, 1)
    fails(ValueError, "x is 3", lib["raise_value_error"], 3)


def handled_errors_are_not_reported_again() -> None:
    lib = Ours().load("modern")
    for side in (Ours(), Theirs(), Ours()):
        elementwise(side)
        fails(RuntimeError, "fail_silently() failed (nonzero return) without setting an error", lib["fail_silently"])
    fails(ValueError, "theirs", tvm_ffi.get_global_func("testing.test_raise_error"), "ValueError", "theirs")
    fails(RuntimeError, "without setting an error", lib["fail_silently"])
    assert lib["answer"]() == 42


def system_libraries_are_apart() -> None:
    Ours().register("portcall_test.twice", lambda x: 2 * x)
    Theirs().register("portcall_test.twice", lambda x: 3 * x)
    Ours().load("syslib")
    ours = portcall.system_lib("portcall_sys_")
    assert ours.list_function_names() == ["portcall_sys_add_one", "portcall_sys_twice"]
    assert not tvm_ffi.system_lib().implements_function("portcall_sys_add_one")
    x, y = np.arange(5, dtype="float32"), np.zeros(5, "float32")
    ours["add_one"](x, y)
    np.testing.assert_array_equal(y, x + 1)
    fails(ValueError, "Mismatched B.shape[0]", ours["add_one"], x, y[:3])
    assert ours["twice"](4) == 8
    Theirs().load("syslib")
    assert tvm_ffi.system_lib("portcall_sys_")["twice"](4) == 12
    assert ours["twice"](4) == 8
    elementwise(Theirs())


def compiling_works_afterwards() -> None:
    elementwise(Ours())
    from tvm import te

    n = te.var("n")
    source = te.placeholder((n,), "float32", name="A")
    result = te.compute((n,), lambda i: source[i] * 3.0, name="B")
    executable = tvm.compile(te.create_prim_func([source, result]), target="llvm")
    x, y = tvm.runtime.tensor(np.arange(4, dtype="float32")), tvm.runtime.tensor(np.zeros(4, "float32"))
    executable(x, y)
    np.testing.assert_array_equal(y.numpy(), np.arange(4) * 3)
    fails(ValueError, "Mismatched B.shape[0]", executable, x, tvm.runtime.tensor(np.zeros(3, "float32")))
    path = Path(LIBRARIES["folder"], "tripled.so")
    executable.export_library(str(path))
    lib = portcall.load_module(path)
    z = portcall.empty((4,), "float32")
    lib(x, z)
    np.testing.assert_array_equal(z.numpy(), np.arange(4) * 3)
    elementwise(Theirs())


SCENARIOS = {
    function.__name__: function
    for function in (
        same_files_ours_first, same_files_theirs_first, same_files_loaded_before_either_is_used,
        same_files_after_ours_are_gone, different_files, from_many_threads, registries_are_apart, tensors_go_both_ways,
        tensors_outlive_their_makers, functions_go_both_ways, exceptions_go_both_ways, libraries_on_headers_meet_both,
        handled_errors_are_not_reported_again, system_libraries_are_apart, compiling_works_afterwards,
    )
}  # fmt: skip

if __name__ == "__main__":
    for name in WANTED:
        SCENARIOS[name]()
    print("done")
