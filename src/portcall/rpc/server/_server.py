# SPDX-License-Identifier: Apache-2.0
"""Running a server: in this process, as the command does, or in a separate one, for programs and tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any

from portcall.errors import ConnectError
from portcall.rpc.server._log import Log
from portcall.rpc.server._options import ServerOptions as ServerOptions
from portcall.rpc.server._supervisor import Supervisor
from portcall.rpc.wire._address import Address

STOP_TIMEOUT = 15.0  # seconds until a server that does not stop is killed
_PROGRAM = "from portcall.rpc.server._server import main; main()"


def serve(options: ServerOptions, on_ready: Callable[[Address], None], *, program: int = 0) -> int:
    """Serve in this process until SIGTERM, SIGINT or SIGHUP, and return the signal's number.

    Call it from the main thread of a process that has no other thread.

    Parameters:
        options: how to serve.
        on_ready: called with the address once clients can connect.
        program: id of a process to end with; 0 for none.

    Raises:
        ValueError, OSError: it cannot listen there; the message says what to do.
        StartError: the imported code fails.
    """
    return Supervisor(options, Log(options.log), on_ready, program).run()


class Server:
    """A server in a separate process; a context manager. It ends with this process, whatever happens; processes that
    are forked from this one may use it, but do not end it.

    Takes the options of ``ServerOptions`` by name; by default it takes a free port, and logs nothing::

        with portcall.rpc.Server(key="rasp", imports=["my_functions.py"]) as server:
            remote = portcall.rpc.connect(server.host, server.port, key="rasp")

    Attributes:
        options: those that it was started with.
        host, port: where it listens; a Unix socket has port 0.
        address: the same as text, ``host:port`` or ``unix:/path``, as ``connect`` takes it.
        pid: of its supervisor.

    Raises:
        ConnectError: it does not start; the message has its reason.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, key: str = "", **options: Any) -> None:
        given = {"log": "none", **options, "host": host, "port": port, "key": key, "stop_with_stdin": True}
        gate = int(given.get("gate", -1))
        self.options = ServerOptions(**given)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=(gate,) if gate >= 0 else (),
        )
        self.pid = self._process.pid
        self._program = os.getpid()
        try:
            ready = self._start()
        except BaseException:
            self.terminate()
            raise
        self.host: str = ready["host"]
        self.port: int = ready["port"]
        self.address: str = ready["address"]

    def _start(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"options": self.options.to_dict(), "program": os.getpid()}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        ready: dict[str, Any] = json.loads(line) if line else {"error": "it ended; see what it wrote"}
        if "error" in ready:
            raise ConnectError(f"the server does not start: {ready['error']}")
        return ready

    @property
    def running(self) -> bool:
        """Whether the server's process is there."""
        return self._process.poll() is None

    def terminate(self) -> int:
        """Stop the server, wait until it and its sessions have ended, and return its exit code."""
        if os.getpid() != self._program:  # a fork of ours
            return 0
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        return self._process.wait()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.terminate()

    def __repr__(self) -> str:
        return f"<portcall.rpc.Server on {self.address}{'' if self.running else ', stopped'}>"


def main() -> None:
    """Serve with the options on the first line of standard input, and say on standard output when ready."""

    def say(facts: dict[str, Any]) -> None:
        sys.stdout.write(json.dumps(facts) + "\n")
        sys.stdout.flush()

    # Not through sys.stdin, which would read ahead.
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(sys.stdin.fileno(), 1)
        if not piece:
            return
        line += piece
    try:
        given = json.loads(line)
        options = ServerOptions.from_dict(given["options"])
        serve(options, lambda address: say({**address.to_dict(), "pid": os.getpid()}), program=given["program"])
    except Exception as error:
        say({"error": str(error) or type(error).__name__})
        sys.exit(1)
