# SPDX-License-Identifier: Apache-2.0
"""Calls, in one process with the peer: the same statement in the same loop, with the objects of either package.

Rules: a statement runs in a loop made by ``timeit``, its names being local variables; nothing is subtracted; the
garbage collector rests during a block. Compiled libraries are loaded by each package from a copy of its own, because
the dynamic loader maps one file once, and the first loader binds its symbols.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import timeit
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi
from method import Timer

import portcall
from portcall import toolchain
from portcall.bench import format_size

SOURCES = Path(__file__).resolve().parent
KERNELS = SOURCES.parent / "tests" / "kernels" / "tvm_kernels.py"
TARGET = 0.5  # of the time that the peer takes; docs/benchmarks.md has the reasons of the three rows without one
TEXT = "a text of forty characters, all of ASCII"
Both = tuple[Any, Any]  # for portcall, for tvm-ffi
CATCH = """\
try:
    {call}
except {error}:
    pass
else:
    raise AssertionError
"""


@dataclass(frozen=True)
class Row:
    """One line of the report.

    Attributes:
        key: a short name, for ``--only`` and JSON.
        text: what is done.
        against: what is done on the other side, where that is not the same.
        ours, other: the two sides.
        target: the ratio to reach; None where there is none.
        limit: seconds that our side may take; None where there is no limit.
    """

    key: str
    text: str
    ours: Timer
    other: Timer
    target: float | None = None
    against: str = ""
    limit: float | None = None


def loop(statement: str, **names: Any) -> Timer:
    """Return a loop over ``statement``, in which ``names`` are local variables."""
    setup = f"{', '.join(names)}, = values" if names else "pass"
    return timeit.Timer(statement, setup, globals={"values": tuple(names.values())}).timeit


def loops(statement: str, **names: Both) -> tuple[Timer, Timer]:
    """Return the loop of either side; each name stands for what portcall gets and what the peer gets."""
    ours, peers = ({name: both[side] for name, both in names.items()} for side in (0, 1))
    return loop(statement, **ours), loop(statement, **peers)


def function(name: str) -> Both:
    return portcall.get_global_func(name), tvm_ffi.get_global_func(name)


def against_peer(folder: Path) -> Iterator[Row]:
    """Yield what portcall does beside what tvm-ffi does. Libraries are compiled into ``folder``."""
    yield from scalar_rows()
    yield add_row(folder)
    yield from container_rows()
    yield from callable_rows()
    kernel = build_kernel(folder)
    yield from array_rows()
    yield from kernel_rows(kernel)
    yield from error_rows(kernel)


def own_costs(folder: Path) -> Iterator[Row]:
    """Yield what our own choices cost: each side is portcall."""
    library = portcall.load_module(toolchain.create_shared(SOURCES / "registered.cc", folder / "registered.so"))
    library["register_functions"]()
    lock = [portcall.get_global_func(f"portcall_benchmark.{does}_lock") for does in ("releases", "keeps")]
    yield Row("lock", "nop(), lock released", *loops("f()", f=(lock[0], lock[1])), against="the same, lock kept")
    add_one, _ = load_copies(build_kernel(folder))
    for count in (16, 16 * 1024, 1024 * 1024):
        yield copy_row(add_one["add_one"], count)


def scalar_rows() -> Iterator[Row]:
    nop, echo = function("testing.nop"), function("testing.echo")
    yield Row("nop", "nop()", *loops("f()", f=nop), TARGET)
    yield Row("nop3", "nop(1, 2, 3)", *loops("f(1, 2, 3)", f=nop), TARGET)
    yield Row("nop-mixed", "nop(1.0, 'abc', None)", *loops("f(1.0, 'abc', None)", f=nop), TARGET)
    yield Row("echo", "echo('abc')", *loops("f('abc')", f=echo), TARGET)
    yield Row("echo-long", "echo(40 characters)", *loops("f(x)", f=echo, x=(TEXT, TEXT)), TARGET)
    # The peer releases the interpreter lock around every call, unless asked not to; our nop is registered as short.
    keeps = tvm_ffi.get_global_func("testing.nop")
    keeps.release_gil = False
    yield Row("nop-kept", "nop()", *loops("f()", f=(nop[0], keeps)), against="tvm-ffi told to keep the lock too")


def add_row(folder: Path) -> Row:
    library = toolchain.create_shared(SOURCES / "library.c", folder / "library.so")
    ours, peers = load_copies(library)
    return Row("add", "add(1, 2) of a C library", *loops("f(1, 2)", f=(ours["add"], peers["add"])))


def container_rows() -> Iterator[Row]:
    nop = function("testing.nop")
    values = {"list": [1, 2, 3], "dict": {"a": 1}, "numpy-scalar": np.int64(3), "bytes": b"abc"}
    for key, value in values.items():
        yield Row(key, f"nop({value!r})", *loops("f(x)", f=nop, x=(value, value)), TARGET)


def callable_rows() -> Iterator[Row]:
    def identity(x: Any) -> Any:
        return x

    apply, converted = function("testing.apply"), (portcall.convert(identity), tvm_ffi.convert(identity))
    call = "f(g, 1)"
    text = "apply(converted Python function, 1)"
    yield Row("callback", text, *loops(call, f=apply, g=converted), TARGET)
    yield Row("converted", "converted Python function(1)", *loops("f(1)", f=converted), TARGET)
    text = "apply(Python function, 1)"
    yield Row("callback-direct", text, *loops(call, f=apply, g=(identity, identity)), TARGET)
    method = Counter().add
    yield Row("callback-method", "apply(bound method, 1)", *loops(call, f=apply, g=(method, method)), TARGET)


class Counter:
    def add(self, amount: int) -> int:
        return amount


def array_rows() -> Iterator[Row]:
    nop, x = function("testing.nop"), aligned(16)
    ours, peers = loops("f(x)", f=nop, x=(x, x))
    converted = loop("f(d(x))", f=nop[1], d=tvm_ffi.from_dlpack, x=x)
    yield Row("numpy", "nop(NumPy array)", ours, converted, TARGET, "from_dlpack(array), then the call")
    yield Row("numpy-direct", "nop(NumPy array)", ours, peers, TARGET)
    tensor = portcall.from_dlpack(x), tvm_ffi.from_dlpack(x)
    yield Row("tensor", "nop(tensor)", *loops("f(x)", f=nop, x=tensor), TARGET)
    if importlib.util.find_spec("torch") is not None:
        import torch

        t = torch.zeros(16)
        yield Row("torch", "nop(torch tensor)", *loops("f(x)", f=nop, x=(t, t)))


def kernel_rows(kernel: Path) -> Iterator[Row]:
    library = load_copies(kernel)
    add_one = library[0]["add_one"], library[1]["add_one"]
    x, y = aligned(16), aligned(16)
    for f in add_one:
        check_add_one(f, x, y)
    ours, peers = loops("f(x, y)", f=add_one, x=(x, x), y=(y, y))
    converted = loop("f(d(x), d(y))", f=add_one[1], d=tvm_ffi.from_dlpack, x=x, y=y)
    text = "compiled kernel(two arrays of 16)"
    yield Row("kernel", text, ours, converted, TARGET, "from_dlpack of both, then the call")
    yield Row("kernel-direct", text, ours, peers, TARGET)
    tensors = [(portcall.from_dlpack(array), tvm_ffi.from_dlpack(array)) for array in (x, y)]
    text = "compiled kernel(two tensors of 16)"
    yield Row("kernel-tensor", text, *loops("f(x, y)", f=add_one, x=tensors[0], y=tensors[1]))


def error_rows(kernel: Path) -> Iterator[Row]:
    call = CATCH.format(call="f('ValueError', 'a message')", error="ValueError")
    yield Row("error", "C++ error, caught in Python", *loops(call, f=function("testing.test_raise_error")))
    library = load_copies(kernel)
    call = CATCH.format(call="f(1, 2)", error="TypeError")
    text = "failing check of a compiled kernel, caught"
    yield Row("error-kernel", text, *loops(call, f=(library[0]["add_one"], library[1]["add_one"])))
    call, converted = CATCH.format(call="f(g)", error="KeyError"), (portcall.convert(fail), tvm_ffi.convert(fail))
    text = "Python error through C++, caught"
    yield Row("error-python", text, *loops(call, f=function("testing.apply"), g=converted))


def fail() -> None:
    raise KeyError("a message")


def copy_row(add_one: Callable[..., Any], count: int) -> Row:
    """Return the row for arrays that compiled code cannot use where they are, against arrays that it can."""
    x, y = ((aligned(count, shift=16), aligned(count)) for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that large copies are made is what this row is about
        for side in (0, 1):
            check_add_one(add_one, x[side], y[side])
    nbytes = format_size(x[0].nbytes)
    timers = loops("f(x, y)", f=(add_one, add_one), x=x, y=y)
    text = f"compiled kernel(two misaligned arrays of {nbytes})"
    return Row(f"copy-{nbytes}".replace(" ", ""), text, *timers, against="aligned arrays")


def check_add_one(add_one: Callable[..., Any], x: Any, y: Any) -> None:
    """Refuse to time a kernel that computes something else."""
    x[:], y[:] = np.arange(len(x)), 0
    add_one(x, y)
    np.testing.assert_array_equal(y, x + 1)


def aligned(count: int, shift: int = 0) -> Any:
    """Return float32 zeros whose address is ``shift`` modulo 64."""
    room = np.zeros(count * 4 + 128, np.uint8)
    start = -room.ctypes.data % 64 + shift
    return room[start : start + count * 4].view(np.float32)


def build_kernel(folder: Path) -> Path:
    """Compile a kernel with apache-tvm, in a process of its own, as its users would."""
    made = folder / "single.so"
    if not made.exists():
        command = [sys.executable, str(KERNELS), str(folder), "single"]
        subprocess.run(command, stderr=subprocess.DEVNULL, check=True)
    return made


def load_copies(library: Path) -> tuple[Any, Any]:
    """Load a library with portcall and with tvm-ffi, each from its own copy."""
    copies = []
    for package in ("portcall", "tvm_ffi"):
        folder = library.parent / package
        folder.mkdir(exist_ok=True)
        copies.append(folder / library.name)
        if not copies[-1].exists():
            shutil.copy2(library, copies[-1])
    return portcall.load_module(copies[0]), tvm_ffi.load_module(str(copies[1]))
