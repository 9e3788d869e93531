# SPDX-License-Identifier: Apache-2.0
"""The servers of a run, each pinned to a core with ``taskset``, and this process, which is their client.

The core of a server is that of its sessions too: the processes that it starts inherit it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
HOST = "127.0.0.1"
READY = "listening on "  # portcall's first line, and that of rpc_raw.py
PEER_READY = "bind to "  # in what apache-tvm's server logs
PATIENCE = 10.0  # seconds for a server to stop


@dataclass(frozen=True)
class Cores:
    """Which core the client and which one the servers have to themselves, as far as the machine's other users allow."""

    client: int
    server: int


def choose_cores() -> Cores:
    usable = sorted(os.sched_getaffinity(0))
    return Cores(usable[-1], usable[-2] if len(usable) > 1 else usable[-1])


@contextlib.contextmanager
def pinned_to(core: int) -> Iterator[None]:
    """Keep this thread on a core for a while."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@dataclass(frozen=True)
class Server:
    """A server that is ready.

    Attributes:
        port: where it listens, on the loopback interface.
        pid: of the process that was started.
    """

    port: int
    pid: int


@contextlib.contextmanager
def our_server(core: int, *words: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "portcall", "serve", "--port", "0", "--silent", *words]
    with started(command, core) as (server, output):
        yield Server(read_port(output, READY), server.pid)


@contextlib.contextmanager
def raw_server(core: int) -> Iterator[Server]:
    with started([sys.executable, str(HERE / "rpc_raw.py")], core) as (server, output):
        yield Server(read_port(output, READY), server.pid)


@contextlib.contextmanager
def peers_server(core: int) -> Iterator[Server]:
    """Start apache-tvm's server, which serves one session at a time."""
    port = free_port()
    options = ["--host", HOST, "--port", str(port), "--port-end", str(port + 1)]
    with started([sys.executable, "-m", "tvm.exec.rpc_server", *options], core) as (server, output):
        yield Server(read_port(output, PEER_READY), server.pid)


@contextlib.contextmanager
def started(command: Sequence[str], core: int) -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """Run a server on a core, and end it with all processes that it started."""
    process = subprocess.Popen(
        ["taskset", "-c", str(core), *command],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        yield process, process.stdout
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
        with contextlib.suppress(ProcessLookupError):  # those that it left behind
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def read_port(output: Any, mark: str) -> int:
    said = []
    for line in output:
        said.append(line)
        if mark in line:
            return int(line.rpartition(":")[2])
    raise RuntimeError(f"the server did not start:\n{''.join(said)}")


def free_port() -> int:
    with socket.create_server((HOST, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
