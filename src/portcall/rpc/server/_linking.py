# SPDX-License-Identifier: Apache-2.0
"""Make shared libraries of what a client sent: objects, sources, archives of those.

Archives give ordinary files and folders, or an error.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Protocol

from portcall import toolchain
from portcall._archive import members_of, open_archive
from portcall.rpc.server._directories import delete_tree
from portcall.rpc.server._session import LIBRARIES

_COPY_CHUNK = 1 << 20
_SMALLEST = 512  # bytes that a file takes at least
MOST_DEPTH = 64  # folders in each other that an archive may have
_SOURCES = (".c", ".cc", ".cpp", ".cxx")
_LINKED = (".o", ".a")


class Files(Protocol):
    """The files of a session: where they lie, and how many bytes they may take."""

    root: str
    used: Any
    check_room: Any


def link(path: str, whole: str, files: Files) -> str:
    """Return the path of the shared library that is made of the file ``path`` of a session, which is ``whole`` here.

    Raises:
        ValueError: files of that kind are not linked.
        CompileError: the compiler said no; the message has its words.
    """
    suffix = os.path.splitext(path)[1]
    files.check_room(os.stat(whole).st_size, files.used())
    if suffix == ".tar":
        place = tempfile.mkdtemp(prefix=".unpacked-", dir=files.root)
        try:
            return str(toolchain.create_shared(unpack(Path(whole), Path(place), files), whole + ".so"))
        finally:
            delete_tree(place)
    if suffix in (*_LINKED, *_SOURCES):
        return str(toolchain.create_shared(whole, whole + ".so"))
    known = " ".join((*LIBRARIES, ".tar", *_LINKED, *_SOURCES))
    raise ValueError(f"cannot load '{path}': unknown kind '{suffix}' (expected {known})")


def unpack(archive: Path, place: Path, files: Files) -> list[Path]:
    """Unpack an archive into an empty folder, and return what is to be compiled and linked.

    Raises:
        ValueError: it is not an archive, holds something other than ordinary files and folders, or nothing to link.
        PermissionError: a name in it leads outside.
    """
    used, unpacked = files.used(), 0
    with open_archive(archive, archive.name) as members:
        for member in members_of(members):
            unpacked += max(member.size, _SMALLEST)
            files.check_room(unpacked, used)
            target = place / relative(member.name)
            if member.isdir():
                target.mkdir(0o700, parents=True, exist_ok=True)
            elif member.isreg():
                target.parent.mkdir(0o700, parents=True, exist_ok=True)
                source = members.extractfile(member)
                assert source is not None
                with source, target.open("wb") as file:
                    shutil.copyfileobj(source, file, _COPY_CHUNK)
            else:
                raise ValueError(f"'{archive.name}' holds '{member.name}', which is not an ordinary file")
    found = sorted(path for path in place.rglob("*") if path.suffix in (*_LINKED, *_SOURCES) and path.is_file())
    if not found:
        raise ValueError(f"'{archive.name}' holds nothing to link: {' '.join((*_LINKED, *_SOURCES))}")
    return found


def relative(name: str) -> str:
    """Return a member's name if it cannot lead outside of where it is unpacked."""
    if name.startswith("/") or ".." in name.split("/"):
        raise PermissionError(f"the archive's member '{name}' leads outside")
    if name.count("/") > MOST_DEPTH:
        raise ValueError(f"the archive's member '{name[:80]}…' lies in more than {MOST_DEPTH} folders")
    return name
