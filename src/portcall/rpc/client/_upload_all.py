# SPDX-License-Identifier: Apache-2.0
"""One file for several sessions at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from portcall.rpc.client._activity import Progress
from portcall.rpc.client._session import Session


def upload_all(
    sessions: Sequence[Session], source: str | os.PathLike[str], target: str | None = None,
    progress: Progress | None = None,
) -> list[str]:  # fmt: skip
    """Send a file to several sessions at once, and return its name in each.

    Parameters:
        sessions, source, target: as of ``Session.upload``.
        progress: called with the bytes sent to all of them, and the bytes in all.

    Raises:
        RPCError: as ``Session.upload``, for the first session that failed, when all others are done.
    """
    done = [0] * len(sessions)
    lock = threading.Lock()

    def advance(number: int) -> Callable[[int, int], None] | None:
        def count(sent: int, size: int) -> None:
            with lock:
                done[number] = sent
                if progress is not None:
                    progress(sum(done), size * len(sessions))

        return count

    with ThreadPoolExecutor(max(1, len(sessions)), "portcall-upload") as pool:
        uploads = [
            pool.submit(session.upload, source, target, advance(number)) for number, session in enumerate(sessions)
        ]
    return [upload.result() for upload in uploads]
