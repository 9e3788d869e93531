# SPDX-License-Identifier: Apache-2.0
"""What sessions take, measured once: memory of idle ones, how fast a full server opens one, what calls leave behind.

Rules: the memory of a server is the sum over its processes of the proportional set size (PSS), in which a page that n
processes share counts 1/n for each. Growth is that of a process's anonymous memory (RssAnon), after as much work as a
tenth of what is then counted.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from report import Limit
from rpc_peers import Server, our_server
from rpc_rows import ECHO, our_session

SESSIONS, OPENED = 200, 21
SESSION_LIMIT, OPEN_LIMIT = 10e6, 50.0  # bytes of an idle session; milliseconds
CALLS, TENSORS = 100_000, 10_000
GROWTH_LIMIT = 256 << 10  # bytes: less than the smallest leak in each tensor or call would be
SETTLE = 1.0  # seconds after the last session was opened


def limits(core: int, scale: float = 1.0) -> Iterator[Limit]:
    """Yield everything. A smaller ``scale`` makes the counts smaller, for a quick look."""
    with our_server(core) as server:
        yield from growth(server, int(CALLS * scale), int(TENSORS * scale))
    with our_server(core) as server:
        yield from idle_sessions(server, int(SESSIONS * scale))


def idle_sessions(server: Server, number: int) -> Iterator[Limit]:
    with our_session(server) as session:
        session.get_function(ECHO)(1)
    before = pss_of_tree(server.pid)
    with ExitStack() as stack:
        for _ in range(number):
            stack.enter_context(our_session(server)).get_function(ECHO)(1)
        time.sleep(SETTLE)
        each = (pss_of_tree(server.pid) - before) / number
        detail = f"the server before: {before / 1e6:.1f} MB"
        text = f"memory of one of {number} idle sessions"
        yield Limit("idle", text, round(each / 1e6, 3), SESSION_LIMIT / 1e6, "MB", detail)
        times = [1e3 * opening_time(server) for _ in range(OPENED)]
    text = f"open one more and call, {number} being idle"
    detail = f"median of {OPENED}; {min(times):.1f} to {max(times):.1f} ms"
    yield Limit("idle-open", text, round(statistics.median(times), 2), OPEN_LIMIT, "ms", detail)


def opening_time(server: Server) -> float:
    start = time.perf_counter()
    with our_session(server) as session:
        session.get_function(ECHO)(1)
        return time.perf_counter() - start


def growth(server: Server, calls: int, tensors: int) -> Iterator[Limit]:
    with our_session(server) as session:
        echo, array = session.get_function(ECHO), np.ones(4096, np.float32)

        def call(count: int) -> None:
            for i in range(count):
                echo(i)

        def make(count: int) -> None:
            for _ in range(count):
                session.tensor(array).numpy()

        worker = youngest(server.pid)
        yield from grown("calls", f"{calls:,} calls", call, calls, worker)
        yield from grown("tensors", f"{tensors:,} tensors made, fetched, dropped", make, tensors, worker)


def grown(key: str, text: str, work: Callable[[int], None], count: int, worker: int) -> Iterator[Limit]:
    work(count // 10)
    before = anonymous_memory(worker), anonymous_memory("self")
    work(count)
    after = anonymous_memory(worker), anonymous_memory("self")
    for end, old, new in zip(("server", "client"), before, after, strict=True):
        kib, detail = (new - old) / 1024, f"from {old / 1e6:.1f} MB"
        text_of_end = f"growth of the {end} by {text}"
        yield Limit(f"growth-{key}-{end}", text_of_end, kib, GROWTH_LIMIT / 1024, "KiB", detail)


def youngest(pid: int) -> int:
    """Return the process that was started last among those that descend from one."""
    return int(max(psutil.Process(pid).children(recursive=True), key=lambda process: process.create_time()).pid)


def pss_of_tree(pid: int) -> int:
    root = psutil.Process(pid)
    return sum(pss(process.pid) for process in (root, *root.children(recursive=True)))


def pss(pid: int) -> int:
    return field_of(Path(f"/proc/{pid}/smaps_rollup"), "Pss:")


def anonymous_memory(pid: Any) -> int:
    gc.collect()
    return field_of(Path(f"/proc/{pid}/status"), "RssAnon:")


def field_of(file: Path, name: str) -> int:
    """Return a line of a file of /proc that counts KiB, in bytes."""
    lines = [line for line in file.read_text().splitlines() if line.startswith(name)]
    return int(lines[0].split()[1]) * 1024
