# SPDX-License-Identifier: Apache-2.0
"""What all tests share: the compiled libraries, names in the registry, and the check that nothing is left behind."""

from __future__ import annotations

import gc
import hashlib
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pytest
from hypothesis import settings

import portcall
import portcall.graph.ir
import portcall.rpc.client._session  # the classes of errors that it registers stay
from costs import SLOW, function_of
from kernels import libraries as kernel_libraries
from portcall import _core, testing, toolchain
from portcall._module import SESSION_LIBRARY, VM_LIBRARY, load_plugin
from portcall.rpc.server._objects import functions_for_objects
from rpc import board, sandboxed

ROOT = Path(__file__).parents[1]
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as shells have it for what they run in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What tests start runs without torch, which TVM would import and nobody uses there; this process has it.
LEAN = str(Path(__file__).parent / "lean")
os.environ["PYTHONPATH"] = LEAN
sys.path[:] = [folder for folder in sys.path if folder != LEAN]

# TVM's pool spins in sched_yield before a thread sleeps or ends: for minutes where other processes take each turn.
os.environ.setdefault("TVM_THREAD_POOL_SPIN_COUNT", "0")

# Binaries of kernels, and what drivers and compilers keep, stay from run to run, and out of the user's folder.
os.environ["XDG_CACHE_HOME"] = str(ROOT / "build" / "test-cache")

# `make test` tries the same generated inputs each time; `make explore` draws new ones.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None)
settings.load_profile("same")

NATIVE = Path(__file__).parent / "native"
# Files whose tests need Redis, OpenCL or Chromium, or the wheel, which compiles everything once more.
NEED_MORE = {"test_browser.py", "test_forwarding.py", "test_opencl.py", "test_redis.py", "test_redis_faults.py",
             "test_deploy.py", "test_ssh.py", "test_wheel.py"}  # fmt: skip
FAILED = pytest.StashKey[bool]()
ORDER = pytest.StashKey[TextIO]()


def pytest_configure(config: pytest.Config) -> None:
    """Have each worker of pytest-xdist note what it runs: ``pytest @build/test-order/gw0.txt`` does the same again."""
    if hasattr(config, "workerinput"):
        path = ROOT / "build" / "test-order" / f"{config.workerinput['workerid']}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        config.stash[ORDER] = path.open("w", encoding="utf-8", buffering=1)


