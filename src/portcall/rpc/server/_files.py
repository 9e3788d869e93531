# SPDX-License-Identifier: Apache-2.0
"""The files of a session: functions that its client calls by name, none of which reaches outside its directory.

For TVM and portcall clients, all ``tvm.rpc.server.``:

    upload(path, bytes)     download(path) -> bytes     remove(path)     listdir(path) -> names, separated by commas
    workpath(path) -> absolute path     load_module(path) -> module     download_linked_module(path) -> bytes

For portcall clients, which send and fetch files in pieces, all ``portcall.rpc.``:

    file_write(path, offset, data) -> size    appends bytes, or those of a tensor, at ``offset``, which must be the
                                              file's present size; offset 0 begins a new file, so that a library that
                                              is loaded stays whole
    file_write_zstd(path, offset, packed, size) -> size    appends the ``size`` bytes that a zstd frame has; only where
                                              this Python has zstd
    file_read(path, offset, most) -> bytes    empty at the end
    file_fill(path, offset, tensor) -> count  the same into a tensor, which is how much is wanted
    file_size(path) -> bytes
    file_digest(path) -> SHA-256 as hex
    machine(path, needs) -> JSON              what this machine is; given the needs of a library, which of them are not
                                              met for one at ``path``, without loading anything

Rules:

* A path is relative to the directory, or absolute within it. ``..`` is refused, and links are not followed: each step
  is opened from the one before it.
* Only ordinary files with one name are opened. Archives give ordinary files and folders, or an error.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from portcall import toolchain
from portcall._archive import members_of, open_archive
from portcall._core import memory_of
from portcall._function import register_func
from portcall._module import Module, load_module
from portcall._tensor import Tensor
from portcall.inspect._machine import Needs, from_json, this_machine, to_json, unmet_here
from portcall.rpc.server._directories import delete_tree, disk_usage
from portcall.rpc.wire import _zstd
from portcall.rpc.wire._digests import digest_of

_COPY_CHUNK = 1 << 20
_SMALLEST = 512  # bytes that a file takes at least
MOST_DEPTH = 64  # folders in each other that an archive may have
_LIBRARIES = (".so", ".dylib")
_SOURCES = (".c", ".cc", ".cpp", ".cxx")
_LINKED = (".o", ".a")


class Folder:
    """A directory that nothing leads out of.

    Parameters:
        root: its absolute path.
        limit: bytes that its files may take; 0 for no limit.

    Attributes:
        own_links: files that may have a second name, which is where contents are kept: (device, inode).
        taken: of these, those that another session sent, with the SHA-256 that was asked for.
    """

    def __init__(self, root: str, limit: int = 0) -> None:
        self.root = os.path.realpath(root)
        self._limit = limit
        self.own_links: set[tuple[int, int]] = set()
        self.taken: dict[tuple[int, int], str] = {}
        self._fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)

    def close(self) -> None:
        os.close(self._fd)

    def inside(self, path: str) -> tuple[str, ...]:
        """Return the steps of a path from the root on; none for the root itself.

        Raises:
            PermissionError: the path leads outside.
        """
        check_kind(path, str, "a path")
        if "\0" in path:
            raise ValueError("a path has a NUL character in it")
        if path.startswith("/"):
            if path != self.root and not path.startswith(self.root + "/"):
                raise PermissionError(f"'{path}' is outside of the session's directory; use a relative path")
            path = path[len(self.root) :]
        steps = tuple(step for step in path.split("/") if step not in ("", "."))
        if ".." in steps:
            raise PermissionError(f"'{path}' may lead outside of the session's directory: leave out '..'")
        return steps

    def path(self, path: str) -> str:
        """Return the absolute path of a name inside."""
        return os.path.join(self.root, *self.inside(path))

    @contextlib.contextmanager
    def parent(self, path: str) -> Iterator[tuple[int, str]]:
        """Open the folder that a path is in; gives its descriptor and the last step.

        Raises:
            OSError: there is no such folder, or a link on the way.
        """
        steps = self.inside(path)
        if not steps:
            raise IsADirectoryError(errno.EISDIR, "this is the session's directory, not a file in it", path)
        folder = self._open_folder(steps[:-1], path)
        try:
            yield folder, steps[-1]
        finally:
            os.close(folder)

    def _open_folder(self, steps: tuple[str, ...], path: str) -> int:
        folder = os.dup(self._fd)
        for step in steps:
            try:
                following = os.open(step, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            except NotADirectoryError:  # which a link is, too
                raise PermissionError(f"'{path}': '{step}' is not a folder") from None
            except FileNotFoundError:
                raise FileNotFoundError(errno.ENOENT, f"cannot find folder '{step}' of '{path}'") from None
            finally:
                os.close(folder)
            folder = following
        return folder

    def open(self, path: str, flags: int) -> int:
        """Open an ordinary file, and return its descriptor.

        Raises:
            FileNotFoundError: it does not exist.
            PermissionError: it is something else: a link, a device, a pipe, a file with another name elsewhere.
        """
        with self.parent(path) as (folder, name):
            try:
                file = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600, dir_fd=folder)
            except FileNotFoundError:
                raise FileNotFoundError(errno.ENOENT, f"cannot find file '{path}' in the session's directory") from None
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENXIO):
                    raise PermissionError(f"'{path}' is a link or not an ordinary file") from None
                raise OSError(error.errno, f"cannot open '{path}': {error.strerror}") from None
        facts = os.fstat(file)
        identity = facts.st_dev, facts.st_ino
        changed = flags & (os.O_WRONLY | os.O_RDWR) and identity in self.taken
        if not stat.S_ISREG(facts.st_mode) or changed or (facts.st_nlink > 1 and identity not in self.own_links):
            os.close(file)
            raise PermissionError(f"'{path}' is not an ordinary file")
        return file

    def create(self, path: str) -> int:
        """Begin a new file in the place of what has that name: who uses the old one goes on with that."""
        with self.parent(path) as (folder, name):
            with contextlib.suppress(FileNotFoundError):
                try:
                    os.unlink(name, dir_fd=folder)
                except (IsADirectoryError, PermissionError):
                    raise IsADirectoryError(errno.EISDIR, f"cannot write '{path}': it is a folder") from None
            return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it, where they are missing."""
        steps = self.inside(path)
        for end in range(1, len(steps) + 1):
            folder = self._open_folder(steps[: end - 1], path)
            try:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(steps[end - 1], 0o700, dir_fd=folder)
            finally:
                os.close(folder)

    def used(self) -> int:
        """Return the bytes that its files take, as far as that matters for the limit."""
        return disk_usage(self.root, self._limit) if self._limit else 0

    def check_room(self, nbytes: int, used: int | None = None) -> None:
        """Raise OSError (no space) where that many more bytes are over the limit; ``used`` saves counting again."""
        if not self._limit:
            return
        used = self.used() if used is None else used
        if used + nbytes > self._limit:
            raise OSError(
                errno.ENOSPC,
                f"no room: the session's files take {used} bytes, {nbytes} more are over the limit of "
                f"{self._limit} bytes (--disk-limit)",
            )

    def verify(self, path: str) -> None:
        """Replace a file that was taken by a copy of its own, which has the content that was asked for.

        Raises:
            ValueError: it has not: somebody wrote into it.
        """
        whole = self.checked(path)
        facts = os.stat(whole)
        digest = self.taken.get((facts.st_dev, facts.st_ino))
        if digest is None:
            return
        found = hashlib.sha256()
        handle, copy = tempfile.mkstemp(prefix=".copy-", dir=self.root)
        with open(whole, "rb") as source, open(handle, "wb") as target:
            while piece := source.read(_COPY_CHUNK):
                found.update(piece)
                target.write(piece)
            os.fchmod(target.fileno(), 0o400)
        if found.hexdigest() == digest:
            os.replace(copy, whole)
            return
        os.unlink(copy)
        os.unlink(whole)
        raise ValueError(f"'{path}' was changed on the server after it had been sent; upload it again")

    def checked(self, path: str) -> str:
        """Return the absolute path of an ordinary file, for code that opens it by name."""
        os.close(self.open(path, os.O_RDONLY))
        return self.path(path)


