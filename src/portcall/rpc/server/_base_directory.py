# SPDX-License-Identifier: Apache-2.0
"""The directory of a server, which the directories of its sessions are in; and those that killed servers left behind.

A server keeps a lock on its directory as long as it lives, so one without a lock is nobody's.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterator

PREFIX = "portcall-server-"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def make_base_directory(place: str) -> tuple[str, int]:
    """Make a directory for a server in ``place``, the system's for such when empty.

    Returns:
        Its path, and a descriptor that holds the lock until it is closed.

    Raises:
        OSError: there is no such place, or no room in it.
    """
    while True:
        base = tempfile.mkdtemp(prefix=PREFIX, dir=place or None)
        descriptor = os.open(base, _FOLDER)
        if _lock(descriptor) and os.path.exists(base):
            return base, descriptor
        os.close(descriptor)  # another server was quicker, and took it for one that was left behind


def abandoned_directories(place: str) -> Iterator[str]:
    """Give the directories of servers of this user that were killed; each stays locked until the next is asked for."""
    folder = place or tempfile.gettempdir()
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(folder)):
            if not name.startswith(PREFIX):
                continue
            path = os.path.join(folder, name)
            with contextlib.suppress(OSError):
                descriptor = os.open(path, _FOLDER)
                try:
                    if os.fstat(descriptor).st_uid == os.getuid() and _lock(descriptor):
                        yield path
                finally:
                    os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
