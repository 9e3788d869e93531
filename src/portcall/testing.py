# SPDX-License-Identifier: Apache-2.0
"""Checks for the tests of code that uses portcall.

The core counts the nodes it makes: strings, bytes, containers, tensors, functions, errors, modules. A test that ends
with more of them than it began with has lost a reference somewhere, in Python, in C++ or in a library.
"""

from __future__ import annotations

import gc
import os
import queue
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from portcall import _core
from portcall._compare import ArrayComparison as ArrayComparison
from portcall._compare import compare_arrays as compare_arrays
from portcall._function import get_global_func

if TYPE_CHECKING:
    from portcall.rpc._capsule_run import CapsuleRun
    from portcall.rpc._replay import Replay
    from portcall.rpc.wire._tls import TLSOptions

__all__ = [
    "ArrayComparison",
    "MemoryTransport",
    "compare_arrays",
    "conformance",
    "live_nodes",
    "memory_transports",
    "no_leaks",
    "read_capsule",
    "replay",
    "run_capsule",
]


def live_nodes() -> dict[str, int]:
    """Return how many nodes of each type are alive in this process, by type key, such as ``{"ffi.Tensor": 2}``.

    Types of which there are none are left out, and so are the function and the map that the question itself needs.
    Memory that is kept for later copies is given back first.
    """
    _core.release_spare_memory()
    counts: dict[str, int] = dict(get_global_func("portcall.LiveNodes")())
    return counts


@contextmanager
def no_leaks() -> Iterator[None]:
    """Check that a block does not leak nodes.

    Python's garbage collector runs at both ends. An exception that leaves the block is not hidden by the check.

    Raises:
        AssertionError: nodes leaked. The message has the count of each type.
    """
    gc.collect()
    before = live_nodes()
    yield
    gc.collect()
    after = live_nodes()
    left = [f"{after[key] - before.get(key, 0)} {key}" for key in after if after[key] > before.get(key, 0)]
    if left:
        raise AssertionError(f"left behind: {', '.join(left)}")


class MemoryTransport:
    """One end of a connection inside this process; see ``portcall.rpc.connect_over`` and ``serve_over``."""

    def __init__(self, incoming: queue.SimpleQueue[bytes], outgoing: queue.SimpleQueue[bytes]) -> None:
        self._incoming = incoming
        self._outgoing = outgoing
        self._left = b""
        self._ended = False

    def send(self, data: bytes) -> int:
        """Send all of the bytes."""
        self._outgoing.put(data)
        return len(data)

    def receive(self, most: int) -> bytes:
        """Wait for bytes; none once either end has closed."""
        if not self._left and not self._ended:
            self._left = self._incoming.get()
            self._ended = not self._left
        part, self._left = self._left[:most], self._left[most:]
        return part

    def close(self) -> None:
        """End the connection for both ends."""
        self._outgoing.put(b"")
        self._incoming.put(b"")


def memory_transports() -> tuple[MemoryTransport, MemoryTransport]:
    """Return the two ends of a connection inside this process."""
    one: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    other: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    return MemoryTransport(one, other), MemoryTransport(other, one)


def replay(path: str | os.PathLike[str]) -> Replay:
    """Return a server that answers as the one did whose session ``ConnectOptions(record=path)`` kept.

        with portcall.testing.replay("session.rec") as server, portcall.rpc.connect(server.address) as remote: ...

    Each client goes through the recording from its start. A request is answered as the first equal one that was not
    used yet; one that the recording does not have is answered with an error.

    Raises:
        ValueError: the file is not a recording, was cut off, or is damaged.
    """
    from portcall.rpc._replay import Replay

    return Replay(path)


def read_capsule(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the facts of a session that ``ConnectOptions(capsule=folder)`` kept: ``peer``, ``time``, ``message``,
    ``call`` (the function and the types of its arguments), ``signal``, ``stderr``, ``files`` (their sizes and SHA-256),
    ``features``, ``size`` (bytes of what was sent and answered). ``incomplete`` says why it cannot be run again, if so,
    and ``damaged`` why the file is not what was kept.

    Raises:
        ValueError: the file is no capsule, or its facts are damaged.
    """
    from portcall.rpc._capsule_run import read_capsule

    return read_capsule(path).facts


def run_capsule(
    path: str | os.PathLike[str], url: str = "", key: str = "", *, token: str | None = None,
    tls: TLSOptions | None = None, debugger: Sequence[str] = (), timeout: float = 300.0,
) -> CapsuleRun:  # fmt: skip
    """Do again what the client did in a session that ``ConnectOptions(capsule=folder)`` kept.

    By default in a process here, which may do what you may and loads its libraries: run those alone that you trust.

    Parameters:
        url, key, token, tls: a server of portcall, as for ``portcall.rpc.connect``.
        debugger: words in front of the command of the process here: ``["gdb", "--args"]``.
        timeout: seconds without an answer.

    Raises:
        ValueError: the file is no capsule, is damaged, or has no requests.
        TimeoutError: an answer did not come in time.
        RPCError: the server is not there, or lacks a feature that the session used.
    """
    from portcall.rpc._capsule_run import run_capsule

    return run_capsule(path, url, key, token=token, tls=tls, debugger=debugger, timeout=timeout)


def conformance() -> list[dict[str, Any]]:
    """Return golden vectors of the extensions between portcall peers, for other implementations of docs/wire.md.

    Each is a dict for JSON: ``name``, ``feature`` (of the hello), ``sender``, the bytes as ``hex``, and what they mean.
    """
    from portcall.rpc._conformance import vectors

    return vectors()
