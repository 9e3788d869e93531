# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="arg-type, call-arg, call-overload, index, list-item, return-value, type-arg, type-var"
"""Each wrong call, load or registration gives its error, and leaves the process as healthy as it was."""

from __future__ import annotations

import ctypes
import functools
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from portcall import errors, testing

echo = portcall.get_global_func("testing.echo")
apply = portcall.get_global_func("testing.apply")


@dataclass(frozen=True)
class Place:
    """What the bad calls work with."""

    native: portcall.Module
    folder: Path

    def write(self, name: str, content: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(content)
        return path


@dataclass(frozen=True)
class Bad:
    """A call that must fail, the exact class of its error and what its text must match."""

    what: str
    call: Callable[[Place], Any]
    error: type[BaseException]
    message: str


def glob(name: str) -> portcall.PackedFunc:
    return portcall.get_global_func(name)


def readonly(n: int = 4) -> np.ndarray[Any, Any]:
    array = np.zeros(n, np.float32)
    array.flags.writeable = False
    return array


def elf_header(machine: int = 62, bits: int = 2, kind: int = 3) -> bytes:
    """A header that says it is an ELF file, with nothing behind it."""
    ident = b"\x7fELF" + bytes([bits, 1, 1]) + bytes(9)
    return ident + struct.pack("<HHIQQQIHHHHHH", kind, machine, 1, 0, 0, 0, 0, 64, 56, 0, 64, 0, 0)


class Evil:
    """An object that fails wherever it is touched."""

    def __getattr__(self, name: str) -> Any:
        raise ZeroDivisionError(f"touched {name}")


class EvilIndex:
    def __index__(self) -> int:
        raise ZeroDivisionError("no index")


class EvilMapping(dict):
    def items(self) -> Any:
        raise ZeroDivisionError("no items")


F32 = np.float32
NotFound, Argument, Load = errors.FunctionNotFoundError, errors.ArgumentError, errors.ModuleLoadError

CALLS = [
    Bad("a name that nobody registered", lambda p: glob("portcall_test.absent"), NotFound,
        "no global function is named"),
    Bad("a name that is not a str", lambda p: glob(5), TypeError, "expected str, got int"),
    Bad("a name that is None", lambda p: glob(None), TypeError, "NoneType"),
    Bad("a name with half a surrogate pair", lambda p: glob("\ud800"), UnicodeEncodeError, "surrogates not allowed"),
    Bad("too few arguments", lambda p: p.native["add"](1), Argument, r"add\(\): expected 2 arguments, got 1"),
    Bad("too many arguments", lambda p: p.native["add"](1, 2, 3), Argument, r"add\(\): expected 2 arguments, got 3"),
    Bad("far too many arguments", lambda p: p.native["add"](*range(10_000)), Argument,
        "expected 2 arguments, got 10000"),
    Bad("no arguments at all", lambda p: echo(), Argument, "expected at least 1 arguments, got 0"),
    Bad("a keyword", lambda p: echo(x=1), Argument, "positional arguments only, got x="),
    Bad("text for a number", lambda p: p.native["add"]("1", 2), Argument,
        r"add\(\): argument #0: expected int, got str"),
    Bad("a float for an int", lambda p: p.native["add"](1, 2.5), Argument, "argument #1: expected int, got float"),
    Bad("None for a number", lambda p: p.native["add"](None, 2), Argument, "argument #0: expected int, got None"),
    Bad("a list for a number", lambda p: p.native["add"]([1], 2), Argument, "argument #0: expected int, got Array"),
    Bad("an array for a number", lambda p: p.native["add"](np.zeros(1), 2), Argument, "#0: expected int, got Tensor"),
    Bad("a wide integer", lambda p: p.native["add"](2**70, 2), Argument, "argument #0: .*does not fit in 64 bits"),
    Bad("a number for a tensor", lambda p: p.native["fill"](1, 2.0), Argument,
        r"fill\(\): argument #0: expected Tensor, got int"),
    Bad("None for a tensor", lambda p: p.native["fill"](None, 2.0), Argument, "argument #0: expected Tensor, got None"),
    Bad("an object for a tensor", lambda p: p.native["fill"](object(), 1.0), Argument,
        "expected a number, str, .*got object"),
    Bad("a set for compiled code", lambda p: p.native["fill"]({1}, 1.0), Argument,
        r"argument #0: expected a number, .*got set; pass list\(a\)"),
    Bad("a range for compiled code", lambda p: p.native["fill"](range(3), 1.0), Argument, r"got range; pass list\(a\)"),
    Bad("a complex number", lambda p: p.native["fill"](1 + 2j, 1.0), Argument, "got complex; pass a.real"),
    Bad("a path", lambda p: p.native["fill"](Path("a"), 1.0), Argument, r"got pathlib\S*Path; pass str\(a\)"),
    Bad("a number for a function", lambda p: p.native["apply"](5, 1), Argument, "expected Function, got int"),
    Bad("a function that is None", lambda p: p.native["apply"](None, 1), TypeError, "called a null PackedFunc"),
    Bad("doubles for floats", lambda p: p.native["fill"](np.zeros(3), 1.0), Argument,
        r"fill\(\): argument #0: expected a tensor of float32, got float64"),
    Bad("an array of objects", lambda p: echo(np.array([object()])), Argument, "numbers that tensors can hold"),
    Bad("an array of text", lambda p: echo(np.array(["a"])), Argument, "numbers that tensors can hold, got dtype <U1"),
    Bad("an array of records", lambda p: echo(np.zeros(2, "i4,f4")), Argument, "numbers that tensors can hold"),
    Bad("an array of dates", lambda p: echo(np.zeros(2, "M8[s]")), Argument, "numbers that tensors can hold"),
    Bad("an array of long doubles", lambda p: echo(np.zeros(2, "g")), Argument, "numbers that tensors can hold"),
    Bad("the other byte order", lambda p: echo(np.zeros(2, ">i4")), Argument, "in this machine.s order"),
    Bad("odd strides", lambda p: echo(np.zeros(2, [("a", "i1"), ("b", "f4")])["b"]), Argument, "ascontiguousarray"),
    Bad("a read-only array", lambda p: p.native["fill"](readonly(), 1.0), Argument, "expected a writable tensor"),
    Bad("a read-only tensor", lambda p: p.native["fill"](echo(readonly()), 1.0), Argument,
        "expected a writable tensor"),
    Bad("ReadOnly of a number", lambda p: p.native["fill"](portcall.ReadOnly(3), 1.0), Argument, "portcall.ReadOnly"),
    Bad("ReadOnly of nothing", lambda p: portcall.ReadOnly(), TypeError, "argument"),
    Bad("half a surrogate pair", lambda p: echo("\ud800"), Argument, "a str that UTF-8 can encode"),
    Bad("the same inside a list", lambda p: echo(["ok", "\udbff"]), Argument, "item 1: expected a str"),
    Bad("a list that contains itself", lambda p: echo(loop_of_lists()), ValueError, "contains itself"),
    Bad("a very deep list", lambda p: echo(functools.reduce(lambda x, _: [x], range(10**5), 0)), RecursionError,
        "container"),
    Bad("an object that fails everywhere", lambda p: echo(Evil()), ZeroDivisionError, "touched"),
    Bad("an index that fails", lambda p: echo(EvilIndex()), ZeroDivisionError, "no index"),
    Bad("a mapping that fails", lambda p: echo(EvilMapping(a=1)), ZeroDivisionError, "no items"),
    Bad("an unmade object", lambda p: echo(portcall.Object.__new__(portcall.Object)), Argument,
        "Object that is not initialised"),
    Bad("an unmade array", lambda p: len(portcall.Array.__new__(portcall.Array)), ValueError,
        "Array is not initialised"),
    Bad("an unmade map", lambda p: len(portcall.Map.__new__(portcall.Map)), ValueError, "Map is not initialised"),
    Bad("an unmade tensor", lambda p: portcall.Tensor.__new__(portcall.Tensor).shape, ValueError, "not initialised"),
    Bad("an unmade module", lambda p: portcall.Module.__new__(portcall.Module)["f"], Argument,
        "Module that is not initialised"),
    Bad("an object of its class", lambda p: portcall.Object(), TypeError, "made by a function of portcall"),
    Bad("a module of its class", lambda p: portcall.Module(), TypeError, "made by a function of portcall"),
    Bad("a function of its class", lambda p: portcall.PackedFunc(len), TypeError, "use portcall.convert"),
    Bad("a call that fails silently", lambda p: p.native["fail_silently"](), RuntimeError, "without setting an error"),
    Bad("a call that lets an exception through", lambda p: p.native["throw_number"](), RuntimeError,
        r"throw_number\(\) threw a C\+\+ exception"),
    Bad("a result of no type", lambda p: p.native["return_unknown_index"](), errors.InternalError,
        "unknown type index 55"),
    Bad("a result that is borrowed", lambda p: p.native["return_borrowed_tensor"](portcall.empty(1)),
        errors.InternalError, "borrowed"),
    Bad("a callback with another signature", lambda p: apply(lambda: 1, 2), TypeError,
        "takes 0 positional arguments but 1 was"),
    Bad("a callback that returns what cannot be passed", lambda p: apply(lambda: "\ud800"), Argument, "UTF-8"),
    Bad("a callback that returns a loop", lambda p: apply(loop_of_lists), ValueError, "contains itself"),
    Bad("an endless recursion", lambda p: recurse(), RecursionError, "recursion"),
]  # fmt: skip

MAKING = [
    Bad("a negative extent", lambda p: portcall.empty((2, -1)), ValueError, "extent -1 of axis 1 is negative"),
    Bad("an extent that is a float", lambda p: portcall.empty((2.5,)), TypeError,
        "'float' object cannot be interpreted"),
    Bad("an extent that is text", lambda p: portcall.empty("34"), TypeError, "'str' object cannot be interpreted"),
    Bad("a shape that is None", lambda p: portcall.empty(None), TypeError, "'NoneType' object cannot be interpreted"),
    Bad("an extent beyond int64", lambda p: portcall.empty(2**64), ValueError, "too large"),
    Bad("a product beyond all memory", lambda p: portcall.empty((2**40, 2**40)), ValueError, "too large"),
    Bad("more than there is", lambda p: portcall.empty(2**48), MemoryError, "out of memory"),
    Bad("too many dimensions", lambda p: portcall.empty((1,) * 65), ValueError, "65 dimensions; at most 64"),
    Bad("a data type of no name", lambda p: portcall.empty(2, "float33x"), ValueError, "unknown data type 'float33x'"),
    Bad("a data type of no size", lambda p: portcall.empty(2, "void"), ValueError, "data type 'void'"),
    Bad("a data type of too many bits", lambda p: portcall.dtype("int256"), ValueError, "unknown data type 'int256'"),
    Bad("a data type of no lanes", lambda p: portcall.dtype("int8x0"), ValueError, "unknown data type"),
    Bad("a data type with a space", lambda p: portcall.dtype("int8 "), ValueError, "unknown data type"),
    Bad("a data type that is None", lambda p: portcall.dtype(None), Argument, "data type"),
    Bad("a data type that is an object", lambda p: portcall.dtype(object()), TypeError, "data type"),
    Bad("a data type that NumPy alone has", lambda p: portcall.dtype("M8[s]"), ValueError, "unknown data type"),
    Bad("a device of no kind", lambda p: portcall.device("abacus"), ValueError, "unknown device kind 'abacus'"),
    Bad("a device that is None", lambda p: portcall.device(None), Argument, "got NoneType"),
    Bad("a device of an unknown kind", lambda p: portcall.empty(2, device="hexagon"), errors.DeviceError, "'hexagon'"),
    Bad("a device that is not there", lambda p: portcall.empty(2, device="cpu:7"), errors.DeviceError, "got cpu:7"),
    Bad("a device of a number too wide", lambda p: portcall.device(2**40), OverflowError, "int"),
    Bad("a tensor of text", lambda p: portcall.tensor("abc"), Argument, "numbers that tensors can hold"),
    Bad("a tensor of None", lambda p: portcall.tensor(None), Argument, "numbers that tensors can hold"),
    Bad("a tensor of ragged lists", lambda p: portcall.tensor([[1], [2, 3]]), ValueError, "inhomogeneous"),
    Bad("a copy of another shape", lambda p: portcall.empty(2).copyfrom(np.zeros(3, F32)), ValueError, "equal shapes"),
    Bad("a copy of another type", lambda p: portcall.empty(2).copyfrom(np.zeros(2, int)), TypeError,
        "equal data types"),
    Bad("a copy to text", lambda p: portcall.empty(2).copyto("x"), Argument, "expected an array"),
    Bad("a copy into a read-only array", lambda p: portcall.empty(4).copyto(readonly()), ValueError, "read-only"),
    Bad("from_dlpack of a number", lambda p: portcall.from_dlpack(5), Argument,
        "takes an object with __dlpack__, got int"),
    Bad("from_dlpack of a strange capsule", lambda p: portcall.from_dlpack(strange_capsule()), Argument,
        "unused DLPack capsule"),
    Bad("an array index out of range", lambda p: portcall.Array([1])[1], IndexError,
        "index 1 is out of range for 1 items"),
    Bad("a key that is not there", lambda p: portcall.Map({1: 2})[3], KeyError, "3"),
    Bad("a map of no pairs", lambda p: portcall.Map([1, 2]), TypeError, "sequence"),
    Bad("an array of a number", lambda p: portcall.Array(5), TypeError, "not iterable"),
    Bad("a policy of another name", lambda p: portcall.set_alignment_policy("maybe"), ValueError, "'copy' or 'error'"),
]  # fmt: skip

LOADS = [
    Bad("a file that is not there", lambda p: portcall.load_module(p.folder / "absent.so"), Load,
        "'.*absent.so': No such file"),
    Bad("a folder", lambda p: portcall.load_module(p.folder), Load, "cannot load"),
    Bad("a path of another type", lambda p: portcall.load_module(5), TypeError, "str, bytes or os.PathLike"),
    Bad("a path that is None", lambda p: portcall.load_module(None), TypeError, "NoneType"),
    Bad("a path of bytes", lambda p: portcall.load_module(os.fsencode(p.folder / "x.so")), Load,
        "'.*x.so': No such file"),
    Bad("an empty path", lambda p: portcall.load_module(""), Load, "cannot (load|open) ''"),
    Bad("a path with a NUL", lambda p: portcall.load_module("a\0b.so"), Load, "cannot have a NUL"),
    Bad("an empty file", lambda p: portcall.load_module(p.write("empty.so", b"")), Load, "cannot load '.*empty.so'"),
    Bad("a text file", lambda p: portcall.load_module(p.write("text.so", b"hello\n" * 50)), Load,
        "not an ELF|no shared library"),
    Bad("half a header", lambda p: portcall.load_module(p.write("half.so", elf_header()[:30])), Load, "cannot load"),
    Bad("a header alone", lambda p: portcall.load_module(p.write("header.so", elf_header())), Load, "cannot load"),
    Bad("another machine", lambda p: portcall.load_module(p.write("arm.so", elf_header(machine=183))), Load,
        "a library for AArch64; this process runs on"),
    Bad("another word size", lambda p: portcall.load_module(p.write("b32.so", elf_header(bits=1))), Load,
        "cannot load"),
    Bad("random bytes after a header",
        lambda p: portcall.load_module(p.write("noise.so", elf_header() + bytes(range(256)) * 9)), Load, "cannot load"),
    Bad("a library of no functions", lambda p: portcall.load_module(system_library()), Load,
        "exports no function of TVM"),
    Bad("a function that the library lacks", lambda p: p.native["ad"], NotFound,
        "has no function 'ad'; did you mean 'add'"),
    Bad("a function of the compiler", lambda p: p.native["_library_ctx"], NotFound, "has no function '_library_ctx'"),
    Bad("a function of no name", lambda p: p.native[""], NotFound, "has no function ''"),
    Bad("a function of a number", lambda p: p.native[5], Argument, "expected str, got int"),
    Bad("an entry that the library lacks", lambda p: p.native(), NotFound, "has no function 'main'"),
    Bad("a source that it lacks", lambda p: p.native.get_source(), ValueError, "has no source"),
    Bad("an import of nothing", lambda p: p.native.import_module(None), (ValueError, TypeError),
        "None|null"),
    Bad("an import of itself", lambda p: p.native.import_module(p.native), ValueError, "import"),
    Bad("an import of a tensor", lambda p: p.native.import_module(portcall.empty(1)), Argument,
        "expected Module, got Tensor"),
    Bad("a system library of a number", lambda p: portcall.system_lib(5), Argument,
        "expected str, got int"),
    Bad("a timing of nothing", lambda p: p.native.time_evaluator("absent", portcall.cpu()), NotFound,
        "has no function 'absent'"),
    Bad("a timing of no runs", lambda p: p.native.time_evaluator("add", portcall.cpu(), number=0)(1, 2), ValueError,
        "number"),
    Bad("a timing of no repeats", lambda p: p.native.time_evaluator("add", portcall.cpu(), repeat=0)(1, 2), ValueError,
        "repeat"),
    Bad("a timing without rest", lambda p: p.native.time_evaluator("add", portcall.cpu(), repeats_to_cooldown=0)(1, 2),
        ValueError, "repeats_to_cooldown"),
    Bad("a timing on no device", lambda p: p.native.time_evaluator("add", "abacus")(1, 2), ValueError,
        "unknown device kind"),
    Bad("a timing of a failing call", lambda p: p.native.time_evaluator("refuse", portcall.cpu())(5), ValueError,
        "refused 5"),
]  # fmt: skip

REGISTRATIONS = [
    Bad("a number", lambda p: portcall.register_func("portcall_test.x", 5), Argument,
        r"register_func\(\) takes a callable, got int"),
    Bad("None", lambda p: portcall.register_func(None), Argument, "takes a callable, got NoneType"),
    Bad("a number as a name", lambda p: portcall.register_func(5, len), Argument, "callable|name"),
    Bad("an empty name", lambda p: portcall.register_func("", len), ValueError, "needs a name"),
    Bad("a callable without a name", lambda p: portcall.register_func(functools.partial(len)), Argument,
        "no name of its own"),
    Bad("a decorated number", lambda p: portcall.register_func("portcall_test.x")(5), Argument,
        "takes a callable, got int"),
    Bad("a name that is taken", lambda p: portcall.register_func("testing.echo", len), errors.AlreadyRegisteredError,
        "already registered"),
    Bad("a removal of nothing", lambda p: portcall.remove_global_func("portcall_test.x"), NotFound,
        "no global function is named"),
    Bad("a class of no error", lambda p: portcall.register_error("X", int), Argument, "takes a class of exceptions"),
    Bad("an error that ends programs", lambda p: portcall.register_error("X", SystemExit), Argument,
        "takes a class of exceptions"),
    Bad("an error of a number", lambda p: portcall.register_error(5), Argument, "takes a class of exceptions"),
]  # fmt: skip


def loop_of_lists() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


def recurse() -> Any:
    return apply(recurse)


def strange_capsule() -> Any:
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(1, b"something else", None)


def system_library() -> str:
    """A library without any of our functions: the mathematics of C."""
    maps = Path("/proc/self/maps").read_text()
    found = re.search(r"/\S*/libm[.-]\S*", maps)
    assert found
    return found[0]


@pytest.mark.parametrize("bad", [*CALLS, *MAKING, *LOADS, *REGISTRATIONS], ids=lambda b: b.what)
def test_bad_input_gives_its_error_and_leaves_the_process_healthy(
    bad: Bad, native: portcall.Module, tmp_path: Path
) -> None:
    place = Place(native, tmp_path)
    with testing.no_leaks():
        with pytest.raises(bad.error, match=re.compile(bad.message, re.DOTALL)) as caught:
            bad.call(place)
        assert type(caught.value) is bad.error or isinstance(bad.error, tuple), type(caught.value)
        caught.value.__traceback__ = None  # its frames hold what the call made
        del caught
    assert native["add"](20, 22) == 42
    assert apply(lambda x: x + 1, 1) == 2
    with pytest.raises(ValueError, match="refused 1"):
        native["refuse"](1)
    assert portcall.get_global_func("portcall_test.x", allow_missing=True) is None


def test_bad_input_table_has_no_duplicates() -> None:
    whats = [bad.what for bad in (*CALLS, *MAKING, *LOADS, *REGISTRATIONS)]
    assert len(set(whats)) == len(whats) >= 60


def test_every_global_function_survives_what_it_does_not_expect(tmp_path: Path) -> None:
    """None, wrong numbers and wrong kinds of arguments: each gives an answer or an error, and no signal."""
    script = Path(__file__).parent / "scripts" / "call_everything.py"
    called: list[Any] = []
    ended_at: list[Any] = []
    while (not called or called[-1] != ".") and len(ended_at) < 10:
        command = [sys.executable, str(script), *called[-1:]]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=300)
        assert done.stdout, done.stderr
        called += done.stdout.split()
        if called[-1] != ".":
            ended_at.append((called[-1], done.returncode, done.stderr[-300:]))
    assert ended_at == []
    assert {"portcall.rpc.View", "ffi.ModuleGetFunction", "portcall.graph.create", "testing.apply"} <= set(called)


