# SPDX-License-Identifier: Apache-2.0
"""Files by content: what one session sent, another of the same credential need not send again.

For portcall clients, all ``portcall.rpc.``; ``sample`` is what ``client/_contents.py`` computes, ``digest`` SHA-256:

    content_find(size, sample) -> "complete", "part" or ""    what the server has
    content_take(path, size, sample, digest) -> bool          gives the file this content, if it is there
    content_begin(path, size, sample)                         keeps what has come so far of a file
    content_resume(path, size, sample) -> size                gives the file what an earlier session had sent of it
    content_keep(path, sample)                                keeps a whole file

A file that is kept has no digest at first: that of a large one is found in the background, others when they are asked
for.

A kept file and that of a session are the same file on the disk, so neither costs anything. Native code of a session may
write into it: so what was taken is copied before it is loaded, and the copy must have the digest that was asked for.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import re
import threading
from pathlib import Path

from portcall._function import register_func
from portcall.rpc.server._files import Folder, check_kind
from portcall.rpc.wire._digests import LARGE, Background, digest_of

_HEX = re.compile(r"[0-9a-f]{64}")
_MOST_BYTES = 2 << 30  # of all that is kept, unless the sessions' own limit is given
_MOST_FILES = 256  # each upload looks at all of them


class Contents:
    """What a session's client may do with contents.

    Args:
        folder: the session's directory.
        store: the folder for those with this client's credential.
        limit: bytes that they may take together; the least recently used go first.
    """

    def __init__(self, folder: Folder, store: str, limit: int = 0) -> None:
        self._folder = folder
        self._store = Path(store)
        self._limit = limit or _MOST_BYTES
        self._locks: dict[str, int] = {}  # of parts, by the paths where this session writes them
        self._unnamed: queue.SimpleQueue[Path] = queue.SimpleQueue()  # files, of which one at a time is open
        self._naming: Background | None = None

    def content_find(self, size: int, sample: str) -> str:
        stem = _stem(size, sample)
        kept = self._kept(stem)
        if any(name != f"{stem}.part" for name in kept):
            return "complete"
        return "part" if kept else ""

    def content_take(self, path: str, size: int, sample: str, digest: str) -> bool:
        stem = _stem(size, sample)
        kept = self._store / f"{stem}-{_hex(digest)}"
        for name in self._kept(stem):
            if name.startswith(f"{stem}.") and name != f"{stem}.part":
                _name_by_digest(self._store / name)
        with contextlib.suppress(FileNotFoundError):
            self._link(kept, path)
            os.utime(kept)
            self._folder.taken[_identity(kept)] = digest
            return True
        return False

    def content_begin(self, path: str, size: int, sample: str) -> None:
        self._keep(path, self._store / f"{_stem(size, sample)}.part")
        self._lock(path, self._folder.path(path))

    def content_resume(self, path: str, size: int, sample: str) -> int:
        part = self._store / f"{_stem(size, sample)}.part"
        try:
            if not self._lock(path, part):
                return 0
            self._link(part, path)
            return part.stat().st_size
        except FileNotFoundError:
            return 0

    def content_keep(self, path: str, sample: str) -> None:
        facts = os.stat(self._folder.checked(path))
        stem = _stem(facts.st_size, sample)
        new = self._store / f"{stem}.{facts.st_ino}"
        self._keep(path, new)
        (self._store / f"{stem}.part").unlink(missing_ok=True)
        self._unlock(path)
        self._make_room()
        if facts.st_size > LARGE:
            self._unnamed.put(new)
            self._naming = self._naming or Background(self._name_all)

    def _kept(self, stem: str) -> list[str]:
        """Names of files: ``stem-digest``, ``stem.inode`` of one without a digest, ``stem.part``."""
        with contextlib.suppress(FileNotFoundError):
            return [name for name in os.listdir(self._store) if name.startswith(stem)]
        return []

    def _name_all(self, stop: threading.Event) -> None:
        while True:
            with contextlib.suppress(OSError):
                _name_by_digest(self._unnamed.get(), stop)

    def _keep(self, path: str, kept: Path) -> None:
        """Give a file of the session a second name among what is kept."""
        whole = self._folder.checked(path)
        self._store.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.own_links.add(_identity(Path(whole)))
        beside = self._store / f"new-{os.getpid()}"
        beside.unlink(missing_ok=True)  # a session with this number that was killed
        os.link(whole, beside, follow_symlinks=False)
        beside.replace(kept)  # at once: another session may keep the same content now
        beside.unlink(missing_ok=True)  # it stays if both names were those of one file

    def _link(self, kept: Path, path: str) -> None:
        """Give what is kept a name in the session's directory."""
        facts = kept.stat(follow_symlinks=False)
        self._folder.check_room(facts.st_size)
        with self._folder.parent(path) as (folder, name):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)
            self._folder.own_links.add((facts.st_dev, facts.st_ino))
            os.link(kept, name, dst_dir_fd=folder, follow_symlinks=False)

    def _lock(self, path: str, part: str | Path) -> bool:
        """Have a part for this session alone, until it is whole or the session ends."""
        self._unlock(path)
        file = os.open(part, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        self._locks[path] = file
        return True

    def _unlock(self, path: str) -> None:
        """Close the file, which would take its room on the disk after it was deleted."""
        if path in self._locks:
            os.close(self._locks.pop(path))

    def _make_room(self) -> None:
        entries = []
        with os.scandir(self._store) as found:
            for entry in found:
                with contextlib.suppress(FileNotFoundError):  # another session makes room, too
                    facts = entry.stat(follow_symlinks=False)
                    entries.append((facts.st_mtime_ns, facts.st_size, entry.path))
        used = sum(size for _, size, _ in entries)
        for left, (_, size, path) in zip(range(len(entries), 0, -1), sorted(entries), strict=True):
            if used <= self._limit and left <= _MOST_FILES:
                return
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            used -= size


def register_contents(folder: Folder, store: str, limit: int) -> None:
    """Register the functions for the session with that directory, once for each process."""
    contents = Contents(folder, store, limit)
    for name in ("find", "take", "begin", "resume", "keep"):
        register_func(f"portcall.rpc.content_{name}", getattr(contents, f"content_{name}"), override=True)


def _name_by_digest(new: Path, stop: threading.Event | None = None) -> None:
    """Give a kept file the name that it has for those who ask for it."""
    with contextlib.suppress(FileNotFoundError), new.open("rb") as file:  # it may have gone, or have that name already
        new.rename(new.with_name(f"{new.stem}-{digest_of(file.fileno(), stop)}"))


def _identity(path: Path) -> tuple[int, int]:
    facts = path.stat(follow_symlinks=False)
    return facts.st_dev, facts.st_ino


def _stem(size: int, sample: str) -> str:
    check_kind(size, int, "a size")
    return f"{max(size, 0)}-{_hex(sample)}"


def _hex(text: str) -> str:
    check_kind(text, str, "a digest")
    if not _HEX.fullmatch(text):
        raise ValueError(f"invalid digest {text[:80]!r} (must be 64 hexadecimal digits)")
    return text
