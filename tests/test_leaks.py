# SPDX-License-Identifier: Apache-2.0
# mypy: disable-error-code="attr-defined, func-returns-value"
"""Nothing is left behind by any kind of call, by errors, or at the end of the process; and the checks would see it."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import portcall
from portcall import testing

ROOT = Path(__file__).parents[1]

echo = portcall.get_global_func("testing.echo")
apply = portcall.get_global_func("testing.apply")


# ---- The public checks -----------------------------------------------------------------------------------------------


def test_live_nodes_counts_by_type() -> None:
    before = testing.live_nodes()
    tensors = [portcall.empty(3) for _ in range(4)]
    array = echo(["a text on the heap", b"and some bytes, too", 2**80, tensors[0]])
    after = testing.live_nodes()
    grown = {key: after[key] - before.get(key, 0) for key in after if after[key] != before.get(key, 0)}
    assert grown == {"ffi.Tensor": 4, "ffi.Array": 1, "ffi.String": 1, "ffi.Bytes": 1, "ffi.BigInt": 1}
    del tensors, array
    assert testing.live_nodes() == before


def test_no_leaks_names_what_was_left() -> None:
    kept: list[Any] = []
    with pytest.raises(AssertionError, match=r"left behind: 2 ffi.Tensor$"), testing.no_leaks():
        kept += [portcall.empty(1), portcall.empty(1)]


def test_no_leaks_is_silent_when_nothing_is_left() -> None:
    with testing.no_leaks():
        echo([portcall.empty(1), {"a": [1, 2]}])


def test_no_leaks_collects_circles_first() -> None:
    with testing.no_leaks():
        circle: list[Any] = [portcall.empty(1)]
        circle.append(circle)
        del circle


def test_no_leaks_does_not_hide_an_error_of_the_block() -> None:
    kept = []

    def leak_and_fail() -> None:
        with testing.no_leaks():
            kept.append(portcall.empty(1))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        leak_and_fail()


# ---- The check of every test -----------------------------------------------------------------------------------------

# What a test may leave behind, and a line that does.
LEAKS = {
    "nodes of type ffi.Tensor": "kept.append(portcall.empty(1))",
    "nodes of type ffi.Function": "kept.append(portcall.convert(abs))",
    "thread 'left over'": "threading.Thread(target=threading.Event().wait, name='left over', daemon=True).start()",
    "child process": "kept.append(subprocess.Popen(['sleep', '60']))",
    "open file /proc": "kept.append(open('/proc/self/status'))",
    "open file socket:": "kept.append(socket.socket())",
    "a change of global function left.over": "portcall.register_func('left.over', abs)",
    "a change of global function testing.echo": "portcall.register_func('testing.echo', abs, override=True)",
    "a change of error class Left": "portcall.register_error('Left', type('Left', (Exception,), {}))",
    "a change of value type <class 'complex'>": (
        "portcall.ir.register_value_type(complex, 'test.left', encode=repr, decode=complex)"
    ),
    "a change of class of objects ffi.EnumState": (
        "portcall.ir.Enum; portcall.register_object('ffi.EnumState')(type('Mine', (portcall.Object,), {}))"
    ),
    "a change of alignment policy": "portcall.set_alignment_policy('error')",
    "a change of variable LEFT": "os.environ['LEFT'] = 'over'",
    "a change of current directory": "os.chdir('/')",
    "a change of umask": "os.umask(0o77)",
    "a change of handler of SIGUSR1": "signal.signal(signal.SIGUSR1, signal.SIG_IGN)",
    "a change of logger": "logging.getLogger().addHandler(logging.NullHandler())",
    "a change of sys.path": "sys.path.append('/left')",
    "a change of NumPy's error handling": "numpy.seterr(all='ignore')",
}
LEAKY = """
import logging, numpy, os, pathlib, portcall, signal, socket, subprocess, sys, threading
import pytest
kept = []
def teardown_module():
    [process.kill() for process in kept if isinstance(process, subprocess.Popen)]
@pytest.mark.parametrize("line", pathlib.Path(__file__).with_suffix(".txt").read_text().splitlines())
def test_that_leaves_something(line):
    exec(line)
