# SPDX-License-Identifier: Apache-2.0
"""A server as users start it, for tests: ``with serving("--key", "rasp") as server``."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rpc import board, sandboxed

Program = Literal["python", "board"]
FUNCTIONS = """
import os, signal, sys, time
import portcall

def register(name):
    return lambda f: portcall.register_func("demo." + name, f)

@register("scale")
def scale(x, k): return x * k
@register("fail")
def fail(text): raise ValueError(text)
@register("crash")
def crash(number): os.kill(os.getpid(), number)
@register("exit")
def exit(code): os._exit(code)
@register("leave")
def leave(code): sys.exit(code)
@register("hang")
def hang(): time.sleep(1000)
@register("pid")
def pid(): return os.getpid()
@register("cwd")
def cwd(): return os.getcwd()
@register("environment")
def environment(name): return os.environ.get(name, "")
@register("keep")
def keep(nbytes): return len(bytearray(nbytes))
@register("fill")
def fill(tensor, value): tensor.numpy().fill(value)
@register("make")
def make(n):
    import numpy
    return portcall.tensor(numpy.arange(n, dtype="float32"))
@register("adder")
def adder(n): return lambda x: x + n
@register("peak")
def peak(): return 1024 * int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])
@register("litter")
def litter(nbytes):
    with open("litter", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, nbytes)
@register("start")
def start(): return __import__("subprocess").Popen(["sleep", "1000"]).pid
"""


@dataclass
class Serving:
    """A running server: what it said when it was ready, and its log as it goes."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]
    work: Path
    log: list[dict[str, Any]] = field(default_factory=list)
    stopped: bool = False
    _log: Any = None

    @property
    def address(self) -> str:
        return str(self.ready["address"])

    @property
    def port(self) -> int:
        return int(self.ready["port"])

    def event(self, name: str, accept: Callable[[dict[str, Any]], bool] = lambda _: True) -> dict[str, Any]:
        """Wait for the next event of that name, or of one of several names, in the log, and return it."""
        for line in self._log:
            if line.startswith("{"):
                self.log.append(json.loads(line))
                if self.log[-1]["event"] in name.split() and accept(self.log[-1]):
                    return self.log[-1]
        raise AssertionError(f"no event {name!r}: {self.log}")

    def lines(self) -> Iterator[str]:
        """The lines of the log from here on, as they come; ends with the server."""
        yield from self._log

    def ended(self, peer: str) -> dict[str, Any]:
        """Wait until the session of a client has ended, and return what the log says of that."""
        return self.event("ended", lambda event: event["peer"] == peer)

    def directories(self) -> list[Path]:
        return [path for base in self.work.iterdir() for path in base.iterdir()]

    def stop(self) -> int:
        self.stopped = True
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


def command_of(program: Program, functions: Path) -> list[str]:
    """The words that start a server with functions: those of a Python file, or their like in C++."""
    if program == "board":
        return [str(board.program()), "--load-library", str(board.functions())]
    return [sys.executable, "-m", "portcall", "serve", "--import", str(functions)]


def wait_until(condition: Callable[[], bool]) -> None:
    """Look again and again; what never comes ends with the test's timeout."""
    while not condition():
        time.sleep(0.002)


@contextlib.contextmanager
def serving(
    *words: object,
    functions: str = FUNCTIONS,
    program: Program | None = None,
    work: Path | None = None,
    **environment: str,
) -> Iterator[Serving]:
    """Run a server on a free port with the functions above; stopped and checked at the end.

    Parameters:
        program: ``portcall serve``, or the server without Python; by default the one that this run of tests is for.
        work: where its directory is made; by default in a place of its own.
    """
    program = program or ("board" if board.under_test() else "python")
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        work = work or place / "work"
        work.mkdir(exist_ok=True)
        (place / "functions.py").write_text(functions)
        errors = stack.enter_context((place / "log").open("w"))
        given = list(map(str, words))
        if not {"--port", "--unix"} & set(given):
            given += ["--port", "0"]
        if sandboxed.mode() and not {"--sandbox", "--allow-connect"} & set(given):
            given += ["--sandbox", sandboxed.mode()]
        command = [*command_of(program, place / "functions.py"), "--json", "--log-json", *given]
        command += ["--work-dir", str(work)]
        process = stack.enter_context(
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, **environment}
            )
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (place / "log").read_text()
            log = stack.enter_context((place / "log").open())
            running = Serving(process, json.loads(line), work, _log=follow(log, process))
            yield running
            if not running.stopped:
                assert process.poll() is None, "the server ended by itself"
                assert running.stop() == 0
            assert list(running.work.iterdir()) == []
        except BaseException:
            sys.stderr.write((place / "log").read_text())
            raise
        finally:
            process.kill()


def follow(file: Any, process: subprocess.Popen[str]) -> Iterator[str]:
    """The lines of a file that a process writes, as they come; ends with the process."""
    started = ""
    while True:
        ended = process.poll() is not None
        piece = file.readline()
        if piece.endswith("\n"):
            yield started + piece
            started = ""
        elif piece:
            started += piece
        elif ended:
            return
        else:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.01)  # ends early when there is nothing more to come
