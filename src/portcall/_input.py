# SPDX-License-Identifier: Apache-2.0
"""Open what is read whole: ordinary files, and nothing that would be waited for."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO


def open_input(path: str | os.PathLike[str]) -> BinaryIO:
    """Open an ordinary file for reading.

    Raises:
        FileNotFoundError, PermissionError, IsADirectoryError: as ``open`` does.
        OSError: it is a pipe, a socket or a device.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe without a writer does not block
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", os.fspath(path))