def pytest_unconfigure(config: pytest.Config) -> None:
    if ORDER in config.stash:
        config.stash[ORDER].close()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if ORDER in item.config.stash:
        print(item.nodeid, file=item.config.stash[ORDER])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if board.under_test() or sandboxed.mode():
        module = sandboxed if sandboxed.mode() else board
        left_out = [item for item in items if module.reason_to_leave_out(item.name)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    slow = {line.partition(" ")[0] for line in SLOW.read_text().splitlines()}
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "libraries" in fixtures:  # apache-tvm compiles them
            item.add_marker(pytest.mark.peers)
        needs_more = "opencl_plugin" in fixtures or item.path.name in NEED_MORE
        if function_of(item.nodeid) in slow or needs_more:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def opencl_plugin() -> None:
    """Load the plug-in before a test that uses it: it stays in the process, with what its driver starts."""
    assert portcall.opencl().exist, "no OpenCL: apt install pocl-opencl-icd ocl-icd-libopencl1"


@pytest.fixture(scope="session")
def cache_dir() -> Path:
    """Where compiled libraries are kept from run to run, by content."""
    return Path(os.environ.get("PORTCALL_TEST_CACHE") or ROOT / "build" / "test-libraries")


@pytest.fixture(scope="session")
def libraries(cache_dir: Path) -> dict[str, Path]:
    """Every library of tests/kernels by name. A test that uses this is marked ``peers``."""
    built = kernel_libraries.build_all(cache_dir)
    portcall.load_module(built["tvm_ffi_objects_unlinked"])  # its types and their constructors stay in the process
    return built


@pytest.fixture(scope="session")
def c_libraries(cache_dir: Path) -> dict[str, Path]:
    """The libraries of tests/kernels that a C compiler makes; they need no peer package."""
    return kernel_libraries.build_group("c", cache_dir)


@pytest.fixture(scope="session")
def build_native(cache_dir: Path) -> Callable[[str], Path]:
    """Compile a C++ source of tests/native with portcall's headers; returns the library, cached by content."""

    def build(name: str) -> Path:
        source = NATIVE / name
        headers = sorted(toolchain.include_dir().rglob("*.h"))
        digest = hashlib.sha256()
        for path in (source, *sorted(NATIVE.glob("*.h")), *headers):
            digest.update(path.read_bytes())
        digest.update(toolchain.find_compiler("c++").version().encode())
        folder = cache_dir / "native"
        folder.mkdir(parents=True, exist_ok=True)
        library = folder / f"{source.stem}-{digest.hexdigest()[:16]}.so"
        if not library.exists():  # two processes may both compile it: each renames a complete file into place
            toolchain.create_shared(source, library)
        return library

    return build


@pytest.fixture
def register() -> Iterator[Callable[..., portcall.PackedFunc]]:
    """``register(name, func)``: a global function for the time of one test."""
    names = []

    def add(name: str, func: Callable[..., Any]) -> portcall.PackedFunc:
        packed = portcall.register_func(name, func)
        names.append(name)
        return packed

    yield add
    for name in names:
        portcall.remove_global_func(name)


@pytest.fixture
def registrations_undone() -> Iterator[None]:
    """Take back the error classes, value types and classes for types of C++ that one test registers."""
    before = {table: dict(entries) for table, entries in _core.registries().items()}
    yield
    for table, entries in _core.registries().items():
        for key in [key for key, value in entries.items() if not _is_type_of_its_own(value)]:
            if key in before[table]:
                entries[key] = before[table][key]
            else:
                del entries[key]


@pytest.fixture(scope="session", autouse=True)
def _other_libraries() -> None:
    """Load the libraries beside the core before the first test: what they register stays."""
    portcall.ir.structural_equal(None, None)
    for library in (VM_LIBRARY, SESSION_LIBRARY):
        load_plugin(library)
    functions_for_objects()  # kept for sessions with this process
    for kind in ("graph", "lm", "cuda", "opencl"):  # which touches no driver
        portcall.get_global_func("portcall.LoadPlugin")(kind)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    item.stash[FAILED] = item.stash.get(FAILED, False) or report.failed  # type: ignore[attr-defined]
    return report


@pytest.fixture(autouse=True)
def _nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that leaves nodes of the core, threads, child processes, open files, registrations or settings."""
    gc.collect()
    gc.freeze()  # what is there now is not garbage: the next collection takes a millisecond and not a hundred
    before, state = _what_is_there(), _state()
    yield
    if request.node.stash.get(FAILED, False):
        return  # its traceback holds on to everything; one failure is enough
    request.node.funcargs.clear()  # what fixtures made for this test is over, and goes now
    until = time.monotonic() + float(os.environ.get("PORTCALL_TEST_LEFT_S", "5"))
    while (left := _left_behind(before, state)) and time.monotonic() < until:
        time.sleep(0.01)  # a thread of a session that has ended leaves a moment later
    assert not left, f"left behind: {', '.join(left)}"


def _left_behind(before: dict[str, int], state: dict[str, Any]) -> list[str]:
    gc.collect()
    left = [thing for thing, count in _what_is_there().items() if count > before.get(thing, 0)]
    now = _state()
    left += [f"a change of {thing}" for thing in state.keys() | now.keys() if state.get(thing) != now.get(thing)]
    return left


def _state() -> dict[str, Any]:
    """Return what the tests of a process share, by a name that says what it is. None of it may change for good."""
    names = portcall.list_global_func_names()
    state: dict[str, Any] = {f"global function {name}": portcall.get_global_func(name).handle_value for name in names}
    for table, entries in _core.registries().items():
        state |= {f"{table} {key}": id(value) for key, value in entries.items() if not _is_type_of_its_own(value)}
    state |= {f"variable {name}": value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    state |= {f"handler of {number.name}": signal.getsignal(number) for number in signal.Signals}
    state |= {f"logger {name}": (log.level, tuple(log.handlers)) for name, log in _loggers().items()}
    os.umask(mask := os.umask(0))
    return state | {
        "current directory": os.getcwd(),
        "umask": mask,
        "sys.path": list(sys.path),
        "recursion limit": sys.getrecursionlimit(),
        "trace function": sys.gettrace(),
        "garbage collector": (gc.isenabled(), gc.get_threshold()),
        "cores": os.sched_getaffinity(0),
        "open files allowed": resource.getrlimit(resource.RLIMIT_NOFILE),
        "timeout of sockets": socket.getdefaulttimeout(),
        "NumPy's error handling": np.geterr(),
    }


def _is_type_of_its_own(value: Any) -> bool:
    """Whether a registered class leaves other tests unchanged: its type exists with it only, or portcall made it."""
    return isinstance(value, type) and ("__portcall_own__" in vars(value) or value.__module__.startswith("portcall"))


def _loggers() -> dict[str, logging.Logger]:
    """The loggers that are ours or everybody's; other packages make theirs when they are imported."""
    known = logging.root.manager.loggerDict.items()
    ours = {name: log for name, log in known if isinstance(log, logging.Logger) and name.startswith("portcall")}
    return {"root": logging.root} | ours


def _what_is_there() -> dict[str, int]:
    """Count what a test may leave behind, by a name that says what it is."""
    counts = {f"nodes of type {key}": n for key, n in testing.live_nodes().items()}
    things = [f"thread {t.name!r}" for t in threading.enumerate()]
    things += [f"child process {pid}" for pid in _children()]
    things += [f"open file {target}" for target in _open_files()]
    for thing in things:
        counts[thing] = counts.get(thing, 0) + 1
    return counts


def _children() -> list[str]:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # there are none
        return []
    me = str(os.getpid())
    return [process.name for process in Path("/proc").iterdir() if process.name.isdigit() and _parent(process) == me]


def _parent(process: Path) -> str:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[1]
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return ""


def _open_files() -> list[str]:
    found = []
    for entry in os.scandir("/proc/self/fd"):
        try:
            found.append(os.readlink(entry.path))
        except FileNotFoundError:  # the descriptor of this very listing
            continue
    return found


@pytest.fixture(scope="session")
def native(build_native: Callable[[str], Path]) -> portcall.Module:
    """The C++ functions of tests/native/functions.cc. Loading it registers ``portcall_test.…`` for good."""
    return portcall.load_module(build_native("functions.cc"))


@pytest.fixture(scope="session")
def fake_device(build_native: Callable[[str], Path]) -> portcall.Module:
    """The fake accelerator of tests/native/fake_device.cc: loading it registers the devices ext_dev:0 and ext_dev:1."""
    return portcall.load_module(build_native("fake_device.cc"))


@pytest.fixture
def vm_pools() -> Iterator[None]:
    """Free what the Relax VM keeps for its next run, once the test is over."""
    yield
    gc.collect()  # tracebacks hold results
    portcall.get_global_func("vm.builtin.memory_manager.clear")()
