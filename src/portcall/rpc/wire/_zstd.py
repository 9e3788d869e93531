# SPDX-License-Identifier: Apache-2.0
"""Pieces of files compressed by zstd: Python's own module from 3.14 on, before that the package ``zstandard``."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from portcall.extras import EXTRAS

MOST_BYTES = 16 << 20  # that one piece unpacks to
_WINDOW_LOG = 24  # of what is read: 16 MiB, all that a piece can refer back to
_OWN = sys.version_info >= (3, 14)
_PACKAGE = "compression.zstd" if _OWN else "zstandard"


@functools.cache
def is_available() -> bool:
    """Return whether this Python can use zstd."""
    return importlib.util.find_spec(_PACKAGE) is not None


def packer() -> Callable[[bytes | memoryview], bytes]:
    """Return a function that makes one frame of bytes.

    Raises:
        ModuleNotFoundError: this Python has no zstd.
    """
    zstd = _library()
    pack: Callable[[bytes | memoryview], bytes] = zstd.compress if _OWN else zstd.ZstdCompressor().compress
    return pack


def decompress(packed: bytes, size: int) -> bytes:
    """Return the content of one frame, for which no more memory is used than the ``size`` bytes that it must have.

    Raises:
        ValueError: it has another size, or is not a frame.
    """
    if not 0 <= size <= MOST_BYTES:
        raise ValueError(f"invalid size {size} of a compressed piece (must be 0-{MOST_BYTES} bytes)")
    zstd = _library()
    try:
        data: bytes
        if _OWN:
            reader = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _WINDOW_LOG})
            data, whole = reader.decompress(packed, size + 1), reader.eof
        else:
            stream = zstd.ZstdDecompressor(max_window_size=1 << _WINDOW_LOG).stream_reader(packed)
            data, whole = stream.read(size + 1), True
    except zstd.ZstdError as error:
        raise ValueError(f"a compressed piece cannot be read: {error}") from None
    if len(data) != size or not whole:
        more = "more than " if len(data) > size else ""
        raise ValueError(f"a compressed piece has {more}{min(len(data), size)} bytes instead of {size}")
    return data


def _library() -> Any:
    if not is_available():
        command = EXTRAS["zstd"].command
        raise ModuleNotFoundError(f"zstd needs the package zstandard: {command}", name=_PACKAGE)
    return importlib.import_module(_PACKAGE)
