# SPDX-License-Identifier: Apache-2.0
"""Read tar archives, compressed or not, and notice one that was cut off."""

from __future__ import annotations

import contextlib
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from portcall._input import open_input

try:
    from lzma import LZMAError
except ImportError:  # a Python that was compiled without it reads none of these archives
    from zlib import error as LZMAError  # type: ignore[assignment]

_BLOCK = 512
_CHUNK = 1 << 20


@contextlib.contextmanager
def open_archive(source: Path | IO[bytes], name: str) -> Iterator[tarfile.TarFile]:
    """Open an archive; errors name it ``name``.

    Raises:
        ValueError: it is not an archive, or was not copied whole; also from within the block.
    """
    try:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(open_input(source)) if isinstance(source, Path) else source
            yield stack.enter_context(tarfile.open(fileobj=file))
    except (tarfile.TarError, EOFError, zlib.error, LZMAError) as error:
        why = str(error).partition("\n")[0].removesuffix(":")
        raise ValueError(f"'{name}' is not a tar archive, or was not copied whole: {why}") from None


def members_of(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members of an archive, and check that the archive is complete.

    Raises:
        tarfile.ReadError, EOFError: it was cut off.
    """
    yield from archive
    file = archive.fileobj
    assert file is not None
    file.seek(archive.offset)
    if len(file.read(_BLOCK)) < _BLOCK:  # an archive ends with two empty blocks
        raise tarfile.ReadError("its end is missing")
    while file.read(_CHUNK):  # what is compressed has its checksum in the end
        pass
