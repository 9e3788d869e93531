# SPDX-License-Identifier: Apache-2.0
"""The process of one session: serve, end.

Rules:

* The supervisor has let the client in before this process began, which never has the token or the key of TLS.
* The client may have sent requests already: this process says itself that the client is let in, before its answers.
* Whatever runs here may crash, hang or lie: every wait for it has a limit.
"""

from __future__ import annotations

import contextlib
import ctypes
import fnmatch
import functools
import importlib
import importlib.util
import io
import os
import re
import select
import signal
import site
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from portcall._function import convert, get_global_func, list_global_func_names
from portcall._module import Module, load_module, session_library
from portcall.rpc.client import _errors as _errors  # the classes of the errors that functions of a client raise
from portcall.rpc.server._files import Files
from portcall.rpc.server._messages import (
    WORKER_ARGUMENTS,
    Accepted,
    Configure,
    Message,
    StartWorker,
    decode,
)
from portcall.rpc.server._objects import register_object_functions
from portcall.rpc.server._options import ServerOptions, is_python_function
from portcall.rpc.server._session import allow_interrupts, register_standard_names
from portcall.rpc.server._traced import register_trace_functions, timer
from portcall.rpc.wire._facts import DEVICE_FAILED, OFFERED

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_LINE_BUFFERED = 1  # _IOLBF
_prctl = ctypes.CDLL(None).prctl  # looked up before the fork: each session would spend a quarter of a millisecond on it
_PROGRAM_SESSION = "rpc.PopenSession"
_FNMATCH_SPECIAL = re.compile(r"([\\*?\[\]])")
_loaded: list[Module] = []  # libraries stay loaded as long as the process lives


@dataclass(frozen=True)
class Offer:
    """What a session may use: patterns of the names of functions; those for files, which wait for its directory."""

    patterns: list[str]
    files: Files


def line_buffer_output() -> None:
    """Have what Python and C write reach the log line by line, though that is a pipe: a session may end at any time."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, _LINE_BUFFERED, ctypes.c_size_t(0))


def load_user_code(options: ServerOptions) -> Offer:
    """Run what --import names, load the libraries, and register what each session has: in the zygote, once for all.

    Raises:
        Exception: whatever the user's code raises.
    """
    before = set(list_global_func_names())
    _loaded.extend(load_module(path) for path in options.libraries)
    for number, name in enumerate(options.imports):
        if is_python_function(name):
            call_python_function(name)
        else:
            run_python_file(number, name)
    register_standard_names()
    register_trace_functions()
    added = sorted(set(list_global_func_names()) - before)
    in_farm = options.gate >= 0  # its clients are many, and need not trust each other
    files = Files(options.disk_limit, keeps=not in_farm)
    files.register()
    register_object_functions()
    allow_interrupts()
    return Offer([*OFFERED, *options.expose, *(_FNMATCH_SPECIAL.sub(r"\\\1", name) for name in added)], files)


def call_python_function(name: str) -> None:
    module, _, function = name.partition(":")
    getattr(importlib.import_module(module), function)()


def run_python_file(number: int, path: str) -> None:
    name = f"portcall_import_{number}_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"'{path}' is not a Python file (.py)")
    folder = os.path.dirname(path)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # it may import its neighbours
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def run_session(start: StartWorker, options: ServerOptions, load: Callable[[], Offer], in_sandbox: bool = False) -> int:
    """Serve one client in this process, which the sandbox started, or not; return the exit code."""
    client = start.client
    with contextlib.suppress(OSError):  # the client is gone, which the session notices
        os.write(client, bytes.fromhex(start.reply))  # it fits into an empty buffer
    if start.verdict:
        from portcall.rpc.server._capsules import keep_session  # few sessions are kept

        client = keep_session(client, start.verdict[0], options.capsules, protect_memory)
    if options.audit:
        from portcall.rpc.server._audit import keep_ledger  # few servers have one

        client = keep_ledger(client, options.audit, start.number, start.user, protect_memory)
    isolate_process(start)
    features = frozenset(filter(None, start.features.split(",")))
    contents = os.path.join(os.path.dirname(start.directory), "contents", start.credential)
    if options.sandbox:
        enter_sandbox(start.directory, contents, options, in_sandbox)
    offer = load()
    timer.enter(start.progress)
    session_library()["limit_resources"](options.memory_limit, options.disk_limit, options.cpu_limit)
    offer.files.enter(os.getcwd(), contents)
    pipes = [*start.stdout, *start.stderr] if features else []  # a client that may read an account of its end
    construct = constructor(options, offer.patterns, features, client)
    failed = session_library()["serve"](
        client, offer.patterns, options.max_frame, construct, start.progress, ",".join(features), pipes, flush_output,
    )  # fmt: skip
    return DEVICE_FAILED if failed else 0


def flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def isolate_process(start: StartWorker) -> None:
    """Become a separate process, which ends with its parent, in the session's directory."""
    session_library()["isolate"](start.directory, start.parent)
    os.environ["PWD"] = os.getcwd()
    os.environ["TMPDIR"] = temporary = os.path.join(start.directory, "tmp")
    if "tempfile" in sys.modules:  # it may have looked for a folder before
        sys.modules["tempfile"].tempdir = temporary  # type: ignore[attr-defined]


