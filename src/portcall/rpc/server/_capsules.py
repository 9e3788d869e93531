# SPDX-License-Identifier: Apache-2.0
"""``portcall serve --capsules N``: the server keeps the last sessions that crashed, of clients that agreed.

    client <──> keeper, a process of its own for each such session <──> the session's process
                  ^── the verdict, once the session has ended ── supervisor

The keeper has the frames in a file without a name (``client/_capsule``). The supervisor alone knows how a session
ended: it sends what the capsule is to say, or nothing, and never waits.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from portcall._folders import cache_folder
from portcall.rpc.client._capsule import Capsule
from portcall.rpc.client._record import FrameCutter
from portcall.rpc.server._between import stand_between
from portcall.rpc.wire._endings import Ending

LIMIT = 256 << 20  # bytes of a session; of one with more, the facts alone are kept
_PIECE = 1 << 16
_SUFFIX = ".capsule"


def capsule_folder() -> Path:
    """Return the folder that the servers of this user share, made if need be.

    Raises:
        OSError: there can be none, or others could write to it.
    """
    return cache_folder("capsules")


def send_verdict(pipe: int, ending: Ending, facts: dict[str, Any]) -> str:
    """Have a session kept that crashed, and return the name of its capsule; empty where there will be none."""
    if ending.kind.error != "RemoteCrashError":
        return ""
    name = f"crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(4).hex()}{_SUFFIX}"
    found = {"time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "message": ending.text, "call": ending.call,
             "signal": ending.signal, "stderr": ending.last_words}  # fmt: skip
    data = json.dumps({"name": name, "facts": {**facts, **found}}, ensure_ascii=False).encode(errors="replace")
    with contextlib.suppress(OSError):
        os.set_blocking(pipe, False)
        if os.write(pipe, data) == len(data):
            return name
    return ""


def keep_session(client: int, verdict: int, most: int, protect: Callable[[], object]) -> int:
    """Return a descriptor that carries the bytes of ``client``, which a keeper sees on their way.

    Parameters:
        verdict: the pipe from the supervisor, which is closed here.
        most: how many capsules the folder may have.
    """
    try:
        return stand_between(client, protect, lambda: Keeper(capsule_folder(), verdict, most))
    finally:
        os.close(verdict)


class Keeper:
    """Has what passes, until the supervisor says what becomes of it."""

    def __init__(self, folder: Path, verdict: int, most: int, limit: int = LIMIT) -> None:
        self._folder, self._verdict, self._most = folder, verdict, most
        self._capsule = Capsule(folder, limit)
        self._cutters = {mark: FrameCutter(limit) for mark in (b"\0", b"\1")}
        self._lock = threading.Lock()

    def requests(self, data: memoryview) -> None:
        self._take(b"\0", data)

    def answers(self, data: memoryview) -> None:
        self._take(b"\1", data)

    def _take(self, mark: bytes, data: memoryview) -> None:
        cutter = self._cutters[mark]
        with self._lock:
            self._capsule.writelines(mark + frame for frame in cutter.feed(bytes(data)))
            if cutter.too_long:
                self._capsule.drop(f"a message had more than {self._capsule.limit:,} bytes")

    def finish(self) -> None:
        data = b""
        while piece := os.read(self._verdict, _PIECE):
            data += piece
        if not data:
            return
        said = json.loads(data)
        try:
            with self._lock:
                self._capsule.keep(said["facts"], said["name"])
            remove_older(self._folder, self._most)
        except OSError as error:
            why = error.strerror or error
            print(
                f"--capsules: '{said['name']}' could not be kept in {self._folder}: {why}", file=sys.stderr, flush=True
            )


def remove_older(folder: Path, most: int) -> None:
    """Leave the last ``most`` capsules; several keepers may do this at the same time."""
    ages = []
    for path in folder.glob(f"crash-*{_SUFFIX}"):
        with contextlib.suppress(FileNotFoundError):
            ages.append((path.stat().st_mtime_ns, path))
    for _, path in sorted(ages)[:-most]:
        path.unlink(missing_ok=True)