NESTED = """
import sys, threading, portcall
apply = portcall.get_global_func("testing.apply")

def nest(depth):
    return apply(nest, depth - 1) if depth else "the end"

sys.setrecursionlimit(10**8)
assert nest(100) == "the end" == apply(*[apply] * 100, lambda: "the end")
def attempt(*calls):
    for call in calls:
        try:
            call()
        except RecursionError as error:
            print(type(error).__name__)
in_cpp, in_python = lambda: apply(*[apply] * 100_000, lambda: 0), lambda: nest(100_000)
attempt(in_cpp)
threading.stack_size(1 << 20)  # which is used up sooner
thread = threading.Thread(target=attempt, args=(in_cpp, in_python))
thread.start()
thread.join()
"""


def test_nested_calls_too_deep_are_an_error_in_every_thread() -> None:
    done = subprocess.run([sys.executable, "-c", NESTED], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["RecursionError"] * 3), done.stderr[-300:]


PIPED = """
import sys
import portcall
from portcall import errors, inspect, rpc

def refuse(call, kind):
    try:
        call()
    except kind as error:
        assert "pipe.so" in str(error), error
    else:
        raise AssertionError("a pipe was taken for a file")

refuse(lambda: portcall.load_module("pipe.so"), errors.ModuleLoadError)
refuse(lambda: inspect.inspect_library("pipe.so"), errors.ModuleLoadError)
with rpc.LocalSession() as session:
    refuse(lambda: session.upload("pipe.so"), OSError)
    refuse(lambda: session.upload("pipe.so", check=False), OSError)
"""


def test_file_arguments_refuse_a_pipe(tmp_path: Path) -> None:
    """Nobody writes into it: opening it would wait forever."""
    os.mkfifo(tmp_path / "pipe.so")
    commands = (["-c", PIPED], ["-m", "portcall", "inspect", "pipe.so"], ["-m", "portcall", "run", "pipe.so", "f"])
    for command, code in zip(commands, (0, 1, 1), strict=True):
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == code, (command, done.stderr)
