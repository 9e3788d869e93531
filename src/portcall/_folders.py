# SPDX-License-Identifier: Apache-2.0
"""Folders of running processes, those that killed processes left behind, and caches.

A process keeps a lock on its folder as long as it lives, so one without a lock belongs to no process. What is in
a cache is run, so it is used only where no other user can put anything (core/devices/binary_cache.cc has the same
rule).
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def cache_folder(name: str) -> Path:
    """Return ``$XDG_CACHE_HOME/portcall/NAME`` (``~/.cache/portcall/NAME``), made for this user alone if need be.

    Raises:
        PermissionError: another user could put files there.
        OSError: it cannot be made.
    """
    home = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(home):  # to be ignored, the rules say
        home = os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(home)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_private(folder, shared=True)
        for part in ("portcall", name):
            folder /= part
            folder.mkdir(mode=0o700, exist_ok=True)
            _check_private(folder)
    except OSError as error:
        if error.filename is None:  # one of ours
            raise
        remedy = "set XDG_CACHE_HOME to a folder of yours"
        raise OSError(error.errno, f"no cache can be kept there: {error.strerror}; {remedy}", str(folder)) from None
    return folder


def _check_private(folder: Path, shared: bool = False) -> None:
    """Refuse a folder that others can write to; a ``shared`` one may be like /tmp, where each user has files.

    Raises:
        PermissionError: they can; the message says what to do.
    """
    found, us = os.stat(folder), os.geteuid()
    owners = {found.st_uid, os.lstat(folder).st_uid} - {us, *((0,) if shared else ())}
    why = f"user {min(owners)} owns it" if owners else ""
    if not why and found.st_mode & 0o022 and not (shared and found.st_mode & stat.S_ISVTX):
        why = "others can write to it"
    if why:
        remedy = "set XDG_CACHE_HOME to a folder of yours"
        remedy += "" if owners else f", or say: chmod go-w '{folder}', after a look at what is in it"
        raise PermissionError(f"the cache in '{folder}' is not used, for what is in it would be run: {why}; {remedy}")


def make_locked_folder(prefix: str, place: str | os.PathLike[str] = "") -> tuple[str, int]:
    """Make a folder in ``place``, the system's for such when empty.

    Returns:
        Its path, and a descriptor that holds the lock until it is closed.

    Raises:
        OSError: there is no such place, or no room in it; its file is the place.
    """
    place = os.fspath(place) or tempfile.gettempdir()
    while True:
        try:
            folder = tempfile.mkdtemp(prefix=prefix, dir=place)
        except OSError as error:
            raise OSError(error.errno, f"no folder can be made there: {error.strerror}", place) from None
        with contextlib.suppress(FileNotFoundError):  # another process takes it for one that was left behind
            descriptor = os.open(folder, _FOLDER)
            if _lock(descriptor, True) and os.path.exists(folder):
                return folder, descriptor
            os.close(descriptor)


def abandoned_folders(prefix: str, place: str | os.PathLike[str] = "") -> Iterator[str]:
    """Give the folders of processes of this user that were killed; each stays locked until the next is asked for."""
    parent = place or tempfile.gettempdir()
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(parent)):
            if not name.startswith(prefix):
                continue
            path = os.path.join(parent, name)
            with contextlib.suppress(OSError):
                descriptor = os.open(path, _FOLDER)
                try:
                    if os.fstat(descriptor).st_uid == os.getuid() and _lock(descriptor, False):
                        yield path
                finally:
                    os.close(descriptor)


def remove_abandoned(prefix: str, place: str | os.PathLike[str] = "") -> None:
    for folder in abandoned_folders(prefix, place):
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def working_folder(prefix: str = "portcall-work-", place: str | os.PathLike[str] = "") -> Iterator[Path]:
    """Make a folder for a while. One that a killed process left behind goes when the next of its kind is made."""
    remove_abandoned(prefix, place)
    folder, descriptor = make_locked_folder(prefix, place)
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def folder_beside(path: Path) -> contextlib.AbstractContextManager[Path]:
    """Make a folder on the file system of a file that is to be written, for what is then renamed to it."""
    return working_folder(f".{path.name}.", path.parent)


def _lock(descriptor: int, unknown: bool) -> bool:
    """Lock a folder, or return False; ``unknown`` where the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return unknown
    return True