# ---- Reading and writing ------------------------------------------------------------------------------------------


class Files:
    """What the client of a session may do with its files."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def upload(self, path: str, data: bytes | str) -> None:
        self.file_write(path, 0, data)

    def download(self, path: str) -> bytes:
        with self._reading(path) as file:
            return read_exactly(file, 0, os.fstat(file).st_size)

    def remove(self, path: str) -> None:
        if not self._folder.inside(path):
            return  # TVM's tuner ends each session so; its directory goes with it anyway
        with self._folder.parent(path) as (folder, name), contextlib.suppress(FileNotFoundError):
            try:
                os.unlink(name, dir_fd=folder)
            except (IsADirectoryError, PermissionError):
                raise IsADirectoryError(errno.EISDIR, f"cannot remove '{path}': it is a folder") from None

    def listdir(self, path: str = "") -> str:
        folder = self._folder._open_folder(self._folder.inside(path), path)
        try:
            return ",".join(sorted(os.listdir(folder)))
        finally:
            os.close(folder)

    def workpath(self, path: str = "") -> str:
        return self._folder.path(path)

    def file_write(self, path: str, offset: int, data: bytes | str | Tensor) -> int:
        if isinstance(data, str):  # which is what some clients make of text
            data = data.encode()
        if not isinstance(data, Tensor):
            check_kind(data, bytes, "the contents of a file")
        check_kind(offset, int, "an offset")
        rest = memory_of(data) if isinstance(data, Tensor) else memoryview(data)
        if offset == 0:
            self._folder.check_room(len(rest))
            file = self._folder.create(path)
        else:
            file = self._folder.open(path, os.O_WRONLY)
        try:
            size = os.fstat(file).st_size
            if offset != size:
                raise ValueError(f"'{path}' has {size} bytes; the next piece begins there, not at {offset}")
            if offset:
                self._folder.check_room(len(rest))
            while rest:
                written = os.pwrite(file, rest, offset)
                offset, rest = offset + written, rest[written:]
        finally:
            os.close(file)
        return offset

    def file_write_zstd(self, path: str, offset: int, packed: bytes, size: int) -> int:
        check_kind(packed, bytes, "a compressed piece")
        check_kind(size, int, "the size of a piece")
        return self.file_write(path, offset, _zstd.decompress(packed, size))

    def file_read(self, path: str, offset: int, most: int) -> bytes:
        check_kind(offset, int, "an offset")
        check_kind(most, int, "a number of bytes")
        if offset < 0 or most < 0:
            raise ValueError(f"cannot read {most} bytes from offset {offset}")
        with self._reading(path) as file:
            return read_exactly(file, offset, min(most, max(0, os.fstat(file).st_size - offset)))

    def file_fill(self, path: str, offset: int, target: Tensor) -> int:
        check_kind(offset, int, "an offset")
        check_kind(target, Tensor, "what to fill")
        rest = memory_of(target)
        with self._reading(path) as file:
            while rest and (count := os.preadv(file, [rest], offset + target.nbytes - len(rest))):
                rest = rest[count:]
        return target.nbytes - len(rest)

    def file_size(self, path: str) -> int:
        with self._reading(path) as file:
            return os.fstat(file).st_size

    def file_digest(self, path: str) -> str:
        with self._reading(path) as file:
            return digest_of(file)

    def machine(self, path: str = "", needs: str = "") -> str:
        check_kind(needs, str, "a library's needs")
        answer: dict[str, object] = {"machine": this_machine()}
        if needs:
            answer["unmet"], _ = unmet_here(Needs.from_dict(from_json(needs)), Path(self._folder.path(path)))
        return to_json(answer)

    @contextlib.contextmanager
    def _reading(self, path: str) -> Iterator[int]:
        file = self._folder.open(path, os.O_RDONLY)
        try:
            yield file
        finally:
            os.close(file)

    # ---- Modules ----

    def load_module(self, path: str) -> Module:
        return load_module(self._link(path))

    def download_linked_module(self, path: str) -> bytes:
        return self.download(self._link(path))

    def _link(self, path: str) -> str:
        """Return the path of a shared library, made of what ``path`` holds unless it is one.

        Raises:
            ValueError: files of that kind are not linked.
            CompileError: the compiler said no; the message has its words.
        """
        whole = self._folder.checked(path)
        self._folder.verify(path)
        suffix = os.path.splitext(path)[1]
        if suffix in _LIBRARIES:
            return whole
        self._folder.check_room(os.stat(whole).st_size)
        if suffix == ".tar":
            place = tempfile.mkdtemp(prefix=".unpacked-", dir=self._folder.root)
            try:
                return str(toolchain.create_shared(unpack(Path(whole), Path(place), self._folder), whole + ".so"))
            finally:
                delete_tree(place)
        if suffix in (*_LINKED, *_SOURCES):
            return str(toolchain.create_shared(whole, whole + ".so"))
        known = " ".join((*_LIBRARIES, ".tar", *_LINKED, *_SOURCES))
        raise ValueError(f"cannot load '{path}': unknown kind '{suffix}' (expected {known})")


def check_kind(value: object, kind: type, what: str) -> None:
    """Refuse an argument that a client sent with a wrong type."""
    if not isinstance(value, kind):
        raise TypeError(f"{what} is {kind.__name__}, not {type(value).__name__}")


def read_exactly(file: int, offset: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (piece := os.pread(file, min(_COPY_CHUNK, size - len(data)), offset + len(data))):
        data += piece
    return bytes(data)


def unpack(archive: Path, place: Path, folder: Folder) -> list[Path]:
    """Unpack an archive into an empty folder, and return what is to be compiled and linked.

    Raises:
        ValueError: it is not an archive, holds something other than ordinary files and folders, or nothing to link.
        PermissionError: a name in it leads outside.
    """
    inside = Folder(str(place))
    used, unpacked = folder.used(), 0
    try:
        with open_archive(archive, archive.name) as members:
            for member in members_of(members):
                unpacked += max(member.size, _SMALLEST)
                folder.check_room(unpacked, used)
                if member.isdir():
                    inside.make_folder(relative(member.name))
                elif member.isreg():
                    inside.make_folder(os.path.dirname(relative(member.name)))
                    source = members.extractfile(member)
                    assert source is not None
                    with source, os.fdopen(inside.create(member.name), "wb") as target:
                        shutil.copyfileobj(source, target, _COPY_CHUNK)
                else:
                    raise ValueError(f"'{archive.name}' holds '{member.name}', which is not an ordinary file")
    finally:
        inside.close()
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


def register(directory: str, limit: int) -> Folder:
    """Register the functions for the session whose directory this is, and return it; one for each process."""
    folder = Folder(directory, limit)
    files = Files(folder)
    for name in ("upload", "download", "remove", "listdir", "workpath", "load_module", "download_linked_module"):
        register_func(f"tvm.rpc.server.{name}", getattr(files, name), override=True)
    for name in ("file_write", "file_read", "file_fill", "file_size", "file_digest", "machine"):
        register_func(f"portcall.rpc.{name}", getattr(files, name), override=True)
    if _zstd.is_available():
        register_func("portcall.rpc.file_write_zstd", files.file_write_zstd, override=True)
    return folder
