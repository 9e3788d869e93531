# SPDX-License-Identifier: Apache-2.0
"""Calls, in one process with the peer: the same statement in the same loop, with the objects of either package.

Rules: a statement runs in a loop made by ``timeit``, its names being local variables; nothing is subtracted; the
garbage collector rests during a block. Compiled libraries are loaded by each package from a copy of its own, because
the dynamic loader maps one file once, and whoever comes first binds its symbols.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import timeit
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import portcall
import tvm_ffi
from method import Timer
from portcall import toolchain

SOURCES = Path(__file__).resolve().parent
KERNELS = SOURCES.parent / "tests" / "kernels" / "tvm_kernels.py"
CALL_TARGET, CALLBACK_TARGET, ARRAY_TARGET = 0.5, 0.7, 0.6
TEXT = "a text of forty characters, all of ASCII"
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


def against_peer(folder: Path) -> Iterator[Row]:
    """Yield what portcall does beside what tvm-ffi does. Libraries are compiled into ``folder``."""
    yield from scalar_rows(build_library(folder))
    yield from callable_rows()
    kernel = build_kernel(folder)
    yield from array_rows(kernel)
    yield from error_rows(kernel)


def own_costs(folder: Path) -> Iterator[Row]:
    """Yield what our own choices cost: each side is portcall."""
    register = toolchain.create_shared(SOURCES / "registered.cc", folder / "registered.so")
    library = portcall.load_module(register)
    library["register_functions"]()
    keeps = portcall.get_global_func("portcall_benchmark.keeps_lock")
    releases = portcall.get_global_func("portcall_benchmark.releases_lock")
    yield Row(
        "lock", "nop(), lock released", loop("f()", f=releases), loop("f()", f=keeps), against="the same, lock kept"
    )
    for count in (16, 16 * 1024, 1024 * 1024):
        yield copy_row(portcall.load_module(folder / "portcall" / "single.so")["add_one"], count)


def scalar_rows(library: Path) -> Iterator[Row]:
    def both(name: str, statement: str, **names: Any) -> tuple[Timer, Timer]:
        ours, peers = portcall.get_global_func(name), tvm_ffi.get_global_func(name)
        return loop(statement, f=ours, **names), loop(statement, f=peers, **names)

    yield Row("nop", "nop()", *both("testing.nop", "f()"), CALL_TARGET)
    yield Row("nop3", "nop(1, 2, 3)", *both("testing.nop", "f(1, 2, 3)"), CALL_TARGET)
    yield Row("nop-mixed", "nop(1.0, 'abc', None)", *both("testing.nop", "f(1.0, 'abc', None)"), CALL_TARGET)
    yield Row("echo", "echo('abc')", *both("testing.echo", "f('abc')"), CALL_TARGET)
    yield Row("echo-long", "echo(40 characters)", *both("testing.echo", "f(x)", x=TEXT), CALL_TARGET)
    yield Row("list", "nop([1, 2, 3])", *both("testing.nop", "f(x)", x=[1, 2, 3]))
    yield Row("dict", "nop({'a': 1})", *both("testing.nop", "f(x)", x={"a": 1}))
    yield Row("numpy-scalar", "nop(numpy.int64(3))", *both("testing.nop", "f(x)", x=np.int64(3)))
    yield add_row(library)
    yield unlocked_row()


def add_row(library: Path) -> Row:
    modules = load_copies(library)
    return Row("add", "add(1, 2) of a C library", *(loop("f(1, 2)", f=module["add"]) for module in modules))


def unlocked_row() -> Row:
    """The peer releases the interpreter lock around nop, unless told; ours is registered as short and keeps it."""
    peers = tvm_ffi.get_global_func("testing.nop")
    peers.release_gil = False
    ours = portcall.get_global_func("testing.nop")
    return Row("nop-kept", "nop()", loop("f()", f=ours), loop("f()", f=peers), against="peer keeps the lock too")


def callable_rows() -> Iterator[Row]:
    def identity(x: Any) -> Any:
        return x

    applies = portcall.get_global_func("testing.apply"), tvm_ffi.get_global_func("testing.apply")
    converted = portcall.convert(identity), tvm_ffi.convert(identity)
    calls = [loop("f(g, 1)", f=f, g=g) for f, g in zip(applies, converted, strict=True)]
    yield Row("callback", "apply(converted Python function, 1)", *calls, CALLBACK_TARGET)
    calls = [loop("f(1)", f=f) for f in converted]
    yield Row("converted", "converted Python function(1)", *calls, CALLBACK_TARGET)
    calls = [loop("f(g, 1)", f=f, g=identity) for f in applies]
    yield Row("callback-direct", "apply(Python function, 1)", *calls, CALLBACK_TARGET)
    calls = [loop("f(g, 1)", f=f, g=Counter().add) for f in applies]
    yield Row("callback-method", "apply(bound method, 1)", *calls, CALLBACK_TARGET)


class Counter:
    def add(self, amount: int) -> int:
        return amount


def array_rows(kernel: Path) -> Iterator[Row]:
    ours, peers = portcall.get_global_func("testing.nop"), tvm_ffi.get_global_func("testing.nop")
    imported = tvm_ffi.from_dlpack
    x, y = aligned(16), aligned(16)
    call, call_dlpack = loop("f(x)", f=ours, x=x), loop("f(d(x))", f=peers, d=imported, x=x)
    dlpack = "from_dlpack(array), then the call"
    yield Row("numpy", "nop(NumPy array)", call, call_dlpack, ARRAY_TARGET, dlpack)
    yield Row("numpy-direct", "nop(NumPy array)", call, loop("f(x)", f=peers, x=x), ARRAY_TARGET)
    tensors = portcall.from_dlpack(x), imported(x)
    yield Row("tensor", "nop(tensor)", loop("f(x)", f=ours, x=tensors[0]), loop("f(x)", f=peers, x=tensors[1]))
    if importlib.util.find_spec("torch") is not None:
        import torch

        t = torch.zeros(16)
        yield Row("torch", "nop(torch tensor)", loop("f(x)", f=ours, x=t), loop("f(x)", f=peers, x=t))
    add_one = [module["add_one"] for module in load_copies(kernel)]
    for f in add_one:
        check_add_one(f, x, y)
    text = "compiled kernel(two arrays of 16)"
    call = loop("f(x, y)", f=add_one[0], x=x, y=y)
    call_dlpack = loop("f(d(x), d(y))", f=add_one[1], d=imported, x=x, y=y)
    yield Row("kernel", text, call, call_dlpack, ARRAY_TARGET, "from_dlpack of both, then the call")
    yield Row("kernel-direct", text, call, loop("f(x, y)", f=add_one[1], x=x, y=y), ARRAY_TARGET)
    made = [(convert(x), convert(y)) for convert in (portcall.from_dlpack, imported)]
    calls = [loop("f(x, y)", f=f, x=a, y=b) for f, (a, b) in zip(add_one, made, strict=True)]
    yield Row("kernel-tensor", "compiled kernel(two tensors of 16)", *calls)


def error_rows(kernel: Path) -> Iterator[Row]:
    def caught(call: str, error: str, functions: tuple[Any, ...], **names: Any) -> list[Timer]:
        return [loop(CATCH.format(call=call, error=error), f=f, **names) for f in functions]

    raising = portcall.get_global_func("testing.test_raise_error"), tvm_ffi.get_global_func("testing.test_raise_error")
    calls = caught("f('ValueError', 'a message')", "ValueError", raising)
    yield Row("error", "C++ error, caught in Python", *calls)
    calls = caught("f(1, 2)", "TypeError", tuple(module["add_one"] for module in load_copies(kernel)))
    yield Row("error-kernel", "a compiled kernel's failing check, caught", *calls)
    applies = portcall.get_global_func("testing.apply"), tvm_ffi.get_global_func("testing.apply")
    converted = portcall.convert(fail), tvm_ffi.convert(fail)
    calls = [
        loop(CATCH.format(call="f(g)", error="KeyError"), f=f, g=g) for f, g in zip(applies, converted, strict=True)
    ]
    yield Row("error-python", "Python error through C++, caught", *calls)


def fail() -> None:
    raise KeyError("a message")


def copy_row(add_one: Callable[..., Any], count: int) -> Row:
    """Return the row for arrays that compiled code cannot use where they are, against arrays that it can."""
    fit, unfit = [[aligned(count, shift) for _ in range(2)] for shift in (0, 16)]
    for x, y in (fit, unfit):
        check_add_one(add_one, x, y)
    nbytes = portcall.bench.format_size(fit[0].nbytes)
    calls = [loop("f(x, y)", f=add_one, x=x, y=y) for x, y in (unfit, fit)]
    return Row(f"copy-{count}", f"kernel(two misaligned arrays of {nbytes})", *calls, against="aligned arrays")


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


def build_library(folder: Path) -> Path:
    return toolchain.create_shared(SOURCES / "library.c", folder / "library.so")


def build_kernel(folder: Path) -> Path:
    """Compile a kernel with apache-tvm, in a process of its own, as its users would."""
    subprocess.run([sys.executable, str(KERNELS), str(folder), "single"], check=True)
    return folder / "single.so"


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