"""


def errors_of_pytest(folder: Path, code: str, lines: Iterable[str] = ()) -> list[str]:
    """Run a file of tests with the checks of this suite; return what the errors say."""
    path = folder / "test_leaky.py"
    path.write_text(code)
    path.with_suffix(".txt").write_text("\n".join(lines))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
    done = subprocess.run(
        [*command, "-c", str(ROOT / "pyproject.toml"), str(path)],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "PORTCALL_TEST_LEFT_S": "0.2"},
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return re.findall(r"^E  +AssertionError: (left behind: .*)$", done.stdout, re.MULTILINE)


def test_leak_fixture_fails_a_test_that_leaks(tmp_path: Path) -> None:
    found = errors_of_pytest(tmp_path, LEAKY, LEAKS.values())
    assert len(found) == len(LEAKS), found
    for thing, error in zip(LEAKS, found, strict=True):
        assert thing in error


def test_leak_fixture_passes_a_test_that_does_not_leak(tmp_path: Path) -> None:
    assert errors_of_pytest(tmp_path, "import portcall\ndef test_it():\n    portcall.empty(1)") == []


# ---- Every kind of call ----------------------------------------------------------------------------------------------


class Thing:
    def __call__(self, *_: Any) -> None: ...


def raise_value_error(*_: Any) -> None:
    raise ValueError("on purpose")


def misaligned() -> np.ndarray[Any, Any]:
    raw = np.zeros(128, np.uint8)
    start = (4 - raw.ctypes.data) % 64
    return raw[start : start + 16].view(np.float32)


CALLS: dict[str, Callable[[portcall.Module], Any]] = {
    "small values": lambda lib: echo(1) and echo("short") and echo(b"raw") and echo(1.5),
    "values on the heap": lambda lib: (echo("a text on the heap"), echo(b"bytes on the heap"), echo(2**100)),
    "nested containers": lambda lib: echo([1, "a text on the heap", {"a key on the heap": [Thing(), None]}]),
    "shapes and types": lambda lib: (echo(portcall.Shape((1, 2))), echo(portcall.dtype("int8")), echo(portcall.cpu())),
    "pointers": lambda lib: echo(ctypes.c_void_p(5)),
    "objects": lambda lib: echo(Thing.__new__),
    "arrays": lambda lib: echo(np.zeros(3)).numpy(),
    "misaligned arrays": lambda lib: lib["fill"](misaligned(), 1.0),
    "the same array twice": lambda lib: (lambda a: lib["same_memory"](a, a))(misaligned()),
    "ReadOnly": lambda lib: lib["fill"](portcall.ReadOnly(misaligned()), 1.0),
    "DLPack": lambda lib: portcall.from_dlpack(np.from_dlpack(portcall.tensor([1, 2]))),
    "capsules that nobody used":
        lambda lib: (portcall.empty(2).__dlpack__(), portcall.empty(2).__dlpack__(max_version=(1, 0))),
    "a lent tensor": lambda lib: lib["lend"](lambda t: t.numpy().__setitem__(0, 10)),
    "callbacks": lambda lib: apply(lambda x: [x, "a text on the heap"], {"k": [1]}),
    "callbacks in a thread of C++": lambda lib: lib["call_in_thread"](lambda x: [x], "a text on the heap"),
    "functions as values": lambda lib: echo([portcall.convert(Thing()), Thing()]),
    "many arguments": lambda lib: apply(lambda *xs: len(xs), *["a text on the heap"] * 20),
    "what C++ keeps and drops": lambda lib: (lib["keep"]([Thing(), portcall.empty(1)]), lib["kept"](), lib["drop"]()),
    "errors of C++": lambda lib: lib["refuse"](1),
    "errors of Python through C++": lambda lib: apply(raise_value_error, portcall.empty(1), "a text on the heap"),
    "errors of a thread": lambda lib: lib["call_in_thread"](raise_value_error, [1]),
    "silent errors": lambda lib: lib["fail_silently"](),
    "wrong arguments": lambda lib: lib["add"]("a text on the heap", [portcall.empty(1)]),
    "half-made arguments": lambda lib: lib["add"]([1, portcall.empty(1)], misaligned(), object()),
    "half-made containers": lambda lib: echo([portcall.empty(1), {"k": ["a text on the heap", "\ud800"]}]),
    "half-made tensors": lambda lib: portcall.empty((2, -1)),
    "a failed copy": lambda lib: portcall.empty(2).copyfrom(np.zeros(3, np.float32)),
    "errors as values": lambda lib: echo([ValueError("a"), KeyError("b")]),
    "registration":
        lambda lib: (portcall.register_func("leaks.x", Thing()), portcall.remove_global_func("leaks.x")),
    "look-ups": lambda lib: (portcall.list_global_func_names(), lib["add"], lib.list_function_names()),
    "missing functions": lambda lib: portcall.get_global_func("portcall_test.missing"),
}  # fmt: skip


def call_and_swallow(call: Callable[[portcall.Module], Any], lib: portcall.Module) -> None:
    with contextlib.suppress(ValueError, TypeError, RuntimeError):
        call(lib)


@pytest.mark.parametrize("what", CALLS)
def test_no_leaks_in_calls_of_every_kind(what: str, native: portcall.Module) -> None:
    """Neither nodes of the core nor blocks of Python's memory: each two hundred calls more would leave as many again.

    Of three rounds the one that left least counts: caches of Python's own grow once.
    """
    call = CALLS[what]
    for _ in range(20):
        call_and_swallow(call, native)
    left = []
    with testing.no_leaks():
        for _ in range(3):
            blocks = sys.getallocatedblocks()
            for _ in range(200):
                call_and_swallow(call, native)
            gc.collect()
            left.append(sys.getallocatedblocks() - blocks)
    assert min(left) < 100, f"{left} more blocks of Python's memory"


def test_shared_constants_keep_their_reference_counts(native: portcall.Module) -> None:
    constants = [None, True, False, 5, "interned", b"b", (), len, int, ValueError, np.float32]
    before = [sys.getrefcount(c) for c in constants]
    for _ in range(1000):
        for constant in constants:
            echo(constant)
            apply(lambda x: x, constant)
            echo([constant])
    assert all(abs(sys.getrefcount(c) - b) < 200 for c, b in zip(constants, before, strict=True))


def test_no_leaks_after_a_failing_call(native: portcall.Module) -> None:
    thing = Thing()
    gone = weakref.ref(thing)
    with pytest.raises(TypeError):
        native["add"](thing, [thing, {"k": thing}], thing)
    del thing
    gc.collect()
    assert gone() is None


def test_no_leaks_after_a_handled_exception() -> None:
    class Problem(Exception):
        pass

    def fail() -> None:
        raise Problem

    def handle() -> weakref.ref[Problem]:
        try:
            apply(fail)
        except Problem as problem:
            return weakref.ref(problem)
        raise AssertionError("nothing was raised")

    gone = handle()
    gc.collect()
    assert gone() is None


def test_no_leaks_of_a_function_in_a_cycle() -> None:
    """A PackedFunc hides what it holds from Python's collector; the object that holds it is visible."""
    thing = Thing()
    gone = weakref.ref(thing)
    thing.func = portcall.convert(len)
    thing.myself = thing
    del thing
    gc.collect()
    assert gone() is None


# ---- The end ---------------------------------------------------------------------------------------------------------


def test_no_leaks_over_a_whole_process(build_native: Callable[[str], Path]) -> None:
    """All but the functions that the library registered for good."""
    code = f"""
import gc, numpy as np, portcall
from portcall import testing
def work():
    lib = portcall.load_module({str(build_native("functions.cc"))!r})
    lib["fill"](np.zeros(1000, np.float32)[1:], 2.0)
    apply = portcall.get_global_func("testing.apply")
    apply(lambda *xs: list(xs), [1, "a text on the heap"], {{"k": portcall.empty(4)}})
    lib["call_in_thread"](lambda x: x, ["a text on the heap"])
    try:
        lib["refuse"](1)
    except ValueError:
        pass
work()
gc.collect()
before = testing.live_nodes()
for _ in range(50):
    work()
gc.collect()
assert testing.live_nodes() == before, (testing.live_nodes(), before)
assert set(before) <= {{"ffi.Function", "ffi.Module"}}, before
print("clean")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "clean\n", done.stderr