def enter_sandbox(directory: str, contents: str, options: ServerOptions, in_sandbox: bool) -> None:
    """Have the kernel confine this process, which goes on as a child of its own unless the sandbox started it."""
    library = session_library()
    if not in_sandbox:
        library["descend_into_sandbox"]()
    os.environ["HOME"] = os.path.join(directory, "files")
    library["enter_sandbox"](directory, contents, sandbox_paths(options))


@functools.cache
def sandbox_paths(options: ServerOptions) -> list[str]:
    """Return what Python and the options need in a sandbox."""
    named = [sys.prefix, sys.base_prefix, *site.getsitepackages(), site.getusersitepackages()]
    folders = {Path(__file__).resolve().parents[2], *(Path(name).resolve() for name in named)}
    widest = sorted(str(folder) for folder in folders if folders.isdisjoint(folder.parents))
    files = [name for name in (*options.imports, *options.libraries) if not is_python_function(name)]
    return [*widest, *files, *options.sandbox_paths]


def die_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it has ended already, perhaps before this process ran at all
        os._exit(1)


def protect_memory() -> None:
    """Have the kernel keep this process's memory, which has secrets, from other processes of this user."""
    _prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def take_variable(name: str) -> str:
    """Return an environment variable, and overwrite it, also where the kernel shows what this process began with."""
    value = os.environ.get(name, "")
    libc = ctypes.CDLL(None)
    libc.getenv.restype = ctypes.c_void_p
    where = libc.getenv(os.fsencode(name))
    if where:
        ctypes.memset(where, 0, len(os.fsencode(value)))
        os.environ.pop(name, None)
    return value


# ---- Serving ------------------------------------------------------------------------------------------------------


def constructor(options: ServerOptions, patterns: list[str], features: frozenset[str], client: int) -> Any:
    """Return the function that makes the session that a client asks for by name, instead of one of this process."""

    def construct(name: str, *args: Any) -> Module:
        if name == "rpc.LocalSession":
            if args:
                raise ValueError("rpc.LocalSession takes no arguments")
            local: Module = get_global_func("portcall.rpc.LocalSession")(patterns, "values" in features)
            return local
        if name == "rpc.Connect":
            if not options.allow_connect:
                raise PermissionError("this server does not go on to others for its clients; see --allow-connect")
            return connect_further(features, client, *args)
        if name == _PROGRAM_SESSION:
            if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
                raise PermissionError(f"this server starts no programs for its clients; see --expose {name}")
            from portcall.rpc.server import _program

            return _program.session_of_program(*args)
        known = f"rpc.LocalSession, rpc.Connect and {_PROGRAM_SESSION}"
        raise PermissionError(f"this server makes no sessions with '{name}', only with {known}")

    return convert(construct)


def connect_further(
    features: frozenset[str], client: int, url: str, port: int, key: str = "", logging: bool = False, *further: Any
) -> Module:
    """Open the session that a client's requests go on to; that takes as long as the client waits for it.

    Objects by value, functions of the client, and what they are called with go through this process as they are.
    """
    from portcall.rpc.client._connect import connect_without
    from portcall.rpc.client._deadline import Stop

    withheld, stop = {"callback", "values"} - features, Stop()
    with calling_when_gone(client, stop.stop):
        return connect_without(withheld, url, port, key, None, constructor_args=further, stop=stop).module


@contextlib.contextmanager
def calling_when_gone(client: int, action: Callable[[], None]) -> Iterator[None]:
    """Call ``action`` when the client of this descriptor closes its connection during the block."""
    import threading

    ended, end = os.pipe()

    def watch() -> None:
        poll = select.poll()
        poll.register(client, select.POLLRDHUP)
        poll.register(ended, 0)  # its other end is closed
        if any(descriptor == client for descriptor, _ in poll.poll()):
            action()

    thread = threading.Thread(target=watch, name="portcall-client-watch")
    thread.start()
    try:
        yield
    finally:
        os.close(end)
        thread.join()
        os.close(ended)


# ---- A separate process ------------------------------------------------------------------------------------------


def exit_with(session: Callable[[], int]) -> None:
    """End this process with what ``session`` returns; nothing of the parent's is cleaned up a second time."""
    code = 1
    try:
        code = session()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def read_arguments(accepted: Accepted) -> tuple[Message, ServerOptions]:
    """Return what the command line of a process that was spawned says: its own message, and the server's options."""
    line_buffer_output()
    given, start = (decode(os.fsencode(text), accepted) for text in sys.argv[1:3])
    assert isinstance(given, Configure)
    return start, ServerOptions.from_dict(given.options)


def main() -> None:
    """Serve a session in a fresh process: the way where forking is not safe."""
    start, options = read_arguments(WORKER_ARGUMENTS)
    if options.sandbox:
        session_library()["prepare_sandbox"]()
    assert isinstance(start, StartWorker)
    exit_with(lambda: run_session(start, options, lambda: load_user_code(options)))
